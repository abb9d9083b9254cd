//! Adapters on experts, whose weights lie one by one or fused in one tensor of three axes, in the base as
//! well as in the adapter.
//!
//! Source: PEFT `ParamWrapper` (`target_parameters`): the factors of all experts lie in one pair,
//! A (E·r, in) with row e·r + j, and B (out, E·r) with column j·E + e.

use std::sync::Arc;

use verify::checkpoint::{TensorIndex, TensorSpec};
use verify::{Error, Result, Shown};

use super::prefix::{Candidate, candidates};
use crate::adapter::config::{AdapterConfig, PeftVersion};
use crate::adapter::stored::{Stored, View, shown};
use crate::adapter::{Adapter, Factors};
use crate::compute::piece::{Columns, Piece};

/// The two fused parameters of an experts module, in definition order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parameter {
    /// Rows of gate, then rows of up.
    GateUp,
    /// Down.
    Down,
}

impl Parameter {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Parameter::GateUp => "gate_up_proj",
            Parameter::Down => "down_proj",
        }
    }
}

/// One matrix of one expert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// gate_proj, w1.
    Gate,
    /// up_proj, w3.
    Up,
    /// down_proj, w2.
    Down,
}

impl Part {
    const ALL: [(Part, [&'static str; 2]); 3] =
        [(Part::Gate, ["gate_proj", "w1"]), (Part::Up, ["up_proj", "w3"]), (Part::Down, ["down_proj", "w2"])];

    fn parse(name: &str) -> Option<Self> {
        Part::ALL.iter().find(|(_, names)| names.contains(&name)).map(|(p, _)| *p)
    }

    fn names(self) -> [&'static str; 2] {
        match self {
            Part::Gate => ["gate_proj", "w1"],
            Part::Up => ["up_proj", "w3"],
            Part::Down => ["down_proj", "w2"],
        }
    }

    fn parameter(self) -> Parameter {
        match self {
            Part::Down => Parameter::Down,
            _ => Parameter::GateUp,
        }
    }
}

/// How the experts of one layer lie in the base.
#[derive(Debug)]
pub enum Layout {
    /// `EXPERTS.E.gate_proj.weight` and so on.
    PerExpert {
        /// Path of the experts module.
        module: String,
        /// Number of experts.
        count: usize,
    },
    /// `EXPERTS.gate_up_proj`, `EXPERTS.down_proj`.
    Fused {
        /// Path of the experts module.
        module: String,
    },
}

/// The experts of the module `path` in the base, and the rewrite that led there.
pub fn find(index: &TensorIndex, path: &str) -> Option<(Layout, Option<String>)> {
    candidates(path).into_iter().find_map(|Candidate { path, rule }| {
        let fused = [Parameter::GateUp, Parameter::Down].iter();
        if fused.into_iter().any(|p| index.contains(&format!("{path}.{}", p.name()))) {
            return Some((Layout::Fused { module: path }, rule));
        }
        let has = |e: usize| part_tensor(index, &path, e, Part::Down).is_some();
        let count = (0..).take_while(|&e| has(e)).count();
        (count > 0).then_some((Layout::PerExpert { module: path, count }, rule))
    })
}

/// The tensor of one matrix of expert `e`, under either of its names.
fn part_tensor<'a>(index: &'a TensorIndex, module: &str, e: usize, part: Part) -> Option<&'a TensorSpec> {
    let names = part.names().into_iter();
    names.into_iter().find_map(|n| index.get(&format!("{module}.{e}.{n}.weight"))).map(|t| &t.spec)
}

/// `PATH.experts.E.NAME` taken apart.
pub fn per_expert(module: &str) -> Option<(&str, usize, Part)> {
    let (rest, name) = module.rsplit_once('.')?;
    let (experts, number) = rest.rsplit_once('.')?;
    let last = experts.rsplit('.').next()?;
    let number = number.parse().ok()?;
    (last == "experts").then_some((experts, number, Part::parse(name)?))
}

/// The parameters that the wrappers of an experts module adapt, the outermost wrapper first.
///
/// # Errors
/// Exit 3 where `wrappers` is not the number of the module's parameters that the config targets.
pub fn wrapped(config: &AdapterConfig, module: &str, wrappers: usize) -> Result<Vec<Parameter>> {
    let covers = |entry: &String, p: Parameter| {
        let full = format!("{module}.{}", p.name());
        full == *entry || full.ends_with(&format!(".{entry}"))
    };
    let targeted = |p: &Parameter| config.target_parameters.iter().any(|e| covers(e, *p));
    let mut found: Vec<_> = [Parameter::GateUp, Parameter::Down].into_iter().filter(targeted).collect();
    if found.is_empty() && wrappers == 2 {
        found = vec![Parameter::GateUp, Parameter::Down];
    }
    if found.len() != wrappers {
        return Err(Error::input(format!("which experts' weights `{}` adapts is not clear", Shown(module)))
            .found(format!("{wrappers} pairs of factors"))
            .expected(format!(
                "{} by `target_parameters` [{}]",
                found.len(),
                Shown(&config.target_parameters.join(", "))
            ))
            .hint("config and weights are of two adapters: fetch both again"));
    }
    // Each new wrapper goes outside the last, so the first parameter lies deepest.
    found.reverse();
    Ok(found)
}

/// One expert's product of a fused pair: the rank and both orientations.
struct Fused<'a> {
    a: &'a Arc<Stored>,
    b: &'a Arc<Stored>,
    experts: usize,
    rank: usize,
}

