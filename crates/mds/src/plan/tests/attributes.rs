//! Attributes, extended attributes and ACLs in the POSIX model, written from the manual pages; and cases of
//! their rules.

use super::model::{Node, Posix, WRITE};
use super::*;
use nacre_layout::LayoutRequest;
use nacre_types::{AttrFlags, Cred, SetAttrValid, StatusResult};

const NAMES: [&[u8]; 4] = [b"user.a", b"trusted.b", b"security.c", b"security.capability"];

fn rights(random: &mut fastrand::Rng) -> Rights {
    let digit = |random: &mut fastrand::Rng| random.u32(0..8);
    let user = random.bool().then(|| (random.u32(1000..1002), digit(random), digit(random)));
    Rights { owner: digit(random) | 4, user, group: digit(random), other: digit(random) }
}

/// A change of any inode that was ever created.
pub(super) fn step(random: &mut fastrand::Rng, posix: &Posix) -> Step {
    let id = random.usize(0..posix.len());
    let name = NAMES[random.usize(0..NAMES.len())];
    match random.u8(0..14) {
        0..8 => Step::SetAttr { id, set: set(random, posix.clock) },
        8..10 => {
            let flags = [XattrFlags::empty(), XattrFlags::CREATE, XattrFlags::REPLACE][random.usize(0..3)];
            Step::SetXattr { id, name, value: vec![random.u8(..); random.usize(0..4)], flags }
        }
        10 => Step::RemoveXattr { id, name },
        _ => Step::SetAcl { id, is_default: random.bool(), acl: random.bool().then(|| rights(random)) },
    }
}

/// Times are past: of a directory in shards the latest of their times counts, which one to come would be for long.
fn set(random: &mut fastrand::Rng, now: i64) -> SetAttr {
    use SetAttrValid as V;
    let calls = [
        V::MODE,
        V::MODE,
        V::UID | V::KILL_PRIV,
        V::GID | V::KILL_PRIV,
        V::UID | V::GID | V::KILL_PRIV,
        V::SIZE,
        V::SIZE | V::KILL_PRIV,
        V::SIZE | V::OPEN_FOR_WRITE,
        V::ATIME | V::MTIME,
        V::ATIME_NOW | V::MTIME_NOW,
        V::MTIME_NOW,
        V::ATIME,
    ];
    let modes = [0o777, 0o755, 0o1777, 0o2775, 0o2711, 0o4711, 0o700, 0o6765, 0o2644];
    let time = |sec| Timestamp { sec, nsec: 0 };
    SetAttr {
        valid: calls[random.usize(0..calls.len())],
        mode: modes[random.usize(0..modes.len())],
        uid: [0, 1000, 1001][random.usize(0..3)],
        gid: [0, 50, 1000, 1001][random.usize(0..4)],
        size: random.u64(0..3),
        atime: time(random.i64(0..now)),
        mtime: time(random.i64(0..now)),
        ..SetAttr::default()
    }
}

impl Node {
    /// Applies a directory's default ACL to a new inode in it.
    pub(super) fn inherit(&mut self, default: Rights) {
        let mode = self.seen.mode;
        let mut acl = default;
        acl.owner &= mode >> 6;
        match &mut acl.user {
            Some((.., mask)) => *mask &= mode >> 3,
            None => acl.group &= mode >> 3,
        }
        acl.other &= mode;
        self.take_acl(acl);
        self.default_acl = Some(default).filter(|_| self.seen.kind == FileKind::Directory);
    }

    fn take_acl(&mut self, acl: Rights) {
        let group = acl.user.map_or(acl.group, |(.., mask)| mask);
        self.seen.mode = (self.seen.mode & !0o777) | (acl.owner << 6) | (group << 3) | acl.other;
        self.acl = Some(acl).filter(|acl| acl.user.is_some());
    }

    /// Removes privileges, which end with a write or a change of the owner.
    fn lose_privileges(&mut self, may_keep: bool) {
        if self.seen.kind == FileKind::Directory {
            return;
        }
        self.seen.mode &= !0o4000;
        if self.seen.mode & 0o010 != 0 || !may_keep {
            self.seen.mode &= !0o2000;
        }
        self.seen.xattrs.remove(&b"security.capability"[..]);
    }
}

impl Posix {
    fn is_owner(&self, cred: &Cred, id: Id) -> bool {
        cred.uid == self.nodes[id].seen.uid || Posix::has(cred, Caps::FOWNER)
    }

