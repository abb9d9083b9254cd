//! The CUDA driver, as far as the runner asks it: the only place that calls into it.
//!
//! The library is opened when it is first asked for; without one every function here that could need it says so. All
//! work goes through one stream, so that it happens in the order of the calls.

use std::ffi::{CString, c_void};
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;
use verify::{Class, Error, Result};

/// What the shipped PTX needs: its version is 8.1, of CUDA 12.1.
const OLDEST_DRIVER: i32 = 12010;

/// A GPU and its driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// As the driver names it.
    pub name: String,
    /// Its number.
    pub ordinal: usize,
    /// Compute capability.
    pub capability: (i32, i32),
    /// Bytes of memory.
    pub memory: u64,
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Version of CUDA that the driver speaks.
    pub driver: (i32, i32),
}

/// A GPU in use: its primary context and a stream.
#[derive(Debug)]
pub struct Context {
    ordinal: i32,
    context: sys::CUcontext,
    stream: sys::CUstream,
}

// SAFETY: handles of the driver, whose functions may be called from any thread.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// Memory of the GPU.
#[derive(Debug)]
pub struct Memory {
    context: Arc<Context>,
    address: u64,
    bytes: usize,
}

/// An address in a [`Memory`] that lives at least as long.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct At<'a>(u64, PhantomData<&'a ()>);

