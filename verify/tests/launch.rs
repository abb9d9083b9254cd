//! Launch lines of stand-ins of published models: every flag is one that the server has, and the files that
//! hold them are what they claim to be.

#![allow(clippy::unwrap_used)]

#[path = "../../tests/support/stand_in.rs"]
mod stand_in;

use std::path::{Path, PathBuf};

use serde_json::Value;
use stand_in::StandIn;
use verify::checkpoint::Checkpoint;
use verify::inspect::Inspection;
use verify::rewrite::ModelView;
use verify::serving::{Engine, Launch, Takes, Vram, Wish, compose, kubernetes, line, unit};

const ENGINES: [Engine; 2] = [Engine::Vllm, Engine::Sglang];

/// A folder on disk: templates and tokenizers are looked into too.
struct Folder {
    _dir: tempfile::TempDir,
    view: ModelView,
    found: Inspection,
}

fn folder(model: &StandIn, change: impl Fn(&Path)) -> Folder {
    let dir = tempfile::tempdir().unwrap();
    let path = model.write(&dir.path().join("m"));
    change(&path);
    let view = ModelView::of(&Checkpoint::open(&path).unwrap());
    let found = Inspection::of(&view).unwrap();
    Folder { _dir: dir, view, found }
}

fn plain(model: &StandIn) -> Folder {
    folder(model, |_| {})
}

fn wish(engine: Engine) -> Wish {
    Wish {
        engine,
        model: "/models/a b".into(),
        revision: None,
        served_name: "Qwen3.6 \"35B\" $x 100%".into(),
        vram: None,
        gpus: 1,
        context: None,
        concurrency: None,
        template: None,
        port: None,
        contained: false,
        extra: Vec::new(),
    }
}

fn launch(folder: &Folder, wish: &Wish) -> Launch {
    Launch::of(&folder.found, &folder.view.tensors, wish).unwrap()
}

fn value<'a>(launch: &'a Launch, flag: &str) -> Option<&'a str> {
    launch.flags.iter().find(|f| f.name == flag).map(|f| f.value.as_deref().unwrap_or(""))
}

/// Wishes that between them bring out every flag.
fn wishes(engine: Engine) -> Vec<Wish> {
    let vram = |name: &str| Some(Vram::parse(name).unwrap());
    vec![
        wish(engine),
        Wish { vram: vram("H200"), gpus: 2, context: Some(8192), concurrency: Some(16), ..wish(engine) },
        Wish { vram: vram("T4"), gpus: 16, contained: true, port: Some(9000), ..wish(engine) },
        Wish { template: Some(PathBuf::from("t.jinja")), gpus: 4, ..wish(engine) },
        Wish { revision: Some("0".repeat(40)), ..wish(engine) },
    ]
}

/// Only its config matters here: blocks of 128 decide how it can be cut.
fn said_to_be_fp8(mut model: StandIn) -> StandIn {
    model.config["quantization_config"] = serde_json::json!({"quant_method": "fp8", "fmt": "e4m3",
        "activation_scheme": "dynamic", "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head"]});
    model
}

#[test]
fn every_flag_is_one_that_the_server_has() {
    let mut seen = std::collections::BTreeSet::new();
    let text_only = |path: &Path| std::fs::remove_file(path.join("preprocessor_config.json")).unwrap();
    let processor = |path: &Path| {
        let text = std::fs::read_to_string(path.join("chat_template.jinja")).unwrap();
        std::fs::remove_file(path.join("chat_template.jinja")).unwrap();
        let json = serde_json::json!({"chat_template": text});
        std::fs::write(path.join("chat_template.json"), json.to_string()).unwrap();
        std::fs::write(path.join("tokenizer_config.json"), "{}").unwrap();
    };
    let off = |path: &Path| {
        let text = "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}{{ m.content }}\
                    {% for c in m.tool_calls or [] %}<tool_call>\n{\"name\": \"{{ c.function.name }}\", \"arguments\": \
                    {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}<|im_end|>{% endfor %}\
                    {% if enable_thinking is defined and enable_thinking %}<think>{% else %}<think></think>{% endif %}";
        std::fs::write(path.join("chat_template.jinja"), text).unwrap();
    };
    let mut folders: Vec<Folder> = stand_in::all().iter().map(|(_, m)| plain(m)).collect();
    folders.push(folder(&stand_in::qwen3_5_4b(), text_only));
    folders.push(folder(&stand_in::llama_3_2_1b(), processor));
    folders.push(folder(&stand_in::qwen3_32b(), off));
    folders.push(folder(&said_to_be_fp8(stand_in::qwen3_30b_a3b()), |_| {}));
    for folder in &folders {
        for engine in ENGINES {
            for wish in wishes(engine) {
                // What does not fit or cannot be cut is refused, which is another test.
                let Ok(launch) = Launch::of(&folder.found, &folder.view.tensors, &wish) else { continue };
                for f in &launch.flags {
                    let takes =
                        engine.takes(f.name).unwrap_or_else(|| panic!("{engine:?} has no {}", f.name));
                    assert_eq!(takes == Takes::Value, f.value.is_some(), "{}", f.name);
                    assert!(!f.reason.is_empty());
                    seen.insert((engine.title(), f.name));
                }
            }
        }
    }
    for flag in [
        "--served-model-name",
        "--revision",
        "--host",
        "--port",
        "--tensor-parallel-size",
        "--tool-call-parser",
        "--reasoning-parser",
        "--chat-template",
        "--dtype",
        "--language-model-only",
    ] {
        for engine in ENGINES {
            assert!(seen.contains(&(engine.title(), flag)), "{flag} was not tried for {engine:?}: {seen:?}");
        }
    }
    let of_one = [
        ("vLLM", "--max-model-len"),
        ("vLLM", "--max-num-seqs"),
        ("vLLM", "--gpu-memory-utilization"),
        ("vLLM", "--enable-expert-parallel"),
        ("vLLM", "--default-chat-template-kwargs"),
        ("SGLang", "--context-length"),
        ("SGLang", "--expert-parallel-size"),
        ("SGLang", "--max-running-requests"),
        ("SGLang", "--mem-fraction-static"),
    ];
    assert!(of_one.iter().all(|f| seen.contains(f)), "{seen:?}");
}

