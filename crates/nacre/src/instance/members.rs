//! Targets that a directory got later, or holds without the others of its file system.
//!
//! The file `targets` then lists the targets of the directory, and the superblock says that this list
//! applies. A target is added in steps; the one that writes that file is the commit point:
//!
//! 1. `adding` names the target: from then on the next attempt may remove everything with its name;
//! 2. the target is formatted, with a file `joining` in its directory: no management server knows it;
//! 3. `targets` lists it, then the superblock refers to that file;
//! 4. `adding` is removed;
//! 5. its server starts and registers it; `joining` is removed.

use super::{Instance, if_there, make_dir, sync_dir, target_name, write_durably};
use crate::failure::{Failure, Result};
use crate::new_target;
use crate::process::RunDir;
use crate::target_options::TargetOptions;
use nacre_ondisk::members;
use nacre_ondisk::superblock::{FORMAT_VERSION_LISTED, Superblock};
use nacre_store::object::JOINING;
use nacre_types::limits::{MDT_COUNT_MAX, TARGET_INDEX_MAX};
use nacre_types::{Nid, TargetId, TargetKind};
use nacre_wire::mgs::FsConfig;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

const LIST: &str = "targets";
const ADDING: &str = "adding";
const LOCK: &str = "adding.lock";

/// Reads the targets that a directory holds.
pub(super) fn read(dir: &Path) -> Result<Vec<TargetId>> {
    let path = dir.join(LIST);
    let text = fs::read_to_string(&path).map_err(Failure::because(format!("read {}", path.display())))?;
    members::decode(&text).ok_or_else(|| Failure::new(format!("{} is damaged", path.display())))
}

/// Writes the targets that a directory holds.
pub(super) fn write(dir: &Path, targets: &[TargetId]) -> Result<()> {
    write_durably(dir, LIST, members::encode(targets).as_bytes())
}

/// Returns true while no management server knows this target.
pub fn is_joining(instance: &Instance, target: TargetId) -> bool {
    instance.target_dir(target).join(JOINING).exists()
}

/// Records that no management server knows a target, and the NIDs that the coming registration will report.
///
/// # Errors
/// If it cannot be recorded.
pub fn note_joining(instance: &Instance, target: TargetId, nids: &[Nid]) -> Result<()> {
    let mut all = told(instance, target)?;
    all.extend(nids);
    let text: String = all.iter().map(|nid| format!("{nid}\n")).collect();
    write_durably(&instance.target_dir(target), JOINING, text.as_bytes())
}

/// Returns the NIDs that a registration of a joining target may have reported.
fn told(instance: &Instance, target: TargetId) -> Result<Vec<Nid>> {
    let path = instance.target_dir(target).join(JOINING);
    let text =
        if_there(fs::read_to_string(&path)).map_err(Failure::because(format!("read {}", path.display())))?;
    Ok(text.iter().flat_map(|text| text.lines()).filter_map(|line| line.parse().ok()).collect())
}

/// Records that the management server knows this target.
///
/// # Errors
/// If it cannot be recorded.
pub fn joined(instance: &Instance, target: TargetId) -> Result<()> {
    let path = instance.target_dir(target).join(JOINING);
    if_there(fs::remove_file(&path)).map_err(Failure::because(format!("remove {}", path.display())))?;
    sync_dir(&instance.target_dir(target))
}

/// Exclusive right to add targets to a directory.
#[derive(Debug)]
pub struct Adding {
    instance: Instance,
    lock: File,
}

impl Drop for Adding {
    fn drop(&mut self) {
        // An explicit unlock: a close alone would not release it while a concurrent fork has a copy of the
        // descriptor.
        let _ = self.lock.unlock();
    }
}