    fn there(&self, id: Id) -> StatusResult<()> {
        if self.exists(id) { Ok(()) } else { Err(Status::ENOENT) }
    }

    fn may_keep_group(&self, cred: &Cred, id: Id) -> bool {
        Posix::in_group(cred, self.nodes[id].seen.gid) || Posix::has(cred, Caps::FSETID)
    }

    pub(super) fn set_attr(&mut self, cred: &Cred, id: Id, set: &SetAttr) -> StatusResult<()> {
        use SetAttrValid as V;
        self.there(id)?;
        let (valid, seen) = (set.valid, &self.nodes[id].seen);
        if valid.contains(V::SIZE) {
            match seen.kind {
                FileKind::Directory => return Err(Status::EISDIR),
                FileKind::Regular => {}
                _ => return Err(Status::EINVAL),
            }
            if !valid.contains(V::OPEN_FOR_WRITE) {
                self.may(cred, id, WRITE)?;
            }
        }
        let is_root = Posix::has(cred, Caps::CHOWN);
        let own = cred.uid == seen.uid;
        let to_own_group = own && (set.gid == seen.gid || Posix::in_group(cred, set.gid));
        let is_refused = (valid.contains(V::UID) && !(is_root || own && set.uid == seen.uid))
            || (valid.contains(V::GID) && !(is_root || to_own_group))
            || (valid.intersects(V::MODE | V::ATIME | V::MTIME) && !self.is_owner(cred, id));
        if is_refused {
            return Err(Status::EPERM);
        }
        if valid.intersects(V::ATIME_NOW | V::MTIME_NOW) && !self.is_owner(cred, id) {
            // utimensat(2): setting both to now needs the right to write, all else the owner.
            if !valid.contains(V::ATIME_NOW | V::MTIME_NOW) {
                return Err(Status::EPERM);
            }
            self.may(cred, id, WRITE)?;
        }
        let (may_keep, now) = (self.may_keep_group(cred, id), self.clock);
        let node = &mut self.nodes[id];
        if valid.intersects(V::UID | V::GID | V::KILL_PRIV) {
            node.lose_privileges(may_keep);
        }
        if valid.contains(V::UID) {
            node.seen.uid = set.uid;
        }
        if valid.contains(V::GID) {
            node.seen.gid = set.gid;
        }
        if valid.contains(V::MODE) {
            node.seen.mode = if may_keep { set.mode } else { set.mode & !0o2000 };
            if let Some(acl) = &mut node.acl {
                (acl.owner, acl.other) = ((set.mode >> 6) & 7, set.mode & 7);
                acl.user = acl.user.map(|(uid, rights, _)| (uid, rights, (set.mode >> 3) & 7));
            }
        }
        if valid.contains(V::SIZE) {
            (node.seen.size, node.seen.mtime) = (set.size, now);
        }
        let time = |is_now, exact, given: Timestamp, old| match valid {
            valid if valid.contains(is_now) => now,
            valid if valid.contains(exact) => given.sec,
            _ => old,
        };
        node.seen.atime = time(V::ATIME_NOW, V::ATIME, set.atime, node.seen.atime);
        node.seen.mtime = time(V::MTIME_NOW, V::MTIME, set.mtime, node.seen.mtime);
        Ok(())
    }

    fn may_set_xattr(&self, cred: &Cred, id: Id, name: &[u8]) -> StatusResult<()> {
        self.there(id)?;
        let seen = &self.nodes[id].seen;
        let needed = match name {
            b"security.capability" => Caps::SETFCAP,
            name if !name.starts_with(b"user.") => Caps::SYS_ADMIN,
            _ => {
                let is_locked_long = self.is_dir(id) && seen.mode & 0o1000 != 0 && !self.is_owner(cred, id);
                if seen.kind == FileKind::Symlink || is_locked_long {
                    return Err(Status::EPERM);
                }
                return self.may(cred, id, WRITE);
            }
        };
        if Posix::has(cred, needed) { Ok(()) } else { Err(Status::EPERM) }
    }

