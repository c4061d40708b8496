//! `--xattr NAME[=VALUE]`: regular expressions for extended attributes.

use crate::regex::Regex;
use std::ffi::CStr;
use std::fmt;
use std::io;

/// Largest list of names and largest value, in bytes.
const XATTR_MAX: usize = 65536;

/// Patterns of an attribute's name and value.
pub struct XattrTest {
    name: Regex,
    value: Option<Regex>,
}

impl fmt::Debug for XattrTest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("XattrTest")
    }
}

impl XattrTest {
    /// Parses `NAME[=VALUE]`.
    pub fn parse(text: &str) -> Option<XattrTest> {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(Regex::whole(value)?)),
            None => (text, None),
        };
        Some(XattrTest { name: Regex::whole(name)?, value })
    }

    /// Returns whether the file at `path` has such an attribute; symbolic links are not followed.
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
        // Bytes after a NUL are not matched.
        value.push(0);
        CStr::from_bytes_until_nul(&value).is_ok_and(|value| pattern.matches(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_match_whole_texts() {
        let pattern = Regex::whole("user\\.(job|run)[0-9]+").expect("an expression");
        assert!(pattern.matches(c"user.job17") && pattern.matches(c"user.run1"));
        assert!(
            !pattern.matches(c"user.job")
                && !pattern.matches(c"xuser.job1")
                && !pattern.matches(c"user.job1x")
        );
        assert!(Regex::whole("a|b").expect("alternatives").matches(c"b"));
        assert!(Regex::whole("(").is_none() && XattrTest::parse("user.a=[").is_none());
    }
}
