//! From the bytes of a request to the handler, and to the reply.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use nacre_env::InterruptTarget;
use nacre_env::interrupt::TargetGuard;
use rustix::io::Errno;

use super::Channel;
use super::interrupts::Worker;
use crate::abi::{InHeader, opcode};
use crate::reply::{Reply, SMALL_SIZE, State};
use crate::request::{Operation, Raw, parse, takes_no_reply};

/// Bytes for arguments and payload of requests whose reply uses the payload area: ioctl(2) can encode 16 KiB.
const SIDE_SIZE: usize = 32 << 10;

/// Memory and state of a serving thread.
pub(super) struct Desk {
    guard: TargetGuard,
    worker: Arc<Worker>,
    /// Structures of the reply.
    pub small: Box<[u8; SMALL_SIZE]>,
    /// Arguments of requests whose reply uses the payload area.
    side: Vec<u8>,
    channel: Arc<Channel>,
}

impl Desk {
    pub fn new(channel: &Arc<Channel>) -> Desk {
        let guard = InterruptTarget::install();
        let worker = Worker::new(guard.target());
        channel.add_worker(&worker);
        let (small, side) = (Box::new([0; SMALL_SIZE]), Vec::with_capacity(SIDE_SIZE));
        Desk { guard, worker, small, side, channel: channel.clone() }
    }

    pub fn target(&self) -> &Arc<InterruptTarget> {
        self.guard.target()
    }

    pub fn worker(&self) -> &Arc<Worker> {
        &self.worker
    }

    /// Serves a request whose argument and payload do not overlap `bulk`, the area for a large reply.
    pub fn serve(&mut self, raw: &Raw<'_>, bulk: &mut [u8]) -> State {
        let code = raw.header.opcode;
        let request = match parse(raw, self.channel.negotiated.setxattr_ext) {
            Ok(request) => request,
            Err(_) if takes_no_reply(code) => return State::None,
            Err(errno) => return State::Error(errno),
        };
        match request.op {
            Operation::Interrupt { unique } => {
                self.channel.interrupt(unique);
                return State::None;
            }
            Operation::Init(_) => return State::Error(Errno::IO),
            Operation::Destroy => return State::Small(0),
            _ => {}
        }
        let mut reply = Reply::new(code, &mut self.small, bulk);
        self.worker.begin(&request);
        if self.channel.pending.take(request.unique) {
            self.channel.call_off_if_due(&self.worker, request.unique, true);
        }
        let outcome =
            std::panic::catch_unwind(AssertUnwindSafe(|| self.channel.handler.handle(&request, &mut reply)));
        self.worker.target.end();
        let state = reply.state();
        if outcome.is_err() {
            log::error!("the handler of {} (inode {}) panicked", opcode::name(code), request.node_id);
            return if takes_no_reply(code) { State::None } else { State::Error(Errno::IO) };
        }
        match state {
            _ if takes_no_reply(code) => State::None,
            State::Unanswered | State::None => State::Error(Errno::IO),
            state => state,
        }
    }

    /// Serves a request in the area for its large reply: it is small and is copied elsewhere first. `copy`
    /// takes the parts of argument and payload in order, `argument_length` is the length of the former.
    pub fn serve_copied(
        &mut self,
        header: &InHeader,
        bulk: &mut [u8],
        copy: impl FnOnce(&[u8], &mut Vec<u8>),
        argument_length: usize,
    ) -> State {
        let mut side = std::mem::take(&mut self.side);
        side.clear();
        copy(bulk, &mut side);
        let state = if side.len() > SIDE_SIZE || side.len() < argument_length {
            State::Error(Errno::INVAL)
        } else {
            let (argument, payload) = side.split_at(argument_length);
            self.serve(&Raw { header: *header, argument, payload }, bulk)
        };
        self.side = side;
        state
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        self.channel.remove_worker(&self.worker);
    }
}
