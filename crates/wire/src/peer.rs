//! What metadata servers ask each other: operations over several MDTs. See `docs/design/dne.md`.

use crate::codec::{Decode, DecodeResult, Encode, Reader, put_bytes, wire_enum, wire_lists, wire_struct};
use nacre_types::{ClientUuid, Fid, FileKind, Timestamp, Xid};

/// MDTs that one operation may touch at most: as many as a striped directory may have.
pub const PARTS_MAX: usize = 2000;
/// Names of an inode at most that moves to another MDT: all of them are locked together.
pub const LEADS_MAX: usize = 1000;
/// Inodes that an operation changes on one MDT besides those names, at most.
pub const INODES_MAX: usize = 128;
/// Changes of one operation on one MDT.
pub const UPDATES_MAX: usize = LEADS_MAX + INODES_MAX;
/// Inodes and names that one `Prepare` asks for: while names of a directory move, one may be in either of two places.
pub const WANTED_MAX: usize = 2 * LEADS_MAX + INODES_MAX;
/// Extended attributes that a message brings.
pub const XATTRS_MAX: usize = 64;
/// Operations in one message.
pub const OPERATIONS_MAX: usize = 1024;
/// Names that one operation moves to another shard at most.
pub const MOVED_MAX: usize = 1024;
/// Largest inode record, with a layout of the largest size in it.
const RECORD_MAX: usize = 128 << 10;

/// Number of an operation over several MDTs; never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OpId {
    /// Index of the MDT that coordinates it.
    pub mdt: u16,
    /// That MDT's start.
    pub boot: u64,
    /// Counts from 1 within the start.
    pub number: u64,
}

wire_struct!(OpId { mdt, boot, number });

impl std::fmt::Display for OpId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MDT{:04x}:{}:{}", self.mdt, self.boot, self.number)
    }
}

/// An inode's record in its form on disk: longer than other byte strings may be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecordBytes(pub Vec<u8>);

impl Encode for RecordBytes {
    fn encode(&self, out: &mut Vec<u8>) {
        put_bytes(out, &self.0);
    }
}

impl Decode<'_> for RecordBytes {
    fn decode(reader: &mut Reader<'_>) -> DecodeResult<RecordBytes> {
        reader.bytes(RECORD_MAX, "inode record").map(|bytes| RecordBytes(bytes.to_vec()))
    }
}

/// Place of a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Name {
    /// The directory.
    pub parent: Fid,
    /// The name.
    pub name: Vec<u8>,
}

wire_struct!(Name { parent, name });

/// One change of an operation, on the MDT where what it changes lies. It says what changes and not what comes out, so that
/// it can be done again on top of other things.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Update {
    /// A directory gets a name, or a name leads elsewhere.
    PutName {
        /// Where.
        at: Name,
        /// What it leads to.
        fid: Fid,
        /// Kind of that.
        kind: FileKind,
    },
    /// A directory loses a name.
    DeleteName {
        /// Which.
        at: Name,
    },
    /// Times and counts of a directory whose names change.
    Directory {
        /// The directory.
        fid: Fid,
        /// Names more.
        entries: i64,
        /// Subdirectories more.
        subdirs: i64,
    },
    /// A new inode as it is to be stored, with extended attributes (name, value).
    NewInode {
        /// FID and record.
        fid: Fid,
        /// Its record.
        record: RecordBytes,
        /// Names and values.
        xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    },
    /// An inode gets one more name.
    AddName {
        /// The inode.
        fid: Fid,
        /// Its new name.
        at: Name,
    },
    /// A name of an inode moves.
    MoveName {
        /// The inode.
        fid: Fid,
        /// Old name.
        from: Name,
        /// New name.
        to: Name,
    },
    /// An inode loses a name; with the last one it goes, or lives on while it is open.
    DropName {
        /// The inode.
        fid: Fid,
        /// The name.
        at: Name,
    },
    /// A shard of a directory goes with it.
    DropShard {
        /// The shard.
        fid: Fid,
    },
    /// Owner, rights, times, project, access ACL and defaults of a directory or a shard of it are those of this record.
    Mirror {
        /// The directory or shard.
        fid: Fid,
        /// The record of the directory.
        record: RecordBytes,
        /// Extended attributes that change too; an empty value takes one away.
        xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    },
    /// A directory or shard gets another list, or another place in one.
    SetShards {
        /// The directory or shard.
        fid: Fid,
        /// What it stores of the list; nothing for a directory that is whole.
        lmv: RecordBytes,
        /// It is the directory itself.
        is_master: bool,
    },
    /// Names leave an old shard. All its names before a position have moved then.
    NamesOut {
        /// The shard.
        fid: Fid,
        /// The position.
        upto: u64,
        /// Subdirectories among them.
        subdirs: u32,
        /// The names.
        names: Vec<Vec<u8>>,
    },
    /// Names come to a shard from an old one.
    NamesIn {
        /// The shard.
        fid: Fid,
        /// The names.
        names: Vec<MovedName>,
    },
    /// An inode comes from another MDT, where it had another FID.
    InodeIn {
        /// Its FID here.
        fid: Fid,
        /// Its record, with its first name.
        record: RecordBytes,
        /// Extended attributes: names and values.
        xattrs: Vec<(Vec<u8>, Vec<u8>)>,
        /// Names beyond the first.
        links: Vec<Name>,
    },
    /// The same at the MDT that it leaves: it goes, with its data there, and its objects on OSTs stay.
    InodeOut {
        /// Its FID there.
        fid: Fid,
    },
    /// A name leads to the FID that an inode has now; times and counts of the directory stay.
    Relead {
        /// Where.
        at: Name,
        /// What it leads to.
        fid: Fid,
        /// Kind of that.
        kind: FileKind,
    },
    /// The directory that an inode's name is in has another FID now.
    NewParent {
        /// The inode.
        fid: Fid,
        /// The name.
        name: Vec<u8>,
        /// The directory before.
        from: Fid,
        /// The directory now.
        to: Fid,
    },
    /// A directory gives its place to another one; it stays until all names have moved there.
    Replaced {
        /// The directory.
        fid: Fid,
        /// The other one.
        by: Fid,
        /// The list that both have.
        lmv: RecordBytes,
    },
    /// The coordinator keeps its answer for a resend, and has it again if it loses its part with the power.
    KeepAnswer {
        /// Who asked for the operation.
        client: ClientUuid,
        /// The slot of the request.
        tag: u16,
        /// The request.
        xid: Xid,
        /// The encoded answer, with transaction number 0.
        answer: RecordBytes,
    },
}

