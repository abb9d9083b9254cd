//! A hub for the tests: speaks the API of Hugging Face and that of ModelScope on 127.0.0.1, keeps a log, and
//! fails on demand.
//!
//! Big files (`.safetensors`) are redirected to another host name, as the real hub does: `localhost` instead of
//! `127.0.0.1`. So whatever is sent to the second name has left the hub's own host.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use sha1::Digest as _;

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

struct Request {
    method: String,
    target: String,
    headers: BTreeMap<String, String>,
}

impl Request {
    fn read(reader: &mut BufReader<TcpStream>) -> Option<Self> {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|n| *n > 0)?;
        let mut words = line.split_whitespace();
        let (method, target) = (words.next()?.to_string(), words.next()?.to_string());
        let mut headers = BTreeMap::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok().filter(|n| *n > 0)?;
            let Some((name, value)) = line.trim().split_once(':') else { break };
            headers.insert(name.to_ascii_lowercase(), value.trim().to_string());
        }
        // A request that came through a proxy names the whole address.
        let target = match target.strip_prefix("http://") {
            Some(rest) => rest[rest.find('/')?..].to_string(),
            None => target,
        };
        Some(Request { method, target, headers })
    }

    fn range(&self) -> Option<(u64, u64)> {
        let (from, to) = self.headers.get("range")?.strip_prefix("bytes=")?.split_once('-')?;
        Some((from.parse().ok()?, to.parse().unwrap_or(u64::MAX)))
    }

    fn path(&self) -> String {
        decode(self.target.split('?').next().unwrap())
    }

    fn query(&self, name: &str) -> Option<String> {
        let query = self.target.split_once('?')?.1;
        let mut pairs = query.split('&').filter_map(|p| p.split_once('='));
        pairs.find(|(k, _)| *k == name).map(|(_, v)| decode(&v.replace('+', " ")))
    }
}

fn decode(text: &str) -> String {
    let mut out = Vec::new();
    let mut bytes = text.bytes();
    while let Some(b) = bytes.next() {
        match b {
            b'%' => {
                let hex = [bytes.next().unwrap(), bytes.next().unwrap()];
                out.push(u8::from_str_radix(std::str::from_utf8(&hex).unwrap(), 16).unwrap());
            }
            _ => out.push(b),
        }
    }
    String::from_utf8(out).unwrap()
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

struct Out<'a> {
    stream: &'a TcpStream,
    shared: &'a Shared,
    at: usize,
    head: bool,
}

impl Out<'_> {
    fn head(&mut self, status: u16, headers: &[(&str, String)]) -> std::io::Result<()> {
        let mut text = format!("HTTP/1.1 {status} X\r\n");
        headers.iter().for_each(|(k, v)| text += &format!("{k}: {v}\r\n"));
        self.stream.write_all(format!("{text}\r\n").as_bytes())
    }

    fn body(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        if self.head {
            return Ok(());
        }
        for piece in bytes.chunks(256 << 10) {
            self.stream.write_all(piece)?;
            if let Some(l) = self.shared.log.lock().unwrap().get_mut(self.at) {
                l.sent += piece.len() as u64;
            }
        }
        Ok(())
    }

    fn whole(&mut self, status: u16, headers: &[(&str, String)], body: &[u8]) -> std::io::Result<()> {
        let mut headers = headers.to_vec();
        headers.push(("content-length", body.len().to_string()));
        self.head(status, &headers)?;
        self.body(body)
    }
}

fn broken() -> std::io::Error {
    std::io::Error::other("broken on purpose")
}

fn answer(request: &Request, shared: &Shared, out: &mut Out) -> std::io::Result<()> {
    let mut faults = Vec::new();
    let mut taken = std::collections::BTreeSet::new();
    for (target, times, fault) in shared.faults.lock().unwrap().iter_mut() {
        if *times > 0 && request.target.contains(target.as_str()) && taken.insert(target.clone()) {
            *times -= usize::from(*times != usize::MAX);
            faults.extend(fault.clone());
        }
    }
    for fault in &faults {
        match fault {
            Fault::Status(status, code, wait) => {
                let mut headers = Vec::new();
                if !code.is_empty() {
                    headers.push(("x-error-code", code.to_string()));
                }
                if !wait.is_empty() {
                    headers.push(("retry-after", wait.to_string()));
                }
                return out.whole(*status, &headers, b"{\"error\": \"no\"}");
            }
            Fault::Redirect(to) => return out.whole(302, &[("location", to.clone())], b""),
            _ => {}
        }
    }
    let path = request.path();
    let commit = shared.commit.lock().unwrap().clone();
    let api = format!("/api/models/{REPO}/");
    let resolve = format!("/{REPO}/resolve/");
    let scope = format!("/api/v1/models/{REPO}/");
    if let Some(rest) = path.strip_prefix(&api) {
        return match rest.split_once('/') {
            Some(("revision", rev)) if known(rev, &commit) => {
                let body = json!({"id": REPO, "sha": commit, "siblings": []});
                out.whole(200, &[("content-type", "application/json".into())], body.to_string().as_bytes())
            }
            Some(("tree", rev)) if known(rev, &commit) => tree(request, shared, out),
            _ => refuse(out, "RevisionNotFound"),
        };
    }
    if let Some(rest) = path.strip_prefix(&resolve) {
        let Some((rev, name)) = rest.split_once('/') else { return refuse(out, "EntryNotFound") };
        if !known(rev, &commit) {
            return refuse(out, "RevisionNotFound");
        }
        return resolved(request, shared, out, name, &faults);
    }
    if let Some(name) = path.strip_prefix("/cdn/") {
        return content(request, shared, out, name, &[], &faults);
    }
    if let Some(rest) = path.strip_prefix(&scope) {
        return modelscope(request, shared, out, rest, &faults);
    }
    if path.starts_with("/api/v1/models/") {
        return out.whole(
            404,
            &[],
            br#"{"Code": 10010205001, "Message": "no such model", "Success": false}"#,
        );
    }
    refuse(out, "RepoNotFound")
}

