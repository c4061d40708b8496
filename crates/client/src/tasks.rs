//! The pool of threads that clients of this process share for work that can be divided, and for fetching
//! ahead. Write-back has its own threads, which sleep until data is due ([`crate::write_back`]).
//!
//! The pool has at most one thread per CPU, started when there is first work for it, asleep while there is
//! none, and ended after a while. Tasks begin in the order of submission. A wake-up across CPUs costs 20 to 50
//! us, so a task should take at least some hundred.
//!
//! # Divided work
//!
//! [`Tasks::share`] distributes numbered items: a free thread takes the next one, so that items begin in
//! their order and end in any. The caller works too and waits only for items that have begun, never for a
//! thread to start: with no CPU to spare, sharing costs one wake-up call more than doing all of it alone.
//! [`crate::objects::parallel`] decides whether that is worth it.

use nacre_env::InterruptTarget;
use nacre_env::sync::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

/// How often a caller that waits for helpers checks for an interrupt.
const INTERRUPT_POLL: Duration = Duration::from_millis(10);
/// Time without work after which a thread ends: there are pools for each OST.
const IDLE_MAX: Duration = Duration::from_secs(10);
/// Numbers the work of helpers, so that it can be interrupted.
static NUMBERS: AtomicU64 = AtomicU64::new(1);

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

/// The pool. Dropping it lets running tasks end and discards the others.
pub(crate) struct Tasks {
    shared: Arc<Shared>,
    threads_max: usize,
    idle_max: Duration,
}

impl Tasks {
    /// Creates a pool of up to `threads_max` threads; none is started yet.
    pub fn new(threads_max: usize) -> Tasks {
        Tasks { shared: Arc::default(), threads_max: threads_max.max(1), idle_max: IDLE_MAX }
    }

    /// Returns the pool of this process. In a simulation, where many processes are one, each caller gets its own.
    pub fn of_process() -> Arc<Tasks> {
        if nacre_env::sim::is_here() {
            return Arc::new(Tasks::new(nacre_env::cpu_count()));
        }
        static POOL: LazyLock<Arc<Tasks>> = LazyLock::new(|| Arc::new(Tasks::new(nacre_env::cpu_count())));
        POOL.clone()
    }

    /// Runs `work` for each of `0..items`, on this thread and on up to `helpers` others; returns when all
    /// items have ended. An interrupt of the caller interrupts its helpers too.
    pub fn share(&self, items: usize, helpers: usize, work: &(dyn Fn(usize) + Sync)) {
        let helpers = helpers.min(items.saturating_sub(1));
        if helpers == 0 {
            return (0..items).for_each(work);
        }
        // SAFETY: `Joint` is closed before this returns or unwinds, and every helper that entered has left
        // it: see `Closing`.
        let work: &'static (dyn Fn(usize) + Sync) = unsafe { std::mem::transmute(work) };
        let joint = Arc::new(Joint {
            items,
            next: AtomicUsize::new(0),
            work,
            inside: Mutex::default(),
            left: Condvar::new(),
        });
        let closing = Closing(&joint);
        for _ in 0..helpers {
            let joint = joint.clone();
            self.submit(move || joint.help());
        }
        joint.run();
        drop(closing);
    }

    /// Queues `task` for some thread of the pool; false (and it never runs) if there is no thread and none
    /// can be started.
    pub fn submit(&self, task: impl FnOnce() + Send + 'static) -> bool {
        let mut state = self.shared.state.lock();
        if state.stopped {
            return false;
        }
        if state.idle <= state.queue.len() && state.threads < self.threads_max {
            let (shared, idle_max) = (self.shared.clone(), self.idle_max);
            let run = move || serve(&shared, idle_max);
            match nacre_env::thread::Builder::new().name("client-task".into()).spawn(run) {
                Ok(_) => state.threads += 1,
                Err(error) if state.threads == 0 => {
                    log::warn!("no thread for the client's own work: {error}");
                    return false;
                }
                Err(error) => log::debug!("one thread less for the client's own work: {error}"),
            }
        }
        // The task works for the job of the thread that submits it.
        let (job, parent) = (nacre_env::current_job(), nacre_env::activity::current());
        state.queue.push_back(Box::new(move || {
            let _job = nacre_env::enter_job(job);
            let _serving = nacre_env::activity::serve(parent);
            task();
        }));
        drop(state);
        self.shared.wake.notify_one();
        true
    }

    /// Lets threads end; tasks that have not begun are discarded.
    pub fn stop(&self) {
        let mut state = self.shared.state.lock();
        state.stopped = true;
        let forgotten = std::mem::take(&mut state.queue);
        drop(state);
        drop(forgotten);
        self.shared.wake.notify_all();
    }

