//! Histograms of requests, and their text forms.

use nacre_env::clock::Instant;
use nacre_params::stats::{now_ns, times};
use nacre_wire::oss::{Bulk, OssRequest};
use std::fmt::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Rows of a histogram; larger values count in the last (Lustre: `OBD_HIST_MAX`).
pub const ROWS: usize = 32;
/// Shards of a set of histograms; each thread counts in one, so that CPUs do not contend for cache lines.
const SHARDS: usize = 4;

/// Direction of a data transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Direction {
    /// To the client.
    Read = 0,
    /// To the server.
    Write = 1,
}

/// Counts of both directions by row.
pub type Rows = [[u64; ROWS]; 2];

/// Aligned to its own cache lines; 128 because CPUs fetch lines in pairs.
#[repr(align(128))]
struct Shard<const N: usize>([[[AtomicU64; ROWS]; 2]; N]);

/// `N` histograms for both directions. Counting is one relaxed addition.
pub struct Histograms<const N: usize> {
    shards: Box<[Shard<N>; SHARDS]>,
}

impl<const N: usize> Default for Histograms<N> {
    fn default() -> Histograms<N> {
        let shard = || Shard([const { [const { [const { AtomicU64::new(0) }; ROWS] }; 2] }; N]);
        Histograms { shards: Box::new([(); SHARDS].map(|()| shard())) }
    }
}

impl<const N: usize> std::fmt::Debug for Histograms<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Histograms").finish_non_exhaustive()
    }
}

fn shard_index() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static INDEX: usize = NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS;
    }
    // A thread in its destructors counts in the first shard.
    INDEX.try_with(|index| *index).unwrap_or(0)
}

impl<const N: usize> Histograms<N> {
    /// Adds one to a row of a histogram.
    pub fn count(&self, histogram: usize, direction: Direction, row: usize) {
        let rows = &self.shards[shard_index()].0[histogram][direction as usize];
        rows[row.min(ROWS - 1)].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the counts of a histogram.
    pub fn rows(&self, histogram: usize) -> Rows {
        let mut sums = Rows::default();
        for shard in self.shards.iter() {
            for (sum, rows) in sums.iter_mut().zip(&shard.0[histogram]) {
                for (sum, row) in sum.iter_mut().zip(rows) {
                    *sum += row.load(Ordering::Relaxed);
                }
            }
        }
        sums
    }

    /// Sets all counts to 0.
    pub fn clear(&self) {
        for shard in self.shards.iter() {
            for row in shard.0.iter().flatten().flatten() {
                row.store(0, Ordering::Relaxed);
            }
        }
    }
}

/// Returns the row of `value` where row `i` holds values up to 2^i.
pub fn power_row(value: u64) -> usize {
    value.max(1).next_power_of_two().trailing_zeros() as usize
}

/// Returns the row of `value` where row 0 holds 0 and row `i` values below 2^i, from 2^(i-1) on.
pub fn bit_row(value: u64) -> usize {
    (u64::BITS - value.leading_zeros()) as usize
}

/// Returns the percentage, rounded down; 0 if `whole` is 0.
pub fn percent(part: u64, whole: u64) -> u64 {
    if whole == 0 { 0 } else { (u128::from(part) * 100 / u128::from(whole)) as u64 }
}

/// Names of the first lines of reports about transfers.
pub const TIMES: [&str; 3] = ["snapshot_time:", "start_time:", "elapsed_time:"];

/// State that `rpc_stats` reports in addition to requests; the caller's cache knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pending {
    /// Direct I/O requests in flight.
    pub dio_rpcs: u64,
    /// Dirty pages that wait to be written.
    pub write_pages: u64,
    /// Pages that wait to be read.
    pub read_pages: u64,
}

/// The histograms of [`RpcStats`].
const PAGES: usize = 0;
const IN_FLIGHT: usize = 1;
const OFFSET: usize = 2;
const LATENCY: usize = 3;
/// Offsets are counted in pages from the last multiple of the largest request (Lustre: 64 MiB).
const OFFSET_PAGES: u64 = 16_384;

