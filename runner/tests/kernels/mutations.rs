//! Bugs planted in the kernels: each must be found, by the report that its kind calls for.

use std::fs;

use runner::backend::{Divide, Heads};
use runner::cuda::Launch;
use runner::cuda::launches::*;
use runner::cuda::sources::MODULES;

use super::build;
use super::compile;
use super::machine::{At, Machine, close, random};
use super::matrices::{Kind, matrix, upload};
use super::product::product;
use runner::cpu::Array;

/// How a planted bug comes to light.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Caught {
    /// The fibers say where threads wait in vain, or which call is wrong.
    Report(&'static str),
    /// The address sanitizer.
    Outside,
    /// Other bytes in another order of the threads.
    Order,
    /// A wrong result.
    Result,
}

/// A bug: what stands in the file, what is put in its place.
struct Planted {
    what: &'static str,
    file: &'static str,
    from: &'static str,
    to: &'static str,
    /// Any of these.
    caught: &'static [Caught],
}

use Caught::{Order, Outside, Report, Result as Wrong};

const PLANTED: [Planted; 19] = [
    Planted {
        what: "no barrier between writing and reading shared memory",
        file: "gemv.cu",
        from: "stage<F, TILE>(tile, x, first, w.cols, thread, 256);\n        __syncthreads();",
        to: "stage<F, TILE>(tile, x, first, w.cols, thread, 256);",
        caught: &[Order, Wrong],
    },
    Planted {
        what: "no barrier before shared memory is written again",
        file: "gemv.cu",
        from: "threadIdx.x);\n        }\n        __syncthreads();",
        to: "threadIdx.x);\n        }",
        caught: &[Order, Wrong],
    },
    Planted {
        what: "a barrier that some rows do not reach",
        file: "gemv.cu",
        from: "    float sum = 0.0f;\n",
        to: "    float sum = 0.0f;\n    if (row >= w.rows) {\n        return;\n    }\n",
        caught: &[Report("__syncthreads at gemv.cu")],
    },
    Planted {
        what: "rows counted one too far",
        file: "gemv.cu",
        from: "if (threadIdx.x == 0 && row < w.rows)",
        to: "if (threadIdx.x == 0 && row <= w.rows)",
        caught: &[Outside],
    },
    Planted {
        what: "a wrong stride between outputs",
        file: "gemv.cu",
        from: "y[u64(visit) * w.rows + row]",
        to: "y[u64(visit) * w.cols + row]",
        caught: &[Outside, Wrong],
    },
    Planted {
        what: "a shuffle in a branch that only some lanes take",
        file: "gemv.cu",
        from: "    sum = warp_sum(sum);\n",
        to: "    if (threadIdx.x < 16) {\n        sum = warp_sum(sum);\n    }\n",
        caught: &[Report("__shfl_xor_sync at warp.cuh")],
    },
    Planted {
        what: "arguments of another order",
        file: "gemv.cu",
        from: "Weights w, const float *x, const u32 *ids, u32 per, const float *bias, float *y",
        to: "Weights w, const float *x, u32 per, const u32 *ids, const float *bias, float *y",
        caught: &[
            Report("arguments spupuP, the kernel takes spuppP"),
            Report("arguments sppupP, the kernel takes spuppP"),
        ],
    },
    Planted {
        what: "an input one number off",
        file: "gemv.cu",
        from: "x += u64(visit / per) * w.cols;",
        to: "x += u64(visit / per) * w.cols + 1;",
        caught: &[Outside, Wrong, Report("not a multiple of 16")],
    },
    Planted {
        what: "the share of one warp only",
        file: "rmsnorm.cu",
        from: "float scale = scale_of_run(squares, width, eps);",
        to: "float scale = scale_of_run(threadIdx.x < 32 ? squares : 0.0f, width, eps);",
        caught: &[Wrong],
    },
    Planted {
        what: "no mask for the tail of a run",
        file: "rmsnorm.cu",
        from: "for (u32 i = threadIdx.x; i < width; i += blockDim.x) {\n        squares",
        to: "for (u32 i = threadIdx.x; i < divided_up(width, 32) * 32; i += blockDim.x) {\n        squares",
        caught: &[Outside],
    },
    Planted {
        what: "a sum of the block within a branch",
        file: "rmsnorm.cu",
        from: "    float scale = scale_of_run(squares, width, eps);",
        to: "    float scale = threadIdx.x < 40 ? scale_of_run(squares, width, eps) : 0.0f;",
        caught: &[Report("__shfl_xor_sync at warp.cuh"), Report("__syncthreads at warp.cuh")],
    },
    Planted {
        what: "no mask for the tail of the visits",
        file: "sort.cu",
        from: "bool mine = v < visits && ids[v] == expert;",
        to: "bool mine = ids[v] == expert;",
        caught: &[Outside],
    },
    Planted {
        what: "no barrier between weights and the sums with them",
        file: "attention.cu",
        from: "                top[h] = now;\n            }\n        }\n        __syncthreads();",
        to: "                top[h] = now;\n            }\n        }",
        caught: &[Order, Wrong],
    },
    Planted {
        what: "no wait of the warp for what its lanes put down",
        file: "down.cu",
        from: "stage<F, PART>(tile, x, first, w.cols, lane, 32);\n        __syncwarp();",
        to: "stage<F, PART>(tile, x, first, w.cols, lane, 32);",
        caught: &[Order, Wrong],
    },
    Planted {
        what: "no barrier before the experts' products are summed",
        file: "down.cu",
        from: "    __syncthreads();\n",
        to: "",
        caught: &[Order, Wrong],
    },
    Planted {
        what: "no barrier before the next tokens are put down",
        file: "gram.cu",
        from: "        // Before the next tokens are written there.\n        __syncthreads();",
        to: "",
        caught: &[Order, Wrong],
    },
    Planted {
        what: "tiles below the diagonal left out",
        file: "gram.cu",
        from: "if (left != top)",
        to: "if (false)",
        caught: &[Wrong],
    },
    Planted {
        what: "one position too many",
        file: "attention.cu",
        from: "u32 count = positions[token] + 1,",
        to: "u32 count = positions[token] + 2,",
        caught: &[Wrong, Outside],
    },
    Planted {
        what: "more shared memory than was asked for",
        file: "router.cu",
        from: "p[e] = exp_of(logits[e] - top);",
        to: "p[e + 1] = exp_of(logits[e] - top);",
        caught: &[Outside],
    },
];

