//! The loader's view of packed integers: folders as the references write them have no fault, and each fault planted
//! in one is found and told in its one sentence.

#![allow(clippy::unwrap_used)]

mod support;

use serde_json::{Value, json};
use support::{expected_tensors, fixture, write};
use verify::architecture::{Architecture, Role, UnitKind};
use verify::checkpoint::{TensorReader, TensorSpec};
use verify::codec::Float;
use verify::codec::int4::{Bits, Layout, Matrix, Rule, Zeros, quantize};
use verify::loadable::{Fault, check};
use verify::names::Digest;
use verify::progress::Silent;
use verify::{Checkpoint, Dtype};

#[derive(Clone)]
struct Folder {
    config: Value,
    tensors: Vec<(TensorSpec, Vec<u8>)>,
}

const SYMMETRIC: (Layout, Zeros) = (Layout::PackQuantized, Zeros::Middle);
const ASYMMETRIC: (Layout, Zeros) = (Layout::PackQuantized, Zeros::Stored);
const AWQ: (Layout, Zeros) = (Layout::AwqGemm, Zeros::AutoAwq);

/// Rounds a fixture: every unit that all formats quantize, experts one by one.
fn packed(case: &str, (layout, zeros): (Layout, Zeros), bits: Bits) -> Folder {
    let source = Checkpoint::open(&fixture(&format!("{case}/source"))).unwrap();
    let arch = Architecture::of(source.config(), source.index()).unwrap();
    let chosen: Vec<usize> =
        arch.units().iter().filter(|u| u.kind != UnitKind::InBa).flat_map(|u| u.members.clone()).collect();
    let float = if layout == Layout::AwqGemm { Float::F16 } else { Float::BF16 };
    // Its sides are multiples of 32 only.
    let group = if case == "qwen3-tail" { 32 } else { 128 };
    let mut tensors = Vec::new();
    let (mut done, mut ignored) = (Vec::new(), Vec::new());
    for (at, m) in arch.modules().iter().enumerate() {
        if !chosen.contains(&at) {
            ignored.push(m.name.clone());
            continue;
        }
        done.push(m.source.tensor.clone());
        let spec = &source.index().get(&m.source.tensor).unwrap().spec;
        let rows =
            source.read_rows(&m.source.tensor, m.source.first_row..m.source.first_row + m.rows).unwrap();
        let values = Float::of(spec.dtype).unwrap().to_f32(&rows);
        let matrix =
            Matrix { rows: m.rows, cols: m.cols, group, bits, scales: float, zeros: zeros != Zeros::Middle };
        let q = quantize(&values, group, Rule { zeros, bits, scales: float }).unwrap();
        for (part, bytes) in layout.parts(matrix).into_iter().zip(layout.encode(matrix, &q)) {
            tensors
                .push((TensorSpec::new(format!("{}.{}", m.name, part.leaf), part.dtype, part.shape), bytes));
        }
    }
    for t in source.index().tensors().iter().filter(|t| !done.contains(&t.spec.name)) {
        tensors.push((t.spec.clone(), source.read(&t.spec.name).unwrap()));
    }
    let mut config = source.config().value().clone();
    config["quantization_config"] = match layout {
        Layout::PackQuantized => json!({
            "quant_method": "compressed-tensors", "quantization_status": "compressed", "format": "pack-quantized",
            "ignore": ignored,
            "config_groups": {"group_0": {
                "targets": ["Linear"], "format": "pack-quantized", "input_activations": null, "output_activations": null,
                "weights": {"num_bits": bits.count(), "type": "int", "strategy": "group", "group_size": group,
                    "symmetric": zeros == Zeros::Middle, "dynamic": false, "actorder": null},
            }},
        }),
        Layout::AwqGemm => json!({"quant_method": "awq", "bits": bits.count(), "group_size": group,
            "zero_point": true, "version": "gemm", "modules_to_not_convert": ignored}),
    };
    Folder { config, tensors }
}

