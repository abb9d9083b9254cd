//! Memory of the device and of the host.

use std::ptr::null_mut;

use runner::cuda::launches::{Gemv, ScaleKind, WeightFormat, Weights};

use super::child::{CHECKED, FAST, with_driver};
use super::cuda::{Cuda, Handle, LEGACY, code, out};
use super::shipped::{Adder, ptx};

fn host(values: &[f32]) -> Handle {
    values.as_ptr() as Handle
}

#[test]
fn use_after_free_is_found() {
    let body = |cuda: &Cuda| {
        let adder = Adder::new(cuda);
        let (x, y) = (cuda.floats(&[1.0, 2.0]), cuda.floats(&[1.0, 2.0]));
        cuda.cuMemFree_v2(y).unwrap();
        adder.add(LEGACY, x, y, 2).unwrap();
        assert_eq!(cuda.cuCtxSynchronize(), Err(code::ILLEGAL_ADDRESS));
    };
    for run in [CHECKED, FAST] {
        let Some(report) = with_driver("memory::use_after_free_is_found", &run, body) else { return };
        report.assert_fault(&["kernel add, argument 1", "byte 0 of freed allocation 2 of 8 bytes"]);
    }
}

#[test]
fn use_after_a_free_in_the_stream_is_found() {
    let test = "memory::use_after_a_free_in_the_stream_is_found";
    let body = |cuda: &Cuda| {
        let (adder, stream) = (Adder::new(cuda), cuda.stream());
        let x = cuda.floats(&[1.0, 2.0]);
        let y = out(0, |at| cuda.cuMemAllocAsync(at, 8, stream)).unwrap();
        adder.add(stream, x, y, 2).unwrap();
        cuda.cuMemFreeAsync(y, stream).unwrap();
        cuda.cuStreamSynchronize(stream).unwrap();
        adder.add(stream, x, y, 2).unwrap();
        assert_eq!(cuda.cuStreamSynchronize(stream), Err(code::ILLEGAL_ADDRESS));
    };
    let Some(report) = with_driver(test, &CHECKED, body) else { return };
    report.assert_fault(&["kernel add, argument 1", "freed allocation 2 of 8 bytes"]);
}

#[test]
fn one_number_too_many_is_found() {
    let test = "memory::one_number_too_many_is_found";
    let body = |cuda: &Cuda| {
        let adder = Adder::new(cuda);
        let (x, y) = (cuda.floats(&[1.0; 4]), cuda.floats(&[1.0; 3]));
        adder.add(LEGACY, x, y, 4).unwrap();
        assert_eq!(cuda.cuCtxSynchronize(), Err(code::ILLEGAL_ADDRESS));
    };
    let Some(report) = with_driver(test, &CHECKED, body) else { return };
    let end = "reads 4 bytes at";
    report.assert_fault(&[
        "kernel add, block (0, 0, 0): thread (3, 0, 0)",
        end,
        "0 bytes past the end of allocation 2",
    ]);
}

#[test]
fn one_byte_too_many_is_found() {
    let test = "memory::one_byte_too_many_is_found";
    let body = |cuda: &Cuda| {
        let adder = Adder::new(cuda);
        // 11 bytes: the third number begins in it.
        let (x, y) = (cuda.floats(&[1.0; 3]), cuda.alloc(11));
        adder.add(LEGACY, x, y, 3).unwrap();
        assert_eq!(cuda.cuCtxSynchronize(), Err(code::ILLEGAL_ADDRESS));
    };
    let Some(report) = with_driver(test, &CHECKED, body) else { return };
    report.assert_fault(&["thread (2, 0, 0) reads 4 bytes", "byte 8 of allocation 2 of 11 bytes"]);
}