#[test]
fn planted_bugs_are_caught() {
    let Some(compiler) = compile::compiler() else { return };
    let files: std::collections::BTreeSet<&str> = PLANTED.iter().map(|p| p.file).collect();
    for file in &files {
        // Unchanged, the same checks find nothing.
        check(file, build::server().unwrap()).unwrap_or_else(|e| panic!("{file}, nothing planted: {e}"));
    }
    for planted in &PLANTED {
        let folder = tempfile::tempdir().unwrap();
        let module = MODULES.iter().find(|m| m.source.name == planted.file).unwrap();
        let text = module.source.text;
        assert!(text.contains(planted.from), "{}: `{}` is not there", planted.file, planted.from);
        let change = |text: &str| text.replacen(planted.from, planted.to, 1);
        build::copy_host(build::server().unwrap().parent().unwrap(), folder.path());
        let modules = std::slice::from_ref(module);
        build::SERVER.compile(&compiler, folder.path(), modules, &change).unwrap();
        let found = check(planted.file, &folder.path().join("server"));
        let report = found.err().unwrap_or_default();
        let how = |caught: &&Caught| match caught {
            Report(text) => report.contains(text),
            Outside => report.contains("AddressSanitizer") || report.contains("runtime error"),
            Order => report.contains("another order"),
            Wrong => report.contains("wrong result"),
        };
        let caught = planted.caught.iter().find(how);
        assert!(
            caught.is_some(),
            "{} in {}: not found as it should be\n{report}",
            planted.what,
            planted.file
        );
        eprintln!("{:<14} {:<66} {:?}", planted.file, planted.what, caught.unwrap());
        fs::remove_dir_all(folder.path()).unwrap();
    }
}

/// Runs the file's kernels; what is wrong with them.
fn check(file: &str, program: &std::path::Path) -> Result<(), String> {
    let mut m = Machine::of(program);
    match file {
        "gemv.cu" => check_gemv(&mut m),
        "rmsnorm.cu" => check_norm(&mut m),
        "sort.cu" => check_sort(&mut m),
        "attention.cu" => check_attention(&mut m),
        "down.cu" => check_down(&mut m),
        "gram.cu" => check_gram(&mut m),
        _ => check_router(&mut m),
    }
}

fn compare(got: &[f32], want: &[f32]) -> Result<(), String> {
    close(got, want).map_err(|e| format!("wrong result: {e}"))
}

fn run(m: &mut Machine, launch: Launch<At>) -> Result<(), String> {
    m.try_run(&launch)
}

fn check_gemv(m: &mut Machine) -> Result<(), String> {
    let w = matrix(13, 2100, Kind::Bf16, 1);
    let x = Array::new(2, w.cols, random(2 * w.cols, 2));
    let weights = upload(m, &[&w]);
    let (at, y) = (m.floats(x.values()), m.room(2 * 13 * 4));
    run(m, Gemv { w: weights, x: at, ids: None, per: 1, bias: None, y, visits: 2 }.launch())?;
    compare(&m.read_floats(y), &product(&x, &w, None))
}

