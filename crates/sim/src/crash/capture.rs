//! Power cuts of all hosts at once: what the disks hold at each persistence point of a run, and what a cut
//! there can leave.
//!
//! A persistence point is the beginning or end of a flush of a log or device, or a request to sync an object.
//! Nothing becomes durable between two of them, so the cuts right before each one leave everything that a cut
//! at another time can leave, except the order in which unsynced writes were made.

use crate::disk::{Disk, Objects};
use crate::watch::Watcher;
use fastrand::Rng;
use nacre_env::sim::{self, ProcessNumber};
use nacre_env::sync::Mutex;
use nacre_store::meta::witness::{Medium, Way, Witness};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// Longest pause, for processes whose disks are being copied.
const LONG: Duration = Duration::from_secs(10_000);

/// A time within a workload.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Moment {
    /// Operations that have begun, and that have ended.
    pub(crate) began: usize,
    pub(crate) ended: usize,
    /// All logs were synced since the last one ended, as they are each second.
    pub(crate) is_idle: bool,
}

/// What a cut leaves of the writes that no flush has covered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kept {
    Nothing,
    Everything,
    /// Any version of each sector, by this seed.
    Mixture(u64),
}

impl Kept {
    fn choose(self) -> impl FnMut(usize) -> usize {
        let mut random = Rng::with_seed(if let Kept::Mixture(seed) = self { seed } else { 0 });
        move |count| match self {
            Kept::Nothing => 0,
            Kept::Everything => count - 1,
            Kept::Mixture(_) => random.usize(..count),
        }
    }
}

/// A medium of a disk at a moment: the log, or the objects.
#[derive(Clone, Copy, Debug)]
struct Part {
    /// Numbers of the flushes and of the writes so far, for comparison.
    counts: (u64, u64),
    /// A cut can leave more than one state.
    is_pending: bool,
}

/// All disks at a persistence point.
pub(crate) struct Capture {
    pub(crate) moment: Moment,
    disks: Vec<Disk>,
    /// Log and objects of each disk.
    parts: Vec<[Part; 2]>,
    /// Hash of the other files of all disks.
    files: u64,
}

/// What a cut leaves of each medium.
pub(crate) struct Outcome(Vec<[Kept; 2]>);

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for [log, objects] in &self.0 {
            write!(f, " log {log:?}, objects {objects:?};")?;
        }
        Ok(())
    }
}

impl Capture {
    /// Returns the outcomes of a cut: of each medium nothing or everything, and so many mixtures. Each with a
    /// number that is equal for outcomes of one run that leave the same.
    pub(crate) fn outcomes(&self, mixtures: u64) -> Vec<(u64, Outcome)> {
        let pending: Vec<(usize, usize)> = (0..self.parts.len())
            .flat_map(|disk| [(disk, 0), (disk, 1)])
            .filter(|(disk, part)| self.parts[*disk][*part].is_pending)
            .collect();
        let mut outcomes = Vec::new();
        for choice in 0..1_u32 << pending.len() {
            let mut kept = vec![[Kept::Nothing; 2]; self.parts.len()];
            for (bit, (disk, part)) in pending.iter().enumerate() {
                kept[*disk][*part] = if choice >> bit & 1 == 1 { Kept::Everything } else { Kept::Nothing };
            }
            outcomes.push(Outcome(kept));
        }
        for seed in 0..if pending.is_empty() { 0 } else { mixtures } {
            outcomes.push(Outcome(vec![[Kept::Mixture(seed), Kept::Mixture(seed + 1000)]; self.parts.len()]));
        }
        outcomes.into_iter().map(|outcome| (self.key(&outcome), outcome)).collect()
    }

    fn key(&self, outcome: &Outcome) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.files.hash(&mut hasher);
        for (parts, kept) in self.parts.iter().zip(&outcome.0) {
            for (part, kept) in parts.iter().zip(kept) {
                match kept {
                    _ if !part.is_pending => (0, part.counts.1).hash(&mut hasher),
                    Kept::Everything => (0, part.counts.1).hash(&mut hasher),
                    Kept::Nothing => (1, part.counts.0).hash(&mut hasher),
                    Kept::Mixture(seed) => (2, part.counts, seed).hash(&mut hasher),
                }
            }
        }
        hasher.finish()
    }

    /// Returns the disks after a cut with this outcome, in directories below `dir`.
    ///
    /// # Errors
    /// Those of the file system.
    pub(crate) fn cut(&self, outcome: &Outcome, dir: &Path) -> io::Result<Vec<Disk>> {
        let cut = |((number, disk), kept): ((usize, &Disk), &[Kept; 2])| {
            let dir = dir.join(number.to_string());
            disk.after_cut(dir, &mut kept[0].choose(), &mut kept[1].choose())
        };
        self.disks.iter().enumerate().zip(&outcome.0).map(cut).collect()
    }

    /// Removes its files.
    pub(crate) fn remove(&self) {
        // What is left goes with the scratch directory.
        self.disks.iter().for_each(|disk| drop(std::fs::remove_dir_all(&disk.dir)));
    }
}

/// Numbers of flushes and writes of the objects of a disk, and of writes of its log.
#[derive(Default)]
struct Counts {
    log_writes: AtomicUsize,
    flushes: AtomicU64,
    writes: AtomicU64,
}

/// What a recorder knows of the run.
#[derive(Default)]
struct State {
    moment: Moment,
    is_on: bool,
    captures: Vec<Capture>,
}

/// Captures all disks at each persistence point of a run.
pub(crate) struct Recorder {
    observer: ProcessNumber,
    scratch: PathBuf,
    disks: OnceLock<Vec<Disk>>,
    processes: OnceLock<Vec<ProcessNumber>>,
    counts: Vec<Counts>,
    state: Mutex<State>,
}

