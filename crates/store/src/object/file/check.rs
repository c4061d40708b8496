//! Comparison of index and files.

use super::ahead::AHEAD;
use super::directory::path_error;
use super::local::FileStat;
use super::{FileStore, slots};
use crate::object::sequences::OBJECTS;
use crate::object::{ObjectError, ObjectProblem, ObjectVerifyReport, Result};
use nacre_ondisk::DecodeError;
use nacre_ondisk::object::{AheadRecord, ObjectRecord};
use nacre_types::Fid;
use rustix::io::Errno;
use std::collections::HashMap;
use std::ops::{Bound, ControlFlow};

/// Objects or files between two calls of `progress`.
const PROGRESS_EVERY: u64 = 1024;

/// State of a check of the store.
struct Check<'a> {
    store: &'a FileStore,
    repair: bool,
    progress: &'a mut dyn FnMut(u64),
    report: ObjectVerifyReport,
    /// Bitmap of the slots that objects own.
    owned: Vec<u64>,
    /// Largest id found per sequence.
    largest: HashMap<u64, u32>,
}

/// Implements [`crate::object::ObjectStore::verify`]. Objects that are created or destroyed meanwhile are not
/// reported.
pub(super) fn check(
    store: &FileStore,
    repair: bool,
    progress: &mut dyn FnMut(u64),
) -> Result<ObjectVerifyReport> {
    if !store.options.read_only {
        store.releaser.drain();
    }
    let report = ObjectVerifyReport { index: store.index.verify(progress)?, ..Default::default() };
    let mut check = Check { store, repair, progress, report, owned: Vec::new(), largest: HashMap::new() };
    check.objects()?;
    check.sequences()?;
    check.files()?;
    for path in &store.directory.damaged {
        // Opening the store has rewritten it, unless it was opened read-only.
        check.report.add(ObjectProblem::Copy { path: path.clone() }, !store.options.read_only);
    }
    for path in store.directory.strays(&store.dir)? {
        check.report.add(ObjectProblem::Stray { path }, false);
    }
    let report = check.report;
    progress(report.objects + report.files);
    Ok(report)
}

impl Check<'_> {
    fn tick(&mut self) {
        let done = self.report.objects + self.report.files;
        if done.is_multiple_of(PROGRESS_EVERY) {
            (self.progress)(done);
        }
    }

    /// Marks a slot as owned; false if it already was.
    fn own(&mut self, slot: u32) -> bool {
        let word = slot as usize / 64;
        if word >= self.owned.len() {
            self.owned.resize(word + 1, 0);
        }
        let bit = 1 << (slot % 64);
        let first = self.owned[word] & bit == 0;
        self.owned[word] |= bit;
        first
    }

    fn is_owned(&self, slot: u32) -> bool {
        self.owned.get(slot as usize / 64).is_some_and(|word| word & (1 << (slot % 64)) != 0)
    }

    fn objects(&mut self) -> Result<()> {
        let store = self.store;
        let mut failed = None;
        store.index.scan(
            OBJECTS,
            &[],
            Bound::Unbounded,
            &mut |key, value| match self.object(key, value) {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => {
                    failed = Some(error);
                    ControlFlow::Break(())
                }
            },
        )?;
        failed.map_or(Ok(()), Err)
    }

    fn object(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.report.objects += 1;
        self.tick();
        let record = ObjectRecord::decode(value);
        let (object, record) = match (<&[u8; 16]>::try_from(key), record) {
            (Ok(key), Ok(record)) => (Fid::from_key(key), record),
            (Err(_), _) => return self.bad_record(key, DecodeError::Field("key")),
            (_, Err(error)) => return self.bad_record(key, error),
        };
        let largest = self.largest.entry(object.seq).or_default();
        *largest = (*largest).max(object.oid);
        if !self.own(record.slot) {
            let problem = ObjectProblem::FileShared { object, slot: record.slot };
            self.report.add(problem, false);
            return Ok(());
        }
        match self.stat(record.slot)? {
            Some(stat) => {
                self.report.bytes += stat.size;
                self.report.blocks += stat.blocks;
                let report = &mut self.report;
                let mut found = |offset| report.add(ObjectProblem::Sum { object, offset }, false);
                if let (Some(sums), Some(handle)) = (&self.store.sums, self.store.find(object)?) {
                    sums.check_all(&handle, &mut found)?;
                }
            }
            None if self.store.lookup(object)? == Some(record.slot) => {
                self.report.add(ObjectProblem::FileMissing { object, slot: record.slot }, false);
            }
            // Destroyed since the index was read.
            None => {}
        }
        Ok(())
    }

    fn bad_record(&mut self, key: &[u8], error: DecodeError) -> Result<()> {
        self.report.add(ObjectProblem::Record { key: key.to_vec(), error }, false);
        Ok(())
    }

    fn sequences(&mut self) -> Result<()> {
        let store = self.store;
        let largest = std::mem::take(&mut self.largest);
        store.sequences.verify(&store.index, largest, self.repair, &mut self.report)?;
        store.index.scan(AHEAD, &[], Bound::Unbounded, &mut |key, value| {
            if let Err(error) = AheadRecord::decode(value) {
                self.report.add(ObjectProblem::Record { key: key.to_vec(), error }, false);
            }
            ControlFlow::Continue(())
        })?;
        Ok(())
    }

    fn files(&mut self) -> Result<()> {
        let store = self.store;
        for index in 0..slots::SLOT_DIRECTORIES {
            let path = store.slots.directory_path(index);
            let names = store.slots.tree().names(&slots::directory_name(index));
            let names = names.map_err(|error| path_error("list", &path, error))?;
            for name in names.into_iter().flatten() {
                self.report.files += 1;
                self.tick();
                match slots::parse_name(index, &name) {
                    Some(slot) if !self.is_owned(slot) => self.unowned_file(slot)?,
                    Some(_) => {}
                    None => {
                        let path = path.join(std::ffi::OsStr::new(&*String::from_utf8_lossy(&name)));
                        self.report.add(ObjectProblem::Stray { path }, false);
                    }
                }
            }
        }
        Ok(())
    }

    fn unowned_file(&mut self, slot: u32) -> Result<()> {
        let Some(stat) = self.stat(slot)? else { return Ok(()) };
        if !stat.is_file {
            self.report.add(ObjectProblem::Stray { path: self.store.slots.path(slot) }, false);
            return Ok(());
        }
        // A slot taken after the index was read is busy; its file is valid.
        if stat.is_empty() || !self.store.slots.is_free(slot) {
            return Ok(());
        }
        // A crash leaves such files, and the next start empties them.
        if self.store.options.read_only && !self.store.was_clean {
            return Ok(());
        }
        if self.repair {
            // Claimed while it is emptied, so that it gets no owner meanwhile.
            if !self.store.slots.claim(slot) {
                return Ok(());
            }
            let emptied = self.store.slots.empty_leftover(slot);
            if emptied.is_ok() {
                self.store.slots.tree().sync_all().map_err(|error| self.path_error(slot, error))?;
                self.store.slots.give_back(&[slot]);
            }
            emptied?;
        }
        let problem = ObjectProblem::FreeFileNotEmpty { slot, size: stat.size };
        self.report.add(problem, self.repair);
        Ok(())
    }

    fn stat(&self, slot: u32) -> Result<Option<FileStat>> {
        self.store.slots.stat(slot).map_err(|error| self.path_error(slot, error))
    }

    fn path_error(&self, slot: u32, error: Errno) -> ObjectError {
        path_error("look at", &self.store.slots.path(slot), error)
    }
}
