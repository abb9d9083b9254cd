//! `cargo run --release -p quant --example awq_error -- FOLDER CALIB.json EVAL.json`: quantizes with AWQ in some ways
//! and prints how far each result is from its source.
#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used)]

#[path = "../tests/support/error.rs"]
mod error;

use std::path::Path;
use std::time::Instant;

use quant::Awq;
use quant::awq::{Clip, Experts, Rounding};
use quant::calibration::data::Samples;
use verify::Checkpoint;
use verify::progress::Silent;
use verify::rewrite::{Options, OutputPlan, run};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (source, calib, eval) = (Path::new(&args[0]), Path::new(&args[1]), Path::new(&args[2]));
    let samples = Samples::of(error::tokens(calib));
    let eval = error::tokens(eval);
    let base = Awq::new(samples);
    let ways = [
        ("round to nearest", Awq { samples: Samples::of(vec![vec![1]]), clip: Clip::Off, ..base.clone() }),
        ("nearest no clip", Awq { clip: Clip::Off, rounding: Rounding::Nearest, ..base.clone() }),
        ("nearest", Awq { rounding: Rounding::Nearest, ..base.clone() }),
        ("no clip", Awq { clip: Clip::Off, ..base.clone() }),
        ("default", base.clone()),
        ("routed", Awq { experts: Experts::Routed, ..base.clone() }),
    ];
    for (name, awq) in ways {
        if std::env::var("ONLY").is_ok_and(|o| !o.split(',').any(|o| o == name)) {
            continue;
        }
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        let started = Instant::now();
        let plan = OutputPlan::new(Checkpoint::open(source).unwrap(), &[&awq]).unwrap();
        let done = run(&plan, &out, &Options::default(), &Silent).unwrap();
        let seconds = started.elapsed().as_secs_f64();
        if std::env::var("SHOW").is_ok() {
            for l in done.report.stages[0].details["layers"].as_array().unwrap() {
                for p in l["pairs"].as_array().unwrap() {
                    println!(
                        "   {} {} {} -> {}",
                        p["from"], p["chosen"], p["error_before"], p["error_after"]
                    );
                }
            }
        }
        let d = error::distance(source, &out, &eval);
        println!(
            "{name:18} {seconds:6.1} s  relative {:.5}  KL {:.5}  top-1 {:.4}",
            d.relative, d.kl, d.top1
        );
    }
}
