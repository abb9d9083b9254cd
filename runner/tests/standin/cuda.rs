//! The functions of libcuda that the tests call, as cuda.h declares them.

// As cuda.h has them.
#![allow(non_snake_case, clippy::too_many_arguments)]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;

use libloading::Library;
use runner::cuda::{Arg, Launch};

/// A handle, or an address of the host.
pub type Handle = *mut c_void;

macro_rules! functions {
    ($($name:ident($($arg:ident: $type:ty),*);)*) => {
        /// The loaded library.
        pub struct Cuda {
            library: Library,
        }

        impl Cuda {
            $(
                pub fn $name(&self, $($arg: $type),*) -> Result<(), c_int> {
                    // SAFETY: the type that cuda.h declares. What the tests pass for the library to refuse is checked
                    // by it before it is used.
                    let code = unsafe {
                        let f = self.library.get::<unsafe extern "C" fn($($type),*) -> c_int>(
                            concat!(stringify!($name), "\0").as_bytes()
                        );
                        (f.unwrap())($($arg),*)
                    };
                    if code == 0 { Ok(()) } else { Err(code) }
                }
            )*
        }
    };
}

functions! {
    cuInit(flags: c_uint);
    cuDriverGetVersion(version: *mut c_int);
    cuGetErrorName(error: c_int, name: *mut *const c_char);
    cuGetErrorString(error: c_int, text: *mut *const c_char);
    cuDeviceGetCount(count: *mut c_int);
    cuDeviceGet(device: *mut c_int, ordinal: c_int);
    cuDeviceGetName(name: *mut c_char, length: c_int, device: c_int);
    cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int);
    cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int);
    cuDevicePrimaryCtxRetain(context: *mut Handle, device: c_int);
    cuDevicePrimaryCtxRelease_v2(device: c_int);
    cuCtxSetCurrent(context: Handle);
    cuCtxSynchronize();
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    cuMemAlloc_v2(at: *mut u64, bytes: usize);
    cuMemFree_v2(at: u64);
    cuMemAllocAsync(at: *mut u64, bytes: usize, stream: Handle);
    cuMemFreeAsync(at: u64, stream: Handle);
    cuMemHostAlloc(at: *mut Handle, bytes: usize, flags: c_uint);
    cuMemFreeHost(at: Handle);
    cuMemcpyHtoD_v2(to: u64, from: Handle, bytes: usize);
    cuMemcpyHtoDAsync_v2(to: u64, from: Handle, bytes: usize, stream: Handle);
    cuMemcpyDtoH_v2(to: Handle, from: u64, bytes: usize);
    cuMemcpyDtoHAsync_v2(to: Handle, from: u64, bytes: usize, stream: Handle);
    cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: Handle);
    cuMemsetD8Async(to: u64, value: u8, count: usize, stream: Handle);
    cuMemsetD32Async(to: u64, value: c_uint, count: usize, stream: Handle);
    cuStreamCreate(stream: *mut Handle, flags: c_uint);
    cuStreamDestroy_v2(stream: Handle);
    cuStreamSynchronize(stream: Handle);
    cuStreamQuery(stream: Handle);
    cuStreamWaitEvent(stream: Handle, event: Handle, flags: c_uint);
    cuStreamBeginCapture_v2(stream: Handle, mode: c_int);
    cuStreamEndCapture(stream: Handle, graph: *mut Handle);
    cuStreamIsCapturing(stream: Handle, status: *mut c_int);
    cuEventCreate(event: *mut Handle, flags: c_uint);
    cuEventRecord(event: Handle, stream: Handle);
    cuEventQuery(event: Handle);
    cuEventSynchronize(event: Handle);
    cuEventElapsedTime(milliseconds: *mut f32, start: Handle, end: Handle);
    cuEventDestroy_v2(event: Handle);
    cuModuleLoadData(module: *mut Handle, image: *const c_void);
    cuModuleUnload(module: Handle);
    cuModuleGetFunction(function: *mut Handle, module: Handle, name: *const c_char);
    cuFuncGetAttribute(value: *mut c_int, attribute: c_int, function: Handle);
    cuFuncSetAttribute(function: Handle, attribute: c_int, value: c_int);
    cuLaunchKernel(
        function: Handle,
        grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
        block_x: c_uint, block_y: c_uint, block_z: c_uint,
        shared: c_uint, stream: Handle, arguments: *mut Handle, extra: *mut Handle
    );
    cuGraphInstantiateWithFlags(exec: *mut Handle, graph: Handle, flags: u64);
    cuGraphLaunch(exec: Handle, stream: Handle);
    cuGraphGetNodes(graph: Handle, nodes: *mut Handle, count: *mut usize);
    cuGraphExecDestroy(exec: Handle);
    cuGraphDestroy(graph: Handle);
}

/// The legacy stream.
pub const LEGACY: Handle = null_mut();

impl Cuda {
    /// By the name that programs load.
    pub fn load() -> Self {
        // SAFETY: the library that these tests have built; its initialisers only set itself up.
        Cuda { library: unsafe { Library::new("libcuda.so.1") }.unwrap() }
    }

    /// With the first device's context current on this thread.
    pub fn start() -> Self {
        let cuda = Cuda::load();
        cuda.cuInit(0).unwrap();
        let context = out(null_mut(), |at| cuda.cuDevicePrimaryCtxRetain(at, 0)).unwrap();
        cuda.cuCtxSetCurrent(context).unwrap();
        cuda
    }

