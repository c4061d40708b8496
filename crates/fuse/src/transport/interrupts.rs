//! Decides which requests a signal at their caller interrupts, and when.
//!
//! The kernel sends INTERRUPT once per request, for any signal: also for one that is caught and has nothing
//! to do with the call (a child's end, a timer of a language's runtime, the freezer). Files on a disk do not
//! answer those with EINTR, and many programs could not handle it. And for some requests it sends none at
//! all, although their caller cannot be killed before the answer: those of direct I/O. So the pending signals
//! of the caller decide: a fatal signal interrupts its request at once, a stop signal interrupts a request
//! that has waited for [`TIMEOUT`] (Lustre has the same list), and with all others the request continues.
//! One thread checks the callers of long requests; it sleeps while no request waits. Any signal ends a wait
//! for a file lock, as on other file systems.

use nacre_env::clock::Instant;
use rustix::process::Signal;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use nacre_env::InterruptTarget;
use nacre_env::sync::{Condvar, Mutex};

use super::Channel;
use crate::request::{Operation, Request};

/// Largest number of notes; the oldest are dropped.
const NOTES_MAX: usize = 64;
/// A request that was read is begun within microseconds; older notes are for requests that were already
/// answered.
const NOTE_LIFETIME: Duration = Duration::from_secs(2);

/// How long a request continues although its caller has received a stop signal that it catches.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Time between two checks of requests.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// Checks without any request before the thread sleeps until a request waits. The wake-up costs time of that
/// request.
const IDLE_LOOKS: u32 = 20;
/// Signals that ask a program to stop, one bit each as in `/proc/<pid>/status`.
const STOP_SIGNALS: u64 =
    bit(Signal::HUP) | bit(Signal::INT) | bit(Signal::QUIT) | bit(Signal::ALARM) | bit(Signal::TERM);

const fn bit(signal: Signal) -> u64 {
    1 << (signal.as_raw() - 1)
}

/// A thread that serves requests, with its current request.
#[derive(Debug)]
pub(super) struct Worker {
    pub target: Arc<InterruptTarget>,
    /// Thread id of the caller, 0 if it is not visible from here.
    caller: AtomicU32,
    /// Any signal interrupts the request.
    any_signal: AtomicBool,
    /// Last regular file that the thread served, 0 if none: used to wake a new thread over io_uring.
    pub file: AtomicU64,
    seen: Mutex<Seen>,
}

/// State of a worker's request.
#[derive(Debug, Default)]
struct Seen {
    unique: u64,
    since: Option<Instant>,
    interrupted: bool,
}

impl Worker {
    pub fn new(target: &Arc<InterruptTarget>) -> Arc<Worker> {
        Arc::new(Worker {
            target: target.clone(),
            caller: AtomicU32::new(0),
            any_signal: AtomicBool::new(false),
            file: AtomicU64::new(0),
            seen: Mutex::default(),
        })
    }

    /// Marks the start of `request` on this thread.
    pub fn begin(&self, request: &Request<'_>) {
        let lock_wait = matches!(request.op, Operation::SetLk { wait: true, .. });
        // No thread waits for the end of these, whatever caused them.
        let unattended = matches!(request.op, Operation::Release { .. } | Operation::ReleaseDir { .. });
        self.caller.store(if unattended { 0 } else { request.pid }, Ordering::Relaxed);
        self.any_signal.store(lock_wait, Ordering::Relaxed);
        self.target.begin(request.unique);
    }