    /// Returns the number of threads in the pool.
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

fn serve(shared: &Shared, idle_max: Duration) {
    let target = InterruptTarget::install();
    let mut state = shared.state.lock();
    loop {
        if let Some(task) = state.queue.pop_front() {
            drop(state);
            // The panic hook has reported it; the thread continues with other tasks.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(task));
            target.target().end();
            state = shared.state.lock();
        } else if state.stopped {
            state.threads -= 1;
            return;
        } else {
            state.idle += 1;
            let is_over = shared.wake.wait_for(&mut state, idle_max).timed_out();
            state.idle -= 1;
            if is_over && state.queue.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}

/// Work that several threads share.
struct Joint {
    items: usize,
    /// The next item that no thread has begun.
    next: AtomicUsize,
    /// Valid until `inside` is closed and empty.
    work: &'static (dyn Fn(usize) + Sync),
    inside: Mutex<Inside>,
    left: Condvar,
}

#[derive(Default)]
struct Inside {
    closed: bool,
    helpers: Vec<(Arc<InterruptTarget>, u64)>,
}

impl Joint {
    fn run(&self) {
        loop {
            let item = self.next.fetch_add(1, Ordering::Relaxed);
            if item >= self.items {
                return;
            }
            (self.work)(item);
        }
    }

    /// Runs items on a thread of the pool. A thread that comes late finds no item, and touches nothing of the
    /// caller's.
    fn help(self: &Arc<Joint>) {
        struct Leaving<'a>(&'a Joint, u64);
        impl Drop for Leaving<'_> {
            fn drop(&mut self) {
                self.0.inside.lock().helpers.retain(|(_, number)| *number != self.1);
                self.0.left.notify_all();
            }
        }
        let Some(target) = nacre_env::interrupt_target() else { return };
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        {
            let mut inside = self.inside.lock();
            if inside.closed || self.next.load(Ordering::Relaxed) >= self.items {
                return;
            }
            target.begin(number);
            inside.helpers.push((target, number));
        }
        let _leaving = Leaving(self, number);
        self.run();
    }
}

/// Guard that, when dropped, admits no more helpers and waits for those inside.
struct Closing<'a>(&'a Joint);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        let mut inside = self.0.inside.lock();
        inside.closed = true;
        while !inside.helpers.is_empty() {
            if nacre_env::interrupted() {
                for (target, number) in &inside.helpers {
                    target.raise(*number);
                }
            }
            self.0.left.wait_for(&mut inside, INTERRUPT_POLL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_env::sync::mpsc;

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
    fn threads_without_work_end_and_new_work_starts_others() {
        let mut tasks = Tasks::new(2);
        tasks.idle_max = Duration::from_millis(1);
        for _ in 0..2 {
            let (send, receive) = mpsc::channel();
            tasks.submit(move || send.send(()).expect("the receiver is there"));
            receive.recv().expect("it runs");
            while tasks.threads() > 0 {
                nacre_env::thread::yield_now();
            }
        }
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

    #[test]
    fn shared_work_is_done_once_each_whoever_does_it() {
        let tasks = Tasks::new(3);
        for items in [0, 1, 2, 7, 300] {
            for helpers in 0..4 {
                let counts: Vec<AtomicU64> = (0..items).map(|_| AtomicU64::new(0)).collect();
                tasks.share(items, helpers, &|item| {
                    counts[item].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn a_busy_pool_is_not_waited_for() {
        let tasks = Tasks::new(1);
        let (hold, held) = mpsc::channel::<()>();
        let (send, receive) = mpsc::channel();
        tasks.submit(move || {
            send.send(()).expect("the receiver is there");
            let _ = held.recv();
        });
        receive.recv().expect("it runs");
        let caller = nacre_env::thread::current().id();
        let by: Mutex<Vec<_>> = Mutex::default();
        tasks.share(5, 1, &|item| by.lock().push((item, nacre_env::thread::current().id())));
        assert_eq!(*by.lock(), (0..5).map(|item| (item, caller)).collect::<Vec<_>>());
        drop(hold);
    }

    #[test]
    fn an_interrupt_of_the_caller_reaches_its_helpers() {
        let tasks = Tasks::new(1);
        let guard = InterruptTarget::install();
        guard.target().begin(u64::MAX);
        let (send, receive) = mpsc::channel::<()>();
        let receive = Mutex::new(receive);
        let caller = nacre_env::thread::current().id();
        tasks.share(2, 1, &|_| {
            if nacre_env::thread::current().id() == caller {
                // The helper has begun.
                receive.lock().recv().expect("the sender is there");
                assert!(guard.target().raise(u64::MAX));
            } else {
                send.send(()).expect("the receiver is there");
                while !nacre_env::interrupted() {
                    nacre_env::thread::yield_now();
                }
            }
        });
        guard.target().end();
    }

    #[test]
    fn a_task_that_panics_does_not_take_its_thread_along() {
        let tasks = Tasks::new(1);
        tasks.submit(|| std::panic::resume_unwind(Box::new("on purpose")));
        let (send, receive) = mpsc::channel();
        tasks.submit(move || send.send(()).expect("the receiver is there"));
        assert_eq!(receive.recv(), Ok(()));
        assert_eq!(tasks.threads(), 1);
    }
}
