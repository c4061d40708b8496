//! Counters of operations with their sums, for files like `llite.*.stats`.
//!
//! Threads count in shards, so that two CPUs do not contend for a cache line. Counting takes no lock and
//! allocates nothing.

use nacre_env::clock::Instant;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, UNIX_EPOCH};

/// Number of shards; a power of two.
const SHARDS: usize = 8;
/// Rows of a histogram of times.
pub const TIME_ROWS: usize = 26;

/// A kind of event: its name, and the unit of its amounts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// Name of the row.
    pub name: &'static str,
    /// `usecs`, `bytes` or `reqs`.
    pub unit: &'static str,
}

impl Event {
    /// Returns the index of the event with this name, at compile time.
    ///
    /// # Panics
    /// If no event has this name.
    pub const fn index_of(events: &[Event], name: &str) -> usize {
        let name = name.as_bytes();
        let mut index = 0;
        while index < events.len() {
            let known = events[index].name.as_bytes();
            let mut same = 0;
            while same < name.len() && same < known.len() && known[same] == name[same] {
                same += 1;
            }
            if same == name.len() && same == known.len() {
                return index;
            }
            index += 1;
        }
        panic!("no event has this name")
    }
}

#[derive(Default)]
struct Counter {
    samples: AtomicU64,
    sum: AtomicU64,
    sum_of_squares: AtomicU64,
    /// Complement of the smallest amount, so that 0 stands for none.
    inverse_min: AtomicU64,
    max: AtomicU64,
    /// Histogram of amounts in microseconds: row `n` counts those up to 2^n that fit in no row before it, the
    /// last one all longer ones. Empty for other units, and without histograms.
    times: Box<[AtomicU64]>,
}

impl Counter {
    fn with_times(event: &Event) -> Counter {
        let rows = if event.unit == "usecs" { TIME_ROWS } else { 0 };
        Counter { times: (0..rows).map(|_| AtomicU64::new(0)).collect(), ..Counter::default() }
    }
}

/// Returns the row of a histogram for a time in microseconds.
fn time_row(time_us: u64) -> usize {
    let exponent = u64::BITS - time_us.saturating_sub(1).leading_zeros();
    (exponent as usize).min(TIME_ROWS - 1)
}

/// Aligned to 128 bytes because CPUs prefetch cache lines in pairs.
#[repr(align(128))]
struct Shard(Box<[Counter]>);

/// Counters for a fixed list of events.
pub struct EventStats {
    events: &'static [Event],
    shards: Box<[Shard]>,
    started: AtomicU64,
}

/// Counts of one event.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Row {
    /// Number of events.
    pub samples: u64,
    /// Sum of the amounts.
    pub sum: u64,
    /// Sum of the squares of the amounts; wraps.
    pub sum_of_squares: u64,
    /// Smallest amount; 0 if there was none.
    pub min: u64,
    /// Largest amount.
    pub max: u64,
}

impl EventStats {
    /// Creates counters for `events`, all zero.
    pub fn new(events: &'static [Event]) -> EventStats {
        EventStats::of(events, |_| Counter::default())
    }

    /// Creates counters with histograms of times. One for each client or job would take much memory.
    pub fn with_times(events: &'static [Event]) -> EventStats {
        EventStats::of(events, Counter::with_times)
    }

    fn of(events: &'static [Event], counter: fn(&Event) -> Counter) -> EventStats {
        let shard = |_| Shard(events.iter().map(counter).collect());
        EventStats { events, shards: (0..SHARDS).map(shard).collect(), started: AtomicU64::new(now_ns()) }
    }