impl Folder {
    fn faults(&self) -> Vec<Fault> {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &self.config, &self.tensors);
        check(&Checkpoint::open(dir.path()).unwrap(), &Silent).unwrap()
    }

    /// The one fault after a change.
    fn fault(&self, change: impl FnOnce(&mut Folder)) -> String {
        let mut changed = self.clone();
        change(&mut changed);
        let faults = changed.faults();
        assert_eq!(faults.len(), 1, "{faults:#?}");
        faults[0].to_string()
    }

    fn tensor(&mut self, name: &str) -> &mut (TensorSpec, Vec<u8>) {
        self.tensors.iter_mut().find(|(t, _)| t.name == name).unwrap()
    }

    fn remove(&mut self, begin: &str) {
        let before = self.tensors.len();
        self.tensors.retain(|(t, _)| !t.name.starts_with(begin));
        assert!(self.tensors.len() < before);
    }

    fn add(&mut self, name: &str, dtype: Dtype, shape: &[usize]) {
        let spec = TensorSpec::new(name, dtype, shape);
        let bytes = vec![0; spec.byte_len() as usize];
        self.tensors.push((spec, bytes));
    }

    fn quantization(&mut self) -> &mut Value {
        &mut self.config["quantization_config"]
    }

    fn weights(&mut self) -> &mut Value {
        &mut self.quantization()["config_groups"]["group_0"]["weights"]
    }

    fn list(&mut self) -> &mut Vec<Value> {
        let key = if self.config["quantization_config"]["quant_method"] == "awq" {
            "modules_to_not_convert"
        } else {
            "ignore"
        };
        self.quantization()[key].as_array_mut().unwrap()
    }

    /// Puts a module back to 16 bit.
    fn plain(&mut self, module: &str, shape: [usize; 2]) {
        self.remove(&format!("{module}."));
        self.add(&format!("{module}.weight"), Dtype::BF16, &shape);
    }
}

#[test]
fn good_folders_have_no_fault() {
    for case in ["qwen3_moe", "qwen3_5_moe-cut", "qwen3-tail"] {
        for format in [SYMMETRIC, ASYMMETRIC, AWQ] {
            for bits in [Bits::Four, Bits::Eight] {
                assert_eq!(packed(case, format, bits).faults(), [], "{case} {format:?} {bits:?}");
            }
        }
    }
}

#[test]
fn symmetric_folder_is_that_of_the_reference() {
    let made = packed("qwen3_moe", SYMMETRIC, Bits::Four);
    let expected = expected_tensors("qwen3_moe/ct-w4a16");
    assert_eq!(made.tensors.len(), expected.len());
    for (spec, bytes) in &made.tensors {
        let found =
            json!({"dtype": spec.dtype.name(), "shape": spec.shape, "sha256": Digest::of(bytes).to_string()});
        assert_eq!(expected[&spec.name], found, "{}", spec.name);
    }
    let config = std::fs::read(fixture("qwen3_moe/ct-w4a16/config.json")).unwrap();
    let config = serde_json::from_slice(&config).unwrap();
    assert_eq!(Folder { config, ..made }.faults(), []);
}

#[test]
fn configs_of_the_references_fit() {
    for (case, format, reference) in [
        ("qwen3_moe", AWQ, "qwen3_moe/awq-gemm"),
        ("qwen3_5_moe-cut", ASYMMETRIC, "qwen3_5_moe-cut/ct-w4a16-asym"),
    ] {
        let config = std::fs::read(fixture(reference).join("config.json")).unwrap();
        let config = serde_json::from_slice(&config).unwrap();
        assert_eq!(Folder { config, ..packed(case, format, Bits::Four) }.faults(), [], "{reference}");
    }
}

const O: &str = "model.layers.0.self_attn.o_proj";

#[test]
fn every_part_must_be_there() {
    for (format, leaves) in [
        (ASYMMETRIC, &["weight_scale", "weight_shape", "weight_zero_point"][..]),
        (AWQ, &["qzeros", "scales"][..]),
    ] {
        let good = packed("qwen3_moe", format, Bits::Four);
        for leaf in leaves {
            let said = good.fault(|f| f.remove(&format!("{O}.{leaf}")));
            assert_eq!(said, format!("`{O}` is incomplete: `{O}.{leaf}` is missing"));
        }
        let codes = if format == AWQ { "qweight" } else { "weight_packed" };
        let said = good.fault(|f| f.remove(&format!("{O}.{codes}")));
        assert!(said.contains(&format!("no codes: `{codes}` is missing")) && said.contains(O), "{said}");
        let said = good.fault(|f| f.add(&format!("{O}.weight"), Dtype::BF16, &[256, 256]));
        assert!(said.contains("has its weight twice"), "{said}");
        let said = good.fault(|f| f.remove("model.layers.1.mlp.experts.5."));
        assert!(said.contains("model.layers.1.mlp.experts.5 Gate") && said.contains("missing"), "{said}");
        let said = good.fault(|f| f.remove("model.layers.1.self_attn.k_proj."));
        assert!(said.contains("model.layers.1.self_attn.k_proj"), "{said}");
    }
}

