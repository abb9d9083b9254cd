//! What a layer's visit found, kept in a file of its own: written whole or not at all.

use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde_json::Value;
use verify::checkpoint::{ShardFile, TensorSpec, header, no_tensor};
use verify::write::ShardWriter;
use verify::{Digest, Dtype, Error, FileName, Result, Shown, checksum};

/// Name of the tensor that holds the report, as JSON.
const REPORT: &str = "report";

/// Tensors with their bytes.
pub type Tensors = Vec<(TensorSpec, Vec<u8>)>;

/// Tensors and a report of one layer.
#[derive(Debug, Default)]
pub struct Record {
    /// What is stored.
    pub tensors: Tensors,
    /// Figures.
    pub report: Value,
}

fn name(layer: usize) -> Result<FileName> {
    FileName::parse(&format!("layer-{layer:05}.safetensors"))
}

fn digest_beside(folder: &Path, layer: usize) -> Result<PathBuf> {
    Ok(folder.join(name(layer)?).with_extension("sha256"))
}

/// Whether the record of `layer` is there as it was written: hours of work that become the output are not trusted to a
/// disk unread.
fn is_sound(folder: &Path, layer: usize) -> Result<bool> {
    let written = std::fs::read_to_string(digest_beside(folder, layer)?).ok().and_then(|d| Digest::parse(&d));
    let path = folder.join(name(layer)?);
    Ok(match written {
        Some(digest) if path.exists() => checksum::of_file(&path)? == digest,
        _ => false,
    })
}

impl Record {
    /// Writes the record of `layer` into `folder`; it is on disk when this returns.
    ///
    /// # Errors
    /// Exit 5 when the disk is full or broken.
    pub fn write(self, folder: &Path, layer: usize) -> Result<()> {
        let report = self.report.to_string().into_bytes();
        let spec = TensorSpec::new(REPORT, Dtype::U8, [report.len()]);
        let tensors = || self.tensors.iter().map(|(spec, _)| spec).chain([&spec]);
        let mut writer = ShardWriter::create(folder, &name(layer)?)?;
        writer.append(header::encode(tensors()))?;
        for (_, bytes) in self.tensors {
            writer.append(bytes)?;
        }
        writer.append(report)?;
        let (digest, _) = writer.finish()?;
        // Without it, or with half of it, the record is made again.
        let beside = digest_beside(folder, layer)?;
        std::fs::write(&beside, digest.to_string()).map_err(|e| Error::io("write", &beside, &e))
    }
}

/// The records of the layers from the first on, without a gap.
#[derive(Debug)]
pub struct Records {
    layers: Vec<(PathBuf, File)>,
    places: HashMap<String, Place>,
    reports: Vec<Value>,
}

#[derive(Debug)]
struct Place {
    layer: usize,
    offset: u64,
    spec: TensorSpec,
}

impl Records {
    /// Opens what is in `folder`, of at most `layers` layers, up to the first that is missing or damaged.
    ///
    /// # Errors
    /// Exit 3 and 5 for records that cannot be read.
    pub fn open(folder: &Path, layers: usize) -> Result<Self> {
        let mut records = Records { layers: Vec::new(), places: HashMap::new(), reports: Vec::new() };
        while records.len() < layers && is_sound(folder, records.len())? {
            records.add(folder)?;
        }
        Ok(records)
    }

    /// Opens the record of the next layer.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn add(&mut self, folder: &Path) -> Result<()> {
        let layer = self.layers.len();
        let (shard, header) = ShardFile::open(folder, &name(layer)?)?;
        let file = File::open(&shard.path).map_err(|e| Error::io("read", &shard.path, &e))?;
        self.layers.push((shard.path.clone(), file));
        for t in header.tensors {
            let offset = shard.data_start + t.begin;
            self.places.insert(t.spec.name.clone(), Place { layer, offset, spec: t.spec });
        }
        let report = self.read(REPORT)?;
        self.places.remove(REPORT);
        let broken = |e: serde_json::Error| {
            Error::input(format!("{} cannot be read", Shown::path(&shard.path)))
                .found(e.to_string())
                .expected("the record of a calibrated layer")
                .hint("remove it and run again")
        };
        self.reports.push(serde_json::from_slice(&report).map_err(broken)?);
        Ok(())
    }

    /// Layers that have a record.
    pub fn len(&self) -> usize {
        self.layers.len()
    }

    /// True where no layer has a record.
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    /// The reports, layer by layer.
    pub fn reports(&self) -> &[Value] {
        &self.reports
    }

    /// True where a record holds the tensor.
    pub fn contains(&self, tensor: &str) -> bool {
        self.places.contains_key(tensor)
    }

    /// A whole tensor.
    ///
    /// # Errors
    /// As [`Self::read_rows`].
    pub fn read(&self, tensor: &str) -> Result<Vec<u8>> {
        let rows = self.places.get(tensor).map_or(0, |p| p.spec.rows());
        self.read_rows(tensor, 0..rows)
    }

    /// Some rows of a tensor.
    ///
    /// # Errors
    /// Exit 3 where no record holds it, 5 where it cannot be read.
    pub fn read_rows(&self, tensor: &str, rows: Range<usize>) -> Result<Vec<u8>> {
        let place = self.places.get(tensor).ok_or_else(|| no_tensor(tensor))?;
        let row = place.spec.row_bytes();
        let mut bytes = vec![0; rows.len() * row];
        let (path, file) = &self.layers[place.layer];
        file.read_exact_at(&mut bytes, place.offset + (rows.start * row) as u64)
            .map_err(|e| Error::io("read", path, &e))?;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn records_come_back_up_to_the_first_gap() {
        let dir = tempfile::tempdir().unwrap();
        for layer in [0, 1, 3] {
            let spec = TensorSpec::new(format!("t{layer}"), Dtype::U8, [2, 2]);
            let record = Record { tensors: vec![(spec, vec![1, 2, 3, 4])], report: json!({"layer": layer}) };
            record.write(dir.path(), layer).unwrap();
        }
        let records = Records::open(dir.path(), 9).unwrap();
        assert_eq!(records.len(), 2);
        assert_eq!(records.read_rows("t1", 1..2).unwrap(), [3, 4]);
        assert_eq!(records.reports()[1], json!({"layer": 1}));
        assert!(!records.contains("t3") && !records.contains(REPORT));
    }

    #[test]
    fn record_that_is_not_as_it_was_written_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let spec = TensorSpec::new("t", Dtype::U8, [2, 2]);
        let record = || Record { tensors: vec![(spec.clone(), vec![1, 2, 3, 4])], report: json!({}) };
        let path = dir.path().join("layer-00000.safetensors");
        record().write(dir.path(), 0).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 4;
            std::fs::write(&path, other).unwrap();
            assert_eq!(Records::open(dir.path(), 1).unwrap().len(), 0, "byte {at}");
        }
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(Records::open(dir.path(), 1).unwrap().len(), 1);
        std::fs::write(dir.path().join("layer-00000.sha256"), "12").unwrap();
        assert_eq!(Records::open(dir.path(), 1).unwrap().len(), 0);
    }
}
