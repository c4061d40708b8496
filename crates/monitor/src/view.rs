//! What people look at: the state of a file system in words and rates, for the pages of `nacre web` and for
//! `nacre top`.

mod advice;
mod owners;

pub use owners::OwnerView;

use crate::families;
use crate::jobs::JobTotals;
use crate::sample::{ProcessSample, Row, Snapshot, TIME_BOUNDS_S, Times, Value};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// Jobs that are shown.
const JOBS_MAX: usize = 20;
/// Slow operations that are shown.
const SLOW_MAX: usize = 8;
/// Time from which on an operation counts as slow, in seconds.
const SLOW_S: f64 = 0.1;

/// State of a file system.
#[derive(Clone, Debug, Default, Serialize)]
pub struct View {
    /// Name of the file system.
    pub fsname: String,
    /// Milliseconds since 1970.
    pub at_ms: u64,
    /// Sums over all targets.
    pub total: Total,
    /// Processes.
    pub processes: Vec<ProcessView>,
    /// Targets: MDTs, then OSTs.
    pub targets: Vec<TargetView>,
    /// OST pools.
    pub pools: Vec<PoolView>,
    /// Mounts of these processes.
    pub mounts: Vec<MountView>,
    /// Jobs, the busiest first.
    pub jobs: Vec<JobView>,
    /// Users, groups and projects with most space and inodes, and those beyond a soft limit.
    pub owners: Vec<OwnerView>,
    /// Operations of which one in a hundred is slow, the slowest first.
    pub slow: Vec<Slow>,
    /// Background work, as sentences.
    pub moving: Vec<String>,
    /// What needs an administrator.
    pub alerts: Vec<Alert>,
}

/// Sums over all targets, per second where not said otherwise.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Total {
    /// Bytes read from OSTs.
    pub read: f64,
    /// Bytes written to OSTs.
    pub write: f64,
    /// Metadata operations.
    pub metadata: f64,
    /// Time below which 99 of 100 requests at OSTs stayed, in seconds.
    pub ost_p99_s: Option<f64>,
    /// The same at MDTs.
    pub mdt_p99_s: Option<f64>,
    /// Size of the OSTs, in bytes.
    pub size: f64,
    /// Used space of the OSTs, in bytes.
    pub used: f64,
    /// Available space of the OSTs, in bytes.
    pub available: f64,
}

/// A process.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ProcessView {
    /// `node`, `mgs`, `ost0000`.
    pub name: String,
    /// It answers.
    pub up: bool,
    /// Seconds since its start.
    pub uptime_s: f64,
    /// Resident memory in bytes.
    pub memory: f64,
    /// CPUs in use.
    pub cpu: Option<f64>,
    /// Threads.
    pub threads: f64,
}

/// A target.
#[derive(Clone, Debug, Default, Serialize)]
pub struct TargetView {
    /// `OST0000`.
    pub name: String,
    /// Process that serves it.
    pub process: String,
    /// `up`, `down`, `unhealthy` or `recovering`.
    pub state: &'static str,
    /// Size in bytes.
    pub size: f64,
    /// Used space in bytes; with what is reserved, used and available do not add up to the size.
    pub used: f64,
    /// Available space in bytes.
    pub available: f64,
    /// Inodes or objects, used and free.
    pub inodes: f64,
    /// Free ones.
    pub inodes_free: f64,
    /// Bytes read per second.
    pub read: f64,
    /// Bytes written per second.
    pub write: f64,
    /// Requests per second.
    pub requests: f64,
    /// Mean time of a request, in seconds.
    pub mean_s: Option<f64>,
    /// Requests in progress.
    pub busy: f64,
    /// Connected clients.
    pub clients: f64,
    /// Share of the cache of small writes that is in use, if it has one.
    pub cache: Option<f64>,
}

/// A pool.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PoolView {
    /// Name.
    pub name: String,
    /// Number of OSTs.
    pub osts: usize,
    /// Size in bytes.
    pub size: f64,
    /// Used space in bytes; with what is reserved, used and available do not add up to the size.
    pub used: f64,
    /// Available space in bytes.
    pub available: f64,
}

/// A mount.
#[derive(Clone, Debug, Default, Serialize)]
pub struct MountView {
    /// Directory.
    pub mount: String,
    /// Bytes read per second.
    pub read: f64,
    /// Bytes written per second.
    pub write: f64,
    /// Requests of programs per second.
    pub requests: f64,
    /// Mean time of a request, in seconds.
    pub mean_s: Option<f64>,
    /// Data that was not sent yet, in bytes.
    pub dirty: f64,
}

