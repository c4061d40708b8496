//! The thread of one OST.

use super::ost::{Ost, Pending};
use crate::error::MdsError;
use crate::tables::{DESTROYS, OWNER_CHANGES, destroy_key, split_destroy_key};
use nacre_env::clock::Instant;
use nacre_ondisk::OwnerRecord;
use nacre_store::{Batch, MetaStore};
use nacre_types::{Fid, Status, StatusResult, TransNo};
use nacre_wire::oss::{OssRequest, OwnedObject};
use std::collections::HashSet;
use std::ops::{Bound, ControlFlow};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Maximum number of objects destroyed by one request.
const DESTROY_MAX: usize = 4096;
/// Longest time that a destroy waits for its transaction to become durable before it requests a sync.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest sleep without work, after which failures are retried.
const NAP: Duration = Duration::from_secs(1);

/// Work of the thread.
enum Work {
    Stop,
    Nap(Duration),
    Evict,
    Prepare,
    Statfs,
    Rescan,
    Destroy(Vec<Pending>),
}

/// Starts the thread; it ends when the OST is stopped.
pub fn start(ost: &Arc<Ost>, store: &Arc<MetaStore>) -> Result<(), MdsError> {
    // A thread in a long request must not keep a stopped store open.
    let (ost, store) = (ost.clone(), Arc::downgrade(store));
    nacre_env::thread::Builder::new()
        .name(format!("mds-ost{:04x}", ost.index))
        .spawn(move || {
            run(&ost, &store);
            ost.note_finished();
        })
        .map(|_| ())
        .map_err(MdsError::Thread)
}

fn run(ost: &Ost, weak: &Weak<MetaStore>) {
    while let Some(store) = weak.upgrade() {
        let work = next_work(ost, &store);
        if let Work::Rescan = work {
            rescan(ost, &store);
            continue;
        }
        drop(store);
        match work {
            Work::Stop => return,
            Work::Nap(time) => nap(ost, time),
            // Failures are logged where they occur and start a pause; the work stays queued.
            Work::Evict => drop(ost.tell_evictions()),
            Work::Prepare => drop(ost.prepare(1)),
            Work::Statfs => drop(ost.refresh_statfs()),
            Work::Rescan => {}
            Work::Destroy(batch) => {
                let mut done = batch.len();
                if destroy(ost, weak, &batch).is_err() {
                    done = 0;
                    let mut state = ost.state.lock();
                    batch.into_iter().rev().for_each(|pending| state.pending.push_front(pending));
                }
                ost.note_destroyed(done);
            }
        }
    }
}

fn next_work(ost: &Ost, store: &MetaStore) -> Work {
    let now = Instant::now();
    let mut state = ost.state.lock();
    if state.stopped {
        return Work::Stop;
    }
    if state.inactive {
        return Work::Nap(Duration::MAX);
    }
    if state.is_resting(now) {
        return Work::Nap(NAP);
    }
    if !state.evictions.is_empty() {
        return Work::Evict;
    }
    // Until clients have replayed layouts it is unknown which objects belong to no file.
    let awaits_replay = ost.awaits_replay();
    if !awaits_replay && (!state.prepared || state.is_low()) {
        return Work::Prepare;
    }
    if state.statfs_wanted {
        return Work::Statfs;
    }
    if awaits_replay {
        return Work::Nap(NAP);
    }
    if state.pending.is_empty() && state.rescan {
        state.rescan = false;
        state.scanning = true;
        return Work::Rescan;
    }
    let Some(oldest) = state.pending.front() else { return Work::Nap(Duration::MAX) };
    let waited = now.duration_since(oldest.since);
    if oldest.transno > store.last_committed() && waited < COMMIT_TIMEOUT && !state.hurried {
        return Work::Nap(COMMIT_TIMEOUT - waited);
    }
    // Both kinds in the order of the log.
    let destroys = oldest.owned.is_none();
    let alike = state.pending.iter().take(DESTROY_MAX).take_while(|it| it.owned.is_none() == destroys);
    let count = alike.count();
    state.destroying = count;
    Work::Destroy(state.pending.drain(..count).collect())
}

