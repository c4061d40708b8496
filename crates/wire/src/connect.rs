//! Bodies of the frames that establish a connection and keep it alive.
//!
//! The first frame of a connection is a `Connect`, answered by a `Connected` or, with a status, by a
//! [`Refusal`]. Its header has the form of version 1 in all versions, so that peers of any versions can
//! report to each other why they refuse.

use crate::codec::{wire_flags, wire_struct};
use crate::frame::ChecksumType;
use crate::mds::LeaseGrant;
use bitflags::bitflags;
use nacre_types::{ClientUuid, ProcessIdentity, TransNo};

/// Oldest protocol version that this program speaks.
pub const VERSION_MIN: u16 = 4;
/// Newest protocol version that this program speaks. 1: the first; 2: layouts, closes and requests to objects
/// record whether an object was written to; 3: keys of servers and clients; 4: quotas, replay of lost changes.
pub const VERSION_MAX: u16 = 4;

bitflags! {
    /// Abilities of a peer beyond the version; a connection uses those that both sides have.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct Features: u64 {
        /// Bulk data may carry a CRC-32C.
        const BULK_CHECKSUM = 1;
        /// Bulk data may carry an Adler-32 instead.
        const BULK_ADLER = 2;
        /// Requests may carry the job that they belong to.
        const JOB_ID = 4;
        /// In an accepted connect to a metadata server: it does not have its answers to earlier requests of this client,
        /// which is new there, or was evicted. One that was sent and not answered may have been executed.
        const LOST_ANSWERS = 8;
    }

    /// Purpose of a connection.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct ConnectFlags: u32 {
        /// Control connection: callbacks of the server travel on it. One per client and target.
        const CONTROL = 1;
        /// Parts of large transfers travel on this connection, from threads on other CPUs than the one that
        /// it names.
        const WIDE = 2;
        /// The client is a metadata server of another MDT: it gets no lease and caches nothing.
        const SERVER = 4;
    }
}

impl Features {
    /// Both checksums of bulk data.
    pub const CHECKSUMS: Features = Features::BULK_CHECKSUM.union(Features::BULK_ADLER);

    /// Returns the feature that stands for a checksum.
    pub const fn of_checksum(kind: ChecksumType) -> Features {
        match kind {
            ChecksumType::Crc32c => Features::BULK_CHECKSUM,
            ChecksumType::Adler => Features::BULK_ADLER,
        }
    }
}

/// A client's request to be served on this connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Connect {
    /// Oldest version that the client speaks.
    pub version_min: u16,
    /// Newest version that the client speaks.
    pub version_max: u16,
    /// Features of the client; unknown bits are kept, so that old servers accept new clients.
    pub features: u64,
    /// Purpose of the connection.
    pub flags: ConnectFlags,
    /// Identity of the client.
    pub client: ClientUuid,
    /// Name of the file system that the client expects; empty for any.
    pub fsname: String,
    /// Process of the client, which shows whether both share a host, and there whether the client has ended.
    pub process: ProcessIdentity,
    /// CPU on which the client uses this connection; meaningful only on the same host. `u32::MAX` for none.
    pub cpu: u32,
    /// Instance of the server that the client was last connected to, 0 for none.
    pub instance: u64,
}

/// The server accepts a connect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Connected {
    /// Version of all further frames.
    pub version: u16,
    /// Features that both sides use.
    pub features: u64,
    /// Instance of the server: another number means that it restarted and knows no handles.
    pub instance: u64,
    /// Boot id of the server's host: another one means that unsynced data may be lost.
    pub boot_id: [u8; 16],
    /// True if the server knew this client before the connect; false after an eviction.
    pub known: bool,
    /// Generation of the client at the target: a client that was dropped reconnects under a higher one, and
    /// all connections of one life have the same. 0 for the management target, which keeps no clients.
    pub generation: u64,
    /// Largest number of requests in flight on this connection; the client waits beyond it.
    pub in_flight_max: u32,
    /// Lease of the client (metadata targets only).
    pub lease: Option<LeaseGrant>,
}

/// Transactions between the newest one that a metadata server finds at its start, and the first one of its run: more
/// than it can acknowledge before they are durable. So no transno is used twice, and a transno in this range is that of
/// a lost transaction.
pub const RUN_GAP: u64 = 1 << 32;

/// State of a metadata server at the start of its run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RunStart {
    /// Number of the run; grows by one with each start.
    pub run: u64,
    /// Boot id of the server's host.
    pub boot_id: [u8; 16],
    /// Newest transactions found at the last starts that followed no orderly shutdown, in ascending order: acknowledged
    /// ones in the [`RUN_GAP`] after each of them are lost.
    pub losses: Vec<TransNo>,
    /// Newest lost transaction of the asking client that has been replayed.
    pub replayed: TransNo,
}

impl RunStart {
    /// Returns true if the server has lost an acknowledged transaction, and the client has not replayed it.
    pub fn has_lost(&self, transno: TransNo) -> bool {
        transno > self.replayed && is_in_gap(&self.losses, transno)
    }
}

/// Returns true if a transno is in the [`RUN_GAP`] after one of these, which are in ascending order.
pub fn is_in_gap(losses: &[TransNo], transno: TransNo) -> bool {
    let at = losses.partition_point(|newest| newest.0 < transno.0);
    let newest = at.checked_sub(1).and_then(|before| losses.get(before));
    newest.is_some_and(|newest| transno.0 - newest.0 <= RUN_GAP)
}

/// Body of a refused connect if the version ranges do not overlap; other refusals have an empty body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// Oldest version that the server speaks.
    pub version_min: u16,
    /// Newest version that the server speaks.
    pub version_max: u16,
}

wire_flags!(ConnectFlags);
wire_struct!(Connect { version_min, version_max, features, flags, client, fsname, process, cpu, instance });
wire_struct!(Connected { version, features, instance, boot_id, known, generation, in_flight_max, lease });
wire_struct!(RunStart { run, boot_id, losses, replayed });
wire_struct!(Refusal { version_min, version_max });

/// Returns the newest version in both ranges, if any.
pub fn agree_version(theirs_min: u16, theirs_max: u16) -> Option<u16> {
    let newest = VERSION_MAX.min(theirs_max);
    (newest >= VERSION_MIN.max(theirs_min)).then_some(newest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_in_the_gap_before_a_run_is_lost_unless_it_was_replayed() {
        let losses = [10, 500 + RUN_GAP].map(TransNo).to_vec();
        let start = |replayed| RunStart { run: 7, boot_id: [0; 16], losses: losses.clone(), replayed };
        let lost = |transno| start(TransNo(0)).has_lost(TransNo(transno));
        assert_eq!([0, 9, 10, 11, 10 + RUN_GAP].map(lost), [false, false, false, true, true]);
        assert_eq!([11 + RUN_GAP, 500 + RUN_GAP, 501 + RUN_GAP].map(lost), [false, false, true]);
        assert!(!start(TransNo(11)).has_lost(TransNo(11)) && start(TransNo(11)).has_lost(TransNo(12)));
    }

    #[test]
    fn versions_meet_at_the_newest_common_one() {
        assert_eq!(agree_version(4, 4), Some(4));
        assert_eq!(agree_version(1, 9), Some(4));
        assert_eq!([agree_version(1, 3), agree_version(5, 9)], [None; 2]);
        assert_eq!(agree_version(0, 0), None);
        assert_eq!(agree_version(5, 1), None);
    }
}
