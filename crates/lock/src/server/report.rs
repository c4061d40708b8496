//! Waiting requests and the locks in their way, for reports of what waits.

use super::LockServer;
use super::glimpse::PendingGlimpse;
use crate::extent::Extent;
use crate::mode::Mode;
use crate::resource::{LockHandle, Need, Peer, ResourceId};
use nacre_env::clock::Instant;
use nacre_types::ClientUuid;
use std::ops::ControlFlow;
use std::time::Duration;

/// Waiting requests in one report at most.
pub const WAITS_MAX: usize = 1000;
/// Locks in the way of one request that are reported at most.
const BLOCKERS_MAX: usize = 8;

/// A request that waits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LockWait {
    /// Its client.
    pub peer: Peer,
    /// Its handle.
    pub handle: LockHandle,
    /// Its resource.
    pub resource: ResourceId,
    /// What it needs.
    pub need: Need,
    /// Locks and earlier requests that conflict.
    pub blockers: Vec<Blocker>,
}

/// A lock, or an earlier request, in the way of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Blocker {
    /// Its client.
    pub peer: Peer,
    /// Its handle.
    pub handle: LockHandle,
    /// Its mode and part.
    pub need: Need,
    /// The client for which the target holds it.
    pub on_behalf_of: Option<ClientUuid>,
    /// False for a request that waits itself.
    pub is_granted: bool,
    /// Time since the blocking callback, if the lock is being revoked.
    pub called_for: Option<Duration>,
    /// Time until its client is evicted, if it is bounded.
    pub evicted_in: Option<Duration>,
}

/// Returns the requests that wait, at most [`WAITS_MAX`], with what is in their way.
pub fn waits(server: &LockServer, now: Instant) -> Vec<LockWait> {
    let mut waits = Vec::new();
    for resource in server.by_id.values().copied() {
        let found = &server.resources[resource];
        for (place, key) in found.waiting.iter().enumerate() {
            if waits.len() >= WAITS_MAX {
                return waits;
            }
            let lock = &server.locks[*key];
            waits.push(LockWait {
                peer: lock.peer,
                handle: lock.handle,
                resource: found.id,
                need: lock.requested,
                blockers: blockers_of(server, resource, place, now),
            });
        }
    }
    let room = WAITS_MAX - waits.len();
    waits.extend(server.glimpses.values().take(room).map(|pending| glimpse_wait(server, pending, now)));
    waits
}

/// Describes a glimpse as a request that waits for the writers that were asked.
fn glimpse_wait(server: &LockServer, pending: &PendingGlimpse, now: Instant) -> LockWait {
    let of_lock = |(peer, handle): &(Peer, LockHandle)| {
        let lock = &server.locks[*server.clients.get(&peer.client)?.locks.get(handle)?];
        Some(Blocker {
            peer: *peer,
            handle: *handle,
            need: lock.granted.unwrap_or(lock.requested),
            on_behalf_of: None,
            is_granted: true,
            called_for: Some(pending.called.age(now)),
            evicted_in: pending.called.left(now),
        })
    };
    LockWait {
        peer: pending.peer,
        handle: pending.handle,
        resource: server.resources[pending.resource].id,
        need: Need::extent(Mode::Pr, Extent::WHOLE),
        blockers: pending.outstanding.iter().take(BLOCKERS_MAX).filter_map(of_lock).collect(),
    }
}

/// Returns what is in the way of the waiting request at this place of the queue.
fn blockers_of(server: &LockServer, resource: u32, place: usize, now: Instant) -> Vec<Blocker> {
    let found = &server.resources[resource];
    let Some(waiter) = found.waiting.get(place).map(|key| &server.locks[*key]) else { return Vec::new() };
    let mut keys = Vec::new();
    let _ = found.granted.conflicting(&waiter.requested, &mut |key| {
        if server.is_in_the_way(key, &waiter.requested, waiter.on_behalf_of) {
            keys.push(key);
        }
        if keys.len() < BLOCKERS_MAX { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    let ahead = found.waiting[..place].iter().copied();
    keys.extend(ahead.filter(|key| server.locks[*key].requested.conflicts_with(&waiter.requested)));
    keys.truncate(BLOCKERS_MAX);
    keys.into_iter().map(|key| blocker(server, key, now)).collect()
}

fn blocker(server: &LockServer, key: u32, now: Instant) -> Blocker {
    let lock = &server.locks[key];
    Blocker {
        peer: lock.peer,
        handle: lock.handle,
        need: lock.granted.unwrap_or(lock.requested),
        on_behalf_of: lock.on_behalf_of,
        is_granted: lock.granted.is_some(),
        called_for: lock.called.map(|called| called.age(now)),
        evicted_in: lock.called.and_then(|called| called.left(now)),
    }
}
