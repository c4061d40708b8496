//! Names: lookups, creates, renames and removals.

pub(crate) mod attr;
pub(crate) mod migrate;
pub(crate) mod mkdir;

use crate::base::Base;
use crate::caller::Caller;
use crate::data::Data;
use crate::inodes::dot_lustre::{self, check_may_name};
use crate::inodes::intent::Watch;
use crate::inodes::root::soon;
use crate::inodes::{Absent, Found, Inodes, Keep};
use crate::layouts::Layouts;
use crate::lease::Lease;
use crate::node::NodeTable;
use crate::placement::Placement;
use crate::requests::Requests;
use crate::requests::mdt::Answer;
use crate::shards::Shards;
use crate::shards::absent::Absences;
use crate::sizes::Sizes;
use crate::statahead::Statahead;
use crate::write_back::WriteBack;
use nacre_types::{Attr, AttrFlags, Failure, FailureResult, Fid, FileKind, Status, StatusResult, perm};
use nacre_wire::mds::{MdsReply, MdsRequest, NewFile, RenameFlags};
use std::sync::Arc;

/// How often a name is looked up again that leads to a missing inode. The inode is being moved or removed;
/// another lookup shows which.
const FOLLOWED: usize = 8;

/// What to create, in addition to its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Created<'a> {
    /// Kind of the new inode.
    pub new: NewFile<'a>,
    /// Type and permission bits, before the umask.
    pub mode: u32,
    /// The caller's umask.
    pub umask: u32,
}

/// A name, and where it is stored.
#[derive(Clone, Copy)]
struct Place<'a> {
    /// Directory that shows it.
    parent: Fid,
    /// That directory, or the shard of it that has the name.
    home: Fid,
    name: &'a [u8],
}

/// Lookups and changes of names and attributes.
pub struct Names {
    requests: Arc<Requests>,
    layouts: Arc<Layouts>,
    shards: Arc<Shards>,
    write_back: Arc<WriteBack>,
    sizes: Arc<Sizes>,
    inodes: Arc<Inodes>,
    data: Arc<Data>,
    placement: Arc<Placement>,
    statahead: Arc<Statahead>,
    nodes: Arc<NodeTable>,
    lease: Arc<Lease>,
    absences: Arc<Absences>,
}

impl Names {
    pub(crate) fn new(
        base: &Base,
        write_back: Arc<WriteBack>,
        sizes: Arc<Sizes>,
        inodes: Arc<Inodes>,
        data: Arc<Data>,
        placement: Arc<Placement>,
        statahead: Arc<Statahead>,
    ) -> Names {
        Names {
            requests: base.requests.clone(),
            layouts: base.layouts.clone(),
            shards: base.shards.clone(),
            write_back,
            sizes,
            inodes,
            data,
            placement,
            statahead,
            nodes: base.nodes.clone(),
            lease: base.lease.clone(),
            absences: base.absences.clone(),
        }
    }