#[test]
fn a_line_holds_nothing_that_the_folder_does_not_need() {
    let model = plain(&stand_in::qwen3_coder_30b_a3b());
    let vllm = launch(&model, &wish(Engine::Vllm));
    let names: Vec<_> = vllm.flags.iter().map(|f| f.name).collect();
    let context = ["--max-model-len"];
    let tools = ["--enable-auto-tool-choice", "--tool-call-parser"];
    assert_eq!(names, [&["--served-model-name"], &context[..], &tools[..]].concat());
    assert_eq!(value(&vllm, "--max-model-len"), Some("32768"));
    assert_eq!(value(&vllm, "--tool-call-parser"), Some("qwen3_coder"));
    assert!(vllm.notes.is_empty(), "{:?}", vllm.notes);
}

#[test]
fn parsers_are_called_as_each_server_calls_them() {
    let cases = [
        (stand_in::qwen3_32b(), ["hermes", "hermes"], Some(["qwen3", "qwen3"])),
        (stand_in::qwen3_6_35b_a3b(), ["qwen3_coder", "qwen3_coder"], Some(["qwen3", "qwen3"])),
        (stand_in::llama_3_1_8b(), ["llama3_json", "llama3"], None),
    ];
    for (model, tools, reasoning) in cases {
        let folder = plain(&model);
        for (i, engine) in ENGINES.into_iter().enumerate() {
            let launch = launch(&folder, &wish(engine));
            assert_eq!(value(&launch, "--tool-call-parser"), Some(tools[i]));
            assert_eq!(value(&launch, "--reasoning-parser"), reasoning.map(|r| r[i]));
        }
    }
}

#[test]
fn context_follows_the_wish_the_model_and_the_card() {
    let model = plain(&stand_in::qwen3_30b_a3b());
    let on = |vram: &str, context, concurrency| {
        let vram = Some(Vram::parse(vram).unwrap());
        Launch::of(
            &model.found,
            &model.view.tensors,
            &Wish { vram, context, concurrency, ..wish(Engine::Vllm) },
        )
    };
    assert_eq!(value(&on("H200", None, None).unwrap(), "--max-model-len"), Some("32768"), "of 40960");
    assert_eq!(value(&on("H200", Some(40_960), None).unwrap(), "--max-model-len"), Some("40960"));
    assert_eq!(value(&on("H200", Some(8192), None).unwrap(), "--max-model-len"), Some("8192"));
    let squeezed = on("H100", Some(40_960), Some(16)).unwrap();
    let len: u64 = value(&squeezed, "--max-model-len").unwrap().parse().unwrap();
    assert!((1024..40_960).contains(&len), "{len}");
    assert_eq!(on("H100", Some(50_000), None).unwrap_err().class(), verify::Class::Usage);
    let e = on("24GiB", None, None).unwrap_err();
    assert_eq!(e.class(), verify::Class::Check);
    assert!(e.to_string().contains("prep inspect"), "{e}");
}

#[test]
fn gpus_that_the_shapes_do_not_allow_are_refused_with_the_reason() {
    let model = plain(&stand_in::qwen3_6_35b_a3b());
    let e =
        Launch::of(&model.found, &model.view.tensors, &Wish { gpus: 6, ..wish(Engine::Vllm) }).unwrap_err();
    assert!(e.class() == verify::Class::Usage && e.to_string().contains("16 query heads"), "{e}");
}

