//! Runs a grammar over text.

use super::lexer::{Lexer, Piece};
use super::streamed::Content;
use super::{Blank, Body, Event, Grammar, Mark, Naming, State, Think, accepts};
use crate::parsers::Context;
use crate::parsers::python::space;

/// A call while it is read.
#[derive(Debug, Default)]
pub struct Slot {
    pub name: String,
    pub body: String,
    /// Whether a client would have been told of the call.
    pub announced: bool,
}

/// What the tool grammar's rules are used for.
#[derive(Clone, Copy, PartialEq)]
enum Pass {
    Calls,
    /// Only reasoning is cut off; call markup is passed on as text.
    Reasoning,
}

pub struct Machine<'a> {
    grammar: &'a Grammar,
    context: &'a Context,
    think: Think,
    pass: Pass,
    state: State,
    pub slots: Vec<Slot>,
    pub reasoning: String,
    /// Text before the first event of a call, and text after it.
    before: String,
    after: String,
    saw_call: bool,
    /// The content as it is streamed.
    pub streamed: Content,
    array: Array,
}

/// Where in a JSON array of calls the machine is.
#[derive(Debug, Default)]
struct Array {
    opened: bool,
    in_element: bool,
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl<'a> Machine<'a> {
    /// A machine that starts in content and reads calls.
    pub fn new(grammar: &'a Grammar, context: &'a Context, think: Think) -> Self {
        Machine {
            grammar,
            context,
            think,
            pass: Pass::Calls,
            state: State::Content,
            slots: Vec::new(),
            reasoning: String::new(),
            before: String::new(),
            after: String::new(),
            saw_call: false,
            streamed: Content::default(),
            array: Array::default(),
        }
    }

    /// A machine that starts where the grammar says and only cuts off reasoning.
    pub fn for_reasoning(grammar: &'a Grammar, context: &'a Context) -> Self {
        Machine { pass: Pass::Reasoning, state: grammar.start, ..Self::new(grammar, context, Think::Markers) }
    }

    /// Reads a whole text.
    pub fn run(&mut self, text: &str) {
        let own = self.grammar.markers.iter().copied();
        let known = |token: &&String| {
            !self.grammar.markers.iter().any(|(_, spelling)| spelling == token)
                && !self.grammar.kept_tokens.contains(&token.as_str())
        };
        let dropped =
            self.context.special_tokens.iter().filter(known).map(|token| (Mark::Dropped, token.as_str()));
        let lexer = Lexer::new(own.chain(dropped));
        for piece in lexer.pieces(text) {
            match piece {
                Piece::Text(text) => self.text(text),
                Piece::Marker(mark, spelling) => self.marker(mark, spelling),
            }
        }
        // An element of an array that is complete has already ended its call.
        let open = self.grammar.body != Body::Array || self.array.in_element;
        if self.state.in_call() && open {
            self.end_call();
        }
    }

    /// The content: text after the first call is lost as soon as a client has been told of any call.
    pub fn content(&self) -> String {
        let told = self.slots.iter().any(|slot| slot.announced);
        let content = if told { self.before.clone() } else { self.before.clone() + &self.after };
        let blank = !self.slots.is_empty() && space::is_blank(&content);
        if blank && self.grammar.blank != Blank::Kept { String::new() } else { content }
    }

    fn marker(&mut self, mark: Mark, spelling: &str) {
        let rule = self.grammar.rules.iter().find(|(state, on, ..)| *state == self.state && *on == mark);
        let Some(&(_, _, next, events)) = rule else {
            if mark != Mark::Dropped {
                self.text(spelling);
            }
            return;
        };
        let reasoning_only = matches!(mark, Mark::ThinkStart | Mark::ThinkEnd);
        if reasoning_only && self.think == Think::Text {
            return self.text(spelling);
        }
        if self.pass == Pass::Reasoning && self.belongs_to_calls(mark) {
            if events.contains(&Event::ReasoningEnd) {
                self.state = State::Content;
            }
            return self.text(spelling);
        }
        self.state = next;
        for event in events {
            match event {
                Event::ReasoningEnd => {}
                Event::CallStart => self.start_call(),
                Event::CallEnd => self.end_call(),
                Event::Body => self.body(spelling),
            }
        }
        if next == State::Args && self.grammar.body == Body::Array {
            self.array = Array::default();
        }
    }

    fn belongs_to_calls(&self, mark: Mark) -> bool {
        self.grammar.rules.iter().any(|(from, on, to, _)| *on == mark && (from.in_call() || to.in_call()))
    }

    fn text(&mut self, text: &str) {
        match self.state {
            State::Content => {
                self.streamed.text(text, self.saw_call, self.grammar.blank);
                let content = if self.saw_call { &mut self.after } else { &mut self.before };
                content.push_str(text);
            }
            State::Reasoning => self.reasoning.push_str(text),
            State::Preamble | State::Between => {}
            State::Name => {
                if let Some(slot) = self.slots.last_mut() {
                    slot.name.push_str(text);
                }
            }
            State::Args if self.grammar.body == Body::Array => self.array_text(text),
            State::Args => self.body(text),
        }
    }

    fn start_call(&mut self) {
        self.saw_call = true;
        self.streamed.call(self.grammar.blank);
        self.slots.push(Slot::default());
    }

    /// Takes body text; a client is told of the call as soon as its name is known.
    fn body(&mut self, text: &str) {
        let Some(slot) = self.slots.last_mut() else { return };
        slot.body.push_str(text);
        if slot.announced {
            return;
        }
        match self.grammar.naming {
            Naming::Final => {}
            _ if slot.name.is_empty() => return,
            Naming::Plain => {}
            Naming::Trimmed => {
                let name = space::strip(&slot.name);
                if !accepts(name, self.grammar, self.context) {
                    return;
                }
                slot.name = name.to_owned();
            }
            Naming::Header(read) => slot.name = read(&slot.name).unwrap_or_default().to_owned(),
        }
        slot.announced = accepts(&slot.name, self.grammar, self.context);
    }

    fn end_call(&mut self) {
        let Some(slot) = self.slots.last_mut() else { return };
        match self.grammar.naming {
            _ if slot.announced => return,
            Naming::Plain | Naming::Final => {}
            Naming::Trimmed => slot.name = space::strip(&slot.name).to_owned(),
            Naming::Header(read) => {
                if let Some(name) = read(&slot.name) {
                    slot.name = name.to_owned();
                }
            }
        }
        if slot.name.is_empty() && !matches!(self.grammar.naming, Naming::Final) {
            let found = quoted_name(&slot.body).unwrap_or_default();
            let found = match self.grammar.naming {
                Naming::Header(read) => read(found).unwrap_or(found),
                _ => found,
            };
            if accepts(found, self.grammar, self.context) {
                slot.name = found.to_owned();
            }
        }
        slot.announced = accepts(&slot.name, self.grammar, self.context);
    }

    fn array_text(&mut self, text: &str) {
        for (at, c) in text.char_indices() {
            if self.state != State::Args {
                return self.text(&text[at..]);
            }
            self.array_char(c, &text[at..at + c.len_utf8()]);
        }
    }

    fn array_char(&mut self, c: char, piece: &str) {
        if self.array.in_element {
            self.body(piece);
            if self.array.closes(c) {
                self.array.in_element = false;
                self.end_call();
            }
            return;
        }
        match c {
            ' ' | '\t' | '\r' | '\n' => {}
            '[' if !self.array.opened => self.array.opened = true,
            ',' if self.array.opened => {}
            '{' if self.array.opened => {
                self.start_call();
                self.array = Array { opened: true, in_element: true, depth: 1, ..Array::default() };
                self.body(piece);
            }
            ']' if self.array.opened => self.state = State::Content,
            _ => {
                self.state = State::Content;
                self.text(piece);
            }
        }
    }
}

impl Array {
    /// Takes the next character of an element and tells whether it ends it.
    fn closes(&mut self, c: char) -> bool {
        if self.escaped {
            self.escaped = false;
        } else if self.in_string {
            self.escaped = c == '\\';
            self.in_string = c != '"';
        } else {
            match c {
                '"' => self.in_string = true,
                '{' | '[' => self.depth += 1,
                '}' | ']' => {
                    self.depth = self.depth.saturating_sub(1);
                    return c == '}' && self.depth == 0;
                }
                _ => {}
            }
        }
        false
    }
}

/// The text after the first `"name": "`, up to its closing quote.
fn quoted_name(body: &str) -> Option<&str> {
    const KEY: &str = "\"name\"";
    let mut from = 0;
    while let Some(found) = body[from..].find(KEY) {
        from += found + KEY.len();
        let rest = body[from..].trim_start().strip_prefix(':').map(str::trim_start);
        if let Some(value) = rest.and_then(|rest| rest.strip_prefix('"')) {
            return value.find('"').map(|end| &value[..end]);
        }
    }
    None
}
