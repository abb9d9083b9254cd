//! Calibration data: a JSONL file, or the built-in set, as sequences of token ids.
//!
//! ```text
//!   lines ──▶ Entry (messages + tools │ text │ input_ids) ──shuffle──▶ token ids ──▶ packed or cut to the length
//!             every line is checked                       template, tokenizer        until there are enough
//! ```
//!
//! The order of lines depends on the seed alone, so the same file, model and options give the same sequences.

mod encode;
mod entry;
mod lines;
mod pack;
mod report;

use std::path::Path;

use verify::template::ChatTemplate;
use verify::{Digest, Error, Result, Shown};

use encode::Encoder;
use entry::Entry;
use lines::Lines;
use pack::Packer;

pub use report::DataReport;

/// The set that is used where no file is given: English, Chinese, code, and conversations that call tools.
const BUILT_IN: &str = include_str!("built_in.jsonl");

/// How much data, and in which order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataOptions {
    /// Sequences wanted; fewer where the data do not suffice.
    pub samples: usize,
    /// Tokens of a sequence at most.
    pub seq_len: usize,
    /// Seed of the order.
    pub seed: u64,
}

impl Default for DataOptions {
    /// 128 sequences of 512 tokens.
    fn default() -> Self {
        DataOptions { samples: 128, seq_len: 512, seed: 0 }
    }
}

/// Where the words of the data become those of the model.
#[derive(Debug, Clone)]
pub struct Voice<'a> {
    /// Folder with the config.json; its vocabulary bounds the ids.
    pub config: &'a Path,
    /// Folder with the tokenizer.
    pub tokenizer: &'a Path,
    /// The chat template; the tokenizer's folder's own where there is none.
    pub template: Option<ChatTemplate>,
}

impl<'a> Voice<'a> {
    /// That of a whole model.
    pub fn of(model: &'a Path) -> Self {
        Voice { config: model, tokenizer: model, template: None }
    }
}

/// Sequences to calibrate with.
#[derive(Debug, Clone, Default)]
pub struct Samples {
    /// Token ids; none of the sequences is empty.
    pub sequences: Vec<Vec<u32>>,
    /// sha256 over all of them, in order.
    pub digest: String,
    /// How they came to be.
    pub report: DataReport,
}

impl Samples {
    /// Sequences that are ready.
    pub fn of(sequences: Vec<Vec<u32>>) -> Self {
        let ends = |s: &[u32]| s.iter().chain([&u32::MAX]).flat_map(|t| t.to_le_bytes()).collect::<Vec<u8>>();
        let bytes: Vec<u8> = sequences.iter().flat_map(|s| ends(s)).collect();
        Samples { digest: Digest::of(&bytes).to_string(), sequences, report: DataReport::default() }
    }

    /// Reads `file` (the built-in set where there is none) for the model in the folder `model`.
    ///
    /// # Errors
    /// Exit 3 naming file and line for a line that is no sample, that the model's template refuses, or whose tokens
    /// the model does not have; exit 3 where no sequence is left; exit 2 for options of zero.
    pub fn read(file: Option<&Path>, model: &Path, options: &DataOptions) -> Result<Self> {
        Self::read_in(file, Voice::of(model), options)
    }

    /// The same for a model that is not in one folder yet: a base with an adapter's tokenizer or template.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_in(file: Option<&Path>, voice: Voice<'_>, options: &DataOptions) -> Result<Self> {
        if options.samples == 0 || options.seq_len == 0 {
            return Err(Error::usage("calibration needs at least one sample of one token")
                .found(format!("{} samples of {} tokens", options.samples, options.seq_len)));
        }
        let mut lines = match file {
            Some(path) => Lines::open(path)?,
            None => Lines::built_in(BUILT_IN)?,
        };
        lines.shuffle(options.seed);
        let mut encoder = Encoder::new(voice)?;
        let mut report = DataReport::new(&lines, options);
        let mut packer = Packer::new(options.samples, options.seq_len);
        let mut next = 0;
        while next < lines.count() && !packer.is_full() {
            let (place, entry) = lines.entry(next)?;
            let text = match encoder.render(&entry) {
                // Ours must work with every template, also with one that knows no tools.
                Err(_) if file.is_none() => {
                    report.refused += 1;
                    next += 1;
                    continue;
                }
                rendered => rendered.map_err(|e| e.at(&place))?,
            };
            let ids = encoder.tokens(&entry, text).map_err(|e| e.at(&place))?;
            if ids.is_empty() {
                report.empty += 1;
            } else if packer.add(ids, matches!(entry, Entry::Tokens(_))) {
                report.used += 1;
                report.tool_calls += usize::from(entry.has_tool_calls());
            } else {
                break;
            }
            next += 1;
        }
        report.left_over = lines.count() - next;
        let packed = packer.finish();
        report.finish(&packed, &encoder, options);
        if packed.sequences.is_empty() {
            return Err(Error::input(format!("{} has nothing to calibrate with", Shown(&report.source)))
                .found(format!("{} lines, {} of them empty, {} refused by the chat template", report.lines, report.empty, report.refused))
                .expected("one JSON object a line: {\"messages\": [..]}, {\"text\": \"..\"} or {\"input_ids\": [..]}"));
        }
        Ok(Samples { report, ..Samples::of(packed.sequences) })
    }
}