    /// Looks a name up. Found names count as one lookup of their node (see
    /// [`Inodes::forget`](crate::inodes::Inodes::forget)).
    ///
    /// # Errors
    /// `EACCES` without search permission; `ENOTDIR`.
    pub fn lookup(&self, caller: &Caller, parent: Fid, name: &[u8]) -> StatusResult<Result<Found, Absent>> {
        self.requests.faults.edge("lookup", || {
            let mut found = Err(Status::EAGAIN.into());
            for _ in 0..FOLLOWED {
                let mut is_gone = false;
                found = self.shards.at_home(parent, name, |home| {
                    self.lookup_at(caller, Place { parent, home, name }, &mut is_gone)
                });
                // The inode was removed before its size was known: a rename may have replaced it.
                is_gone |= matches!(&found, Err(failure) if failure.status() == Status::ENOENT);
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
        })
    }

    /// Looks a name up that is stored with `home`: the directory or a shard of it. The inode that it leads to
    /// on another MDT may be missing (`is_gone`): removed, or moved, so that the name leads elsewhere by
    /// then.
    fn lookup_at(
        &self,
        caller: &Caller,
        Place { parent, home, name }: Place<'_>,
        is_gone: &mut bool,
    ) -> FailureResult<Result<Found, Absent>> {
        if let Some(found) = dot_lustre::lookup(&self.inodes, caller, parent, name)? {
            return Ok(found);
        }
        // Names move into a shard without a request of a client; if a restart of its MDT has ended the lock
        // on the shard, they would stay hidden.
        if self.shards.lists.get(parent).is_none() && self.shards.is_absent(home, name) {
            return Ok(Err(Absent { public: true, keep: true }));
        }
        if let Some(found) = self.statahead.lookup_ahead(parent, name)? {
            return Ok(Ok(found));
        }
        if !self.lease.exclusive() && name != b".." {
            let found = self.lookup_with_locks(caller, home, name, is_gone)?;
            if found.is_ok() {
                self.statahead.note_looked_up(parent, 0, name);
            }
            return Ok(found);
        }
        let answer = self.requests.call(caller, home, &MdsRequest::Lookup { parent: home, name })?;
        let lease = answer.lease;
        let (attr, public) = match answer.reply {
            MdsReply::Entry { attr, public } => (attr, public),
            MdsReply::Remote { fid, public, .. } => {
                self.inodes.note_public(parent, public, lease);
                return match self.inodes.elsewhere(fid)? {
                    // Both replies are true at the same time as long as one lease was in force.
                    Some((attr, then)) => {
                        self.inodes.found(attr, if then == lease { lease } else { 0 }, public).map(Ok)
                    }
                    None => {
                        *is_gone = true;
                        Ok(Err(Absent { public, keep: false }))
                    }
                };
            }
            _ => return Err(Status::EPROTO.into()),
        };
        self.inodes.note_public(parent, public, lease);
        match attr {
            Some(attr) => {
                self.statahead.note_looked_up(parent, lease, name);
                self.inodes.found(attr, lease, public).map(Ok)
            }
            None => Ok(Err(Absent { public, keep: self.inodes.keep_of(lease).name })),
        }
    }

    /// Looks a name up while there are other clients: a reply with a lock may be cached.
    fn lookup_with_locks(
        &self,
        caller: &Caller,
        parent: Fid,
        name: &[u8],
        is_gone: &mut bool,
    ) -> FailureResult<Result<Found, Absent>> {
        let answered = self.inodes.ask_with_locks(Some(caller), parent, Some(name))?;
        *is_gone = answered.is_gone;
        let Some(attr) = answered.attr else {
            let keep = answered.keeps_name(&self.lease, parent);
            return Ok(Err(Absent { public: answered.public, keep }));
        };
        let node = attr.fid.inode_number();
        let completed = self.sizes.complete_attr_to_keep(attr, 0);
        let (attr, is_sure) = completed.inspect_err(|_| self.nodes.forget(node, 1))?;
        let keep =
            Keep { name: answered.keeps_name(&self.lease, parent), attr: is_sure && answered.keeps_attr() };
        Ok(Ok(Found { node, attr, public: answered.public, keep }))
    }

    /// Creates a directory, symbolic link, device, pipe or socket, or a file that is not opened. Counts as
    /// one lookup.
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
        if what.new == NewFile::Directory && self.requests.mdts.len() > 1 {
            let make = || self.make_directory_by_default(caller, (parent, name), what);
            return self.requests.faults.edge("make a directory", make);
        }
        self.create_on(caller, (parent, name), what, None)
    }

    /// As [`Names::create`], with the inode on a certain MDT instead of that of its name: only a directory
    /// may be on another one.
    ///
    /// # Errors
    /// As [`Names::create`]; `EPERM` without the right to choose; `EINVAL` if there is no such MDT.
    pub fn create_on(
        &self,
        caller: &Caller,
        (parent, name): (Fid, &[u8]),
        what: &Created<'_>,
        mdt: Option<u16>,
    ) -> StatusResult<Found> {
        self.requests.faults.edge("create", || {
            check_may_name(parent, name)?;
            if let Some(mdt) = mdt
                && !self.requests.has_mdt(mdt)?
            {
                return Err(Status::EINVAL.into());
            }
            let found =
                self.shards.at_home(parent, name, |home| self.create_at(caller, (home, name), what, mdt))?;
            self.note_depth_below(parent, &found.attr);
            Ok(found)
        })
    }

    fn create_at(
        &self,
        caller: &Caller,
        (parent, name): (Fid, &[u8]),
        what: &Created<'_>,
        mdt: Option<u16>,
    ) -> FailureResult<Found> {
        let fid = match mdt {
            Some(mdt) if mdt != parent.mdt_index() => soon(|| self.requests.fresh_fid(mdt))?,
            _ => self.requests.fresh_fid(parent.mdt_index())?,
        };
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
        let watch = self.inodes.watch_names(parent);
        let _putting = self.absences.putting(parent, name);
        let answer = self.requests.call(caller, parent, &request)?;
        let MdsReply::Created { attr, parent, .. } = answer.reply else { return Err(Status::EPROTO.into()) };
        if perm::searchable_by_all(&attr) && !attr.flags.contains(AttrFlags::STRIPED) {
            self.absences.on_empty(attr.fid, answer.lease.into());
        }
        self.nodes.note(parent.fid.inode_number(), &parent, answer.lease.into());
        let mut found = self.inodes.made(attr, answer.lease, perm::searchable_by_all(&parent))?;
        found.keep.name |= found.public && watch.still();
        Ok(found)
    }

