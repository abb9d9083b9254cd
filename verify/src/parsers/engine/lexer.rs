//! Cuts text at markers.

use super::Mark;

/// A piece of text: a marker, or what stands between markers.
#[derive(Debug, PartialEq)]
pub enum Piece<'a> {
    Text(&'a str),
    Marker(Mark, &'a str),
}

/// Finds the longest marker at each position.
pub struct Lexer<'a> {
    /// Spellings by their first byte, longest first.
    by_first: Vec<Vec<(Mark, &'a str)>>,
}

impl<'a> Lexer<'a> {
    pub fn new(markers: impl Iterator<Item = (Mark, &'a str)>) -> Self {
        let mut by_first = vec![Vec::new(); 256];
        for (mark, spelling) in markers {
            if let Some(&first) = spelling.as_bytes().first() {
                by_first[usize::from(first)].push((mark, spelling));
            }
        }
        for spellings in &mut by_first {
            // Stable: of equal spellings the grammar's own comes first.
            spellings.sort_by_key(|(_, spelling)| std::cmp::Reverse(spelling.len()));
        }
        Lexer { by_first }
    }

    /// The pieces of `text`, in order and without gaps.
    pub fn pieces<'t>(&self, text: &'t str) -> impl Iterator<Item = Piece<'t>> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let start = at;
            let mut end = at;
            while end < text.len() {
                if let Some((mark, length)) = self.marker_at(&text.as_bytes()[end..]) {
                    if end > start {
                        at = end;
                        return Some(Piece::Text(&text[start..end]));
                    }
                    at = end + length;
                    return Some(Piece::Marker(mark, &text[end..at]));
                }
                end += 1;
            }
            at = end;
            (end > start).then(|| Piece::Text(&text[start..end]))
        })
    }

    fn marker_at(&self, rest: &[u8]) -> Option<(Mark, usize)> {
        let second = rest.get(1);
        self.by_first[usize::from(rest[0])]
            .iter()
            .map(|(mark, spelling)| (*mark, spelling.as_bytes()))
            // The second byte rules out nearly all before they are compared.
            .find(|(_, spelling)| {
                (spelling.len() == 1 || spelling.get(1) == second) && rest.starts_with(spelling)
            })
            .map(|(mark, spelling)| (mark, spelling.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_marker_wins_and_nothing_is_lost() {
        let lexer =
            Lexer::new([(Mark::NameEnd, ">"), (Mark::ThinkStart, "<a"), (Mark::ThinkEnd, "<a>")].into_iter());
        let pieces: Vec<_> = lexer.pieces("x<<a>ä<a<").collect();
        assert_eq!(
            pieces,
            [
                Piece::Text("x<"),
                Piece::Marker(Mark::ThinkEnd, "<a>"),
                Piece::Text("ä"),
                Piece::Marker(Mark::ThinkStart, "<a"),
                Piece::Text("<"),
            ]
        );
    }
}
