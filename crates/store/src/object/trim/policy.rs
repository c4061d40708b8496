//! When to trim, and how much: pure decisions on a clock that the caller has.
//!
//! A run begins when enough is free that the medium was not told of, and ends when it has been told of everything. It makes
//! pieces, of a tenth of a second each by the rate that holds, so that it notices soon when others begin to work. Then it pauses,
//! unless so much waits that it goes on at a lower rate.

use super::{TrimSettings, Trimmed};
use std::fmt;
use std::time::Duration;

/// How often an idle policy looks around.
const TICK: Duration = Duration::from_secs(1);
/// The same while a run waits for others to pause.
const LOADED_TICK: Duration = Duration::from_millis(250);
/// Pieces of a second.
const PIECES: u64 = 10;
/// Bounds of a piece in bytes.
const PIECE_MIN: u64 = 1 << 20;
const PIECE_MAX: u64 = 64 << 20;
/// What one command to a medium counts as, at least: many small extents are more work than their bytes.
const COMMAND_BYTES: u64 = 128 << 10;
/// Least number of bytes that are asked for at a time.
const ASK_MIN: u64 = 4096;
/// How long a failure is waited out.
const AFTER_FAILURE: Duration = Duration::from_secs(60);

/// What others do at the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Load {
    /// Transfers in progress.
    pub in_progress: u64,
    /// Transfers since the beginning.
    pub done: u64,
}

/// What a policy looks at.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sight {
    /// Time since the beginning.
    pub now: Duration,
    /// Bytes that are free and untold.
    pub untold: u64,
    /// Bytes of the store.
    pub total: u64,
    /// What others do.
    pub load: Load,
}

/// What is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Look again after this time.
    Rest(Duration),
    /// Trim, then say what became of it, and look again.
    Tell {
        /// From where on.
        from: u64,
        /// How much at most.
        max_bytes: u64,
    },
}

/// What goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TrimState {
    /// It is switched off.
    Off,
    /// There is too little to tell.
    #[default]
    Idle,
    /// There is enough to tell, but others work.
    Waiting,
    /// A run is under way.
    Trimming,
    /// A run is under way although others work.
    Busy,
    /// A run has stopped because others work.
    Paused,
    /// The medium does not want to know, or failed lately.
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
    /// Since when there is little other work; `None` while there is more.
    quiet_since: Option<Duration>,
    /// Where the run under way goes on.
    run: Option<u64>,
    is_urgent: bool,
    /// When the next piece is due, by the rate.
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
    /// Decides.
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

    /// A piece was told.
    pub fn told(&mut self, now: Duration, trimmed: &Trimmed) {
        let commands = trimmed.extents.unwrap_or(0).saturating_mul(COMMAND_BYTES);
        let cost = trimmed.bytes.max(commands);
        self.byte_cost = if trimmed.bytes > 0 { cost as f64 / trimmed.bytes as f64 } else { 0.0 };
        self.due += Duration::from_secs_f64(cost as f64 / self.rate.max(1) as f64);
        // What a slow medium takes longer is not made up for.
        self.due = self.due.max(now);
        self.run = trimmed.next;
        if self.run.is_none() {
            self.state = TrimState::Idle;
        }
    }

    /// A piece could not be told. With a reason for good, else for a while.
    pub fn failed(&mut self, now: Duration, refusal: Option<String>) {
        self.run = None;
        self.state = TrimState::Failed;
        match refusal {
            Some(reason) => self.refusal = Some(reason),
            None => self.retry_at = Some(now + AFTER_FAILURE),
        }
    }

    /// Tries again what failed.
    pub fn forgive(&mut self) {
        self.refusal = None;
        self.retry_at = None;
    }

    /// Counts from 0 again.
    pub fn clear(&mut self) {
        (self.runs, self.pauses) = (0, 0);
    }

    /// What goes on.
    pub fn state(&self) -> TrimState {
        self.state
    }

    /// Runs that were begun.
    pub fn runs(&self) -> u64 {
        self.runs
    }

    /// How often a run stopped because others worked.
    pub fn pauses(&self) -> u64 {
        self.pauses
    }

    /// Why the medium is not asked any more.
    pub fn refusal(&self) -> Option<&str> {
        self.refusal.as_deref()
    }
}
