//! Requests in, answers out.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use super::Shared;

pub struct Request {
    pub method: String,
    pub target: String,
    pub headers: BTreeMap<String, String>,
}

impl Request {
    pub fn read(reader: &mut BufReader<TcpStream>) -> Option<Self> {
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

    pub fn range(&self) -> Option<(u64, u64)> {
        let (from, to) = self.headers.get("range")?.strip_prefix("bytes=")?.split_once('-')?;
        Some((from.parse().ok()?, to.parse().unwrap_or(u64::MAX)))
    }

    pub fn path(&self) -> String {
        decode(self.target.split('?').next().unwrap())
    }

    pub fn query(&self, name: &str) -> Option<String> {
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

pub struct Out<'a> {
    pub stream: &'a TcpStream,
    pub shared: &'a Shared,
    pub at: usize,
    pub head: bool,
}

impl Out<'_> {
    pub fn head(&mut self, status: u16, headers: &[(&str, String)]) -> std::io::Result<()> {
        let mut text = format!("HTTP/1.1 {status} X\r\n");
        headers.iter().for_each(|(k, v)| text += &format!("{k}: {v}\r\n"));
        self.stream.write_all(format!("{text}\r\n").as_bytes())
    }

    pub fn body(&mut self, bytes: &[u8]) -> std::io::Result<()> {
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

    pub fn whole(&mut self, status: u16, headers: &[(&str, String)], body: &[u8]) -> std::io::Result<()> {
        let mut headers = headers.to_vec();
        headers.push(("content-length", body.len().to_string()));
        self.head(status, &headers)?;
        self.body(body)
    }
}
