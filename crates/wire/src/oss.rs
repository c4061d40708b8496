//! Requests to an object server. Each goes to one OST.
//!
//! The first write creates an object: one that was never written reads as zeros, its size is 0. A request
//! carries what the layout records of the object: one that was written to before has to exist.

use crate::lock::{IoLock, LockRequest};
pub use crate::mds::Statfs;
use crate::quota::{QuotaReport, QuotaRound};
use nacre_lock::Mode;
use nacre_lock::Outcome;
use nacre_types::{Capability, ClientUuid, Fid, ObjectNeed, ObjectPlace, Owners, Rights, Timestamp, TransNo};

/// Target of a search in an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum SeekKind {
    /// The next byte that holds data.
    Data = 0,
    /// The next hole, the end of the object counting as one.
    Hole = 1,
}

/// Kind of allocation or deallocation (Linux `fallocate`).
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

/// Hint about future use of cached data of a range (Lustre's `ladvise`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Advice {
    /// The data will be read soon: the server starts to read it into its cache.
    WillRead = 1,
    /// The data will not be read: the server writes it out if necessary, and drops it from its cache.
    DontNeed = 2,
}

/// Payer of the space of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Charge {
    /// Owners of the file; ignored if the OST knows those of the object.
    pub owners: Owners,
    /// True if no limit applies to the caller: root. Ignored from clients whose root is not that of the file system.
    pub is_exempt: bool,
    /// The object's place in its file, for an object that is not known to be written; the OST stores it, so that the
    /// layout of the file can be rebuilt.
    pub place: Option<ObjectPlace>,
}

impl Charge {
    /// Space of root.
    pub const ROOT: Charge =
        Charge { owners: Owners { uid: 0, gid: 0, projid: 0 }, is_exempt: false, place: None };
}

/// An object with what its OST stores about its file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OwnedObject {
    /// The object.
    pub object: Fid,
    /// Owners of its file.
    pub owners: Owners,
    /// Its place in the file; `None` leaves what the OST has.
    pub place: Option<ObjectPlace>,
}

/// An object as its OST knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KnownObject {
    /// The object.
    pub object: Fid,
    /// Its attributes; without a time of change if it does not exist.
    pub attr: ObjectAttr,
    /// Recorded owners; `None` for an object without data.
    pub owners: Option<Owners>,
    /// Recorded place in its file.
    pub place: Option<ObjectPlace>,
}

