//! Requests over `/dev/fuse`.
//!
//! A lane keeps `want` threads *active*: waiting in read(2) or serving without blocking. The kernel
//! distributes requests to waiting readers round-robin, so more readers than CPUs would only spread requests
//! over cold threads; therefore threads beyond `want` park here and not in the kernel. A thread that is about
//! to block becomes inactive, and another one is woken or started; when it is done and finds enough active
//! threads, it parks.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nacre_env::BlockingHook;
use nacre_env::sync::{Condvar, Mutex};
use rustix::io::Errno;

use super::Channel;
use super::buffer::PageBuffer;
use super::serve::Desk;
use crate::abi::{InHeader, Wire, WriteIn};
use crate::config::ThreadOptions;
use crate::device::Device;
use crate::reply::State;
use crate::request::{Raw, argument_size, replies_in_bulk};
use rustix::param::page_size;

/// A set of threads, `want` of which read.
pub(super) struct Lane {
    cpu: Option<usize>,
    want: usize,
    threads_max: usize,
    /// Changed under `state`'s lock; read without it to check whether parking is due.
    active: AtomicUsize,
    state: Mutex<LaneState>,
}

#[derive(Default)]
struct LaneState {
    threads: usize,
    /// The thread that parked last is woken first: its memory is warm.
    parked: Vec<Arc<Parking>>,
    closed: bool,
}

#[derive(Default)]
struct Parking {
    woken: Mutex<bool>,
    wake: Condvar,
}

impl Parking {
    fn wait(&self) {
        let mut woken = self.woken.lock();
        while !*woken {
            self.wake.wait(&mut woken);
        }
        *woken = false;
    }

    fn wake(&self) {
        *self.woken.lock() = true;
        self.wake.notify_one();
    }
}

impl Lane {
    pub fn new(cpu: Option<usize>, want: usize, options: &ThreadOptions) -> Arc<Lane> {
        let threads_max = options.workers_per_cpu_max.saturating_mul(want).max(want + 1);
        Arc::new(Lane {
            cpu,
            want,
            threads_max,
            active: AtomicUsize::new(0),
            state: Mutex::new(LaneState::default()),
        })
    }

    /// Starts the initial threads.
    pub fn start(self: &Arc<Self>, channel: &Arc<Channel>) -> io::Result<()> {
        let mut state = self.state.lock();
        for _ in 0..self.want {
            self.add_thread(&mut state, channel)?;
        }
        Ok(())
    }

    /// Wakes parked threads, which then notice the stop of the session.
    pub fn wake_all(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        for parked in state.parked.drain(..) {
            parked.wake();
        }
    }

    fn add_thread(self: &Arc<Self>, state: &mut LaneState, channel: &Arc<Channel>) -> io::Result<()> {
        state.threads += 1;
        self.active.fetch_add(1, Ordering::Relaxed);
        let lane = self.clone();
        let name = self.cpu.map_or_else(|| "fuse-dev".into(), |cpu| format!("fuse-dev{cpu}"));
        let started = channel.spawn(name, move |channel| {
            run(&lane, channel);
            lane.thread_ended();
        });
        if started.is_err() {
            state.threads -= 1;
            self.active.fetch_sub(1, Ordering::Relaxed);
        }
        started
    }

    fn thread_ended(&self) {
        self.active.fetch_sub(1, Ordering::Relaxed);
        self.state.lock().threads -= 1;
    }

    fn before_wait(self: &Arc<Self>, channel: &Arc<Channel>) {
        channel.watch.wake();
        let mut state = self.state.lock();
        let active = self.active.fetch_sub(1, Ordering::Relaxed) - 1;
        if active >= self.want || state.closed {
            return;
        }
        if let Some(parked) = state.parked.pop() {
            self.active.fetch_add(1, Ordering::Relaxed);
            parked.wake();
        } else if state.threads < self.threads_max
            && let Err(error) = self.add_thread(&mut state, channel)
        {
            log::error!("cannot start another FUSE thread, requests will wait: {error}");
        }
    }

    fn after_wait(&self) {
        let _state = self.state.lock();
        self.active.fetch_add(1, Ordering::Relaxed);
    }

    /// Parks the thread if there are enough other active ones.
    fn park_if_surplus(&self, parking: &Arc<Parking>) {
        if self.active.load(Ordering::Relaxed) <= self.want {
            return;
        }
        let mut state = self.state.lock();
        if self.active.load(Ordering::Relaxed) <= self.want || state.closed {
            return;
        }
        self.active.fetch_sub(1, Ordering::Relaxed);
        state.parked.push(parking.clone());
        drop(state);
        parking.wait();
        if self.state.lock().closed {
            // Woken by the stop, not by a thread that became inactive.
            self.active.fetch_add(1, Ordering::Relaxed);
        }
    }
}

struct Hook {
    lane: Arc<Lane>,
    channel: Arc<Channel>,
}

