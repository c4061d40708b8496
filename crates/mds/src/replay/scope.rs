//! What differs while a lost change is executed again: the time, the locks of clients, and the expected reply.

use crate::tables::REPLAYED;
use nacre_store::Batch;
use nacre_types::{Attr, ClientUuid, Status, StatusResult, Timestamp, TransNo};
use nacre_wire::mds::MdsReply;
use std::cell::RefCell;

thread_local! {
    /// The change that this thread executes again.
    static RUNNING: RefCell<Option<Running>> = const { RefCell::new(None) };
}

struct Running {
    time: Option<Timestamp>,
    expected: MdsReply,
    client: ClientUuid,
    transno: TransNo,
}

/// Marks the current thread as executing a change again, until it is dropped.
pub(crate) struct Scope(());

impl Scope {
    /// Begins the execution of the lost transaction `transno` of a client, which got this reply.
    pub fn enter(expected: MdsReply, client: ClientUuid, transno: TransNo) -> Scope {
        let running = Running { time: time_of(&expected), expected, client, transno };
        RUNNING.with(|place| *place.borrow_mut() = Some(running));
        Scope(())
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        RUNNING.with(|running| *running.borrow_mut() = None);
    }
}

/// Returns true while this thread executes a change again: clients hold no locks that it would have to revoke, and
/// quotas were checked the first time.
pub(crate) fn is_running() -> bool {
    RUNNING.with(|running| running.borrow().is_some())
}

/// Returns the time of the change that this thread executes again.
pub(crate) fn time() -> Option<Timestamp> {
    RUNNING.with(|running| running.borrow().as_ref().and_then(|running| running.time))
}

/// Checks before a commit that a change which is executed again does the same as the first time.
///
/// # Errors
/// `ESTALE` if it concerns other inodes: a change that it depends on is missing.
pub(crate) fn check_reply(reply: &MdsReply) -> StatusResult<()> {
    RUNNING.with(|running| match &*running.borrow() {
        Some(running) if !is_same(&running.expected, reply) => Err(Status::ESTALE),
        _ => Ok(()),
    })
}

/// Adds to a transaction that its change has been replayed, so that it is not replayed twice.
pub(crate) fn mark(batch: &mut Batch) {
    RUNNING.with(|running| {
        if let Some(Running { client, transno, .. }) = &*running.borrow() {
            batch.put(REPLAYED, &client.0, &transno.0.to_le_bytes());
        }
    });
}

/// Returns the time of a change as far as its reply shows it.
fn time_of(reply: &MdsReply) -> Option<Timestamp> {
    let attr: &Attr = match reply {
        MdsReply::Created { attr, created: true, .. }
        | MdsReply::Attr(attr)
        | MdsReply::Opened { attr, .. } => attr,
        MdsReply::Removed { attr: Some(attr), .. } => attr,
        _ => return None,
    };
    Some(attr.ctime).filter(|time| *time != Timestamp::default())
}

/// Returns true if two replies to the same request are about the same inodes. Their attributes may differ: a change of
/// another client that did not return may be missing.
fn is_same(expected: &MdsReply, found: &MdsReply) -> bool {
    match (expected, found) {
        (MdsReply::Attr(expected), MdsReply::Attr(found))
        | (MdsReply::Opened { attr: expected, .. }, MdsReply::Opened { attr: found, .. }) => {
            expected.fid == found.fid
        }
        (
            MdsReply::Created { attr: expected, created, .. },
            MdsReply::Created { attr: found, created: is_created, .. },
        ) => (expected.fid, created) == (found.fid, is_created),
        (MdsReply::Removed { fid: expected, .. }, MdsReply::Removed { fid: found, .. }) => expected == found,
        (expected, found) => std::mem::discriminant(expected) == std::mem::discriminant(found),
    }
}
