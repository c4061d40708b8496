//! Operations of a target by job: `job_stats`.
//!
//! Threads count in sharded tables, so that two CPUs do not contend for a lock. A count is one hash lookup
//! and allocates only for a job that is new in its table. Jobs that have been idle for a while are dropped.

use crate::stats::{Event, now_ns, thread_number};
use nacre_env::sync::Mutex;
use nacre_types::job::JobId;
use nacre_types::{Status, StatusResult};
use std::collections::HashMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of tables; a power of two.
const SHARDS: usize = 8;
/// Most jobs in one table; the job that has been idle longest makes way for a new one.
const JOBS_MAX: usize = 4096;
/// Rows of a histogram; the last one is for amounts of 2^31 and more.
const BUCKETS: usize = 32;
/// Default for the seconds without an operation after which a job is dropped; as Lustre's
/// `job_cleanup_interval`.
const INTERVAL_S: u64 = 600;
/// Longest interval that can be set, in seconds.
pub const INTERVAL_S_MAX: u64 = 7 * 24 * 3600;

#[derive(Clone, Copy, Default)]
struct Row {
    samples: u64,
    min: u64,
    max: u64,
    sum: u64,
    /// Sum of the squares of the amounts; wraps.
    sum_of_squares: u64,
}

impl Row {
    fn count(&mut self, amount: u64) {
        self.min = if self.samples == 0 { amount } else { self.min.min(amount) };
        self.max = self.max.max(amount);
        self.samples += 1;
        self.sum = self.sum.wrapping_add(amount);
        self.sum_of_squares = self.sum_of_squares.wrapping_add(amount.wrapping_mul(amount));
    }

    fn add(&mut self, other: &Row) {
        if other.samples == 0 {
            return;
        }
        self.min = if self.samples == 0 { other.min } else { self.min.min(other.min) };
        self.max = self.max.max(other.max);
        self.samples += other.samples;
        self.sum = self.sum.wrapping_add(other.sum);
        self.sum_of_squares = self.sum_of_squares.wrapping_add(other.sum_of_squares);
    }
}

/// Counts of one job.
#[derive(Clone)]
struct Job {
    first_ns: u64,
    last_ns: u64,
    rows: Box<[Row]>,
    /// Histograms of the events whose amounts are bytes, in their order.
    histograms: Box<[[u64; BUCKETS]]>,
}

/// Counters by job for a fixed list of events; see the [module documentation](self).
pub struct JobStats {
    events: &'static [Event],
    /// Index of the histogram of each event, if it has one.
    histogram_of: Box<[Option<usize>]>,
    shards: [Mutex<HashMap<JobId, Job>>; SHARDS],
    interval_s: AtomicU64,
    /// Time of the last sweep for idle jobs, in nanoseconds since 1970.
    swept_ns: AtomicU64,
}

impl JobStats {
    /// Creates counters for `events`, without any job.
    pub fn new(events: &'static [Event]) -> JobStats {
        let mut next = 0;
        let number = |event: &Event| {
            (event.unit == "bytes").then(|| {
                next += 1;
                next - 1
            })
        };
        JobStats {
            events,
            histogram_of: events.iter().map(number).collect(),
            shards: Default::default(),
            interval_s: AtomicU64::new(INTERVAL_S),
            swept_ns: AtomicU64::new(now_ns()),
        }
    }

    /// Counts events of a job, each as an index into the list and an amount. An index beyond the list is
    /// ignored.
    pub fn count(&self, job: &JobId, events: &[(usize, u64)]) {
        self.count_at(now_ns(), job, events);
    }

