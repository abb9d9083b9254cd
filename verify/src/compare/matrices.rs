//! Weights of two folders, module by module.

use std::collections::BTreeMap;

use serde::Serialize;

use super::values::{Values, block_rows};
use crate::architecture::{Architecture, Leaf, Module};
use crate::checkpoint::{Checkpoint, TensorReader, TensorSpec};
use crate::codec::Float;
use crate::error::Result;
use crate::progress::Progress;

/// What differs between the weights.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Tensors {
    /// Matrices and tensors in both folders.
    pub compared: usize,
    /// Of these, the ones that are the same bytes.
    pub identical: usize,
    /// Those that are not, the largest error first.
    pub different: Vec<Pair>,
    /// Only in the first folder.
    pub only_a: Vec<String>,
    /// Only in the second.
    pub only_b: Vec<String>,
}

/// A matrix or tensor that is not the same bytes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Pair {
    /// Its name: of a matrix without `.weight`.
    pub name: String,
    /// Type or format in the first folder.
    pub a: String,
    /// In the second.
    pub b: String,
    /// Root mean square of the difference over that of the first; `None` for shapes that differ, or codes.
    pub relative_error: Option<f64>,
    /// Largest difference of two numbers.
    pub largest: Option<f64>,
}

impl Tensors {
    /// True where nothing differs.
    pub fn same(&self) -> bool {
        self.different.is_empty() && self.only_a.is_empty() && self.only_b.is_empty()
    }

    /// In words.
    pub fn sentence(&self) -> String {
        let one_sided = self.only_a.len() + self.only_b.len();
        let missing = match one_sided {
            0 => String::new(),
            n => format!("; {n} are in one folder only"),
        };
        if self.different.is_empty() {
            return format!("all {} common weights are the same bytes{missing}", self.compared);
        }
        let misshapen = self.different.iter().filter(|p| p.relative_error.is_none()).count();
        let worst = self.different.iter().find_map(|p| Some((p.relative_error?, &p.name)));
        let worst =
            worst.map_or(String::new(), |(e, name)| format!(", by at most {:.2} % ({name})", e * 100.0));
        let shapes = if misshapen > 0 { format!(", {misshapen} in shape or type") } else { String::new() };
        format!("{} of {} weights differ{worst}{shapes}{missing}", self.different.len(), self.compared)
    }
}

/// One folder's matrices and other tensors by name.
struct Side<'a> {
    checkpoint: &'a Checkpoint,
    values: Option<Values<'a>>,
    modules: BTreeMap<String, Module>,
    others: BTreeMap<String, TensorSpec>,
}

impl<'a> Side<'a> {
    /// A folder whose tensors are not understood (unknown family or quantization) is compared by tensor.
    fn of(checkpoint: &'a Checkpoint) -> Self {
        let index = checkpoint.index();
        let arch = Architecture::of(checkpoint.config(), index).ok();
        let values = arch.as_ref().and_then(|_| Values::of(checkpoint).ok());
        let (Some(arch), Some(values)) = (arch, values) else {
            let others = index.tensors().iter().map(|t| (t.spec.name.clone(), t.spec.clone())).collect();
            return Side { checkpoint, values: None, modules: BTreeMap::new(), others };
        };
        let modules: BTreeMap<_, _> = arch.modules().iter().map(|m| (m.name.clone(), m.clone())).collect();
        let held: std::collections::HashSet<&str> =
            arch.modules().iter().map(|m| m.source.tensor.as_str()).collect();
        let is_other = |t: &&crate::TensorMeta| {
            // Scales and zero points are part of their matrix.
            let scales = matches!(arch.names().read(&t.spec.name).map(|p| p.leaf), Some(Leaf::Quantized(_)));
            !scales && !held.contains(t.spec.name.as_str())
        };
        let others = index.tensors().iter().filter(is_other);
        let others = others.map(|t| (t.spec.name.clone(), t.spec.clone())).collect();
        Side { checkpoint, values: Some(values), modules, others }
    }
}

pub fn compare(a: &Checkpoint, b: &Checkpoint, progress: &dyn Progress) -> Result<Tensors> {
    let (a, b) = (Side::of(a), Side::of(b));
    // By tensor on both sides where one is not understood.
    let (a, b) = match (&a.values, &b.values) {
        (Some(_), Some(_)) => (a, b),
        _ => (plain(a.checkpoint), plain(b.checkpoint)),
    };
    let mut found = Tensors::default();
    progress.begin("comparing", a.checkpoint.index().total_bytes());
    for (name, x) in &a.modules {
        match b.modules.get(name) {
            None => found.only_a.push(name.clone()),
            Some(y) => found.add(module_pair(&a, x, &b, y, progress)?),
        }
    }
    for (name, x) in &a.others {
        match b.others.get(name) {
            None => found.only_a.push(name.clone()),
            Some(y) => found.add(tensor_pair(&a, x, &b, y, progress)?),
        }
    }
    let only = |x: &str| !a.modules.contains_key(x) && !a.others.contains_key(x);
    found.only_b = b.modules.keys().chain(b.others.keys()).filter(|n| only(n)).cloned().collect();
    let error = |p: &Pair| p.relative_error.unwrap_or(f64::INFINITY);
    found.different.sort_by(|p, q| error(q).total_cmp(&error(p)).then_with(|| p.name.cmp(&q.name)));
    Ok(found)
}

