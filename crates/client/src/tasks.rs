//! Threads for work that the client does ahead of its callers. Write-back has threads of its own, which sleep until data is
//! due ([`crate::io::dirty`]).
//!
//! At most one thread per CPU, started when there is first work for it, asleep while there is none. Tasks begin in the
//! order in which they came. A wake-up across CPUs costs 20 to 50 us, so a task should be worth some hundred of them.

use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;

type Task = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    queue: VecDeque<Task>,
    threads: usize,
    idle: usize,
    stopped: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
}

/// The pool. Dropping it lets running tasks end and forgets the others.
pub(crate) struct Tasks {
    shared: Arc<Shared>,
    threads_max: usize,
}

impl Tasks {
    /// A pool of up to `threads_max` threads; none is started yet.
    pub fn new(threads_max: usize) -> Tasks {
        Tasks { shared: Arc::default(), threads_max: threads_max.max(1) }
    }

    /// Has `task` run on some thread of the pool; false (and it never runs) if there is none and none can be started.
    pub fn submit(&self, task: impl FnOnce() + Send + 'static) -> bool {
        let mut state = self.shared.state.lock();
        if state.stopped {
            return false;
        }
        if state.idle <= state.queue.len() && state.threads < self.threads_max {
            let shared = self.shared.clone();
            match std::thread::Builder::new().name("client-task".into()).spawn(move || serve(&shared)) {
                Ok(_) => state.threads += 1,
                Err(error) if state.threads == 0 => {
                    log::warn!("no thread for the client's own work: {error}");
                    return false;
                }
                Err(error) => log::debug!("one thread less for the client's own work: {error}"),
            }
        }
        state.queue.push_back(Box::new(task));
        drop(state);
        self.shared.wake.notify_one();
        true
    }

    /// Lets threads end; what has not begun is dropped.
    pub fn stop(&self) {
        let mut state = self.shared.state.lock();
        state.stopped = true;
        let forgotten = std::mem::take(&mut state.queue);
        drop(state);
        drop(forgotten);
        self.shared.wake.notify_all();
    }

    /// Threads that exist.
    #[cfg(test)]
    fn threads(&self) -> usize {
        self.shared.state.lock().threads
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.stop();
    }
}

fn serve(shared: &Shared) {
    let mut state = shared.state.lock();
    loop {
        if let Some(task) = state.queue.pop_front() {
            drop(state);
            task();
            state = shared.state.lock();
        } else if state.stopped {
            state.threads -= 1;
            return;
        } else {
            state.idle += 1;
            shared.wake.wait(&mut state);
            state.idle -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn tasks_run_on_no_more_threads_than_allowed() {
        let tasks = Tasks::new(2);
        assert_eq!(tasks.threads(), 0, "lazily");
        let (send, receive) = mpsc::channel();
        for number in 0..100 {
            let send = send.clone();
            assert!(tasks.submit(move || send.send(number).expect("the receiver is there")));
        }
        let mut done: Vec<i32> = receive.iter().take(100).collect();
        done.sort_unstable();
        assert_eq!(done, (0..100).collect::<Vec<_>>());
        assert!(tasks.threads() <= 2);
    }

    #[test]
    fn a_stopped_pool_takes_nothing_and_drops_what_waits() {
        let tasks = Tasks::new(1);
        let (hold, held) = mpsc::channel::<()>();
        let (send, receive) = mpsc::channel();
        let sender = send.clone();
        tasks.submit(move || {
            sender.send("first").expect("the receiver is there");
            let _ = held.recv();
        });
        assert_eq!(receive.recv(), Ok("first"));
        tasks.submit(move || send.send("second").expect("never runs"));
        tasks.stop();
        assert!(!tasks.submit(|| ()));
        drop(hold);
        assert_eq!(receive.recv(), Err(mpsc::RecvError));
    }
}
