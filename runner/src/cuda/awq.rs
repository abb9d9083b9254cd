//! The heavy sums of AWQ by the GPU, bit for bit those of the processor (see quant's `awq::engine`).
//!
//! Rows of a matrix are taken a stretch at a time and
//! moments one block at a time, so that a lane holds no more than a matrix that is judged, or about 250 MiB.

use verify::Result;
use verify::codec::Float;

use super::lanes::{Lane, Lanes};
use super::launches::{
    ColumnSquares, ColumnStats, Descent, DescentOff, Gram, GridCodes, GridKeep, GridRound, GridTry, Groups,
    LanesProduct, ScaleKind,
};
use super::pool::Buffer;
use crate::cpu::{Array, Products};
use crate::weights::{Format, Matrix};

/// Weights whose codes are looked for at once.
const STRETCH: usize = 1 << 24;

/// Tokens, and multiplications in all, from which on a product is worth the way of its weights to the GPU.
const WORTH: [usize; 2] = [128, 1 << 20];

/// Computes on a GPU. Threads may share it.
#[derive(Debug)]
pub struct AwqEngine(Lanes);

/// How weights under one scale are stored.
#[derive(Debug, Clone, Copy)]
pub struct GridFormat {
    /// The largest code: 15 or 255.
    pub largest: f32,
    /// Whether zeros stand in the middle.
    pub symmetric: bool,
    /// Columns under a scale, a multiple of 32.
    pub group: usize,
    /// What scales are rounded to.
    pub scale: Float,
}

/// Products of neighbouring columns: sum of x x^T.
#[derive(Debug)]
pub struct Block<'a> {
    /// The first column.
    pub first: usize,
    /// How many, a multiple of 32.
    pub columns: usize,
    /// f32 `[columns, columns]`.
    pub gram: &'a mut [f32],
}

/// Ranges that may be narrowed.
#[derive(Debug, Clone, Copy)]
pub struct Narrow<'a> {
    /// f32 `[cols / group, group, group]`: the inputs' products within every group.
    pub parts: &'a [f32],
    /// How far.
    pub ratios: &'a [f32],
}

/// Moves of codes: blocks in order, each as first column, number of columns, and its damped products `[columns, columns]`.
pub type Downhill<'a> = dyn Fn(usize) -> Option<(usize, usize, Vec<f32>)> + 'a;

/// Codes of a matrix that are looked for.
pub struct CodesJob<'a> {
    /// f32 `[rows, cols]`, columns already scaled by `s`.
    pub values: &'a [f32],
    /// `[cols]`.
    pub s: &'a [f32],
    /// Their format.
    pub format: GridFormat,
    /// Whether ranges are narrowed.
    pub narrow: Option<Narrow<'a>>,
    /// Whether codes move downhill.
    pub downhill: Option<&'a Downhill<'a>>,
}

/// What was found.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Codes {
    /// `[rows, cols]`.
    pub codes: Vec<u8>,
    /// `[rows, cols / group]`.
    pub scales: Vec<f32>,
    /// `[rows, cols / group]`.
    pub zeros: Vec<f32>,
}

/// A matrix and inputs that it is judged on, on the GPU.
#[derive(Debug)]
pub struct Judge<'a> {
    w: Buffer,
    float: Float,
    x: Buffer,
    tokens: usize,
    groups: Groups,
    errors: Buffer,
    /// `[rows, tokens]`.
    y: Buffer,
    sums: Buffer,
    s: Buffer,
    lane: Lane<'a>,
}

impl AwqEngine {
    /// On GPU number `ordinal`.
    ///
    /// # Errors
    /// Exit 6 where there is none that can be used. (So for all that follow: the driver's errors.)
    pub fn open(ordinal: usize) -> Result<Self> {
        Lanes::open(ordinal).map(AwqEngine)
    }

