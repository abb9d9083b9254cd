//! From logits to the next token.

use verify::{Error, Result};

/// How the next token is chosen. The default is greedy.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 takes the largest.
    pub temperature: f32,
    /// Keeps this many of the largest; 0 keeps all.
    pub top_k: usize,
    /// Keeps the fewest that together reach this probability.
    pub top_p: f32,
    /// Keeps those at least this fraction as probable as the most probable.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens that were there before; 1 changes nothing.
    pub repetition_penalty: f32,
    /// Where the random numbers begin.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, repetition_penalty: 1.0, seed: 0 }
    }
}

impl Sampling {
    /// Refuses settings that make no sense.
    ///
    /// # Errors
    /// Exit 2 naming the setting.
    pub fn check(&self) -> Result<()> {
        let settings = [
            ("temperature", self.temperature, self.temperature >= 0.0),
            ("top_p", self.top_p, self.top_p > 0.0 && self.top_p <= 1.0),
            ("min_p", self.min_p, (0.0..=1.0).contains(&self.min_p)),
            ("repetition_penalty", self.repetition_penalty, self.repetition_penalty > 0.0),
        ];
        match settings.iter().find(|(_, value, fine)| !fine || !value.is_finite()) {
            None => Ok(()),
            Some((name, value, _)) => {
                Err(Error::usage(format!("{name} cannot be {value}")).hint("see --help for its range"))
            }
        }
    }
}

/// Chooses the tokens of one answer. Its random numbers depend on the seed and the prompt alone.
#[derive(Debug, Clone)]
pub struct Sampler {
    how: Sampling,
    random: SplitMix,
    seen: Vec<u32>,
}

impl Sampler {
    /// For an answer to `prompt`.
    pub fn new(how: Sampling, prompt: &[u32]) -> Self {
        // FNV-1a: the stream must not depend on where the prompt stands among others.
        let hash = prompt
            .iter()
            .fold(0xcbf2_9ce4_8422_2325u64, |h, t| (h ^ u64::from(*t)).wrapping_mul(0x0000_0100_0000_01b3));
        let seen = if how.repetition_penalty == 1.0 { Vec::new() } else { prompt.to_vec() };
        Sampler { how, random: SplitMix(how.seed ^ hash), seen }
    }

    /// How it chooses.
    pub fn how(&self) -> Sampling {
        self.how
    }

    /// Where the random numbers stand.
    pub fn state(&self) -> u64 {
        self.random.0
    }

    /// The random numbers were drawn elsewhere, up to this.
    pub fn move_to(&mut self, state: u64) {
        self.random.0 = state;
    }

    /// The next token; of equal logits the lower id.
    pub fn next(&mut self, logits: &[f32]) -> u32 {
        let penalised = (self.how.repetition_penalty != 1.0).then(|| self.penalised(logits));
        let logits = penalised.as_deref().unwrap_or(logits);
        let id = match self.how.temperature == 0.0 {
            true => largest(logits),
            false => self.drawn(logits),
        };
        if self.how.repetition_penalty != 1.0 {
            self.seen.push(id);
        }
        id
    }

    fn penalised(&mut self, logits: &[f32]) -> Vec<f32> {
        self.seen.sort_unstable();
        self.seen.dedup();
        let mut out = logits.to_vec();
        for id in &self.seen {
            if let Some(x) = out.get_mut(*id as usize) {
                let p = self.how.repetition_penalty;
                *x = if *x > 0.0 { *x / p } else { *x * p };
            }
        }
        out
    }