/// Memory of the host that the GPU reads and writes by itself.
#[derive(Debug)]
pub struct Pinned {
    context: Arc<Context>,
    address: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it owns its bytes; the context may be used from any thread.
unsafe impl Send for Pinned {}
// SAFETY: shared access only reads.
unsafe impl Sync for Pinned {}

/// Kernels, compiled for this GPU.
#[derive(Debug)]
pub struct Code {
    context: Arc<Context>,
    module: sys::CUmodule,
}

// SAFETY: a handle of the driver.
unsafe impl Send for Code {}
// SAFETY: as above.
unsafe impl Sync for Code {}

/// A kernel of a [`Code`], which must outlive it.
#[derive(Debug, Clone, Copy)]
pub struct Function(sys::CUfunction);

// SAFETY: a handle of the driver.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

/// Recorded work.
#[derive(Debug)]
pub struct Graph {
    context: Arc<Context>,
    graph: sys::CUgraph,
    executable: sys::CUgraphExec,
}

// SAFETY: handles of the driver; launches go through the context's stream.
unsafe impl Send for Graph {}
// SAFETY: as above.
unsafe impl Sync for Graph {}

/// A moment in the stream.
#[derive(Debug)]
pub struct Event {
    context: Arc<Context>,
    event: sys::CUevent,
}

// SAFETY: a handle of the driver.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

fn failed(doing: &str, error: DriverError) -> Error {
    let text = |s: std::result::Result<&std::ffi::CStr, DriverError>| {
        s.map_or_else(|_| format!("error {}", error.0 as u32), |s| s.to_string_lossy().into_owned())
    };
    let class = match error.0 {
        sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => Class::GpuMemory,
        _ => Class::Gpu,
    };
    Error::new(class, format!("the GPU failed while {doing}"))
        .found(format!("{}: {}", text(error.error_name()), text(error.error_string())))
        .hint("`prep doctor` shows the GPU; `--device cpu` does without it")
}

fn missing(what: &str) -> Error {
    Error::new(Class::Gpu, what.to_string())
}

/// Starts the driver: its version.
fn start() -> Result<(i32, i32)> {
    // SAFETY: opens a library by the driver's name; where it cannot be opened nothing below is called.
    if !unsafe { sys::is_culib_present() } {
        return Err(missing("no CUDA driver is installed")
            .expected("libcuda.so.1, which comes with NVIDIA's driver")
            .hint("install the driver, or run with `--device cpu`"));
    }
    let mut version = 0;
    // SAFETY: the driver is there; its version may be asked for at any time, and is written to `version`.
    unsafe { sys::cuDriverGetVersion(&mut version) }
        .result()
        .map_err(|e| failed("asking for its version", e))?;
    let both = (version / 1000, version % 1000 / 10);
    if version < OLDEST_DRIVER {
        return Err(missing("the CUDA driver is too old")
            .found(format!("CUDA {}.{}", both.0, both.1))
            .expected(format!("{}.{} or newer", OLDEST_DRIVER / 1000, OLDEST_DRIVER % 1000 / 10))
            .hint("update NVIDIA's driver, or run with `--device cpu`"));
    }
    result::init().map_err(|e| match e.0 {
        sys::CUresult::CUDA_ERROR_NO_DEVICE => no_gpu(),
        _ => failed("starting", e),
    })?;
    Ok(both)
}

fn no_gpu() -> Error {
    missing("no GPU was found")
        .found("a CUDA driver without a device")
        .hint("check `nvidia-smi` and CUDA_VISIBLE_DEVICES, or run with `--device cpu`")
}

/// The GPUs of this machine. None is touched: a context would take time and memory on each.
///
/// # Errors
/// Exit 6 without a driver that is new enough, and without a GPU.
pub fn gpus() -> Result<Vec<Gpu>> {
    let driver = start()?;
    let count = result::device::get_count().map_err(|e| failed("counting devices", e))?;
    if count == 0 {
        return Err(no_gpu());
    }
    (0..count).map(|ordinal| describe(ordinal, driver)).collect()
}

/// Bytes of GPU number `ordinal`'s memory that are free.
///
/// # Errors
/// As [`gpus`].
pub fn free_memory(ordinal: usize) -> Result<u64> {
    Ok(Context::open(ordinal)?.memory()?.0)
}

fn describe(ordinal: i32, driver: (i32, i32)) -> Result<Gpu> {
    use sys::CUdevice_attribute_enum as A;
    let ask = || -> std::result::Result<_, DriverError> {
        let device = result::device::get(ordinal)?;
        // SAFETY: the device was given by the driver. (So for its memory.)
        let attribute = |a| unsafe { result::device::get_attribute(device, a) };
        Ok(Gpu {
            name: result::device::get_name(device)?,
            ordinal: ordinal as usize,
            capability: (
                attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            ),
            // SAFETY: above.
            memory: unsafe { result::device::total_mem(device)? } as u64,
            multiprocessors: attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as u32,
            driver,
        })
    };
    ask().map_err(|e| failed("asking for its properties", e))
}

impl Context {
    /// GPU number `ordinal`.
    ///
    /// # Errors
    /// As [`gpus`].
    pub fn open(ordinal: usize) -> Result<Arc<Self>> {
        start()?;
        let ordinal = i32::try_from(ordinal).map_err(|_| no_gpu())?;
        let count = result::device::get_count().map_err(|e| failed("counting devices", e))?;
        if ordinal >= count {
            return Err(no_gpu());
        }
        let open = || -> std::result::Result<_, DriverError> {
            let device = result::device::get(ordinal)?;
            // SAFETY: `device` is one of the driver's; the context stays retained until drop, and the stream is made
            // in it.
            unsafe {
                let context = result::primary_ctx::retain(device)?;
                result::ctx::set_current(context)?;
                let stream = result::stream::create(result::stream::StreamKind::NonBlocking)?;
                Ok(Context { ordinal: device, context, stream })
            }
        };
        open().map(Arc::new).map_err(|e| failed("opening a context", e))
    }

    /// Bytes of memory that are free, and all.
    ///
    /// # Errors
    /// Exit 6, the driver's. (So for all that follow.)
    pub fn memory(&self) -> Result<(u64, u64)> {
        self.bind()?;
        let (free, all) = result::mem_get_info().map_err(|e| failed("asking for its memory", e))?;
        Ok((free as u64, all as u64))
    }

    /// Makes the context this thread's.
    fn bind(&self) -> Result<()> {
        // SAFETY: the context is retained until drop.
        unsafe { result::ctx::set_current(self.context) }.map_err(|e| failed("entering its context", e))
    }

