//! What all workloads of a run share: when to stop, and how far each is.

use nacre_testkit::wait;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time after which a workload without progress hangs: longer than any fault, the recovery after it, and the slowest
/// step (a build).
const STALL: Duration = Duration::from_secs(90);

/// Time after which the output says what a workload waits for: longer than a fault.
const LONG: Duration = Duration::from_secs(10);

/// Progress of one workload.
#[derive(Debug)]
pub struct Progress {
    pub name: String,
    steps: AtomicU64,
    /// Time of the last step.
    last: Mutex<Instant>,
}

/// See the [module documentation](self).
#[derive(Default)]
pub struct Deck {
    is_over: AtomicBool,
    problems: Mutex<Vec<String>>,
    /// Power cuts of an OST that have begun. The boot id of the machine stays the same, so clients do not notice that
    /// data is lost which was written before and not synced.
    pub cuts: AtomicU64,
    /// Begins and ends of failures of a disk: odd while it fails.
    pub disk_changes: AtomicU64,
}

impl Progress {
    pub fn new(name: impl Into<String>) -> Progress {
        Progress { name: name.into(), steps: AtomicU64::new(0), last: Mutex::new(Instant::now()) }
    }

    pub fn step(&self) {
        self.steps.fetch_add(1, Ordering::Relaxed);
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Returns the time since the last step.
    fn idle(&self) -> Duration {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }

    pub fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }
}

impl Deck {
    pub fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Records a wrong answer, which ends the run.
    pub fn report(&self, problem: String) {
        self.problems.lock().unwrap_or_else(PoisonError::into_inner).push(problem);
        self.end();
    }

    pub fn problems(&self) -> Vec<String> {
        self.problems.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Repeats a read that fails with `EIO` while a disk fails, which lasts a few seconds.
    pub fn read(&self, read: impl Fn() -> io::Result<Vec<u8>>) -> io::Result<Vec<u8>> {
        for _ in 0..6 {
            let before = self.disk_changes.load(Ordering::SeqCst);
            match read() {
                Err(error)
                    if error.raw_os_error() == Some(libc::EIO)
                        && (!before.is_multiple_of(2)
                            || self.disk_changes.load(Ordering::SeqCst) != before) => {}
                result => return result,
            }
            wait::within(LONG, || self.disk_changes.load(Ordering::SeqCst).is_multiple_of(2).then_some(()));
        }
        read()
    }

    /// Runs the steps of a workload until the run is over. A step that fails is a problem.
    pub fn repeat(&self, progress: &Progress, mut step: impl FnMut(u64) -> Result<(), String>) {
        for number in 0.. {
            if self.is_over() {
                return;
            }
            if let Err(problem) = step(number) {
                self.report(format!("{}, step {number}: {problem}", progress.name));
                return;
            }
            progress.step();
        }
    }

    /// Waits until each of the `quick` workloads has finished a step. False if the run is over, or one of all hangs,
    /// which is a problem. `explain` is called once if that takes long.
    pub fn await_progress(&self, quick: &[&Progress], slow: &[&Progress], explain: impl Fn()) -> bool {
        let before: Vec<u64> = quick.iter().map(|progress| progress.steps()).collect();
        let mut is_explained = false;
        let goes_on = wait::within(STALL * 2, || {
            if !is_explained && quick.iter().any(|progress| progress.idle() > LONG) {
                is_explained = true;
                explain();
            }
            let all = quick.iter().chain(slow);
            let hangs: Vec<&str> = all
                .filter(|progress| progress.idle() > STALL)
                .map(|progress| progress.name.as_str())
                .collect();
            if !hangs.is_empty() {
                self.report(format!("no progress in {STALL:?}: {}", hangs.join(", ")));
            }
            if self.is_over() {
                return Some(false);
            }
            quick.iter().zip(&before).all(|(progress, before)| progress.steps() > *before).then_some(true)
        });
        goes_on.expect("a workload goes on or hangs")
    }
}
