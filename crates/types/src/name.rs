//! Rules for names, and the hash that orders a directory.

use crate::limits::NAME_MAX;
use crate::status::Status;

/// Checks a name that is to be created, removed, or the target of a rename.
///
/// # Errors
/// `ENAMETOOLONG` beyond 255 bytes, `ENOENT` for the empty name, `EEXIST` for `.` and `..`, `EINVAL` for a
/// slash or a NUL byte (the kernel never sends those; a network peer might).
pub fn check_name(name: &[u8]) -> Result<(), Status> {
    if name.is_empty() {
        return Err(Status::ENOENT);
    }
    if name.len() > NAME_MAX {
        return Err(Status::ENAMETOOLONG);
    }
    if name == b"." || name == b".." {
        return Err(Status::EEXIST);
    }
    if name.iter().any(|&b| b == b'/' || b == 0) {
        return Err(Status::EINVAL);
    }
    Ok(())
}

/// Largest directory cookie; the kernel and old programs treat cookies as signed 64-bit offsets.
pub const COOKIE_MAX: u64 = i64::MAX as u64;
/// Smallest cookie of a name; lower ones stand for `.` and `..`.
pub const COOKIE_FIRST: u64 = 4;

/// Returns the position of a name in its directory: a 63-bit hash, never below [`COOKIE_FIRST`].
///
/// `seed` is random per file system, so that users cannot choose names that collide. The position depends
/// only on the name: it is stable while other names are created and removed.
pub fn name_hash(seed: u64, name: &[u8]) -> u64 {
    (xxhash_rust::xxh3::xxh3_64_with_seed(name, seed) & COOKIE_MAX).max(COOKIE_FIRST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_names_are_refused_with_the_code_posix_has() {
        assert_eq!(check_name(&[b'a'; 256]), Err(Status::ENAMETOOLONG));
        assert_eq!(check_name(&[b'a'; 255]), Ok(()));
        assert_eq!(check_name(b""), Err(Status::ENOENT));
        assert_eq!(check_name(b".."), Err(Status::EEXIST));
        assert_eq!(check_name(b"a/b"), Err(Status::EINVAL));
    }

    #[test]
    fn hashes_fit_a_signed_offset_and_differ_by_seed() {
        assert!(name_hash(1, b"x") <= COOKIE_MAX);
        assert_ne!(name_hash(1, b"x"), name_hash(2, b"x"));
        assert_eq!(name_hash(7, b"file"), name_hash(7, b"file"));
    }
}
