//! Cache of the users in this host's user database.
//!
//! The database may be slow: a thread pool of its own queries it, and requests wait for the pool with a
//! deadline. A cached answer stays valid while the database does not answer.

use nacre_env::clock::Instant;
use nacre_env::sync::{Condvar, Mutex};
use nacre_types::{Status, StatusResult, User};
use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Lifetime of an answer in seconds, unless configured; Lustre's `identity_expire`.
const EXPIRE_S: u64 = 20 * 60;
/// Longest wait for an answer. Estimate: a delay that a program tolerates once.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after a failed query before the database is asked again for the same user.
const PAUSE: Duration = Duration::from_secs(5);
/// Interval of checks for an interrupt.
const POLL: Duration = Duration::from_millis(50);
/// Maximum number of threads that query at the same time. Estimate: a service that hangs for one user may
/// answer for others.
const THREADS_MAX: usize = 4;
/// How long an idle thread waits for the next query.
const IDLE: Duration = Duration::from_secs(10);
/// Maximum number of cached users, at about 100 bytes each and 4 for each group.
const KNOWN_MAX: usize = 64 << 10;
/// Maximum number of queued queries.
const QUEUE_MAX: usize = 1024;

type Lookup = Box<dyn Fn(u32) -> io::Result<Option<User>> + Send + Sync>;

struct Known {
    user: Option<Arc<User>>,
    at: Instant,
}

#[derive(Default)]
struct State {
    known: HashMap<u32, Known>,
    /// Time of the last failed query, by user.
    failed: HashMap<u32, Instant>,
    queue: VecDeque<u32>,
    /// Users that are queued or being queried.
    asked: HashSet<u32>,
    threads: usize,
    idle: usize,
}

struct Shared {
    lookup: Lookup,
    expire_s: AtomicU64,
    state: Mutex<State>,
    /// Signalled when a query is queued.
    wanted: Condvar,
    /// Signalled when an answer arrives.
    answered: Condvar,
}

/// See the [module documentation](self).
pub(crate) struct Users(Arc<Shared>);

impl Users {
    /// Builds a cache in front of `lookup`.
    pub fn new(lookup: impl Fn(u32) -> io::Result<Option<User>> + Send + Sync + 'static) -> Users {
        Users(Arc::new(Shared {
            lookup: Box::new(lookup),
            expire_s: AtomicU64::new(EXPIRE_S),
            state: Mutex::default(),
            wanted: Condvar::new(),
            answered: Condvar::new(),
        }))
    }

    /// Returns the lifetime of an answer in seconds.
    pub fn expire_s(&self) -> u64 {
        self.0.expire_s.load(Ordering::Relaxed)
    }

    /// Sets [`Users::expire_s`]; with 0 each request queries the database.
    pub fn set_expire_s(&self, seconds: u64) {
        self.0.expire_s.store(seconds, Ordering::Relaxed);
    }

    /// Drops one user, or all, from the cache.
    pub fn flush(&self, uid: Option<u32>) {
        let mut state = self.0.state.lock();
        let state = &mut *state;
        match uid {
            Some(uid) => {
                state.known.remove(&uid);
                state.failed.remove(&uid);
            }
            None => {
                state.known.clear();
                state.failed.clear();
            }
        }
    }

    /// Returns a user; `None` if it does not exist.
    ///
    /// # Errors
    /// `EAGAIN` if the database does not answer and no earlier answer is cached; `EINTR`.
    pub fn find(&self, uid: u32) -> StatusResult<Option<Arc<User>>> {
        let life = Duration::from_secs(self.expire_s());
        let mut state = self.0.state.lock();
        if let Some(known) = state.known.get(&uid)
            && known.at.elapsed() < life
        {
            return Ok(known.user.clone());
        }
        let begun = Instant::now();
        if state.failed.get(&uid).is_none_or(|at| at.elapsed() >= PAUSE) && self.ask(&mut state, uid) {
            nacre_env::blocking(|| {
                while state.asked.contains(&uid) && begun.elapsed() < TIMEOUT && !nacre_env::interrupted() {
                    self.0.answered.wait_for(&mut state, POLL);
                }
            });
            if state.asked.contains(&uid) && nacre_env::interrupted() {
                return Err(Status::EINTR);
            }
            if state.asked.contains(&uid) {
                log::warn!("the user database gives no answer for user {uid}");
                state.failed.insert(uid, Instant::now());
            }
        }
        state.known.get(&uid).map(|known| known.user.clone()).ok_or(Status::EAGAIN)
    }

