//! A metadata service that is wrong in one way.

use super::{Bug, Turn};
use nacre_env::sync::Mutex;
use nacre_lock::LockHandle;
use nacre_mds::Mds;
use nacre_rpc::{Call, Export, MdsService, MdsWelcome, ReplySlot};
use nacre_types::{Attr, ClientUuid, Fid, StatusResult};
use nacre_wire::mds::{DataUpdate, LeaseGrant, MdsAnswer, MdsReply, MdsRequest};
use std::collections::BTreeSet;
use std::sync::Arc;

/// See the [module documentation](self).
pub(crate) struct PlantedMds {
    inner: Arc<Mds>,
    bug: Bug,
    turn: Turn,
    absent: Mutex<BTreeSet<(Fid, Vec<u8>)>>,
    sequence: Mutex<Option<u64>>,
}

impl PlantedMds {
    pub(crate) fn new(inner: Arc<Mds>, bug: Bug) -> PlantedMds {
        PlantedMds { inner, bug, turn: Turn::default(), absent: Mutex::default(), sequence: Mutex::default() }
    }

    fn miscount(mut answer: MdsAnswer) -> MdsAnswer {
        let miscount = |attr: &mut Attr| attr.nlink += u32::from(attr.is_regular() && attr.nlink > 1);
        match &mut answer.reply {
            MdsReply::Attr(attr)
            | MdsReply::Entry { attr: Some(attr), .. }
            | MdsReply::Intent { attr: Some(attr), .. } => miscount(attr),
            _ => {}
        }
        answer
    }

    /// Answers that a name is absent if it was once.
    fn remembered(&self, request: &MdsRequest<'_>) -> Option<MdsReply> {
        let (MdsRequest::Lookup { parent: fid, name } | MdsRequest::Intent { fid, name: Some(name), .. }) =
            request
        else {
            return None;
        };
        let is_absent = self.absent.lock().contains(&(*fid, name.to_vec()));
        let reply = match request {
            MdsRequest::Lookup { .. } => MdsReply::Entry { attr: None, public: false },
            _ => MdsReply::Intent {
                attr: None,
                public: false,
                names: None,
                directory: LockHandle(0),
                inode: LockHandle(0),
            },
        };
        is_absent.then_some(reply)
    }

    fn remember(&self, request: &MdsRequest<'_>, answer: &MdsAnswer) {
        let absent =
            matches!(answer.reply, MdsReply::Entry { attr: None, .. } | MdsReply::Intent { attr: None, .. });
        if let (
            true,
            MdsRequest::Lookup { parent: fid, name } | MdsRequest::Intent { fid, name: Some(name), .. },
        ) = (absent, request)
        {
            self.absent.lock().insert((*fid, name.to_vec()));
        }
    }

    fn sequence(&self, run: impl FnOnce() -> StatusResult<MdsAnswer>) -> StatusResult<MdsAnswer> {
        let answer = run()?;
        let mut known = self.sequence.lock();
        match (&answer.reply, *known) {
            (_, Some(sequence)) => Ok(MdsAnswer { reply: MdsReply::Sequence(sequence), ..answer }),
            (MdsReply::Sequence(sequence), None) => {
                *known = Some(*sequence);
                Ok(answer)
            }
            _ => Ok(answer),
        }
    }
}

impl MdsService for PlantedMds {
    fn connect(&self, export: &Arc<Export>) -> StatusResult<MdsWelcome> {
        let welcome = self.inner.connect(export)?;
        let lease = LeaseGrant { exclusive: true, ..welcome.lease };
        Ok(if self.bug == Bug::LeaseForAll { MdsWelcome { lease, ..welcome } } else { welcome })
    }

    fn disconnect(&self, client: ClientUuid) {
        self.inner.disconnect(client);
    }

    fn handle(&self, export: &Export, call: &Call<'_>, request: &MdsRequest<'_>) -> StatusResult<MdsAnswer> {
        let run = |request: &MdsRequest<'_>| self.inner.handle(export, call, request);
        let removed = || MdsReply::Removed { fid: Fid::ZERO, attr: None };
        match (self.bug, request.clone()) {
            (
                Bug::CreateIgnoresExclusive,
                MdsRequest::Create { parent, name, fid, new, mode, umask, open, exclusive: true },
            ) if open.is_some() => {
                run(&MdsRequest::Create { parent, name, fid, new, mode, umask, open, exclusive: false })
            }
            (Bug::UnlinkOnlyAnswers, MdsRequest::Unlink { .. }) if self.turn.is_each(3) => {
                Ok(removed().into())
            }
            (Bug::RenameOnlyAnswers, MdsRequest::Rename { .. }) if self.turn.is_each(3) => {
                Ok(removed().into())
            }
            (Bug::RenameInTwoSteps, MdsRequest::Rename { to_parent: parent, to_name: name, .. }) => {
                let first = Call { reply_slot: None, ..*call };
                // Without a file to replace there is one step.
                let unlink = MdsRequest::Unlink { parent, name, directory: false };
                let _ = self.inner.handle(export, &first, &unlink);
                run(request)
            }
            (Bug::XattrForgotten, MdsRequest::SetXattr { fid, .. }) if self.turn.is_each(2) => {
                run(&MdsRequest::GetAttr { fid })
            }
            (Bug::AbsenceRemembered, request) => match self.remembered(&request) {
                Some(reply) => Ok(reply.into()),
                None => run(&request).inspect(|answer| self.remember(&request, answer)),
            },
            (Bug::CommitSkipped, MdsRequest::Commit { .. }) => Ok(MdsReply::Done.into()),
            (Bug::ReplayForgotten, MdsRequest::Replay { changes }) => {
                Ok(MdsReply::Outcomes(vec![None; changes.len()]).into())
            }
            (Bug::FileLocksForAll, MdsRequest::LockFile { .. }) => Ok(MdsReply::Done.into()),
            (Bug::FileLocksForgotten, MdsRequest::ReplayFileLocks { .. }) => {
                Ok(MdsReply::RefusedLocks(Vec::new()).into())
            }
            (Bug::CloseIgnoresSize, MdsRequest::Close { fid, handle, written, .. }) => {
                run(&MdsRequest::Close { fid, handle, update: DataUpdate::default(), written })
            }
            (Bug::LeaseForAll, request) => run(&request).map(|mut answer| {
                if let MdsReply::Lease(grant) = &mut answer.reply {
                    grant.exclusive = true;
                }
                answer
            }),
            (Bug::LinksMiscounted, request) => run(&request).map(PlantedMds::miscount),
            (Bug::SequenceForAll, MdsRequest::AllocateSequence) => self.sequence(|| run(request)),
            (_, request) => run(&request),
        }
    }

    fn stored_answer(
        &self,
        export: &Export,
        request: &MdsRequest<'_>,
        slot: &ReplySlot,
    ) -> Option<StatusResult<MdsAnswer>> {
        match self.bug {
            Bug::AnswersForgotten => None,
            _ => self.inner.stored_answer(export, request, slot),
        }
    }
}
