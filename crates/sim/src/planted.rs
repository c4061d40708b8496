//! Planted bugs: services and clients that are wrong in one way, to measure what the simulator finds.
//!
//! They are in front of the production code, at the traits between the parts, so that the tested code is the
//! shipped code, and a build of the program has none of them.

mod mds;
mod oss;

pub(crate) use mds::PlantedMds;
pub(crate) use oss::PlantedOss;

use nacre_client::RemoteEvents;
use nacre_rpc::tcp::MdsEvents;
use nacre_rpc::{ClientCallbacks, MdsEndpoint, Recovery};
use nacre_types::StatusResult;
use nacre_wire::lock::LockMessage;
use nacre_wire::mds::LeaseGrant;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A planted bug.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    /// An MDT takes an exclusive create for one that is not.
    CreateIgnoresExclusive,
    /// An MDT answers every third removal of a name, and removes nothing.
    UnlinkOnlyAnswers,
    /// An MDT answers every third rename, and moves nothing.
    RenameOnlyAnswers,
    /// An MDT answers every second change of an extended attribute, and changes nothing.
    XattrForgotten,
    /// An MDT remembers that names are absent, and does not notice when they are made.
    AbsenceRemembered,
    /// An MDT answers a sync of its log, and syncs nothing.
    CommitSkipped,
    /// An MDT does not remember answers across its restart, so that a resent request runs again.
    AnswersForgotten,
    /// An MDT answers the replay of lost changes, and executes none.
    ReplayForgotten,
    /// An MDT grants every file lock.
    FileLocksForAll,
    /// An MDT answers the replay of file locks, and enters none.
    FileLocksForgotten,
    /// An MDT ignores the size that a close reports.
    CloseIgnoresSize,
    /// An MDT counts one more name of files with several.
    LinksMiscounted,
    /// An MDT gives every client the exclusive lease.
    LeaseForAll,
    /// An MDT gives all clients the same sequence of FIDs.
    SequenceForAll,
    /// An OST answers every fifth write, and writes nothing.
    WriteForgotten,
    /// An OST writes the first half of large data only.
    WriteCutShort,
    /// An OST writes every seventh time 512 bytes further on.
    WriteShifted,
    /// An OST does not truncate.
    TruncateForgotten,
    /// An OST answers a sync, and syncs nothing.
    SyncSkipped,
    /// An OST answers the replay of lost writes, and writes nothing.
    DataReplayForgotten,
    /// An OST answers a read as it answered the first one of the same range.
    ReadRemembered,
    /// An OST grants every lock at once.
    LocksForAll,
    /// An OST does not destroy objects.
    DestroyForgotten,
    /// A client does nothing about a restart of an MDT.
    ReconnectIgnored,
    /// A client does not notice changes of its lease.
    LeaseChangeIgnored,
    /// A client does not notice that an MDT revokes locks.
    CallbackIgnored,
    /// Slot files lose what was synced.
    FileSyncForgotten,
    /// An MDT replaces a name in two transactions: it removes the old file first.
    RenameInTwoSteps,
}

/// All bugs but [`Bug::RenameInTwoSteps`], for which a power cut has to come between two changes.
pub const BUGS: [Bug; 27] = [
    Bug::CreateIgnoresExclusive,
    Bug::UnlinkOnlyAnswers,
    Bug::RenameOnlyAnswers,
    Bug::XattrForgotten,
    Bug::AbsenceRemembered,
    Bug::CommitSkipped,
    Bug::AnswersForgotten,
    Bug::ReplayForgotten,
    Bug::FileLocksForAll,
    Bug::FileLocksForgotten,
    Bug::CloseIgnoresSize,
    Bug::LinksMiscounted,
    Bug::LeaseForAll,
    Bug::SequenceForAll,
    Bug::WriteForgotten,
    Bug::WriteCutShort,
    Bug::WriteShifted,
    Bug::TruncateForgotten,
    Bug::SyncSkipped,
    Bug::DataReplayForgotten,
    Bug::ReadRemembered,
    Bug::LocksForAll,
    Bug::DestroyForgotten,
    Bug::ReconnectIgnored,
    Bug::LeaseChangeIgnored,
    Bug::CallbackIgnored,
    Bug::FileSyncForgotten,
];

impl Bug {
    /// Returns what a plan needs so that the bug has a consequence: power cuts of MDTs, of OSTs, kills of MDTs.
    pub fn needs(self) -> Needs {
        match self {
            Bug::CommitSkipped | Bug::ReplayForgotten => Needs::MdtPower,
            Bug::SyncSkipped | Bug::DataReplayForgotten | Bug::FileSyncForgotten => Needs::OstPower,
            Bug::AnswersForgotten | Bug::FileLocksForgotten | Bug::ReconnectIgnored => Needs::MdtKills,
            _ => Needs::Nothing,
        }
    }

    /// Returns true if the bug has a consequence only in programs with file locks.
    pub fn is_of_file_locks(self) -> bool {
        matches!(self, Bug::FileLocksForAll | Bug::FileLocksForgotten)
    }
}

/// Faults that a bug needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Needs {
    Nothing,
    MdtPower,
    OstPower,
    MdtKills,
}

/// Counts calls, so that a bug shows in some only.
#[derive(Default)]
pub(crate) struct Turn(AtomicU64);

impl Turn {
    /// Returns true in every `nth` call.
    pub(crate) fn is_each(&self, nth: u64) -> bool {
        self.0.fetch_add(1, Ordering::Relaxed) % nth == nth - 1
    }
}

/// Events of a client, some of which it ignores.
pub(crate) struct PlantedEvents {
    pub(crate) inner: Arc<RemoteEvents>,
    pub(crate) bug: Option<Bug>,
}

impl ClientCallbacks for PlantedEvents {
    fn lease_changed(&self, grant: LeaseGrant) {
        match self.bug {
            Some(Bug::LeaseChangeIgnored) => {}
            Some(Bug::LeaseForAll) => self.inner.lease_changed(LeaseGrant { exclusive: true, ..grant }),
            _ => self.inner.lease_changed(grant),
        }
    }

    fn lock_message(&self, message: LockMessage) {
        if self.bug != Some(Bug::CallbackIgnored) {
            self.inner.lock_message(message);
        }
    }

    fn callbacks_lost(&self) {
        self.inner.callbacks_lost();
    }
}

impl MdsEvents for PlantedEvents {
    fn reconnected(
        &self,
        endpoint: &dyn MdsEndpoint,
        recovery: Recovery,
        grant: LeaseGrant,
    ) -> StatusResult<()> {
        match self.bug {
            Some(Bug::ReconnectIgnored) => Ok(()),
            _ => self.inner.reconnected(endpoint, recovery, grant),
        }
    }
}
