//! A stand-in for the GPU: memory, and launches in several orders of the threads.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use runner::cuda::{Arg, Launch};

/// An address: a buffer and an offset in it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct At(usize, u64);

impl At {
    /// `bytes` further on.
    pub fn plus(self, bytes: usize) -> At {
        At(self.0, self.1 + bytes as u64)
    }
}

/// Orders in which the threads of a block run; the result must not depend on them.
const SEEDS: [u32; 3] = [0, 1, 2];

/// Buffers, and a program that runs kernels on them.
pub struct Machine {
    program: PathBuf,
    server: Option<Child>,
    buffers: Vec<Vec<u8>>,
}

impl Machine {
    /// With all kernels; `None` without a compiler.
    pub fn new() -> Option<Self> {
        super::build::server().map(Self::of)
    }

    /// With the kernels of `program`.
    pub fn of(program: &Path) -> Self {
        Machine { program: program.to_path_buf(), server: None, buffers: Vec::new() }
    }

    pub fn bytes(&mut self, bytes: &[u8]) -> At {
        self.buffers.push(bytes.to_vec());
        At(self.buffers.len() - 1, 0)
    }

    pub fn floats(&mut self, values: &[f32]) -> At {
        self.bytes(&values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>())
    }

    pub fn words(&mut self, values: &[u32]) -> At {
        self.bytes(&values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>())
    }

    pub fn longs(&mut self, values: &[u64]) -> At {
        self.bytes(&values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>())
    }

    /// Memory in which nothing was written: NaN.
    pub fn room(&mut self, bytes: usize) -> At {
        self.bytes(&vec![0xff; bytes])
    }

    pub fn read_bytes(&self, at: At) -> &[u8] {
        &self.buffers[at.0][at.1 as usize..]
    }

    pub fn read_floats(&self, at: At) -> Vec<f32> {
        self.read_bytes(at).as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
    }

    pub fn read_words(&self, at: At) -> Vec<u32> {
        self.read_bytes(at).as_chunks().0.iter().map(|b| u32::from_le_bytes(*b)).collect()
    }

    pub fn read_longs(&self, at: At) -> Vec<u64> {
        self.read_bytes(at).as_chunks().0.iter().map(|b| u64::from_le_bytes(*b)).collect()
    }

    /// Runs the launch in every order; all must leave the same bytes.
    pub fn run(&mut self, launch: &Launch<At>) {
        self.try_run(launch).unwrap_or_else(|report| panic!("{report}"));
    }

    /// As [`Self::run`]; what was found wrong otherwise.
    pub fn try_run(&mut self, launch: &Launch<At>) -> Result<(), String> {
        let threads: u32 = launch.block.iter().product();
        match super::nvidia::most_threads_of(&launch.kernel) {
            Some(most) if threads > most => {
                return Err(format!("{}: {threads} threads, compiled for {most}", launch.kernel));
            }
            _ => {}
        }
        let before = self.buffers.clone();
        let mut first: Option<Vec<Vec<u8>>> = None;
        for seed in SEEDS {
            self.buffers.clone_from(&before);
            self.run_in_order(launch, seed)?;
            match &first {
                None => first = Some(self.buffers.clone()),
                Some(first) if *first == self.buffers => {}
                Some(_) => {
                    return Err(format!("{}: other bytes in another order of the threads", launch.kernel));
                }
            }
        }
        Ok(())
    }

    fn run_in_order(&mut self, launch: &Launch<At>, seed: u32) -> Result<(), String> {
        let mut written = vec![false; self.buffers.len()];
        mark_written(&launch.args, &mut written);
        let mut job = Vec::new();
        let u32s =
            |job: &mut Vec<u8>, values: &[u32]| values.iter().for_each(|v| job.extend(v.to_le_bytes()));
        u32s(&mut job, &[launch.kernel.len() as u32]);
        job.extend(launch.kernel.bytes());
        u32s(&mut job, &[seed]);
        u32s(&mut job, &launch.grid);
        u32s(&mut job, &launch.block);
        u32s(&mut job, &[launch.shared, self.buffers.len() as u32]);
        for (buffer, written) in self.buffers.iter().zip(&written) {
            job.extend((buffer.len() as u64).to_le_bytes());
            u32s(&mut job, &[u32::from(*written)]);
            job.extend(buffer);
        }
        u32s(&mut job, &[launch.args.len() as u32]);
        launch.args.iter().for_each(|arg| push_arg(&mut job, arg));
        let mut server = match self.server.take() {
            Some(server) => server,
            None => Command::new(&self.program)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap(),
        };
        let answer = self.exchange(&mut server, &job, &written);
        match answer {
            Some(answer) => {
                self.server = Some(server);
                answer
            }
            None => {
                let mut report = String::new();
                let _ = server.stderr.take().unwrap().read_to_string(&mut report);
                let _ = server.wait();
                Err(format!("kernel {}: {report}", launch.kernel))
            }
        }
    }

