//! The CPU backend: f32 activations, weights read where they lie, every sum in an order that neither the other
//! rows of a step nor the number of threads nor the instruction set can change.

mod array;
mod attention;
mod delta;
mod elementwise;
mod experts;
pub mod isa;
mod product;

pub use array::Array;
pub use attention::Kv;
pub use delta::DeltaState;
pub use isa::Isa;
pub(crate) use product::rows_of;

use std::sync::Arc;

use rayon::prelude::*;
use verify::Result;

use crate::backend::{Backend, DeltaInputs, DeltaRule, Heads, Linear, Norm, Routing, Span, SwiGlu};
use crate::weights::Matrix;
use product::{Job, products};

/// This machine's processor. Work is spread over the rayon pool it is called in.
#[derive(Clone)]
pub struct Cpu {
    isa: Isa,
    watch: Option<Arc<dyn Watch>>,
    elsewhere: Option<Arc<dyn Products>>,
}

/// Computes products elsewhere, with the bits that this processor gives.
pub trait Products: Send + Sync {
    /// `x W^T` `[tokens, out]`; `None` where the processor is as fast, or no other can.
    ///
    /// # Errors
    /// The machine's.
    fn product(&self, x: &Array, w: &Matrix) -> Result<Option<Array>>;
}

/// Sees what goes into every matrix, for calibration.
pub trait Watch: Send + Sync {
    /// `x` `[tokens, in]` is about to be multiplied with `matrix`, whose name is the path of its module (experts by
    /// number whatever the layout). An expert sees only its own tokens.
    fn see(&self, matrix: &Matrix, x: &Array);

    /// `k` and `v` `[tokens, pairs * dim]`, as they go into the cache, are about to be attended to.
    fn see_cached(&self, k: &Array, v: &Array) {
        let _ = (k, v);
    }
}

impl Cpu {
    /// On one instruction set; all of them give the same bits.
    pub fn new(isa: Isa) -> Self {
        Cpu { isa, watch: None, elsewhere: None }
    }

    /// Shows `watch` the inputs of every matrix from now on.
    pub fn watched(self, watch: Arc<dyn Watch>) -> Self {
        Cpu { watch: Some(watch), ..self }
    }

    /// Has products computed by `elsewhere` where it can.
    pub fn with_products(self, elsewhere: Arc<dyn Products>) -> Self {
        Cpu { elsewhere: Some(elsewhere), ..self }
    }

    /// The instruction set.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// For each expert the tokens that the logits `router` `[tokens, experts]` send to it, with their weights.
    pub fn visits(&self, router: &Array, routing: Routing) -> Vec<Vec<(usize, f32)>> {
        experts::visits(self.isa, router, routing)
    }

    fn products(&self, jobs: &[Job]) -> Result<Vec<Array>> {
        if let Some(watch) = &self.watch {
            jobs.iter().for_each(|job| watch.see(job.w, job.x));
        }
        let Some(elsewhere) = &self.elsewhere else { return Ok(products(self.isa, jobs)) };
        let made: Vec<Option<Array>> =
            jobs.par_iter().map(|job| elsewhere.product(job.x, job.w)).collect::<Result<_>>()?;
        let left: Vec<Job> = jobs.iter().zip(&made).filter(|(_, m)| m.is_none()).map(|(j, _)| *j).collect();
        let mut left = products(self.isa, &left).into_iter();
        Ok(made.into_iter().filter_map(|made| made.or_else(|| left.next())).collect())
    }
}

impl Default for Cpu {
    fn default() -> Self {
        Cpu::new(Isa::best())
    }
}

impl Backend for Cpu {
    type Tensor = Array;
    type Matrix = Matrix;
    type Experts = Vec<SwiGlu<Self>>;
    type Kv = Kv;
    type Delta = DeltaState;

    const MIXES: bool = true;

    fn matrix(&self, matrix: Matrix) -> Result<Matrix> {
        Ok(matrix)
    }

    fn experts_of(&self, experts: Vec<[Matrix; 3]>) -> Result<Vec<SwiGlu<Self>>> {
        let plain = |weight| Linear { weight, bias: None };
        let one = |all: [Matrix; 3]| {
            let [gate, up, down] = all.map(plain);
            SwiGlu { gate, up, down }
        };
        Ok(experts.into_iter().map(one).collect())
    }

    fn tensor(&self, [rows, cols]: [usize; 2], values: Vec<f32>) -> Result<Array> {
        Ok(Array::new(rows, cols, values))
    }

    fn to_host(&self, x: &Array) -> Result<Vec<f32>> {
        Ok(x.values().to_vec())
    }

    fn new_kv(&self, heads: Heads) -> Result<Kv> {
        Ok(Kv::new(heads))
    }

