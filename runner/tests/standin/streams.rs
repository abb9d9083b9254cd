//! Order: of a stream, of several, and of the host.

use std::ffi::c_int;
use std::ptr::null_mut;

use super::child::{CHECKED, SEEDS, with_driver};
use super::cuda::{Cuda, Handle, LEGACY, code, out};
use super::shipped::Adder;

const DISABLE_TIMING: u32 = 2;

/// Pinned memory of the host with numbers in it.
struct Pinned<'a>(&'a mut [f32]);

impl Pinned<'_> {
    fn new(cuda: &Cuda, count: usize) -> Self {
        let at = out(null_mut(), |p| cuda.cuMemHostAlloc(p, count * 4, 0)).unwrap();
        // SAFETY: so many bytes were given out, aligned to a page; the process ends before they do.
        Pinned(unsafe { std::slice::from_raw_parts_mut(at.cast(), count) })
    }

    fn handle(&self) -> Handle {
        self.0.as_ptr() as Handle
    }

    fn bits(&self) -> Vec<u32> {
        self.0.iter().map(|v| v.to_bits()).collect()
    }
}

#[test]
fn who_does_not_wait_reads_nan() {
    let test = "streams::who_does_not_wait_reads_nan";
    let body = |cuda: &Cuda| {
        let (x, stream) = (cuda.floats(&[1.0, 2.0]), cuda.stream());
        let pinned = Pinned::new(cuda, 2);
        pinned.0.copy_from_slice(&[5.0, 5.0]);
        cuda.cuMemcpyDtoHAsync_v2(pinned.handle(), x, 8, stream).unwrap();
        assert_eq!(pinned.bits(), [u32::MAX; 2]);
        cuda.cuStreamSynchronize(stream).unwrap();
        assert_eq!(*pinned.0, [1.0, 2.0]);
    };
    for run in &SEEDS {
        let Some(report) = with_driver(test, run, body) else { return };
        report.assert_faults(&[]);
    }
}

#[test]
fn pinned_memory_is_read_when_the_copy_runs() {
    let test = "streams::pinned_memory_is_read_when_the_copy_runs";
    let body = |cuda: &Cuda| {
        let (x, stream) = (cuda.alloc(4), cuda.stream());
        let pinned = Pinned::new(cuda, 1);
        pinned.0[0] = 1.0;
        cuda.cuMemcpyHtoDAsync_v2(x, pinned.handle(), 4, stream).unwrap();
        // Too early: the copy has not run.
        pinned.0[0] = 2.0;
        cuda.cuStreamSynchronize(stream).unwrap();
        assert_eq!(cuda.read(x, 1), Ok(vec![2.0]));
        // Memory that is not pinned may be changed at once.
        let values = std::cell::Cell::new(3.0f32);
        cuda.cuMemcpyHtoDAsync_v2(x, values.as_ptr().cast(), 4, stream).unwrap();
        values.set(4.0);
        cuda.cuStreamSynchronize(stream).unwrap();
        assert_eq!(cuda.read(x, 1), Ok(vec![3.0]));
    };
    let Some(report) = with_driver(test, &CHECKED, body) else { return };
    report.assert_faults(&["copy to the device: the host has changed pinned memory"]);
}

#[test]
fn the_device_may_write_pinned_memory_and_read_it_again() {
    let test = "streams::the_device_may_write_pinned_memory_and_read_it_again";
    let body = |cuda: &Cuda| {
        let (x, y, stream) = (cuda.floats(&[1.0]), cuda.alloc(4), cuda.stream());
        let pinned = Pinned::new(cuda, 1);
        cuda.cuMemcpyDtoHAsync_v2(pinned.handle(), x, 4, stream).unwrap();
        cuda.cuMemcpyHtoDAsync_v2(y, pinned.handle(), 4, stream).unwrap();
        cuda.cuStreamSynchronize(stream).unwrap();
        assert_eq!(cuda.read(y, 1), Ok(vec![1.0]));
    };
    let Some(report) = with_driver(test, &CHECKED, body) else { return };
    report.assert_faults(&[]);
}

#[test]
fn a_copy_to_memory_that_is_not_pinned_waits() {
    let test = "streams::a_copy_to_memory_that_is_not_pinned_waits";
    let body = |cuda: &Cuda| {
        let (x, stream) = (cuda.floats(&[1.0]), cuda.stream());
        let mut value = [0.0f32];
        cuda.cuMemcpyDtoHAsync_v2(value.as_mut_ptr().cast(), x, 4, stream).unwrap();
        assert_eq!(value, [1.0]);
    };
    with_driver(test, &CHECKED, body);
}

/// The sum that a second stream reads while the first is to add; with an event between them or without.
fn two_streams(cuda: &Cuda, ordered: bool) -> f32 {
    let adder = Adder::new(cuda);
    let (x, y, z) = (cuda.floats(&[1.0]), cuda.floats(&[2.0]), cuda.floats(&[0.0]));
    let (first, second) = (cuda.stream(), cuda.stream());
    adder.add(first, x, y, 1).unwrap();
    if ordered {
        let event = out(null_mut(), |e| cuda.cuEventCreate(e, DISABLE_TIMING)).unwrap();
        cuda.cuEventRecord(event, first).unwrap();
        cuda.cuStreamWaitEvent(second, event, 0).unwrap();
        cuda.cuEventDestroy_v2(event).unwrap();
    }
    adder.add(second, z, x, 1).unwrap();
    cuda.cuStreamSynchronize(second).unwrap();
    cuda.read(z, 1).unwrap()[0]
}

#[test]
fn an_event_orders_two_streams() {
    let test = "streams::an_event_orders_two_streams";
    for run in &SEEDS {
        let body = |cuda: &Cuda| assert_eq!(two_streams(cuda, true), 3.0);
        let Some(report) = with_driver(test, run, body) else { return };
        report.assert_faults(&[]);
    }
}

