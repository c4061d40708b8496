//! Counters of read-ahead: `llite.*.read_ahead_stats`.

use nacre_params::stats::time_line;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

/// Size of a page, the unit of the counters, in bytes.
const PAGE: u64 = 4096;

/// Events counted, in pages, under Lustre's names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Counter {
    /// Pages served from data fetched ahead.
    Hits,
    /// Pages not fetched, or not in time.
    Misses,
    /// Reads that follow no pattern.
    NotConsecutive,
    /// Pages expected to be fetched that were not: never fetched, dropped, or the fetch failed.
    MissInside,
    /// Pages fetched, and never read.
    Discarded,
    /// Reads of empty files.
    ZeroLength,
    /// Reads that follow a pattern while windows are switched off.
    ZeroWindow,
    /// Fetches up to the end of the file.
    ToEnd,
    /// Pages not fetched because the limit of all files together was reached.
    MaxIssue,
    /// Fetches cut short by the end of the budget or an error.
    FailedToReachEnd,
    /// Pages fetched by other threads than the reader's.
    Async,
}

const COUNTERS: usize = 11;

/// Lines of the report in Lustre's order; those without a counter cannot happen here.
const LINES: [(&str, Option<Counter>); 16] = [
    ("hits", Some(Counter::Hits)),
    ("misses", Some(Counter::Misses)),
    ("readpage not consecutive", Some(Counter::NotConsecutive)),
    ("miss inside window", Some(Counter::MissInside)),
    ("failed grab_cache_page", None),
    ("failed lock match", None),
    ("read but discarded", Some(Counter::Discarded)),
    ("zero length file", Some(Counter::ZeroLength)),
    ("zero size window", Some(Counter::ZeroWindow)),
    ("read-ahead to EOF", Some(Counter::ToEnd)),
    ("hit max r-a issue", Some(Counter::MaxIssue)),
    ("wrong page from grab_cache_page", None),
    ("failed to reach end", Some(Counter::FailedToReachEnd)),
    ("async readahead", Some(Counter::Async)),
    ("failed to fast read", None),
    ("mmap range read", None),
];

/// The counters of a client.
#[derive(Debug, Default)]
pub struct AheadStats {
    counts: [AtomicU64; COUNTERS],
}

impl AheadStats {
    /// Counts `bytes`, rounded up to pages.
    pub(crate) fn add_bytes(&self, counter: Counter, bytes: u64) {
        self.counts[counter as usize].fetch_add(bytes.div_ceil(PAGE), Ordering::Relaxed);
    }

    /// Counts one event.
    pub(crate) fn add(&self, counter: Counter) {
        self.counts[counter as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns a counter's value.
    pub fn get(&self, counter: Counter) -> u64 {
        self.counts[counter as usize].load(Ordering::Relaxed)
    }

    /// Resets all counters to 0.
    pub fn clear(&self) {
        self.counts.iter().for_each(|count| count.store(0, Ordering::Relaxed));
    }

    /// Returns the report as `lctl get_param` shows it, taken at `now_ns` after 1970. Counters at 0 are left
    /// out.
    pub fn text(&self, now_ns: u64) -> String {
        let mut text = time_line("snapshot_time", now_ns);
        for (name, counter) in LINES {
            let count = counter.map_or(0, |counter| self.get(counter));
            if count > 0 {
                // Writing to a string cannot fail.
                let _ = writeln!(text, "{name:<25} {count} samples [pages]");
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_has_lustres_names_and_leaves_out_what_did_not_happen() {
        let stats = AheadStats::default();
        stats.add_bytes(Counter::Hits, 8193);
        stats.add(Counter::Async);
        assert_eq!(
            stats.text(7_000_000_005),
            "snapshot_time             7.000000005 secs.nsecs\n\
             hits                      3 samples [pages]\n\
             async readahead           1 samples [pages]\n"
        );
        stats.clear();
        assert_eq!(stats.get(Counter::Hits), 0);
    }
}