    fn drawn(&mut self, logits: &[f32]) -> u32 {
        let mut kept: Vec<(u32, f64)> =
            logits.iter().enumerate().map(|(i, x)| (i as u32, f64::from(*x))).collect();
        let order = |a: &(u32, f64), b: &(u32, f64)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
        if self.how.top_k > 0 && self.how.top_k < kept.len() {
            kept.select_nth_unstable_by(self.how.top_k - 1, order);
            kept.truncate(self.how.top_k);
        }
        kept.sort_unstable_by(order);
        let top = kept.first().map_or(0.0, |k| k.1);
        for (_, x) in &mut kept {
            *x = ((*x - top) / f64::from(self.how.temperature)).exp();
        }
        let all: f64 = kept.iter().map(|k| k.1).sum();
        let mut reached = 0.0;
        let enough = kept.iter().position(|k| {
            reached += k.1;
            reached >= f64::from(self.how.top_p) * all
        });
        kept.truncate(enough.map_or(kept.len(), |n| n + 1));
        // The first is 1 now, the largest.
        kept.retain(|k| k.1 >= f64::from(self.how.min_p));
        let mut left = self.random.unit() * kept.iter().map(|k| k.1).sum::<f64>();
        for (id, weight) in &kept {
            left -= weight;
            if left < 0.0 {
                return *id;
            }
        }
        kept.last().map_or_else(|| largest(logits), |k| k.0)
    }
}

/// Position of the largest number; of equal ones the first.
pub fn largest(logits: &[f32]) -> u32 {
    let mut best = (0, f32::NEG_INFINITY);
    for (i, x) in logits.iter().enumerate() {
        if *x > best.1 {
            best = (i, *x);
        }
    }
    best.0 as u32
}

/// Steele et al. 2014, "Fast splittable pseudorandom number generators".
#[derive(Debug, Clone)]
struct SplitMix(u64);

impl SplitMix {
    /// In `0..1`.
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 5] = [0.0, 2.0, 1.0, 2.0, -1.0];

    fn drawn(how: Sampling) -> Vec<u32> {
        let mut s = Sampler::new(Sampling { temperature: 1.0, ..how }, &[1, 2]);
        (0..400).map(|_| s.next(&LOGITS)).collect()
    }

    fn kinds(how: Sampling) -> Vec<u32> {
        let mut ids = drawn(how);
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    #[test]
    fn greedy_takes_the_first_of_the_largest() {
        assert_eq!(Sampler::new(Sampling::default(), &[]).next(&LOGITS), 1);
    }

    #[test]
    fn each_limit_keeps_what_it_says() {
        assert_eq!(kinds(Sampling::default()), [0, 1, 2, 3, 4]);
        assert_eq!(kinds(Sampling { top_k: 2, ..Sampling::default() }), [1, 3]);
        assert_eq!(kinds(Sampling { top_p: 0.5, ..Sampling::default() }), [1, 3]);
        assert_eq!(kinds(Sampling { min_p: 0.3, ..Sampling::default() }), [1, 2, 3]);
    }

    #[test]
    fn frequencies_follow_the_softmax() {
        let all = LOGITS.map(f32::exp).iter().sum::<f32>();
        let share = drawn(Sampling::default()).iter().filter(|t| **t == 1).count() as f32 / 400.0;
        assert!((share - 2f32.exp() / all).abs() < 0.08, "{share}");
    }

    #[test]
    fn same_seed_same_tokens_other_seed_others() {
        let seed = |seed| drawn(Sampling { seed, ..Sampling::default() });
        assert_eq!(seed(3), seed(3));
        assert_ne!(seed(3), seed(4));
    }

    #[test]
    fn penalty_turns_away_from_what_was_there() {
        let how = Sampling { repetition_penalty: 3.0, ..Sampling::default() };
        let mut s = Sampler::new(how, &[1]);
        assert_eq!((s.next(&LOGITS), s.next(&LOGITS)), (3, 2));
    }

    #[test]
    fn senseless_settings_are_refused() {
        assert!(Sampling { top_p: 0.0, ..Sampling::default() }.check().is_err());
        assert!(Sampling { temperature: f32::NAN, ..Sampling::default() }.check().is_err());
        assert!(Sampling::default().check().is_ok());
    }
}
