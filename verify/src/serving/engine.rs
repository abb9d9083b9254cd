//! The servers that launch lines are written for, and the arguments that they take.

use serde::Serialize;

use crate::error::{Error, Result};
use crate::names::Shown;

/// A server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
}

/// What an argument takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    /// Nothing.
    Nothing,
    /// One value or more.
    Value,
}

impl Engine {
    /// Its name for people.
    pub fn title(self) -> &'static str {
        match self {
            Engine::Vllm => "vLLM",
            Engine::Sglang => "SGLang",
        }
    }

    /// The version whose arguments are known.
    pub fn version(self) -> &'static str {
        match self {
            Engine::Vllm => "0.33.0",
            Engine::Sglang => "0.5.23",
        }
    }

    /// The port that it listens on by default.
    pub fn default_port(self) -> u16 {
        match self {
            Engine::Vllm => 8000,
            Engine::Sglang => 30_000,
        }
    }

    /// The container image of its makers.
    pub fn image(self) -> String {
        match self {
            Engine::Vllm => format!("vllm/vllm-openai:v{}", self.version()),
            Engine::Sglang => format!("lmsysorg/sglang:v{}", self.version()),
        }
    }

    /// The words before the flags, for a model at `model`.
    pub fn program(self, model: &str) -> Vec<String> {
        let words: &[&str] = match self {
            Engine::Vllm => &["vllm", "serve", model],
            Engine::Sglang => &["python3", "-m", "sglang.launch_server", "--model-path", model],
        };
        words.iter().map(ToString::to_string).collect()
    }

    /// What `flag` takes; `None` where the server has no such argument.
    ///
    /// The lists in `flags/` hold names only. They were read from the sources in the wheels: vLLM's
    /// `engine/arg_utils.py` and `entrypoints/common/cli_args.py`, SGLang's `srt/server_args.py` and
    /// `srt/arg_groups/fields`.
    pub fn takes(self, flag: &str) -> Option<Takes> {
        let list = match self {
            Engine::Vllm => include_str!("flags/vllm-0.33.0.txt"),
            Engine::Sglang => include_str!("flags/sglang-0.5.23.txt"),
        };
        list.lines().find_map(|line| match line.split_once(' ') {
            Some((name, _)) => (name == flag).then_some(Takes::Value),
            None => (line == flag).then_some(Takes::Nothing),
        })
    }

    /// Checks further arguments of a user.
    ///
    /// # Errors
    /// Exit 2 for a flag that this version does not have.
    pub fn check(self, arguments: &[String]) -> Result<()> {
        let flags = arguments.iter().filter(|a| a.starts_with("--"));
        for flag in flags.map(|f| f.split('=').next().unwrap_or(f)) {
            // vLLM has a form with `no-` of every switch, and dotted keys of its JSON arguments.
            let plain = flag.replacen("--no-", "--", 1);
            let plain = plain.split('.').next().unwrap_or_default();
            if self.takes(flag).is_none() && self.takes(plain).is_none() {
                return Err(Error::usage(format!(
                    "{} {} has no argument {}",
                    self.title(),
                    self.version(),
                    Shown(flag)
                ))
                .hint("check the spelling against the server's --help"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_know_what_the_servers_take() {
        assert_eq!(Engine::Vllm.takes("--enable-auto-tool-choice"), Some(Takes::Nothing));
        assert_eq!(Engine::Vllm.takes("--max-model-len"), Some(Takes::Value));
        assert_eq!(Engine::Vllm.takes("--context-length"), None);
        assert_eq!(Engine::Sglang.takes("--context-length"), Some(Takes::Value));
        assert_eq!(Engine::Sglang.takes("--enable-auto-tool-choice"), None);
    }

    #[test]
    fn arguments_of_the_other_server_are_refused() {
        let args = |list: &[&str]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
        Engine::Vllm.check(&args(&["--no-enable-prefix-caching", "--seed", "7", "--seed=7"])).unwrap();
        let e = Engine::Vllm.check(&args(&["--mem-fraction-static", "0.8"])).unwrap_err();
        assert!(e.to_string().contains("vLLM 0.33.0 has no argument --mem-fraction-static"), "{e}");
        assert!(Engine::Sglang.check(&args(&["--max-model-len", "1"])).is_err());
    }
}
