//! Token by token, as the rule is written down:
//!
//! ```text
//!   S = decay S;   u = beta (v - S^T k);   S = S + k u^T;   y = S^T q
//! ```

use super::Head;
use crate::cpu::isa::LANES;

/// Outputs `[tokens, value_dim]`; leaves the state after the last token.
#[inline(always)]
pub fn run(head: &Head, state: &mut [f32]) -> Vec<f32> {
    let (dk, dv) = (head.key_dim, head.value_dim);
    let row = dv.next_multiple_of(LANES);
    let mut out = Vec::with_capacity(head.beta.len() * dv);
    let (mut u, mut y) = (vec![0.0; row], vec![0.0; row]);
    for t in 0..head.beta.len() {
        let (q, k) = (&head.q[t * dk..][..dk], &head.k[t * dk..][..dk]);
        let decay = super::exp(head.log_decay[t]);
        u.fill(0.0);
        for (s, k) in state.chunks_exact_mut(row).zip(k) {
            for (s, u) in s.iter_mut().zip(&mut u) {
                *s *= decay;
                *u = k.mul_add(*s, *u);
            }
        }
        for (u, v) in u.iter_mut().zip(&head.v[t * dv..][..dv]) {
            *u = head.beta[t] * (v - *u);
        }
        y.fill(0.0);
        for ((s, k), q) in state.chunks_exact_mut(row).zip(k).zip(q) {
            for ((s, u), y) in s.iter_mut().zip(&u).zip(&mut y) {
                *s = k.mul_add(*u, *s);
                *y = q.mul_add(*s, *y);
            }
        }
        out.extend_from_slice(&y[..dv]);
    }
    out
}
