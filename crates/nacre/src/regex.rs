//! Extended regular expressions, as the C library has them: what users of `grep -E` know.

use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;

/// A regular expression, ready to search.
pub struct Regex(Box<libc::regex_t>);

// SAFETY: a compiled expression is only read (regexec takes it as const and POSIX lets threads share it).
unsafe impl Send for Regex {}
// SAFETY: as above.
unsafe impl Sync for Regex {}

impl Regex {
    /// Compiles an expression; `None` if it is none.
    pub fn new(text: &str) -> Option<Regex> {
        let text = CString::new(text).ok()?;
        let mut place = Box::new(MaybeUninit::<libc::regex_t>::uninit());
        let flags = libc::REG_EXTENDED | libc::REG_NOSUB;
        // SAFETY: the place has room for the result, and the expression is a NUL-terminated string.
        let failed = unsafe { libc::regcomp(place.as_mut_ptr(), text.as_ptr(), flags) };
        // SAFETY: regcomp has filled the place in if it says so.
        (failed == 0).then(|| Regex(unsafe { place.assume_init() }))
    }

    /// An expression that must match the whole of a text.
    pub fn whole(text: &str) -> Option<Regex> {
        Regex::new(&format!("^({text})$"))
    }

    /// Whether some part of the text is what the expression stands for.
    pub fn is_in(&self, text: &str) -> bool {
        CString::new(text).is_ok_and(|text| self.matches(&text))
    }

    /// The same of a text of the C library.
    pub fn matches(&self, text: &CStr) -> bool {
        // SAFETY: the expression was compiled and is freed on drop only; no positions are asked for.
        unsafe { libc::regexec(&raw const *self.0, text.as_ptr(), 0, std::ptr::null_mut(), 0) == 0 }
    }
}

impl Drop for Regex {
    fn drop(&mut self) {
        // SAFETY: it was compiled, and nobody uses it any more.
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
