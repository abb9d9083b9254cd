//! One turn with a server: the whole answer, the streamed one, the raw text, and whether the three agree.
//!
//! Two answers to one prompt may differ without any fault of the server's parser (sampling, batches that round
//! differently). So a difference between answers counts only where the server gives both a second time.

use serde::Serialize;

use super::format::Case;
use super::reading::{Read, Reading};
use super::server::{Ask, Lost, Message, Raw, RawSource, Server};
use crate::parsers::{Parsed, ToolCall};

/// What came of one turn.
#[derive(Debug, Clone, Serialize)]
pub struct Exchange {
    /// The answer that is scored.
    pub whole: Message,
    /// The same turn streamed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub streamed: Option<Message>,
    /// Whether the calls of both are equal.
    pub stream_check: Check,
    /// Where the raw text, which stands as the answer's text, is from.
    pub raw: Option<RawSource>,
    /// What the parser finds in the raw text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected: Option<Vec<ToolCall>>,
    /// Whether those are the server's calls.
    pub parser_check: Check,
    /// Tokens of the prompt that the served folder's template gives, where that folder is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub own_prompt_tokens: Option<usize>,
    /// The raw text.
    #[serde(skip)]
    pub raw_text: Option<String>,
}

/// Whether two accounts of one answer agree.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum Check {
    /// There was nothing to compare with.
    NotMade,
    /// They agree.
    Same,
    /// They differ, and do so each time.
    Differs,
    /// They differ, but the server does not repeat itself: nothing can be said.
    Unrepeatable,
    /// One of them did not come.
    Lost(Lost),
}

/// Asks the server for one turn in every way that is wanted.
///
/// # Errors
/// Where the whole answer did not come.
pub fn exchange(
    server: &dyn Server,
    (case, ask): (&Case, &Ask),
    reading: &Reading,
    stream: bool,
) -> Result<Exchange, Lost> {
    let whole = server.whole(ask)?;
    let (streamed, stream_check) = match stream.then(|| server.streamed(ask)) {
        None => (None, Check::NotMade),
        Some(Err(lost)) => (None, Check::Lost(lost)),
        Some(Ok(streamed)) => {
            let check = check_stream(server, ask, &whole, &streamed);
            (Some(streamed), check)
        }
    };
    let told = if reading.parser.is_read() { server.raw(ask, &whole) } else { Ok(None) };
    let (raw, expected, parser_check) = match told {
        Err(lost) => (None, None, Check::Lost(lost)),
        Ok(None) => (None, None, Check::NotMade),
        Ok(Some(raw)) => {
            let expected = read_raw(&raw, case, reading).tool_calls;
            let check = match same_calls(&expected, &whole.tool_calls) {
                true => Check::Same,
                false => confirm_parser(server, ask, &whole, &raw),
            };
            (Some(raw), Some(expected), check)
        }
    };
    let source = raw.as_ref().map(|r| r.source);
    let raw_text = raw.map(|r| r.text);
    let own_prompt_tokens = server.prompt_tokens(ask);
    Ok(Exchange {
        whole,
        streamed,
        stream_check,
        raw: source,
        expected,
        parser_check,
        own_prompt_tokens,
        raw_text,
    })
}

/// What the server's parsers make of a raw text.
pub fn read_raw(raw: &Raw, case: &Case, reading: &Reading) -> Parsed {
    match raw.source {
        RawSource::ToolChoiceNone => {
            Reading { reasoning: None, ..reading.clone() }.read(case, &raw.text).parsed
        }
        RawSource::TokenIds | RawSource::Completions => reading.read(case, &raw.text).parsed,
    }
}

impl Exchange {
    /// The server's answer as if it had been read here.
    pub fn read(&self) -> Read {
        Read { reasoning: self.whole.reasoning.clone(), parsed: self.whole.parsed() }
    }

    /// The raw text with its source.
    pub fn raw(&self) -> Option<Raw> {
        Some(Raw { text: self.raw_text.clone()?, source: self.raw? })
    }
}

fn check_stream(server: &dyn Server, ask: &Ask, whole: &Message, streamed: &Message) -> Check {
    if same_calls(&whole.tool_calls, &streamed.tool_calls) {
        return Check::Same;
    }
    let again =
        || Ok::<bool, Lost>(server.whole(ask)?.says_as(whole) && server.streamed(ask)?.says_as(streamed));
    confirmed(again())
}

fn confirm_parser(server: &dyn Server, ask: &Ask, whole: &Message, raw: &Raw) -> Check {
    if raw.source == RawSource::TokenIds {
        return Check::Differs;
    }
    let again = || {
        let second = server.whole(ask)?;
        Ok::<bool, Lost>(second.says_as(whole) && server.raw(ask, &second)?.as_ref() == Some(raw))
    };
    confirmed(again())
}

fn confirmed(repeated: Result<bool, Lost>) -> Check {
    match repeated {
        Ok(true) => Check::Differs,
        Ok(false) => Check::Unrepeatable,
        Err(lost) => Check::Lost(lost),
    }
}

