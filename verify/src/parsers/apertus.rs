//! Apertus' `<|tools_prefix|>[{"NAME": {..}}, ..]<|tools_suffix|>`.
//!
//! Source: vLLM 0.33, `apertus`. A list that is cut is completed as far as it goes.

use super::python::{Json, json, partial_json, space};
use super::{Context, Parsed, ToolCall};

const PREFIX: &str = "<|tools_prefix|>";
const SUFFIX: &str = "<|tools_suffix|>";

/// `apertus`: objects of one key, the function's name; further keys are dropped.
pub fn apertus(text: &str, _: &Context) -> Option<Parsed> {
    let (before, rest) = text.split_once(PREFIX)?;
    let (block, after) = match rest.split_once(SUFFIX) {
        Some((block, after)) => (block, after),
        None => (rest.strip_suffix('\n').unwrap_or(rest), ""),
    };
    let list = block.trim_start_matches(space::is_space);
    let (value, trailing) = match json::raw_decode(list, 0) {
        Some((value, end)) => (value, &list[end..]),
        None => (partial_json::loads(block)?, ""),
    };
    let items = match value {
        Json::List(items) => items,
        other => vec![other],
    };
    let calls = items.iter().filter_map(|item| {
        let (name, arguments) = item.as_dict()?.iter().next()?;
        Some(ToolCall { name: name.to_owned(), arguments: arguments.dump() })
    });
    let mut content = space::strip(before).to_owned();
    for part in [trailing.to_owned(), after.replace(SUFFIX, "")] {
        if !space::is_blank(&part) {
            content = space::strip(&format!("{content}\n{}", space::strip(&part))).to_owned();
        }
    }
    Some(Parsed::called(&content, calls.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(text: &str) -> Option<(String, Vec<(String, String)>)> {
        let parsed = apertus(text, &Context::default())?;
        let calls = parsed.tool_calls.into_iter().map(|call| (call.name, call.arguments)).collect();
        Some((parsed.content.unwrap_or_default(), calls))
    }

    #[test]
    fn text_around_is_content() {
        let text =
            " a <|tools_prefix|> [{\"f\": {\"x\":1}, \"y\": 2}, 1, {}] b <|tools_suffix|> c<|tools_suffix|> ";
        assert_eq!(answer(text), Some(("a\nb\nc".into(), vec![("f".into(), "{\"x\": 1}".into())])));
    }

    #[test]
    fn a_cut_list_is_completed() {
        assert_eq!(
            answer("<|tools_prefix|>[{\"f\": {\"x\": \"ab").unwrap().1,
            [("f".into(), "{\"x\": \"ab\"}".into())]
        );
        assert_eq!(
            answer("<|tools_prefix|>[{\"f\": {\"x\": 12, \"y").unwrap().1,
            [("f".into(), "{\"x\": 12}".into())]
        );
        assert_eq!(answer("<|tools_prefix|>nonsense"), None);
    }
}
