//! Requests to an object server. Each goes to one OST.
//!
//! Objects appear with the first write to them: reading one that was never written gives zeros, its size is 0. A request says
//! what its client knows of the object from the layout: one that was written to before has to be there.

use crate::lock::{IoLock, LockRequest};
pub use crate::mds::Statfs;
use nacre_lock::Mode;
use nacre_lock::Outcome;
use nacre_types::{Capability, ClientUuid, Fid, ObjectNeed, Rights, Timestamp};

/// How data of an object is looked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum SeekKind {
    /// The next byte that holds data.
    Data = 0,
    /// The next hole, the end of the object counting as one.
    Hole = 1,
}

/// How space is allocated or freed (Linux `fallocate`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum FallocateKind {
    /// Allocate; the object grows if the range ends beyond it.
    Allocate = 0,
    /// Allocate, keep the size.
    AllocateKeepSize = 1,
    /// Free the range, keep the size.
    Punch = 2,
    /// Zero the range; the object grows if the range ends beyond it.
    Zero = 3,
    /// Zero the range, keep the size.
    ZeroKeepSize = 4,
}

/// What becomes of cached data of a range (Lustre's `ladvise`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Advice {
    /// It will be read soon: the server starts to fetch it into its cache.
    WillRead = 1,
    /// It will not be read: the server writes it out if it must, and lets go of it.
    DontNeed = 2,
}

/// One request to an object server. Bulk data goes beside it: `Write` sends, `Read` receives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OssRequest {
    /// Writes the bulk data at `offset`. Reply: `Written`.
    Write {
        /// The object, made now if it does not exist.
        object: Fid,
        /// Where, in bytes.
        offset: u64,
        /// Durable before the reply.
        sync: bool,
        /// The space it needs was granted ([`OssRequest::Grant`]): it is not to be refused because the OST is full.
        granted: bool,
        /// What keeps others away.
        lock: IoLock,
        /// The client's life at this OST in which the data was accepted from its program ([`IoLock::Lease`] and
        /// [`IoLock::Held`]); 0 for whichever it is. Looked at by the client's own endpoint: what is left of a life that
        /// was ended by an eviction is not sent.
        incarnation: u64,
        /// The object was written to before: [`Status::OBJECT_LOST`] if it is not there.
        ///
        /// [`Status::OBJECT_LOST`]: nacre_types::Status::OBJECT_LOST
        written: bool,
    },
    /// Reads into the bulk buffer. Reply: `Read`: fewer bytes than asked for only at the end of the object.
    Read {
        /// The object.
        object: Fid,
        /// Where, in bytes.
        offset: u64,
        /// How much; the size of the bulk buffer.
        len: u32,
        /// Bytes beyond the range that will soon be asked for, 0 if not known: the server may start reading them.
        ahead: u32,
        /// What keeps others away.
        lock: IoLock,
        /// As for [`OssRequest::Write`].
        written: bool,
    },
    /// Size, space and times. An object that does not exist is empty. Reply: `Attr`.
    GetAttr {
        /// The object.
        object: Fid,
        /// Clients that write are asked for what they have not written out yet.
        glimpse: bool,
    },
    /// Sets the size, up or down. Reply: `Attr`.
    Truncate {
        /// The object.
        object: Fid,
        /// New size in bytes.
        size: u64,
        /// What keeps others away.
        lock: IoLock,
        /// As for [`OssRequest::Write`].
        written: bool,
    },
    /// Allocates, frees or zeroes a range. Reply: `Attr`.
    Fallocate {
        /// The object.
        object: Fid,
        /// How.
        kind: FallocateKind,
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// What keeps others away.
        lock: IoLock,
        /// As for [`OssRequest::Write`].
        written: bool,
    },
    /// Looks for data or a hole. Reply: `Position`; `ENXIO` if there is none at or after `offset`.
    Seek {
        /// The object.
        object: Fid,
        /// From here.
        offset: u64,
        /// What.
        kind: SeekKind,
        /// What keeps others away.
        lock: IoLock,
        /// As for [`OssRequest::Write`].
        written: bool,
    },
    /// Makes an object's data and existence durable. Reply: `Done`.
    Sync {
        /// The object; `None` for all of the OST.
        object: Option<Fid>,
    },
    /// Space and objects. Reply: `Statfs`.
    Statfs,
    /// Reserves object ids for an MDT. Reply: `Precreated`.
    Precreate {
        /// Sequence of the objects, one per MDT and OST.
        sequence: u64,
        /// How many more, up to 20000 (reference 4.5).
        count: u32,
    },
    /// After an MDT restart: objects of the sequence above `last_used` belong to nobody and are destroyed; the next
    /// reservation starts above everything that was ever reserved. Reply: `Precreated` (count 0).
    DestroyOrphans {
        /// Sequence of the objects.
        sequence: u64,
        /// Largest id that a file uses.
        last_used: u32,
    },
    /// Destroys objects; those that do not exist are skipped. Durable before the reply. Reply: `Done`.
    Destroy {
        /// The objects, at most 4096.
        objects: Vec<Fid>,
    },
    /// Still here. Reply: `Done`.
    Ping,
    /// Asks the OST to keep space for data that the client will hold back. What is written with `granted` uses it up.
    /// Figures are absolute, so that the request may run twice. Reply: `Granted`.
    Grant {
        /// Who asks: a random number that a client keeps while it lives.
        client: u64,
        /// Bytes that are left of what was granted to it, data under way included.
        kept: u64,
        /// Bytes that it wants to have in all; 0 gives everything back.
        want: u64,
    },
    /// About locks on objects. Reply: `Locked`, or `Done`.
    Locks {
        /// What is asked.
        request: LockRequest,
    },
    /// From an MDT: drops a client, so that nothing it has sent or will send under what it held here counts. Reply: `Done`.
    Evict {
        /// Whom.
        client: ClientUuid,
    },
    /// Says what will become of a range of an object; changes no data. Reply: `Done`.
    Advise {
        /// The object; one that does not exist needs nothing.
        object: Fid,
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// What.
        advice: Advice,
    },
    /// Attributes of an object as they are on the target, and the version of its data. Reply: `Version`.
    DataVersion {
        /// The object.
        object: Fid,
    },
}

