//! Runs the template engine on a thread of its own, with a deep stack, and gives up on it in time.
//!
//! Fuel stops what the engine counts. A few of its operations (a list added to itself, printing a list that
//! holds another one twice, over and over) are not counted; those end here. The thread cannot be killed: it
//! goes on until the process ends, which after such an error is soon.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// The longest that one prompt may take.
pub const MAX_TIME: Duration = Duration::from_secs(10);
/// Words for a template that takes longer.
pub const TOO_LONG: &str = "the template runs for more than 10 s";
const TOO_LARGE: &str = "the template uses more than 2 GiB of memory";
/// The compiler needs a stack frame for each operator of a chain.
const STACK: usize = 64 << 20;
const MAX_MEMORY: u64 = 2 << 30;
const TICK: Duration = Duration::from_millis(50);

/// The result of `work`, or why it was given up.
pub fn guarded<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, &'static str> {
    let (sender, receiver) = mpsc::channel();
    let spawned = thread::Builder::new().name("template".into()).stack_size(STACK).spawn(move || {
        let _ = sender.send(work());
    });
    if spawned.is_err() {
        return Err("no thread could be started for the template");
    }
    let (start, memory) = (Instant::now(), own_memory());
    loop {
        match receiver.recv_timeout(TICK) {
            Ok(result) => return Ok(result),
            Err(RecvTimeoutError::Disconnected) => return Err("the template engine failed on this template"),
            Err(RecvTimeoutError::Timeout) if start.elapsed() > MAX_TIME => return Err(TOO_LONG),
            Err(RecvTimeoutError::Timeout) if own_memory() > memory + MAX_MEMORY => return Err(TOO_LARGE),
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

/// Memory of this process that no file stands behind; 0 where the system does not tell.
fn own_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("RssAnon:"));
    let kib = line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_through_and_panics_do_not_spread() {
        assert_eq!(guarded(|| 7), Ok(7));
        assert!(guarded(|| -> u8 { panic!("expected in this test") }).is_err());
    }
}
