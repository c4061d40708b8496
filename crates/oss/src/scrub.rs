//! Scrub: reads all data of a target repeatedly at a low rate, and once at a higher one when an administrator orders
//! it. The store compares checksums, where it has them; blocks that the medium cannot read are found in any case.

use nacre_env::clock::Instant;
use nacre_env::sync::{Condvar, Mutex};
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
    /// Number of the walk. An order or its end begins another one: what the thread is reading then counts for neither.
    walk: u64,
    attended: Option<Instant>,
    rested: Option<Instant>,
    is_ending: bool,
}

/// Part of a walk: which one, and the object after which it continues.
struct Leg {
    walk: u64,
    after: Fid,
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
        state.walk += 1;
        (state.status.is_ordered, state.status.is_complete) = (true, false);
        (state.order, state.attended) = (Some(rate), is_attended.then(Instant::now));
        self.shared.changed.notify_all();
    }

    /// Ends an order; the next one continues there.
    pub fn cancel(&self) {
        self.shared.state.lock().end_order();
        self.shared.changed.notify_all();
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
        while let Some(leg) = self.next() {
            let index = self.store.abilities().index;
            let listed = index.map_or(Ok(Vec::new()), |index| objects_after(index, leg.after, LISTED));
            let objects = listed.unwrap_or_else(|error| {
                self.found(leg.walk, Fid::ZERO, &format!("its objects cannot be listed: {error}"));
                Vec::new()
            });
            let is_end = objects.len() < LISTED;
            let is_read = objects.into_iter().all(|object| {
                self.read(leg.walk, object)
                    && self.go_on(leg.walk, |state| {
                        state.status.position = object;
                        state.status.objects += 1;
                    })
            });
            if is_read && is_end {
                self.go_on(leg.walk, State::complete);
            }
        }
    }

    /// Changes the state of a walk; false if it is not under way any more.
    fn go_on(&self, walk: u64, change: impl FnOnce(&mut State)) -> bool {
        let mut state = self.state.lock();
        let is_under_way = state.is_under_way(walk);
        if is_under_way {
            change(&mut state);
        }
        is_under_way
    }

    /// Waits until there is something to read. `None`: the thread ends.
    fn next(&self) -> Option<Leg> {
        let mut state = self.state.lock();
        loop {
            if state.is_ending {
                return None;
            }
            if state.order.is_some() && state.attended.is_some_and(|asked| asked.elapsed() > ATTENDED) {
                state.end_order();
            }
            let rest = state.rested.map_or(Duration::ZERO, |since| REST.saturating_sub(since.elapsed()));
            match (state.order, state.rate) {
                (None, 0) => self.changed.wait(&mut state),
                (None, _) if !rest.is_zero() => {
                    self.changed.wait_for(&mut state, rest);
                }
                _ => return Some(Leg { walk: state.walk, after: state.status.position }),
            }
        }
    }

    /// Reads an object; returns false if the walk is not under way any more.
    fn read(&self, walk: u64, object: Fid) -> bool {
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
                    self.found(walk, object, &error.to_string());
                    READ_BYTES
                }
            };
            at += read;
            if !self.go_on(walk, |state| state.status.bytes += read) || !self.pause(walk, read) {
                return false;
            }
        }
    }

    /// Waits after a read, as the rate requires that is set meanwhile; returns false if the walk is not under way any
    /// more.
    fn pause(&self, walk: u64, bytes: u64) -> bool {
        let begin = Instant::now();
        let mut state = self.state.lock();
        while state.is_under_way(walk) {
            let rate = state.order.unwrap_or(state.rate);
            let pause =
                if rate == 0 { Duration::ZERO } else { Duration::from_secs_f64(bytes as f64 / rate as f64) };
            let left = pause.saturating_sub(begin.elapsed());
            if left.is_zero() {
                return true;
            }
            self.changed.wait_for(&mut state, left);
        }
        false
    }

    fn found(&self, walk: u64, object: Fid, text: &str) {
        log::error!("{}: damage: object {object}: {text}", self.target);
        self.go_on(walk, |state| {
            state.status.damaged += 1;
            if state.status.findings.len() == KEPT_MAX {
                state.status.findings.pop_front();
            }
            state.status.findings.push_back((object, text.to_owned()));
        });
    }
}

impl State {
    /// Whether a walk continues: it was not replaced, and neither the thread nor the continuous walk was ended.
    fn is_under_way(&self, walk: u64) -> bool {
        walk == self.walk && !self.is_ending && (self.order.is_some() || self.rate > 0)
    }

    fn end_order(&mut self) {
        if self.order.take().is_some() {
            self.status.is_ordered = false;
            self.walk += 1;
        }
    }

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
        self.walk += 1;
        self.rested = Some(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_store::object::{FileStore, FileStoreOptions, Ids};

    #[test]
    fn an_order_during_a_continuous_walk_reads_everything_and_does_not_wait_for_its_rate() {
        let dir = tempfile::tempdir().expect("a directory");
        let store = FileStore::open(dir.path(), FileStoreOptions::create()).expect("opens");
        let object = Fid { seq: 0x1_0000_0000, oid: 1, ver: 0 };
        store.reserve(object.seq, 10).expect("reserved");
        store.write(object, 0, &[1; 1000]).expect("written");
        let target = TargetId::ost(0);
        // One byte per second: the continuous walk stays behind the only object for 1000 s.
        let scrub = DataScrub::start(target, Arc::new(store), 1).expect("started");
        let until = |what: &str, is_reached: &dyn Fn(&DataScrubStatus) -> bool| {
            let begin = Instant::now();
            while !is_reached(&scrub.status()) {
                assert!(begin.elapsed() < Duration::from_secs(100), "{what}: {:?}", scrub.status());
                nacre_env::thread::yield_now();
            }
        };
        until("the continuous walk has read", &|status| status.bytes > 0);
        scrub.order(0, true, false);
        until("the order has ended", &|status| status.is_complete);
        let status = scrub.status();
        assert_eq!((status.bytes, status.objects, status.passes), (1000, 1, 1), "{status:?}");
    }
}