    fn new_delta(&self, rule: &DeltaRule<Self>) -> Result<DeltaState> {
        Ok(DeltaState::new(rule))
    }

    fn copy_kv(&self, kv: &Kv) -> Result<Kv> {
        Ok(kv.clone())
    }

    fn copy_delta(&self, state: &DeltaState) -> Result<DeltaState> {
        Ok(state.clone())
    }

    fn embed(&self, table: &Matrix, tokens: &[u32]) -> Result<Array> {
        Ok(product::rows_of(self.isa, table, tokens))
    }

    fn rows(&self, x: &Array, rows: &[usize]) -> Result<Array> {
        let values = rows.iter().flat_map(|r| x.row(*r)).copied().collect();
        Ok(Array::new(rows.len(), x.cols(), values))
    }

    fn columns(&self, x: &Array, columns: &[usize]) -> Result<Array> {
        let values = x.each_row().flat_map(|row| columns.iter().map(|c| row[*c])).collect();
        Ok(Array::new(x.rows(), columns.len(), values))
    }

    fn linear<const N: usize>(&self, x: &Array, layers: [&Linear<Self>; N]) -> Result<[Array; N]> {
        let jobs: Vec<Job> = layers.iter().map(|l| Job { x, w: &l.weight }).collect();
        let mut results = self.products(&jobs)?.into_iter();
        Ok(layers.map(|layer| {
            let mut y = results.next().unwrap_or_default();
            if let Some(bias) = &layer.bias {
                elementwise::add_bias(&mut y, bias);
            }
            y
        }))
    }

    fn norm(&self, x: &Array, norm: &Norm<Self>) -> Result<Array> {
        Ok(elementwise::rms_norm(self.isa, x, norm.weight.values(), norm.eps))
    }

    fn add(&self, x: &mut Array, y: &Array) -> Result<()> {
        x.values_mut().iter_mut().zip(y.values()).for_each(|(x, y)| *x += y);
        Ok(())
    }

    fn clamp(&self, x: &mut Array, limit: f32) -> Result<()> {
        x.values_mut().iter_mut().for_each(|x| *x = x.clamp(-limit, limit));
        Ok(())
    }

    fn gate(&self, x: &mut Array, gate: &Array) -> Result<()> {
        elementwise::gate(self.isa, x, gate);
        Ok(())
    }

    fn swiglu(&self, mut gate: Array, up: &Array) -> Result<Array> {
        elementwise::swiglu(self.isa, gate.values_mut(), up.values());
        Ok(gate)
    }

    fn rotate(&self, x: &mut Array, dim: usize, angles: &Array) -> Result<()> {
        elementwise::rotate(x, dim, angles);
        Ok(())
    }

    fn attention(
        &self,
        qkv: [Array; 3],
        heads: Heads,
        spans: &[Span],
        caches: Vec<&mut Kv>,
    ) -> Result<Array> {
        if let Some(watch) = &self.watch {
            watch.see_cached(&qkv[1], &qkv[2]);
        }
        Ok(attention::attend(self.isa, qkv, heads, spans, caches))
    }

    fn delta_rule(
        &self,
        inputs: DeltaInputs<Array>,
        rule: &DeltaRule<Self>,
        spans: &[Span],
        states: Vec<&mut DeltaState>,
    ) -> Result<Array> {
        Ok(delta::delta_rule(self.isa, inputs, rule, spans, states))
    }

    fn experts(
        &self,
        x: &Array,
        router: &Array,
        routing: Routing,
        experts: &Vec<SwiGlu<Self>>,
    ) -> Result<Array> {
        experts::mix(self, x, router, routing, experts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::{Bytes, Format};

    /// Computes only for matrices of two rows, and gives what nobody else would.
    struct Two;

    impl Products for Two {
        fn product(&self, x: &Array, w: &Matrix) -> Result<Option<Array>> {
            Ok((w.rows == 2).then(|| Array::new(x.rows(), 2, vec![-1.0; x.rows() * 2])))
        }
    }

    #[test]
    fn products_computed_elsewhere_stand_where_they_belong() {
        let ones = |rows: usize| Linear::<Cpu> {
            weight: Matrix {
                name: "w".into(),
                rows,
                cols: 3,
                bytes: Bytes::owned(1f32.to_le_bytes().repeat(3 * rows)),
                format: Format::F32,
            },
            bias: None,
        };
        let cpu = Cpu::default().with_products(Arc::new(Two));
        let x = Array::new(1, 3, vec![1.0, 2.0, 3.0]);
        let y = cpu.linear(&x, [&ones(1), &ones(2), &ones(3), &ones(2)]).unwrap();
        assert_eq!(y.map(|y| y.values().to_vec()), [vec![6.0], vec![-1.0; 2], vec![6.0; 3], vec![-1.0; 2]]);
    }
}
