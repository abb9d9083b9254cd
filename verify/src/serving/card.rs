//! GPUs by name: memory and what their tensor cores compute with.

use serde::Serialize;

use super::format::WeightFormat;
use crate::error::{Error, Result};
use crate::names::Shown;

/// A GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Card {
    /// Its name; users may leave out spaces, `RTX`, dashes and case.
    pub name: &'static str,
    /// MiB as `nvidia-smi` shows them.
    pub mib: u64,
    /// Compute capability: major and minor.
    pub capability: (u8, u8),
}

impl Card {
    /// Bytes.
    pub fn bytes(&self) -> u64 {
        self.mib << 20
    }

    /// FP8 tensor cores (compute capability 8.9 and newer); older ones unpack FP8 weights to 16 bit in the kernel.
    pub fn has_fp8(&self) -> bool {
        self.capability >= (8, 9)
    }

    /// Whether servers have kernels for weights in `format` (FP8 and 4 bit: from compute capability 7.5 on).
    ///
    /// Source: vLLM 0.33, `get_min_capability` of `fp8` and `auto_awq`.
    pub fn runs(&self, format: WeightFormat) -> bool {
        format == WeightFormat::Bits16 || self.capability >= (7, 5)
    }

    /// bf16 arithmetic (8.0 and newer); older ones serve in F16.
    pub fn has_bf16(&self) -> bool {
        self.capability >= (8, 0)
    }
}

const fn card(name: &'static str, mib: u64, major: u8, minor: u8) -> Card {
    Card { name, mib, capability: (major, minor) }
}

/// Cards that models are served with, smallest first.
///
/// Source: memory as `nvidia-smi` reports it for each product, compute capability from NVIDIA's CUDA GPU list.
pub const CARDS: [Card; 29] = [
    card("RTX 3060 12GB", 12_288, 8, 6),
    card("RTX 3080 Ti 12GB", 12_288, 8, 6),
    card("RTX 4070 12GB", 12_282, 8, 9),
    card("T4", 15_360, 7, 5),
    card("V100 16GB", 16_384, 7, 0),
    card("RTX 5080 16GB", 16_303, 12, 0),
    card("RTX 4080 16GB", 16_376, 8, 9),
    card("A10", 23_028, 8, 6),
    card("L4", 23_034, 8, 9),
    card("RTX 4090 24GB", 24_564, 8, 9),
    card("RTX 3090 24GB", 24_576, 8, 6),
    card("RTX 5090 32GB", 32_607, 12, 0),
    card("V100 32GB", 32_768, 7, 0),
    card("A100 40GB", 40_960, 8, 0),
    card("A40", 46_068, 8, 6),
    card("L40", 46_068, 8, 9),
    card("L40S", 46_068, 8, 9),
    card("RTX 4090 48GB", 49_140, 8, 9),
    card("RTX A6000", 49_140, 8, 6),
    card("RTX 6000 Ada", 49_140, 8, 9),
    card("A800 80GB", 81_920, 8, 0),
    card("A100 80GB", 81_920, 8, 0),
    card("H100 80GB", 81_559, 9, 0),
    card("H800", 81_559, 9, 0),
    card("H100 NVL", 95_830, 9, 0),
    card("RTX PRO 6000", 97_887, 12, 0),
    card("H20", 97_871, 9, 0),
    card("H200", 143_771, 9, 0),
    card("B200", 183_359, 10, 0),
];

/// Memory of a GPU: a named card, or an amount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Vram {
    /// A card whose abilities are known.
    Card(Card),
    /// So many bytes of some card.
    Bytes(u64),
}

impl Vram {
    /// Reads `24GiB`, `24GB`, `24`, `24564MiB`, or a card's name.
    ///
    /// # Errors
    /// Exit 2 for text that is neither, listing the cards; and for a name that fits cards of several sizes.
    pub fn parse(text: &str) -> Result<Self> {
        if let Some(bytes) = amount(text) {
            return Ok(Vram::Bytes(bytes));
        }
        let wanted = bare(text);
        let fits = |c: &&Card| {
            let name = bare(c.name);
            // `a100` means any A100; `l40` must not mean the L40S.
            name == wanted || without_size(c.name) == wanted
        };
        let found: Vec<&Card> = CARDS.iter().filter(fits).collect();
        match found[..] {
            _ if wanted.is_empty() => Err(unknown(text)),
            [] => Err(unknown(text)),
            [card] => Ok(Vram::Card(*card)),
            _ => match found.iter().find(|c| bare(c.name) == wanted) {
                Some(card) => Ok(Vram::Card(**card)),
                None => Err(Error::usage(format!("--vram {} is sold in several sizes", Shown(text)))
                    .expected(found.iter().map(|c| format!("`{}`", c.name)).collect::<Vec<_>>().join(" or "))
                    .hint("say which, or give the amount: --vram 80GiB")),
            },
        }
    }

    /// Bytes.
    pub fn bytes(&self) -> u64 {
        match self {
            Vram::Card(card) => card.bytes(),
            Vram::Bytes(bytes) => *bytes,
        }
    }

