//! Clients that see a subtree as the root (filesets) and cannot leave it.
//!
//! A request is served only if every FID in it is below the client's root: it is that directory, or one of
//! its names is in a directory below, or the client has it open. Names need no check of their own, as an
//! entry of a directory below is below.
//!
//! The path upwards takes one record per directory. The result is cached for each directory until a directory
//! of this MDT moves. For directories of other MDTs, which have to be asked, it is cached for
//! [`REMOTE_LIFE`].

use crate::leaves::Leaves;
use crate::transactions::Coordinator;
use nacre_env::clock::Instant;
use nacre_env::sync::Mutex;
use nacre_ondisk::InodeRecord;
use nacre_rpc::Export;
use nacre_types::name::check_name;
use nacre_types::{Fid, Standing, Status, StatusResult};
use nacre_wire::dir_use::DirUseRequest;
use nacre_wire::lock::LockRequest;
use nacre_wire::mds::MdsRequest;
use nacre_wire::peer::{Name, PeerReply, PeerRequest};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// Maximum depth of a directory; paths cannot have more components.
const DEPTH_MAX: usize = 4096;
/// Maximum number of directories with a cached verdict, at about 80 bytes each.
const KNOWN_MAX: usize = 64 << 10;
/// Lifetime of a verdict if a directory on the path is on another MDT. Estimate: short compared with the
/// delay that an administrator expects when a directory moves from one tenant to another, and long compared
/// with a request to that MDT.
const REMOTE_LIFE: Duration = Duration::from_secs(1);
/// Maximum number of a file's names that are examined. A file with more is below a root if one of these is.
const NAMES_MAX: u32 = 1024;

/// Cached answer to whether a directory is below a root.
#[derive(Clone, Copy)]
struct Verdict {
    is_below: bool,
    /// Value of [`Records::tree_moves`] before the search.
    moves: u64,
    /// Time of the search, if another MDT was asked.
    asked: Option<Instant>,
}

/// See the [module documentation](self).
pub(crate) struct Filesets {
    leaves: Arc<Leaves>,
    /// FIDs of the directories that are roots of clients, by path.
    roots: Mutex<HashMap<String, Fid>>,
    /// Verdicts by root and directory.
    known: Mutex<HashMap<(Fid, Fid), Verdict>>,
    coordinator: Arc<Coordinator>,
}

impl Filesets {
    /// Resolves the path again when a client with this root connects, since it may lead to another directory.
    pub fn look_again(&self, path: &str) {
        self.roots.lock().remove(path);
    }

    fn verdict(&self, root: Fid, directory: Fid) -> Option<Verdict> {
        let verdict = *self.known.lock().get(&(root, directory))?;
        let is_fresh = verdict.asked.is_none_or(|at| at.elapsed() < REMOTE_LIFE);
        Some(verdict).filter(|verdict| is_fresh && verdict.moves == self.leaves.records.tree_moves())
    }

    fn note(&self, root: Fid, directories: &[Fid], verdict: Verdict) {
        let mut known = self.known.lock();
        if known.len() + directories.len() > KNOWN_MAX {
            known.clear();
        }
        known.extend(directories.iter().map(|directory| ((root, *directory), verdict)));
    }
}

impl Filesets {
    pub fn new(leaves: &Arc<Leaves>, coordinator: &Arc<Coordinator>) -> Filesets {
        Filesets {
            leaves: leaves.clone(),
            roots: Mutex::default(),
            known: Mutex::default(),
            coordinator: coordinator.clone(),
        }
    }

