//! AWQ: nearer to the source than the best known tool, the same bytes however it is run, readable by the runner.
#![allow(clippy::unwrap_used)]

#[path = "support/error.rs"]
mod error;
#[path = "support/stop.rs"]
mod stop;
mod support;

use quant::awq::{Awq, Clip, Experts, Layout, Rounding};
use quant::calibration::data::Samples;
use quant::{Fp8, KvCache, Pattern};
use serde_json::{Value, json};
use support::{Made, fixture, rewrite};
use verify::checkpoint::{TensorReader, TensorSpec};
use verify::codec::Float;
use verify::codec::int4::{Int4Config, Matrix};
use verify::rewrite::OutputPlan;
use verify::{Checkpoint, Dtype};

fn calibration() -> Samples {
    Samples::of(error::tokens(&fixture("calib_tokens.json")))
}

/// A few short samples, for what does not depend on how good they are.
fn few() -> Samples {
    let short = |s: &Vec<u32>| s.iter().take(40).map(|t| t % 64).collect();
    Samples::of(error::tokens(&fixture("calib_tokens.json")).iter().take(5).map(short).collect())
}

fn baseline(model: &str, what: &str) -> f64 {
    let all: Value = serde_json::from_slice(&std::fs::read(fixture("awq_baseline.json")).unwrap()).unwrap();
    all[model]["llmc_awq"][what].as_f64().unwrap()
}

fn details(made: &Made) -> &Value {
    &made.report.stages[0].details
}

/// On the same tokens as llm-compressor was calibrated on: asymmetric, groups of 128.
fn is_nearer_than_llm_compressor(model: &str) {
    let source = fixture(&format!("{model}/source"));
    let made = rewrite(&source, &[&Awq::new(calibration())], 2).unwrap();
    let d = error::distance(&source, &made.path(), &error::tokens(&fixture("eval_tokens.json")));
    assert!(d.relative < 0.5 * baseline(model, "logits_rel_mse"), "{d:?}");
    assert!(d.kl < 0.5 * baseline(model, "kl") && d.top1 > baseline(model, "top1"), "{d:?}");
    let errors = |key: &str| details(&made)[key].as_f64().unwrap();
    assert!(errors("mean_error_after") < 0.8 * errors("mean_error_before"));
}

#[test]
fn dense_model_is_nearer_to_its_source_than_llm_compressors() {
    is_nearer_than_llm_compressor("qwen3");
}

#[test]
fn mixture_of_experts_is_nearer_to_its_source_than_llm_compressors() {
    is_nearer_than_llm_compressor("qwen3_moe");
}

/// Layers put in by LLaMA-Pro and its like begin as nothing: their last matrices are zeros.
#[test]
fn blocks_that_give_nothing_are_quantized() {
    for model in ["qwen3/source", "qwen3_moe/source", "qwen3_5_moe-cut/source"] {
        let source = Checkpoint::open(&fixture(model)).unwrap();
        let zero = |name: &str| ["o_proj.", "out_proj.", "down_proj"].iter().any(|leaf| name.contains(leaf));
        let tensors: Vec<(TensorSpec, Vec<u8>)> = source
            .index()
            .tensors()
            .iter()
            .map(|t| {
                let bytes = source.read(&t.spec.name).unwrap();
                (t.spec.clone(), if zero(&t.spec.name) { vec![0; bytes.len()] } else { bytes })
            })
            .collect();
        let dir = tempfile::tempdir().unwrap();
        support::write(dir.path(), source.config().value(), &tensors);
        let made = rewrite(dir.path(), &[&Awq::new(few())], 2).unwrap();
        let layers = details(&made)["layers"].as_array().unwrap();
        let pairs = layers.iter().flat_map(|l| l["pairs"].as_array().unwrap());
        let silent = pairs.filter(|p| p["error_after"] == 0.0 && p["error_before"] == 0.0).count();
        assert!(silent >= layers.len(), "{model}: {layers:?}");
    }
}

