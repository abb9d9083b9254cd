//! The shipped PTX, as the binary hands it to the driver.

use std::io::Read;
use std::path::Path;

use flate2::read::GzDecoder;

/// Text of `kernels/ptx/NAME.ptx.gz`.
pub fn ptx(name: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("kernels/ptx/{name}.ptx.gz"));
    let mut text = String::new();
    GzDecoder::new(std::fs::File::open(file).unwrap()).read_to_string(&mut text).unwrap();
    text
}
