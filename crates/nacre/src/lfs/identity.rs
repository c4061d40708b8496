//! Names and numbers of users, groups and projects.

use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::fs;

/// Largest buffer for an entry of the user or group database, in bytes; larger groups are shown without a
/// name.
const ENTRY_BYTES_MAX: usize = 1 << 20;

/// Database to look up.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// Users.
    User,
    /// Groups.
    Group,
}

/// Returns the number of a user or group given by name or number.
pub fn id_of(kind: Kind, text: &str) -> Option<u32> {
    if let Ok(number) = text.parse() {
        return Some(number);
    }
    let name = CString::new(text).ok()?;
    match kind {
        Kind::User => with_buffer(|buffer, result: &mut *mut libc::passwd, entry: &mut libc::passwd| {
            // SAFETY: the name ends with NUL, the buffer has its length, the other pointers are to live
            // variables.
            unsafe { libc::getpwnam_r(name.as_ptr(), entry, buffer.as_mut_ptr(), buffer.len(), result) }
        })
        .map(|(entry, _)| entry.pw_uid),
        Kind::Group => with_buffer(|buffer, result: &mut *mut libc::group, entry: &mut libc::group| {
            // SAFETY: as above.
            unsafe { libc::getgrnam_r(name.as_ptr(), entry, buffer.as_mut_ptr(), buffer.len(), result) }
        })
        .map(|(entry, _)| entry.gr_gid),
    }
}

/// Calls `find` with growing buffers. Returns the entry and the buffer that its pointers refer to.
fn with_buffer<T>(
    find: impl Fn(&mut [libc::c_char], &mut *mut T, &mut T) -> libc::c_int,
) -> Option<(T, Vec<libc::c_char>)> {
    let mut size = 4096;
    loop {
        let mut buffer: Vec<libc::c_char> = vec![0; size];
        // SAFETY: used with `passwd` and `group` only: numbers and pointers, for which zero bytes are valid.
        let mut entry: T = unsafe { std::mem::zeroed() };
        let mut result = std::ptr::null_mut();
        match find(&mut buffer, &mut result, &mut entry) {
            error if error == Errno::RANGE.raw_os_error() && size < ENTRY_BYTES_MAX => size *= 4,
            0 if !result.is_null() => return Some((entry, buffer)),
            _ => return None,
        }
    }
}

/// Cache of names of users and groups, since each lookup takes a search of files or a network request.
#[derive(Debug, Default)]
pub struct Names {
    known: HashMap<(Kind, u32), String>,
}

impl Names {
    /// Returns the name of a user or group, or its number if it has none.
    pub fn of(&mut self, kind: Kind, id: u32) -> &str {
        self.known.entry((kind, id)).or_insert_with(|| name_of(kind, id).unwrap_or_else(|| id.to_string()))
    }
}

fn name_of(kind: Kind, id: u32) -> Option<String> {
    let text = |name: *const libc::c_char| {
        // SAFETY: the name is a NUL-terminated string in the buffer, which lives as long as this closure's
        // caller holds it.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    };
    match kind {
        Kind::User => {
            let (entry, _buffer) =
                with_buffer(|buffer, result: &mut *mut libc::passwd, entry: &mut libc::passwd| {
                    // SAFETY: the buffer has its length, the other pointers are to live variables.
                    unsafe { libc::getpwuid_r(id, entry, buffer.as_mut_ptr(), buffer.len(), result) }
                })?;
            Some(text(entry.pw_name))
        }
        Kind::Group => {
            let (entry, _buffer) =
                with_buffer(|buffer, result: &mut *mut libc::group, entry: &mut libc::group| {
                    // SAFETY: as above.
                    unsafe { libc::getgrgid_r(id, entry, buffer.as_mut_ptr(), buffer.len(), result) }
                })?;
            Some(text(entry.gr_name))
        }
    }
}

/// Parses a project: a number, a name of `/etc/projid`, or `u:USER` or `g:GROUP` for the number of that user
/// or group.
pub fn project_of(text: &str) -> Option<u32> {
    match text.split_once(':') {
        Some(("u" | "user", name)) => return id_of(Kind::User, name),
        Some(("g" | "group", name)) => return id_of(Kind::Group, name),
        _ => {}
    }
    // The largest number is reserved.
    if let Ok(number) = text.parse::<u32>() {
        return Some(number).filter(|number| *number != u32::MAX);
    }
    find_project(&fs::read_to_string("/etc/projid").ok()?, text)
}

/// Returns the name of a project in `/etc/projid`, or its number if it has none.
pub fn project_name(id: u32) -> String {
    let file = fs::read_to_string("/etc/projid").unwrap_or_default();
    name_of_project(&file, id).map_or_else(|| id.to_string(), str::to_owned)
}

/// Returns the name of a number in the text of a projid(5) file.
fn name_of_project(file: &str, id: u32) -> Option<&str> {
    let mut entries = file.lines().filter_map(|line| line.split_once(':'));
    entries.find(|(_, number)| number.trim().parse() == Ok(id)).map(|(name, _)| name.trim())
}

/// Returns the number of a name in the text of a projid(5) file.
fn find_project(file: &str, name: &str) -> Option<u32> {
    file.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(known, _)| known.trim() == name)
        .and_then(|(_, number)| number.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_groups_are_known_by_name_or_number() {
        assert_eq!(id_of(Kind::User, "root"), Some(0));
        assert_eq!(id_of(Kind::User, "0"), Some(0));
        assert_eq!(id_of(Kind::Group, "root"), Some(0));
        assert_eq!(id_of(Kind::User, "4294967295"), Some(u32::MAX));
        assert_eq!(id_of(Kind::User, "no-such-user-here"), None);
        let mut names = Names::default();
        assert_eq!(names.of(Kind::User, 0), "root");
        assert_eq!(names.of(Kind::Group, 3_999_999_999), "3999999999");
    }

    #[test]
    fn projects_have_names_in_a_file() {
        assert_eq!(find_project("# no\none:1\n two : 22 \n", "two"), Some(22));
        assert_eq!(find_project("one:1\n", "none"), None);
        assert_eq!(find_project("one:x\n", "one"), None);
        assert_eq!(name_of_project("# no\none:1\n two : 22 \n", 22), Some("two"));
        assert_eq!(name_of_project("one:1\n", 2), None);
        assert_eq!(project_of("42"), Some(42));
        assert_eq!(project_of("4294967295"), None);
        assert_eq!(project_of("u:root"), Some(0));
        assert_eq!(project_of("group:root"), Some(0));
    }
}
