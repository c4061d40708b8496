//! Grants: space that is reserved for the write-back data of clients.
//!
//! Grants come from the reserve that ordinary writes must leave free, up to the amount that the store can
//! promise. So a write under a grant has its space even if other clients have filled the disk meanwhile; and
//! a client without a grant writes through, and gets `ENOSPC` at once. Requests state absolute amounts, so
//! that a resend is harmless.

use nacre_env::clock::Instant;
use nacre_types::ClientUuid;
use nacre_wire::oss::GRANT_LIFE;
use std::collections::HashMap;

/// Unit of grants in bytes, in which clients use them up.
const STEP: u64 = 1 << 20;
/// Most clients with a grant; further ones get none.
const CLIENTS_MAX: usize = 1 << 16;

struct Grant {
    bytes: u64,
    heard: Instant,
    /// UUID of the client in the target's lock server.
    owner: Option<ClientUuid>,
}

/// Grants of all clients.
#[derive(Default)]
pub(crate) struct Grants {
    clients: HashMap<u64, Grant>,
}

impl Grants {
    /// Updates the grant of `client`, which has `held` bytes left and requests `want` in total. `room` is the
    /// limit for the sum of all grants, 0 to grant no more. Returns the client's new grant.
    pub fn ask(&mut self, client: u64, held: u64, want: u64, room: u64, now: Instant) -> u64 {
        self.clients.retain(|_, grant| now.duration_since(grant.heard) < GRANT_LIFE);
        let known = self.clients.get(&client).map(|grant| grant.bytes);
        let others = self.bytes() - known.unwrap_or(0);
        let left = room.saturating_sub(others);
        // An unknown client got its grant from the last run of this server, or has not been heard from for
        // [`GRANT_LIFE`].
        let current = held.min(known.unwrap_or(left));
        let more = want.saturating_sub(current).min(left.saturating_sub(current) / 2) / STEP * STEP;
        let bytes = (current + more).min(want);
        if bytes == 0 {
            self.clients.remove(&client);
        } else if known.is_some() || self.clients.len() < CLIENTS_MAX {
            self.clients.insert(client, Grant { bytes, heard: now, owner: None });
        } else {
            return 0;
        }
        bytes
    }

    /// Records the UUID of a client, for [`Grants::drop_of`].
    pub fn note_owner(&mut self, client: u64, owner: ClientUuid) {
        if let Some(grant) = self.clients.get_mut(&client) {
            grant.owner = Some(owner);
        }
    }

    /// Releases the grant of a client that has disconnected or was evicted.
    pub fn drop_of(&mut self, owner: &ClientUuid) {
        self.clients.retain(|_, grant| grant.owner != Some(*owner));
    }

    /// Returns the bytes granted to all clients.
    pub fn bytes(&self) -> u64 {
        self.clients.values().map(|grant| grant.bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_client_gets_half_of_what_is_left_at_most_and_a_full_disk_grants_nothing() {
        let (mut grants, now) = (Grants::default(), Instant::now());
        assert_eq!(grants.ask(1, 0, 32 * MIB, 100 * MIB, now), 32 * MIB);
        assert_eq!(grants.ask(2, 0, 100 * MIB, 100 * MIB, now), 34 * MIB);
        assert_eq!(grants.ask(1, 10 * MIB, 32 * MIB, 0, now), 10 * MIB, "what is used up is not given again");
        assert_eq!(grants.ask(3, 0, MIB, 0, now), 0);
        assert_eq!(grants.ask(2, 34 * MIB, 0, 100 * MIB, now), 0);
        assert_eq!(grants.bytes(), 10 * MIB);
    }

    #[test]
    fn a_grant_that_is_not_heard_of_ends_and_one_of_an_earlier_run_is_taken_over() {
        let (mut grants, now) = (Grants::default(), Instant::now());
        assert_eq!(grants.ask(1, 5 * MIB, 5 * MIB, 20 * MIB, now), 5 * MIB);
        assert_eq!(grants.ask(2, 40 * MIB, 40 * MIB, 20 * MIB, now), 15 * MIB, "no more than there is");
        assert_eq!(grants.ask(3, 0, 4 * MIB, 20 * MIB, now + GRANT_LIFE), 4 * MIB);
        assert_eq!(grants.bytes(), 4 * MIB);
    }

    #[test]
    fn what_was_kept_for_a_client_that_is_gone_is_free() {
        let (mut grants, now) = (Grants::default(), Instant::now());
        let (first, second) = (ClientUuid([1; 16]), ClientUuid([2; 16]));
        grants.ask(1, 0, 8 * MIB, 64 * MIB, now);
        grants.note_owner(1, first);
        grants.ask(2, 0, 4 * MIB, 64 * MIB, now);
        grants.note_owner(2, second);
        grants.drop_of(&first);
        assert_eq!(grants.bytes(), 4 * MIB);
    }

    #[test]
    fn a_request_that_runs_twice_changes_nothing() {
        let (mut grants, now) = (Grants::default(), Instant::now());
        let first = grants.ask(1, 0, 8 * MIB, 64 * MIB, now);
        assert_eq!(grants.ask(1, first, 8 * MIB, 64 * MIB, now), first);
    }

    proptest! {
        #[test]
        fn no_more_is_promised_than_there_is_room(
            asks in proptest::collection::vec((0u64..6, any::<u64>(), any::<u64>(), 0u64..200), 1..60)
        ) {
            let (mut grants, start) = (Grants::default(), Instant::now());
            let room = 50 * MIB;
            for (client, held, want, seconds) in asks {
                let got = grants.ask(client, held, want, room, start + Duration::from_secs(seconds));
                prop_assert!(got <= want && grants.bytes() <= room);
            }
        }
    }
}
