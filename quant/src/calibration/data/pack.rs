//! Samples to sequences of bounded length: short ones share a sequence, long ones are cut.

/// Fills sequences in the order in which samples come.
pub struct Packer {
    samples: usize,
    seq_len: usize,
    done: Packed,
    open: Vec<u32>,
    in_open: usize,
}

/// What was packed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Packed {
    /// None is empty, none longer than the length.
    pub sequences: Vec<Vec<u32>>,
    /// Samples that share a sequence with others.
    pub packed: usize,
    /// Samples that lost their end.
    pub truncated: usize,
}

impl Packer {
    /// For `samples` sequences of at most `seq_len` tokens.
    pub fn new(samples: usize, seq_len: usize) -> Self {
        Packer { samples, seq_len, done: Packed::default(), open: Vec::new(), in_open: 0 }
    }

    /// True once there are enough sequences.
    pub fn is_full(&self) -> bool {
        self.done.sequences.len() >= self.samples
    }

    /// Adds a sample; `alone` gives it a sequence of its own. One that does not fit into the open sequence begins the
    /// next: no sample is torn apart. False where it was not taken because there are enough.
    pub fn add(&mut self, mut ids: Vec<u32>, alone: bool) -> bool {
        let len = ids.len().min(self.seq_len);
        if alone || self.open.len() + len > self.seq_len {
            self.close();
        }
        if self.is_full() {
            return false;
        }
        self.done.truncated += usize::from(ids.len() > len);
        ids.truncate(len);
        self.open.extend(ids);
        self.in_open += 1;
        if alone || self.open.len() == self.seq_len {
            self.close();
        }
        true
    }

    /// All sequences, the open one included.
    pub fn finish(mut self) -> Packed {
        self.close();
        self.done
    }

    fn close(&mut self) {
        if self.in_open > 1 {
            self.done.packed += self.in_open;
        }
        self.in_open = 0;
        if !self.open.is_empty() {
            self.done.sequences.push(std::mem::take(&mut self.open));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pack(seq_len: usize, samples: &[&[u32]]) -> Packed {
        let mut packer = Packer::new(usize::MAX, seq_len);
        assert!(samples.iter().all(|s| packer.add(s.to_vec(), false)));
        packer.finish()
    }

    #[test]
    fn short_samples_share_and_long_ones_are_cut() {
        let packed = pack(4, &[&[1, 2], &[3], &[4, 5], &[6, 7, 8, 9, 10], &[11]]);
        assert_eq!(packed.sequences, [vec![1, 2, 3], vec![4, 5], vec![6, 7, 8, 9], vec![11]]);
        assert_eq!((packed.packed, packed.truncated), (2, 1));
    }

    #[test]
    fn token_ids_keep_their_own_sequence() {
        let mut packer = Packer::new(9, 3);
        for ids in [vec![1], vec![2, 3, 4, 5], vec![6]] {
            assert!(packer.add(ids, true));
        }
        let packed = packer.finish();
        assert_eq!(packed.sequences, [vec![1], vec![2, 3, 4], vec![6]]);
        assert_eq!((packed.packed, packed.truncated), (0, 1));
    }

    #[test]
    fn enough_is_enough() {
        let mut packer = Packer::new(2, 3);
        let taken = [vec![1, 2], vec![3], vec![4, 5], vec![6, 7], vec![8]].map(|ids| packer.add(ids, false));
        assert_eq!(taken, [true, true, true, false, false]);
        assert!(packer.is_full());
        assert_eq!(packer.finish().sequences, [vec![1, 2, 3], vec![4, 5]]);
    }

    proptest! {
        #[test]
        fn nothing_is_lost_but_the_ends_of_long_samples(
            seq_len in 1usize..9,
            lengths in proptest::collection::vec(1usize..12, 0..20),
        ) {
            let samples: Vec<Vec<u32>> = lengths.iter().enumerate().map(|(i, n)| vec![i as u32; *n]).collect();
            let packed = pack(seq_len, &samples.iter().map(Vec::as_slice).collect::<Vec<_>>());
            let want: Vec<u32> = samples.iter().flat_map(|s| s[..s.len().min(seq_len)].to_vec()).collect();
            prop_assert_eq!(packed.sequences.concat(), want);
            prop_assert!(packed.sequences.iter().all(|s| !s.is_empty() && s.len() <= seq_len));
        }
    }
}