    /// Adds inputs `x` `[tokens, cols]` to the sums of |x| by column, and to the blocks.
    ///
    /// # Errors
    /// See [`Self::open`].
    pub fn add_moments<'b>(
        &self,
        x: &Array,
        sizes: &mut [f64],
        blocks: impl Iterator<Item = Block<'b>>,
    ) -> Result<()> {
        let lane = self.0.lane()?;
        let (tokens, cols) = (x.rows() as u32, x.cols() as u32);
        let x = bring_floats(&lane, x.values())?;
        let sums = lane.take(sizes.len() * 4)?;
        sums.clear()?;
        let tops = lane.take(sizes.len() * 4)?;
        tops.clear()?;
        let stats = ColumnStats { x: x.at(0), tokens, cols, sums: sums.at(0), tops: tops.at(0) };
        lane.run(&stats.launch())?;
        for block in blocks {
            let gram = bring_floats(&lane, block.gram)?;
            let (first, width) = (block.first as u32, block.columns as u32);
            let launch = Gram { x: x.at(0), tokens, cols, first, width, sums: gram.at(0) };
            lane.run(&launch.launch())?;
            read_floats(&gram, block.gram)?;
        }
        let mut of_batch = vec![0.0; sizes.len()];
        read_floats(&sums, &mut of_batch)?;
        sizes.iter_mut().zip(of_batch).for_each(|(s, sum)| *s += f64::from(sum));
        Ok(())
    }

    /// Takes a matrix to be judged on `x`, at least one token.
    ///
    /// # Errors
    /// See [`Self::open`].
    pub fn judge(&self, w: &Matrix, float: Float, x: &Array, format: GridFormat) -> Result<Judge<'_>> {
        let lane = self.0.lane()?;
        Ok(Judge {
            w: lane.bring(w.bytes.as_slice())?,
            float,
            x: bring_floats(&lane, x.values())?,
            tokens: x.rows(),
            groups: format.groups(w.rows, w.cols),
            errors: lane.take(w.rows * w.cols * 4)?,
            y: lane.take(w.rows * x.rows() * 4)?,
            sums: lane.take(x.rows() * 8)?,
            s: lane.take(w.cols * 4)?,
            lane,
        })
    }

    /// The grids and codes of a matrix.
    ///
    /// # Errors
    /// See [`Self::open`].
    pub fn codes(&self, job: &CodesJob<'_>) -> Result<Codes> {
        let lane = self.0.lane()?;
        let cols = job.s.len();
        let s = bring_floats(&lane, job.s)?;
        let parts = job.narrow.map(|n| bring_floats(&lane, n.parts)).transpose()?;
        let rows = (STRETCH / cols).max(1);
        let mut made = Codes::default();
        for values in job.values.chunks(rows * cols) {
            let w = bring_floats(&lane, values)?;
            let groups = job.format.groups(values.len() / cols, cols);
            let stretch = Stretch {
                w: &w,
                s: &s,
                groups,
                off: lane.take(values.len() * 4)?,
                through: lane.take(values.len() * 4)?,
                lane: &lane,
            };
            let grids = match job.narrow.zip(parts.as_ref()) {
                Some((narrow, parts)) => stretch.narrowed(narrow.ratios, parts)?,
                None => stretch.whole()?,
            };
            let codes = lane.take(values.len())?;
            let at = [grids[0].at(0), grids[1].at(0)];
            lane.run(&GridCodes { w: w.at(0), groups, grids: at, codes: codes.at(0) }.launch())?;
            if let Some(downhill) = job.downhill {
                stretch.descend(downhill, &grids, &codes)?;
            }
            let (count, at) = (groups.count() as usize, made.codes.len());
            made.codes.resize(at + values.len(), 0);
            codes.read(0, &mut made.codes[at..])?;
            for (from, to) in grids.iter().zip([&mut made.scales, &mut made.zeros]) {
                let at = to.len();
                to.resize(at + count, 0.0);
                read_floats(from, &mut to[at..])?;
            }
        }
        Ok(made)
    }
}

impl Products for AwqEngine {
    fn product(&self, x: &Array, w: &Matrix) -> Result<Option<Array>> {
        let float = match w.format {
            Format::F32 => Float::F32,
            Format::F16 => Float::F16,
            Format::Bf16 => Float::BF16,
            _ => return Ok(None),
        };
        if x.rows() < WORTH[0] || x.rows() * w.rows * w.cols < WORTH[1] {
            return Ok(None);
        }
        let lane = self.0.lane()?;
        let (from, weights) = (bring_floats(&lane, x.values())?, lane.bring(w.bytes.as_slice())?);
        let mut y = Array::zeros(x.rows(), w.rows);
        let to = lane.take(x.rows() * w.rows * 4)?;
        let w = (weights.at(0), float, [w.rows as u32, w.cols as u32]);
        lane.run(&LanesProduct::plain((from.at(0), x.rows() as u32), w, to.at(0)).launch())?;
        read_floats(&to, y.values_mut())?;
        Ok(Some(y))
    }
}

impl GridFormat {
    fn groups(&self, rows: usize, cols: usize) -> Groups {
        Groups {
            rows: rows as u32,
            cols: cols as u32,
            group: self.group as u32,
            largest: self.largest,
            symmetric: self.symmetric,
            scale_kind: match self.scale {
                Float::F32 => ScaleKind::F32,
                Float::F16 => ScaleKind::F16,
                Float::BF16 => ScaleKind::Bf16,
            },
        }
    }
}