    /// Adds a name to an inode. Counts as one lookup.
    ///
    /// # Errors
    /// `EPERM` for directories, `EEXIST`, `EMLINK`, `EXDEV`, `EACCES`.
    pub fn link(&self, caller: &Caller, fid: Fid, parent: Fid, name: &[u8]) -> StatusResult<Found> {
        self.requests.faults.edge("link", || {
            check_may_name(parent, name)?;
            self.shards.at_home(parent, name, |home| {
                let watch = self.inodes.watch_names(home);
                let _putting = self.absences.putting(home, name);
                let request = MdsRequest::Link { fid, parent: home, name };
                let answer = match self.requests.call(caller, home, &request) {
                    // A file without a name gets its first one from its own MDT.
                    Err(failure) if failure == Status::WRONG_TARGET => {
                        self.requests.call(caller, fid, &request)?
                    }
                    answer => answer?,
                };
                let lease = answer.lease;
                let mut found = self.inodes.made(answer.attr()?, lease, self.inodes.is_public(parent))?;
                found.keep.name |= found.public && watch.still();
                Ok(found)
            })
        })
    }

    /// Removes a name; `directory` for `rmdir`. An inode without names stays readable while the kernel holds
    /// it.
    ///
    /// # Errors
    /// `ENOENT`, `EISDIR`, `ENOTDIR`, `ENOTEMPTY`, `EACCES`, `EPERM`.
    pub fn unlink(&self, caller: &Caller, parent: Fid, name: &[u8], directory: bool) -> StatusResult<()> {
        self.requests.faults.edge("unlink", || {
            check_may_name(parent, name)?;
            let ask = |home| {
                self.requests.call(caller, home, &MdsRequest::Unlink { parent: home, name, directory })
            };
            self.note_removed(self.shards.at_home(parent, name, ask)?)
        })
    }

    /// Removes the first name of a file by that name. If another file is moved to that name at the same
    /// instant, that one is lost, as with `rm`.
    fn remove_named(&self, caller: &Caller, fid: Fid) -> FailureResult<Answer> {
        let (parent, name) = self.inodes.parent_of(caller, fid, 0).map_err(Failure::logged)?;
        self.shards.at_home(parent, &name, |home| {
            let found = match self
                .requests
                .call(caller, home, &MdsRequest::Lookup { parent: home, name: &name })?
                .reply
            {
                MdsReply::Entry { attr, .. } => attr.map(|attr| attr.fid),
                MdsReply::Remote { fid, .. } => Some(fid),
                _ => return Err(Status::EPROTO.into()),
            };
            if found != Some(fid) {
                return Err(Status::ENOENT.into());
            }
            self.requests.call(
                caller,
                home,
                &MdsRequest::Unlink { parent: home, name: &name, directory: false },
            )
        })
    }

    /// Removes all names of a file that is known by its FID, each only if it is the file's.
    ///
    /// # Errors
    /// `EPERM` without the right to read and search everything; `EISDIR`, `EBUSY` of the root; `ENOENT`;
    /// those of [`Names::unlink`]. Names that were removed before an error stay removed.
    pub fn remove_fid(&self, caller: &Caller, fid: Fid) -> StatusResult<()> {
        self.requests.faults.edge("remove", || {
            if !caller.may_search_all() {
                return Err(Status::EPERM.into());
            }
            loop {
                let parent = self.inodes.parent_of(caller, fid, 0);
                let answer = match self.requests.call(caller, fid, &MdsRequest::RemoveFid { fid }) {
                    // The name is stored on another MDT.
                    Err(failure)
                        if matches!(failure.status(), Status::WRONG_TARGET | Status::WRONG_SHARD) =>
                    {
                        self.remove_named(caller, fid)?
                    }
                    answer => answer?,
                };
                let MdsReply::Removed { attr, .. } = &answer.reply else { return Err(Status::EPROTO.into()) };
                let is_last = attr.as_ref().is_none_or(|attr| attr.nlink == 0);
                self.note_removed(answer)?;
                // The kernel does that only if it removes a name itself.
                if let (Some(kernel), Ok((parent, _))) = (self.lease.kernel(), parent) {
                    kernel.drop_attributes(parent.inode_number());
                    kernel.drop_attributes(fid.inode_number());
                }
                if is_last {
                    return Ok(());
                }
            }
        })
    }

