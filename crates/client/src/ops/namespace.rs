//! Names: found, made, moved and removed.

use crate::caller::Caller;
use crate::client::Client;
use crate::node::{Hints, node_of};
use crate::ops::dot_lustre::{check_may_name, virtual_attr};
use crate::ops::intent::Watch;
use nacre_types::{Attr, AttrFlags, Fid, FileKind, Status, StatusResult, perm};
use nacre_wire::mds::{MdsReply, MdsRequest, NewFile, RenameFlags};

/// How often a name is looked up that leads to an inode which is gone. It moves or is removed; one look more says which.
const FOLLOWED: usize = 8;

/// A name that was looked up or made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// Node id of the inode.
    pub node: u64,
    /// Its attributes.
    pub attr: Attr,
    /// Everybody may search the directory, so a cached name is open to all.
    pub public: bool,
    /// What may be cached until it is called back.
    pub keep: Keep,
}

/// What of an answer may be cached until this client says otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Keep {
    /// That the name is there, or is not, for those who may search the directory.
    pub name: bool,
    /// The attributes.
    pub attr: bool,
}

/// A name that is not there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Absent {
    /// Everybody may search the directory, so that its absence is open to all.
    pub public: bool,
    /// Its absence may be cached until it is called back.
    pub keep: bool,
}

/// What is to be made, beside its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Created<'a> {
    /// What to make.
    pub new: NewFile<'a>,
    /// Type and permission bits, before the umask.
    pub mode: u32,
    /// The caller's umask.
    pub umask: u32,
}

impl Client {
    /// Looks a name up. Found names count as one lookup of their node (see [`Client::forget`]).
    ///
    /// # Errors
    /// `EACCES` without search permission; `ENOTDIR`.
    pub fn lookup(&self, caller: &Caller, parent: Fid, name: &[u8]) -> StatusResult<Result<Found, Absent>> {
        let mut found = Err(Status::EAGAIN);
        for _ in 0..FOLLOWED {
            let mut is_gone = false;
            found =
                self.at_home(parent, name, |home| self.lookup_at(caller, (parent, home), name, &mut is_gone));
            if !is_gone {
                break;
            }
        }
        let found = found?;
        if let Ok(found) = &found
            && !matches!(name, b"." | b"..")
        {
            self.note_depth_below(parent, &found.attr);
        }
        Ok(found)
    }

    /// Looks a name up that is stored with `home`: the directory or a shard of it. What it leads to on another MDT may be gone: removed, or
    /// moved, so that the name leads elsewhere by now.
    fn lookup_at(
        &self,
        caller: &Caller,
        (parent, home): (Fid, Fid),
        name: &[u8],
        is_gone: &mut bool,
    ) -> StatusResult<Result<Found, Absent>> {
        if let Some(found) = self.lookup_virtual(caller, parent, name)? {
            return Ok(found);
        }
        // Into a shard, names come without anybody's doing; a lock on it that a restart of its MDT has ended would hide them.
        if self.shard_lists.get(parent).is_none() && self.is_absent(home, name) {
            return Ok(Err(Absent { public: true, keep: true }));
        }
        if let Some(found) = self.lookup_ahead(parent, name)? {
            return Ok(Ok(found));
        }
        if self.asks_with_locks() && name != b".." {
            let found = self.lookup_with_locks(caller, home, name, is_gone)?;
            if found.is_ok() {
                self.note_looked_up(parent, 0, name);
            }
            return Ok(found);
        }
        let answer = self.call(caller, home, &MdsRequest::Lookup { parent: home, name })?;
        let lease = answer.lease;
        let (attr, public) = match answer.reply {
            MdsReply::Entry { attr, public } => (attr, public),
            MdsReply::Remote { fid, public, .. } => {
                self.note_public(parent, public, lease);
                return match self.elsewhere(fid)? {
                    // Both answers are true together as long as one lease was in force.
                    Some((attr, then)) => {
                        self.found(attr, if then == lease { lease } else { 0 }, public).map(Ok)
                    }
                    None => {
                        *is_gone = true;
                        Ok(Err(Absent { public, keep: false }))
                    }
                };
            }
            _ => return Err(Status::EPROTO),
        };
        self.note_public(parent, public, lease);
        match attr {
            Some(attr) => {
                self.note_looked_up(parent, lease, name);
                self.found(attr, lease, public).map(Ok)
            }
            None => Ok(Err(Absent { public, keep: self.keep_of(lease).name })),
        }
    }

