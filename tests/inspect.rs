//! `prep inspect`, `serve-command`, `diff`, `doctor`, completions and man pages on real and stand-in folders.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::args;
use crate::schemas::valid;
use crate::stand_in;
use crate::support::{Dir, command, fixture, prep, repository, tiny_fp8, tiny_merged};

/// The commands of the README's first minute, in a folder of its own: each prints what the README says it prints.
#[test]
fn a_newcomer_finds_parser_and_launch_line_within_a_minute() {
    let readme = std::fs::read_to_string(repository().join("README.md")).unwrap();
    let dir = Dir::new();
    symlink(repository().join("recipes"), dir.join("recipes")).unwrap();
    let run = |line: &str| {
        let mut command = command(line.split(' '));
        command.current_dir(dir.join("."));
        crate::support::ended(command.output().unwrap())
    };
    let began = Instant::now();
    let first = readme.lines().find_map(|l| l.strip_prefix("cargo run --release --bin prep -- ")).unwrap();
    run(first).succeeds();
    let mut told = 0;
    for command in ["inspect OUT", "serve-command OUT"] {
        let (_, after) = readme.split_once(&format!("$ prep {command}\n")).unwrap();
        let stdout = run(command).succeeds().stdout;
        for line in after.lines().take_while(|l| !l.starts_with("$ ") && *l != "```") {
            // The folder of the reader is another one.
            let line = line.replace("/path/to/OUT \\", "");
            for part in line.split("...").map(str::trim).filter(|p| !p.is_empty()) {
                assert!(stdout.contains(part), "{part:?} of {command} is not in\n{stdout}");
                told += 1;
            }
        }
    }
    assert!(told >= 6, "{told}");
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    run("inspect OUT").says("FP8, blocks of 128 x 128").says("--tool-call-parser qwen3_coder");
}

#[test]
fn headers_of_large_folders_are_read_within_a_second() {
    let dir = Dir::new();
    for (name, model) in
        [("Qwen3-30B-A3B", stand_in::qwen3_30b_a3b()), ("Qwen3.6-35B-A3B", stand_in::qwen3_6_35b_a3b())]
    {
        let folder = model.write(&dir.join(name));
        // Tried again where other work on the same cores was in the way.
        let mut times = (0..20).map(|_| {
            let began = Instant::now();
            let ended = prep(args!["inspect", folder, "--json"]).succeeds();
            (began.elapsed(), ended)
        });
        let quick = times.find(|(took, _)| *took < Duration::from_secs(1));
        let (_, ended) = quick.unwrap_or_else(|| panic!("{name}: never within a second"));
        valid("inspect", &ended.json());
    }
}

#[test]
fn published_models_are_told_with_their_figures() {
    let dir = Dir::new();
    let folder = stand_in::qwen3_30b_a3b().write(&dir.join("Qwen3-30B-A3B"));
    prep(args!["inspect", folder, "--vram", "RTX 4090 24GB"])
        .succeeds()
        .says("30.53 B, 3.35 B active")
        .says("cache 96.00 KiB a token in bf16")
        .says("--tool-call-parser hermes --reasoning-parser qwen3")
        .says("does not fit")
        .says("has FP8 tensor cores")
        .says("Apache-2.0");
    let folder = stand_in::qwen3_6_35b_a3b().write(&dir.join("Qwen3.6-35B-A3B"));
    prep(args!["inspect", folder])
        .succeeds()
        .says("34.66 B, 3.45 B active")
        .says("cache 20.00 KiB a token in bf16")
        .says("10 with attention, 30 with a recurrent state")
        .says("--tool-call-parser qwen3_coder --reasoning-parser qwen3");
    let e = prep(args!["serve-command", folder, "--vram", "24GiB"]).exits(1);
    assert!(e.stderr.contains("does not fit") && e.stdout.is_empty(), "{}", e.stderr);
}

/// A change of a sound folder, and words of the finding and of its cure.
type Odd = (&'static str, fn(&Path), &'static str, &'static str);

fn edit(path: &Path, from: &str, to: &str) {
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.contains(from), "{from} in {}", path.display());
    std::fs::write(path, text.replace(from, to)).unwrap();
}

