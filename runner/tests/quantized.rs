//! Quantized checkpoints run as the numbers they stand for: like the same model written out in f32.

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
    /// compressed-tensors, a scale for each row; with zeros where true.
    Int4(bool),
    /// The same in eight bits.
    Int8(bool),
    /// In groups of eight inputs.
    Awq,
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
        Scheme::Int4(zeros) => return int4(name, rows, cols, zeros, written_out),
        Scheme::Int8(zeros) => return int8(name, rows, cols, zeros, written_out),
        Scheme::Awq => return awq(name, rows, cols, written_out),
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

/// Pseudo-random codes, zeros and scales of 4-bit weights.
fn code4(i: usize) -> u32 {
    ((i * 2_654_435_761) >> 7) as u32 & 15
}

fn zero4(i: usize) -> u32 {
    6 + (i % 4) as u32
}

fn scale4(i: usize) -> f32 {
    0.0078125 * (1 + i % 3) as f32
}

/// Words of the nibbles that `nibble(n)` gives for `n` in order.
fn words(count: usize, nibble: impl Fn(usize) -> u32) -> Vec<u8> {
    let word = |w: usize| (0..8).fold(0, |word, j| word | nibble(8 * w + j) << (4 * j));
    (0..count / 8).flat_map(|w| word(w).to_le_bytes()).collect()
}

fn written(name: &str, rows: usize, cols: usize, number: impl Fn(usize, usize) -> f32) -> Vec<Tensor> {
    let numbers = (0..rows * cols).flat_map(|i| number(i / cols, i % cols).to_le_bytes()).collect();
    vec![(name.into(), "F32", vec![rows, cols], numbers)]
}

fn int4(name: &str, rows: usize, cols: usize, zeros: bool, written_out: bool) -> Vec<Tensor> {
    let zero = |r: usize| if zeros { zero4(r) } else { 8 };
    if written_out {
        let code = |r, c| code4(r * cols + c) as i32 - zero(r) as i32;
        return written(name, rows, cols, |r, c| code(r, c) as f32 * scale4(r));
    }
    let scales = (0..rows).flat_map(|r| half::bf16::from_f32(scale4(r)).to_le_bytes()).collect();
    let mut out = vec![
        (format!("{name}_packed"), "I32", vec![rows, cols / 8], words(rows * cols, code4)),
        (format!("{name}_scale"), "BF16", vec![rows, 1], scales),
        (format!("{name}_shape"), "I64", vec![2], [rows as i64, cols as i64].map(i64::to_le_bytes).concat()),
    ];
    if zeros {
        out.push((format!("{name}_zero_point"), "I32", vec![rows / 8, 1], words(rows, zero4)));
    }
    out
}

/// Eight bits in whole rows: words of four bytes, zeros of four rows to a word.
fn int8(name: &str, rows: usize, cols: usize, zeros: bool, written_out: bool) -> Vec<Tensor> {
    let code = |i: usize| ((i * 2_654_435_761) >> 11) as u8;
    let zero = |r: usize| if zeros { 100 + (r % 7) as u8 } else { 128 };
    if written_out {
        let number = |r: usize, c: usize| i32::from(code(r * cols + c)) - i32::from(zero(r));
        return written(name, rows, cols, |r, c| number(r, c) as f32 * scale4(r) / 16.0);
    }
    let scales = (0..rows).flat_map(|r| half::bf16::from_f32(scale4(r) / 16.0).to_le_bytes()).collect();
    let mut out = vec![
        (format!("{name}_packed"), "I32", vec![rows, cols / 4], (0..rows * cols).map(code).collect()),
        (format!("{name}_scale"), "BF16", vec![rows, 1], scales),
        (format!("{name}_shape"), "I64", vec![2], [rows as i64, cols as i64].map(i64::to_le_bytes).concat()),
    ];
    if zeros {
        out.push((format!("{name}_zero_point"), "I32", vec![rows / 4, 1], (0..rows).map(zero).collect()));
    }
    out
}

