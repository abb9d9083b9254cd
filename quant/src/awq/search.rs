//! The search for the scales of one smoothing pair (Lin et al. 2023, "AWQ").

use serde::Serialize;
use verify::{Error, Result};

/// Where a scale comes from: the sizes of the inputs, and the shares that the weights of a column take of their
/// groups' ranges.
#[derive(Debug, Clone)]
pub struct Sizes {
    /// Mean |x| by channel.
    pub inputs: Vec<f32>,
    /// See [`super::weights::shares`].
    pub weights: Vec<f32>,
}

/// One way to scale.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub enum Candidate {
    /// Not at all.
    #[serde(rename = "identity")]
    Identity,
    /// `inputs^r`.
    #[serde(rename = "inputs")]
    Inputs(f64),
    /// `inputs^r / weights^(1-r)`.
    #[serde(rename = "duo")]
    Duo(f64),
}

/// Ratios of the first round; the best is then refined.
const COARSE: [f64; 11] = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0];
/// Candidates that a glance leaves.
const LEFT: usize = 3;

impl Candidate {
    /// The first round; not scaling is no part of it, for it is always looked at.
    pub fn coarse() -> Vec<Candidate> {
        let inputs = COARSE[1..].iter().map(|r| Candidate::Inputs(*r));
        inputs.chain(COARSE.iter().map(|r| Candidate::Duo(*r))).collect()
    }

    /// The scales, by channel.
    pub fn scales(self, sizes: &Sizes) -> Vec<f32> {
        let pairs = sizes.inputs.iter().zip(&sizes.weights);
        let raw: Vec<f32> = match self {
            Candidate::Identity => return vec![1.0; sizes.inputs.len()],
            Candidate::Inputs(r) => pairs.map(|(x, _)| x.powf(r as f32).max(1e-4)).collect(),
            Candidate::Duo(r) => {
                pairs.map(|(x, w)| (x.powf(r as f32) / (w.powf(1.0 - r as f32) + 1e-4)).max(1e-4)).collect()
            }
        };
        let (low, high) = raw.iter().fold((f32::MAX, 0.0f32), |(l, h), s| (l.min(*s), h.max(*s)));
        let middle = (low * high).sqrt();
        let usable = |s: f32| if s.is_finite() && s > 0.0 { s } else { 1.0 };
        raw.into_iter().map(|s| usable(s / middle)).collect()
    }

    fn at(self, r: f64) -> Option<Candidate> {
        let r = (r * 1000.0).round() / 1000.0;
        match self {
            _ if !(0.0..=1.1).contains(&r) => None,
            Candidate::Identity => None,
            Candidate::Inputs(_) => Some(Candidate::Inputs(r)),
            Candidate::Duo(_) => Some(Candidate::Duo(r)),
        }
    }

    fn ratio(self) -> f64 {
        match self {
            Candidate::Identity => 0.0,
            Candidate::Inputs(r) | Candidate::Duo(r) => r,
        }
    }
}

/// What was found.
#[derive(Debug, Clone)]
pub struct Found {
    /// How.
    pub candidate: Candidate,
    /// Scales by channel.
    pub scales: Vec<f32>,
    /// Loss of not scaling: plain rounding.
    pub before: f64,
    /// Loss with these scales.
    pub after: f64,
}

impl Found {
    /// The scales, where there are any.
    pub fn scaled(&self) -> Option<&[f32]> {
        (self.candidate != Candidate::Identity).then_some(&self.scales)
    }
}

/// The few of [`Candidate::coarse`] with the least loss on some of the tokens, the best first; of equals the first.
///
/// # Errors
/// Those of `loss`.
pub fn shortlist(sizes: &Sizes, mut loss: impl FnMut(&[f32]) -> Result<f64>) -> Result<Vec<Candidate>> {
    let judge = |candidate: Candidate| {
        let loss = loss(&candidate.scales(sizes))?;
        Ok((if loss.is_finite() { loss } else { f64::INFINITY }, candidate))
    };
    let mut judged: Vec<(f64, Candidate)> =
        Candidate::coarse().into_iter().map(judge).collect::<Result<_>>()?;
    judged.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    judged.truncate(LEFT);
    Ok(judged.into_iter().map(|(_, candidate)| candidate).collect())
}

