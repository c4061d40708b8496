//! Recovery after a restart: clients replay the locks that they hold before anything else is granted.

use super::{Effect, Lock, LockServer};
use crate::bits::InodeBits;
use crate::resource::{LockHandle, Lvb, Need, Outcome, Peer, Policy, Refusal, ResourceId};
use nacre_env::clock::Instant;

impl LockServer {
    /// Restores a lock as it was granted to a client of the last run. Allowed only during recovery.
    pub fn on_replay(
        &mut self,
        peer: Peer,
        handle: LockHandle,
        id: &ResourceId,
        need: &Need,
        lvb: Option<Lvb>,
    ) -> Outcome {
        if !self.is_current(peer) {
            return Outcome::Refused(Refusal::Stale);
        }
        if let Some(key) = self.find(peer, handle) {
            let lock = &self.locks[key];
            return match lock.granted {
                Some(granted) => Outcome::Granted(self.grant_of(lock.resource, granted)),
                None => Outcome::Refused(Refusal::ReplayRefused),
            };
        }
        if !self.recovering {
            return Outcome::Refused(Refusal::ReplayRefused);
        }
        if handle.0 == 0 || !need.is_valid() {
            return Outcome::Refused(Refusal::Invalid);
        }
        let count = self.clients.get(&peer.client).map_or(0, |client| client.locks.len());
        if count >= self.config.locks_per_client_max || self.locks.len() >= self.config.locks_max {
            return Outcome::Refused(Refusal::TooMany);
        }
        let resource = match self.resource_for(id, &need.policy) {
            Ok(resource) => resource,
            Err(refusal) => return Outcome::Refused(refusal),
        };
        if self.has_granted_conflict(resource, need, None) {
            return Outcome::Refused(Refusal::ReplayRefused);
        }
        if self.resources[resource].lvb.is_none() && matches!(need.policy, Policy::Extent(_)) {
            self.resources[resource].lvb = lvb;
        }
        let key = self.insert_lock(Lock {
            peer,
            handle,
            resource,
            requested: *need,
            optional: InodeBits::NONE,
            // The original request is not known any more; the holder may not have written there.
            no_expansion: true,
            on_behalf_of: None,
            granted: None,
            called: None,
        });
        Outcome::Granted(self.grant(key))
    }

    /// Grants waiting requests after all clients of the last run have replayed or are given up.
    pub fn end_recovery(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        if !std::mem::take(&mut self.recovering) {
            return;
        }
        let waited_for: Vec<u32> = self
            .resources
            .iter()
            .filter(|(_, found)| !found.waiting.is_empty())
            .map(|(key, _)| key)
            .collect();
        for resource in waited_for {
            self.reprocess(now, resource, Vec::new(), effects);
            if let Some(found) = self.resources.get(resource) {
                for key in found.waiting.clone() {
                    self.call_back_for(now, key, effects);
                }
            }
        }
    }

    /// True between a restart and [`LockServer::end_recovery`].
    pub fn is_recovering(&self) -> bool {
        self.recovering
    }
}