const ODD: [Odd; 9] = [
    (
        "no generation_config",
        |d| std::fs::remove_file(d.join("generation_config.json")).unwrap(),
        "generation_config.json is missing",
        "copy it from the base",
    ),
    (
        "stop token lost",
        |d| {
            edit(&d.join("generation_config.json"), "2414", "2412");
            edit(&d.join("config.json"), "\"eos_token_id\": 2414", "\"eos_token_id\": 2412");
        },
        "`<|im_end|>` (id 2414), which is no stop token",
        "add 2414",
    ),
    (
        "template in one place",
        |d| std::fs::remove_file(d.join("chat_template.jinja")).unwrap(),
        "chat_template.jinja holds no template",
        "prep template embed",
    ),
    (
        "tied flag against a stored head",
        |d| edit(&d.join("config.json"), "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true"),
        "servers ignore the stored head",
        "set the flag to false",
    ),
    (
        "mtp lost",
        |d| edit(&d.join("config.json"), "{\n", "{\n\"mtp_num_hidden_layers\": 1,\n"),
        "no `mtp.` tensor is there",
        "publisher's checkpoint",
    ),
    (
        "tokenizer too large",
        |d| edit(&d.join("tokenizer.json"), "\"id\": 2412", "\"id\": 9000"),
        "the tokenizer has 9001 tokens, the model 2432",
        "fetch the tokenizer files",
    ),
    (
        "quantization not told",
        |d| edit(&d.join("config.json"), "\"quantization_config\"", "\"other_config\""),
        "has no `quantization_config`",
        "take config.json",
    ),
    (
        "another family",
        |d| edit(&d.join("config.json"), "\"model_type\": \"qwen3_moe\"", "\"model_type\": \"gemma9\""),
        "model_type `gemma9` is not supported",
        "not known to prep",
    ),
    (
        "adapter left behind",
        |d| std::fs::write(d.join("adapter_config.json"), "{}").unwrap(),
        "adapter_config.json lies in the folder",
        "remove it",
    ),
];

#[test]
fn what_is_odd_is_told_with_what_to_do() {
    for (name, change, what, advice) in ODD {
        let dir = Dir::new();
        let model = dir.copy_of(tiny_fp8(), "model");
        let before = prep(args!["inspect", model, "--json"]).succeeds().json();
        assert!(!before["findings"].to_string().contains(&what.replace('"', "\\\"")), "{name}");
        change(&model);
        let json = prep(args!["inspect", model, "--json"]).succeeds().json();
        valid("inspect", &json);
        let findings = json["findings"].as_array().unwrap();
        let text = |f: &serde_json::Value, key: &str| f[key].as_str().unwrap().to_string();
        let found =
            findings.iter().any(|f| text(f, "what").contains(what) && text(f, "advice").contains(advice));
        assert!(found, "{name}: {findings:#?}");
    }
}

#[test]
fn files_that_are_made_pass_their_own_checkers() {
    let dir = Dir::new();
    let folder = stand_in::qwen3_32b().write(&dir.join("Qwen3 32B"));
    let systemd = Command::new("systemd-analyze").arg("--version").output().is_ok_and(|o| o.status.success());
    for engine in ["vllm", "sglang"] {
        for form in ["line", "systemd", "compose", "k8s"] {
            let ended = prep(args![
                "serve-command",
                folder,
                "--engine",
                engine,
                "--as",
                form,
                "--vram",
                "H200",
                "--gpus",
                "2",
                "--concurrency",
                "32"
            ])
            .succeeds();
            let path = dir.join(&format!("{engine}.service"));
            std::fs::write(&path, &ended.stdout).unwrap();
            match form {
                "line" => {
                    assert!(Command::new("sh").arg("-n").arg(&path).status().unwrap().success());
                }
                "systemd" if systemd => {
                    let out = Command::new("systemd-analyze").arg("verify").arg(&path).output().unwrap();
                    let said = String::from_utf8_lossy(&out.stderr).into_owned();
                    assert!(out.status.success() && !said.contains(engine), "{said}");
                }
                _ => {}
            }
            let json = prep(args!["--json", "serve-command", folder, "--engine", engine, "--as", form]);
            valid("serve-command", &json.succeeds().json());
        }
    }
}

#[test]
fn further_arguments_are_checked_against_the_servers_list() {
    let more = |engine, flag| prep(args!["serve-command", tiny_fp8(), "--engine", engine, "--", flag, "1"]);
    more("vllm", "--seed").succeeds().says("--seed 1");
    more("sglang", "--max-model-len").exits(2).says("SGLang 0.5.23 has no argument --max-model-len");
    prep(args!["serve-command", tiny_fp8(), "--vram", "A100"]).exits(2).says("A100 40GB");
}

