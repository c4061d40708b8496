//! Trim: reports of free space to media, on order and by policy.
//!
//! A flash device without trim copies free space in its garbage collection, and a sparse file keeps it
//! allocated. [`Trimmer`] is a thread that trims when the store is nearly idle and much space was freed;
//! [`Policy`] decides, and knows neither clocks nor stores. [`trim_for`] trims at once.

mod policy;
mod settings;
#[cfg(test)]
mod tests;

pub use policy::{Load, Policy, Sight, Step, TrimState};
pub use settings::TrimSettings;

use super::{ObjectError, ObjectStore, Result, Trim};
use nacre_env::clock::Instant;
use nacre_env::sync::{Condvar, Mutex};
use nacre_env::thread::JoinHandle;
use std::fmt::Write;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Bytes of one call when a caller waits for a complete trim.
const BY_HAND_BYTES: u64 = 64 << 20;

/// Result of a trim.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Trimmed {
    /// Bytes trimmed.
    pub bytes: u64,
    /// Extents trimmed; `None` if a file system trimmed its device itself and does not report their number.
    pub extents: Option<u64>,
    /// Place at which to continue; `None` if nothing is left after the place at which the call began.
    pub next: Option<u64>,
}

impl Trimmed {
    fn add(&mut self, more: Trimmed) {
        self.bytes += more.bytes;
        self.extents = match (self.extents, more.extents) {
            (Some(extents), Some(more)) => Some(extents + more),
            _ => None,
        };
        self.next = more.next;
    }
}

/// Trims for about as long as `limit`, from a place on. At the beginning everything is made durable, so that
/// space freed before the call counts as free.
///
/// # Errors
/// As [`Trim::trim`](super::Trim::trim).
pub fn trim_for(store: &dyn ObjectStore, from: u64, limit: Duration) -> Result<Trimmed> {
    let begun = Instant::now();
    if from == 0 {
        store.sync_all()?;
    }
    let Some(medium) = store.abilities().trim else { return Ok(Trimmed::default()) };
    let mut trimmed = medium.trim(from, BY_HAND_BYTES)?;
    while let Some(next) = trimmed.next
        && begun.elapsed() < limit
    {
        trimmed.add(medium.trim(next, BY_HAND_BYTES)?);
    }
    Ok(trimmed)
}

#[derive(Default)]
struct Counters {
    bytes: AtomicU64,
    busy_bytes: AtomicU64,
    by_hand_bytes: AtomicU64,
    extents: AtomicU64,
    micros: AtomicU64,
    failures: AtomicU64,
}

struct TrimControl {
    settings: TrimSettings,
    /// Counts changes of the settings: after one, a medium that refused is tried again.
    version: u64,
    is_stopping: bool,
}

struct Shared {
    name: String,
    store: Arc<dyn ObjectStore>,
    load: Box<dyn Fn() -> Load + Send + Sync>,
    requests: Mutex<TrimControl>,
    changed: Condvar,
    policy: Mutex<Policy>,
    counters: Counters,
}

