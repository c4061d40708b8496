//! Requests between metadata servers: distributed transactions by two-phase commit. See `docs/design/dne.md`.

use crate::codec::{Decode, DecodeResult, Encode, Reader, put_bytes, wire_enum, wire_lists, wire_struct};
use crate::quota::{QuotaReport, QuotaRound};
use nacre_types::{ClientUuid, Fid, FileKind, QuotaId, Timestamp, TransNo, Xid};

/// Largest number of MDTs in one distributed transaction: as many as a striped directory may have.
pub const PARTS_MAX: usize = 2000;
/// Largest number of names of an inode that moves to another MDT: all of them are locked together.
pub const LEADS_MAX: usize = 1000;
/// Largest number of inodes that a transaction changes on one MDT in addition to those names.
pub const INODES_MAX: usize = 128;
/// Changes of one transaction on one MDT.
pub const UPDATES_MAX: usize = LEADS_MAX + INODES_MAX;
/// Inodes and names in one `Prepare`: while names of a directory move, a name may be in either of two places.
pub const WANTED_MAX: usize = 2 * LEADS_MAX + INODES_MAX;
/// Extended attributes in one message.
pub const XATTRS_MAX: usize = 64;
/// Transactions in one message.
pub const TRANSACTIONS_MAX: usize = 1024;
/// Largest number of names that one transaction moves to another shard.
pub const MOVED_MAX: usize = 1024;
/// Largest inode record in bytes, with a layout of the largest size in it.
const RECORD_MAX: usize = 128 << 10;

/// Number of a distributed transaction; never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TransactionId {
    /// Index of the MDT that coordinates it.
    pub mdt: u16,
    /// Number of that MDT's start.
    pub boot: u64,
    /// Counter of the start's transactions, from 1.
    pub number: u64,
}

wire_struct!(TransactionId { mdt, boot, number });

impl std::fmt::Display for TransactionId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MDT{:04x}:{}:{}", self.mdt, self.boot, self.number)
    }
}

/// An inode's record in its form on disk, which may be longer than other byte strings.
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

/// Place of a name in the namespace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Name {
    /// Directory or shard with the name.
    pub parent: Fid,
    /// Name in the directory.
    pub name: Vec<u8>,
}

wire_struct!(Name { parent, name });

