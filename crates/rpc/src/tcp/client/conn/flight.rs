//! A request in flight and the wait for its reply.

use super::{Conn, NoReply};
use crate::tcp::client::waiter::{Outcome, Reply, Waiter};
use crate::tcp::socket::TICK;
use nacre_env::activity::{Cause, waiting};
use nacre_env::clock::Instant;
use std::sync::Arc;

/// A request that was sent. Its buffer is in use until this value has been waited for or dropped.
pub(crate) struct InFlight {
    pub(super) conn: Arc<Conn>,
    pub(super) waiter: Arc<Waiter>,
    pub(super) settled: bool,
}

impl InFlight {
    /// Returns the connection that carries the request.
    pub(crate) fn conn(&self) -> &Arc<Conn> {
        &self.conn
    }

    /// Waits for the reply, and reads the connection if there is no reader.
    ///
    /// An interrupt cancels the request at the server and waits briefly for its outcome; the deadline, and
    /// that of [`nacre_env::until`], abandon it at once as if interrupted.
    pub(crate) fn wait_until(self, deadline: Option<Instant>) -> Result<Reply, NoReply> {
        let (target, client, xid) = (self.conn.target, self.conn.client, self.waiter.xid);
        waiting(Cause::Reply { target, client, xid }, || self.wait_for_reply(deadline))
    }

    fn wait_for_reply(mut self, deadline: Option<Instant>) -> Result<Reply, NoReply> {
        let late = || deadline.is_some_and(|at| Instant::now() >= at) || nacre_env::is_late();
        let (conn, waiter) = (self.conn.clone(), self.waiter.clone());
        let mut give_up_at = None;
        loop {
            if waiter.is_done() {
                self.settled = true;
                return match waiter.take_outcome() {
                    Some(Outcome::Reply(reply)) => {
                        self.sit_out(&reply);
                        Ok(reply)
                    }
                    _ => Err(NoReply::Lost),
                };
            }
            if late() {
                self.settled = true;
                return conn.abandon(&waiter, true);
            }
            if nacre_env::interrupted() {
                let now = Instant::now();
                match give_up_at {
                    None => {
                        give_up_at = Some(now + conn.interrupt_grace);
                        conn.cancel(waiter.xid);
                    }
                    Some(at) if now >= at => {
                        self.settled = true;
                        return conn.abandon(&waiter, true);
                    }
                    Some(_) => {}
                }
            }
            if conn.take_reading(waiter.xid) {
                conn.read(|| waiter.is_done() || nacre_env::interrupted() || late());
            } else {
                waiter.sleep(TICK);
            }
        }
    }
}

impl InFlight {
    /// Waits until the answer would have arrived over the simulated fabric, if there is one. An interrupt
    /// ends the wait.
    fn sit_out(&self, reply: &Reply) {
        let (Some(fabric), Some(due)) = (&self.conn.fabric, self.waiter.due) else { return };
        crate::shape::sleep_until(due, nacre_env::interrupted);
        fabric.spend(reply.header.bulk_len as usize);
    }

    /// Withdraws a request of which nothing was sent. A reply to it could only come from a faulty peer.
    pub(super) fn withdraw(mut self) {
        self.settled = true;
        let _ = self.conn.abandon(&self.waiter, false);
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if !self.settled {
            // The answer does not matter: no caller is left that could ask for it.
            let _ = self.conn.abandon(&self.waiter, true);
        }
        self.waiter.keep();
    }
}