#[test]
fn parts_of_another_format_are_out_of_place() {
    let good = packed("qwen3_moe", SYMMETRIC, Bits::Four);
    for leaf in ["qzeros", "weight_scale_inv", "input_scale", "g_idx"] {
        let said = good.fault(|f| f.add(&format!("{O}.{leaf}"), Dtype::I32, &[2, 32]));
        assert_eq!(
            said,
            format!(
                "`{O}.{leaf}` is no part of compressed-tensors' packed weights: loaders find no place for it"
            )
        );
    }
    let awq = packed("qwen3_moe", AWQ, Bits::Four);
    let said = awq.fault(|f| f.add(&format!("{O}.weight_scale"), Dtype::BF16, &[256, 2]));
    assert!(said.contains("no part of AutoAWQ's weights"), "{said}");
    let said = awq.fault(|f| f.add("model.layers.0.self_attn.odd_proj.qweight", Dtype::I32, &[256, 32]));
    assert!(said.contains("odd_proj.qweight` is no tensor of a qwen3_moe model"), "{said}");
}

#[test]
fn types_and_shapes_must_be_those_that_loaders_allocate() {
    for (format, leaf, shape) in [
        (ASYMMETRIC, "weight_scale", "[256, 2]"),
        (ASYMMETRIC, "weight_zero_point", "[32, 2]"),
        (AWQ, "scales", "[2, 256]"),
        (AWQ, "qzeros", "[2, 32]"),
    ] {
        let good = packed("qwen3_moe", format, Bits::Four);
        let name = format!("{O}.{leaf}");
        let said = good.fault(|f| f.tensor(&name).0.shape.reverse());
        assert!(
            said.starts_with(&format!("`{name}` has shape"))
                && said.ends_with(&format!("loaders expect {shape}")),
            "{said}"
        );
        let said = good.fault(|f| {
            let spec = &mut f.tensor(&name).0;
            spec.dtype = if spec.dtype == Dtype::I32 { Dtype::U32 } else { Dtype::I16 };
        });
        assert!(said.starts_with(&format!("`{name}` has dtype")), "{said}");
    }
    let good = packed("qwen3_moe", SYMMETRIC, Bits::Four);
    let said = good.fault(|f| f.tensor(&format!("{O}.weight_packed")).0.shape = vec![256 * 32]);
    assert!(said.contains("[8192]: loaders expect two axes"), "{said}");
    let said = good.fault(|f| f.tensor(&format!("{O}.weight_packed")).0.dtype = Dtype::F32);
    assert!(said.contains("has dtype F32: loaders expect I32"), "{said}");
    let said = good.fault(|f| f.tensor("model.norm.weight").0.dtype = Dtype::I16);
    assert!(said.contains("`model.norm.weight` has dtype I16: loaders expect a plain float here"), "{said}");
    let said = good.fault(|f| f.tensor(&format!("{O}.weight_shape")).1[0] = 7);
    assert!(said.contains("but the codes are [256, 256]"), "{said}");
}

