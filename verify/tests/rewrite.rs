//! The rewrite engine with two small stages of its own: one that changes numbers, one that splits tensors.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};
use verify::checkpoint::header;
use verify::checkpoint::{Checkpoint, TensorReader, TensorSpec};
use verify::progress::{Progress, Silent};
use verify::rewrite::{
    Applied, Existing, ModelView, Note, Options, OutputPlan, Part, Rewrite, Stage, StageBuilder, UnitKind,
    Which, Work, run,
};
use verify::{Class, Dtype, Result};

/// Bytes of `n` elements, always the same for the same seed.
fn noise(seed: u64, n: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..n)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 32) as u8
        })
        .collect()
}

fn write_shard(path: &Path, specs: &[TensorSpec], seed: u64) {
    let mut bytes = header::encode(specs.iter());
    for (i, s) in specs.iter().enumerate() {
        bytes.extend(noise(seed + i as u64, s.byte_len() as usize));
    }
    std::fs::write(path, bytes).unwrap();
}

/// Two shards, side files, a pickle that must stay behind.
fn base(dir: &Path) -> PathBuf {
    let base = dir.join("base");
    std::fs::create_dir(&base).unwrap();
    let spec = |n: &str, d, s: &[usize]| TensorSpec::new(n, d, s);
    let first = [
        spec("embed", Dtype::BF16, &[3000, 512]),
        spec("a.experts", Dtype::BF16, &[4, 6, 512]),
        spec("odd", Dtype::U8, &[3]),
        spec("norm", Dtype::F32, &[512]),
    ];
    let second = [
        spec("b.weight", Dtype::BF16, &[4000, 600]),
        spec("empty", Dtype::F32, &[0, 4]),
        spec("scalar", Dtype::F32, &[]),
    ];
    write_shard(&base.join("model-00001-of-00002.safetensors"), &first, 1);
    write_shard(&base.join("model-00002-of-00002.safetensors"), &second, 99);
    let file = |s: &TensorSpec, n| (s.name.clone(), json!(format!("model-0000{n}-of-00002.safetensors")));
    let map: serde_json::Map<_, _> =
        first.iter().map(|s| file(s, 1)).chain(second.iter().map(|s| file(s, 2))).collect();
    std::fs::write(base.join("model.safetensors.index.json"), json!({"weight_map": map}).to_string())
        .unwrap();
    std::fs::write(base.join("config.json"), r#"{"model_type": "test", "eps": 1e-06}"#).unwrap();
    std::fs::write(base.join("tokenizer.json"), "{}").unwrap();
    std::fs::write(base.join("pytorch_model.bin"), "pickle").unwrap();
    base
}

/// Flips every byte of `.weight` tensors and notes how many.
struct Flip;
struct FlipWork(Vec<Option<String>>);

impl Rewrite for Flip {
    fn plan(&self, input: &ModelView, _: &dyn TensorReader) -> Result<Stage> {
        let mut b = StageBuilder::new(input);
        let mut names = Vec::new();
        for t in input.tensors.tensors() {
            if t.spec.name.ends_with("weight") {
                b.compute(t.shard, vec![t.spec.clone()], (t.spec.rows(), 700), &[&t.spec.name]);
                names.push(Some(t.spec.name.clone()));
            } else {
                b.copy(t);
                names.push(None);
            }
        }
        stage("flip", input, b, names.clone(), Box::new(FlipWork(names)))
    }
}

fn stage(
    name: &'static str,
    input: &ModelView,
    b: StageBuilder<'_>,
    names: Vec<Option<String>>,
    work: Box<dyn Work>,
) -> Result<Stage> {
    let built = b.finish(input.tensors.shards().to_vec())?;
    assert_eq!(built.renumber, (0..names.len()).collect::<Vec<_>>(), "units were added in shard order");
    let output = ModelView { tensors: built.tensors, ..input.clone() };
    Ok(Stage {
        name,
        options: Value::Null,
        inputs: vec![],
        output,
        units: built.units,
        dropped: built.dropped,
        decisions: vec![],
        warnings: vec![],
        work,
    })
}

impl Work for FlipWork {
    fn apply(&self, unit: usize, rows: Range<usize>, input: &dyn TensorReader) -> Result<Applied> {
        let name = self.0[unit].as_ref().unwrap();
        let mut bytes = input.read_rows(name, rows.clone())?;
        bytes.iter_mut().for_each(|b| *b = !*b);
        let note = Note {
            tensor: name.clone(),
            row: rows.start,
            sums: vec![bytes.len() as f64],
            maxima: vec![rows.end as f64],
        };
        Ok(Applied { outputs: vec![bytes], note: Some(note) })
    }

    fn conclude(&self, notes: &[Note]) -> Result<Value> {
        Ok(json!(notes))
    }
}

/// Splits `experts` into matrices, and every weight into low and high bytes: several outputs per unit.
struct Split;
struct SplitWork(Vec<Option<String>>);

impl Rewrite for Split {
    fn plan(&self, input: &ModelView, _: &dyn TensorReader) -> Result<Stage> {
        let mut b = StageBuilder::new(input);
        let mut names = Vec::new();
        for t in input.tensors.tensors() {
            let s = &t.spec;
            if s.name.ends_with("experts") {
                for e in 0..s.shape[0] {
                    let out = TensorSpec::new(format!("a.experts.{e}"), s.dtype, &s.shape[1..]);
                    b.copy_as(
                        out,
                        t.shard,
                        UnitKind::Copy { from: s.name.clone(), first_row: e * s.shape[1] },
                    );
                    names.push(None);
                }
            } else if s.name.ends_with("weight") {
                let out = |n: &str| TensorSpec::new(format!("{}.{n}", s.name), Dtype::U8, s.shape.clone());
                b.compute(t.shard, vec![out("low"), out("high")], (s.rows(), 512), &[&s.name]);
                names.push(Some(s.name.clone()));
            } else if s.name == "odd" {
                b.drop("odd", "not wanted");
            } else {
                b.copy(t);
                names.push(None);
            }
        }
        stage("split", input, b, names.clone(), Box::new(SplitWork(names)))
    }
}

impl Work for SplitWork {
    fn apply(&self, unit: usize, rows: Range<usize>, input: &dyn TensorReader) -> Result<Applied> {
        let bytes = input.read_rows(self.0[unit].as_ref().unwrap(), rows)?;
        let half = |k| bytes.iter().skip(k).step_by(2).copied().collect();
        Ok(Applied { outputs: vec![half(0), half(1)], note: None })
    }
}

fn plan(base: &Path, stages: &[&dyn Rewrite]) -> OutputPlan {
    OutputPlan::new(Checkpoint::open(base).unwrap(), stages).unwrap()
}

/// All files of a folder but the report.
fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap());
    let named = entries.map(|e| (e.file_name().into_string().unwrap(), e.path()));
    named.filter(|(n, _)| n != "prep-report.json").map(|(n, p)| (n, std::fs::read(p).unwrap())).collect()
}