fn plain(checkpoint: &Checkpoint) -> Side<'_> {
    let tensors = checkpoint.index().tensors().iter();
    let others = tensors.map(|t| (t.spec.name.clone(), t.spec.clone())).collect();
    Side { checkpoint, values: None, modules: BTreeMap::new(), others }
}

impl Tensors {
    fn add(&mut self, pair: Option<Pair>) {
        self.compared += 1;
        match pair {
            Some(pair) => self.different.push(pair),
            None => self.identical += 1,
        }
    }
}

/// Sums over all numbers of two matrices.
#[derive(Default)]
struct Sums {
    difference: f64,
    first: f64,
    largest: f64,
}

impl Sums {
    fn add(&mut self, a: &[f32], b: &[f32]) {
        for (x, y) in a.iter().zip(b) {
            let d = f64::from(*x) - f64::from(*y);
            self.difference += d * d;
            self.first += f64::from(*x) * f64::from(*x);
            self.largest = self.largest.max(d.abs());
        }
    }

    /// 0 for two matrices of zeros; against a first one of zeros the difference is everything.
    fn relative(&self) -> f64 {
        match (self.difference, self.first) {
            (0.0, _) => 0.0,
            (_, 0.0) => 1.0,
            (difference, first) => (difference / first).sqrt(),
        }
    }
}

fn module_pair(
    a: &Side<'_>,
    x: &Module,
    b: &Side<'_>,
    y: &Module,
    progress: &dyn Progress,
) -> Result<Option<Pair>> {
    let (Some(va), Some(vb)) = (&a.values, &b.values) else { return Ok(None) };
    let (sa, sb) = (va.stored(x), vb.stored(y));
    let name = x.name.clone();
    if (x.rows, x.cols) != (y.rows, y.cols) {
        let text = |s: &str, m: &Module| format!("{s} {} x {}", m.rows, m.cols);
        let (a, b) = (text(sa.name(), x), text(sb.name(), y));
        return Ok(Some(Pair { name, a, b, relative_error: None, largest: None }));
    }
    let mut sums = Sums::default();
    let step = block_rows(x.cols);
    for start in (0..x.rows).step_by(step) {
        progress.check()?;
        let rows = start..(start + step).min(x.rows);
        sums.add(&va.rows(x, rows.clone())?, &vb.rows(y, rows)?);
    }
    if let Some(t) = a.checkpoint.index().get(&x.source.tensor) {
        let share = t.spec.byte_len() / t.spec.rows().max(1) as u64 * x.rows as u64;
        progress.advance(share.min(t.spec.byte_len()));
    }
    let same = sa == sb && sums.difference == 0.0;
    Ok((!same).then(|| Pair {
        name,
        a: sa.name().into(),
        b: sb.name().into(),
        relative_error: Some(sums.relative()),
        largest: Some(sums.largest),
    }))
}

fn tensor_pair(
    a: &Side<'_>,
    x: &TensorSpec,
    b: &Side<'_>,
    y: &TensorSpec,
    progress: &dyn Progress,
) -> Result<Option<Pair>> {
    let text = |s: &TensorSpec| match x.shape == y.shape {
        true => s.dtype.name().to_string(),
        false => format!("{} {:?}", s.dtype.name(), s.shape),
    };
    let pair = |relative_error, largest| {
        Some(Pair { name: x.name.clone(), a: text(x), b: text(y), relative_error, largest })
    };
    if x.shape != y.shape {
        return Ok(pair(None, None));
    }
    let (mut sums, mut equal) = (Sums::default(), x.dtype == y.dtype);
    let floats = Float::of(x.dtype).zip(Float::of(y.dtype));
    if !equal && floats.is_none() {
        return Ok(pair(None, None));
    }
    let step = block_rows(x.cols());
    for start in (0..x.rows()).step_by(step) {
        progress.check()?;
        let rows = start..(start + step).min(x.rows());
        let (p, q) = (a.checkpoint.read_rows(&x.name, rows.clone())?, b.checkpoint.read_rows(&y.name, rows)?);
        equal &= p == q;
        if let Some((fa, fb)) = floats.filter(|_| p != q || x.dtype != y.dtype) {
            sums.add(&fa.to_f32(&p), &fb.to_f32(&q));
        }
        progress.advance(p.len() as u64);
    }
    Ok(match (equal, floats) {
        (true, _) => None,
        (false, Some(_)) => pair(Some(sums.relative()), Some(sums.largest)),
        (false, None) => pair(None, None),
    })
}
