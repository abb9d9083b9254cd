//! Python's `int()`, `float()` and number printing.

/// Longest text of digits that Python turns into an integer.
const MAX_DIGITS: usize = 4300;

/// Code points of the digit zero in every run of ten decimal digits of Unicode 15.1.
const ZEROS: [u32; 68] = [
    0x30, 0x660, 0x6f0, 0x7c0, 0x966, 0x9e6, 0xa66, 0xae6, 0xb66, 0xbe6, 0xc66, 0xce6, 0xd66, 0xde6, 0xe50,
    0xed0, 0xf20, 0x1040, 0x1090, 0x17e0, 0x1810, 0x1946, 0x19d0, 0x1a80, 0x1a90, 0x1b50, 0x1bb0, 0x1c40,
    0x1c50, 0xa620, 0xa8d0, 0xa900, 0xa9d0, 0xa9f0, 0xaa50, 0xabf0, 0xff10, 0x104a0, 0x10d30, 0x11066,
    0x110f0, 0x11136, 0x111d0, 0x112f0, 0x11450, 0x114d0, 0x11650, 0x116c0, 0x11730, 0x118e0, 0x11950,
    0x11c50, 0x11d50, 0x11da0, 0x11f50, 0x16a60, 0x16ac0, 0x16b50, 0x1d7ce, 0x1d7d8, 0x1d7e2, 0x1d7ec,
    0x1d7f6, 0x1e140, 0x1e2f0, 0x1e4f0, 0x1e950, 0x1fbf0,
];

/// The value 0 to 9 of a decimal digit of any script.
pub fn digit(c: char) -> Option<u8> {
    let code = u32::from(c);
    let run = ZEROS.partition_point(|&zero| zero <= code).checked_sub(1)?;
    u8::try_from(code - ZEROS[run]).ok().filter(|&value| value < 10)
}

/// `int(text)` in base ten as canonical digits: white space around, a sign, `_` between digits, digits of any script.
pub fn parse_int(text: &str) -> Option<String> {
    let text = to_ascii(text)?;
    let (sign, digits) = split_sign(text.trim_matches(' '));
    let digits = drop_underscores(digits)?;
    if digits.is_empty() || digits.len() > MAX_DIGITS || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    Some(canonical(sign == "-", &digits))
}

/// `float(text)` where that is finite.
pub fn parse_float(text: &str) -> Option<f64> {
    parse_any_float(text).filter(|value| value.is_finite())
}

/// `float(text)`: decimal forms, `inf`, `infinity` and `nan`, white space around, `_` between digits.
pub fn parse_any_float(text: &str) -> Option<f64> {
    // Rust reads the very same forms.
    drop_underscores(to_ascii(text)?.trim_matches(' '))?.parse().ok()
}

/// An integer's digits without leading zeros, and without a sign for zero.
pub fn canonical(negative: bool, digits: &str) -> String {
    let digits = digits.trim_start_matches('0');
    match (negative, digits) {
        (_, "") => "0".into(),
        (true, digits) => format!("-{digits}"),
        (false, digits) => digits.into(),
    }
}

/// Whether digits of this length can become an integer at all.
pub fn fits(digits: &str) -> bool {
    digits.len() <= MAX_DIGITS
}

/// The decimal digits of an integer written in base 2, 8 or 16; `None` where there are more than Python prints.
pub fn from_radix(digits: &str, radix: u32) -> Option<String> {
    if digits.trim_start_matches('0').len() > MAX_DIGITS * 4 {
        return None;
    }
    // Nine decimal digits a limb, least first.
    let mut limbs: Vec<u64> = vec![0];
    for digit in digits.chars() {
        let mut carry = u64::from(digit.to_digit(radix)?);
        for limb in &mut limbs {
            let sum = *limb * u64::from(radix) + carry;
            *limb = sum % 1_000_000_000;
            carry = sum / 1_000_000_000;
        }
        if carry > 0 {
            limbs.push(carry);
        }
    }
    let text: String = limbs.iter().rev().map(|limb| format!("{limb:09}")).collect();
    Some(canonical(false, &text)).filter(|text| fits(text))
}

/// The integer equal to a whole finite number, all digits.
pub fn whole(value: f64) -> Option<String> {
    (value.is_finite() && value.fract() == 0.0).then(|| {
        let text = format!("{value:.0}");
        canonical(text.starts_with('-'), text.trim_start_matches('-'))
    })
}