    pub(super) fn set_xattr(
        &mut self,
        cred: &Cred,
        id: Id,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> StatusResult<()> {
        self.may_set_xattr(cred, id, name)?;
        let xattrs = &mut self.nodes[id].seen.xattrs;
        match xattrs.contains_key(name) {
            true if flags == XattrFlags::CREATE => return Err(Status::EEXIST),
            false if flags == XattrFlags::REPLACE => return Err(Status::ENODATA),
            _ => xattrs.insert(name.to_vec(), value.to_vec()),
        };
        Ok(())
    }

    pub(super) fn remove_xattr(&mut self, cred: &Cred, id: Id, name: &[u8]) -> StatusResult<()> {
        self.may_set_xattr(cred, id, name)?;
        self.nodes[id].seen.xattrs.remove(name).map(drop).ok_or(Status::ENODATA)
    }

    pub(super) fn set_acl(
        &mut self,
        cred: &Cred,
        id: Id,
        is_default: bool,
        acl: Option<Rights>,
    ) -> StatusResult<()> {
        self.there(id)?;
        if self.nodes[id].seen.kind == FileKind::Symlink {
            return Err(Status::EOPNOTSUPP);
        }
        if is_default && !self.is_dir(id) {
            return acl.map_or(Ok(()), |_| Err(Status::EACCES));
        }
        if !self.is_owner(cred, id) {
            return Err(Status::EPERM);
        }
        let may_keep = self.may_keep_group(cred, id);
        let node = &mut self.nodes[id];
        match (is_default, acl) {
            (true, acl) => node.default_acl = acl,
            (false, None) => node.acl = None,
            (false, Some(acl)) => {
                node.take_acl(acl);
                if !may_keep {
                    node.seen.mode &= !0o2000;
                }
            }
        }
        Ok(())
    }
}

/// A file of user 1000 and group 50 with this mode, optionally with a capability.
fn file(mode: u32, has_capability: bool) -> InodeRecord {
    let mut record = record(FileKind::Regular, mode, 1000);
    record.attr.gid = 50;
    record.attr.flags.set(AttrFlags::HAS_CAPABILITY, has_capability);
    record
}

fn amended(record: &InodeRecord) -> Amended<'_> {
    Amended { record, shards: &[], end: 100, is_writer: false }
}

#[test]
fn attributes_change_by_the_rules_of_linux() {
    use SetAttrValid as V;
    let [root, alice, bob, bare_root] = users();
    let stranger = Cred { uid: 7, gid: 7, full: Some(FullCred { groups: vec![], caps: Caps::empty() }) };
    let (set, plain) = (
        |valid| SetAttr { valid, mode: 0o2755, uid: 1001, gid: 50, size: 5, ..SetAttr::default() },
        file(0o664, false),
    );
    let cases = [
        ("chmod by the owner", &alice, V::MODE, Ok(0o2755)),
        ("chmod by another user", &bob, V::MODE, Err(Status::EPERM)),
        ("chmod by root without capabilities", &bare_root, V::MODE, Err(Status::EPERM)),
        ("a file given away", &alice, V::UID, Err(Status::EPERM)),
        ("a file given away by root", &root, V::UID, Ok(0o664)),
        ("a group of the owner", &alice, V::GID, Ok(0o664)),
        ("a group of somebody else", &bob, V::GID, Err(Status::EPERM)),
        ("a truncation by the group", &bob, V::SIZE, Ok(0o664)),
        ("a truncation by anybody", &stranger, V::SIZE, Err(Status::EACCES)),
        ("a truncation of what is open", &stranger, V::SIZE | V::OPEN_FOR_WRITE, Ok(0o664)),
        ("both times to now by a writer", &bob, V::ATIME_NOW | V::MTIME_NOW, Ok(0o664)),
        ("both times to now by anybody", &stranger, V::ATIME_NOW | V::MTIME_NOW, Err(Status::EACCES)),
        ("one time to now by a writer", &bob, V::MTIME_NOW, Err(Status::EPERM)),
        ("a given time by a writer", &bob, V::ATIME | V::MTIME, Err(Status::EPERM)),
        ("now and a given time by a writer", &bob, V::ATIME_NOW | V::MTIME, Err(Status::EPERM)),
        ("another project by a writer", &bob, V::PROJID, Err(Status::EPERM)),
    ];
    for (case, cred, valid, outcome) in cases {
        let found = set_attr(cred, &amended(&plain), &set(valid), Timestamp::default());
        let found = found.map(|amendment| amendment.expect("a change").record.attr.mode & 0o7777);
        assert_eq!(found, outcome, "{case}");
    }
    let unknown = Cred { full: None, ..stranger };
    let found = set_attr(&unknown, &amended(&plain), &set(V::MODE), Timestamp::default());
    assert_eq!(found.map(drop), Err(Status::NEED_CREDENTIALS));
}