/// One change of a distributed transaction, on the MDT that stores the changed record. It describes the
/// change and not the result, so that it can be redone on top of other changes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Update {
    /// Adds a name to a directory, or changes what a name leads to.
    PutName {
        /// Place of the name.
        at: Name,
        /// Inode that it leads to.
        fid: Fid,
        /// Kind of the inode.
        kind: FileKind,
    },
    /// Removes a name from a directory.
    DeleteName {
        /// Place of the name.
        at: Name,
    },
    /// Changes times and counts of a directory whose names change.
    Directory {
        /// Directory to change.
        fid: Fid,
        /// Change of the number of names.
        entries: i64,
        /// Change of the number of subdirectories.
        subdirs: i64,
    },
    /// Creates an inode.
    NewInode {
        /// FID of the inode.
        fid: Fid,
        /// Record to store.
        record: RecordBytes,
        /// Names and values of extended attributes.
        xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    },
    /// Adds a name to an inode's list of names.
    AddName {
        /// Inode to change.
        fid: Fid,
        /// New name.
        at: Name,
    },
    /// Moves a name in an inode's list of names.
    MoveName {
        /// Inode to change.
        fid: Fid,
        /// Old name.
        from: Name,
        /// New name.
        to: Name,
    },
    /// Removes a name from an inode's list; with the last one the inode is removed, or stays as an orphan
    /// while it is open.
    DropName {
        /// Inode to change.
        fid: Fid,
        /// Name to remove.
        at: Name,
        /// The name leads to another inode from here on.
        replaced: bool,
    },
    /// Removes a shard with its directory.
    DropShard {
        /// Shard to remove.
        fid: Fid,
    },
    /// Replicates the attributes of a directory to the directory or a shard: owner, rights, times, project,
    /// access ACL and defaults are those of the record.
    Mirror {
        /// Directory or shard to change.
        fid: Fid,
        /// Record of the directory.
        record: RecordBytes,
        /// Extended attributes that change too; an empty value removes one.
        xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    },
    /// Gives a directory or shard another list of shards, or another index in it.
    SetShards {
        /// Directory or shard to change.
        fid: Fid,
        /// Part of the list that it stores; empty for a directory without shards.
        lmv: RecordBytes,
        /// True for the directory itself.
        is_master: bool,
    },
    /// Removes names that move out of an old shard, which then has no names before a position.
    NamesOut {
        /// Shard to change.
        fid: Fid,
        /// Position before which all names have moved.
        upto: u64,
        /// Number of subdirectories among the names.
        subdirs: u32,
        /// Names to remove.
        names: Vec<Vec<u8>>,
    },
    /// Adds names that move from an old shard.
    NamesIn {
        /// Shard to change.
        fid: Fid,
        /// Names to add.
        names: Vec<MovedName>,
    },
    /// Creates an inode that moves from another MDT, where it had another FID.
    InodeIn {
        /// New FID on this MDT.
        fid: Fid,
        /// Record, with the first name.
        record: RecordBytes,
        /// Names and values of extended attributes.
        xattrs: Vec<(Vec<u8>, Vec<u8>)>,
        /// Further names.
        links: Vec<Name>,
    },
    /// Removes an inode that moves to another MDT, with its data on this MDT; its objects on OSTs stay.
    InodeOut {
        /// Old FID of the inode.
        fid: Fid,
    },
    /// Changes a name to the new FID of an inode; times and counts of the directory stay.
    Retarget {
        /// Place of the name.
        at: Name,
        /// New FID of the inode.
        fid: Fid,
        /// Kind of the inode.
        kind: FileKind,
    },
    /// Changes the parent in an inode's list of names, as the directory has a new FID.
    NewParent {
        /// Inode to change.
        fid: Fid,
        /// Name in that directory.
        name: Vec<u8>,
        /// Old FID of the directory.
        from: Fid,
        /// New FID of the directory.
        to: Fid,
    },
    /// Replaces a directory by another one; it stays until all names have moved there.
    Replaced {
        /// Directory that is replaced.
        fid: Fid,
        /// Directory that replaces it.
        by: Fid,
        /// List of shards of both.
        lmv: RecordBytes,
    },
    /// Stores the coordinator's reply for a resend, so that it is restored if a power failure takes the
    /// coordinator's part.
    KeepAnswer {
        /// Client that sent the request.
        client: ClientUuid,
        /// Reply slot of the request.
        tag: u16,
        /// Id of the request.
        xid: Xid,
        /// Encoded reply, with transaction number 0.
        answer: RecordBytes,
    },
    /// Adds a record to the coordinator's changelog.
    LogChange {
        /// Record in its form on disk, without index and time.
        record: RecordBytes,
    },
}

/// A name that moves to another shard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MovedName {
    /// Name in the directory.
    pub name: Vec<u8>,
    /// Inode that it leads to.
    pub fid: Fid,
    /// Kind of the inode.
    pub kind: FileKind,
}

wire_struct!(MovedName { name, fid, kind });

/// Part of a distributed transaction: the changes on one MDT.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part {
    /// Index of the MDT.
    pub mdt: u16,
    /// Changes, in order.
    pub updates: Vec<Update>,
}

/// A distributed transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Transaction {
    /// Number of the transaction.
    pub id: TransactionId,
    /// Logical clock: larger than the stamps of all earlier transactions that changed one of its inodes.
    /// Transactions are redone in this order.
    pub stamp: u64,
    /// Client that requested it.
    pub client: ClientUuid,
    /// Time for the changed inodes.
    pub now: Timestamp,
    /// One part for each MDT, including the coordinator's, in the order of indexes.
    pub parts: Vec<Part>,
}

impl Transaction {
    /// Returns the part of an MDT.
    pub fn part(&self, mdt: u16) -> Option<&Part> {
        self.parts.iter().find(|part| part.mdt == mdt)
    }
}

/// An inode as [`PeerRequest::Prepare`] found it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// FID of the inode.
    pub fid: Fid,
    /// Record as it is stored; `None` if there is no such inode.
    pub record: Option<RecordBytes>,
}

