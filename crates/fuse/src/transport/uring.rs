//! Requests over io_uring (Linux 6.14).
//!
//! The kernel has one queue per possible CPU and puts a request on the queue of its caller's CPU; another CPU
//! never takes it. Each thread here has a ring of its own with exactly one entry, registered with the queue
//! of the CPU that the thread is pinned to. A queue assigns a request to the entry that finished last, so one
//! thread stays hot while the others sleep, and a blocked thread delays no other request.
//!
//! Three facts of the kernel shape this:
//!
//! - A request that finds no free entry waits in the queue until some entry *commits* an answer. The
//!   registration of a new entry does not fetch it. So a thread that joins late makes the kernel send it
//!   a request by a notification ("retrieve nothing of this file"): its answer fetches what waits. That
//!   works only with regular files in the kernel's memory, so threads remember the last files that they
//!   served; those of blocked reads, writes and locks are certainly in memory. The file of any thread
//!   will do: the CPU of the notifying thread decides which queue the request goes to. Never use the
//!   mount from this process for it (statfs and the like): a thread that waits for an answer keeps the
//!   memory of a killed process alive, with it the mapped rings, and with them the connection that it
//!   waits for.
//! - No request is sent at all until every possible CPU's queue has an entry, offline CPUs included.
//! - The first argument structure is in the header area, everything else in the payload; but all of
//!   NOTIFY_REPLY is in the payload.

mod ring;

use nacre_env::sync::mpsc;
use nacre_types::attr::{FileKind, S_IFMT};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nacre_env::BlockingHook;
use nacre_env::sync::Mutex;

use super::Channel;
use super::interrupts::Worker;
use super::serve::Desk;
use crate::abi::{EntryOut, InHeader, NotifyRetrieveIn, NotifyRetrieveOut, Wire, notify_code, opcode};
use crate::config::{ThreadOptions, TransportChoice};
use crate::error::Error;
use crate::reply::State;
use crate::request::{Raw, replies_in_bulk};
use ring::Ring;

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// Number of ready threads per CPU below which a blocking thread starts another. Guess: more requests than
/// this seldom begin to wait at the same moment.
const READY_MIN: usize = 4;

/// First number of the requests by which new threads fetch waiting requests: even, and far from the kernel's,
/// which count up from 2. Two concurrent ones must differ, since answers are matched by number.
const WAKE_UP_UNIQUE: u64 = 1 << 63;

/// Files that a lane remembers for wake-ups.
const FILES_MAX: usize = 8;

/// Availability of io_uring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Availability {
    /// The kernel supports it, it is enabled, and rings can be created.
    Yes,
    /// Reason why it is unavailable.
    No(&'static str),
}

/// Checks whether io_uring is available, and enables it in the kernel if that is needed and permitted.
pub(crate) fn availability(choice: TransportChoice) -> Availability {
    if choice == TransportChoice::Dev {
        return Availability::No("the transport dev was chosen");
    }
    let Ok(text) = std::fs::read_to_string(SWITCH) else {
        return Availability::No("this kernel lacks it; Linux 6.14 has it");
    };
    // Stays enabled: disabling it could affect another mount that is just starting.
    if text.trim() != "Y" && std::fs::write(SWITCH, "Y").is_err() {
        return Availability::No(
            "it is switched off; root can write Y to /sys/module/fuse/parameters/enable_uring",
        );
    }
    match Ring::probe() {
        Ok(()) => Availability::Yes,
        Err(_) => Availability::No("io_uring is forbidden here by the kernel's settings or a sandbox"),
    }
}

/// Starts the first threads of every CPU; returns when all are registered or have failed.
pub(super) fn start(channel: &Arc<Channel>, options: &ThreadOptions) -> Result<(), Error> {
    let (report, reports) = mpsc::channel();
    let mut expected = 0;
    for cpu in 0..nacre_env::possible_cpu_count() {
        let lane = Arc::new(Lane {
            cpu,
            threads_max: options.workers_per_cpu_max,
            state: Mutex::new(LaneState::default()),
        });
        for _ in 0..options.workers_per_cpu {
            lane.state.lock().threads += 1;
            lane.spawn(channel, Some(report.clone())).map_err(Error::system("starting a FUSE thread"))?;
            expected += 1;
        }
    }
    drop(report);
    let mut ready = vec![0usize; nacre_env::possible_cpu_count()];
    let mut failure = None;
    for _ in 0..expected {
        match reports.recv() {
            Ok(Ok(cpu)) => ready[cpu] += 1,
            Ok(Err(error)) => failure = Some(error),
            Err(_) => break,
        }
    }
    if ready.iter().all(|&threads| threads > 0) {
        return Ok(());
    }
    let source = failure.unwrap_or_else(|| io::Error::from(Errno::IO));
    Err(Error::System { action: "registering with the kernel's FUSE queues", source })
}

