//! Parallel requests to many servers of which some may be unreachable: replies within a deadline count, the
//! others are not waited for.

use nacre_env::InterruptTarget;
use nacre_env::clock::Instant;
use nacre_env::sync::{Condvar, Mutex};
use nacre_types::{Status, StatusResult};
use std::sync::Arc;
use std::time::Duration;

/// Deadline of a server; one that is reachable but hangs gets the grace of an interrupted request on top.
const LIMIT: Duration = Duration::from_secs(1);
/// How often the waiting thread checks for an interrupt.
const POLL: Duration = Duration::from_millis(20);
/// Threads that send requests at the same time, at most.
const THREADS_MAX: usize = 64;

struct State<R> {
    next: usize,
    results: Vec<Option<StatusResult<R>>>,
    /// Threads that wait for replies, so that they can be interrupted.
    asking: Vec<Arc<InterruptTarget>>,
    running: usize,
    /// True after the deadline or an interrupt.
    late: bool,
}

/// Sends all requests at the same time and returns the replies in order; `ETIMEDOUT` for those that took too
/// long, `EINTR` for the rest if the caller was interrupted.
pub(crate) fn ask_all<Q: Sync, R: Send>(
    questions: &[Q],
    ask: impl Fn(&Q) -> StatusResult<R> + Sync,
) -> Vec<StatusResult<R>> {
    let count = questions.len();
    let state = Mutex::new(State {
        next: 0,
        results: (0..count).map(|_| None).collect(),
        asking: Vec::new(),
        running: 0,
        late: false,
    });
    let (changed, mut unanswered) = (Condvar::new(), Status::ETIMEDOUT);
    nacre_env::blocking(|| {
        nacre_env::thread::scope(|scope| {
            for _ in 0..count.min(THREADS_MAX) {
                state.lock().running += 1;
                let work = || serve(questions, &ask, &state, &changed);
                if nacre_env::thread::Builder::new().name("statfs".into()).spawn_scoped(scope, work).is_err()
                {
                    state.lock().running -= 1;
                    break;
                }
            }
            unanswered = wait(&state, &changed);
        });
    });
    state.into_inner().results.into_iter().map(|result| result.unwrap_or(Err(unanswered))).collect()
}

/// Waits for the threads and interrupts them when it is time; returns the status of requests without reply.
fn wait<R>(state: &Mutex<State<R>>, changed: &Condvar) -> Status {
    let deadline = Instant::now() + LIMIT;
    let mut state = state.lock();
    loop {
        if state.running == 0 {
            return Status::EAGAIN;
        }
        let interrupted = nacre_env::interrupted();
        if interrupted || Instant::now() >= deadline {
            state.late = true;
            for target in &state.asking {
                target.raise(target.current());
            }
            return if interrupted { Status::EINTR } else { Status::ETIMEDOUT };
        }
        changed.wait_for(&mut state, POLL);
    }
}

fn serve<Q, R>(
    questions: &[Q],
    ask: &(impl Fn(&Q) -> StatusResult<R> + Sync),
    state: &Mutex<State<R>>,
    changed: &Condvar,
) {
    let guard = InterruptTarget::install();
    let target = guard.target();
    state.lock().asking.push(target.clone());
    loop {
        let index = {
            let mut state = state.lock();
            if state.late || state.next == questions.len() {
                break;
            }
            state.next += 1;
            // Under the lock, so that the thread that sets `late` finds this request.
            target.begin(state.next as u64);
            state.next - 1
        };
        let result = questions.get(index).map(ask);
        target.end();
        let mut state = state.lock();
        // The reply to an interrupted request does not count.
        if let (Some(result), Some(slot)) = (result, state.results.get_mut(index))
            && !matches!(result, Err(Status::EINTR))
        {
            *slot = Some(result);
        }
    }
    let mut state = state.lock();
    state.asking.retain(|other| !Arc::ptr_eq(other, target));
    state.running -= 1;
    changed.notify_all();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_answers_counts_and_who_hangs_is_called_off() {
        let began = Instant::now();
        let questions: Vec<u32> = (0..100).collect();
        let answers = ask_all(&questions, |&question| {
            if question % 50 != 7 {
                return if question == 3 { Err(Status::ENODEV) } else { Ok(question * 2) };
            }
            nacre_env::blocking(|| {
                while !nacre_env::interrupted() {
                    nacre_env::thread::sleep(Duration::from_millis(5));
                }
            });
            Err(Status::EINTR)
        });
        assert!(began.elapsed() < LIMIT * 20, "not for ever");
        for (index, answer) in answers.into_iter().enumerate() {
            let expected = match index {
                3 => Err(Status::ENODEV),
                7 | 57 => Err(Status::ETIMEDOUT),
                index => Ok(index as u32 * 2),
            };
            assert_eq!(answer, expected, "{index}");
        }
        assert!(ask_all(&[] as &[u32], |_| Ok(())).is_empty());
    }
}
