//! A hub for the tests: speaks the API of Hugging Face and that of ModelScope on 127.0.0.1, keeps a log, and
//! fails on demand.
//!
//! Big files (`.safetensors`) are redirected to another host name, as the real hub does: `localhost` instead of
//! `127.0.0.1`. So whatever is sent to the second name has left the hub's own host.

mod answers;
mod wire;

use std::collections::BTreeMap;
use std::io::BufReader;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use sha1::Digest as _;

use answers::answer;
use wire::{Out, Request};

pub const REPO: &str = "owner/model";
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
pub const OTHER_COMMIT: &str = "89abcdef0123456789abcdef0123456789abcdef";

/// What goes wrong with an answer.
#[derive(Debug, Clone)]
pub enum Fault {
    /// The connection breaks after so many bytes of the body.
    Cut(u64),
    /// The body is so many bytes shorter than the file, and ends cleanly.
    Short(u64),
    /// As `Short`, with no length told before.
    ChunkedShort(u64),
    /// So many bytes more than the file has.
    Longer(u64),
    /// The byte at this place of the file is another one.
    Wrong(u64),
    /// Nothing comes any more after so many bytes.
    Stall(u64),
    /// So many bytes at a time, with a pause between.
    Pace(usize, Duration),
    /// A refusal: status, `X-Error-Code`, `Retry-After`.
    Status(u16, &'static str, &'static str),
    /// The whole file with status 200, whatever was asked for.
    IgnoreRange,
    /// Another `ETag` (and `X-Linked-Etag`).
    Etag(String),
    /// Another `X-Repo-Commit`.
    Commit(&'static str),
    /// Away to this address.
    Redirect(String),
}

/// A request as it came.
#[derive(Debug, Clone)]
pub struct Logged {
    /// Path and query, as sent.
    pub target: String,
    /// The host name that was asked.
    pub host: String,
    pub range: Option<(u64, u64)>,
    /// All headers that hold something secret.
    pub secrets: Vec<String>,
    /// Bytes of the body that were written.
    pub sent: u64,
}

#[derive(Default)]
struct Shared {
    files: Mutex<BTreeMap<String, Arc<Vec<u8>>>>,
    digests: Mutex<BTreeMap<String, (String, String)>>,
    extra: Mutex<Vec<Value>>,
    faults: Mutex<Vec<(String, usize, Option<Fault>)>>,
    log: Mutex<Vec<Logged>>,
    page: Mutex<Option<usize>>,
    commit: Mutex<String>,
    listing_without_sha: Mutex<bool>,
    full: Mutex<Option<usize>>,
    in_flight: AtomicU64,
    connections: AtomicU64,
    port: u16,
}

/// The server; it ends with the process.
pub struct Hub {
    shared: Arc<Shared>,
}

impl Hub {
    /// A hub with one model of these files.
    pub fn with<N: Into<String>>(files: impl IntoIterator<Item = (N, Vec<u8>)>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared { port, commit: Mutex::new(COMMIT.into()), ..Shared::default() });
        let hub = Hub { shared: shared.clone() };
        files.into_iter().for_each(|(name, bytes)| hub.put(&name.into(), bytes));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = shared.clone();
                shared.connections.fetch_add(1, Ordering::SeqCst);
                std::thread::spawn(move || serve(stream, &shared));
            }
        });
        hub
    }

    /// The files of a folder.
    pub fn of_folder(dir: &std::path::Path) -> Self {
        Hub::with(super::files(dir))
    }

    pub fn put(&self, name: &str, bytes: Vec<u8>) {
        let git = git_sha1(&bytes);
        let sha256 = verify::Digest::of(&bytes).to_string();
        self.shared.digests.lock().unwrap().insert(name.into(), (sha256, git));
        self.shared.files.lock().unwrap().insert(name.into(), Arc::new(bytes));
    }

    pub fn remove(&self, name: &str) {
        self.shared.files.lock().unwrap().remove(name);
    }

    /// The address for `HF_ENDPOINT` and `MODELSCOPE_DOMAIN`.
    pub fn address(&self) -> String {
        format!("http://127.0.0.1:{}", self.shared.port)
    }

    /// `fault` for the next `times` requests whose target contains `target`. Faults of one target come one after
    /// the other, those of several targets together.
    pub fn fail(&self, target: &str, times: usize, fault: Fault) -> &Self {
        self.shared.faults.lock().unwrap().push((target.into(), times, Some(fault)));
        self
    }

    /// Lets `times` such requests through first.
    pub fn pass(&self, target: &str, times: usize) -> &Self {
        self.shared.faults.lock().unwrap().push((target.into(), times, None));
        self
    }

    pub fn heal(&self) {
        self.shared.faults.lock().unwrap().clear();
    }

    /// One more entry of the listing, as it is.
    pub fn list(&self, entry: Value) {
        self.shared.extra.lock().unwrap().push(entry);
    }

    /// Listings come in pages of `n`.
    pub fn pages_of(&self, n: usize) {
        *self.shared.page.lock().unwrap() = Some(n);
    }

    /// ModelScope's listings are cut at `n` entries.
    pub fn full_at(&self, n: usize) {
        *self.shared.full.lock().unwrap() = Some(n);
    }

    pub fn list_without_digests(&self) {
        *self.shared.listing_without_sha.lock().unwrap() = true;
    }

    /// The branch moves on.
    pub fn move_to(&self, commit: &str) {
        *self.shared.commit.lock().unwrap() = commit.into();
    }

    pub fn log(&self) -> Vec<Logged> {
        self.shared.log.lock().unwrap().clone()
    }

    pub fn forget(&self) {
        self.shared.log.lock().unwrap().clear();
    }

    /// Bytes of bodies written for requests whose target contains `target`.
    pub fn sent(&self, target: &str) -> u64 {
        self.log().iter().filter(|l| l.target.contains(target)).map(|l| l.sent).sum()
    }

    /// Number of requests for file content.
    pub fn fetches(&self) -> usize {
        self.log().iter().filter(|l| l.target.contains("/resolve/") || l.target.contains("FilePath=")).count()
    }

    /// Connections that were made so far.
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// Waits until no answer is being written.
    pub fn quiet(&self) {
        for _ in 0..200 {
            if self.shared.in_flight.load(Ordering::SeqCst) == 0 {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

pub fn git_sha1(bytes: &[u8]) -> String {
    let mut sha = sha1::Sha1::new();
    sha.update(format!("blob {}\0", bytes.len()));
    sha.update(bytes);
    sha.finalize().iter().map(|b| format!("{b:02x}")).collect()
}

/// Bytes that look like no other file's.
pub fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.to_le_bytes());
    }
    out.truncate(len);
    out
}

fn serve(stream: TcpStream, shared: &Shared) {
    let _ = stream.set_nodelay(true);
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    while let Some(request) = Request::read(&mut reader) {
        shared.in_flight.fetch_add(1, Ordering::SeqCst);
        let at = {
            let mut log = shared.log.lock().unwrap();
            let secret = |n: &&str| request.headers.contains_key(*n);
            let secrets = ["authorization", "cookie"].iter().filter(|n| secret(n));
            log.push(Logged {
                target: request.target.clone(),
                host: request.headers.get("host").cloned().unwrap_or_default(),
                range: request.range(),
                secrets: secrets.map(|n| request.headers[*n].clone()).collect(),
                sent: 0,
            });
            log.len() - 1
        };
        let mut out = Out { stream: &stream, shared, at, head: request.method == "HEAD" };
        let kept = answer(&request, shared, &mut out).is_ok();
        shared.in_flight.fetch_sub(1, Ordering::SeqCst);
        if !kept {
            let _ = stream.shutdown(Shutdown::Both);
            return;
        }
    }
}
