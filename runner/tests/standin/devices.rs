//! Devices and contexts.

use std::ffi::{CStr, c_char};
use std::ptr::null_mut;

use super::child::{CHECKED, in_child, with_driver};
use super::cuda::{Cuda, code, out};

#[test]
fn calls_come_in_order() {
    let test = "devices::calls_come_in_order";
    let body = || {
        let cuda = Cuda::load();
        assert_eq!(out(0, |n| cuda.cuDeviceGetCount(n)), Err(code::NOT_INITIALIZED));
        cuda.cuInit(0).unwrap();
        assert_eq!(out(0, |n| cuda.cuDeviceGetCount(n)), Ok(1));
        assert_eq!(out(0, |d| cuda.cuDeviceGet(d, 1)), Err(code::INVALID_DEVICE));
        assert_eq!(out(0, |at| cuda.cuMemAlloc_v2(at, 8)), Err(code::INVALID_CONTEXT));
        let context = out(null_mut(), |c| cuda.cuDevicePrimaryCtxRetain(c, 0)).unwrap();
        assert_eq!(out(0, |at| cuda.cuMemAlloc_v2(at, 8)), Err(code::INVALID_CONTEXT));
        cuda.cuCtxSetCurrent(context).unwrap();
        let at = out(0, |at| cuda.cuMemAlloc_v2(at, 8)).unwrap();
        cuda.cuMemFree_v2(at).unwrap();
        cuda.cuDevicePrimaryCtxRelease_v2(0).unwrap();
        assert_eq!(out(0, |at| cuda.cuMemAlloc_v2(at, 8)), Err(code::INVALID_CONTEXT));
        assert_eq!(cuda.cuDevicePrimaryCtxRelease_v2(0), Err(code::INVALID_CONTEXT));
    };
    let Some(report) = in_child(test, &CHECKED, body) else { return };
    let texts = ["before cuInit", "no context", "no context", "no context", "released more often"];
    report.assert_faults(&texts);
    assert!(report.summaries[0].leaks.is_empty());
}

#[test]
fn a_machine_may_have_none() {
    let test = "devices::a_machine_may_have_none";
    let run = CHECKED.with(&[("PREP_STANDIN_DEVICES", "0")]);
    let body = || {
        let cuda = Cuda::load();
        let mut version = 0;
        cuda.cuDriverGetVersion(&mut version).unwrap();
        assert_eq!(version, 12040);
        let error = cuda.cuInit(0).unwrap_err();
        assert_eq!(error, code::NO_DEVICE);
        assert_eq!(cuda.error_name(error), "CUDA_ERROR_NO_DEVICE");
    };
    let Some(report) = in_child(test, &run, body) else { return };
    assert!(report.faults.is_empty() && report.summaries.is_empty(), "{report:?}");
}

#[test]
fn devices_have_memory_of_their_own() {
    let test = "devices::devices_have_memory_of_their_own";
    let run = CHECKED.with(&[("PREP_STANDIN_DEVICES", "2"), ("PREP_STANDIN_MEMORY", "4096")]);
    let body = |cuda: &Cuda| {
        let first = cuda.alloc(4096);
        let context = out(null_mut(), |c| cuda.cuDevicePrimaryCtxRetain(c, 1)).unwrap();
        cuda.cuCtxSetCurrent(context).unwrap();
        cuda.alloc(4096);
        assert_eq!(cuda.cuMemsetD8Async(first, 0, 8, null_mut()), Err(code::INVALID_VALUE));
    };
    let Some(report) = with_driver(test, &run, body) else { return };
    report.assert_fault(&["cuMemsetD8Async: destination", "byte 0 of allocation 1"]);
}

#[test]
fn a_device_has_a_name_and_attributes() {
    let test = "devices::a_device_has_a_name_and_attributes";
    let body = |cuda: &Cuda| {
        let mut name: [c_char; 64] = [1; 64];
        cuda.cuDeviceGetName(name.as_mut_ptr(), 64, 0).unwrap();
        // SAFETY: the driver ends what it writes by NUL.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) };
        assert_eq!(name.to_str(), Ok("stand-in 0"));
        let attribute = |number| out(0, |v| cuda.cuDeviceGetAttribute(v, number, 0)).unwrap();
        // Threads of a block, shared memory of one that asks, multiprocessors, capability.
        assert_eq!([1, 97, 16, 75, 76].map(attribute), [1024, 101376, 128, 8, 9]);
        let mut version: [*const c_char; 2] = [std::ptr::null(); 2];
        cuda.cuGetErrorString(code::OUT_OF_MEMORY, &mut version[0]).unwrap();
        assert_eq!(cuda.cuGetErrorString(12345, &mut version[1]), Err(code::INVALID_VALUE));
    };
    let Some(report) = with_driver(test, &CHECKED, body) else { return };
    report.assert_faults(&[]);
}