fn known(revision: &str, commit: &str) -> bool {
    ["main", "refs/pr/1", "master", COMMIT, OTHER_COMMIT].contains(&revision) || revision == commit
}

fn refuse(out: &mut Out, code: &str) -> std::io::Result<()> {
    out.whole(404, &[("x-error-code", code.into())], b"{\"error\": \"not found\"}")
}

fn is_big(name: &str) -> bool {
    name.ends_with(".safetensors")
}

fn tree(request: &Request, shared: &Shared, out: &mut Out) -> std::io::Result<()> {
    let digests = shared.digests.lock().unwrap().clone();
    let bare = *shared.listing_without_sha.lock().unwrap();
    let entry = |(name, bytes): (&String, &Arc<Vec<u8>>)| {
        let (sha256, git) = &digests[name];
        let mut entry = json!({"type": "file", "path": name, "size": bytes.len(), "oid": git});
        if is_big(name) {
            // The top `oid` is that of the pointer file in git, not that of the content.
            entry["oid"] = git_sha1(sha256.as_bytes()).into();
            entry["lfs"] = json!({"oid": sha256, "size": bytes.len(), "pointerSize": 134});
        }
        if bare {
            entry.as_object_mut().unwrap().remove("oid");
            entry.as_object_mut().unwrap().remove("lfs");
        }
        entry
    };
    let mut entries: Vec<Value> = shared.files.lock().unwrap().iter().map(entry).collect();
    entries.push(json!({"type": "directory", "path": "sub", "size": 0, "oid": "0"}));
    entries.extend(shared.extra.lock().unwrap().iter().cloned());
    let mut headers = vec![("content-type", "application/json".to_string())];
    if let Some(n) = *shared.page.lock().unwrap() {
        let at: usize = request.query("cursor").map_or(0, |c| c.parse().unwrap());
        let last = at + n >= entries.len();
        entries = entries.into_iter().skip(at).take(n).collect();
        if !last {
            let path = request.target.split('?').next().unwrap();
            let next = format!("http://127.0.0.1:{}{path}?recursive=true&cursor={}", shared.port, at + n);
            headers.push(("link", format!("<{next}>; rel=\"next\"")));
        }
    }
    out.whole(200, &headers, json!(entries).to_string().as_bytes())
}

fn resolved(
    request: &Request,
    shared: &Shared,
    out: &mut Out,
    name: &str,
    faults: &[Fault],
) -> std::io::Result<()> {
    let Some(bytes) = shared.files.lock().unwrap().get(name).cloned() else {
        return refuse(out, "EntryNotFound");
    };
    let (sha256, git) = shared.digests.lock().unwrap()[name].clone();
    let mut etag = if is_big(name) { sha256 } else { git };
    let mut commit = shared.commit.lock().unwrap().clone();
    for fault in faults {
        match fault {
            Fault::Etag(other) => etag = other.clone(),
            Fault::Commit(other) => commit = other.to_string(),
            _ => {}
        }
    }
    let etag = format!("\"{etag}\"");
    if is_big(name) {
        // Signed, as the addresses of real storage hosts are.
        let location = format!("http://localhost:{}/cdn/{name}?X-Signature=signed-secret", shared.port);
        let headers = [
            ("location", location),
            ("x-linked-etag", etag),
            ("x-linked-size", bytes.len().to_string()),
            ("x-repo-commit", commit),
        ];
        return out.whole(302, &headers, b"");
    }
    content(request, shared, out, name, &[("etag", etag), ("x-repo-commit", commit)], faults)
}

