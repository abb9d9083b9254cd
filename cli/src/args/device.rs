//! Where to compute, for every command that runs a model or quantizes one.

use clap::{Args as ClapArgs, ValueEnum};
use runner::Wish;

/// `--device`.
#[derive(Debug, Clone, Copy, ClapArgs)]
pub struct OnDevice {
    /// Where to compute: `auto` takes a GPU where there is one that can be used
    #[arg(long, value_enum, value_name = "WHERE", default_value_t = Device::Auto)]
    pub device: Device,
}

/// A place to compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Device {
    /// A GPU where there is one, else the processor
    Auto,
    /// The processor
    Cpu,
    /// An NVIDIA GPU
    Cuda,
}

impl OnDevice {
    /// What is wished for.
    pub fn wish(self) -> Wish {
        match self.device {
            Device::Auto => Wish::Auto,
            Device::Cpu => Wish::Cpu,
            Device::Cuda => Wish::Cuda,
        }
    }
}