/// Request to an object server. Bulk data travels separately: `Write` sends, `Read` receives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OssRequest {
    /// Writes the bulk data at `offset`. Reply: `Written`.
    Write {
        /// Object to write; created if it does not exist.
        object: Fid,
        /// Offset in bytes.
        offset: u64,
        /// True to make the data durable before the reply.
        sync: bool,
        /// True if the needed space was granted ([`OssRequest::Grant`]): the write is not refused because the
        /// OST is full.
        granted: bool,
        /// Protection against other clients.
        lock: IoLock,
        /// Incarnation of the client at this OST in which it accepted the data from its program
        /// ([`IoLock::Lease`] and [`IoLock::Held`]); 0 for any. Checked by the client's own endpoint: data
        /// left over from an incarnation that ended with an eviction is not sent.
        incarnation: u64,
        /// True if the object was written to before: [`Status::OBJECT_LOST`] if it does not exist.
        ///
        /// [`Status::OBJECT_LOST`]: nacre_types::Status::OBJECT_LOST
        written: bool,
        /// Payer of the space.
        charge: Charge,
    },
    /// Reads into the bulk buffer. Reply: `Read`: fewer bytes than requested only at the end of the object.
    Read {
        /// Object to read.
        object: Fid,
        /// Offset in bytes.
        offset: u64,
        /// Length in bytes; the size of the bulk buffer.
        len: u32,
        /// Bytes after the range that will be read soon, 0 if unknown: the server may read them ahead.
        ahead: u32,
        /// Protection against other clients.
        lock: IoLock,
        /// Known to be written, as for [`OssRequest::Write`].
        written: bool,
    },
    /// Returns size, space and times. An object that does not exist is empty. Reply: `Attr`.
    GetAttr {
        /// Object to read.
        object: Fid,
        /// True to ask writing clients for what they have not written out yet.
        glimpse: bool,
    },
    /// Sets the size, up or down. Reply: `Attr`.
    Truncate {
        /// Object to change.
        object: Fid,
        /// New size in bytes.
        size: u64,
        /// Protection against other clients.
        lock: IoLock,
        /// Known to be written, as for [`OssRequest::Write`].
        written: bool,
        /// Payer of the space.
        charge: Charge,
    },
    /// Allocates, frees or zeroes a range. Reply: `Attr`.
    Fallocate {
        /// Object to change.
        object: Fid,
        /// Kind of operation.
        kind: FallocateKind,
        /// Offset of the first byte.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// Protection against other clients.
        lock: IoLock,
        /// Known to be written, as for [`OssRequest::Write`].
        written: bool,
        /// Payer of the space.
        charge: Charge,
    },
    /// Finds data or a hole. Reply: `Position`; `ENXIO` if there is none at or after `offset`.
    Seek {
        /// Object to search.
        object: Fid,
        /// Offset where the search starts.
        offset: u64,
        /// Data or hole.
        kind: SeekKind,
        /// Protection against other clients.
        lock: IoLock,
        /// Known to be written, as for [`OssRequest::Write`].
        written: bool,
    },
    /// Makes an object's data and existence durable. Reply: `Done`.
    Sync {
        /// Object to sync; `None` for all of the OST.
        object: Option<Fid>,
    },
    /// Returns space and number of objects. Reply: `Statfs`.
    Statfs,
    /// Reserves object ids for an MDT. Reply: `Precreated`.
    Precreate {
        /// Sequence of the objects, one per MDT and OST.
        sequence: u64,
        /// Number of further ids, up to 20000 (Lustre's limit).
        count: u32,
    },
    /// Destroys orphans after an MDT restart: objects of the sequence above `last_used`, which no file uses;
    /// the next reservation starts above all earlier ones. Reply: `Precreated` (count 0).
    DestroyOrphans {
        /// Sequence of the objects.
        sequence: u64,
        /// Largest object id that a file uses.
        last_used: u32,
    },
    /// Destroys objects; those that do not exist are skipped. Durable before the reply. Reply: `Done`.
    Destroy {
        /// Objects to destroy, at most 4096.
        objects: Vec<Fid>,
    },
    /// Keeps the connection alive. Reply: `Done`.
    Ping,
    /// Requests a grant: space for data that the client will hold back. Writes with `granted` use it up. All
    /// values are absolute, so that the request may be repeated. Reply: `Granted`.
    Grant {
        /// Random number of the client, constant over its life.
        client: u64,
        /// Bytes left of its grant, including data in flight.
        held: u64,
        /// Total grant that it requests, in bytes; 0 returns all of it.
        want: u64,
    },
    /// Requests about locks on objects. Reply: `Locked`, or `Done`.
    Locks {
        /// Lock request.
        request: LockRequest,
    },
    /// From an MDT: evicts a client and fences it, so that requests under its earlier locks and connections
    /// are refused. Reply: `Done`.
    Evict {
        /// Client to evict.
        client: ClientUuid,
    },
    /// Gives a hint about a range of an object; changes no data. Reply: `Done`.
    Advise {
        /// Object of the hint; ignored if it does not exist.
        object: Fid,
        /// Offset of the first byte.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// Hint about the range.
        advice: Advice,
    },
    /// Returns the attributes of an object as stored on the target, and the version of its data. Reply:
    /// `Version`.
    DataVersion {
        /// Object to read.
        object: Fid,
    },
    /// From the quota master: new slices, and a request for a report. Reply: `Quota`.
    QuotaRound {
        /// The round.
        round: QuotaRound,
    },
    /// From an MDT: the owners of files, and with them those of their objects, have changed. Durable before the reply.
    /// Reply: `Done`.
    SetOwners {
        /// Objects with their owners and places, at most 4096; they need not exist yet.
        objects: Vec<OwnedObject>,
    },
    /// From an MDT that checks layouts: returns what the OST knows of objects. Reply: `Known`, one entry for each.
    Examine {
        /// Objects to look up, at most 4096.
        objects: Vec<Fid>,
    },
    /// From an MDT that looks for orphan objects: lists objects that exist. Reply: `Known`; fewer than `count` only at
    /// the end of the sequence.
    ListObjects {
        /// Object after which the list begins; its sequence is listed.
        after: Fid,
        /// Most objects to list, up to 4096.
        count: u32,
    },
}

