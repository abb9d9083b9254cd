//! Connections that break, stall, lie and limit (N1 to N7).

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::{ALWAYS, assert_whole, base, download, into, run, tiny};
use crate::args;
use crate::support::hub::{COMMIT, Fault, Hub, OTHER_COMMIT, git_sha1, noise};
use crate::support::{Dir, files, sharded_model};

#[test]
fn cut_at_every_byte_of_a_small_file_continues_where_it_was() {
    let (hub, dir, _) = tiny();
    let small = noise(97, 3);
    hub.put("notice.json", small.clone());
    for at in 0..small.len() as u64 {
        let out = dir.join(&format!("out{at}"));
        hub.forget();
        hub.fail("notice.json", 1, Fault::Cut(at));
        run(download(&hub, args!["--out", out, "--include", "notice.json"])).succeeds();
        assert_eq!(std::fs::read(out.join("notice.json")).unwrap(), small, "cut at {at}");
        assert_eq!(hub.sent("notice.json"), small.len() as u64, "cut at {at}");
    }
}

#[test]
fn cut_after_every_few_bytes_ends_in_the_right_file_and_nothing_is_fetched_twice() {
    let (hub, _dir, out) = tiny();
    let size = std::fs::metadata(base().join("model.safetensors")).unwrap().len();
    hub.fail("/cdn/model.safetensors", ALWAYS, Fault::Cut(size / 40));
    into(&hub, &out).succeeds();
    assert_whole(&out);
    assert_eq!(hub.sent("/cdn/model.safetensors"), size);
}

#[test]
fn cut_without_progress_gives_up_after_five_tries_and_the_next_run_continues() {
    let (hub, _dir, out) = tiny();
    hub.fail("/cdn/model.safetensors", 1, Fault::Cut(100_000));
    hub.fail("/cdn/model.safetensors", ALWAYS, Fault::Cut(0));
    into(&hub, &out).exits(4).says("cannot fetch model.safetensors").says("continues where it stopped");
    // One with progress, then five without.
    let tries = hub.log().iter().filter(|l| l.target.starts_with("/cdn/")).count();
    assert_eq!(tries, 6);
    assert!(!out.join("model.safetensors").exists() && !out.join("prep-report.json").exists());
    crate::support::prep(args!["checksum", out]).exits(3).says("unfinished");
    hub.heal();
    into(&hub, &out).succeeds();
    assert_whole(&out);
}

#[test]
fn progress_starts_the_count_of_tries_again() {
    let (hub, _dir, out) = tiny();
    hub.fail("/cdn/", 4, Fault::Cut(0)).fail("/cdn/", 1, Fault::Cut(1000)).fail("/cdn/", 4, Fault::Cut(0));
    into(&hub, &out).succeeds();
    assert_whole(&out);
}

#[test]
fn killed_at_any_moment_and_run_again_gives_the_same_bytes() {
    let (hub, dir, _) = tiny();
    for round in 0..10u64 {
        let out = dir.join(&format!("out{round}"));
        for attempt in 0..3u64 {
            let mut child = quiet(download(&hub, args!["--out", out])).spawn().unwrap();
            std::thread::sleep(Duration::from_millis(15 + 9 * round + 7 * attempt));
            let _ = child.kill();
            child.wait().unwrap();
        }
        into(&hub, &out).succeeds();
        assert_whole(&out);
    }
}

