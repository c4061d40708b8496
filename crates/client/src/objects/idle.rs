//! Whether CPUs of this machine are idle, and whether servers keep writers waiting.
//!
//! Caching a large write costs one more copy of its data and saves time only if another CPU can send while
//! the writer continues. On a busy machine the copy would be a loss.

use nacre_env::clock::Instant;
use nacre_env::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// How often the kernel's figures are read, which costs some 30 us.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Servers that take longer than this for a MiB, in nanoseconds, cost more time waiting than CPU time: the
/// copy into a window (100 us) is a tenth of it. One connection over loopback takes 350 to 500 us.
const SLOW_NS_PER_MIB: u64 = 1_000_000;
/// While large calls are divided, one in this many is not, so that an improvement of the servers is noticed.
const PROBE_EVERY: u32 = 64;

/// How long large calls take that are not served from memory: a moving average over about four of them. Among
/// reads only undivided ones count, among writes all.
#[derive(Default)]
pub(crate) struct Pace {
    ns_per_mib: AtomicU64,
    calls: AtomicU32,
}

impl Pace {
    /// Records that a call of `bytes` took this long.
    pub fn note(&self, bytes: u64, took: Duration) {
        let sample = (took.as_nanos() << 20) / u128::from(bytes.max(1));
        let sample = u64::try_from(sample).unwrap_or(u64::MAX).max(1);
        let next = |old: u64| Some(if old == 0 { sample } else { old - old / 4 + sample / 4 });
        // The closure always returns a value.
        let _ = self.ns_per_mib.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    }

    /// True if the next large call is to be divided: servers keep callers waiting, so more of them at once
    /// help.
    pub fn wants_division(&self) -> bool {
        self.is_slow() && !self.calls.fetch_add(1, Ordering::Relaxed).is_multiple_of(PROBE_EVERY)
    }

    /// True if callers wait for servers or the network, so that continuing meanwhile pays off, however busy
    /// the CPUs are.
    pub fn is_slow(&self) -> bool {
        self.ns_per_mib.load(Ordering::Relaxed) > SLOW_NS_PER_MIB
    }
}

/// CPU time of the machine since its start, in the kernel's ticks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Ticks {
    all: u64,
    idle: u64,
}

/// The idle share of the machine's CPUs, updated now and then.
#[derive(Default)]
pub(crate) struct IdleCpus {
    last: Mutex<Option<(Instant, Option<Ticks>)>>,
    per_cent: AtomicU32,
}

impl IdleCpus {
    /// Returns the idle share of all CPUs during the last fraction of a second, in per cent; 0 if it is not
    /// known.
    pub fn per_cent(&self) -> u32 {
        if let Some(mut last) = self.last.try_lock() {
            let now = Instant::now();
            if last.is_none_or(|(when, _)| now.duration_since(when) >= LOOK_EVERY) {
                let ticks = std::fs::read("/proc/stat").ok().as_deref().and_then(parse);
                let before = last.and_then(|(_, ticks)| ticks);
                let share = before.zip(ticks).map_or(0, |(before, after)| idle_share(before, after));
                self.per_cent.store(share, Ordering::Relaxed);
                *last = Some((now, ticks));
            }
        }
        self.per_cent.load(Ordering::Relaxed)
    }
}

/// Parses the first line of `/proc/stat`: `cpu user nice system idle iowait irq softirq steal ...`.
fn parse(text: &[u8]) -> Option<Ticks> {
    let line = text.split(|&byte| byte == b'\n').next()?.strip_prefix(b"cpu ")?;
    let numbers: Vec<u64> = line
        .split(|byte| byte.is_ascii_whitespace())
        .filter_map(|word| std::str::from_utf8(word).ok()?.parse().ok())
        // Guest time is contained in user and nice time.
        .take(8)
        .collect();
    let idle = numbers.get(3)?.saturating_add(numbers.get(4).copied().unwrap_or(0));
    Some(Ticks { all: numbers.iter().fold(0, |sum, &ticks| sum.saturating_add(ticks)), idle })
}

fn idle_share(before: Ticks, after: Ticks) -> u32 {
    let all = after.all.saturating_sub(before.all);
    let idle = after.idle.saturating_sub(before.idle);
    (idle.saturating_mul(100)).checked_div(all).map_or(0, |share| share.min(100) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_calls_are_divided_while_servers_are_slow_but_for_a_look_now_and_then() {
        let pace = Pace::default();
        assert!(!pace.wants_division(), "nothing is known");
        pace.note(1 << 20, Duration::from_millis(2));
        let divided = (0..10 * PROBE_EVERY).filter(|_| pace.wants_division()).count();
        assert_eq!(divided, 10 * (PROBE_EVERY as usize - 1));
    }

    #[test]
    fn idle_is_what_the_kernel_counts_as_idle_or_waiting_for_disks() {
        let text = b"cpu  100 5 50 700 100 1 2 42 9 9\ncpu0 1 2 3\n";
        let before = parse(text).expect("a line of the kernel");
        assert_eq!(before, Ticks { all: 1000, idle: 800 });
        assert_eq!(idle_share(before, Ticks { all: 1200, idle: 850 }), 25);
        assert_eq!(idle_share(before, before), 0, "no time has passed");
        assert_eq!(parse(b"intr 5"), None);
        assert_eq!(parse(b""), None);
    }

    #[test]
    fn the_share_of_this_machine_can_be_told() {
        let idle = IdleCpus::default();
        assert!(idle.per_cent() <= 100 && idle.per_cent() <= 100);
    }

    #[test]
    fn servers_are_slow_after_some_slow_writes_and_fast_after_some_fast_ones() {
        let pace = Pace::default();
        assert!(!pace.is_slow(), "nothing is known");
        let slow = || pace.note(1 << 20, Duration::from_micros(1500));
        let fast = || pace.note(4 << 20, Duration::from_micros(1600));
        slow();
        assert!(pace.is_slow());
        fast();
        assert!(pace.is_slow(), "one may be chance");
        (0..3).for_each(|_| fast());
        assert!(!pace.is_slow());
    }
}
