//! Recording and graphs.

use std::ffi::c_int;
use std::ptr::null_mut;

use super::child::{CHECKED, SEEDS, with_driver};
use super::cuda::{Cuda, Handle, LEGACY, code, out};
use super::shipped::Adder;

const GLOBAL: c_int = 0;
const THREAD_LOCAL: c_int = 1;
const RELAXED: c_int = 2;

fn end(cuda: &Cuda, stream: Handle) -> Result<Handle, c_int> {
    out(null_mut(), |g| cuda.cuStreamEndCapture(stream, g))
}

fn status(cuda: &Cuda, stream: Handle) -> c_int {
    out(9, |s| cuda.cuStreamIsCapturing(stream, s)).unwrap()
}

fn executable(cuda: &Cuda, stream: Handle) -> Handle {
    let graph = end(cuda, stream).unwrap();
    let exec = out(null_mut(), |e| cuda.cuGraphInstantiateWithFlags(e, graph, 0)).unwrap();
    cuda.cuGraphDestroy(graph).unwrap();
    exec
}

#[test]
fn what_waits_ends_a_recording() {
    let test = "graphs::what_waits_ends_a_recording";
    let body = |cuda: &Cuda| {
        let (x, stream) = (cuda.alloc(8), cuda.stream());
        let mut values = [0.0f32; 2];
        let host: Handle = values.as_mut_ptr().cast();
        let blocking = out(null_mut(), |s| cuda.cuStreamCreate(s, 0)).unwrap();
        type Call<'a> = &'a dyn Fn(Handle) -> Result<(), c_int>;
        let calls: [(Call, Handle, c_int); 8] = [
            (&|s| cuda.cuStreamSynchronize(s), stream, code::CAPTURE_UNSUPPORTED),
            (&|s| cuda.cuStreamQuery(s), stream, code::CAPTURE_UNSUPPORTED),
            (&|_| cuda.cuCtxSynchronize(), stream, code::CAPTURE_UNSUPPORTED),
            (&|_| out(0, |at| cuda.cuMemAlloc_v2(at, 8)).map(drop), stream, code::CAPTURE_UNSUPPORTED),
            (&|s| cuda.cuMemcpyHtoDAsync_v2(x, host, 8, s), stream, code::CAPTURE_UNSUPPORTED),
            (&|s| cuda.cuMemcpyDtoHAsync_v2(host, x, 8, s), stream, code::CAPTURE_UNSUPPORTED),
            (&|_| cuda.cuMemsetD8Async(x, 0, 8, LEGACY), blocking, code::CAPTURE_IMPLICIT),
            (&|_| cuda.cuMemcpyDtoH_v2(host, x, 8), blocking, code::CAPTURE_IMPLICIT),
        ];
        for (call, stream, want) in calls {
            cuda.cuStreamBeginCapture_v2(stream, THREAD_LOCAL).unwrap();
            assert_eq!(status(cuda, stream), 1);
            assert_eq!(call(stream), Err(want));
            assert_eq!(status(cuda, stream), 2);
            assert_eq!(cuda.cuMemsetD8Async(x, 0, 8, stream), Err(code::CAPTURE_INVALIDATED));
            assert_eq!(end(cuda, stream), Err(code::CAPTURE_INVALIDATED));
            assert_eq!(status(cuda, stream), 0);
        }
        cuda.cuStreamSynchronize(stream).unwrap();
    };
    let Some(report) = with_driver(test, &CHECKED, body) else { return };
    let texts = [
        "cuStreamSynchronize: waiting for it while a stream is recorded",
        "cuStreamQuery: waiting for it",
        "cuCtxSynchronize: waiting for the device",
        "cuMemAlloc: a call that may wait",
        "cuMemcpyHtoDAsync: a copy of memory that is not pinned",
        "cuMemcpyDtoHAsync: a copy of memory that is not pinned",
        "cuMemsetD8Async: work in the legacy stream",
        "cuMemcpyDtoH: work in the legacy stream",
    ];
    report.assert_faults(&texts);
}

#[test]
fn a_relaxed_recording_lets_memory_be_given_out() {
    let test = "graphs::a_relaxed_recording_lets_memory_be_given_out";
    let body = |cuda: &Cuda| {
        let stream = cuda.stream();
        cuda.cuStreamBeginCapture_v2(stream, RELAXED).unwrap();
        let x = cuda.alloc(8);
        cuda.cuMemsetD8Async(x, 0, 8, stream).unwrap();
        cuda.cuGraphLaunch(executable(cuda, stream), stream).unwrap();
        cuda.cuStreamSynchronize(stream).unwrap();
        assert_eq!(cuda.read(x, 2), Ok(vec![0.0; 2]));
    };
    let Some(report) = with_driver(test, &CHECKED, body) else { return };
    report.assert_faults(&[]);
}