fn check_norm(m: &mut Machine) -> Result<(), String> {
    let (x, weight) = (random(150, 3), random(150, 4));
    let [x_at, weight_at] = [&x, &weight].map(|v| m.floats(v));
    let y = m.room(150 * 4);
    run(m, RmsNorm { x: x_at, weight: weight_at, y, runs: 1, width: 150, eps: 1e-6 }.launch())?;
    let scale = 1.0 / (x.iter().map(|x| x * x).sum::<f32>() / 150.0 + 1e-6).sqrt();
    let want: Vec<f32> = x.iter().zip(&weight).map(|(x, w)| x * scale * w).collect();
    compare(&m.read_floats(y), &want)
}

fn check_sort(m: &mut Machine) -> Result<(), String> {
    let ids = m.words(&[3, 0, 2, 3, 0]);
    let [offsets, order, positions] = [5, 5, 5].map(|n| m.room(n * 4));
    run(m, SortVisits { ids, visits: 5, experts: 4, offsets, order, positions }.launch())?;
    match m.read_words(order) == [1, 4, 2, 0, 3] {
        true => Ok(()),
        false => Err("wrong result".into()),
    }
}

fn check_attention(m: &mut Machine) -> Result<(), String> {
    use runner::Backend;
    let heads = Heads { queries: 6, pairs: 2, dim: 8 };
    let tokens = 40u32;
    let [q, k, v] = [48, 16, 16].map(|n| random(40 * n, 5 + n as u64));
    let [q_at, keys, values] = [&q, &k, &v].map(|x| m.floats(x));
    let (starts, positions) = (m.longs(&[0; 40]), m.words(&(0..40).collect::<Vec<_>>()));
    let (parts, out) = (m.room(40 * 6 * 10 * 4), m.room(40 * 48 * 4));
    let (kind, splits) = (KvKind::F32, 1);
    let attention = Attention {
        kind,
        q: q_at,
        keys,
        values,
        starts,
        positions,
        stride: 16,
        heads,
        splits,
        length: 64,
        parts,
        tokens,
    };
    run(m, attention.launch())?;
    let (gate, gate_stride, gate_head) = (None, 0, 0);
    run(m, AttentionCombine { parts, gate, gate_stride, gate_head, heads, splits, out, tokens }.launch())?;
    let cpu = runner::Cpu::default();
    let mut kv = cpu.new_kv(heads).unwrap();
    let [q, k, v] = [(q, 48), (k, 16), (v, 16)].map(|(x, n)| Array::new(40, n, x));
    let span = runner::backend::Span { start: 0, len: 40 };
    let want = cpu.attention([q, k, v], heads, &[span], vec![&mut kv]).unwrap();
    compare(&m.read_floats(out), want.values())
}

fn check_gram(m: &mut Machine) -> Result<(), String> {
    let (tokens, width) = (20, 100);
    let x = random(tokens * width, 9);
    let (x_at, sums) = (m.floats(&x), m.floats(&vec![0.0; width * width]));
    let (tokens, cols) = (tokens as u32, width as u32);
    run(m, Gram { x: x_at, tokens, cols, first: 0, width: cols, sums }.launch())?;
    let sum = |i: usize| x.chunks(width).map(|t| t[i / width] * t[i % width]).sum::<f32>();
    compare(&m.read_floats(sums), &(0..width * width).map(sum).collect::<Vec<_>>())
}

fn check_router(m: &mut Machine) -> Result<(), String> {
    let logits = m.floats(&random(40, 6));
    let [ids, weights] = [8, 8].map(|n| m.room(n * 4));
    let divide = Divide::BySum;
    run(m, Router { logits, experts: 40, chosen: 8, divide, ids, weights, tokens: 1 }.launch())?;
    let sum: f32 = m.read_floats(weights).iter().sum();
    compare(&[sum], &[1.0])
}

fn check_down(m: &mut Machine) -> Result<(), String> {
    let experts = [matrix(9, 600, Kind::Bf16, 7), matrix(9, 600, Kind::Bf16, 8)];
    let w = upload(m, &[&experts[0], &experts[1]]);
    let x = random(1200, 9);
    let (inner, ids, weights, out) = (m.floats(&x), m.words(&[0, 1]), m.floats(&[0.75, 0.25]), m.room(36));
    let launch = Down { w, inner, ids, weights, chosen: 2, shared: None, out, tokens: 1 };
    run(m, launch.launch())?;
    let [a, b] =
        [0, 1].map(|e| product(&Array::new(1, 600, x[e * 600..][..600].to_vec()), &experts[e], None));
    let want: Vec<f32> = a.iter().zip(&b).map(|(a, b)| 0.75 * a + 0.25 * b).collect();
    compare(&m.read_floats(out), &want)
}
