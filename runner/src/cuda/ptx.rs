//! The compiled kernels inside the binary.

use std::io::Read;

use flate2::read::GzDecoder;
use verify::{Class, Error, Result};

use super::sources::MODULES;

macro_rules! packed {
    ($($name:literal),*) => { [$(($name, include_bytes!(concat!("../../kernels/ptx/", $name, ".ptx.gz")).as_slice())),*] };
}

const PACKED: [(&str, &[u8]); MODULES.len()] = packed![
    "attention",
    "combine",
    "delta",
    "descent",
    "down",
    "elementwise",
    "embed",
    "fp8",
    "gate_up",
    "gemv",
    "gram",
    "grid",
    "int4",
    "lanes",
    "repack",
    "rmsnorm",
    "rope",
    "router",
    "sample",
    "sort",
    "stats",
    "tile"
];

/// The PTX of file number `file` of [`MODULES`].
///
/// # Errors
/// Exit 6 where this binary is damaged.
pub fn shipped(file: usize) -> Result<String> {
    let (name, packed) = PACKED[file];
    let mut text = String::new();
    GzDecoder::new(packed).read_to_string(&mut text).map_err(|e| {
        Error::new(Class::Gpu, format!("kernel {name} of this binary is damaged")).found(e.to_string())
    })?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_has_its_kernels() {
        for (file, module) in MODULES.iter().enumerate() {
            let text = shipped(file).unwrap();
            for kernel in module.kernels() {
                assert!(text.contains(&format!(".entry {kernel}(")), "{} lacks {kernel}", module.source.name);
            }
        }
    }
}