/// Request of one metadata server to another. All may be repeated.
#[derive(Clone, PartialEq, Debug)]
pub enum PeerRequest {
    /// Sent after a (re)start: asks for the transactions in which both have a part, in the order of their
    /// numbers, as many as fit into a message. Reply: `Greeting`.
    Hello {
        /// Index of the sending MDT.
        mdt: u16,
        /// Number after which transactions are listed; `None` for the start of the list.
        after: Option<TransactionId>,
    },
    /// Locks inodes and names for a transaction, all at once, and returns the inodes, and what the names lead
    /// to. Reply: `Prepared`.
    Prepare {
        /// Number of the transaction.
        op: TransactionId,
        /// Inodes to be locked as a whole; they need not exist.
        fids: Vec<Fid>,
        /// Names to be locked, in any directories, which are not locked as a whole.
        names: Vec<Name>,
        /// True for a lost change that a client replays: then it does not wait for other replayed changes.
        replays: bool,
    },
    /// Commits the part of a transaction that its coordinator has committed. Reply: `Applied`, when the part is
    /// committed.
    Apply {
        /// The whole transaction.
        transaction: Transaction,
        /// Transaction of the coordinator's part in its store.
        transno: TransNo,
    },
    /// Aborts a prepared transaction. Reply: `Done`.
    Abort {
        /// Number of the transaction.
        op: TransactionId,
    },
    /// Asks the coordinator for the outcome of a transaction. Reply: `Transactions`, with it if it was
    /// committed; an empty list if it never will be (presumed abort). `EAGAIN` while it is not decided.
    Outcome {
        /// Number of the transaction.
        op: TransactionId,
    },
    /// Makes everything committed durable, including the part of a transaction; on its coordinator, all its
    /// parts. Reply: `Done`. `EAGAIN` while the MDT does not know yet what it has to redo.
    Sync {
        /// Number of the transaction.
        op: TransactionId,
    },
    /// All parts of these transactions are durable: the coordinator may forget them. Reply: `Done`.
    Forget {
        /// Numbers of the transactions.
        ops: Vec<TransactionId>,
        /// All transactions of this coordinator before this one are durable, or will never happen: no MDT may
        /// redo any of them, even if it still has a record of it.
        below: TransactionId,
    },
    /// Returns an inode's record, for the path up to the root. Reply: `Record`.
    Record {
        /// FID of the inode.
        fid: Fid,
    },
    /// Returns what a name leads to, on the path down to the root of a client. Reply: `Fid`; `ENOENT` if
    /// there is no such name.
    ResolveName {
        /// Place of the name, in a directory or shard of the receiving MDT.
        at: Name,
    },
    /// Takes the lock for directories that move to another parent; waits for it. Reply: `Done`.
    LockTree {
        /// Transaction that holds the lock.
        op: TransactionId,
    },
    /// Releases that lock. Reply: `Done`.
    UnlockTree {
        /// Transaction that held the lock.
        op: TransactionId,
    },
    /// Returns MDT 0's seed for hashes of names: all MDTs use it, so that names keep their positions when
    /// they move between shards. Reply: `HashSeed`.
    HashSeed,
    /// Returns how far an old shard of a directory has moved its names, as far as that is decided and
    /// durable. Reply: `Moved`.
    Moved {
        /// The shard, or a directory that is its own shard.
        fid: Fid,
    },
    /// Returns a new FID for a shard. Reply: `Fid`; `ENOSPC` without free space.
    NewFid,
    /// Reports that a directory has so many names in one shard, or without shards, that it should get more.
    /// Reply: `Done`.
    Split {
        /// Directory to split.
        fid: Fid,
    },
    /// Data of a file that belongs to a prepared transaction, and is dropped if that aborts. Reply: `Done`.
    PutData {
        /// Number of the transaction.
        op: TransactionId,
        /// File, which the transaction has locked and which does not exist yet.
        fid: Fid,
        /// Offset of the bytes in the file.
        offset: u64,
        /// Data to store.
        bytes: RecordBytes,
        /// Set in the last message: size of the data, which is durable with the reply.
        size: Option<u64>,
    },
    /// From the quota master: new slices, and a request for a report. Reply: `Quota`.
    QuotaRound {
        /// The round.
        round: QuotaRound,
    },
    /// To the quota master: an id gets files from another owner. Reply: `Done`; `EDQUOT` if its limit does not leave
    /// their space.
    AdmitSpace {
        /// The new owner.
        id: QuotaId,
        /// Space of the files.
        bytes: u64,
    },
}

