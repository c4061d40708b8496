//! Holders who give up a part.

use super::{Effect, LockServer};
use crate::bits::InodeBits;
use crate::mode::Mode;
use crate::resource::{LockHandle, Need, Peer, Policy, Refusal};
use nacre_env::clock::Instant;

impl LockServer {
    /// A client keeps only `mode` and `policy` of a lock: it drops inode bits, or turns a write lock into a read lock. What
    /// the lock does not have any more stays dropped, so conversions may come twice or late. Extents stay as they are.
    ///
    /// # Errors
    /// `Stale`; `Invalid` if the lock is not granted, or the new mode allows what the old one did not.
    pub fn on_convert(
        &mut self,
        now: Instant,
        peer: Peer,
        handle: LockHandle,
        mode: Mode,
        policy: &Policy,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Refusal> {
        if !self.is_current(peer) {
            return Err(Refusal::Stale);
        }
        let Some(key) = self.find(peer, handle) else { return Ok(()) };
        let Some(held) = self.locks[key].granted else { return Err(Refusal::Invalid) };
        let mode = if mode.serves(held.mode) { held.mode } else { mode };
        let left = match (held.policy, policy) {
            (Policy::Bits(bits), Policy::Bits(keep)) => Policy::Bits(bits.intersection(*keep)),
            (Policy::Extent(extent), Policy::Extent(_)) => Policy::Extent(extent),
            _ => return Err(Refusal::Invalid),
        };
        if !held.mode.serves(mode) || held.mode == Mode::Group {
            return Err(Refusal::Invalid);
        }
        if left == Policy::Bits(InodeBits::NONE) {
            self.on_cancel(now, peer, &[handle], effects);
            return Ok(());
        }
        let resource = self.locks[key].resource;
        let kept = Need { mode, policy: left, group: 0 };
        if kept != held {
            self.resources[resource].granted.remove(held.mode, &held.policy, key);
            self.resources[resource].granted.insert(kept.mode, &kept.policy, key);
            self.locks[key].granted = Some(kept);
            self.end_callback(key);
            self.reprocess(now, resource, vec![key], effects);
        }
        Ok(())
    }
}
