//! State of the fault points of this process.

use super::POINTS;
use crate::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

/// Fail once only.
pub const ONCE: u32 = 0x8000_0000;
/// The point has failed; set by the program.
pub const FAILED: u32 = 0x4000_0000;
/// Skip the first `fail_val` times.
pub const SKIP: u32 = 0x2000_0000;
/// Fail `fail_val` times.
pub const SOME: u32 = 0x1000_0000;
/// Fail one of `fail_val` times, at random.
pub const RANDOM: u32 = 0x0800_0000;
const FLAGS: u32 = ONCE | FAILED | SKIP | SOME | RANDOM;
const POINT: u32 = 0xffff;

/// `fail_loc` and `fail_val`.
#[derive(Debug)]
pub struct State {
    loc: AtomicU32,
    val: AtomicU32,
    /// Times that the point was passed since it was set.
    passed: Mutex<u32>,
}

/// The state of this process.
pub static STATE: State = State::new();

impl State {
    const fn new() -> State {
        State { loc: AtomicU32::new(0), val: AtomicU32::new(0), passed: Mutex::new(0) }
    }

    /// Returns `fail_loc`.
    pub fn loc(&self) -> u32 {
        self.loc.load(Ordering::Relaxed)
    }

    /// Returns `fail_val`.
    pub fn val(&self) -> u32 {
        self.val.load(Ordering::Relaxed)
    }

    /// Sets `fail_loc`; 0 for no fault.
    pub fn set_loc(&self, loc: u32) {
        *self.passed.lock() = 0;
        self.loc.store(loc, Ordering::Relaxed);
    }

    /// Sets `fail_val`.
    pub fn set_val(&self, val: u32) {
        self.val.store(val, Ordering::Relaxed);
    }

    /// Counts a pass of a point, and decides whether it fails.
    pub(super) fn is_hit(&self, point: u16) -> bool {
        if self.loc() & POINT != u32::from(point) {
            return false;
        }
        let mut passed = self.passed.lock();
        let (loc, val) = (self.loc(), self.val());
        if loc & POINT != u32::from(point) || (loc & (ONCE | FAILED) == ONCE | FAILED) {
            return false;
        }
        if loc & RANDOM != 0 && (val < 2 || fastrand::u32(..val) > 0) {
            return false;
        }
        *passed += 1;
        if loc & SKIP != 0 && *passed <= val {
            return false;
        }
        if loc & SOME != 0 && *passed > val.max(1) {
            return false;
        }
        self.loc.store(loc | FAILED, Ordering::Relaxed);
        log_hit(point);
        true
    }
}

fn log_hit(point: u16) {
    let name = POINTS.iter().find(|(known, ..)| *known as u16 == point).map_or("?", |(_, name, _)| name);
    crate::activity::events::note_text(&format!("fault point {name}"));
}

/// Waits `fail_val` seconds, at least one, or until an interrupt.
#[cfg(fault_points)]
pub(super) fn wait() {
    use std::time::Duration;
    // Flags use the value as a count.
    let seconds = if STATE.loc() & (SKIP | SOME | RANDOM) != 0 { 1 } else { STATE.val().max(1) };
    let end = crate::clock::Instant::now() + Duration::from_secs(seconds.into());
    crate::blocking(|| {
        while !crate::interrupted() && crate::clock::Instant::now() < end {
            crate::thread::sleep(Duration::from_millis(20));
        }
    });
}

/// Reads `fail_loc` as users write it: a number, in hexadecimal with `0x`, or the name of a point, with flags as
/// `name|once`.
pub fn parse_loc(text: &str) -> Option<u32> {
    let text = text.trim();
    let mut loc = 0;
    for word in text.split('|').map(str::trim) {
        loc |= match word {
            "once" => ONCE,
            "skip" => SKIP,
            "some" => SOME,
            "random" => RANDOM,
            word => number(word).or_else(|| {
                POINTS.iter().find(|(_, name, _)| *name == word).map(|(point, ..)| *point as u32)
            })?,
        };
    }
    let is_known = loc == 0 || POINTS.iter().any(|(point, ..)| *point as u32 == loc & POINT);
    (loc & !(FLAGS | POINT) == 0 && is_known).then_some(loc)
}

fn number(word: &str) -> Option<u32> {
    match word.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => word.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::Point;

    const NUMBER: u16 = Point::OstEnospc as u16;

    /// Returns in which of ten passes the point fails.
    fn hits(loc: u32, val: u32) -> Vec<usize> {
        let state = State::new();
        state.set_val(val);
        state.set_loc(loc | u32::from(NUMBER));
        (1..=10).filter(|_: &usize| state.is_hit(NUMBER)).collect()
    }

    #[test]
    fn flags_say_how_often_a_point_fails() {
        assert_eq!(hits(0, 0).len(), 10);
        assert_eq!(hits(ONCE, 0), [1]);
        assert_eq!(hits(SKIP, 3), [4, 5, 6, 7, 8, 9, 10]);
        assert_eq!(hits(SKIP | ONCE, 3), [4]);
        assert_eq!(hits(SOME, 3), [1, 2, 3]);
        assert_eq!(hits(SOME | ONCE, 3), [1]);
        assert!(hits(RANDOM, 1).is_empty());
    }

    #[test]
    fn only_the_point_that_is_set_fails() {
        let state = State::new();
        assert!(!state.is_hit(NUMBER));
        state.set_loc(u32::from(NUMBER) | ONCE);
        assert!(!state.is_hit(Point::OstErofs as u16));
        assert!(state.is_hit(NUMBER));
        assert_eq!(state.loc(), u32::from(NUMBER) | ONCE | FAILED);
        state.set_loc(0);
        assert!(!state.is_hit(NUMBER));
    }

    #[test]
    fn points_are_set_by_number_and_by_name() {
        assert_eq!(parse_loc("0x80000215"), Some(0x8000_0215));
        assert_eq!(parse_loc("533"), Some(0x215));
        assert_eq!(parse_loc("ost_enospc|once"), Some(0x8000_0215));
        assert_eq!(parse_loc("0"), Some(0));
        for wrong in ["", "nonsense", "0x1", "ost_enospc|often", "0x02000215", "-1"] {
            assert_eq!(parse_loc(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn names_and_numbers_are_unique() {
        for (number, (point, name, what)) in POINTS.iter().enumerate() {
            assert!(!what.is_empty() && *name == name.to_lowercase());
            let others = POINTS[..number].iter();
            assert!(others.into_iter().all(|(other, known, _)| other != point && known != name), "{name}");
        }
        assert!(POINTS.len() >= 25);
    }

    #[test]
    fn a_program_without_fault_points_never_fails_here() {
        if !crate::fault::ENABLED {
            STATE.set_loc(u32::from(NUMBER));
            assert!(!crate::fault::is_hit(Point::OstEnospc));
            STATE.set_loc(0);
        }
    }
}
