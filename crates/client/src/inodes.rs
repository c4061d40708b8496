//! Inodes: their known attributes, and the proof that these are valid.

pub(crate) mod dot_lustre;
pub(crate) mod intent;
pub(crate) mod page_locks;
pub(crate) mod paths;
pub(crate) mod root;
pub(crate) mod xattr;

use crate::base::Base;
use crate::caller::Caller;
use crate::inodes::dot_lustre::virtual_attr;
pub use crate::inodes::root::Root;
use crate::layouts::Layouts;
use crate::lease::Lease;
use crate::node::{Hints, NodeTable, node_of};
use crate::requests::Requests;
use crate::shards::absent::Absences;
use crate::sizes::Sizes;
use crate::tunables::Tunables;
use nacre_types::{Attr, AttrFlags, Failure, FailureResult, Fid, Status, StatusResult};
use nacre_wire::mds::MdsRequest;
use std::sync::Arc;

/// A name that was looked up or created.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// Node id of the inode.
    pub node: u64,
    /// Its attributes.
    pub attr: Attr,
    /// True if everybody may search the directory, so that any user may see a cached name.
    pub public: bool,
    /// What may be cached until it is revoked.
    pub keep: Keep,
}

/// Which parts of a reply may be cached until this client invalidates them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Keep {
    /// The existence or absence of the name, for users who may search the directory.
    pub name: bool,
    /// The attributes of the inode.
    pub attr: bool,
}

/// A name that does not exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Absent {
    /// True if everybody may search the directory, so that any user may see the absence.
    pub public: bool,
    /// True if the absence may be cached until it is revoked.
    pub keep: bool,
}

/// Attributes of inodes, cached and requested.
pub struct Inodes {
    requests: Arc<Requests>,
    layouts: Arc<Layouts>,
    sizes: Arc<Sizes>,
    nodes: Arc<NodeTable>,
    lease: Arc<Lease>,
    absences: Arc<Absences>,
    tunables: Arc<Tunables>,
    /// The root that the servers present to this client.
    pub root: Root,
}

/// Maps the error for an inode that is removed, if the request did not look up a name.
pub(crate) fn inode_gone(failure: Failure) -> Failure {
    if failure == Status::ENOENT { Status::ESTALE.into() } else { failure }
}

impl Inodes {
    pub(crate) fn new(base: &Base, sizes: Arc<Sizes>) -> Arc<Inodes> {
        Arc::new(Inodes {
            requests: base.requests.clone(),
            layouts: base.layouts.clone(),
            sizes,
            nodes: base.nodes.clone(),
            lease: base.lease.clone(),
            absences: base.absences.clone(),
            tunables: base.tunables.clone(),
            root: Root::new(base),
        })
    }

    /// Returns attributes of an inode; needs no permission. One that this client removed has no links but
    /// exists until the kernel forgets it.
    ///
    /// # Errors
    /// `ENOENT` or `ESTALE` if it is removed; the errors of servers.
    pub fn getattr(&self, fid: Fid) -> StatusResult<Attr> {
        self.stat(fid).map(|(attr, _)| attr)
    }

    /// As [`Inodes::getattr`]; also returns whether the attributes may be cached until this client
    /// invalidates them.
    ///
    /// # Errors
    /// As for [`Inodes::getattr`].
    pub fn stat(&self, fid: Fid) -> StatusResult<(Attr, bool)> {
        self.requests.faults.edge_on("get attributes", fid, || {
            let ask = || self.ask_for_attributes(fid);
            if fid == self.root.fid() { self.root.stat(ask) } else { ask() }
        })
    }

    fn ask_for_attributes(&self, fid: Fid) -> FailureResult<(Attr, bool)> {
        // A close may remove the inode between two of the requests.
        self.ask_servers_for_attributes(fid)
            .or_else(|failure| Ok((self.nodes.removed_or(fid, failure)?, false)))
    }

    fn ask_servers_for_attributes(&self, fid: Fid) -> FailureResult<(Attr, bool)> {
        if let Some(attr) = virtual_attr(fid) {
            return Ok((attr, false));
        }
        if !self.lease.exclusive() {
            let answered = self.ask_with_locks(None, fid, None)?;
            let attr = answered.attr.ok_or(Status::EPROTO)?;
            let (attr, is_sure) = self.sizes.complete_attr_to_keep(attr, 0)?;
            return Ok((attr, is_sure && answered.keeps_attr()));
        }
        let answer = self.requests.call_system(fid, &MdsRequest::GetAttr { fid })?;
        let lease = answer.lease;
        let attr = answer.attr()?;
        self.nodes.note(fid.inode_number(), &attr, lease.into());
        let (attr, is_sure) = self.sizes.complete_attr_to_keep(attr, lease)?;
        Ok((attr, is_sure && self.keep_of(lease).attr))
    }