impl Adding {
    /// Takes the right, and removes what an interrupted attempt has left.
    ///
    /// # Errors
    /// If another process has it, or the directory is not a file system any more.
    pub fn begin(instance: &Instance) -> Result<Adding> {
        make_dir(&instance.run_dir(), 0o700)?;
        let path = instance.run_dir().join(LOCK);
        let fail = || Failure::because(format!("lock {}", path.display()));
        let mut options = OpenOptions::new();
        let lock = options.create(true).append(true).mode(0o600).open(&path).map_err(fail())?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Failure::new(format!(
                    "another target is being added to {}: try again when it is there",
                    instance.dir.display()
                )));
            }
            Err(TryLockError::Error(error)) => return Err(fail()(error)),
        }
        let adding = Adding { instance: Instance::open_existing(&instance.dir)?, lock };
        adding.clear_unfinished()?;
        Ok(adding)
    }

    /// Returns the directory in its current state.
    pub fn instance(&self) -> &Instance {
        &self.instance
    }

    /// Removes the target that `adding` names, if it is not listed yet. No data can have been stored in it.
    fn clear_unfinished(&self) -> Result<()> {
        let marker = self.instance.dir.join(ADDING);
        let text = if_there(fs::read_to_string(&marker))
            .map_err(Failure::because(format!("read {}", marker.display())))?;
        let Some(text) = text else { return Ok(()) };
        let target: TargetId = text.trim().parse().map_err(|_| {
            Failure::new(format!("{} names no target: nothing was changed", marker.display()))
        })?;
        let dir = self.instance.target_dir(target);
        if !self.instance.targets().contains(&target) && dir.exists() {
            fs::remove_dir_all(&dir)
                .map_err(Failure::because(format!("remove unfinished {}", dir.display())))?;
            sync_dir(&self.instance.dir)?;
        }
        fs::remove_file(&marker).map_err(Failure::because(format!("remove {}", marker.display())))?;
        sync_dir(&self.instance.dir)
    }

    /// Returns the target to start: one of this kind in this directory that was never registered, otherwise
    /// the next one, which [`Adding::make`] creates. `wanted`: the requested index. `config`: what the
    /// management server knows.
    ///
    /// # Errors
    /// If the requested index is not the next one.
    pub fn plan(&mut self, kind: TargetKind, wanted: Option<u16>, config: &FsConfig) -> Result<TargetId> {
        let begun = self.instance.targets().into_iter().find(|target| {
            target.kind == kind
                && wanted.is_none_or(|index| target.index == index)
                && is_joining(&self.instance, *target)
        });
        match begun {
            Some(target) if self.is_anothers(target, config)? => self.discard(target)?,
            Some(target) => return Ok(target),
            None => {}
        }
        let known = config.targets.iter().map(|known| known.target);
        next_target(kind, wanted, known.chain(self.instance.targets()))
    }

    /// Returns whether a never registered target of this directory has lost its index to another server. The
    /// NIDs that this one may have reported to the management server were recorded before.
    fn is_anothers(&self, target: TargetId, config: &FsConfig) -> Result<bool> {
        let Some(known) = config.targets.iter().find(|known| known.target == target) else {
            return Ok(false);
        };
        let told = told(&self.instance, target)?;
        Ok(known.nids != [Nid::Lo] && !known.nids.iter().any(|nid| told.contains(nid)))
    }

    /// Removes a target that was never registered.
    fn discard(&mut self, target: TargetId) -> Result<()> {
        // The lock keeps a process from starting it.
        let run = RunDir::new(self.instance.run_dir());
        let _lock = run.lock(&target_name(target))?;
        self.mark(target)?;
        let mut left = self.instance.targets();
        left.retain(|other| *other != target);
        write(&self.instance.dir, &left)?;
        self.instance.listed = Some(left);
        self.clear_unfinished()
    }

    /// Fills a planned target with `make_target`, unless it exists.
    ///
    /// # Errors
    /// If it cannot be created; then nothing is left of it.
    pub fn make(
        &mut self,
        target: TargetId,
        make_target: impl Fn(&Instance, TargetId) -> Result<()>,
    ) -> Result<()> {
        if self.instance.targets().contains(&target) {
            return Ok(());
        }
        let target_dir = self.instance.target_dir(target);
        if target_dir.symlink_metadata().is_ok() {
            return Err(Failure::new(format!(
                "{} exists and is no target of this file system: move it elsewhere first; nothing was changed",
                target_dir.display()
            )));
        }
        self.make_new(target, make_target).inspect_err(|_| {
            if let Err(failure) = self.clear_unfinished() {
                log::warn!("{failure}");
            }
        })?;
        self.instance = Instance::open_existing(&self.instance.dir)?;
        Ok(())
    }

    /// Like [`Adding::make`], with the requested options; an existing target has to match them.
    ///
    /// # Errors
    /// As there, and if the existing target differs.
    pub fn create_with(&mut self, target: TargetId, target_options: &TargetOptions) -> Result<()> {
        if self.instance.targets().contains(&target) {
            return new_target::go_on(&self.instance, target, target_options);
        }
        self.make(target, |instance, target| new_target::make(instance, target, target_options))
    }

    /// Marks the name of this target: from now on everything with it may be removed, unless it is listed.
    fn mark(&self, target: TargetId) -> Result<()> {
        write_durably(&self.instance.dir, ADDING, format!("{target}\n").as_bytes())
    }

    fn make_new(
        &self,
        target: TargetId,
        make_target: impl Fn(&Instance, TargetId) -> Result<()>,
    ) -> Result<()> {
        let Instance { dir, superblock, .. } = &self.instance;
        self.mark(target)?;
        make_dir(&self.instance.target_dir(target), 0o700)?;
        make_target(&self.instance, target)?;
        note_joining(&self.instance, target, &[])?;
        sync_dir(dir)?;
        let mut targets = self.instance.targets();
        targets.push(target);
        write(dir, &targets)?;
        if superblock.version != FORMAT_VERSION_LISTED {
            let listed = Superblock { version: FORMAT_VERSION_LISTED, ..superblock.clone() };
            super::write_superblock(dir, &listed)?;
        }
        let marker = dir.join(ADDING);
        fs::remove_file(&marker).map_err(Failure::because(format!("remove {}", marker.display())))?;
        sync_dir(dir)
    }
}

