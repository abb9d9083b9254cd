//! Measurements, not run by default.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::{ALWAYS, download, run};
use crate::args;
use crate::support::Dir;
use crate::support::hub::{COMMIT, Fault, Hub, REPO, noise};

/// The measurement behind the promise: at most 1 MiB per cut is fetched twice.
#[test]
#[ignore = "takes a minute"]
fn big_file_cut_and_killed_fifty_times_fetches_at_most_a_mebibyte_twice_per_cut() {
    let dir = Dir::new();
    let bytes = noise(64 << 20, 9);
    let hub = Hub::with([("big.safetensors", bytes.clone())]);
    let out = dir.join("out");
    let mut random =
        noise(8 * 50, 17).chunks(8).map(|c| u64::from_le_bytes(c.try_into().unwrap())).collect::<Vec<_>>();
    let mut cuts = 0;
    hub.fail("/cdn/", ALWAYS, Fault::Pace(128 << 10, Duration::from_millis(1)));
    while let Some(r) = random.pop() {
        cuts += 1;
        if r % 2 == 0 {
            hub.fail("/cdn/big", 1, Fault::Cut(r % (2 << 20)));
        }
        let mut child = download(&hub, args!["--out", out, "--include", "*", "--streams", "4", "--quiet"])
            .env("PREP_TEST_RANGE", (16 << 20).to_string())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(20 + r % 60));
        let _ = child.kill();
        child.wait().unwrap();
        if out.join("prep-report.json").exists() {
            break;
        }
    }
    run(download(&hub, args!["--out", out, "--include", "*"])).succeeds();
    assert!(std::fs::read(out.join("big.safetensors")).unwrap() == bytes);
    hub.quiet();
    let twice = hub.sent("/cdn/").saturating_sub(64 << 20);
    println!(
        "{cuts} kills and cuts; {} KiB of 64 MiB fetched twice, {} KiB per cut",
        twice >> 10,
        (twice >> 10) / cuts
    );
    assert!(twice <= cuts << 20);
}

/// Loopback against curl, which neither hashes nor syncs; memory instead of a disk where there is such a folder.
#[test]
#[ignore = "a measurement: cargo test --release -p prep --test e2e -- --ignored --nocapture throughput"]
fn throughput_against_curl() {
    let shm = Path::new("/dev/shm");
    let dir = if shm.is_dir() { tempfile::tempdir_in(shm).unwrap() } else { tempfile::tempdir().unwrap() };
    let megabytes = std::env::var("PREP_BENCH_MB").ok().and_then(|t| t.parse().ok()).unwrap_or(512);
    let hub = Hub::with([("big.safetensors", noise(megabytes << 20, 5))]);
    let rate = |began: Instant| megabytes as f64 / began.elapsed().as_secs_f64();
    let curl = |parts: usize| {
        let began = Instant::now();
        let each = (megabytes << 20) / parts;
        let start = |i: usize| {
            Command::new("curl")
                .args(["-sL", "-r", &format!("{}-{}", i * each, (i + 1) * each - 1), "-o"])
                .arg(dir.path().join(format!("curl{i}")))
                .arg(format!("{}/{REPO}/resolve/{COMMIT}/big.safetensors", hub.address()))
                .spawn()
                .unwrap()
        };
        let children: Vec<_> = (0..parts).map(start).collect();
        children.into_iter().for_each(|mut c| assert!(c.wait().unwrap().success()));
        let rate = rate(began);
        (0..parts).for_each(|i| std::fs::remove_file(dir.path().join(format!("curl{i}"))).unwrap());
        rate
    };
    let prep = |streams: &str| {
        let out = dir.path().join("out");
        let began = Instant::now();
        let mut command =
            download(&hub, args!["--out", out, "--include", "*", "--quiet", "--streams", streams]);
        command.stdout(Stdio::null());
        run(command).succeeds();
        let rate = rate(began);
        std::fs::remove_dir_all(out).unwrap();
        rate
    };
    println!("MB/s over {megabytes} MiB   curl x1  prep x1  ratio   curl x4  prep x4  ratio");
    for _ in 0..4 {
        let (c1, p1, c4, p4) = (curl(1), prep("1"), curl(4), prep("4"));
        println!("{c1:26.0} {p1:8.0}  {:5.2} {c4:9.0} {p4:8.0}  {:5.2}", p1 / c1, p4 / c4);
    }
}
