//! Stand-in until `verify::codec::int4::pack` is merged.

/// `[rows, cols]` codes to words of `32 / bits`, plain order, along columns.
pub fn pack_rows(codes: &[u8], rows: usize, cols: usize, bits: u32) -> Vec<i32> {
    let per = (32 / bits) as usize;
    debug_assert_eq!(codes.len(), rows * cols);
    let word = |c: &[u8]| c.iter().enumerate().fold(0u32, |w, (j, c)| w | u32::from(*c) << (bits as usize * j)) as i32;
    codes.chunks_exact(per).map(word).collect()
}

/// `[rows, groups]` zeros packed along rows.
pub fn pack_zero_points(codes: &[u8], rows: usize, groups: usize, bits: u32) -> Vec<i32> {
    let per = (32 / bits) as usize;
    let mut out = vec![0u32; rows / per * groups];
    for r in 0..rows {
        for g in 0..groups {
            out[r / per * groups + g] |= u32::from(codes[r * groups + g]) << (bits as usize * (r % per));
        }
    }
    out.into_iter().map(|w| w as i32).collect()
}

/// `[in, out]` codes in AutoAWQ's order.
pub fn pack_awq(codes: &[u8], inputs: usize, outputs: usize) -> Vec<i32> {
    const ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];
    debug_assert_eq!(codes.len(), inputs * outputs);
    let word = |c: &[u8]| ORDER.iter().enumerate().fold(0u32, |w, (j, o)| w | u32::from(c[*o]) << (4 * j)) as i32;
    codes.chunks_exact(8).map(word).collect()
}
