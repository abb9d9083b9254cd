//! The block format against references, and its rules on checkpoints made here.

#![allow(clippy::unwrap_used)]

mod support;

use proptest::prelude::*;
use quant::{Fp8, Pattern, Tails};
use serde_json::{Value, json};
use support::{expected_config, expected_tensors, fixture, rewrite, tiny_dense};
use verify::checkpoint::TensorReader;
use verify::codec::Float;
use verify::codec::fp8::{Grid, Rows, ScaleValues, quantize};
use verify::names::Digest;
use verify::rewrite::OutputPlan;
use verify::{Checkpoint, Dtype};

#[test]
fn codes_scales_and_config_equal_the_reference() {
    for case in ["qwen3-edge", "qwen3_moe", "qwen3_5_moe-cut"] {
        let made = rewrite(&fixture(&format!("{case}/source")), &[&Fp8::default()], 2).unwrap();
        let reference = format!("{case}/fp8-block");
        assert_eq!(made.tensors(), expected_tensors(&reference), "{case}");
        assert_eq!(*made.checkpoint.config().value(), expected_config(&reference), "{case}");
    }
}

#[test]
fn tails_equal_the_reference_where_they_are_quantized() {
    let source = Checkpoint::open(&fixture("qwen3-tail/source")).unwrap();
    let expected = expected_tensors("qwen3-tail/fp8-block");
    for (name, scale) in expected.iter().filter(|(name, _)| name.ends_with("_scale_inv")) {
        let weight = name.strip_suffix("_scale_inv").unwrap();
        let bytes = source.read(weight).unwrap();
        let cols = source.index().get(weight).unwrap().spec.cols();
        let made = quantize(Rows { bytes: &bytes, float: Float::BF16, cols }, Grid::Block, ScaleValues::F32)
            .unwrap();
        assert_eq!(expected[weight]["sha256"], Digest::of(&made.codes).to_string(), "{weight}");
        assert_eq!(scale["sha256"], Digest::of(&Float::F32.to_bytes(&made.scales)).to_string(), "{name}");
    }
}

#[test]
fn linear_without_whole_blocks_stays_with_all_it_is_fused_with() {
    let made = rewrite(&fixture("qwen3-tail/source"), &[&Fp8::default()], 2).unwrap();
    assert!(made.checkpoint.index().tensors().iter().all(|t| t.spec.dtype == Dtype::BF16));
    let skipped = made.quantization()["modules_to_not_convert"].as_array().unwrap();
    assert_eq!(skipped.len(), 1 + 2 * 7);
    let told =
        made.report.stages[0].decisions.iter().find(|d| d.what == "model.layers.1.mlp.gate_up_proj").unwrap();
    assert!(told.reason.contains("320 x 256"), "{}", told.reason);
    let warned = |text: &str| made.report.warnings.iter().any(|w| w.contains(text));
    assert!(
        warned("nothing was quantized")
            && warned(
                "2 x `model.layers.*.mlp.down_proj`, such as `model.layers.0.mlp.down_proj` (256 x 320"
            )
    );
}

#[test]
fn only_unfused_tails_can_be_forced() {
    let forced = Fp8 { tails: Tails::QuantizeUnfused, ..Fp8::default() };
    let made = rewrite(&fixture("qwen3-tail/source"), &[&forced], 2).unwrap();
    let tensors = made.tensors();
    let expected = expected_tensors("qwen3-tail/fp8-block");
    for layer in 0..2 {
        for leaf in ["mlp.down_proj.weight", "self_attn.o_proj.weight", "self_attn.o_proj.weight_scale_inv"] {
            let name = format!("model.layers.{layer}.{leaf}");
            assert_eq!(tensors[&name], expected[&name]);
        }
        assert_eq!(tensors[&format!("model.layers.{layer}.mlp.up_proj.weight")]["dtype"], "BF16");
    }
}

#[test]
fn bytes_do_not_depend_on_threads() {
    let with =
        |threads| rewrite(&fixture("qwen3_5_moe-cut/source"), &[&Fp8::default()], threads).unwrap().files();
    let one = with(1);
    assert_eq!(one, with(2));
    assert_eq!(one, with(7));
}

