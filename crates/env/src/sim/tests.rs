use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::{Options, Outcome, act_as, add_process, end_process, is_here, pause_process, run, shift_wall};
use crate::clock::{self, Instant};
use crate::sync::mpsc::{RecvTimeoutError, channel};
use crate::sync::{Condvar, Latch, Mutex, RwLock, unlocked};
use crate::thread;

const HOUR: Duration = Duration::from_secs(3600);

fn simulate<R>(seed: u64, work: impl FnOnce() -> R) -> Outcome<R> {
    run(Options { seed, limit: 24 * HOUR }, work)
}

fn panic_of(work: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(work)).expect_err("it panics");
    panic
        .downcast_ref::<String>()
        .cloned()
        .unwrap_or_else(|| panic.downcast_ref::<&str>().unwrap_or(&"").to_string())
}

/// Returns the number of CPUs that the kernel lets this thread run on.
fn allowed_cpus() -> usize {
    rustix::thread::sched_getaffinity(None).expect("a set of CPUs").count() as usize
}

#[test]
fn a_simulation_keeps_all_its_threads_on_one_cpu_and_gives_the_others_back() {
    let before = allowed_cpus();
    let inside = simulate(1, || {
        let thread = thread::Builder::new().spawn(allowed_cpus).expect("a thread");
        [allowed_cpus(), thread.join().expect("no panic")]
    });
    assert_eq!(inside.result, [1, 1]);
    assert_eq!(allowed_cpus(), before);
}

/// Runs three threads that append to a list in an order that the seed determines.
fn list_of(seed: u64) -> Outcome<Vec<u32>> {
    simulate(seed, || {
        let list = Arc::new(Mutex::new(Vec::new()));
        let threads: Vec<_> = (0..3)
            .map(|number| {
                let list = list.clone();
                thread::spawn(move || {
                    for turn in 0..5 {
                        list.lock().push(number);
                        thread::sleep(Duration::from_millis(turn));
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        Arc::into_inner(list).expect("all have ended").into_inner()
    })
}

#[test]
fn a_seed_gives_the_same_steps_again_and_another_one_others() {
    let (first, again) = (list_of(1), list_of(1));
    assert_eq!((&first.result, &first.steps, first.time), (&again.result, &again.steps, again.time));
    assert!(first.steps.len() > 10 && first.left.is_empty());
    let lists: BTreeSet<Vec<u32>> = (0..20).map(|seed| list_of(seed).result).collect();
    assert!(lists.len() > 10, "20 seeds gave {} orders", lists.len());
}

#[test]
fn time_passes_where_all_threads_wait_and_only_there() {
    let outcome = simulate(3, || {
        let (begin, day) = (Instant::now(), clock::wall());
        let sleeper = thread::spawn(|| thread::sleep(2 * HOUR));
        thread::sleep(HOUR);
        let half = begin.elapsed();
        sleeper.join().expect("no panic");
        (half, begin.elapsed(), clock::since(day))
    });
    let (half, whole, day) = outcome.result;
    let is_about =
        |time: Duration, wanted: Duration| time >= wanted && time < wanted + Duration::from_millis(1);
    assert!(
        is_about(half, HOUR) && is_about(whole, 2 * HOUR) && is_about(day, 2 * HOUR),
        "{half:?} {whole:?} {day:?}"
    );
}

#[test]
fn threads_that_wait_for_each_other_are_named() {
    let message = panic_of(|| {
        simulate(5, || {
            let (one, two) = (Arc::new(Mutex::new(())), Arc::new(Mutex::new(())));
            let (first, second) = (one.clone(), two.clone());
            let other = thread::Builder::new().name("other".into()).spawn(move || {
                let _held = second.lock();
                thread::sleep(Duration::from_secs(1));
                let _both = first.lock();
            });
            let _held = one.lock();
            thread::sleep(Duration::from_secs(1));
            let _both = two.lock();
            drop(other);
        });
    });
    assert!(message.contains("wait for each other") && message.contains("\"other\""), "{message}");
    assert!(message.contains("seed 5") && message.contains("sim/tests.rs"), "{message}");
}

#[test]
fn a_simulation_that_does_not_end_is_stopped_at_its_limit() {
    let message = panic_of(|| {
        run(Options { seed: 1, limit: HOUR }, || {
            loop {
                thread::sleep(Duration::from_secs(60));
            }
        });
    });
    assert!(message.contains("not over after 3600s"), "{message}");
}

#[test]
fn some_seed_finds_an_update_that_is_lost_between_two_locks() {
    let sum_of = |seed| {
        simulate(seed, || {
            let sum = Arc::new(Mutex::new(0));
            thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        let before = *sum.lock();
                        *sum.lock() = before + 1;
                    });
                }
            });
            *sum.lock()
        })
        .result
    };
    let sums: BTreeSet<i32> = (0..50).map(sum_of).collect();
    assert_eq!(sums, BTreeSet::from([1, 2]));
}

