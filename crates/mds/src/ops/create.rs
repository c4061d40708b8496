//! Making files, directories, symlinks and nodes.

use super::elsewhere::check_elsewhere;
use super::layout::stored_wish;
use crate::locks::Want;
use crate::mds::Mds;
use crate::names::Place;
use crate::service::Caller;
use crate::shards::named_in;
use crate::tables::{INODES, ORPHANS, OrphanKind, XATTRS, xattr_key};
use nacre_layout::dir_layout::DirLayout;
use nacre_layout::{DirDefault, user};
use nacre_ondisk::{InodeRecord, XattrRecord};
use nacre_types::acl::Acl;
use nacre_types::attr::S_ISGID;
use nacre_types::fid::SEQ_NORMAL;
use nacre_types::limits::SYMLINK_MAX;
use nacre_types::name::check_name;
use nacre_types::perm::{self, Verdict};
use nacre_types::{Attr, AttrFlags, Caps, Fid, FileKind, SizeSource, Status, StatusResult, Timestamp};
use nacre_wire::mds::{MdsAnswer, MdsReply, MdsRequest, NewFile, OpenFlags};
use std::sync::Arc;

/// Name of the attribute that holds a directory's default ACL.
pub(super) const ACL_DEFAULT: &[u8] = b"system.posix_acl_default";
const S_IXGRP: u32 = 0o010;

/// What is to be made, taken from the request and checked as far as that needs no lock.
pub(super) struct Wanted<'a> {
    pub fid: Fid,
    pub kind: FileKind,
    mode: u32,
    umask: u32,
    rdev: u32,
    target: &'a [u8],
    /// Of a directory whose names are to lie in shards.
    pub shards: Option<DirLayout>,
    /// Of a directory whose place somebody has chosen: what directories in it get.
    default: Option<DirDefault>,
}

impl Mds {
    pub(crate) fn create(&self, caller: &Caller<'_>, request: &MdsRequest<'_>) -> StatusResult<MdsAnswer> {
        let MdsRequest::Create { parent, name, fid, new, mode, umask, open, exclusive } = request else {
            return Err(Status::EPROTO);
        };
        if let Some((handle, _)) = open {
            self.may_open(caller, *handle)?;
        }
        let wanted = self.check_wanted(caller, fid, new, *mode, *umask)?;
        let named = *new != NewFile::Unnamed;
        if named {
            check_name(name)?;
        } else if !name.is_empty() {
            return Err(Status::EINVAL);
        }
        if !named && self.inode(parent)?.attr.is_regular() {
            return self.create_beside(caller, parent, &wanted, *open);
        }
        let own = if named { Want::Name(*parent, name) } else { Want::Still(*parent) };
        let mut child = None;
        loop {
            let wants = [Some(own), child];
            let mut locked = self.lock_for(caller, wants.iter().flatten())?;
            let directory = if named { self.home_of(parent, name)? } else { self.directory(parent)? };
            self.check_access(&directory, caller.cred(), perm::EXEC)?;
            let hash = if named { self.hash(name) } else { 0 };
            if named && let Some(found) = self.find_name(parent, hash, name)? {
                let Some((handle, flags)) = open.filter(|_| !exclusive) else { return Err(Status::EEXIST) };
                if found.fid.mdt_index() != self.index {
                    // The caller believed that there was nothing: it has to walk the path again.
                    return Err(Status::ESTALE);
                }
                let lead = Want::Whole(found.fid);
                if !locked.add(&lead) {
                    child = Some(lead);
                    continue;
                }
                return self.open_existing(caller, &directory, &found.fid, handle, flags);
            }
            self.check_access(&directory, caller.cred(), perm::WRITE)?;
            if wanted.fid.mdt_index() != self.index || wanted.shards.is_some() {
                drop(locked);
                return self.create_elsewhere(caller, parent, name, &wanted);
            }
            let place = named.then_some((Place { parent: named_in(&directory), name }, hash));
            return self.create_new(caller, &directory, place, &wanted, *open);
        }
    }