#[test]
fn a_recording_is_of_the_thread_that_began_it() {
    let test = "graphs::a_recording_is_of_the_thread_that_began_it";
    let body = |cuda: &Cuda| {
        let (stream, context) =
            (cuda.stream(), out(null_mut(), |c| cuda.cuDevicePrimaryCtxRetain(c, 0)).unwrap());
        let context = context as usize;
        let elsewhere = || {
            std::thread::scope(|s| {
                let work = s.spawn(move || {
                    cuda.cuCtxSetCurrent(context as Handle).unwrap();
                    out(0, |at| cuda.cuMemAlloc_v2(at, 8)).map(drop)
                });
                work.join().unwrap()
            })
        };
        cuda.cuStreamBeginCapture_v2(stream, THREAD_LOCAL).unwrap();
        assert_eq!(elsewhere(), Ok(()));
        end(cuda, stream).unwrap();
        cuda.cuStreamBeginCapture_v2(stream, GLOBAL).unwrap();
        assert_eq!(elsewhere(), Err(code::CAPTURE_UNSUPPORTED));
        assert_eq!(end(cuda, stream), Err(code::CAPTURE_INVALIDATED));
    };
    let Some(report) = with_driver(test, &CHECKED, body) else { return };
    report.assert_faults(&["cuMemAlloc: a call that may wait"]);
}

#[test]
fn copies_and_kernels_of_a_graph_see_what_is_there_at_its_launch() {
    let test = "graphs::copies_and_kernels_of_a_graph_see_what_is_there_at_its_launch";
    let body = |cuda: &Cuda| {
        let (adder, stream) = (Adder::new(cuda), cuda.stream());
        let (x, y) = (cuda.alloc(4), cuda.floats(&[1.0]));
        let pinned = |value: f32| {
            let at = out(null_mut(), |p| cuda.cuMemHostAlloc(p, 4, 0)).unwrap();
            // SAFETY: four bytes were given out; the process ends before they do.
            let place: &mut f32 = unsafe { &mut *at.cast() };
            *place = value;
            (at, place)
        };
        let ((source, input), (target, output)) = (pinned(0.0), pinned(0.0));
        cuda.cuStreamBeginCapture_v2(stream, THREAD_LOCAL).unwrap();
        cuda.cuMemcpyHtoDAsync_v2(x, source, 4, stream).unwrap();
        adder.add(stream, x, y, 1).unwrap();
        cuda.cuMemcpyDtoHAsync_v2(target, x, 4, stream).unwrap();
        let exec = executable(cuda, stream);
        assert_eq!(*output, 0.0, "recorded, not run");
        for value in [10.0, 20.0] {
            *input = value;
            cuda.cuGraphLaunch(exec, stream).unwrap();
            assert_eq!(output.to_bits(), u32::MAX, "not waited for");
            cuda.cuStreamSynchronize(stream).unwrap();
            assert_eq!(*output, value + 1.0);
        }
        cuda.cuGraphLaunch(exec, stream).unwrap();
        cuda.cuMemFreeHost(target).unwrap();
    };
    for run in &SEEDS[..2] {
        let Some(report) = with_driver(test, run, body) else { return };
        report.assert_faults(&["cuMemFreeHost: pinned memory is freed while a copy of it is pending"]);
    }
}

/// `z = x + y` twice over, the second half in another stream that takes part.
fn fork(cuda: &Cuda, joined: bool) -> Result<Vec<f32>, c_int> {
    let adder = Adder::new(cuda);
    let (x, y, z) = (cuda.floats(&[1.0]), cuda.floats(&[2.0]), cuda.floats(&[0.0]));
    let (main, side) = (cuda.stream(), cuda.stream());
    let (forked, done) = (cuda.event(), cuda.event());
    cuda.cuStreamBeginCapture_v2(main, THREAD_LOCAL).unwrap();
    adder.add(main, x, y, 1).unwrap();
    cuda.cuEventRecord(forked, main).unwrap();
    cuda.cuStreamWaitEvent(side, forked, 0).unwrap();
    assert_eq!(status(cuda, side), 1);
    adder.add(side, y, x, 1).unwrap();
    if joined {
        cuda.cuEventRecord(done, side).unwrap();
        cuda.cuStreamWaitEvent(main, done, 0).unwrap();
    }
    adder.add(main, z, x, 1).unwrap();
    adder.add(main, z, if joined { y } else { x }, 1).unwrap();
    let graph = end(cuda, main)?;
    assert_eq!(status(cuda, side), 0);
    let exec = out(null_mut(), |e| cuda.cuGraphInstantiateWithFlags(e, graph, 0)).unwrap();
    cuda.cuGraphLaunch(exec, main).unwrap();
    cuda.cuStreamSynchronize(main).unwrap();
    cuda.read(z, 1)
}

