//! Codes to 32-bit words and back. Code `j` of a word takes its bits `j * width ..`, the lowest first.
//!
//! Every function wants exactly `rows * columns` codes (or words) and panics on another count: sizes come from shapes
//! that were checked before.

use super::Bits;

/// AutoAWQ: place `j` of a word of eight holds output `8 w + AWQ_FOUR[j]`.
pub const AWQ_FOUR: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];
/// AutoAWQ in 8 bit: place `j` of a word of four holds output `4 w + AWQ_EIGHT[j]`.
pub const AWQ_EIGHT: [usize; 4] = [0, 2, 1, 3];

/// `weight_packed` of compressed-tensors: `[rows, cols]` to `[rows, ceil(cols / per word)]` along rows; a last word
/// is filled up with zero bits.
pub fn pack_rows(codes: &[u8], rows: usize, cols: usize, bits: Bits) -> Vec<i32> {
    assert_eq!(codes.len(), rows * cols, "codes of {rows} x {cols}");
    let rows = codes.chunks_exact(cols.max(1));
    rows.flat_map(|row| row.chunks(bits.per_word()).map(|codes| word(codes, bits))).collect()
}

/// The twin of [`pack_rows`].
pub fn unpack_rows(words: &[i32], rows: usize, cols: usize, bits: Bits) -> Vec<u8> {
    let across = cols.div_ceil(bits.per_word());
    assert_eq!(words.len(), rows * across, "words of {rows} x {cols}");
    let mut out = Vec::with_capacity(rows * cols);
    for words in words.chunks_exact(across.max(1)) {
        let codes = words.iter().flat_map(|&w| (0..bits.per_word()).map(move |j| code(w, j, bits)));
        out.extend(codes.take(cols));
    }
    out
}

/// `weight_zero_point` of compressed-tensors: `[rows, groups]` to `[ceil(rows / per word), groups]`, one word for the
/// same group of neighbouring rows.
pub fn pack_zero_points(codes: &[u8], rows: usize, groups: usize, bits: Bits) -> Vec<i32> {
    assert_eq!(codes.len(), rows * groups, "zeros of {rows} x {groups}");
    let mut out = vec![0; rows.div_ceil(bits.per_word()) * groups];
    for (row, zeros) in codes.chunks_exact(groups.max(1)).enumerate() {
        let (word, place) = (row / bits.per_word(), row % bits.per_word());
        for (word, &zero) in out[word * groups..][..groups].iter_mut().zip(zeros) {
            *word |= at(zero, place, bits);
        }
    }
    out
}

/// The twin of [`pack_zero_points`].
pub fn unpack_zero_points(words: &[i32], rows: usize, groups: usize, bits: Bits) -> Vec<u8> {
    let n = bits.per_word();
    assert_eq!(words.len(), rows.div_ceil(n) * groups, "zeros of {rows} x {groups}");
    (0..rows * groups)
        .map(|i| (i / groups, i % groups))
        .map(|(r, g)| code(words[r / n * groups + g], r % n, bits))
        .collect()
}

/// `qweight` and `qzeros` of AutoAWQ's `gemm`: `[inputs, outputs]` (or `[groups, outputs]`) to
/// `[inputs, outputs / per word]`. `outputs` is a multiple of the codes of a word.
pub fn pack_awq(codes: &[u8], inputs: usize, outputs: usize, bits: Bits) -> Vec<i32> {
    assert!(
        codes.len() == inputs * outputs && outputs.is_multiple_of(bits.per_word()),
        "codes of {inputs} x {outputs}"
    );
    let word = |codes: &[u8]| {
        let places = awq_order(bits).iter().enumerate();
        places.fold(0, |word, (place, &of)| word | at(codes[of], place, bits))
    };
    codes.chunks_exact(bits.per_word()).map(word).collect()
}

/// The twin of [`pack_awq`].
pub fn unpack_awq(words: &[i32], inputs: usize, outputs: usize, bits: Bits) -> Vec<u8> {
    let n = bits.per_word();
    assert!(
        words.len() * n == inputs * outputs && outputs.is_multiple_of(n),
        "words of {inputs} x {outputs}"
    );
    let mut out = vec![0; inputs * outputs];
    for (codes, &word) in out.chunks_exact_mut(n).zip(words) {
        for (place, &of) in awq_order(bits).iter().enumerate() {
            codes[of] = code(word, place, bits);
        }
    }
    out
}

