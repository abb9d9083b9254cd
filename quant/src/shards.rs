//! Which shard an output goes to: that of its source, unless the result would be too large.

use verify::error::Result;
use verify::names::FileName;

/// Largest payload of a shard in bytes; the size at which published checkpoints are cut.
pub const LIMIT: u64 = 5_000_000_000;

/// Shard names, and for every output the shard that it goes to.
#[derive(Debug, PartialEq, Eq)]
pub struct Shards {
    /// File names.
    pub names: Vec<FileName>,
    /// By output.
    pub of: Vec<usize>,
}

/// Keeps the source's shards. Where one would grow beyond `limit` it is cut between outputs, and then all
/// shards are named anew, because names count them.
///
/// `outputs` are (source shard, bytes) in file order; what may not be parted is one output.
///
/// # Errors
/// Never in practice: the names that it makes are sound.
pub fn assign(source: &[FileName], outputs: &[(usize, u64)], limit: u64) -> Result<Shards> {
    let mut of = Vec::with_capacity(outputs.len());
    let (mut count, mut filled, mut last) = (0, 0, None);
    let mut cut = false;
    for &(shard, bytes) in outputs {
        let full = filled > 0 && filled + bytes > limit;
        if last != Some(shard) || full {
            cut |= last == Some(shard);
            (count, filled, last) = (count + 1, 0, Some(shard));
        }
        filled += bytes;
        of.push(count - 1);
    }
    if !cut {
        return Ok(Shards { names: source.to_vec(), of: outputs.iter().map(|(shard, _)| *shard).collect() });
    }
    let name = |i: usize| FileName::parse(&format!("model-{:05}-of-{count:05}.safetensors", i + 1));
    Ok(Shards { names: (0..count).map(name).collect::<Result<_>>()?, of })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[&str]) -> Vec<FileName> {
        list.iter().map(|n| FileName::parse(n).unwrap()).collect()
    }

    #[test]
    fn sources_shards_are_kept_where_they_fit() {
        let source = names(&["a.safetensors", "b.safetensors"]);
        let s = assign(&source, &[(0, 5), (0, 5), (1, 9)], 10).unwrap();
        assert_eq!((s.names, s.of), (source, vec![0, 0, 1]));
    }

    #[test]
    fn shard_beyond_the_limit_is_cut_between_outputs_and_all_are_renamed() {
        let source = names(&["a.safetensors", "b.safetensors"]);
        let s = assign(&source, &[(0, 5), (0, 6), (0, 1), (1, 30), (1, 1)], 10).unwrap();
        assert_eq!(s.of, [0, 1, 1, 2, 3]);
        assert_eq!(s.names[3].as_str(), "model-00004-of-00004.safetensors");
    }
}
