//! Counters of jobs with a bound on their number: the busiest ones by name, the rest together.

use nacre_env::clock::Instant;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::time::Duration;

/// Name of the jobs that have no rows of their own.
pub const REST: &str = "(other)";
/// Kinds of counts of a job.
pub const KINDS: usize = 6;
/// Time without requests after which a job makes way for another one.
const IDLE: Duration = Duration::from_secs(60);
/// Jobs of a process beyond the bound whose counts are remembered.
const REMEMBERED: usize = 10_000;

/// Counts of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobTotals {
    /// Name, in printable ASCII.
    pub job: String,
    /// Metadata operations.
    pub metadata: u64,
    /// Reads of objects.
    pub reads: u64,
    /// Writes to objects.
    pub writes: u64,
    /// Other requests for objects.
    pub objects: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
}

impl JobTotals {
    fn counts(&self) -> [u64; KINDS] {
        [self.metadata, self.reads, self.writes, self.objects, self.read_bytes, self.write_bytes]
    }

    fn of(job: &str, counts: [u64; KINDS]) -> JobTotals {
        let [metadata, reads, writes, objects, read_bytes, write_bytes] = counts;
        JobTotals { job: job.to_owned(), metadata, reads, writes, objects, read_bytes, write_bytes }
    }

    /// Adds the counts of the same job at another target.
    pub fn add(&mut self, other: &JobTotals) {
        let sums = plus(self.counts(), other.counts());
        *self = JobTotals::of(&self.job, sums);
    }

    /// Returns a measure of the work for the job: its requests, and its data in units of 64 KiB.
    pub fn weight(&self) -> u64 {
        let requests = self.metadata.saturating_add(self.reads).saturating_add(self.writes);
        requests.saturating_add(self.read_bytes.saturating_add(self.write_bytes) >> 16)
    }
}

fn plus(a: [u64; KINDS], b: [u64; KINDS]) -> [u64; KINDS] {
    std::array::from_fn(|kind| a[kind].saturating_add(b[kind]))
}

/// What was last seen of a job.
struct Seen {
    counts: [u64; KINDS],
    changed: Instant,
    /// It has rows of its own.
    is_shown: bool,
    /// Part of the current round.
    is_there: bool,
}

/// Chooses the jobs that get rows of their own. The choice is kept from one round to the next while a job
/// works, so that its counters do not stop and restart; what other jobs do is added to the rest, whose
/// counters never decrease.
pub struct JobBook {
    shown_max: usize,
    jobs: HashMap<String, Seen>,
    rest: [u64; KINDS],
}

impl JobBook {
    /// Creates a book for up to `shown_max` jobs with rows of their own.
    pub fn new(shown_max: usize) -> JobBook {
        JobBook { shown_max, jobs: HashMap::new(), rest: [0; KINDS] }
    }

    /// Notes the present counts of all jobs; a job may be named several times. Returns the rows to show, the
    /// busiest first and the rest last.
    pub fn note(&mut self, all: impl IntoIterator<Item = JobTotals>) -> Vec<JobTotals> {
        self.note_at(Instant::now(), all)
    }

    fn note_at(&mut self, now: Instant, all: impl IntoIterator<Item = JobTotals>) -> Vec<JobTotals> {
        let mut sums: HashMap<String, JobTotals> = HashMap::new();
        for totals in all {
            sums.entry(totals.job.clone()).and_modify(|sum| sum.add(&totals)).or_insert(totals);
        }
        let rest = sums.remove(REST);
        self.jobs.values_mut().for_each(|seen| seen.is_there = false);
        let mut sums: Vec<JobTotals> = sums.into_values().collect();
        sums.sort_by(|a, b| b.weight().cmp(&a.weight()).then_with(|| a.job.cmp(&b.job)));
        for totals in &sums {
            self.look_at(totals, now);
        }
        self.jobs.retain(|_, seen| seen.is_there);
        self.choose(&sums, now);
        sums.retain(|totals| self.jobs.get(&totals.job).is_some_and(|seen| seen.is_shown));
        let rest = plus(self.rest, rest.map_or([0; KINDS], |rest| rest.counts()));
        if rest != [0; KINDS] {
            sums.push(JobTotals::of(REST, rest));
        }
        sums
    }

