//! A GPU with its kernels and memory: what the backend works on.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use verify::{Class, Error, Result};

use super::driver::{At, Code, Context, Event, Function, Graph, Memory, Pinned};
use super::pool::{Buffer, Pool};
use super::sources::MODULES;
use super::{Arg, Launch, ptx};

/// Bytes that are kept for the next steps.
const MOST_FREE: usize = 512 << 20;

/// A GPU.
#[derive(Debug)]
pub struct Device {
    context: Arc<Context>,
    kernels: Mutex<Kernels>,
    pool: Arc<Pool>,
    recording: Mutex<Option<Recording>>,
}

#[derive(Debug, Default)]
struct Kernels {
    /// Compiled files, by their number in [`MODULES`].
    files: HashMap<usize, Code>,
    functions: HashMap<String, Function>,
}

/// What a recorded step reads from the host each time anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Input {
    /// Ids of the step's tokens.
    Tokens,
    /// Rotary angles.
    Angles,
    /// Position of each token.
    Positions,
    /// The same at every replay.
    Constant,
}

/// Work being recorded.
#[derive(Debug)]
struct Recording {
    pool: Arc<Pool>,
    inputs: Vec<(Input, Pinned)>,
}

/// A recorded step: what it reads from the host, and the memory that it works in.
#[derive(Debug)]
pub struct Recorded {
    // Before what it works on.
    graph: Graph,
    inputs: Vec<(Input, Pinned)>,
    _pool: Arc<Pool>,
}

impl Device {
    /// GPU number `ordinal`.
    ///
    /// # Errors
    /// Exit 6 without one. (So for all that follow: the driver's errors.)
    pub fn open(ordinal: usize) -> Result<Self> {
        let context = Context::open(ordinal)?;
        let pool = Pool::new(&context);
        Ok(Device { context, kernels: Mutex::default(), pool, recording: Mutex::default() })
    }

    /// The driver's view of it.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Memory for the work of a step.
    pub fn take(&self, bytes: usize) -> Result<Buffer> {
        match &*self.recording() {
            Some(recording) => recording.pool.take(bytes),
            None => {
                // Prompts of many lengths leave pieces of many sizes.
                if self.pool.bytes() > MOST_FREE {
                    self.pool.empty();
                }
                self.pool.take(bytes)
            }
        }
    }

    /// Gives free memory back to the driver.
    pub fn trim(&self) {
        self.pool.empty();
    }

    /// Memory for as long as the model is there.
    pub fn keep(&self, bytes: usize) -> Result<Memory> {
        match Memory::new(&self.context, bytes.max(4)) {
            Err(e) if e.class() == Class::GpuMemory => {
                self.pool.empty();
                Memory::new(&self.context, bytes.max(4))
            }
            taken => taken,
        }
    }

    /// Bytes on the device.
    pub fn upload(&self, input: Input, bytes: &[u8]) -> Result<Buffer> {
        let buffer = self.take(bytes.len())?;
        match &mut *self.recording() {
            None => buffer.write(0, bytes)?,
            Some(recording) => {
                let mut pinned = Pinned::new(&self.context, bytes.len().max(4))?;
                pinned.as_mut_slice()[..bytes.len()].copy_from_slice(bytes);
                buffer.write_pinned(0, &pinned, bytes.len())?;
                recording.inputs.push((input, pinned));
            }
        }
        Ok(buffer)
    }

    /// Runs a kernel after everything so far. A grid without blocks is left out.
    pub fn run(&self, launch: &Launch<At<'_>>) -> Result<()> {
        if launch.grid.contains(&0) {
            return Ok(());
        }
        let function = self.function(&launch.kernel)?;
        let mut values: Vec<Value> = launch.args.iter().map(Value::of).collect();
        let mut pointers: Vec<*mut c_void> = values.iter_mut().map(Value::pointer).collect();
        // SAFETY: the launch was made by the struct of this kernel's name, which gives its arguments; tests hold each
        // to the kernel. Addresses borrow their memory until here, and memory that is given back is handed on in the
        // order of the work, or freed after it.
        unsafe { self.context.launch(function, [launch.grid, launch.block], launch.shared, &mut pointers) }
            .map_err(|e| e.at(&launch.kernel))
    }

