//! Reads an adapter's weights in one pass: hashed, checked for NaN, factors kept.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use sha2::Digest as _;
use verify::checkpoint::ShardFile;
use verify::checkpoint::header::HeaderTensor;
use verify::rewrite::InputFile;
use verify::{Digest, Error, FileName, Result, Shown};

use super::key::{self, Key, Role};
use super::stored::{Stored, element};

/// What an adapter file holds.
pub struct AdapterFile {
    /// Tensors in file order, with the meaning of their keys.
    pub tensors: Vec<(Key, Arc<Stored>)>,
    /// `adapter_config.json` and the weights, with digests.
    pub inputs: Vec<InputFile>,
}

const PIECE: usize = 1 << 20;

/// Reads `name` in `dir`.
///
/// # Errors
/// Exit 3 for broken files, keys of other methods, other dtypes than F32, F16, BF16, and NaN or infinity.
pub fn read(dir: &Path, name: &FileName) -> Result<AdapterFile> {
    let (shard, header) = ShardFile::open(dir, name)?;
    let shard = Arc::new(shard);
    let io = |e: std::io::Error| Error::io("read", &shard.path, &e);
    let mut file = File::open(&shard.path).map_err(io)?;
    let mut sha = sha2::Sha256::new();
    let mut head = vec![0; shard.data_start as usize];
    file.read_exact(&mut head).map_err(io)?;
    sha.update(&head);
    let mut tensors = Vec::with_capacity(header.tensors.len());
    for t in header.tensors {
        let key = key::parse(&t.spec.name)?;
        check_dtype(&t, &key)?;
        let keep = !matches!(key.role, Role::Whole(_) | Role::Copy);
        let mut kept = Vec::with_capacity(if keep { t.len as usize } else { 0 });
        let mut left = t.len as usize;
        let mut buf = vec![0; PIECE.min(left)];
        while left > 0 {
            let piece = &mut buf[..PIECE.min(left)];
            file.read_exact(piece).map_err(io)?;
            sha.update(&*piece);
            check_finite(piece, &t, &key)?;
            if keep {
                kept.extend_from_slice(piece);
            }
            left -= piece.len();
        }
        let stored = match keep {
            true => Stored::held(t.spec, kept),
            false => Stored::on_disk(t.spec, shard.clone(), shard.data_start + t.begin),
        };
        tensors.push((key, Arc::new(stored)));
    }
    shard.unchanged()?;
    let weights = InputFile {
        name: format!("adapter/{name}"),
        sha256: Digest(sha.finalize().into()),
        len: shard.stamp.len,
    };
    Ok(AdapterFile { tensors, inputs: vec![config_input(dir)?, weights] })
}

fn config_input(dir: &Path) -> Result<InputFile> {
    let path = dir.join("adapter_config.json");
    let bytes = std::fs::read(&path).map_err(|e| Error::io("read", &path, &e))?;
    let name = "adapter/adapter_config.json".to_string();
    Ok(InputFile { name, sha256: Digest::of(&bytes), len: bytes.len() as u64 })
}

fn check_dtype(t: &HeaderTensor, key: &Key) -> Result<()> {
    match t.spec.dtype.is_plain_float() || key.role == Role::Copy {
        true => Ok(()),
        false => {
            Err(Error::input(format!("adapter tensor `{}` has dtype {}", Shown(&t.spec.name), t.spec.dtype))
                .expected("F32, F16 or BF16")
                .hint("save the adapter in one of these dtypes"))
        }
    }
}

fn check_finite(piece: &[u8], t: &HeaderTensor, key: &Key) -> Result<()> {
    let width = t.spec.dtype.bits() / 8;
    if key.role == Role::Copy || (0..piece.len() / width).all(|i| element(piece, t.spec.dtype, i).is_finite())
    {
        return Ok(());
    }
    Err(Error::input(format!("adapter tensor `{}` holds NaN or infinity", Shown(&t.spec.name)))
        .expected("finite values")
        .hint("the training diverged: take an earlier checkpoint of it"))
}