/// A job; all per second.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct JobView {
    /// Name.
    pub job: String,
    /// Requests.
    pub requests: f64,
    /// Bytes read.
    pub read: f64,
    /// Bytes written.
    pub write: f64,
}

/// A slow operation.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Slow {
    /// Target.
    pub target: String,
    /// Name of the request.
    pub operation: String,
    /// Time below which 99 of 100 stayed, in seconds.
    pub p99_s: f64,
    /// Requests per second.
    pub rate: f64,
}

/// Something that needs an administrator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Alert {
    /// `critical` or `warning`.
    pub severity: &'static str,
    /// What is wrong.
    pub text: String,
    /// What to do.
    pub action: String,
}

impl View {
    /// Compares two snapshots; `before` may be missing or older than the start of processes.
    pub fn of(before: Option<&Snapshot>, now: &Snapshot) -> View {
        let elapsed = before.map_or(0, |before| now.at_ms.saturating_sub(before.at_ms));
        let rates = Rates { before, now, seconds: Duration::from_millis(elapsed).as_secs_f64() };
        let mut view = View { fsname: now.fsname.clone(), at_ms: now.at_ms, ..View::default() };
        view.processes = rates.processes();
        view.targets = rates.targets();
        view.mounts = rates.mounts();
        view.jobs = rates.jobs();
        view.owners = owners::owners(now);
        view.slow = rates.slow();
        view.pools = pools(now, &view.targets);
        view.total = rates.total(&view.targets);
        view.moving = advice::moving(now, &rates);
        view.alerts = advice::alerts(now, &rates, &view.owners);
        view
    }
}

/// Two snapshots with the time between them.
pub(crate) struct Rates<'a> {
    before: Option<&'a Snapshot>,
    now: &'a Snapshot,
    /// 0 without a snapshot before.
    seconds: f64,
}