    /// Makes a file without a name for the data of another one, on the MDT of that: its directory may lie elsewhere. It inherits nothing.
    fn create_beside(
        &self,
        caller: &Caller<'_>,
        file: &Fid,
        wanted: &Wanted<'_>,
        open: Option<(nacre_types::OpenHandle, OpenFlags)>,
    ) -> StatusResult<MdsAnswer> {
        let _locked = self.locks.lock(&[Want::Whole(*file)])?;
        let record = self.inode(file)?;
        self.may_set_layout(caller, &record)?;
        let attr = Attr { mode: FileKind::Directory.mode_bits() | 0o700, nlink: 2, ..Attr::default() };
        let nowhere = Arc::new(InodeRecord { attr, ..InodeRecord::default() });
        self.create_new(caller, &nowhere, None, wanted, open)
    }

    /// Whether a FID may be that of a new inode, which somebody else than this MDT may have chosen.
    fn check_new_fid(&self, fid: &Fid, new: &NewFile<'_>) -> StatusResult<()> {
        if fid.mdt_index() != self.index {
            // Only a directory may lie elsewhere than its name; that MDT knows whether the FID is free.
            return check_elsewhere(new);
        }
        self.check_own_fid(fid)
    }

    /// Whether a FID of this MDT may be that of a new inode.
    pub(crate) fn check_own_fid(&self, fid: &Fid) -> StatusResult<()> {
        let given_out = self.next_sequence.load(std::sync::atomic::Ordering::Acquire);
        match fid.seq < SEQ_NORMAL || fid.seq >= given_out || fid.oid == 0 || fid.ver != 0 {
            true => Err(Status::EINVAL),
            false => Ok(()),
        }
    }

