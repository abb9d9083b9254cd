//! Calibrated scales of inputs, keys and values: the numbers that a plain run of the model gives, in the places where
//! loaders look for them.
#![allow(clippy::unwrap_used)]

#[path = "support/error.rs"]
mod error;
#[path = "support/stop.rs"]
mod stop;
mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use quant::awq::{Awq, Layout};
use quant::calibration::data::Samples;
use quant::{Activations, Experts, Fp8, KvCache, Scheme};
use runner::Cpu;
use runner::blocks::Mlp;
use runner::cpu::{Array, Watch};
use runner::decoder::{Decoder, Part, Want};
use runner::families;
use runner::weights::{Matrix, ReadStore};
use serde_json::{Value, json};
use support::{Made, fixture, rewrite};
use verify::Checkpoint;
use verify::checkpoint::TensorReader;
use verify::codec::Float;
use verify::loadable::check;
use verify::progress::Silent;
use verify::rewrite::OutputPlan;

/// A model of each family, with sides that no other format takes.
const FAMILIES: [&str; 11] = [
    "llama",
    "mixtral",
    "olmoe",
    "qwen3",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_5_moe_split",
    "qwen3_5_text",
    "qwen3_moe",
    "qwen3_moe_nonorm",
    "qwen3_next",
];

fn family(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/logits").join(name)
}

/// Sequences of different lengths in a vocabulary of 64 tokens.
fn sequences() -> Vec<Vec<u32>> {
    let all = error::tokens(&fixture("calib_tokens.json"));
    (0..7).map(|n| all[n].iter().take(11 + 17 * n).map(|t| t % 64).collect()).collect()
}

fn fp8() -> Fp8 {
    Fp8 {
        scheme: Scheme::Tensor,
        activations: Activations::Static,
        cache: KvCache::Fp8,
        samples: Samples::of(sequences()),
        ..Fp8::default()
    }
}

/// The largest size of every matrix's inputs, and of keys and values in the order in which layers cache them.
#[derive(Default)]
struct Largest {
    inputs: Mutex<BTreeMap<String, f32>>,
    cached: Mutex<Vec<[f32; 2]>>,
    /// What every router reads.
    routed: Mutex<BTreeMap<String, Vec<Array>>>,
}

fn largest(x: &Array) -> f32 {
    x.values().iter().fold(0.0, |most, v| v.abs().max(most))
}

impl Watch for Largest {
    fn see(&self, matrix: &Matrix, x: &Array) {
        let mut inputs = self.inputs.lock().unwrap();
        let most = inputs.entry(matrix.name.to_string()).or_default();
        *most = most.max(largest(x));
        if matrix.name.ends_with(".gate") {
            self.routed.lock().unwrap().entry(matrix.name.to_string()).or_default().push(x.clone());
        }
    }

    fn see_cached(&self, k: &Array, v: &Array) {
        self.cached.lock().unwrap().push([largest(k), largest(v)]);
    }
}

/// Runs all sequences through the model as it is; gives what was seen, and the model.
fn plain_run(model: &Path, sequences: &[Vec<u32>]) -> (Arc<Largest>, Decoder<Cpu>) {
    let checkpoint = Checkpoint::open(model).unwrap();
    let (store, cpu) = (ReadStore::new(&checkpoint), Cpu::default());
    let decoder = families::blueprint(&store, checkpoint.config(), &cpu).unwrap().decoder().unwrap();
    let seen = Arc::new(Largest::default());
    let watched = cpu.clone().watched(seen.clone());
    for tokens in sequences {
        let mut sequence = decoder.sequence(&cpu).unwrap();
        let mut parts = [Part { sequence: &mut sequence, tokens, want: Want::Nothing }];
        decoder.forward(&watched, &mut parts).unwrap();
    }
    (seen, decoder)
}

/// The largest inputs of each layer's `down` over all experts, every token going through each of them.
fn through_all_experts(seen: &Largest, decoder: &Decoder<Cpu>) -> BTreeMap<String, f32> {
    let mut found = BTreeMap::new();
    let routed = seen.routed.lock().unwrap();
    for layer in &decoder.layers {
        let Mlp::Moe(moe) = &layer.mlp else { continue };
        for x in &routed[&*moe.router.weight.name] {
            for expert in &moe.experts {
                let inner = expert.inner(&Cpu::default(), x).unwrap();
                let most: &mut f32 = found.entry(block(&expert.down.weight.name)).or_default();
                *most = most.max(largest(&inner));
            }
        }
    }
    found
}

