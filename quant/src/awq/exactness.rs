//! Any scales, folded by the table of pairs and not rounded, leave the model what it is: for every family.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use runner::decoder::{Part, Want};
use runner::{Model, Options};
use verify::architecture::Architecture;
use verify::checkpoint::{TensorReader, TensorSpec, header};
use verify::codec::Float;
use verify::{Checkpoint, Dtype};

use super::fold;
use super::pairs::{self, Producer};
use crate::select::Fate;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/logits")
}

/// Scales between a half and two that look random.
fn scales(count: usize, salt: usize) -> Vec<f32> {
    (0..count).map(|i| 2f32.powf(((i * 7919 + salt * 104_729) % 1000) as f32 / 500.0 - 1.0)).collect()
}

/// Writes `source` with every pair scaled; readers and divided rows in f32. Returns how many pairs there were.
fn folded(source: &Checkpoint, out: &Path) -> usize {
    let arch = Architecture::of(source.config(), source.index()).unwrap();
    let fates = vec![Fate::Quantize; arch.modules().len()];
    let (mut columns, mut rows) = (HashMap::new(), HashMap::new());
    let mut made: HashMap<String, (TensorSpec, Vec<u8>)> = HashMap::new();
    let mut count = 0;
    for n in 0..arch.layers() {
        for pair in pairs::of_layer(&arch, &fates, source.config(), n).unwrap() {
            count += 1;
            let mut s = scales(pair.channels(), count);
            let tensor = match &pair.producer {
                Producer::Norm { module, zero_centred } => {
                    Some(fold::norm(source, module, *zero_centred, &mut s).unwrap())
                }
                Producer::Rows(m) => {
                    rows.insert(*m, s.clone());
                    fold::bias(source, &arch.modules()[*m].name, &s).unwrap()
                }
            };
            made.extend(tensor.map(|t| (t.0.name.clone(), t)));
            pair.readers.iter().for_each(|r| assert!(columns.insert(*r, pair.columns(&s)).is_none()));
        }
    }
    let mut tensors = Vec::new();
    for t in source.index().tensors() {
        let held: Vec<_> =
            arch.modules().iter().enumerate().filter(|(_, m)| m.source.tensor == t.spec.name).collect();
        if held.is_empty() {
            let plain = || (t.spec.clone(), source.read(&t.spec.name).unwrap());
            tensors.push(made.remove(&t.spec.name).unwrap_or_else(plain));
        }
        for (at, m) in held {
            let float = Float::of(t.spec.dtype).unwrap();
            let first = m.source.first_row;
            let mut values = float.to_f32(&source.read_rows(&t.spec.name, first..first + m.rows).unwrap());
            let ones = vec![1.0; m.cols];
            let by = columns.get(&at).unwrap_or(&ones);
            fold::scale(&mut values, m.cols, by, rows.get(&at).map(Vec::as_slice));
            let spec = TensorSpec::new(format!("{}.weight", m.name), Dtype::F32, [m.rows, m.cols]);
            tensors.push((spec, Float::F32.to_bytes(&values)));
        }
    }
    let mut bytes = header::encode(tensors.iter().map(|(spec, _)| spec));
    tensors.iter().for_each(|(_, data)| bytes.extend(data));
    std::fs::write(out.join("model.safetensors"), bytes).unwrap();
    std::fs::write(out.join("config.json"), source.config().text()).unwrap();
    count
}

fn logits(dir: &Path) -> Vec<f32> {
    let model = Model::open(dir, &Options::default()).unwrap();
    let tokens: Vec<u32> = (0..24).map(|i| (i * 37 + 5) % model.vocab() as u32).collect();
    let mut sequence = model.sequence().unwrap();
    model.forward(&mut [Part { sequence: &mut sequence, tokens: &tokens, want: Want::All }]).unwrap()
}

#[test]
fn folded_model_is_its_source_in_every_family() {
    let mut families = 0;
    for case in std::fs::read_dir(fixtures()).unwrap() {
        let dir = case.unwrap().path();
        if !dir.join("config.json").exists() {
            continue;
        }
        let source = Checkpoint::open(&dir).unwrap();
        let out = tempfile::tempdir().unwrap();
        let pairs = folded(&source, out.path());
        let (want, got) = (logits(&dir), logits(out.path()));
        let power: f64 = want.iter().map(|w| f64::from(*w).powi(2)).sum();
        let error: f64 = want.iter().zip(&got).map(|(w, g)| f64::from(w - g).powi(2)).sum();
        assert!(pairs >= 4 && error / power < 1e-8, "{}: {pairs} pairs, {:e}", dir.display(), error / power);
        families += 1;
    }
    assert!(families >= 8, "{families}");
}
