use super::*;

fn with_reply(opcode: u32, bulk: usize, work: impl FnOnce(&mut Reply<'_>)) -> (State, Vec<u8>, Vec<u8>) {
    let (mut small, mut bulk) = ([0u8; SMALL_SIZE], vec![0u8; bulk]);
    let mut reply = Reply::new(opcode, &mut small, &mut bulk);
    work(&mut reply);
    let state = reply.state();
    (state, small.to_vec(), bulk)
}

#[test]
fn errnos_that_the_kernel_refuses_become_eio() {
    for (errno, expected) in [(libc::ENOENT, libc::ENOENT), (0, libc::EIO), (-2, libc::EIO), (512, libc::EIO)]
    {
        let (state, ..) = with_reply(opcode::LOOKUP, 0, |reply| reply.error(errno));
        assert_eq!(state, State::Error(Errno::from_raw_os_error(expected)));
    }
}

#[test]
fn a_creation_is_an_entry_and_an_open_file() {
    let entry = Entry {
        node_id: 5,
        generation: 1,
        entry_timeout: Duration::MAX,
        attr_timeout: Duration::from_millis(1500),
        attr: Attr { ino: 5, ..Attr::default() },
    };
    let opened = Opened { fh: 9, flags: OpenFlags::DIRECT_IO, backing_id: 0 };
    let (state, small, _) = with_reply(opcode::CREATE, 0, |reply| reply.created(&entry, &opened));
    assert_eq!(state, State::Small(128 + 16));
    let out = EntryOut::read_from(&small).expect("long enough");
    assert_eq!((out.nodeid, out.attr_valid, out.attr_valid_nsec), (5, 1, 500_000_000));
    assert_eq!(out.entry_valid, u64::from(u32::MAX), "no overflow in the kernel's clock");
    assert_eq!(OpenOut::read_from(&small[128..]).map(|out| (out.fh, out.open_flags)), Some((9, 1)));
}

#[test]
fn a_directory_takes_what_fits_and_says_when_it_is_full() {
    let name = |name| DirEntry { ino: 3, next_offset: 1, kind: 8, name };
    let (state, _, bulk) = with_reply(opcode::READDIR, 4096, |reply| {
        let mut buffer = reply.directory(24 + 8 + 24 + 16);
        assert!(buffer.is_empty());
        assert!(!buffer.push(&name(b"12345678")));
        assert!(!buffer.push(&name(b"123456789")));
        assert!(buffer.push(&name(b"x")), "full");
    });
    assert_eq!(state, State::Bulk(24 + 8 + 24 + 16));
    let second = Dirent::read_from(&bulk[32..]).expect("long enough");
    assert_eq!((second.namelen, second.typ, second.off), (9, 8, 1));
    assert_eq!(&bulk[56..72], b"123456789\0\0\0\0\0\0\0");
}

#[test]
fn a_directory_never_grows_beyond_the_transports_buffer() {
    let (state, ..) = with_reply(opcode::READDIRPLUS, 160, |reply| {
        let entry = Entry {
            node_id: 1,
            generation: 0,
            entry_timeout: Duration::ZERO,
            attr_timeout: Duration::ZERO,
            attr: Attr::default(),
        };
        let mut buffer = reply.directory(u32::MAX);
        assert!(!buffer.push_plus(&entry, &DirEntry { ino: 1, next_offset: 1, kind: 4, name: b"a" }));
        assert!(buffer.push_plus(&entry, &DirEntry { ino: 1, next_offset: 2, kind: 4, name: b"b" }));
    });
    assert_eq!(state, State::Bulk(160));
}

#[test]
fn values_that_do_not_fit_are_errors() {
    let (state, ..) = with_reply(opcode::GETXATTR, 4, |reply| reply.bytes(b"12345"));
    assert_eq!(state, State::Error(Errno::RANGE));
    let (state, ..) = with_reply(opcode::READ, 4, |reply| reply.read_done(5));
    assert_eq!(state, State::Error(Errno::IO));
    let (state, ..) = with_reply(opcode::IOCTL, 17, |reply| reply.ioctl(0, b"12"));
    assert_eq!(state, State::Error(Errno::IO));
    let (state, ..) = with_reply(opcode::LOOKUP, 0, |reply| assert!(reply.read_buffer(10).is_empty()));
    assert_eq!(state, State::Unanswered);
}

#[test]
fn copies_are_answered_in_the_form_of_the_request() {
    let (state, small, _) = with_reply(opcode::COPY_FILE_RANGE, 0, |reply| reply.copied(1 << 40));
    assert_eq!(
        (state, WriteOut::read_from(&small).map(|out| out.size)),
        (State::Small(8), Some(0xffff_f000))
    );
    let (_, small, _) = with_reply(opcode::COPY_FILE_RANGE_64, 0, |reply| reply.copied(1 << 40));
    assert_eq!(CopyFileRangeOut::read_from(&small).map(|out| out.bytes_copied), Some(1 << 40));
}