fn awq(name: &str, rows: usize, cols: usize, written_out: bool) -> Vec<Tensor> {
    let scale = |g: usize, r: usize| scale4(g * rows + r);
    // By input or group, then output.
    let code = |c: usize, r: usize| code4(c * rows + r);
    let zero = |g: usize, r: usize| zero4(g * rows + r);
    if written_out {
        let number = |r, c| (code(c, r) as i32 - zero(c / 8, r) as i32) as f32 * scale(c / 8, r);
        return written(name, rows, cols, number);
    }
    let column = |n: usize| n % rows / 8 * 8 + [0, 2, 4, 6, 1, 3, 5, 7][n % 8];
    let module = name.strip_suffix("weight").unwrap();
    let scales =
        (0..cols / 8 * rows).flat_map(|i| half::f16::from_f32(scale(i / rows, i % rows)).to_le_bytes());
    let codes = words(rows * cols, |n| code(n / rows, column(n)));
    let zeros = words(rows * cols / 8, |n| zero(n / rows, column(n)));
    vec![
        (format!("{module}qweight"), "I32", vec![cols, rows / 8], codes),
        (format!("{module}qzeros"), "I32", vec![cols / 8, rows / 8], zeros),
        (format!("{module}scales"), "F16", vec![cols / 8, rows], scales.collect()),
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
    let weights =
        json!({"num_bits": 8, "type": "float", "strategy": strategy, "block_structure": [128, 128]});
    let group = json!({"targets": ["Linear"], "format": "float-quantized", "weights": weights});
    json!({"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {"group_0": group}})
}

#[test]
fn every_scheme_runs_as_the_numbers_it_stands_for() {
    let awq =
        json!({"quant_method": "awq", "bits": 4, "group_size": 8, "zero_point": true, "version": "gemm"});
    for (scheme, quantization) in [
        (Scheme::Block("weight_scale_inv"), block_fp8()),
        (Scheme::Block("weight_scale"), compressed("block")),
        (Scheme::Channel, compressed("channel")),
        (Scheme::Whole, compressed("tensor")),
        (Scheme::Int4(false), packed(true)),
        (Scheme::Int4(true), packed(false)),
        (Scheme::Int8(false), eight_bits(packed(true))),
        (Scheme::Int8(true), eight_bits(packed(false))),
        (Scheme::Awq, awq),
    ] {
        let quantized = logits(&tensors(scheme, false), Some(quantization.clone())).unwrap();
        let plain = logits(&tensors(scheme, true), None).unwrap();
        assert_close(&quantized, &plain, &quantization.to_string());
    }
}

/// Scales and sums may round elsewhere than in the model written out.
fn assert_close(got: &[f32], want: &[f32], what: &str) {
    assert_eq!(got.len(), want.len());
    for (got, want) in got.iter().zip(want) {
        assert!((got - want).abs() < 1e-4 * want.abs().max(1.0), "{what}: {got} {want}");
    }
}

fn packed(symmetric: bool) -> Value {
    let weights = json!({"num_bits": 4, "type": "int", "strategy": "channel", "symmetric": symmetric});
    let group = json!({"targets": ["Linear"], "format": "pack-quantized", "weights": weights});
    json!({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": group}})
}

fn eight_bits(mut config: Value) -> Value {
    config["config_groups"]["group_0"]["weights"]["num_bits"] = json!(8);
    config
}

#[test]
fn faulty_packing_is_named() {
    let mut all = tensors(Scheme::Int4(true), false);
    let zeros = all.iter_mut().find(|t| t.0.ends_with("k_proj.weight_zero_point")).unwrap();
    (zeros.2, zeros.3) = (vec![1, 1], vec![0; 4]);
    let e = logits(&all, Some(packed(false))).unwrap_err().to_string();
    assert!(e.contains("k_proj.weight_zero_point") && e.contains("[4, 1]"), "{e}");
    let e = logits(&tensors(Scheme::Int4(false), false), None).unwrap_err().to_string();
    assert!(e.contains("q_proj.weight`"), "{e}");
}

#[test]
fn large_scales_count_as_well() {
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
    assert_close(&fp8, &logits(&huge(true), None).unwrap(), "times 65536");
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

fn static_inputs() -> Value {
    let mut q = compressed("tensor");
    q["config_groups"]["group_0"]["input_activations"] = json!({"strategy": "tensor", "dynamic": false});
    q
}

/// The case in FP8, every matrix with this scale for its inputs.
fn with_input_scales(scale: f32) -> Vec<Tensor> {
    let mut all = tensors(Scheme::Whole, false);
    let modules: Vec<String> =
        all.iter().filter_map(|t| t.0.strip_suffix(".weight_scale").map(str::to_string)).collect();
    let tensor = |m: String| (format!("{m}.input_scale"), "F32", vec![1], scale.to_le_bytes().to_vec());
    all.extend(modules.into_iter().map(tensor));
    all
}

/// The case in bf16, every attention with these scales of its cache.
fn with_cache_scales(k: f32, v: f32) -> Vec<Tensor> {
    let mut all = tensors(Scheme::Whole, true);
    for layer in 0..3 {
        for (leaf, scale) in [("k", k), ("v", v)] {
            let name = format!("model.layers.{layer}.self_attn.{leaf}_scale");
            all.push((name, "BF16", vec![], half::bf16::from_f32(scale).to_le_bytes().to_vec()));
        }
    }
    all
}

fn without(all: Vec<Tensor>, modules: &[&str]) -> Vec<Tensor> {
    let zero = |(name, dtype, shape, bytes): Tensor| {
        let zero = modules.iter().any(|m| name.ends_with(&format!("{m}.weight")));
        let bytes = if zero { vec![0; bytes.len()] } else { bytes };
        (name, dtype, shape, bytes)
    };
    all.into_iter().map(zero).collect()
}

#[test]
fn stored_scales_of_inputs_are_honoured() {
    let run = |scale: f32| logits(&with_input_scales(scale), Some(static_inputs())).unwrap();
    let dynamic = logits(&tensors(Scheme::Whole, false), Some(compressed("tensor"))).unwrap();
    // So large that everything rounds to nothing: no layer adds anything.
    let nothing = logits(&without(tensors(Scheme::Whole, true), &["o_proj", "down_proj"]), None).unwrap();
    assert_eq!(run(1e12), nothing);
    let fine = run(0.5);
    assert!(fine != dynamic && fine != nothing);
    // Where the config tells of none, what is stored is not looked at.
    assert_eq!(logits(&with_input_scales(1e12), Some(compressed("tensor"))).unwrap(), dynamic);
}

#[test]
fn scales_of_the_cache_are_honoured() {
    let run = |k, v| logits(&with_cache_scales(k, v), None).unwrap();
    let plain = logits(&tensors(Scheme::Whole, true), None).unwrap();
    // Values round to nothing: as without them.
    let nothing = logits(&without(tensors(Scheme::Whole, true), &["v_proj"]), None).unwrap();
    assert_eq!(run(1.0, 1e12), nothing);
    // Keys round to nothing: every position counts as much as any other, as without queries.
    let even = logits(&without(with_cache_scales(1.0, 1.0), &["q_proj"]), None).unwrap();
    assert_eq!(run(1e12, 1.0), even);
    let fine = run(0.01, 0.01);
    assert!(fine != plain && fine != nothing && fine != even);
}

#[test]
fn faulty_scales_of_inputs_and_cache_are_named() {
    let with = |change: &dyn Fn(&mut Vec<Tensor>)| {
        let mut all = with_input_scales(0.5);
        all.extend(
            with_cache_scales(0.1, 0.1)
                .into_iter()
                .filter(|t| t.0.ends_with("k_scale") || t.0.ends_with("v_scale")),
        );
        change(&mut all);
        logits(&all, Some(static_inputs())).unwrap_err().to_string()
    };
    let input = "model.layers.0.self_attn.q_proj.input_scale";
    let key = "model.layers.1.self_attn.k_scale";
    let find = |all: &mut Vec<Tensor>, name: &str| all.iter().position(|t| t.0 == name).unwrap();
    for name in [input, key] {
        let gone = with(&|all| all.retain(|t| t.0 != name));
        assert!(gone.contains(name) && gone.contains("does not exist"), "{gone}");
        let zero = with(&|all| {
            let at = find(all, name);
            all[at].3.fill(0);
        });
        assert!(zero.contains(name) && zero.contains("no scale"), "{zero}");
        let shape = with(&|all| {
            let at = find(all, name);
            (all[at].1, all[at].2, all[at].3) = ("F32", vec![3], [1f32; 3].map(f32::to_le_bytes).concat());
        });
        assert!(shape.contains(name) && shape.contains("[3]"), "{shape}");
    }
}
