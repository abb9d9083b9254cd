//! Python source as far as tool calls are written in it: expressions of literals and calls.
//!
//! Stands for `ast.parse`. Everything that is no value a tool call may hold is told apart only as far as the answer
//! depends on it: other valid expressions become [`Expr::Other`].

use super::Json;
use super::source::{Piece, Source};

/// Bracket nesting at which Python's tokenizer gives up.
const MAX_BRACKETS: usize = 200;
/// Operators and conditionals nested in each other; only bounds the stack.
const MAX_DEPTH: usize = 600;

/// An expression.
#[derive(Debug, Clone, PartialEq)]
pub enum Expr {
    /// `str`, `int`, `float`, `bool` or `None`.
    Constant(Json),
    /// An f-string without placeholders.
    Format(String),
    /// A name, dotted or not.
    Name(String),
    List(Vec<Expr>),
    Tuple(Vec<Expr>),
    Set(Vec<Expr>),
    Dict(Vec<(Expr, Expr)>),
    /// A sign before an operand; true for minus.
    Signed(bool, Box<Expr>),
    Call(Call),
    /// `bytes`, complex numbers and `...`: literals that JSON does not have.
    Unwritable,
    /// Any other expression.
    Other,
}

/// A call; positional arguments are read but not kept.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// The dotted name that is called; `None` where it is another expression.
    pub name: Option<String>,
    /// Keyword arguments; `**` has no name.
    pub keywords: Vec<(Option<String>, Expr)>,
}

/// The one expression a source consists of, as `ast.parse` reads it in `eval` mode.
pub fn expression(source: &str) -> Option<Expr> {
    let mut parser = Parser::new(source)?;
    let expr = parser.expressions()?;
    parser.source.skip_blank_lines();
    parser.source.at_end().then_some(expr)
}

/// The elements of the list that is the first statement of `source`, as far as the whole source is valid.
pub fn list_statement(source: &str) -> Option<Vec<Expr>> {
    let mut parser = Parser::new(source)?;
    let Expr::List(items) = parser.statement()? else { return None };
    parser.more_statements()?;
    Some(items)
}

/// Whether the whole source is valid.
pub fn is_valid(source: &str) -> bool {
    Parser::new(source)
        .is_some_and(|mut parser| parser.statement().and_then(|_| parser.more_statements()).is_some())
}

struct Parser {
    source: Source,
    brackets: usize,
    depth: usize,
}

/// Operators of two operands; words need a border after them.
const OPERATORS: &[&str] =
    &["**", "//", "<<", ">>", "<=", ">=", "==", "!=", "+", "-", "*", "/", "%", "@", "&", "|", "^", "<", ">"];
const WORD_OPERATORS: &[&str] = &["and", "or", "in", "is"];
const ASSIGNMENTS: &[&str] =
    &["+=", "-=", "*=", "/=", "//=", "%=", "@=", "&=", "|=", "^=", ">>=", "<<=", "**="];

impl Parser {
    fn new(text: &str) -> Option<Self> {
        Some(Parser { source: Source::new(text)?, brackets: 0, depth: 0 })
    }

    /// A simple statement; of an assignment the value counts.
    fn statement(&mut self) -> Option<Expr> {
        if let Some(word) = self.source.peek_name().filter(|word| is_keyword(word)) {
            match word.as_str() {
                "pass" | "break" | "continue" => {
                    self.source.take_word(&word);
                    return Some(Expr::Other);
                }
                "return" | "raise" | "del" | "assert" | "global" | "nonlocal" => {
                    self.source.take_word(&word);
                    self.skip_space();
                    if matches!(word.as_str(), "return" | "raise") && self.source.at_line_end() {
                        return Some(Expr::Other);
                    }
                    self.expressions()?;
                    return Some(Expr::Other);
                }
                "import" => {
                    self.source.take_word(&word);
                    self.skip_space();
                    return self.expressions().filter(is_target).map(|_| Expr::Other);
                }
                _ => {}
            }
        }
        let mut value = self.expressions()?;
        self.skip_space();
        if ASSIGNMENTS.iter().any(|operator| self.source.take(operator)) {
            let target = is_target(&value) && !matches!(value, Expr::List(_) | Expr::Tuple(_));
            self.skip_space();
            self.expressions()?;
            return target.then_some(Expr::Other);
        }
        if matches!(value, Expr::Name(_) | Expr::Other) && self.source.take(":") {
            self.skip_space();
            self.expression()?;
            value = Expr::Name(String::new());
            self.skip_space();
        }
        while self.source.peek() == Some('=') && !self.source.starts_with("==") {
            if !is_target(&value) {
                return None;
            }
            self.source.take("=");
            self.skip_space();
            value = self.expressions()?;
            self.skip_space();
        }
        Some(value)
    }

