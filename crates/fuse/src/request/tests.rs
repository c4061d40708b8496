use super::*;
use crate::abi::*;
use rustix::io::Errno;

fn header(code: u32, total_extlen: u16) -> InHeader {
    InHeader {
        opcode: code,
        unique: 2,
        nodeid: 1,
        uid: 3,
        gid: 4,
        pid: 5,
        total_extlen,
        ..InHeader::default()
    }
}

fn parsed<'a>(code: u32, argument: &'a [u8], payload: &'a [u8]) -> Result<Operation<'a>, Errno> {
    parse(&Raw { header: header(code, 0), argument, payload }, true).map(|request| request.op)
}

#[test]
fn names_are_found_and_checked() {
    assert!(matches!(parsed(opcode::LOOKUP, &[], b"file\0"), Ok(Operation::Lookup { name: b"file" })));
    assert_eq!(parsed(opcode::LOOKUP, &[], b"file").err(), Some(Errno::IO), "no NUL");
    assert_eq!(parsed(opcode::LOOKUP, &[], b"\0").err(), Some(Errno::INVAL), "empty");
    assert_eq!(parsed(opcode::LOOKUP, &[], b"a/b\0").err(), Some(Errno::INVAL), "slash");
    let rename = Rename2In { newdir: 9, flags: 1, padding: 0 };
    match parsed(opcode::RENAME2, rename.as_bytes(), b"old\0new\0") {
        Ok(Operation::Rename { name: b"old", new_parent: 9, new_name: b"new", flags: 1 }) => {}
        other => panic!("{other:?}"),
    }
    match parsed(opcode::SYMLINK, &[], b"link\0../target\0") {
        Ok(Operation::Symlink { name: b"link", target: b"../target" }) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn attribute_values_follow_their_name_in_both_forms() {
    let long = SetXattrIn { size: 3, flags: 1, setxattr_flags: SETXATTR_ACL_KILL_SGID, padding: 0 };
    match parsed(opcode::SETXATTR, long.as_bytes(), b"user.a/b\0xyz") {
        Ok(Operation::SetXattr(SetXattr { name: b"user.a/b", value: b"xyz", flags: 1, kill_sgid: true })) => {
        }
        other => panic!("{other:?}"),
    }
    let short = SetXattrCompatIn { size: 3, flags: 2 };
    let raw =
        Raw { header: header(opcode::SETXATTR, 0), argument: short.as_bytes(), payload: b"user.a\0xyz" };
    match parse(&raw, false).map(|request| request.op) {
        Ok(Operation::SetXattr(SetXattr { name: b"user.a", value: b"xyz", flags: 2, kill_sgid: false })) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(
        parsed(opcode::SETXATTR, long.as_bytes(), b"user.a\0xy").err(),
        Some(Errno::IO),
        "value cut short"
    );
}

#[test]
fn extensions_give_the_parents_group_and_leave_the_name() {
    let create = CreateIn { flags: 2, mode: 0o100_644, umask: 0o22, open_flags: 0 };
    let mut payload = b"file\0".to_vec();
    // Extension header, number of groups, group; 16 bytes in total.
    for word in [16u32, EXT_GROUPS, 1, 1234] {
        payload.extend_from_slice(&word.to_ne_bytes());
    }
    let raw = Raw { header: header(opcode::CREATE, 2), argument: create.as_bytes(), payload: &payload };
    let request = parse(&raw, true).expect("a good request");
    assert_eq!(request.parent_group, Some(1234));
    assert!(matches!(request.op, Operation::Create { name: b"file", umask: 0o22, .. }));
    let raw = Raw { header: header(opcode::CREATE, 200), ..raw };
    assert_eq!(parse(&raw, true).err(), Some(Errno::IO), "extensions longer than the request");
}

#[test]
fn both_halves_of_the_init_flags_are_read() {
    let (first, second) = (InitIn { major: 7, minor: 45, max_readahead: 4096, flags: 1 << 30 }, 1u32 << 9);
    let ext = InitInExt { flags2: second, ..InitInExt::default() };
    match parsed(opcode::INIT, first.as_bytes(), ext.as_bytes()) {
        Ok(Operation::Init(init)) => assert_eq!(init.flags, InitFlags::INIT_EXT | InitFlags::OVER_IO_URING),
        other => panic!("{other:?}"),
    }
    match parsed(opcode::INIT, first.as_bytes(), &[]) {
        Ok(Operation::Init(init)) => assert_eq!(init.flags, InitFlags::INIT_EXT),
        other => panic!("{other:?}"),
    }
}

#[test]
fn times_to_set_are_told_apart() {
    let valid = SetAttrValid::ATIME | SetAttrValid::ATIME_NOW | SetAttrValid::MTIME | SetAttrValid::SIZE;
    let arg =
        SetAttrIn { valid: valid.bits(), mtime: -5i64 as u64, mtimensec: 7, size: 3, ..SetAttrIn::default() };
    let Ok(Operation::SetAttr(change)) = parsed(opcode::SETATTR, arg.as_bytes(), &[]) else {
        panic!("not a SETATTR")
    };
    assert_eq!(change.atime, Some(SetTime::Now));
    assert_eq!(change.mtime, Some(SetTime::At { seconds: -5, nanoseconds: 7 }));
    assert_eq!((change.size, change.mode, change.uid, change.fh), (Some(3), None, None, None));
}

#[test]
fn flock_and_fcntl_locks_are_told_apart() {
    for (lk_flags, code, expect_flock, expect_wait) in
        [(LK_FLOCK, opcode::SETLKW, true, true), (0, opcode::SETLK, false, false)]
    {
        let arg = LkIn { lk_flags, owner: 8, ..LkIn::default() };
        match parsed(code, arg.as_bytes(), &[]) {
            Ok(Operation::SetLk { owner: 8, flock, wait, .. }) => {
                assert_eq!((flock, wait), (expect_flock, expect_wait));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn forgets_are_counted_exactly() {
    let mut payload = Vec::new();
    for node in [5u64, 6] {
        payload.extend_from_slice(ForgetOne { nodeid: node, nlookup: node + 10 }.as_bytes());
    }
    let arg = BatchForgetIn { count: 2, dummy: 0 };
    let Ok(Operation::BatchForget { forgets }) = parsed(opcode::BATCH_FORGET, arg.as_bytes(), &payload)
    else {
        panic!("not a BATCH_FORGET")
    };
    assert_eq!(forgets.iter().collect::<Vec<_>>(), [(5, 15), (6, 16)]);
    let arg = BatchForgetIn { count: 3, dummy: 0 };
    assert_eq!(parsed(opcode::BATCH_FORGET, arg.as_bytes(), &payload).err(), Some(Errno::IO));
}