#[test]
fn privileges_go_with_the_owner_and_with_writes() {
    use SetAttrValid as V;
    let [root, alice, bob, _] = users();
    let set = |valid| SetAttr { valid, mode: 0o6755, uid: 1000, gid: 1001, ..SetAttr::default() };
    for (case, cred, mode, valid, left) in [
        ("chown clears both bits", &root, 0o6755, V::UID, 0o755),
        ("set-group-id without execution is kept by a member", &root, 0o2644, V::GID, 0o2644),
        ("so it is for a write", &alice, 0o2664, V::SIZE | V::KILL_PRIV, 0o2664),
        ("a truncation that keeps them", &alice, 0o6755, V::SIZE, 0o6755),
        ("a truncation by a writer", &bob, 0o6775, V::SIZE | V::KILL_PRIV, 0o775),
        ("chmod keeps them for a member", &alice, 0o755, V::MODE, 0o6755),
    ] {
        let before = file(mode, true);
        let plan = set_attr(cred, &amended(&before), &set(valid), Timestamp::default());
        let Amendment { record, xattrs, .. } = plan.expect("allowed").expect("a change");
        assert_eq!(record.attr.mode & 0o7777, left, "{case}");
        let drops = valid.intersects(V::UID | V::GID | V::KILL_PRIV);
        assert_eq!(xattrs.iter().any(|change| change.value.is_none()), drops, "{case}: the capability");
        assert_eq!(record.attr.flags.contains(AttrFlags::HAS_CAPABILITY), !drops, "{case}: the flag");
    }
    // The announcement of a write changes nothing, unless the caller could not write.
    let (announcement, stranger) = (set(V::CTIME | V::KILL_PRIV), Cred { uid: 7, gid: 7, ..bob.clone() });
    let stranger = Cred { full: Some(FullCred { groups: vec![], caps: Caps::empty() }), ..stranger };
    let before = file(0o4664, false);
    for (cred, is_writer, outcome) in [
        (&bob, false, Ok(false)),
        (&stranger, true, Ok(false)),
        (&stranger, false, Err(Status::EPERM)),
        (&alice, false, Ok(true)),
    ] {
        let amended = Amended { is_writer, ..amended(&before) };
        let found = set_attr(cred, &amended, &announcement, Timestamp::default());
        assert_eq!(found.map(|amendment| amendment.is_some()), outcome, "{cred:?}");
    }
}

#[test]
fn sizes_are_checked_by_kind_and_limit() {
    let root = Cred::system();
    let set = |size| SetAttr { valid: SetAttrValid::SIZE, size, ..SetAttr::default() };
    let limit = nacre_types::limits::FILE_SIZE_MAX;
    for (kind, size, outcome) in [
        (FileKind::Directory, 0, Err(Status::EISDIR)),
        (FileKind::Symlink, 0, Err(Status::EINVAL)),
        (FileKind::Regular, limit + 1, Err(Status::EFBIG)),
        (FileKind::Regular, 101, Err(Status::ENODATA)),
        (FileKind::Regular, 100, Ok(100)),
        (FileKind::Regular, 0, Ok(0)),
    ] {
        let before = record(kind, 0o644, 1000);
        let found = set_attr(&root, &amended(&before), &set(size), Timestamp::default());
        let found = found.map(|amendment| amendment.expect("a change").record.attr.size);
        assert_eq!(found, outcome, "{kind:?} {size}");
    }
}

#[test]
fn layouts_are_set_where_no_data_is_lost_by_it() {
    let [root, alice, bob, _] = users();
    let requested =
        LayoutRequest::Plain(nacre_layout::LayoutSpec { stripe_count: Some(2), ..Default::default() });
    let (plain, directory) = (file(0o644, false), record(FileKind::Directory, 0o755, 1000));
    for (case, cred, record, requested, has_it_for_good, outcome) in [
        ("a file by its owner", &alice, &plain, &requested, false, Ok(true)),
        ("a file by another user", &bob, &plain, &requested, false, Err(Status::EACCES)),
        ("a file with data", &alice, &plain, &requested, true, Err(Status::EALREADY)),
        ("a directory", &root, &directory, &requested, false, Ok(true)),
        ("a default that is taken back", &root, &directory, &LayoutRequest::default(), false, Ok(false)),
        ("a symlink", &root, &record(FileKind::Symlink, 0o777, 1000), &requested, false, Err(Status::EINVAL)),
    ] {
        let laid = Laid { record, shards: &[], has_it_for_good };
        let found = set_layout(cred, &laid, requested, None, Timestamp::default());
        let found = found.map(|amendment| amendment.record.attr.flags.contains(AttrFlags::HAS_LAYOUT));
        assert_eq!(found, outcome, "{case}");
    }
}