    /// The rest of the source after the first statement.
    fn more_statements(&mut self) -> Option<()> {
        loop {
            self.skip_space();
            if self.source.take(";") {
                self.skip_space();
                if !self.source.at_line_end() {
                    self.statement()?;
                    continue;
                }
            }
            if !self.source.at_line_end() {
                return None;
            }
            self.source.skip_blank_lines();
            if self.source.at_end() {
                return Some(());
            }
            // A line that starts with a blank is an indentation without reason.
            if matches!(self.source.peek(), Some(' ' | '\t' | '\u{c}')) {
                return None;
            }
            self.statement()?;
        }
    }

    /// Blanks between tokens; line breaks too inside brackets.
    fn skip_space(&mut self) {
        self.source.skip_space(self.brackets > 0);
    }

    /// One expression, or several with commas between as a tuple.
    fn expressions(&mut self) -> Option<Expr> {
        let first = self.element()?;
        self.skip_space();
        if self.source.peek() != Some(',') {
            return Some(first);
        }
        let mut items = vec![first];
        while self.source.take(",") {
            self.skip_space();
            if !self.starts_expression() {
                break;
            }
            items.push(self.element()?);
            self.skip_space();
        }
        Some(Expr::Tuple(items))
    }

    fn starts_expression(&self) -> bool {
        match self.source.peek() {
            None => false,
            Some(c) => !matches!(c, ')' | ']' | '}' | '=' | ';' | '\n' | '#' | ':' | ','),
        }
    }

    /// An expression that may be starred.
    fn element(&mut self) -> Option<Expr> {
        self.skip_space();
        if self.source.peek() == Some('*') && !self.source.starts_with("**") {
            self.source.take("*");
            self.expression()?;
            return Some(Expr::Other);
        }
        self.expression()
    }

    fn expression(&mut self) -> Option<Expr> {
        if self.depth >= MAX_DEPTH {
            return None;
        }
        self.depth += 1;
        let expr = self.conditional();
        self.depth -= 1;
        expr
    }

    fn conditional(&mut self) -> Option<Expr> {
        let value = self.operation()?;
        self.skip_space();
        if !self.source.take_word("if") {
            return Some(value);
        }
        self.skip_space();
        self.operation()?;
        self.skip_space();
        if !self.source.take_word("else") {
            return None;
        }
        self.skip_space();
        self.expression()?;
        Some(Expr::Other)
    }

    /// Operands with operators between, precedence left aside: only a lone operand can be a value.
    fn operation(&mut self) -> Option<Expr> {
        let mut value = self.operand()?;
        loop {
            self.skip_space();
            // What looks like an operator may be an assignment.
            if ASSIGNMENTS.iter().any(|assignment| self.source.starts_with(assignment)) {
                return Some(value);
            }
            let operator = OPERATORS.iter().any(|operator| self.source.take(operator));
            let word = !operator && WORD_OPERATORS.iter().any(|operator| self.source.take_word(operator));
            if word {
                // `is not`
                self.skip_space();
            }
            let not_in = !operator && !word && self.source.take_word("not");
            if not_in {
                self.skip_space();
                if !self.source.take_word("in") {
                    return None;
                }
            }
            if !(operator || word || not_in) {
                return Some(value);
            }
            self.skip_space();
            self.operand()?;
            value = Expr::Other;
        }
    }