    /// Waits until everything before is done.
    pub fn wait(&self) -> Result<()> {
        self.bind()?;
        // SAFETY: the stream lives until drop.
        unsafe { result::stream::synchronize(self.stream) }.map_err(|e| failed("computing", e))
    }

    /// Compiles PTX for this GPU.
    pub fn load(self: &Arc<Self>, ptx: &str, file: &str) -> Result<Code> {
        self.bind()?;
        let text = CString::new(ptx).map_err(|_| missing("a kernel file holds a zero byte").at(file))?;
        // SAFETY: the text ends in a zero byte and outlives the call, which keeps nothing of it.
        let module = unsafe { result::module::load_data(text.as_ptr().cast()) };
        let module = module.map_err(|e| failed(&format!("compiling {file}"), e))?;
        Ok(Code { context: Arc::clone(self), module })
    }

    /// Launches `function`; each argument is its value's bytes, 8-aligned where the kernel's type is.
    ///
    /// # Safety
    /// The arguments are those of the kernel in number, size and meaning, and addresses among them are of memory of
    /// this context that is not given back before the work is done.
    pub unsafe fn launch(
        &self,
        function: Function,
        [grid, block]: [[u32; 3]; 2],
        shared: u32,
        arguments: &mut [*mut c_void],
    ) -> Result<()> {
        self.bind()?;
        if shared > 48 << 10 {
            let most = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function's code is loaded.
            unsafe { result::function::set_function_attribute(function.0, most, shared as i32) }
                .map_err(|e| failed("asking for shared memory", e))?;
        }
        let (grid, block) = ((grid[0], grid[1], grid[2]), (block[0], block[1], block[2]));
        // SAFETY: the caller's promise; the stream lives until drop.
        unsafe { result::launch_kernel(function.0, grid, block, shared, self.stream, arguments) }
            .map_err(|e| failed("launching a kernel", e))
    }

    /// Records what follows instead of doing it.
    pub fn begin_recording(&self) -> Result<()> {
        self.bind()?;
        let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the stream lives until drop.
        unsafe { result::stream::begin_capture(self.stream, mode) }.map_err(|e| failed("recording", e))
    }

    /// What was recorded; everything that it reads and writes must outlive it.
    pub fn end_recording(self: &Arc<Self>) -> Result<Graph> {
        self.bind()?;
        let end = || -> std::result::Result<_, DriverError> {
            // SAFETY: the stream lives until drop; the graph is the one that the driver just made.
            unsafe {
                let graph = result::stream::end_capture(self.stream)?;
                let made = result::graph::instantiate(graph, sys::CUgraphInstantiate_flags_enum(0));
                if made.is_err() {
                    let _ = result::graph::destroy(graph);
                }
                Ok((graph, made?))
            }
        };
        let (graph, executable) = end().map_err(|e| failed("recording", e))?;
        Ok(Graph { context: Arc::clone(self), graph, executable })
    }

    /// Gives up a recording after an error.
    pub fn drop_recording(&self) {
        // SAFETY: the stream lives until drop; whatever was recorded is thrown away.
        unsafe {
            if let Ok(graph) = result::stream::end_capture(self.stream)
                && !graph.is_null()
            {
                let _ = result::graph::destroy(graph);
            }
        }
    }

