//! Python's idea of white space in text.

/// Whether `str.isspace` holds: Unicode white space and the four separators U+001C to U+001F.
pub fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// `str.strip()`.
pub fn strip(text: &str) -> &str {
    text.trim_matches(is_space)
}

/// `str.rstrip()`.
pub fn strip_end(text: &str) -> &str {
    text.trim_end_matches(is_space)
}

/// Whether nothing but white space is there; true for the empty text.
pub fn is_blank(text: &str) -> bool {
    text.chars().all(is_space)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separators_count_as_space_but_zero_width_does_not() {
        assert_eq!(strip("\u{1f}\u{3000} a\u{a0}\n"), "a");
        assert_eq!(strip("\u{200b}a"), "\u{200b}a");
        assert!(is_blank(" \u{85}\u{1c}") && is_blank(""));
    }
}