    /// Queues a query; returns false if no thread can execute it.
    fn ask(&self, state: &mut State, uid: u32) -> bool {
        if state.asked.contains(&uid) {
            return true;
        }
        if state.queue.len() >= QUEUE_MAX {
            return false;
        }
        if state.idle <= state.queue.len() && state.threads < THREADS_MAX {
            let shared = self.0.clone();
            match nacre_env::thread::Builder::new().name("identity".into()).spawn(move || shared.serve()) {
                Ok(_) => state.threads += 1,
                Err(error) if state.threads == 0 => {
                    log::error!("no thread for the user database: {error}");
                    return false;
                }
                Err(_) => {}
            }
        }
        state.asked.insert(uid);
        state.queue.push_back(uid);
        self.0.wanted.notify_one();
        true
    }
}

impl Shared {
    /// Body of a thread that queries the database.
    fn serve(&self) {
        let mut state = self.state.lock();
        loop {
            let Some(uid) = state.queue.pop_front() else {
                state.idle += 1;
                let timed_out = self.wanted.wait_for(&mut state, IDLE).timed_out();
                state.idle -= 1;
                if timed_out && state.queue.is_empty() {
                    state.threads -= 1;
                    return;
                }
                continue;
            };
            drop(state);
            let found = (self.lookup)(uid);
            state = self.state.lock();
            state.asked.remove(&uid);
            match found {
                Ok(user) => {
                    state.learn(uid, user, Duration::from_secs(self.expire_s.load(Ordering::Relaxed)))
                }
                Err(error) => {
                    log::warn!("the user database gives no answer for user {uid}: {error}");
                    state.failed.insert(uid, Instant::now());
                }
            }
            self.answered.notify_all();
        }
    }
}

impl State {
    fn learn(&mut self, uid: u32, user: Option<User>, life: Duration) {
        self.failed.retain(|other, at| *other != uid && at.elapsed() < PAUSE);
        if self.known.len() >= KNOWN_MAX {
            self.known.retain(|_, known| known.at.elapsed() < life / 2);
            if self.known.len() >= KNOWN_MAX {
                self.known.clear();
            }
        }
        self.known.insert(uid, Known { user: user.map(Arc::new), at: Instant::now() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_env::sync::mpsc;
    use std::sync::atomic::AtomicUsize;

    fn user(gid: u32) -> User {
        User { gid, groups: vec![gid] }
    }

    fn gid(users: &Users, uid: u32) -> StatusResult<Option<u32>> {
        users.find(uid).map(|user| user.map(|user| user.gid))
    }

    #[test]
    fn users_are_asked_for_once_until_they_expire_or_are_flushed() {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        let users = Users::new(move |uid| {
            count.fetch_add(1, Ordering::SeqCst);
            Ok((uid != 9).then(|| user(uid + 100)))
        });
        for _ in 0..3 {
            assert_eq!((gid(&users, 1), gid(&users, 9)), (Ok(Some(101)), Ok(None)));
        }
        assert_eq!(asked.load(Ordering::SeqCst), 2);
        users.flush(Some(1));
        assert_eq!((gid(&users, 1), gid(&users, 9)), (Ok(Some(101)), Ok(None)));
        assert_eq!(asked.load(Ordering::SeqCst), 3);
        users.flush(None);
        users.set_expire_s(0);
        for _ in 0..2 {
            assert_eq!(gid(&users, 1), Ok(Some(101)));
        }
        assert_eq!(asked.load(Ordering::SeqCst), 5);
    }

    #[test]
    fn a_look_up_that_hangs_holds_up_no_other_user_and_is_given_up() {
        let (release, held) = mpsc::channel::<()>();
        let held = Mutex::new(held);
        let users = Arc::new(Users::new(move |uid| {
            if uid == 1 {
                let _ = held.lock().recv();
            }
            Ok(Some(user(uid)))
        }));
        nacre_env::thread::scope(|scope| {
            let waits = scope.spawn(|| gid(&users, 1));
            for uid in 2..50 {
                assert_eq!(gid(&users, uid), Ok(Some(uid)));
            }
            assert!(!waits.is_finished());
            assert_eq!(waits.join().expect("no panic"), Err(Status::EAGAIN));
            // The pause after the failure avoids another wait.
            let begun = Instant::now();
            assert_eq!(gid(&users, 1), Err(Status::EAGAIN));
            assert!(begun.elapsed() < TIMEOUT / 2);
            release.send(()).expect("it waits");
        });
    }

    #[test]
    fn what_was_known_counts_while_the_database_is_away() {
        let is_away = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let away = is_away.clone();
        let users = Users::new(move |uid| match away.load(Ordering::SeqCst) {
            true => Err(io::Error::other("away")),
            false => Ok(Some(user(uid))),
        });
        users.set_expire_s(0);
        assert_eq!(gid(&users, 1), Ok(Some(1)));
        is_away.store(true, Ordering::SeqCst);
        assert_eq!((gid(&users, 1), gid(&users, 2)), (Ok(Some(1)), Err(Status::EAGAIN)));
    }
}