impl BlockingHook for Hook {
    fn enter(&self) {
        self.lane.before_wait(&self.channel);
    }
    fn exit(&self) {
        self.lane.after_wait();
    }
}

fn run(lane: &Arc<Lane>, channel: &Arc<Channel>) {
    if let Some(cpu) = lane.cpu
        && let Err(error) = nacre_env::pin_to_cpu(cpu)
    {
        log::warn!("a FUSE thread cannot be kept on CPU {cpu}: {error}");
    }
    let Some(device) = channel.device() else { return };
    let device = match device.clone_device() {
        Ok(device) => device,
        Err(error) => {
            log::error!("cannot duplicate the FUSE descriptor: {error}");
            return;
        }
    };
    let mut desk = Desk::new(channel);
    let _hook = nacre_env::install_hook(Rc::new(Hook { lane: lane.clone(), channel: channel.clone() }));
    let mut seat = match Seat::new(channel.negotiated.payload_max) {
        Ok(seat) => seat,
        Err(error) => {
            log::error!("no memory for a FUSE buffer: {error}");
            return;
        }
    };
    let parking = Arc::new(Parking::default());
    while !channel.is_stopping() {
        match seat.one_request(&device, &mut desk, channel) {
            Ok(()) => lane.park_if_surplus(&parking),
            Err(error) => match Errno::from_io_error(&error) {
                // ENOENT: the request was interrupted while it was being read.
                Some(Errno::INTR | Errno::AGAIN | Errno::NOENT) => {}
                Some(Errno::NODEV | Errno::CONNABORTED | Errno::NOTCONN) => channel.stop(),
                _ => {
                    log::error!("reading /dev/fuse failed: {error}");
                    channel.stop();
                }
            },
        }
    }
    desk.target().acknowledge_kick();
}

/// A thread's buffer. Requests are read to an offset such that the data of a WRITE, after two headers, starts
/// a page.
struct Seat {
    memory: PageBuffer,
    /// Offset where requests start.
    start: usize,
    /// Offset where data of a WRITE starts and bulk replies are built.
    data: usize,
}

const HEADER: usize = size_of::<InHeader>();

impl Seat {
    fn new(payload_max: usize) -> io::Result<Seat> {
        let page = page_size();
        // One page more than the payload: names and attribute values may be part of any request.
        let memory = PageBuffer::new(page + payload_max + page)?;
        Ok(Seat { memory, start: page - HEADER - size_of::<WriteIn>(), data: page })
    }

    fn one_request(&mut self, device: &Device, desk: &mut Desk, channel: &Channel) -> io::Result<()> {
        let memory = self.memory.bytes();
        let length = device.read(&mut memory[self.start..])?;
        let end = self.start + length;
        let Some(header) = InHeader::read_from(&memory[self.start..end]) else {
            log::error!("the kernel sent a request of {length} bytes");
            return Ok(());
        };
        let body = self.start + HEADER;
        let known = argument_size(header.opcode, channel.negotiated.setxattr_ext);
        let argument_length = known.unwrap_or(0).min(end - body);
        let state = if replies_in_bulk(header.opcode) {
            let (front, bulk) = memory.split_at_mut(self.data);
            let front = &front[body.min(self.data)..end.min(self.data)];
            let rest = end.saturating_sub(self.data);
            let copy = |bulk: &[u8], side: &mut Vec<u8>| {
                side.extend_from_slice(front);
                side.extend_from_slice(&bulk[..rest]);
            };
            desk.serve_copied(&header, bulk, copy, argument_length)
        } else {
            let (argument, payload) = memory[body..end].split_at(argument_length);
            desk.serve(&Raw { header, argument, payload }, &mut [])
        };
        let bulk = &self.memory.bytes()[self.data..];
        answer(device, &header, state, &desk.small[..], bulk)
    }
}

fn answer(device: &Device, header: &InHeader, state: State, small: &[u8], bulk: &[u8]) -> io::Result<()> {
    let sent = match state {
        State::None => return Ok(()),
        State::Small(length) => device.send(0, header.unique, &[&small[..length]]),
        State::Bulk(length) => device.send(0, header.unique, &[&bulk[..length]]),
        State::Error(errno) => device.send(-errno.raw_os_error(), header.unique, &[]),
        State::Unanswered => device.send(-Errno::IO.raw_os_error(), header.unique, &[]),
    };
    let Err(error) = sent else { return Ok(()) };
    match Errno::from_io_error(&error) {
        // Interrupted or aborted meanwhile.
        Some(Errno::NOENT | Errno::NODEV | Errno::CONNABORTED | Errno::INTR) => Ok(()),
        _ => {
            // The kernel has rejected the answer, and the caller still waits.
            log::error!(
                "the kernel refused an answer to {}: {error}",
                crate::abi::opcode::name(header.opcode)
            );
            let _ = device.send(-Errno::IO.raw_os_error(), header.unique, &[]);
            Ok(())
        }
    }
}
