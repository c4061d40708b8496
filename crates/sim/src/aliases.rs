//! What the MDTs did that no answer shows. FIDs of inodes that move to other MDTs: each is an alias of the one that the
//! inode had before, so that the model knows an inode by one FID. And files that were made by calls which failed.

use crate::history::{Call, Event, Reply};
use nacre_env::sync::Mutex;
use nacre_rpc::{Call as Caller, Export, MdsService, MdsWelcome, ReplySlot};
use nacre_types::{ClientUuid, Fid, Status, StatusResult};
use nacre_wire::mds::{MdsAnswer, MdsReply, MdsRequest, NewFile};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// All aliases of a run, by the new FID, whether or not the move succeeded: no FID is used twice.
#[derive(Default)]
pub(crate) struct Aliases {
    former: Mutex<BTreeMap<Fid, Fid>>,
    /// All files and directories that were made, with their names, and whether they are directories.
    made: Mutex<BTreeMap<Fid, (Vec<u8>, bool)>>,
}

impl Aliases {
    fn note(&self, from: Fid, to: Fid) {
        self.former.lock().insert(to, from);
    }

    /// Returns the first FID of an inode.
    fn first(&self, mut fid: Fid) -> Fid {
        let former = self.former.lock();
        while let Some(before) = former.get(&fid) {
            fid = *before;
        }
        fid
    }

    /// Returns the first FIDs of all inodes that may have moved.
    pub(crate) fn moved(&self) -> BTreeSet<Fid> {
        let from: Vec<Fid> = self.former.lock().values().copied().collect();
        from.into_iter().map(|fid| self.first(fid)).collect()
    }

    fn note_made(&self, request: &MdsRequest<'_>, answer: &StatusResult<MdsAnswer>) {
        if let (MdsRequest::Create { name, fid, new, .. }, Ok(answer)) = (request, answer)
            && let MdsReply::Created { created: true, .. } = answer.reply
        {
            let directory = match new {
                NewFile::Node { .. } => false,
                NewFile::Directory | NewFile::Striped { .. } | NewFile::ChosenDirectory { .. } => true,
                NewFile::Symlink { .. } | NewFile::Unnamed => return,
            };
            self.made.lock().insert(*fid, (name.to_vec(), directory));
        }
    }

    /// Enters in calls that failed, or had no answer, what they had made.
    pub(crate) fn enter_made<'e>(&self, events: impl Iterator<Item = &'e mut Event>) {
        let mut made = std::mem::take(&mut *self.made.lock());
        let is_answered = |event: &&mut Event| event.result.is_ok() && !event.is_unanswered;
        let (succeeded, mut failed): (Vec<_>, Vec<_>) = events.partition(is_answered);
        for event in succeeded {
            match (&event.call, &event.result) {
                (Call::Open { .. }, Ok(Reply::Opened { fid, created: true }))
                | (Call::Mkdir { .. }, Ok(Reply::Found { fid, .. })) => drop(made.remove(fid)),
                _ => {}
            }
        }
        failed.sort_by_key(|event| event.began);
        for event in failed {
            let (name, directory) = match &event.call {
                Call::Open { name, .. } if event.is_unanswered => (name, false),
                Call::Open { name, .. } if event.result == Err(Status::ESTALE) => (name, false),
                Call::Mkdir { name, .. } if event.is_unanswered => (name, true),
                _ => continue,
            };
            let wanted = (name.clone(), directory);
            event.made = made.iter().find(|(_, other)| **other == wanted).map(|(fid, _)| *fid);
            if let Some(fid) = event.made {
                made.remove(&fid);
            }
        }
    }

    /// Replaces all FIDs of a call and its answer by the first ones.
    pub(crate) fn replace(&self, event: &mut Event) {
        if self.former.lock().is_empty() {
            return;
        }
        event.call.fids().into_iter().for_each(|fid| *fid = self.first(*fid));
        match &mut event.result {
            Ok(Reply::Found { fid, .. } | Reply::Opened { fid, .. }) => *fid = self.first(*fid),
            Ok(Reply::Names(names)) => {
                let former = self.former.lock().clone();
                for number in names.values_mut() {
                    if let Some(to) = former.keys().find(|to| to.inode_number() == *number) {
                        *number = self.first(*to).inode_number();
                    }
                }
            }
            _ => {}
        }
    }
}

impl Call {
    /// Returns all FIDs in the call.
    pub(crate) fn fids(&mut self) -> Vec<&mut Fid> {
        match self {
            Call::Link { fid, parent, .. } => vec![fid, parent],
            Call::Rename { from, to } => vec![&mut from.0, &mut to.0],
            Call::Lookup { parent, .. }
            | Call::Open { parent, .. }
            | Call::Mkdir { parent, .. }
            | Call::Unlink { parent, .. }
            | Call::Migrate { parent, .. } => vec![parent],
            Call::OpenFid { fid, .. }
            | Call::Close { fid, .. }
            | Call::Write { fid, .. }
            | Call::Append { fid, .. }
            | Call::Read { fid, .. }
            | Call::Truncate { fid, .. }
            | Call::Stat { fid }
            | Call::List { fid }
            | Call::SetXattr { fid, .. }
            | Call::GetXattr { fid, .. }
            | Call::Fsync { fid }
            | Call::FsyncDir { fid }
            | Call::Lock { fid, .. }
            | Call::Relocate { fid }
            | Call::Restripe { fid } => vec![fid],
        }
    }
}

/// A metadata service whose moves are noted.
pub(crate) struct NotedMds {
    pub(crate) inner: Arc<dyn MdsService>,
    pub(crate) aliases: Arc<Aliases>,
}

impl NotedMds {
    pub(crate) fn new(mds: Arc<dyn MdsService>, aliases: &Arc<Aliases>) -> Arc<NotedMds> {
        Arc::new(NotedMds { inner: mds, aliases: aliases.clone() })
    }
}

impl MdsService for NotedMds {
    fn connect(&self, export: &Arc<Export>) -> StatusResult<MdsWelcome> {
        self.inner.connect(export)
    }

    fn disconnect(&self, client: ClientUuid) {
        self.inner.disconnect(client);
    }

    fn handle(
        &self,
        export: &Export,
        call: &Caller<'_>,
        request: &MdsRequest<'_>,
    ) -> StatusResult<MdsAnswer> {
        match request {
            MdsRequest::Migrate { fid, to, .. } => self.aliases.note(*fid, *to),
            MdsRequest::MigrateFiles { moves } => {
                moves.iter().for_each(|(from, to)| self.aliases.note(*from, *to));
            }
            _ => {}
        }
        let answer = self.inner.handle(export, call, request);
        self.aliases.note_made(request, &answer);
        answer
    }

    fn stored_answer(
        &self,
        export: &Export,
        request: &MdsRequest<'_>,
        slot: &ReplySlot,
    ) -> Option<StatusResult<MdsAnswer>> {
        let answer = self.inner.stored_answer(export, request, slot);
        answer.iter().for_each(|answer| self.aliases.note_made(request, answer));
        answer
    }
}
