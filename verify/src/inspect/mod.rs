//! What a model is, from config, headers and small files alone: nobody's weights are read.
//!
//! A [`ModelView`] is all that is needed: that of a local folder, or one that a remote source fills with
//! headers and configs.
//!
//! ```text
//!   config ──▶ Dimensions ─┐
//!   headers ─▶ Parameters, Storage ─┐
//!   tokenizer files ─▶ Tokens ──────┼──▶ Inspection ──▶ findings
//!   template ─▶ Taught, Thinking ───┴──▶ Parsers
//! ```

mod dimensions;
mod findings;
mod licence;
mod parameters;
mod parser;
mod storage;
mod thinking;
mod tokens;

use serde::Serialize;
use serde_json::Value;

pub use dimensions::{Dimensions, Experts, Linear, Rope};
pub use licence::Licence;
pub use parameters::{Amount, Parameters, Part, Sized};
pub use parser::Parsers;
pub use storage::{Elements, Quantization, Storage};
pub use thinking::Thinking;
pub use tokens::{Named, Stop, Tokens};

use crate::architecture::{Architecture, Family, Names};
use crate::checkpoint::json;
use crate::codec::int4::config::codes_per_word;
use crate::diagnose::{self, Taught};
use crate::error::{Error, Result};
use crate::rewrite::ModelView;
use crate::serving::WeightFormat;
use crate::template::{ChatTemplate, Finding, Places, Renderer};

/// A model as it was found.
#[derive(Debug, Clone, Serialize)]
pub struct Inspection {
    /// `model_type`.
    pub model_type: String,
    /// The family, where it is known.
    pub family: Option<&'static str>,
    /// The class that servers look up.
    pub class: Option<String>,
    /// Numbers by part.
    pub parameters: Parameters,
    /// Element types, shards, quantization.
    pub storage: Storage,
    /// Sizes of the language model, where the config tells all of them.
    pub dimensions: Option<Dimensions>,
    /// The chat template.
    pub template: Option<Template>,
    /// Tokenizer and stop tokens.
    pub tokens: Tokens,
    /// Licence.
    pub licence: Option<Licence>,
    /// The parsers that servers need.
    pub parsers: Parsers,
    /// There is a vision tower and nothing that prepares images for it.
    pub lacks_image_processor: bool,
    /// What is odd, errors first.
    pub findings: Vec<Finding>,
    /// Which tensors are what; `None` for a family that is not known, or an incomplete model.
    #[serde(skip)]
    pub architecture: Option<Architecture>,
}

/// A chat template.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Template {
    /// The place that wins.
    pub source: String,
    /// All places.
    pub places: Vec<String>,
    /// What it teaches, as a sentence.
    pub teaches: String,
    /// The format of calls.
    pub format: Option<&'static str>,
    /// How thinking is switched.
    pub thinking: Thinking,
    /// True where only processors look: a text server does not find it.
    pub only_in_processor: bool,
}

