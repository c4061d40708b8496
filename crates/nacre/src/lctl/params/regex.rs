//! Extended regular expressions, as the C library has them: what users of `grep -E` know.

use std::ffi::CString;
use std::mem::MaybeUninit;

/// A regular expression, ready to search.
pub struct Regex(libc::regex_t);

impl Regex {
    /// Reads an expression; `None` if it is none.
    pub fn new(text: &str) -> Option<Regex> {
        let text = CString::new(text).ok()?;
        let mut regex = MaybeUninit::uninit();
        // SAFETY: the text ends with a zero and the place is large enough; it is used only if the call says that it was
        // filled.
        let outcome =
            unsafe { libc::regcomp(regex.as_mut_ptr(), text.as_ptr(), libc::REG_EXTENDED | libc::REG_NOSUB) };
        // SAFETY: regcomp filled it.
        (outcome == 0).then(|| Regex(unsafe { regex.assume_init() }))
    }

    /// Whether some part of the text is what the expression stands for.
    pub fn is_in(&self, text: &str) -> bool {
        let Ok(text) = CString::new(text) else { return false };
        // SAFETY: the expression was compiled and the text ends with a zero; no matches are asked for, so there is no
        // place for them.
        unsafe { libc::regexec(&self.0, text.as_ptr(), 0, std::ptr::null_mut(), 0) == 0 }
    }
}

impl Drop for Regex {
    fn drop(&mut self) {
        // SAFETY: it was compiled and is not used any more.
        unsafe { libc::regfree(&mut self.0) }
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