type Report = mpsc::Sender<io::Result<usize>>;

/// The threads of one CPU.
struct Lane {
    cpu: usize,
    threads_max: usize,
    state: Mutex<LaneState>,
}

#[derive(Default)]
struct LaneState {
    /// Threads that were started and have not ended.
    threads: usize,
    /// Threads in a wait, included in `threads`.
    blocked: usize,
    /// Last files of blocking threads, newest at the end.
    files: VecDeque<u64>,
}

impl Lane {
    fn spawn(self: &Arc<Self>, channel: &Arc<Channel>, report: Option<Report>) -> io::Result<()> {
        let lane = self.clone();
        let spawned = channel.spawn(format!("fuse-ring{}", self.cpu), move |channel| {
            let outcome = run(&lane, channel, report);
            lane.ended(channel, outcome);
        });
        if spawned.is_err() {
            self.state.lock().threads -= 1;
        }
        spawned
    }

    /// Starts another thread if too few are ready, so that at least one thread is never blocked, within the
    /// limit on threads.
    fn before_wait(self: &Arc<Self>, channel: &Arc<Channel>, file: u64) {
        channel.watch.wake();
        let mut state = self.state.lock();
        state.blocked += 1;
        if file != 0 && state.files.back() != Some(&file) {
            if state.files.len() == FILES_MAX {
                state.files.pop_front();
            }
            state.files.push_back(file);
        }
        let ready = state.threads - state.blocked;
        if ready >= READY_MIN || state.threads >= self.threads_max || channel.is_stopping() {
            return;
        }
        state.threads += 1;
        drop(state);
        if let Err(error) = self.spawn(channel, None) {
            log::error!("cannot start another FUSE thread, requests will wait: {error}");
        }
    }

    fn after_wait(&self) {
        self.state.lock().blocked -= 1;
    }

    fn ended(self: &Arc<Self>, channel: &Arc<Channel>, outcome: io::Result<()>) {
        let Err(error) = outcome else {
            self.state.lock().threads -= 1;
            return;
        };
        if channel.is_stopping() {
            self.state.lock().threads -= 1;
            return;
        }
        log::error!("a FUSE thread of CPU {} ended: {error}", self.cpu);
        let last = {
            let mut state = self.state.lock();
            state.threads -= 1;
            state.threads == state.blocked
        };
        // Without a thread the callers on this CPU would wait for ever; the end of the mount releases them.
        if last {
            log::error!("no thread is left for CPU {}, the mount ends", self.cpu);
            channel.stop();
        }
    }
}

struct Hook {
    lane: Arc<Lane>,
    channel: Arc<Channel>,
    worker: Arc<Worker>,
}

impl BlockingHook for Hook {
    fn enter(&self) {
        self.lane.before_wait(&self.channel, self.worker.file.load(Ordering::Relaxed));
    }
    fn exit(&self) {
        self.lane.after_wait();
    }
}

fn run(lane: &Arc<Lane>, channel: &Arc<Channel>, report: Option<Report>) -> io::Result<()> {
    if let Err(error) = nacre_env::pin_to_cpu(lane.cpu) {
        // An offline CPU, or one outside of this process's cpuset: requests may arrive from there later
        // nevertheless.
        log::debug!("a FUSE thread is not pinned to CPU {}: {error}", lane.cpu);
    }
    let mut ring = match register(lane, channel) {
        Ok(ring) => ring,
        Err(error) => {
            if let Some(report) = &report {
                let _ = report.send(Err(Errno::from_io_error(&error).unwrap_or(Errno::IO).into()));
            }
            return Err(error);
        }
    };
    let joined_late = report.is_none();
    if let Some(report) = report {
        let _ = report.send(Ok(lane.cpu));
    }
    let mut desk = Desk::new(channel);
    let hook = Hook { lane: lane.clone(), channel: channel.clone(), worker: desk.worker().clone() };
    let _hook = nacre_env::install_hook(Rc::new(hook));
    if joined_late {
        wake_up(lane, channel);
    }
    while !channel.is_stopping() {
        match ring.wait() {
            Ok(()) => one_request(&mut ring, &mut desk)?,
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::INTR | Errno::AGAIN) => {}
                Some(Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED | Errno::NODEV) => channel.stop(),
                _ => return Err(error),
            },
        }
    }
    desk.target().acknowledge_kick();
    Ok(())
}

