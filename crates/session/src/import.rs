//! A client's view of its connection to one target.

use std::time::Duration;

/// Where a client stands with a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ImportState {
    /// Never connected.
    New,
    /// Somebody tries to connect.
    Connecting,
    /// Connected, but handles have to be opened again before other requests go on.
    Recovering,
    /// Requests flow.
    Full,
    /// The connection was lost; the next request connects again.
    Disconnected,
    /// The server has dropped this client; it must connect as a new one.
    Evicted,
}

/// What a client has to restore after a connect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Recovery {
    /// Nothing: the server knows the client and its handles.
    None,
    /// The server restarted: handles and locks are to be asked for again, then unanswered requests are resent.
    ServerRestarted,
    /// The server gave the client up: what it cached and locked is lost.
    Evicted,
}

/// Growing pauses between attempts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Backoff {
    min: Duration,
    max: Duration,
    next: Duration,
}

impl Backoff {
    /// Pauses from `min`, doubled each time, up to `max`.
    pub fn new(min: Duration, max: Duration) -> Backoff {
        Backoff { min, max: max.max(min), next: min }
    }

    /// The pause before the next attempt.
    pub fn next_pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(self.max);
        pause
    }

    /// An attempt was successful.
    pub fn reset(&mut self) {
        self.next = self.min;
    }
}

/// State of the connection to one target. The shell makes sure that one thread at a time connects.
#[derive(Debug)]
pub struct Import {
    state: ImportState,
    /// Of the server when it was last reached; 0 before.
    instance: u64,
    backoff: Backoff,
    /// The loss was reported to the log and the return was not yet.
    outage_reported: bool,
    /// What has to be restored and was not yet; outlives failed attempts.
    pending: Recovery,
}

impl Import {
    /// Never connected.
    pub fn new(backoff: Backoff) -> Import {
        Import {
            state: ImportState::New,
            instance: 0,
            backoff,
            outage_reported: false,
            pending: Recovery::None,
        }
    }

    /// Where the client stands.
    pub fn state(&self) -> ImportState {
        self.state
    }

    /// Instance of the server that was last reached, 0 for none.
    pub fn instance(&self) -> u64 {
        self.instance
    }

    /// True if somebody is connecting or restoring, so that others wait.
    pub fn is_busy(&self) -> bool {
        matches!(self.state, ImportState::Connecting | ImportState::Recovering)
    }

    /// An attempt to connect starts. False if one is under way.
    pub fn on_connecting(&mut self) -> bool {
        if self.is_busy() {
            return false;
        }
        self.state = ImportState::Connecting;
        true
    }

    /// The server has agreed. `known` says that it remembered the client.
    pub fn on_connected(&mut self, instance: u64, known: bool) -> Recovery {
        self.backoff.reset();
        let recovery = if self.instance == 0 {
            Recovery::None
        } else if self.instance != instance {
            Recovery::ServerRestarted
        } else if known {
            Recovery::None
        } else {
            Recovery::Evicted
        };
        self.instance = instance;
        let recovery = if recovery == Recovery::None { self.pending } else { recovery };
        self.pending = recovery;
        self.state = if recovery == Recovery::None { ImportState::Full } else { ImportState::Recovering };
        recovery
    }

    /// A side connection met a server that does not know this client (any more): the next connect restores.
    pub fn on_forgotten(&mut self, instance: u64) {
        if self.instance != 0 && self.pending == Recovery::None {
            self.pending =
                if self.instance == instance { Recovery::Evicted } else { Recovery::ServerRestarted };
        }
        self.on_evicted();
    }

    /// Handles are open again.
    pub fn on_recovered(&mut self) {
        self.pending = Recovery::None;
        self.state = ImportState::Full;
    }

    /// An attempt failed: the pause before the next one, and whether this outage is to be reported.
    pub fn on_failed(&mut self) -> (Duration, bool) {
        self.state = ImportState::Disconnected;
        let report = !self.outage_reported;
        self.outage_reported = true;
        (self.backoff.next_pause(), report)
    }

    /// Whoever was connecting gives up (interrupted, deadline): others may try.
    pub fn on_abandoned(&mut self) {
        self.state = ImportState::Disconnected;
    }

    /// A connection broke. True if this outage is to be reported.
    pub fn on_lost(&mut self) -> bool {
        if !self.is_busy() {
            self.state = ImportState::Disconnected;
        }
        !std::mem::replace(&mut self.outage_reported, true)
    }

    /// The server said that it has dropped this client.
    pub fn on_evicted(&mut self) {
        if !self.is_busy() {
            self.state = ImportState::Evicted;
        }
    }

    /// True once after a reported outage has ended.
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

    #[test]
    fn a_new_instance_means_recovery_and_the_same_one_does_not() {
        let mut import = import();
        assert!(import.on_connecting());
        assert!(!import.on_connecting(), "one at a time");
        assert_eq!(import.on_connected(7, false), Recovery::None, "the first connect restores nothing");
        assert!(import.on_lost(), "the first to notice reports");
        assert!(!import.on_lost());
        assert!(import.on_connecting());
        assert_eq!(import.on_connected(7, true), Recovery::None);
        assert!(import.take_restored());
        assert!(!import.take_restored());
        import.on_lost();
        import.on_connecting();
        assert_eq!(import.on_connected(8, false), Recovery::ServerRestarted);
        assert_eq!(import.state(), ImportState::Recovering);
        assert!(!import.take_restored(), "not before handles are open again");
        import.on_recovered();
        assert!(import.take_restored());
    }

    #[test]
    fn a_server_that_forgot_the_client_has_evicted_it() {
        let mut import = import();
        import.on_connecting();
        import.on_connected(7, false);
        import.on_evicted();
        assert_eq!(import.state(), ImportState::Evicted);
        import.on_connecting();
        assert_eq!(import.on_connected(7, false), Recovery::Evicted);
    }

    #[test]
    fn a_recovery_that_failed_is_due_at_the_next_connect() {
        let mut import = import();
        import.on_connecting();
        import.on_connected(7, false);
        import.on_connecting();
        assert_eq!(import.on_connected(8, false), Recovery::ServerRestarted);
        import.on_failed();
        import.on_connecting();
        assert_eq!(import.on_connected(8, true), Recovery::ServerRestarted);
        import.on_recovered();
        import.on_connecting();
        assert_eq!(import.on_connected(8, true), Recovery::None);
    }

    #[test]
    fn what_a_side_connection_learns_is_restored_by_the_next_connect() {
        let mut import = import();
        import.on_connecting();
        import.on_connected(7, false);
        import.on_forgotten(7);
        import.on_connecting();
        assert_eq!(import.on_connected(7, true), Recovery::Evicted);
    }

    #[test]
    fn pauses_double_up_to_their_limit() {
        let mut import = import();
        let pauses: Vec<_> = (0..4).map(|_| import.on_failed().0.as_millis()).collect();
        assert_eq!(pauses, [50, 100, 180, 180]);
        import.on_connecting();
        import.on_connected(1, false);
        assert_eq!(import.on_failed().0.as_millis(), 50);
    }
}