#[test]
fn streams_fork_and_join_in_a_graph() {
    let test = "graphs::streams_fork_and_join_in_a_graph";
    for run in &SEEDS {
        let body = |cuda: &Cuda| assert_eq!(fork(cuda, true), Ok(vec![8.0]));
        let Some(report) = with_driver(test, run, body) else { return };
        report.assert_faults(&[]);
    }
}

#[test]
fn streams_that_do_not_join_are_found() {
    let test = "graphs::streams_that_do_not_join_are_found";
    let body = |cuda: &Cuda| assert_eq!(fork(cuda, false), Err(code::CAPTURE_UNJOINED));
    let Some(report) = with_driver(test, &CHECKED, body) else { return };
    report.assert_faults(&["cuStreamEndCapture: work of another stream is not joined"]);
}

#[test]
fn events_do_not_cross_the_border_of_a_recording() {
    let test = "graphs::events_do_not_cross_the_border_of_a_recording";
    let body = |cuda: &Cuda| {
        let (stream, other, before, within) = (cuda.stream(), cuda.stream(), cuda.event(), cuda.event());
        cuda.cuEventRecord(before, stream).unwrap();
        cuda.cuStreamBeginCapture_v2(stream, THREAD_LOCAL).unwrap();
        assert_eq!(cuda.cuStreamWaitEvent(stream, before, 0), Err(code::CAPTURE_ISOLATION));
        assert_eq!(end(cuda, stream), Err(code::CAPTURE_INVALIDATED));
        cuda.cuStreamBeginCapture_v2(stream, THREAD_LOCAL).unwrap();
        cuda.cuEventRecord(within, stream).unwrap();
        assert_eq!(cuda.cuEventSynchronize(within), Err(code::CAPTURED_EVENT));
        assert_eq!(end(cuda, stream), Err(code::CAPTURE_INVALIDATED));
        cuda.cuStreamBeginCapture_v2(stream, THREAD_LOCAL).unwrap();
        cuda.cuEventRecord(within, stream).unwrap();
        cuda.cuStreamWaitEvent(other, within, 0).unwrap();
        assert_eq!(end(cuda, other), Err(code::CAPTURE_UNMATCHED));
        assert_eq!(end(cuda, stream), Err(code::CAPTURE_INVALIDATED));
        assert_eq!(cuda.cuStreamBeginCapture_v2(LEGACY, THREAD_LOCAL), Err(code::CAPTURE_UNSUPPORTED));
    };
    let Some(report) = with_driver(test, &CHECKED, body) else { return };
    let texts = [
        "the event was recorded before the recording began",
        "the event was recorded in a stream that is recorded",
        "ended in another stream",
        "the legacy stream cannot be recorded",
    ];
    report.assert_faults(&texts);
}

#[test]
fn use_after_free_in_a_graph_is_found_at_its_launch() {
    let test = "graphs::use_after_free_in_a_graph_is_found_at_its_launch";
    let body = |cuda: &Cuda| {
        let (adder, stream) = (Adder::new(cuda), cuda.stream());
        let (x, y) = (cuda.floats(&[1.0]), cuda.floats(&[1.0]));
        cuda.cuStreamBeginCapture_v2(stream, THREAD_LOCAL).unwrap();
        adder.add(stream, x, y, 1).unwrap();
        let exec = executable(cuda, stream);
        cuda.cuGraphLaunch(exec, stream).unwrap();
        cuda.cuStreamSynchronize(stream).unwrap();
        cuda.cuMemFree_v2(y).unwrap();
        cuda.cuGraphLaunch(exec, stream).unwrap();
        assert_eq!(cuda.cuStreamSynchronize(stream), Err(code::ILLEGAL_ADDRESS));
    };
    let Some(report) = with_driver(test, &CHECKED, body) else { return };
    report.assert_faults(&["kernel add in a graph: kernel add, argument 1"]);
}