/// Reads and writes of one object target, as its client counts them.
#[derive(Debug)]
pub struct RpcStats {
    histograms: Histograms<4>,
    in_flight: [AtomicU64; 2],
    /// Bytes and microseconds of finished requests, for averages.
    bytes: [AtomicU64; 2],
    time_us: [AtomicU64; 2],
    finished: [AtomicU64; 2],
    started_ns: AtomicU64,
}

impl Default for RpcStats {
    fn default() -> RpcStats {
        RpcStats {
            histograms: Histograms::default(),
            in_flight: Default::default(),
            bytes: Default::default(),
            time_us: Default::default(),
            finished: Default::default(),
            started_ns: AtomicU64::new(now_ns()),
        }
    }
}

/// Averages of finished requests of one direction, as `import` shows them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Averages {
    /// Number of finished requests.
    pub rpcs: u64,
    /// Bytes of the finished requests.
    pub bytes: u64,
    /// Sum of their durations, in microseconds.
    pub time_us: u64,
}

/// A request with data, in flight from [`CountedRpc::sent`] until this value is dropped.
#[derive(Debug)]
pub struct CountedRpc<'a> {
    stats: &'a RpcStats,
    direction: Direction,
    offset: u64,
    bytes: u64,
    sent: OnceLock<Instant>,
}

impl RpcStats {
    /// Counts a read or write that is sent at once. `offset` and `bytes` in the object.
    pub fn begin(&self, direction: Direction, offset: u64, bytes: u64) -> CountedRpc<'_> {
        let counted = self.prepare(direction, offset, bytes);
        counted.sent();
        counted
    }

    fn prepare(&self, direction: Direction, offset: u64, bytes: u64) -> CountedRpc<'_> {
        CountedRpc { stats: self, direction, offset, bytes, sent: OnceLock::new() }
    }

    /// Prepares the count of a request that is about to wait for admission; `None` if it carries no data.
    pub(crate) fn prepare_request(&self, request: &OssRequest, bulk: &Bulk<'_>) -> Option<CountedRpc<'_>> {
        match (request, bulk) {
            (OssRequest::Read { offset, len, .. }, _) => {
                Some(self.prepare(Direction::Read, *offset, u64::from(*len)))
            }
            (OssRequest::Write { offset, .. }, Bulk::Send(data)) => {
                Some(self.prepare(Direction::Write, *offset, data.len() as u64))
            }
            _ => None,
        }
    }

    /// Returns the requests in flight.
    pub fn in_flight(&self, direction: Direction) -> u64 {
        self.in_flight[direction as usize].load(Ordering::Relaxed)
    }

    /// Returns the requests by pages: row `i` holds those of up to 2^i pages.
    pub fn pages_per_rpc(&self) -> Rows {
        self.histograms.rows(PAGES)
    }

    /// Returns the requests by the number in flight in the same direction when they began, themselves
    /// included.
    pub fn rpcs_in_flight(&self) -> Rows {
        self.histograms.rows(IN_FLIGHT)
    }

    /// Returns the averages of a direction.
    pub fn averages(&self, direction: Direction) -> Averages {
        let read = |counters: &[AtomicU64; 2]| counters[direction as usize].load(Ordering::Relaxed);
        Averages { rpcs: read(&self.finished), bytes: read(&self.bytes), time_us: read(&self.time_us) }
    }

    /// Resets the counts to 0. Requests in flight stay counted as such.
    pub fn clear(&self) {
        self.histograms.clear();
        for counters in [&self.bytes, &self.time_us, &self.finished] {
            counters.iter().for_each(|counter| counter.store(0, Ordering::Relaxed));
        }
        self.started_ns.store(now_ns(), Ordering::Relaxed);
    }

    /// Returns the text of `osc.*.rpc_stats`.
    pub fn text(&self, pending: Pending) -> String {
        self.text_at(now_ns(), self.started_ns.load(Ordering::Relaxed), pending)
    }

    fn text_at(&self, now_ns: u64, started_ns: u64, pending: Pending) -> String {
        let mut out = times(TIMES, now_ns, started_ns);
        // Writing to a String does not fail.
        let _ = write!(
            out,
            "read RPCs in flight:  {}\nwrite RPCs in flight: {}\nDIO RPCs in flight: {}\n\
             pending write pages:  {}\npending read pages:   {}\n",
            self.in_flight(Direction::Read),
            self.in_flight(Direction::Write),
            pending.dio_rpcs,
            pending.write_pages,
            pending.read_pages
        );
        let power = |row: usize| 1u64 << row;
        let linear = |row: usize| row as u64;
        let from_zero = |row: usize| if row == 0 { 0 } else { 1u64 << (row - 1) };
        table(&mut out, "pages per rpc", "rpcs", &self.histograms.rows(PAGES), 0, power);
        table(&mut out, "rpcs in flight", "rpcs", &self.histograms.rows(IN_FLIGHT), 1, linear);
        table(&mut out, "offset", "rpcs", &self.histograms.rows(OFFSET), 0, from_zero);
        table(&mut out, "RPC latency (us)       ", "count", &self.histograms.rows(LATENCY), 0, from_zero);
        out
    }
}