#[test]
fn shards_are_those_of_the_source_and_hold_weights_with_their_scales() {
    let made = rewrite(&fixture("qwen3_moe/source"), &[&Fp8::default()], 2).unwrap();
    let source = Checkpoint::open(&fixture("qwen3_moe/source")).unwrap();
    let index = made.checkpoint.index();
    assert_eq!(index.shards(), source.index().shards());
    for t in index.tensors().iter().filter(|t| t.spec.name.ends_with("_scale_inv")) {
        let weight = index.get(t.spec.name.strip_suffix("_scale_inv").unwrap()).unwrap();
        assert_eq!(weight.shard, t.shard);
        assert_eq!(weight.shard, source.index().get(&weight.spec.name).unwrap().shard);
    }
}

#[test]
fn figures_tell_the_loss_of_every_module() {
    let made = rewrite(&fixture("qwen3_moe/source"), &[&Fp8::default()], 2).unwrap();
    let details = &made.report.stages[0].details;
    assert_eq!(details["modules"], 56);
    // Uniformly spread mantissas lose 2.6 % in E4M3.
    assert!((0.024..0.029).contains(&details["relative_rms"].as_f64().unwrap()), "{details}");
    let names: Vec<&Value> = details["by_module"].as_array().unwrap().iter().map(|m| &m["module"]).collect();
    assert!(names.contains(&&json!("model.layers.1.mlp.experts.*.down_proj")), "{names:?}");
}

#[test]
fn blocks_of_zeros_and_tiny_blocks_are_counted() {
    let made = rewrite(&fixture("qwen3-edge/source"), &[&Fp8::default()], 2).unwrap();
    let details = &made.report.stages[0].details;
    assert!(details["zero_blocks"].as_f64().unwrap() > 0.0 && details["tiny_blocks"].as_f64().unwrap() > 0.0);
}

#[test]
fn ignored_module_keeps_its_fused_siblings_in_16_bit() {
    let ignore = vec![Pattern::parse("*.k_proj").unwrap(), Pattern::parse("*.typo").unwrap()];
    let made = rewrite(&fixture("qwen3_moe/source"), &[&Fp8 { ignore, ..Fp8::default() }], 2).unwrap();
    let dtype = |name: &str| made.checkpoint.index().get(name).unwrap().spec.dtype;
    for part in ["q", "k", "v"] {
        assert_eq!(dtype(&format!("model.layers.0.self_attn.{part}_proj.weight")), Dtype::BF16);
    }
    assert_eq!(dtype("model.layers.0.self_attn.o_proj.weight"), Dtype::F8_E4M3);
    let skipped = made.quantization()["modules_to_not_convert"].as_array().unwrap();
    assert!(skipped.contains(&json!("model.layers.1.self_attn.v_proj")));
    assert!(made.report.warnings.contains(&"--ignore *.typo matches no module".to_string()));
}

#[test]
fn ignored_experts_of_a_stack_come_out_one_by_one_in_16_bit() {
    let ignore = vec![Pattern::parse("model.language_model.layers.0.mlp.experts.1.*").unwrap()];
    let made = rewrite(&fixture("qwen3_5_moe-cut/source"), &[&Fp8 { ignore, ..Fp8::default() }], 2).unwrap();
    let source = Checkpoint::open(&fixture("qwen3_5_moe-cut/source")).unwrap();
    let stack = source.read("model.language_model.layers.0.mlp.experts.gate_up_proj").unwrap();
    let (parts, bytes) = (4, stack.len() / 4);
    for (i, part) in (0..parts).zip(["0.gate_proj", "0.up_proj", "1.gate_proj", "1.up_proj"]) {
        let name = format!("model.language_model.layers.0.mlp.experts.{part}.weight");
        assert_eq!(made.checkpoint.read(&name).unwrap(), stack[i * bytes..][..bytes], "{name}");
    }
    let skipped = made.quantization()["modules_to_not_convert"].as_array().unwrap();
    assert!(skipped.contains(&json!("model.language_model.layers.0.mlp.experts")));
    assert!(skipped.contains(&json!("model.language_model.layers.0.mlp.experts.1.up_proj")));
}

#[test]
fn parallel_sizes_that_cut_blocks_are_told() {
    // Experts' inner size is 128, one block: a second GPU has none.
    let made = rewrite(&fixture("qwen3_moe/source"), &[&Fp8::default()], 2).unwrap();
    let sizes = made.report.stages[0].decisions.iter().find(|d| d.what.contains("tensor-parallel")).unwrap();
    assert_eq!(sizes.choice, "1");
    assert!(made.report.warnings.iter().any(|w| w.contains("only tensor-parallel size 1")));
}