/// A name on its way to another shard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MovedName {
    /// The name.
    pub name: Vec<u8>,
    /// What it leads to.
    pub fid: Fid,
    /// Kind of that.
    pub kind: FileKind,
}

wire_struct!(MovedName { name, fid, kind });

/// What changes on one MDT.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part {
    /// Index of the MDT.
    pub mdt: u16,
    /// The changes, in order.
    pub updates: Vec<Update>,
}

/// An operation over several MDTs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Operation {
    /// Its number.
    pub id: OpId,
    /// Larger than that of every operation that changed one of its inodes before: the order in which they are done again.
    pub stamp: u64,
    /// The client that asked for it.
    pub client: ClientUuid,
    /// Time of what it changes.
    pub now: Timestamp,
    /// One for each MDT, the coordinator included, in the order of indexes.
    pub parts: Vec<Part>,
}

impl Operation {
    /// What changes on an MDT.
    pub fn part(&self, mdt: u16) -> Option<&Part> {
        self.parts.iter().find(|part| part.mdt == mdt)
    }
}

/// What an inode is found to be by [`PeerRequest::Prepare`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// Which inode.
    pub fid: Fid,
    /// Its record as it is stored; `None` if there is none.
    pub record: Option<RecordBytes>,
}

/// A request of one metadata server to another. All may come twice.
#[derive(Clone, PartialEq, Debug)]
pub enum PeerRequest {
    /// The MDT has (re)started and asks for the operations that both have a part in, in the order of their numbers, as many as fit into
    /// a message. Reply: `Greeting`.
    Hello {
        /// Index of the MDT that asks.
        mdt: u16,
        /// Those after this one; `None`: from the first.
        after: Option<OpId>,
    },
    /// Locks inodes and names for an operation, all at once, and tells what they are, and what names stand for. Reply: `Prepared`.
    Prepare {
        /// The operation.
        op: OpId,
        /// Inodes to be locked as a whole; they need not exist.
        fids: Vec<Fid>,
        /// Names to be locked, in any directories: these stay what they are otherwise.
        names: Vec<Name>,
    },
    /// The operation was committed by its coordinator. Reply: `Done`, when the part is committed.
    Apply {
        /// All of it.
        operation: Operation,
    },
    /// An operation that was prepared does not happen. Reply: `Done`.
    Abort {
        /// Which.
        op: OpId,
    },
    /// What became of an operation that the asked MDT coordinates. Reply: `Operations`, with it if it was committed; an empty list if
    /// it never will be. `EAGAIN` while it is not decided.
    Outcome {
        /// Which.
        op: OpId,
    },
    /// Makes all that is committed durable, the part of an operation among it; who coordinates it, all its parts. Reply: `Done`.
    /// `EAGAIN` while the asked MDT does not know what it has to do again.
    Sync {
        /// Which.
        op: OpId,
    },
    /// All parts of these are durable: nobody need ask for them again. Reply: `Done`.
    Forget {
        /// Which.
        ops: Vec<OpId>,
        /// All operations of this coordinator before this one are durable, or never happen: none of them is to be done any more,
        /// whoever still knows it.
        below: OpId,
    },
    /// An inode's record, for the way up to the root. Reply: `Record`.
    Record {
        /// Which inode.
        fid: Fid,
    },
    /// What a name leads to, on the way down to the root of a client. Reply: `Fid`; `ENOENT` if there is none.
    Lead {
        /// Which, in a directory or shard of the asked MDT.
        at: Name,
    },
    /// Takes the lock for directories that move to another parent; waits for it. Reply: `Done`.
    LockTree {
        /// Who holds it.
        op: OpId,
    },
    /// Gives it back. Reply: `Done`.
    UnlockTree {
        /// Who held it.
        op: OpId,
    },
    /// What MDT 0 hashes names with: so do all, and names keep their positions when they move between shards. Reply: `HashSeed`.
    HashSeed,
    /// How far an old shard of a directory has moved its names, as it is decided and durable. Reply: `Moved`.
    Moved {
        /// The shard, or a directory that is one of its own.
        fid: Fid,
    },
    /// A FID for a shard. Reply: `Fid`; `ENOSPC` if there is no room.
    NewFid,
    /// A directory has so many names in one shard, or is whole with so many, that it should get more shards. Reply: `Done`.
    Split {
        /// The directory.
        fid: Fid,
    },
    /// Data of a file that comes with an operation that is prepared. It goes with it if that does not happen. Reply: `Done`.
    PutData {
        /// The operation.
        op: OpId,
        /// The file, which the operation has locked and which is not there yet.
        fid: Fid,
        /// Where the bytes begin.
        offset: u64,
        /// The bytes.
        bytes: RecordBytes,
        /// Nothing follows: the data is so long, and durable with the answer.
        size: Option<u64>,
    },
}

