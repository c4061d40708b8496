//! Clients that see a subtree as the root, and can get nowhere else.
//!
//! Every FID of a request is served only if it is below the client's root: if it is that directory, or one of its names is in a
//! directory below, or the client has it open. Names need no check of their own, as what is found in a directory below is below.
//!
//! The way up is one record for each directory, and what was found out is kept for each of them until a directory of this MDT gets
//! another place. Of directories of other MDTs, which are asked, it is kept for [`REMOTE_LIFE`].

use crate::leaves::Leaves;
use crate::operations::Coordinator;
use nacre_env::clock::Instant;
use nacre_env::sync::Mutex;
use nacre_ondisk::InodeRecord;
use nacre_rpc::Export;
use nacre_types::name::check_name;
use nacre_types::{Fid, Standing, Status, StatusResult};
use nacre_wire::lock::LockRequest;
use nacre_wire::mds::MdsRequest;
use nacre_wire::peer::{Name, PeerReply, PeerRequest};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// Directories above each other at most: more than a path has parts.
const DEPTH_MAX: usize = 4096;
/// Directories of which it is remembered whether they are below a root, at about 80 bytes each.
const KNOWN_MAX: usize = 64 << 10;
/// How long that counts if a directory on the way is on another MDT. Guess: short against what an administrator who moves a directory of
/// one tenant to another expects, and long against a request to that MDT.
const REMOTE_LIFE: Duration = Duration::from_secs(1);
/// Names of a file that are looked at. A file with more is below a root if one of these is.
const NAMES_MAX: u32 = 1024;

/// Whether a directory is below a root.
#[derive(Clone, Copy)]
struct Verdict {
    is_below: bool,
    /// [`Records::tree_moves`] before it was found out.
    moves: u64,
    /// When, if another MDT was asked.
    asked: Option<Instant>,
}

/// See the [module documentation](self).
pub(crate) struct Filesets {
    leaves: Arc<Leaves>,
    /// Directories that are roots of clients, by path.
    roots: Mutex<HashMap<String, Fid>>,
    /// By root and directory.
    known: Mutex<HashMap<(Fid, Fid), Verdict>>,
    coordinator: Arc<Coordinator>,
}

impl Filesets {
    /// A client comes that sees this directory: what it is now counts for it.
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

    /// The directory that a client sees as the root.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR` if the path leads to none; what other MDTs answer.
    pub fn root_of(&self, path: &str) -> StatusResult<Fid> {
        if let Some(fid) = self.roots.lock().get(path) {
            return Ok(*fid);
        }
        let mut at = Fid::ROOT;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            at = self.lead_anywhere(at, name.as_bytes())?;
        }
        let record = self.coordinator.record_anywhere(&at)?.ok_or(Status::ENOENT)?;
        if !record.attr.is_dir() {
            return Err(Status::ENOTDIR);
        }
        self.roots.lock().insert(path.to_owned(), at);
        Ok(at)
    }

    /// What a name leads to, wherever its directory lies.
    fn lead_anywhere(&self, parent: Fid, name: &[u8]) -> StatusResult<Fid> {
        check_name(name)?;
        for home in self.coordinator.homes_of(&parent, name, &mut Default::default())? {
            let found = match home.mdt_index() == self.leaves.index {
                true => self.leaves.records.lead_here(&home, name),
                false => {
                    let at = Name { parent: home, name: name.to_vec() };
                    match self.leaves.operations.ask(home.mdt_index(), PeerRequest::Lead { at })? {
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

    /// Whether a directory of any MDT is below a root.
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
                // As old as what it rests on.
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

    /// Whether an inode of this MDT is below a root. One that is not there is below none.
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

    /// What a client that sees a subtree asks for, in terms of the whole; `None`: as it is. What it cannot reach is not there.
    ///
    /// # Errors
    /// `ENOENT` for what is not below its root; `EPERM` for what is about all of an MDT.
    pub fn below_root<'a>(
        &self,
        export: &Export,
        standing: &Standing,
        request: &MdsRequest<'a>,
    ) -> StatusResult<Option<MdsRequest<'a>>> {
        let Some(path) = standing.root() else { return Ok(None) };
        let of_many = match request {
            MdsRequest::FilesOn { .. } | MdsRequest::Inodes { .. } => return Err(Status::EPERM),
            MdsRequest::Locks { request } => matches!(request, LockRequest::Replay { .. }),
            MdsRequest::ListInodes { .. } | MdsRequest::MigrateFiles { .. } => true,
            _ => false,
        };
        let fids = fids_of(request);
        if fids[0].is_none() && !of_many {
            // It waits for no other MDT.
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
            // The directories above it have no names here.
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
            MdsRequest::MigrateFiles { moves } => {
                moves.iter().try_for_each(|(fid, _)| check(fid)).map(|()| None)
            }
            _ => fids.into_iter().flatten().try_for_each(check).map(|()| None),
        }
    }

    /// Where a client that sees a subtree finds it: it asks for the root of the file system, of MDT 0. `None`: that is not asked.
    ///
    /// # Errors
    /// As [`Filesets::root_of`].
    pub fn own_root(&self, standing: &Standing, request: &MdsRequest<'_>) -> StatusResult<Option<Fid>> {
        match (standing.root(), request) {
            (Some(path), MdsRequest::GetAttr { fid: Fid::ROOT }) => self.root_of(path).map(Some),
            _ => Ok(None),
        }
    }

    /// The directory at which paths end for a client.
    pub fn top_of(&self, standing: Option<&Standing>) -> StatusResult<Fid> {
        standing.and_then(Standing::root).map_or(Ok(Fid::ROOT), |path| self.root_of(path))
    }
}

/// Inodes that a request is about. A handle speaks for itself, and a new FID is that of nothing.
fn fids_of<'a>(request: &'a MdsRequest<'_>) -> [Option<&'a Fid>; 2] {
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
        | MdsRequest::RunStart
        // Handled one by one, or refused.
        | MdsRequest::Locks { .. }
        | MdsRequest::ListInodes { .. }
        | MdsRequest::MigrateFiles { .. }
        | MdsRequest::FilesOn { .. }
        | MdsRequest::Inodes { .. }
        | MdsRequest::Peer(_) => [None, None],
    }
}