    /// The card, where it is named.
    pub fn card(&self) -> Option<Card> {
        match self {
            Vram::Card(card) => Some(*card),
            Vram::Bytes(_) => None,
        }
    }
}

/// More than any card has, in GiB. A larger number is one of MiB without its unit.
const MOST_GIB: f64 = 4096.0;

/// An amount of memory: cards are sold in GB and hold GiB, so both units mean GiB; `nvidia-smi` tells MiB.
fn amount(text: &str) -> Option<u64> {
    const UNITS: [(&str, u64); 6] = [
        ("gib", 1 << 30),
        ("gb", 1 << 30),
        ("g", 1 << 30),
        ("mib", 1 << 20),
        ("mb", 1 << 20),
        ("m", 1 << 20),
    ];
    let text = text.trim().to_ascii_lowercase();
    let with_unit = UNITS.iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, *bytes)));
    let (number, unit) = with_unit.unwrap_or((&text, 1 << 30));
    let bytes = number.trim().parse::<f64>().ok()? * unit as f64;
    (bytes >= (1u64 << 20) as f64 && bytes <= MOST_GIB * (1u64 << 30) as f64).then_some(bytes as u64)
}

fn bare(name: &str) -> String {
    let letters: String = name.to_ascii_lowercase().chars().filter(char::is_ascii_alphanumeric).collect();
    let letters = letters.trim_start_matches("nvidia").trim_start_matches("geforce");
    letters.trim_start_matches("rtx").to_string()
}

fn without_size(name: &str) -> String {
    match name.rsplit_once(' ') {
        Some((first, size)) if size.ends_with("GB") => bare(first),
        _ => bare(name),
    }
}

fn unknown(text: &str) -> Error {
    let names: Vec<_> = CARDS.iter().map(|c| c.name).collect();
    Error::usage(format!("--vram {} is neither an amount nor a card that prep knows", Shown(text)))
        .expected(format!("an amount such as 24GiB, or one of: {}", names.join(", ")))
        .hint("give the amount that nvidia-smi shows, with its unit: 24564MiB")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card_of(text: &str) -> &'static str {
        match Vram::parse(text).unwrap() {
            Vram::Card(c) => c.name,
            Vram::Bytes(_) => panic!("{text} is no amount"),
        }
    }

    #[test]
    fn cards_are_found_however_they_are_spelled() {
        for (text, name) in [
            ("RTX 3080 Ti", "RTX 3080 Ti 12GB"),
            ("3080ti", "RTX 3080 Ti 12GB"),
            ("RTX 4090 48GB", "RTX 4090 48GB"),
            ("rtx4090-24gb", "RTX 4090 24GB"),
            ("NVIDIA L40S", "L40S"),
            ("l40", "L40"),
            ("h100", "H100 80GB"),
            ("A100 40GB", "A100 40GB"),
        ] {
            assert_eq!(card_of(text), name, "{text}");
        }
    }

    #[test]
    fn amounts_are_gib_whatever_the_unit() {
        for text in ["24GiB", "24gb", "24 G", "24", "24576MiB", "24576 mib"] {
            assert_eq!(Vram::parse(text).unwrap(), Vram::Bytes(24 << 30), "{text}");
        }
        assert_eq!(Vram::parse("12GB").unwrap(), Vram::Bytes(12 << 30));
        assert_eq!(Vram::parse("24564MiB").unwrap(), Vram::Bytes(24_564 << 20));
        assert_eq!(Vram::parse("1.5GiB").unwrap(), Vram::Bytes(3 << 29));
    }

    #[test]
    fn a_name_of_two_sizes_and_an_unknown_one_are_refused() {
        let e = Vram::parse("A100").unwrap_err().to_string();
        assert!(e.contains("`A100 40GB` or `A100 80GB`"), "{e}");
        assert!(Vram::parse("RTX 9999").unwrap_err().to_string().contains("H200"));
        for bad in ["", "-4GiB", "0", "24564", "nan", "inf", "1e300", "GiB", "0.0001MiB"] {
            assert!(Vram::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn fp8_begins_with_ada_and_bf16_with_ampere() {
        let is = |name: &str| CARDS.iter().find(|c| c.name == name).map(|c| (c.has_bf16(), c.has_fp8()));
        assert_eq!(is("T4"), Some((false, false)));
        assert_eq!(is("A100 80GB"), Some((true, false)));
        assert_eq!(is("RTX 3090 24GB"), Some((true, false)));
        assert_eq!(is("L4"), Some((true, true)));
        assert_eq!(is("RTX 5090 32GB"), Some((true, true)));
        let fp8 = WeightFormat::Fp8 { block: true };
        assert!(CARDS.iter().filter(|c| c.name.starts_with("V100")).all(|c| !c.runs(fp8)));
    }

    #[test]
    fn the_list_goes_from_small_to_large() {
        assert!(CARDS.windows(2).all(|w| w[0].mib <= w[1].mib + 1024));
    }
}
