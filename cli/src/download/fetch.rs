//! Fetches files: several ranges at a time, each continued where its connection broke; every file is hashed behind
//! the writing, from the disk, and only gets its name when it is what the hub listed.

use std::sync::Arc;
use std::thread::Scope;

use verify::progress::Progress;
use verify::{Digest, Result};

use super::digest::Hasher;
use super::environment::Environment;
use super::failure::Failure;
use super::http::{Http, Patience, Rate, Reply};
use super::limits::Limits;
use super::part::{Cut, Part};
use super::plan::Plan;
use super::queue::{Item, Next, Queue, Task, Why};
use super::source::{Source, check_named, source};
use crate::console::Console;

/// Where files come from.
pub struct Fetch<'a> {
    plan: &'a Plan,
    environment: &'a Environment,
    source: Box<dyn Source>,
    console: &'a Console,
    limits: Limits,
}

impl<'a> Fetch<'a> {
    /// Files of `plan`.
    pub fn new(plan: &'a Plan, environment: &'a Environment, console: &'a Console) -> Self {
        let source = source(plan.hub(), environment);
        Fetch { plan, environment, source, console, limits: Limits::read() }
    }

    /// Fetches `items` over at most `streams` connections at a time; returns the sha256 of each.
    ///
    /// # Errors
    /// Exit 4 where the hub refuses or sends something else than it listed, or connections keep breaking; exit 5 for
    /// disk trouble; exit 130 when stopped. What arrived stays and is continued by the next run.
    pub fn all(&self, items: &[Item], streams: usize) -> Result<Vec<Digest>> {
        let queue = Queue::new(items, self.limits.range);
        self.console.begin("downloading", queue.bytes_left());
        std::thread::scope(|scope| {
            let (queue, all) = (&queue, Workers { fetch: self, items });
            for _ in 0..streams.max(1) {
                scope.spawn(move || all.work(scope, queue));
            }
        });
        queue.result()
    }
}

#[derive(Clone, Copy)]
struct Workers<'a> {
    fetch: &'a Fetch<'a>,
    items: &'a [Item],
}