    /// `None` where the server died.
    fn exchange(&mut self, server: &mut Child, job: &[u8], written: &[bool]) -> Option<Result<(), String>> {
        let stdin = server.stdin.as_mut().unwrap();
        stdin.write_all(job).and_then(|()| stdin.flush()).ok()?;
        let stdout = server.stdout.as_mut().unwrap();
        let mut word = [0; 4];
        stdout.read_exact(&mut word).ok()?;
        if u32::from_le_bytes(word) != 0 {
            stdout.read_exact(&mut word).ok()?;
            let mut text = vec![0; u32::from_le_bytes(word) as usize];
            stdout.read_exact(&mut text).ok()?;
            return Some(Err(String::from_utf8_lossy(&text).into_owned()));
        }
        for (buffer, _) in self.buffers.iter_mut().zip(written).filter(|(_, written)| **written) {
            stdout.read_exact(buffer).ok()?;
        }
        Some(Ok(()))
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if let Some(mut server) = self.server.take() {
            // It ends with its input.
            drop(server.stdin.take());
            let _ = server.wait();
        }
    }
}

fn mark_written(args: &[Arg<At>], written: &mut [bool]) {
    for arg in args {
        match arg {
            Arg::Write(Some(At(buffer, _))) => written[*buffer] = true,
            Arg::Struct(fields) => mark_written(fields, written),
            _ => {}
        }
    }
}

fn push_arg(job: &mut Vec<u8>, arg: &Arg<At>) {
    let mut value = |kind: u32, value: u64| {
        job.extend(kind.to_le_bytes());
        job.extend(value.to_le_bytes());
    };
    match arg {
        Arg::U32(v) => value(0, u64::from(*v)),
        Arg::F32(v) => value(1, u64::from(v.to_bits())),
        Arg::U64(v) => value(2, *v),
        Arg::F64(v) => value(3, v.to_bits()),
        Arg::Read(Some(At(buffer, offset))) | Arg::Write(Some(At(buffer, offset))) => {
            value(if matches!(arg, Arg::Read(_)) { 4 } else { 5 }, *buffer as u64);
            job.extend(offset.to_le_bytes());
        }
        Arg::Read(None) => value(6, 0),
        Arg::Write(None) => value(6, 1),
        Arg::Struct(fields) => {
            job.extend(7u32.to_le_bytes());
            job.extend((fields.len() as u32).to_le_bytes());
            fields.iter().for_each(|f| push_arg(job, f));
        }
    }
}

/// Pseudo-random numbers in -1..1, the same for the same salt.
pub fn random(n: usize, salt: u64) -> Vec<f32> {
    let mut state = salt.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

/// Every `got` within 1e-5 of the largest `want`; the first that is not.
pub fn close(got: &[f32], want: &[f32]) -> Result<(), String> {
    assert_eq!(got.len(), want.len());
    let size = want.iter().fold(0.0f32, |a, b| a.max(b.abs()));
    // NaN is not close to anything.
    let far = |(g, w): (&f32, &f32)| (g - w).abs() > 1e-5 * size || g.is_nan();
    match got.iter().zip(want).position(far) {
        None => Ok(()),
        Some(i) => Err(format!("number {i} is {}, not {}", got[i], want[i])),
    }
}

/// Panics where they are not [`close`].
#[track_caller]
pub fn assert_close(got: &[f32], want: &[f32], what: &str) {
    close(got, want).unwrap_or_else(|e| panic!("{what}: {e}"));
}