impl OssRequest {
    /// Returns the object that the request is about.
    pub fn object(&self) -> Option<Fid> {
        match self {
            OssRequest::Write { object, .. }
            | OssRequest::Read { object, .. }
            | OssRequest::GetAttr { object, .. }
            | OssRequest::Truncate { object, .. }
            | OssRequest::Fallocate { object, .. }
            | OssRequest::Seek { object, .. }
            | OssRequest::DataVersion { object, .. }
            | OssRequest::Advise { object, .. } => Some(*object),
            OssRequest::Sync { object, .. } => *object,
            OssRequest::Destroy { objects, .. } => objects.first().copied(),
            OssRequest::Locks { request: LockRequest::Enqueue { request, .. } } => {
                Some(request.resource.fid())
            }
            _ => None,
        }
    }

    /// Creates a read of `len` bytes that needs no protection against others and no read-ahead.
    pub const fn plain_read(object: Fid, offset: u64, len: u32) -> OssRequest {
        OssRequest::Read { object, offset, len, ahead: 0, lock: IoLock::Lease, written: false }
    }

    /// Creates a write that needs no protection against others and uses no grant; not durable.
    pub const fn plain_write(object: Fid, offset: u64) -> OssRequest {
        let (sync, granted, lock, incarnation) = (false, false, IoLock::Lease, 0);
        let charge = Charge::ROOT;
        OssRequest::Write { object, offset, sync, granted, lock, incarnation, written: false, charge }
    }

    /// Returns the object and the rights that the sender needs: `None` for requests that concern no object,
    /// or only locks that the sender holds already.
    pub fn need(&self) -> Option<ObjectNeed> {
        const ANY: Rights = Rights::all();
        const DATA: Rights = Rights::READ.union(Rights::WRITE);
        let (object, any_of) = match self {
            OssRequest::Write { object, .. }
            | OssRequest::Truncate { object, .. }
            | OssRequest::Fallocate { object, .. } => (*object, Rights::WRITE),
            OssRequest::Read { object, .. } => (*object, Rights::READ),
            // A writer may search for holes and give hints.
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
                // The right was checked when the lock was granted; the file may have been closed since.
                LockRequest::Replay { resource, .. } => (resource.fid(), ANY),
                LockRequest::Cancel { .. }
                | LockRequest::Convert { .. }
                | LockRequest::GlimpseAnswer { .. }
                | LockRequest::Busy { .. }
                | LockRequest::ReplayDone => return None,
            },
            // A sync changes and reveals nothing, and the file may not have the object any more.
            OssRequest::Sync { .. } | OssRequest::Statfs | OssRequest::Ping | OssRequest::Grant { .. } => {
                return None;
            }
            // Only metadata servers send these.
            OssRequest::Precreate { .. }
            | OssRequest::DestroyOrphans { .. }
            | OssRequest::Destroy { .. }
            | OssRequest::Evict { .. }
            | OssRequest::QuotaRound { .. }
            | OssRequest::SetOwners { .. }
            | OssRequest::Examine { .. }
            | OssRequest::ListObjects { .. } => return None,
        };
        Some(ObjectNeed { object, any_of })
    }

    /// True if it may wait until another client releases a lock, or replays a change.
    pub const fn waits_for_locks(&self) -> bool {
        match self {
            OssRequest::Write { lock, .. }
            | OssRequest::Read { lock, .. }
            | OssRequest::Truncate { lock, .. }
            | OssRequest::Fallocate { lock, .. }
            | OssRequest::Seek { lock, .. } => matches!(lock, IoLock::Server | IoLock::Replay(_)),
            OssRequest::GetAttr { glimpse, .. } => *glimpse,
            OssRequest::Locks { .. } => true,
            _ => false,
        }
    }
}

