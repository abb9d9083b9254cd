//! What calibration holds in memory: a layer or two and the hidden states, however many layers there are.
#![allow(clippy::unwrap_used)]

#[path = "support/random_moe.rs"]
mod random_moe;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use quant::calibration::data::Samples;
use quant::{Activations, Awq, Fp8, KvCache, Scheme};
use random_moe::Sizes;
use verify::Checkpoint;
use verify::progress::Silent;
use verify::rewrite::{Options, OutputPlan, Rewrite, run};

/// Counts the bytes that are held.
struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        MOST.fetch_max(HELD.fetch_add(layout.size(), Relaxed) + layout.size(), Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const SAMPLES: usize = 16;
const LEN: usize = 64;
const SHAPE: Sizes = Sizes {
    hidden: 256,
    experts: 64,
    chosen: 4,
    inter: 256,
    queries: 4,
    pairs: 2,
    dim: 64,
    vocab: 256,
    layers: 0,
};
/// Bytes of a layer's weights; its attention is small beside its experts.
const LAYER: usize = SHAPE.experts * 3 * SHAPE.inter * SHAPE.hidden * 2;
const HIDDEN: usize = SAMPLES * LEN * SHAPE.hidden * 4;

/// The most bytes held, and what the plan had said, while a model of `layers` layers is rewritten.
fn most(layers: usize, stage: &dyn Rewrite) -> [usize; 2] {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    std::fs::create_dir(&source).unwrap();
    Sizes { layers, ..SHAPE }.write(&source);
    let plan = OutputPlan::new(Checkpoint::open(&source).unwrap(), &[stage]).unwrap();
    let before = HELD.load(Relaxed);
    MOST.store(before, Relaxed);
    run(&plan, &dir.path().join("out"), &Options { threads: 2, ..Options::default() }, &Silent).unwrap();
    let folder = std::fs::read_dir(dir.path().join("out")).unwrap();
    let written: u64 = folder.map(|f| f.unwrap().metadata().unwrap().len()).sum();
    assert!(plan.work_bytes() < written, "records are no larger than what becomes of them");
    [MOST.load(Relaxed) - before, plan.peak_bytes(2) as usize]
}

fn samples() -> Samples {
    let token = |s: usize, i: usize| ((s * 31 + i * 7) % SHAPE.vocab) as u32;
    Samples::of((0..SAMPLES).map(|s| (0..LEN).map(|i| token(s, i)).collect()).collect())
}

/// One test, for what others hold would count.
#[test]
fn calibration_holds_two_layers_and_the_hidden_states_however_many_layers_there_are() {
    let awq = Awq { cache: KvCache::Fp8, ..Awq::new(samples()) };
    let fp8 = Fp8 {
        scheme: Scheme::Tensor,
        activations: Activations::Static,
        cache: KvCache::Fp8,
        samples: samples(),
        ..Fp8::default()
    };
    for (name, stage) in [("awq", &awq as &dyn Rewrite), ("fp8", &fp8)] {
        let ([two, _], [four, said]) = (most(2, stage), most(4, stage));
        println!("{name}: {two} bytes with two layers, {four} with four; {LAYER} bytes a layer");
        assert!(four < said, "{name}: {four} bytes, the plan said {said}");
        assert!(four < two + LAYER / 4, "{name}: {two} bytes with two layers, {four} with four");
        assert!(four < 2 * LAYER + HIDDEN, "{name}: {four} bytes, a layer has {LAYER}");
    }
}