    fn count_at(&self, now_ns: u64, job: &JobId, events: &[(usize, u64)]) {
        let mut jobs = self.shards[thread_number() % SHARDS].lock();
        if !jobs.contains_key(job) {
            if jobs.len() >= JOBS_MAX
                && let Some(oldest) = jobs.iter().min_by_key(|(_, job)| job.last_ns).map(|(id, _)| *id)
            {
                jobs.remove(&oldest);
            }
            let histograms = self.histogram_of.iter().flatten().count();
            let new = Job {
                first_ns: now_ns,
                last_ns: now_ns,
                rows: vec![Row::default(); self.events.len()].into(),
                histograms: vec![[0; BUCKETS]; histograms].into(),
            };
            jobs.insert(*job, new);
            drop(jobs);
            self.sweep(now_ns);
            jobs = self.shards[thread_number() % SHARDS].lock();
        }
        let Some(counted) = jobs.get_mut(job) else { return };
        counted.last_ns = counted.last_ns.max(now_ns);
        for &(index, amount) in events {
            let Some(row) = counted.rows.get_mut(index) else { continue };
            row.count(amount);
            let histogram = self.histogram_of.get(index).copied().flatten();
            if let Some(histogram) = histogram.and_then(|number| counted.histograms.get_mut(number)) {
                histogram[bucket(amount)] += 1;
            }
        }
    }

    /// Returns the events that are counted, in the order of their indexes.
    pub fn events(&self) -> &'static [Event] {
        self.events
    }

    /// Returns the numbers and the sums of the amounts of each job's events, in the order of the events.
    pub fn totals(&self) -> HashMap<JobId, Vec<(u64, u64)>> {
        let mut all: HashMap<JobId, Vec<(u64, u64)>> = HashMap::new();
        for shard in &self.shards {
            for (id, job) in shard.lock().iter() {
                let sums = all.entry(*id).or_insert_with(|| vec![(0, 0); self.events.len()]);
                for (sum, row) in sums.iter_mut().zip(&job.rows) {
                    *sum = (sum.0 + row.samples, sum.1.wrapping_add(row.sum));
                }
            }
        }
        all
    }

    /// Drops jobs that have been idle for the interval; runs at most twice per interval.
    fn sweep(&self, now_ns: u64) {
        let interval_ns = self.interval_s().saturating_mul(1_000_000_000);
        let swept = self.swept_ns.load(Ordering::Relaxed);
        if interval_ns == 0 || now_ns.saturating_sub(swept) < interval_ns / 2 {
            return;
        }
        self.swept_ns.store(now_ns, Ordering::Relaxed);
        for shard in &self.shards {
            shard.lock().retain(|_, job| now_ns.saturating_sub(job.last_ns) <= interval_ns);
        }
    }

    /// Returns the seconds without an operation after which a job is dropped; 0 for never.
    pub fn interval_s(&self) -> u64 {
        self.interval_s.load(Ordering::Relaxed)
    }

    /// Sets [`JobStats::interval_s`].
    ///
    /// # Errors
    /// `ERANGE` beyond [`INTERVAL_S_MAX`].
    pub fn set_interval_s(&self, seconds: u64) -> StatusResult<()> {
        if seconds > INTERVAL_S_MAX {
            return Err(Status::ERANGE);
        }
        self.interval_s.store(seconds, Ordering::Relaxed);
        Ok(())
    }

    /// Carries out a write to the parameter: `clear` drops all jobs, the name of a job drops that job.
    ///
    /// # Errors
    /// `EINVAL` if there is no such job.
    pub fn clear(&self, what: &str) -> StatusResult<()> {
        let what = what.trim();
        if what == "clear" {
            self.shards.iter().for_each(|shard| shard.lock().clear());
            return Ok(());
        }
        let job = JobId::new(what.as_bytes()).ok_or(Status::EINVAL)?;
        let removed = self.shards.iter().filter(|shard| shard.lock().remove(&job).is_some()).count();
        if removed > 0 { Ok(()) } else { Err(Status::EINVAL) }
    }

    /// Merges the tables into a list of jobs, ordered by the time of their first operation.
    fn merged(&self, now_ns: u64) -> Vec<(JobId, Job)> {
        let interval_ns = self.interval_s().saturating_mul(1_000_000_000);
        let mut all: HashMap<JobId, Job> = HashMap::new();
        for shard in &self.shards {
            for (id, job) in shard.lock().iter() {
                all.entry(*id)
                    .and_modify(|sum| {
                        sum.first_ns = sum.first_ns.min(job.first_ns);
                        sum.last_ns = sum.last_ns.max(job.last_ns);
                        sum.rows.iter_mut().zip(&job.rows).for_each(|(sum, row)| sum.add(row));
                        let counts = sum.histograms.as_flattened_mut().iter_mut();
                        counts.zip(job.histograms.as_flattened()).for_each(|(sum, count)| *sum += count);
                    })
                    .or_insert_with(|| job.clone());
            }
        }
        let mut jobs: Vec<(JobId, Job)> = all.into_iter().collect();
        if interval_ns > 0 {
            jobs.retain(|(_, job)| now_ns.saturating_sub(job.last_ns) <= interval_ns);
        }
        jobs.sort_by_key(|(id, job)| (job.first_ns, *id));
        jobs
    }

    /// Returns the text of the parameter, which is YAML.
    pub fn text(&self) -> String {
        let now_ns = now_ns();
        self.sweep(now_ns);
        self.text_at(now_ns)
    }

    fn text_at(&self, now_ns: u64) -> String {
        let mut out = "job_stats:\n".to_owned();
        for (id, job) in self.merged(now_ns) {
            // Writing to a String does not fail.
            let _ = writeln!(out, "- {:<17}{}", "job_id:", shown(&id));
            let times = [
                ("snapshot_time:", job.last_ns),
                ("start_time:", job.first_ns),
                ("elapsed_time:", job.last_ns.saturating_sub(job.first_ns)),
            ];
            for (name, ns) in times {
                let _ =
                    writeln!(out, "  {name:<17}{}.{:09} secs.nsecs", ns / 1_000_000_000, ns % 1_000_000_000);
            }
            for ((event, row), histogram) in self.events.iter().zip(&job.rows).zip(&self.histogram_of) {
                let histogram = histogram.and_then(|number| job.histograms.get(number));
                write_row(&mut out, event, row, histogram);
            }
        }
        out
    }
}