    /// Checks that the caller has all rights in `mask` (see `nacre_types::perm`).
    ///
    /// # Errors
    /// `EACCES` if it has not.
    pub fn access(&self, caller: &Caller, fid: Fid, mask: u8) -> StatusResult<()> {
        self.requests.faults.edge("access", || {
            if let Some(verdict) = dot_lustre::access(caller, fid, mask) {
                return Ok(verdict?);
            }
            let answer = match self.requests.call(caller, fid, &MdsRequest::Access { fid, mask }) {
                Ok(answer) => answer,
                Err(failure) => return self.nodes.access_removed(caller, fid, mask, failure).map(drop),
            };
            let lease = answer.lease;
            self.nodes.learn(&answer.attr()?, lease);
            Ok(())
        })
    }

    /// Returns attributes as the MDT has them: size, space and times of data may be out of date.
    ///
    /// # Errors
    /// The error of the MDT.
    pub fn mdt_attr(&self, fid: Fid) -> StatusResult<Attr> {
        self.requests
            .faults
            .edge("get attributes", || self.requests.call_system(fid, &MdsRequest::GetAttr { fid })?.attr())
    }

    /// Returns the attributes of an inode whose name is stored on another MDT, and the lease under which they
    /// were requested; `None` if it was removed meanwhile.
    pub(crate) fn elsewhere(&self, fid: Fid) -> FailureResult<Option<(Attr, u64)>> {
        match self.requests.call_system(fid, &MdsRequest::GetAttr { fid }) {
            Ok(answer) => {
                let lease = answer.lease;
                Ok(Some((answer.attr()?, lease)))
            }
            Err(failure) if failure == Status::ENOENT => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// Returns the inode itself, as `.` of a directory names it; works for any inode, so that file handles
    /// can be opened.
    ///
    /// # Errors
    /// `ESTALE` if it is removed.
    pub fn lookup_self(&self, fid: Fid) -> StatusResult<Found> {
        self.requests.faults.edge("lookup", || {
            if let Some(attr) = virtual_attr(fid) {
                return self.found(attr, 0, false);
            }
            let answer = self.requests.call_system(fid, &MdsRequest::GetAttr { fid }).map_err(inode_gone)?;
            let lease = answer.lease;
            self.found(answer.attr()?, lease, false)
        })
    }

    /// Subtracts `lookups` references that the kernel releases.
    pub fn forget(&self, node: u64, lookups: u64) {
        self.nodes.forget(node, lookups);
    }

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// `EINVAL` if the inode is none.
    pub fn readlink(&self, fid: Fid) -> StatusResult<Vec<u8>> {
        self.requests
            .faults
            .edge("readlink", || self.requests.call_system(fid, &MdsRequest::ReadLink { fid })?.bytes())
    }

    /// Completes attributes and counts a lookup.
    pub(crate) fn found(&self, attr: Attr, lease: u64, public: bool) -> FailureResult<Found> {
        let node = node_of(attr.fid)?;
        let (attr, is_sure) = self.sizes.complete_attr_to_keep(attr, lease)?;
        self.nodes.remember(node, &attr, lease.into(), 1);
        let mut keep = self.keep_of(lease);
        keep.attr &= is_sure;
        Ok(Found { node, attr, public, keep })
    }

    /// As [`Inodes::found`], for an inode that a request has just created or given a name. Another client may have
    /// removed or moved it since, which does not make the request fail: then the attributes are those of the reply. So
    /// are those of a new directory with shards, which are empty.
    pub(crate) fn made(&self, attr: Attr, lease: u64, public: bool) -> FailureResult<Found> {
        let as_replied = |lease: u64| {
            let node = node_of(attr.fid)?;
            self.nodes.remember(node, &attr, lease.into(), 1);
            Ok(Found { node, attr, public, keep: self.keep_of(lease) })
        };
        if attr.flags.contains(AttrFlags::STRIPED) {
            return as_replied(lease);
        }
        match self.found(attr, lease, public) {
            Err(failure) if matches!(failure.status(), Status::ENOENT | Status::ESTALE) => as_replied(0),
            found => found,
        }
    }

    /// Returns what may be cached of a reply to a request that was sent under `lease`.
    pub(crate) fn keep_of(&self, lease: u64) -> Keep {
        let alone = lease != 0 && lease == self.lease.number();
        Keep { name: alone, attr: alone }
    }

    /// True if everybody may search the directory, as far as is known.
    pub fn is_public(&self, directory: Fid) -> bool {
        self.hints(directory).is_some_and(|hints| hints.public)
    }

    /// Returns the flags of further data of an inode; `None` if a request is needed.
    pub fn flags_of(&self, fid: Fid) -> Option<AttrFlags> {
        self.hints(fid).map(|hints| hints.flags)
    }

    /// Returns the hints about an inode that are still valid.
    pub(crate) fn hints(&self, fid: Fid) -> Option<Hints> {
        let hints = self.nodes.hints(fid.inode_number())?;
        self.lease.is_in_force(hints.validity, fid).then_some(hints)
    }

    pub(crate) fn note_public(&self, directory: Fid, public: bool, lease: u64) {
        self.nodes.note_public(directory.inode_number(), public, lease.into());
    }

    /// Returns the number of inodes in the client's table, for statistics.
    pub fn known_nodes(&self) -> usize {
        self.nodes.len()
    }
}
