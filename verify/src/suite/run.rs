//! Runs a suite through a model: every first turn at once, then the follow-ups of the cases that called.

use serde::Serialize;
use serde_json::{Value, json};

use super::exchange::Exchange;
use super::format::{Case, Suite};
use super::reading::{Read, Reading};
use super::server::Lost;
use crate::error::Result;
use crate::generate::{Answer, Generate, Prompt};
use crate::progress::Progress;
use crate::template::{Failure, Renderer, Request};

/// New tokens where nothing else is asked for: calls are short, and the limit ends a model that never stops.
pub const MAX_NEW: usize = 256;

/// How a suite is run.
pub struct Running {
    /// At most so many new tokens for each answer.
    pub max_new: usize,
    /// Reads the calls that follow-ups answer.
    pub reading: Reading,
}

/// What one turn came to.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Transcript {
    /// Name of the case, with the turn behind it from the second on.
    pub id: String,
    /// The prompt, where the template gave one.
    pub prompt: Option<String>,
    /// Why the template gave none.
    pub refused: Option<Failure>,
    /// Why a follow-up was not run.
    pub skipped: Option<String>,
    /// The answer; a server's is its raw text where it gives one, else its content.
    pub answer: Option<Answer>,
    /// What a server said, and how far that agrees with its raw text and with itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub served: Option<Box<Exchange>>,
    /// Why a server gave no answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost: Option<Lost>,
}

impl Transcript {
    /// What the model wrote; empty without an answer.
    pub fn text(&self) -> &str {
        self.answer.as_ref().map_or("", |a| &a.text)
    }
}

/// Renders and runs every turn of every case and control; transcripts come in the order of [`Suite::steps`].
///
/// # Errors
/// Those of the model; a case that the template refuses is no error but scores nothing.
pub fn run(
    generate: &mut dyn Generate,
    renderer: &Renderer,
    suite: &Suite,
    running: &Running,
    progress: &dyn Progress,
) -> Result<Vec<Transcript>> {
    let mut talks: Vec<_> = suite.all().map(Talk::new).collect();
    let turns = suite.all().map(|c| 1 + c.then.len()).max().unwrap_or(0);
    for turn in 0..turns {
        let going = || 0..talks.len();
        let going: Vec<usize> = going().filter(|at| turn <= talks[*at].case.then.len()).collect();
        for at in &going {
            talks[*at].open_turn(turn, renderer, &running.reading);
        }
        let prompts: Vec<_> = going
            .iter()
            .filter_map(|at| talks[*at].turns.last()?.prompt.clone())
            .map(|text| Prompt { text, max_new: running.max_new })
            .collect();
        if prompts.is_empty() {
            continue;
        }
        let mut answers = generate.generate(&prompts, progress)?.into_iter();
        for at in going {
            if let Some(last) = talks[at].turns.last_mut().filter(|t| t.prompt.is_some()) {
                last.answer = answers.next();
            }
        }
    }
    Ok(talks.into_iter().flat_map(|t| t.turns).collect())
}

/// A case while it runs.
pub(super) struct Talk<'a> {
    pub case: &'a Case,
    pub messages: Vec<Value>,
    pub turns: Vec<Transcript>,
}

impl<'a> Talk<'a> {
    pub fn new(case: &'a Case) -> Self {
        Talk { case, messages: case.messages.clone(), turns: Vec::new() }
    }

    /// Adds the transcript of the next turn, with its prompt or the reason why there is none.
    fn open_turn(&mut self, turn: usize, renderer: &Renderer, reading: &Reading) {
        let before = self.turns.last().and_then(|t| t.answer.as_ref());
        let before = before.map(|answer| reading.read(self.case, &answer.text));
        let mut transcript = self.begin(turn, before);
        if transcript.skipped.is_none() {
            let kwargs = self.case.chat_template_kwargs.clone();
            let request = Request { kwargs, ..Request::new(&self.messages, &self.case.tools) };
            match renderer.render(&request) {
                Ok(prompt) => transcript.prompt = Some(prompt),
                Err(failure) => transcript.refused = Some(failure),
            }
        }
        self.turns.push(transcript);
    }

    /// The empty transcript of `turn`; from the second on, the calls of the answer `before` and their results are
    /// put into the conversation, or the turn is skipped.
    pub fn begin(&mut self, turn: usize, before: Option<Read>) -> Transcript {
        let id = match turn {
            0 => self.case.id.clone(),
            _ => format!("{} turn {}", self.case.id, turn + 1),
        };
        let skipped = if turn > 0 { self.answer_calls(turn, before).err() } else { None };
        Transcript { id, skipped, ..Transcript::default() }
    }

