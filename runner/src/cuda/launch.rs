//! One launch of a kernel, whoever executes it.

/// A kernel's argument. `P` is an address on the machine.
#[derive(Debug, Clone, PartialEq)]
pub enum Arg<P> {
    /// `const T *`; null where there is none.
    Read(Option<P>),
    /// `T *`, read and written; null where there is none.
    Write(Option<P>),
    /// `unsigned int`.
    U32(u32),
    /// `unsigned long long`.
    U64(u64),
    /// `float`.
    F32(f32),
    /// `double`.
    F64(f64),
    /// A struct of these, in the order of its fields; they follow each other without gaps.
    Struct(Vec<Arg<P>>),
}

/// A kernel with everything it is launched with.
#[derive(Debug, Clone, PartialEq)]
pub struct Launch<P> {
    /// Name of the `extern "C" __global__` function.
    pub kernel: String,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block, in all a multiple of 32.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub shared: u32,
    /// In the order of the kernel's parameters.
    pub args: Vec<Arg<P>>,
}

impl<P> Launch<P> {
    /// Without dynamic shared memory.
    pub fn new(kernel: impl Into<String>, grid: [u32; 3], block: [u32; 3], args: Vec<Arg<P>>) -> Self {
        Launch { kernel: kernel.into(), grid, block, shared: 0, args }
    }

    /// With `bytes` of dynamic shared memory.
    pub fn shared(self, bytes: u32) -> Self {
        Launch { shared: bytes, ..self }
    }
}
