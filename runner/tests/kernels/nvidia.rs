//! NVIDIA's compilers on every kernel, where they are at hand: `PREP_NVRTC` names the library, `PREP_PTXAS` the
//! assembler, `PREP_CUOBJDUMP` the disassembler; `PREP_NVRTC_PTX` the library that made the shipped PTX, an old one, so
//! that drivers of its time take it. No GPU is needed.
//!
//! ```text
//! pip install --target DIR nvidia-cuda-nvrtc-cu12 nvidia-cuda-nvcc nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm
//! pip install --target OLD nvidia-cuda-nvrtc-cu12==12.1.105
//! PREP_NVRTC=DIR/nvidia/cuda_nvrtc/lib/libnvrtc.so.12   PREP_NVRTC_PTX=OLD/nvidia/cuda_nvrtc/lib/libnvrtc.so.12
//! PREP_PTXAS=DIR/nvidia/cu13/bin/ptxas   PREP_CUOBJDUMP=DIR/nvidia/cu13/bin/cuobjdump
//! ```

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr::null_mut;
use std::sync::OnceLock;

use libloading::{Library, Symbol};
use runner::cuda::sources::{HEADERS, MODULES, Module, OPTIONS, PTX_ARCHITECTURE};

/// What kernels are compiled for: Ampere, Ada, Hopper, Blackwell of servers and of desks.
const ARCHITECTURES: [&str; 6] = ["80", "86", "89", "90", "100", "120"];

/// Registers of a multiprocessor of all of them.
const REGISTERS: u32 = 65536;

struct Nvrtc(Library);

type Program = *mut c_void;

impl Nvrtc {
    /// The library that the variable names.
    fn open(variable: &str) -> Option<Self> {
        let Some(path) = std::env::var_os(variable) else {
            eprintln!("skipped: {variable} is not set");
            return None;
        };
        // SAFETY: a library that the person running the tests names; its initialisers do nothing but set up itself.
        Some(Nvrtc(unsafe { Library::new(&path) }.unwrap()))
    }

    fn symbol<F>(&self, name: &str) -> Symbol<'_, F> {
        // SAFETY: each caller gives the type that nvrtc.h declares.
        unsafe { self.0.get(name.as_bytes()) }.unwrap()
    }

    /// PTX of the module for `compute_<architecture>`.
    fn ptx(&self, module: &Module, architecture: &str) -> String {
        let c = |text: &str| CString::new(text).unwrap();
        let (source, name) = (c(module.source.text), c(module.source.name));
        let texts: Vec<CString> = HEADERS.iter().map(|h| c(h.text)).collect();
        let names: Vec<CString> = HEADERS.iter().map(|h| c(h.name)).collect();
        let mut options: Vec<CString> = OPTIONS.iter().map(|o| c(o)).collect();
        options.push(c(&format!("--gpu-architecture=compute_{architecture}")));
        let pointers = |all: &[CString]| all.iter().map(|t| t.as_ptr()).collect::<Vec<_>>();
        let (texts, names, options) = (pointers(&texts), pointers(&names), pointers(&options));
        type Create = unsafe extern "C" fn(
            *mut Program,
            *const c_char,
            *const c_char,
            c_int,
            *const *const c_char,
            *const *const c_char,
        ) -> c_int;
        type Compile = unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int;
        let mut program: Program = null_mut();
        // SAFETY: signatures of nvrtc.h; all strings outlive the calls, the arrays have the given lengths.
        unsafe {
            let create: Symbol<Create> = self.symbol("nvrtcCreateProgram");
            let made = create(
                &mut program,
                source.as_ptr(),
                name.as_ptr(),
                texts.len() as c_int,
                texts.as_ptr(),
                names.as_ptr(),
            );
            assert_eq!(made, 0, "nvrtcCreateProgram");
            let compile: Symbol<Compile> = self.symbol("nvrtcCompileProgram");
            let compiled = compile(program, options.len() as c_int, options.as_ptr());
            let log = self.text(program, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog");
            assert_eq!(compiled, 0, "{} for {architecture}:\n{log}", module.source.name);
            let ptx = self.text(program, "nvrtcGetPTXSize", "nvrtcGetPTX");
            let destroy: Symbol<unsafe extern "C" fn(*mut Program) -> c_int> =
                self.symbol("nvrtcDestroyProgram");
            destroy(&mut program);
            ptx
        }
    }

    /// SAFETY: `program` is one of this library, and the functions are a size and its text.
    unsafe fn text(&self, program: Program, size: &str, get: &str) -> String {
        let mut length = 0usize;
        // SAFETY: signatures of nvrtc.h; the buffer has the length that the library asked for.
        unsafe {
            self.symbol::<unsafe extern "C" fn(Program, *mut usize) -> c_int>(size)(program, &mut length);
            let mut buffer = vec![0u8; length.max(1)];
            let get = self.symbol::<unsafe extern "C" fn(Program, *mut c_char) -> c_int>(get);
            get(program, buffer.as_mut_ptr().cast());
            buffer.push(0);
            CStr::from_bytes_until_nul(&buffer).unwrap().to_string_lossy().into_owned()
        }
    }
}

