//! xLAM's JSON lists, in a code fence, behind a marker or bare.
//!
//! Source: vLLM 0.33, `xlam`.

use super::python::{Json, json, space};
use super::scan::between;
use super::{Context, Parsed, ToolCall};

/// `xlam`: the first place that holds JSON counts, whether it is calls or not.
pub fn xlam(text: &str, _: &Context) -> Option<Parsed> {
    let (content, value) = place(text)?;
    let calls = listed_calls(&value)?;
    (!calls.is_empty()).then(|| Parsed::called(&content, calls))
}

/// The calls of a list: items without name or arguments are passed over, a string of arguments is passed on.
pub(super) fn listed_calls(value: &Json) -> Option<Vec<ToolCall>> {
    let Json::List(items) = value else { return None };
    let mut calls = Vec::new();
    for item in items.iter().filter_map(Json::as_dict) {
        let (Some(name), Some(arguments)) = (item.get("name"), item.get("arguments")) else { continue };
        let arguments = match arguments {
            Json::Dict(_) => arguments.dump(),
            other => other.as_str()?.to_owned(),
        };
        calls.push(ToolCall { name: name.as_str()?.to_owned(), arguments });
    }
    Some(calls)
}

/// Content and JSON value: after the thinking, in one of the blocks, or as the whole text.
fn place(text: &str) -> Option<(String, Json)> {
    const THINK_END: &str = "</think>";
    if let Some(end) = text.find(THINK_END) {
        let (thought, rest) = text.split_at(end + THINK_END.len());
        let rest = space::strip(rest);
        let value = json::loads(rest).or_else(|| BLOCKS.iter().find_map(|block| block_value(rest, *block)));
        if let Some(value) = value {
            return Some((space::strip(thought).to_owned(), value));
        }
    }
    for block in BLOCKS {
        if let Some(value) = block_value(text, *block) {
            return Some((space::strip(&without(text, *block)).to_owned(), value));
        }
    }
    let value = Some(text).filter(|text| space::strip(text).starts_with('[')).and_then(json::loads)?;
    Some((String::new(), value))
}

/// Where calls may stand.
#[derive(Clone, Copy)]
enum Block {
    Fence,
    /// From the marker to the end of its line.
    Marker,
    Tags,
}

const BLOCKS: &[Block] = &[Block::Fence, Block::Marker, Block::Tags];

fn block_value(text: &str, block: Block) -> Option<Json> {
    blocks(text, block).into_iter().find_map(|(_, inside, _)| json::loads(inside))
}

fn without(text: &str, block: Block) -> String {
    let mut out = String::new();
    let mut at = 0;
    for (start, _, end) in blocks(text, block) {
        out.push_str(&text[at..start]);
        at = end;
    }
    out + &text[at..]
}

/// Start, inside and end of every block of this kind.
fn blocks(text: &str, block: Block) -> Vec<(usize, &str, usize)> {
    match block {
        Block::Fence => between(text, "```", "```")
            .map(|piece| {
                let inside = piece.inside.strip_prefix("json").unwrap_or(piece.inside);
                (piece.start, inside.trim_start(), piece.end)
            })
            .collect(),
        Block::Tags => between(text, "<tool_call>", "</tool_call>")
            .map(|piece| (piece.start, piece.inside, piece.end))
            .collect(),
        Block::Marker => {
            const MARKER: &str = "[TOOL_CALLS]";
            let mut found = Vec::new();
            let mut at = 0;
            while let Some(start) = text[at..].find(MARKER).map(|start| at + start) {
                let inside = start + MARKER.len();
                at = text[inside..].find('\n').map_or(text.len(), |length| inside + length);
                found.push((start, &text[inside..at], at));
            }
            found
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(text: &str) -> Option<(String, usize)> {
        let parsed = xlam(text, &Context::default())?;
        Some((parsed.content.unwrap_or_default(), parsed.tool_calls.len()))
    }

    const LIST: &str = r#"[{"name":"f","arguments":{}},{"name":"g","arguments":"{}"},{"name":"h"}]"#;

    #[test]
    fn every_place_is_searched() {
        assert_eq!(answer(LIST), Some((String::new(), 2)));
        assert_eq!(answer(&format!("a ```json\n{LIST}\n``` b")), Some(("a  b".into(), 2)));
        assert_eq!(answer(&format!("a [TOOL_CALLS]{LIST}\nb")), Some(("a \nb".into(), 2)));
        assert_eq!(answer(&format!("<tool_call>{LIST}</tool_call>")), Some((String::new(), 2)));
        assert_eq!(answer(&format!("t</think> {LIST}")), Some(("t</think>".into(), 2)));
    }

    #[test]
    fn the_first_json_counts_even_without_calls() {
        assert_eq!(answer(&format!("```1```<tool_call>{LIST}</tool_call>")), None);
        assert_eq!(answer(&format!("x {LIST}")), None);
    }

    #[test]
    fn arguments_of_another_kind_make_it_content() {
        assert_eq!(answer(r#"[{"name":"f","arguments":[1]}]"#), None);
        assert_eq!(answer(r#"[{"name":1,"arguments":{}}]"#), None);
    }
}