    fn function(&self, kernel: &str) -> Result<Function> {
        let mut kernels = lock(&self.kernels);
        if let Some(function) = kernels.functions.get(kernel) {
            return Ok(*function);
        }
        let holds = |m: &super::sources::Module| m.kernels().iter().any(|k| k == kernel);
        let Some(file) = MODULES.iter().position(holds) else {
            return Err(Error::new(Class::Gpu, "no such kernel").found(kernel));
        };
        let Kernels { files, functions } = &mut *kernels;
        let code = match files.entry(file) {
            Entry::Occupied(loaded) => loaded.into_mut(),
            Entry::Vacant(place) => {
                place.insert(self.context.load(&ptx::shipped(file)?, MODULES[file].source.name)?)
            }
        };
        let function = code.function(kernel)?;
        functions.insert(kernel.to_string(), function);
        Ok(function)
    }

    /// Records what `work` launches instead of doing it, in memory of its own.
    ///
    /// # Errors
    /// Those of `work`, and the driver's; nothing stays recorded then.
    pub fn record<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<(Recorded, T)> {
        *self.recording() = Some(Recording { pool: Pool::new(&self.context), inputs: Vec::new() });
        let worked = self.context.begin_recording().and_then(|()| work());
        let ended = match worked {
            Ok(value) => self.context.end_recording().map(|graph| (graph, value)),
            Err(e) => {
                self.context.drop_recording();
                Err(e)
            }
        };
        let recording = self.recording().take();
        let (graph, value) = ended?;
        let Some(Recording { pool, inputs }) = recording else {
            return Err(Error::new(Class::Gpu, "two steps were recorded at once"));
        };
        Ok((Recorded { graph, inputs, _pool: pool }, value))
    }

    /// A moment after everything so far.
    pub fn event(&self) -> Result<Event> {
        self.context.event()
    }

    fn recording(&self) -> MutexGuard<'_, Option<Recording>> {
        lock(&self.recording)
    }
}

impl Recorded {
    /// Does it again with other inputs: `of` gives the bytes of each, as many as when it was recorded.
    ///
    /// # Errors
    /// The driver's.
    pub fn replay(&mut self, of: impl Fn(Input) -> Option<Vec<u8>>) -> Result<()> {
        for (input, pinned) in &mut self.inputs {
            if let Some(bytes) = of(*input) {
                pinned.as_mut_slice()[..bytes.len()].copy_from_slice(&bytes);
            }
        }
        self.graph.launch()
    }
}

/// An argument's value as the kernel has it in memory.
#[repr(C, align(8))]
struct Value {
    bytes: [u8; 128],
}

impl Value {
    fn of(arg: &Arg<At<'_>>) -> Self {
        let mut value = Value { bytes: [0; 128] };
        value.put(0, arg);
        value
    }

    /// Writes `arg` at `at`; where the next field begins.
    fn put(&mut self, at: usize, arg: &Arg<At<'_>>) -> usize {
        let mut set = |bytes: &[u8]| {
            self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
            at + bytes.len()
        };
        match arg {
            Arg::Read(p) | Arg::Write(p) => set(&p.map_or(0, At::address).to_le_bytes()),
            Arg::U32(v) => set(&v.to_le_bytes()),
            Arg::U64(v) => set(&v.to_le_bytes()),
            Arg::F32(v) => set(&v.to_le_bytes()),
            Arg::F64(v) => set(&v.to_le_bytes()),
            Arg::Struct(fields) => fields.iter().fold(at, |at, field| self.put(at, field)),
        }
    }

    fn pointer(&mut self) -> *mut c_void {
        self.bytes.as_mut_ptr().cast()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
