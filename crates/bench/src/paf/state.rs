//! State of a run, stored in its output directory and replaced atomically after every cell.

use std::fs::{self, File, TryLockError};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::machine::Machine;
use crate::medium;
use nacre_common::frag::{FileFigures, FreeFigures};
use nacre_store::object::simulated::AnyMedium;

/// Name of the file.
const STATE: &str = "state.json";
const STATE_NEW: &str = "state.json.new";
/// Version of the file's content.
const VERSION: u32 = 1;
/// Lock file; the process that works in the directory holds the lock.
const LOCK: &str = "lock";
/// Files of the report in the same directory.
pub(super) const REPORTS: [&str; 5] = ["table.txt", "results.json", "write.svg", "read.svg", "report.html"];

/// Options of a run. A process that continues it must have the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Settings {
    /// Directory or store, an absolute path.
    pub(super) target: PathBuf,
    /// Levels in percent.
    pub(super) capacity: Vec<u8>,
    /// Degrees of fragmentation in percent.
    pub(super) fragment: Vec<u8>,
    /// Sizes of a transfer in bytes.
    pub(super) xfer: Vec<u64>,
    pub(super) iterations: u32,
    pub(super) seed: u64,
    /// Number of threads that populate.
    pub(super) writers: usize,
    /// Size in bytes that counts as the capacity; `None` for all free space.
    pub(super) size: Option<u64>,
    /// Size of the measured file in bytes, if given.
    pub(super) file_size: Option<u64>,
    /// The kernel's caches are not dropped.
    pub(super) keep_caches: bool,
    /// Medium that is simulated below the store, if any. State files written before this option existed lack
    /// it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) simulated_medium: Option<String>,
    /// Directory of the control file, an absolute path, if requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) control: Option<PathBuf>,
}

/// A measured state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Paf {
    /// Percent of the capacity that is populated.
    pub(super) capacity: u8,
    /// Percent of that that was removed and rewritten.
    pub(super) fragment: u8,
}

impl std::fmt::Display for Paf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PaF:{:02}.{:02}", self.capacity, self.fragment)
    }
}

impl Settings {
    /// Returns the medium that is simulated below the store.
    pub(super) fn medium(&self) -> Result<Option<AnyMedium>, Error> {
        self.simulated_medium.as_deref().map(medium::parse).transpose().map_err(Error::Usage)
    }

    /// Returns the states in the order of their creation: an empty one cannot be fragmented.
    pub(super) fn states(&self) -> Vec<Paf> {
        let of = |&capacity: &u8| {
            let fragment: &[u8] = if capacity == 0 { &[0] } else { &self.fragment };
            fragment.iter().map(move |&fragment| Paf { capacity, fragment }).collect::<Vec<_>>()
        };
        self.capacity.iter().flat_map(of).collect()
    }

    /// Returns the cells of one state in the order of measurement, as transfer size and iteration. Every size
    /// has its first iteration before any has its second: only the first after a change differs.
    pub(super) fn cells(&self) -> Vec<(u64, u32)> {
        (1..=self.iterations).flat_map(|round| self.xfer.iter().map(move |&xfer| (xfer, round))).collect()
    }
}

/// The result of one write and one read.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Cell {
    #[serde(flatten)]
    pub(super) paf: Paf,
    pub(super) xfer: u64,
    pub(super) iteration: u32,
    /// Bandwidth in bytes per second.
    pub(super) write: f64,
    pub(super) read: f64,
    /// Both bypassed the page cache.
    pub(super) direct: bool,
    /// Figures of the control right before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) control: Option<Rates>,
}

/// Bandwidth in bytes per second.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Rates {
    pub(super) write: f64,
    pub(super) read: f64,
}

/// Fragmentation of a state on the device, as far as the target reports it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Shape {
    #[serde(flatten)]
    pub(super) paf: Paf,
    pub(super) files: Option<FileFigures>,
    pub(super) free: Option<FreeFigures>,
}

/// The population of the target, complete and durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Level {
    pub(super) percent: u8,
    pub(super) rounds: u8,
}

