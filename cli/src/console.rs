//! Progress on a terminal as one bar, elsewhere as plain lines; and the user's wish to stop.

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use signal_hook::consts::SIGXFSZ;
use verify::progress::Progress;

static STOP: AtomicBool = AtomicBool::new(false);

/// First Ctrl-C: stop after the current chunk. Second: stop at once. Either is as safe as a kill.
pub fn watch_interrupts() {
    let handler = || {
        if STOP.swap(true, Ordering::SeqCst) {
            std::process::exit(130);
        }
        let _ = writeln!(std::io::stderr(), "stopping (once more to stop at once) ...");
    };
    // A file that outgrows `ulimit -f` must fail like a full disk, not end the process by a signal.
    let _ = signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)));
    // A second handler is refused; the first one serves as well.
    let _ = ctrlc::set_handler(handler);
}

/// Progress of one command on stderr.
pub struct Console {
    quiet: bool,
    verbose: bool,
    bar: Option<ProgressBar>,
    plain: Mutex<Plain>,
    done: AtomicU64,
}

struct Plain {
    what: String,
    unit: Unit,
    total: u64,
    began: Instant,
    told: Instant,
}

/// What is counted.
#[derive(Clone, Copy, PartialEq)]
enum Unit {
    Bytes,
    /// Things that the phase is called after, such as prompts.
    Steps,
}

impl Unit {
    /// How a bar shows it.
    fn style(self) -> &'static str {
        match self {
            Unit::Bytes => "{msg} [{bar:32}] {bytes}/{total_bytes} {bytes_per_sec} ETA {eta}",
            Unit::Steps => "{msg} [{bar:32}] {pos}/{len} ETA {eta}",
        }
    }

    fn shown(self, n: u64) -> String {
        match self {
            Unit::Bytes => size(n),
            Unit::Steps => n.to_string(),
        }
    }
}

const TELL_EVERY: Duration = Duration::from_secs(5);

impl Console {
    /// Draws a bar if stderr is a terminal; says nothing if `quiet`.
    pub fn new(quiet: bool, verbose: bool) -> Self {
        let bar = (!quiet && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr_with_hz(8));
            bar.set_style(style(Unit::Bytes));
            bar
        });
        let now = Instant::now();
        let plain =
            Mutex::new(Plain { what: String::new(), unit: Unit::Bytes, total: 0, began: now, told: now });
        Console { quiet, verbose, bar, plain, done: AtomicU64::new(0) }
    }

    /// Removes the bar.
    pub fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    /// One line on stderr, above the bar; silenced by `--quiet`.
    pub fn say(&self, text: &str) {
        if !self.quiet {
            self.line(text);
        }
    }

    fn line(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| self.write(text)),
            None => self.write(text),
        }
    }

    fn phase(&self, what: &str, total: u64, unit: Unit) {
        self.done.store(0, Ordering::Relaxed);
        if let Some(bar) = &self.bar {
            bar.reset();
            bar.set_style(style(unit));
            bar.set_length(total);
            bar.set_message(what.to_string());
        }
        let mut plain = self.plain.lock().unwrap_or_else(|p| p.into_inner());
        let now = Instant::now();
        *plain = Plain { what: what.to_string(), unit, total, began: now, told: now };
    }

    fn write(&self, text: &str) {
        // Nobody reads stderr: nothing to be done about it.
        let _ = writeln!(std::io::stderr(), "{text}");
    }
}

impl Progress for Console {
    fn begin(&self, what: &str, total: u64) {
        self.phase(what, total, Unit::Bytes);
    }

    fn begin_steps(&self, what: &str, total: u64) {
        self.phase(what, total, Unit::Steps);
    }

    fn advance(&self, n: u64) {
        let done = self.done.fetch_add(n, Ordering::Relaxed) + n;
        if let Some(bar) = &self.bar {
            bar.set_position(done);
            return;
        }
        if self.quiet {
            return;
        }
        let mut plain = self.plain.lock().unwrap_or_else(|p| p.into_inner());
        if plain.told.elapsed() < TELL_EVERY {
            return;
        }
        plain.told = Instant::now();
        let text = plain.told_of(done);
        drop(plain);
        self.line(&text);
    }

    fn note(&self, line: &str) {
        if self.verbose && !self.quiet {
            self.line(line);
        }
    }

    fn warn(&self, line: &str) {
        self.line(&format!("warning: {line}"));
    }

    fn stopped(&self) -> bool {
        STOP.load(Ordering::SeqCst)
    }
}

impl Plain {
    fn told_of(&self, done: u64) -> String {
        let rate = done as f64 / self.began.elapsed().as_secs_f64().max(1e-9);
        let left = seconds(self.total.saturating_sub(done) as f64 / rate.max(1e-9));
        let shown = |n| self.unit.shown(n);
        match self.unit {
            Unit::Bytes => format!(
                "{}: {} of {} ({}/s, {left} left)",
                self.what,
                shown(done),
                shown(self.total),
                shown(rate as u64)
            ),
            Unit::Steps => format!("{}: {} of {} ({left} left)", self.what, shown(done), shown(self.total)),
        }
    }
}

fn style(unit: Unit) -> ProgressStyle {
    ProgressStyle::with_template(unit.style()).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// Bytes for people: `7.15 MiB`.
pub fn size(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{bytes} B"),
        _ => format!("{value:.2} {}", units[unit]),
    }
}

/// A count for people: `30.53 B`, `610 M`, `4 820`.
pub fn count(n: u64) -> String {
    match n {
        n if n >= 1_000_000_000 => format!("{:.2} B", n as f64 / 1e9),
        n if n >= 10_000_000 => format!("{:.0} M", n as f64 / 1e6),
        n if n >= 1_000_000 => format!("{:.2} M", n as f64 / 1e6),
        n if n >= 10_000 => format!("{} {:03}", n / 1000, n % 1000),
        n => n.to_string(),
    }
}

/// Seconds for people: `3 s`, `4 min 10 s`.
pub fn seconds(s: f64) -> String {
    match s {
        s if s < 10.0 => format!("{s:.1} s"),
        s if s < 60.0 => format!("{s:.0} s"),
        s if s < 3600.0 => format!("{:.0} min {:.0} s", (s / 60.0).floor(), s % 60.0),
        s => format!("{:.0} h {:.0} min", (s / 3600.0).floor(), (s % 3600.0) / 60.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_are_told_as_prompts_and_bytes_as_bytes() {
        let console = Console::new(true, false);
        let told = |done| console.plain.lock().unwrap().told_of(done);
        console.begin_steps("prompts", 24);
        assert!(told(3).starts_with("prompts: 3 of 24 ("), "{}", told(3));
        console.begin("hashing", 2 << 20);
        assert!(told(1 << 20).starts_with("hashing: 1.00 MiB of 2.00 MiB ("), "{}", told(1 << 20));
    }

    #[test]
    fn sizes_are_short() {
        assert_eq!(size(999), "999 B");
        assert_eq!(size(7_500_000), "7.15 MiB");
        assert_eq!(seconds(250.0), "4 min 10 s");
    }
}
