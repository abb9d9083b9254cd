//! Broken and hostile folders: one clear sentence, exit 3, nothing half-written.

use std::path::Path;

use crate::args;
use crate::support::{Dir, Ended, fixture, prep, tiny_merged};

/// A copy of the tiny base with something done to it, then quantized.
fn quantized(spoil: impl Fn(&Path)) -> Ended {
    let dir = Dir::new();
    let model = dir.copy_of(&fixture("models/qwen3-moe/base"), "model");
    spoil(&model);
    let out = dir.join("out");
    let ended = prep(args!["quantize", model, "--out", out, "--fp8"]);
    assert!(!out.join("prep-report.json").exists());
    ended
}

fn rewrite(path: &Path, change: impl Fn(&mut Vec<u8>)) {
    let mut bytes = std::fs::read(path).unwrap();
    change(&mut bytes);
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn truncated_shard() {
    quantized(|m| rewrite(&m.join("model.safetensors"), |b| b.truncate(b.len() - 7)))
        .exits(3)
        .says("model.safetensors");
}

#[test]
fn header_that_claims_more_than_the_file() {
    for length in [u64::MAX, 1 << 40, 99_999_999] {
        quantized(|m| {
            rewrite(&m.join("model.safetensors"), |b| b[..8].copy_from_slice(&length.to_le_bytes()))
        })
        .exits(3)
        .says("header");
    }
    quantized(|m| std::fs::write(m.join("model.safetensors"), b"abc").unwrap()).exits(3).says("3 bytes");
}

#[test]
fn missing_config_weights_or_folder() {
    quantized(|m| std::fs::remove_file(m.join("config.json")).unwrap()).exits(3).says("config.json");
    quantized(|m| std::fs::remove_file(m.join("model.safetensors")).unwrap()).exits(3).says("no weights");
    quantized(|m| std::fs::write(m.join("config.json"), "{\"model_type\": ").unwrap())
        .exits(3)
        .says("not valid JSON");
    let dir = Dir::new();
    prep(args!["quantize", dir.join("no"), "--out", dir.join("o"), "--fp8"]).exits(3).says("not a folder");
}

#[test]
fn pickles_only() {
    quantized(|m| std::fs::rename(m.join("model.safetensors"), m.join("pytorch_model.bin")).unwrap())
        .exits(3)
        .says("pickles");
}

#[test]
fn unknown_model_type() {
    quantized(|m| std::fs::write(m.join("config.json"), r#"{"model_type": "mamba9"}"#).unwrap())
        .exits(3)
        .says("mamba9");
}

/// Puts a number that is none into row 0, column 10 of each of these tensors.
fn poison(model: &Path, names: &[&str]) {
    // A folder that prep made says what its bytes were.
    let _ = std::fs::remove_file(model.join("SHA256SUMS"));
    rewrite(&model.join("model.safetensors"), |b| {
        let head = u64::from_le_bytes(b[..8].try_into().unwrap()) as usize;
        let json: serde_json::Value = serde_json::from_slice(&b[8..8 + head]).unwrap();
        for (name, value) in names.iter().zip([0x7fc0u16, 0xff80].iter().cycle()) {
            let at = 8 + head + json[name]["data_offsets"][0].as_u64().unwrap() as usize;
            // NaN and minus infinity in bf16.
            b[at + 20..at + 22].copy_from_slice(&value.to_le_bytes());
        }
    });
}

#[test]
fn not_a_number_in_a_weight() {
    let name = "model.layers.2.mlp.experts.3.up_proj.weight";
    quantized(|m| poison(m, &[name])).exits(3).says(name).says("--allow-nonfinite");
}

#[test]
fn weights_that_are_not_finite_are_copied_with_all_they_are_fused_with() {
    use verify::checkpoint::{Checkpoint, TensorReader};
    let dir = Dir::new();
    let model = dir.copy_of(tiny_merged(), "model");
    let (expert, key) = ("model.layers.2.mlp.experts.3.up_proj", "model.layers.1.self_attn.k_proj");
    poison(&model, &[&format!("{expert}.weight"), &format!("{key}.weight")]);
    let recipe = dir.join("r.toml");
    std::fs::write(&recipe, "base = 'model'\n[quantize]\nformat = 'fp8'\nallow_nonfinite = true\n").unwrap();
    let base = Checkpoint::open(&model).unwrap();
    let kept = |name: &str| {
        name.starts_with("model.layers.2.mlp.experts.")
            || (name.starts_with("model.layers.1.self_attn.")
                && ["q_proj", "k_proj", "v_proj"].iter().any(|p| name.contains(p)))
    };
    for (n, job) in [
        args!["quantize", model, "--fp8", "--scheme", "channel", "--allow-nonfinite"].to_vec(),
        args!["quantize", model, "--fp8", "--scheme", "tensor", "--allow-nonfinite"].to_vec(),
        args!["run", recipe, "--set", "quantize.scheme=channel"].to_vec(),
    ]
    .into_iter()
    .enumerate()
    {
        let out = dir.join(&format!("out{n}"));
        prep(job.into_iter().chain(args!["--out", out]))
            .succeeds()
            .says(&format!("`model.layers.2.mlp.experts` is copied as it is: NaN or infinity in `{expert}` at [0, 10]"))
            .says(&format!("`model.layers.1.self_attn.qkv_proj` is copied as it is: NaN or infinity in `{key}` at [0, 10]"));
        let made = Checkpoint::open(&out).unwrap();
        let mut copied = 0;
        for t in base.index().tensors().iter().filter(|t| kept(&t.spec.name)) {
            assert_eq!(made.read(&t.spec.name).unwrap(), base.read(&t.spec.name).unwrap(), "{}", t.spec.name);
            copied += 1;
        }
        assert!(copied > 6);
        assert!(
            made.index().tensors().iter().all(|t| !kept(&t.spec.name) || t.spec.name.ends_with(".weight"))
        );
        let other = made.index().get("model.layers.0.self_attn.k_proj.weight").unwrap();
        assert_eq!(other.spec.dtype, verify::Dtype::F8_E4M3);
        let skipped = made.config().value()["quantization_config"]["ignore"].to_string();
        for name in [expert, key, "model.layers.1.self_attn.q_proj", "model.layers.2.mlp.experts.0.down_proj"]
        {
            assert!(skipped.contains(&format!("\"{name}\"")), "{name} in {skipped}");
        }
    }
    // What nothing is wrong with comes out as without the flag.
    let (with, without) = (dir.join("with"), dir.join("without"));
    prep(args!["quantize", tiny_merged(), "--out", with, "--fp8", "--allow-nonfinite"]).succeeds();
    prep(args!["quantize", tiny_merged(), "--out", without, "--fp8"]).succeeds();
    assert_eq!(crate::support::files(&with), crate::support::files(&without));
}

#[test]
fn weights_that_are_not_finite_cannot_be_calibrated() {
    let dir = Dir::new();
    let model = dir.copy_of(tiny_merged(), "model");
    let name = "model.layers.1.self_attn.q_proj";
    poison(&model, &[&format!("{name}.weight")]);
    let out = dir.join("out");
    for how in [&["--awq"][..], &["--fp8", "--kv-cache"], &["--fp8", "--static-activations"]] {
        let how = how.iter().map(std::ffi::OsString::from);
        let small =
            args!["quantize", model, "--out", out, "--allow-nonfinite", "--samples", "4", "--seq-len", "32"];
        prep(small.into_iter().chain(how)).exits(3).says("cannot be calibrated").says(name);
        assert!(!out.exists());
    }
}

/// The tiny base with code of its own, named by config.json and tokenizer_config.json.
fn model_with_code(dir: &Dir) -> std::path::PathBuf {
    let model = dir.copy_of(&fixture("models/qwen3-moe/base"), "model");
    for name in ["modeling_x.py", "configuration_x.py", "notes.py"] {
        std::fs::write(model.join(name), format!("# {name}\n")).unwrap();
    }
    for (file, map) in [
        (
            "config.json",
            serde_json::json!({"AutoModel": "modeling_x.Model", "AutoConfig": "configuration_x.C"}),
        ),
        ("tokenizer_config.json", serde_json::json!({"AutoTokenizer": ["tokenization_x.T", null]})),
    ] {
        rewrite(&model.join(file), |b| {
            let mut json: serde_json::Value = serde_json::from_slice(b).unwrap();
            json["auto_map"] = map.clone();
            *b = json.to_string().into_bytes();
        });
    }
    model
}

#[test]
fn code_stays_behind_together_with_what_names_it() {
    let dir = Dir::new();
    let model = model_with_code(&dir);
    let adapter = fixture("models/qwen3-moe/adapter");
    let recipe = dir.join("r.toml");
    std::fs::write(&recipe, "base = 'model'\n").unwrap();
    for (n, job) in [
        args!["quantize", model, "--fp8"].to_vec(),
        args!["merge-lora", "--base", model, "--adapter", adapter].to_vec(),
        args!["run", recipe].to_vec(),
    ]
    .into_iter()
    .enumerate()
    {
        let out = dir.join(&format!("out{n}"));
        let with = |more: &[&str]| {
            job.iter()
                .cloned()
                .chain(args!["--out", out])
                .chain(more.iter().map(Into::into))
                .collect::<Vec<_>>()
        };
        prep(with(&["--dry-run"])).succeeds().says("code is not carried over").says("`auto_map` is left out");
        prep(with(&[])).succeeds().says("modeling_x.py").says("--keep-code");
        let files = crate::support::files(&out);
        assert!(!files.keys().any(|name| name.ends_with(".py")), "{:?}", files.keys());
        for name in ["config.json", "tokenizer_config.json"] {
            assert!(!String::from_utf8_lossy(&files[name]).contains("auto_map"), "{name} of {n}");
        }
        let report = std::fs::read_to_string(out.join("prep-report.json")).unwrap();
        assert!(report.contains("`auto_map` is left out of config.json"), "{report}");
        prep(args!["checksum", out, "--check"]).succeeds();
    }
}

#[test]
fn code_is_kept_where_it_is_asked_for_with_a_warning() {
    let dir = Dir::new();
    let model = model_with_code(&dir);
    let recipe = dir.join("r.toml");
    std::fs::write(&recipe, "base = 'model'\nkeep_code = true\n").unwrap();
    let (quantized, ran, parts) = (dir.join("quantized"), dir.join("ran"), dir.join("parts"));
    prep(args!["quantize", model, "--out", quantized, "--fp8", "--keep-code"]).succeeds();
    prep(args!["run", recipe, "--out", ran]).succeeds();
    prep(args!["quantize", model, "--out", parts, "--fp8", "--keep-code", "--part", "1/1"]).succeeds();
    prep(args!["assemble", parts]).succeeds();
    for out in [&quantized, &ran, &parts] {
        for name in ["modeling_x.py", "configuration_x.py", "notes.py"] {
            assert_eq!(std::fs::read(out.join(name)).unwrap(), std::fs::read(model.join(name)).unwrap());
        }
        let config = std::fs::read_to_string(out.join("config.json")).unwrap();
        assert!(config.contains("modeling_x.Model"));
        let report = std::fs::read_to_string(out.join("prep-report.json")).unwrap();
        assert!(report.contains("--trust-remote-code") && report.contains("tokenization_x.py"), "{report}");
        prep(args!["checksum", out, "--check"]).succeeds();
    }
    // Another plan: the two are not the same folder.
    prep(args!["quantize", model, "--out", quantized, "--fp8"]).exits(2);
    // A link out of the folder is not followed, whatever it is called.
    std::fs::write(dir.join("secret"), "x").unwrap();
    std::os::unix::fs::symlink(dir.join("secret"), model.join("secret.py")).unwrap();
    let out = dir.join("linked");
    prep(args!["quantize", model, "--out", out, "--fp8", "--keep-code"]).exits(3).says("leaves its folder");
}

#[test]
fn links_that_leave_the_folder_and_pipes() {
    let dir = Dir::new();
    std::fs::write(dir.join("secret"), "x").unwrap();
    let secret = dir.join("secret");
    quantized(|m| std::os::unix::fs::symlink(&secret, m.join("tokenizer.model")).unwrap())
        .exits(3)
        .says("leaves its folder");
    quantized(|m| {
        std::process::Command::new("mkfifo").arg(m.join("notes.txt")).status().unwrap();
    })
    .exits(3)
    .says("not a regular file");
}

#[test]
fn index_that_names_a_path_or_another_checkpoint() {
    for (file, text) in [("../x.safetensors", "refused"), ("gone.safetensors", "gone.safetensors")] {
        let index = format!(r#"{{"weight_map": {{"a": "{file}"}}}}"#);
        quantized(|m| {
            std::fs::remove_file(m.join("model.safetensors")).unwrap();
            std::fs::write(m.join("model.safetensors.index.json"), &index).unwrap();
        })
        .exits(3)
        .says(text);
    }
    quantized(|m| {
        std::fs::write(
            m.join("model.safetensors.index.json"),
            r#"{"weight_map": {"a": "model.safetensors"}}"#,
        )
        .unwrap()
    })
    .exits(3)
    .says("no shard holds");
}

#[test]
fn shards_whose_names_are_not_those_of_shards() {
    for name in ["prep-report.json", ".hidden.safetensors", "adapter_x.safetensors", "SHA256SUMS"] {
        quantized(|m| {
            std::fs::rename(m.join("model.safetensors"), m.join(name)).unwrap();
            let index = format!(r#"{{"weight_map": {{"a": "{name}"}}}}"#);
            std::fs::write(m.join("model.safetensors.index.json"), index).unwrap();
        })
        .exits(3)
        .says("no shard");
    }
}

#[test]
fn names_that_a_case_blind_disk_would_merge() {
    for name in ["Config.json", "sha256sums", "TOKENIZER.json", "Model.safetensors.index.json"] {
        quantized(|m| std::fs::write(m.join(name), "{}").unwrap()).exits(3);
    }
}

#[test]
fn counts_of_a_damaged_config_cost_no_memory() {
    for key in ["num_hidden_layers", "num_experts"] {
        quantized(|m| {
            rewrite(&m.join("config.json"), |b| {
                let mut json: serde_json::Value = serde_json::from_slice(b).unwrap();
                json[key] = 2_000_000_000.into();
                *b = json.to_string().into_bytes();
            })
        })
        .exits(3);
    }
}

#[test]
fn hub_cache_layout_is_read_through_its_links() {
    let dir = Dir::new();
    let model = dir.join("models--a--b");
    let (blobs, snapshot) = (model.join("blobs"), model.join("snapshots/0123"));
    std::fs::create_dir_all(&blobs).unwrap();
    std::fs::create_dir_all(&snapshot).unwrap();
    for (n, entry) in std::fs::read_dir(fixture("models/qwen3-moe/base")).unwrap().enumerate() {
        let entry = entry.unwrap();
        let blob = format!("{n:040x}");
        std::fs::copy(entry.path(), blobs.join(&blob)).unwrap();
        std::os::unix::fs::symlink(format!("../../blobs/{blob}"), snapshot.join(entry.file_name())).unwrap();
    }
    prep(args!["quantize", snapshot, "--out", dir.join("out"), "--fp8"]).succeeds();
}

#[test]
fn launch_lines_take_no_name_that_could_end_a_line() {
    let dir = Dir::new();
    let model = dir.copy_of(tiny_merged(), "MODEL");
    for form in ["line", "systemd", "compose", "k8s"] {
        prep(args!["serve-command", model, "--as", form, "--served-name", "x\nUser=root"])
            .exits(2)
            .says("served name");
        prep(args!["serve-command", model, "--as", form, "--served-name", ""]).exits(2);
        prep(args!["serve-command", model, "--as", form, "--", "--port", "8"]).exits(2).says("--port");
        prep(args!["serve-command", model, "--as", form, "--", "--served-model-name=x"]).exits(2);
    }
    prep(args!["serve-command", model, "--template", dir.join("none.jinja")]).exits(3).says("none.jinja");
    let odd = dir.copy_of(tiny_merged(), "a:b");
    prep(args!["serve-command", odd, "--as", "compose"]).succeeds().says("target: \"/models/a:b\"");
    let broken = dir.copy_of(tiny_merged(), "line\nbreak");
    prep(args!["serve-command", broken, "--as", "systemd"]).exits(2);
}

#[test]
fn absurd_counts_are_no_launch_line() {
    let dir = Dir::new();
    for (n, (key, value)) in
        [("head_dim", 1u64 << 62), ("num_hidden_layers", 1 << 60), ("vocab_size", 0)].iter().enumerate()
    {
        let model = dir.copy_of(tiny_merged(), &format!("m{n}"));
        let path = model.join("config.json");
        let mut config: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        config[*key] = (*value).into();
        std::fs::write(&path, config.to_string()).unwrap();
        prep(args!["serve-command", model, "--vram", "24GiB"]).exits(3);
        prep(args!["inspect", model, "--vram", "24GiB"]).says(key);
    }
}

#[test]
fn calibration_data_must_be_a_file() {
    let dir = Dir::new();
    let pipe = dir.join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let out = dir.join("out");
    prep(args!["quantize", tiny_merged(), "--out", out, "--awq", "--calibration", pipe])
        .exits(3)
        .says("regular file");
    assert!(!out.exists());
}

#[test]
fn a_weight_that_is_no_number_is_named_before_it_is_calibrated() {
    let dir = Dir::new();
    let model = dir.copy_of(tiny_merged(), "MODEL");
    let path = model.join("model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + len]).unwrap();
    let name = "model.layers.1.self_attn.q_proj.weight";
    let at = 8 + len + header[name]["data_offsets"][0].as_u64().unwrap() as usize;
    bytes[at..at + 2].copy_from_slice(&0x7fc0u16.to_le_bytes());
    std::fs::write(&path, bytes).unwrap();
    prep(args!["quantize", model, "--out", dir.join("out"), "--awq", "--samples", "4", "--seq-len", "32"])
        .exits(3)
        .says("model.layers.1.self_attn.q_proj");
}

#[test]
fn a_folder_that_may_not_be_read_is_not_told_as_empty() {
    use std::os::unix::fs::PermissionsExt;
    let dir = Dir::new();
    let model = dir.copy_of(tiny_merged(), "MODEL");
    let set = |mode| std::fs::set_permissions(&model, std::fs::Permissions::from_mode(mode)).unwrap();
    set(0o000);
    // Root reads everything: nothing to be seen then.
    if std::fs::read_dir(&model).is_err() {
        for command in [&["inspect"][..], &["template", "show"], &["checksum", "--check"], &["serve-command"]]
        {
            let args = command.iter().map(std::ffi::OsString::from).chain([model.clone().into()]);
            prep(args).exits(5).says("Permission denied");
        }
    }
    set(0o755);
}

#[test]
fn keys_of_the_wrong_kind_say_what_to_do() {
    let dir = Dir::new();
    for (n, (file, key, value)) in [
        ("tokenizer_config.json", "chat_template", "{}"),
        ("config.json", "model_type", "7"),
        ("config.json", "num_hidden_layers", "-1"),
    ]
    .iter()
    .enumerate()
    {
        let model = dir.copy_of(tiny_merged(), &format!("m{n}"));
        let path = model.join(file);
        let mut json: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        json[*key] = serde_json::from_str(value).unwrap();
        std::fs::write(&path, json.to_string()).unwrap();
        let ended = prep(args!["serve-command", model, "--json"]).exits(3);
        assert!(ended.json()["hint"].is_string(), "{key}: {}", ended.stdout);
    }
}
