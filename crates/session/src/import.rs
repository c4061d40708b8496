//! Import: a client's view of its connection to one target.

use std::time::Duration;

/// State of a client's connection to a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ImportState {
    /// Never connected.
    New,
    /// A thread is connecting.
    Connecting,
    /// Connected, but handles have to be opened again before other requests are sent.
    Recovering,
    /// Connected and recovered: requests are sent.
    Full,
    /// The connection was lost; the next request connects again.
    Disconnected,
    /// The server has evicted this client; it must connect as a new one.
    Evicted,
}

/// State that a client has to restore after a connect; later variants mean a greater loss.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Recovery {
    /// Nothing: the server knows the client and its handles.
    None,
    /// The server restarted: handles and locks are replayed, then unanswered requests are resent.
    ServerRestarted,
    /// The server evicted the client: its caches and locks are lost.
    Evicted,
}

/// Divisor of the growth of pauses.
const GROWTH: u32 = 8;

/// Growing pauses between connection attempts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Backoff {
    min: Duration,
    max: Duration,
    next: Duration,
}

impl Backoff {
    /// Creates pauses that start with `min` and grow by an eighth each time, up to `max`: a server that comes back is
    /// noticed after about an eighth of its outage.
    pub fn new(min: Duration, max: Duration) -> Backoff {
        Backoff { min, max: max.max(min), next: min }
    }

    /// Returns the pause before the next attempt.
    pub fn next_pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause + pause / GROWTH).min(self.max);
        pause
    }

    /// Resets the pause to the shortest after a successful attempt.
    pub fn reset(&mut self) {
        self.next = self.min;
    }
}

/// A client at one start of a server, until it is dropped: all connections of one life lead to the same locks
/// and handles there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Life {
    /// Instance of the server; 0 for none.
    pub instance: u64,
    /// Generation that the server gave to the client at its connect; a higher one after the server dropped
    /// the client.
    pub generation: u64,
}

/// State of the connection to one target. The caller ensures that only one thread at a time connects.
#[derive(Debug)]
pub struct Import {
    state: ImportState,
    /// Life as of the last connect.
    life: Life,
    /// Counts from 1; grows by one with each eviction.
    incarnation: u64,
    /// True if the server has reported that `life` is over.
    evicted: bool,
    /// First incarnation whose requests the server can answer a second time.
    answers_from: u64,
    backoff: Backoff,
    /// True if the outage was logged and its end was not yet.
    outage_reported: bool,
    /// State that is left to restore; outlives failed attempts.
    pending: Recovery,
}

impl Import {
    /// Creates an import that was never connected.
    pub fn new(backoff: Backoff) -> Import {
        Import {
            state: ImportState::New,
            life: Life::default(),
            incarnation: 1,
            evicted: false,
            answers_from: 1,
            backoff,
            outage_reported: false,
            pending: Recovery::None,
        }
    }

    /// Returns the state of the connection.
    pub fn state(&self) -> ImportState {
        self.state
    }

    /// Returns the instance of the server that was last reached, 0 for none.
    pub fn instance(&self) -> u64 {
        self.life.instance
    }

    /// Returns the life as of the last connect.
    pub fn life(&self) -> Life {
        self.life
    }

    /// Returns the number of evictions of the client, plus one. Restarts of the server do not count.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Returns the first incarnation whose requests may be sent again: the server knows what it has answered to them.
    pub fn answers_from(&self) -> u64 {
        self.answers_from
    }

    /// True if requests may use a connection of this life: it is the current one and nothing has to be
    /// restored first.
    pub fn serves(&self, life: Life) -> bool {
        self.life == life && !self.evicted && self.pending == Recovery::None
    }

    /// True if a thread is connecting or recovering, so that others wait.
    pub fn is_busy(&self) -> bool {
        matches!(self.state, ImportState::Connecting | ImportState::Recovering)
    }

    /// Starts an attempt to connect. False if another one is under way.
    pub fn on_connecting(&mut self) -> bool {
        if self.is_busy() {
            return false;
        }
        self.state = ImportState::Connecting;
        true
    }