fn register(lane: &Lane, channel: &Channel) -> io::Result<Ring> {
    let not_connected = || io::Error::from(Errno::NOTCONN);
    let device = channel.device().ok_or_else(not_connected)?;
    let queue = u16::try_from(lane.cpu).map_err(|_| io::Error::from(Errno::INVAL))?;
    Ring::register(device, queue, channel.negotiated.payload_max)
}

/// Makes the kernel send a request to this CPU's queue, whose newest entry is this thread's; see the module.
fn wake_up(lane: &Lane, channel: &Channel) {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let Some(device) = channel.device() else { return };
    let files = lane.state.lock().files.clone();
    for node in files.into_iter().rev().chain(channel.files_met()) {
        let unique = WAKE_UP_UNIQUE | (NEXT.fetch_add(2, Ordering::Relaxed) & (WAKE_UP_UNIQUE - 1));
        let out = NotifyRetrieveOut { notify_unique: unique, nodeid: node, ..NotifyRetrieveOut::default() };
        // An error means that the kernel has dropped the file, or that its number has been reused.
        if device.send(notify_code::RETRIEVE, 0, &[out.as_bytes()]).is_ok() {
            return;
        }
    }
}

/// Returns the regular file that a request or its answer refers to, if any.
fn file_of(header: &InHeader, state: State, small: &[u8]) -> Option<u64> {
    match header.opcode {
        opcode::OPEN | opcode::READ | opcode::WRITE | opcode::FLUSH | opcode::FSYNC => Some(header.nodeid),
        opcode::GETLK | opcode::SETLK | opcode::SETLKW | opcode::FALLOCATE => Some(header.nodeid),
        opcode::LOOKUP | opcode::CREATE | opcode::MKNOD => {
            let State::Small(length) = state else { return None };
            let entry = EntryOut::read_from(small.get(..length)?)?;
            (entry.attr.mode & S_IFMT == FileKind::Regular.mode_bits() && entry.nodeid != 0)
                .then_some(entry.nodeid)
        }
        _ => None,
    }
}

fn one_request(ring: &mut Ring, desk: &mut Desk) -> io::Result<()> {
    let (header, payload_length) = ring.request();
    let unique = header.unique;
    if let Some(node) = file_of(&header, State::Unanswered, &[]) {
        desk.worker().file.store(node, Ordering::Relaxed);
    }
    let state = if header.opcode == opcode::NOTIFY_REPLY && unique & WAKE_UP_UNIQUE != 0 {
        State::None
    } else {
        serve(ring, desk, &header, payload_length)
    };
    if let Some(node) = file_of(&header, state, &desk.small[..]) {
        desk.worker().file.store(node, Ordering::Relaxed);
    }
    match state {
        State::Small(length) => ring.answer(unique, 0, Some(&desk.small[..length]), length),
        State::Bulk(length) => ring.answer(unique, 0, None, length),
        State::Error(errno) => ring.answer(unique, -errno.raw_os_error(), None, 0),
        State::None => ring.answer(unique, 0, None, 0),
        State::Unanswered => ring.answer(unique, -Errno::IO.raw_os_error(), None, 0),
    }
}

fn serve(ring: &mut Ring, desk: &mut Desk, header: &InHeader, payload_length: usize) -> State {
    let (argument, payload) = ring.buffers();
    if payload_length > payload.len() {
        return State::Error(Errno::IO);
    }
    if header.opcode == opcode::NOTIFY_REPLY && header.len as usize == size_of::<InHeader>() + payload_length
    {
        let (argument, data) =
            payload[..payload_length].split_at(size_of::<NotifyRetrieveIn>().min(payload_length));
        return desk.serve(&Raw { header: *header, argument, payload: data }, &mut []);
    }
    if replies_in_bulk(header.opcode) {
        let copy = |bulk: &[u8], side: &mut Vec<u8>| {
            side.extend_from_slice(argument);
            side.extend_from_slice(&bulk[..payload_length]);
        };
        desk.serve_copied(header, payload, copy, argument.len())
    } else {
        let payload = &payload[..payload_length];
        desk.serve(&Raw { header: *header, argument, payload }, &mut [])
    }
}