impl Inspection {
    /// Looks at a model. What is broken in a way that leaves the rest readable becomes a finding.
    ///
    /// # Errors
    /// Exit 3 for side files that are no JSON or cannot be read.
    pub fn of(view: &ModelView) -> Result<Self> {
        let family = Family::of(&view.config);
        let mut failures = Vec::new();
        let names = keep(family.clone().map(|f| Names::detect(f, &view.tensors)), &mut failures);
        let family = family.ok();
        let dimensions = family.and_then(|f| keep(Dimensions::of(&view.config, f), &mut failures));
        // Told once: an unknown family fails the architecture in the same words.
        let architecture =
            family.and_then(|_| keep(Architecture::of(&view.config, &view.tensors), &mut failures));
        let experts = dimensions.as_ref().and_then(|d| d.experts);
        let parameters =
            Parameters::count(&view.tensors, names.as_ref(), experts, codes_per_word(&view.config));
        let storage = Storage::of(&view.config, &view.tensors);
        let tokens = Tokens::of(view)?;
        let licence = Licence::of(view)?;
        let places = Places::of(view)?;
        let renderer = places
            .chosen()
            .and_then(|template| keep(Renderer::new(template, tokens.for_template.clone()), &mut failures));
        let taught = renderer.as_ref().map(diagnose::taught);
        let thinking = renderer.as_ref().map(Thinking::of).unwrap_or_default();
        let parsers = Parsers::of(taught.as_ref(), thinking, family);
        let embedding = names.as_ref().map(|n| format!("{}embed_tokens.weight", n.prefix()));
        let vision = parameters.of(Part::Vision).tensors > 0;
        let lacks_image_processor = vision && view.file("preprocessor_config.json").is_none();
        let looked = Looked {
            lacks_image_processor,
            embedding_rows: embedding.and_then(|n| Some(view.tensors.get(&n)?.spec.rows())),
            vocabulary: dimensions.as_ref().map(|d| d.vocabulary),
            failures: &failures,
            places,
            renderer,
            taught,
            thinking,
            parsers: &parsers,
            tokens: &tokens,
            parameters: &parameters,
            storage: &storage,
            dimensions: dimensions.as_ref(),
            licence: licence.as_ref(),
        };
        let findings = findings::all(view, &looked);
        let template = looked.template();
        let classes = view.config.value().get("architectures").and_then(Value::as_array);
        let class = classes.and_then(|c| Some(crate::Shown(c.first()?.as_str()?).to_string()));
        Ok(Inspection {
            model_type: crate::Shown(view.config.model_type()).to_string(),
            family: family.map(Family::name),
            class,
            template,
            lacks_image_processor,
            findings,
            parameters,
            storage,
            dimensions,
            tokens,
            licence,
            parsers,
            architecture,
        })
    }

    /// The format of the weights as they are.
    pub fn weight_format(&self) -> WeightFormat {
        self.storage.quantization.as_ref().map_or(WeightFormat::Bits16, |q| q.format)
    }
}

/// What was read, for the findings.
struct Looked<'a> {
    lacks_image_processor: bool,
    failures: &'a [Error],
    places: Places,
    renderer: Option<Renderer>,
    taught: Option<Taught>,
    thinking: Thinking,
    parsers: &'a Parsers,
    tokens: &'a Tokens,
    parameters: &'a Parameters,
    storage: &'a Storage,
    dimensions: Option<&'a Dimensions>,
    licence: Option<&'a Licence>,
    vocabulary: Option<usize>,
    embedding_rows: Option<usize>,
}

impl Looked<'_> {
    fn template(&self) -> Option<Template> {
        let chosen: ChatTemplate = self.places.chosen()?;
        let taught = self.taught.as_ref();
        Some(Template {
            source: chosen.source.to_string(),
            places: self.places.found.iter().map(|t| t.source.to_string()).collect(),
            teaches: taught.map_or_else(|| "it cannot be compiled".into(), Taught::sentence),
            format: taught.and_then(|t| t.format).map(|f| f.id),
            thinking: self.thinking,
            only_in_processor: chosen.source.place == crate::template::Place::Processor,
        })
    }
}

/// Which of the files `names` of a folder [`Inspection::of`] needs beside config, index and headers. A licence
/// file makes the model card needless.
pub fn needed<'a>(names: &[&'a str]) -> Vec<&'a str> {
    const READ: [&str; 6] = [
        "chat_template.jinja",
        "chat_template.json",
        "generation_config.json",
        "preprocessor_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ];
    let first_licence = names.iter().filter(|n| licence::is_licence(n)).min();
    let tells_licence = |n: &str| first_licence.map_or(n == licence::CARD, |first| n == *first);
    names.iter().filter(|n| READ.contains(n) || tells_licence(n)).copied().collect()
}

fn keep<T>(result: Result<T>, failures: &mut Vec<Error>) -> Option<T> {
    result.map_err(|e| failures.push(e)).ok()
}

pub(crate) fn side_json(view: &ModelView, name: &str) -> Result<Option<Value>> {
    view.text(name)?.map(|t| json::parse(&t, &view.folder().join(name))).transpose()
}