#[test]
fn quantized_source_is_refused() {
    let made = rewrite(&fixture("qwen3_moe/source"), &[&Fp8::default()], 2).unwrap();
    let again = rewrite(&made.path(), &[&Fp8::default()], 2).err().unwrap();
    assert_eq!(again.class().exit_code(), 3);
    assert!(again.to_string().contains("quantized already") && again.to_string().contains("`fp8`"));
}

#[test]
fn nan_and_infinity_are_refused_with_tensor_and_index() {
    for (bad, dtype) in
        [(f32::NAN, Dtype::BF16), (f32::INFINITY, Dtype::F32), (f32::NEG_INFINITY, Dtype::F16)]
    {
        let dir = tempfile::tempdir().unwrap();
        tiny_dense(dir.path(), dtype, |spec| {
            spec.name.ends_with("down_proj.weight").then(|| {
                let mut values = vec![1.0; spec.elements()];
                values[5 * spec.cols() + 7] = bad;
                Float::of(dtype).unwrap().to_bytes(&values)
            })
        });
        let e = rewrite(dir.path(), &[&Fp8::default()], 2).err().unwrap();
        assert_eq!(e.class().exit_code(), 3);
        assert!(e.to_string().contains("down_proj.weight") && e.to_string().contains("[5, 7]"), "{e}");
    }
}

#[test]
fn other_element_types_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    tiny_dense(dir.path(), Dtype::BF16, |spec| {
        let chosen = spec.name.ends_with("up_proj.weight");
        chosen.then(|| {
            spec.dtype = Dtype::I16;
            vec![0; spec.byte_len() as usize]
        })
    });
    let e = rewrite(dir.path(), &[&Fp8::default()], 1).err().unwrap();
    assert!(e.to_string().contains("I16") && e.to_string().contains("up_proj"), "{e}");
}

#[test]
fn every_float_type_is_read_alike() {
    let scales = |dtype| {
        let dir = tempfile::tempdir().unwrap();
        // Multiples of 1/64 up to 1 are exact in all three types.
        tiny_dense(dir.path(), dtype, |spec| {
            let values: Vec<f32> = (0..spec.elements()).map(|i| (i * 37 % 129) as f32 / 64.0 - 1.0).collect();
            Some(Float::of(dtype).unwrap().to_bytes(&values))
        });
        let made = rewrite(dir.path(), &[&Fp8::default()], 2).unwrap().tensors();
        made.into_iter().filter(|(_, t)| t["dtype"] == "F8_E4M3").collect::<Vec<_>>()
    };
    assert_eq!(scales(Dtype::BF16), scales(Dtype::F32));
    assert_eq!(scales(Dtype::BF16), scales(Dtype::F16));
}

#[test]
fn plan_reads_no_weights() {
    let plan =
        OutputPlan::new(Checkpoint::open(&fixture("qwen3_5_moe-cut/source")).unwrap(), &[&Fp8::default()]);
    let names: Vec<_> = plan.unwrap().tensors().map(|t| t.spec.name).collect();
    assert_eq!(names.len(), expected_tensors("qwen3_5_moe-cut/fp8-block").len());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// The unit's rows asked for in bands, as a later stage may, and at once.
    #[test]
    fn any_chunking_gives_the_same_bytes(cut in 1usize..4) {
        let source = Checkpoint::open(&fixture("qwen3_moe/source")).unwrap();
        let view = verify::rewrite::ModelView::of(&source);
        let stage = verify::rewrite::Rewrite::plan(&Fp8::default(), &view, &source).unwrap();
        for (u, unit) in stage.units.iter().enumerate().filter(|(_, u)| u.outputs.len() == 2) {
            let whole = stage.work.apply(u, 0..unit.rows, &source).unwrap().outputs;
            let mut parts = vec![Vec::new(), Vec::new()];
            for top in (0..unit.rows).step_by(cut * 128) {
                let some = stage.work.apply(u, top..(top + cut * 128).min(unit.rows), &source).unwrap().outputs;
                parts.iter_mut().zip(some).for_each(|(p, s)| p.extend(s));
            }
            prop_assert_eq!(&parts, &whole);
        }
    }
}
