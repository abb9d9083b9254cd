//! The characters of Python source, and the tokens that need looking into: numbers and strings.

use super::{Json, number};

/// A token with a value.
#[derive(Debug, Clone, PartialEq)]
pub enum Piece {
    /// A number that JSON has.
    Json(Json),
    Complex,
    Text(String),
    /// An f-string without placeholders.
    Format(String),
    /// An f-string with placeholders.
    Placeholders,
    Bytes,
}

/// Source text with a reading position.
pub struct Source {
    chars: Vec<char>,
    at: usize,
}

impl Source {
    /// `None` for text with a null character, which Python refuses; line breaks of all systems become `\n`.
    pub fn new(text: &str) -> Option<Self> {
        if text.contains('\0') {
            return None;
        }
        let mut chars = Vec::with_capacity(text.len());
        let mut input = text.chars().peekable();
        while let Some(c) = input.next() {
            if c == '\r' {
                input.next_if_eq(&'\n');
                chars.push('\n');
            } else {
                chars.push(c);
            }
        }
        Some(Source { chars, at: 0 })
    }

    /// The next character.
    pub fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn peek_at(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    /// Goes one character on.
    pub fn advance(&mut self) {
        self.at += 1;
    }

    /// Where reading is.
    pub fn position(&self) -> usize {
        self.at
    }

    /// Reads again from an earlier position.
    pub fn go_back(&mut self, position: usize) {
        self.at = position;
    }

    /// Whether everything has been read.
    pub fn at_end(&self) -> bool {
        self.at >= self.chars.len()
    }

    /// Whether the line ends here, a comment aside.
    pub fn at_line_end(&self) -> bool {
        matches!(self.peek(), None | Some('\n' | '#'))
    }

    /// Whether `word` comes next.
    pub fn starts_with(&self, word: &str) -> bool {
        word.chars().enumerate().all(|(ahead, c)| self.peek_at(ahead) == Some(c))
    }

    /// Takes `word` if it comes next.
    pub fn take(&mut self, word: &str) -> bool {
        let found = self.starts_with(word);
        if found {
            self.at += word.chars().count();
        }
        found
    }

    /// Takes `word` if it comes next and does not go on as a longer name.
    pub fn take_word(&mut self, word: &str) -> bool {
        let length = word.chars().count();
        let whole = self.starts_with(word) && !self.peek_at(length).is_some_and(is_name_part);
        if whole {
            self.at += length;
        }
        whole
    }

    /// The name that comes next.
    pub fn peek_name(&self) -> Option<String> {
        let rest = self.chars.get(self.at..)?;
        let first = *rest.first()?;
        if first != '_' && !first.is_alphabetic() {
            return None;
        }
        Some(rest.iter().take_while(|c| is_name_part(**c)).collect())
    }

    /// Blanks, a backslash before a line break, and inside brackets line breaks and comments.
    pub fn skip_space(&mut self, in_brackets: bool) {
        while let Some(c) = self.peek() {
            match c {
                ' ' | '\t' | '\u{c}' => self.at += 1,
                '\\' if self.peek_at(1) == Some('\n') => self.at += 2,
                '\n' if in_brackets => self.at += 1,
                '#' if in_brackets => self.skip_comment(),
                _ => return,
            }
        }
    }

    /// Lines of nothing but blanks and comments, from the end of a line on.
    pub fn skip_blank_lines(&mut self) {
        loop {
            let line = self.at;
            self.skip_space(false);
            match self.peek() {
                Some('#') => self.skip_comment(),
                Some('\n') => self.at += 1,
                None => return,
                Some(_) => {
                    self.at = line;
                    return;
                }
            }
        }
    }

    fn skip_comment(&mut self) {
        while self.peek().is_some_and(|c| c != '\n') {
            self.at += 1;
        }
    }

    /// Whether the last character that is no blank, after `from`, is a comma.
    pub fn last_token_was_comma(&self, from: usize) -> bool {
        let read = &self.chars[from..self.at];
        read.iter().rev().find(|c| !c.is_whitespace()) == Some(&',')
    }

    /// Reads the number that comes next.
    pub fn number(&mut self) -> Option<Piece> {
        let value = match (self.peek(), self.peek_at(1).map(|c| c.to_ascii_lowercase())) {
            (Some('0'), Some('x')) => self.radix(16)?,
            (Some('0'), Some('o')) => self.radix(8)?,
            (Some('0'), Some('b')) => self.radix(2)?,
            _ => self.decimal()?,
        };
        // A name right behind a number is a fault; keywords are let through by Python, but lead nowhere here.
        (!self.peek().is_some_and(is_name_part)).then_some(value)
    }

    fn digits(&mut self, radix: u32) -> Option<String> {
        let mut digits = String::new();
        loop {
            match self.peek() {
                Some(c) if c.is_digit(radix) => digits.push(c),
                Some('_') if !digits.is_empty() && self.peek_at(1).is_some_and(|c| c.is_digit(radix)) => {}
                _ => return (!digits.is_empty()).then_some(digits),
            }
            self.at += 1;
        }
    }

    fn radix(&mut self, radix: u32) -> Option<Piece> {
        self.at += 2;
        if self.peek() == Some('_') {
            self.at += 1;
        }
        number::from_radix(&self.digits(radix)?, radix).map(|digits| Piece::Json(Json::Int(digits)))
    }

    fn decimal(&mut self) -> Option<Piece> {
        let mut text = self.digits(10).unwrap_or_default();
        let whole = text.len();
        if self.peek() == Some('.') {
            self.at += 1;
            text.push('.');
            text.push_str(&self.digits(10).unwrap_or_default());
            if text.len() == 1 {
                return None;
            }
        }
        if matches!(self.peek(), Some('e' | 'E')) {
            let sign = usize::from(matches!(self.peek_at(1), Some('+' | '-')));
            if self.peek_at(1 + sign).is_some_and(|c| c.is_ascii_digit()) {
                text.push('e');
                text.extend(self.peek_at(1).filter(|_| sign == 1));
                self.at += 1 + sign;
                text.push_str(&self.digits(10)?);
            }
        }
        if matches!(self.peek(), Some('j' | 'J')) {
            self.at += 1;
            return Some(Piece::Complex);
        }
        if text.len() > whole {
            return text.parse().ok().map(|value| Piece::Json(Json::Float(value)));
        }
        let zeros = text.bytes().all(|b| b == b'0');
        let sound = (zeros || !text.starts_with('0')) && number::fits(&text);
        sound.then(|| Piece::Json(Json::Int(number::canonical(false, &text))))
    }

    /// Whether a string comes next, prefix letters included.
    pub fn starts_string(&self) -> bool {
        let letters = self.prefix_letters();
        let prefix: String =
            self.chars[self.at..self.at + letters].iter().map(|c| c.to_ascii_lowercase()).collect();
        matches!(self.peek_at(letters), Some('\'' | '"'))
            && matches!(prefix.as_str(), "" | "r" | "u" | "b" | "f" | "br" | "rb" | "fr" | "rf")
    }

    fn prefix_letters(&self) -> usize {
        let rest = self.chars.get(self.at..).unwrap_or_default();
        rest.iter().take(3).take_while(|c| c.is_ascii_alphabetic()).count().min(2)
    }

    /// Reads the string that comes next.
    pub fn string(&mut self) -> Option<Piece> {
        let letters = self.prefix_letters();
        let prefix: String =
            self.chars[self.at..self.at + letters].iter().map(|c| c.to_ascii_lowercase()).collect();
        self.at += letters;
        let quote = self.peek()?;
        let triple = self.peek_at(1) == Some(quote) && self.peek_at(2) == Some(quote);
        let length = if triple { 3 } else { 1 };
        self.at += length;
        let mut body = String::new();
        let mut placeholders = false;
        loop {
            let c = self.peek()?;
            if c == quote && (!triple || (self.peek_at(1) == Some(quote) && self.peek_at(2) == Some(quote))) {
                self.at += length;
                break;
            }
            self.at += 1;
            match c {
                '\n' if !triple => return None,
                '\\' if prefix.contains('r') => {
                    body.push(c);
                    body.push(self.peek()?);
                    self.at += 1;
                }
                '\\' => self.escape(&mut body, prefix.contains('b'))?,
                '{' | '}' if prefix.contains('f') => {
                    if self.peek() == Some(c) {
                        self.at += 1;
                        body.push(c);
                    } else if c == '}' && !placeholders {
                        return None;
                    } else {
                        placeholders = true;
                    }
                }
                c if prefix.contains('b') && !c.is_ascii() => return None,
                c => body.push(c),
            }
        }
        Some(match () {
            () if prefix.contains('b') => Piece::Bytes,
            () if placeholders => Piece::Placeholders,
            () if prefix.contains('f') => Piece::Format(body),
            () => Piece::Text(body),
        })
    }

    /// What follows a backslash; unknown escapes stand for themselves.
    fn escape(&mut self, body: &mut String, bytes: bool) -> Option<()> {
        let c = self.peek()?;
        self.at += 1;
        match c {
            '\n' => {}
            '\\' | '\'' | '"' => body.push(c),
            'a' => body.push('\u{7}'),
            'b' => body.push('\u{8}'),
            'f' => body.push('\u{c}'),
            'n' => body.push('\n'),
            'r' => body.push('\r'),
            't' => body.push('\t'),
            'v' => body.push('\u{b}'),
            '0'..='7' => {
                let mut code = c.to_digit(8)?;
                for _ in 0..2 {
                    let Some(digit) = self.peek().and_then(|c| c.to_digit(8)) else { break };
                    code = code * 8 + digit;
                    self.at += 1;
                }
                body.push(char::from_u32(code)?);
            }
            'x' => body.push(self.hex(2)?),
            'u' if !bytes => body.push(self.hex(4)?),
            'U' if !bytes => body.push(self.hex(8)?),
            // A name of Unicode's list, which is not at hand.
            'N' if !bytes => return None,
            other => {
                body.push('\\');
                body.push(other);
            }
        }
        Some(())
    }

    fn code(&mut self, digits: usize) -> Option<u32> {
        let mut code = 0u32;
        for _ in 0..digits {
            code = code.checked_mul(16)? + self.peek()?.to_digit(16)?;
            self.at += 1;
        }
        Some(code)
    }

    /// A lone surrogate becomes U+FFFD, a code beyond Unicode is a fault.
    fn hex(&mut self, digits: usize) -> Option<char> {
        let code = self.code(digits)?;
        if (0xd800..0xe000).contains(&code) {
            Some(char::REPLACEMENT_CHARACTER)
        } else {
            char::from_u32(code)
        }
    }
}

fn is_name_part(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}
