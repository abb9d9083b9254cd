//! Whether a model thinks before it answers, and how that is switched: told by rendering, never from the text.

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::template::{Renderer, Request};

/// How a template treats thinking.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Thinking {
    /// `enable_thinking` changes the prompt.
    pub switch: bool,
    /// The model thinks where a request does not say; `None` where the template does not tell.
    pub by_default: Option<bool>,
    /// The prompt opens the think block itself.
    pub opened_by_prompt: bool,
}

impl Thinking {
    /// Renders the start of an answer with the switch on, off and left alone.
    pub fn of(renderer: &Renderer) -> Self {
        let prompt = |switch: Option<bool>| {
            let kwargs = switch.map(|on| ("enable_thinking".to_string(), Value::Bool(on)));
            let user = json!({"role": "user", "content": "probe"});
            let request = Request { kwargs: Map::from_iter(kwargs), ..Request::new(&[user], &[]) };
            renderer.render(&request).ok()
        };
        let (on, off, left) = (prompt(Some(true)), prompt(Some(false)), prompt(None));
        let switch = on.is_some() && off.is_some() && on != off;
        let opened = left.as_deref().is_some_and(|p| p.trim_end().ends_with("<think>"));
        let by_default = match switch {
            true => left.as_ref().map(|left| Some(left) != off.as_ref()),
            false => opened.then_some(true),
        };
        Thinking { switch, by_default, opened_by_prompt: opened }
    }

    /// True where answers may begin with a think block.
    pub fn thinks(self) -> bool {
        self.switch || self.opened_by_prompt
    }

    /// As one sentence.
    pub fn sentence(self) -> &'static str {
        match (self.switch, self.by_default) {
            (true, Some(true)) => "thinks unless a request says enable_thinking = false",
            (true, _) => "thinks only where a request says enable_thinking = true",
            (false, Some(true)) => "always thinks: the prompt opens the think block",
            (false, _) => "no switch: enable_thinking changes nothing",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::testing::renderer;

    fn of(text: &str) -> (bool, Option<bool>) {
        let t = Thinking::of(&renderer(text));
        (t.switch, t.by_default)
    }

    #[test]
    fn switch_and_default_are_told_by_rendering() {
        let qwen3 =
            "{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}";
        assert_eq!(of(qwen3), (true, Some(true)));
        let off = "{% if enable_thinking is defined and enable_thinking %}<think>{% else %}<think></think>{% endif %}";
        assert_eq!(of(off), (true, Some(false)));
        assert_eq!(of("{{ messages[0].content }}<think>\n"), (false, Some(true)));
        assert_eq!(of("{{ messages[0].content }}{# enable_thinking <think> #}"), (false, None));
    }
}
