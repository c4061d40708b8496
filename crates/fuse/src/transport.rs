//! State that the threads of a mount share, for both transports.
//!
//! Every thread reads requests, calls the handler and sends the answer itself. Threads belong to *lanes*:
//! with io_uring one lane per CPU, whose threads all wait in the kernel (which prefers the one that finished
//! last); with `/dev/fuse` a lane keeps a fixed number of threads reading and parks the others. A thread that
//! is about to block ([`nacre_env::blocking`]) leaves the set of ready ones; the lane wakes or starts another
//! one.

mod buffer;
mod dev;
mod interrupts;
mod serve;
mod uring;

use nacre_env::thread::JoinHandle;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use nacre_env::sync::{Condvar, Mutex};

use crate::config::ThreadOptions;
use crate::device::Device;
use crate::error::Error;
use crate::handler::Handler;
use interrupts::{InterruptWatch, PendingInterrupts, Worker};

pub(crate) use uring::{Availability, availability};

/// Negotiated parameters that transports need.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Negotiated {
    /// SETXATTR has its long form.
    pub setxattr_ext: bool,
    /// Largest payload of a request or reply in bytes.
    pub payload_max: usize,
}

/// State that all threads of a mount share.
pub(crate) struct Channel {
    handler: Arc<dyn Handler>,
    negotiated: Negotiated,
    /// Dropped with the last thread, so that the descriptor is closed then.
    device: Mutex<Option<Arc<Device>>>,
    stopping: AtomicBool,
    abandoned: AtomicBool,
    workers: Mutex<Vec<Arc<Worker>>>,
    pending: PendingInterrupts,
    watch: InterruptWatch,
    /// Threads that were started and have not ended; the last one ends the session.
    live: AtomicUsize,
    handles: Mutex<Vec<JoinHandle<()>>>,
    dev_lanes: Mutex<Vec<Weak<dev::Lane>>>,
    ended: Mutex<bool>,
    end: Condvar,
}

impl Channel {
    pub fn new(handler: Arc<dyn Handler>, device: Arc<Device>, negotiated: Negotiated) -> Arc<Channel> {
        Arc::new(Channel {
            handler,
            negotiated,
            device: Mutex::new(Some(device)),
            stopping: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
            workers: Mutex::new(Vec::new()),
            pending: PendingInterrupts::default(),
            watch: InterruptWatch::default(),
            // One for the starting thread, so that the session does not end between two starts.
            live: AtomicUsize::new(1),
            handles: Mutex::new(Vec::new()),
            dev_lanes: Mutex::new(Vec::new()),
            ended: Mutex::new(false),
            end: Condvar::new(),
        })
    }

    /// Starts the threads for `/dev/fuse`.
    pub fn start_dev(self: &Arc<Self>, options: &ThreadOptions) -> Result<(), Error> {
        let readers = options.readers.unwrap_or_else(nacre_env::cpu_count);
        let lanes = if options.pin_readers {
            let cpus = nacre_env::online_cpus();
            (0..readers)
                .map(|i| dev::Lane::new(cpus.get(i % cpus.len().max(1)).copied(), 1, options))
                .collect()
        } else {
            vec![dev::Lane::new(None, readers, options)]
        };
        self.start_dev_lanes(lanes)
    }

    /// Starts the workers for io_uring, and one reader for requests that still travel over `/dev/fuse`.
    pub fn start_uring(self: &Arc<Self>, options: &ThreadOptions) -> Result<(), Error> {
        uring::start(self, options)?;
        self.start_dev_lanes(vec![dev::Lane::new(None, 1, options)])
    }

    fn start_dev_lanes(self: &Arc<Self>, lanes: Vec<Arc<dev::Lane>>) -> Result<(), Error> {
        InterruptWatch::start(self).map_err(Error::system("starting a FUSE thread"))?;
        for lane in lanes {
            self.dev_lanes.lock().push(Arc::downgrade(&lane));
            lane.start(self).map_err(Error::system("starting a FUSE thread"))?;
        }
        Ok(())
    }

    /// Marks the end of the start-up: from here on the session ends with its last thread.
    pub fn started(self: &Arc<Self>) {
        self.leave();
    }

    /// Starts a thread that belongs to this session.
    fn spawn(
        self: &Arc<Self>,
        name: String,
        work: impl FnOnce(&Arc<Channel>) + Send + 'static,
    ) -> std::io::Result<()> {
        self.live.fetch_add(1, Ordering::SeqCst);
        let channel = self.clone();
        let spawned = nacre_env::thread::Builder::new().name(name).spawn(move || {
            let left = Leave(channel);
            work(&left.0);
        });
        match spawned {
            Ok(handle) => {
                self.handles.lock().push(handle);
                Ok(())
            }
            Err(error) => {
                self.leave();
                Err(error)
            }
        }
    }