#[test]
fn a_shell_reads_the_words_of_the_line_back() {
    let model = plain(&stand_in::qwen3_32b());
    for engine in ENGINES {
        let launch = launch(&model, &wish(engine));
        let text = line(&launch);
        let program = launch.words()[0].clone();
        let script = format!("{program}() {{ printf '%s\\0' \"$@\"; }}\n{text}");
        let out = std::process::Command::new("sh").arg("-c").arg(script).output().unwrap();
        let words: Vec<String> =
            String::from_utf8(out.stdout).unwrap().split_terminator('\0').map(str::to_string).collect();
        assert_eq!(words, launch.words()[1..]);
    }
}

#[test]
fn units_hold_every_word_and_a_reason_for_each_flag() {
    let model = plain(&stand_in::qwen3_32b());
    let launch = launch(&model, &Wish { gpus: 2, ..wish(Engine::Vllm) });
    let text = unit(&launch);
    // As systemd reads it: comments go, continued lines are joined.
    let kept: Vec<&str> = text.lines().filter(|l| !l.starts_with('#')).collect();
    let joined = kept.join("\n").replace("\\\n", " ");
    let exec = joined.lines().find(|l| l.starts_with("ExecStart=")).unwrap();
    assert!(exec.contains("\"Qwen3.6 \\\"35B\\\" $$x 100%%\""), "{exec}");
    for f in &launch.flags {
        assert!(exec.contains(f.name), "{} of {exec}", f.name);
        assert!(text.contains(&format!("# {}", f.reason)));
    }
    assert!(joined.contains("ExecStartPost=") && joined.contains("/health"));
}

/// As a YAML reader sees a text.
fn yaml(text: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(text).unwrap()
}

/// The words of a container's command, as compose and Kubernetes pass them on: a `$` that is not doubled would begin
/// the name of a variable.
fn words(list: &Value) -> Vec<String> {
    let word = |w: &Value| {
        let text = w.as_str().unwrap();
        assert!(!text.replace("$$", "").contains('$'), "{text}");
        text.replace("$$", "$")
    };
    list.as_array().unwrap().iter().map(word).collect()
}

#[test]
fn compose_files_hold_the_words_the_probe_and_the_first_request() {
    let model = plain(&stand_in::qwen3_32b());
    for engine in ENGINES {
        let wish = Wish { contained: true, ..wish(engine) };
        let launch = launch(&model, &wish);
        let file = yaml(&compose(&launch, "/srv/a b")).remove(0);
        let server = &file["services"]["server"];
        let words = [words(&server["entrypoint"]), words(&server["command"])].concat();
        assert_eq!(words, launch.words());
        assert_eq!(server["image"], engine.image());
        let volume = &server["volumes"][0];
        assert_eq!((&volume["source"], &volume["target"]), (&"/srv/a b".into(), &"/models/a b".into()));
        assert_eq!(volume["read_only"], true);
        assert!(server["healthcheck"]["test"][1].as_str().unwrap().contains("/health"));
        let warm = file["services"]["warm-up"]["command"][0].as_str().unwrap();
        assert!(warm.contains("chat/completions") && warm.contains("\"tools\""), "{warm}");
        // What compose would replace is doubled.
        assert!(!warm.replace("$$", "").contains('$'), "{warm}");
    }
}

#[test]
fn manifests_hold_the_words_the_probes_and_the_first_request() {
    let model = plain(&stand_in::qwen3_32b());
    for engine in ENGINES {
        let wish = Wish { contained: true, gpus: 4, ..wish(engine) };
        let launch = launch(&model, &wish);
        let [deployment, service]: [Value; 2] = yaml(&kubernetes(&launch)).try_into().unwrap();
        let pod = &deployment["spec"]["template"];
        let container = &pod["spec"]["containers"][0];
        let words = [words(&container["command"]), words(&container["args"])].concat();
        assert_eq!(words, launch.words());
        assert_eq!(container["resources"]["limits"]["nvidia.com/gpu"], 4);
        assert_eq!(container["readinessProbe"]["httpGet"]["path"], "/health");
        assert!(container["lifecycle"]["postStart"]["exec"]["command"][4].as_str().unwrap().contains("ping"));
        // The service finds the pods, and the names are those of Kubernetes.
        assert_eq!(service["spec"]["selector"], pod["metadata"]["labels"]);
        assert_eq!(service["spec"]["selector"], deployment["spec"]["selector"]["matchLabels"]);
        let name = deployment["metadata"]["name"].as_str().unwrap();
        assert!(name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'), "{name}");
        assert_eq!(service["spec"]["ports"][0]["port"], launch.port);
        assert_eq!((&deployment["apiVersion"], &service["kind"]), (&"apps/v1".into(), &"Service".into()));
    }
}
