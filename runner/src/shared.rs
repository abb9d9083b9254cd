//! Which prompts begin alike, so that what they share is read once.

use std::collections::HashMap;

/// Where a prompt goes on from: what prompt number `from` remembers after its first `at` tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Branch {
    /// An earlier prompt, which reads these tokens itself.
    pub from: usize,
    /// Tokens, a multiple of the grain.
    pub at: usize,
}

/// For each prompt the longest beginning of whole grains of so many tokens that it shares with an earlier one.
///
/// Taking a branch changes no bit: a DeltaNet layer's arithmetic depends on where its chunks begin, which are its grain,
/// and on whether a token is fed alone, so two tokens or more are left to both.
pub fn branches<'a>(prompts: impl Iterator<Item = &'a [u32]>, grain: usize) -> Vec<Option<Branch>> {
    // A prefix is known by the number of the prefix one grain shorter (0 is the empty one) and its last grain; what is
    // kept is its own number and the first prompt that has it.
    let mut prefixes: HashMap<(usize, &[u32]), (usize, usize)> = HashMap::new();
    let mut branch = |(number, prompt): (usize, &'a [u32])| {
        let (mut prefix, mut longest) = (0, None);
        let whole = prompt.len().saturating_sub(2) / grain;
        for (n, tokens) in prompt.chunks_exact(grain).take(whole).enumerate() {
            let next = (prefixes.len() + 1, number);
            let found = *prefixes.entry((prefix, tokens)).or_insert(next);
            if found.1 != number {
                longest = Some(Branch { from: found.1, at: (n + 1) * grain });
            }
            prefix = found.0;
        }
        longest
    };
    prompts.enumerate().map(&mut branch).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRAIN: usize = 16;

    /// Prompts of so many grains, each of its kind, and so many odd tokens.
    fn found(prompts: &[(&[u32], usize)]) -> Vec<Option<(usize, usize)>> {
        let tokens = |(kinds, odd): &(&[u32], usize)| {
            let grains = kinds.iter().flat_map(|kind| vec![*kind; GRAIN]);
            grains.chain(std::iter::repeat_n(99, *odd)).collect::<Vec<u32>>()
        };
        let prompts: Vec<_> = prompts.iter().map(tokens).collect();
        let branches = branches(prompts.iter().map(Vec::as_slice), GRAIN);
        branches.into_iter().map(|b| b.map(|b| (b.from, b.at / GRAIN))).collect()
    }

    #[test]
    fn the_longest_shared_beginning_is_taken_from_the_prompt_that_reads_it() {
        let prompts: [(&[u32], usize); 5] =
            [(&[1, 2, 3], 9), (&[1, 2, 4, 5], 9), (&[1, 2, 4, 6], 9), (&[7, 2, 3], 9), (&[1, 8], 9)];
        // The third shares three grains with the second, which reads the third of them itself.
        assert_eq!(found(&prompts), [None, Some((0, 2)), Some((1, 3)), None, Some((0, 1))]);
    }

    #[test]
    fn two_tokens_are_left_to_both() {
        assert_eq!(found(&[(&[1, 2], 2), (&[1, 2], 1)]), [None, Some((0, 1))]);
        assert_eq!(found(&[(&[1, 2], 1), (&[1, 2], 2)]), [None, Some((0, 1))]);
        assert_eq!(found(&[(&[1, 2], 2), (&[1, 2], 2)]), [None, Some((0, 2))]);
        assert_eq!(found(&[(&[1], 0), (&[1], 0), (&[], 0)]), [None, None, None]);
    }

    #[test]
    fn less_than_a_grain_is_not_shared() {
        assert_eq!(found(&[(&[], GRAIN - 1), (&[], GRAIN - 1)]), [None, None]);
    }
}