    fn leave(&self) {
        if self.live.fetch_sub(1, Ordering::SeqCst) != 1 {
            return;
        }
        self.stopping.store(true, Ordering::SeqCst);
        drop(self.device.lock().take());
        if !self.abandoned.load(Ordering::SeqCst) {
            self.handler.destroy();
        }
        *self.ended.lock() = true;
        self.end.notify_all();
    }

    /// Returns the device, unless the session has ended.
    pub fn device(&self) -> Option<Arc<Device>> {
        self.device.lock().clone()
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    pub fn has_ended(&self) -> bool {
        *self.ended.lock()
    }

    /// Returns the number of existing threads.
    pub fn thread_count(&self) -> usize {
        self.live.load(Ordering::SeqCst)
    }

    /// Handles a failed start: the existing threads end, without a call of `destroy`, as the handler was
    /// never started.
    pub fn abandon(&self) {
        self.abandoned.store(true, Ordering::SeqCst);
        self.stop();
    }

    /// Stops the session, because the connection ended or is given up: running requests are interrupted,
    /// threads end.
    pub fn stop(&self) {
        if self.stopping.swap(true, Ordering::SeqCst) {
            return;
        }
        for worker in self.workers.lock().iter() {
            worker.target.raise(worker.target.current());
            worker.target.kick();
        }
        self.watch.wake();
        for lane in self.dev_lanes.lock().iter().filter_map(Weak::upgrade) {
            lane.wake_all();
        }
    }

    /// Waits until the last thread has ended, at most `limit`; returns whether it has.
    pub fn ends_within(&self, limit: Duration) -> bool {
        let mut ended = self.ended.lock();
        self.end.wait_while_for(&mut ended, |ended| !*ended, limit);
        *ended
    }

    /// Waits until the last thread has ended and joins them all.
    pub fn join(&self) {
        let mut ended = self.ended.lock();
        while !*ended {
            self.end.wait(&mut ended);
        }
        drop(ended);
        loop {
            let handles = std::mem::take(&mut *self.handles.lock());
            if handles.is_empty() {
                return;
            }
            for handle in handles {
                // The thread has caught and logged a panic; nothing is left to handle.
                let _ = handle.join();
            }
        }
    }

    fn add_worker(&self, worker: &Arc<Worker>) {
        self.workers.lock().push(worker.clone());
        if self.is_stopping() {
            worker.target.kick();
        }
    }

    /// Returns the last regular file that each thread served.
    fn files_met(&self) -> Vec<u64> {
        let file = |worker: &Arc<Worker>| worker.file.load(Ordering::Relaxed);
        self.workers.lock().iter().map(file).filter(|&node| node != 0).collect()
    }

    fn remove_worker(&self, worker: &Arc<Worker>) {
        self.workers.lock().retain(|other| !Arc::ptr_eq(other, worker));
    }

    /// Handles INTERRUPT for request `unique`.
    fn interrupt(&self, unique: u64) {
        let running = || self.workers.lock().iter().find(|worker| worker.target.current() == unique).cloned();
        let mut worker = running();
        if worker.is_none() {
            // Read by a thread that has not begun it yet, or already answered. For the former case this adds
            // a note and checks again, since the thread may have begun before the note existed. No EAGAIN:
            // the kernel would resend at once.
            self.pending.add(unique);
            worker = running().filter(|_| self.pending.take(unique));
        }
        if let Some(worker) = worker {
            self.call_off_if_due(&worker, unique, true);
        }
    }

    /// Interrupts request `unique`, which `worker` serves, if it is due; `interrupted`: the kernel has
    /// reported a signal at its caller.
    fn call_off_if_due(&self, worker: &Arc<Worker>, unique: u64, interrupted: bool) {
        if !worker.target.is_raised() && worker.is_due(unique, interrupted) && worker.target.raise(unique) {
            self.handler.interrupt(unique);
        }
    }

    /// Interrupts all running requests that are due, and returns the number of running ones.
    fn call_off_due(&self) -> usize {
        let workers = self.workers.lock().clone();
        let requests = || workers.iter().filter(|worker| worker.target.current() != 0);
        for worker in requests() {
            self.call_off_if_due(worker, worker.target.current(), false);
        }
        requests().count()
    }

    fn has_requests(&self) -> bool {
        self.workers.lock().iter().any(|worker| worker.target.current() != 0)
    }
}

/// Ends a thread's part in the session, even after a panic.
struct Leave(Arc<Channel>);

impl Drop for Leave {
    fn drop(&mut self) {
        self.0.leave();
    }
}
