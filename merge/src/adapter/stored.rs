//! One tensor of an adapter file: small factors are held in their stored dtype, whole tensors stay on disk.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use verify::checkpoint::{ShardFile, TensorSpec};
use verify::{Dtype, Error, Result, Shown};

/// A tensor of an adapter, dtype F32, F16 or BF16, all values finite.
#[derive(Debug)]
pub struct Stored {
    /// Its key in the file, dtype and shape.
    pub spec: TensorSpec,
    data: Data,
}

#[derive(Debug)]
enum Data {
    Memory(Vec<u8>),
    File { shard: Arc<ShardFile>, offset: u64 },
}

impl Stored {
    /// A tensor whose bytes are held.
    pub fn held(spec: TensorSpec, bytes: Vec<u8>) -> Self {
        Stored { spec, data: Data::Memory(bytes) }
    }

    /// A tensor whose bytes lie in `shard` from `offset` on.
    pub fn on_disk(spec: TensorSpec, shard: Arc<ShardFile>, offset: u64) -> Self {
        Stored { spec, data: Data::File { shard, offset } }
    }

    /// The 1 x 1 matrix that holds 1, which makes a vector a product of rank 1.
    pub fn one() -> Self {
        Stored::held(TensorSpec::new("1", Dtype::F32, [1, 1]), 1f32.to_le_bytes().to_vec())
    }

    /// The bytes of rows `rows`.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn read_rows(&self, rows: Range<usize>) -> Result<Vec<u8>> {
        let row = self.spec.row_bytes();
        let bytes = rows.start * row..rows.end * row;
        match &self.data {
            Data::Memory(all) => Ok(all[bytes].to_vec()),
            Data::File { shard, offset } => {
                let mut out = vec![0; bytes.len()];
                File::open(&shard.path)
                    .and_then(|f| f.read_exact_at(&mut out, offset + bytes.start as u64))
                    .map_err(|e| Error::io("read", &shard.path, &e))?;
                shard.unchanged()?;
                Ok(out)
            }
        }
    }

    /// The whole tensor as f64. Only for tensors known to be small.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn values(&self) -> Result<Vec<f64>> {
        let bytes = self.read_rows(0..self.spec.rows())?;
        Ok((0..self.spec.elements()).map(|i| f64::from(element(&bytes, self.spec.dtype, i))).collect())
    }

    /// True where both hold the same shape and values, whatever their dtypes.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn same_values(&self, other: &Stored) -> Result<bool> {
        if self.spec.shape != other.spec.shape {
            return Ok(false);
        }
        let rows = self.spec.rows();
        let step = verify::rewrite::rows_per_chunk(self.spec.row_bytes(), 1);
        for start in (0..rows).step_by(step) {
            let range = start..(start + step).min(rows);
            let (a, b) = (self.read_rows(range.clone())?, other.read_rows(range.clone())?);
            let count = range.len() * self.spec.cols();
            let equal = |i| element(&a, self.spec.dtype, i) == element(&b, other.spec.dtype, i);
            if self.spec.dtype == other.spec.dtype && a != b || !(0..count).all(equal) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// True where every value of a tensor held in memory is zero.
    pub fn all_zero(&self) -> bool {
        let bytes = self.held_bytes();
        (0..self.spec.elements()).all(|i| element(bytes, self.spec.dtype, i) == 0.0)
    }

    fn held_bytes(&self) -> &[u8] {
        match &self.data {
            Data::Memory(bytes) => bytes,
            Data::File { .. } => &[],
        }
    }
}

/// Element `i` of little-endian bytes of a plain float dtype, exactly.
pub fn element(bytes: &[u8], dtype: Dtype, i: usize) -> f32 {
    let two = || u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]);
    match dtype {
        Dtype::BF16 => half::bf16::from_bits(two()).to_f32(),
        Dtype::F16 => half::f16::from_bits(two()).to_f32(),
        _ => f32::from_le_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]]),
    }
}

/// A matrix inside a held tensor: element (i, j) stands at `offset + i * stride.0 + j * stride.1`.
#[derive(Debug, Clone)]
pub struct View {
    tensor: Arc<Stored>,
    offset: usize,
    stride: (usize, usize),
}

impl View {
    /// A view of `tensor`, which must be held in memory.
    pub fn new(tensor: &Arc<Stored>, offset: usize, stride: (usize, usize)) -> Self {
        View { tensor: tensor.clone(), offset, stride }
    }

    /// The matrix as it is stored: rows, then columns.
    pub fn plain(tensor: &Arc<Stored>) -> Self {
        View::new(tensor, 0, (tensor.spec.cols(), 1))
    }

    /// The stored matrix transposed.
    pub fn transposed(tensor: &Arc<Stored>) -> Self {
        View::new(tensor, 0, (1, tensor.spec.cols()))
    }

    /// The view without its first `rows` rows.
    pub fn skip_rows(mut self, rows: usize) -> Self {
        self.offset += rows * self.stride.0;
        self
    }

    /// The key of the tensor.
    pub fn key(&self) -> &str {
        &self.tensor.spec.name
    }

    /// True where both give the same `rows` x `cols` values.
    pub fn same_values(&self, other: &View, (rows, cols): (usize, usize)) -> bool {
        let mut same = true;
        for i in 0..rows {
            for j in 0..cols {
                same &= self.get(i, j) == other.get(i, j);
            }
        }
        same
    }

    fn get(&self, i: usize, j: usize) -> f32 {
        let at = self.offset + i * self.stride.0 + j * self.stride.1;
        element(self.tensor.held_bytes(), self.tensor.spec.dtype, at)
    }

    /// Calls `put(i, j, value)` for all of `rows` and `cols`.
    pub fn each(&self, rows: Range<usize>, cols: Range<usize>, mut put: impl FnMut(usize, usize, f32)) {
        // One loop per dtype, so that the choice is not made per element.
        match self.tensor.spec.dtype {
            Dtype::BF16 => self.each_as(Dtype::BF16, rows, cols, &mut put),
            Dtype::F16 => self.each_as(Dtype::F16, rows, cols, &mut put),
            _ => self.each_as(Dtype::F32, rows, cols, &mut put),
        }
    }

    #[inline(always)]
    fn each_as(
        &self,
        dtype: Dtype,
        rows: Range<usize>,
        cols: Range<usize>,
        put: &mut impl FnMut(usize, usize, f32),
    ) {
        let bytes = self.tensor.held_bytes();
        for i in rows {
            let row = self.offset + i * self.stride.0;
            for j in cols.clone() {
                put(i, j, element(bytes, dtype, row + j * self.stride.1));
            }
        }
    }
}

/// The key of a tensor, safe to print.
pub fn shown(stored: &Stored) -> String {
    format!("`{}` {} {:?}", Shown(&stored.spec.name), stored.spec.dtype, stored.spec.shape)
}