    /// What the driver calls an error.
    pub fn error_name(&self, code: c_int) -> String {
        let mut name: *const c_char = std::ptr::null();
        self.cuGetErrorName(code, &mut name).unwrap();
        // SAFETY: a constant of the library, ended by NUL.
        unsafe { CStr::from_ptr(name) }.to_str().unwrap().to_string()
    }

    pub fn alloc(&self, bytes: usize) -> u64 {
        out(0, |at| self.cuMemAlloc_v2(at, bytes)).unwrap()
    }

    /// Memory with these numbers in it.
    pub fn floats(&self, values: &[f32]) -> u64 {
        let at = self.alloc(values.len() * 4);
        self.cuMemcpyHtoD_v2(at, values.as_ptr() as Handle, values.len() * 4).unwrap();
        self.cuCtxSynchronize().unwrap();
        at
    }

    pub fn read(&self, at: u64, count: usize) -> Result<Vec<f32>, c_int> {
        let mut values = vec![0.0f32; count];
        self.cuMemcpyDtoH_v2(values.as_mut_ptr().cast(), at, count * 4)?;
        Ok(values)
    }

    pub fn stream(&self) -> Handle {
        const NON_BLOCKING: c_uint = 1;
        out(null_mut(), |s| self.cuStreamCreate(s, NON_BLOCKING)).unwrap()
    }

    pub fn event(&self) -> Handle {
        out(null_mut(), |e| self.cuEventCreate(e, 0)).unwrap()
    }

    pub fn module(&self, ptx: &str) -> Result<Handle, c_int> {
        let text = CString::new(ptx).unwrap();
        out(null_mut(), |m| self.cuModuleLoadData(m, text.as_ptr().cast()))
    }

    pub fn function(&self, module: Handle, name: &str) -> Result<Handle, c_int> {
        let name = CString::new(name).unwrap();
        out(null_mut(), |f| self.cuModuleGetFunction(f, module, name.as_ptr()))
    }
}

/// Calls a function that writes its result to where a pointer leads.
pub fn out<T>(mut value: T, call: impl FnOnce(*mut T) -> Result<(), c_int>) -> Result<T, c_int> {
    call(&mut value)?;
    Ok(value)
}

/// The bytes of each argument, as the driver reads them.
fn argument_bytes(arg: &Arg<u64>, to: &mut Vec<u8>) {
    match arg {
        Arg::Read(p) | Arg::Write(p) => to.extend(p.unwrap_or(0).to_le_bytes()),
        Arg::U32(v) => to.extend(v.to_le_bytes()),
        Arg::U64(v) => to.extend(v.to_le_bytes()),
        Arg::F32(v) => to.extend(v.to_le_bytes()),
        Arg::F64(v) => to.extend(v.to_le_bytes()),
        Arg::Struct(fields) => fields.iter().for_each(|f| argument_bytes(f, to)),
    }
}

impl Cuda {
    /// Launches on a stream; `function` is the launch's kernel.
    pub fn launch(&self, function: Handle, stream: Handle, launch: &Launch<u64>) -> Result<(), c_int> {
        let mut values: Vec<Vec<u8>> = launch
            .args
            .iter()
            .map(|arg| {
                let mut bytes = Vec::new();
                argument_bytes(arg, &mut bytes);
                bytes
            })
            .collect();
        // A null where an argument too many would be read.
        let pointers = values.iter_mut().map(|v| v.as_mut_ptr().cast());
        let mut pointers: Vec<Handle> = pointers.chain([null_mut()]).collect();
        let ([gx, gy, gz], [bx, by, bz]) = (launch.grid, launch.block);
        let arguments = pointers.as_mut_ptr();
        self.cuLaunchKernel(function, gx, gy, gz, bx, by, bz, launch.shared, stream, arguments, null_mut())
    }
}

/// What calls return.
pub mod code {
    use std::ffi::c_int;

    pub const INVALID_VALUE: c_int = 1;
    pub const OUT_OF_MEMORY: c_int = 2;
    pub const NOT_INITIALIZED: c_int = 3;
    pub const NO_DEVICE: c_int = 100;
    pub const INVALID_DEVICE: c_int = 101;
    pub const INVALID_IMAGE: c_int = 200;
    pub const INVALID_CONTEXT: c_int = 201;
    pub const NO_BINARY_FOR_GPU: c_int = 209;
    pub const INVALID_PTX: c_int = 218;
    pub const UNSUPPORTED_PTX_VERSION: c_int = 222;
    pub const INVALID_HANDLE: c_int = 400;
    pub const NOT_FOUND: c_int = 500;
    pub const NOT_READY: c_int = 600;
    pub const ILLEGAL_ADDRESS: c_int = 700;
    pub const MISALIGNED_ADDRESS: c_int = 716;
    pub const CAPTURE_UNSUPPORTED: c_int = 900;
    pub const CAPTURE_INVALIDATED: c_int = 901;
    pub const CAPTURE_UNMATCHED: c_int = 903;
    pub const CAPTURE_UNJOINED: c_int = 904;
    pub const CAPTURE_ISOLATION: c_int = 905;
    pub const CAPTURE_IMPLICIT: c_int = 906;
    pub const CAPTURED_EVENT: c_int = 907;
}