#[test]
fn hybrid_is_far_nearer_to_its_source_than_round_to_nearest() {
    let source = fixture("qwen3_5_moe-cut/source");
    let fold = |all: Vec<Vec<u32>>| {
        all.iter().map(|s| s.iter().map(|t| t % 64).collect()).collect::<Vec<Vec<u32>>>()
    };
    let eval = fold(error::tokens(&fixture("eval_tokens.json")));
    let samples = Samples::of(fold(error::tokens(&fixture("calib_tokens.json"))));
    let made = rewrite(&source, &[&Awq::new(samples)], 2).unwrap();
    let nearest =
        Awq { clip: Clip::Off, rounding: Rounding::Nearest, ..Awq::new(Samples::of(vec![vec![1]])) };
    let nearest = rewrite(&source, &[&nearest], 2).unwrap();
    let [ours, nearest] = [&made, &nearest].map(|m| error::distance(&source, &m.path(), &eval));
    assert!(ours.relative < 0.5 * nearest.relative && ours.kl < 0.5 * nearest.kl, "{ours:?} {nearest:?}");
    // Draft layers are not run, vision is not touched: as in the source, and on the skip list.
    let base = Checkpoint::open(&source).unwrap();
    for t in base
        .index()
        .tensors()
        .iter()
        .filter(|t| t.spec.name.contains("visual") || t.spec.name == "mtp.fc.weight")
    {
        assert_eq!(
            base.read(&t.spec.name).unwrap(),
            made.checkpoint.read(&t.spec.name).unwrap(),
            "{}",
            t.spec.name
        );
    }
    let ignored = made.quantization()["ignore"].as_array().unwrap();
    assert!(ignored.contains(&json!("mtp.layers.0.self_attn.q_proj")) && ignored.contains(&json!("mtp.fc")));
    let router = "model.language_model.layers.0.mlp.gate.weight";
    assert_ne!(base.read(router).unwrap(), made.checkpoint.read(router).unwrap(), "reads a smoothed norm");
}

#[test]
fn bytes_do_not_depend_on_threads() {
    for source in ["qwen3_moe/source", "qwen3_5_moe-cut/source"] {
        let files = |threads| rewrite(&fixture(source), &[&Awq::new(few())], threads).unwrap().files();
        let one = files(1);
        assert!(one == files(2) && one == files(7), "{source}");
    }
}

#[test]
fn stopped_calibration_goes_on_after_the_last_finished_layer_with_the_same_bytes() {
    for source in ["qwen3_moe/source", "qwen3_5_moe-cut/source"] {
        let (source, awq) = (fixture(source), Awq { cache: KvCache::Fp8, ..Awq::new(few()) });
        let whole = rewrite(&source, &[&awq], 2).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        stop::stopped_and_gone_on(&source, &awq, &out);
        for (name, bytes) in whole.files() {
            assert!(std::fs::read(out.join(&name)).unwrap() == bytes, "{name}");
        }
    }
}

#[test]
fn both_layouts_hold_the_same_model() {
    let source = fixture("qwen3/source");
    let eval = error::tokens(&fixture("eval_tokens.json"));
    let with = |layout| {
        let made = rewrite(&source, &[&Awq { layout, ..Awq::new(calibration()) }], 2).unwrap();
        (error::distance(&source, &made.path(), &eval[..2]).relative, made.quantization().clone())
    };
    let (packed, config) = with(Layout::PackQuantized);
    let (gemm, awq_config) = with(Layout::AwqGemm);
    assert!((packed / gemm).ln().abs() < 0.5, "{packed} {gemm}");
    assert_eq!(config["format"], "pack-quantized");
    assert_eq!(config["ignore"], json!(["lm_head"]));
    let weights = &config["config_groups"]["group_0"]["weights"];
    assert_eq!(
        (&weights["num_bits"], &weights["group_size"], &weights["symmetric"]),
        (&json!(4), &json!(128), &json!(false))
    );
    let want = json!({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": true, "version": "gemm",
        "modules_to_not_convert": ["lm_head"]});
    assert_eq!(awq_config, want);
}