/// The bytes of a file, or of a range of it, with what goes wrong on the way.
fn content(
    request: &Request,
    shared: &Shared,
    out: &mut Out,
    name: &str,
    headers: &[(&str, String)],
    faults: &[Fault],
) -> std::io::Result<()> {
    let Some(file) = shared.files.lock().unwrap().get(name).cloned() else {
        return refuse(out, "EntryNotFound");
    };
    let size = file.len() as u64;
    let has = |f: fn(&Fault) -> bool| faults.iter().any(f);
    let range = request.range().filter(|_| !has(|f| matches!(f, Fault::IgnoreRange)));
    let (from, to) = match range {
        Some((from, _)) if from >= size => {
            return out.whole(416, &[("content-range", format!("bytes */{size}"))], b"");
        }
        Some((from, to)) => (from, (to + 1).min(size)),
        None => (0, size),
    };
    // Only answers that are changed need a copy.
    let mut changed = None;
    let mut pace = None;
    let (mut cut, mut stall, mut chunked) = (None, None, false);
    for fault in faults {
        let copy = || file[from as usize..to as usize].to_vec();
        match fault {
            Fault::Short(n) | Fault::ChunkedShort(n) => {
                let mut body = copy();
                body.truncate(body.len().saturating_sub(*n as usize));
                changed = Some(body);
                chunked = matches!(fault, Fault::ChunkedShort(_));
            }
            Fault::Longer(n) => {
                let mut body = copy();
                body.resize(body.len() + *n as usize, b'x');
                changed = Some(body);
            }
            Fault::Wrong(at) if (from..to).contains(at) => {
                let mut body = copy();
                body[(at - from) as usize] ^= 1;
                changed = Some(body);
            }
            Fault::Cut(n) => cut = Some(*n),
            Fault::Stall(n) => stall = Some(*n),
            Fault::Pace(bytes, pause) => pace = Some((*bytes, *pause)),
            _ => {}
        }
    }
    let body: &[u8] = changed.as_deref().unwrap_or(&file[from as usize..to as usize]);
    let mut headers = headers.to_vec();
    headers.push(("accept-ranges", "bytes".into()));
    if range.is_some() {
        headers.push(("content-range", format!("bytes {from}-{}/{size}", to - 1)));
    }
    if chunked {
        headers.push(("transfer-encoding", "chunked".into()));
        out.head(if range.is_some() { 206 } else { 200 }, &headers)?;
        if !body.is_empty() {
            out.stream.write_all(format!("{:x}\r\n", body.len()).as_bytes())?;
            out.body(body)?;
            out.stream.write_all(b"\r\n")?;
        }
        return out.stream.write_all(b"0\r\n\r\n");
    }
    headers.push(("content-length", body.len().to_string()));
    out.head(if range.is_some() { 206 } else { 200 }, &headers)?;
    let until = cut.or(stall).map_or(body.len(), |n| body.len().min(n as usize));
    match pace {
        None => out.body(&body[..until])?,
        Some((n, pause)) => {
            for piece in body[..until].chunks(n) {
                out.body(piece)?;
                std::thread::sleep(pause);
            }
        }
    }
    if stall.is_some() {
        // Until the client has had enough.
        let _ = out.stream.set_read_timeout(Some(Duration::from_secs(20)));
        let _ = out.stream.read(&mut [0]);
        return Err(broken());
    }
    if cut.is_some() && until < body.len() { Err(broken()) } else { Ok(()) }
}

fn modelscope(
    request: &Request,
    shared: &Shared,
    out: &mut Out,
    rest: &str,
    faults: &[Fault],
) -> std::io::Result<()> {
    let commit = shared.commit.lock().unwrap().clone();
    let good = |data: Value| json!({"Code": 200, "Success": true, "Data": data}).to_string();
    let revision = request.query("Ref").or_else(|| request.query("Revision")).unwrap_or_default();
    if !known(&revision, &commit) {
        return out.whole(404, &[], br#"{"Code": 404, "Message": "no revision", "Success": false}"#);
    }
    match rest {
        "commits" => {
            out.whole(200, &[], good(json!({"Commit": [{"Id": commit}], "TotalCount": 1})).as_bytes())
        }
        "repo/files" => {
            let root = request.query("Root").map_or(String::new(), |r| format!("{r}/"));
            let all = request.query("Recursive").as_deref() == Some("True");
            let mut entries = BTreeMap::new();
            let digests = shared.digests.lock().unwrap().clone();
            for (name, bytes) in shared.files.lock().unwrap().iter() {
                let Some(below) = name.strip_prefix(&root) else { continue };
                match below.split_once('/') {
                    Some((folder, _)) if !all => {
                        let path = format!("{root}{folder}");
                        entries.insert(
                            path.clone(),
                            json!({"Type": "tree", "Path": path, "Size": 0, "Sha256": ""}),
                        );
                    }
                    _ => {
                        let entry = json!({"Type": "blob", "Path": name, "Name": below, "Size": bytes.len(), "Sha256": digests[name].0});
                        entries.insert(name.clone(), entry);
                    }
                }
            }
            let mut entries: Vec<Value> = entries.into_values().collect();
            entries.extend(shared.extra.lock().unwrap().iter().cloned());
            if let Some(n) = *shared.full.lock().unwrap() {
                entries.truncate(n);
            }
            out.whole(200, &[], good(json!({"Files": entries})).as_bytes())
        }
        "repo" => {
            let name = request.query("FilePath").unwrap_or_default();
            if is_big(&name) {
                let location = format!("http://localhost:{}/cdn/{name}?Signature=signed-secret", shared.port);
                return out.whole(302, &[("location", location)], b"");
            }
            content(request, shared, out, &name, &[], faults)
        }
        _ => refuse(out, "EntryNotFound"),
    }
}
