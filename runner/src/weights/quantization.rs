//! `quantization_config`, as far as the runner reads it.

use serde_json::Value;
use verify::checkpoint::Config;
use verify::{Error, Result, Shown};

/// What a checkpoint says about its quantized matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantization {
    /// Nothing is quantized.
    None,
    /// FP8 e4m3 weights with scales; the matrix's own scale tensor says block, row or whole, and a block of a
    /// scale grid is this large.
    Fp8 {
        /// Rows and columns of a block.
        block: [usize; 2],
    },
}

impl Quantization {
    /// Reads the configuration.
    ///
    /// # Errors
    /// Exit 3 naming a method or format that this runner cannot read.
    pub fn parse(config: &Config) -> Result<Self> {
        let Some(q) = config.quantization() else { return Ok(Quantization::None) };
        let text = |v: &Value, key: &str| v.get(key).and_then(Value::as_str).unwrap_or_default().to_string();
        match text(q, "quant_method").as_str() {
            "fp8" => Ok(Quantization::Fp8 { block: block(config, q.get("weight_block_size"))? }),
            "compressed-tensors" => {
                let groups = q.get("config_groups").and_then(Value::as_object);
                let mut size = [128, 128];
                for group in groups.into_iter().flat_map(|g| g.values()) {
                    let format = match text(group, "format") {
                        f if f.is_empty() => text(q, "format"),
                        f => f,
                    };
                    if format != "float-quantized" {
                        return Err(refused(config, &format!("compressed-tensors `{format}`")));
                    }
                    size = block(config, group.pointer("/weights/block_structure"))?;
                }
                Ok(Quantization::Fp8 { block: size })
            }
            other => Err(refused(config, &format!("`{other}`"))),
        }
    }
}

fn block(config: &Config, value: Option<&Value>) -> Result<[usize; 2]> {
    let Some(value) = value.filter(|v| !v.is_null()) else { return Ok([128, 128]) };
    let sizes: Option<Vec<usize>> =
        value.as_array().and_then(|a| a.iter().map(|n| n.as_u64().map(|n| n as usize)).collect());
    match sizes.as_deref() {
        // Kernels step by 32 columns.
        Some(&[rows, cols]) if rows > 0 && cols > 0 && cols % 32 == 0 => Ok([rows, cols]),
        _ => Err(Error::input(format!("{}: the block size of FP8 weights", Shown::path(config.path())))
            .found(value.to_string())
            .expected("two sizes, the second a multiple of 32, such as [128, 128]")),
    }
}

fn refused(config: &Config, method: &str) -> Error {
    Error::input(format!(
        "{} is quantized by a method that the runner cannot read",
        Shown::path(config.path())
    ))
    .found(method.to_string())
    .expected("no quantization, `fp8`, or compressed-tensors `float-quantized`")
    .hint("run the unquantized checkpoint, or a served endpoint")
}