/// An answer to a [`PeerRequest`].
#[derive(Clone, PartialEq, Debug)]
pub enum PeerReply {
    /// Nothing to tell.
    Done,
    /// Operations.
    Operations(Vec<Operation>),
    /// What is to be done again.
    Greeting {
        /// Operations; none if there are no more.
        operations: Vec<Operation>,
        /// For each coordinator, the first operation that may not be durable everywhere.
        finished: Vec<OpId>,
    },
    /// What was locked.
    Prepared {
        /// The inodes, as they were asked for, and the directories of names that are not among them.
        found: Vec<Found>,
        /// What the names stand for, as they were asked for.
        names: Vec<Option<(Fid, FileKind)>>,
        /// No operation that was done here has a larger stamp.
        clock: u64,
    },
    /// A record.
    Record(Found),
    /// Seed of the hash of names.
    HashSeed(u64),
    /// How far names have moved.
    Moved {
        /// Version of the list that the shard is in.
        version: u32,
        /// Names before this position have moved.
        upto: u64,
    },
    /// A FID that nobody has.
    Fid(Fid),
}

wire_enum!(Update {
    1 = PutName { at, fid, kind },
    2 = DeleteName { at },
    3 = Directory { fid, entries, subdirs },
    4 = NewInode { fid, record, xattrs },
    5 = AddName { fid, at },
    6 = MoveName { fid, from, to },
    7 = DropName { fid, at },
    8 = DropShard { fid },
    9 = Mirror { fid, record, xattrs },
    10 = SetShards { fid, lmv, is_master },
    11 = NamesOut { fid, upto, subdirs, names },
    12 = NamesIn { fid, names },
    13 = InodeIn { fid, record, xattrs, links },
    14 = InodeOut { fid },
    15 = Relead { at, fid, kind },
    16 = NewParent { fid, name, from, to },
    17 = Replaced { fid, by, lmv },
    18 = KeepAnswer { client, tag, xid, answer },
});
wire_enum!(PeerRequest {
    1 = Hello { mdt, after },
    2 = Prepare { op, fids, names },
    3 = Apply { operation },
    4 = Abort { op },
    5 = Outcome { op },
    6 = Sync { op },
    7 = Forget { ops, below },
    8 = Record { fid },
    9 = LockTree { op },
    10 = UnlockTree { op },
    11 = HashSeed,
    12 = Moved { fid },
    13 = NewFid,
    14 = Split { fid },
    15 = PutData { op, fid, offset, bytes, size },
    16 = Lead { at },
});
wire_enum!(PeerReply {
    0 = Done,
    1 = Operations(operations),
    2 = Prepared { found, names, clock },
    3 = Record(found),
    4 = Greeting { operations, finished },
    5 = HashSeed(seed),
    6 = Moved { version, upto },
    7 = Fid(fid),
});
wire_struct!(Part { mdt, updates });
wire_struct!(Operation { id, stamp, client, now, parts });
wire_struct!(Found { fid, record });

wire_lists! {
    OpId: OPERATIONS_MAX, 18, "operations";
    Operation: OPERATIONS_MAX, 50, "operations";
    Part: PARTS_MAX, 6, "parts";
    Update: UPDATES_MAX, 17, "changes";
    Name: WANTED_MAX, 20, "names";
    Found: WANTED_MAX, 17, "inodes";
    Option<(Fid, FileKind)>: WANTED_MAX, 1, "names";
    (Vec<u8>, Vec<u8>): XATTRS_MAX, 8, "attributes";
    MovedName: MOVED_MAX, 21, "names";
    Vec<u8>: MOVED_MAX, 4, "names";
}
