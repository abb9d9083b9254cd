//! Harmony, the message format of gpt-oss: headers with channel and recipient, `<|message|>`, text, an end token.
//!
//! Source: vLLM 0.33, `openai`, and the harmony library under it. The server reads token ids; here every spelled marker
//! counts as its token. The text starts inside the header of an assistant message.

use super::python::json;
use super::scan::Next;
use super::{Context, Parsed, ToolCall};

const START: &str = "<|start|>";
const MESSAGE: &str = "<|message|>";
const CHANNEL: &str = "<|channel|>";
const CONSTRAIN: &str = "<|constrain|>";
const ENDS: [&str; 3] = ["<|end|>", "<|return|>", "<|call|>"];

/// `openai`.
pub fn openai(text: &str, _: &Context) -> Parsed {
    let mut contents = Vec::new();
    let mut calls = Vec::new();
    for message in messages(text) {
        match message.kind() {
            Kind::Call(name) => {
                calls.push(ToolCall { name: name.to_owned(), arguments: message.arguments() })
            }
            Kind::Content if !message.text.is_empty() => contents.push(message.text),
            _ => {}
        }
    }
    Parsed { tool_calls: calls, ..Parsed::plain(&contents.join("\n")) }
}

/// The texts of the analysis channel.
pub fn openai_reasoning(text: &str) -> String {
    let messages = messages(text).into_iter().filter(|message| matches!(message.kind(), Kind::Analysis));
    messages.map(|message| message.text).filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n")
}

#[derive(Default)]
struct Message<'a> {
    channel: Option<&'a str>,
    recipient: Option<&'a str>,
    format: Option<&'a str>,
    text: &'a str,
}

enum Kind<'a> {
    Call(&'a str),
    Analysis,
    Content,
    Ignored,
}

impl<'a> Message<'a> {
    fn kind(&self) -> Kind<'a> {
        if let Some(name) = self.recipient.and_then(function) {
            return Kind::Call(name);
        }
        match (self.channel, self.recipient) {
            (Some("analysis"), _) => Kind::Analysis,
            (Some("final"), _) | (Some("commentary"), None) => Kind::Content,
            _ => Kind::Ignored,
        }
    }

    /// JSON is written again, all but ASCII escaped; text of another format or that is no JSON is passed on.
    fn arguments(&self) -> String {
        let value =
            json::loads(self.text).filter(|_| self.format.is_none_or(|format| format.contains("json")));
        value.map_or_else(|| self.text.to_owned(), |value| value.dump_ascii())
    }
}

/// The function a recipient names; the built-in tools are none.
fn function(recipient: &str) -> Option<&str> {
    if recipient.starts_with("<|") {
        return None;
    }
    if let Some(name) = recipient.strip_prefix("functions.") {
        return Some(name).filter(|name| !name.is_empty());
    }
    let built_in = ["assistant", "python", "browser", "container"].contains(&recipient)
        || ["python.", "browser.", "container."].iter().any(|prefix| recipient.starts_with(prefix));
    (!built_in && !recipient.is_empty()).then_some(recipient)
}

/// Every message of an assistant. Where the text ends inside a header, what there is of the message is content.
fn messages(text: &str) -> Vec<Message<'_>> {
    let mut found = Vec::new();
    let mut first = true;
    let mut message_start = 0;
    let mut rest = text;
    let mut ends = ENDS.map(|end| (Next::new(text, end), end.len()));
    loop {
        let Some((header, body)) = rest.split_once(MESSAGE) else {
            found.push(Message {
                channel: Some("final"),
                text: &text[message_start..],
                ..Message::default()
            });
            return found;
        };
        let header = if first { assistant(header) } else { named(header) };
        first = false;
        let end = match &header {
            Some(_) => {
                let start = text.len() - body.len();
                let found =
                    ends.iter_mut().filter_map(|(end, length)| Some((end.from(start)? - start, *length)));
                found.min().map(|(at, length)| (at, at + length))
            }
            // After a broken header all is skipped up to the next start.
            None => Some((0, 0)),
        };
        let (length, end) = end.unwrap_or((body.len(), body.len()));
        if let Some(Some(message)) = header {
            found.push(Message { text: &body[..length], ..message });
        }
        let after = &body[end..];
        let Some(start) = after.find(START) else { return found };
        message_start = text.len() - after.len() + start;
        rest = &after[start + START.len()..];
    }
}

