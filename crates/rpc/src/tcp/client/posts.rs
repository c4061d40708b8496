//! Requests under way to a target, over all its connections, and those whose answers nobody waits for.

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

/// Posted requests that may be under way; beyond, the caller waits for its answer.
pub(crate) const POSTS_MAX: usize = 128;

/// A request that nobody waits for; kept until it is answered, so that it can be sent again.
#[derive(Clone)]
pub(crate) struct Post {
    pub(crate) ticket: Ticket,
    body: Arc<[u8]>,
    has_job: bool,
    /// It is on its way on some connection.
    sent: bool,
    /// It was on its way before.
    pub(crate) resent: bool,
}

impl Post {
    /// What is sent.
    pub(crate) fn body(&self) -> Body<'_> {
        Body { bytes: &self.body, has_job: self.has_job }
    }
}

/// Requests under way to one target.
pub(crate) struct Flights {
    requests: Mutex<Requests>,
    tag_freed: Condvar,
    posts: Mutex<BTreeMap<u64, Post>>,
    post_ended: Condvar,
    /// Reads and writes under way.
    pub(crate) gate: Gate,
    /// Frames whose checksum was wrong, on any connection.
    pub(crate) damaged: AtomicU64,
    /// Of all connections.
    pub(crate) trouble: Trouble,
    /// Over a simulated fabric: what counts as under way until a time yet to come.
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

    /// A request with so many bytes of data is no longer under way.
    pub(crate) fn release(&self, load: &Load, bytes: u64) {
        load.in_flight.fetch_sub(1, Ordering::Relaxed);
        if bytes > 0 {
            load.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.gate.leave();
        }
    }

    /// The same, from `at` on.
    pub(crate) fn release_at(&self, at: Instant, load: Arc<Load>, bytes: u64) {
        self.due.lock().push(Due { at, load, bytes });
    }

    /// Releases what is due; the time of the next.
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

    /// Numbers for a new request; waits while all tags are in use.
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

    /// A request has ended for good.
    pub(crate) fn finish(&self, xid: u64) {
        if self.requests.lock().finish(Xid(xid)) {
            self.tag_freed.notify_one();
        }
    }

    /// The lowest xid under way.
    pub(crate) fn acked(&self) -> Xid {
        self.requests.lock().acked()
    }

    /// Requests under way.
    pub(crate) fn count(&self) -> usize {
        self.requests.lock().len()
    }

    /// Keeps a posted request; `false` if there are too many, and its caller can wait.
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

    /// The posted requests that are on no connection, marked as sent: the caller sends them now.
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

    /// A posted request was answered.
    pub(crate) fn post_answered(&self, xid: u64, status: Status) {
        self.posts.lock().remove(&xid);
        self.post_ended.notify_all();
        self.finish(xid);
        if status == Status::EBADF {
            // A file that was not opened after all was given back.
            log::debug!("a request whose answer nobody waits for was not needed");
        } else if status != Status::OK {
            log::warn!("a request whose answer nobody waits for failed: {status}");
        }
    }

    /// The connection of a posted request has ended.
    pub(crate) fn post_lost(&self, xid: u64) {
        if let Some(post) = self.posts.lock().get_mut(&xid) {
            post.sent = false;
        }
    }

    /// The last request that was posted, of those under way.
    pub(crate) fn last_post(&self) -> Option<u64> {
        self.posts.lock().keys().next_back().copied()
    }

    /// True if a request that was posted until `last` is under way.
    pub(crate) fn has_post_until(&self, last: u64) -> bool {
        self.posts.lock().range(..=last).next().is_some()
    }

    /// Waits until another posted request is answered, for a little while at most and only if one until `last` is under way.
    pub(crate) fn rest_for_posts(&self, last: u64) {
        let mut posts = self.posts.lock();
        if posts.range(..=last).next().is_some() {
            self.post_ended.wait_for(&mut posts, TICK);
        }
    }

    /// Posted requests under way.
    pub(crate) fn post_count(&self) -> usize {
        self.posts.lock().len()
    }
}