/// Returns the next target of a kind after the existing ones; `wanted` may only confirm it.
///
/// # Errors
/// If another index is requested, if a lower one is missing, or at the limit of targets.
pub fn next_target(
    kind: TargetKind,
    wanted: Option<u16>,
    known: impl Iterator<Item = TargetId>,
) -> Result<TargetId> {
    let mut indexes: Vec<u16> =
        known.filter(|target| target.kind == kind).map(|target| target.index).collect();
    indexes.sort_unstable();
    indexes.dedup();
    let named = |index| TargetId { kind, index };
    let missing = (0u16..).zip(&indexes).find(|(place, index)| place != *index);
    if let Some((place, _)) = missing {
        return Err(Failure::new(format!("{} has not registered yet: start it first", named(place))));
    }
    let next = indexes.len() as u16;
    let max = if kind == TargetKind::Mdt { MDT_COUNT_MAX } else { TARGET_INDEX_MAX };
    match wanted {
        Some(index) if index < next => Err(Failure::new(format!(
            "{} is there already: leave --index out to add {}",
            named(index),
            named(next)
        ))),
        Some(index) if index > next => Err(Failure::new(format!(
            "{} cannot be added before {}: leave --index out to add that one",
            named(index),
            named(next)
        ))),
        _ if next >= max => {
            Err(Failure::new(format!("a file system has at most {max} targets of this kind")))
        }
        _ => Ok(named(next)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{FormatOptions, Joins};
    use super::*;
    use nacre_wire::mgs::TargetConfig;

    fn instance(dir: &Path) -> Instance {
        let options = FormatOptions { fsname: "nacre".to_owned(), mdt_count: 1, ost_count: 2, joins: None };
        Instance::format(dir, &options, |_, _| Ok(()), |_| ()).expect("formatted")
    }

    fn registered(targets: &[TargetId]) -> FsConfig {
        let config =
            |target: &TargetId| TargetConfig { target: *target, nids: Vec::new(), active: true, key: None };
        FsConfig { targets: targets.iter().map(config).collect(), ..FsConfig::default() }
    }

    fn add(dir: &Path, kind: TargetKind, index: Option<u16>) -> Result<TargetId> {
        let instance = Instance::open_existing(dir)?;
        let mut known = instance.targets();
        known.retain(|target| !is_joining(&instance, *target));
        let known = registered(&known);
        add_knowing(dir, kind, index, &known)
    }

    fn add_knowing(dir: &Path, kind: TargetKind, index: Option<u16>, known: &FsConfig) -> Result<TargetId> {
        let mut adding = Adding::begin(&Instance::open_existing(dir)?)?;
        let target = adding.plan(kind, index, known)?;
        adding.make(target, |_, _| Ok(()))?;
        Ok(target)
    }

    fn finish(dir: &Path, target: TargetId) {
        joined(&Instance::open_existing(dir).expect("there"), target).expect("noted");
    }

    #[test]
    fn added_targets_are_listed_behind_the_others_and_registered_once() {
        let scratch = tempfile::tempdir().expect("a directory");
        let made = instance(scratch.path());
        assert_eq!(add(scratch.path(), TargetKind::Mdt, None).expect("added"), TargetId::mdt(1));
        let again = add(scratch.path(), TargetKind::Mdt, None).expect("the same, which nobody knows yet");
        assert_eq!(again, TargetId::mdt(1));
        finish(scratch.path(), again);
        assert_eq!(add(scratch.path(), TargetKind::Ost, Some(2)).expect("added"), TargetId::ost(2));
        let now = Instance::open_existing(scratch.path()).expect("opens");
        let mut expected = made.targets();
        expected.extend([TargetId::mdt(1), TargetId::ost(2)]);
        assert_eq!(now.targets(), expected);
        assert_eq!((now.superblock.mdt_count, now.superblock.ost_count), (1, 2), "as it was made");
        assert!(!is_joining(&now, TargetId::mdt(1)) && is_joining(&now, TargetId::ost(2)));
    }

    #[test]
    fn an_attempt_that_was_broken_off_is_cleared_and_nothing_else() {
        let scratch = tempfile::tempdir().expect("a directory");
        let made = instance(scratch.path());
        let known = registered(&made.targets());
        let target_dir = made.target_dir(TargetId::mdt(1));
        let mut adding = Adding::begin(&made).expect("nobody adds");
        let target = adding.plan(TargetKind::Mdt, None, &known).expect("the next one");
        let failed = adding.make(target, |_, _| Err(Failure::new("full")));
        assert_eq!(failed.expect_err("no space").message, "full");
        assert!(!target_dir.exists() && !made.dir.join(ADDING).exists());
        drop(adding);
        // As a kill leaves it before and after the commit point.
        fs::write(made.dir.join(ADDING), "MDT0001\n").expect("written");
        fs::create_dir(&target_dir).expect("made");
        fs::write(target_dir.join("half"), "x").expect("written");
        assert_eq!(add(scratch.path(), TargetKind::Mdt, None).expect("added"), TargetId::mdt(1));
        assert!(!target_dir.join("half").exists());
        fs::write(made.dir.join(ADDING), "MDT0001\n").expect("written");
        fs::write(target_dir.join("whole"), "x").expect("written");
        add(scratch.path(), TargetKind::Mdt, None).expect("it counts");
        assert!(target_dir.join("whole").exists() && !made.dir.join(ADDING).exists());
        finish(scratch.path(), TargetId::mdt(1));
        fs::create_dir(made.target_dir(TargetId::mdt(2))).expect("made");
        fs::write(made.target_dir(TargetId::mdt(2)).join("mine"), "x").expect("written");
        let failure = add(scratch.path(), TargetKind::Mdt, None).expect_err("not ours");
        assert!(failure.message.contains("exists and is no target"), "{failure}");
        assert!(made.target_dir(TargetId::mdt(2)).join("mine").exists());
    }

    #[test]
    fn only_the_next_index_is_given() {
        let known = || (0..3).map(TargetId::mdt).chain([TargetId::ost(0)]);
        assert_eq!(next_target(TargetKind::Mdt, None, known()).expect("next"), TargetId::mdt(3));
        assert_eq!(next_target(TargetKind::Ost, Some(1), known()).expect("next"), TargetId::ost(1));
        let refused = |wanted, known: &mut dyn Iterator<Item = TargetId>| {
            next_target(TargetKind::Mdt, wanted, known).expect_err("refused").message
        };
        assert!(refused(Some(1), &mut known()).starts_with("MDT0001 is there already"));
        assert!(refused(Some(5), &mut known()).starts_with("MDT0005 cannot be added before MDT0003"));
        let mut gap = [0, 2].into_iter().map(TargetId::mdt);
        assert!(refused(None, &mut gap).starts_with("MDT0001 has not registered yet"));
        let mut all = (0..MDT_COUNT_MAX).map(TargetId::mdt);
        assert!(refused(None, &mut all).contains("at most 31"));
    }

    #[test]
    fn a_target_whose_index_another_server_got_meanwhile_is_made_anew_unless_it_may_be_that_one() {
        let scratch = tempfile::tempdir().expect("a directory");
        let made = instance(scratch.path());
        let before = registered(&made.targets());
        let nid = |text: &str| text.parse::<Nid>().expect("a NID");
        let with = |nids: &[Nid]| {
            let mut config = before.clone();
            config.targets.push(TargetConfig {
                target: TargetId::mdt(1),
                nids: nids.to_vec(),
                active: true,
                key: None,
            });
            config
        };
        let add =
            |config: &FsConfig| add_knowing(scratch.path(), TargetKind::Mdt, None, config).expect("added");
        assert_eq!(add(&before), TargetId::mdt(1));
        assert_eq!(add(&with(&[Nid::Lo])), TargetId::mdt(1), "its own reservation");
        let own = nid("10.0.0.3@tcp");
        note_joining(&Instance::open_existing(scratch.path()).expect("there"), TargetId::mdt(1), &[own])
            .expect("noted");
        fs::write(made.target_dir(TargetId::mdt(1)).join("data"), "x").expect("written");
        assert_eq!(add(&with(&[own])), TargetId::mdt(1), "it may have been registered before a crash");
        assert!(made.target_dir(TargetId::mdt(1)).join("data").exists());
        assert_eq!(add(&with(&[nid("10.0.0.9@tcp")])), TargetId::mdt(2));
        let now = Instance::open_existing(scratch.path()).expect("opens");
        assert!(!now.targets().contains(&TargetId::mdt(1)) && now.targets().contains(&TargetId::mdt(2)));
        assert!(!made.target_dir(TargetId::mdt(1)).exists());
    }

    #[test]
    fn one_adds_at_a_time() {
        let scratch = tempfile::tempdir().expect("a directory");
        let made = instance(scratch.path());
        let first = Adding::begin(&made).expect("nobody adds");
        let failure = Adding::begin(&made).expect_err("somebody adds");
        assert!(failure.message.starts_with("another target is being added"), "{failure}");
        drop(first);
        Adding::begin(&made).expect("nobody adds any more");
    }

    #[test]
    fn a_directory_may_hold_one_target_alone() {
        let scratch = tempfile::tempdir().expect("a directory");
        let joins = Some(Joins { fs_uuid: [7; 16], target: TargetId::mdt(4) });
        let options = FormatOptions { fsname: "nacre".to_owned(), mdt_count: 1, ost_count: 0, joins };
        Instance::format(scratch.path(), &options, |_, _| Ok(()), |_| ()).expect("formatted");
        let opened = Instance::open_existing(scratch.path()).expect("opens");
        assert_eq!((opened.targets(), opened.superblock.fs_uuid), (vec![TargetId::mdt(4)], [7; 16]));
        assert!(is_joining(&opened, TargetId::mdt(4)));
        let text = fs::read_to_string(scratch.path().join(LIST)).expect("there");
        fs::write(scratch.path().join(LIST), text.replace('4', "5")).expect("written");
        let failure = Instance::open(scratch.path()).expect_err("changed");
        assert!(failure.message.contains("damaged"), "{failure}");
    }
}
