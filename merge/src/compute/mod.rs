//! Computing the rows of one merged tensor.

mod chunk;
pub mod dora;
pub mod figures;
pub mod form;
mod in_place;
pub mod job;
pub mod piece;
pub mod product;
pub mod real;
pub mod round;

/// Numbers between -1 and 1 that only depend on `seed`.
#[cfg(test)]
fn values(n: usize, seed: u32) -> Vec<f32> {
    let mut x = seed | 1;
    let mut next = || {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (x >> 8) as f32 / 8_388_608.0 - 1.0
    };
    (0..n).map(|_| next()).collect()
}
