//! The product of two small matrices, added to rows of sums.

use super::form::{Form, Kernel};
use super::real::Real;

/// Columns of one packed panel of the right factor.
pub const PANEL: usize = 32;

/// Two factors made ready for [`product`].
#[derive(Debug, Clone, Copy)]
pub struct Factors<'a, T> {
    /// (rows, rank).
    pub left: &'a [T],
    /// Packed in panels: [cols / PANEL][rank][PANEL].
    pub right: &'a [T],
    /// The rank.
    pub rank: usize,
}

/// What a product does to the sums that are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Onto {
    /// It is added to them.
    Sums,
    /// It takes their place.
    Nothing,
}

/// `left · right` onto `sums`, (rows, cols), cols a multiple of [`PANEL`]. Each element is summed over the
/// rank in order.
pub fn product<T: Real>(form: Form, factors: Factors<'_, T>, onto: Onto, sums: &mut [T]) {
    form.run(Product { factors, onto, sums });
}

struct Product<'a, T> {
    factors: Factors<'a, T>,
    onto: Onto,
    sums: &'a mut [T],
}

impl<T: Real> Kernel for Product<'_, T> {
    type Out = ();

    #[inline(always)]
    fn run<const ROWS: usize>(self) {
        let Product { factors: Factors { left, right, rank }, onto, sums } = self;
        let rows = left.len() / rank;
        let cols = sums.len() / rows.max(1);
        for (p, panel) in right.chunks_exact(rank * PANEL).enumerate() {
            let mut row = 0;
            while row + ROWS <= rows {
                let block = (&mut sums[row * cols + p * PANEL..], cols);
                tile::<T, ROWS>(&left[row * rank..], (panel, rank), onto, block);
                row += ROWS;
            }
            while row < rows {
                let block = (&mut sums[row * cols + p * PANEL..], cols);
                tile::<T, 1>(&left[row * rank..], (panel, rank), onto, block);
                row += 1;
            }
        }
    }
}

/// A block of `ROWS` x `PANEL` sums, held in registers over the whole rank.
#[inline(always)]
fn tile<T: Real, const ROWS: usize>(
    left: &[T],
    (panel, rank): (&[T], usize),
    onto: Onto,
    (sums, stride): (&mut [T], usize),
) {
    let mut held = [[T::ZERO; PANEL]; ROWS];
    if onto == Onto::Sums {
        for (r, h) in held.iter_mut().enumerate() {
            h.copy_from_slice(&sums[r * stride..][..PANEL]);
        }
    }
    for (j, right) in panel.chunks_exact(PANEL).enumerate() {
        for (r, h) in held.iter_mut().enumerate() {
            let l = left[r * rank + j];
            for (s, &x) in h.iter_mut().zip(right) {
                *s = l.mul_add(x, *s);
            }
        }
    }
    for (r, h) in held.iter().enumerate() {
        sums[r * stride..][..PANEL].copy_from_slice(h);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compute::values;

    fn random_product<T: Real>(form: Form, rows: usize, rank: usize) -> Vec<T> {
        let cols = 3 * PANEL;
        let of = |v: Vec<f32>| v.into_iter().map(|x| T::of(f64::from(x))).collect::<Vec<T>>();
        let (left, right) = (of(values(rows * rank, 7)), of(values(cols * rank, 9)));
        let mut sums = of(values(rows * cols, 11));
        product(form, Factors { left: &left, right: &right, rank }, Onto::Sums, &mut sums);
        sums
    }

    #[test]
    fn all_forms_give_the_same_bits() {
        for (rows, rank) in [(1, 1), (2, 4), (5, 7), (9, 16), (3, 64)] {
            for form in Form::available() {
                let want = random_product::<f32>(Form::Scalar, rows, rank);
                assert_eq!(want, random_product::<f32>(form, rows, rank), "{form:?} f32");
                let want = random_product::<f64>(Form::Scalar, rows, rank);
                assert_eq!(want, random_product::<f64>(form, rows, rank), "{form:?} f64");
            }
        }
    }

    #[test]
    fn elements_are_sums_over_the_rank() {
        let (rank, left) = (3, [2.0f64, 3.0, 4.0]);
        let right: Vec<f64> = (0..3 * PANEL).map(|i| i as f64).collect();
        let factors = Factors { left: &left, right: &right, rank };
        for (onto, start) in [(Onto::Sums, 1.0), (Onto::Nothing, 0.0)] {
            let mut sums = vec![1.0; PANEL];
            product(Form::best(), factors, onto, &mut sums);
            for (c, d) in sums.iter().enumerate() {
                let want = start + 2.0 * right[c] + 3.0 * right[PANEL + c] + 4.0 * right[2 * PANEL + c];
                assert_eq!(*d, want);
            }
        }
    }
}
