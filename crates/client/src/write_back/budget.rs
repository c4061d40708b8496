//! How much of an OST's data may be dirty here: a local limit, and the OST's grant.
//!
//! A grant is space that the OST reserves for this client, so that cached data never finds the OST full. The
//! client counts in windows: one that begins to fill claims [`WINDOW_BYTES`]; when its data has arrived the
//! grant is smaller by that, however little it was. Each request reports the rest of the grant, as an
//! absolute figure, so that a resend does no harm.

use crate::write_back::pool::WINDOW_BYTES;
use nacre_env::clock::Instant;
use nacre_env::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Age of a grant at which it is requested again before it is used. The OST drops grants of clients whose
/// last request is `nacre_wire::oss::GRANT_LIFE` ago.
const ASK_AGAIN: Duration = Duration::from_secs(30);
/// How long an OST is not asked again after it granted too little.
const REFUSED_FOR: Duration = Duration::from_secs(1);
/// Time after which an unused grant is returned.
const IDLE_AFTER: Duration = Duration::from_secs(10);
/// Stands for "the limit of all OSTs".
const INHERIT: u64 = u64::MAX;

/// Whether a window may begin to fill.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Claim {
    /// It may; the claim is recorded.
    Taken,
    /// The limit of dirty data is reached: some of it has to be written first.
    Full,
    /// A grant has to be requested from the OST, [`Budget::begin_ask`].
    NoGrant,
}

/// The budget of one OST.
pub(crate) struct Budget {
    pub ost_index: u16,
    /// Limit of this OST alone, [`INHERIT`] for that of all.
    max_bytes: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Bytes granted by the OST, including those whose data is on its way to it.
    granted: u64,
    /// The grant as the OST last reported it; the OST gets the current value only with the next request. Not
    /// 0 if it reserves space.
    told: u64,
    /// Bytes of windows that exist, including those being sent.
    claimed: u64,
    asking: bool,
    /// Time of the last request for a grant.
    asked: Option<Instant>,
    /// True if the last grant was not enough for another window.
    refused: bool,
    used: Option<Instant>,
}

impl Budget {
    pub fn new(ost_index: u16) -> Budget {
        Budget { ost_index, max_bytes: AtomicU64::new(INHERIT), state: Mutex::default() }
    }

    /// Returns the most bytes that may be dirty: this OST's limit, or else `shared_bytes`.
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

    /// Returns the bytes of windows that exist, including those being sent.
    pub fn claimed_bytes(&self) -> u64 {
        self.state.lock().claimed
    }

    /// Claims a window, if at most `max_bytes` are claimed with it.
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

    /// Ends the claim of a window. `written`: its data may have taken space on the OST.
    pub fn give_back(&self, written: bool) {
        let mut state = self.state.lock();
        state.claimed = state.claimed.saturating_sub(WINDOW_BYTES);
        if written {
            state.granted = state.granted.saturating_sub(WINDOW_BYTES);
        }
    }

    /// Returns the rest of the grant, if more is to be requested from the OST; the caller does that, and then
    /// calls [`Budget::end_ask`].
    pub fn begin_ask(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock();
        let recently = state.asked.is_some_and(|asked| now.duration_since(asked) < REFUSED_FOR);
        if state.asking || (state.refused && recently) {
            return None;
        }
        state.asking = true;
        Some(state.granted)
    }

    /// Records the reply of the OST to the report that `kept` was left: it grants `total`; `None` if there
    /// was no reply.
    pub fn end_ask(&self, kept: u64, total: Option<u64>, now: Instant) {
        let mut state = self.state.lock();
        state.asking = false;
        state.asked = Some(now);
        if let Some(total) = total {
            // Data that arrived at the OST meanwhile is subtracted from both figures.
            state.granted = (state.granted + total).saturating_sub(kept);
            state.told = total;
        }
        state.refused = state.granted < state.claimed + WINDOW_BYTES;
    }

    /// True if there is an unused grant: then the caller returns it, by a request that keeps nothing.
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

    /// True as long as there is a grant to return at some time.
    pub fn has_grant(&self) -> bool {
        self.state.lock().told > 0
    }

    /// Returns the bytes granted, including those in use.
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
