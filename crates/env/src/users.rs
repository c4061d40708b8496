//! The user database of this host, as the C library's name service switch gives it. A look-up may take as long as the service that it
//! asks (LDAP, sssd).

use nacre_types::User;
use nacre_types::limits::GROUPS_MAX;
use std::ffi::CStr;
use std::io;

/// Room for the texts of one entry, in bytes: at first, and at most.
const TEXT_FIRST: usize = 1 << 10;
const TEXT_MAX: usize = 1 << 20;
/// Room for groups at first.
const GROUPS_FIRST: usize = 64;

/// A user of this host; `None` if there is none with this number.
///
/// # Errors
/// What the services say that could not be asked.
pub fn find_user(uid: u32) -> io::Result<Option<User>> {
    let mut text: Vec<libc::c_char> = vec![0; TEXT_FIRST];
    loop {
        // SAFETY: a `passwd` of zeros is numbers and null pointers.
        let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
        let mut found: *mut libc::passwd = std::ptr::null_mut();
        // SAFETY: all pointers are to live values, and the length is that of `text`.
        let error = unsafe { libc::getpwuid_r(uid, &mut entry, text.as_mut_ptr(), text.len(), &mut found) };
        return match error {
            libc::ERANGE if text.len() < TEXT_MAX => {
                text.resize(text.len() * 2, 0);
                continue;
            }
            libc::EINTR => continue,
            // How services say that there is no such user; the manual lists them.
            0 | libc::ENOENT | libc::ESRCH if found.is_null() => Ok(None),
            0 if entry.pw_name.is_null() => Ok(None),
            0 => {
                // SAFETY: the call succeeded, so it is a string in `text`, which lives on and is not changed.
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
        // SAFETY: `name` is a string, and `count` says how many places `groups` has.
        let told = unsafe { libc::getgrouplist(name.as_ptr(), gid, groups.as_mut_ptr(), &mut count) };
        let needed = usize::try_from(count).unwrap_or(0);
        if told >= 0 {
            groups.truncate(needed);
            return Ok(groups);
        }
        if groups.len() >= GROUPS_MAX {
            return Err(io::Error::other("a user is in too many groups"));
        }
        // What it says of the room needed may be no more than there was.
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
