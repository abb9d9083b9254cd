//! The kernels' sources, inside the binary, and which kernels each file holds.

use super::launches::{KvKind, WeightFormat};

/// A file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Source {
    /// Its name, as `#include` has it for headers.
    pub name: &'static str,
    /// Its text.
    pub text: &'static str,
}

/// A file of kernels, compiled on its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Module {
    /// The file.
    pub source: Source,
    /// Names of its kernels, with what they are made for in braces.
    patterns: &'static [&'static str],
}

impl Module {
    /// Names of its kernels.
    pub fn kernels(&self) -> Vec<String> {
        let parts = ["1", "3"].map(String::from).to_vec();
        let formats = WeightFormat::ALL.map(|f| f.suffix().to_string()).to_vec();
        let kv = [KvKind::F32, KvKind::Bf16].map(|k| k.suffix().to_string()).to_vec();
        let floats = ["f32", "f16", "bf16"].map(String::from).to_vec();
        let mut names: Vec<String> = self.patterns.iter().map(|p| p.to_string()).collect();
        for (brace, values) in [("{format}", formats), ("{parts}", parts), ("{kv}", kv), ("{float}", floats)]
        {
            let each = |name: String| match name.contains(brace) {
                true => values.iter().map(|v| name.replace(brace, v)).collect(),
                false => vec![name],
            };
            names = names.into_iter().flat_map(each).collect();
        }
        names
    }
}

macro_rules! file {
    ($name:literal, $folder:literal) => {
        Source { name: $name, text: include_str!(concat!("../../kernels/", $folder, $name)) }
    };
}

macro_rules! module {
    ($name:literal, $($kernel:literal),*) => {
        Module { source: file!($name, ""), patterns: &[$($kernel),*] }
    };
}

/// All kernels.
pub const MODULES: [Module; 22] = [
    module!("attention.cu", "kv_write_{kv}", "attention_split_{kv}", "attention_combine"),
    module!("combine.cu", "combine"),
    module!(
        "delta.cu",
        "delta_conv",
        "unit_norm",
        "delta_gates",
        "delta_recurrent_128",
        "delta_recurrent_256",
        "delta_chunked"
    ),
    module!("descent.cu", "descent_off", "descent"),
    module!("down.cu", "down_{format}"),
    module!("elementwise.cu", "add", "bias", "clamp", "gate", "swiglu", "rows", "columns", "fp8_kept"),
    module!("embed.cu", "embed_{format}"),
    module!("fp8.cu", "fp8_quantize_{float}", "fp8_amax_{float}"),
    module!("gate_up.cu", "gate_up_{format}"),
    module!("gemv.cu", "gemv_{format}"),
    module!("gram.cu", "gram"),
    module!("grid.cu", "grid_round_{float}", "grid_try", "grid_keep", "grid_codes"),
    module!("int4.cu", "int4_quantize_{float}", "weight_shares_{float}", "squared_difference"),
    module!("lanes.cu", "lanes_product_{float}"),
    module!("repack.cu", "awq_codes", "awq_zeros"),
    module!("rmsnorm.cu", "rmsnorm", "rmsnorm_add", "rmsnorm_gated"),
    module!("rope.cu", "rope"),
    module!("router.cu", "router"),
    module!("sample.cu", "argmax", "sample"),
    module!("sort.cu", "sort_visits"),
    module!("stats.cu", "column_stats", "column_squares"),
    module!("tile.cu", "tile_{format}_{parts}"),
];

/// What the kernels include.
pub const HEADERS: [Source; 5] = [
    file!("device.cuh", "lib/"),
    file!("math.cuh", "lib/"),
    file!("mma.cuh", "lib/"),
    file!("warp.cuh", "lib/"),
    file!("weights.cuh", "lib/"),
];

/// How NVRTC compiles them, besides the architecture. Contraction is off, so that numbers are rounded as the CPU does.
pub const OPTIONS: [&str; 2] = ["--std=c++17", "--fmad=false"];

/// The shipped PTX is for this; every later GPU's driver takes it, and no kernel has code for a later one.
pub const PTX_ARCHITECTURE: &str = "80";
