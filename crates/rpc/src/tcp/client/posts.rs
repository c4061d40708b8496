//! Requests in flight to a target, over all its connections, and posted requests, whose answers no caller
//! waits for.

use super::body::Body;
use super::ends::Load;
use super::gate::Gate;
use super::trouble::Trouble;
use nacre_env::clock::Instant;
use nacre_env::sync::{Condvar, Mutex};
use nacre_session::{Requests, Ticket};
use nacre_types::{Status, StatusResult, Xid};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::tcp::socket::TICK;

/// Posted requests that may be in flight; beyond that, the caller waits for the answer.
pub(crate) const POSTS_MAX: usize = 128;

/// A posted request; kept until it is answered, so that it can be resent.
#[derive(Clone)]
pub(crate) struct Post {
    pub(crate) ticket: Ticket,
    body: Arc<[u8]>,
    has_job: bool,
    /// In flight on some connection.
    sent: bool,
    /// Sent at least once before.
    pub(crate) resent: bool,
}

impl Post {
    /// Returns the body to send.
    pub(crate) fn body(&self) -> Body<'_> {
        Body { bytes: &self.body, has_job: self.has_job }
    }
}

/// Requests in flight to one target.
pub(crate) struct Flights {
    requests: Mutex<Requests>,
    tag_freed: Condvar,
    posts: Mutex<BTreeMap<u64, Post>>,
    post_ended: Condvar,
    /// Limit on the reads and writes in flight.
    pub(crate) gate: Gate,
    /// Frames whose checksum was wrong, on any connection.
    pub(crate) damaged: AtomicU64,
    /// Last failure of any connection.
    pub(crate) trouble: Trouble,
    /// With a simulated fabric: requests that count as in flight until a later time.
    due: Mutex<Vec<Due>>,
}

struct Due {
    at: Instant,
    load: Arc<Load>,
    bytes: u64,
}

impl Flights {
    pub(crate) fn new() -> Flights {
        Flights {
            requests: Mutex::new(Requests::new(1)),
            tag_freed: Condvar::new(),
            posts: Mutex::default(),
            post_ended: Condvar::new(),
            gate: Gate::default(),
            damaged: AtomicU64::new(0),
            trouble: Trouble::default(),
            due: Mutex::default(),
        }
    }

    /// Ends the count of a request with this number of bytes of data as in flight.
    pub(crate) fn release(&self, load: &Load, bytes: u64) {
        load.in_flight.fetch_sub(1, Ordering::Relaxed);
        if bytes > 0 {
            load.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.gate.leave();
        }
    }

    /// Ends the count of such a request at the time `at`.
    pub(crate) fn release_at(&self, at: Instant, load: Arc<Load>, bytes: u64) {
        self.due.lock().push(Due { at, load, bytes });
    }

    /// Releases the requests that are due; returns the time of the next.
    pub(crate) fn release_due(&self) -> Option<Instant> {
        let mut due = self.due.lock();
        if due.is_empty() {
            return None;
        }
        let now = Instant::now();
        due.retain(|entry| {
            if entry.at <= now {
                self.release(&entry.load, entry.bytes);
            }
            entry.at > now
        });
        due.iter().map(|entry| entry.at).min()
    }

    /// Allocates the numbers of a new request; waits while all tags are in use.
    pub(crate) fn begin(&self, modifying: bool) -> StatusResult<Ticket> {
        let mut requests = self.requests.lock();
        loop {
            if let Some(ticket) = requests.begin(modifying) {
                return Ok(ticket);
            }
            if nacre_env::interrupted() {
                return Err(Status::EINTR);
            }
            nacre_env::blocking(|| self.tag_freed.wait_for(&mut requests, TICK));
        }
    }

    /// Ends a request: it is never resent.
    pub(crate) fn finish(&self, xid: u64) {
        if self.requests.lock().finish(Xid(xid)) {
            self.tag_freed.notify_one();
        }
    }

    /// Returns the lowest xid in flight.
    pub(crate) fn acked(&self) -> Xid {
        self.requests.lock().acked()
    }

    /// Returns the number of requests in flight.
    pub(crate) fn count(&self) -> usize {
        self.requests.lock().len()
    }

    /// Keeps a posted request; returns `false` if there are too many and its caller can wait.
    pub(crate) fn add_post(&self, ticket: Ticket, body: Body<'_>, can_wait: bool) -> bool {
        let mut posts = self.posts.lock();
        // There are never more than tags.
        if can_wait && posts.len() >= POSTS_MAX {
            return false;
        }
        posts.insert(
            ticket.xid.0,
            Post { ticket, body: body.bytes.into(), has_job: body.has_job, sent: false, resent: false },
        );
        true
    }

    /// Returns the posted requests that are on no connection, marked as sent: the caller sends them at once.
    pub(crate) fn take_unsent(&self) -> Vec<Post> {
        let mut posts = self.posts.lock();
        let mut unsent = Vec::new();
        for post in posts.values_mut().filter(|post| !post.sent) {
            unsent.push(post.clone());
            post.sent = true;
            post.resent = true;
        }
        unsent
    }

    /// Handles the answer to a posted request.
    pub(crate) fn post_answered(&self, xid: u64, status: Status) {
        self.posts.lock().remove(&xid);
        self.post_ended.notify_all();
        self.finish(xid);
        if status == Status::EBADF {
            // A close of a handle whose open has not taken place.
            log::debug!("a request without a waiting caller was not needed");
        } else if status != Status::OK {
            log::warn!("a request without a waiting caller failed: {status}");
        }
    }

    /// Handles the loss of the connection of a posted request.
    pub(crate) fn post_lost(&self, xid: u64) {
        if let Some(post) = self.posts.lock().get_mut(&xid) {
            post.sent = false;
        }
    }

    /// Returns the last posted request in flight.
    pub(crate) fn last_post(&self) -> Option<u64> {
        self.posts.lock().keys().next_back().copied()
    }

    /// Returns true if a request posted up to `last` is in flight.
    pub(crate) fn has_post_until(&self, last: u64) -> bool {
        self.posts.lock().range(..=last).next().is_some()
    }

    /// Waits briefly until a posted request is answered, if one up to `last` is in flight.
    pub(crate) fn rest_for_posts(&self, last: u64) {
        let mut posts = self.posts.lock();
        if posts.range(..=last).next().is_some() {
            self.post_ended.wait_for(&mut posts, TICK);
        }
    }

    /// Returns the number of posted requests in flight.
    pub(crate) fn post_count(&self) -> usize {
        self.posts.lock().len()
    }
}
