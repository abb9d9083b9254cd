//! Modules, their kernels, and the limits of launches.

use runner::backend::Divide;
use runner::cuda::launches::{Add, Router};
use runner::cuda::{Arg, Launch};

use super::child::{CHECKED, with_driver};
use super::cuda::{Cuda, LEGACY, code, out};
use super::shipped::{Adder, ptx};

#[test]
fn blocks_and_grids_have_limits() {
    let test = "launches::blocks_and_grids_have_limits";
    let body = |cuda: &Cuda| {
        let (adder, x) = (Adder::new(cuda), cuda.floats(&[1.0]));
        let launch = |grid, block| {
            let launch = Launch { grid, block, ..Add { x, y: x, n: 1 }.launch() };
            cuda.launch(adder.function, LEGACY, &launch)
        };
        for (grid, block) in [
            ([1, 1, 1], [1056, 1, 1]),
            ([1, 1, 1], [512, 1, 1]),
            ([1, 1, 1], [0, 1, 1]),
            ([0, 1, 1], [256, 1, 1]),
            ([1, 65536, 1], [256, 1, 1]),
        ] {
            assert_eq!(launch(grid, block), Err(code::INVALID_VALUE));
        }
        launch([1, 1, 1], [256, 1, 1]).unwrap();
        cuda.cuCtxSynchronize().unwrap();
        assert_eq!(out(0, |v| cuda.cuFuncGetAttribute(v, 0, adder.function)), Ok(256));
    };
    let Some(report) = with_driver(test, &CHECKED, body) else { return };
    report.assert_faults(&[
        "kernel add: a block of 1056 x 1 x 1 threads",
        "kernel add: 512 threads, compiled for 256",
        "kernel add: a block of 0 x 1 x 1 threads",
        "kernel add: a grid of 0 x 1 x 1 blocks",
        "kernel add: a grid of 1 x 65536 x 1 blocks",
    ]);
}

#[test]
fn shared_memory_has_limits() {
    let test = "launches::shared_memory_has_limits";
    const DYNAMIC: i32 = 8;
    let body = |cuda: &Cuda| {
        let module = cuda.module(&ptx("router")).unwrap();
        let function = cuda.function(module, "router").unwrap();
        let logits = cuda.floats(&[0.0, 2.0, 1.0, 3.0]);
        let (ids, weights) = (cuda.alloc(8), cuda.alloc(8));
        let router = Router { logits, experts: 4, chosen: 2, divide: Divide::BySum, ids, weights, tokens: 1 };
        let launch = |bytes| cuda.launch(function, LEGACY, &router.launch().shared(bytes));
        assert_eq!(launch(48 * 1024 + 4), Err(code::INVALID_VALUE));
        assert_eq!(cuda.cuFuncSetAttribute(function, DYNAMIC, 99 * 1024 + 1), Err(code::INVALID_VALUE));
        cuda.cuFuncSetAttribute(function, DYNAMIC, 60_000).unwrap();
        assert_eq!(out(0, |v| cuda.cuFuncGetAttribute(v, DYNAMIC, function)), Ok(60_000));
        launch(60_000).unwrap();
        assert_eq!(launch(60_004), Err(code::INVALID_VALUE));
        launch(16).unwrap();
        cuda.cuCtxSynchronize().unwrap();
        let sum: f32 = cuda.read(weights, 2).unwrap().iter().sum();
        assert!((sum - 1.0).abs() < 1e-6, "{sum}");
        // One expert's number less than the kernel uses.
        launch(12).unwrap();
        assert_eq!(cuda.cuCtxSynchronize(), Err(code::ILLEGAL_ADDRESS));
    };
    let Some(report) = with_driver(test, &CHECKED, body) else { return };
    report.assert_faults(&[
        "kernel router: 49156 bytes of shared memory",
        "kernel router: 101377 bytes of shared memory",
        "kernel router: 60004 bytes of shared memory, allowed are 60000",
        "shared memory beyond its arrays",
    ]);
}