/// Whether a stored matrix is P = B A of the pair or its transpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Orientation {
    Product,
    Transposed,
}

impl Fused<'_> {
    /// (left, right) of expert `e`.
    fn views(&self, e: usize, orientation: Orientation) -> (View, View) {
        let (a_cols, b_cols) = (self.a.spec.shape[1], self.b.spec.shape[1]);
        match orientation {
            Orientation::Product => (
                View::new(self.b, e, (b_cols, self.experts)),
                View::new(self.a, e * self.rank * a_cols, (a_cols, 1)),
            ),
            Orientation::Transposed => (
                View::new(self.a, e * self.rank * a_cols, (1, a_cols)),
                View::new(self.b, e, (self.experts, b_cols)),
            ),
        }
    }
}

/// Models whose fused experts are stored (E, in, out).
pub fn stores_transposed(model_type: &str) -> bool {
    matches!(model_type, "gpt_oss" | "qwen3_vl_moe" | "qwen3_vl_moe_text" | "llama4" | "llama4_text")
}

fn orientation(
    factors: &Factors,
    (rows, cols): (usize, usize),
    version: Option<PeftVersion>,
    model_type: &str,
) -> Result<Orientation> {
    let product = (factors.b.spec.shape[0], factors.a.spec.shape[1]);
    if product != (rows, cols) && product != (cols, rows) {
        return Err(Error::input(format!(
            "the factors of `{}` do not fit the experts",
            Shown(&factors.module)
        ))
        .found(format!("{}, {}", shown(&factors.a), shown(&factors.b)))
        .expected(format!("a product of {rows} x {cols} per expert"))
        .hint(
            "the adapter was trained on another base; see `base_model_name_or_path` in adapter_config.json",
        ));
    }
    if rows != cols {
        return Ok(if product == (rows, cols) { Orientation::Product } else { Orientation::Transposed });
    }
    // In and out were swapped between PEFT 0.18 and 0.19.1; a square matrix does not show it.
    let Some(version) = version else {
        return Err(Error::input(format!(
            "experts of `{}` are square: which way they lie is ambiguous",
            Shown(&factors.module)
        ))
        .found("no `peft_version` in adapter_config.json")
        .expected("the version of PEFT that saved the adapter")
        .hint("add `peft_version` to adapter_config.json"));
    };
    let product = match stores_transposed(model_type) {
        false => version >= (0, 19, 1),
        true => version == (0, 19, 0),
    };
    Ok(if product { Orientation::Product } else { Orientation::Transposed })
}

/// A piece and the tensor that it belongs to.
pub type Placed = (String, Piece);

/// What of the base the pieces of experts are placed in.
pub struct Base<'a> {
    /// The base's tensors.
    pub index: &'a TensorIndex,
    /// Its `model_type`.
    pub model_type: &'a str,
}