impl<'a> Rates<'a> {
    fn process_before(&self, name: &str) -> Option<&'a ProcessSample> {
        self.before?.processes.iter().find(|process| process.name == name)
    }

    /// Returns the growth of a counter. A counter that has shrunk is that of a new run.
    pub(crate) fn growth(&self, process: &ProcessSample, name: &str, labels: &[&str]) -> f64 {
        let now = process.sample.number(name, labels).unwrap_or(0.0);
        let Some(before) = self.process_before(&process.name) else { return 0.0 };
        let before = before.sample.number(name, labels).unwrap_or(0.0);
        if before > now { now } else { now - before }
    }

    fn rate(&self, process: &ProcessSample, name: &str, labels: &[&str]) -> f64 {
        self.per_second(self.growth(process, name, labels))
    }

    fn per_second(&self, growth: f64) -> f64 {
        if self.seconds > 0.0 { growth / self.seconds } else { 0.0 }
    }

    /// Passes the labels of each row of a family of histograms, with what was added to it.
    fn times(&self, process: &ProcessSample, name: &str, mut work: impl FnMut(&str, &str, Times)) {
        let Some(family) = families::find(name) else { return };
        let before = self.process_before(&process.name);
        for Row(labels, value) in process.sample.rows(family) {
            let (Value::Times(now), [subject, operation]) = (value, labels.as_slice()) else { continue };
            let of_before = before
                .and_then(|before| before.sample.rows(family).find(|row| row.0 == *labels).map(|row| &row.1));
            let added = match (before, of_before) {
                (None, _) => continue,
                (Some(_), Some(Value::Times(before))) => less(now, before),
                (Some(_), _) => now.clone(),
            };
            work(subject, operation, added);
        }
    }

    fn processes(&self) -> Vec<ProcessView> {
        let number = |process: &ProcessSample, name| process.sample.number(name, &[]).unwrap_or(0.0);
        let there = self.now.processes.iter().map(|process| ProcessView {
            name: process.name.clone(),
            up: true,
            uptime_s: number(process, "nacre_process_uptime_seconds"),
            memory: number(process, "nacre_process_resident_memory_bytes"),
            cpu: (self.seconds > 0.0).then(|| self.rate(process, "nacre_process_cpu_seconds", &[])),
            threads: number(process, "nacre_process_threads"),
        });
        let missing = self.now.missing.iter();
        let missing = missing.map(|(name, _)| ProcessView { name: name.clone(), ..ProcessView::default() });
        there.chain(missing).collect()
    }

    fn targets(&self) -> Vec<TargetView> {
        let mut targets: Vec<TargetView> = Vec::new();
        for process in &self.now.processes {
            let mut requests: BTreeMap<String, Times> = BTreeMap::new();
            self.times(process, "nacre_request_duration_seconds", |target, _, added| {
                add(requests.entry(target.to_owned()).or_default(), &added);
            });
            for target in process.targets.iter().filter(|target| *target != "MGT") {
                targets.push(self.target(process, target, requests.get(target)));
            }
        }
        for (process, of) in &self.now.missing {
            targets.extend(of.iter().filter(|target| *target != "MGT").map(|target| TargetView {
                name: target.clone(),
                process: process.clone(),
                state: "down",
                ..TargetView::default()
            }));
        }
        targets.sort_by(|a, b| a.name.cmp(&b.name));
        targets
    }

    fn target(&self, process: &ProcessSample, target: &str, requests: Option<&Times>) -> TargetView {
        let number = |name: &str| process.sample.number(name, &[target]);
        let is = |name: &str, value: f64| number(name) == Some(value);
        let data = |direction: &str| self.rate(process, "nacre_ost_transferred_bytes", &[target, direction]);
        let cache = number("nacre_write_cache_size_bytes").filter(|size| *size > 0.0);
        TargetView {
            name: target.to_owned(),
            process: process.name.clone(),
            state: match () {
                () if is("nacre_target_healthy", 0.0) => "unhealthy",
                () if is("nacre_target_recovering", 1.0) => "recovering",
                () => "up",
            },
            size: number("nacre_target_size_bytes").unwrap_or(0.0),
            used: (number("nacre_target_size_bytes").unwrap_or(0.0)
                - number("nacre_target_free_bytes").unwrap_or(0.0))
            .max(0.0),
            available: number("nacre_target_available_bytes").unwrap_or(0.0),
            inodes: number("nacre_target_inodes").unwrap_or(0.0),
            inodes_free: number("nacre_target_inodes_free").unwrap_or(0.0),
            read: data("read"),
            write: data("write"),
            requests: self.per_second(requests.map_or(0.0, |times| times.count() as f64)),
            mean_s: requests.and_then(mean),
            busy: number("nacre_target_requests_in_progress").unwrap_or(0.0),
            clients: number("nacre_target_clients").unwrap_or(0.0),
            cache: cache.map(|size| number("nacre_write_cache_used_bytes").unwrap_or(0.0) / size),
        }
    }

    fn mounts(&self) -> Vec<MountView> {
        let mut mounts: BTreeMap<String, MountView> = BTreeMap::new();
        for process in &self.now.processes {
            let mut all: BTreeMap<String, Times> = BTreeMap::new();
            self.times(process, "nacre_mount_operation_duration_seconds", |mount, _, added| {
                add(all.entry(mount.to_owned()).or_default(), &added);
            });
            let Some(family) = families::find("nacre_mount_dirty_bytes") else { continue };
            for mount in process.sample.rows(family).filter_map(|row| row.0.first()) {
                let data = |way: &str| self.rate(process, "nacre_mount_transferred_bytes", &[mount, way]);
                let times = all.get(&**mount);
                let view = MountView {
                    mount: mount.to_string(),
                    read: data("read"),
                    write: data("write"),
                    requests: self.per_second(times.map_or(0.0, |times| times.count() as f64)),
                    mean_s: times.and_then(mean),
                    dirty: process.sample.number(family.name, &[mount]).unwrap_or(0.0),
                };
                mounts.insert(mount.to_string(), view);
            }
        }
        mounts.into_values().collect()
    }

    fn jobs(&self) -> Vec<JobView> {
        let none = JobTotals::default();
        let of = |job: &JobTotals| {
            let known = self.before.map(|before| before.jobs.iter().find(|known| known.job == job.job));
            // Without a snapshot before there is no rate; a job that was not there began in between.
            let before = known.map_or(job, |known| known.unwrap_or(&none));
            let rate = |count: fn(&JobTotals) -> u64| {
                let (now, before) = (count(job), count(before));
                self.per_second(if before > now { now } else { now - before } as f64)
            };
            JobView {
                job: job.job.clone(),
                requests: rate(|job| job.metadata + job.reads + job.writes + job.objects),
                read: rate(|job| job.read_bytes),
                write: rate(|job| job.write_bytes),
            }
        };
        let mut jobs: Vec<JobView> = self.now.jobs.iter().map(of).collect();
        jobs.retain(|job| job.requests > 0.0);
        let weight = |job: &JobView| job.requests + (job.read + job.write) / 65536.0;
        jobs.sort_by(|a, b| weight(b).total_cmp(&weight(a)));
        jobs.truncate(JOBS_MAX);
        jobs
    }

    fn slow(&self) -> Vec<Slow> {
        let mut slow = Vec::new();
        for process in &self.now.processes {
            self.times(process, "nacre_request_duration_seconds", |target, operation, added| {
                // Enqueues wait for other clients, not for the target.
                let Some(p99_s) = quantile(&added, 0.99).filter(|p99_s| *p99_s >= SLOW_S) else { return };
                if !operation.ends_with("enqueue") {
                    let rate = self.per_second(added.count() as f64);
                    slow.push(Slow {
                        target: target.to_owned(),
                        operation: operation.to_owned(),
                        p99_s,
                        rate,
                    });
                }
            });
        }
        slow.sort_by(|a, b| b.p99_s.total_cmp(&a.p99_s));
        slow.truncate(SLOW_MAX);
        slow
    }

    fn total(&self, targets: &[TargetView]) -> Total {
        let (mut osts, mut mdts) = (Times::default(), Times::default());
        let mut metadata = 0.0;
        for process in &self.now.processes {
            self.times(process, "nacre_request_duration_seconds", |target, operation, added| {
                match target.starts_with("MDT") {
                    true if !operation.ends_with("enqueue") => add(&mut mdts, &added),
                    false if matches!(operation, "ost_read" | "ost_write") => add(&mut osts, &added),
                    _ => {}
                }
            });
            let Some(family) = families::find("nacre_mdt_operations") else { continue };
            for Row(labels, _) in process.sample.rows(family) {
                let labels: Vec<&str> = labels.iter().map(AsRef::as_ref).collect();
                metadata += self.rate(process, family.name, &labels);
            }
        }
        let all = || targets.iter().filter(|target| target.name.starts_with("OST"));
        Total {
            read: all().map(|ost| ost.read).sum(),
            write: all().map(|ost| ost.write).sum(),
            metadata,
            ost_p99_s: quantile(&osts, 0.99),
            mdt_p99_s: quantile(&mdts, 0.99),
            size: all().map(|ost| ost.size).sum(),
            used: all().map(|ost| ost.used).sum(),
            available: all().map(|ost| ost.available).sum(),
        }
    }
}

