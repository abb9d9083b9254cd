//! What the hub answers, right or wrong.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::wire::{Out, Request};
use super::{COMMIT, Fault, OTHER_COMMIT, REPO, Shared, git_sha1};

fn broken() -> std::io::Error {
    std::io::Error::other("broken on purpose")
}

pub fn answer(request: &Request, shared: &Shared, out: &mut Out) -> std::io::Result<()> {
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