#[test]
fn diff_tells_what_differs_and_nothing_else() {
    let same = prep(args!["diff", tiny_merged(), tiny_merged(), "--json"]).succeeds().json();
    valid("diff", &same);
    assert_eq!((&same["same"], &same["tensors"]["compared"]), (&true.into(), &135.into()));
    let fp8 = prep(args!["diff", tiny_merged(), tiny_fp8(), "--json"]).exits(1).json();
    valid("diff", &fp8);
    let different = fp8["tensors"]["different"].as_array().unwrap();
    assert_eq!(different.len(), 100);
    for pair in different {
        // An e4m3 code is off by at most 1/28 of its block's largest value; the mean lies near 2.7 %.
        let error = pair["relative_error"].as_f64().unwrap();
        assert!((0.02..0.03).contains(&error), "{pair}");
        assert_eq!((&pair["a"], &pair["b"]), (&"BF16".into(), &"FP8".into()));
    }
    let keys: Vec<_> = fp8["keys"].as_array().unwrap().iter().map(|k| k["key"].as_str().unwrap()).collect();
    assert_eq!(keys, ["quantization_config"]);
}

#[test]
fn diff_sees_through_layouts_and_changes_of_text() {
    let dir = Dir::new();
    // Fused experts on one side, experts of their own on the other.
    let (base, out) = (fixture("models/qwen3_5-moe/base"), dir.join("fp8"));
    prep(args!["quantize", base, "--out", out, "--fp8"]).succeeds();
    let json = prep(args!["diff", base, out, "--json"]).exits(1).json();
    valid("diff", &json);
    assert_eq!(json["tensors"]["only_a"], serde_json::json!([]), "{json}");
    assert_eq!(json["tensors"]["only_b"], serde_json::json!([]));
    assert!(json["tensors"]["different"][0]["relative_error"].as_f64().unwrap() < 0.04);
    let model = dir.copy_of(tiny_merged(), "model");
    edit(&model.join("config.json"), "\"rope_theta\": 10000.0", "\"rope_theta\": 20000.0");
    std::fs::write(model.join("chat_template.jinja"), "{{ messages[0].content }}").unwrap();
    let json = prep(args!["diff", tiny_merged(), model, "--json"]).exits(1).json();
    assert!(json["keys"][0]["key"].as_str().unwrap().ends_with("rope_theta"), "{}", json["keys"]);
    assert_eq!(json["template"]["prompts"][0]["conversation"], "a question");
    assert!(json["tensors"]["different"].as_array().unwrap().is_empty());
}

#[test]
fn doctor_hides_secrets_and_fails_where_something_is_wrong() {
    let run = |vars: &[(&str, &str)]| {
        let mut doctor = command(["doctor", "--json"]);
        doctor.env_clear().envs(vars.iter().copied());
        let out = doctor.output().unwrap();
        (out.status.code(), String::from_utf8(out.stdout).unwrap())
    };
    let (code, text) = run(&[("HF_TOKEN", "hf_secret")]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("HF_TOKEN") && !text.contains("secret"), "{text}");
    valid("doctor", &serde_json::from_str(&text).unwrap());
    let (code, text) = run(&[("HF_ENDPOINT", "mirror")]);
    assert!(code == Some(1) && text.contains("HF_ENDPOINT is no URL"), "{text}");
}

#[test]
fn completions_and_man_pages_name_every_command() {
    let dir = Dir::new();
    for shell in ["bash", "zsh", "fish"] {
        let text = prep(["completions", shell]).succeeds().stdout;
        assert!(text.contains("serve-command") && text.contains("--reasoning-parser") || shell == "fish");
        assert!(text.contains("merge-lora"), "{shell}");
    }
    let man = dir.join("man1");
    let json = prep(args!["man", man, "--json"]).succeeds().json();
    valid("man", &json);
    assert!(std::fs::read_to_string(man.join("prep-inspect.1")).unwrap().contains("vram"));
    let script = dir.join("prep.bash");
    std::fs::write(&script, prep(["completions", "bash"]).stdout).unwrap();
    assert!(Command::new("bash").arg("-n").arg(script).status().unwrap().success());
}

