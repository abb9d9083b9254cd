//! Work on the processor or on a GPU, whichever is wished for and there.

use runner::{Cpu, Machine, Place, Wish};
use verify::progress::Progress;
use verify::{Class, Error, Result};

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

    /// Whether something was given out that must not be given out again.
    fn is_out(&self) -> bool {
        false
    }
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
                Err(e) if is_passed_over(wish, &e) && !work.is_out() => {
                    console.warn(&instead(&e));
                    work.on::<Cpu>()
                }
                done => done,
            }
        }
    }
}

/// Does `work` as `wish` says, and on the processor where a GPU that nobody asked for fails. What was finished until then
/// must count, and be the same on both.
///
/// # Errors
/// Those of the work.
pub fn or_on_cpu<T>(wish: Wish, output: &Output, work: impl Fn(Wish) -> Result<T>) -> Result<T> {
    match work(wish) {
        Err(e) if is_passed_over(wish, &e) => {
            output.warning(&instead(&e));
            work(Wish::Cpu)
        }
        done => done,
    }
}

fn is_passed_over(wish: Wish, e: &Error) -> bool {
    wish == Wish::Auto && matches!(e.class(), Class::Gpu | Class::GpuMemory)
}

fn instead(e: &Error) -> String {
    format!("{}: running on the CPU instead", e.what())
}