    /// The attributes of an inode whose name lies on another MDT, and the lease under which they were asked for; `None` if it was
    /// removed meanwhile.
    pub(crate) fn elsewhere(&self, fid: Fid) -> StatusResult<Option<(Attr, u64)>> {
        match self.call_system(fid, &MdsRequest::GetAttr { fid }) {
            Ok(answer) => {
                let lease = answer.lease;
                Ok(Some((answer.attr()?, lease)))
            }
            Err(Status::ENOENT) => Ok(None),
            Err(status) => Err(status),
        }
    }

    /// Looks a name up beside other clients: what comes with a lock may be kept.
    fn lookup_with_locks(
        &self,
        caller: &Caller,
        parent: Fid,
        name: &[u8],
        is_gone: &mut bool,
    ) -> StatusResult<Result<Found, Absent>> {
        let answered = self.ask_with_locks(Some(caller), parent, Some(name))?;
        *is_gone = answered.is_gone;
        let Some(attr) = answered.attr else {
            let keep = answered.keeps_name(self, parent);
            return Ok(Err(Absent { public: answered.public, keep }));
        };
        let node = attr.fid.inode_number();
        let completed = self.complete_attr_to_keep(attr, 0);
        let (attr, is_sure) = completed.inspect_err(|_| self.nodes.forget(node, 1))?;
        let keep = Keep { name: answered.keeps_name(self, parent), attr: is_sure && answered.keeps_attr() };
        Ok(Ok(Found { node, attr, public: answered.public, keep }))
    }

    /// The inode itself, as `.` of a directory names it; works for any inode, so that file handles can be opened.
    ///
    /// # Errors
    /// `ESTALE` if it is gone.
    pub fn lookup_self(&self, fid: Fid) -> StatusResult<Found> {
        if let Some(attr) = virtual_attr(fid) {
            return self.found(attr, 0, false);
        }
        let answer = self.call_system(fid, &MdsRequest::GetAttr { fid }).map_err(|status| match status {
            Status::ENOENT => Status::ESTALE,
            other => other,
        })?;
        let lease = answer.lease;
        self.found(answer.attr()?, lease, false)
    }

    /// The kernel gives back `lookups` of those that it was given.
    pub fn forget(&self, node: u64, lookups: u64) {
        self.nodes.forget(node, lookups);
    }

    /// Makes a directory, symbolic link, device, pipe or socket, or a file that is not opened. Counts as one lookup.
    ///
    /// # Errors
    /// `EEXIST`, `EACCES`, `EPERM`, `ENOSPC`, `ENAMETOOLONG`, `EMLINK`.
    pub fn create(
        &self,
        caller: &Caller,
        parent: Fid,
        name: &[u8],
        what: &Created<'_>,
    ) -> StatusResult<Found> {
        if what.new == NewFile::Directory && self.mdts.len() > 1 {
            return self.make_directory_by_default(caller, (parent, name), what);
        }
        self.create_on(caller, (parent, name), what, None)
    }

    /// As [`Client::create`], with the inode on a certain MDT instead of that of its name: only a directory may lie on another one.
    ///
    /// # Errors
    /// As [`Client::create`]; `EPERM` without the right to choose; `EINVAL` if there is no such MDT.
    pub fn create_on(
        &self,
        caller: &Caller,
        (parent, name): (Fid, &[u8]),
        what: &Created<'_>,
        mdt: Option<u16>,
    ) -> StatusResult<Found> {
        check_may_name(parent, name)?;
        if let Some(mdt) = mdt
            && !self.has_mdt(mdt)?
        {
            return Err(Status::EINVAL);
        }
        let found = self.at_home(parent, name, |home| self.create_at(caller, (home, name), what, mdt))?;
        self.note_depth_below(parent, &found.attr);
        Ok(found)
    }

