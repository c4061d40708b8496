//! How much of an OST's data may be dirty here: a limit of our own, and what the OST has granted.
//!
//! A grant is space that the OST keeps for this client, so that cached data never finds the OST full. The client counts in
//! windows: one that begins to fill claims [`WINDOW_BYTES`]; when its data has arrived the grant is smaller by that, however
//! little it was. What is left is told with each request, as an absolute figure, so that a resend does no harm.

use crate::write_back::pool::WINDOW_BYTES;
use nacre_env::clock::Instant;
use nacre_env::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A grant that is older than this is asked for again before it is relied on. The OST forgets those that it has not heard of
/// for `nacre_wire::oss::GRANT_LIFE`.
const ASK_AGAIN: Duration = Duration::from_secs(30);
/// After an OST gave too little, how long it is not asked again.
const REFUSED_FOR: Duration = Duration::from_secs(1);
/// A grant that was not used for so long is given back.
const IDLE_AFTER: Duration = Duration::from_secs(10);
/// Stands for "as it is for every OST".
const INHERIT: u64 = u64::MAX;

/// Whether a window may begin to fill.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Claim {
    /// It may; the claim is noted.
    Taken,
    /// As much as may be dirty is dirty: something has to be written out first.
    Full,
    /// The OST has to be asked for a grant, [`Budget::begin_ask`].
    NoGrant,
}

/// The budget of one OST.
pub(crate) struct Budget {
    pub ost_index: u16,
    /// Limit of this OST's own, [`INHERIT`] for that of all.
    max_bytes: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Bytes that the OST keeps for this client, those included that are on their way to it.
    granted: u64,
    /// What the OST thinks of the grant, which it only learns with the next ask; not 0 if it keeps space.
    told: u64,
    /// Bytes of windows that exist, being sent included.
    claimed: u64,
    asking: bool,
    /// When the OST was last asked.
    asked: Option<Instant>,
    /// The last answer was not enough for another window.
    refused: bool,
    used: Option<Instant>,
}

impl Budget {
    pub fn new(ost_index: u16) -> Budget {
        Budget { ost_index, max_bytes: AtomicU64::new(INHERIT), state: Mutex::default() }
    }

    /// The most that may be dirty: what was set here, else `shared_bytes`.
    pub fn max_bytes(&self, shared_bytes: u64) -> u64 {
        match self.max_bytes.load(Ordering::Relaxed) {
            INHERIT => shared_bytes,
            own => own,
        }
    }

