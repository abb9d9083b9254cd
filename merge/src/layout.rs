//! The units of the stage: the base's shard plan and tensor order are kept.

use std::collections::BTreeMap;

use verify::checkpoint::TensorSpec;
use verify::rewrite::{Built, ModelView, StageBuilder, UnitKind};
use verify::{FileName, Result};

use crate::compute::job::Job;
use crate::fp8::{Fp8Base, WRITTEN};
use crate::resolve::embeddings::{Embeddings, Tying};
use crate::resolve::target::Target;

/// Where the units go.
pub struct Layout<'a> {
    /// The base as it is stored.
    pub stored: &'a ModelView,
    /// The base as it is read.
    pub input: &'a ModelView,
    /// What becomes of tied embeddings.
    pub tying: Tying,
    /// Input and output embedding.
    pub embeddings: Embeddings,
}

/// Jobs by unit; `None` for copies.
pub type Jobs = Vec<Option<Job>>;

impl Layout<'_> {
    /// Lays the units out: every base tensor in its place, changed or copied; a new head at the end.
    pub fn build(
        self,
        mut targets: BTreeMap<String, Target>,
        fp8: Option<&Fp8Base>,
    ) -> Result<(Built, Jobs)> {
        let mut builder = StageBuilder::new(self.stored);
        let mut jobs: Vec<(usize, Job)> = Vec::new();
        let mut add = |builder: &mut StageBuilder<'_>, mut job: Job, shard: usize| {
            let base = job.base.name.clone();
            if fp8.is_some_and(|f| f.is_fp8(&base)) {
                job.output.dtype = WRITTEN;
            }
            let rows = (job.output.rows(), job.step());
            let reads = fp8.map_or(vec![base.as_str()], |f| f.reads(&base));
            let unit = builder.compute(shard, vec![job.output.clone()], rows, &reads);
            jobs.push((unit, job));
        };
        for tensor in self.input.tensors.tensors() {
            let name = &tensor.spec.name;
            match targets.remove(name) {
                Some(target) => add(&mut builder, target.job, tensor.shard),
                None if fp8.is_some_and(|f| f.is_fp8(name)) => {
                    add(&mut builder, Target::new(name, &tensor.spec)?.job, tensor.shard);
                }
                None => builder.copy(tensor),
            }
        }
        let shards: Vec<FileName> = self.input.tensors.shards().to_vec();
        let new_head = self.tying == Tying::Untied && self.embeddings.own_head.is_none();
        let (head, last) = (&self.embeddings.head, shards.len().saturating_sub(1));
        match (new_head, targets.remove(head), &self.embeddings.input) {
            (true, Some(target), _) => add(&mut builder, target.job, last),
            (true, None, Some(input)) => {
                let output = TensorSpec::new(head, input.dtype, input.shape.clone());
                builder.copy_as(output, last, UnitKind::Copy { from: input.name.clone(), first_row: 0 });
            }
            _ => {}
        }
        for name in fp8.into_iter().flat_map(|f| &f.dropped) {
            builder.drop(name, "the weight that it belongs to is written in bf16");
        }
        let built = builder.finish(shards)?;
        let mut by_unit: Jobs = built.units.iter().map(|_| None).collect();
        for (unit, job) in jobs {
            by_unit[built.renumber[unit]] = Some(job);
        }
        Ok((built, by_unit))
    }
}