/// `[rows, cols]` to `[cols, rows]`: AutoAWQ stores inputs outside.
pub fn transposed<T: Copy + Default>(values: &[T], rows: usize, cols: usize) -> Vec<T> {
    // Tiles keep the lines that are written in the cache.
    const TILE: usize = 32;
    assert_eq!(values.len(), rows * cols, "values of {rows} x {cols}");
    let mut out = vec![T::default(); rows * cols];
    for top in (0..rows).step_by(TILE) {
        for left in (0..cols).step_by(TILE) {
            for r in top..(top + TILE).min(rows) {
                for c in left..(left + TILE).min(cols) {
                    out[c * rows + r] = values[r * cols + c];
                }
            }
        }
    }
    out
}

fn awq_order(bits: Bits) -> &'static [usize] {
    match bits {
        Bits::Four => &AWQ_FOUR,
        Bits::Eight => &AWQ_EIGHT,
    }
}

fn word(codes: &[u8], bits: Bits) -> i32 {
    codes.iter().enumerate().fold(0, |word, (place, &code)| word | at(code, place, bits))
}

/// `code` at its place; what is too wide for it is cut off rather than spilt into its neighbour.
fn at(code: u8, place: usize, bits: Bits) -> i32 {
    (u32::from(code & bits.max()) << (place * bits.count())).cast_signed()
}

fn code(word: i32, place: usize, bits: Bits) -> u8 {
    (word.cast_unsigned() >> (place * bits.count())) as u8 & bits.max()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn codes_stand_where_loaders_look() {
        let codes: Vec<u8> = (0..8).collect();
        assert_eq!(pack_rows(&codes, 1, 8, Bits::Four), [0x7654_3210]);
        assert_eq!(pack_rows(&codes, 1, 8, Bits::Eight), [0x0302_0100, 0x0706_0504]);
        assert_eq!(pack_rows(&codes, 2, 4, Bits::Four), [0x3210, 0x7654]);
        assert_eq!(pack_zero_points(&codes, 8, 1, Bits::Four), [0x7654_3210]);
        assert_eq!(pack_zero_points(&codes, 4, 2, Bits::Four), [0x6420, 0x7531]);
        assert_eq!(pack_awq(&codes, 1, 8, Bits::Four), [0x7531_6420]);
        assert_eq!(pack_awq(&codes, 2, 4, Bits::Eight), [0x0301_0200, 0x0705_0604]);
        assert_eq!(pack_rows(&[15; 8], 1, 8, Bits::Four), [-1]);
    }

    fn bits() -> impl Strategy<Value = Bits> {
        prop_oneof![Just(Bits::Four), Just(Bits::Eight)]
    }

    proptest! {
        #[test]
        fn what_is_packed_comes_back(bits in bits(), rows in 1usize..20, cols in 1usize..20, seed in any::<u64>()) {
            let codes = |n: usize| -> Vec<u8> {
                (0..n as u64).map(|i| ((seed ^ i).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8 & bits.max()).collect()
            };
            let plain = codes(rows * cols);
            prop_assert_eq!(&unpack_rows(&pack_rows(&plain, rows, cols, bits), rows, cols, bits), &plain);
            let zeros = pack_zero_points(&plain, rows, cols, bits);
            prop_assert_eq!(zeros.len(), rows.div_ceil(bits.per_word()) * cols);
            prop_assert_eq!(&unpack_zero_points(&zeros, rows, cols, bits), &plain);
            let outputs = cols * bits.per_word();
            let wide = codes(rows * outputs);
            prop_assert_eq!(&unpack_awq(&pack_awq(&wide, rows, outputs, bits), rows, outputs, bits), &wide);
            prop_assert_eq!(&transposed(&transposed(&plain, rows, cols), cols, rows), &plain);
        }

        #[test]
        fn wide_code_does_not_reach_its_neighbour(code in any::<u8>()) {
            prop_assert_eq!(pack_rows(&[0, code, 0], 1, 3, Bits::Four), [i32::from(code & 15) << 4]);
        }
    }
}
