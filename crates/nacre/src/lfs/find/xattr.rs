//! `--xattr NAME[=VALUE]`: regular expressions for extended attributes.

use std::ffi::{CStr, CString};
use std::fmt;
use std::io;
use std::mem::MaybeUninit;

/// Largest list of names and largest value.
const XATTR_MAX: usize = 65536;

/// An extended regular expression of POSIX that must match the whole of a text.
pub struct Pattern(Box<libc::regex_t>);

// SAFETY: a compiled expression is only read (regexec takes it as const and POSIX lets threads share it).
unsafe impl Send for Pattern {}
// SAFETY: as above.
unsafe impl Sync for Pattern {}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pattern")
    }
}

impl Pattern {
    /// Compiles an expression; `None` if it is none.
    pub fn new(text: &str) -> Option<Pattern> {
        let whole = CString::new(format!("^({text})$")).ok()?;
        let mut place = Box::new(MaybeUninit::<libc::regex_t>::uninit());
        let flags = libc::REG_EXTENDED | libc::REG_NOSUB;
        // SAFETY: the place has room for the result, and the expression is a NUL-terminated string.
        let failed = unsafe { libc::regcomp(place.as_mut_ptr(), whole.as_ptr(), flags) };
        // SAFETY: regcomp has filled the place in if it says so.
        (failed == 0).then(|| Pattern(unsafe { place.assume_init() }))
    }

    fn matches(&self, text: &CStr) -> bool {
        // SAFETY: the expression was compiled and is freed on drop only; no positions are asked for.
        unsafe { libc::regexec(&raw const *self.0, text.as_ptr(), 0, std::ptr::null_mut(), 0) == 0 }
    }
}

impl Drop for Pattern {
    fn drop(&mut self) {
        // SAFETY: it was compiled, and nobody uses it any more.
        unsafe { libc::regfree(&raw mut *self.0) }
    }
}

/// What an attribute must be called, and what it must say.
#[derive(Debug)]
pub struct XattrTest {
    name: Pattern,
    value: Option<Pattern>,
}

impl XattrTest {
    /// Reads `NAME[=VALUE]`.
    pub fn parse(text: &str) -> Option<XattrTest> {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(Pattern::new(value)?)),
            None => (text, None),
        };
        Some(XattrTest { name: Pattern::new(name)?, value })
    }

    /// Whether the file at `path` has such an attribute; a symbolic link is asked itself.
    ///
    /// # Errors
    /// Those of llistxattr(2).
    pub fn passes(&self, path: &[u8]) -> io::Result<bool> {
        let mut names = vec![0u8; XATTR_MAX];
        let len = match rustix::fs::llistxattr(path, &mut names[..]) {
            Ok(len) => len,
            Err(rustix::io::Errno::OPNOTSUPP) => 0,
            Err(error) => return Err(error.into()),
        };
        for name in names[..len].split_inclusive(|&byte| byte == 0) {
            let Ok(name) = CStr::from_bytes_with_nul(name) else { continue };
            if self.name.matches(name) && self.value_passes(path, name) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn value_passes(&self, path: &[u8], name: &CStr) -> bool {
        let Some(pattern) = &self.value else { return true };
        let mut value = vec![0u8; XATTR_MAX + 1];
        let Ok(len) = rustix::fs::lgetxattr(path, name, &mut value[..XATTR_MAX]) else { return false };
        value.truncate(len);
        // What follows a NUL is not looked at.
        value.push(0);
        CStr::from_bytes_until_nul(&value).is_ok_and(|value| pattern.matches(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_match_whole_texts() {
        let pattern = Pattern::new("user\\.(job|run)[0-9]+").expect("an expression");
        assert!(pattern.matches(c"user.job17") && pattern.matches(c"user.run1"));
        assert!(
            !pattern.matches(c"user.job")
                && !pattern.matches(c"xuser.job1")
                && !pattern.matches(c"user.job1x")
        );
        assert!(Pattern::new("a|b").expect("alternatives").matches(c"b"));
        assert!(Pattern::new("(").is_none() && XattrTest::parse("user.a=[").is_none());
    }
}
