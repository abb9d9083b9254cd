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
pub use experts::Visited;
pub use isa::Isa;
pub(crate) use product::rows_of;

use std::fmt;
use std::sync::Arc;

use rayon::prelude::*;
use verify::Result;

use crate::backend::{Backend, DeltaInputs, DeltaRule, Heads, Linear, Norm, Routing, Span, SwiGlu};
use crate::weights::{Format, Matrix};
use product::{Job, products};

/// This machine's processor. Work is spread over the rayon pool it is called in.
#[derive(Clone)]
pub struct Cpu {
    isa: Isa,
    watch: Option<Arc<dyn Watch>>,
    elsewhere: Option<Arc<dyn Products>>,
}

impl fmt::Debug for Cpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cpu").field("isa", &self.isa.name()).finish_non_exhaustive()
    }
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

    /// Adds to `out` `[tokens, hidden]` what some experts make of the rows of `x` that visit them.
    ///
    /// # Errors
    /// Where products are computed elsewhere, exit 6.
    pub fn add_experts(&self, x: &Array, experts: &[Visited], out: &mut Array) -> Result<()> {
        experts::add(self, x, experts, out)
    }

    fn products(&self, jobs: &[Job]) -> Result<Vec<Array>> {
        if let Some(watch) = &self.watch {
            jobs.iter().for_each(|job| watch.see(job.w, job.x));
        }
        match jobs.iter().any(|job| input_scale(job).is_some()) {
            false => self.products_of(jobs),
            true => self.products_of_fp8(jobs),
        }
    }

    fn products_of(&self, jobs: &[Job]) -> Result<Vec<Array>> {
        let Some(elsewhere) = &self.elsewhere else { return Ok(products(self.isa, jobs)) };
        let made: Vec<Option<Array>> =
            jobs.par_iter().map(|job| elsewhere.product(job.x, job.w)).collect::<Result<_>>()?;
        let left: Vec<Job> = jobs.iter().zip(&made).filter(|(_, m)| m.is_none()).map(|(j, _)| *j).collect();
        let mut left = products(self.isa, &left).into_iter();
        Ok(made.into_iter().filter_map(|made| made.or_else(|| left.next())).collect())
    }

    /// The products of inputs as a server rounds them: a scale that is too small or far too large shows in the answers.
    fn products_of_fp8(&self, jobs: &[Job]) -> Result<Vec<Array>> {
        // Matrices that read the same input have the same scale, in a sound checkpoint.
        let mut rounded: Vec<(&Array, f32, Array)> = Vec::new();
        let mut places = Vec::with_capacity(jobs.len());
        for job in jobs {
            let place = input_scale(job).map(|scale| {
                let there = rounded.iter().rposition(|(x, s, _)| std::ptr::eq(*x, job.x) && *s == scale);
                there.unwrap_or_else(|| {
                    let mut x = job.x.clone();
                    elementwise::round_to_fp8(&mut x, &[scale]);
                    rounded.push((job.x, scale, x));
                    rounded.len() - 1
                })
            });
            places.push(place);
        }
        let jobs: Vec<Job> = jobs
            .iter()
            .zip(&places)
            .map(|(job, place)| Job { x: place.map_or(job.x, |at| &rounded[at].2), w: job.w })
            .collect();
        self.products_of(&jobs)
    }
}

/// The scale that a server rounds the inputs of this matrix with, where the checkpoint tells it.
fn input_scale(job: &Job) -> Option<f32> {
    match &job.w.format {
        Format::E4m3(scales) => scales.inputs,
        _ => None,
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
        let mut values = Vec::with_capacity(rows.len() * x.cols());
        rows.iter().for_each(|r| values.extend_from_slice(x.row(*r)));
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
        elementwise::add(x.values_mut(), y.values());
        Ok(())
    }

    fn clamp(&self, x: &mut Array, limit: f32) -> Result<()> {
        x.values_mut().iter_mut().for_each(|x| *x = x.clamp(-limit, limit));
        Ok(())
    }

    fn round_to_fp8(&self, x: &mut Array, scales: &[f32]) -> Result<()> {
        elementwise::round_to_fp8(x, scales);
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
    use crate::weights::{Bytes, Scales};

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

    /// An FP8 matrix whose inputs have the scale `inputs`.
    fn layer(salt: usize, inputs: Option<f32>) -> Linear<Cpu> {
        let (rows, cols) = (5, 96);
        let codes = (0..rows * cols).map(|i| ((i * 37 + salt) % 256) as u8 & 0xbe).collect();
        let scales = Scales { values: vec![0.25].into(), block: [rows, cols], across: 1, inputs };
        let format = Format::E4m3(scales);
        Linear {
            weight: Matrix { name: "w".into(), rows, cols, bytes: Bytes::owned(codes), format },
            bias: None,
        }
    }

    #[test]
    fn stored_scales_round_the_inputs_of_their_matrix_and_of_no_other() {
        let values: Vec<f32> = (0..3 * 96).map(|i| ((i * 7919) % 1000) as f32 / 17.0 - 20.0).collect();
        let x = Array::new(3, 96, values.clone());
        // The second scale clips most of what there is.
        let kept = |scale: f32| {
            let code = |x: &f32| verify::codec::e4m3::decode(verify::codec::e4m3::encode(x / scale)) * scale;
            Array::new(3, 96, values.iter().map(code).collect())
        };
        let cpu = Cpu::default();
        let [a, b, c] = [layer(1, Some(0.125)), layer(2, Some(0.01)), layer(3, None)];
        let got = cpu.linear(&x, [&a, &b, &c]).unwrap();
        let plain = |x: &Array, salt: usize| cpu.linear(x, [&layer(salt, None)]).unwrap()[0].clone();
        assert_eq!(got, [plain(&kept(0.125), 1), plain(&kept(0.01), 2), plain(&x, 3)]);
        assert_ne!(got[0], plain(&x, 1));
    }

    #[test]
    fn heads_are_rounded_with_scales_of_their_own() {
        let mut x = Array::new(2, 4, vec![0.3, 1000.0, 0.3, 1000.0, -0.3, 9.0, -0.3, 9.0]);
        Cpu::default().round_to_fp8(&mut x, &[1.0, 10.0]).unwrap();
        // Below 2^-6 scales the steps are 2^-9 scales.
        let want = [0.3125, 448.0, 0.29296875, 960.0, -0.3125, 9.0, -0.29296875, 8.75];
        assert_eq!(x.values(), want);
        Cpu::default().round_to_fp8(&mut x, &[0.5]).unwrap();
        assert_eq!(x.values()[..4], [0.3125, 224.0, 0.28125, 224.0]);
    }
}