    /// A moment after everything so far.
    pub fn event(self: &Arc<Self>) -> Result<Event> {
        self.bind()?;
        let event = result::event::create(sys::CUevent_flags_enum::CU_EVENT_DEFAULT);
        let event = event.map_err(|e| failed("making an event", e))?;
        let event = Event { context: Arc::clone(self), event };
        event.record()?;
        Ok(event)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: nothing uses the context any more: everything made in it holds an Arc of it.
        unsafe {
            let _ = result::ctx::set_current(self.context);
            let _ = result::stream::destroy(self.stream);
            let _ = result::primary_ctx::release(self.ordinal);
        }
    }
}

impl Memory {
    /// `bytes` bytes, at least one; what stands in them is anything.
    pub fn new(context: &Arc<Context>, bytes: usize) -> Result<Self> {
        context.bind()?;
        // SAFETY: the context is current; the memory is given back once, in drop.
        let address = unsafe { result::malloc_sync(bytes) };
        let address = address.map_err(|e| match e.0 {
            sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                let free = context.memory().map_or(0, |m| m.0);
                Error::new(Class::GpuMemory, "the GPU's memory is used up")
                    .found(format!("{free} bytes free"))
                    .expected(format!("{bytes} bytes more"))
                    .hint("end other programs on this GPU, run fewer prompts at once, or use `--device cpu`")
            }
            _ => failed("taking memory", e),
        })?;
        Ok(Memory { context: Arc::clone(context), address, bytes })
    }

    /// How many.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The address of byte `offset`.
    pub fn at(&self, offset: usize) -> At<'_> {
        assert!(offset <= self.bytes, "{offset} of {} bytes", self.bytes);
        At(self.address + offset as u64, PhantomData)
    }

    /// Numbers of `size` bytes from `base` to here, which lies behind it.
    pub fn numbers_after(&self, base: &Memory, size: usize) -> u64 {
        (self.address - base.address) / size as u64
    }

    /// Where it lies among others.
    pub fn order(&self) -> u64 {
        self.address
    }

    fn check(&self, offset: usize, len: usize) {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.bytes), "beyond the memory's end");
    }

    /// Sets all bytes to zero.
    pub fn clear(&self) -> Result<()> {
        self.context.bind()?;
        // SAFETY: exactly the bytes of this memory.
        unsafe { result::memset_d8_async(self.address, 0, self.bytes, self.context.stream) }
            .map_err(|e| failed("clearing memory", e))
    }

    /// Writes `bytes` from `offset` on; they may change as soon as this returns.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        self.check(offset, bytes.len());
        self.context.bind()?;
        // SAFETY: inside this memory. Bytes that are not pinned are copied aside before the call returns.
        unsafe { result::memcpy_htod_async(self.address + offset as u64, bytes, self.context.stream) }
            .map_err(|e| failed("copying to it", e))
    }

    /// Writes the first `len` bytes of `pinned` from `offset` on, at some time before what is launched next: until then
    /// they must stay as they are.
    pub fn write_pinned(&self, offset: usize, pinned: &Pinned, len: usize) -> Result<()> {
        self.check(offset, len);
        self.context.bind()?;
        let bytes = &pinned.as_slice()[..len];
        // SAFETY: inside both; the caller keeps the pinned bytes.
        unsafe { result::memcpy_htod_async(self.address + offset as u64, bytes, self.context.stream) }
            .map_err(|e| failed("copying to it", e))
    }

    /// Reads from `offset` on, after everything so far.
    pub fn read(&self, offset: usize, to: &mut [u8]) -> Result<()> {
        self.check(offset, to.len());
        self.context.bind()?;
        // SAFETY: inside this memory; `to` is borrowed until the copy is done.
        unsafe { result::memcpy_dtoh_async(to, self.address + offset as u64, self.context.stream) }
            .map_err(|e| failed("copying from it", e))?;
        self.context.wait()
    }

    /// The first `count` numbers of `N` bytes, after everything so far.
    pub fn read_numbers<const N: usize>(&self, count: usize) -> Result<Vec<[u8; N]>> {
        let mut numbers = vec![[0; N]; count];
        self.read(0, numbers.as_flattened_mut())?;
        Ok(numbers)
    }

    /// Takes the first `len` bytes of `from`.
    pub fn copy(&self, from: &Memory, len: usize) -> Result<()> {
        self.check(0, len);
        from.check(0, len);
        self.context.bind()?;
        // SAFETY: inside both; memory is given back only after what the stream does with it.
        unsafe { result::memcpy_dtod_async(self.address, from.address, len, self.context.stream) }
            .map_err(|e| failed("copying within it", e))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: taken in `new`, given back once; the driver waits for work that uses it.
        unsafe {
            let _ = result::ctx::set_current(self.context.context);
            let _ = result::stream::synchronize(self.context.stream);
            let _ = result::free_sync(self.address);
        }
    }
}

