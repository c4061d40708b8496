//! Creation of files, directories, symlinks and nodes.

use super::NameSpace;
use crate::changelog::events;
use crate::locks::Want;
use crate::new_shards::check_new_shards;
use crate::plan;
use crate::plan::{Creation, Handed, check_access, may_set_layout};
use crate::suspend::Caller;
use crate::tables::{INODES, ORPHANS, OrphanKind};
use crate::tx::now;
use nacre_layout::DirDefault;
use nacre_layout::dir_layout::DirLayout;
use nacre_ondisk::InodeRecord;
use nacre_types::limits::SYMLINK_MAX;
use nacre_types::name::check_name;
use nacre_types::{Attr, AttrFlags, Caps, Fid, FileKind, OpenHandle, Status, StatusResult, perm};
use nacre_wire::mds::{MdsAnswer, MdsReply, NewFile, OpenFlags};
use std::sync::Arc;

/// Checks that an inode may be created on another MDT than its name.
fn check_elsewhere(new: &NewFile<'_>) -> StatusResult<()> {
    match new {
        NewFile::Directory | NewFile::Striped { .. } | NewFile::ChosenDirectory { .. } => Ok(()),
        _ => Err(Status::WRONG_TARGET),
    }
}

/// A requested creation.
pub(crate) struct Making<'a> {
    pub parent: &'a Fid,
    pub name: &'a [u8],
    pub fid: &'a Fid,
    pub new: &'a NewFile<'a>,
    pub mode: u32,
    pub umask: u32,
    /// Handle with which the file is opened.
    pub open: Option<(OpenHandle, OpenFlags)>,
    /// True if an existing file is not opened (`O_EXCL`).
    pub exclusive: bool,
}

impl NameSpace {
    pub fn create(&self, caller: &Caller<'_>, making: &Making<'_>) -> StatusResult<MdsAnswer> {
        let Making { parent, name, fid, new, mode, umask, open, exclusive } = *making;
        if let Some((handle, _)) = open {
            self.files.may_open(caller, handle)?;
        }
        let wanted = self.check_wanted(caller, fid, new, mode, umask)?;
        let named = *new != NewFile::Unnamed;
        if named {
            check_name(name)?;
        } else if !name.is_empty() {
            return Err(Status::EINVAL);
        }
        if !named && self.leaves.records.inode(parent)?.attr.is_regular() {
            return self.create_beside(caller, parent, &wanted, open);
        }
        let own = if named { Want::Name(*parent, name) } else { Want::Still(*parent) };
        let mut child = None;
        loop {
            let mut locked =
                caller.suspended.lock(&self.leaves.locks, [Some(own), child].into_iter().flatten())?;
            let directory = if named {
                self.leaves.records.home_of(parent, name)?
            } else {
                self.leaves.records.directory(parent)?
            };
            check_access(&directory, caller.cred(), perm::EXEC)?;
            let hash = if named { self.leaves.records.hash(name) } else { 0 };
            if named && let Some(found) = self.leaves.records.find_name(parent, hash, name)? {
                let Some((handle, flags)) = open.filter(|_| !exclusive) else { return Err(Status::EEXIST) };
                if found.fid.mdt_index() != self.leaves.index {
                    // The caller assumed that the name does not exist: it has to walk the path again.
                    return Err(Status::ESTALE);
                }
                let lead = Want::Whole(found.fid);
                if !locked.add(&lead) {
                    child = Some(lead);
                    continue;
                }
                return self.open_existing(caller, &directory, &found.fid, handle, flags);
            }
            check_access(&directory, caller.cred(), perm::WRITE)?;
            if wanted.fid.mdt_index() != self.leaves.index || wanted.shards.is_some() {
                drop(locked);
                let is_chosen =
                    matches!(new, NewFile::ChosenDirectory { .. } | NewFile::Striped { chosen: true, .. });
                return self.create_apart(caller, (parent, name), &wanted, is_chosen);
            }
            return self.create_new(caller, &directory, named.then_some(name), &wanted, open);
        }
    }

    /// Creates a file without a name for the data of another file, on the MDT of that one: its directory may
    /// be on another MDT. It inherits nothing.
    fn create_beside(
        &self,
        caller: &Caller<'_>,
        file: &Fid,
        wanted: &Creation<'_>,
        open: Option<(OpenHandle, OpenFlags)>,
    ) -> StatusResult<MdsAnswer> {
        let _locked = self.leaves.locks.lock(&[Want::Whole(*file)])?;
        let record = self.leaves.records.inode(file)?;
        may_set_layout(&record, caller.cred())?;
        let attr = Attr { mode: FileKind::Directory.mode_bits() | 0o700, nlink: 2, ..Attr::default() };
        let nowhere = Arc::new(InodeRecord { attr, ..InodeRecord::default() });
        self.create_new(caller, &nowhere, None, wanted, open)
    }