    /// Renames. The kernel moves its cached name too, which stays valid under the promise for the old
    /// directory: returns false if that does not hold in the new one, so that names must be looked up again.
    ///
    /// # Errors
    /// As [`Names::unlink`]; `EINVAL` for a directory into itself; `EEXIST` with `NOREPLACE`.
    pub fn rename(
        &self,
        caller: &Caller,
        from: (Fid, &[u8]),
        to: (Fid, &[u8]),
        flags: RenameFlags,
    ) -> StatusResult<bool> {
        self.requests.faults.edge("rename", || {
            check_may_name(from.0, from.1)?;
            check_may_name(to.0, to.1)?;
            self.shards.at_homes(from, to, |from_home, to_home| {
                let from = Place { parent: from.0, home: from_home, name: from.1 };
                let to = Place { parent: to.0, home: to_home, name: to.1 };
                self.rename_at(caller, from, to, flags)
            })
        })
    }

    fn rename_at(
        &self,
        caller: &Caller,
        from: Place<'_>,
        to: Place<'_>,
        flags: RenameFlags,
    ) -> FailureResult<bool> {
        let request = MdsRequest::Rename {
            from_parent: from.home,
            from_name: from.name,
            to_parent: to.home,
            to_name: to.name,
            flags,
        };
        let (from_watch, to_watch) = (self.inodes.watch_names(from.home), self.inodes.watch_names(to.home));
        let _putting = self.absences.putting(to.home, to.name);
        let answer = self.requests.call(caller, from.home, &request)?;
        self.note_removed(answer)?;
        if from.home == to.home {
            return Ok(true);
        }
        let keeps = |place: &Place<'_>, watch: &Watch| {
            self.inodes.is_public(place.parent) && (self.lease.exclusive() || watch.still())
        };
        // Names of a directory that not everybody may search are never cached.
        let was_kept = |directory: Fid| self.inodes.hints(directory).is_none_or(|hints| hints.public);
        let back = flags.contains(RenameFlags::EXCHANGE);
        Ok((keeps(&to, &to_watch) || !was_kept(from.parent))
            && (!back || keeps(&from, &from_watch) || !was_kept(to.parent)))
    }

    pub(crate) fn note_removed(&self, answer: Answer) -> FailureResult<()> {
        let MdsReply::Removed { attr, .. } = answer.reply else { return Err(Status::EPROTO.into()) };
        if let Some(attr) = attr {
            self.nodes.learn(&attr, answer.lease);
            if attr.nlink == 0 {
                self.shards.forget_absences(attr.fid);
                self.shards.lists.forget(attr.fid);
                self.nodes.note_removed(attr.fid.inode_number(), &self.sizes.with_own_size(attr));
                if !self.lease.exclusive() {
                    self.lease.inodes(attr.fid).on_removed(attr.fid);
                }
            }
        }
        Ok(())
    }

    /// Records the depth of a directory as one more than its parent's, which saves a request when the reach
    /// of a default is needed.
    fn note_depth_below(&self, parent: Fid, attr: &Attr) {
        if attr.is_dir()
            && self.requests.mdts.len() > 1
            && let Some(depth) = self.nodes.depth(parent.inode_number())
        {
            self.nodes.note_depth(attr.fid.inode_number(), depth.saturating_add(1));
        }
    }

    /// Finds a directory by its path from the root that this client sees; the kernel may get it as the root
    /// of a mount. Counts as one lookup, for as long as the client exists.
    ///
    /// # Errors
    /// `ENOENT`; `ENOTDIR`, also for symbolic links, which may lead anywhere; `EACCES`; the errors of
    /// servers.
    pub fn find_directory(&self, caller: &Caller, path: &str) -> StatusResult<Fid> {
        self.requests.faults.edge("find directory", || {
            let mut at = self.inodes.root.fid();
            if path.is_empty() {
                self.inodes.lookup_self(at).map_err(Failure::logged)?;
                return Ok(at);
            }
            for name in path.split('/') {
                let found = self
                    .lookup(caller, at, name.as_bytes())
                    .map_err(Failure::logged)?
                    .map_err(|_| Status::ENOENT)?;
                if !found.attr.is_dir() {
                    self.inodes.forget(found.node, 1);
                    return Err(Status::ENOTDIR.into());
                }
                at = found.attr.fid;
            }
            Ok(at)
        })
    }
}

impl Created<'_> {
    /// Describes a new file, device, pipe or socket with these type and permission bits.
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