fn options(threads: usize) -> Options {
    Options { threads, ..Options::default() }
}

#[test]
fn plain_copy_keeps_every_tensor_and_side_file() {
    let dir = tempfile::tempdir().unwrap();
    let base = base(dir.path());
    let out = dir.path().join("out");
    run(&plan(&base, &[]), &out, &options(2), &Silent).unwrap();
    let (a, b) = (Checkpoint::open(&base).unwrap(), Checkpoint::open(&out).unwrap());
    for t in a.index().tensors() {
        assert_eq!(a.read(&t.spec.name).unwrap(), b.read(&t.spec.name).unwrap(), "{}", t.spec.name);
    }
    let names: Vec<_> = files(&out).into_keys().collect();
    assert_eq!(
        names,
        [
            "SHA256SUMS",
            "config.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
            "tokenizer.json"
        ]
    );
    assert!(verify::checksum::check(&out, 2, &Silent).unwrap().is_empty());
}

#[test]
fn chain_equals_its_stages_apart_with_any_thread_count() {
    let dir = tempfile::tempdir().unwrap();
    let base = base(dir.path());
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    run(&plan(&base, &[&Flip]), &one, &options(1), &Silent).unwrap();
    run(&plan(&one, &[&Split]), &two, &options(1), &Silent).unwrap();
    for threads in [1, 2, 7] {
        let fused = dir.path().join(format!("fused{threads}"));
        let done = run(&plan(&base, &[&Flip, &Split]), &fused, &options(threads), &Silent).unwrap();
        assert_eq!(files(&fused), files(&two));
        let flipped = 4000.0 * 600.0 * 2.0;
        assert_eq!(done.report.stages[0].details[0]["sums"], json!([flipped]), "notes of the first stage");
    }
    let split = Checkpoint::open(&two).unwrap();
    assert!(!split.index().contains("odd") && split.index().contains("a.experts.3"));
}

/// Stops after so many bytes.
struct StopAfter(AtomicU64);

impl Progress for StopAfter {
    fn begin(&self, _: &str, _: u64) {}
    fn advance(&self, n: u64) {
        let left = self.0.load(Ordering::Relaxed);
        self.0.store(left.saturating_sub(n), Ordering::Relaxed);
    }
    fn note(&self, _: &str) {}
    fn stopped(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }
}