#[test]
fn misaligned_access_is_found() {
    let test = "memory::misaligned_access_is_found";
    let body = |cuda: &Cuda| {
        let adder = Adder::new(cuda);
        let (x, y) = (cuda.floats(&[1.0; 4]), cuda.floats(&[1.0; 4]));
        adder.add(LEGACY, x, y + 2, 3).unwrap();
        assert_eq!(cuda.cuCtxSynchronize(), Err(code::MISALIGNED_ADDRESS));
    };
    let Some(report) = with_driver(test, &CHECKED, body) else { return };
    report.assert_fault(&["kernel add", "thread (0, 0, 0) reads 4 bytes", "not a multiple of"]);
}

/// A product with f32 weights `[1, 4]` at `codes`.
fn product(cuda: &Cuda, codes: u64) -> Result<f32, i32> {
    let module = cuda.module(&ptx("gemv")).unwrap();
    let function = cuda.function(module, "gemv_f32").unwrap();
    let (x, y) = (cuda.floats(&[1.0, 10.0, 100.0, 1000.0]), cuda.alloc(4));
    let w = Weights {
        format: WeightFormat::F32,
        codes,
        scales: None,
        zeros: None,
        each: 16,
        rows: 1,
        cols: 4,
        block: [1, 4],
        each_scales: 0,
        scale_kind: ScaleKind::F32,
    };
    let launch = Gemv { w, x, ids: None, per: 1, bias: None, y, visits: 1 }.launch();
    cuda.launch(function, LEGACY, &launch)?;
    Ok(cuda.read(y, 1)?[0])
}

#[test]
fn pointers_in_a_struct_are_followed() {
    let test = "memory::pointers_in_a_struct_are_followed";
    let body = |cuda: &Cuda| {
        assert_eq!(product(cuda, cuda.floats(&[1.0, 2.0, 3.0, 4.0])), Ok(4321.0));
    };
    for run in [CHECKED, FAST] {
        let Some(report) = with_driver(test, &run, body) else { return };
        report.assert_faults(&[]);
    }
}

#[test]
fn weights_left_on_the_host_are_found() {
    let test = "memory::weights_left_on_the_host_are_found";
    let body = |cuda: &Cuda| {
        let weights = [1.0f32; 8];
        let codes = (weights.as_ptr() as u64).next_multiple_of(16);
        assert_eq!(product(cuda, codes), Err(code::ILLEGAL_ADDRESS));
    };
    let Some(report) = with_driver(test, &CHECKED, body) else { return };
    report.assert_fault(&["kernel gemv_f32", "reads 4 bytes", "an address of the host"]);
}

#[test]
fn weights_off_sixteen_bytes_are_found() {
    let test = "memory::weights_off_sixteen_bytes_are_found";
    let body = |cuda: &Cuda| {
        let codes = cuda.floats(&[1.0; 8]);
        assert_eq!(product(cuda, codes + 4), Err(code::MISALIGNED_ADDRESS));
    };
    for run in [CHECKED, FAST] {
        let Some(report) = with_driver(test, &run, body) else { return };
        report.assert_fault(&["kernel gemv_f32", "not a multiple of 16"]);
    }
}

#[test]
fn an_address_of_the_host_as_argument_is_found() {
    let test = "memory::an_address_of_the_host_as_argument_is_found";
    let body = |cuda: &Cuda| {
        let adder = Adder::new(cuda);
        let (x, y) = (cuda.floats(&[1.0; 4]), [1.0f32; 4]);
        adder.add(LEGACY, x, y.as_ptr() as u64, 4).unwrap();
        assert_eq!(cuda.cuCtxSynchronize(), Err(code::ILLEGAL_ADDRESS));
    };
    for run in [CHECKED, FAST] {
        let Some(report) = with_driver(test, &run, body) else { return };
        report.assert_fault(&["kernel add, argument 1", "an address of the host"]);
    }
}

#[test]
fn a_null_pointer_is_found_when_it_is_read() {
    let test = "memory::a_null_pointer_is_found_when_it_is_read";
    let body = |cuda: &Cuda| {
        let adder = Adder::new(cuda);
        let x = cuda.floats(&[1.0; 4]);
        adder.add(LEGACY, x, 0, 4).unwrap();
        assert_eq!(cuda.cuCtxSynchronize(), Err(code::ILLEGAL_ADDRESS));
    };
    let Some(report) = with_driver(test, &CHECKED, body) else { return };
    report.assert_fault(&["kernel add", "reads 4 bytes", "a null pointer"]);
}