impl OssRequest {
    /// A read of `len` bytes for whom nobody else is in the way, and who will read nothing else soon.
    pub const fn plain_read(object: Fid, offset: u64, len: u32) -> OssRequest {
        OssRequest::Read { object, offset, len, ahead: 0, lock: IoLock::Lease, written: false }
    }

    /// A write for whom nobody else is in the way, into space that nobody has promised; not durable.
    pub const fn plain_write(object: Fid, offset: u64) -> OssRequest {
        let (sync, granted, lock, incarnation) = (false, false, IoLock::Lease, 0);
        OssRequest::Write { object, offset, sync, granted, lock, incarnation, written: false }
    }

    /// What a client needs to send it: `None` for what is about no object, or about what its sender holds already.
    pub fn need(&self) -> Option<ObjectNeed> {
        const ANY: Rights = Rights::all();
        const DATA: Rights = Rights::READ.union(Rights::WRITE);
        let (object, any_of) = match self {
            OssRequest::Write { object, .. }
            | OssRequest::Truncate { object, .. }
            | OssRequest::Fallocate { object, .. } => (*object, Rights::WRITE),
            OssRequest::Read { object, .. } => (*object, Rights::READ),
            // A writer may seek for holes and give hints.
            OssRequest::Seek { object, .. } | OssRequest::Advise { object, .. } => (*object, DATA),
            OssRequest::GetAttr { object, .. } | OssRequest::DataVersion { object } => (*object, ANY),
            OssRequest::Locks { request } => match request {
                LockRequest::Enqueue { request, .. } => {
                    let any_of = match request.need.mode {
                        Mode::Ex | Mode::Pw | Mode::Cw => Rights::WRITE,
                        // Any open of the file may join its group lock.
                        Mode::Pr | Mode::Cr | Mode::Group => DATA,
                        Mode::Nl => ANY,
                    };
                    (request.resource.fid(), any_of)
                }
                // The right was checked when the lock was granted; the file may be closed since.
                LockRequest::Replay { resource, .. } => (resource.fid(), ANY),
                LockRequest::Cancel { .. }
                | LockRequest::Convert { .. }
                | LockRequest::GlimpseAnswer { .. }
                | LockRequest::ReplayDone => return None,
            },
            // A sync changes nothing and says nothing, and the object may be one that the file does not have any more.
            OssRequest::Sync { .. } | OssRequest::Statfs | OssRequest::Ping | OssRequest::Grant { .. } => {
                return None;
            }
            // Of metadata servers alone.
            OssRequest::Precreate { .. }
            | OssRequest::DestroyOrphans { .. }
            | OssRequest::Destroy { .. }
            | OssRequest::Evict { .. } => return None,
        };
        Some(ObjectNeed { object, any_of })
    }

    /// It may wait until another client gives a lock up.
    pub const fn waits_for_locks(&self) -> bool {
        match self {
            OssRequest::Write { lock, .. }
            | OssRequest::Read { lock, .. }
            | OssRequest::Truncate { lock, .. }
            | OssRequest::Fallocate { lock, .. }
            | OssRequest::Seek { lock, .. } => matches!(lock, IoLock::Server),
            OssRequest::GetAttr { glimpse, .. } => *glimpse,
            OssRequest::Locks { .. } => true,
            _ => false,
        }
    }
}

/// A request as it is sent: with what lets its sender at the object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OssCall<R> {
    /// The request.
    pub request: R,
    /// None of senders that need none.
    pub capability: Option<Capability>,
}

/// How long a grant lasts after the last [`OssRequest::Grant`] of its client.
pub const GRANT_LIFE: std::time::Duration = std::time::Duration::from_secs(120);

/// Attributes of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ObjectAttr {
    /// Size in bytes.
    pub size: u64,
    /// Space used in units of 512 bytes.
    pub blocks: u64,
    /// Last change of data; `None` for an object that was never written.
    pub mtime: Option<Timestamp>,
}

/// The answer to a request; the request's doc says which variant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OssReply {
    /// Nothing to tell.
    Done,
    /// Bytes written: all of them, unless the OST ran full after a part.
    Written(u32),
    /// Bytes read into the bulk buffer.
    Read(u32),
    /// Attributes after the request.
    Attr(ObjectAttr),
    /// An offset.
    Position(u64),
    /// Space.
    Statfs(Statfs),
    /// Reserved ids `[first, first + count)`.
    Precreated {
        /// First id.
        first: u32,
        /// How many.
        count: u32,
    },
    /// Bytes kept for the client in all, at most what it wants.
    Granted(u64),
    /// What became of a request for a lock.
    Locked(Outcome),
    /// An object as it is on the target.
    Version {
        /// Its attributes.
        attr: ObjectAttr,
        /// Another number after every change of its data; 0 for one that was never written.
        version: u64,
    },
}

/// Bulk data that goes with an [`OssRequest`].
#[derive(Debug)]
pub enum Bulk<'a> {
    /// None.
    None,
    /// Data to write.
    Send(&'a [u8]),
    /// Where to put data that is read.
    Receive(&'a mut [u8]),
}
