//! FP8 checkpoints run as the numbers they stand for: to the last bit like the same model written out in f32.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use runner::dump::dump;
use runner::engine::Stop;
use runner::{Model, Options};
use serde_json::{Map, Value, json};

/// A tensor's name, dtype, shape and bytes.
type Tensor = (String, &'static str, Vec<usize>, Vec<u8>);

const CASE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/logits/qwen3_moe");

#[derive(Clone, Copy)]
enum Scheme {
    Block(&'static str),
    Channel,
    Whole,
}

/// The case's tensors, every projection replaced by codes and scales, or by the f32 numbers they stand for.
fn tensors(scheme: Scheme, written_out: bool) -> Vec<Tensor> {
    let bytes = std::fs::read(Path::new(CASE).join("model.safetensors")).unwrap();
    let head = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let json: Map<String, Value> = serde_json::from_slice(&bytes[8..head]).unwrap();
    let mut out = Vec::new();
    for (name, entry) in json.iter().filter(|(name, _)| *name != "__metadata__") {
        let shape: Vec<usize> = serde_json::from_value(entry["shape"].clone()).unwrap();
        let at: [usize; 2] = serde_json::from_value(entry["data_offsets"].clone()).unwrap();
        match name.strip_suffix("_proj.weight") {
            None => out.push((name.clone(), "BF16", shape, bytes[head + at[0]..head + at[1]].to_vec())),
            Some(_) => out.extend(quantized(name, &shape, scheme, written_out)),
        }
    }
    out
}

fn quantized(name: &str, shape: &[usize], scheme: Scheme, written_out: bool) -> Vec<Tensor> {
    let (rows, cols) = (shape[0], shape[1]);
    let (block, suffix) = match scheme {
        Scheme::Block(suffix) => ([128, 128], suffix),
        Scheme::Channel => ([1, cols], "weight_scale"),
        Scheme::Whole => ([rows, cols], "weight_scale"),
    };
    let grid = [rows.div_ceil(block[0]), cols.div_ceil(block[1])];
    let salt = name.len() + rows;
    // Never the NaN code; large and small ones of both signs.
    let code = |i: usize| ((i * 131 + salt * 17) % 256) as u8 & 0xbe;
    let scale = |i: usize| 0.01 + ((i * 7 + salt) % 5) as f32 * 0.003;
    let at = |r: usize, c: usize| r / block[0] * grid[1] + c / block[1];
    if written_out {
        let numbers = (0..rows * cols).map(|i| e4m3(code(i)) * scale(at(i / cols, i % cols)));
        return vec![(name.into(), "F32", shape.to_vec(), numbers.flat_map(f32::to_le_bytes).collect())];
    }
    let scale_name = format!("{}{suffix}", name.strip_suffix("weight").unwrap());
    let scales = (0..grid[0] * grid[1]).flat_map(|i| scale(i).to_le_bytes()).collect();
    let scale_shape = if matches!(scheme, Scheme::Whole) { vec![1] } else { grid.to_vec() };
    vec![
        (name.into(), "F8_E4M3", shape.to_vec(), (0..rows * cols).map(code).collect()),
        (scale_name, "F32", scale_shape, scales),
    ]
}

fn e4m3(code: u8) -> f32 {
    let (e, m) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let size = if e == 0 { m / 512.0 } else { (1.0 + m / 8.0) * 2f32.powi(e - 7) };
    if code < 128 { size } else { -size }
}

fn write(dir: &Path, tensors: &[Tensor], quantization: Option<Value>) {
    let mut header = Map::new();
    let mut end = 0;
    for (name, dtype, shape, bytes) in tensors {
        let at = [end, end + bytes.len()];
        header.insert(name.clone(), json!({"dtype": dtype, "shape": shape, "data_offsets": at}));
        end += bytes.len();
    }
    let mut head = Value::Object(header).to_string();
    // No padding to 8: tensors may lie anywhere.
    head.push_str(&" ".repeat(1 + head.len() % 2));
    let mut file = (head.len() as u64).to_le_bytes().to_vec();
    file.extend(head.bytes());
    tensors.iter().for_each(|t| file.extend(&t.3));
    std::fs::write(dir.join("model.safetensors"), file).unwrap();
    let text = std::fs::read_to_string(Path::new(CASE).join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    if let Some(q) = quantization {
        config["quantization_config"] = q;
    }
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
}

fn logits(tensors: &[Tensor], quantization: Option<Value>) -> verify::Result<Vec<f32>> {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), tensors, quantization);
    let model = Model::open(dir.path(), &Options { threads: Some(2) })?;
    Ok(dump(&model, &[3, 14, 15, 92, 65, 35], 4, &Stop::Never)?.logits)
}

fn block_fp8() -> Value {
    json!({"quant_method": "fp8", "weight_block_size": [128, 128]})
}

fn compressed(strategy: &str) -> Value {
    let weights = json!({"num_bits": 8, "type": "float", "strategy": strategy});
    let group = json!({"targets": ["Linear"], "format": "float-quantized", "weights": weights});
    json!({"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {"group_0": group}})
}

#[test]
fn every_scheme_runs_as_the_numbers_it_stands_for() {
    for (scheme, quantization) in [
        (Scheme::Block("weight_scale_inv"), block_fp8()),
        (Scheme::Block("weight_scale"), compressed("block")),
        (Scheme::Channel, compressed("channel")),
        (Scheme::Whole, compressed("tensor")),
    ] {
        let fp8 = logits(&tensors(scheme, false), Some(quantization.clone())).unwrap();
        let plain = logits(&tensors(scheme, true), None).unwrap();
        assert!(fp8.iter().all(|x| x.is_finite()));
        assert_eq!(fp8, plain, "{quantization}");
    }
}

#[test]
fn scales_too_large_for_the_kernels_still_count() {
    let huge = |written_out: bool| {
        let mut all = tensors(Scheme::Whole, written_out);
        for (name, _, _, bytes) in &mut all {
            let times = |b: &mut [u8; 4]| *b = (f32::from_le_bytes(*b) * 65536.0).to_le_bytes();
            let part = if written_out { "up_proj.weight" } else { "up_proj.weight_scale" };
            if name.ends_with(part) {
                bytes.as_chunks_mut::<4>().0.iter_mut().for_each(times);
            }
        }
        all
    };
    let fp8 = logits(&huge(false), Some(compressed("tensor"))).unwrap();
    assert_eq!(fp8, logits(&huge(true), None).unwrap());
}

#[test]
fn faulty_scales_are_named() {
    let with = |change: &dyn Fn(&mut Tensor), quantization: Option<Value>| {
        let mut all = tensors(Scheme::Block("weight_scale_inv"), false);
        let name = "model.layers.0.self_attn.q_proj.weight_scale_inv";
        change(all.iter_mut().find(|t| t.0 == name).unwrap());
        logits(&all, quantization).unwrap_err().to_string()
    };
    let zero = with(&|t| t.3.fill(0), Some(block_fp8()));
    assert!(zero.contains("q_proj.weight_scale_inv"), "{zero}");
    let shape = with(&|t| (t.2, t.3) = (vec![2, 1], vec![1; 8]), Some(block_fp8()));
    assert!(shape.contains("[2, 1]") && shape.contains("[1, 1]"), "{shape}");
    let gone = with(&|t| t.0 = "other".into(), Some(block_fp8()));
    assert!(gone.contains("q_proj.weight_scale"), "{gone}");
    let unsaid = with(&|_| {}, None);
    assert!(unsaid.contains("quantization_config"), "{unsaid}");
}