#[test]
fn an_error_stays_until_the_context_ends() {
    let test = "memory::an_error_stays_until_the_context_ends";
    let body = |cuda: &Cuda| {
        let adder = Adder::new(cuda);
        let x = cuda.floats(&[1.0; 4]);
        let pinned = out(null_mut(), |p| cuda.cuMemHostAlloc(p, 8, 0)).unwrap();
        adder.add(LEGACY, x, 0, 4).unwrap();
        assert_eq!(cuda.read(x, 4), Err(code::ILLEGAL_ADDRESS));
        assert_eq!(out(0, |at| cuda.cuMemAlloc_v2(at, 8)), Err(code::ILLEGAL_ADDRESS));
        assert_eq!(adder.add(LEGACY, x, x, 4), Err(code::ILLEGAL_ADDRESS));
        assert_eq!(cuda.cuMemFree_v2(x), Err(code::ILLEGAL_ADDRESS));
        assert_eq!(cuda.cuMemFreeHost(pinned), Err(code::ILLEGAL_ADDRESS));
        assert_eq!(cuda.cuModuleUnload(adder.module), Err(code::ILLEGAL_ADDRESS));
        cuda.cuDevicePrimaryCtxRelease_v2(0).unwrap();
        let context = out(null_mut(), |c| cuda.cuDevicePrimaryCtxRetain(c, 0)).unwrap();
        cuda.cuCtxSetCurrent(context).unwrap();
        let x = cuda.floats(&[1.0; 4]);
        assert_eq!(cuda.read(x, 4), Ok(vec![1.0; 4]));
        cuda.cuMemFree_v2(x).unwrap();
        cuda.cuDevicePrimaryCtxRelease_v2(0).unwrap();
    };
    let Some(report) = with_driver(test, &CHECKED, body) else { return };
    report.assert_fault(&["a null pointer"]);
    // What was freed after the error is free all the same.
    assert!(report.summaries[0].leaks.is_empty(), "{:?}", report.summaries[0].leaks);
}

#[test]
fn copies_in_the_wrong_direction_are_found() {
    let test = "memory::copies_in_the_wrong_direction_are_found";
    let body = |cuda: &Cuda| {
        let (x, mut values) = (cuda.alloc(8), [0.0f32; 2]);
        let at = values.as_mut_ptr();
        assert_eq!(cuda.cuMemcpyHtoD_v2(at as u64, x as Handle, 8), Err(code::INVALID_VALUE));
        assert_eq!(cuda.cuMemcpyDtoH_v2(x as Handle, x, 8), Err(code::INVALID_VALUE));
        assert_eq!(cuda.cuMemcpyDtoDAsync_v2(x, at as u64, 8, LEGACY), Err(code::INVALID_VALUE));
    };
    let Some(report) = with_driver(test, &CHECKED, body) else { return };
    report.assert_faults(&[
        "cuMemcpyHtoD: destination, 8 bytes",
        "destination 0x",
        "cuMemcpyDtoDAsync: source, 8 bytes",
    ]);
    assert!(report.faults[0].contains("an address of the host"), "{}", report.faults[0]);
    assert!(report.faults[1].contains("wrong direction, an address of a device"), "{}", report.faults[1]);
}