    fn create_at(
        &self,
        caller: &Caller,
        (parent, name): (Fid, &[u8]),
        what: &Created<'_>,
        mdt: Option<u16>,
    ) -> StatusResult<Found> {
        let fid = self.fresh_fid(mdt.unwrap_or(parent.mdt_index()))?;
        let request = MdsRequest::Create {
            parent,
            name,
            fid,
            new: what.new,
            mode: what.mode,
            umask: what.umask,
            open: None,
            exclusive: true,
        };
        let watch = self.watch_names(parent);
        let _putting = self.absences.putting(parent, name);
        let answer = self.call(caller, parent, &request)?;
        let MdsReply::Created { attr, parent, .. } = answer.reply else { return Err(Status::EPROTO) };
        if perm::searchable_by_all(&attr) && !attr.flags.contains(AttrFlags::STRIPED) {
            self.absences.on_empty(attr.fid, answer.lease.into());
        }
        self.nodes.note(parent.fid.inode_number(), &parent, answer.lease.into());
        let mut found = self.found(attr, answer.lease, perm::searchable_by_all(&parent))?;
        found.keep.name |= found.public && watch.still();
        Ok(found)
    }

    /// Gives an inode another name. Counts as one lookup.
    ///
    /// # Errors
    /// `EPERM` for directories, `EEXIST`, `EMLINK`, `EXDEV`, `EACCES`.
    pub fn link(&self, caller: &Caller, fid: Fid, parent: Fid, name: &[u8]) -> StatusResult<Found> {
        check_may_name(parent, name)?;
        self.at_home(parent, name, |home| {
            let watch = self.watch_names(home);
            let _putting = self.absences.putting(home, name);
            let request = MdsRequest::Link { fid, parent: home, name };
            let answer = match self.call(caller, home, &request) {
                // A file without a name gets its first one from its own MDT.
                Err(Status::WRONG_TARGET) => self.call(caller, fid, &request)?,
                answer => answer?,
            };
            let lease = answer.lease;
            let mut found = self.found(answer.attr()?, lease, self.is_public(parent))?;
            found.keep.name |= found.public && watch.still();
            Ok(found)
        })
    }

    /// Removes a name; `directory` for `rmdir`. What the kernel still holds of an inode without names stays readable.
    ///
    /// # Errors
    /// `ENOENT`, `EISDIR`, `ENOTDIR`, `ENOTEMPTY`, `EACCES`, `EPERM`.
    pub fn unlink(&self, caller: &Caller, parent: Fid, name: &[u8], directory: bool) -> StatusResult<()> {
        check_may_name(parent, name)?;
        let ask = |home| self.call(caller, home, &MdsRequest::Unlink { parent: home, name, directory });
        self.note_removed(self.at_home(parent, name, ask)?)
    }

    /// Moves a name. The kernel moves what it knows of it too, with the promise that was given where it was: false if that does not hold
    /// where it is now, so that names must be looked up again.
    ///
    /// # Errors
    /// As [`Client::unlink`]; `EINVAL` for a directory into itself; `EEXIST` with `NOREPLACE`.
    pub fn rename(
        &self,
        caller: &Caller,
        from: (Fid, &[u8]),
        to: (Fid, &[u8]),
        flags: RenameFlags,
    ) -> StatusResult<bool> {
        check_may_name(from.0, from.1)?;
        check_may_name(to.0, to.1)?;
        self.at_homes(from, to, |from_home, to_home| {
            self.rename_at(caller, (from, from_home), (to, to_home), flags)
        })
    }

