//! What became of the data, for the report and the terminal.

use serde::Serialize;
use verify::Digest;

use super::DataOptions;
use super::encode::Encoder;
use super::lines::{BUILT_IN_SOURCE, Lines};
use super::pack::Packed;

/// Where sequences came from. Every line is used, empty, refused or left over.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct DataReport {
    /// The file, or `built-in set`.
    pub source: String,
    /// sha256 of the file.
    pub data_sha256: Option<Digest>,
    /// sha256 of the chat template, where a line needed it.
    pub template_sha256: Option<Digest>,
    /// Seed of the order.
    pub seed: u64,
    /// Tokens of a sequence at most.
    pub seq_len: usize,
    /// Lines that are not blank.
    pub lines: usize,
    /// Samples in the sequences.
    pub used: usize,
    /// Samples dropped because they have no tokens.
    pub empty: usize,
    /// Samples of the built-in set dropped because this model's template cannot take them.
    pub refused: usize,
    /// Samples not looked at, because there were enough.
    pub left_over: usize,
    /// Samples that share a sequence with others.
    pub packed: usize,
    /// Samples cut to the length of a sequence.
    pub truncated: usize,
    /// Used samples in which a tool is called.
    pub tool_calls: usize,
    /// Sequences.
    pub sequences: usize,
    /// Tokens in all of them.
    pub tokens: usize,
    /// Things to act on.
    pub warnings: Vec<String>,
}

impl DataReport {
    pub(super) fn new(lines: &Lines, options: &DataOptions) -> Self {
        DataReport {
            source: lines.source.clone(),
            data_sha256: Some(lines.sha256),
            seed: options.seed,
            seq_len: options.seq_len,
            lines: lines.count(),
            ..DataReport::default()
        }
    }

    pub(super) fn finish(&mut self, packed: &Packed, encoder: &Encoder, options: &DataOptions) {
        self.template_sha256 = encoder.used_renderer().map(|r| r.template().digest());
        (self.packed, self.truncated) = (packed.packed, packed.truncated);
        self.sequences = packed.sequences.len();
        self.tokens = packed.sequences.iter().map(Vec::len).sum();
        // How much the built-in set holds is not the user's doing.
        if self.source != BUILT_IN_SOURCE && self.sequences < options.samples {
            self.warnings.push(format!(
                "calibration has {} sequences of up to {} tokens where {} were asked for: the data do not suffice",
                self.sequences, self.seq_len, options.samples
            ));
        }
        if self.refused > 0 {
            self.warnings.push(format!(
                "{} of {} samples of the built-in set do not fit this model's chat template: give a file of your own",
                self.refused, self.lines
            ));
        }
        self.warnings.extend(self.few_tool_calls(encoder));
    }

    /// A model that is to call tools is calibrated on what it will read: at least half calls.
    fn few_tool_calls(&self, encoder: &Encoder) -> Option<String> {
        // Of the built-in set more than half call tools; which of them are drawn is not the user's doing.
        let own = self.source != BUILT_IN_SOURCE;
        let few = own && self.tool_calls * 2 < self.used && encoder.teaches_tools();
        few.then(|| {
            format!(
                "{} of {} calibration samples ({} %) call tools, and the chat template teaches tools: let at least half of them be conversations with calls, as in production",
                self.tool_calls,
                self.used,
                self.tool_calls * 100 / self.used.max(1)
            )
        })
    }
}