/// Tries `candidates`, then finer steps around the best, and keeps the one of least loss; the first of equals. Not
/// scaling is always among them, so that the result is never worse than plain rounding.
///
/// # Errors
/// Exit 3 where no candidate has a finite loss; and those of `loss`.
pub fn search(
    sizes: &Sizes,
    candidates: Vec<Candidate>,
    mut loss: impl FnMut(&[f32]) -> Result<f64>,
) -> Result<Found> {
    let ones = Candidate::Identity.scales(sizes);
    let before = loss(&ones)?;
    let mut best = Found { candidate: Candidate::Identity, scales: ones, before, after: before };
    let mut round = |list: Vec<Candidate>, best: &mut Found| -> Result<()> {
        for candidate in list {
            let scales = candidate.scales(sizes);
            let after = loss(&scales)?;
            if after < best.after || (!best.after.is_finite() && after.is_finite()) {
                *best = Found { candidate, scales, before, after };
            }
        }
        Ok(())
    };
    round(candidates, &mut best)?;
    for step in [0.05, 0.025] {
        let (middle, of) = (best.candidate.ratio(), best.candidate);
        round([middle - step, middle + step].into_iter().filter_map(|r| of.at(r)).collect(), &mut best)?;
    }
    match best.after.is_finite() {
        true => Ok(best),
        false => Err(Error::input("no scale gives finite numbers")
            .found("NaN or infinity in every output on the calibration data")
            .expected("finite numbers from one of them")
            .hint(
                "see with `prep generate --logits` whether the model itself gives finite numbers; where it does, \
                 weights are too large for the type of the scales: leave them out with --ignore, or choose \
                 --format compressed-tensors",
            )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes() -> Sizes {
        Sizes { inputs: vec![0.1, 1.0, 10.0], weights: vec![0.5, 0.2, 0.3] }
    }

    #[test]
    fn scales_are_centred() {
        for c in [Candidate::Inputs(0.5), Candidate::Duo(0.3)] {
            let s = c.scales(&sizes());
            let (low, high) =
                (s.iter().copied().fold(f32::MAX, f32::min), s.iter().copied().fold(0.0, f32::max));
            assert!((low * high - 1.0).abs() < 1e-5, "{s:?}");
        }
        let s = Candidate::Inputs(1.0).scales(&sizes());
        assert!((s[2] / s[0] - 100.0).abs() < 1e-2);
    }

    #[test]
    fn columns_without_input_are_scaled_by_something_finite() {
        let dead = Sizes { inputs: vec![0.0, 1.0], weights: vec![0.0, 1.0] };
        for c in [Candidate::Inputs(1.0), Candidate::Duo(0.0), Candidate::Duo(1.0)] {
            assert!(c.scales(&dead).iter().all(|s| s.is_finite() && *s > 0.0), "{c:?}");
        }
    }

    #[test]
    fn least_loss_wins_and_identity_stays_where_nothing_helps() {
        let towards = |target: f32| {
            let away = |r: f32, t: f32| f64::from((r.ln() - t.ln()).abs());
            move |s: &[f32]| Ok(away(s[2] / s[0], target.powi(2)) + away(s[1] / s[0], target))
        };
        let few = shortlist(&sizes(), towards(10f32.powf(0.45))).unwrap();
        assert_eq!(few[..2], [Candidate::Inputs(0.4), Candidate::Inputs(0.5)]);
        let found = search(&sizes(), few, towards(10f32.powf(0.45))).unwrap();
        assert!(
            matches!(found.candidate, Candidate::Inputs(r) if (r - 0.45).abs() < 1e-6),
            "{:?}",
            found.candidate
        );
        let found = search(&sizes(), Candidate::coarse(), towards(1.0)).unwrap();
        assert_eq!((found.candidate, found.before), (Candidate::Identity, 0.0));
    }

    #[test]
    fn infinite_loss_is_an_error() {
        let few = shortlist(&sizes(), |_| Ok(-f64::NAN)).unwrap();
        assert_eq!(few.len(), LEFT);
        assert!(search(&sizes(), few, |_| Ok(f64::NAN)).is_err());
    }
}