/// A request with its sender's proof of access to the object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OssCall<R> {
    /// The request.
    pub request: R,
    /// Capability for the object; `None` for senders that need none.
    pub capability: Option<Capability>,
}

/// Life of a grant after the last [`OssRequest::Grant`] of its client.
pub const GRANT_LIFE: std::time::Duration = std::time::Duration::from_secs(120);

/// Attributes of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ObjectAttr {
    /// Size in bytes.
    pub size: u64,
    /// Allocated space in units of 512 bytes.
    pub blocks: u64,
    /// Time of the last change of data; `None` for an object that was never written.
    pub mtime: Option<Timestamp>,
}

/// Reply to a request; the request's doc names the variant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OssReply {
    /// Success without a result.
    Done,
    /// Success of a write.
    Written {
        /// Bytes written: all of them, unless the OST became full after a part.
        bytes: u32,
        /// True if an owner of the object is near its limit, so that data that a client holds back might not fit.
        is_near_quota: bool,
    },
    /// Bytes read into the bulk buffer.
    Read(u32),
    /// Attributes after the request.
    Attr(ObjectAttr),
    /// An offset in bytes.
    Position(u64),
    /// Space and number of objects.
    Statfs(Statfs),
    /// Reserved ids `[first, first + count)`.
    Precreated {
        /// First reserved id.
        first: u32,
        /// Number of ids.
        count: u32,
    },
    /// Total grant of the client in bytes, at most the requested one.
    Granted(u64),
    /// Outcome of a lock request.
    Locked(Outcome),
    /// An object as stored on the target.
    Version {
        /// Attributes of the object.
        attr: ObjectAttr,
        /// Version of its data, which changes with every write; 0 for an object that was never written.
        version: u64,
    },
    /// Report for a quota round.
    Quota(QuotaReport),
    /// Objects as the OST knows them.
    Known(Vec<KnownObject>),
    /// Reply to a client on another host that changed data, which the target may lose with its host: the client keeps
    /// the change until it is durable.
    Logged {
        /// Transaction of the change in the log of a metadata target, 0 if nothing was changed; its number at an object
        /// target.
        transno: TransNo,
        /// Transaction or number up to which everything is durable.
        last_committed: TransNo,
        /// The reply itself.
        reply: LoggedReply,
    },
}

/// Reply to a change of data that the client keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LoggedReply {
    /// As [`OssReply::Written`].
    Written {
        /// Bytes written.
        bytes: u32,
        /// True if an owner of the object is near its limit.
        is_near_quota: bool,
    },
    /// As [`OssReply::Attr`].
    Attr(ObjectAttr),
}

impl From<LoggedReply> for OssReply {
    fn from(reply: LoggedReply) -> OssReply {
        match reply {
            LoggedReply::Written { bytes, is_near_quota } => OssReply::Written { bytes, is_near_quota },
            LoggedReply::Attr(attr) => OssReply::Attr(attr),
        }
    }
}

impl OssReply {
    /// Adds the number of a change to its reply, and the newest durable one.
    pub fn logged(self, transno: TransNo, last_committed: TransNo) -> OssReply {
        let reply = match self {
            OssReply::Written { bytes, is_near_quota } => LoggedReply::Written { bytes, is_near_quota },
            OssReply::Attr(attr) => LoggedReply::Attr(attr),
            other => return other,
        };
        OssReply::Logged { transno, last_committed, reply }
    }

    /// Reply to a write of `bytes` for owners that are far from their limits.
    pub const fn written(bytes: u32) -> OssReply {
        OssReply::Written { bytes, is_near_quota: false }
    }
}

/// Bulk data of an [`OssRequest`].
#[derive(Debug)]
pub enum Bulk<'a> {
    /// No bulk data.
    None,
    /// Data to write.
    Send(&'a [u8]),
    /// Buffer for the data to be read.
    Receive(&'a mut [u8]),
}