impl At<'_> {
    /// The address, for a kernel's argument.
    pub fn address(self) -> u64 {
        self.0
    }
}

impl Pinned {
    /// `bytes` zeros, at least one.
    pub fn new(context: &Arc<Context>, bytes: usize) -> Result<Self> {
        context.bind()?;
        // SAFETY: the context is current; the memory is given back once, in drop.
        let address = unsafe { result::malloc_host(bytes, 0) }.map_err(|e| failed("pinning memory", e))?;
        let address =
            NonNull::new(address.cast::<u8>()).ok_or_else(|| missing("the driver gave no pinned memory"))?;
        // SAFETY: fresh memory of this size.
        unsafe { address.write_bytes(0, bytes) };
        Ok(Pinned { context: Arc::clone(context), address, bytes })
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: owned, initialised in `new`.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.bytes) }
    }

    /// The bytes; not while a copy of them is on its way.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: owned, initialised in `new`, borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.address.as_ptr(), self.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: taken in `new`, given back once, after what the stream does with it.
        unsafe {
            let _ = result::ctx::set_current(self.context.context);
            let _ = result::stream::synchronize(self.context.stream);
            let _ = result::free_host(self.address.as_ptr().cast());
        }
    }
}

impl Code {
    /// The kernel `name`.
    pub fn function(&self, name: &str) -> Result<Function> {
        self.context.bind()?;
        let c = CString::new(name).map_err(|_| missing("a kernel's name holds a zero byte"))?;
        // SAFETY: the module is loaded until drop.
        let function = unsafe { result::module::get_function(self.module, c) };
        function.map(Function).map_err(|e| failed(&format!("looking for kernel {name}"), e))
    }
}

impl Drop for Code {
    fn drop(&mut self) {
        // SAFETY: loaded once, unloaded once.
        unsafe {
            let _ = result::ctx::set_current(self.context.context);
            let _ = result::module::unload(self.module);
        }
    }
}

impl Graph {
    /// Does it once more.
    pub fn launch(&self) -> Result<()> {
        self.context.bind()?;
        // SAFETY: the executable lives until drop.
        unsafe { result::graph::launch(self.executable, self.context.stream) }
            .map_err(|e| failed("launching recorded work", e))
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: made once, destroyed once.
        unsafe {
            let _ = result::ctx::set_current(self.context.context);
            let _ = result::stream::synchronize(self.context.stream);
            let _ = result::graph::exec_destroy(self.executable);
            let _ = result::graph::destroy(self.graph);
        }
    }
}

impl Event {
    /// Moves it behind everything so far.
    pub fn record(&self) -> Result<()> {
        self.context.bind()?;
        // SAFETY: event and stream live until drop.
        unsafe { result::event::record(self.event, self.context.stream) }
            .map_err(|e| failed("recording an event", e))
    }

    /// Waits for it.
    pub fn wait(&self) -> Result<()> {
        self.context.bind()?;
        // SAFETY: the event lives until drop.
        unsafe { result::event::synchronize(self.event) }.map_err(|e| failed("computing", e))
    }

    /// Seconds from `earlier` to this; both are over.
    pub fn seconds_after(&self, earlier: &Event) -> Result<f64> {
        self.wait()?;
        // SAFETY: both live until drop.
        let ms = unsafe { result::event::elapsed(earlier.event, self.event) };
        ms.map(|ms| f64::from(ms) / 1e3).map_err(|e| failed("measuring time", e))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made once, destroyed once.
        unsafe {
            let _ = result::ctx::set_current(self.context.context);
            let _ = result::event::destroy(self.event);
        }
    }
}