    /// Counts an event with this index in the list; an index beyond the list is ignored.
    pub fn count(&self, index: usize, amount: u64) {
        let shard = &self.shards[thread_number() % SHARDS];
        let Some(counter) = shard.0.get(index) else { return };
        counter.samples.fetch_add(1, Ordering::Relaxed);
        counter.sum.fetch_add(amount, Ordering::Relaxed);
        counter.sum_of_squares.fetch_add(amount.wrapping_mul(amount), Ordering::Relaxed);
        if counter.max.load(Ordering::Relaxed) < amount {
            counter.max.fetch_max(amount, Ordering::Relaxed);
        }
        if counter.inverse_min.load(Ordering::Relaxed) < !amount {
            counter.inverse_min.fetch_max(!amount, Ordering::Relaxed);
        }
        if let Some(row) = counter.times.get(time_row(amount)) {
            row.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts an event with the time since `start` in microseconds as its amount.
    pub fn count_since(&self, index: usize, start: Instant) {
        self.count(index, start.elapsed().as_micros() as u64);
    }

    /// Returns the events that are counted, in the order of their indexes.
    pub fn events(&self) -> &'static [Event] {
        self.events
    }

    /// Returns the histogram of the event with this index, if there is one: row `n` counts
    /// those up to 2^n that fit in no row before it, the last one all longer ones.
    pub fn times(&self, index: usize) -> Option<[u64; TIME_ROWS]> {
        let (mut sums, mut has_times) = ([0; TIME_ROWS], false);
        for counter in self.shards.iter().filter_map(|shard| shard.0.get(index)) {
            has_times |= !counter.times.is_empty();
            sums.iter_mut().zip(&counter.times).for_each(|(sum, row)| *sum += row.load(Ordering::Relaxed));
        }
        has_times.then_some(sums)
    }

    /// Returns the counts of the event with this index.
    pub fn row(&self, index: usize) -> Row {
        let mut row = Row::default();
        let mut inverse_min = 0;
        for counter in self.shards.iter().filter_map(|shard| shard.0.get(index)) {
            let read = |value: &AtomicU64| value.load(Ordering::Relaxed);
            row.samples += read(&counter.samples);
            row.sum += read(&counter.sum);
            row.sum_of_squares = row.sum_of_squares.wrapping_add(read(&counter.sum_of_squares));
            row.max = row.max.max(read(&counter.max));
            inverse_min = inverse_min.max(read(&counter.inverse_min));
        }
        row.min = if row.samples == 0 { 0 } else { !inverse_min };
        row
    }

    /// Sets all counts to zero, as a write to the parameter does.
    pub fn clear(&self) {
        for counter in self.shards.iter().flat_map(|shard| &*shard.0) {
            let values =
                [&counter.samples, &counter.sum, &counter.sum_of_squares, &counter.inverse_min, &counter.max];
            values.into_iter().chain(&counter.times).for_each(|value| value.store(0, Ordering::Relaxed));
        }
        self.started.store(now_ns(), Ordering::Relaxed);
    }

    /// Returns the text of the parameter: a header with times, then a row for each event that happened.
    pub fn text(&self) -> String {
        EventStats::sum_text(&[self], |_| true)
    }

    /// Returns the text for the sum of several counters of the same events, with the rows that `is_wanted`
    /// selects. Without counters, the header has the current time as its start.
    pub fn sum_text(all: &[&EventStats], is_wanted: impl Fn(&str) -> bool) -> String {
        let started = all.iter().map(|stats| stats.started.load(Ordering::Relaxed)).min();
        let events = all.first().map_or(&[][..], |stats| stats.events);
        let wanted = events.iter().enumerate().filter(|(_, event)| is_wanted(event.name));
        let rows = wanted.map(|(index, event)| {
            let sum = all.iter().map(|stats| stats.row(index)).reduce(Row::plus);
            (*event, sum.unwrap_or_default())
        });
        stats_text(started.unwrap_or_else(now_ns), rows)
    }
}

impl Row {
    fn plus(self, other: Row) -> Row {
        match (self.samples, other.samples) {
            (0, _) => other,
            (_, 0) => self,
            _ => Row {
                samples: self.samples + other.samples,
                sum: self.sum.wrapping_add(other.sum),
                sum_of_squares: self.sum_of_squares.wrapping_add(other.sum_of_squares),
                min: self.min.min(other.min),
                max: self.max.max(other.max),
            },
        }
    }
}

/// Formats counters as Lustre does, with a start time in nanoseconds since 1970. Rows without samples are
/// left out.
fn stats_text(started_ns: u64, rows: impl Iterator<Item = (Event, Row)>) -> String {
    let mut text = times(["snapshot_time", "start_time", "elapsed_time"], now_ns(), started_ns);
    for (event, row) in rows.filter(|(_, row)| row.samples > 0) {
        let Row { samples, sum, sum_of_squares, min, max } = row;
        text += &format!("{:<25} {samples} samples [{}]", event.name, event.unit);
        if event.unit != "reqs" {
            text += &format!(" {min} {max} {sum} {sum_of_squares}");
        }
        text.push('\n');
    }
    text
}

/// Formats the first lines of most reports under the given names: the current time, the start of the
/// counting, and the time between them.
pub fn times(names: [&str; 3], now_ns: u64, started_ns: u64) -> String {
    let values = [now_ns, started_ns, now_ns.saturating_sub(started_ns)];
    names.iter().zip(values).map(|(name, ns)| time_line(name, ns)).collect()
}

/// Formats one line with a time.
pub fn time_line(name: &str, ns: u64) -> String {
    format!("{name:<25} {}.{:09} secs.nsecs\n", ns / 1_000_000_000, ns % 1_000_000_000)
}

/// Returns nanoseconds since 1970.
pub fn now_ns() -> u64 {
    nacre_env::clock::wall().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_nanos() as u64
}

/// Returns the number of the calling thread, counted from 0, which selects its shard.
pub fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: usize = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    // A thread whose thread-local storage is already destroyed counts as the first thread.
    NUMBER.try_with(|number| *number).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENTS: &[Event] =
        &[Event { name: "read_bytes", unit: "bytes" }, Event { name: "open", unit: "reqs" }];