/// Writes one table of `rpc_stats`: rows from `first` to the last with a count.
fn table(out: &mut String, title: &str, unit: &str, rows: &Rows, first: usize, label: impl Fn(usize) -> u64) {
    let [read, write] = rows;
    let totals = [read.iter().sum::<u64>(), write.iter().sum::<u64>()];
    let mut cumulative = [0, 0];
    let _ = writeln!(out, "\n\t\t\tread\t\t\twrite");
    let _ = writeln!(out, "{title:<22}{unit}   % cum % |       {unit}   % cum %");
    for row in first..ROWS {
        let counts = [read[row], write[row]];
        cumulative[0] += counts[0];
        cumulative[1] += counts[1];
        let part =
            |side: usize| (percent(counts[side], totals[side]), percent(cumulative[side], totals[side]));
        let ((r, r_sum), (w, w_sum)) = (part(0), part(1));
        let _ = writeln!(
            out,
            "{}:\t\t{:>10} {r:>3} {r_sum:>3}   | {:>10} {w:>3} {w_sum:>3}",
            label(row),
            counts[0],
            counts[1]
        );
        if cumulative == totals {
            break;
        }
    }
}

impl CountedRpc<'_> {
    /// Counts the request as sent. Only the first call counts: a resend is not a new request.
    pub(crate) fn sent(&self) {
        if self.sent.set(Instant::now()).is_err() {
            return;
        }
        let (stats, direction) = (self.stats, self.direction);
        let number = stats.in_flight[direction as usize].fetch_add(1, Ordering::Relaxed) + 1;
        let page = crate::tunables::PAGE_BYTES;
        let pages = (self.offset % page + self.bytes).div_ceil(page);
        stats.histograms.count(PAGES, direction, power_row(pages));
        stats.histograms.count(IN_FLIGHT, direction, usize::try_from(number).unwrap_or(ROWS));
        stats.histograms.count(OFFSET, direction, bit_row(self.offset / page % OFFSET_PAGES));
    }
}

impl Drop for CountedRpc<'_> {
    fn drop(&mut self) {
        let Some(sent) = self.sent.get() else { return };
        let (stats, side) = (self.stats, self.direction as usize);
        let us = u64::try_from(sent.elapsed().as_micros()).unwrap_or(u64::MAX);
        stats.in_flight[side].fetch_sub(1, Ordering::Relaxed);
        stats.histograms.count(LATENCY, self.direction, bit_row(us));
        stats.bytes[side].fetch_add(self.bytes, Ordering::Relaxed);
        stats.time_us[side].fetch_add(us, Ordering::Relaxed);
        stats.finished[side].fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