    fn answer_calls(&mut self, turn: usize, before: Option<Read>) -> Result<(), String> {
        let Some(Read { reasoning, parsed }) = before else {
            return Err("there is no answer to go on from".into());
        };
        let results = &self.case.then[turn - 1].results;
        if parsed.tool_calls.len() != results.len() {
            return Err(format!(
                "{} calls found where {} were to be answered",
                parsed.tool_calls.len(),
                results.len()
            ));
        }
        let id = |at: usize| format!("call{turn:02}{at:03}");
        let calls = parsed.tool_calls.iter().enumerate().map(|(at, call)| {
            json!({"id": id(at), "type": "function", "function": {"name": call.name, "arguments": call.arguments}})
        });
        let mut message = json!({"role": "assistant", "content": parsed.content.unwrap_or_default()});
        message["tool_calls"] = calls.collect();
        if let Some(reasoning) = reasoning {
            message["reasoning_content"] = reasoning.into();
        }
        self.messages.push(message);
        for (at, (call, result)) in parsed.tool_calls.iter().zip(results).enumerate() {
            let text = result.as_str().map_or_else(|| result.to_string(), str::to_string);
            self.messages
                .push(json!({"role": "tool", "tool_call_id": id(at), "name": call.name, "content": text}));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::*;
    use crate::generate::Finish;
    use crate::parsers;
    use crate::progress::Silent;
    use crate::suite::evaluate;
    use crate::template::testing::renderer;

    /// Writes the given texts in turn.
    struct Script(Vec<&'static str>);

    impl Generate for Script {
        fn generate(&mut self, prompts: &[Prompt], _: &dyn Progress) -> Result<Vec<Answer>> {
            let next = |_| Answer {
                text: self.0.remove(0).to_string(),
                prompt_tokens: 1,
                tokens: 1,
                finish: Finish::Stop,
                first_token: Duration::ZERO,
                latency: Duration::ZERO,
            };
            Ok(prompts.iter().map(next).collect())
        }
    }

    fn weather(script: Vec<&'static str>) -> (Vec<Transcript>, crate::suite::Evaluation) {
        let tool = json!({"type": "function", "function": {"name": "f", "description": "d",
            "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": []}}});
        let suite = json!({"version": 1, "cases": [{
            "id": "a", "class": "c", "messages": [{"role": "user", "content": "q"}], "tools": [tool],
            "expect": {"calls": [{"name": "f", "arguments": {"n": {"$any_of": [1, 2]}}}]},
            "then": [{"results": [{"t": 21}], "expect": {"no_call": true, "marks": ["21"]}}]
        }]});
        let suite = Suite::parse(&suite.to_string(), Path::new("s.json")).unwrap();
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/templates/tiny_tools.jinja");
        let renderer = renderer(&std::fs::read_to_string(path).unwrap());
        let reading = Reading::new(parsers::find("qwen3_coder").unwrap());
        let running = Running { max_new: 9, reading };
        let transcripts = run(&mut Script(script), &renderer, &suite, &running, &Silent).unwrap();
        let evaluation = evaluate(&suite, &transcripts, &running.reading);
        (transcripts, evaluation)
    }

    const CALL: &str = "<tool_call>\n<function=f>\n<parameter=n>\n2\n</parameter>\n</function>\n</tool_call>";

    #[test]
    fn a_follow_up_goes_on_from_the_models_own_call() {
        let (transcripts, e) = weather(vec![CALL, "It is 21."]);
        let prompt = transcripts[1].prompt.as_deref().unwrap();
        assert!(prompt.contains(CALL) && prompt.contains("<tool_response>\n{\"t\":21}\n"), "{prompt}");
        assert_eq!((e.points, e.max, e.perfect), (6, 6, 2));
    }

    #[test]
    fn a_follow_up_without_a_call_before_is_skipped() {
        let (transcripts, e) = weather(vec!["no"]);
        assert!(transcripts[1].skipped.as_deref().unwrap().contains("0 calls found"));
        assert_eq!((e.points, e.max), (0, 6));
    }

    #[test]
    fn runs_that_differ_are_unstable() {
        let runs = [weather(vec![CALL, "It is 21."]).1, weather(vec![CALL, "It is warm."]).1];
        let s = crate::suite::stability(&runs).unwrap();
        assert_eq!((s.min, s.max, s.mean), (4, 6, 5.0));
        assert_eq!(s.unstable, ["a turn 2"]);
    }
}