fn write_row(out: &mut String, event: &Event, row: &Row, histogram: Option<&[u64; BUCKETS]>) {
    let name = format!("{}:", event.name);
    let Row { samples, min, max, sum, sum_of_squares } = row;
    let _ = write!(
        out,
        "  {name:<17}{{ samples: {samples:>11}, unit: {:>5}, min: {min:>8}, max: {max:>8}, sum: {sum:>16}, sumsq: \
         {sum_of_squares:>18}",
        event.unit
    );
    if let Some(histogram) = histogram {
        let counted = histogram.iter().enumerate().filter(|(_, count)| **count > 0);
        let counted: Vec<String> = counted.map(|(row, count)| format!("{}: {count}", label(row))).collect();
        let _ = match counted[..] {
            [] => write!(out, ", hist: {{ }}"),
            _ => write!(out, ", hist: {{ {} }}", counted.join(", ")),
        };
    }
    out.push_str(" }\n");
}

/// Returns the row for an amount: the exponent of the least power of two that is not below it.
fn bucket(amount: u64) -> usize {
    let exponent = amount.checked_next_power_of_two().map_or(u64::BITS, u64::trailing_zeros);
    (exponent as usize).min(BUCKETS - 1)
}

fn label(row: usize) -> String {
    let suffixes = ["", "K", "M", "G"];
    format!("{}{}", 1u64 << (row % 10), suffixes[(row / 10).min(3)])
}

