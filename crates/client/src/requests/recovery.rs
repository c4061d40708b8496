//! MDTs that have restarted: the changes that they have lost, and their replay.

use crate::requests::Requests;
use crate::requests::kept::{Noted, kept_of};
use crate::requests::mdt::{Mdt, open_again_is_given_up, replay_is_given_up};
use nacre_rpc::MdsEndpoint;
use nacre_types::{Cred, Fid, Status, StatusResult, TransNo};
use nacre_wire::mds::{MdsAnswer, MdsReply, MdsRequest};
use nacre_wire::replay::{REPLAYED_BYTES, REPLAYED_MAX, ReplayedChange};
use std::sync::atomic::Ordering;

/// Result of the replay of changes.
#[derive(Default)]
struct Replayed {
    /// Number of changes that the MDT has again.
    done: usize,
    /// Number of changes that are lost.
    lost: usize,
}

impl Requests {
    /// Keeps a change that an MDT has acknowledged until it is durable. That matters only if the MDT's host may
    /// lose power while this client lives.
    pub(crate) fn keep(&self, cred: &Cred, fid: Fid, request: &MdsRequest<'_>, answer: &MdsAnswer) {
        let Ok(mdt) = self.mdt(fid) else { return };
        if mdt.endpoint.is_local() {
            return;
        }
        if let Some(change) = kept_of(cred, request, answer) {
            self.enter(mdt, fid.mdt_index(), change);
        }
    }

    /// Keeps a change of data in the log of an MDT; everything up to `last_committed` is durable there.
    pub(crate) fn keep_data(&self, mdt_index: u16, change: ReplayedChange, last_committed: TransNo) {
        let Some(mdt) = self.mdts.get(usize::from(mdt_index)) else { return };
        mdt.last_committed.fetch_max(last_committed.0, Ordering::Relaxed);
        mdt.last_transno.fetch_max(change.transno.0, Ordering::Relaxed);
        self.enter(mdt, mdt_index, change);
    }

    fn enter(&self, mdt: &Mdt, mdt_index: u16, change: ReplayedChange) {
        let transno = change.transno;
        match mdt.kept.note(change, TransNo(mdt.last_committed())) {
            Noted::Kept => {}
            Noted::Full => {
                let place = Fid::new(Fid::first_sequence_of_mdt(mdt_index), 1, 0);
                if let Err(status) = self.commit(place, transno) {
                    log::warn!("making changes durable at MDT{mdt_index:04x}: {status}");
                }
            }
            // The answer came from the last run, and this thread enters it only now.
            Noted::Lost => {
                if let Err(status) = self.meet_run(mdt_index, &*mdt.endpoint, true) {
                    log::warn!("replaying a change at MDT{mdt_index:04x}: {status}");
                }
            }
        }
    }

    /// Asks an MDT with which state its run began, and, if `replays`, replays what it has lost. To be called at the
    /// first connection, and before other requests continue after a restart. True if it has lost changes of this
    /// client: then no cached information is valid.
    ///
    /// # Errors
    /// Those after which it has to be called again.
    pub fn meet_run(&self, mdt_index: u16, endpoint: &dyn MdsEndpoint, replays: bool) -> StatusResult<bool> {
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
        let changes = mdt.kept.begin_run(start);
        if changes.is_empty() {
            return Ok(false);
        }
        let Replayed { done, lost } = match replays {
            true => replay(mdt, mdt_index, endpoint, changes)?,
            false => lose_all(mdt, &changes),
        };
        if done > 0 {
            log::warn!(
                "MDT{mdt_index:04x} had lost changes with its host: {done} of this client are replayed"
            );
        }
        if lost > 0 {
            log::error!(
                "MDT{mdt_index:04x} has lost {lost} changes that it had answered, as if its host had lost power: fsync and \
                 close of the files and directories that they concern fail once (EIO)"
            );
        }
        Ok(true)
    }

    /// True, once, if an MDT has lost a change of this client to an inode.
    pub(crate) fn take_lost(&self, fid: &Fid) -> bool {
        let mut lost = false;
        for mdt in (0..self.mdts.len()).filter_map(|index| self.mdts.get(index)) {
            lost |= mdt.kept.take_lost(fid);
        }
        lost
    }
}

fn lose_all(mdt: &Mdt, changes: &[ReplayedChange]) -> Replayed {
    for change in changes {
        mdt.kept.lose(change);
    }
    Replayed { done: 0, lost: changes.len() }
}

/// Replays lost changes in their order.
///
/// # Errors
/// Those after which the rest has to be replayed again.
fn replay(
    mdt: &Mdt,
    mdt_index: u16,
    endpoint: &dyn MdsEndpoint,
    changes: Vec<ReplayedChange>,
) -> StatusResult<Replayed> {
    let mut result = Replayed::default();
    let mut rest = changes.into_iter().peekable();
    while rest.peek().is_some() {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while batch.len() < REPLAYED_MAX
            && let Some(change) =
                rest.next_if(|change| bytes == 0 || bytes + change.len_bytes() <= REPLAYED_BYTES)
        {
            bytes += change.len_bytes();
            batch.push(change);
        }
        let request = MdsRequest::Replay { changes: batch };
        let answer = endpoint.call(&Cred::system(), &request);
        let MdsRequest::Replay { changes: batch } = request else { return Err(Status::EPROTO) };
        let outcomes = match answer.map(|answer| answer.reply) {
            Ok(MdsReply::Outcomes(outcomes)) if outcomes.len() == batch.len() => outcomes,
            Ok(_) => vec![Some(Status::EPROTO); batch.len()],
            Err(status) if replay_is_given_up(status) => {
                mdt.kept.restore(batch.into_iter().chain(rest));
                return Err(status);
            }
            Err(status) => vec![Some(status); batch.len()],
        };
        for (change, outcome) in batch.iter().zip(outcomes) {
            match outcome {
                None => result.done += 1,
                Some(status) => {
                    mdt.kept.lose(change);
                    result.lost += 1;
                    log::warn!("MDT{mdt_index:04x}: transaction {} is lost: {status}", change.transno.0);
                }
            }
        }
    }
    Ok(result)
}