    /// A primary with the signs before it.
    fn operand(&mut self) -> Option<Expr> {
        let mut signs = Vec::new();
        loop {
            self.skip_space();
            match self.source.peek() {
                Some('-') => signs.push(Some(true)),
                Some('+') => signs.push(Some(false)),
                Some('~') => signs.push(None),
                _ if self.source.take_word("not") => {
                    signs.push(None);
                    continue;
                }
                _ => break,
            }
            self.source.advance();
        }
        if signs.len() > MAX_DEPTH {
            return None;
        }
        let primary = self.primary()?;
        Some(signs.into_iter().rev().fold(primary, |operand, sign| match sign {
            Some(minus) => Expr::Signed(minus, Box::new(operand)),
            None => Expr::Other,
        }))
    }

    fn primary(&mut self) -> Option<Expr> {
        let mut value = self.atom()?;
        loop {
            self.skip_space();
            match self.source.peek() {
                Some('.') => {
                    self.source.advance();
                    self.skip_space();
                    let attribute = self.source.peek_name().filter(|name| !is_keyword(name))?;
                    self.source.take_word(&attribute);
                    value = match value {
                        Expr::Name(name) => Expr::Name(format!("{name}.{attribute}")),
                        _ => Expr::Other,
                    };
                }
                Some('(') => {
                    let name = match value {
                        Expr::Name(name) => Some(name),
                        _ => None,
                    };
                    let keywords = self.arguments()?;
                    value = Expr::Call(Call { name, keywords });
                }
                Some('[') => {
                    self.open()?;
                    self.subscript()?;
                    self.close(']')?;
                    value = Expr::Other;
                }
                _ => return Some(value),
            }
        }
    }

    fn subscript(&mut self) -> Option<()> {
        let mut any = false;
        loop {
            self.skip_space();
            match self.source.peek()? {
                ']' => return any.then_some(()),
                ':' | ',' => self.source.advance(),
                _ => {
                    self.element()?;
                }
            }
            any = true;
        }
    }

    fn open(&mut self) -> Option<()> {
        self.source.advance();
        self.brackets += 1;
        self.skip_space();
        (self.brackets <= MAX_BRACKETS).then_some(())
    }

    fn close(&mut self, bracket: char) -> Option<()> {
        self.skip_space();
        if self.source.peek() != Some(bracket) {
            return None;
        }
        self.source.advance();
        self.brackets -= 1;
        Some(())
    }

    fn arguments(&mut self) -> Option<Vec<(Option<String>, Expr)>> {
        let mut keywords = Vec::new();
        let mut unpacked = false;
        self.open()?;
        while self.source.peek()? != ')' {
            if self.source.take("**") {
                keywords.push((None, self.expression()?));
                unpacked = true;
            } else if self.source.peek() == Some('*') {
                // Unpacked positional arguments may follow keywords, but not `**`.
                self.element().filter(|_| !unpacked)?;
            } else if let Some(name) = self.keyword() {
                keywords.push((Some(name), self.expression()?));
            } else {
                self.expression().filter(|_| keywords.is_empty())?;
            }
            self.skip_space();
            if !self.source.take(",") {
                break;
            }
            self.skip_space();
        }
        self.close(')')?;
        Some(keywords)
    }

    /// `name =`, taken if it is there.
    fn keyword(&mut self) -> Option<String> {
        let name = self.source.peek_name()?;
        let before = self.source.position();
        self.source.take_word(&name);
        self.skip_space();
        if self.source.peek() == Some('=') && !self.source.starts_with("==") && !is_keyword(&name) {
            self.source.advance();
            return Some(name);
        }
        self.source.go_back(before);
        None
    }

    fn atom(&mut self) -> Option<Expr> {
        match self.source.peek()? {
            '[' => self.list(),
            '(' => self.parentheses(),
            '{' => self.braces(),
            '.' if self.source.take("...") => Some(Expr::Unwritable),
            c if c.is_ascii_digit() || c == '.' => match self.source.number()? {
                Piece::Json(value) => Some(Expr::Constant(value)),
                _ => Some(Expr::Unwritable),
            },
            _ if self.source.starts_string() => self.strings(),
            _ => self.name(),
        }
    }