    /// Records that the server has accepted the connect; `known` if it remembered the client, `lost_answers` if it
    /// does not have its answers to earlier requests. Returns what has to be restored; `None` if the connection belongs
    /// to a life that has ended since it was made.
    pub fn on_connected(&mut self, life: Life, known: bool, lost_answers: bool) -> Option<Recovery> {
        self.backoff.reset();
        let same_life = self.life == life && known;
        if same_life && self.evicted {
            return None;
        }
        let recovery = if self.life.instance == 0 || same_life {
            Recovery::None
        } else if self.life.instance != life.instance && !self.evicted && !lost_answers {
            // Answers that outlive a restart are those of the last incarnation.
            self.answers_from = self.incarnation;
            Recovery::ServerRestarted
        } else {
            // A restarted server that does not have its answers has evicted the client before.
            self.incarnation += 1;
            if lost_answers {
                self.answers_from = self.incarnation;
            }
            Recovery::Evicted
        };
        self.life = life;
        self.evicted = false;
        // A restart does not restore what an earlier eviction took.
        self.pending = self.pending.max(recovery);
        self.state = if self.pending == Recovery::None { ImportState::Full } else { ImportState::Recovering };
        Some(self.pending)
    }

    /// Completes the recovery: handles are open again.
    pub fn on_recovered(&mut self) {
        self.pending = Recovery::None;
        self.state = ImportState::Full;
    }

    /// Records a failed attempt. Returns the pause before the next one, and whether this outage is to be
    /// logged.
    pub fn on_failed(&mut self) -> (Duration, bool) {
        self.state = ImportState::Disconnected;
        let report = !self.outage_reported;
        self.outage_reported = true;
        (self.backoff.next_pause(), report)
    }

    /// Ends the attempt of a thread that gives up (interrupt, deadline): others may try.
    pub fn on_abandoned(&mut self) {
        self.state = ImportState::Disconnected;
    }

    /// Records a broken connection. True if this outage is to be logged.
    pub fn on_lost(&mut self) -> bool {
        if !self.is_busy() {
            self.state = ImportState::Disconnected;
        }
        !std::mem::replace(&mut self.outage_reported, true)
    }

    /// Records that the server has reported the eviction of this client, on a connection of `life`. False if
    /// that was known already.
    pub fn on_evicted(&mut self, life: Life) -> bool {
        if self.life != life {
            return false;
        }
        self.evicted = true;
        if !self.is_busy() {
            self.state = ImportState::Evicted;
        }
        true
    }

