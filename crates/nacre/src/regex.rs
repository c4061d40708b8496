//! Extended regular expressions of the C library, as users of `grep -E` know them.

use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;

/// A compiled regular expression.
pub struct Regex(Box<libc::regex_t>);

// SAFETY: a compiled expression is only read (regexec takes it as const and POSIX lets threads share it).
unsafe impl Send for Regex {}
// SAFETY: as above.
unsafe impl Sync for Regex {}

impl Regex {
    /// Compiles an expression; `None` if it is malformed.
    pub fn new(text: &str) -> Option<Regex> {
        let text = CString::new(text).ok()?;
        let mut place = Box::new(MaybeUninit::<libc::regex_t>::uninit());
        let flags = libc::REG_EXTENDED | libc::REG_NOSUB;
        // SAFETY: the place is large enough for the result, and the expression is a NUL-terminated string.
        let failed = unsafe { libc::regcomp(place.as_mut_ptr(), text.as_ptr(), flags) };
        // SAFETY: regcomp has initialised the place if it reports success.
        (failed == 0).then(|| Regex(unsafe { place.assume_init() }))
    }

    /// Compiles an expression that must match the whole of a text.
    pub fn whole(text: &str) -> Option<Regex> {
        Regex::new(&format!("^({text})$"))
    }

    /// Returns true if the expression matches any part of the text.
    pub fn is_in(&self, text: &str) -> bool {
        CString::new(text).is_ok_and(|text| self.matches(&text))
    }

    /// Like [`Regex::is_in`], for a C string.
    pub fn matches(&self, text: &CStr) -> bool {
        // SAFETY: the expression was compiled and is freed on drop only; no match positions are requested.
        unsafe { libc::regexec(&raw const *self.0, text.as_ptr(), 0, std::ptr::null_mut(), 0) == 0 }
    }
}

impl Drop for Regex {
    fn drop(&mut self) {
        // SAFETY: it was compiled, and nothing uses it any more.
        unsafe { libc::regfree(&raw mut *self.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_names_are_found() {
        let regex = Regex::new("osc[.].*max_(dirty|pages)").expect("fine");
        assert!(regex.is_in("osc.nacre-OST0000-osc-1.max_dirty_mb"));
        assert!(!regex.is_in("osc.nacre-OST0000-osc-1.max_rpcs_in_flight"));
        assert!(Regex::new("^version$").expect("fine").is_in("version"));
        assert!(Regex::new("(").is_none() && Regex::new("a\0b").is_none());
    }
}
