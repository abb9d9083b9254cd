//! What is kept of the inputs of a layer's matrices, and of its keys and values, while samples go through.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use runner::Cpu;
use runner::cpu::{Array, Watch};
use runner::weights::Matrix;
use verify::{Error, Result, Shown};

use super::engine::Engine;
use super::moments::Moments;

/// Keeps the inputs of some modules, one call's rows after the other's.
pub struct Keep(HashMap<String, Mutex<Option<Array>>>);

impl Keep {
    /// Of these modules, nothing yet.
    pub fn of(names: Vec<String>) -> Arc<Self> {
        Arc::new(Keep(names.into_iter().map(|n| (n, Mutex::default())).collect()))
    }

    /// What went in.
    ///
    /// # Errors
    /// Exit 3 where nothing did.
    pub fn taken(&self, name: &str) -> Result<Array> {
        let taken = self.0.get(name).and_then(|kept| kept.lock().ok()?.take());
        taken.ok_or_else(|| Error::input(format!("module `{}` was not reached", Shown(name))))
    }
}

impl Watch for Keep {
    fn see(&self, matrix: &Matrix, x: &Array) {
        if let Some(Ok(mut kept)) = self.0.get(&*matrix.name).map(Mutex::lock) {
            let mut values = kept.take().map_or_else(Vec::new, Array::into_values);
            values.extend_from_slice(x.values());
            *kept = Some(Array::new(values.len() / x.cols().max(1), x.cols(), values));
        }
    }
}

/// Sums up the inputs of some modules.
pub struct Sums {
    cpu: Cpu,
    engine: Engine,
    group: usize,
    /// The first failure instead, once there is one.
    by: HashMap<String, Mutex<Option<Result<Moments>>>>,
    /// Of cached keys.
    pub keys: Columns,
    /// Of cached values.
    pub values: Columns,
}

impl Sums {
    /// Of these modules, nothing yet; columns go together in groups of `group`.
    pub fn of(names: Vec<String>, (cpu, engine): (&Cpu, &Engine), group: usize) -> Self {
        let by = names.into_iter().map(|n| (n, Mutex::default())).collect();
        let (cpu, engine) = (cpu.clone(), engine.clone());
        Sums { cpu, engine, group, by, keys: Columns::default(), values: Columns::default() }
    }

    /// The modules that were reached, or why one of them could not be summed up.
    pub fn taken(&self) -> Vec<(String, Result<Moments>)> {
        let each = self.by.iter();
        each.filter_map(|(name, m)| Some((name.clone(), m.lock().ok()?.take()?))).collect()
    }
}

impl Watch for Sums {
    fn see(&self, matrix: &Matrix, x: &Array) {
        if let Some(Ok(mut sums)) = self.by.get(&*matrix.name).map(Mutex::lock) {
            let summed = sums.get_or_insert_with(|| Ok(Moments::new(matrix.cols, self.group)));
            if let Ok(moments) = summed
                && let Err(e) = self.engine.add(&self.cpu, moments, x)
            {
                *summed = Err(e);
            }
        }
    }

    fn see_cached(&self, k: &Array, v: &Array) {
        self.keys.add(k);
        self.values.add(v);
    }
}

/// The largest size of each column.
#[derive(Default)]
pub struct Columns(Mutex<Vec<f32>>);

impl Columns {
    fn add(&self, x: &Array) {
        let mut largest = self.0.lock().unwrap_or_else(|p| p.into_inner());
        largest.resize(x.cols(), 0.0);
        for row in x.each_row() {
            // As bits, NaN and infinity are larger than all others.
            largest
                .iter_mut()
                .zip(row)
                .for_each(|(l, x)| *l = f32::from_bits(l.to_bits().max(x.abs().to_bits())));
        }
    }

    /// The largest of all columns, each divided by what stands in `by`; NaN where there is one.
    pub fn largest(&self, by: Option<&[f32]>) -> f32 {
        let columns = self.0.lock().unwrap_or_else(|p| p.into_inner());
        let divided = columns.iter().enumerate().map(|(c, largest)| largest / by.map_or(1.0, |by| by[c]));
        divided.fold(0.0, |most: f32, x| if x <= most || most.is_nan() { most } else { x })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn largest_is_that_of_the_divided_columns_and_nan_stays() {
        let columns = Columns::default();
        columns.add(&Array::new(2, 3, vec![1.0, -8.0, 2.0, -3.0, 4.0, 0.5]));
        assert_eq!(columns.largest(None), 8.0);
        assert_eq!(columns.largest(Some(&[0.5, 4.0, 1.0])), 6.0);
        columns.add(&Array::new(1, 3, vec![f32::NAN, 1.0, 9.0]));
        assert!(columns.largest(None).is_nan());
    }
}