/// The content of the state file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct State {
    pub(super) version: u32,
    /// Id of the run that owns the files in the target.
    pub(super) id: String,
    pub(super) settings: Settings,
    pub(super) machine: Machine,
    /// Description of the target for people; empty until it is known.
    pub(super) label: String,
    /// Capacity in bytes that percentages refer to; 0 until it is known.
    pub(super) capacity: u64,
    /// Size of the measured file in bytes.
    pub(super) file_bytes: u64,
    /// The kernel's caches were dropped before every read.
    pub(super) caches_emptied: bool,
    /// The time of a simulated disk was computed, not waited for.
    #[serde(default)]
    pub(super) is_computed: bool,
    /// Population of the target; `None` while it changes.
    pub(super) level: Option<Level>,
    /// Number of times that a process continued the run.
    pub(super) resumed: u32,
    pub(super) shapes: Vec<Shape>,
    pub(super) cells: Vec<Cell>,
    /// Everything is measured and the files are removed.
    pub(super) ended: bool,
}

impl State {
    fn new(settings: Settings) -> Result<State, Error> {
        let mut id = [0; 16];
        let path = Path::new("/dev/urandom");
        File::open(path).and_then(|mut file| file.read_exact(&mut id)).map_err(Error::io("read", path))?;
        Ok(State {
            version: VERSION,
            id: format!("{:032x}", u128::from_le_bytes(id)),
            settings,
            machine: Machine::look(),
            label: String::new(),
            capacity: 0,
            file_bytes: 0,
            caches_emptied: false,
            is_computed: false,
            level: None,
            resumed: 0,
            shapes: Vec::new(),
            cells: Vec::new(),
            ended: false,
        })
    }

    /// Returns whether a cell is measured.
    pub(super) fn has(&self, paf: Paf, xfer: u64, iteration: u32) -> bool {
        self.cells.iter().any(|cell| cell.paf == paf && cell.xfer == xfer && cell.iteration == iteration)
    }
}

/// An output directory, locked by this process.
pub(super) struct Output {
    pub(super) directory: PathBuf,
    is_new: bool,
    _lock: File,
}

impl Output {
    /// Opens the directory of a run with `settings`: a new one, or that of the same run. `again` is the
    /// command line that starts it.
    pub(super) fn open(directory: &Path, settings: &Settings) -> Result<(Output, State), Error> {
        let shown = directory.display().to_string();
        let state = match read(directory)? {
            Some(state) => state,
            None => {
                if let Ok(mut entries) = fs::read_dir(directory)
                    && entries
                        .any(|entry| entry.is_ok_and(|e| e.file_name() != LOCK && e.file_name() != STATE_NEW))
                {
                    let message = format!("{shown} is not empty, and no run's: name another --output");
                    return Err(Error::Usage(message));
                }
                State::new(settings.clone())?
            }
        };
        if state.settings != *settings {
            return Err(Error::Usage(format!(
                "{shown} holds a run with other arguments ({}): give the same, or another --output",
                difference(&state.settings, settings)
            )));
        }
        if state.ended {
            return Err(Error::Usage(format!(
                "the run in {shown} has ended: see it with 'nacre paf report {shown}', or name another --output"
            )));
        }
        let is_new = !directory.join(STATE).exists();
        fs::create_dir_all(directory).map_err(Error::io("create directory", directory))?;
        let path = directory.join(LOCK);
        let lock = File::create(&path).map_err(Error::io("create", &path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Error::Usage(format!(
                    "another process works on the run in {shown}: wait for it"
                )));
            }
            Err(TryLockError::Error(error)) => return Err(Error::io("lock", &path)(error)),
        }
        let output = Output { directory: directory.to_owned(), is_new, _lock: lock };
        output.save(&state)?;
        Ok((output, state))
    }

    /// Replaces the state file. Durable on return.
    pub(super) fn save(&self, state: &State) -> Result<(), Error> {
        let text = serde_json::to_string(state).expect("a state has no keys other than strings");
        let (new, path) = (self.directory.join(STATE_NEW), self.directory.join(STATE));
        let write = || -> std::io::Result<()> {
            let mut file = File::create(&new)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&new, &path)?;
            File::open(&self.directory)?.sync_all()
        };
        write().map_err(Error::io("write", &path))
    }

    /// Removes what this process has created, if nothing has been measured because the run was refused.
    pub(super) fn withdraw(&self) {
        if self.is_new {
            for name in [STATE, LOCK] {
                let _ = fs::remove_file(self.directory.join(name));
            }
            // Fails unless it is empty.
            let _ = fs::remove_dir(&self.directory);
        }
    }
}

/// Reads the state file in a directory, if it is that of a run.
pub(super) fn read(directory: &Path) -> Result<Option<State>, Error> {
    let path = directory.join(STATE);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io("read", &path)(error)),
    };
    let state: State = serde_json::from_str(&text)
        .map_err(|error| Error::Usage(format!("{} is damaged or no run's: {error}", path.display())))?;
    match state.version {
        VERSION => Ok(Some(state)),
        other => {
            Err(Error::Usage(format!("{} has version {other}, this program reads {VERSION}", path.display())))
        }
    }
}