#[test]
fn groups_must_divide_and_have_kernels() {
    let good = packed("qwen3_moe", SYMMETRIC, Bits::Four);
    let scale = format!("{O}.weight_scale");
    // A group of 64 needs twice the scales.
    let mut changed = good.clone();
    changed.weights()["group_size"] = 64.into();
    let faults = changed.faults();
    assert_eq!(faults.len(), 56);
    assert!(faults.iter().any(|f| f.subject == scale && f.sentence.contains("in groups of 64, so loaders expect [256, 4]")));
    let said = good.fault(|f| {
        f.remove(&format!("{O}."));
        f.add(&format!("{O}.weight_packed"), Dtype::I32, &[256, 24]);
        f.add(&scale, Dtype::BF16, &[256, 1]);
        f.tensor(&scale).1 = [0x80, 0x3f].repeat(256);
        f.add(&format!("{O}.weight_shape"), Dtype::I64, &[2]);
        f.tensor(&format!("{O}.weight_shape")).1 =
            [256i64, 192].iter().flat_map(|n| n.to_le_bytes()).collect();
    });
    assert!(said.contains("has 192 inputs, no multiple of the group size 128"), "{said}");
    let mut changed = good.clone();
    changed.weights()["group_size"] = 256.into();
    assert!(changed.faults().iter().any(|f| f.to_string().starts_with("`group_size` is 256")));
    let odd = packed("qwen3_moe", ASYMMETRIC, Bits::Four).fault(|f| {
        let v = "model.layers.0.self_attn.v_proj";
        f.remove(&format!("{v}."));
        f.add(&format!("{v}.weight_packed"), Dtype::I32, &[100, 32]);
        f.add(&format!("{v}.weight_scale"), Dtype::BF16, &[100, 2]);
        f.tensor(&format!("{v}.weight_scale")).1 = [0x80, 0x3f].repeat(200);
        f.add(&format!("{v}.weight_zero_point"), Dtype::I32, &[13, 2]);
        f.add(&format!("{v}.weight_shape"), Dtype::I64, &[2]);
        f.tensor(&format!("{v}.weight_shape")).1 =
            [100i64, 256].iter().flat_map(|n| n.to_le_bytes()).collect();
    });
    assert!(odd.contains("has 100 outputs, no multiple of 8"), "{odd}");
}

#[test]
fn zeros_must_be_as_the_config_says() {
    let said = packed("qwen3_moe", ASYMMETRIC, Bits::Four).fault(|f| f.weights()["symmetric"] = true.into());
    assert!(said.starts_with("`symmetric` is true in config.json, but 56 modules store zeros"), "{said}");
    let good = packed("qwen3_moe", SYMMETRIC, Bits::Four);
    let said = good.fault(|f| f.weights()["symmetric"] = false.into());
    assert!(said.starts_with("`symmetric` is false in config.json, but no module stores zeros"), "{said}");
    let said = good.fault(|f| f.add(&format!("{O}.weight_zero_point"), Dtype::I32, &[32, 2]));
    // The tensors are believed only where all of them agree.
    assert!(said.contains("`symmetric` is true in config.json, but 1 modules store zeros"), "{said}");
    let said = packed("qwen3_moe", AWQ, Bits::Four).fault(|f| f.quantization()["zero_point"] = false.into());
    assert!(said.starts_with("`zero_point` is false in config.json, but 56 modules store zeros"), "{said}");
}

#[test]
fn order_of_columns_goes_with_actorder_only() {
    let good = packed("qwen3_moe", SYMMETRIC, Bits::Four);
    let said = good.fault(|f| f.add(&format!("{O}.weight_g_idx"), Dtype::I32, &[256]));
    assert!(
        said.contains("weight_g_idx` tells another order of columns, but the config has no `actorder`"),
        "{said}"
    );
    let mut ordered = good.clone();
    ordered.weights()["actorder"] = "group".into();
    assert_eq!(ordered.faults().len(), 56);
    let codes: Vec<(String, usize)> = good
        .tensors
        .iter()
        .filter(|(t, _)| t.name.ends_with("_packed"))
        .map(|(t, _)| (t.name.replace("_packed", "_g_idx"), t.shape[1] * 8))
        .collect();
    codes.iter().for_each(|(name, cols)| ordered.add(name, Dtype::I32, &[*cols]));
    assert_eq!(ordered.faults(), []);
    let said = ordered.fault(|f| f.tensor(&format!("{O}.weight_g_idx")).0.shape = vec![2, 128]);
    assert!(said.contains("loaders expect I32 [256]"), "{said}");
}

