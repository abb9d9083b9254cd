//! A stand-in of Qwen3.6-35B-A3B, names and shapes without data: what is planned for it has the counts of
//! the publisher's own FP8 pack.

#![allow(clippy::unwrap_used)]

#[path = "../../tests/support/stand_in.rs"]
mod stand_in;

use std::ops::Range;

use quant::Fp8;
use verify::architecture::Architecture;
use verify::checkpoint::{TensorIndex, TensorReader};
use verify::error::{Error, Result};
use verify::rewrite::{ModelView, Rewrite, Stage};
use verify::serving::{WeightFormat, Weights};

/// Gives no bytes: planning must do without.
struct NoData(TensorIndex);

impl TensorReader for NoData {
    fn index(&self) -> &TensorIndex {
        &self.0
    }

    fn read_rows(&self, name: &str, _: Range<usize>) -> Result<Vec<u8>> {
        Err(Error::input(format!("{name} was read while planning")))
    }
}

fn planned() -> (ModelView, Stage) {
    let view = stand_in::qwen3_6_35b_a3b().view();
    let stage = Fp8::default().plan(&view, &NoData(view.tensors.clone())).unwrap();
    (view, stage)
}

#[test]
fn names_and_counts_equal_the_published_pack() {
    let (_, stage) = planned();
    let names: Vec<&str> = stage.output.tensors.tensors().iter().map(|t| t.spec.name.as_str()).collect();
    let count = |is: &dyn Fn(&str) -> bool| names.iter().filter(|n| is(n)).count();
    assert_eq!(names.len(), 64_196);
    assert_eq!(count(&|n| n.starts_with("mtp.")), 1_560);
    assert_eq!(count(&|n| n.starts_with("model.visual.")), 333);
    let body_scale = |n: &str| n.starts_with("model.language_model.") && n.ends_with("weight_scale_inv");
    assert_eq!(count(&|n| body_scale(n) && n.contains(".experts.")), 30_720);
    assert_eq!(count(&|n| body_scale(n) && !n.contains(".experts.")), 250);
}

#[test]
fn all_else_is_listed_as_16_bit_once() {
    let (_, stage) = planned();
    let config = stage.output.config.quantization().unwrap();
    let list = config["modules_to_not_convert"].as_array().unwrap();
    // lm_head, mtp.fc; router and shared gate of 41 layers; b and a of 30; 4 linears of 27 vision blocks, 2 of the merger.
    assert_eq!(list.len(), 2 + 2 * 41 + 2 * 30 + 4 * 27 + 2);
}

#[test]
fn shards_keep_their_names_and_stay_within_the_limit() {
    let (view, stage) = planned();
    assert_eq!(stage.output.tensors.shards(), view.tensors.shards());
    for shard in 0..view.tensors.shards().len() {
        let of_shard = stage.output.tensors.tensors().iter().filter(|t| t.shard == shard);
        assert!(of_shard.map(|t| t.spec.byte_len()).sum::<u64>() <= 5_000_000_000);
    }
}

#[test]
fn four_gpus_can_share_it_in_whole_blocks() {
    let (_, stage) = planned();
    let sizes = stage.decisions.iter().find(|d| d.what.contains("tensor-parallel")).unwrap();
    // 512 rows of an expert are four blocks.
    assert_eq!(sizes.choice, "1, 2, 4");
}

#[test]
fn the_memory_table_reckons_the_weights_as_they_are_planned() {
    for (name, model) in stand_in::all() {
        let view = model.view();
        let stage = Fp8::default().plan(&view, &NoData(view.tensors.clone())).unwrap();
        let arch = Architecture::of(&view.config, &view.tensors).unwrap();
        let format = WeightFormat::Fp8 { block: true };
        let reckoned = Weights::in_format(format, &view.tensors, &arch).bytes;
        assert_eq!(reckoned, stage.output.tensors.total_bytes(), "{name}");
        // And the other way: from what was planned back to 16 bit.
        let planned = &stage.output.tensors;
        let arch = Architecture::of(&stage.output.config, planned).unwrap();
        let back = Weights::in_format(WeightFormat::Bits16, planned, &arch).bytes;
        assert_eq!(back, view.tensors.total_bytes(), "{name}");
    }
}