/// `…experts` of the path of an expert's matrix.
fn block(module: &str) -> String {
    module[..module.find(".experts.").unwrap() + ".experts".len()].to_string()
}

fn is_down(module: &str) -> bool {
    module.ends_with(".down_proj") || module.ends_with(".w2")
}

fn number(c: &Checkpoint, name: &str) -> f32 {
    let spec = &c.index().get(name).unwrap_or_else(|| panic!("no {name}")).spec;
    assert_eq!(spec.shape, [1], "{name}");
    assert_eq!(spec.dtype.name(), "F32", "{name}");
    Float::F32.to_f32(&c.read(name).unwrap())[0]
}

/// The scale of numbers up to `largest`: over 448, rounded to BF16.
fn scale(largest: f32) -> f32 {
    let bits = (largest / 448.0).to_bits();
    f32::from_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000)
}

fn modules_with(c: &Checkpoint, leaf: &str) -> Vec<String> {
    let names = c.index().tensors().iter().map(|t| t.spec.name.as_str());
    names.filter_map(|n| n.strip_suffix(leaf)).map(str::to_string).collect()
}

#[test]
fn scales_are_those_of_a_plain_run_in_every_family() {
    for name in FAMILIES {
        for experts in [Experts::All, Experts::Routed] {
            let source = family(name);
            let (seen, decoder) = plain_run(&source, &sequences());
            let all = through_all_experts(&seen, &decoder);
            let made = rewrite(&source, &[&Fp8 { experts, ..fp8() }], 2).unwrap();
            let inputs = seen.inputs.lock().unwrap();
            let codes = made.checkpoint.index().tensors().iter().filter(|t| t.spec.dtype.name() == "F8_E4M3");
            let mut count = 0;
            for module in codes.map(|t| t.spec.name.strip_suffix(".weight").unwrap()) {
                // Experts share one scale, whichever of them a token came to.
                let want = match module.contains(".experts.") {
                    false => inputs[module],
                    true if experts == Experts::All && is_down(module) => all[&block(module)],
                    true => {
                        let same = |n: &str| {
                            n.contains(".experts.")
                                && block(n) == block(module)
                                && is_down(n) == is_down(module)
                        };
                        inputs.iter().filter(|(n, _)| same(n)).fold(0.0, |most: f32, (_, v)| most.max(*v))
                    }
                };
                let got = number(&made.checkpoint, &format!("{module}.input_scale"));
                assert_eq!(got, scale(want), "{name} {experts:?} {module}");
                count += 1;
            }
            assert_eq!(modules_with(&made.checkpoint, ".input_scale").len(), count, "{name}");
            cache_is_as_seen(&made.checkpoint, &seen, name);
        }
    }
}

fn cache_is_as_seen(made: &Checkpoint, seen: &Largest, name: &str) {
    let attentions = modules_with(made, ".k_scale");
    let cached = seen.cached.lock().unwrap();
    let layers = attentions.len();
    assert_eq!(cached.len(), layers * sequences().len(), "{name}");
    // Body layers only, in their order.
    let number_of = |path: &str| {
        path.split("layers.").nth(1).unwrap().split('.').next().unwrap().parse::<usize>().unwrap()
    };
    let mut ordered = attentions.clone();
    ordered.sort_by_key(|path| number_of(path));
    for (at, path) in ordered.iter().enumerate() {
        assert!(path.ends_with(".self_attn") && !path.starts_with("mtp."), "{path}");
        let most = |part: usize| cached.iter().skip(at).step_by(layers).fold(0.0, |m: f32, c| m.max(c[part]));
        for (part, leaf) in ["k_scale", "v_scale"].into_iter().enumerate() {
            assert_eq!(number(made, &format!("{path}.{leaf}")), scale(most(part)), "{name} {path}.{leaf}");
        }
    }
}

