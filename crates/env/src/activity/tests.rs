use super::*;
use std::sync::Mutex as StdMutex;

/// The log of slow operations and the ring are those of the process.
static ALONE: StdMutex<()> = StdMutex::new(());

fn alone() -> std::sync::MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn operation(name: &'static str) -> Operation {
    Operation { target: None, name, fid: None, lock: 0, origin: Origin::Program { pid: 7, uid: 8 } }
}

fn own() -> ThreadState {
    // SAFETY: gettid takes no arguments and accesses no memory of the program.
    let tid = unsafe { libc::gettid() };
    threads().into_iter().find(|thread| thread.tid == tid).expect("this thread is known")
}

#[test]
fn a_thread_shows_its_operations_and_what_it_waits_for() {
    let _alone = alone();
    let outer = begin(operation("outer"));
    let inner = begin(Operation { target: Some(TargetId::mdt(1)), ..operation("inner") });
    inner.describe("described", Some(Fid::new(1, 2, 3)));
    let cause = Cause::Reply { target: TargetId::ost(3), client: ClientUuid([1; 16]), xid: 9 };
    waiting(cause, || {
        let state = own();
        let names: Vec<_> = state.operations.iter().map(|one| one.operation.name).collect();
        assert_eq!(names, ["outer", "described"]);
        assert_eq!(state.operations[1].operation.fid, Some(Fid::new(1, 2, 3)));
        assert_eq!(state.wait.map(|(cause, _)| cause), Some(cause));
        // The place in the source says less than the cause.
        crate::blocking(|| assert_eq!(own().wait.map(|(cause, _)| cause), Some(cause)));
    });
    assert!(own().wait.is_none());
    drop(inner);
    assert_eq!(own().operations.len(), 1);
    drop(outer);
    assert!(own().operations.is_empty());
}

#[test]
fn a_wait_without_a_cause_shows_its_place() {
    let _running = begin(operation("read"));
    crate::blocking(|| {
        let (cause, _) = own().wait.expect("it waits");
        assert!(
            matches!(cause, Cause::Place(place) if place.file().ends_with("activity/tests.rs")),
            "{cause:?}"
        );
    });
}

#[test]
fn a_slow_operation_says_where_its_time_went() {
    let _alone = alone();
    clear_slow();
    set_slow_after(Duration::from_millis(5));
    {
        let running = begin(operation("slow"));
        waiting(Cause::Recovery, || crate::thread::sleep(Duration::from_millis(8)));
        waiting(Cause::OwnLock { server: 1, handle: 1 }, || crate::thread::sleep(Duration::from_millis(2)));
        running.ended::<()>(&Err(Status::EIO));
    }
    // No operation is slow by this limit, however busy the machine is.
    set_slow_after(Duration::from_secs(3600));
    drop(begin(operation("fast")));
    set_slow_after(Duration::from_secs(1));
    let slow = slow();
    assert_eq!(slow.len(), 1, "{slow:?}");
    assert_eq!((slow[0].operation.name, slow[0].status), ("slow", Status::EIO));
    let stages = slow[0].stages();
    let in_stage = |stage| stages.iter().find(|(known, _)| *known == stage).map(|(_, time)| *time);
    assert!(in_stage(Stage::Recovery) >= Some(Duration::from_millis(8)), "{slow:?}");
    assert!(in_stage(Stage::Lock) >= Some(Duration::from_millis(2)), "{slow:?}");
    let waited: Duration = stages.iter().map(|(_, time)| *time).sum();
    assert!(stages.len() == 2 && waited <= slow[0].took, "{slow:?}");
}

/// Returns the start of this thread's wait.
fn waits_since() -> Instant {
    let (_, age) = own().wait.expect("it waits");
    Instant::now().checked_sub(age).expect("not before the start of the machine")
}

#[test]
fn repeated_waits_for_the_same_are_one_wait_of_an_operation() {
    let cause = |handle| Cause::OwnLock { server: 1, handle };
    let same = begin(operation("loop"));
    // A busy machine may pause the thread between two waits for longer than those of one loop.
    let is_one = (0..100).any(|_| {
        let first = waiting(cause(5), || {
            crate::thread::sleep(Duration::from_millis(3));
            Instant::now()
        });
        waiting(cause(5), waits_since) < first
    });
    assert!(is_one, "the wait began before the first part of it ended");
    let between = Instant::now();
    assert!(waiting(cause(6), waits_since) >= between, "another cause is another wait");
    drop(same);
    let _next = begin(operation("next"));
    assert!(waiting(cause(6), waits_since) >= between, "so is the wait of another operation");
}

#[test]
fn helpers_show_whom_they_work_for_and_ended_threads_are_gone() {
    let running = begin(operation("parent"));
    let parent = current();
    let (ready, wait) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
    crate::thread::scope(|scope| {
        scope.spawn(|| {
            let _serving = serve(parent);
            assert_eq!(current(), parent);
            ready.wait();
            wait.wait();
        });
        ready.wait();
        assert_eq!(threads().iter().filter(|thread| thread.serves == parent).count(), 1);
        wait.wait();
    });
    assert_eq!(threads().iter().filter(|thread| thread.serves == parent).count(), 0);
    drop(running);
    assert_eq!(current(), OperationId::NONE);
}

#[test]
fn the_ring_keeps_the_last_events_in_order_and_bounded() {
    let _alone = alone();
    events::set_mb(1);
    for _ in 0..100_000 {
        drop(begin(operation("first")));
    }
    drop(begin(operation("last")));
    events::note_text(&"é".repeat(1000));
    let all = events::all();
    assert!(all.len() * 64 <= 2 << 20, "{} events", all.len());
    assert!(all.windows(2).all(|pair| pair[0].at <= pair[1].at));
    let names = |event: &events::Event| match &event.what {
        What::Ended { operation, .. } => Some(operation.name),
        _ => None,
    };
    assert_eq!(all.iter().filter_map(names).filter(|name| *name == "last").count(), 1);
    assert!(matches!(&all.last().expect("events").what, What::Text(text) if text.len() <= 400));
    events::clear();
    let rest = events::all();
    assert!(!rest.iter().any(|event| names(event) == Some("last")));
}

#[test]
fn what_nests_too_deeply_is_counted_only() {
    let running: Vec<_> = (0..DEPTH_MAX + 3).map(|_| begin(operation("deep"))).collect();
    assert_eq!(own().operations.len(), DEPTH_MAX);
    for one in running.into_iter().rev() {
        drop(one);
    }
    assert!(own().operations.is_empty());
    drop(begin(operation("again")));
}
