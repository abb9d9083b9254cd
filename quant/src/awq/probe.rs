//! What candidates are judged on: few tokens for all of them, all tokens for the best.

use std::ops::Range;

use runner::backend::Span;
use runner::cpu::Array;

/// Of as many parts one is looked at first.
const PART: usize = 4;
/// Tokens, and samples, of which a part would say too little.
const FEW_TOKENS: usize = 256;
const FEW_SAMPLES: usize = 4;

/// Samples on the way into a block.
#[derive(Debug, Clone)]
pub struct Probe {
    /// `[tokens, hidden]`
    pub x: Array,
    /// The samples, one after the other.
    pub spans: Vec<Span>,
}

impl Probe {
    /// Every fourth sample; `None` where there are few.
    pub fn glance(&self) -> Option<Probe> {
        if self.spans.len() < FEW_SAMPLES || self.x.rows() < FEW_TOKENS {
            return None;
        }
        let some: Vec<(Range<usize>, Span)> = self.samples().step_by(PART).collect();
        Some(self.of(&some))
    }

    /// Consecutive samples of about `tokens` together, each whole.
    pub fn pieces(&self, tokens: usize) -> impl Iterator<Item = Probe> {
        let mut left: Vec<(Range<usize>, Span)> = self.samples().collect();
        std::iter::from_fn(move || {
            let first = left.first()?.0.start;
            let fit = left.iter().take_while(|(rows, _)| rows.end - first <= tokens).count().max(1);
            let some: Vec<_> = left.drain(..fit).collect();
            Some(self.of(&some))
        })
    }

    /// The samples with their rows.
    fn samples(&self) -> impl Iterator<Item = (Range<usize>, Span)> {
        self.spans.iter().scan(0, |at, span| {
            *at += span.len;
            Some((*at - span.len..*at, *span))
        })
    }

    fn of(&self, samples: &[(Range<usize>, Span)]) -> Probe {
        let rows = samples.iter().flat_map(|(rows, _)| rows.clone());
        Probe { x: picked(&self.x, rows), spans: samples.iter().map(|(_, span)| *span).collect() }
    }
}

/// Every fourth token of `x`; `None` where there are few.
pub fn glance(x: &Array) -> Option<Array> {
    (x.rows() >= FEW_TOKENS).then(|| picked(x, (0..x.rows()).step_by(PART)))
}

fn picked(x: &Array, rows: impl IntoIterator<Item = usize>) -> Array {
    let values: Vec<f32> = rows.into_iter().flat_map(|r| x.row(r)).copied().collect();
    Array::new(values.len() / x.cols().max(1), x.cols(), values)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(rows: usize) -> Array {
        Array::new(rows, 1, (0..rows).map(|r| r as f32).collect())
    }

    #[test]
    fn a_glance_is_every_fourth_token_or_whole_sample() {
        let x = glance(&numbered(300)).unwrap();
        assert_eq!((x.rows(), x.row(74)), (75, &[296.0][..]));
        let spans = [100, 20, 30, 40, 50, 60].map(|len| Span { start: 0, len }).to_vec();
        let few = Probe { x: numbered(300), spans }.glance().unwrap();
        assert_eq!(few.spans.iter().map(|s| s.len).collect::<Vec<_>>(), [100, 50]);
        assert_eq!((few.x.rows(), few.x.row(99), few.x.row(100)), (150, &[99.0][..], &[190.0][..]));
    }

    #[test]
    fn pieces_are_whole_samples_in_order() {
        let spans = [100, 20, 30, 400, 50, 60].map(|len| Span { start: 0, len }).to_vec();
        let probe = Probe { x: numbered(660), spans };
        let pieces: Vec<Probe> = probe.pieces(125).collect();
        let lens = |p: &Probe| p.spans.iter().map(|s| s.len).collect::<Vec<_>>();
        assert_eq!(
            pieces.iter().map(lens).collect::<Vec<_>>(),
            [vec![100, 20], vec![30], vec![400], vec![50, 60]]
        );
        let rows: Vec<f32> = pieces.iter().flat_map(|p| p.x.values().to_vec()).collect();
        assert_eq!(rows, probe.x.values());
    }

    #[test]
    fn few_tokens_and_few_samples_are_all_looked_at() {
        assert!(glance(&numbered(255)).is_none());
        let spans = |n: usize| vec![Span { start: 0, len: 100 }; n];
        assert!(Probe { x: numbered(300), spans: spans(3) }.glance().is_none());
        assert!(Probe { x: numbered(200), spans: spans(4) }.glance().is_none());
    }
}
