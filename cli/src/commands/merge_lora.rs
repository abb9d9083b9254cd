//! `prep merge-lora`: adapters merged into a base.

use std::path::PathBuf;

use merge::{MergeLora, Unused};
use verify::{Error, Result, Shown};

use super::rewrite::{Job, whole};
use crate::args::{Global, MergeLora as Args};
use crate::output::Output;

pub fn run(args: &Args, global: &Global, output: &Output) -> Result<u8> {
    let adapters = args.adapter.iter().map(|a| parse(a)).collect::<Result<Vec<_>>>()?;
    let unused = if args.allow_unused { Unused::Warn } else { Unused::Refuse };
    let merge = MergeLora::open(&adapters, merge::Options { unused })?;
    let inputs = adapters.into_iter().map(|(dir, _)| dir).collect();
    let Args { parts, rewriting, .. } = *args;
    let job = Job { base: &args.base, stages: vec![&merge], inputs, out: &args.out, parts, rewriting };
    let next = format!("prep quantize {} --out FP8 --fp8", args.out.display());
    whole(&job, args.dry_run, &next, global, output)
}

/// `DIR`, or `DIR=WEIGHT` (`DIR@WEIGHT` means the same) where the whole is no folder itself.
fn parse(text: &str) -> Result<(PathBuf, f64)> {
    let whole = PathBuf::from(text);
    let Some((dir, weight)) = text.rsplit_once(['=', '@']).filter(|_| !whole.is_dir()) else {
        return Ok((whole, 1.0));
    };
    match weight.parse::<f64>() {
        Ok(w) if w.is_finite() => Ok((PathBuf::from(dir), w)),
        _ => Err(Error::usage(format!("`--adapter {}`: the weight is no number", Shown(text)))
            .expected("DIR=WEIGHT, such as adapters/style=0.7")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weight_follows_the_last_equals_sign() {
        assert_eq!(parse("a").unwrap(), ("a".into(), 1.0));
        assert_eq!(parse("a=b=0.5").unwrap(), ("a=b".into(), 0.5));
        assert_eq!(parse("a@-2").unwrap(), ("a".into(), -2.0));
        assert!(parse("a=x").is_err() && parse("a=inf").is_err());
    }
}