    /// Notes the counts of one job, and adds to the rest what it did without being shown.
    fn look_at(&mut self, totals: &JobTotals, now: Instant) {
        let counts = totals.counts();
        let is_new = !self.jobs.contains_key(&totals.job);
        if is_new && self.jobs.len() >= REMEMBERED {
            return;
        }
        let new = Seen { counts: [0; KINDS], changed: now, is_shown: false, is_there: true };
        let seen = self.jobs.entry(totals.job.clone()).or_insert(new);
        seen.is_there = true;
        if seen.counts != counts {
            seen.changed = now;
        }
        // Smaller counts are those of a job that was forgotten and is there again.
        let is_again = seen.counts.iter().zip(&counts).any(|(before, now)| before > now);
        let before = if is_again { [0; KINDS] } else { seen.counts };
        if !seen.is_shown && !is_new {
            self.rest =
                std::array::from_fn(|kind| self.rest[kind].saturating_add(counts[kind] - before[kind]));
        }
        seen.counts = counts;
    }

    /// Shows new jobs while there are places; idle ones make way.
    fn choose(&mut self, sums: &[JobTotals], now: Instant) {
        let mut free = self.shown_max.saturating_sub(self.jobs.values().filter(|seen| seen.is_shown).count());
        let mut idle: Vec<(Instant, String)> = self
            .jobs
            .iter()
            .filter(|(_, seen)| seen.is_shown && now.saturating_duration_since(seen.changed) >= IDLE)
            .map(|(job, seen)| (seen.changed, job.clone()))
            .collect();
        idle.sort_by(|a, b| b.cmp(a));
        for totals in sums {
            let works = self
                .jobs
                .get(&totals.job)
                .is_some_and(|seen| !seen.is_shown && now.saturating_duration_since(seen.changed) < IDLE);
            if !works {
                continue;
            }
            if free == 0 {
                let Some((_, makes_way)) = idle.pop() else { break };
                self.jobs.entry(makes_way).and_modify(|seen| seen.is_shown = false);
                free = 1;
            }
            free -= 1;
            self.jobs.entry(totals.job.clone()).and_modify(|seen| seen.is_shown = true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(name: &str, writes: u64) -> JobTotals {
        JobTotals { job: name.to_owned(), writes, ..JobTotals::default() }
    }

    fn shown(rows: &[JobTotals]) -> Vec<(&str, u64)> {
        rows.iter().map(|row| (row.job.as_str(), row.writes)).collect()
    }

    #[test]
    fn the_busiest_jobs_are_shown_and_keep_their_rows_while_they_work() {
        let mut book = JobBook::new(2);
        let start = Instant::now();
        let rows = book.note_at(start, [job("a", 5), job("b", 9), job("b", 1), job("c", 7)]);
        assert_eq!(shown(&rows), [("b", 10), ("c", 7)]);
        // It overtakes the others, and is part of the rest nevertheless: their rows would end.
        let later = start + Duration::from_secs(1);
        let rows = book.note_at(later, [job("a", 50), job("b", 11), job("c", 8)]);
        assert_eq!(shown(&rows), [("b", 11), ("c", 8), (REST, 45)]);
        // An idle one makes way.
        let later = start + Duration::from_secs(70);
        let rows = book.note_at(later, [job("a", 60), job("b", 12), job("c", 8)]);
        assert_eq!(shown(&rows), [("a", 60), ("b", 12), (REST, 55)]);
    }

    #[test]
    fn the_rest_never_decreases() {
        let mut book = JobBook::new(1);
        let start = Instant::now();
        book.note_at(start, [job("big", 1000), job("a", 0), job(REST, 3)]);
        let rows = book.note_at(start, [job("big", 1000), job("a", 5), job(REST, 4)]);
        assert_eq!(shown(&rows), [("big", 1000), (REST, 9)]);
        // Forgotten by its target, and there again.
        let rows = book.note_at(start, [job("big", 1000), job("a", 2), job(REST, 4)]);
        assert_eq!(shown(&rows), [("big", 1000), (REST, 11)]);
        let rows = book.note_at(start, [job(REST, 4)]);
        assert_eq!(shown(&rows), [(REST, 11)]);
    }

    #[test]
    fn memory_is_bounded_whatever_the_number_of_jobs() {
        let mut book = JobBook::new(100);
        let many = |round: u64| (0..20_000).map(move |number| job(&format!("j{number}"), number + round));
        book.note(many(0));
        let rows = book.note(many(1));
        assert_eq!((rows.len(), book.jobs.len()), (101, REMEMBERED));
    }
}
