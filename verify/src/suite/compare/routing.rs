//! Which experts the routers of two models choose for the same tokens.

use serde::Serialize;

/// A router: its layer, how many experts it has and how many it chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Router {
    /// Number of the layer.
    pub layer: usize,
    /// Experts to choose from.
    pub experts: usize,
    /// Experts chosen for each token.
    pub chosen: usize,
}

/// Choices seen so far in one layer.
#[derive(Debug, Clone)]
pub struct RouterTally {
    router: Router,
    tokens: usize,
    equal: usize,
    common: usize,
    baseline: Vec<u64>,
    model: Vec<u64>,
}

impl RouterTally {
    /// Nothing seen yet.
    pub fn new(router: Router) -> Self {
        let none = vec![0; router.experts];
        RouterTally { router, tokens: 0, equal: 0, common: 0, baseline: none.clone(), model: none }
    }

    /// Adds tokens by the logits of the two routers, both `[tokens, experts]`. The chosen are the largest, of equal
    /// ones the lower number first.
    pub fn add(&mut self, baseline: &[f32], model: &[f32]) {
        let Router { experts, chosen, .. } = self.router;
        for (p, q) in baseline.chunks_exact(experts).zip(model.chunks_exact(experts)) {
            let (p, q) = (largest(p, chosen), largest(q, chosen));
            self.tokens += 1;
            self.equal += usize::from(p == q);
            self.common += p.iter().filter(|e| q.contains(e)).count();
            p.iter().for_each(|e| self.baseline[*e] += 1);
            q.iter().for_each(|e| self.model[*e] += 1);
        }
    }

    /// The sum of it; `None` without any token.
    pub fn routing(&self) -> Option<LayerRouting> {
        let unused = |load: &[u64]| (0..load.len()).filter(|e| load[*e] == 0).collect();
        (self.tokens > 0).then(|| LayerRouting {
            layer: self.router.layer,
            experts: self.router.experts,
            chosen: self.router.chosen,
            tokens: self.tokens,
            agreement: self.equal as f64 / self.tokens as f64,
            overlap: self.common as f64 / (self.tokens * self.router.chosen) as f64,
            baseline_unused: unused(&self.baseline),
            unused: unused(&self.model),
            baseline_load: self.baseline.clone(),
            load: self.model.clone(),
        })
    }
}

/// The `chosen` largest, sorted by number.
fn largest(logits: &[f32], chosen: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
    order.truncate(chosen);
    order.sort_unstable();
    order
}

/// How the routers of one layer agree, and how busy its experts are.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LayerRouting {
    /// Number of the layer.
    pub layer: usize,
    /// Experts to choose from.
    pub experts: usize,
    /// Experts chosen for each token.
    pub chosen: usize,
    /// Tokens seen.
    pub tokens: usize,
    /// Share of tokens for which both choose the same set of experts.
    pub agreement: f64,
    /// Share of the chosen experts that both have in common.
    pub overlap: f64,
    /// Experts that the baseline never chose.
    pub baseline_unused: Vec<usize>,
    /// Experts that the model never chose.
    pub unused: Vec<usize>,
    /// `[experts]`: tokens that the baseline sent to each expert.
    pub baseline_load: Vec<u64>,
    /// `[experts]`: tokens that the model sent to each expert.
    pub load: Vec<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally() -> RouterTally {
        RouterTally::new(Router { layer: 3, experts: 4, chosen: 2 })
    }

    #[test]
    fn sets_are_compared_not_their_order() {
        let mut t = tally();
        t.add(&[9.0, 8.0, 0.0, 1.0], &[8.0, 9.0, 1.0, 0.0]);
        t.add(&[9.0, 8.0, 0.0, 1.0], &[8.0, 0.0, 9.0, 1.0]);
        let r = t.routing().unwrap();
        assert_eq!((r.tokens, r.agreement, r.overlap), (2, 0.5, 0.75));
        assert_eq!((r.baseline_load, r.load), (vec![2, 2, 0, 0], vec![2, 1, 1, 0]));
        assert_eq!((r.baseline_unused, r.unused), (vec![2, 3], vec![3]));
    }

    #[test]
    fn of_equal_logits_the_lower_number_is_chosen() {
        assert_eq!(largest(&[1.0, 2.0, 2.0, 2.0], 2), [1, 2]);
    }

    #[test]
    fn a_layer_without_tokens_says_nothing() {
        assert_eq!(tally().routing(), None);
    }
}