/// `repr(value)`: shortest digits that read back, exponent form below 1e-4 and from 1e16 on.
pub fn repr(value: f64) -> String {
    if value.is_nan() {
        return "NaN".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.into();
    }
    let shortest = format!("{value:e}");
    let (digits, exponent) = shortest.split_once('e').unwrap_or((&shortest, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = value.to_string();
    if plain.contains('.') { plain } else { plain + ".0" }
}

/// Digits of any script become ASCII and white space a blank, as Python does before it reads a number.
fn to_ascii(text: &str) -> Option<String> {
    text.chars()
        .map(|c| match c {
            c if c.is_whitespace() => Some(' '),
            c if c.is_ascii() => Some(c),
            c => digit(c).map(|value| char::from(b'0' + value)),
        })
        .collect()
}

fn split_sign(text: &str) -> (&str, &str) {
    text.split_at(usize::from(text.starts_with(['+', '-'])))
}

/// Takes out every `_` between two digits; any other `_` is a fault.
fn drop_underscores(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let between_digits = |at: usize| {
        at > 0 && bytes[at - 1].is_ascii_digit() && bytes.get(at + 1).is_some_and(u8::is_ascii_digit)
    };
    let sound = bytes.iter().enumerate().all(|(at, &b)| b != b'_' || between_digits(at));
    sound.then(|| text.replace('_', ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_are_sorted() {
        assert!(ZEROS.windows(2).all(|pair| pair[0] + 10 <= pair[1]));
    }

    #[test]
    fn int_takes_space_sign_underscore_and_any_digit() {
        for (text, value) in [
            (" 7\n", "7"),
            ("+07", "7"),
            ("-0", "0"),
            ("1_000", "1000"),
            ("\u{2003}\u{664}\u{662}", "42"),
            ("\u{ff11}2", "12"),
            ("123456789012345678901234567890", "123456789012345678901234567890"),
        ] {
            assert_eq!(parse_int(text).as_deref(), Some(value), "{text:?}");
        }
    }

    #[test]
    fn int_refuses_all_else() {
        for text in
            ["", " ", "5.0", "1e3", "0x1f", "_1", "1_", "1__0", "- 1", "--1", "1 2", "\u{1c}5", "²", "1,0"]
        {
            assert_eq!(parse_int(text), None, "{text:?}");
        }
        assert_eq!(parse_int(&"9".repeat(4301)), None);
        assert!(parse_int(&"9".repeat(4300)).is_some());
    }

    #[test]
    fn other_bases_become_decimal() {
        assert_eq!(from_radix("ff", 16).as_deref(), Some("255"));
        assert_eq!(from_radix("ffffffffffffffffffff", 16).as_deref(), Some("1208925819614629174706175"));
        assert_eq!(from_radix("000", 2).as_deref(), Some("0"));
        assert_eq!(from_radix(&"f".repeat(1_000_000), 16), None);
    }

    #[test]
    fn float_follows_python() {
        for (text, value) in
            [(" 1.5 ", 1.5), (".5", 0.5), ("5.", 5.0), ("1_0.2_5e1_0", 10.25e10), ("-1E-2", -0.01)]
        {
            assert_eq!(parse_float(text), Some(value), "{text:?}");
        }
        for text in ["inf", "nan", "Infinity", "1e999", "1._5", "0x1p3", "", ".", "e5", "1e"] {
            assert_eq!(parse_float(text), None, "{text:?}");
        }
    }

    #[test]
    fn floats_print_as_in_python() {
        for (value, text) in [
            (5.0, "5.0"),
            (-0.0, "-0.0"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e-5, "1.5e-05"),
            (0.0001, "0.0001"),
            (123456789.123, "123456789.123"),
            (1e300, "1e+300"),
            (f64::INFINITY, "Infinity"),
        ] {
            assert_eq!(repr(value), text);
        }
    }

    #[test]
    fn whole_numbers_keep_every_digit() {
        assert_eq!(whole(12.0).as_deref(), Some("12"));
        assert_eq!(whole(-0.0).as_deref(), Some("0"));
        assert_eq!(whole(1e23).as_deref(), Some("99999999999999991611392"));
        assert_eq!(whole(0.5), None);
    }
}
