//! Searches that the server does with regular expressions, in linear time.

/// A piece of text between two tags.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Between<'a> {
    /// Where the opening tag starts.
    pub start: usize,
    /// The text between the tags.
    pub inside: &'a str,
    /// Where the closing tag ends.
    pub end: usize,
}

/// Every shortest piece from an `open` to the next `close` after it, as `open(.*?)close` finds them.
pub fn between<'a>(text: &'a str, open: &'a str, close: &'a str) -> impl Iterator<Item = Between<'a>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = at + text[at..].find(open)?;
        let inside = start + open.len();
        let length = text[inside..].find(close)?;
        at = inside + length + close.len();
        Some(Between { start, inside: &text[inside..inside + length], end: at })
    })
}

/// The text after each `tag`, cut at the next one.
pub fn sections<'a>(text: &'a str, tag: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(tag).skip(1)
}

/// Finds the next place of a text, asked for from positions that only grow.
pub struct Next<'a> {
    text: &'a str,
    wanted: &'a str,
    found: Option<usize>,
    searched_from: Option<usize>,
}

impl<'a> Next<'a> {
    /// A search for `wanted`.
    pub fn new(text: &'a str, wanted: &'a str) -> Self {
        Next { text, wanted, found: None, searched_from: None }
    }

    /// Where it starts next at or after `at`; each part of the text is searched once.
    pub fn from(&mut self, at: usize) -> Option<usize> {
        let stale = match (self.searched_from, self.found) {
            (None, _) => true,
            (Some(_), Some(found)) => found < at,
            (Some(_), None) => false,
        };
        if stale {
            self.found = self.text[at..].find(self.wanted).map(|found| at + found);
            self.searched_from = Some(at);
        }
        self.found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_shortest_and_do_not_overlap() {
        let inside: Vec<_> = between("a[b[c]d]e[f]g[", "[", "]").map(|piece| piece.inside).collect();
        assert_eq!(inside, ["b[c", "f"]);
    }
}