/// A header that starts with a role: `Some(None)` for messages of others than the assistant.
fn named(header: &str) -> Option<Option<Message<'_>>> {
    let parts = parts(header)?;
    match *parts.words.first()? {
        "assistant" => assistant(header),
        "system" | "developer" | "user" | "tool" => Some(None),
        // An unknown role with a recipient is a tool.
        other => (parts.words.len() > 1 || other.starts_with("to=")).then_some(None),
    }
}

/// A header of the assistant, its role told or not.
fn assistant(header: &str) -> Option<Option<Message<'_>>> {
    let Parts { channel, mut words } = parts(header)?;
    if words.first() == Some(&"assistant") {
        words.remove(0);
    }
    let mut message = Message { channel, ..Message::default() };
    let count = words.len();
    if let Some(last) = words.pop() {
        if let Some(recipient) = last.strip_prefix("to=") {
            message.recipient = Some(recipient);
        } else if count == 1 && !last.starts_with(CONSTRAIN) {
            message.recipient = Some(last);
        } else {
            message.format = Some(last);
            message.recipient = words.pop().map(|word| word.strip_prefix("to=").unwrap_or(word));
        }
    }
    words.is_empty().then_some(Some(message))
}

/// A header taken apart.
struct Parts<'a> {
    channel: Option<&'a str>,
    /// Everything else, split at white space and before the mark of a format.
    words: Vec<&'a str>,
}

/// `None` for a channel mark without a channel.
fn parts(header: &str) -> Option<Parts<'_>> {
    let (before, channel, after) = match header.split_once(CHANNEL) {
        Some((before, rest)) => {
            let end = rest.find(|c: char| c.is_whitespace() || c == '<').unwrap_or(rest.len());
            (before, Some(&rest[..end]).filter(|channel| !channel.is_empty()).map(Some)?, &rest[end..])
        }
        None => (header, None, ""),
    };
    let mut words = Vec::new();
    for word in before.split_ascii_whitespace().chain(after.split_ascii_whitespace()) {
        let mut start = 0;
        for (at, _) in word.match_indices(CONSTRAIN).filter(|(at, _)| *at > 0) {
            words.push(&word[start..at]);
            start = at;
        }
        words.push(&word[start..]);
    }
    Some(Parts { channel, words })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(text: &str) -> (String, Vec<(String, String)>) {
        let parsed = openai(text, &Context::default());
        let calls = parsed.tool_calls.into_iter().map(|call| (call.name, call.arguments)).collect();
        (parsed.content.unwrap_or_default(), calls)
    }

    fn call(name: &str, arguments: &str) -> (String, String) {
        (name.into(), arguments.into())
    }

    #[test]
    fn recipient_stands_before_or_after_the_channel() {
        for header in [
            "<|channel|>commentary to=functions.f <|constrain|>json",
            " to=functions.f<|channel|>commentary <|constrain|>json",
            "<|channel|>commentary to=functions.f<|constrain|>json",
            "<|channel|>analysis to=functions.f code json",
        ] {
            let (_, calls) = answer(&format!("{header}<|message|>{{\"a\":\"ä\"}}<|call|>"));
            let wanted =
                if header.contains("code") { vec![] } else { vec![call("f", "{\"a\": \"\\u00e4\"}")] };
            assert_eq!(calls, wanted, "{header}");
        }
    }

    #[test]
    fn built_in_tools_are_no_functions() {
        for recipient in ["python", "browser.search", "container.exec", "assistant", "functions."] {
            assert_eq!(answer(&format!("<|channel|>commentary to={recipient}<|message|>x<|call|>")).1, []);
        }
    }

    #[test]
    fn several_contents_are_joined() {
        let text = "<|channel|>commentary<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b<|return|>";
        assert_eq!(answer(text).0, "a\nb");
    }

    #[test]
    fn text_that_is_no_json_passes_through() {
        assert_eq!(
            answer("<|channel|>commentary to=f <|constrain|>json<|message|>{\"a").1,
            [call("f", "{\"a")]
        );
        assert_eq!(
            answer("<|channel|>commentary to=f <|constrain|>text<|message|>{\"a\":1}").1,
            [call("f", "{\"a\":1}")]
        );
    }

    #[test]
    fn a_text_without_message_is_content() {
        assert_eq!(answer("hello").0, "hello");
        assert_eq!(
            answer("<|channel|>final<|message|>a<|end|><|start|>assistant<|chan").0,
            "a\n<|start|>assistant<|chan"
        );
    }

    #[test]
    fn analysis_is_reasoning() {
        let text = "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b";
        assert_eq!(openai_reasoning(text), "a");
        assert_eq!(answer(text).0, "b");
    }
}