    /// Checks that a FID, which another server or a client may have chosen, may be that of a new inode.
    fn check_new_fid(&self, fid: &Fid, new: &NewFile<'_>) -> StatusResult<()> {
        if fid.mdt_index() != self.leaves.index {
            // Only a directory may be on another MDT than its name; that MDT knows whether the FID is free.
            return check_elsewhere(new);
        }
        self.leaves.records.check_own_fid(fid)
    }

    fn check_wanted<'a>(
        &self,
        caller: &Caller<'_>,
        fid: &Fid,
        new: &NewFile<'a>,
        mode: u32,
        umask: u32,
    ) -> StatusResult<Creation<'a>> {
        self.check_new_fid(fid, new)?;
        let by_mode = match mode & nacre_types::attr::S_IFMT {
            0 => FileKind::Regular,
            _ => FileKind::from_mode(mode).ok_or(Status::EINVAL)?,
        };
        let (kind, rdev, target) = match new {
            NewFile::Node { rdev } => match by_mode {
                FileKind::Directory => return Err(Status::EPERM),
                FileKind::Symlink => return Err(Status::EINVAL),
                FileKind::BlockDevice | FileKind::CharDevice => (by_mode, *rdev, &b""[..]),
                _ => (by_mode, 0, &b""[..]),
            },
            NewFile::Directory | NewFile::Striped { .. } | NewFile::ChosenDirectory { .. } => {
                (FileKind::Directory, 0, &b""[..])
            }
            NewFile::Unnamed => (FileKind::Regular, 0, &b""[..]),
            NewFile::Symlink { target } => (FileKind::Symlink, 0, *target),
        };
        match target.len() {
            0 if kind == FileKind::Symlink => return Err(Status::ENOENT),
            len if len > SYMLINK_MAX => return Err(Status::ENAMETOOLONG),
            _ => {}
        }
        // Number 0 is a whiteout, which every user may create.
        if kind == FileKind::BlockDevice || (kind == FileKind::CharDevice && rdev != 0) {
            perm::capable(caller.cred(), Caps::MKNOD).or(Status::EPERM)?;
        }
        let (shards, default) = self.wanted_of_directory(caller, fid, new)?;
        let mode = if kind == FileKind::Symlink { 0o777 } else { mode & 0o7777 };
        Ok(Creation { fid: *fid, kind, mode, umask: umask & 0o777, rdev, target, shards, default })
    }

    /// Returns the shards of a new directory, if it is to have any, and the default for directories in it.
    fn wanted_of_directory(
        &self,
        caller: &Caller<'_>,
        fid: &Fid,
        new: &NewFile<'_>,
    ) -> StatusResult<(Option<DirLayout>, Option<DirDefault>)> {
        match new {
            NewFile::Striped { lmv, chosen } => {
                if *chosen {
                    self.core.placement.may_choose_mdts(caller)?;
                }
                // A caller that chose the shards specified no default for directories in it.
                let nothing = DirDefault { count: 0, ..DirDefault::default() };
                Ok((Some(check_new_shards(&self.leaves.records, fid, lmv)?), chosen.then_some(nothing)))
            }
            NewFile::ChosenDirectory { default } => {
                self.core.placement.may_choose_mdts(caller)?;
                Ok((None, Some(DirDefault::decode(default).map_err(|_| Status::EINVAL)?)))
            }
            _ => Ok((None, None)),
        }
    }

    fn open_existing(
        &self,
        caller: &Caller<'_>,
        directory: &InodeRecord,
        fid: &Fid,
        handle: OpenHandle,
        flags: OpenFlags,
    ) -> StatusResult<MdsAnswer> {
        let record = self.leaves.records.inode(fid)?;
        match record.attr.kind() {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Status::EISDIR),
            // The caller assumed that the name does not exist: it has to walk the path again.
            _ => return Err(Status::ESTALE),
        }
        let flags = flags - OpenFlags::CREATED - OpenFlags::REPLAY;
        let mut tx = self.leaves.records.begin();
        let opened = self.files.open_locked(&mut tx, caller, &record, flags)?;
        self.files.log_open(caller, &mut tx, fid, flags);
        let reply = MdsReply::Created {
            attr: opened.attr,
            created: false,
            layout: opened.layout,
            parent: directory.shown(),
        };
        tx.note_opened(*fid, handle, flags);
        let answer = self.core.commits.finish(caller, tx, reply)?;
        self.files.note_open(caller, *fid, handle, flags, opened.began_exact);
        Ok(answer)
    }

    /// Checks that there is free space for a new inode, and that no inode has its FID.
    fn check_new(&self, wanted: &Creation<'_>, opens: bool) -> StatusResult<()> {
        if self.leaves.space.is_full() {
            return Err(Status::ENOSPC);
        }
        let in_use = self.leaves.store.get(INODES, &wanted.fid.to_key(), |value| value.is_some());
        if in_use.map_err(|error| self.leaves.records.store_failed(&error))? {
            return Err(Status::EEXIST);
        }
        match opens && wanted.kind != FileKind::Regular {
            true => Err(Status::EINVAL),
            false => Ok(()),
        }
    }

    fn create_new(
        &self,
        caller: &Caller<'_>,
        directory: &Arc<InodeRecord>,
        name: Option<&[u8]>,
        wanted: &Creation<'_>,
        open: Option<(OpenHandle, OpenFlags)>,
    ) -> StatusResult<MdsAnswer> {
        self.check_new(wanted, open.is_some())?;
        let now = now();
        let mut new =
            plan::inode(caller.cred(), directory, wanted, &self.handed(directory, wanted.kind)?, now)?;
        if open.is_some_and(|(_, flags)| flags.contains(OpenFlags::APPEND)) {
            self.core.layouts.lay_out_for_appends(directory, Arc::make_mut(&mut new.record))?;
        }
        let writes = open.is_some_and(|(_, flags)| flags.contains(OpenFlags::WRITE));
        if writes {
            self.core.layouts.place_data(Arc::make_mut(&mut new.record))?;
        }
        let mut plan = match name {
            Some(name) => plan::make(directory, name, new, None, now),
            None => plan::make_unnamed(directory, new),
        };
        let mut tx = self.leaves.records.begin();
        if name.is_none() {
            tx.batch().put(ORPHANS, &wanted.fid.to_key(), &OrphanKind::Unnamed.encode());
        }
        if !self.leaves.changelog.wanted().is_empty()
            && let Some(change) = events::of_plan(&plan)
        {
            self.leaves.changelog.note(caller, &mut tx, &change);
        }
        self.core.staging.stage_plan(&mut tx, &mut plan, &[directory], now)?;
        if let Some((_, flags)) = open {
            self.files.log_open(caller, &mut tx, &wanted.fid, flags - OpenFlags::TRUNCATE);
        }
        if let (Some((handle, flags)), Some(record)) = (open, tx.stored(&wanted.fid)) {
            let is_to_be_decided =
                writes && self.core.layouts.is_undecided(&record) && self.core.layouts.begins_on_mdt()?;
            let given = match is_to_be_decided {
                false => self.core.layouts.layout_of(&record)?.map(Arc::new),
                // The client that created it may hold back data for the head.
                true => Some(Arc::new(self.core.layouts.layout_or_requested(&record)?)),
            };
            if let MdsReply::Created { layout, .. } = &mut plan.reply {
                *layout = given;
            }
            tx.note_opened(wanted.fid, handle, flags);
        }
        let answer = self.core.commits.finish(caller, tx, plan.reply)?;
        if let Some((handle, flags)) = open {
            let is_open = self.files.note_open(caller, wanted.fid, handle, flags, true);
            if is_open && writes {
                self.leaves.opens.note_made(&wanted.fid);
            }
            if !is_open && name.is_none() {
                // Without a name no program could find it.
                self.files.destroy_orphan_locked(&wanted.fid)?;
            }
        }
        Ok(answer)
    }

    /// Creates a directory of which a part is on another MDT. One that the caller has chosen is awaited longer.
    fn create_apart(
        &self,
        caller: &Caller<'_>,
        (parent, name): (&Fid, &[u8]),
        wanted: &Creation<'_>,
        is_chosen: bool,
    ) -> StatusResult<MdsAnswer> {
        let shards = wanted.shards.iter().flat_map(|layout| &layout.shards);
        let fids: Vec<Fid> = std::iter::once(&wanted.fid).chain(shards).copied().collect();
        let names = [(*parent, name)];
        let working_set = self.core.performer.lock_new(caller, &names, &fids, is_chosen)?;
        let home = working_set.home(0)?;
        check_access(&home, caller.cred(), perm::WRITE | perm::EXEC)?;
        if working_set.entry(0).is_some() || fids.iter().any(|fid| working_set.inode(fid).is_ok()) {
            return Err(Status::EEXIST);
        }
        if self.leaves.space.is_full() {
            return Err(Status::ENOSPC);
        }
        let now = now();
        let new = plan::inode(caller.cred(), &home, wanted, &self.handed(&home, wanted.kind)?, now)?;
        let plan = plan::make(&home, name, new, wanted.shards.as_ref(), now);
        self.core.performer.perform(caller, working_set, plan, &[&home], now)
    }

    /// Returns the defaults that an inode of this kind inherits from a directory and that its record does not
    /// have.
    fn handed(&self, directory: &InodeRecord, kind: FileKind) -> StatusResult<Handed> {
        let acl = match directory.attr.flags.contains(AttrFlags::HAS_DEFAULT_ACL) {
            true => self.leaves.records.default_acl(&directory.attr.fid)?,
            false => None,
        };
        Ok(Handed { acl, layout: self.core.layouts.hands_down(directory, kind)? })
    }
}