/// Equal names, and arguments that are equal as JSON, or as text where they are none.
pub fn same_calls(a: &[ToolCall], b: &[ToolCall]) -> bool {
    let arguments = |x: &ToolCall, y: &ToolCall| match (x.value(), y.value()) {
        (Some(x), Some(y)) => x == y,
        _ => x.arguments == y.arguments,
    };
    a.len() == b.len() && a.iter().zip(b).all(|(x, y)| x.name == y.name && arguments(x, y))
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::super::format::Suite;
    use super::*;
    use crate::parsers;

    /// Gives the listed answers in turn, the last one for ever.
    struct Script {
        whole: Mutex<Vec<Message>>,
        streamed: Mutex<Vec<Result<Message, Lost>>>,
        raw: Mutex<Vec<Option<Raw>>>,
    }

    fn next<T: Clone>(list: &Mutex<Vec<T>>) -> T {
        let mut list = list.lock().unwrap();
        if list.len() > 1 { list.remove(0) } else { list[0].clone() }
    }

    impl Server for Script {
        fn whole(&self, _: &Ask) -> Result<Message, Lost> {
            Ok(next(&self.whole))
        }
        fn streamed(&self, _: &Ask) -> Result<Message, Lost> {
            next(&self.streamed)
        }
        fn raw(&self, _: &Ask, _: &Message) -> Result<Option<Raw>, Lost> {
            Ok(next(&self.raw))
        }
        fn prompt_tokens(&self, _: &Ask) -> Option<usize> {
            None
        }
    }

    fn calls(arguments: &[&str]) -> Message {
        let call = |a: &&str| ToolCall { name: "get_weather".into(), arguments: a.to_string() };
        Message { tool_calls: arguments.iter().map(call).collect(), ..Message::default() }
    }

    fn raw(source: RawSource, city: &str) -> Option<Raw> {
        let text = format!(
            "<tool_call>\n<function=get_weather>\n<parameter=city>\n{city}\n</parameter>\n</function>\n</tool_call>"
        );
        Some(Raw { text, source })
    }

    fn checks(
        whole: Vec<Message>,
        streamed: Vec<Result<Message, Lost>>,
        raw: Vec<Option<Raw>>,
    ) -> (Check, Check) {
        let suite = Suite::default_suite().unwrap();
        let case = &suite.cases[0];
        let ask =
            Ask { messages: case.messages.clone(), tools: case.tools.clone(), kwargs: Default::default() };
        let script = Script { whole: whole.into(), streamed: streamed.into(), raw: raw.into() };
        let reading = Reading::new(parsers::find("qwen3_coder").unwrap());
        let e = exchange(&script, (case, &ask), &reading, true).unwrap();
        (e.stream_check, e.parser_check)
    }

    const OSLO: &str = r#"{"city": "Oslo"}"#;

    #[test]
    fn arguments_are_equal_as_json() {
        let spaced = calls(&[r#"{ "city":"Oslo" }"#]);
        let both = checks(vec![spaced], vec![Ok(calls(&[OSLO]))], vec![raw(RawSource::TokenIds, "Oslo")]);
        assert_eq!(both, (Check::Same, Check::Same));
        assert!(!same_calls(&calls(&["{\"a\": 1}"]).tool_calls, &calls(&["{\"a\": 1.0}"]).tool_calls));
        assert!(!same_calls(&calls(&["{"]).tool_calls, &calls(&["{ "]).tool_calls));
        assert!(!same_calls(&calls(&[OSLO]).tool_calls, &calls(&[OSLO, OSLO]).tool_calls));
    }

    #[test]
    fn text_of_the_very_answer_needs_no_second_one() {
        let both =
            checks(vec![calls(&[OSLO])], vec![Ok(calls(&[OSLO]))], vec![raw(RawSource::TokenIds, "Bergen")]);
        assert_eq!(both.1, Check::Differs);
    }

    #[test]
    fn a_second_answer_differs_only_if_it_does_so_again() {
        let of = |texts: Vec<Option<Raw>>| checks(vec![calls(&[OSLO])], vec![Ok(calls(&[OSLO]))], texts).1;
        let bergen = || raw(RawSource::Completions, "Bergen");
        assert_eq!(of(vec![bergen()]), Check::Differs);
        assert_eq!(of(vec![bergen(), raw(RawSource::Completions, "Oslo")]), Check::Unrepeatable);
        assert_eq!(of(vec![None]), Check::NotMade);
    }

    #[test]
    fn streamed_calls_differ_only_if_both_answers_come_again() {
        let of = |whole: Vec<Message>, streamed| checks(whole, streamed, vec![None]).0;
        let bergen = || Ok(calls(&[r#"{"city": "Bergen"}"#]));
        assert_eq!(of(vec![calls(&[OSLO])], vec![bergen()]), Check::Differs);
        assert_eq!(of(vec![calls(&[OSLO])], vec![bergen(), Ok(calls(&[OSLO]))]), Check::Unrepeatable);
        assert_eq!(of(vec![calls(&[OSLO]), calls(&[])], vec![bergen()]), Check::Unrepeatable);
        let lost = Lost::network("gone");
        assert_eq!(of(vec![calls(&[OSLO])], vec![Err(lost.clone())]), Check::Lost(lost));
    }
}
