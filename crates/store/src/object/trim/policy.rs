//! When to trim, and how much: pure decisions on the caller's clock.
//!
//! A run begins when enough free space is untrimmed, and ends when all of it is trimmed. It is divided into
//! pieces of a tenth of a second each at the current rate, so that it soon notices other work. Then it
//! pauses, unless so much is untrimmed that it continues at a lower rate.

use super::{TrimSettings, Trimmed};
use std::fmt;
use std::time::Duration;

/// Interval at which an idle policy checks again.
const TICK: Duration = Duration::from_secs(1);
/// Interval while a run waits for other work to pause.
const LOADED_TICK: Duration = Duration::from_millis(250);
/// Pieces per second.
const PIECES: u64 = 10;
/// Least bytes of a piece.
const PIECE_MIN: u64 = 1 << 20;
const PIECE_MAX: u64 = 64 << 20;
/// Least bytes that one command to a medium counts as: many small extents are more work than their bytes.
const COMMAND_BYTES: u64 = 128 << 10;
/// Least number of bytes requested at a time.
const ASK_MIN: u64 = 4096;
/// Time for which a failure suspends trimming.
const AFTER_FAILURE: Duration = Duration::from_secs(60);

/// Other work of the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Load {
    /// Transfers in progress.
    pub in_progress: u64,
    /// Transfers completed since the beginning.
    pub done: u64,
}

/// Inputs of a decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sight {
    /// Time since the beginning.
    pub now: Duration,
    /// Bytes that are free and untrimmed.
    pub untold: u64,
    /// Size of the store in bytes.
    pub total: u64,
    /// Other work of the store.
    pub load: Load,
}

/// Decision of the policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Check again after this time.
    Rest(Duration),
    /// Trim, then report the result, and check again.
    Tell {
        /// Place at which to begin.
        from: u64,
        /// Maximum bytes.
        max_bytes: u64,
    },
}

/// State of the policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TrimState {
    /// Trimming is switched off.
    Off,
    /// There is too little to trim.
    #[default]
    Idle,
    /// There is enough to trim, but there is other work.
    Waiting,
    /// A run is in progress.
    Trimming,
    /// A run is in progress in spite of other work.
    Busy,
    /// A run has stopped because of other work.
    Paused,
    /// The medium does not support trim, or failed recently.
    Failed,
}

impl fmt::Display for TrimState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TrimState::Off => "off",
            TrimState::Idle => "idle",
            TrimState::Waiting => "waiting",
            TrimState::Trimming => "trimming",
            TrimState::Busy => "busy",
            TrimState::Paused => "paused",
            TrimState::Failed => "failed",
        })
    }
}

/// See the [module documentation](self).
#[derive(Debug, Default)]
pub struct Policy {
    state: TrimState,
    looked: Duration,
    done: u64,
    /// Transfers that still count as little, refilled by `quiet_iops`.
    allowance: f64,
    /// Time since which there is little other work; `None` while there is more.
    quiet_since: Option<Duration>,
    /// Place at which the run in progress continues.
    run: Option<u64>,
    is_urgent: bool,
    /// Time at which the next piece is due, by the rate.
    due: Duration,
    rate: u64,
    /// Cost of a byte in the last piece, by [`COMMAND_BYTES`]; 0 before the first.
    byte_cost: f64,
    refusal: Option<String>,
    retry_at: Option<Duration>,
    runs: u64,
    pauses: u64,
}

