//! Permission checks: owner, group, supplementary groups, ACL, sticky bit, capabilities.
//!
//! The kernel does not check (`default_permissions` costs a request per create); servers do, with these
//! functions. They are pure and lazy: [`Verdict::NeedFull`] means that only the caller's groups or
//! capabilities can decide, so they must be fetched and the check repeated.
//!
//! The rules are those of POSIX for file access, and of Linux in acl(5) ("Access check algorithm"),
//! capabilities(7) and path_resolution(7).

use crate::acl::Acl;
use crate::attr::{Attr, AttrFlags, S_ISVTX};
use crate::cred::{Caps, Cred};
use crate::status::Status;

/// Right to read, or to list a directory.
pub const READ: u8 = 4;
/// Right to write, or to change a directory.
pub const WRITE: u8 = 2;
/// Right to execute, or to search a directory.
pub const EXEC: u8 = 1;

/// Outcome of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Allowed.
    Granted,
    /// Refused, whatever groups or capabilities the caller has.
    Denied,
    /// The caller's groups or capabilities decide and are unknown.
    NeedFull,
}

impl Verdict {
    /// Turns the verdict into a result, with `refusal` for [`Verdict::Denied`].
    ///
    /// # Errors
    /// `refusal`, or [`Status::NEED_CREDENTIALS`].
    pub fn or(self, refusal: Status) -> Result<(), Status> {
        match self {
            Verdict::Granted => Ok(()),
            Verdict::Denied => Err(refusal),
            Verdict::NeedFull => Err(Status::NEED_CREDENTIALS),
        }
    }
}

/// Checks whether the caller has a capability. Only root's are fetched lazily: other users have none unless
/// known.
pub fn capable(cred: &Cred, cap: Caps) -> Verdict {
    match &cred.full {
        Some(full) if full.caps.contains(cap) => Verdict::Granted,
        Some(_) => Verdict::Denied,
        None => Verdict::NeedFull,
    }
}

/// Checks whether the caller is in group `gid`.
pub fn in_group(cred: &Cred, gid: u32) -> Verdict {
    if cred.gid == gid {
        return Verdict::Granted;
    }
    match &cred.full {
        Some(full) if full.groups.contains(&gid) => Verdict::Granted,
        Some(_) => Verdict::Denied,
        None => Verdict::NeedFull,
    }
}

/// Checks whether the caller may change the inode's group to `gid`: the owner to a group of the owner's,
/// others with [`Caps::CHOWN`].
pub fn may_change_group(cred: &Cred, attr: &Attr, gid: u32) -> Verdict {
    if cred.uid == attr.uid {
        let member = if gid == attr.gid { Verdict::Granted } else { in_group(cred, gid) };
        if member != Verdict::Denied {
            return member;
        }
    }
    capable(cred, Caps::CHOWN)
}

/// Checks whether the caller is the owner or counts as one ([`Caps::FOWNER`]).
pub fn owner_or_capable(attr: &Attr, cred: &Cred) -> Verdict {
    if cred.uid == attr.uid { Verdict::Granted } else { capable(cred, Caps::FOWNER) }
}

/// Checks whether the caller has all rights in `mask` ([`READ`], [`WRITE`], [`EXEC`]) on the inode.
///
/// `acl` is its access ACL, if it has one beyond the mode bits.
pub fn access(attr: &Attr, acl: Option<&Acl>, cred: &Cred, mask: u8) -> Verdict {
    let by_class = match acl {
        Some(acl) if cred.uid != attr.uid => acl_class(acl, attr, cred, mask),
        _ => mode_class(attr, cred, mask),
    };
    match by_class {
        Verdict::Granted => Verdict::Granted,
        // Capabilities may override; unknown groups are fetched together with them.
        Verdict::NeedFull => Verdict::NeedFull,
        Verdict::Denied => override_by_capability(attr, cred, mask),
    }
}

fn mode_class(attr: &Attr, cred: &Cred, mask: u8) -> Verdict {
    let bits = |shift: u32| ((attr.mode >> shift) & 7) as u8;
    let allows = |bits: u8| if mask & !bits == 0 { Verdict::Granted } else { Verdict::Denied };
    if cred.uid == attr.uid {
        return allows(bits(6));
    }
    let (by_group, by_other) = (allows(bits(3)), allows(bits(0)));
    if by_group == by_other {
        return by_group;
    }
    match in_group(cred, attr.gid) {
        Verdict::Granted => by_group,
        Verdict::Denied => by_other,
        Verdict::NeedFull => Verdict::NeedFull,
    }
}

fn acl_class(acl: &Acl, attr: &Attr, cred: &Cred, mask: u8) -> Verdict {
    let allows = |bits: u8| if mask & !bits == 0 { Verdict::Granted } else { Verdict::Denied };
    if let Some(bits) = acl.named_user(cred.uid) {
        return allows(bits & acl.mask());
    }
    let mut matched = false;
    for (gid, bits) in acl.groups(attr.gid) {
        match in_group(cred, gid) {
            Verdict::NeedFull => return Verdict::NeedFull,
            Verdict::Denied => {}
            Verdict::Granted => {
                matched = true;
                if mask & !(bits & acl.mask()) == 0 {
                    return Verdict::Granted;
                }
            }
        }
    }
    if matched { Verdict::Denied } else { allows(acl.other()) }
}

fn override_by_capability(attr: &Attr, cred: &Cred, mask: u8) -> Verdict {
    let somebody_may_execute = attr.mode & 0o111 != 0;
    if attr.is_dir() || mask & EXEC == 0 || somebody_may_execute {
        match capable(cred, Caps::DAC_OVERRIDE) {
            Verdict::Denied => {}
            verdict => return verdict,
        }
    }
    let only_reads = if attr.is_dir() { mask & WRITE == 0 } else { mask == READ };
    if only_reads { capable(cred, Caps::DAC_READ_SEARCH) } else { Verdict::Denied }
}