impl Judge<'_> {
    /// Squared size of the outputs of the matrix itself.
    ///
    /// # Errors
    /// See [`AwqEngine::open`].
    pub fn power(&self) -> Result<f64> {
        self.squares(&self.w, self.float)
    }

    /// Squared size of what outputs change by when columns are scaled by `s`, rounded and scaled back.
    ///
    /// # Errors
    /// See [`AwqEngine::open`].
    pub fn loss(&self, s: &[f32]) -> Result<f64> {
        self.s.write(0, &Float::F32.to_bytes(s))?;
        let launch = GridRound {
            float: self.float,
            w: self.w.at(0),
            s: self.s.at(0),
            groups: self.groups,
            errors: self.errors.at(0),
        };
        self.lane.run(&launch.launch())?;
        self.squares(&self.errors, Float::F32)
    }

    fn squares(&self, w: &Buffer, float: Float) -> Result<f64> {
        let (tokens, Groups { rows, cols, .. }) = (self.tokens as u32, self.groups);
        let plain = LanesProduct::plain((self.x.at(0), tokens), (w.at(0), float, [rows, cols]), self.y.at(0));
        // Turned, so that neighbouring threads add up neighbouring numbers.
        self.lane.run(&LanesProduct { y_strides: [1, tokens.into()], ..plain }.launch())?;
        let squares = ColumnSquares { y: self.y.at(0), rows, cols: tokens, sums: self.sums.at(0) };
        self.lane.run(&squares.launch())?;
        Ok(self.sums.read_numbers(self.tokens)?.into_iter().map(f64::from_le_bytes).sum())
    }
}

/// Rows of a matrix whose codes are looked for.
struct Stretch<'a> {
    /// `[rows, cols]`.
    w: &'a Buffer,
    s: &'a Buffer,
    groups: Groups,
    /// `[rows, cols]`: what rounding changes.
    off: Buffer,
    /// `[rows, cols]`: that times moments.
    through: Buffer,
    lane: &'a Lane<'a>,
}

/// Scales and zeros.
type Grids = [Buffer; 2];

impl Stretch<'_> {
    fn grids(&self) -> Result<Grids> {
        let bytes = self.groups.count() as usize * 4;
        Ok([self.lane.take(bytes)?, self.lane.take(bytes)?])
    }

    fn fill(&self, ratio: f32, [scales, zeros]: &Grids, off: Option<&Buffer>) -> Result<()> {
        let launch = GridTry {
            w: self.w.at(0),
            s: self.s.at(0),
            groups: self.groups,
            ratio,
            scales: scales.at(0),
            zeros: zeros.at(0),
            off: off.map(|o| o.at(0)),
        };
        self.lane.run(&launch.launch())
    }

    /// Grids from the smallest to the largest weight of each group.
    fn whole(&self) -> Result<Grids> {
        let whole = self.grids()?;
        self.fill(1.0, &whole, None)?;
        Ok(whole)
    }

    /// Grids of least error among narrowed ones.
    fn narrowed(&self, ratios: &[f32], parts: &Buffer) -> Result<Grids> {
        let (whole, tried, kept) = (self.whole()?, self.grids()?, self.whole()?);
        let count = self.groups.count();
        let errors = bring_floats(self.lane, &vec![f32::INFINITY; count as usize])?;
        let Groups { rows, cols, group, .. } = self.groups;
        for ratio in ratios {
            self.fill(*ratio, &tried, Some(&self.off))?;
            let product = LanesProduct {
                float: Float::F32,
                x: self.off.at(0),
                w: parts.at(0),
                y: self.through.at(0),
                tokens: rows,
                rows: group,
                cols: group,
                x_stride: cols.into(),
                w_stride: group.into(),
                y_strides: [cols.into(), 1],
                pieces: cols / group,
                steps: [group, group * group, group],
            };
            self.lane.run(&product.launch())?;
            let [tried, whole, kept] = [&tried, &whole, &kept].map(|g| [g[0].at(0), g[1].at(0)]);
            let keep = GridKeep {
                off: self.off.at(0),
                through: self.through.at(0),
                groups: count,
                group,
                tried,
                whole,
                errors: errors.at(0),
                kept,
            };
            self.lane.run(&keep.launch())?;
        }
        Ok(kept)
    }

    fn descend(&self, downhill: &Downhill<'_>, grids: &Grids, codes: &Buffer) -> Result<()> {
        for (first, columns, gram) in (0..).map_while(downhill) {
            let gram = bring_floats(self.lane, &gram)?;
            let (first, width) = (first as u32, columns as u32);
            let off = DescentOff {
                w: self.w.at(0),
                s: self.s.at(0),
                codes: codes.at(0),
                grids: [grids[0].at(0), grids[1].at(0)],
                groups: self.groups,
                first,
                width,
                off: self.off.at(0),
            };
            self.lane.run(&off.launch())?;
            let (x, w) = ((self.off.at(0), self.groups.rows), (gram.at(0), Float::F32, [width; 2]));
            self.lane.run(&LanesProduct::plain(x, w, self.through.at(0)).launch())?;
            let descent = Descent {
                gram: gram.at(0),
                s: self.s.at(0),
                scales: grids[0].at(0),
                groups: self.groups,
                first,
                width,
                slope: self.through.at(0),
                codes: codes.at(0),
            };
            self.lane.run(&descent.launch())?;
        }
        Ok(())
    }
}

fn bring_floats(lane: &Lane<'_>, values: &[f32]) -> Result<Buffer> {
    lane.bring(&Float::F32.to_bytes(values))
}

fn read_floats(buffer: &Buffer, to: &mut [f32]) -> Result<()> {
    let read = buffer.read_numbers(to.len())?;
    to.iter_mut().zip(read).for_each(|(to, b)| *to = f32::from_le_bytes(b));
    Ok(())
}