#[test]
fn no_output_holds_colour_when_it_is_no_terminal() {
    let both = |ended: crate::support::Ended| ended.stdout + &ended.stderr;
    for no_color in [true, false] {
        let mut help = command(["inspect", "--help"]);
        if !no_color {
            help.env_remove("NO_COLOR");
        }
        let out = help.output().unwrap();
        assert!(!String::from_utf8(out.stdout).unwrap().contains('\u{1b}'));
    }
    assert!(!both(prep(args!["inspect", tiny_fp8()])).contains('\u{1b}'));
    assert!(!both(prep(["inspect"])).contains('\u{1b}'));
}

#[test]
fn both_commands_reckon_with_the_same_context_and_say_it() {
    let dir = Dir::new();
    let folder = stand_in::qwen3_6_35b_a3b().write(&dir.join("Qwen3.6-35B-A3B"));
    prep(args!["inspect", folder])
        .succeeds()
        .says("memory for 8 conversations of 32768 tokens")
        .says("else --context, up to 262144, and --concurrency");
    let json = prep(args!["inspect", folder, "--vram", "2 x", "--json"]).exits(2).json();
    assert_eq!(json["code"], 2);
    for vram in [&[][..], &["--vram", "B200"]] {
        let line = prep(args!["serve-command", folder].iter().cloned().chain(vram.iter().map(|v| v.into())));
        line.succeeds().says("--max-model-len 32768").says("--context asks for up to 262144");
    }
    // A context that the model does not go beyond is the server's own default.
    let tiny = prep(args!["serve-command", tiny_fp8()]).succeeds();
    assert!(!tiny.stdout.contains("--max-model-len"), "{}", tiny.stdout);
    // As much as fits, where that is less; both say the same number.
    let json = prep(args!["inspect", folder, "--vram", "81559MiB", "--concurrency", "48", "--json"]);
    let fit = json.succeeds().json()["needs"]["rows"][0]["verdict"].take();
    let context = fit["context"].as_u64().unwrap_or_else(|| panic!("{fit}"));
    prep(args!["serve-command", folder, "--vram", "81559 MiB", "--concurrency", "48"])
        .succeeds()
        .says(&format!("--max-model-len {context}"))
        .says("for 48 conversations at once (of 32768)");
}

#[test]
fn hints_about_a_folder_name_it() {
    let dir = Dir::new();
    let model = dir.copy_of(tiny_merged(), "my model");
    std::fs::remove_file(model.join("chat_template.jinja")).unwrap();
    let path = model.to_str().unwrap();
    let hint = format!("prep template embed '{path}'");
    prep(args!["inspect", model]).succeeds().says(&hint);
    prep(args!["template", "check", model]).exits(1).says(&hint);
    prep(args!["template", "show", model]).exits(3).says(&hint);
    prep(args!["verify", model, "--parser", "qwen3_coder"]).exits(1).says(&hint);
    let quantize = args!["quantize", model, "--out", dir.join("out"), "--awq"];
    let data = dir.join("chat.jsonl");
    std::fs::write(&data, "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}\n").unwrap();
    prep([&quantize[..], &args!["--calibration", data]].concat()).exits(3).says(&hint);
    let large = stand_in::qwen3_32b().write(&dir.join("large"));
    let hint = format!("prep inspect {} --vram", large.display());
    prep(args!["serve-command", large, "--vram", "12GB"]).exits(1).says(&hint);
}

#[test]
fn a_template_of_the_command_line_is_found_from_anywhere_or_refused() {
    let dir = Dir::new();
    std::fs::write(dir.join("t.jinja"), "x").unwrap();
    let serve = |form: &str| {
        let mut command = command(args!["serve-command", tiny_fp8(), "--template", "t.jinja", "--as", form]);
        command.current_dir(dir.join("."));
        crate::support::ended(command.output().unwrap())
    };
    for form in ["line", "systemd"] {
        let text = serve(form).succeeds().stdout;
        assert!(text.contains("--chat-template /"), "{text}");
    }
    for form in ["compose", "k8s"] {
        serve(form).exits(2).says("a container does not see").says("prep template embed");
    }
}

#[test]
fn doctor_says_which_device_is_used() {
    let json = prep(["doctor", "--json"]).json();
    let gpu = json["facts"]["gpu"].as_array().unwrap();
    let used: Vec<_> = gpu.iter().filter(|f| f["name"] == "prep uses").collect();
    assert_eq!(used.len(), 1, "{gpu:?}");
}