    /// Returns the directory that a client sees as the root.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR` if the path is not that of a directory; errors of other MDTs.
    pub fn root_of(&self, path: &str) -> StatusResult<Fid> {
        if let Some(fid) = self.roots.lock().get(path) {
            return Ok(*fid);
        }
        let mut at = Fid::ROOT;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            at = self.resolve_anywhere(at, name.as_bytes())?;
        }
        let record = self.coordinator.record_anywhere(&at)?.ok_or(Status::ENOENT)?;
        if !record.attr.is_dir() {
            return Err(Status::ENOTDIR);
        }
        self.roots.lock().insert(path.to_owned(), at);
        Ok(at)
    }

    /// Resolves a name in a directory on any MDT.
    fn resolve_anywhere(&self, parent: Fid, name: &[u8]) -> StatusResult<Fid> {
        check_name(name)?;
        for home in self.coordinator.homes_of(&parent, name, &mut Default::default())? {
            let found = match home.mdt_index() == self.leaves.index {
                true => self.leaves.records.resolve_local(&home, name),
                false => {
                    let at = Name { parent: home, name: name.to_vec() };
                    match self.leaves.transactions.ask(home.mdt_index(), PeerRequest::ResolveName { at })? {
                        PeerReply::Fid(fid) => Ok(fid),
                        _ => Err(Status::EPROTO),
                    }
                }
            };
            match found {
                Err(Status::ENOENT) => {}
                found => return found,
            }
        }
        Err(Status::ENOENT)
    }

    /// Returns true if a directory of any MDT is below a root.
    fn is_below(&self, root: Fid, directory: Fid) -> StatusResult<bool> {
        let moves = self.leaves.records.tree_moves();
        let (mut at, mut passed, mut asked) = (directory, Vec::new(), None);
        let is_below = loop {
            if at == root {
                break true;
            }
            if at == Fid::ROOT || at.is_zero() || passed.len() == DEPTH_MAX {
                break false;
            }
            if let Some(known) = self.verdict(root, at) {
                if passed.is_empty() {
                    return Ok(known.is_below);
                }
                // The verdict is as old as the one it is derived from.
                asked = known.asked.or(asked);
                break known.is_below;
            }
            passed.push(at);
            if at.mdt_index() != self.leaves.index {
                asked = Some(Instant::now());
            }
            let Some(record) = self.coordinator.record_anywhere(&at)? else { break false };
            at = record.parent;
        };
        self.note(root, &passed, Verdict { is_below, moves, asked });
        Ok(is_below)
    }

    /// Returns true if an inode of this MDT is below a root. An inode that does not exist is below none.
    fn is_seen(&self, root: Fid, fid: &Fid) -> StatusResult<bool> {
        if *fid == root {
            return Ok(true);
        }
        let Some(record) = self.leaves.records.find_inode(fid)? else { return Ok(false) };
        if record.attr.is_dir() {
            return self.is_below(root, *fid);
        }
        self.is_file_inside(root, &record)
    }

    fn is_file_inside(&self, root: Fid, record: &Arc<InodeRecord>) -> StatusResult<bool> {
        if !record.parent.is_zero() && self.is_below(root, record.parent)? {
            return Ok(true);
        }
        if record.attr.nlink > 1 {
            for index in 0..NAMES_MAX.min(record.attr.nlink) {
                let Some((parent, _)) = self.leaves.records.extra_link(&record.attr.fid, index)? else {
                    break;
                };
                if self.is_below(root, parent)? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Translates a request of a client that sees a subtree to the whole file system; `None` if it stays as
    /// it is. An inode outside the subtree does not exist for the client.
    ///
    /// # Errors
    /// `ENOENT` for inodes that are not below its root; `EPERM` for requests about a whole MDT.
    pub fn below_root<'a>(
        &self,
        export: &Export,
        standing: &Standing,
        request: &MdsRequest<'a>,
    ) -> StatusResult<Option<MdsRequest<'a>>> {
        let Some(path) = standing.root() else { return Ok(None) };
        let of_many = match request {
            MdsRequest::FilesOn { .. } | MdsRequest::Inodes { .. } | MdsRequest::Changelog(_) => {
                return Err(Status::EPERM);
            }
            MdsRequest::Locks { request } => matches!(request, LockRequest::Replay { .. }),
            MdsRequest::ListInodes { .. } | MdsRequest::MigrateFiles { .. } | MdsRequest::DirUse(_) => true,
            _ => false,
        };
        let fids = fids_of(request);
        if fids[0].is_none() && !of_many {
            // The request waits for no other MDT.
            return Ok(None);
        }
        let root = self.root_of(path)?;
        let check = |fid: &Fid| {
            let is_open = || self.leaves.opens.flags_of(fid, &export.client, None).is_some();
            match self.is_seen(root, fid)? || is_open() {
                true => Ok(()),
                false => Err(Status::ENOENT),
            }
        };
        match request {
            MdsRequest::Lookup { parent, name: b".." } if *parent == root => {
                Ok(Some(MdsRequest::Lookup { parent: root, name: b"." }))
            }
            // The directories above the root have no names for this client.
            MdsRequest::FidToLink { fid, .. } if *fid == root => Err(Status::ENODATA),
            MdsRequest::FidToLink { fid, index } | MdsRequest::FidToPath { fid, index } if *fid != root => {
                check(fid)?;
                let (parent, _) = self.leaves.records.link_of(fid, *index)?;
                if self.is_below(root, parent)? { Ok(None) } else { Err(Status::ENOENT) }
            }
            MdsRequest::ListInodes { fids, layouts, locks } => {
                let mut inside = Vec::with_capacity(fids.len());
                for fid in fids.iter().take(nacre_wire::mds::LIST_INODES_MAX) {
                    if check(fid).is_ok() {
                        inside.push(*fid);
                    }
                }
                Ok(Some(MdsRequest::ListInodes { fids: inside, layouts: *layouts, locks: *locks }))
            }
            MdsRequest::Locks { request: LockRequest::Replay { resource, .. } } => {
                check(&resource.fid()).map(|()| None)
            }
            MdsRequest::DirUse(DirUseRequest { dirs, .. }) => {
                // They may be of any MDT.
                let check = |dir: &Fid| if self.is_below(root, *dir)? { Ok(()) } else { Err(Status::ENOENT) };
                dirs.iter().try_for_each(check).map(|()| None)
            }
            MdsRequest::MigrateFiles { moves } => {
                moves.iter().try_for_each(|(fid, _)| check(fid)).map(|()| None)
            }
            _ => fids.into_iter().flatten().try_for_each(check).map(|()| None),
        }
    }

    /// Returns the root of a client that sees a subtree, if the request asks MDT 0 for the root of the file
    /// system; `None` for other requests.
    ///
    /// # Errors
    /// As [`Filesets::root_of`].
    pub fn own_root(&self, standing: &Standing, request: &MdsRequest<'_>) -> StatusResult<Option<Fid>> {
        match (standing.root(), request) {
            (Some(path), MdsRequest::GetAttr { fid: Fid::ROOT }) => self.root_of(path).map(Some),
            _ => Ok(None),
        }
    }

    /// Returns the directory at which paths end for a client.
    pub fn top_of(&self, standing: Option<&Standing>) -> StatusResult<Fid> {
        standing.and_then(Standing::root).map_or(Ok(Fid::ROOT), |path| self.root_of(path))
    }
}