#[test]
fn fused_layers_are_all_or_none() {
    for format in [SYMMETRIC, AWQ] {
        let good = packed("qwen3_moe", format, Bits::Four);
        let k = "model.layers.0.self_attn.k_proj";
        let said = good.fault(|f| {
            f.plain(k, [128, 256]);
            f.list().push(json!(k));
        });
        assert!(
            said.contains("qkv_proj` is half quantized: 2 of its 3 parts are in 4 bit") && said.contains(k),
            "{said}"
        );
    }
    let said = packed("qwen3_moe", SYMMETRIC, Bits::Four).fault(|f| {
        let up = "model.layers.0.mlp.experts.3.up_proj";
        f.plain(up, [128, 256]);
        f.list().push(json!(up));
    });
    assert!(said.contains("model.layers.0.mlp.experts` is half quantized: 23 of its 24"), "{said}");
}

#[test]
fn experts_left_in_one_tensor_are_found() {
    for format in [ASYMMETRIC, AWQ] {
        let block = "model.language_model.layers.1.mlp.experts";
        let mut f = packed("qwen3_5_moe-cut", format, Bits::Four);
        f.remove(&format!("{block}."));
        f.add(&format!("{block}.gate_up_proj"), Dtype::BF16, &[2, 256, 256]);
        f.add(&format!("{block}.down_proj"), Dtype::BF16, &[2, 256, 128]);
        f.list().push(json!(block));
        let faults = f.faults();
        let subjects: Vec<_> = faults.iter().map(|f| f.subject.as_str()).collect();
        assert_eq!(subjects, [format!("{block}.gate_up_proj"), format!("{block}.down_proj")]);
        assert!(faults.iter().all(|f| f.sentence.contains("one matrix per expert")));
    }
}

#[test]
fn short_entries_of_autoawq_hit_too_much() {
    let good = packed("qwen3_5_moe-cut", AWQ, Bits::Four);
    // `gate` is part of gate_proj of the shared expert; the experts' block has a path of its own.
    let said = good.fault(|f| f.list().push(json!("gate")));
    assert!(
        said.starts_with("`gate` in `modules_to_not_convert` is part of the path of 3 quantized modules"),
        "{said}"
    );
    assert!(said.contains("shared_expert.gate_proj"), "{said}");
    let said = good.fault(|f| f.list().push(json!("experts")));
    assert!(said.starts_with("`experts` in"), "{said}");
    // A dense model: `mlp.gate` is part of `mlp.gate_proj`.
    let dense = packed("qwen3-tail", AWQ, Bits::Four);
    let said = dense.fault(|f| f.list().push(json!("mlp.gate")));
    assert!(
        said.contains("`mlp.gate` in `modules_to_not_convert` is part of the path of")
            && said.contains("mlp.gate_proj"),
        "{said}"
    );
}

#[test]
fn skip_list_must_say_what_is_stored() {
    for format in [ASYMMETRIC, AWQ] {
        let good = packed("qwen3_5_moe-cut", format, Bits::Four);
        let said = good.fault(|f| f.list().push(json!("model.layers.7.mlp.gate")));
        assert_eq!(said, "`model.layers.7.mlp.gate` stands in the skip list and matches no module");
        let said = good.fault(|f| f.list().retain(|e| e != "mtp.fc"));
        assert!(said.starts_with("`mtp.fc` is in 16 bit and not in "), "{said}");
        let o = "model.language_model.layers.1.self_attn.o_proj";
        let said = good.fault(|f| f.list().push(json!(o)));
        assert!(
            said.contains(o)
                && (said.contains("is in 4 bit, but the skip list says")
                    || said.contains("1 quantized modules")),
            "{said}"
        );
        let said = good.fault(|f| {
            f.plain(o, [256, 256]);
        });
        assert!(said.starts_with(&format!("`{o}` is in 16 bit and not in ")), "{said}");
    }
    let said = packed("qwen3_moe", AWQ, Bits::Four).fault(|f| f.list().clear());
    assert!(said.starts_with("`modules_to_not_convert` is empty, while 2 modules"), "{said}");
    let mut f = packed("qwen3_moe", SYMMETRIC, Bits::Four);
    *f.list() = vec![json!("lm_head"), json!(r"re:.*mlp\.gate$")];
    assert_eq!(f.faults(), []);
}

#[test]
fn scales_must_be_positive_numbers() {
    for (format, leaf) in [(SYMMETRIC, "weight_scale"), (AWQ, "scales")] {
        let good = packed("qwen3_moe", format, Bits::Four);
        let name = format!("{O}.{leaf}");
        for (value, word) in
            [(0.0f32, "zero"), (-1.0, "negative"), (f32::NAN, "not finite"), (f32::INFINITY, "not finite")]
        {
            let said = good.fault(|f| {
                let (spec, bytes) = f.tensor(&name);
                bytes[6..8].copy_from_slice(&Float::of(spec.dtype).unwrap().to_bytes(&[value]));
            });
            assert!(said.contains(&name) && said.contains(word), "{said}");
        }
    }
}