    #[test]
    fn events_are_found_by_name() {
        assert_eq!((Event::index_of(EVENTS, "read_bytes"), Event::index_of(EVENTS, "open")), (0, 1));
        assert!(std::panic::catch_unwind(|| Event::index_of(EVENTS, "ope")).is_err());
    }

    #[test]
    fn threads_count_together() {
        let stats = EventStats::new(EVENTS);
        nacre_env::thread::scope(|scope| {
            for thread in 1..=4 {
                let stats = &stats;
                scope.spawn(move || (0..100).for_each(|_| stats.count(0, thread * 10)));
            }
        });
        stats.count(9, 1);
        let row = stats.row(0);
        assert_eq!((row.samples, row.sum, row.min, row.max), (400, 10_000, 10, 40));
        assert_eq!(row.sum_of_squares, 100 * (100 + 400 + 900 + 1600));
        stats.clear();
        assert_eq!(stats.row(0), stats.row(1));
        assert_eq!(stats.row(0).samples, 0);
    }

    #[test]
    fn times_have_a_histogram_with_powers_of_two_and_other_amounts_have_none() {
        let rows = [0, 1, 2, 3, 4, 5, 1 << 24, (1 << 24) + 1, u64::MAX].map(time_row);
        assert_eq!(rows, [0, 0, 1, 2, 2, 3, 24, 25, 25]);
        const TIMED: &[Event] = &[Event { name: "read", unit: "usecs" }, EVENTS[0]];
        let stats = EventStats::with_times(TIMED);
        nacre_env::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| [1, 900, 1000, u64::MAX].into_iter().for_each(|time| stats.count(0, time)));
            }
        });
        stats.count(1, 4096);
        let mut expected = [0; TIME_ROWS];
        (expected[0], expected[10], expected[TIME_ROWS - 1]) = (4, 8, 4);
        assert_eq!((stats.times(0), stats.times(1), stats.times(2)), (Some(expected), None, None));
        assert_eq!(EventStats::new(TIMED).times(0), None);
        stats.clear();
        assert_eq!(stats.times(0), Some([0; TIME_ROWS]));
    }

    #[test]
    fn the_text_has_a_row_for_what_happened() {
        let stats = EventStats::new(EVENTS);
        stats.count(0, 4096);
        stats.count(0, 8192);
        let text = stats.text();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("snapshot_time             ") && lines[0].ends_with(" secs.nsecs"));
        assert!(lines[1].starts_with("start_time") && lines[2].starts_with("elapsed_time"));
        assert_eq!(lines[3..], ["read_bytes                2 samples [bytes] 4096 8192 12288 83886080"]);
        stats.count(1, 1);
        assert!(stats.text().ends_with("open                      1 samples [reqs]\n"));
    }

    #[test]
    fn counters_of_several_targets_are_shown_as_one() {
        const EVENTS: &[Event] =
            &[Event { name: "read", unit: "usecs" }, Event { name: "sync", unit: "usecs" }];
        let (first, second) = (EventStats::new(EVENTS), EventStats::new(EVENTS));
        first.count(0, 3);
        second.count(0, 1);
        second.count(0, 8);
        second.count(1, 5);
        let rows = |wanted: &str| {
            let text = EventStats::sum_text(&[&first, &second], |name| name == wanted);
            text.lines().skip(3).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(rows("read"), [format!("{:<25} 3 samples [usecs] 1 8 12 74", "read")]);
        assert_eq!(rows("sync"), [format!("{:<25} 1 samples [usecs] 5 5 5 25", "sync")]);
        assert_eq!(EventStats::sum_text(&[], |_| true).lines().count(), 3);
    }
}