impl Recorder {
    /// Creates a recorder of so many disks, which keeps its copies below `scratch`.
    pub(crate) fn new(disks: usize, observer: ProcessNumber, scratch: PathBuf) -> Arc<Recorder> {
        Arc::new(Recorder {
            observer,
            scratch,
            disks: OnceLock::new(),
            processes: OnceLock::new(),
            counts: (0..disks).map(|_| Counts::default()).collect(),
            state: Mutex::default(),
        })
    }

    /// Returns the witness of the log of a disk.
    pub(crate) fn witness(self: &Arc<Recorder>, disk: usize) -> Arc<Witness> {
        let recorder = Arc::downgrade(self);
        Witness::new(move |medium| {
            if let Some(recorder) = Weak::upgrade(&recorder) {
                recorder.look(disk, medium);
            }
        })
    }

    /// Begins to capture. `processes`: all that may change a disk.
    pub(crate) fn begin(&self, disks: Vec<Disk>, processes: Vec<ProcessNumber>) {
        // Cannot fail: a recorder begins once.
        let _ = (self.disks.set(disks), self.processes.set(processes));
        self.state.lock().is_on = true;
    }

    /// Sets the time within the workload.
    pub(crate) fn at(&self, moment: Moment) {
        self.state.lock().moment = moment;
    }

    /// Stops capturing, and returns what was captured.
    pub(crate) fn end(&self) -> Vec<Capture> {
        let mut state = self.state.lock();
        state.is_on = false;
        std::mem::take(&mut state.captures)
    }

    /// Returns what watches the objects of a disk.
    pub(crate) fn watcher(self: &Arc<Recorder>, disk: usize) -> Arc<dyn Watcher> {
        Arc::new(WatchedObjects { recorder: self.clone(), disk })
    }

    /// Looks at a log, which was written to, or begins or ends a flush.
    fn look(&self, disk: usize, medium: &Medium) {
        let writes = writes_of(medium);
        // The caller holds the lock of the medium: before the other threads wait, no lock may be taken.
        if self.counts[disk].log_writes.swap(writes, Ordering::Relaxed) == writes {
            self.capture(Some((disk, medium)));
        }
    }

    /// Captures all disks. `looked_at`: the log that the caller has locked.
    pub(crate) fn capture(&self, looked_at: Option<(usize, &Medium)>) {
        let (Some(disks), Some(processes)) = (self.disks.get(), self.processes.get()) else { return };
        // Locks pass the baton to other threads; those that could change a disk wait meanwhile.
        sim::act_as(self.observer, || {
            processes.iter().for_each(|process| sim::pause_process(*process, LONG));
            if self.state.lock().is_on {
                let captured = self.copy(disks, looked_at).expect("the disks can be copied");
                self.state.lock().captures.push(captured);
            }
            processes.iter().for_each(|process| sim::pause_process(*process, Duration::ZERO));
        });
    }

    fn copy(&self, disks: &[Disk], looked_at: Option<(usize, &Medium)>) -> io::Result<Capture> {
        let state = self.state.lock();
        let (moment, count) = (state.moment, state.captures.len());
        drop(state);
        let name = format!("{}-{}-{}-{count}", moment.began, moment.ended, moment.is_idle);
        let (mut copies, mut parts, mut hasher) = (Vec::new(), Vec::new(), DefaultHasher::new());
        for (number, disk) in disks.iter().enumerate() {
            let known = looked_at.filter(|(own, _)| *own == number);
            let medium = known.map_or_else(|| disk.log.medium(), |(_, medium)| medium.clone());
            let copy =
                disk.copy_with(self.scratch.join(&name).join(number.to_string()), medium, &mut hasher)?;
            let counts = &self.counts[number];
            let of_objects = Part {
                counts: (counts.flushes.load(Ordering::Relaxed), counts.writes.load(Ordering::Relaxed)),
                is_pending: copy.objects.is_pending(),
            };
            let medium = copy.log.medium();
            let is_pending =
                is_pending(|choose| medium.images.iter().for_each(|image| drop(image.after_cut(choose))));
            let flushed = flushed_of(&medium);
            parts.push([Part { counts: (flushed, writes_of(&medium) as u64), is_pending }, of_objects]);
            copies.push(copy);
        }
        Ok(Capture { moment, disks: copies, parts, files: hasher.finish() })
    }
}

/// The objects of a disk: each flush is a persistence point.
struct WatchedObjects {
    recorder: Arc<Recorder>,
    disk: usize,
}

impl Watcher for WatchedObjects {
    fn note_write(&self) {
        self.recorder.counts[self.disk].writes.fetch_add(1, Ordering::Relaxed);
    }

    fn note_flush(&self) {
        self.recorder.capture(None);
        self.recorder.counts[self.disk].flushes.fetch_add(1, Ordering::Relaxed);
    }
}

fn writes_of(medium: &Medium) -> usize {
    [Way::Mapping, Way::Call, Way::Direct].into_iter().map(|way| medium.count(way)).sum()
}

/// Returns a number that is equal for equal flushed states.
fn flushed_of(medium: &Medium) -> u64 {
    let mut hasher = DefaultHasher::new();
    for image in &medium.images {
        image.after_cut(&mut |_| 0).hash(&mut hasher);
    }
    hasher.finish()
}

/// Returns true if `cut` has a choice.
pub(crate) fn is_pending(cut: impl FnOnce(&mut dyn FnMut(usize) -> usize)) -> bool {
    let mut has_choice = false;
    cut(&mut |count| {
        has_choice |= count > 1;
        0
    });
    has_choice
}

impl Objects {
    fn is_pending(&self) -> bool {
        is_pending(|choose| drop(self.after_power_cut(choose)))
    }
}
