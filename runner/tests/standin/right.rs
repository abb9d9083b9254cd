//! What is right goes through, with the right numbers.

use std::ptr::null_mut;

use super::child::{CHECKED, FAST, with_driver};
use super::cuda::{Cuda, out};
use super::shipped::{Adder, ptx};

fn numbers(n: usize, salt: f32) -> Vec<f32> {
    (0..n).map(|i| i as f32 * salt).collect()
}

fn copy_launch_copy(cuda: &Cuda) {
    let adder = Adder::new(cuda);
    let (x, y) = (numbers(1000, 0.5), numbers(1000, 2.0));
    let (at_x, at_y) = (cuda.floats(&x), cuda.floats(&y));
    let stream = cuda.stream();
    adder.add(stream, at_x, at_y, 1000).unwrap();
    cuda.cuStreamSynchronize(stream).unwrap();
    let want: Vec<f32> = x.iter().zip(&y).map(|(x, y)| x + y).collect();
    assert_eq!(cuda.read(at_x, 1000).unwrap(), want);
    cuda.cuStreamDestroy_v2(stream).unwrap();
    [at_x, at_y].iter().for_each(|at| cuda.cuMemFree_v2(*at).unwrap());
    cuda.cuModuleUnload(adder.module).unwrap();
    cuda.cuDevicePrimaryCtxRelease_v2(0).unwrap();
}

#[test]
fn a_kernel_adds() {
    let test = "right::a_kernel_adds";
    let Some(report) = with_driver(test, &CHECKED, copy_launch_copy) else { return };
    report.assert_clean();
    let summary = &report.summaries[0];
    assert_eq!(summary.launches, [("add".to_string(), 1)].into());
    assert_eq!((summary.bytes_to_device, summary.bytes_to_host), (8000, 4000));
    assert!(summary.peak_bytes >= 8000, "{}", summary.peak_bytes);
    assert_eq!(summary.unwaited, 0);
}

#[test]
fn a_kernel_adds_fast() {
    let test = "right::a_kernel_adds_fast";
    let run = FAST.with(&[("PREP_STANDIN_THREADS", "3")]);
    let Some(report) = with_driver(test, &run, copy_launch_copy) else { return };
    report.assert_clean();
}

#[test]
fn a_graph_adds_as_often_as_it_is_launched() {
    let test = "right::a_graph_adds_as_often_as_it_is_launched";
    let body = |cuda: &Cuda| {
        let adder = Adder::new(cuda);
        let (at_x, at_y) = (cuda.floats(&[1.0, 2.0]), cuda.floats(&[10.0, 20.0]));
        let stream = cuda.stream();
        cuda.cuStreamBeginCapture_v2(stream, 1).unwrap();
        adder.add(stream, at_x, at_y, 2).unwrap();
        adder.add(stream, at_x, at_x, 2).unwrap();
        let graph = out(null_mut(), |g| cuda.cuStreamEndCapture(stream, g)).unwrap();
        let exec = out(null_mut(), |e| cuda.cuGraphInstantiateWithFlags(e, graph, 0)).unwrap();
        assert_eq!(out(0usize, |n| cuda.cuGraphGetNodes(graph, null_mut(), n)), Ok(2));
        assert_eq!(cuda.read(at_x, 2).unwrap(), [1.0, 2.0], "recorded, not run");
        for want in [[22.0, 44.0], [64.0, 128.0]] {
            cuda.cuGraphLaunch(exec, stream).unwrap();
            cuda.cuStreamSynchronize(stream).unwrap();
            assert_eq!(cuda.read(at_x, 2).unwrap(), want);
        }
        cuda.cuGraphExecDestroy(exec).unwrap();
        cuda.cuGraphDestroy(graph).unwrap();
        cuda.cuStreamDestroy_v2(stream).unwrap();
        [at_x, at_y].iter().for_each(|at| cuda.cuMemFree_v2(*at).unwrap());
        cuda.cuModuleUnload(adder.module).unwrap();
        cuda.cuDevicePrimaryCtxRelease_v2(0).unwrap();
    };
    let Some(report) = with_driver(test, &CHECKED, body) else { return };
    report.assert_clean();
    assert_eq!(report.summaries[0].graph_launches, 2);
    assert_eq!(report.summaries[0].launches, [("add".to_string(), 4)].into());
}

#[test]
fn every_shipped_kernel_is_bound() {
    let test = "right::every_shipped_kernel_is_bound";
    let body = |cuda: &Cuda| {
        for module in runner::cuda::sources::MODULES {
            let handle = cuda.module(&ptx(module.source.name.trim_end_matches(".cu"))).unwrap();
            for kernel in module.kernels() {
                cuda.function(handle, &kernel).unwrap();
            }
            assert_eq!(cuda.function(handle, "no_such_kernel"), Err(500));
            cuda.cuModuleUnload(handle).unwrap();
        }
        cuda.cuDevicePrimaryCtxRelease_v2(0).unwrap();
    };
    let Some(report) = with_driver(test, &CHECKED, body) else { return };
    report.assert_clean();
}
