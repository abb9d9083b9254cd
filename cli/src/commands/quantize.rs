//! `prep quantize`: a model in fewer bits.

use std::path::Path;
use std::sync::Arc;

use quant::awq::{Engine, Layout};
use quant::calibration::data::{DataOptions, Samples};
use quant::{Activations, Awq, Coder, Fp8, NonFinite, Pattern, Tails};
use runner::cuda::awq::AwqEngine;
use runner::cuda::fp8::Fp8Coder;
use runner::{Place, Wish};
use verify::checkpoint::folder::REPORT;
use verify::codec::Dequantize;
use verify::names::folder_name;
use verify::report::Report;
use verify::rewrite::Rewrite;
use verify::{Error, Result, Shown};

use super::folder_of;
use super::rewrite::{Job, whole};
use super::verify::{outside, write_report};
use crate::args::{Clip, Experts, Global, KvCache, Packing, Quantize, Rounding, Scheme};
use crate::machine::or_on_cpu;
use crate::output::Output;

pub fn run(args: &Quantize, global: &Global, output: &Output) -> Result<u8> {
    folder_of(&args.model)?;
    check_calibration(args)?;
    if let Some(page) = &args.report {
        // A page that cannot be written must not cost the run.
        if page.extension().is_none_or(|kind| kind != "html") {
            return Err(Error::usage(format!("{} is no page", Shown::path(page)))
                .expected("a name that ends with .html")
                .hint("prep-report.json in the output folder holds the same figures"));
        }
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

/// Options that only mean something where something is calibrated, and one that does not go with it.
fn check_calibration(args: &Quantize) -> Result<()> {
    let c = &args.calibration;
    let inputs = args.awq || args.static_activations;
    let given = [
        ("--experts", c.experts.is_some() && !inputs),
        ("--calibration", c.calibration.is_some()),
        ("--samples", c.samples.is_some()),
        ("--seq-len", c.seq_len.is_some()),
        ("--report", args.report.is_some()),
    ];
    let given = given.into_iter().find(|(_, given)| *given).map(|(flag, _)| flag);
    match (inputs || args.kv_cache.is_some(), given, args.parts.part) {
        (false, Some(flag), _) | (_, Some(flag @ "--experts"), _) => {
            Err(Error::usage(format!("{flag} is for what is calibrated")).found("nothing that it means something to")
                .expected("--awq, --static-activations or --kv-cache (which needs no --experts)")
                .hint("FP8 weights alone need no data"))
        }
        (true, _, Some(_)) => Err(Error::usage("what is calibrated cannot be done in parts").found("--part").hint(
            "calibration walks through all layers in order; an interrupted run continues where it stopped",
        )),
        _ => Ok(()),
    }
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
    let loss = details["relative_rms"].as_f64().map(|e| ("relative error of the weights", format!("{e:.4}")));
    let facts: Vec<_> = bits.into_iter().chain(loss).chain([("size", crate::console::size(size))]).collect();
    let page =
        quant::report::page(&folder_name(out), &facts, &quant::report::Calibration::of_details(details));
    write_report(path, &page)
}

fn fp8(args: &Quantize, wish: Wish) -> Result<Fp8> {
    let scales = Scales { inputs: args.static_activations, cache: args.kv_cache };
    let mut quantize = stage(args.scheme, scales, &args.ignore)?;
    quantize.coder = coder(wish, args.dry_run)?;
    quantize.nonfinite = nonfinite(args.allow_nonfinite);
    if args.quantize_tails {
        quantize.tails = Tails::QuantizeUnfused;
    }
    if quantize.calibrates() {
        quantize.walker = engine(wish, args.dry_run)?.cpu();
        quantize.experts = experts(args.calibration.experts);
        quantize.samples = samples(args)?;
    }
    Ok(quantize)
}

fn samples(args: &Quantize) -> Result<Samples> {
    let c = &args.calibration;
    Samples::read(c.calibration.as_deref(), &args.model, &data_options(c.samples, c.seq_len))
}

/// How much data.
pub fn data_options(samples: Option<usize>, seq_len: Option<usize>) -> DataOptions {
    let defaults = DataOptions::default();
    DataOptions {
        samples: samples.unwrap_or(defaults.samples),
        seq_len: seq_len.unwrap_or(defaults.seq_len),
        ..defaults
    }
}

/// Which tokens an expert sees.
pub fn experts(asked: Option<Experts>) -> quant::Experts {
    match asked {
        None | Some(Experts::All) => quant::Experts::All,
        Some(Experts::Routed) => quant::Experts::Routed,
    }
}

/// What becomes of modules that no scale fits.
pub fn nonfinite(allowed: bool) -> NonFinite {
    if allowed { NonFinite::Keep } else { NonFinite::Refuse }
}

/// How keys and values are cached.
pub fn kv_cache(asked: Option<KvCache>) -> quant::KvCache {
    match asked {
        None => quant::KvCache::Bits16,
        Some(KvCache::Fp8) => quant::KvCache::Fp8,
    }
}

fn awq(args: &Quantize, wish: Wish) -> Result<Awq> {
    let i = &args.integers;
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
        experts: experts(args.calibration.experts),
        cache: kv_cache(args.kv_cache),
        ignore: patterns(&args.ignore)?,
        nonfinite: nonfinite(args.allow_nonfinite),
        engine: engine(wish, args.dry_run)?,
        ..Awq::new(samples(args)?)
    })
}

