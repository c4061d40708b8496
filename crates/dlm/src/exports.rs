//! Connected clients, and the delivery of lock messages to them.

use nacre_env::sync::Mutex;
use nacre_lock::Peer;
use nacre_rpc::Export;
use nacre_wire::lock::LockMessage;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Returns the engine's name of an export.
pub(crate) fn peer_of(export: &Export) -> Peer {
    Peer { client: export.client, generation: export.generation }
}

/// A connected client.
pub(crate) struct Connected {
    pub(crate) export: Arc<Export>,
    /// True if the owner has recorded that this client has locks.
    pub(crate) is_noted: AtomicBool,
    queue: Mutex<Queue>,
}

/// Messages in the order in which the engine produced them.
#[derive(Default)]
struct Queue {
    messages: VecDeque<LockMessage>,
    /// True while a thread sends; it also sends what others add meanwhile.
    is_sending: bool,
}

impl Connected {
    pub(crate) fn new(export: Arc<Export>) -> Connected {
        Connected { export, is_noted: AtomicBool::new(false), queue: Mutex::default() }
    }

    /// Adds a message; called under the mutex of the engine, so that the order is the engine's.
    pub(crate) fn push(&self, message: LockMessage) {
        self.queue.lock().messages.push_back(message);
    }

    /// Sends the queued messages, unless another thread is sending. Called without the mutex of the engine:
    /// the client's handler may enter the service again from here.
    pub(crate) fn deliver(&self) {
        let mut queue = self.queue.lock();
        if queue.is_sending {
            return;
        }
        queue.is_sending = true;
        while let Some(message) = queue.messages.pop_front() {
            drop(queue);
            if !self.export.has_ended() {
                self.export.callbacks.lock_message(message);
            }
            queue = self.queue.lock();
        }
        queue.is_sending = false;
    }
}