/// True if all users may search this directory, so that names found in it may be cached for all.
///
/// The kernel walks cached names without a request, so names in other directories must not be cached.
pub fn searchable_by_all(directory: &Attr) -> bool {
    directory.mode & 0o111 == 0o111 && !directory.flags.contains(AttrFlags::HAS_ACL)
}

/// Checks whether the sticky bit of `parent` keeps the caller from removing or renaming `entry`.
///
/// # Errors
/// `EPERM` if it does, [`Status::NEED_CREDENTIALS`] if capabilities decide.
pub fn check_sticky(parent: &Attr, entry: &Attr, cred: &Cred) -> Result<(), Status> {
    if parent.mode & S_ISVTX == 0 || cred.uid == entry.uid || cred.uid == parent.uid {
        return Ok(());
    }
    capable(cred, Caps::FOWNER).or(Status::EPERM)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acl::{AclEntry, AclTag};
    use crate::attr::FileKind;
    use crate::cred::FullCred;

    fn file(mode: u32, uid: u32, gid: u32) -> Attr {
        Attr { mode: FileKind::Regular.mode_bits() | mode, uid, gid, ..Attr::default() }
    }

    fn full(uid: u32, gid: u32, groups: &[u32], caps: Caps) -> Cred {
        Cred { uid, gid, full: Some(FullCred { groups: groups.to_vec(), caps }) }
    }

    #[test]
    fn the_owner_class_decides_for_the_owner_even_when_others_may_more() {
        let attr = file(0o077, 10, 20);
        assert_eq!(access(&attr, None, &full(10, 20, &[], Caps::empty()), READ), Verdict::Denied);
        assert_eq!(access(&attr, None, &full(11, 20, &[], Caps::empty()), READ), Verdict::Granted);
    }

    #[test]
    fn groups_are_asked_for_only_when_they_decide() {
        let stranger = Cred::new(30, 30);
        assert_eq!(access(&file(0o644, 10, 20), None, &stranger, READ), Verdict::Granted);
        assert_eq!(access(&file(0o640, 10, 20), None, &stranger, READ), Verdict::NeedFull);
        let member = full(30, 30, &[7, 20], Caps::empty());
        assert_eq!(access(&file(0o640, 10, 20), None, &member, READ), Verdict::Granted);
        assert_eq!(access(&file(0o604, 10, 20), None, &member, READ), Verdict::Denied);
    }

    #[test]
    fn capabilities_override_but_execute_needs_an_execute_bit() {
        let root = Cred::system();
        assert_eq!(access(&file(0o000, 10, 20), None, &root, READ | WRITE), Verdict::Granted);
        assert_eq!(access(&file(0o600, 10, 20), None, &root, EXEC), Verdict::Denied);
        assert_eq!(access(&file(0o001, 10, 20), None, &root, EXEC), Verdict::Granted);
        let reader = full(30, 30, &[], Caps::DAC_READ_SEARCH);
        assert_eq!(access(&file(0o000, 10, 20), None, &reader, READ), Verdict::Granted);
        assert_eq!(access(&file(0o000, 10, 20), None, &reader, WRITE), Verdict::Denied);
    }

    #[test]
    fn root_without_capabilities_is_an_ordinary_user() {
        assert_eq!(
            access(&file(0o600, 10, 20), None, &full(0, 0, &[], Caps::empty()), READ),
            Verdict::Denied
        );
    }

    #[test]
    fn acl_entries_are_masked_and_groups_are_or_ed_by_entry() {
        let acl = Acl::from_entries(vec![
            AclEntry { tag: AclTag::UserObj, perm: 7, id: 0 },
            AclEntry { tag: AclTag::User, perm: 7, id: 30 },
            AclEntry { tag: AclTag::GroupObj, perm: 0, id: 0 },
            AclEntry { tag: AclTag::Group, perm: 4, id: 40 },
            AclEntry { tag: AclTag::Mask, perm: 5, id: 0 },
            AclEntry { tag: AclTag::Other, perm: 0, id: 0 },
        ])
        .expect("a valid ACL");
        let attr = file(0o750, 10, 20);
        let none = Caps::empty();
        assert_eq!(access(&attr, Some(&acl), &full(30, 30, &[], none), READ | EXEC), Verdict::Granted);
        assert_eq!(access(&attr, Some(&acl), &full(30, 30, &[], none), WRITE), Verdict::Denied);
        assert_eq!(access(&attr, Some(&acl), &full(31, 40, &[], none), READ), Verdict::Granted);
        assert_eq!(access(&attr, Some(&acl), &full(31, 20, &[], none), READ), Verdict::Denied);
        assert_eq!(access(&attr, Some(&acl), &Cred::new(31, 31), READ), Verdict::NeedFull);
    }

    #[test]
    fn sticky_directories_protect_entries_of_others() {
        let parent = Attr { mode: FileKind::Directory.mode_bits() | 0o1777, uid: 1, ..Attr::default() };
        let entry = file(0o644, 2, 2);
        assert_eq!(check_sticky(&parent, &entry, &Cred::new(2, 2)), Ok(()));
        assert_eq!(check_sticky(&parent, &entry, &Cred::new(1, 1)), Ok(()));
        assert_eq!(check_sticky(&parent, &entry, &full(3, 3, &[], Caps::empty())), Err(Status::EPERM));
        assert_eq!(check_sticky(&parent, &entry, &full(3, 3, &[], Caps::FOWNER)), Ok(()));
    }
}