/// Returns the first option in which two runs differ.
fn difference(old: &Settings, new: &Settings) -> String {
    let value = |settings: &Settings| serde_json::to_value(settings).expect("no keys other than strings");
    let (old, new) = (value(old), value(new));
    let keys = old.as_object().into_iter().chain(new.as_object()).flat_map(|object| object.keys());
    // Optional settings may be missing.
    let show = |value: Option<&serde_json::Value>| value.map_or("not given".to_owned(), ToString::to_string);
    let mut differing = keys.filter(|key| old.get(key.as_str()) != new.get(key.as_str()));
    differing.next().map_or_else(String::new, |key| {
        let (before, now) = (show(old.get(key)), show(new.get(key)));
        format!("{} was {before} and is now {now}", key.replace('_', "-"))
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::paf) fn settings() -> Settings {
        Settings {
            target: "/mnt/aged".into(),
            capacity: vec![0, 10, 80],
            fragment: vec![0, 70],
            xfer: vec![1 << 20, 4 << 20],
            iterations: 2,
            seed: 1,
            writers: 1,
            size: None,
            file_size: None,
            keep_caches: true,
            simulated_medium: None,
            control: None,
        }
    }

    #[test]
    fn the_empty_state_is_measured_once_and_first_iterations_come_first() {
        let names: Vec<String> = settings().states().iter().map(Paf::to_string).collect();
        assert_eq!(names, ["PaF:00.00", "PaF:10.00", "PaF:10.70", "PaF:80.00", "PaF:80.70"]);
        let mib = 1 << 20;
        assert_eq!(settings().cells(), [(mib, 1), (4 * mib, 1), (mib, 2), (4 * mib, 2)]);
        let without = Settings { fragment: vec![70], ..settings() };
        assert_eq!(without.states()[0], Paf { capacity: 0, fragment: 0 });
    }

    #[test]
    fn a_run_goes_on_where_it_was_and_only_with_its_own_arguments() {
        let scratch = tempfile::tempdir().expect("a directory");
        let directory = scratch.path().join("out");
        let (output, mut state) = Output::open(&directory, &settings()).expect("new");
        let paf = Paf { capacity: 10, fragment: 0 };
        state.cells.push(Cell {
            paf,
            xfer: 4096,
            iteration: 1,
            write: 2.0,
            read: 3.0,
            direct: true,
            control: None,
        });
        output.save(&state).expect("saved");
        let said = |result: Result<(Output, State), Error>| result.err().expect("refused").to_string();
        assert!(said(Output::open(&directory, &settings())).contains("another process"));
        drop(output);
        let (output, again) = Output::open(&directory, &settings()).expect("the same");
        assert!(again.has(paf, 4096, 1) && !again.has(paf, 4096, 2) && again.id == state.id);
        drop(output);
        let other = Settings { seed: 2, ..settings() };
        assert!(said(Output::open(&directory, &other)).contains("seed was 1 and is now 2"));
        let other = Settings { simulated_medium: Some("disk".to_owned()), ..settings() };
        let refused = said(Output::open(&directory, &other));
        assert!(refused.contains("simulated-medium was not given and is now \"disk\""), "{refused}");
        state.ended = true;
        let (output, _) = Output::open(&directory, &settings()).expect("the same");
        output.save(&state).expect("saved");
        drop(output);
        assert!(said(Output::open(&directory, &settings())).contains("has ended"));
    }

    #[test]
    fn directories_of_others_and_damaged_states_are_left_alone() {
        let scratch = tempfile::tempdir().expect("a directory");
        let path = scratch.path();
        fs::write(path.join("thesis.txt"), "all of it").expect("written");
        let said = |result: Result<(Output, State), Error>| result.err().expect("refused").to_string();
        assert!(said(Output::open(path, &settings())).contains("not empty"));
        assert_eq!(fs::read_dir(path).expect("there").count(), 1);
        fs::write(path.join(STATE), "{\"version\":").expect("written");
        assert!(said(Output::open(path, &settings())).contains("damaged"));
        assert_eq!(fs::read_to_string(path.join(STATE)).expect("there"), "{\"version\":");
    }

    #[test]
    fn a_refused_run_leaves_no_output() {
        let scratch = tempfile::tempdir().expect("a directory");
        let directory = scratch.path().join("out");
        let (output, _) = Output::open(&directory, &settings()).expect("new");
        output.withdraw();
        assert!(!directory.exists());
    }
}