impl Base<'_> {
    /// Number of experts of the layer.
    ///
    /// # Errors
    /// Exit 3 where a fused tensor does not have three axes.
    pub fn count(&self, layout: &Layout, parameter: Parameter) -> Result<Option<usize>> {
        match layout {
            Layout::PerExpert { count, .. } => Ok(Some(*count)),
            Layout::Fused { module } => {
                let Some(t) = self.index.get(&format!("{module}.{}", parameter.name())) else {
                    return Ok(None);
                };
                Ok(Some(fused_shape(&t.spec)?.0))
            }
        }
    }

    /// The pieces of a fused pair; `scale` includes the adapter's weight.
    ///
    /// # Errors
    /// Exit 3 where shapes do not fit or the orientation is not known.
    pub fn place_fused(
        &self,
        (adapter, number): (&Adapter, usize),
        factors: &Factors,
        (layout, parameter): (&Layout, Parameter),
        (rank, scale): (usize, f64),
    ) -> Result<Vec<Placed>> {
        let version = adapter.config.peft_version;
        let fused = |experts| Fused { a: &factors.a, b: &factors.b, experts, rank };
        let piece = |rows: std::ops::Range<usize>, cols: usize, (left, right): (View, View)| Piece {
            rows,
            cols: Columns::all(cols),
            left,
            right,
            rank,
            scale,
            adapter: number,
        };
        match layout {
            Layout::Fused { module } => {
                let name = format!("{module}.{}", parameter.name());
                let t = self.index.get(&name).ok_or_else(|| verify::checkpoint::no_tensor(&name))?;
                let (experts, rows, cols) = fused_shape(&t.spec)?;
                let way = orientation(factors, (rows, cols), version, self.model_type)?;
                let views = (0..experts).map(|e| (e, fused(experts).views(e, way)));
                let pieces = views.map(|(e, v)| (name.clone(), piece(e * rows..(e + 1) * rows, cols, v)));
                Ok(pieces.collect())
            }
            Layout::PerExpert { module, count } => {
                let parts: &[Part] = match parameter {
                    Parameter::GateUp => &[Part::Gate, Part::Up],
                    Parameter::Down => &[Part::Down],
                };
                let mut placed = Vec::new();
                for e in 0..*count {
                    let tensors = parts.iter().map(|p| {
                        part_tensor(self.index, module, e, *p).filter(|t| t.shape.len() == 2).ok_or_else(
                            || {
                                Error::input(format!(
                                    "expert {e} of `{}` is not whole in the base",
                                    Shown(module)
                                ))
                                .expected("gate, up and down matrices")
                            },
                        )
                    });
                    let tensors: Vec<&TensorSpec> = tensors.collect::<Result<_>>()?;
                    let (rows, cols) = (tensors.iter().map(|t| t.shape[0]).sum(), tensors[0].shape[1]);
                    if tensors.iter().any(|t| t.shape[1] != cols) {
                        return Err(Error::input(format!(
                            "gate and up of expert {e} of `{}` differ in width",
                            Shown(module)
                        ))
                        .hint("the base is broken: fetch it again"));
                    }
                    let way = orientation(factors, (rows, cols), version, self.model_type)?;
                    let mut first = 0;
                    for t in tensors {
                        let (left, right) = fused(*count).views(e, way);
                        let views = (left.skip_rows(first), right);
                        placed.push((t.name.clone(), piece(0..t.shape[0], t.shape[1], views)));
                        first += t.shape[0];
                    }
                }
                Ok(placed)
            }
        }
    }

    /// The tensor of a per-expert base that `part` of expert `e` is, and its rewrite.
    pub fn own_tensor(&self, layout: &Layout, e: usize, part: Part) -> Option<&TensorSpec> {
        match layout {
            Layout::PerExpert { module, .. } => part_tensor(self.index, module, e, part),
            Layout::Fused { .. } => None,
        }
    }

    /// The piece of one expert's pair in a fused base; `None` where the base has no such expert.
    ///
    /// # Errors
    /// Exit 3 where shapes do not fit.
    pub fn place_expert(
        &self,
        number: usize,
        factors: &Factors,
        (module, e, part): (&str, usize, Part),
        scale: f64,
    ) -> Result<Option<Placed>> {
        let name = format!("{module}.{}", part.parameter().name());
        let Some(t) = self.index.get(&name) else { return Ok(None) };
        let (experts, rows, cols) = fused_shape(&t.spec)?;
        if e >= experts {
            return Ok(None);
        }
        let (out, input) = (factors.b.spec.shape[0], factors.a.spec.shape[1]);
        let halves = if part == Part::Down { 1 } else { 2 };
        let second = usize::from(part == Part::Up);
        let straight = (rows, cols) == (halves * out, input);
        let turned = (rows, cols) == (input, halves * out);
        let (first_row, height, columns, left, right) = match (straight, turned) {
            (true, true) if stores_transposed(self.model_type) => self.turned(factors, rows, second, halves),
            (true, _) => {
                let all = Columns::all(cols);
                (second * out, out, all, View::plain(&factors.b), View::plain(&factors.a))
            }
            (_, true) => self.turned(factors, rows, second, halves),
            _ => {
                return Err(Error::input(format!("the factors of `{}` do not fit the experts", Shown(&factors.module)))
                    .found(format!("{}, {}", shown(&factors.a), shown(&factors.b)))
                    .expected(format!("a part of {:?} of `{}`", t.spec.shape, Shown(&name)))
                    .hint("the adapter was trained on another base; see `base_model_name_or_path` in adapter_config.json"));
            }
        };
        let first = e * rows + first_row;
        let (rank, cols) = (factors.rank(), columns);
        let piece = Piece { rows: first..first + height, cols, left, right, rank, scale, adapter: number };
        Ok(Some((name, piece)))
    }

    /// A matrix stored (in, out): gate and up are columns, interleaved in gpt_oss.
    fn turned(
        &self,
        factors: &Factors,
        rows: usize,
        second: usize,
        halves: usize,
    ) -> (usize, usize, Columns, View, View) {
        let count = factors.b.spec.shape[0];
        let columns = match self.model_type {
            "gpt_oss" => Columns { first: second, step: halves, count },
            _ => Columns { first: second * count, step: 1, count },
        };
        (0, rows, columns, View::transposed(&factors.a), View::transposed(&factors.b))
    }
}

fn fused_shape(spec: &TensorSpec) -> Result<(usize, usize, usize)> {
    match spec.shape[..] {
        [experts, rows, cols] if experts > 0 => Ok((experts, rows, cols)),
        _ => Err(Error::input(format!("tensor `{}` is no stack of experts", Shown(&spec.name)))
            .found(format!("shape {:?}", spec.shape))
            .expected("three axes: experts, rows, columns")),
    }
}