    fn name(&mut self) -> Option<Expr> {
        let name = self.source.peek_name()?;
        let value = match name.as_str() {
            "None" => Expr::Constant(Json::Null),
            "True" => Expr::Constant(Json::Bool(true)),
            "False" => Expr::Constant(Json::Bool(false)),
            word if is_keyword(word) => return None,
            _ => Expr::Name(name.clone()),
        };
        self.source.take_word(&name);
        Some(value)
    }

    /// Strings that stand side by side are one.
    fn strings(&mut self) -> Option<Expr> {
        let mut text = String::new();
        let (mut formats, mut bytes, mut other, mut count) = (0, 0, false, 0);
        while self.source.starts_string() {
            match self.source.string()? {
                Piece::Text(part) => text.push_str(&part),
                Piece::Format(part) => {
                    text.push_str(&part);
                    formats += 1;
                }
                Piece::Bytes => bytes += 1,
                Piece::Placeholders => other = true,
                Piece::Json(_) | Piece::Complex => return None,
            }
            count += 1;
            self.skip_space();
        }
        match () {
            () if bytes > 0 => (bytes == count).then_some(Expr::Unwritable),
            () if other => Some(Expr::Other),
            () if formats > 0 => Some(Expr::Format(text)),
            () => Some(Expr::Constant(Json::Str(text))),
        }
    }

    fn list(&mut self) -> Option<Expr> {
        self.open()?;
        let items = self.items(']')?;
        self.close(']')?;
        Some(Expr::List(items))
    }

    /// Elements up to the closing bracket, a comma after the last one allowed.
    fn items(&mut self, closing: char) -> Option<Vec<Expr>> {
        let mut items = Vec::new();
        while self.source.peek()? != closing {
            items.push(self.element()?);
            self.skip_space();
            if !self.source.take(",") {
                break;
            }
            self.skip_space();
        }
        Some(items)
    }

    fn parentheses(&mut self) -> Option<Expr> {
        self.open()?;
        let start = self.source.position();
        let mut items = self.items(')')?;
        let comma = self.source.last_token_was_comma(start);
        self.close(')')?;
        match items.len() {
            1 if !comma => items.pop(),
            _ => Some(Expr::Tuple(items)),
        }
    }

    fn braces(&mut self) -> Option<Expr> {
        self.open()?;
        if self.source.peek()? == '}' {
            self.close('}')?;
            return Some(Expr::Dict(Vec::new()));
        }
        let mut entries = Vec::new();
        let mut items = Vec::new();
        while self.source.peek()? != '}' {
            if self.source.take("**") {
                self.operation()?;
                entries.push((Expr::Other, Expr::Other));
            } else {
                let key = self.element()?;
                self.skip_space();
                if self.source.take(":") {
                    self.skip_space();
                    entries.push((key, self.expression()?));
                } else {
                    items.push(key);
                }
            }
            self.skip_space();
            if !self.source.take(",") {
                break;
            }
            self.skip_space();
        }
        self.close('}')?;
        match (entries.is_empty(), items.is_empty()) {
            (false, true) => Some(Expr::Dict(entries)),
            (true, false) => Some(Expr::Set(items)),
            _ => None,
        }
    }
}

fn is_target(expr: &Expr) -> bool {
    match expr {
        Expr::Name(_) => true,
        Expr::List(items) | Expr::Tuple(items) => items.iter().all(is_target),
        _ => false,
    }
}

/// Words of the language that cannot be names.
pub fn is_keyword(word: &str) -> bool {
    const KEYWORDS: &[&str] = &[
        "False", "None", "True", "and", "as", "assert", "async", "await", "break", "class", "continue",
        "def", "del", "elif", "else", "except", "finally", "for", "from", "global", "if", "import", "in",
        "is", "lambda", "nonlocal", "not", "or", "pass", "raise", "return", "try", "while", "with", "yield",
    ];
    KEYWORDS.contains(&word)
}