/// What the assembler says of a kernel.
#[derive(Debug, Default, PartialEq)]
struct Usage {
    kernel: String,
    registers: u32,
    stack: u32,
    spills: u32,
    shared: u32,
}

/// Reads `ptxas -v`.
fn usages(text: &str) -> Vec<Usage> {
    let number_before = |line: &str, what: &str| -> u32 {
        let before = line.split(what).next().filter(|b| b.len() < line.len());
        before.and_then(|b| b.split_whitespace().last()).and_then(|n| n.parse().ok()).unwrap_or(0)
    };
    let mut all: Vec<Usage> = Vec::new();
    for line in text.lines() {
        if let Some(name) = line.split("Compiling entry function '").nth(1) {
            let kernel = name.split('\'').next().unwrap_or_default().to_string();
            all.push(Usage { kernel, ..Usage::default() });
        } else if let Some(usage) = all.last_mut() {
            if line.contains("bytes stack frame") {
                usage.stack = number_before(line, " bytes stack frame");
                usage.spills = number_before(line, " bytes spill stores");
            }
            if line.contains("Used ") {
                usage.registers = number_before(line, " registers");
                usage.shared = number_before(line, " bytes smem");
            }
        }
    }
    all
}

/// Threads that a block of the kernel may have, from the shipped PTX.
pub fn most_threads_of(kernel: &str) -> Option<u32> {
    static ALL: OnceLock<HashMap<String, u32>> = OnceLock::new();
    let read = || {
        let of_module = |m: &Module| {
            let ptx = unpacked(&shipped(m));
            let there = m.kernels().into_iter().filter(|k| ptx.contains(&format!(".entry {k}(")));
            there.map(|k| (k.clone(), most_threads(&ptx, &k))).collect::<Vec<_>>()
        };
        MODULES.iter().flat_map(of_module).collect()
    };
    ALL.get_or_init(read).get(kernel).copied()
}

/// Threads that a block of the kernel may have, from its PTX.
fn most_threads(ptx: &str, kernel: &str) -> u32 {
    let body = ptx.split(&format!(".entry {kernel}(")).nth(1).unwrap();
    let limit = body.split('{').next().unwrap().split(".maxntid").nth(1).unwrap();
    limit.split(',').map(|n| n.split_whitespace().next().unwrap().parse::<u32>().unwrap_or(1)).product()
}

/// Assembles a module's PTX: what each kernel takes, in the order of their names, nothing of it spilled.
fn assembled(ptxas: &Path, module: &Module, ptx: &str, architecture: &str) -> Vec<Usage> {
    let folder = tempfile::tempdir().unwrap();
    let (file, cubin) = (folder.path().join("kernel.ptx"), folder.path().join("kernel.cubin"));
    fs::write(&file, ptx).unwrap();
    let mut command = Command::new(ptxas);
    command.args(["-v", &format!("-arch=sm_{architecture}")]).arg(&file).arg("-o").arg(&cubin);
    let out = command.output().unwrap();
    let text = String::from_utf8_lossy(&out.stderr).into_owned() + &String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{command:?}\n{text}");
    let mut found = usages(&text);
    found.sort_by(|a, b| a.kernel.cmp(&b.kernel));
    let mut names = module.kernels();
    names.sort();
    assert_eq!(found.iter().map(|u| u.kernel.clone()).collect::<Vec<_>>(), names);
    for usage in &found {
        let what = format!("{} on sm_{architecture}: {usage:?}", usage.kernel);
        assert_eq!((usage.spills, usage.stack), (0, 0), "{what}");
        let threads = most_threads(ptx, &usage.kernel);
        assert!(usage.registers > 0 && usage.registers * threads <= REGISTERS, "{what}, {threads} threads");
    }
    if module.source.name == "tile.cu" {
        check_matrix_unit(&cubin, module, architecture);
    }
    found
}