#[test]
fn copies_beyond_an_end_are_found() {
    let test = "memory::copies_beyond_an_end_are_found";
    let body = |cuda: &Cuda| {
        let (x, values) = (cuda.alloc(8), [0.0f32; 3]);
        let pinned = out(null_mut(), |p| cuda.cuMemHostAlloc(p, 8, 0)).unwrap();
        let wide = cuda.alloc(12);
        assert_eq!(cuda.cuMemcpyHtoD_v2(x, host(&values), 12), Err(code::INVALID_VALUE));
        assert_eq!(cuda.cuMemcpyDtoHAsync_v2(pinned, wide, 12, LEGACY), Err(code::INVALID_VALUE));
        assert_eq!(cuda.cuMemsetD8Async(x + 4, 0, 5, LEGACY), Err(code::INVALID_VALUE));
        assert_eq!(cuda.cuMemsetD32Async(x + 2, 0, 1, LEGACY), Err(code::INVALID_VALUE));
    };
    let Some(report) = with_driver(test, &CHECKED, body) else { return };
    let texts = [
        "cuMemcpyHtoD: destination, 12 bytes",
        "destination, 12 bytes: past the end of 8 pinned bytes",
        "cuMemsetD8Async: destination, 5 bytes",
        "misaligned",
    ];
    report.assert_faults(&texts);
}

#[test]
fn wrong_frees_are_found() {
    let test = "memory::wrong_frees_are_found";
    let body = |cuda: &Cuda| {
        let (x, y) = (cuda.alloc(8), cuda.alloc(8));
        let ordered = out(0, |at| cuda.cuMemAllocAsync(at, 8, LEGACY)).unwrap();
        let pinned = out(null_mut(), |p| cuda.cuMemHostAlloc(p, 8, 0)).unwrap();
        let values = [0.0f32; 2];
        cuda.cuMemFree_v2(x).unwrap();
        cuda.cuMemFreeAsync(ordered, LEGACY).unwrap();
        cuda.cuMemFreeHost(pinned).unwrap();
        assert_eq!(cuda.cuMemFree_v2(x), Err(code::INVALID_VALUE));
        assert_eq!(cuda.cuMemFree_v2(y + 4), Err(code::INVALID_VALUE));
        assert_eq!(cuda.cuMemFree_v2(values.as_ptr() as u64), Err(code::INVALID_VALUE));
        assert_eq!(cuda.cuMemFreeAsync(ordered, LEGACY), Err(code::INVALID_VALUE));
        assert_eq!(cuda.cuMemFreeHost(pinned), Err(code::INVALID_VALUE));
        assert_eq!(cuda.cuMemFreeHost(host(&values)), Err(code::INVALID_VALUE));
        cuda.cuMemFree_v2(0).unwrap();
    };
    let Some(report) = with_driver(test, &CHECKED, body) else { return };
    let texts = [
        "double free of allocation 1",
        "free of byte 4 of allocation 2",
        "free of an address of the host",
        "double free of allocation 3",
        "double free of pinned memory",
        "no pinned allocation",
    ];
    report.assert_faults(&texts);
}

#[test]
fn pinned_memory_is_not_freed_under_a_copy() {
    let test = "memory::pinned_memory_is_not_freed_under_a_copy";
    let body = |cuda: &Cuda| {
        let x = cuda.alloc(8);
        let pinned = out(null_mut(), |p| cuda.cuMemHostAlloc(p, 8, 0)).unwrap();
        cuda.cuMemcpyHtoDAsync_v2(x, pinned, 8, cuda.stream()).unwrap();
        cuda.cuMemFreeHost(pinned).unwrap();
    };
    let Some(report) = with_driver(test, &CHECKED, body) else { return };
    report.assert_fault(&["while a copy of it is pending"]);
}

#[test]
fn what_is_never_given_back_is_counted() {
    let test = "memory::what_is_never_given_back_is_counted";
    let body = |cuda: &Cuda| {
        let adder = Adder::new(cuda);
        let (stream, x) = (cuda.stream(), cuda.alloc(1000));
        cuda.alloc(24);
        cuda.event();
        out(null_mut(), |p| cuda.cuMemHostAlloc(p, 8, 0)).unwrap();
        cuda.cuMemsetD8Async(x, 0, 1000, stream).unwrap();
        adder.add(stream, x, x, 1).unwrap();
    };
    let Some(report) = with_driver(test, &CHECKED, body) else { return };
    let summary = &report.summaries[0];
    let want = [
        ("allocations", 2),
        ("contexts", 1),
        ("events", 1),
        ("modules", 1),
        ("pinned allocations", 1),
        ("streams", 1),
    ];
    assert_eq!(summary.leaks, want.map(|(k, n)| (k.to_string(), n)).into());
    assert_eq!(summary.leaked_bytes, 1024);
    assert_eq!(summary.unwaited, 2);
}

