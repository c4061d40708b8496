//! Stops a request at a server until a release, so that a test can kill a process at exactly that step.
//!
//! Off unless a parameter sets it (`mdt.*.hold_request`, `obdfilter.*.hold_request`); each request then takes
//! a lock instead of reading a flag. Requests that clients send automatically, such as pings, are neither
//! held nor counted.

use nacre_env::sync::{Condvar, Mutex};
use nacre_types::{Status, StatusResult};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

/// Requests that clients send automatically.
const UNCOUNTED: [&str; 8] =
    ["Ping", "RunStart", "Statfs", "Precreate", "DestroyOrphans", "LeaseReleased", "LeaseBusy", "Evict"];

/// Step at which a request is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// Before any work.
    Before,
    /// In a modifying operation of an MDT: its locks are held, on all MDTs, and nothing has changed yet.
    Locked,
    /// After success, before the answer.
    After,
}

/// Selects the request to hold.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Which {
    /// Countdown of requests, this one included.
    Number(u32),
    /// Next request of a kind.
    Kind(String),
}

#[derive(Default)]
struct State {
    wanted: Option<(Moment, Which)>,
    held: Option<(Moment, String)>,
}

/// See the [module documentation](self).
#[derive(Default)]
pub struct Hold {
    is_armed: AtomicBool,
    state: Mutex<State>,
    released: Condvar,
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Moment::Before => "before",
            Moment::Locked => "locked",
            Moment::After => "after",
        })
    }
}

/// Returns the name of the variant of `request`.
fn kind_of(request: &dyn fmt::Debug) -> String {
    let text = format!("{request:?}");
    text.split(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default().to_owned()
}

impl Hold {
    /// Sets the request to hold: `none` releases; `before`, `locked` or `after`, and a number (1 is the next
    /// request) or the name of a request.
    ///
    /// # Errors
    /// `EINVAL` for any other text.
    pub fn set(&self, text: &str) -> StatusResult<()> {
        let wanted = match text.split_whitespace().collect::<Vec<_>>().as_slice() {
            ["none"] => None,
            [moment @ ("before" | "locked" | "after"), which] => {
                let moment = match *moment {
                    "before" => Moment::Before,
                    "locked" => Moment::Locked,
                    _ => Moment::After,
                };
                let which = match which.parse() {
                    Ok(0) => return Err(Status::EINVAL),
                    Ok(number) => Which::Number(number),
                    Err(_) if which.chars().all(|c| c.is_ascii_alphabetic()) => {
                        Which::Kind((*which).to_owned())
                    }
                    Err(_) => return Err(Status::EINVAL),
                };
                Some((moment, which))
            }
            _ => return Err(Status::EINVAL),
        };
        let mut state = self.state.lock();
        self.is_armed.store(wanted.is_some(), Ordering::Relaxed);
        *state = State { wanted, held: None };
        self.released.notify_all();
        Ok(())
    }

    /// Returns the state or the setting: `none`, `before 3`, `held after SwapLayouts`.
    pub fn text(&self) -> String {
        let state = self.state.lock();
        match (&state.held, &state.wanted) {
            (Some((moment, kind)), _) => format!("held {moment} {kind}"),
            (None, Some((moment, Which::Number(number)))) => format!("{moment} {number}"),
            (None, Some((moment, Which::Kind(kind)))) => format!("{moment} {kind}"),
            (None, None) => "none".to_owned(),
        }
    }

    /// Releases the held request and disarms.
    pub fn release(&self) {
        self.is_armed.store(false, Ordering::Relaxed);
        *self.state.lock() = State::default();
        self.released.notify_all();
    }

    /// Returns true if the hold is armed: the next request that matches stops.
    pub fn is_armed(&self) -> bool {
        self.is_armed.load(Ordering::Relaxed)
    }

    /// Called for each request at each step; waits if the request is selected.
    pub fn pass(&self, moment: Moment, request: &dyn fmt::Debug) {
        if self.is_armed.load(Ordering::Relaxed) {
            self.pass_armed(moment, &kind_of(request));
        }
    }

    /// Returns true if such a request may be held at `moment`, so that the caller has to bring it there.
    pub fn is_wanted(&self, moment: Moment, request: &dyn fmt::Debug) -> bool {
        if !self.is_armed.load(Ordering::Relaxed) {
            return false;
        }
        let state = self.state.lock();
        state.held.is_none()
            && match &state.wanted {
                Some((wanted, Which::Kind(name))) => *wanted == moment && *name == kind_of(request),
                Some((wanted, Which::Number(_))) => *wanted == moment,
                None => false,
            }
    }

    fn pass_armed(&self, moment: Moment, kind: &str) {
        let mut state = self.state.lock();
        let is_counted = state.held.is_none() && !UNCOUNTED.contains(&kind);
        let is_it = match &mut state.wanted {
            Some((wanted, Which::Kind(name))) => *wanted == moment && name == kind,
            Some((wanted, Which::Number(left))) if *wanted == moment && is_counted => {
                *left -= 1;
                *left == 0
            }
            _ => false,
        };
        if !is_it || state.held.is_some() {
            return;
        }
        state.held = Some((moment, kind.to_owned()));
        nacre_env::blocking(|| {
            while state.held.is_some() {
                self.released.wait(&mut state);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_types::Fid;
    use nacre_wire::oss::OssRequest;
    use std::sync::Arc;

    /// Returns a request whose kind is followed by arguments.
    fn sync(number: u32) -> OssRequest {
        OssRequest::Sync { object: Some(Fid::ost_object(0, number)) }
    }

    #[test]
    fn the_wanted_request_waits_and_others_do_not() {
        let hold = Arc::new(Hold::default());
        for (text, passes) in [("before 2", 1), ("before Sync", 0), ("after 1", 0)] {
            hold.set(text).expect(text);
            assert_eq!(hold.text(), text);
            hold.pass(Moment::Before, &OssRequest::Ping);
            for _ in 0..passes {
                hold.pass(Moment::Before, &sync(1));
            }
            let moment = if text.starts_with("after") { Moment::After } else { Moment::Before };
            let waiting = nacre_env::thread::spawn({
                let hold = hold.clone();
                move || hold.pass(moment, &sync(2))
            });
            while hold.text() != format!("held {moment} Sync") {
                nacre_env::thread::yield_now();
            }
            hold.pass(moment, &sync(3));
            assert!(!waiting.is_finished());
            hold.set("none").expect("lets go");
            waiting.join().expect("ends");
            assert_eq!(hold.text(), "none");
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["", "before", "before 0", "during 1", "before x1", "after 1 2"] {
            assert_eq!(Hold::default().set(text), Err(Status::EINVAL), "{text}");
        }
    }
}
