//! Work on the processor or on a GPU, whichever is wished for and there.

use runner::{Cpu, Machine, Place, Wish};
use verify::progress::Progress;
use verify::{Class, Result};

use crate::output::Output;

/// Work that can be done on any machine.
pub trait Work {
    /// What comes of it.
    type Out;
    /// Does it there.
    ///
    /// # Errors
    /// Its own, and the machine's.
    fn on<M: Machine>(&self) -> Result<Self::Out>;
}

/// Does `work` where `wish` says. A GPU that nobody asked for and that cannot do it is passed over.
///
/// # Errors
/// Exit 6 where a GPU was asked for and cannot be used; and those of the work.
pub fn run<W: Work>(wish: Wish, console: &dyn Progress, work: &W) -> Result<W::Out> {
    match wish.place()? {
        Place::Cpu => work.on::<Cpu>(),
        Place::Cuda(gpu) => {
            console.note(&format!("running on GPU {}, {}", gpu.ordinal, gpu.name));
            match work.on::<runner::cuda::Cuda>() {
                Err(e) if wish == Wish::Auto && matches!(e.class(), Class::Gpu | Class::GpuMemory) => {
                    console.warn(&format!("{}: running on the CPU instead", e.what()));
                    work.on::<Cpu>()
                }
                done => done,
            }
        }
    }
}

/// Does `work` as `wish` says, and on the processor where a GPU that nobody asked for turns out to be too small. What was
/// finished until then must count, and be the same on both.
///
/// # Errors
/// Those of the work.
pub fn or_on_cpu<T>(wish: Wish, output: &Output, work: impl Fn(Wish) -> Result<T>) -> Result<T> {
    match work(wish) {
        Err(e) if wish == Wish::Auto && e.class() == Class::GpuMemory => {
            output.warning(&format!("{}: computing on the CPU instead", e.what()));
            work(Wish::Cpu)
        }
        done => done,
    }
}