/// Returns the inodes that a request concerns. A handle proves access on its own, and a new FID belongs to no
/// inode.
pub(crate) fn fids_of<'a>(request: &'a MdsRequest<'_>) -> [Option<&'a Fid>; 2] {
    match request {
        MdsRequest::Lookup { parent: fid, .. }
        | MdsRequest::LookupMany { parent: fid, .. }
        | MdsRequest::Create { parent: fid, .. }
        | MdsRequest::Unlink { parent: fid, .. }
        | MdsRequest::GetAttr { fid }
        | MdsRequest::SetAttr { fid, .. }
        | MdsRequest::Open { fid, .. }
        | MdsRequest::UpdateData { fid, .. }
        | MdsRequest::LayoutIntent { fid, .. }
        | MdsRequest::GetLayout { fid }
        | MdsRequest::Capabilities { fid, .. }
        | MdsRequest::SetLayout { fid, .. }
        | MdsRequest::GetDefaultLayout { fid }
        | MdsRequest::ReadDir { fid, .. }
        | MdsRequest::Scan { fid, .. }
        | MdsRequest::ReadLink { fid }
        | MdsRequest::GetXattr { fid, .. }
        | MdsRequest::ListXattr { fid }
        | MdsRequest::SetXattr { fid, .. }
        | MdsRequest::RemoveXattr { fid, .. }
        | MdsRequest::Access { fid, .. }
        | MdsRequest::FidToLink { fid, .. }
        | MdsRequest::FidToPath { fid, .. }
        | MdsRequest::RemoveFid { fid }
        | MdsRequest::DataChange { object: fid, .. }
        | MdsRequest::SetLock { fid, .. }
        | MdsRequest::LockFile { fid, .. }
        | MdsRequest::ReplayFileLocks { fid, .. }
        | MdsRequest::GetLock { fid, .. }
        | MdsRequest::Intent { fid, .. }
        | MdsRequest::LayoutAccess { fid, .. }
        | MdsRequest::OpenLease { fid, .. }
        | MdsRequest::Restripe { fid, .. }
        | MdsRequest::Migrate { fid, .. } => [Some(fid), None],
        MdsRequest::Link { fid, parent, .. } => [Some(fid), Some(parent)],
        MdsRequest::Rename { from_parent, to_parent, .. } => [Some(from_parent), Some(to_parent)],
        MdsRequest::SwapLayouts { first, second, .. } => [Some(first), Some(second)],
        MdsRequest::Statfs
        | MdsRequest::AllocateSequence
        | MdsRequest::Close { .. }
        | MdsRequest::CloseWrite { .. }
        | MdsRequest::Commit { .. }
        | MdsRequest::Ping
        | MdsRequest::LeaseReleased { .. }
        | MdsRequest::LeaseBusy { .. }
        | MdsRequest::RunStart
        | MdsRequest::RecoveryDone
        // Requests that are checked separately, or refused.
        | MdsRequest::Replay { .. }
        | MdsRequest::Locks { .. }
        | MdsRequest::ListInodes { .. }
        | MdsRequest::MigrateFiles { .. }
        | MdsRequest::FilesOn { .. }
        | MdsRequest::Inodes { .. }
        | MdsRequest::Changelog(_)
        | MdsRequest::Quota(_)
        | MdsRequest::DirUse(_)
        | MdsRequest::Peer(_) => [None, None],
    }
}