#[test]
fn config_tells_servers_of_stored_scales() {
    let made = rewrite(&fixture("qwen3_moe/source"), &[&fp8()], 2).unwrap();
    let q = made.quantization();
    let group = &q["config_groups"]["group_0"];
    let tensor = json!({"num_bits": 8, "type": "float", "symmetric": true, "strategy": "tensor", "group_size": null,
        "dynamic": false});
    assert_eq!((&group["weights"], &group["input_activations"]), (&tensor, &tensor));
    let scheme =
        json!({"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": false, "symmetric": true});
    assert_eq!((&q["quant_method"], &q["kv_cache_scheme"]), (&json!("compressed-tensors"), &scheme));
    let only_cache = Fp8 { scheme: Scheme::Channel, activations: Activations::Dynamic, ..fp8() };
    let made = rewrite(&fixture("qwen3_moe/source"), &[&only_cache], 2).unwrap();
    assert_eq!(made.quantization()["config_groups"]["group_0"]["input_activations"]["dynamic"], true);
    assert_eq!(made.quantization()["kv_cache_scheme"], scheme);
    assert!(modules_with(&made.checkpoint, ".input_scale").is_empty());
    let blocks =
        rewrite(&fixture("qwen3_moe/source"), &[&Fp8 { scheme: Scheme::Block, ..only_cache }], 2).unwrap();
    assert_eq!(blocks.quantization()["quant_method"], "fp8");
    assert!(blocks.quantization().get("kv_cache_scheme").is_none(), "`fp8` knows no such key");
    assert_eq!(modules_with(&blocks.checkpoint, ".k_scale").len(), 2);
}

#[test]
fn what_is_written_has_no_fault_for_loaders() {
    let with = |case: &str, fp8: Fp8| {
        let made = rewrite(&fixture(&format!("{case}/source")), &[&fp8], 2).unwrap();
        assert_eq!(check(&made.checkpoint, &Silent).unwrap(), [], "{case} {:?}", fp8.scheme);
    };
    for case in ["qwen3", "qwen3-tail", "qwen3_moe", "qwen3_5_moe-cut"] {
        with(case, fp8());
        with(case, Fp8 { cache: KvCache::Bits16, ..fp8() });
        for scheme in [Scheme::Block, Scheme::CompressedBlock, Scheme::Channel, Scheme::Tensor] {
            with(case, Fp8 { scheme, activations: Activations::Dynamic, ..fp8() });
        }
    }
    with("qwen3", Fp8 { scheme: Scheme::Channel, ..fp8() });
    for case in ["qwen3", "qwen3_moe", "qwen3_5_moe-cut"] {
        let awq = Awq { cache: KvCache::Fp8, ..Awq::new(Samples::of(sequences())) };
        let made = rewrite(&fixture(&format!("{case}/source")), &[&awq], 2).unwrap();
        assert_eq!(check(&made.checkpoint, &Silent).unwrap(), [], "AWQ {case}");
        assert_eq!(made.quantization()["kv_cache_scheme"]["num_bits"], 8);
    }
}

/// AWQ divides rows of `v_proj`: the scale must be that of the values which the result caches.
#[test]
fn scales_of_awq_are_those_of_the_smoothed_model() {
    for case in ["qwen3/source", "qwen3_moe/source", "qwen3_5_moe-cut/source"] {
        let awq = Awq { cache: KvCache::Fp8, ..Awq::new(Samples::of(sequences())) };
        let made = rewrite(&fixture(case), &[&awq], 2).unwrap();
        // The written model without its scales, so that nothing is rounded while it runs.
        let bare = tempfile::tempdir().unwrap();
        let c = &made.checkpoint;
        let tensors = c
            .index()
            .tensors()
            .iter()
            .filter(|t| !t.spec.name.ends_with("v_scale") && !t.spec.name.ends_with("k_scale"));
        let tensors: Vec<_> = tensors.map(|t| (t.spec.clone(), c.read(&t.spec.name).unwrap())).collect();
        support::write(bare.path(), c.config().value(), &tensors);
        let (seen, _) = plain_run(bare.path(), &sequences());
        let cached = seen.cached.lock().unwrap();
        let attentions = modules_with(c, ".k_scale");
        for (at, path) in attentions.iter().enumerate() {
            for (part, leaf) in ["k_scale", "v_scale"].into_iter().enumerate() {
                let most =
                    cached.iter().skip(at).step_by(attentions.len()).fold(0.0, |m: f32, c| m.max(c[part]));
                let (got, want) = (number(c, &format!("{path}.{leaf}")), most / 448.0);
                // 4-bit weights move the largest value a little.
                assert!((got / want).ln().abs() < 0.25, "{case} {path}.{leaf}: {got} {want}");
            }
        }
    }
}

