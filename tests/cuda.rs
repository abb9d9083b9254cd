//! `--device cuda`, the same binary that is shipped: over the stand-in driver (runner/kernels/host/driver), which runs
//! the kernels on the processor and reports what a GPU would punish. Without a C++ compiler these say `skipped`.

use std::path::{Path, PathBuf};
use std::process::Command;

use verify::checkpoint::TensorReader;
use verify::checkpoint::header::Header;
use verify::{Checkpoint, Dtype};

use crate::args;
use crate::stand_in_driver::{Checks, Report, StandIn, Summary};
use crate::support::{Dir, Ended, command, ended, files, fixture, prep, tiny_fp8, tiny_merged};

/// A driver for this test's runs, and what it reported of the last one.
struct Gpu {
    driver: StandIn,
    dir: Dir,
    runs: std::cell::Cell<usize>,
}

impl Gpu {
    fn new(checks: Checks) -> Option<Self> {
        Some(Gpu { driver: StandIn::new(checks)?, dir: Dir::new(), runs: 0.into() })
    }

    fn report_file(&self) -> PathBuf {
        self.dir.join(&format!("report-{}", self.runs.get()))
    }

    fn command<I: AsRef<std::ffi::OsStr>>(&self, args: impl IntoIterator<Item = I>) -> Command {
        self.runs.set(self.runs.get() + 1);
        let mut command = command(args);
        command.envs(self.driver.environment(&self.report_file()));
        command
    }

    /// Runs `prep`; the driver must find nothing wrong.
    fn prep<I: AsRef<std::ffi::OsStr>>(&self, args: impl IntoIterator<Item = I>) -> (Ended, Summary) {
        let ended = ended(self.command(args).output().unwrap());
        let report = Report::read(&self.report_file());
        report.assert_clean();
        let [summary] = &report.summaries[..] else { panic!("{report:?}\n{}", ended.stderr) };
        (ended, summary.clone())
    }
}

/// Logits and tokens of a dump, by name.
fn dump(file: &Path, folder: &Path) -> Vec<(String, Dtype, Vec<u8>)> {
    // A dump read as a checkpoint.
    std::fs::create_dir_all(folder).unwrap();
    std::fs::copy(file, folder.join("model.safetensors")).unwrap();
    std::fs::write(folder.join("config.json"), r#"{"model_type": "dump"}"#).unwrap();
    let dump = Checkpoint::open(folder).unwrap();
    let tensors = dump.index().tensors().iter();
    tensors.map(|t| (t.spec.name.clone(), t.spec.dtype, dump.read(&t.spec.name).unwrap())).collect()
}

/// Largest difference of logits as a share of the largest; panics where tokens differ.
fn difference(cpu: &Path, gpu: &Path, dir: &Dir) -> f32 {
    let (cpu, gpu) = (dump(cpu, &dir.join("cpu-dump")), dump(gpu, &dir.join("gpu-dump")));
    let mut worst = 0.0f32;
    for ((name, dtype, a), (_, _, b)) in cpu.iter().zip(&gpu) {
        if *dtype != Dtype::F32 {
            assert_eq!(a, b, "{name}");
            continue;
        }
        let floats = |bytes: &[u8]| -> Vec<f32> {
            bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
        };
        let (a, b) = (floats(a), floats(b));
        assert_eq!(a.len(), b.len());
        let size = a.iter().fold(0.0f32, |m, x| m.max(x.abs()));
        let off = a.iter().zip(&b).fold(0.0f32, |m, (x, y)| m.max((x - y).abs()));
        assert!(!off.is_nan() && b.iter().all(|x| x.is_finite()), "{name}");
        worst = worst.max(off / size);
    }
    worst
}

fn dumped(gpu: &Gpu, model: &Path, prompts: &str, new: &str) -> (f32, Summary) {
    let dir = Dir::new();
    let (tokens, on_cpu, on_gpu) = (dir.join("p.json"), dir.join("cpu.st"), dir.join("gpu.st"));
    std::fs::write(&tokens, prompts).unwrap();
    let run = |device: &str, to: &Path| {
        args![
            "generate",
            model,
            "--tokens",
            tokens,
            "--max-new",
            new,
            "--ignore-eos",
            "--logits",
            to,
            "--device",
            device
        ]
    };
    prep(run("cpu", &on_cpu)).succeeds();
    let (ended, report) = gpu.prep(run("cuda", &on_gpu));
    ended.succeeds();
    (difference(&on_cpu, &on_gpu, &dir), report)
}

#[test]
fn every_family_gives_the_logits_of_the_cpu() {
    let Some(gpu) = Gpu::new(Checks::Pointers) else { return };
    let families: Vec<_> =
        std::fs::read_dir(fixture("logits")).unwrap().map(|family| family.unwrap().path()).collect();
    assert!(families.len() >= 11, "{families:?}");
    for family in families {
        let case: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(family.join("case.json")).unwrap()).unwrap();
        let dir = Dir::new();
        let model = dir.copy_of(&family, "model");
        std::fs::remove_file(model.join("expected.safetensors")).unwrap();
        let prompts =
            serde_json::json!(case["prompts"].as_array().unwrap().iter().rev().take(2).collect::<Vec<_>>());
        let prompts = prompts.to_string();
        let (off, _) = dumped(&gpu, &model, &prompts, "4");
        assert!(off <= 1e-4, "{}: {off}", family.display());
    }
}