#[test]
fn what_servers_never_quantize_must_be_plain() {
    let good = packed("qwen3_moe", SYMMETRIC, Bits::Four);
    let gate = "model.layers.0.mlp.gate";
    let said = good.fault(|f| {
        f.remove(&format!("{gate}.weight"));
        f.add(&format!("{gate}.weight_packed"), Dtype::I32, &[8, 32]);
        f.add(&format!("{gate}.weight_scale"), Dtype::BF16, &[8, 2]);
        f.tensor(&format!("{gate}.weight_scale")).1 = [0x80, 0x3f].repeat(16);
    });
    assert_eq!(said, format!("`{gate}` is packed, but servers build the router in 16 bit"));
}

#[test]
fn narrow_experts_are_found() {
    let said = packed("qwen3_moe", SYMMETRIC, Bits::Four).fault(|f| {
        for (spec, bytes) in &mut f.tensors {
            if !spec.name.contains(".experts.") {
                continue;
            }
            // 64 outputs of gate and up, 64 inputs of down.
            let down = spec.name.contains("down_proj");
            if spec.name.ends_with("weight_shape") {
                let at = if down { 8 } else { 0 };
                bytes[at..at + 8].copy_from_slice(&64i64.to_le_bytes());
            } else {
                let axis = usize::from(down);
                if !(down && spec.name.ends_with("weight_scale")) {
                    spec.shape[axis] /= 2;
                    bytes.truncate(spec.byte_len() as usize);
                }
            }
        }
        f.weights()["group_size"] = 64.into();
        // Scales of everything else, twice as many.
        for (spec, bytes) in &mut f.tensors {
            if spec.name.ends_with("weight_scale") && !spec.name.contains("down_proj") {
                spec.shape[1] *= 2;
                *bytes = bytes.repeat(2);
            }
        }
    });
    assert!(said.starts_with("`moe_intermediate_size` of each expert is 64"), "{said}");
}

#[test]
fn config_must_say_what_loaders_ask() {
    let good = packed("qwen3_moe", SYMMETRIC, Bits::Four);
    let said = good.fault(|f| f.quantization()["quantization_status"] = "frozen".into());
    assert!(said.starts_with("`quantization_status` is \"frozen\""), "{said}");
    let said = good.fault(|f| f.quantization()["config_groups"]["group_0"]["targets"] = json!(["re:.*proj"]));
    assert!(said.starts_with("`targets` of `group_0`"), "{said}");
    let said = good.fault(|f| {
        f.quantization()["config_groups"]["group_0"]["input_activations"] = json!({"num_bits": 8})
    });
    assert!(said.starts_with("`input_activations` of `group_0`"), "{said}");
    let mut f = good.clone();
    f.config.as_object_mut().unwrap().remove("quantization_config");
    let faults = f.faults();
    assert_eq!(faults.len(), 56);
    assert!(faults.iter().all(|f| f.sentence.contains("holds packed codes, but config.json has no")));
}

#[test]
fn missing_mtp_is_found() {
    let said = packed("qwen3_5_moe-cut", AWQ, Bits::Four).fault(|f| {
        f.remove("mtp.");
        f.list().retain(|e| !e.as_str().unwrap().starts_with("mtp."));
    });
    assert!(said.contains("`mtp` is missing"), "{said}");
}

#[test]
fn roles_of_a_folder_in_eight_bit_have_their_true_sizes() {
    for format in [SYMMETRIC, AWQ] {
        let f = packed("qwen3_moe", format, Bits::Eight);
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &f.config, &f.tensors);
        let c = Checkpoint::open(dir.path()).unwrap();
        let arch = Architecture::of(c.config(), c.index()).unwrap();
        let down = arch.module("model.layers.0.mlp.experts.2.down_proj").unwrap();
        assert!(matches!(down.role, Role::Expert(2, _)));
        assert_eq!((down.rows, down.cols), (256, 128));
    }
}