    /// Sets a limit for this OST alone.
    pub fn set_max_bytes(&self, bytes: u64) {
        self.max_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Bytes of windows that exist, being sent included.
    pub fn claimed_bytes(&self) -> u64 {
        self.state.lock().claimed
    }

    /// Claims a window, if no more than `max_bytes` are claimed with it.
    pub fn claim(&self, max_bytes: u64, now: Instant) -> Claim {
        let mut state = self.state.lock();
        let claimed = state.claimed + WINDOW_BYTES;
        if claimed > max_bytes {
            return Claim::Full;
        }
        let is_fresh = state.asked.is_some_and(|asked| now.duration_since(asked) < ASK_AGAIN);
        if claimed > state.granted || !is_fresh {
            return Claim::NoGrant;
        }
        state.claimed = claimed;
        state.used = Some(now);
        Claim::Taken
    }

    /// A window is gone. `written`: its data may have taken space on the OST.
    pub fn give_back(&self, written: bool) {
        let mut state = self.state.lock();
        state.claimed = state.claimed.saturating_sub(WINDOW_BYTES);
        if written {
            state.granted = state.granted.saturating_sub(WINDOW_BYTES);
        }
    }

    /// What is left of the grant, if the OST is to be asked now; the caller does, and says so with [`Budget::end_ask`].
    pub fn begin_ask(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock();
        let recently = state.asked.is_some_and(|asked| now.duration_since(asked) < REFUSED_FOR);
        if state.asking || (state.refused && recently) {
            return None;
        }
        state.asking = true;
        Some(state.granted)
    }

    /// The OST, told that `kept` was left, keeps `total` for this client; `None` if it gave no answer.
    pub fn end_ask(&self, kept: u64, total: Option<u64>, now: Instant) {
        let mut state = self.state.lock();
        state.asking = false;
        state.asked = Some(now);
        if let Some(total) = total {
            // What arrived at the OST meanwhile is in both figures.
            state.granted = (state.granted + total).saturating_sub(kept);
            state.told = total;
        }
        state.refused = state.granted < state.claimed + WINDOW_BYTES;
    }

    /// True if there is a grant that nobody uses: then it is to be given back, by an ask that keeps nothing.
    pub fn begin_return(&self, now: Instant, at_once: bool) -> bool {
        let mut state = self.state.lock();
        let idle = at_once || state.used.is_none_or(|used| now.duration_since(used) >= IDLE_AFTER);
        if state.asking || !idle || state.claimed > 0 || state.told == 0 {
            return false;
        }
        state.granted = 0;
        state.told = 0;
        state.asking = true;
        true
    }

    /// True as long as there is something to give back one day.
    pub fn has_grant(&self) -> bool {
        self.state.lock().told > 0
    }

    /// Bytes granted, those in use included.
    pub fn granted_bytes(&self) -> u64 {
        self.state.lock().granted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: u64 = 4 * WINDOW_BYTES;

    #[test]
    fn windows_need_a_grant_and_use_it_up() {
        let (budget, now) = (Budget::new(0), Instant::now());
        assert_eq!(budget.claim(MAX, now), Claim::NoGrant);
        assert_eq!(budget.begin_ask(now), Some(0));
        assert_eq!(budget.begin_ask(now), None, "one at a time");
        budget.end_ask(0, Some(2 * WINDOW_BYTES), now);
        assert_eq!([budget.claim(MAX, now), budget.claim(MAX, now)], [Claim::Taken; 2]);
        assert_eq!(budget.claim(MAX, now), Claim::NoGrant);
        budget.give_back(true);
        assert_eq!(budget.claim(MAX, now), Claim::NoGrant, "its space is in use now");
        budget.give_back(false);
        assert_eq!(budget.claim(MAX, now), Claim::Taken, "nothing was written");
        assert_eq!(budget.granted_bytes(), WINDOW_BYTES);
    }

    #[test]
    fn what_arrives_while_the_ost_is_asked_is_not_counted_twice() {
        let (budget, now) = (Budget::new(0), Instant::now());
        budget.begin_ask(now);
        budget.end_ask(0, Some(2 * WINDOW_BYTES), now);
        assert_eq!(budget.claim(MAX, now), Claim::Taken);
        let kept = budget.begin_ask(now).expect("not refused");
        budget.give_back(true);
        budget.end_ask(kept, Some(MAX), now);
        assert_eq!(budget.granted_bytes(), MAX - WINDOW_BYTES);
    }

    #[test]
    fn the_limit_comes_before_the_grant_and_old_grants_are_asked_for_again() {
        let (budget, now) = (Budget::new(0), Instant::now());
        budget.begin_ask(now);
        budget.end_ask(0, Some(MAX), now);
        assert_eq!(budget.claim(WINDOW_BYTES, now), Claim::Taken);
        assert_eq!(budget.claim(WINDOW_BYTES, now), Claim::Full);
        assert_eq!(budget.claim(MAX, now + ASK_AGAIN), Claim::NoGrant);
    }

    #[test]
    fn an_ost_that_gave_too_little_is_left_alone_for_a_while_and_idle_grants_go_back() {
        let (budget, now) = (Budget::new(0), Instant::now());
        budget.begin_ask(now);
        budget.end_ask(0, Some(4096), now);
        assert_eq!(budget.begin_ask(now), None);
        assert_eq!(budget.begin_ask(now + REFUSED_FOR), Some(4096));
        budget.end_ask(4096, Some(MAX), now);
        assert_eq!(budget.claim(MAX, now), Claim::Taken);
        assert!(!budget.begin_return(now + IDLE_AFTER, false), "in use");
        budget.give_back(true);
        assert!(!budget.begin_return(now, false));
        assert!(budget.begin_return(now + IDLE_AFTER, false) && !budget.has_grant());
    }
}