#[test]
fn quantized_folders_run_with_every_access_checked() {
    let Some(gpu) = Gpu::new(Checks::Accesses) else { return };
    let dir = Dir::new();
    let made = |name: &str, how: &[&str]| {
        let out = dir.join(name);
        let mut a =
            args!["quantize", tiny_merged(), "--out", out, "--samples", "2", "--seq-len", "32"].to_vec();
        a.extend(how.iter().map(Into::into));
        prep(a).succeeds();
        out
    };
    let nearest = ["--awq", "--rounding", "nearest", "--group-size", "64"];
    let with = |more: &[&'static str]| [&nearest[..], more].concat();
    let folders = [
        tiny_fp8().to_path_buf(),
        tiny_merged().to_path_buf(),
        made("packed", &nearest),
        made("autoawq", &with(&["--format", "autoawq"])),
        made("bytes", &with(&["--bits", "8"])),
        made("scaled", &["--fp8", "--static-activations", "--kv-cache", "fp8"]),
    ];
    for folder in folders {
        let (off, _) = dumped(&gpu, &folder, "[[1, 2, 3, 4, 5, 6, 7, 8, 9]]", "3");
        // Where inputs are rounded to FP8, a number beside a boundary may fall on either side.
        let most = if folder.ends_with("scaled") { 2e-2 } else { 1e-4 };
        assert!(off <= most, "{}: {off}", folder.display());
    }
}

#[test]
fn recorded_steps_write_the_text_of_the_cpu() {
    let Some(gpu) = Gpu::new(Checks::Pointers) else { return };
    let hybrid = fixture("models/qwen3_5-moe/base");
    let greedy: &[&str] = &[];
    let drawn = &["--temperature", "0.9", "--top-p", "0.9", "--top-k", "40", "--seed", "3"];
    let penalised = &["--temperature", "0.9", "--repetition-penalty", "1.2"];
    // Who chooses: the GPU, the GPU, the host.
    let ways = [("argmax", greedy), ("sample", drawn), ("rows", penalised)];
    for (model, (kernel, sampling)) in
        ways.map(|way| (tiny_fp8(), way)).into_iter().chain([(hybrid.as_path(), ways[0])])
    {
        let run = |device: &str| {
            let mut a = args![
                "generate",
                model,
                "--prompt",
                "The",
                "--max-new",
                "12",
                "--ignore-eos",
                "--device",
                device
            ]
            .to_vec();
            a.extend(sampling.iter().map(Into::into));
            a
        };
        let cpu = prep(run("cpu")).succeeds();
        let (ended, report) = gpu.prep(run("cuda"));
        assert!(report.launches.contains_key(kernel), "{:?}", report.launches);
        assert_eq!(cpu.stdout, ended.succeeds().stdout);
        // The first step is done as it comes, the second recorded; the prompt is one step.
        assert!(report.graph_launches >= 8, "{}", report.graph_launches);
    }
}

#[test]
fn answers_that_run_together_are_those_of_each_alone() {
    let Some(gpu) = Gpu::new(Checks::Pointers) else { return };
    let dir = Dir::new();
    let tokens = dir.join("p.json");
    let prompts = ["[5, 6, 7]", "[8, 9, 10, 11, 12]", "[13]"];
    let answers = |list: &str| {
        std::fs::write(&tokens, list).unwrap();
        let a = args![
            "generate",
            tiny_fp8(),
            "--tokens",
            tokens,
            "--max-new",
            "5",
            "--ignore-eos",
            "--json",
            "--device",
            "cuda"
        ];
        let json = gpu.prep(a).0.succeeds().json();
        json["answers"].as_array().unwrap().iter().map(|a| a["tokens"].clone()).collect::<Vec<_>>()
    };
    let together = answers(&format!("[{}]", prompts.join(",")));
    let alone: Vec<_> = prompts.iter().flat_map(|p| answers(&format!("[{p}]"))).collect();
    assert_eq!(together, alone);
}

#[test]
fn suite_scores_as_on_the_cpu() {
    let Some(gpu) = Gpu::new(Checks::Pointers) else { return };
    let dir = Dir::new();
    let suite = dir.join("suite.json");
    let text = std::fs::read_to_string(fixture("models/suite.json")).unwrap();
    let mut all: serde_json::Value = serde_json::from_str(&text).unwrap();
    all["cases"].as_array_mut().unwrap().truncate(1);
    std::fs::write(&suite, all.to_string()).unwrap();
    let run = |device: &str| {
        args![
            "verify",
            tiny_fp8(),
            "--parser",
            "qwen3_coder",
            "--suite",
            suite,
            "--json",
            "--device",
            device,
            "--max-new",
            "40"
        ]
    };
    let (cpu, (ended, _)) = (prep(run("cpu")), gpu.prep(run("cuda")));
    assert_eq!(cpu.code, ended.code);
    assert_eq!(cpu.json()["score"], ended.json()["score"]);
}

#[test]
fn fp8_by_the_gpu_has_the_bytes_of_the_cpu() {
    let Some(gpu) = Gpu::new(Checks::Pointers) else { return };
    let dir = Dir::new();
    let models = [tiny_merged().to_path_buf(), fixture("models/qwen3_5-moe/base")];
    for (n, model) in models.iter().enumerate() {
        for scheme in ["block", "channel", "tensor"] {
            let made = |device: &str| {
                let out = dir.join(&format!("{n}-{scheme}-{device}"));
                let a =
                    args!["quantize", model, "--out", out, "--fp8", "--scheme", scheme, "--device", device];
                (a, out)
            };
            let ((on_cpu, cpu), (on_gpu, by_gpu)) = (made("cpu"), made("cuda"));
            prep(on_cpu).succeeds();
            let (ended, report) = gpu.prep(on_gpu);
            ended.succeeds();
            assert!(
                report.launches.iter().any(|(k, _)| k.starts_with("fp8_quantize")),
                "{:?}",
                report.launches
            );
            assert!(files(&cpu) == files(&by_gpu), "{scheme}");
        }
    }
}

#[test]
fn weights_that_are_not_finite_are_refused_by_name() {
    let Some(gpu) = Gpu::new(Checks::Pointers) else { return };
    let dir = Dir::new();
    let model = dir.copy_of(tiny_merged(), "model");
    std::fs::remove_file(model.join("SHA256SUMS")).unwrap();
    let file = model.join("model.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    let n = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header = Header::parse(&bytes[8..8 + n], (bytes.len() - 8 - n) as u64, "model").unwrap();
    let weight =
        header.tensors.iter().find(|t| t.spec.name.ends_with("layers.1.self_attn.o_proj.weight")).unwrap();
    // NaN in bf16.
    let at = 8 + n + weight.begin as usize + 2 * 70;
    bytes[at..at + 2].copy_from_slice(&[0xc0, 0x7f]);
    std::fs::write(&file, bytes).unwrap();
    let run = |device: &str| {
        let out = dir.join(device);
        args!["quantize", model, "--out", out, "--fp8", "--scheme", "channel", "--device", device]
    };
    let (cpu, (ended, _)) = (prep(run("cpu")), gpu.prep(run("cuda")));
    assert_eq!((cpu.code, ended.code), (3, 3));
    let error = |ended: &Ended| {
        ended.stderr.lines().filter(|l| !l.contains("writing")).collect::<Vec<_>>().join("\n")
    };
    assert!(error(&cpu).contains("NaN or infinity"), "{}", cpu.stderr);
    assert_eq!(error(&cpu), error(&ended));
}

#[test]
fn missing_gpu_is_said_where_one_was_asked_for() {
    let run =
        |device: &str| args!["generate", tiny_fp8(), "--prompt", "The", "--max-new", "1", "--device", device];
    if runner::cuda::gpus().is_ok() {
        return eprintln!("skipped: this machine has a GPU");
    }
    prep(run("cuda")).exits(6).says("--device cpu");
    prep(run("auto")).succeeds();
    let Some(gpu) = Gpu::new(Checks::Pointers) else { return };
    let none = ended(gpu.command(run("cuda")).env("PREP_STANDIN_DEVICES", "0").output().unwrap());
    none.exits(6).says("no GPU was found");
    let old = ended(gpu.command(run("cuda")).env("PREP_STANDIN_VERSION", "11080").output().unwrap());
    old.exits(6).says("too old");
    let turing = ended(gpu.command(run("cuda")).env("PREP_STANDIN_CAPABILITY", "7.5").output().unwrap());
    turing.exits(6).says("no GPU is new enough").says("sm_75");
}

#[test]
fn first_gpu_that_is_new_enough_is_the_one_that_runs() {
    let Some(gpu) = Gpu::new(Checks::Pointers) else { return };
    let run = |a: Vec<std::ffi::OsString>| {
        let mut command = gpu.command(a);
        command.envs([("PREP_STANDIN_DEVICES", "3"), ("PREP_STANDIN_OLD", "2")]);
        ended(command.output().unwrap())
    };
    let generate = args!["generate", tiny_fp8(), "--prompt", "The", "--max-new", "2", "--device", "cuda"];
    run(generate.to_vec()).succeeds();
    assert!(Report::read(&gpu.report_file()).faults.is_empty());
    run(args!["doctor"].to_vec()).says("GPU 2,");
}

/// A GPU that breaks in the middle of an answer: nothing is said twice.
#[test]
fn answer_that_has_begun_is_not_begun_again_on_the_cpu() {
    let Some(gpu) = Gpu::new(Checks::Pointers) else { return };
    let run = |device: &str, fails: usize| {
        let a = args!["generate", tiny_fp8(), "--prompt", "The", "--max-new", "8", "--device", device];
        let mut command = gpu.command(a);
        command.env("PREP_STANDIN_FAIL", format!("cuGraphLaunch:{fails}"));
        ended(command.output().unwrap())
    };
    let whole = run("cuda", 1_000_000).succeeds().stdout;
    let broken = run("auto", 3);
    assert_eq!(broken.code, 6, "{}", broken.stderr);
    assert!(whole.starts_with(broken.stdout.trim_end()) && broken.stdout.len() < whole.len());
}

#[test]
fn model_that_does_not_fit_is_refused_before_it_is_loaded() {
    let Some(gpu) = Gpu::new(Checks::Pointers) else { return };
    let run = |device: &str| {
        let a = args!["generate", tiny_fp8(), "--prompt", "The", "--max-new", "3", "--device", device];
        ended(gpu.command(a).env("PREP_STANDIN_MEMORY", "100000000").output().unwrap())
    };
    run("cuda").exits(6).says("does not fit the GPU's memory").says("0.09 GiB free");
    let auto = run("auto").succeeds().says("running on the CPU instead");
    let cpu = prep(args!["generate", tiny_fp8(), "--prompt", "The", "--max-new", "3", "--device", "cpu"]);
    assert_eq!(auto.stdout, cpu.stdout);
}

#[test]
fn memory_that_runs_out_halves_what_runs_at_once_and_no_more() {
    let Some(gpu) = Gpu::new(Checks::Pointers) else { return };
    // From the call of this number on so many fail: the first is asked once more after free memory was given back.
    let run = |from: usize, count: usize| {
        let a = args!["generate", tiny_fp8(), "--prompt", "The", "--max-new", "4", "--device", "cuda"];
        let mut command = gpu.command(a);
        command.env("PREP_STANDIN_FAIL", format!("cuMemAlloc:{from}"));
        let done = ended(command.env("PREP_STANDIN_FAIL_COUNT", count.to_string()).output().unwrap());
        assert!(Report::read(&gpu.report_file()).faults.is_empty());
        done
    };
    let whole = run(1, 0).succeeds().stdout;
    let mut halved = None;
    for from in (1..200).step_by(23) {
        let done = run(from, 2);
        assert!([0, 6].contains(&done.code), "{from}: {}\n{}", done.code, done.stderr);
        if done.code == 6 {
            // While it was loaded.
            assert!(done.stderr.contains("the GPU's memory is used up"), "{}", done.stderr);
            continue;
        }
        assert_eq!(done.stdout, whole, "{from}");
        if done.stderr.contains("half as much at once") {
            halved = Some(from);
        }
    }
    // With nothing left for ever it ends.
    run(halved.unwrap(), 1_000_000).exits(6).says("the GPU's memory is used up");
}

#[test]
fn doctor_shows_the_gpu_that_will_be_used() {
    let Some(gpu) = Gpu::new(Checks::Pointers) else { return };
    let (ended, _) = gpu.prep(args!["doctor"]);
    ended.says("multiprocessors").says("GPU 0,").says("driver for CUDA 12.4");
}

#[test]
fn bench_measures_every_part_beside_the_machines_best() {
    let Some(gpu) = Gpu::new(Checks::Pointers) else { return };
    let dir = Dir::new();
    let config = dir.join("config.json");
    std::fs::write(
        &config,
        r#"{"model_type": "qwen3_moe", "vocab_size": 64, "hidden_size": 128, "num_hidden_layers": 9,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "num_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 128, "intermediate_size": 128, "max_position_embeddings": 512}"#,
    )
    .unwrap();
    for (format, kernel) in [("bf16", "gate_up_bf16"), ("fp8", "gate_up_e4m3"), ("int4", "gate_up_int4")] {
        let run = |device: &str| {
            args![
                "bench", config, "--format", format, "--layers", "1", "--prompt", "5", "--steps", "2",
                "--json", "--device", device
            ]
        };
        let (ended, summary) = gpu.prep(run("cuda"));
        assert!(summary.launches.contains_key(kernel), "{:?}", summary.launches);
        for json in [ended.succeeds().json(), prep(run("cpu")).succeeds().json()] {
            crate::schemas::valid("bench", &json);
            for part in ["/prefill/tokens_per_sec", "/decode/share_of_copy", "/quantize/share"] {
                assert!(json.pointer(part).unwrap().as_f64().unwrap() > 0.0, "{part} of {json}");
            }
        }
    }
}

/// Few and short samples.
const QUICK: [&str; 4] = ["--samples", "2", "--seq-len", "32"];
/// All but the first layer: fibers take minutes for what takes a GPU milliseconds.
const LATER_LAYERS: &str = r"re:.*layers\.[1-3]\..*";

#[test]
fn awq_by_the_gpu_has_the_bytes_of_the_cpu() {
    let Some(gpu) = Gpu::new(Checks::Pointers) else { return };
    let dir = Dir::new();
    // Attention; the experts; one matrix on so many tokens that the walk's own products go to the GPU as well.
    let cases = [
        "--samples 1 --seq-len 16 --group-size 64 --ignore re:.*mlp.*",
        "--samples 1 --seq-len 16 --format autoawq --rounding nearest --clip off --ignore re:.*self_attn.*",
        "--samples 4 --seq-len 32 --group-size 32 --bits 8 --symmetric --clip off --ignore re:.*mlp.* --ignore re:.*[qkv]_proj",
    ];
    for (n, options) in cases.into_iter().enumerate() {
        let made = |device: &str| {
            let out = dir.join(&format!("{n}-{device}"));
            let mut a = args!["quantize", tiny_merged(), "--out", out, "--awq", "--device", device].to_vec();
            a.extend(["--ignore", LATER_LAYERS].into_iter().chain(options.split(' ')).map(Into::into));
            (a, out)
        };
        let ((on_cpu, cpu), (on_gpu, by_gpu)) = (made("cpu"), made("cuda"));
        prep(on_cpu).succeeds();
        let (ended, report) = gpu.prep(on_gpu);
        ended.succeeds();
        let count = |kernel: &str| report.launches.get(kernel).copied().unwrap_or(0);
        let ran = |kernel: &str| count(kernel) > 0;
        let always =
            ["gram", "column_stats", "lanes_product_f32", "column_squares", "grid_round_bf16", "grid_codes"];
        always.iter().for_each(|k| assert!(ran(k), "{options}: no {k} in {:?}", report.launches));
        assert_eq!(ran("grid_keep"), !options.contains("--clip off"), "{options}");
        assert_eq!(ran("descent"), !options.contains("nearest"), "{options}");
        // A reader is judged once as it is, and once for each candidate.
        let readers = count("column_squares") - count("grid_round_bf16");
        assert_eq!(count("lanes_product_bf16") > readers, n == 2, "{options}: {:?}", report.launches);
        assert!(files(&cpu) == files(&by_gpu), "{options}");
    }
}

#[test]
fn calibrated_scales_by_the_gpu_are_those_of_the_cpu() {
    let Some(gpu) = Gpu::new(Checks::Pointers) else { return };
    let dir = Dir::new();
    let made = |device: &str| {
        let out = dir.join(device);
        let mut a = args!["quantize", tiny_merged(), "--out", out, "--fp8", "--device", device].to_vec();
        let options = "--static-activations --kv-cache fp8 --samples 4 --seq-len 32";
        a.extend(options.split(' ').map(Into::into));
        (a, out)
    };
    let ((on_cpu, cpu), (on_gpu, by_gpu)) = (made("cpu"), made("cuda"));
    prep(on_cpu).succeeds();
    let (ended, report) = gpu.prep(on_gpu);
    ended.succeeds();
    assert!(report.launches.contains_key("lanes_product_bf16"), "{:?}", report.launches);
    assert!(files(&cpu) == files(&by_gpu));
}

#[test]
fn recipe_with_awq_runs_on_the_gpu() {
    let Some(gpu) = Gpu::new(Checks::Pointers) else { return };
    let dir = Dir::new();
    let recipe = dir.join("awq.toml");
    let text = std::fs::read_to_string(crate::support::repository().join("recipes/tiny-awq.toml")).unwrap();
    let fixtures = crate::support::repository().join("tests/fixtures");
    let (unverified, _) = text.split_once("[verify]").unwrap();
    let ignore = format!("group_size = 64\nignore = ['{LATER_LAYERS}', 're:.*mlp.*', 're:.*[qkv]_proj']\n");
    let small = unverified.replace("group_size = 64\n", &ignore);
    std::fs::write(&recipe, small.replace("../tests/fixtures", &fixtures.to_string_lossy())).unwrap();
    let run = |device: &str| {
        let out = dir.join(device);
        let mut a = args!["run", recipe, "--out", out, "--device", device].to_vec();
        a.extend(["--set", "quantize.samples=1", "--set", "quantize.seq_len=16"].map(Into::into));
        (a, out)
    };
    let ((on_cpu, cpu), (on_gpu, by_gpu)) = (run("cpu"), run("cuda"));
    prep(on_cpu).succeeds();
    let (ended, report) = gpu.prep(on_gpu);
    ended.succeeds();
    assert!(report.launches.contains_key("descent"), "{:?}", report.launches);
    assert!(files(&cpu) == files(&by_gpu));
}

#[test]
fn gpu_too_small_for_awq_is_passed_over_unless_it_was_asked_for() {
    let Some(gpu) = Gpu::new(Checks::Pointers) else { return };
    let dir = Dir::new();
    let run = |device: &str| {
        let out = dir.join(device);
        let mut a = args!["quantize", tiny_merged(), "--out", out, "--awq", "--device", device].to_vec();
        a.extend(QUICK.map(Into::into));
        (ended(gpu.command(a).env("PREP_STANDIN_MEMORY", "200000").output().unwrap()), out)
    };
    let (refused, out) = run("cuda");
    refused.exits(6).says("the GPU's memory is used up");
    assert!(!out.join("config.json").exists());
    let (passed, by_cpu) = run("auto");
    passed.succeeds().says("running on the CPU instead");
    let report = Report::read(&gpu.report_file());
    assert!(report.faults.is_empty(), "{report:?}");
    let want = dir.join("want");
    let mut a = args!["quantize", tiny_merged(), "--out", want, "--awq", "--device", "cpu"].to_vec();
    a.extend(QUICK.map(Into::into));
    prep(a).succeeds();
    assert!(files(&want) == files(&by_cpu));
}