#[test]
fn a_missing_event_is_seen_in_some_order() {
    let test = "streams::a_missing_event_is_seen_in_some_order";
    let body = |cuda: &Cuda| {
        // Each result is what a GPU may do as well; the seeds show both.
        let late = std::env::var("PREP_STANDIN_SEED").unwrap() == "0";
        assert_eq!(two_streams(cuda, false), if late { 1.0 } else { 3.0 });
    };
    for run in &SEEDS[..2] {
        let Some(report) = with_driver(test, run, body) else { return };
        report.assert_faults(&[]);
    }
}

#[test]
fn the_legacy_stream_and_blocking_streams_wait_for_each_other() {
    let test = "streams::the_legacy_stream_and_blocking_streams_wait_for_each_other";
    let body = |cuda: &Cuda| {
        let adder = Adder::new(cuda);
        let (x, y) = (cuda.floats(&[1.0]), cuda.floats(&[2.0]));
        let blocking = out(null_mut(), |s| cuda.cuStreamCreate(s, 0)).unwrap();
        adder.add(blocking, x, y, 1).unwrap();
        adder.add(LEGACY, y, x, 1).unwrap();
        adder.add(blocking, x, y, 1).unwrap();
        cuda.cuStreamSynchronize(blocking).unwrap();
        assert_eq!(cuda.read(x, 1), Ok(vec![8.0]));
    };
    for run in &SEEDS {
        with_driver(test, run, body);
    }
}

#[test]
fn a_blocking_copy_has_not_arrived_for_other_streams() {
    let test = "streams::a_blocking_copy_has_not_arrived_for_other_streams";
    let run = CHECKED.with(&[("PREP_STANDIN_SEED", "0")]);
    let body = |cuda: &Cuda| {
        let adder = Adder::new(cuda);
        let (x, z, stream) = (cuda.alloc(4), cuda.floats(&[0.0]), cuda.stream());
        // The driver returns when it has taken the bytes of memory that is not pinned.
        cuda.cuMemcpyHtoD_v2(x, [1.0f32].as_ptr() as Handle, 4).unwrap();
        adder.add(stream, z, x, 1).unwrap();
        cuda.cuStreamSynchronize(stream).unwrap();
        assert!(cuda.read(z, 1).unwrap()[0].is_nan());
        assert_eq!(cuda.read(x, 1), Ok(vec![1.0]));
    };
    with_driver(test, &run, body);
}

#[test]
fn events_tell_how_far_a_stream_is() {
    let test = "streams::events_tell_how_far_a_stream_is";
    let body = |cuda: &Cuda| {
        let (x, stream) = (cuda.alloc(1024), cuda.stream());
        let (start, end) = (cuda.event(), cuda.event());
        assert_eq!(cuda.cuEventQuery(start), Ok(()), "nothing is recorded");
        cuda.cuEventRecord(start, stream).unwrap();
        cuda.cuMemsetD8Async(x, 0, 1024, stream).unwrap();
        cuda.cuEventRecord(end, stream).unwrap();
        assert_eq!(cuda.cuEventQuery(end), Err(code::NOT_READY));
        assert_eq!(elapsed(cuda, start, end), Err(code::NOT_READY));
        // It goes on while the host asks.
        let queries = (0..10).find(|_| cuda.cuEventQuery(end).is_ok());
        assert!(queries.is_some());
        assert!(elapsed(cuda, start, end).unwrap() >= 0.0);
        cuda.cuMemsetD8Async(x, 0, 1024, stream).unwrap();
        cuda.cuMemsetD8Async(x, 0, 1024, stream).unwrap();
        assert_eq!(cuda.cuStreamQuery(stream), Err(code::NOT_READY));
        cuda.cuStreamSynchronize(stream).unwrap();
        cuda.cuStreamQuery(stream).unwrap();
        cuda.cuEventSynchronize(end).unwrap();
        let untimed = out(null_mut(), |e| cuda.cuEventCreate(e, DISABLE_TIMING)).unwrap();
        cuda.cuEventRecord(untimed, stream).unwrap();
        assert_eq!(elapsed(cuda, start, untimed), Err(code::INVALID_HANDLE));
    };
    let Some(report) = with_driver(test, &CHECKED, body) else { return };
    report.assert_fault(&["cuEventElapsedTime: an event that was made without times"]);
}

fn elapsed(cuda: &Cuda, start: Handle, end: Handle) -> Result<f32, c_int> {
    out(0.0, |ms| cuda.cuEventElapsedTime(ms, start, end))
}

#[test]
fn handles_that_were_destroyed_are_found() {
    let test = "streams::handles_that_were_destroyed_are_found";
    let body = |cuda: &Cuda| {
        let (stream, event, x) = (cuda.stream(), cuda.event(), cuda.alloc(4));
        cuda.cuMemsetD8Async(x, 0, 4, stream).unwrap();
        cuda.cuStreamDestroy_v2(stream).unwrap();
        cuda.cuEventDestroy_v2(event).unwrap();
        assert_eq!(cuda.cuStreamSynchronize(stream), Err(code::INVALID_HANDLE));
        assert_eq!(cuda.cuStreamDestroy_v2(stream), Err(code::INVALID_HANDLE));
        assert_eq!(cuda.cuEventRecord(event, LEGACY), Err(code::INVALID_HANDLE));
        // What was in the stream is done.
        cuda.cuCtxSynchronize().unwrap();
        assert_eq!(cuda.read(x, 1), Ok(vec![0.0]));
    };
    let Some(report) = with_driver(test, &CHECKED, body) else { return };
    report.assert_faults(&["not one of the streams", "not one of the streams", "not one of the events"]);
}
