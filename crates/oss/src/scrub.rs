//! Scrub: reads all data of a target repeatedly at a low rate, and once at a higher one when an administrator orders
//! it. The store compares checksums, where it has them; blocks that the medium cannot read are found in any case.

use nacre_env::clock::Instant;
use nacre_env::sync::{Condvar, Mutex, MutexGuard};
use nacre_env::thread::JoinHandle;
use nacre_store::object::{ObjectError, ObjectStore, Seek, objects_after};
use nacre_types::{Fid, TargetId};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of one read.
const READ_BYTES: u64 = 1 << 20;
/// Objects that are listed at a time.
const LISTED: usize = 64;
/// Damaged places that are kept.
const KEPT_MAX: usize = 1000;
/// Pause between two continuous walks.
const REST: Duration = Duration::from_secs(600);
/// Time after which an order ends without a question for its state by the command that has given it.
const ATTENDED: Duration = Duration::from_secs(15);

/// State of the scrub.
#[derive(Clone, Debug, Default)]
pub struct DataScrubStatus {
    /// True while an order is carried out.
    pub is_ordered: bool,
    /// True if the last order was carried out to the end.
    pub is_complete: bool,
    /// Last object that was read.
    pub position: Fid,
    /// Objects read since the walk began.
    pub objects: u64,
    /// Bytes read since the walk began.
    pub bytes: u64,
    /// Walks completed in this run.
    pub passes: u64,
    /// Damaged places found by the walk under way.
    pub damaged: u64,
    /// Damaged places found by the last complete walk.
    pub last_damaged: u64,
    /// Latest damaged places: object and description.
    pub findings: VecDeque<(Fid, String)>,
}

#[derive(Default)]
struct State {
    status: DataScrubStatus,
    /// Rate of an order in bytes per second, 0 for as many as possible.
    order: Option<u64>,
    /// Rate of the continuous walk, 0 for none.
    rate: u64,
    attended: Option<Instant>,
    rested: Option<Instant>,
    is_ending: bool,
}

struct Shared {
    target: TargetId,
    store: Arc<dyn ObjectStore>,
    state: Mutex<State>,
    changed: Condvar,
}