fn rewrite(args: &Quantize, quantize: &dyn Rewrite, global: &Global, output: &Output) -> Result<u8> {
    let stages: Vec<&dyn Rewrite> = match args.from_quantized {
        true => vec![&Dequantize, quantize],
        false => vec![quantize],
    };
    let inputs = args.calibration.calibration.iter().cloned().collect();
    let Quantize { parts, rewriting, .. } = *args;
    let job = Job { base: &args.model, stages, inputs, out: &args.out, parts, rewriting };
    let out = args.out.display();
    let next = format!("prep template embed {out}, then prep verify {out} --parser NAME");
    whole(&job, args.dry_run, &next, global, output)
}

/// Which scales of what flows through the model are calibrated.
#[derive(Debug, Clone, Copy)]
pub struct Scales {
    /// Those of what goes into matrices.
    pub inputs: bool,
    /// Those of cached keys and values.
    pub cache: Option<KvCache>,
}

/// The rewrite to FP8 as asked for, without samples.
pub fn stage(scheme: Option<Scheme>, scales: Scales, ignore: &[String]) -> Result<Fp8> {
    let scheme = match scheme {
        // The one that servers take stored scales beside, whatever the model.
        None if scales.inputs => quant::Scheme::Tensor,
        None | Some(Scheme::Block) => quant::Scheme::Block,
        Some(Scheme::Channel) => quant::Scheme::Channel,
        Some(Scheme::Tensor) => quant::Scheme::Tensor,
        Some(Scheme::CompressedBlock) => quant::Scheme::CompressedBlock,
    };
    let activations = if scales.inputs { Activations::Static } else { Activations::Dynamic };
    Ok(Fp8 {
        scheme,
        activations,
        cache: kv_cache(scales.cache),
        ignore: patterns(ignore)?,
        ..Fp8::default()
    })
}

/// Who computes codes.
///
/// # Errors
/// Exit 6 where a GPU was asked for and cannot be used.
pub fn coder(wish: Wish, dry_run: bool) -> Result<Coder> {
    let gpu = gpu(wish, dry_run)?.map(Fp8Coder::open).transpose()?;
    Ok(gpu.map_or(Coder::Cpu, |gpu| Coder::Cuda(Arc::new(gpu))))
}

/// Who does the heavy sums of a calibration.
///
/// # Errors
/// As [`coder`].
pub fn engine(wish: Wish, dry_run: bool) -> Result<Engine> {
    let gpu = gpu(wish, dry_run)?.map(AwqEngine::open).transpose()?;
    Ok(gpu.map_or(Engine::Cpu, |gpu| Engine::Cuda(Arc::new(gpu))))
}

/// Number of the GPU to compute on. A plan needs none.
fn gpu(wish: Wish, dry_run: bool) -> Result<Option<usize>> {
    Ok(match wish.place()? {
        Place::Cuda(gpu) if !dry_run => Some(gpu.ordinal),
        _ => None,
    })
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