/// Returns a name as a YAML scalar: in quotes, with `\xHH` for bytes other than letters, digits and `.@-_:/`.
fn shown(job: &JobId) -> String {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b".@-_:/".contains(byte);
    let name = job.as_bytes();
    if name.iter().all(is_plain) {
        return String::from_utf8_lossy(name).into_owned();
    }
    let show =
        |byte: &u8| if is_plain(byte) { char::from(*byte).to_string() } else { format!("\\x{byte:02X}") };
    format!("\"{}\"", name.iter().map(show).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENTS: &[Event] =
        &[Event { name: "read_bytes", unit: "bytes" }, Event { name: "open", unit: "usecs" }];
    const SECOND: u64 = 1_000_000_000;

    fn job(name: &str) -> JobId {
        JobId::new(name.as_bytes()).expect("a name")
    }

    #[test]
    fn the_text_is_that_of_lustre() {
        let stats = JobStats::new(EVENTS);
        assert_eq!(stats.text_at(0), "job_stats:\n");
        stats.count_at(5 * SECOND, &job("dd.0"), &[(0, 4096), (1, 7)]);
        stats.count_at(7 * SECOND + 1, &job("dd.0"), &[(0, 1000), (9, 9)]);
        stats.count_at(6 * SECOND, &job("a#b"), &[(1, 3)]);
        let expected = "job_stats:
- job_id:          dd.0
  snapshot_time:   7.000000001 secs.nsecs
  start_time:      5.000000000 secs.nsecs
  elapsed_time:    2.000000001 secs.nsecs
  read_bytes:      { samples:           2, unit: bytes, min:     1000, max:     4096, sum:             5096, sumsq:           17777216, hist: { 1K: 1, 4K: 1 } }
  open:            { samples:           1, unit: usecs, min:        7, max:        7, sum:                7, sumsq:                 49 }
- job_id:          \"a\\x23b\"
  snapshot_time:   6.000000000 secs.nsecs
  start_time:      6.000000000 secs.nsecs
  elapsed_time:    0.000000000 secs.nsecs
  read_bytes:      { samples:           0, unit: bytes, min:        0, max:        0, sum:                0, sumsq:                  0, hist: { } }
  open:            { samples:           1, unit: usecs, min:        3, max:        3, sum:                3, sumsq:                  9 }
";
        assert_eq!(stats.text_at(8 * SECOND), expected);
    }

    #[test]
    fn threads_count_together() {
        let stats = JobStats::new(EVENTS);
        nacre_env::thread::scope(|scope| {
            for thread in 1..=4 {
                let stats = &stats;
                scope.spawn(move || (0..100).for_each(|_| stats.count(&job("x"), &[(0, thread * 10)])));
            }
        });
        let merged = stats.merged(now_ns());
        assert_eq!(stats.totals()[&job("x")], [(400, 10_000), (0, 0)]);
        let row = &merged[0].1.rows[0];
        assert_eq!((merged.len(), row.samples, row.min, row.max, row.sum), (1, 400, 10, 40, 10_000));
        assert_eq!(merged[0].1.histograms[0].iter().sum::<u64>(), 400);
    }

    #[test]
    fn jobs_are_forgotten_after_the_interval_or_when_asked() {
        let stats = JobStats::new(EVENTS);
        let start = now_ns();
        let names = |at: u64| stats.merged(at).iter().map(|(id, _)| *id).collect::<Vec<_>>();
        stats.count_at(start, &job("old"), &[(1, 1)]);
        stats.count_at(start + 400 * SECOND, &job("new"), &[(1, 1)]);
        assert_eq!(names(start + 600 * SECOND), [job("old"), job("new")]);
        assert_eq!(names(start + 601 * SECOND), [job("new")]);
        assert_eq!(stats.set_interval_s(0), Ok(()));
        assert_eq!(names(start + 9999 * SECOND).len(), 2, "never");
        assert_eq!(stats.set_interval_s(INTERVAL_S_MAX + 1), Err(Status::ERANGE));
        assert_eq!((stats.clear("nosuch"), stats.clear("old")), (Err(Status::EINVAL), Ok(())));
        assert_eq!(names(start), [job("new")]);
        assert_eq!(stats.clear("clear"), Ok(()));
        assert_eq!(names(start), []);
    }

    #[test]
    fn no_more_jobs_are_kept_than_there_is_room_for() {
        let stats = JobStats::new(EVENTS);
        for number in 0..JOBS_MAX as u64 + 10 {
            stats.count_at(number + 1, &job(&format!("j{number}")), &[(1, 1)]);
        }
        let kept = stats.merged(JOBS_MAX as u64);
        assert_eq!(kept.len(), JOBS_MAX);
        assert_eq!(kept[0].0, job("j10"), "the oldest went");
    }

    #[test]
    fn amounts_have_rows_up_to_the_last() {
        let rows = [0, 1, 2, 3, 4096, 4097, 1 << 20, 1 << 31, u64::MAX].map(bucket);
        assert_eq!(rows, [0, 0, 1, 2, 12, 13, 20, 31, 31]);
        assert_eq!([0, 9, 12, 20, 31].map(label), ["1", "512", "4K", "1M", "2G"]);
    }
}
