//! How long is waited, how often tried, how files are cut into ranges.

use std::time::Duration;

/// Limits of a download. `PREP_TEST_*` in milliseconds or bytes make them small, for the end-to-end tests.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// No byte for so long: the connection is given up.
    pub stall: Duration,
    /// Less than [`Limits::SLOW_RATE`] for so long: likewise.
    pub slow: Duration,
    /// First wait after a failure; doubled each time.
    pub backoff: Duration,
    /// Longest wait that a server can ask for.
    pub retry_after: Duration,
    /// Length of a range in bytes.
    pub range: u64,
}

impl Limits {
    /// Tries without a new byte before a download is given up.
    pub const TRIES: u32 = 5;
    /// Bytes per second below which a connection counts as stalled.
    pub const SLOW_RATE: u64 = 10 << 10;
    /// Redirects that are followed for one request.
    pub const HOPS: usize = 10;

    /// The limits, as the environment changes them.
    pub fn read() -> Self {
        let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
        let millis = |name, default| number(name).map_or(Duration::from_secs(default), Duration::from_millis);
        Limits {
            stall: millis("PREP_TEST_STALL_MS", 30),
            slow: millis("PREP_TEST_SLOW_MS", 120),
            backoff: millis("PREP_TEST_BACKOFF_MS", 1),
            retry_after: millis("PREP_TEST_RETRY_AFTER_MS", 300),
            range: number("PREP_TEST_RANGE").unwrap_or(64 << 20).max(1),
        }
    }
}