#[test]
fn killed_in_the_middle_of_many_ranges_at_most_a_mebibyte_is_fetched_twice() {
    let (hub, _dir, out) = tiny();
    let size = std::fs::metadata(base().join("model.safetensors")).unwrap().len();
    hub.fail("/cdn/", ALWAYS, Fault::Pace(16 << 10, Duration::from_millis(2)));
    let kills = 3;
    for kill in 1..=kills {
        let mut command = quiet(download(&hub, args!["--out", out, "--streams", "4"]));
        // The ranges of the first run hold for the later ones.
        let mut child = command.env("PREP_TEST_RANGE", (kill * 777_777).to_string()).spawn().unwrap();
        while hub.sent("/cdn/") < kill * size * 3 / 10 {
            assert!(child.try_wait().unwrap().is_none(), "ended before it was killed");
            std::thread::sleep(Duration::from_millis(1));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        hub.quiet();
    }
    into(&hub, &out).succeeds();
    assert_whole(&out);
    let twice = hub.sent("/cdn/") - size;
    assert!(twice <= kills << 20, "{twice} bytes");
}

fn quiet(mut command: Command) -> Command {
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command
}

#[test]
fn short_body_that_ends_cleanly_is_continued_and_never_taken_for_whole() {
    for fault in [Fault::Short(1000), Fault::ChunkedShort(1000)] {
        let (hub, _dir, out) = tiny();
        hub.fail("/cdn/model.safetensors", 1, fault.clone());
        hub.fail("tokenizer.json", 1, fault.clone());
        into(&hub, &out).succeeds();
        assert_whole(&out);
        let (hub, _dir, out) = tiny();
        hub.fail("/cdn/model.safetensors", ALWAYS, Fault::Short(1 << 40));
        into(&hub, &out).exits(4).says("the body ended after 0 of");
        assert!(!out.join("model.safetensors").exists());
    }
}

#[test]
fn longer_body_is_another_file() {
    let (hub, _dir, out) = tiny();
    hub.fail("/cdn/model.safetensors", ALWAYS, Fault::Longer(5));
    into(&hub, &out).exits(4).says("is not the file that the hub listed");
    assert!(!out.join("model.safetensors").exists());
}

#[test]
fn wrong_bytes_are_fetched_once_more_then_refused_with_both_digests() {
    let size = std::fs::metadata(base().join("model.safetensors")).unwrap().len();
    for at in [0, size / 2, size - 1] {
        let (hub, _dir, out) = tiny();
        hub.fail("/cdn/model.safetensors", 1, Fault::Wrong(at));
        into(&hub, &out).succeeds().says("arrived damaged");
        assert_whole(&out);
    }
    let (hub, _dir, out) = tiny();
    hub.fail("/cdn/model.safetensors", 1, Fault::Cut(size / 2));
    hub.fail("/cdn/model.safetensors", ALWAYS, Fault::Wrong(size - 1));
    let good = verify::Digest::of(&std::fs::read(base().join("model.safetensors")).unwrap()).to_string();
    into(&hub, &out).exits(4).says("damaged, twice").says(&format!("expected sha256 {good}"));
    assert!(!out.join("model.safetensors").exists() && !out.join("model.safetensors.part").exists());
}

#[test]
fn small_files_are_held_to_their_git_sha1() {
    let (hub, _dir, out) = tiny();
    hub.fail("/resolve/", ALWAYS, Fault::Wrong(3));
    let good = git_sha1(&std::fs::read(base().join("config.json")).unwrap());
    let ended = run(download(&hub, args!["--out", out, "--include", "config.json"]));
    ended.exits(4).says(&format!("expected git sha1 {good}"));
    assert!(!out.join("config.json").exists());
}

#[test]
fn server_that_ignores_ranges_is_noticed_and_read_from_zero() {
    let (hub, _dir, out) = tiny();
    let size = std::fs::metadata(base().join("model.safetensors")).unwrap().len();
    hub.fail("/cdn/", 1, Fault::Cut(size / 2));
    hub.fail("/cdn/", ALWAYS, Fault::IgnoreRange);
    into(&hub, &out).succeeds().says("ignores ranges");
    assert_whole(&out);
    // Also where a big file is asked for in many ranges at once, and breaks on the way.
    let (hub, _dir, out) = tiny();
    hub.fail("/cdn/", ALWAYS, Fault::IgnoreRange);
    hub.fail("/cdn/model", 6, Fault::Cut(size / 3));
    let mut command = download(&hub, args!["--out", out]);
    command.env("PREP_TEST_RANGE", "100000");
    run(command).succeeds();
    assert_whole(&out);
}

#[test]
fn file_that_changed_between_tries_is_begun_again() {
    let size = std::fs::metadata(base().join("model.safetensors")).unwrap().len();
    for fault in [Fault::Etag("ab".repeat(32)), Fault::Commit(OTHER_COMMIT)] {
        let (hub, _dir, out) = tiny();
        hub.fail("/cdn/model.safetensors", 1, Fault::Cut(size / 2));
        // The second request, after the cut.
        hub.pass("/resolve/", 1).fail("/resolve/", 1, fault.clone());
        let command = download(&hub, args!["--out", out, "--include", "*.safetensors"]);
        run(command).succeeds().says("starting again from zero");
        assert!(files(&out)["model.safetensors"] == files(&base())["model.safetensors"]);
        // A mirror whose headers are of its own kind: the digest decides.
        let (hub, _dir, out) = tiny();
        hub.fail("/resolve/", ALWAYS, fault);
        into(&hub, &out).succeeds();
        assert_whole(&out);
    }
    let (hub, _dir, out) = tiny();
    hub.fail("/cdn/", 1, Fault::Cut(size / 2));
    into(&hub, &out).succeeds();
    hub.put("model.safetensors", noise(size as usize, 1));
    std::fs::remove_file(out.join("model.safetensors")).unwrap();
    run(download(&hub, args!["--out", out, "--revision", "main"])).exits(4).says("model.safetensors");
    assert!(!out.join("model.safetensors").exists());
}

#[test]
fn one_download_stays_with_one_commit_also_over_several_runs() {
    let (hub, dir, out) = tiny();
    hub.fail("/cdn/", ALWAYS, Fault::Cut(0));
    into(&hub, &out).exits(4);
    hub.heal();
    hub.move_to(OTHER_COMMIT);
    hub.forget();
    into(&hub, &out).succeeds();
    assert!(hub.fetches() > 0);
    assert!(hub.log().iter().all(|l| !l.target.contains("/revision/") && !l.target.contains(OTHER_COMMIT)));
    assert_whole(&out);
    // A finished folder is not moved to another commit by itself.
    hub.move_to(OTHER_COMMIT);
    hub.put("README.md", b"new".to_vec());
    into(&hub, &out).exits(2).says(COMMIT).says("--force");
    hub.forget();
    run(download(&hub, args!["--out", out, "--force"])).succeeds();
    assert_eq!(std::fs::read(out.join("README.md")).unwrap(), b"new");
    assert_eq!(hub.fetches(), 1, "only what changed is fetched");
    assert!(!dir.join("out.prep-new").exists());
}

#[test]
fn rate_limit_is_waited_out_as_the_server_asks() {
    let (hub, _dir, out) = tiny();
    hub.fail("config.json", 1, Fault::Status(429, "", "1"));
    hub.fail("/tree/", 1, Fault::Status(503, "", "1"));
    hub.fail("/revision/", 1, Fault::Status(500, "", ""));
    let began = Instant::now();
    into(&hub, &out).succeeds().says("waiting 1.0 s, then try 2 of 5");
    assert!(began.elapsed() >= Duration::from_secs(2));
    assert_whole(&out);
}

#[test]
fn trouble_that_stays_ends_in_time_and_says_which() {
    let (hub, _dir, out) = tiny();
    hub.fail("/cdn/", ALWAYS, Fault::Status(503, "", ""));
    into(&hub, &out).exits(4).says("status 503");
    let (hub, _dir, out) = tiny();
    hub.fail("/revision/", ALWAYS, Fault::Status(429, "", ""));
    into(&hub, &out).exits(4).says("rate-limited").says("set HF_TOKEN");
    assert_eq!(hub.log().len(), 5);
    // An hour asked for is capped.
    let (hub, _dir, out) = tiny();
    hub.fail("config.json", ALWAYS, Fault::Status(429, "", "3600"));
    let mut command = download(&hub, args!["--out", out]);
    command.env("PREP_TEST_RETRY_AFTER_MS", "10");
    run(command).exits(4);
}

#[test]
fn nobody_there_is_a_network_error() {
    let (hub, _dir, out) = tiny();
    let mut command = download(&hub, args!["--out", out]);
    command.env("HF_ENDPOINT", "http://127.0.0.1:9");
    run(command).exits(4).says("check the connection");
}

#[test]
fn stalled_and_crawling_connections_are_given_up_and_continued() {
    let (hub, _dir, out) = tiny();
    hub.fail("/cdn/model.safetensors", 1, Fault::Stall(70_000));
    hub.fail("tokenizer.json", 1, Fault::Stall(0));
    into(&hub, &out).succeeds();
    assert_whole(&out);
    let (hub, _dir, out) = tiny();
    hub.fail("/cdn/model.safetensors", 1, Fault::Pace(100, Duration::from_millis(20)));
    let mut command = download(&hub, args!["--out", out, "--verbose"]);
    command.env("PREP_TEST_SLOW_MS", "200");
    run(command).succeeds().says("bytes per second");
    assert_whole(&out);
    let (hub, _dir, out) = tiny();
    hub.fail("/cdn/model.safetensors", ALWAYS, Fault::Stall(0));
    into(&hub, &out).exits(4).says("no byte for 0.3 s");
}

#[test]
fn result_does_not_depend_on_streams_and_ranges() {
    let dir = Dir::new();
    let model = sharded_model(&dir);
    let hub = Hub::of_folder(&model);
    let mut seen = None;
    for (streams, range) in [("1", "64000000"), ("3", "100000"), ("16", "4097")] {
        let out = dir.join(streams);
        let mut command = download(&hub, args!["--out", out, "--streams", streams]);
        command.env("PREP_TEST_RANGE", range);
        run(command).succeeds();
        let got = files(&out);
        assert!(seen.get_or_insert_with(|| got.clone()) == &got, "{streams} streams");
    }
    assert!(hub.log().iter().any(|l| l.range.is_some_and(|(from, to)| from > 0 && to - from < 4097)));
    // Ranges follow one another over the same connections: two hosts for each of 20 workers, and the plans.
    let (requests, connections) = (hub.log().len(), hub.connections());
    assert!(requests > 2000 && connections < 60, "{requests} requests, {connections} connections");
}