#[test]
fn memory_ends() {
    let test = "memory::memory_ends";
    let run = CHECKED.with(&[("PREP_STANDIN_MEMORY", "1048576")]);
    let body = |cuda: &Cuda| {
        let alloc = |bytes| out(0, |at| cuda.cuMemAlloc_v2(at, bytes));
        assert_eq!(out(0usize, |b| cuda.cuDeviceTotalMem_v2(b, 0)), Ok(1 << 20));
        let half = alloc(1 << 19).unwrap();
        assert_eq!(alloc((1 << 19) + 1), Err(code::OUT_OF_MEMORY));
        let rest = alloc(1 << 19).unwrap();
        let (mut free, mut total) = (1, 1);
        cuda.cuMemGetInfo_v2(&mut free, &mut total).unwrap();
        assert_eq!((free, total), (0, 1 << 20));
        cuda.cuMemFree_v2(half).unwrap();
        // What a stream still has to free is used again.
        let ordered = out(0, |at| cuda.cuMemAllocAsync(at, 1 << 19, LEGACY)).unwrap();
        cuda.cuMemFreeAsync(ordered, LEGACY).unwrap();
        let again = alloc(1 << 19).unwrap();
        [rest, again].iter().for_each(|at| cuda.cuMemFree_v2(*at).unwrap());
        cuda.cuDevicePrimaryCtxRelease_v2(0).unwrap();
    };
    let Some(report) = with_driver(test, &run, body) else { return };
    report.assert_clean();
    assert_eq!(report.summaries[0].peak_bytes, 1 << 20);
}

#[test]
fn fresh_memory_is_nan() {
    let test = "memory::fresh_memory_is_nan";
    let body = |cuda: &Cuda| {
        let x = cuda.alloc(16);
        assert!(cuda.read(x, 4).unwrap().iter().all(|v| v.is_nan()));
        let stream = cuda.stream();
        let y = out(0, |at| cuda.cuMemAllocAsync(at, 8, stream)).unwrap();
        cuda.cuMemsetD8Async(y, 0, 4, stream).unwrap();
        cuda.cuStreamSynchronize(stream).unwrap();
        let values = cuda.read(y, 2).unwrap();
        assert!(values[0] == 0.0 && values[1].is_nan());
    };
    let Some(report) = with_driver(test, &CHECKED, body) else { return };
    report.assert_faults(&[]);
}

#[test]
fn calls_fail_on_demand() {
    let test = "memory::calls_fail_on_demand";
    let run = CHECKED.with(&[("PREP_STANDIN_FAIL", "cuMemAlloc:2")]);
    let body = |cuda: &Cuda| {
        let alloc = || out(0, |at| cuda.cuMemAlloc_v2(at, 8));
        alloc().unwrap();
        assert_eq!(alloc(), Err(code::OUT_OF_MEMORY));
        alloc().unwrap();
    };
    let Some(report) = with_driver(test, &run, body) else { return };
    report.assert_faults(&[]);
}

#[test]
fn calls_fail_with_what_is_asked_for() {
    let test = "memory::calls_fail_with_what_is_asked_for";
    let run = CHECKED.with(&[("PREP_STANDIN_FAIL", "cuCtxSynchronize:1:719")]);
    let body = |cuda: &Cuda| {
        assert_eq!(cuda.cuCtxSynchronize(), Err(719));
        cuda.cuCtxSynchronize().unwrap();
    };
    let Some(report) = with_driver(test, &run, body) else { return };
    report.assert_faults(&[]);
}