/// See the [module documentation](self).
pub struct DataScrub {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl DataScrub {
    /// Starts the thread, with a rate in bytes per second.
    ///
    /// # Errors
    /// If it cannot be started.
    pub(crate) fn start(target: TargetId, store: Arc<dyn ObjectStore>, rate: u64) -> io::Result<DataScrub> {
        let state = Mutex::new(State { rate, ..State::default() });
        let shared = Arc::new(Shared { target, store, state, changed: Condvar::new() });
        let body = shared.clone();
        let thread = nacre_env::thread::Builder::new().name("oss-scrub".into()).spawn(move || body.run())?;
        Ok(DataScrub { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Returns the rate of the continuous walk in bytes per second; 0 if it is off.
    pub fn rate(&self) -> u64 {
        self.shared.state.lock().rate
    }

    /// Sets that rate.
    pub fn set_rate(&self, rate: u64) {
        self.shared.state.lock().rate = rate;
        self.shared.changed.notify_all();
    }

    /// Reads everything once, at `rate` bytes per second (0: as many as possible), from the beginning or where the last
    /// walk has stopped. An attended order ends without [`DataScrub::attend`].
    pub fn order(&self, rate: u64, from_start: bool, is_attended: bool) {
        let mut state = self.shared.state.lock();
        if from_start || state.status.is_complete {
            state.status.position = Fid::ZERO;
        }
        if state.order.is_none() {
            let passes = state.status.passes;
            let position = state.status.position;
            state.status = DataScrubStatus { passes, position, ..DataScrubStatus::default() };
        }
        (state.status.is_ordered, state.status.is_complete) = (true, false);
        (state.order, state.attended) = (Some(rate), is_attended.then(Instant::now));
        self.shared.changed.notify_all();
    }

    /// Ends an order; the next one continues there.
    pub fn cancel(&self) {
        let mut state = self.shared.state.lock();
        (state.order, state.status.is_ordered) = (None, false);
    }

    /// Returns the state to the command that has given the order, and extends the order.
    pub fn attend(&self) -> DataScrubStatus {
        let mut state = self.shared.state.lock();
        state.attended = state.attended.map(|_| Instant::now());
        state.status.clone()
    }

    /// Returns the state.
    pub fn status(&self) -> DataScrubStatus {
        self.shared.state.lock().status.clone()
    }

    /// Ends the thread.
    pub fn end(&self) {
        self.shared.state.lock().is_ending = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.lock().take()
            && thread.join().is_err()
        {
            log::error!("{}: the thread oss-scrub has panicked", self.shared.target);
        }
    }
}

impl Drop for DataScrub {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    fn run(&self) {
        while let Some(after) = self.next() {
            let index = self.store.abilities().index;
            let listed = index.map_or(Ok(Vec::new()), |index| objects_after(index, after, LISTED));
            let objects = match listed {
                Ok(objects) => objects,
                Err(error) => {
                    self.found(Fid::ZERO, &format!("its objects cannot be listed: {error}"));
                    Vec::new()
                }
            };
            let is_end = objects.len() < LISTED;
            for object in objects {
                if !self.read(object) {
                    break;
                }
                let mut state = self.state.lock();
                state.status.position = object;
                state.status.objects += 1;
            }
            if is_end {
                self.state.lock().complete();
            }
        }
    }

    /// Waits until there is something to read; returns the object after which it continues. `None`: the thread ends.
    fn next(&self) -> Option<Fid> {
        let mut state = self.state.lock();
        loop {
            if state.is_ending {
                return None;
            }
            if state.order.is_some() && state.attended.is_some_and(|asked| asked.elapsed() > ATTENDED) {
                (state.order, state.status.is_ordered) = (None, false);
            }
            let rest = state.rested.map_or(Duration::ZERO, |since| REST.saturating_sub(since.elapsed()));
            match (state.order, state.rate) {
                (Some(_), _) => return Some(state.status.position),
                (None, 0) => self.changed.wait(&mut state),
                (None, _) if rest.is_zero() => return Some(state.status.position),
                (None, _) => {
                    self.changed.wait_for(&mut state, rest);
                }
            }
        }
    }

    /// Reads an object; returns false if the thread ends, or what it does has changed.
    fn read(&self, object: Fid) -> bool {
        let mut buffer = vec![0; READ_BYTES as usize];
        let mut at = 0;
        loop {
            at = match self.store.seek(object, at, Seek::Data) {
                Ok(at) => at,
                // It has ended, or it was destroyed meanwhile.
                Err(_) => return true,
            };
            let read = match self.store.read(object, at, &mut buffer, 0) {
                Ok(0) => return true,
                Ok(read) => read as u64,
                Err(ObjectError::Closed | ObjectError::Gone(_)) => return true,
                Err(error) => {
                    self.found(object, &error.to_string());
                    READ_BYTES
                }
            };
            at += read;
            if !self.pause(read) {
                return false;
            }
        }
    }

    /// Waits as the rate requires.
    fn pause(&self, bytes: u64) -> bool {
        let mut state = self.state.lock();
        state.status.bytes += bytes;
        let rate = state.order.unwrap_or(state.rate);
        let (ordered, was_on) = (state.order.is_some(), rate > 0 || state.order.is_some());
        if rate > 0 {
            let pause = Duration::from_secs_f64(bytes as f64 / rate as f64);
            self.wait_for(&mut state, pause);
        }
        !state.is_ending && was_on && state.order.is_some() == ordered
    }

    fn wait_for(&self, state: &mut MutexGuard<'_, State>, pause: Duration) {
        let begin = Instant::now();
        loop {
            let left = pause.saturating_sub(begin.elapsed());
            if left.is_zero() || state.is_ending {
                return;
            }
            self.changed.wait_for(state, left);
        }
    }

    fn found(&self, object: Fid, text: &str) {
        log::error!("{}: damage: object {object}: {text}", self.target);
        let mut state = self.state.lock();
        state.status.damaged += 1;
        if state.status.findings.len() == KEPT_MAX {
            state.status.findings.pop_front();
        }
        state.status.findings.push_back((object, text.to_owned()));
    }
}

impl State {
    fn complete(&mut self) {
        let status = &mut self.status;
        status.passes += 1;
        status.last_damaged = status.damaged;
        status.position = Fid::ZERO;
        if self.order.take().is_some() {
            (status.is_ordered, status.is_complete) = (false, true);
        } else {
            (status.objects, status.bytes, status.damaged) = (0, 0, 0);
        }
        self.rested = Some(Instant::now());
    }
}