    fn check_wanted<'a>(
        &self,
        caller: &Caller<'_>,
        fid: &Fid,
        new: &NewFile<'a>,
        mode: u32,
        umask: u32,
    ) -> StatusResult<Wanted<'a>> {
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
        // Number 0 is a whiteout, which everybody may make.
        if kind == FileKind::BlockDevice || (kind == FileKind::CharDevice && rdev != 0) {
            perm::capable(caller.cred(), Caps::MKNOD).or(Status::EPERM)?;
        }
        let (shards, default) = self.wanted_of_directory(caller, fid, new)?;
        let mode = if kind == FileKind::Symlink { 0o777 } else { mode & 0o7777 };
        Ok(Wanted { fid: *fid, kind, mode, umask: umask & 0o777, rdev, target, shards, default })
    }

    /// The shards of a new directory, if it is to have some, and what was said about directories in it.
    fn wanted_of_directory(
        &self,
        caller: &Caller<'_>,
        fid: &Fid,
        new: &NewFile<'_>,
    ) -> StatusResult<(Option<DirLayout>, Option<DirDefault>)> {
        match new {
            NewFile::Striped { lmv, chosen } => {
                if *chosen {
                    self.may_choose_mdts(caller)?;
                }
                // Who chose said nothing about directories in it.
                let nothing = DirDefault { count: 0, ..DirDefault::default() };
                Ok((Some(self.check_new_shards(fid, lmv)?), chosen.then_some(nothing)))
            }
            NewFile::ChosenDirectory { default } => {
                self.may_choose_mdts(caller)?;
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
        handle: nacre_types::OpenHandle,
        flags: OpenFlags,
    ) -> StatusResult<MdsAnswer> {
        let record = self.inode(fid)?;
        match record.attr.kind() {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Status::EISDIR),
            // The caller believed that there was nothing: it has to walk the path again.
            _ => return Err(Status::ESTALE),
        }
        let flags = flags - OpenFlags::CREATED - OpenFlags::REPLAY;
        let mut tx = self.begin();
        let opened = self.open_locked(&mut tx, caller, &record, flags)?;
        let reply = MdsReply::Created {
            attr: opened.attr,
            created: false,
            layout: opened.layout,
            parent: directory.shown(),
        };
        tx.note_opened(*fid, handle, flags);
        let answer = self.finish(caller, tx, reply)?;
        self.note_open(caller, *fid, (handle, flags), opened.began_exact);
        Ok(answer)
    }

    /// Whether there is room for a new inode, and none with its FID.
    fn check_new(&self, wanted: &Wanted<'_>, opens: bool) -> StatusResult<()> {
        if self.space.is_full() {
            return Err(Status::ENOSPC);
        }
        let in_use = self.store.get(INODES, &wanted.fid.to_key(), |value| value.is_some());
        if in_use.map_err(|error| self.store_failed(&error))? {
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
        place: Option<(Place<'_>, u64)>,
        wanted: &Wanted<'_>,
        open: Option<(nacre_types::OpenHandle, OpenFlags)>,
    ) -> StatusResult<MdsAnswer> {
        self.check_new(wanted, open.is_some())?;
        let now = self.now();
        let mut tx = self.begin();
        let mut record = self.new_record(caller, directory, wanted, now)?;
        if let Some(value) = self.inherit(directory, wanted, &mut record)? {
            let (scratch, batch) = tx.scratch();
            XattrRecord { value: &value }.encode(scratch);
            batch.put(XATTRS, xattr_key(&wanted.fid, ACL_DEFAULT).as_slice(), scratch);
        }
        if open.is_some_and(|(_, flags)| flags.contains(OpenFlags::APPEND)) {
            self.lay_out_for_appends(directory, &mut record)?;
        }
        let writes = open.is_some_and(|(_, flags)| flags.contains(OpenFlags::WRITE));
        if writes {
            self.place_data(&mut record)?;
        }
        let parent = match place {
            Some((place, hash)) => {
                record.parent = place.parent;
                record.name = place.name.to_vec();
                tx.put_dirent(&directory.attr.fid, hash, place.name, wanted.fid, wanted.kind);
                let mut parent = InodeRecord::clone(directory);
                parent.attr.mtime = now;
                parent.attr.ctime = now;
                parent.attr.size += 1;
                parent.attr.nlink += u32::from(wanted.kind == FileKind::Directory);
                tx.put_inode(parent).shown()
            }
            None => {
                record.attr.nlink = 0;
                record.attr.flags |= AttrFlags::ORPHAN;
                tx.batch().put(ORPHANS, &wanted.fid.to_key(), &OrphanKind::Unnamed.encode());
                directory.shown()
            }
        };
        let record = tx.put_new_inode(record);
        let layout = match (open, writes && self.is_undecided(&record) && self.begins_on_mdt()?) {
            (None, _) => None,
            (_, false) => self.layout_of(&record)?.map(Arc::new),
            // The client that made it may hold back data for the head.
            (_, true) => Some(Arc::new(self.layout_or_wished(&record)?)),
        };
        // Nothing was written yet, whatever the writer is going to do.
        let attr = Attr { size_source: SizeSource::Exact, ..record.shown() };
        let reply = MdsReply::Created { attr, created: true, layout, parent };
        if let Some((handle, flags)) = open {
            tx.note_opened(wanted.fid, handle, flags);
        }
        let answer = self.finish(caller, tx, reply)?;
        if let Some((handle, flags)) = open {
            let is_open = self.note_open(caller, wanted.fid, (handle, flags), true);
            if is_open && writes {
                self.opens.note_made(&wanted.fid);
            }
            if !is_open && place.is_none() {
                // Without a name nobody could find it.
                self.destroy_orphan_locked(&wanted.fid)?;
            }
        }
        Ok(answer)
    }

    pub(super) fn new_record(
        &self,
        caller: &Caller<'_>,
        directory: &InodeRecord,
        wanted: &Wanted<'_>,
        now: Timestamp,
    ) -> StatusResult<InodeRecord> {
        let cred = caller.cred();
        let mut mode = wanted.mode;
        let mut gid = cred.gid;
        let is_dir = wanted.kind == FileKind::Directory;
        if directory.attr.mode & S_ISGID != 0 {
            gid = directory.attr.gid;
            if is_dir {
                mode |= S_ISGID;
            } else if mode & (S_ISGID | S_IXGRP) == S_ISGID | S_IXGRP && !may_keep_sgid(caller, gid)? {
                mode &= !S_ISGID;
            }
        }
        let inherits_project = directory.attr.flags.contains(AttrFlags::PROJECT_INHERIT);
        let mut flags = AttrFlags::empty();
        flags.set(AttrFlags::PROJECT_INHERIT, inherits_project && is_dir);
        let attr = Attr {
            fid: wanted.fid,
            mode: wanted.kind.mode_bits() | mode,
            uid: cred.uid,
            gid,
            nlink: if is_dir { 2 } else { 1 },
            rdev: wanted.rdev,
            size: wanted.target.len() as u64,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            projid: if inherits_project { directory.attr.projid } else { 0 },
            flags,
            ..Attr::default()
        };
        Ok(InodeRecord { attr, body: wanted.target.to_vec(), ..InodeRecord::default() })
    }

    /// What a new inode gets from its directory: rights by the default ACL or the umask, and the default layout. Gives the default
    /// ACL that a new directory is to have.
    pub(super) fn inherit(
        &self,
        directory: &InodeRecord,
        wanted: &Wanted<'_>,
        record: &mut InodeRecord,
    ) -> StatusResult<Option<Vec<u8>>> {
        let kind = wanted.kind;
        if matches!(kind, FileKind::Directory | FileKind::Regular) && self.hands_down(directory, kind)? {
            record.body = directory.body.clone();
            record.attr.flags |= AttrFlags::HAS_LAYOUT;
        }
        if kind == FileKind::Symlink {
            return Ok(None);
        }
        if kind == FileKind::Directory {
            self.hand_down_dir_default(directory, wanted.default.as_ref(), record)?;
        }
        let default = match directory.attr.flags.contains(AttrFlags::HAS_DEFAULT_ACL) {
            true => self.default_acl(&directory.attr.fid)?,
            false => None,
        };
        let Some(default) = default else {
            record.attr.mode &= !wanted.umask;
            return Ok(None);
        };
        let (access, bits) = default.inherit(record.attr.mode);
        record.attr.mode = (record.attr.mode & !0o777) | bits;
        if !access.is_minimal() {
            record.acl = access.to_xattr();
            record.attr.flags |= AttrFlags::HAS_ACL;
        }
        if kind != FileKind::Directory {
            return Ok(None);
        }
        record.attr.flags |= AttrFlags::HAS_DEFAULT_ACL;
        Ok(Some(default.to_xattr()))
    }

    /// True if what is made in a directory gets a copy of its default. The root's is looked up when it is needed, as it stands for
    /// the whole file system; only a file's first OST is a matter of the directory itself. Source: reference 1.1, sanity 65n.
    fn hands_down(&self, directory: &InodeRecord, kind: FileKind) -> StatusResult<bool> {
        if directory.body.is_empty() || directory.attr.fid != Fid::ROOT || user::is_foreign(&directory.body) {
            return Ok(!directory.body.is_empty());
        }
        Ok(kind == FileKind::Regular && !self.begins_on_mdt()?)
    }

    /// A new file that is to be appended to has its own default.
    fn lay_out_for_appends(&self, directory: &InodeRecord, record: &mut InodeRecord) -> StatusResult<()> {
        if let Some(wish) = self.append_layout().wish(&stored_wish(directory)?) {
            record.body = user::encode_wish(&record.attr.fid, &wish);
            record.attr.flags |= AttrFlags::HAS_LAYOUT;
        }
        Ok(())
    }

    /// The default ACL of a directory, if it has one.
    pub(super) fn default_acl(&self, fid: &Fid) -> StatusResult<Option<Acl>> {
        match self.stored_xattr(fid, ACL_DEFAULT)? {
            None => Ok(None),
            Some(value) => Acl::parse_xattr(&value).map_err(|_| {
                log::error!("default ACL of {fid} is damaged");
                Status::EUCLEAN
            }),
        }
    }
}

/// A name in a directory whose project is inherited must not lead to an inode of another project, or it would be counted
/// where it is not (as in ext4).
pub(super) fn check_same_project(directory: &Attr, inode: &Attr) -> StatusResult<()> {
    let inherits = directory.flags.contains(AttrFlags::PROJECT_INHERIT);
    if inherits && directory.projid != inode.projid { Err(Status::EXDEV) } else { Ok(()) }
}

/// Whether the caller may give a file the set-group-id bit for `gid`.
pub(super) fn may_keep_sgid(caller: &Caller<'_>, gid: u32) -> StatusResult<bool> {
    let verdict = match perm::in_group(caller.cred(), gid) {
        Verdict::Denied => perm::capable(caller.cred(), Caps::FSETID),
        verdict => verdict,
    };
    match verdict {
        Verdict::Granted => Ok(true),
        Verdict::Denied => Ok(false),
        Verdict::NeedFull => Err(Status::NEED_CREDENTIALS),
    }
}
