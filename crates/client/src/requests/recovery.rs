//! MDTs that have restarted, and which changes they have lost.

use crate::requests::Requests;
use crate::requests::mdt::open_again_is_given_up;
use crate::requests::unsynced::changed_by;
use nacre_rpc::MdsEndpoint;
use nacre_types::{Cred, Fid, StatusResult};
use nacre_wire::mds::{MdsReply, MdsRequest};

impl Requests {
    /// Records that an MDT has acknowledged a request with a change. It matters only if the MDT's host may
    /// lose power while this client lives.
    pub(crate) fn note_unsynced(&self, fid: Fid, request: &MdsRequest<'_>, reply: &MdsReply, transno: u64) {
        let Ok(mdt) = self.mdt(fid) else { return };
        if !mdt.endpoint.is_local()
            && mdt.unsynced.note(changed_by(request, reply), transno, mdt.last_committed())
            && let Err(status) = self.commit(fid, nacre_types::TransNo(transno))
        {
            log::warn!("making changes durable at MDT{:04x}: {status}", fid.mdt_index());
        }
    }

    /// Asks an MDT with which state its run began, and records what it has lost. To be called at the first
    /// connection, and before other requests continue after a restart. True if it has lost changes of this
    /// client: then no cached information is valid.
    ///
    /// # Errors
    /// Those after which it has to be called again.
    pub fn meet_run(&self, mdt_index: u16, endpoint: &dyn MdsEndpoint) -> StatusResult<bool> {
        let Some(mdt) = self.mdts.get(usize::from(mdt_index)) else { return Ok(false) };
        let start = match endpoint.call(&Cred::system(), &MdsRequest::RunStart) {
            Ok(answer) => match answer.reply {
                MdsReply::RunStart(start) => start,
                _ => return Ok(false),
            },
            Err(status) if open_again_is_given_up(status) => return Err(status),
            Err(status) => {
                log::warn!("MDT{mdt_index:04x} does not report the transaction it began with: {status}");
                return Ok(false);
            }
        };
        let Some(lost) = mdt.unsynced.begin_run(start, mdt.last_committed()) else { return Ok(false) };
        mdt.forget_later(start.newest);
        if lost > 0 {
            log::error!(
                "MDT{mdt_index:04x} has lost changes that it had answered, as if its host had lost power: fsync and close of \
                 {lost} files and directories that were changed here fail once (EIO)"
            );
        }
        Ok(lost > 0)
    }

    /// True, once, if an MDT has lost a change of this client to an inode.
    pub(crate) fn take_lost(&self, fid: &Fid) -> bool {
        let mut lost = false;
        for mdt in (0..self.mdts.len()).filter_map(|index| self.mdts.get(index)) {
            lost |= mdt.unsynced.take_lost(fid);
        }
        lost
    }
}