#[test]
fn folders_whose_experts_stay_in_16_bit_are_loadable() {
    for layout in [Layout::PackQuantized, Layout::AwqGemm] {
        for (source, ignore) in [
            // Draft layers with experts, which are never quantized.
            ("qwen3_5_moe-cut/source", None),
            ("qwen3_moe/source", Some("*layers.0.mlp.experts*")),
            ("qwen3_moe/source", Some("*experts.1.*")),
            ("qwen3_moe/source", Some("*self_attn*")),
        ] {
            let ignore = ignore.iter().map(|p| Pattern::parse(p).unwrap()).collect();
            let awq = Awq { layout, ignore, rounding: Rounding::Nearest, clip: Clip::Off, ..Awq::new(few()) };
            let made = rewrite(&fixture(source), &[&awq], 2).unwrap();
            let faults = verify::loadable::check(&made.checkpoint, &verify::progress::Silent).unwrap();
            assert!(faults.is_empty(), "{source} {layout:?}: {faults:?}");
        }
    }
}

#[test]
fn smaller_groups_symmetric_grids_and_routed_experts_work() {
    let source = fixture("qwen3_moe/source");
    let eval = error::tokens(&fixture("eval_tokens.json"));
    let away = |awq: Awq| {
        let made = rewrite(&source, &[&awq], 2).unwrap();
        error::distance(&source, &made.path(), &eval[..2]).relative
    };
    let base = Awq::new(calibration());
    let wide = away(base.clone());
    // Of nearest codes: what goes downhill from there ends by chance in one valley or another.
    let nearest = |group| away(Awq { group, rounding: Rounding::Nearest, ..base.clone() });
    assert!(nearest(32) < nearest(128));
    assert!(away(Awq { symmetric: true, ..base.clone() }) < 3.0 * wide);
    assert!(away(Awq { experts: Experts::Routed, ..base }) < 2.0 * wide);
}

#[test]
fn experts_that_hardly_any_token_chooses_are_told() {
    let made = rewrite(&fixture("qwen3_moe/source"), &[&Awq::new(calibration())], 2).unwrap();
    let starved = details(&made)["starved_experts"].as_array().unwrap();
    assert!(starved.iter().any(|s| s.as_str().unwrap().contains("expert 7: 0")), "{starved:?}");
    assert!(made.report.warnings.iter().any(|w| w.contains("fewer than 16 calibration tokens")));
}

#[test]
fn what_does_not_divide_stays_in_16_bit_by_whole_units_and_is_told() {
    let made = rewrite(&fixture("qwen3-tail/source"), &[&Awq::new(few())], 2).unwrap();
    let kept = made.report.warnings.iter().find(|w| w.starts_with("left in 16 bit")).unwrap();
    assert!(kept.contains("whole groups of 128"), "{kept}");
    let names = |leaf: &str| {
        let index = made.checkpoint.index();
        ["q_proj", "k_proj", "v_proj"]
            .map(|p| index.contains(&format!("model.layers.0.self_attn.{p}.{leaf}")))
    };
    for leaf in ["weight", "weight_packed"] {
        assert!(matches!(names(leaf), [true, true, true] | [false, false, false]), "{leaf}");
    }
}

#[test]
fn ignored_modules_keep_their_numbers_but_for_the_scale_of_what_they_read() {
    let ignore = vec![Pattern::parse("*.down_proj").unwrap(), Pattern::parse("*.self_attn.*").unwrap()];
    let source = fixture("qwen3/source");
    let made = rewrite(&source, &[&Awq { ignore, ..Awq::new(few()) }], 2).unwrap();
    let base = Checkpoint::open(&source).unwrap();
    for name in ["self_attn.q_proj", "self_attn.o_proj", "mlp.down_proj"] {
        let name = format!("model.layers.1.{name}.weight");
        assert_eq!(base.read(&name).unwrap(), made.checkpoint.read(&name).unwrap(), "{name}");
    }
    let norm = "model.layers.1.input_layernorm.weight";
    assert_eq!(base.read(norm).unwrap(), made.checkpoint.read(norm).unwrap(), "nothing quantized reads it");
}

