//! Progress of long work: one line on a terminal with an estimate of the time left, nothing on a pipe.

use std::io::{IsTerminal, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Width of the bar in characters.
const WIDTH: usize = 24;
/// Time between two lines.
const PERIOD: Duration = Duration::from_millis(250);
/// Time until the first estimate; earlier ones would be too inaccurate.
const FIRST_ESTIMATE: Duration = Duration::from_secs(2);

/// A progress bar, shared by the workers.
pub(crate) struct Bar {
    terminal: bool,
    start: Instant,
    total: u64,
    inner: Mutex<Inner>,
}

struct Inner {
    done: u64,
    what: String,
    shown: Option<Instant>,
}

impl Bar {
    /// Creates a bar for `total` units of work of any kind.
    pub(crate) fn new(total: u64) -> Bar {
        let inner = Mutex::new(Inner { done: 0, what: String::new(), shown: None });
        Bar { terminal: std::io::stderr().is_terminal(), start: Instant::now(), total, inner }
    }

    /// Sets the description of the current work.
    pub(crate) fn say(&self, what: String) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.what = what;
        self.show(&mut inner, true);
    }

    /// Adds completed units.
    pub(crate) fn add(&self, units: u64) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.done += units;
        self.show(&mut inner, false);
    }

    fn show(&self, inner: &mut Inner, now: bool) {
        if !self.terminal || (!now && inner.shown.is_some_and(|shown| shown.elapsed() < PERIOD)) {
            return;
        }
        inner.shown = Some(Instant::now());
        let line = line(inner.done, self.total, self.start.elapsed(), &inner.what);
        let _ = write!(std::io::stderr(), "\r\x1b[K{line}");
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if self.inner.get_mut().unwrap_or_else(PoisonError::into_inner).shown.is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

fn line(done: u64, total: u64, elapsed: Duration, what: &str) -> String {
    let part = done.min(total) as f64 / total.max(1) as f64;
    let full = (part * WIDTH as f64) as usize;
    let left = left(done, total, elapsed).map_or_else(String::new, |left| format!(", {} left", show(left)));
    format!("[{}{}] {:3.0} % {what}{left}", "#".repeat(full), ".".repeat(WIDTH - full), part * 100.0)
}

/// Estimates the time left at the rate so far.
fn left(done: u64, total: u64, elapsed: Duration) -> Option<Duration> {
    if done == 0 || elapsed < FIRST_ESTIMATE {
        return None;
    }
    let per_unit = elapsed.as_secs_f64() / done as f64;
    Duration::try_from_secs_f64(per_unit * total.saturating_sub(done) as f64).ok()
}

/// Formats a duration with at most two units: `3 h 20 min`.
fn show(time: Duration) -> String {
    let seconds = time.as_secs();
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, seconds) if minutes < 10 => format!("{minutes} min {seconds} s"),
        (0, minutes, _) => format!("{minutes} min"),
        (hours, minutes, _) => format!("{hours} h {minutes} min"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_follows_from_what_is_done() {
        let seconds = Duration::from_secs;
        assert_eq!(left(0, 100, seconds(50)), None);
        assert_eq!(left(1, 100, seconds(1)), None);
        assert_eq!(left(25, 100, seconds(50)), Some(seconds(150)));
        assert_eq!(left(120, 100, seconds(50)), Some(seconds(0)));
        let shown = [59, 61, 599, 600, 3599, 12_000].map(|time| show(seconds(time)));
        assert_eq!(shown, ["59 s", "1 min 1 s", "9 min 59 s", "10 min", "59 min", "3 h 20 min"]);
    }

    #[test]
    fn the_line_is_full_at_the_end_and_not_before() {
        let seconds = Duration::from_secs;
        let half = line(50, 100, seconds(10), "populating PaF:10.00");
        assert_eq!(half, "[############............]  50 % populating PaF:10.00, 10 s left");
        assert!(line(99, 100, seconds(10), "").contains('.'));
        assert!(line(100, 100, seconds(10), "x").starts_with("[########################] 100 % x"));
        assert!(line(0, 0, seconds(0), "").contains("0 %"));
    }
}
