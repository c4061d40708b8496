//! The user database of this host, as the C library's name service switch returns it. A look-up may take as
//! long as the service behind it (LDAP, sssd).

use nacre_types::User;
use nacre_types::limits::GROUPS_MAX;
use std::ffi::CStr;
use std::io;

/// Size of the buffer for the strings of one entry, in bytes: initial and largest.
const TEXT_FIRST: usize = 1 << 10;
const TEXT_MAX: usize = 1 << 20;
/// Initial number of groups in the buffer.
const GROUPS_FIRST: usize = 64;

/// Finds a user of this host; `None` if there is none with this number.
///
/// # Errors
/// Errors of the name service.
pub fn find_user(uid: u32) -> io::Result<Option<User>> {
    let mut text: Vec<libc::c_char> = vec![0; TEXT_FIRST];
    loop {
        // SAFETY: an all-zero `passwd` is valid: numbers and null pointers.
        let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
        let mut found: *mut libc::passwd = std::ptr::null_mut();
        // SAFETY: all pointers point to live values, and the length is that of `text`.
        let error = unsafe { libc::getpwuid_r(uid, &mut entry, text.as_mut_ptr(), text.len(), &mut found) };
        return match error {
            libc::ERANGE if text.len() < TEXT_MAX => {
                text.resize(text.len() * 2, 0);
                continue;
            }
            libc::EINTR => continue,
            // Values with which services report that there is no such user, as listed in getpwuid_r(3).
            0 | libc::ENOENT | libc::ESRCH if found.is_null() => Ok(None),
            0 if entry.pw_name.is_null() => Ok(None),
            0 => {
                // SAFETY: the call succeeded, so it is a string in `text`, which stays alive and is not
                // changed.
                let name = unsafe { CStr::from_ptr(entry.pw_name) };
                Ok(Some(User { gid: entry.pw_gid, groups: groups_of(name, entry.pw_gid)? }))
            }
            error => Err(io::Error::from_raw_os_error(error)),
        };
    }
}

fn groups_of(name: &CStr, gid: u32) -> io::Result<Vec<u32>> {
    let mut groups: Vec<libc::gid_t> = vec![0; GROUPS_FIRST];
    loop {
        let mut count = libc::c_int::try_from(groups.len()).unwrap_or(libc::c_int::MAX);
        // SAFETY: `name` is a string, and `count` is the length of `groups`.
        let told = unsafe { libc::getgrouplist(name.as_ptr(), gid, groups.as_mut_ptr(), &mut count) };
        let needed = usize::try_from(count).unwrap_or(0);
        if told >= 0 {
            groups.truncate(needed);
            return Ok(groups);
        }
        if groups.len() >= GROUPS_MAX {
            return Err(io::Error::other("a user is in too many groups"));
        }
        // The reported number may not exceed the current size although that is too small.
        groups.resize(needed.max(groups.len() * 2).min(GROUPS_MAX), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_known_with_its_group_and_a_number_that_nobody_has_is_not() {
        let root = find_user(0).expect("asked").expect("root");
        assert!(root.gid == 0 && root.has(0));
        assert_eq!(find_user(3_999_999_991).expect("asked"), None);
    }
}
