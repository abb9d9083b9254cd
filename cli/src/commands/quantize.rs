//! `prep quantize`: a model in fewer bits.

use std::path::Path;
use std::sync::Arc;

use quant::awq::{Engine, Layout};
use quant::calibration::data::{DataOptions, Samples};
use quant::{Activations, Awq, Coder, Fp8, Pattern, Tails};
use runner::cuda::awq::AwqEngine;
use runner::cuda::fp8::Fp8Coder;
use runner::{Place, Wish};
use verify::checkpoint::folder::REPORT;
use verify::codec::Dequantize;
use verify::report::Report;
use verify::rewrite::Rewrite;
use verify::{Error, Result, Shown};

use super::rewrite::{Job, whole};
use super::verify::{outside, write_report};
use crate::args::{Clip, Experts, Global, Packing, Quantize, Rounding, Scheme};
use crate::machine::or_on_cpu;
use crate::output::Output;

pub fn run(args: &Quantize, global: &Global, output: &Output) -> Result<u8> {
    if let Some(page) = &args.report {
        // A page that cannot be written must not cost the run.
        outside(page, &args.out)?;
        outside(page, &args.model)?;
    }
    let code = or_on_cpu(args.on.wish(), output, |wish| match args.awq {
        true => rewrite(args, &awq(args, wish)?, global, output),
        false => rewrite(args, &fp8(args, wish)?, global, output),
    })?;
    if let Some(page) = &args.report {
        write_page(page, &args.out)?;
    }
    Ok(code)
}

/// What calibration found, as a page, from the report of the finished folder.
fn write_page(path: &Path, out: &Path) -> Result<()> {
    let report = Report::read(out);
    let stage = report.iter().flat_map(|r| &r.stages).find(|s| s.name == "quantize");
    let details = stage.map(|s| &s.details).ok_or_else(|| {
        Error::input(format!("{} says nothing of quantizing", Shown::path(&out.join(REPORT))))
    })?;
    let bits = details["bits_per_weight"].as_f64().map(|b| ("bits a weight", format!("{b:.2}")));
    let size: u64 = report.iter().flat_map(|r| &r.outputs).map(|f| f.len).sum();
    let facts: Vec<_> = bits.into_iter().chain([("size", crate::console::size(size))]).collect();
    let title = out.file_name().map_or("model".into(), |n| n.to_string_lossy());
    let page = quant::report::page(&title, &facts, &quant::report::Calibration::of_details(details));
    write_report(path, &page)
}

fn fp8(args: &Quantize, wish: Wish) -> Result<Fp8> {
    let mut quantize = stage(args.scheme, &args.ignore)?;
    quantize.activations = match (args.kv_cache, args.static_activations) {
        (true, _) => Activations::StaticCache,
        (false, true) => Activations::Static,
        (false, false) => Activations::Dynamic,
    };
    quantize.coder = coder(wish, args.dry_run)?;
    if args.quantize_tails {
        quantize.tails = Tails::QuantizeUnfused;
    }
    Ok(quantize)
}

fn awq(args: &Quantize, wish: Wish) -> Result<Awq> {
    if args.parts.part.is_some() {
        return Err(Error::usage("--awq cannot be done in parts").found("--part").hint(
            "calibration walks through all layers in order; an interrupted run continues where it stopped",
        ));
    }
    let i = &args.integers;
    let options = DataOptions { samples: i.samples, seq_len: i.seq_len, ..DataOptions::default() };
    let samples = Samples::read(i.calibration.as_deref(), &args.model, &options)?;
    Ok(Awq {
        layout: layout(i.format),
        bits: i.bits,
        group: i.group_size,
        symmetric: i.symmetric,
        clip: match i.clip {
            Clip::Off => quant::awq::Clip::Off,
            Clip::Search => quant::awq::Clip::Search,
        },
        rounding: match i.rounding {
            Rounding::Nearest => quant::awq::Rounding::Nearest,
            Rounding::Descent => quant::awq::Rounding::Descent,
        },
        experts: match i.experts {
            Experts::All => quant::awq::Experts::All,
            Experts::Routed => quant::awq::Experts::Routed,
        },
        ignore: patterns(&args.ignore)?,
        engine: engine(wish, args.dry_run)?,
        ..Awq::new(samples)
    })
}

fn rewrite(args: &Quantize, quantize: &dyn Rewrite, global: &Global, output: &Output) -> Result<u8> {
    let stages: Vec<&dyn Rewrite> = match args.from_quantized {
        true => vec![&Dequantize, quantize],
        false => vec![quantize],
    };
    let inputs = args.integers.calibration.iter().cloned().collect();
    let job = Job { base: &args.model, stages, inputs, out: &args.out, parts: args.parts };
    let out = args.out.display();
    let next = format!("prep template embed {out}, then prep verify {out} --parser NAME");
    whole(&job, args.dry_run, &next, global, output)
}

/// The rewrite that quantizes as asked for.
pub fn stage(scheme: Scheme, ignore: &[String]) -> Result<Fp8> {
    let scheme = match scheme {
        Scheme::Block => quant::Scheme::Block,
        Scheme::Channel => quant::Scheme::Channel,
        Scheme::Tensor => quant::Scheme::Tensor,
        Scheme::CompressedBlock => quant::Scheme::CompressedBlock,
    };
    Ok(Fp8 { scheme, ignore: patterns(ignore)?, ..Fp8::default() })
}

/// Who computes codes. A plan needs nobody.
///
/// # Errors
/// Exit 6 where a GPU was asked for and cannot be used.
pub fn coder(wish: Wish, dry_run: bool) -> Result<Coder> {
    match wish.place()? {
        Place::Cuda(gpu) if !dry_run => Ok(Coder::Cuda(Arc::new(Fp8Coder::open(gpu.ordinal)?))),
        _ => Ok(Coder::Cpu),
    }
}

/// Who does the heavy sums of AWQ. A plan needs nobody.
///
/// # Errors
/// As [`coder`].
pub fn engine(wish: Wish, dry_run: bool) -> Result<Engine> {
    match wish.place()? {
        Place::Cuda(gpu) if !dry_run => Ok(Engine::Cuda(Arc::new(AwqEngine::open(gpu.ordinal)?))),
        _ => Ok(Engine::Cpu),
    }
}

/// How the weights of a format lie.
pub fn layout(packing: Packing) -> Layout {
    match packing {
        Packing::CompressedTensors => Layout::PackQuantized,
        Packing::Autoawq => Layout::AwqGemm,
    }
}

/// Modules to leave in 16 bit.
pub fn patterns(ignore: &[String]) -> Result<Vec<Pattern>> {
    ignore.iter().map(|p| Pattern::parse(p)).collect()
}