#[test]
fn answers_stay_near_the_source() {
    for case in ["qwen3", "qwen3_moe", "qwen3_5_moe-cut"] {
        let source = fixture(&format!("{case}/source"));
        let eval: Vec<Vec<u32>> = error::tokens(&fixture("eval_tokens.json"))
            .iter()
            .take(2)
            .map(|s| s.iter().map(|t| t % 64).collect())
            .collect();
        let away = |fp8: Fp8| {
            let made = rewrite(&source, &[&fp8], 2).unwrap();
            error::distance(&source, &made.path(), &eval).relative
        };
        let weights = away(Fp8 { scheme: Scheme::Tensor, ..Fp8::default() });
        let all = away(fp8());
        assert!(all > weights, "{case}: inputs and cache are rounded too");
        assert!(all < 12.0 * weights, "{case}: {all} {weights}");
        // A calibration that saw next to nothing clips: it must show when the folder is run.
        let one = away(Fp8 { samples: Samples::of(vec![vec![1]]), ..fp8() });
        assert!(one > all, "{case}: {one} {all}");
    }
}

#[test]
fn bytes_do_not_depend_on_threads() {
    for case in ["qwen3_moe/source", "qwen3_5_moe-cut/source"] {
        let made = |threads| rewrite(&fixture(case), &[&fp8()], threads).unwrap();
        let one = made(1);
        for threads in [2, 7] {
            let other = made(threads);
            assert!(other.files() == one.files(), "{case} {threads}");
            assert_eq!(other.report.stages[0].details, one.report.stages[0].details, "{case} {threads}");
        }
    }
}

#[test]
fn stopped_calibration_goes_on_with_the_same_bytes() {
    for case in ["qwen3_moe/source", "qwen3_5_moe-cut/source"] {
        let whole = rewrite(&fixture(case), &[&fp8()], 2).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        stop::stopped_and_gone_on(&fixture(case), &fp8(), &out);
        for (name, bytes) in whole.files() {
            assert!(std::fs::read(out.join(&name)).unwrap() == bytes, "{case} {name}");
        }
    }
}

fn details(made: &Made) -> &Value {
    &made.report.stages[0].details
}

#[test]
fn report_tells_scales_widest_ranges_and_starved_experts() {
    let samples = Samples::of(error::tokens(&fixture("calib_tokens.json")));
    let made = rewrite(&fixture("qwen3_moe/source"), &[&Fp8 { samples, ..fp8() }], 2).unwrap();
    let d = details(&made);
    // Two layers: qkv, o, gate and up, down, keys, values.
    assert_eq!(d["scales"], 12);
    assert!(d["relative_rms"].as_f64().unwrap() > 0.0, "of the weights");
    let layer = &d["layers"][1];
    let names: Vec<&str> =
        layer["ranges"].as_array().unwrap().iter().map(|r| r["of"].as_str().unwrap()).collect();
    let path = "model.layers.1";
    let want = [
        "self_attn.qkv_proj",
        "self_attn.o_proj",
        "mlp.experts.*.gate_up",
        "mlp.experts.*.down",
        "self_attn.k_scale",
        "self_attn.v_scale",
    ];
    let mut sorted: Vec<String> = want.iter().map(|n| format!("{path}.{n}")).collect();
    let mut got: Vec<String> = names.iter().map(|n| n.to_string()).collect();
    sorted.sort();
    got.sort();
    assert_eq!(got, sorted);
    for range in layer["ranges"].as_array().unwrap() {
        let of = |key: &str| range[key].as_f64().unwrap();
        assert!(of("largest") >= of("rms") && of("rms") > 0.0, "{range}");
        assert!((of("largest") / of("scale") / 448.0 - 1.0).abs() < 0.01, "{range}");
        assert!(range["clipped"].is_null() || (0.0..0.2).contains(&of("clipped")), "{range}");
    }
    let widest = d["widest_ranges"].as_array().unwrap();
    assert_eq!(widest.len(), 10);
    let stretch = |r: &Value| r["largest"].as_f64().unwrap() / r["rms"].as_f64().unwrap();
    assert!(widest.windows(2).all(|w| stretch(&w[0]) >= stretch(&w[1])));
    assert!(
        d["starved_experts"].as_array().unwrap().iter().any(|s| s.as_str().unwrap().contains("expert 7: 0"))
    );
    assert!(made.report.warnings.iter().any(|w| w.contains("fewer than 16 calibration tokens")));
    let found = quant::report::Calibration::of_details(d);
    assert_eq!((found.ranges.len(), found.ranges[11].layer, found.experts.len()), (12, 1, 2));
    let page = quant::report::page("m", &[], &found);
    assert!(page.contains("model.layers.1.mlp.experts.*.down") && page.contains("Tokens of each expert"));
}