/// Reply to a [`PeerRequest`].
#[derive(Clone, PartialEq, Debug)]
pub enum PeerReply {
    /// Success without a result.
    Done,
    /// Transactions whose outcome was asked for.
    Transactions(Vec<Transaction>),
    /// Transactions to be redone.
    Greeting {
        /// Transactions; none if there are no more.
        transactions: Vec<Transaction>,
        /// For each of them, the transaction of the asking MDT's part in its store; 0 where the answering MDT does not
        /// know it.
        transnos: Vec<TransNo>,
        /// For each coordinator, the first transaction that may not be durable everywhere.
        finished: Vec<TransactionId>,
    },
    /// Locked inodes and names.
    Prepared {
        /// Inodes in the order of the request, then the directories of names that are not among them.
        found: Vec<Found>,
        /// Inodes that the names lead to, in the order of the request.
        names: Vec<Option<(Fid, FileKind)>>,
        /// Logical clock: no transaction that was carried out on this MDT has a larger stamp.
        clock: u64,
    },
    /// Record of an inode.
    Record(Found),
    /// Seed of the hash of names.
    HashSeed(u64),
    /// Progress of a shard's moving names.
    Moved {
        /// Version of the list of shards.
        version: u32,
        /// Position before which all names have moved.
        upto: u64,
    },
    /// A FID: a new one, or that of a name's inode.
    Fid(Fid),
    /// Report for a quota round.
    Quota(QuotaReport),
    /// The part of a transaction is committed.
    Applied {
        /// Transaction of the part in the store of the answering MDT.
        transno: TransNo,
    },
}

wire_enum!(Update {
    1 = PutName { at, fid, kind },
    2 = DeleteName { at },
    3 = Directory { fid, entries, subdirs },
    4 = NewInode { fid, record, xattrs },
    5 = AddName { fid, at },
    6 = MoveName { fid, from, to },
    7 = DropName { fid, at, replaced },
    8 = DropShard { fid },
    9 = Mirror { fid, record, xattrs },
    10 = SetShards { fid, lmv, is_master },
    11 = NamesOut { fid, upto, subdirs, names },
    12 = NamesIn { fid, names },
    13 = InodeIn { fid, record, xattrs, links },
    14 = InodeOut { fid },
    15 = Retarget { at, fid, kind },
    16 = NewParent { fid, name, from, to },
    17 = Replaced { fid, by, lmv },
    18 = KeepAnswer { client, tag, xid, answer },
    19 = LogChange { record },
});
wire_enum!(PeerRequest {
    1 = Hello { mdt, after },
    2 = Prepare { op, fids, names, replays },
    3 = Apply { transaction, transno },
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
    16 = ResolveName { at },
    17 = QuotaRound { round },
    18 = AdmitSpace { id, bytes },
});
wire_enum!(PeerReply {
    0 = Done,
    1 = Transactions(transactions),
    2 = Prepared { found, names, clock },
    3 = Record(found),
    4 = Greeting { transactions, transnos, finished },
    5 = HashSeed(seed),
    6 = Moved { version, upto },
    7 = Fid(fid),
    8 = Quota(report),
    9 = Applied { transno },
});
wire_struct!(Part { mdt, updates });
wire_struct!(Transaction { id, stamp, client, now, parts });
wire_struct!(Found { fid, record });

wire_lists! {
    TransactionId: TRANSACTIONS_MAX, 18, "transactions";
    Transaction: TRANSACTIONS_MAX, 50, "transactions";
    Part: PARTS_MAX, 6, "parts";
    Update: UPDATES_MAX, 5, "changes";
    Name: WANTED_MAX, 20, "names";
    Found: WANTED_MAX, 17, "inodes";
    Option<(Fid, FileKind)>: WANTED_MAX, 1, "names";
    (Vec<u8>, Vec<u8>): XATTRS_MAX, 8, "attributes";
    MovedName: MOVED_MAX, 21, "names";
    Vec<u8>: MOVED_MAX, 4, "names";
}