#[test]
fn missing_arguments_are_found() {
    let test = "launches::missing_arguments_are_found";
    let body = |cuda: &Cuda| {
        let (adder, x) = (Adder::new(cuda), cuda.floats(&[1.0]));
        let mut launch = Add { x, y: x, n: 1 }.launch();
        launch.args.pop();
        assert_eq!(cuda.launch(adder.function, LEGACY, &launch), Err(code::INVALID_VALUE));
        // One in another's place.
        launch.args = vec![Arg::U64(1), Arg::Write(Some(x)), Arg::Read(Some(x))];
        cuda.launch(adder.function, LEGACY, &launch).unwrap();
        assert_eq!(cuda.cuCtxSynchronize(), Err(code::ILLEGAL_ADDRESS));
    };
    let Some(report) = with_driver(test, &CHECKED, body) else { return };
    report.assert_faults(&[
        "kernel add: no argument 2 of 3",
        "kernel add, argument 0 is 0x1: an address of the host",
    ]);
}

#[test]
fn parameters_are_those_of_the_source() {
    let test = "launches::parameters_are_those_of_the_source";
    let body = |cuda: &Cuda| {
        let text = ptx("elementwise");
        let smaller = text.replace(".param .u64 add_param_2", ".param .u32 add_param_2");
        assert_ne!(smaller, text);
        let fewer = text.replace(",\n\t.param .u64 add_param_2", "");
        assert_ne!(fewer, text);
        for text in [smaller, fewer] {
            let module = cuda.module(&text).unwrap();
            assert_eq!(cuda.function(module, "add"), Err(code::INVALID_IMAGE));
            cuda.function(module, "bias").unwrap();
        }
        let module = cuda.module(&text.replace("entry add(", "entry plus(")).unwrap();
        assert_eq!(cuda.function(module, "add"), Err(code::NOT_FOUND));
        assert_eq!(cuda.function(module, "plus"), Err(code::NOT_FOUND));
    };
    let Some(report) = with_driver(test, &CHECKED, body) else { return };
    report.assert_faults(&[
        "kernel add has parameters of 8 8 4 bytes in the PTX, of 8 8 8 in its source",
        "kernel add has parameters of 8 8 bytes in the PTX, of 8 8 8 in its source",
        "kernel plus is in the PTX, but not among the compiled kernels",
    ]);
}

#[test]
fn what_is_no_ptx_is_refused() {
    let test = "launches::what_is_no_ptx_is_refused";
    let body = |cuda: &Cuda| {
        let text = ptx("elementwise");
        let half = &text[..text.len() / 2];
        assert_eq!(cuda.module("hello"), Err(code::INVALID_PTX));
        assert_eq!(cuda.module(""), Err(code::INVALID_PTX));
        assert_eq!(cuda.module(half), Err(code::INVALID_PTX));
        assert_eq!(cuda.module("\x7fELF"), Err(code::NO_BINARY_FOR_GPU));
        let newer = text.replace(".version 8.1", ".version 9.9");
        assert_eq!(cuda.module(&newer), Err(code::UNSUPPORTED_PTX_VERSION));
        let hopper = text.replace(".target sm_80", ".target sm_90");
        assert_eq!(cuda.module(&hopper), Err(code::NO_BINARY_FOR_GPU));
    };
    let Some(report) = with_driver(test, &CHECKED, body) else { return };
    report.assert_faults(&["`hello`", "ends too early", "no PTX", "machine code", "version 99", "sm_90"]);
}

#[test]
fn a_later_device_takes_it() {
    let test = "launches::a_later_device_takes_it";
    let run = CHECKED.with(&[("PREP_STANDIN_CAPABILITY", "9.0")]);
    let body = |cuda: &Cuda| {
        let hopper = ptx("elementwise").replace(".target sm_80", ".target sm_90");
        cuda.module(&hopper).unwrap();
        const MAJOR: i32 = 75;
        assert_eq!(out(0, |v| cuda.cuDeviceGetAttribute(v, MAJOR, 0)), Ok(9));
    };
    let Some(report) = with_driver(test, &run, body) else { return };
    report.assert_faults(&[]);
}

#[test]
fn kernels_end_with_their_module() {
    let test = "launches::kernels_end_with_their_module";
    let body = |cuda: &Cuda| {
        let (adder, x) = (Adder::new(cuda), cuda.floats(&[1.0]));
        cuda.cuModuleUnload(adder.module).unwrap();
        assert_eq!(adder.add(LEGACY, x, x, 1), Err(code::INVALID_HANDLE));
        assert_eq!(cuda.cuModuleUnload(adder.module), Err(code::INVALID_HANDLE));
    };
    let Some(report) = with_driver(test, &CHECKED, body) else { return };
    report.assert_faults(&["not one of the functions", "not one of the modules"]);
}