    fn rename_at(
        &self,
        caller: &Caller,
        (from, from_home): ((Fid, &[u8]), Fid),
        (to, to_home): ((Fid, &[u8]), Fid),
        flags: RenameFlags,
    ) -> StatusResult<bool> {
        let request = MdsRequest::Rename {
            from_parent: from_home,
            from_name: from.1,
            to_parent: to_home,
            to_name: to.1,
            flags,
        };
        let watched = [(from.0, self.watch_names(from_home)), (to.0, self.watch_names(to_home))];
        let _putting = self.absences.putting(to_home, to.1);
        let answer = self.call(caller, from_home, &request)?;
        self.note_removed(answer)?;
        if from_home == to_home {
            return Ok(true);
        }
        let keeps = |(directory, watch): &(Fid, Watch)| {
            self.is_public(*directory) && (!self.asks_with_locks() || watch.still())
        };
        // Names of a directory that not everybody may search are never kept.
        let was_kept = |directory: Fid| self.hints(directory).is_none_or(|hints| hints.public);
        let [from, to] = watched;
        let back = flags.contains(RenameFlags::EXCHANGE);
        Ok((keeps(&to) || !was_kept(from.0)) && (!back || keeps(&from) || !was_kept(to.0)))
    }

    /// Target of a symbolic link.
    ///
    /// # Errors
    /// `EINVAL` if it is none.
    pub fn readlink(&self, fid: Fid) -> StatusResult<Vec<u8>> {
        self.call_system(fid, &MdsRequest::ReadLink { fid })?.bytes()
    }

    pub(crate) fn note_removed(&self, answer: crate::client::Answer) -> StatusResult<()> {
        let MdsReply::Removed { attr, .. } = answer.reply else { return Err(Status::EPROTO) };
        if let Some(attr) = attr {
            self.note(&attr, answer.lease);
            if attr.nlink == 0 {
                self.forget_absences(attr.fid);
                self.shard_lists.forget(attr.fid);
                self.nodes.note_removed(attr.fid.inode_number(), &self.with_own_size(attr));
                if self.asks_with_locks() {
                    self.inode_space(attr.fid).on_removed(attr.fid);
                }
            }
        }
        Ok(())
    }

    /// Completes attributes and counts a lookup.
    pub(crate) fn found(&self, attr: Attr, lease: u64, public: bool) -> StatusResult<Found> {
        let node = node_of(attr.fid)?;
        let (attr, is_sure) = self.complete_attr_to_keep(attr, lease)?;
        self.nodes.remember(node, &attr, lease.into(), 1);
        let mut keep = self.keep_of(lease);
        keep.attr &= is_sure;
        Ok(Found { node, attr, public, keep })
    }

    /// A directory is a level below another one: how far a default reaches need not be asked then.
    fn note_depth_below(&self, parent: Fid, attr: &Attr) {
        if attr.is_dir()
            && self.mdts.len() > 1
            && let Some(depth) = self.nodes.depth(parent.inode_number())
        {
            self.nodes.note_depth(attr.fid.inode_number(), depth.saturating_add(1));
        }
    }

    /// What may be kept of an answer to a question that was sent under `lease`.
    pub(crate) fn keep_of(&self, lease: u64) -> Keep {
        let alone = lease != 0 && lease == self.lease.number();
        Keep { name: alone, attr: alone }
    }

    /// True if everybody may search the directory, as far as is known.
    pub fn is_public(&self, directory: Fid) -> bool {
        self.hints(directory).is_some_and(|hints| hints.public)
    }

    /// What is stored beside an inode; `None` if it has to be asked.
    pub fn flags_of(&self, fid: Fid) -> Option<AttrFlags> {
        self.hints(fid).map(|hints| hints.flags)
    }

    /// What is known of an inode and still true.
    pub(crate) fn hints(&self, fid: Fid) -> Option<Hints> {
        let hints = self.nodes.hints(fid.inode_number())?;
        self.is_in_force(hints.warrant, fid).then_some(hints)
    }

    fn note_public(&self, directory: Fid, public: bool, lease: u64) {
        self.nodes.note_public(directory.inode_number(), public, lease.into());
    }
}

impl Created<'_> {
    /// A file, device, pipe or socket with these type and permission bits.
    ///
    /// # Errors
    /// `EINVAL` for bits that no file has, `EPERM` for a directory.
    pub fn node(mode: u32, rdev: u32, umask: u32) -> StatusResult<Created<'static>> {
        match FileKind::from_mode(mode) {
            None => Err(Status::EINVAL),
            Some(FileKind::Directory | FileKind::Symlink) => Err(Status::EPERM),
            Some(_) => Ok(Created { new: NewFile::Node { rdev }, mode, umask }),
        }
    }
}
