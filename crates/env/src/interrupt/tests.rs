use crate::sync::mpsc;

use super::*;
use crate::blocking;

/// Reads from a pipe that never has data until a signal ends the read and the interrupt is noticed.
fn wait_for_interrupt() -> i32 {
    let mut ends = [0; 2];
    // SAFETY: `ends` has space for the two descriptors.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    let mut byte = 0u8;
    let outcome = blocking(|| {
        loop {
            // SAFETY: `byte` is valid for a write of one byte.
            let n = unsafe { libc::read(ends[0], (&raw mut byte).cast(), 1) };
            let error = std::io::Error::last_os_error().raw_os_error();
            assert_eq!(n, -1, "nobody writes to the pipe");
            if error == Some(libc::EINTR) && interrupted() {
                break libc::EINTR;
            }
        }
    });
    // SAFETY: both descriptors belong to this function and are open.
    unsafe { (libc::close(ends[0]), libc::close(ends[1])) };
    outcome
}

#[test]
fn an_interrupt_ends_a_blocked_system_call() {
    let (tell, told) = mpsc::channel();
    let worker = crate::thread::spawn(move || {
        let guard = InterruptTarget::install();
        guard.target().begin(41);
        tell.send(guard.target().clone()).expect("test is listening");
        let outcome = wait_for_interrupt();
        assert!(interrupted(), "stays set until the request ends");
        guard.target().end();
        assert!(!interrupted());
        outcome
    });
    let target = told.recv().expect("worker lives");
    // Raised at once: most likely before the thread has reached its system call, so that a resend is needed.
    assert!(target.raise(41));
    assert_eq!(worker.join().expect("worker"), libc::EINTR);
    assert!(!target.raise(41), "too late");
}

#[test]
fn an_interrupt_for_another_request_is_refused() {
    let guard = InterruptTarget::install();
    guard.target().begin(7);
    assert!(!guard.target().raise(8));
    assert!(!guard.target().raise(0));
    assert!(!interrupted());
    assert!(guard.target().raise(7));
    assert!(interrupted());
    guard.target().end();
    guard.target().begin(9);
    assert!(!interrupted(), "the next request starts clean");
    guard.target().end();
}

#[test]
fn a_kick_reaches_a_thread_outside_of_a_request() {
    let (tell, told) = mpsc::channel();
    let worker = crate::thread::spawn(move || {
        let guard = InterruptTarget::install();
        tell.send(guard.target().clone()).expect("test is listening");
        // SAFETY: no descriptors; poll just waits.
        let n = unsafe { libc::poll(std::ptr::null_mut(), 0, -1) };
        guard.target().acknowledge_kick();
        n
    });
    told.recv().expect("worker lives").kick();
    assert_eq!(worker.join().expect("worker"), -1);
}

#[test]
fn a_thread_that_is_no_target_is_never_interrupted() {
    assert!(!crate::thread::spawn(interrupted).join().expect("thread"));
}

#[test]
fn a_wait_with_a_limit_ends_as_if_interrupted_and_nothing_else_does() {
    let far = Instant::now() + Duration::from_secs(1000);
    until(far, || {
        assert!(!interrupted() && !is_late());
        let ended = until(Instant::now() + Duration::from_millis(5), || {
            while !interrupted() {
                crate::thread::yield_now();
            }
            // A later inner deadline does not extend the outer one.
            until(far, interrupted)
        });
        assert!(ended && !interrupted() && !is_late());
    });
    let guard = InterruptTarget::install();
    guard.target().begin(7);
    until(Instant::now(), || assert!(interrupted() && !guard.target().is_raised()));
    assert!(!interrupted(), "the request itself was not interrupted");
    guard.target().end();
}