    /// Returns true if request `unique`, which runs here, has to be interrupted. Remembers since when the
    /// request is known, and that the kernel has reported a signal.
    pub fn is_due(&self, unique: u64, interrupted: bool) -> bool {
        let mut seen = self.seen.lock();
        let first = seen.unique != unique;
        if first {
            *seen = Seen { unique, since: Some(Instant::now()), interrupted };
        }
        seen.interrupted |= interrupted;
        // A request that has just begun is not worth a check.
        if first && !interrupted {
            return false;
        }
        if seen.interrupted && self.any_signal.load(Ordering::Relaxed) {
            return true;
        }
        let caller = self.caller.load(Ordering::Relaxed);
        let urgency = match caller {
            // Its signals are not visible; it may have received a fatal one. Without an interrupt it is the
            // kernel itself.
            0 if seen.interrupted => Urgency::Patient,
            0 => Urgency::None,
            caller => urgency_of(caller),
        };
        match urgency {
            Urgency::Now => true,
            Urgency::Patient => seen.since.is_some_and(|since| since.elapsed() >= TIMEOUT),
            Urgency::None => false,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Urgency {
    Now,
    Patient,
    None,
}

fn urgency_of(caller: u32) -> Urgency {
    std::fs::read(format!("/proc/{caller}/status")).map_or(Urgency::Patient, |status| urgency(&status))
}

/// Returns the urgency of the pending signals in a `/proc/<pid>/status`.
fn urgency(status: &[u8]) -> Urgency {
    let mask = |name: &str| {
        let mut lines = status.split(|&byte| byte == b'\n');
        let value = lines.find_map(|line| line.strip_prefix(name.as_bytes()))?;
        u64::from_str_radix(std::str::from_utf8(value).ok()?.trim(), 16).ok()
    };
    let (Some(own), Some(shared), Some(blocked)) = (mask("SigPnd:"), mask("ShdPnd:"), mask("SigBlk:")) else {
        return Urgency::Patient;
    };
    // A signal whose action is to end the process shows up as SIGKILL at each of its threads.
    let pending = (own | shared) & (!blocked | bit(Signal::KILL));
    if pending & bit(Signal::KILL) != 0 {
        Urgency::Now
    } else if pending & STOP_SIGNALS != 0 {
        Urgency::Patient
    } else {
        Urgency::None
    }
}

/// The thread that checks the callers of long requests.
#[derive(Debug, Default)]
pub(super) struct InterruptWatch {
    /// The thread sleeps until it is woken.
    asleep: AtomicBool,
    wake: Mutex<bool>,
    change: Condvar,
}

impl InterruptWatch {
    /// Starts the thread.
    pub fn start(channel: &Arc<Channel>) -> std::io::Result<()> {
        channel.spawn("fuse-signals".into(), |channel| channel.watch.run(channel))
    }

    /// Wakes the thread, because a request waits or the session ends.
    pub fn wake(&self) {
        if self.asleep.load(Ordering::SeqCst) {
            *self.wake.lock() = true;
            self.change.notify_one();
        }
    }

    fn run(&self, channel: &Channel) {
        let mut idle_looks = 0;
        while !channel.is_stopping() {
            let requests = channel.call_off_due();
            idle_looks = if requests > 0 { 0 } else { idle_looks + 1 };
            if idle_looks < IDLE_LOOKS {
                self.change.wait_for(&mut self.wake.lock(), LOOK_INTERVAL);
                continue;
            }
            self.wait_until_woken(channel);
            idle_looks = 0;
        }
    }

    fn wait_until_woken(&self, channel: &Channel) {
        let mut wake = self.wake.lock();
        *wake = false;
        self.asleep.store(true, Ordering::SeqCst);
        // A thread that began to wait before that store did not wake this one.
        while !*wake && !channel.is_stopping() && !channel.has_requests() {
            self.change.wait(&mut wake);
        }
        self.asleep.store(false, Ordering::SeqCst);
    }
}

/// Interrupts that arrived after a thread read their request and before it began.
#[derive(Debug, Default)]
pub(super) struct PendingInterrupts {
    count: AtomicUsize,
    notes: Mutex<VecDeque<(u64, Instant)>>,
}

impl PendingInterrupts {
    pub fn add(&self, unique: u64) {
        let now = Instant::now();
        let mut notes = self.notes.lock();
        notes.retain(|(_, since)| now.duration_since(*since) < NOTE_LIFETIME);
        if notes.len() == NOTES_MAX {
            notes.pop_front();
        }
        notes.push_back((unique, now));
        self.count.store(notes.len(), Ordering::SeqCst);
    }

    /// Removes the note for this request, if there is one, and returns whether there was. One load when there
    /// are no notes.
    pub fn take(&self, unique: u64) -> bool {
        if self.count.load(Ordering::SeqCst) == 0 {
            return false;
        }
        let now = Instant::now();
        let mut notes = self.notes.lock();
        let before = notes.iter().any(|(number, _)| *number == unique);
        notes.retain(|(number, since)| *number != unique && now.duration_since(*since) < NOTE_LIFETIME);
        self.count.store(notes.len(), Ordering::SeqCst);
        before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(own: u64, shared: u64, blocked: u64) -> String {
        format!(
            "Name:\tx\nSigQ:\t0/9\nSigPnd:\t{own:016x}\nShdPnd:\t{shared:016x}\nSigBlk:\t{blocked:016x}\n"
        )
    }

    #[test]
    fn only_signals_that_end_or_stop_a_program_count() {
        let of = |own, shared, blocked| urgency(status(own, shared, blocked).as_bytes());
        let other = bit(Signal::CHILD) | bit(Signal::URG) | bit(Signal::USR1);
        assert_eq!(of(0, 0, 0), Urgency::None);
        assert_eq!(of(other, other, 0), Urgency::None);
        assert_eq!(of(bit(Signal::KILL), other, 0), Urgency::Now);
        assert_eq!(of(0, bit(Signal::KILL), !0), Urgency::Now, "cannot be blocked");
        assert_eq!(of(bit(Signal::INT), 0, 0), Urgency::Patient);
        assert_eq!(of(0, bit(Signal::TERM), 0), Urgency::Patient);
        assert_eq!(of(0, bit(Signal::TERM), bit(Signal::TERM)), Urgency::None, "blocked");
        assert_eq!(urgency(b"Name:\tx\n"), Urgency::Patient, "not to be seen");
    }

    #[test]
    fn a_note_is_found_once() {
        let pending = PendingInterrupts::default();
        assert!(!pending.take(4));
        pending.add(4);
        pending.add(6);
        assert!(!pending.take(8));
        assert!(pending.take(4));
        assert!(!pending.take(4));
        assert!(pending.take(6));
    }

    #[test]
    fn notes_are_bounded() {
        let pending = PendingInterrupts::default();
        for unique in 1..=1000 {
            pending.add(unique);
        }
        assert_eq!(pending.notes.lock().len(), NOTES_MAX);
        assert!(!pending.take(1), "the oldest went");
        assert!(pending.take(1000));
    }
}