impl Policy {
    /// Decides the next step.
    pub fn look(&mut self, settings: &TrimSettings, sight: &Sight) -> Step {
        let is_quiet = self.weigh_load(settings, sight);
        if !settings.is_on {
            self.run = None;
            return self.rest(TrimState::Off, TICK);
        }
        if self.refusal.is_some() || self.retry_at.is_some_and(|at| sight.now < at) {
            return self.rest(TrimState::Failed, TICK);
        }
        self.retry_at = None;
        let share = |percent: u32| sight.total / 100 * u64::from(percent);
        let urgent = share(settings.urgent_percent).max(1);
        self.is_urgent = sight.untold >= urgent || self.is_urgent && sight.untold >= urgent.div_ceil(2);
        if self.run.is_none() && sight.untold < share(settings.start_percent).max(1) {
            return self.rest(TrimState::Idle, TICK);
        }
        let (state, rate) = match (is_quiet, self.is_urgent && settings.busy_rate > 0) {
            (true, _) => (TrimState::Trimming, settings.rate.max(TrimSettings::RATE_MIN)),
            (false, true) => (TrimState::Busy, settings.busy_rate),
            (false, false) if self.run.is_some() => {
                self.pauses += u64::from(self.state != TrimState::Paused);
                return self.rest(TrimState::Paused, LOADED_TICK.min(settings.idle));
            }
            (false, false) => return self.rest(TrimState::Waiting, LOADED_TICK),
        };
        self.state = state;
        if sight.now < self.due && self.rate == rate {
            return Step::Rest((self.due - sight.now).min(TICK));
        }
        self.rate = rate;
        self.runs += u64::from(self.run.is_none());
        let from = *self.run.get_or_insert(0);
        self.due = sight.now;
        let piece = (rate / PIECES).clamp(PIECE_MIN.min(rate), PIECE_MAX);
        let max_bytes = (piece as f64 / self.byte_cost.max(1.0)) as u64;
        Step::Tell { from, max_bytes: max_bytes.max(ASK_MIN) }
    }

    fn rest(&mut self, state: TrimState, time: Duration) -> Step {
        self.state = state;
        Step::Rest(time.max(Duration::from_millis(1)))
    }

    /// Whether there has been little other work for long enough.
    fn weigh_load(&mut self, settings: &TrimSettings, sight: &Sight) -> bool {
        let passed = sight.now.saturating_sub(self.looked).as_secs_f64();
        let iops = f64::from(settings.quiet_iops);
        let done = sight.load.done.wrapping_sub(self.done) as f64;
        (self.looked, self.done) = (sight.now, sight.load.done);
        self.allowance = (self.allowance + passed * iops).min(iops) - done;
        if self.allowance < 0.0 || sight.load.in_progress > 0 {
            self.allowance = self.allowance.max(0.0);
            self.quiet_since = None;
            return false;
        }
        let since = *self.quiet_since.get_or_insert(sight.now);
        sight.now - since >= settings.idle
    }

    /// Notes that a piece was trimmed.
    pub fn told(&mut self, now: Duration, trimmed: &Trimmed) {
        let commands = trimmed.extents.unwrap_or(0).saturating_mul(COMMAND_BYTES);
        let cost = trimmed.bytes.max(commands);
        self.byte_cost = if trimmed.bytes > 0 { cost as f64 / trimmed.bytes as f64 } else { 0.0 };
        self.due += Duration::from_secs_f64(cost as f64 / self.rate.max(1) as f64);
        // Time lost to a slow medium is not caught up.
        self.due = self.due.max(now);
        self.run = trimmed.next;
        if self.run.is_none() {
            self.state = TrimState::Idle;
        }
    }

    /// Notes that a piece could not be trimmed. With a reason trimming ends permanently, else for a while.
    pub fn failed(&mut self, now: Duration, refusal: Option<String>) {
        self.run = None;
        self.state = TrimState::Failed;
        match refusal {
            Some(reason) => self.refusal = Some(reason),
            None => self.retry_at = Some(now + AFTER_FAILURE),
        }
    }

    /// Retries after failures.
    pub fn forgive(&mut self) {
        self.refusal = None;
        self.retry_at = None;
    }

    /// Resets the counters to 0.
    pub fn clear(&mut self) {
        (self.runs, self.pauses) = (0, 0);
    }

    /// Returns the state.
    pub fn state(&self) -> TrimState {
        self.state
    }

    /// Returns the number of runs begun.
    pub fn runs(&self) -> u64 {
        self.runs
    }

    /// Returns how often a run stopped because of other work.
    pub fn pauses(&self) -> u64 {
        self.pauses
    }

    /// Returns the reason why the medium is not tried any more.
    pub fn refusal(&self) -> Option<&str> {
        self.refusal.as_deref()
    }
}
