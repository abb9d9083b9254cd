//! Runs that are stopped in the middle of calibration, and gone on with.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use verify::Checkpoint;
use verify::progress::{Progress, Silent};
use verify::rewrite::{Options, OutputPlan, Rewrite, run};

/// Asks to stop once so many layers are done, and counts the layers.
struct StopAfter {
    layers: usize,
    done: AtomicUsize,
}

impl Progress for StopAfter {
    fn begin(&self, _: &str, _: u64) {}
    fn advance(&self, _: u64) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }
    fn note(&self, _: &str) {}
    fn stopped(&self) -> bool {
        self.done.load(Ordering::Relaxed) >= self.layers
    }
}

/// Runs `rewrite` over `source` into `out`, stopped after each of the first layers, and then to the end. Layers that were
/// finished are not made again.
pub fn stopped_and_gone_on(source: &Path, rewrite: &dyn Rewrite, out: &Path) {
    let plan = || OutputPlan::new(Checkpoint::open(source).unwrap(), &[rewrite]).unwrap();
    let stop = StopAfter { layers: 1, done: AtomicUsize::new(0) };
    let e = run(&plan(), out, &Options::default(), &stop).unwrap_err();
    assert_eq!(e.class().exit_code(), 130);
    let record = out.join(".prep/stage-0/layer-00000.safetensors");
    let made = std::fs::metadata(&record).unwrap().modified().unwrap();
    // Half a record of the next layer, as a kill leaves it, is none.
    std::fs::write(out.join(".prep/stage-0/layer-00001.safetensors.part"), [1, 2, 3]).unwrap();
    let stop = StopAfter { layers: 2, done: AtomicUsize::new(0) };
    run(&plan(), out, &Options::default(), &stop).unwrap_err();
    assert_eq!(std::fs::metadata(&record).unwrap().modified().unwrap(), made, "layer 0 was made again");
    run(&plan(), out, &Options::default(), &Silent).unwrap();
    assert!(!out.join(".prep").exists());
}