fn ptxas() -> Option<PathBuf> {
    let path = std::env::var_os("PREP_PTXAS").map(PathBuf::from);
    if path.is_none() {
        eprintln!("skipped: PREP_PTXAS is not set");
    }
    path
}

fn shipped(module: &Module) -> PathBuf {
    let home = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels/ptx");
    home.join(module.source.name.replace(".cu", ".ptx.gz"))
}

/// PTX is mostly repetition, and too much of it for a repository as it stands.
fn unpacked(file: &Path) -> String {
    let mut text = String::new();
    flate2::read::GzDecoder::new(fs::File::open(file).unwrap()).read_to_string(&mut text).unwrap();
    text
}

fn pack(file: &Path, ptx: &str) {
    let mut packed =
        flate2::write::GzEncoder::new(fs::File::create(file).unwrap(), flate2::Compression::best());
    packed.write_all(ptx.as_bytes()).unwrap();
    packed.finish().unwrap();
}

#[test]
fn every_kernel_compiles_for_every_architecture() {
    let (Some(nvrtc), Some(ptxas)) = (Nvrtc::open("PREP_NVRTC"), ptxas()) else { return };
    for module in &MODULES {
        for architecture in ARCHITECTURES {
            assembled(&ptxas, module, &nvrtc.ptx(module, architecture), architecture);
        }
    }
}

#[test]
fn shipped_ptx_assembles_for_every_architecture() {
    let Some(ptxas) = ptxas() else { return };
    eprintln!("registers on {ARCHITECTURES:?}; nothing spilled, no stack");
    for module in &MODULES {
        let ptx = unpacked(&shipped(module));
        let usages = ARCHITECTURES.map(|a| assembled(&ptxas, module, &ptx, a));
        for (i, usage) in usages[0].iter().enumerate() {
            let registers: Vec<u32> = usages.iter().map(|u| u[i].registers).collect();
            eprintln!("{:<24} shared {:>6}  {registers:?}", usage.kernel, usage.shared);
        }
    }
}

/// Every tile kernel's machine code has the matrix instruction.
fn check_matrix_unit(cubin: &Path, module: &Module, architecture: &str) {
    let Some(cuobjdump) = std::env::var_os("PREP_CUOBJDUMP") else {
        return eprintln!("skipped: PREP_CUOBJDUMP is not set");
    };
    let bin = Path::new(&cuobjdump).parent().unwrap();
    // It looks for nvdisasm on the path.
    let path = std::env::join_paths(
        std::iter::once(bin.to_path_buf()).chain(std::env::split_paths(&std::env::var_os("PATH").unwrap())),
    );
    let out = Command::new(&cuobjdump).env("PATH", path.unwrap()).arg("-sass").arg(cubin).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    for kernel in module.kernels() {
        let code = text.split(&format!("Function : {kernel}\n")).nth(1).unwrap_or_default();
        let code = code.split("Function :").next().unwrap_or_default();
        assert!(code.contains("HMMA.16816.F32.BF16"), "{kernel} on sm_{architecture}: no matrix instruction");
    }
}

/// `PREP_PTX_WRITE=1` writes the files; else they must be what the compiler makes of the sources today. Which compiler
/// made them stands at their top; another is not compared.
#[test]
fn shipped_ptx_is_that_of_the_sources() {
    let Some(nvrtc) = Nvrtc::open("PREP_NVRTC_PTX") else { return };
    let compiler = |ptx: &str| ptx.lines().find(|l| l.contains("compilation tools")).unwrap().to_string();
    for module in &MODULES {
        let file = shipped(module);
        let ptx = nvrtc.ptx(module, PTX_ARCHITECTURE);
        if std::env::var_os("PREP_PTX_WRITE").is_some() {
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            pack(&file, &ptx);
            continue;
        }
        let there = unpacked(&file);
        if compiler(&there) != compiler(&ptx) {
            return eprintln!("skipped: the shipped PTX is by another compiler: {}", compiler(&there));
        }
        assert!(
            there == ptx,
            "{} is not that of the sources: run this test with PREP_PTX_WRITE=1",
            file.display()
        );
    }
}

#[test]
fn assembler_output_is_read() {
    let text = "ptxas info    : Compiling entry function 'f' for 'sm_80'
ptxas info    : Function properties for f
    8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 8192 bytes smem, 400 bytes cmem[0]";
    let want = Usage { kernel: "f".into(), registers: 40, stack: 8, spills: 4, shared: 8192 };
    assert_eq!(usages(text), [want]);
    assert_eq!(most_threads(".entry f(\n\t.param .u64 p\n)\n.maxntid 32, 8, 1\n{", "f"), 256);
}