#[test]
fn settings_that_servers_do_not_know_are_refused() {
    let plan = |awq: Awq| {
        let checkpoint = Checkpoint::open(&fixture("qwen3/source")).unwrap();
        OutputPlan::new(checkpoint, &[&awq]).err().unwrap().class().exit_code()
    };
    let base = Awq::new(few());
    assert_eq!(plan(Awq { bits: 3, ..base.clone() }), 2);
    assert_eq!(plan(Awq { group: 100, ..base.clone() }), 2);
    assert_eq!(plan(Awq { bits: 8, layout: Layout::AwqGemm, ..base.clone() }), 2);
    assert_eq!(plan(Awq { symmetric: true, layout: Layout::AwqGemm, ..base.clone() }), 2);
    let fp8 = rewrite(&fixture("qwen3/source"), &[&Fp8::default()], 1).unwrap();
    let e = rewrite(&fp8.path(), &[&base], 1).err().unwrap();
    assert!(e.to_string().contains("quantized already"), "{e}");
}

/// Every packed module of `made` as the numbers it stands for, by the codec, in F32.
fn written_out(made: &Made) -> tempfile::TempDir {
    let c = &made.checkpoint;
    let format = Int4Config::of(c.config()).unwrap().unwrap();
    let mut tensors = Vec::new();
    for t in c.index().tensors() {
        let Some(module) = t.spec.name.strip_suffix(".weight_packed") else {
            if !["_scale", "_shape", "_zero_point"]
                .iter()
                .any(|l| t.spec.name.ends_with(&format!(".weight{l}")))
            {
                tensors.push((t.spec.clone(), c.read(&t.spec.name).unwrap()));
            }
            continue;
        };
        let (rows, cols) = (t.spec.shape[0], t.spec.shape[1] * format.bits.per_word());
        let group = format.group_of(cols);
        let (bits, zeros) = (format.bits, format.zeros);
        let matrix = Matrix { rows, cols, group, bits, scales: Float::BF16, zeros };
        let parts: Vec<Vec<u8>> = Layout::PackQuantized
            .parts(matrix)
            .iter()
            .map(|p| c.read(&format!("{module}.{}", p.leaf)).unwrap())
            .collect();
        let q = Layout::PackQuantized
            .decode(matrix, &parts.iter().map(Vec::as_slice).collect::<Vec<_>>())
            .unwrap();
        let number = |i: usize| {
            let at = i / cols * (cols / group) + i % cols / group;
            (f32::from(q.codes[i]) - f32::from(q.zeros[at])) * q.scales[at]
        };
        let values: Vec<f32> = (0..rows * cols).map(number).collect();
        let spec = TensorSpec::new(format!("{module}.weight"), Dtype::F32, [rows, cols]);
        tensors.push((spec, Float::F32.to_bytes(&values)));
    }
    let mut config = c.config().value().clone();
    config.as_object_mut().unwrap().remove("quantization_config");
    let dir = tempfile::tempdir().unwrap();
    support::write(dir.path(), &config, &tensors);
    dir
}

#[test]
fn eight_bit_folders_run_as_the_numbers_they_stand_for() {
    let eval: Vec<Vec<u32>> = error::tokens(&fixture("eval_tokens.json"))
        .iter()
        .take(2)
        .map(|s| s.iter().map(|t| t % 64).collect())
        .collect();
    for (case, symmetric) in [("qwen3", false), ("qwen3_moe", true), ("qwen3_5_moe-cut", false)] {
        for group in [32, 128] {
            let source = fixture(&format!("{case}/source"));
            let awq = |bits| Awq { bits, symmetric, group, ..Awq::new(few()) };
            let made = rewrite(&source, &[&awq(8)], 2).unwrap();
            let plain = written_out(&made);
            // The same numbers, summed up in another order.
            let apart = error::distance(plain.path(), &made.path(), &eval).relative;
            assert!(apart < 1e-9, "{case} {group}: {apart}");
            let [eight, four] = [made, rewrite(&source, &[&awq(4)], 2).unwrap()]
                .map(|m| error::distance(&source, &m.path(), &eval).relative);
            assert!(eight < 0.05 * four, "{case} {group}: {eight} {four}");
        }
    }
}
