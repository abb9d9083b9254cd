//! Element types of safetensors files.

use std::fmt;

/// An element type, spelled in headers as in the safetensors format 0.8.
#[allow(missing_docs, non_camel_case_types)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Dtype {
    Bool,
    F4,
    F6_E2M3,
    F6_E3M2,
    U8,
    I8,
    F8_E5M2,
    F8_E4M3,
    F8_E8M0,
    F8_E4M3FNUZ,
    F8_E5M2FNUZ,
    I16,
    U16,
    F16,
    BF16,
    I32,
    U32,
    F32,
    C64,
    F64,
    I64,
    U64,
}

const NAMES: [(Dtype, &str, usize); 22] = [
    (Dtype::Bool, "BOOL", 8),
    (Dtype::F4, "F4", 4),
    (Dtype::F6_E2M3, "F6_E2M3", 6),
    (Dtype::F6_E3M2, "F6_E3M2", 6),
    (Dtype::U8, "U8", 8),
    (Dtype::I8, "I8", 8),
    (Dtype::F8_E5M2, "F8_E5M2", 8),
    (Dtype::F8_E4M3, "F8_E4M3", 8),
    (Dtype::F8_E8M0, "F8_E8M0", 8),
    (Dtype::F8_E4M3FNUZ, "F8_E4M3FNUZ", 8),
    (Dtype::F8_E5M2FNUZ, "F8_E5M2FNUZ", 8),
    (Dtype::I16, "I16", 16),
    (Dtype::U16, "U16", 16),
    (Dtype::F16, "F16", 16),
    (Dtype::BF16, "BF16", 16),
    (Dtype::I32, "I32", 32),
    (Dtype::U32, "U32", 32),
    (Dtype::F32, "F32", 32),
    (Dtype::C64, "C64", 64),
    (Dtype::F64, "F64", 64),
    (Dtype::I64, "I64", 64),
    (Dtype::U64, "U64", 64),
];

impl Dtype {
    /// Reads the header spelling (`"BF16"`).
    pub fn parse(name: &str) -> Option<Self> {
        NAMES.iter().find(|(_, n, _)| *n == name).map(|(d, _, _)| *d)
    }

    /// The header spelling.
    pub fn name(self) -> &'static str {
        NAMES[self as usize].1
    }

    /// Bits of one element (4 and 6 for the packed float types).
    pub fn bits(self) -> usize {
        NAMES[self as usize].2
    }

    /// Whole bytes of one element; 1 for types smaller than a byte.
    pub fn align(self) -> usize {
        (self.bits() / 8).max(1)
    }

    /// Bytes of `elements` elements; `None` on overflow or where they do not fill whole bytes.
    pub fn bytes(self, elements: usize) -> Option<usize> {
        let bits = elements.checked_mul(self.bits())?;
        bits.is_multiple_of(8).then_some(bits / 8)
    }

    /// F32, F16 or BF16: what merge and quantize compute on.
    pub fn is_plain_float(self) -> bool {
        matches!(self, Dtype::F32 | Dtype::F16 | Dtype::BF16)
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_in_enum_order() {
        for (i, (d, name, _)) in NAMES.iter().enumerate() {
            assert_eq!(*d as usize, i);
            assert_eq!(Dtype::parse(name), Some(*d));
        }
    }

    #[test]
    fn odd_count_of_packed_floats_has_no_byte_length() {
        assert_eq!(Dtype::F4.bytes(3), None);
        assert_eq!(Dtype::BF16.bytes(usize::MAX), None);
    }
}
