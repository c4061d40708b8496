//! Second lookups of names that lead to other files all the time.
//!
//! The kernel looks a name up and then sends a request about the file that it found. If another mount has replaced the
//! name meanwhile and that file is gone, the kernel looks the name up once more, and gives up if that file is gone as
//! well. No local file system fails there: the name exists throughout. So the file of the second lookup is held open at
//! its MDT, like one that a program has open, until the request that follows.

use nacre_client::{Caller, Client, Found, Held};
use nacre_env::clock::Instant;
use nacre_env::sync::Mutex;
use nacre_types::{Status, StatusResult};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::request::{Operation, Request};

/// Lookups of a name whose file is gone before it can be held.
const LOOKUPS_MAX: usize = 100;
/// Time after which a thread that sent no request any more has ended.
const FORGOTTEN: Duration = Duration::from_secs(10);
/// Threads at most; others do without.
const THREADS_MAX: usize = 1024;

/// A thread of a program whose last request was about a file that is gone.
struct Retry {
    since: Instant,
    /// File of the last lookup.
    held: Option<Held>,
}

/// See the [module documentation](self).
pub(super) struct Retries {
    client: Arc<Client>,
    /// By the kernel's number of the thread.
    threads: Mutex<HashMap<u32, Retry>>,
    /// Length of `threads`: nearly always 0.
    count: AtomicUsize,
}

impl Retries {
    pub(super) fn new(client: Arc<Client>) -> Retries {
        Retries { client, threads: Mutex::default(), count: AtomicUsize::new(0) }
    }

    /// Looks a name up with `find`. For a thread that looks it up once more, a regular file is held.
    pub(super) fn lookup<A>(
        &self,
        caller: &Caller,
        find: impl Fn() -> StatusResult<Result<Found, A>>,
    ) -> StatusResult<Result<Found, A>> {
        let is_again =
            self.count.load(Ordering::Relaxed) > 0 && self.threads.lock().contains_key(&caller.pid);
        let mut found = find()?;
        for _ in 0..LOOKUPS_MAX {
            let file = match &found {
                Ok(file) if is_again && file.attr.is_regular() => file,
                _ => break,
            };
            match self.client.opens.hold(caller, file.attr.fid) {
                Err(Status::ENOENT | Status::ESTALE) => {
                    self.client.inodes.forget(file.node, 1);
                    found = find()?;
                }
                // The request that follows meets the same failure, and reports it.
                Err(_) => break,
                Ok(held) => {
                    self.keep(caller.pid, held);
                    break;
                }
            }
        }
        Ok(found)
    }

    fn keep(&self, thread: u32, held: Held) {
        let before = match self.threads.lock().get_mut(&thread) {
            Some(retry) => retry.held.replace(held),
            None => Some(held),
        };
        self.end_all(before);
    }

    /// Notes the outcome of a request: after a lookup, the one about the file follows.
    pub(super) fn ended(&self, request: &Request<'_>, outcome: &StatusResult<()>) {
        let is_stale = *outcome == Err(Status::ESTALE);
        if !is_stale && self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let is_of_program = request.pid != 0 && !matches!(request.op, Operation::Lookup { .. });
        let mut ended = Vec::new();
        {
            let mut threads = self.threads.lock();
            if is_of_program {
                ended.extend(threads.remove(&request.pid));
                if is_stale && threads.len() < THREADS_MAX {
                    threads.insert(request.pid, Retry { since: Instant::now(), held: None });
                }
            }
            ended.extend(
                threads.extract_if(|_, retry| retry.since.elapsed() > FORGOTTEN).map(|(_, retry)| retry),
            );
            self.count.store(threads.len(), Ordering::Relaxed);
        }
        self.end_all(ended.into_iter().filter_map(|retry| retry.held));
    }

    fn end_all(&self, held: impl IntoIterator<Item = Held>) {
        held.into_iter().for_each(|held| self.client.opens.end_hold(held));
    }
}
