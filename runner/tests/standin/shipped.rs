//! The shipped PTX, as the binary hands it to the driver.

use std::ffi::c_int;
use std::io::Read;
use std::path::Path;

use flate2::read::GzDecoder;
use runner::cuda::launches::Add;

use super::cuda::{Cuda, Handle};

/// Text of `kernels/ptx/NAME.ptx.gz`.
pub fn ptx(name: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("kernels/ptx/{name}.ptx.gz"));
    let mut text = String::new();
    GzDecoder::new(std::fs::File::open(file).unwrap()).read_to_string(&mut text).unwrap();
    text
}

/// The kernel `add` of the shipped module.
pub struct Adder<'a> {
    pub cuda: &'a Cuda,
    pub module: Handle,
    pub function: Handle,
}

impl<'a> Adder<'a> {
    pub fn new(cuda: &'a Cuda) -> Self {
        let module = cuda.module(&ptx("elementwise")).unwrap();
        Adder { cuda, module, function: cuda.function(module, "add").unwrap() }
    }

    /// `x += y`, `n` numbers.
    pub fn add(&self, stream: Handle, x: u64, y: u64, n: u64) -> Result<(), c_int> {
        self.cuda.launch(self.function, stream, &Add { x, y, n }.launch())
    }
}