fn nap(ost: &Ost, time: Duration) {
    let mut state = ost.state.lock();
    let idle = !state.stopped && !state.statfs_wanted && !state.is_low() && state.evictions.is_empty();
    match time {
        Duration::MAX if state.inactive && !state.stopped => ost.work.wait(&mut state),
        Duration::MAX if idle && state.pending.is_empty() => ost.work.wait(&mut state),
        // A request for a faster destroy may have preceded this wait.
        _ if state.hurried && !state.is_resting(Instant::now()) => {}
        _ if !state.stopped => drop(ost.work.wait_for(&mut state, time.min(NAP))),
        _ => {}
    }
}

/// Reads the destroys that the log has in addition to those in memory.
fn rescan(ost: &Ost, store: &MetaStore) {
    let mut found: Vec<(Fid, Option<OwnedObject>)> = Vec::new();
    let transno = store.last_transno();
    let prefix = ost.index.to_be_bytes();
    // New owners first: an object may be in both logs.
    let scanned = store.scan(OWNER_CHANGES, &prefix, Bound::Unbounded, &mut |key, value| {
        let key = split_destroy_key(key).zip(OwnerRecord::decode(value).ok());
        found.extend(key.map(|((_, object), OwnerRecord { owners, place, .. })| {
            (object, Some(OwnedObject { object, owners, place }))
        }));
        if found.len() < DESTROY_MAX { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    let scanned = scanned.and_then(|()| {
        store.scan(DESTROYS, &prefix, Bound::Unbounded, &mut |key, _| {
            if found.len() == DESTROY_MAX {
                return ControlFlow::Break(());
            }
            found.extend(split_destroy_key(key).map(|(_, object)| (object, None)));
            ControlFlow::Continue(())
        })
    });
    let mut state = ost.state.lock();
    ost.note_scanned(&mut state);
    if let Err(error) = scanned {
        log::error!("reading the log of objects to destroy on OST{:04x}: {error}", ost.index);
        return;
    }
    state.rescan |= found.len() == DESTROY_MAX;
    let since = Instant::now();
    state.pending.extend(found.into_iter().map(|(object, owned)| Pending { transno, since, object, owned }));
}

fn destroy(ost: &Ost, store: &Weak<MetaStore>, batch: &[Pending]) -> StatusResult<()> {
    // An unlink that a power loss undoes must find its objects, so it has to be durable first.
    let newest = batch.iter().map(|pending| pending.transno).max().unwrap_or(TransNo(0));
    {
        let store = store.upgrade().ok_or(Status::ESHUTDOWN)?;
        if newest > store.last_committed() {
            store.sync(newest).map_err(|error| error.status())?;
        }
    }
    let owned: Vec<OwnedObject> = batch.iter().filter_map(|pending| pending.owned).collect();
    let table = if owned.is_empty() { DESTROYS } else { OWNER_CHANGES };
    let request = match owned.is_empty() {
        true => OssRequest::Destroy { objects: batch.iter().map(|pending| pending.object).collect() },
        false => OssRequest::SetOwners { objects: owned },
    };
    ost.call(&request)?;
    let mut done = Batch::new();
    done.set_releasing(true);
    let store = store.upgrade().ok_or(Status::ESHUTDOWN)?;
    // The owners may have changed again meanwhile, even to the same ones: those are sent next.
    let sent_next: HashSet<Fid> = match batch.iter().any(|pending| pending.owned.is_some()) {
        true => ost.state.lock().pending.iter().map(|pending| pending.object).collect(),
        false => HashSet::new(),
    };
    for pending in batch.iter().filter(|pending| !sent_next.contains(&pending.object)) {
        let key = destroy_key(ost.index, &pending.object);
        let is_sent = |owned: OwnedObject| {
            let logged = |record: OwnerRecord| (record.owners, record.place) == (owned.owners, owned.place);
            store.get(table, key.as_slice(), |value| {
                value.and_then(|value| OwnerRecord::decode(value).ok()).is_some_and(logged)
            })
        };
        if pending.owned.is_none_or(|owned| is_sent(owned).unwrap_or(false)) {
            done.delete(table, key.as_slice());
        }
    }
    // If this is lost, the objects are sent again, which is harmless.
    if let Err(error) = store.commit(&done) {
        log::warn!("clearing the log of destroyed objects of OST{:04x}: {error}", ost.index);
    }
    Ok(())
}