#[test]
fn a_condition_wakes_one_or_all_and_tells_a_deadline_from_a_notification() {
    simulate(7, || {
        let pair = Arc::new((Mutex::new(0), Condvar::new()));
        let woken = Arc::new(AtomicU32::new(0));
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let (pair, woken) = (pair.clone(), woken.clone());
                thread::spawn(move || {
                    let mut tickets = pair.0.lock();
                    while *tickets == 0 {
                        assert!(!pair.1.wait_for(&mut tickets, HOUR).timed_out());
                    }
                    *tickets -= 1;
                    woken.fetch_add(1, Ordering::Relaxed);
                })
            })
            .collect();
        thread::sleep(Duration::from_secs(1));
        *pair.0.lock() += 1;
        pair.1.notify_one();
        thread::sleep(Duration::from_secs(1));
        assert_eq!(woken.load(Ordering::Relaxed), 1);
        *pair.0.lock() += 2;
        pair.1.notify_all();
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        assert!(pair.1.wait_until(&mut pair.0.lock(), Instant::now() + HOUR).timed_out());
        assert!(pair.1.wait_while_for(&mut pair.0.lock(), |tickets| *tickets == 0, HOUR).timed_out());
        assert!(!pair.1.wait_while_for(&mut pair.0.lock(), |tickets| *tickets > 0, HOUR).timed_out());
    });
}

#[test]
fn locks_with_a_limit_give_up_in_simulated_time_and_a_lock_is_free_while_it_is_unlocked() {
    let outcome = simulate(11, || {
        let lock = Arc::new(Mutex::new(0));
        let latch = Latch::new();
        let both = RwLock::new(1);
        let mut guard = lock.lock();
        assert!(latch.try_lock() && !latch.try_lock_for(Duration::from_secs(2)));
        // SAFETY: taken above.
        unsafe { latch.unlock() };
        assert!(latch.try_lock_for(Duration::from_secs(1)));
        let other = lock.clone();
        let waiter = thread::spawn(move || other.try_lock_for(Duration::from_secs(5)).is_none());
        assert!(waiter.join().expect("no panic"));
        let other = lock.clone();
        unlocked(&mut guard, || thread::spawn(move || *other.lock() += 1).join().expect("no panic"));
        assert_eq!(*guard, 1);
        let readers = (both.read(), both.read_recursive());
        thread::scope(|scope| {
            let writer = scope.spawn(|| *both.write() += 1);
            drop(readers);
            writer.join().expect("no panic");
        });
        *both.read()
    });
    assert_eq!(outcome.result, 2);
    assert!(outcome.time >= Duration::from_secs(7));
}

#[test]
fn a_channel_delivers_in_order_and_ends_with_its_last_sender() {
    simulate(13, || {
        let (send, receive) = channel();
        let sender = thread::spawn(move || {
            (0..10).for_each(|number| send.send(number).expect("listened to"));
            thread::sleep(HOUR);
        });
        assert_eq!(
            (0..10).map(|_| receive.recv().expect("sent")).collect::<Vec<_>>(),
            (0..10).collect::<Vec<_>>()
        );
        assert_eq!(receive.recv_timeout(Duration::from_secs(1)), Err(RecvTimeoutError::Timeout));
        assert_eq!(receive.recv_timeout(2 * HOUR), Err(RecvTimeoutError::Disconnected));
        assert!(receive.recv().is_err() && receive.iter().next().is_none());
        sender.join().expect("no panic");
    });
}

#[test]
fn a_panic_of_a_thread_reaches_those_that_join_it_and_threads_left_over_are_named() {
    let outcome = simulate(17, || {
        let failed = thread::spawn(|| panic!("meant to")).join().is_err();
        let left =
            thread::Builder::new().name("timer".into()).spawn(|| thread::sleep(HOUR)).expect("started");
        thread::yield_now();
        (failed, left.is_finished(), is_here())
    });
    assert_eq!(outcome.result, (true, false, true));
    assert_eq!(outcome.left, ["timer"]);
    assert!(!is_here());
}

#[test]
fn outside_of_simulations_everything_is_the_real_thing() {
    let (send, receive) = channel();
    let lock = Mutex::new(1);
    thread::scope(|scope| {
        scope.spawn(|| *lock.lock() += 1);
        let name = || send.send(thread::current().name().map(str::to_owned));
        thread::Builder::new().name("named".into()).spawn_scoped(scope, name).expect("started");
    });
    assert_eq!(receive.recv().expect("sent").as_deref(), Some("named"));
    assert_eq!(lock.into_inner(), 2);
    let begin = Instant::now();
    let condition = Condvar::new();
    let free = Mutex::new(());
    assert!(condition.wait_for(&mut free.lock(), Duration::from_millis(2)).timed_out());
    assert!(begin.elapsed() >= Duration::from_millis(2));
    assert!(begin.checked_sub(Duration::from_secs(1)).is_some_and(|earlier| earlier < begin));
}

#[test]
fn threads_belong_to_the_process_of_the_one_that_started_them_and_pause_with_it() {
    let outcome = run(Options { seed: 1, limit: Duration::from_secs(100) }, || {
        let identity = nacre_types::ProcessIdentity { pid: 7, boot: [1; 16], ..Default::default() };
        let process = add_process(identity).expect("in a simulation");
        let start = crate::clock::Instant::now();
        let thread = act_as(process, || {
            crate::thread::spawn(move || {
                crate::thread::sleep(Duration::from_secs(1));
                (crate::own_process(), start.elapsed(), crate::clock::wall())
            })
        });
        assert_ne!(crate::own_process(), identity, "this thread is in another one");
        pause_process(process, Duration::from_secs(30));
        shift_wall(process, -3600);
        let here = crate::clock::wall();
        let (own, slept, there) = thread.join().expect("ended");
        assert_eq!(own, identity);
        assert!(slept >= Duration::from_secs(30), "{slept:?}");
        assert!(there < here, "its clock is late");
        let is_ended = || act_as(process, || crate::has_ended(&identity));
        assert!(!is_ended());
        end_process(process);
        assert!(is_ended());
    });
    assert!(outcome.left.is_empty());
}
