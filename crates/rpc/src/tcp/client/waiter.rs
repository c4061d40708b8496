//! A request that waits for its reply.

use crate::tcp::scratch::Scratch;
use nacre_env::clock::Instant;
use nacre_env::sync::{Mutex, word};
use nacre_wire::frame::Header;
use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// No reply yet.
const PENDING: u32 = 0;
/// The connection has no reader: the waiter becomes the reader.
const PROMOTED: u32 = 1;
/// The outcome is available.
const DONE: u32 = 2;

/// Destination of a reply's bulk data: an exclusive borrow for `'a` that a resend can use again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Destination<'a> {
    place: Place,
    buffer: PhantomData<&'a mut [u8]>,
}

// SAFETY: it stands for an exclusive borrow of bytes, which may move to another thread.
unsafe impl Send for Destination<'_> {}

impl<'a> Destination<'a> {
    pub(crate) fn new(buffer: &'a mut [u8]) -> Destination<'a> {
        Destination { place: Place { start: buffer.as_mut_ptr(), len: buffer.len() }, buffer: PhantomData }
    }

    pub(crate) fn none() -> Destination<'a> {
        Destination { place: Place { start: std::ptr::null_mut(), len: 0 }, buffer: PhantomData }
    }

    pub(crate) fn len(&self) -> usize {
        self.place.len
    }

    pub(crate) fn place(&self) -> Place {
        self.place
    }
}

/// A [`Destination`] without its lifetime, for the reader of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    start: *mut u8,
    len: usize,
}

impl Place {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the first `len` bytes, `None` if it is smaller.
    ///
    /// # Safety
    /// The waiter that this belongs to is in the table of its connection and marked as receiving, so its
    /// owner does not return from waiting; no other thread receives for it.
    pub(crate) unsafe fn slice<'a>(self, len: usize) -> Option<&'a mut [u8]> {
        if len == 0 || len > self.len {
            return None;
        }
        // SAFETY: the buffer is valid for writes of `self.len` bytes as long as its owner waits, which the
        // caller guarantees; it comes from an exclusive borrow that is not used meanwhile.
        Some(unsafe { std::slice::from_raw_parts_mut(self.start, len) })
    }
}

/// A reply as received.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) header: Header,
    pub(crate) body: Scratch,
    /// False if bulk data was damaged, or did not fit.
    pub(crate) bulk_intact: bool,
}

/// How a wait ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    Reply(Reply),
    /// The connection has ended; the request may or may not have run.
    Lost,
}

/// A request in flight. Shared between its caller and the reader of the connection.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) xid: u64,
    pub(crate) place: Place,
    /// Bytes of data, in either direction.
    pub(crate) data_len: u64,
    /// When the answer is due over the simulated fabric.
    pub(crate) due: Option<Instant>,
    released: AtomicBool,
    state: AtomicU32,
    outcome: Mutex<Option<Outcome>>,
}

// SAFETY: the only part that is not Send and Sync is the pointer in `place`. Only `Place::slice` writes
// through it, whose contract gives one thread at a time exclusive use while the owner of the buffer waits.
unsafe impl Send for Waiter {}
// SAFETY: as above.
unsafe impl Sync for Waiter {}

/// Waiters that a thread keeps for its next requests.
const POOL_MAX: usize = 8;

thread_local! {
    static POOL: RefCell<Vec<Arc<Waiter>>> = const { RefCell::new(Vec::new()) };
}

impl Waiter {
    /// Creates a waiter, in the memory of an earlier one if there is one.
    pub(crate) fn new(xid: u64, place: Place, data_len: u64, due: Option<Instant>) -> Arc<Waiter> {
        let fresh = Waiter {
            xid,
            place,
            data_len,
            due,
            released: AtomicBool::new(false),
            state: AtomicU32::new(PENDING),
            outcome: Mutex::new(None),
        };
        if let Some(mut kept) = POOL.try_with(|kept| kept.borrow_mut().pop()).ok().flatten()
            // A waiter that another thread still refers to is not reused.
            && let Some(memory) = Arc::get_mut(&mut kept)
        {
            *memory = fresh;
            return kept;
        }
        Arc::new(fresh)
    }

    /// Recycles the waiter when its owner is done with it.
    pub(crate) fn keep(self: &Arc<Self>) {
        let _ = POOL.try_with(|kept| {
            let mut kept = kept.borrow_mut();
            if kept.len() < POOL_MAX {
                kept.push(self.clone());
            }
        });
    }

    /// Returns true once: for the thread that ends the request's count as in flight.
    pub(crate) fn take_release(&self) -> bool {
        !self.released.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn is_done(&self) -> bool {
        self.state.load(Ordering::Acquire) == DONE
    }

    pub(crate) fn take_outcome(&self) -> Option<Outcome> {
        self.outcome.lock().take()
    }

    /// Stores the outcome. `wake` if the owner may sleep.
    pub(crate) fn finish(&self, outcome: Outcome, wake: bool) {
        *self.outcome.lock() = Some(outcome);
        self.state.store(DONE, Ordering::Release);
        if wake {
            word::wake_one(&self.state);
        }
    }

    /// Wakes the sleeping owner as the reader of the connection.
    pub(crate) fn promote(&self) {
        if self.state.compare_exchange(PENDING, PROMOTED, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            word::wake_one(&self.state);
        }
    }

    /// Sleeps until the outcome is available, the waiter is promoted, a signal arrives, or `limit` is over.
    pub(crate) fn sleep(&self, limit: Duration) {
        word::wait(&self.state, PENDING, limit);
        // The promotion is consumed; the caller checks whether there is a reader.
        let _ = self.state.compare_exchange(PROMOTED, PENDING, Ordering::AcqRel, Ordering::Relaxed);
    }
}