/// A thread that trims one store. Dropping it stops it.
pub struct Trimmer {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Trimmer {
    /// Starts to trim `store`, called `name` in the log, with the settings adapted to it. `load` returns the
    /// other work of the store.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start(
        name: String,
        store: Arc<dyn ObjectStore>,
        load: Box<dyn Fn() -> Load + Send + Sync>,
    ) -> io::Result<Trimmer> {
        let usual = TrimSettings::default();
        let medium = store.abilities().trim;
        let settings = TrimSettings {
            is_on: medium.and_then(Trim::trim_caution).is_none(),
            busy_rate: if medium.is_some_and(Trim::trims_beside_work) { usual.busy_rate } else { 0 },
            ..usual
        };
        let requests = TrimControl { settings, version: 0, is_stopping: false };
        let shared = Arc::new(Shared {
            name,
            store,
            load,
            requests: Mutex::new(requests),
            changed: Condvar::new(),
            policy: Mutex::default(),
            counters: Counters::default(),
        });
        let body = shared.clone();
        let thread = nacre_env::thread::Builder::new().name("ost-trim".into()).spawn(move || body.run())?;
        Ok(Trimmer { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Returns the settings.
    pub fn settings(&self) -> TrimSettings {
        self.shared.requests.lock().settings
    }

    /// Changes the settings, from now on.
    pub fn set_settings(&self, settings: TrimSettings) {
        let mut requests = self.shared.requests.lock();
        requests.settings = settings;
        requests.version += 1;
        self.shared.changed.notify_all();
    }

    /// Trims as [`trim_for`], and counts it.
    ///
    /// # Errors
    /// As there.
    pub fn trim_for(&self, from: u64, limit: Duration) -> Result<Trimmed> {
        let begun = Instant::now();
        let trimmed = trim_for(&*self.shared.store, from, limit)?;
        self.shared.count(&trimmed, begun);
        self.shared.counters.by_hand_bytes.fetch_add(trimmed.bytes, Ordering::Relaxed);
        Ok(trimmed)
    }

    /// Returns state and counters as `name value` lines.
    pub fn text(&self) -> String {
        let (state, runs, pauses, refusal) = {
            let policy = self.shared.policy.lock();
            (policy.state(), policy.runs(), policy.pauses(), policy.refusal().map(str::to_owned))
        };
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.shared.counters;
        let medium = self.shared.store.abilities().trim;
        let mut out = String::new();
        // Writing to a String does not fail.
        let _ = writeln!(out, "{:<20}{state}", "state");
        for (name, count) in [
            ("untrimmed_bytes", medium.map_or(0, Trim::untrimmed)),
            ("trimmed_bytes", read(&counters.bytes)),
            ("trimmed_extents", read(&counters.extents)),
            ("trimmed_by_order", read(&counters.by_hand_bytes)),
            ("trimmed_under_load", read(&counters.busy_bytes)),
            ("trim_usec", read(&counters.micros)),
            ("runs", runs),
            ("pauses", pauses),
            ("failures", read(&counters.failures)),
        ] {
            let _ = writeln!(out, "{name:<20}{count}");
        }
        let note = refusal.or_else(|| medium.and_then(Trim::trim_caution).map(str::to_owned));
        if let Some(note) = note {
            let _ = writeln!(out, "{:<20}{note}", "note");
        }
        out
    }

    /// Sets the counters to 0.
    pub fn clear(&self) {
        let counters = &self.shared.counters;
        let all = [&counters.bytes, &counters.busy_bytes, &counters.by_hand_bytes, &counters.extents];
        for counter in all.into_iter().chain([&counters.micros, &counters.failures]) {
            counter.store(0, Ordering::Relaxed);
        }
        self.shared.policy.lock().clear();
    }

    /// Stops the thread, after the trim in progress.
    pub fn stop(&self) {
        self.shared.requests.lock().is_stopping = true;
        self.shared.changed.notify_all();
        let thread = self.thread.lock().take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            log::error!("{}: the thread that trims has panicked", self.shared.name);
        }
    }
}

impl Drop for Trimmer {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn run(&self) {
        let begun = Instant::now();
        let mut version = 0;
        let mut rest = Duration::ZERO;
        loop {
            let settings = {
                let mut requests = self.requests.lock();
                if !requests.is_stopping && requests.version == version && !rest.is_zero() {
                    self.changed.wait_for(&mut requests, rest);
                }
                if requests.is_stopping {
                    return;
                }
                if std::mem::replace(&mut version, requests.version) != requests.version {
                    self.policy.lock().forgive();
                }
                requests.settings
            };
            rest = self.turn(&settings, begun);
        }
    }

    /// Checks the state, trims a piece if the policy decides so, and returns the time to rest.
    fn turn(&self, settings: &TrimSettings, begun: Instant) -> Duration {
        let medium = self.store.abilities().trim;
        let sight = Sight {
            now: begun.elapsed(),
            untold: medium.map_or(0, Trim::untrimmed),
            total: self.store.space().map_or(0, |space| space.total),
            load: (self.load)(),
        };
        let step = self.policy.lock().look(settings, &sight);
        let (from, max_bytes) = match step {
            Step::Rest(rest) => return rest,
            Step::Tell { from, max_bytes } => (from, max_bytes),
        };
        let since = Instant::now();
        let result = medium.map_or(Ok(Trimmed::default()), |medium| medium.trim(from, max_bytes));
        let mut policy = self.policy.lock();
        match &result {
            Ok(trimmed) => {
                if policy.state() == TrimState::Busy {
                    self.counters.busy_bytes.fetch_add(trimmed.bytes, Ordering::Relaxed);
                }
                self.count(trimmed, since);
                policy.told(begun.elapsed(), trimmed);
            }
            Err(error) => {
                self.counters.failures.fetch_add(1, Ordering::Relaxed);
                match error {
                    ObjectError::Closed => {}
                    ObjectError::NoTrim { .. } => {
                        log::info!("{}: {error}; nothing is trimmed", self.name);
                    }
                    _ => log::error!("{}: {error}", self.name),
                }
                let is_final = matches!(error, ObjectError::NoTrim { .. } | ObjectError::Closed);
                policy.failed(begun.elapsed(), is_final.then(|| error.to_string()));
            }
        }
        Duration::ZERO
    }

    fn count(&self, trimmed: &Trimmed, since: Instant) {
        let counters = &self.counters;
        counters.bytes.fetch_add(trimmed.bytes, Ordering::Relaxed);
        counters.extents.fetch_add(trimmed.extents.unwrap_or(0), Ordering::Relaxed);
        counters.micros.fetch_add(since.elapsed().as_micros() as u64, Ordering::Relaxed);
    }
}
