//! Carries actions out through a client.

use super::Exploration;
use super::tree::{APPEND_BYTES, INITIAL_BYTES, OVERWRITE, PUNCH, TRUNCATE_BYTES, Tree, WRITE};
use super::workload::{Action, Existing};
use crate::history::{Call, History, Reply};
use crate::linear::describe;
use crate::mount::{Mount, root};
use crate::operation::{Operation, Path, Place, SLOTS};
use crate::program::Program;
use nacre_client::FallocateKind;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Slot of files that are closed at once.
const BRIEF: u8 = 0;

/// A program that carries out a workload.
pub(crate) struct Performer {
    program: Program,
    history: Arc<History>,
    /// Files stay open until the workload has ended.
    holds: bool,
    mdts: u8,
    /// Slots of open files, by inode.
    slots: BTreeMap<usize, u8>,
}

impl Performer {
    pub(crate) fn new(mount: &Mount, exploration: &Exploration) -> Performer {
        let history = History::new();
        let program = Program::new(0, mount.client.clone(), history.clone());
        let Exploration { holds, mdts, .. } = *exploration;
        Performer { program, history, holds, mdts, slots: BTreeMap::new() }
    }

    /// Creates what exists before the workload, and syncs it.
    ///
    /// # Errors
    /// A call that failed.
    pub(crate) fn prepare(&mut self, existing: &[Existing]) -> Result<(), String> {
        for Existing { path, directory } in existing {
            if *directory {
                self.mkdir(path);
            } else {
                self.program.run(&create(BRIEF, path));
                self.program.run(&Operation::Append { slot: BRIEF, len: INITIAL_BYTES });
                self.program.run(&Operation::Close { slot: BRIEF });
            }
            self.check_calls()?;
        }
        self.sync_all()
    }

    /// Closes all files.
    pub(crate) fn end(&mut self) {
        self.program.end();
    }

    /// Carries out the action with this number, from 1, on this tree.
    ///
    /// # Errors
    /// A call that failed.
    pub(crate) fn perform(&mut self, action: &Action, number: u8, tree: &Tree) -> Result<(), String> {
        let (from, to) = match action {
            Action::Link(from, to) | Action::Rename(from, to) => (from.clone(), to.clone()),
            _ => (Path(Vec::new()), Path(Vec::new())),
        };
        match action {
            Action::Create(path) => {
                let slot = self.slot_for(tree.inodes.len());
                self.program.run(&create(slot, path));
                self.release(slot);
            }
            Action::Write(path) => self.on_file(path, tree, |slot| write(slot, WRITE)),
            Action::Overwrite(path) => self.on_file(path, tree, |slot| write(slot, OVERWRITE)),
            Action::Append(path) => {
                self.on_file(path, tree, |slot| Operation::Append { slot, len: APPEND_BYTES });
            }
            Action::Fsync(path) => self.on_file(path, tree, |slot| Operation::Fsync { slot }),
            Action::Punch(path) => return self.punch(path, tree),
            Action::Sync => return self.sync_all(),
            Action::Truncate(path) => {
                self.program.run(&Operation::Truncate { path: path.clone(), size: TRUNCATE_BYTES });
            }
            Action::Link(..) => self.program.run(&Operation::Link { from, to }),
            Action::Rename(..) => self.program.run(&Operation::Rename { from, to }),
            Action::Unlink(path) => self.program.run(&Operation::Unlink { path: path.clone() }),
            Action::Mkdir(path) => self.mkdir(path),
            Action::Rmdir(path) => self.program.run(&Operation::Rmdir { path: path.clone() }),
            Action::SetXattr(path) => {
                self.program.run(&Operation::SetXattr { path: path.clone(), name: 0, value: number });
            }
            Action::FsyncDir(path) => self.program.run(&Operation::FsyncDir { path: path.clone() }),
        }
        self.check_calls()
    }

    /// Creates a directory: those in the root on the MDTs in turn, others where their parent is.
    fn mkdir(&mut self, path: &Path) {
        let place = match path.0[..] {
            [number] => Place::Mdt(number % self.mdts),
            _ => Place::Default,
        };
        self.program.run(&Operation::Mkdir { path: path.clone(), place });
    }

    /// Returns the slot for an inode that is being opened.
    fn slot_for(&mut self, inode: usize) -> u8 {
        if !self.holds {
            return BRIEF;
        }
        let next = self.slots.len() as u8 % SLOTS;
        *self.slots.entry(inode).or_insert(next)
    }

    fn release(&mut self, slot: u8) {
        if !self.holds {
            self.program.run(&Operation::Close { slot });
        }
    }

    /// Opens a file, unless it is open, and returns its slot.
    fn open(&mut self, path: &Path, tree: &Tree) -> u8 {
        let inode = tree.find(path).expect("a workload succeeds");
        let is_open = self.slots.contains_key(&inode);
        let slot = self.slot_for(inode);
        if !is_open {
            let (create, exclusive, truncate) = (false, false, false);
            self.program.run(&Operation::Open { slot, path: path.clone(), create, exclusive, truncate });
        }
        slot
    }

    fn on_file(&mut self, path: &Path, tree: &Tree, operation: impl FnOnce(u8) -> Operation) {
        let slot = self.open(path, tree);
        self.program.run(&operation(slot));
        self.release(slot);
    }

    fn punch(&mut self, path: &Path, tree: &Tree) -> Result<(), String> {
        let slot = self.open(path, tree);
        let handle = self.program.slot(slot).map_err(|status| format!("a punch: {status}"))?.1;
        let (offset, len) = PUNCH;
        let punched = self.program.client.data.fallocate(&root(), handle, FallocateKind::Punch, offset, len);
        self.release(slot);
        punched.map_err(|status| format!("a punch: {status}"))
    }

    fn sync_all(&self) -> Result<(), String> {
        self.program.client.data.sync_all().map_err(|status| format!("a sync: {status}"))
    }

    /// Checks that all calls since the last time succeeded.
    fn check_calls(&self) -> Result<(), String> {
        let (programs, _) = self.history.take();
        let events: Vec<_> = programs.into_iter().flatten().collect();
        let last = events.last().ok_or("no call was made")?;
        let stopped = matches!((&last.call, &last.result), (Call::Lookup { .. }, Ok(Reply::Absent)));
        match events.iter().find(|event| event.result.is_err()).or(stopped.then_some(last)) {
            Some(event) => Err(format!("a call failed: {}", describe(event))),
            None => Ok(()),
        }
    }
}

fn create(slot: u8, path: &Path) -> Operation {
    Operation::Open { slot, path: path.clone(), create: true, exclusive: true, truncate: false }
}

fn write(slot: u8, (offset, len): (u64, u32)) -> Operation {
    Operation::Write { slot, offset, len, sync: false }
}
