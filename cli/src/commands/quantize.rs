//! `prep quantize`: a model in fewer bits.

use quant::{Activations, Fp8, Pattern, Tails};
use verify::Result;
use verify::codec::Dequantize;
use verify::rewrite::Rewrite;

use super::rewrite::{Job, whole};
use crate::args::{Global, Quantize, Scheme};
use crate::output::Output;

pub fn run(args: &Quantize, global: &Global, output: &Output) -> Result<u8> {
    let mut quantize = stage(args.scheme, &args.ignore)?;
    quantize.activations = match (args.kv_cache, args.static_activations) {
        (true, _) => Activations::StaticCache,
        (false, true) => Activations::Static,
        (false, false) => Activations::Dynamic,
    };
    if args.quantize_tails {
        quantize.tails = Tails::QuantizeUnfused;
    }
    let stages: Vec<&dyn Rewrite> = match args.from_quantized {
        true => vec![&Dequantize, &quantize],
        false => vec![&quantize],
    };
    let job = Job { base: &args.model, stages, inputs: Vec::new(), out: &args.out, parts: args.parts };
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
    let ignore = ignore.iter().map(|p| Pattern::parse(p)).collect::<Result<_>>()?;
    Ok(Fp8 { scheme, ignore, ..Fp8::default() })
}