    /// True once after a logged outage has ended.
    pub fn take_restored(&mut self) -> bool {
        self.state == ImportState::Full && std::mem::take(&mut self.outage_reported)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn import() -> Import {
        Import::new(Backoff::new(Duration::from_millis(50), Duration::from_millis(180)))
    }

    fn life(instance: u64, generation: u64) -> Life {
        Life { instance, generation }
    }

    /// An import connected to instance 7 with generation 3.
    fn connected() -> Import {
        let mut import = import();
        assert!(import.on_connecting());
        assert_eq!(import.on_connected(life(7, 3), false, false), Some(Recovery::None));
        import
    }

    #[test]
    fn a_new_instance_means_recovery_and_the_same_one_does_not() {
        let mut import = import();
        assert!(import.on_connecting());
        assert!(!import.on_connecting(), "one at a time");
        assert_eq!(
            import.on_connected(life(7, 3), false, false),
            Some(Recovery::None),
            "the first connect restores nothing"
        );
        assert!(import.on_lost(), "the first to notice reports");
        assert!(!import.on_lost());
        assert!(import.on_connecting());
        assert_eq!(import.on_connected(life(7, 3), true, false), Some(Recovery::None));
        assert!(import.take_restored());
        assert!(!import.take_restored());
        import.on_lost();
        import.on_connecting();
        assert_eq!(import.on_connected(life(8, 1), false, false), Some(Recovery::ServerRestarted));
        assert_eq!(import.state(), ImportState::Recovering);
        assert!(!import.serves(life(8, 1)) && !import.take_restored(), "not before handles are open again");
        import.on_recovered();
        assert!(import.serves(life(8, 1)) && import.take_restored());
        assert_eq!(import.incarnation(), 1, "a restart takes nothing that cannot be brought back");
    }

    #[test]
    fn a_server_that_forgot_the_client_has_evicted_it() {
        let mut import = connected();
        assert!(import.on_evicted(life(7, 3)));
        assert_eq!(import.state(), ImportState::Evicted);
        assert!(!import.serves(life(7, 3)));
        import.on_connecting();
        assert_eq!(import.on_connected(life(7, 4), false, false), Some(Recovery::Evicted));
        assert_eq!(import.incarnation(), 2);
        import.on_recovered();
        assert!(!import.on_evicted(life(7, 3)), "an old connection tells nothing new");
        assert!(import.serves(life(7, 4)));
    }

    #[test]
    fn an_eviction_is_noticed_by_the_number_of_the_life_alone() {
        // A side connection came first, so the server knows the client again; or its reply was lost.
        let mut import = connected();
        import.on_connecting();
        assert_eq!(import.on_connected(life(7, 4), true, false), Some(Recovery::Evicted));
        assert_eq!(import.incarnation(), 2);
    }

    #[test]
    fn a_connection_that_was_made_before_the_eviction_is_not_used() {
        let mut import = connected();
        import.on_connecting();
        import.on_evicted(life(7, 3));
        assert_eq!(import.on_connected(life(7, 3), true, false), None);
        import.on_failed();
        import.on_connecting();
        assert_eq!(import.on_connected(life(7, 4), false, false), Some(Recovery::Evicted));
    }

    #[test]
    fn an_eviction_is_not_forgotten_over_a_restart() {
        let mut import = connected();
        import.on_evicted(life(7, 3));
        import.on_connecting();
        assert_eq!(import.on_connected(life(8, 1), false, false), Some(Recovery::Evicted));
        assert_eq!(import.incarnation(), 2);
        import.on_failed();
        import.on_connecting();
        assert_eq!(
            import.on_connected(life(9, 1), false, false),
            Some(Recovery::Evicted),
            "it was not restored yet"
        );
        assert_eq!(import.incarnation(), 2);
    }

    #[test]
    fn a_restarted_server_without_answers_has_evicted_the_client() {
        let mut import = connected();
        import.on_connecting();
        assert_eq!(import.on_connected(life(8, 1), false, true), Some(Recovery::Evicted));
        assert_eq!((import.incarnation(), import.answers_from()), (2, 2));
    }

    #[test]
    fn answers_outlive_an_eviction_if_they_are_kept_and_then_no_restart() {
        let mut import = connected();
        import.on_evicted(life(7, 3));
        import.on_connecting();
        assert_eq!(import.on_connected(life(7, 4), false, false), Some(Recovery::Evicted));
        assert_eq!((import.incarnation(), import.answers_from()), (2, 1), "the server has kept them");
        import.on_recovered();
        import.on_connecting();
        assert_eq!(import.on_connected(life(8, 1), false, false), Some(Recovery::ServerRestarted));
        assert_eq!(
            (import.incarnation(), import.answers_from()),
            (2, 2),
            "it had stored those of the last life"
        );
        import.on_recovered();
        import.on_evicted(life(8, 1));
        import.on_connecting();
        assert_eq!(import.on_connected(life(8, 2), false, true), Some(Recovery::Evicted));
        assert_eq!((import.incarnation(), import.answers_from()), (3, 3), "it has dropped them");
    }

    #[test]
    fn a_recovery_that_failed_is_due_at_the_next_connect() {
        let mut import = connected();
        import.on_connecting();
        assert_eq!(import.on_connected(life(8, 1), false, false), Some(Recovery::ServerRestarted));
        import.on_failed();
        import.on_connecting();
        assert_eq!(import.on_connected(life(8, 1), true, false), Some(Recovery::ServerRestarted));
        import.on_recovered();
        import.on_connecting();
        assert_eq!(import.on_connected(life(8, 1), true, false), Some(Recovery::None));
    }

    #[test]
    fn pauses_grow_with_the_outage_up_to_their_limit() {
        let mut import = import();
        let mut outage = Duration::ZERO;
        let pauses: Vec<Duration> = (0..20).map(|_| import.on_failed().0).collect();
        for pause in &pauses {
            let expected = (Duration::from_millis(50) + outage / 8).min(Duration::from_millis(180));
            assert!(pause.abs_diff(expected) < Duration::from_millis(1), "{pause:?} after {outage:?}");
            outage += *pause;
        }
        assert_eq!(pauses.last(), Some(&Duration::from_millis(180)));
        import.on_connecting();
        import.on_connected(life(1, 1), false, false);
        assert_eq!(import.on_failed().0.as_millis(), 50);
    }
}
