//! Lookups and getattrs while there are other clients: the replies come with locks, so that they may be
//! cached.

use crate::caller::Caller;
use crate::inodes::Inodes;
use crate::lease::Lease;
use crate::locks::inodes::{Granted, Held, InodeSpace};
use crate::node::node_of;
use crate::validity::Validity;
use nacre_lock::LockHandle;
use nacre_types::{Attr, AttrFlags, FailureResult, Fid, Status};
use nacre_wire::mds::{MdsReply, MdsRequest};
use std::sync::Arc;

/// A reply.
pub(crate) struct Answered {
    /// The inode as the MDT knows it; it is in the table of nodes, and counts as a lookup if it was looked up
    /// by name.
    pub attr: Option<Attr>,
    /// True if everybody may search the directory.
    pub public: bool,
    /// Locks under which the reply may be cached.
    pub held: Held,
    /// True if the name led to an inode of another MDT that was removed before the request to that MDT.
    pub is_gone: bool,
}

impl Answered {
    /// True if the kernel may cache the attributes. Those of a directory with shards change without its own
    /// lock.
    pub fn keeps_attr(&self) -> bool {
        let is_striped = self.attr.is_some_and(|attr| attr.flags.contains(AttrFlags::STRIPED));
        self.held.inode.is_some() && !is_striped
    }

    /// True if the kernel may cache the name, or its absence, in this directory; it is dropped there with the
    /// lock.
    pub fn keeps_name(&self, lease: &Lease, directory: Fid) -> bool {
        self.public && self.held.directory.is_some_and(|handle| lease.inodes(directory).keep_name(handle))
    }
}

/// Guard that shows whether names in a directory stay under a lock during an operation there.
pub(crate) struct Watch(Option<(Arc<InodeSpace>, LockHandle)>);

impl Watch {
    /// True if no other client has changed the directory since the watch began, and names in it may be passed
    /// to the kernel.
    pub fn still(&self) -> bool {
        self.0.as_ref().is_some_and(|(space, handle)| space.keep_name(*handle))
    }
}

impl Inodes {
    /// Begins to watch a directory.
    pub(crate) fn watch_names(&self, directory: Fid) -> Watch {
        // While this client is the only one, the lease is enough.
        if self.lease.exclusive() {
            return Watch(None);
        }
        let space = self.lease.inodes(directory);
        let handle = space.on_names(directory);
        Watch(handle.map(|handle| (space, handle)))
    }

    /// Looks a name up, or without a name requests the attributes of an inode, which needs no caller.
    ///
    /// # Errors
    /// The error of the MDT; `EPROTO` for an invalid reply.
    pub(crate) fn ask_with_locks(
        &self,
        caller: Option<&Caller>,
        fid: Fid,
        name: Option<&[u8]>,
    ) -> FailureResult<Answered> {
        let space = self.lease.inodes(fid);
        let look = self.absences.look();
        let first = space.reserve();
        let request = MdsRequest::Intent { fid, name, handle: first };
        let answer = match caller {
            Some(caller) => self.requests.call(caller, fid, &request),
            None => self.requests.call_system(fid, &request),
        };
        let reply = answer.map(|answer| answer.reply).inspect_err(|_| space.forget(first))?;
        let (attr, public, names, directory, inode) = match reply {
            MdsReply::Intent { attr, public, names, directory, inode } => {
                (attr, public, names, directory, inode)
            }
            MdsReply::Remote { fid: child, public, directory, .. } => {
                let on_directory = Some(Granted { fid, handle: directory });
                let held = space.settle(first, on_directory, None, |held| held);
                return self.ask_elsewhere(child, public, held);
            }
            _ => {
                space.forget(first);
                return Err(Status::EPROTO.into());
            }
        };
        if let Some(attr) = &attr {
            node_of(attr.fid).inspect_err(|_| space.forget(first))?;
        }
        let on_directory = name.map(|_| Granted { fid, handle: directory });
        let on_inode = attr.map(|attr| Granted { fid: attr.fid, handle: inode });
        let held = space.settle(first, on_directory, on_inode, |held| {
            if let Some(attr) = &attr {
                self.enter(attr, held.inode, name.is_some());
            }
            held
        });
        if let (true, Some(0), Some(handle)) = (public, names, held.directory) {
            self.absences.on_found_empty(look, fid, Validity::Lock(handle));
        }
        Ok(Answered { attr, public, held, is_gone: false })
    }

    /// Continues where a name leads to another MDT: requests the attributes from that, with a lock on them.
    fn ask_elsewhere(&self, child: Fid, public: bool, on_name: Held) -> FailureResult<Answered> {
        let found = match self.ask_with_locks(None, child, None) {
            Ok(answered) => answered,
            // It was removed meanwhile.
            Err(failure) if failure == Status::ENOENT => {
                let held = Held { directory: None, ..on_name };
                return Ok(Answered { attr: None, public, held, is_gone: true });
            }
            Err(failure) => return Err(failure),
        };
        if let Some(attr) = &found.attr {
            self.enter(attr, found.held.inode, true);
        }
        // The lock may have been revoked before the node was in the table.
        let inode = found.held.inode.filter(|lock| self.lease.is_in_force(Validity::Lock(*lock), child));
        Ok(Answered { public, held: Held { inode, ..on_name }, ..found })
    }

    fn enter(&self, attr: &Attr, lock: Option<LockHandle>, is_lookup: bool) {
        let validity = lock.map_or(Validity::None, Validity::Lock);
        let node = attr.fid.inode_number();
        if is_lookup {
            self.nodes.remember(node, attr, validity, 1);
        } else {
            self.nodes.note(node, attr, validity);
        }
    }
}
