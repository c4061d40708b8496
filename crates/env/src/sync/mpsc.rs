//! An unbounded channel: the standard library's, with waits that a simulation schedules.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::sync::mpsc;
pub use std::sync::mpsc::{RecvError, RecvTimeoutError, SendError, TryRecvError};
use std::time::Duration;

use crate::clock::Instant;
use crate::sim;

/// Shared by both ends: its address names the channel to the scheduler of a simulation.
type Name = Arc<u8>;

fn key(name: &Name) -> usize {
    Arc::as_ptr(name).addr()
}

/// The sending end; the channel is closed when all of them are dropped.
pub struct Sender<T> {
    real: Option<mpsc::Sender<T>>,
    name: Name,
}

/// The receiving end.
pub struct Receiver<T> {
    real: mpsc::Receiver<T>,
    name: Name,
}

/// Creates an unbounded channel.
#[must_use]
pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let (sender, receiver) = mpsc::channel();
    let name = Name::new(0);
    (Sender { real: Some(sender), name: name.clone() }, Receiver { real: receiver, name })
}

impl<T> Sender<T> {
    /// Sends `value`.
    ///
    /// # Errors
    ///
    /// If the receiver is dropped; the error returns `value`.
    #[track_caller]
    pub fn send(&self, value: T) -> Result<(), SendError<T>> {
        let Some(real) = &self.real else { return Err(SendError(value)) };
        real.send(value)?;
        if sim::is_any() {
            sim::notify(key(&self.name), true);
        }
        Ok(())
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Sender<T> {
        Sender { real: self.real.clone(), name: self.name.clone() }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        // Before the notification, so that the receiver finds the channel closed.
        drop(self.real.take());
        if sim::is_any() {
            sim::notify(key(&self.name), true);
        }
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sender")
    }
}

impl<T> Receiver<T> {
    /// Waits for the next value until `deadline`; `None` outside of a simulation.
    #[track_caller]
    fn simulated(&self, deadline: Option<Instant>) -> Option<Result<T, RecvTimeoutError>> {
        if !sim::is_here() {
            return None;
        }
        loop {
            match self.real.try_recv() {
                Ok(value) => return Some(Ok(value)),
                Err(TryRecvError::Disconnected) => return Some(Err(RecvTimeoutError::Disconnected)),
                Err(TryRecvError::Empty) => {}
            }
            if sim::wait(key(&self.name), deadline.map(Instant::to_std), Location::caller()) {
                return Some(self.real.try_recv().map_err(|_| RecvTimeoutError::Timeout));
            }
        }
    }

    /// Waits for the next value.
    ///
    /// # Errors
    ///
    /// If the channel is empty, and all senders are dropped.
    #[track_caller]
    pub fn recv(&self) -> Result<T, RecvError> {
        if sim::is_any()
            && let Some(outcome) = self.simulated(None)
        {
            return outcome.map_err(|_| RecvError);
        }
        self.real.recv()
    }

    /// Waits for the next value, for `time` at most.
    ///
    /// # Errors
    ///
    /// If the time is over, or the channel is empty and all senders are dropped.
    #[track_caller]
    pub fn recv_timeout(&self, time: Duration) -> Result<T, RecvTimeoutError> {
        if sim::is_any()
            && let Some(outcome) = self.simulated(Instant::now().checked_add(time))
        {
            return outcome;
        }
        self.real.recv_timeout(time)
    }

    /// Returns the next value without waiting.
    ///
    /// # Errors
    ///
    /// If the channel is empty, with a separate error if all senders are dropped.
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        self.real.try_recv()
    }

    /// Iterates over all values, and waits for each, until the channel is closed.
    pub fn iter(&self) -> impl Iterator<Item = T> + '_ {
        std::iter::from_fn(|| self.recv().ok())
    }

    /// Iterates over the values that can be received without waiting.
    pub fn try_iter(&self) -> impl Iterator<Item = T> + '_ {
        self.real.try_iter()
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Receiver")
    }
}
