//! The numbers of a module, whichever format holds them, a block of rows at a time.

use std::cell::RefCell;
use std::ops::Range;

use super::int4;
use crate::architecture::Module;
use crate::checkpoint::{Checkpoint, TensorReader, TensorSpec};
use crate::codec::fp8::{BLOCK, dequantize};
use crate::codec::{Float, Fp8Config};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::names::Shown;

/// Rows of a matrix `[out, in]`.
pub type Rows = Range<usize>;

/// Reads modules of one folder.
pub struct Values<'a> {
    checkpoint: &'a Checkpoint,
    fp8: Option<Fp8Config>,
    /// The AutoAWQ module that was read last: its blocks of rows are asked for one after the other.
    last: RefCell<Option<(String, int4::Awq)>>,
}

/// How a module is stored, for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stored {
    /// A type of numbers.
    Plain(Dtype),
    /// FP8 codes with scales.
    Fp8,
    /// Four-bit codes in words.
    Int4,
}

impl Stored {
    /// As headers spell it, or the format's name.
    pub fn name(self) -> &'static str {
        match self {
            Stored::Plain(dtype) => dtype.name(),
            Stored::Fp8 => "FP8",
            Stored::Int4 => "INT4",
        }
    }
}

impl<'a> Values<'a> {
    /// Of a folder; unknown quantizations are refused here, by name.
    ///
    /// # Errors
    /// Exit 3 for a quantization that cannot be turned back into numbers.
    pub fn of(checkpoint: &'a Checkpoint) -> Result<Self> {
        let config = checkpoint.config();
        let four_bits = config.quantization().is_some_and(int4::is_read);
        let fp8 = if four_bits { None } else { Fp8Config::of(config)? };
        Ok(Values { checkpoint, fp8, last: RefCell::new(None) })
    }

    /// How `module` is stored.
    pub fn stored(&self, module: &Module) -> Stored {
        let dtype = self.checkpoint.index().get(&module.source.tensor).map(|t| t.spec.dtype);
        match (dtype, module.source.tensor.rsplit_once('.')) {
            (_, Some((_, "weight_packed" | "qweight"))) => Stored::Int4,
            (Some(Dtype::F8_E4M3), _) => Stored::Fp8,
            (dtype, _) => Stored::Plain(dtype.unwrap_or(Dtype::BF16)),
        }
    }

    /// Rows `rows` of `module`; they begin and end at multiples of 128 or at the matrix's end.
    ///
    /// # Errors
    /// Read errors; exit 3 for scales that do not fit.
    pub fn rows(&self, module: &Module, rows: Rows) -> Result<Vec<f32>> {
        let source = &module.source;
        let at = rows.start + source.first_row..rows.end + source.first_row;
        match source.tensor.rsplit_once('.') {
            Some((name, "weight_packed")) => int4::packed(self.checkpoint, name, rows),
            Some((name, "qweight")) => self.awq(name, rows),
            _ => self.plain(module, at),
        }
    }

    fn awq(&self, name: &str, rows: Rows) -> Result<Vec<f32>> {
        let mut last = self.last.borrow_mut();
        if last.as_ref().is_none_or(|(n, _)| n != name) {
            *last = Some((name.to_string(), int4::Awq::read(self.checkpoint, name)?));
        }
        Ok(last.as_ref().map(|(_, awq)| awq.rows(rows)).unwrap_or_default())
    }

    fn plain(&self, module: &Module, rows: Rows) -> Result<Vec<f32>> {
        let name = &module.source.tensor;
        let spec = &self.checkpoint.index().get(name).ok_or_else(|| crate::checkpoint::no_tensor(name))?.spec;
        let bytes = self.checkpoint.read_rows(name, rows.clone())?;
        let (Dtype::F8_E4M3, Some(fp8)) = (spec.dtype, &self.fp8) else { return floats(spec, &bytes) };
        let scale = match name.strip_suffix(".weight") {
            Some(module) => format!("{module}.{}", fp8.scale_leaf()),
            None => format!("{name}_scale_inv"),
        };
        let scales = &self.checkpoint.index().get(&scale).ok_or_else(|| lacks(&scale))?.spec;
        // Of a stack the scales of the expert at hand; its rows are whole blocks.
        let (first, count) = match spec.shape[..] {
            [_, down, across] => {
                let grid = fp8.grid.scales(down, across);
                (rows.start / down * grid.0 * grid.1, Some(grid.0 * grid.1))
            }
            _ => (0, None),
        };
        let all = floats(scales, &self.checkpoint.read(&scale)?)?;
        let of_module = all.get(first..).and_then(|s| s.get(..count.unwrap_or(s.len())));
        let of_module = of_module.ok_or_else(|| lacks(&scale))?;
        let rows_of_scales = match spec.shape[..] {
            [_, down, _] => rows.start % down,
            _ => rows.start,
        };
        Ok(dequantize(&bytes, of_module, fp8.grid, (rows_of_scales, spec.cols())))
    }
}

/// Rows of a block: whole FP8 blocks, about 4 MiB of numbers.
pub fn block_rows(cols: usize) -> usize {
    ((1 << 20) / cols.max(1)).max(1).next_multiple_of(BLOCK)
}

/// Numbers of a plain type.
pub fn floats(spec: &TensorSpec, bytes: &[u8]) -> Result<Vec<f32>> {
    match Float::of(spec.dtype) {
        Some(float) => Ok(float.to_f32(bytes)),
        None => Err(Error::input(format!("tensor `{}` holds no plain numbers", Shown(&spec.name)))
            .found(spec.dtype.name())
            .expected("F32, F16 or BF16")),
    }
}

fn lacks(name: &str) -> Error {
    Error::input(format!("scales `{}` are missing or too few", Shown(name)))
        .hint("the folder is incomplete: fetch it again")
}