#[test]
fn draft_layers_stay_in_16_bit_beside_stored_scales() {
    let made = rewrite(&fixture("qwen3_5_moe-cut/source"), &[&fp8()], 2).unwrap();
    let index = made.checkpoint.index();
    assert_eq!(index.get("mtp.layers.0.self_attn.q_proj.weight").unwrap().spec.dtype.name(), "BF16");
    assert!(!index.contains("mtp.layers.0.self_attn.k_scale"));
    let ignored = made.quantization()["ignore"].as_array().unwrap();
    assert!(ignored.contains(&json!("mtp.layers.0.self_attn.q_proj")));
}

#[test]
fn ignored_modules_get_no_input_scale_but_their_cache_does() {
    let ignore = vec![quant::Pattern::parse("*.self_attn.*").unwrap()];
    let made = rewrite(&fixture("qwen3_moe/source"), &[&Fp8 { ignore, ..fp8() }], 2).unwrap();
    let index = made.checkpoint.index();
    assert!(!index.contains("model.layers.0.self_attn.q_proj.input_scale"));
    assert!(index.contains("model.layers.0.self_attn.k_scale"));
    assert_eq!(check(&made.checkpoint, &Silent).unwrap(), []);
}

#[test]
fn what_servers_do_not_load_is_refused() {
    let refused = |case: &str, fp8: Fp8, word: &str| {
        let checkpoint = Checkpoint::open(&fixture(case)).unwrap();
        let e = OutputPlan::new(checkpoint, &[&fp8]).err().unwrap();
        assert!(e.class().exit_code() == 2 && e.to_string().contains(word), "{e}");
    };
    refused("qwen3_moe/source", Fp8 { scheme: Scheme::Block, ..fp8() }, "--scheme tensor");
    refused("qwen3_moe/source", Fp8 { scheme: Scheme::Channel, ..fp8() }, "--scheme tensor");
    refused("qwen3/source", Fp8 { scheme: Scheme::CompressedBlock, ..fp8() }, "--scheme tensor or channel");
    let awq = Awq { cache: KvCache::Fp8, layout: Layout::AwqGemm, ..Awq::new(Samples::of(sequences())) };
    let e = OutputPlan::new(Checkpoint::open(&fixture("qwen3/source")).unwrap(), &[&awq]).err().unwrap();
    assert!(e.class().exit_code() == 2 && e.to_string().contains("--format compressed-tensors"), "{e}");
}

#[test]
fn numbers_that_are_none_are_named() {
    let broken = |tensor: &str| {
        let source = Checkpoint::open(&fixture("qwen3/source")).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let tensors = source.index().tensors().iter();
        let mut tensors: Vec<_> =
            tensors.map(|t| (t.spec.clone(), source.read(&t.spec.name).unwrap())).collect();
        let (_, bytes) = tensors.iter_mut().find(|(t, _)| t.name == tensor).unwrap();
        bytes[..2].copy_from_slice(&0x7fc0u16.to_le_bytes());
        support::write(dir.path(), source.config().value(), &tensors);
        rewrite(dir.path(), &[&fp8()], 2).err().unwrap()
    };
    let e = broken("model.layers.1.mlp.up_proj.weight");
    assert!(e.class().exit_code() == 3 && e.to_string().contains("model.layers.1.mlp.up_proj"), "{e}");
    let e = broken("model.layers.0.input_layernorm.weight");
    assert!(e.class().exit_code() == 3 && e.to_string().contains("model.layers.0.self_attn.qkv_proj"), "{e}");
}