impl<'a> Workers<'a> {
    fn work<'s>(self, scope: &'s Scope<'s, '_>, queue: &'s Queue<'a>)
    where
        'a: 's,
    {
        let plan = self.fetch.plan;
        let names = (plan.repo.as_str(), plan.revision.as_str());
        let run = || -> Result<()> {
            let mut http = None;
            loop {
                match queue.next()? {
                    Next::End => return Ok(()),
                    Next::Opened(file, part) => self.follow(scope, queue, file, part),
                    Next::Range(task) => {
                        let http = match &mut http {
                            Some(http) => http,
                            none => none.insert(Http::new(
                                self.fetch.environment,
                                plan.hub(),
                                names,
                                self.fetch.console,
                            )?),
                        };
                        let done = self.range(http, queue, &task);
                        task.part.record(task.range)?;
                        if let Err(why) = done? {
                            self.restart(scope, queue, task.file, &task.part, &why)?;
                        }
                    }
                }
            }
        };
        if let Err(e) = run() {
            queue.fail(e);
        }
    }

    /// Fetches a range, as often as it takes. `Err` inside: the file has to be begun anew.
    fn range(self, http: &Http, queue: &Queue, task: &Task) -> Result<Result<(), Why>> {
        let what = self.items[task.file].path.as_str();
        let mut patience = Patience::new(self.fetch.limits, self.fetch.console);
        let mut furthest = task.part.done(task.range);
        loop {
            match self.once(http, queue, task) {
                Ok(()) => return Ok(Ok(())),
                Err(Failure::RangeIgnored) => return Ok(Err(Why::RangeIgnored)),
                Err(Failure::Changed(how)) => return Ok(Err(Why::Changed(how))),
                Err(failure) => {
                    let done = task.part.done(task.range);
                    patience.failed(failure, what, done > furthest)?;
                    furthest = done;
                }
            }
        }
    }

    /// One request for what a range still lacks.
    fn once(self, http: &Http, queue: &Queue, task: &Task) -> Result<(), Failure> {
        let (item, part) = (&self.items[task.file], &task.part);
        let (span, done) = (part.span(task.range), part.done(task.range));
        let start = span.start + done;
        if start == span.end {
            return Ok(());
        }
        let whole = part.cut() == Cut::Whole || (start == 0 && span.end == item.size);
        let url = self.fetch.source.url(&self.fetch.plan.repo, &self.fetch.plan.commit, &item.path)?;
        let what = item.path.as_str();
        let mut reply = http.get(&url, (!whole).then_some(start..span.end), what)?;
        if queue.heeds_headers(task.file) {
            check_named(&reply, &self.fetch.plan.commit, &item.digest)?;
        }
        self.check_place(&reply, item, (!whole).then_some(start))?;
        // A server that sends whole files only begins at zero each time: what is there already is passed over.
        let mut skip = if whole { start } else { 0 };
        let mut left = span.end - start;
        let mut rate = Rate::new();
        while let Some(chunk) = http.chunk(&mut reply, what)? {
            if queue.ended() || part.dropped() {
                return Ok(());
            }
            let passed = skip.min(chunk.len() as u64);
            skip -= passed;
            let bytes = &chunk[passed as usize..];
            let fits = (bytes.len() as u64).min(left) as usize;
            part.append(task.range, &bytes[..fits])?;
            left -= fits as u64;
            self.fetch.console.advance(fits as u64);
            if fits < bytes.len() && whole {
                return Err(Failure::Changed(format!("more than {} bytes", item.size)));
            }
            if left == 0 && !whole {
                break;
            }
            self.fetch.console.check()?;
            rate.check(chunk.len(), what, self.fetch.limits)?;
        }
        match left {
            0 => Ok(()),
            _ => {
                let got = span.end - start - left;
                Err(Failure::connection(
                    what,
                    format!("the body ended after {got} of {} bytes", span.end - start),
                ))
            }
        }
    }

    /// Which bytes the server sends; `start` where a range was asked for.
    fn check_place(self, reply: &Reply, item: &Item, start: Option<u64>) -> Result<(), Failure> {
        let total = match (start, reply.range) {
            (Some(start), Some((at, total))) if at == start => total.filter(|t| *t != item.size),
            (Some(_), _) => return Err(Failure::RangeIgnored),
            (None, _) => reply.length.filter(|n| *n > item.size),
        };
        total.map_or(Ok(()), |n| Err(Failure::Changed(format!("{n} bytes"))))
    }

    fn restart<'s>(
        self,
        scope: &'s Scope<'s, '_>,
        queue: &'s Queue<'a>,
        file: usize,
        old: &Arc<Part>,
        why: &Why,
    ) -> Result<()>
    where
        'a: 's,
    {
        let Some(part) = queue.restart(file, old, why)? else { return Ok(()) };
        let reason = match why {
            Why::RangeIgnored => "the server ignores ranges".to_string(),
            Why::Changed(how) => format!("the server has another file ({how})"),
            Why::WrongDigest(found) => format!("it arrived damaged ({} {found})", found.kind()),
        };
        let console = self.fetch.console;
        console.say(&format!("{}: {reason}; starting again from zero", self.items[file].path));
        console.begin("downloading", queue.bytes_left());
        self.follow(scope, queue, file, part);
        Ok(())
    }

    /// Hashes a file on a thread of its own while it grows.
    fn follow<'s>(self, scope: &'s Scope<'s, '_>, queue: &'s Queue<'a>, file: usize, part: Arc<Part>)
    where
        'a: 's,
    {
        scope.spawn(move || {
            if let Err(e) = self.hash(scope, queue, file, &part) {
                queue.fail(e);
            }
        });
    }

    fn hash<'s>(
        self,
        scope: &'s Scope<'s, '_>,
        queue: &'s Queue<'a>,
        file: usize,
        part: &Arc<Part>,
    ) -> Result<()>
    where
        'a: 's,
    {
        let item = &self.items[file];
        let mut hasher = Hasher::new(item.size, item.digest);
        let mut buf = vec![0; 256 << 10];
        let mut at = 0;
        while at < item.size {
            let to = part.wait_beyond(at);
            if queue.ended() || part.dropped() {
                return Ok(());
            }
            while at < to && !queue.ended() {
                let n = (buf.len() as u64).min(to - at) as usize;
                part.read(at, &mut buf[..n])?;
                hasher.update(&buf[..n]);
                at += n as u64;
            }
        }
        let found = hasher.finish();
        if found.as_expected != item.digest {
            return self.restart(scope, queue, file, part, &Why::WrongDigest(found.as_expected));
        }
        part.finish(&item.name)?;
        self.fetch.console.note(&format!("{} is whole and right", item.path));
        queue.finished(file, found.sha256);
        Ok(())
    }
}
