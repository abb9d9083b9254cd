//! What a plain round-to-nearest reference writes for the fixtures, against what is computed here.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{Bits, Layout, Matrix, Quantized, Rule, Zeros, quantize};
use crate::checkpoint::TensorReader;
use crate::codec::Float;
use crate::names::Digest;
use crate::{Checkpoint, Dtype};

fn fixture(path: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/quant")).join(path)
}

/// The weight of a module as f32, experts taken out of their stacks.
fn weight(source: &Checkpoint, module: &str) -> (Vec<f32>, Matrix) {
    let float = |name: &str| Float::of(source.index().get(name).unwrap().spec.dtype).unwrap();
    let shape = |name: &str| source.index().get(name).unwrap().spec.shape.clone();
    let name = format!("{module}.weight");
    let (values, rows, cols) = if source.index().contains(&name) {
        let shape = shape(&name);
        (float(&name).to_f32(&source.read(&name).unwrap()), shape[0], shape[1])
    } else {
        let (path, part) = module.rsplit_once('.').unwrap();
        let (block, expert) = path.rsplit_once('.').unwrap();
        let name = format!("{block}.{}", if part == "down_proj" { part } else { "gate_up_proj" });
        let [_, rows, cols] = shape(&name)[..] else { panic!("no stack") };
        let all = float(&name).to_f32(&source.read(&name).unwrap());
        let one = &all[expert.parse::<usize>().unwrap() * rows * cols..][..rows * cols];
        match part {
            "down_proj" => (one.to_vec(), rows, cols),
            "gate_proj" => (one[..one.len() / 2].to_vec(), rows / 2, cols),
            _ => (one[one.len() / 2..].to_vec(), rows / 2, cols),
        }
    };
    let matrix = Matrix { rows, cols, group: 128, bits: Bits::Four, scales: Float::BF16, zeros: false };
    (values, matrix)
}

#[test]
fn symmetric_tensors_are_those_of_the_reference() {
    let source = Checkpoint::open(&fixture("qwen3_moe/source")).unwrap();
    let text = std::fs::read(fixture("qwen3_moe/ct-w4a16/tensors.json")).unwrap();
    let expected: BTreeMap<String, Value> = serde_json::from_slice(&text).unwrap();
    let rule = Rule { zeros: Zeros::Middle, bits: Bits::Four, scales: Float::BF16 };
    let mut modules = 0;
    for module in expected.keys().filter_map(|name| name.strip_suffix(".weight_packed")) {
        let (values, m) = weight(&source, module);
        let bytes = Layout::PackQuantized.encode(m, &quantize(&values, m.group, rule).unwrap());
        for (part, bytes) in Layout::PackQuantized.parts(m).into_iter().zip(bytes) {
            let want = &expected[&format!("{module}.{}", part.leaf)];
            assert_eq!(want["dtype"], part.dtype.name());
            assert_eq!(want["shape"], serde_json::json!(part.shape));
            assert_eq!(want["sha256"], Digest::of(&bytes).to_string(), "{module}.{}", part.leaf);
        }
        modules += 1;
    }
    assert_eq!(modules, 56);
}

/// Compares modules whose reference rounds codes with a scale that is not what it stores: scales and zeros are equal,
/// codes at most a step apart and rarely, the error never larger in the whole.
fn compare(source: &str, reference: &str, layout: Layout, rule: Rule) {
    let source = Checkpoint::open(&fixture(source)).unwrap();
    let reference = Checkpoint::open(&fixture(reference)).unwrap();
    let leaf = if layout == Layout::AwqGemm { "qweight" } else { "weight_packed" };
    let names = reference.index().tensors().iter().map(|t| t.spec.name.clone());
    let modules: Vec<String> =
        names.filter_map(|n| n.strip_suffix(&format!(".{leaf}")).map(str::to_string)).collect();
    assert!(modules.len() >= 7);
    for module in modules {
        let (values, m) = weight(&source, &module);
        let m = Matrix { scales: rule.scales, zeros: true, ..m };
        let ours = quantize(&values, m.group, rule).unwrap();
        let parts = layout.parts(m);
        let bytes: Vec<Vec<u8>> =
            parts.iter().map(|p| reference.read(&format!("{module}.{}", p.leaf)).unwrap()).collect();
        for p in &parts {
            let spec = &reference.index().get(&format!("{module}.{}", p.leaf)).unwrap().spec;
            assert_eq!((spec.dtype, &spec.shape), (p.dtype, &p.shape));
        }
        let slices: Vec<&[u8]> = bytes.iter().map(Vec::as_slice).collect();
        let theirs = layout.decode(m, &slices).unwrap();
        assert_eq!(ours.scales, theirs.scales, "{module}");
        assert_eq!(ours.zeros, theirs.zeros, "{module}");
        let apart = ours.codes.iter().zip(&theirs.codes).filter(|(a, b)| a != b);
        assert!(apart.clone().all(|(a, b)| a.abs_diff(*b) == 1), "{module}");
        assert!(apart.count() * 200 < values.len(), "{module}");
        let error = |q: &Quantized| -> f64 {
            q.values(m.group).iter().zip(&values).map(|(a, b)| f64::from(a - b).powi(2)).sum()
        };
        assert!(error(&ours) <= error(&theirs) && error(&ours) > 0.0, "{module}");
        // What is stored is what was meant.
        let again = layout.encode(m, &ours);
        let slices: Vec<&[u8]> = again.iter().map(Vec::as_slice).collect();
        assert_eq!(layout.decode(m, &slices).unwrap(), ours);
    }
}

#[test]
fn asymmetric_tensors_are_as_good_as_the_reference() {
    let rule = Rule { zeros: Zeros::Stored, bits: Bits::Four, scales: Float::BF16 };
    compare("qwen3_5_moe-cut/source", "qwen3_5_moe-cut/ct-w4a16-asym", Layout::PackQuantized, rule);
}

#[test]
fn autoawq_tensors_are_as_good_as_the_reference() {
    let rule = Rule { zeros: Zeros::AutoAwq, bits: Bits::Four, scales: Float::F16 };
    compare("qwen3_moe/source", "qwen3_moe/awq-gemm", Layout::AwqGemm, rule);
}

#[test]
fn parts_of_another_length_are_not_decoded() {
    let m = Matrix { rows: 8, cols: 32, group: 32, bits: Bits::Four, scales: Float::BF16, zeros: true };
    let q = quantize(&[0.5; 256], 32, Rule { zeros: Zeros::Stored, bits: Bits::Four, scales: Float::BF16 })
        .unwrap();
    for layout in [Layout::PackQuantized, Layout::AwqGemm] {
        let bytes = layout.encode(m, &q);
        let parts: Vec<&[u8]> = bytes.iter().map(Vec::as_slice).collect();
        assert_eq!(layout.decode(m, &parts).unwrap(), q);
        assert_eq!(layout.decode(m, &parts[1..]), None);
        assert_eq!(layout.decode(Matrix { rows: 16, ..m }, &parts), None);
        assert_eq!(layout.decode(Matrix { cols: 64, ..m }, &parts), None);
    }
    assert!(Layout::AwqGemm.parts(m).iter().all(|p| p.dtype != Dtype::I64));
}
