//! Names of OST pools, and the rules for names of new pools.

use nacre_types::limits::POOL_NAME_MAX;
use std::fmt;

/// A pool's name: up to 15 bytes, no NUL. In a specification it may also be the reserved word that
/// [`PoolName::is_ignore`] recognises.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PoolName {
    bytes: [u8; POOL_NAME_MAX],
    len: u8,
}

/// Reserved words with a meaning in place of a pool's name; no pool can have them as its name.
const RESERVED: [&str; 3] = ["none", "ignore", "inherit"];
/// The reserved word for "no pool, and none inherited".
const IGNORE: &str = "ignore";

/// Why a string is not a valid name for a pool.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PoolNameError {
    /// The name is empty.
    #[error("the name of a pool is empty")]
    Empty,
    /// The name has more than 15 bytes.
    #[error("pool name '{0}' is longer than {POOL_NAME_MAX} characters")]
    TooLong(String),
    /// The name has a character other than letters, digits, `_` and `-`.
    #[error("pool name '{name}' has a '{bad}': letters, digits, '_' and '-' are allowed")]
    Character {
        /// The rejected name.
        name: String,
        /// The first character that is not allowed.
        bad: char,
    },
    /// The name is a reserved word.
    #[error("pool name '{0}' is reserved")]
    Reserved(String),
}

impl PoolName {
    /// Builds a name; `None` if it is empty, longer than 15 bytes, or has bytes other than printable ASCII
    /// without space.
    pub fn new(name: &[u8]) -> Option<PoolName> {
        if name.is_empty() || name.len() > POOL_NAME_MAX || !name.iter().all(u8::is_ascii_graphic) {
            return None;
        }
        let mut bytes = [0u8; POOL_NAME_MAX];
        bytes[..name.len()].copy_from_slice(name);
        Some(PoolName { bytes, len: name.len() as u8 })
    }

    /// Checks the name of a new pool.
    ///
    /// # Errors
    /// The first rule that the name breaks.
    pub fn for_pool(name: &str) -> Result<PoolName, PoolNameError> {
        if name.is_empty() {
            return Err(PoolNameError::Empty);
        }
        if name.len() > POOL_NAME_MAX {
            return Err(PoolNameError::TooLong(name.to_owned()));
        }
        let allowed = |c: &char| c.is_ascii_alphanumeric() || *c == '_' || *c == '-';
        if let Some(bad) = name.chars().find(|c| !allowed(c)) {
            return Err(PoolNameError::Character { name: name.to_owned(), bad });
        }
        if RESERVED.contains(&name) {
            return Err(PoolNameError::Reserved(name.to_owned()));
        }
        PoolName::new(name.as_bytes()).ok_or(PoolNameError::Empty)
    }

    /// Returns the reserved word for "no pool, and none inherited".
    pub fn ignore() -> PoolName {
        PoolName::new(IGNORE.as_bytes()).expect("the word is short and printable")
    }

    /// Returns true for [`PoolName::ignore`]: a layout made from such a specification has no pool.
    pub fn is_ignore(&self) -> bool {
        self.as_str() == IGNORE
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..usize::from(self.len)]).unwrap_or("")
    }
}

impl fmt::Display for PoolName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for PoolName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_pools_are_checked() {
        for good in ["a", "flash", "F-1_x", "0", "123456789012345", "None"] {
            assert_eq!(PoolName::for_pool(good).expect(good).as_str(), good);
        }
        let says = |name: &str| PoolName::for_pool(name).expect_err(name).to_string();
        assert_eq!(says(""), "the name of a pool is empty");
        assert_eq!(says("1234567890123456"), "pool name '1234567890123456' is longer than 15 characters");
        assert!(says("a.b").contains("has a '.'") && says("é").contains("has a 'é'"));
        for word in ["none", "ignore", "inherit"] {
            assert_eq!(says(word), format!("pool name '{word}' is reserved"));
        }
        assert!(PoolName::ignore().is_ignore() && !PoolName::new(b"x").expect("a name").is_ignore());
    }
}
