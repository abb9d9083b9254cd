//! `prep quantize`: a model in fewer bits.

use verify::Result;

use super::rewrite::{Job, whole};
use crate::args::{Global, Quantize, Scheme};
use crate::output::Output;

pub fn run(args: &Quantize, global: &Global, output: &Output) -> Result<u8> {
    let quantize = stage(args.scheme, &args.ignore)?;
    let job = Job { base: &args.model, stages: vec![&quantize], inputs: Vec::new(), out: &args.out };
    let next = format!("prep verify {} --parser NAME", args.out.display());
    whole(&job, args.dry_run, &next, global, output)
}

/// The rewrite that quantizes as asked for.
pub fn stage(scheme: Scheme, ignore: &[String]) -> Result<quant::Fp8> {
    let scheme = match scheme {
        Scheme::Block => quant::Scheme::Block,
    };
    let ignore = ignore.iter().map(|p| quant::Pattern::parse(p)).collect::<Result<_>>()?;
    Ok(quant::Fp8 { scheme, ignore, ..quant::Fp8::default() })
}