fn pools(now: &Snapshot, targets: &[TargetView]) -> Vec<PoolView> {
    let mut pools: BTreeMap<String, PoolView> = BTreeMap::new();
    let Some(family) = families::find("nacre_pool_member") else { return Vec::new() };
    for Row(labels, _) in now.processes.iter().flat_map(|process| process.sample.rows(family)) {
        let [pool, ost] = labels.as_slice() else { continue };
        let view = pools.entry(pool.to_string()).or_default();
        view.name = pool.to_string();
        view.osts += 1;
        if let Some(target) = targets.iter().find(|target| target.name == *ost) {
            view.size += target.size;
            view.used += target.used;
            view.available += target.available;
        }
    }
    pools.into_values().collect()
}

fn mean(times: &Times) -> Option<f64> {
    let count = times.count();
    (count > 0).then(|| times.sum_s / count as f64)
}

fn add(sum: &mut Times, more: &Times) {
    if sum.counts.len() < more.counts.len() {
        sum.counts.resize(more.counts.len(), 0);
    }
    sum.counts.iter_mut().zip(&more.counts).for_each(|(sum, count)| *sum = sum.saturating_add(*count));
    sum.sum_s += more.sum_s;
}

/// Returns what was added; all of it, if the process has restarted.
fn less(now: &Times, before: &Times) -> Times {
    if now.count() < before.count() {
        return now.clone();
    }
    let counts = now
        .counts
        .iter()
        .enumerate()
        .map(|(row, count)| count.saturating_sub(before.counts.get(row).copied().unwrap_or(0)));
    Times { counts: counts.collect(), sum_s: (now.sum_s - before.sum_s).max(0.0) }
}

/// Returns a bound below which this share of the times are: interpolated within a row, as Prometheus does.
fn quantile(times: &Times, share: f64) -> Option<f64> {
    let count = times.count();
    if count == 0 {
        return None;
    }
    let rank = share * count as f64;
    let mut seen = 0.0;
    for (row, in_row) in times.counts.iter().enumerate() {
        let in_row = *in_row as f64;
        if seen + in_row >= rank && in_row > 0.0 {
            let low = if row == 0 { 0.0 } else { TIME_BOUNDS_S[(row - 1).min(TIME_BOUNDS_S.len() - 1)] };
            let high = TIME_BOUNDS_S.get(row).copied().unwrap_or(low);
            return Some(low + (high - low) * (rank - seen) / in_row);
        }
        seen += in_row;
    }
    TIME_BOUNDS_S.last().copied()
}

#[cfg(test)]
mod tests;
