//! How a suite was run, as far as it bears on the result; kept in every report.

use serde::Serialize;

/// How tokens were chosen.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Sampling {
    /// Divides the logits; 0 takes the likeliest token.
    pub temperature: f32,
    /// The likeliest tokens that hold this share are drawn from.
    pub top_p: f32,
    /// So many of the likeliest tokens are drawn from; 0 is all.
    pub top_k: u32,
    /// The seed of the first run; each run after it takes the next.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling { temperature: 0.0, top_p: 1.0, top_k: 0, seed: 0 }
    }
}

impl Sampling {
    /// In a few words.
    pub fn sentence(&self) -> String {
        if self.temperature == 0.0 {
            return "greedy".into();
        }
        let mut words = vec![format!("temperature {}", self.temperature)];
        if self.top_p < 1.0 {
            words.push(format!("top-p {}", self.top_p));
        }
        if self.top_k > 0 {
            words.push(format!("top-k {}", self.top_k));
        }
        words.push(format!("seed {}", self.seed));
        words.join(", ")
    }
}

/// How a suite was run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Settings {
    /// At most so many new tokens for each answer.
    pub max_new: usize,
    /// How tokens were chosen.
    pub sampling: Sampling,
    /// Runs of the whole suite.
    pub runs: usize,
    /// The reasoning parser that cut the texts.
    pub reasoning_parser: Option<&'static str>,
    /// How a server was asked; none for a folder that was run here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked: Option<Asked>,
}

/// How a server was asked.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Asked {
    /// Each answer was asked for streamed too.
    pub streamed: bool,
    /// Answers asked for at once.
    pub concurrency: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            max_new: super::run::MAX_NEW,
            sampling: Sampling::default(),
            runs: 1,
            reasoning_parser: None,
            asked: None,
        }
    }
}

impl Settings {
    /// Whether the time to the first token is known, and not only that to the whole answer.
    pub fn is_told_first_tokens(&self) -> bool {
        self.asked.is_none_or(|asked| asked.streamed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sampling_is_told_in_words() {
        assert_eq!(Sampling::default().sentence(), "greedy");
        let s = Sampling { temperature: 0.7, top_p: 0.8, top_k: 20, seed: 3 };
        assert_eq!(s.sentence(), "temperature 0.7, top-p 0.8, top-k 20, seed 3");
    }
}