#[test]
fn stopped_anywhere_and_run_again_gives_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let base = base(dir.path());
    let whole = dir.path().join("whole");
    run(&plan(&base, &[&Flip]), &whole, &options(2), &Silent).unwrap();
    let out = dir.path().join("out");
    let mut resumed = None;
    for bytes in [1, 1_000_000, 3_000_000, 4_000_000, u64::MAX] {
        match run(&plan(&base, &[&Flip]), &out, &options(2), &StopAfter(AtomicU64::new(bytes))) {
            Ok(done) => resumed = Some(done.resumed),
            Err(e) => {
                assert_eq!(e.class(), Class::Interrupted);
                assert!(!out.join("prep-report.json").exists());
                assert!(Checkpoint::open(&out).is_err(), "unfinished folder is refused");
            }
        }
    }
    assert_eq!(files(&out), files(&whole));
    assert_eq!(resumed, Some(1), "the first shard was not done twice");
}

#[test]
fn damaged_finished_shard_is_written_again() {
    let dir = tempfile::tempdir().unwrap();
    let base = base(dir.path());
    let out = dir.path().join("out");
    let _ =
        run(&plan(&base, &[&Flip]), &out, &options(1), &StopAfter(AtomicU64::new(5_000_000))).unwrap_err();
    let shard = out.join("model-00001-of-00002.safetensors");
    let mut bytes = std::fs::read(&shard).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&shard, bytes).unwrap();
    let done = run(&plan(&base, &[&Flip]), &out, &options(1), &Silent).unwrap();
    assert_eq!(done.resumed, 0);
    assert!(verify::checksum::check(&out, 1, &Silent).unwrap().is_empty());
}

#[test]
fn unfinished_run_of_another_plan_is_refused_and_replaced_on_demand() {
    let dir = tempfile::tempdir().unwrap();
    let base = base(dir.path());
    let out = dir.path().join("out");
    let _ = run(&plan(&base, &[&Flip]), &out, &options(1), &StopAfter(AtomicU64::new(1))).unwrap_err();
    let e = run(&plan(&base, &[&Split]), &out, &options(1), &Silent).unwrap_err();
    assert_eq!(e.class(), Class::Usage);
    assert!(e.to_string().contains("another plan"), "{e}");
    let replace = Options { existing: Existing::Replace, ..options(1) };
    run(&plan(&base, &[&Split]), &out, &replace, &Silent).unwrap();
    assert!(Checkpoint::open(&out).unwrap().index().contains("b.weight.low"));
    assert!(!dir.path().join("out.prep-new").exists());
}

#[test]
fn parts_make_the_same_folder_as_one_run() {
    let dir = tempfile::tempdir().unwrap();
    let base = base(dir.path());
    let (whole, out) = (dir.path().join("whole"), dir.path().join("out"));
    run(&plan(&base, &[&Flip, &Split]), &whole, &options(2), &Silent).unwrap();
    let of = |which| run(&plan(&base, &[&Flip, &Split]), &out, &Options { which, ..options(1) }, &Silent);
    for part in ["1/3", "2/3", "3/3"] {
        if part == "2/3" {
            let early = of(Which::Finish).unwrap_err();
            assert_eq!(early.class(), Class::Check);
            assert!(early.to_string().contains("model-00002-of-00002.safetensors"), "{early}");
        }
        of(Which::Part(Part::parse(part).unwrap())).unwrap();
        assert!(!out.join("prep-report.json").exists());
    }
    assert_eq!(of(Which::Finish).unwrap().resumed, 2);
    assert_eq!(files(&out), files(&whole));
    assert!(Part::parse("0/2").is_err() && Part::parse("3/2").is_err() && Part::parse("x").is_err());
}

#[test]
fn source_that_contradicts_its_own_checksums_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let base = base(dir.path());
    std::fs::write(
        base.join("SHA256SUMS"),
        format!("{}  model-00002-of-00002.safetensors\n", verify::Digest::of(b"x")),
    )
    .unwrap();
    let e = run(&plan(&base, &[]), &dir.path().join("out"), &options(1), &Silent).unwrap_err();
    assert!(e.to_string().contains("model-00002-of-00002.safetensors of the source is damaged"), "{e}");
    assert!(!dir.path().join("out/prep-report.json").exists());
}

#[test]
fn second_run_on_the_same_folder_is_told_that_it_is_locked() {
    let dir = tempfile::tempdir().unwrap();
    let base = base(dir.path());
    let out = dir.path().join("out");
    std::fs::create_dir_all(out.join(".prep")).unwrap();
    let _held = verify::rewrite::Lock::take(&out.join(".prep/lock"), std::time::Duration::ZERO).unwrap();
    let e = run(&plan(&base, &[]), &out, &options(1), &Silent).unwrap_err();
    assert_eq!(e.class(), Class::Locked);
}
