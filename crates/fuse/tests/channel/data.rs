use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use nacre_env::sync::Mutex;
use nacre_fuse::nullfs::{NullFs, NullOptions};
use nacre_fuse::{Handler, Operation, Read, Reply, Request, SetXattr, TransportChoice};

use crate::support::*;

/// Stores the data of one file, and answers a few other requests in ways that need the payload area.
struct Keeper {
    null: NullFs,
    data: Mutex<Vec<u8>>,
    /// Requests with data that did not start on a page.
    misaligned: Mutex<Vec<String>>,
}

impl Keeper {
    fn new() -> Arc<Keeper> {
        let null = NullFs::new(NullOptions { files: vec![("file".into(), 0)], ..NullOptions::default() });
        Arc::new(Keeper { null, data: Mutex::default(), misaligned: Mutex::default() })
    }

    fn check(&self, what: &str, address: *const u8) {
        if !(address as usize).is_multiple_of(4096) {
            self.misaligned.lock().push(format!("{what} at {address:p}"));
        }
    }
}

impl Handler for Keeper {
    fn handle(&self, request: &Request<'_>, reply: &mut Reply<'_>) {
        match request.op {
            Operation::Write(write) => {
                self.check("write", write.data.as_ptr());
                let mut data = self.data.lock();
                let end = write.offset as usize + write.data.len();
                if data.len() < end {
                    data.resize(end, 0);
                }
                data[write.offset as usize..end].copy_from_slice(write.data);
                drop(data);
                self.null.handle(request, reply);
            }
            Operation::Read(Read { offset, size, .. }) => {
                let data = self.data.lock();
                let start = (offset as usize).min(data.len());
                let end = (start + size as usize).min(data.len());
                let buffer = reply.read_buffer(end - start);
                self.check("read", buffer.as_ptr());
                buffer.copy_from_slice(&data[start..end]);
                reply.read_done(end - start);
            }
            Operation::SetXattr(SetXattr { name, value, .. }) => {
                let mut data = self.data.lock();
                data.clear();
                data.extend_from_slice(name);
                data.extend_from_slice(value);
                reply.ok();
            }
            // The name is where the value is built: it must have been copied elsewhere.
            Operation::GetXattr { name, size } if size > 0 => {
                let value = [name, name, name].concat();
                reply.bytes(&value);
            }
            Operation::Ioctl(ioctl) => {
                let turned: Vec<u8> = ioctl.data.iter().rev().copied().collect();
                reply.ioctl(ioctl.data.len() as i32, &turned);
            }
            Operation::Symlink { .. } => reply.error(libc::EPERM),
            _ => self.null.handle(request, reply),
        }
    }
}

fn pattern(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 + seed * 7 + at / 4096) as u8).collect()
}

fn with_keeper(work: impl Fn(&Mount, &Keeper)) {
    for transport in transports() {
        let keeper = Keeper::new();
        let mount = Mount::with(transport, keeper.clone(), |_| {});
        work(&mount, &keeper);
        assert_eq!(*keeper.misaligned.lock(), Vec::<String>::new());
    }
}

#[test]
fn data_of_writes_and_reads_is_page_aligned_and_intact() {
    with_keeper(|mount, keeper| {
        let file = File::options().read(true).write(true).open(mount.path("file")).expect("open");
        let cases =
            [(0, 1), (0, 4095), (4096, 4096), (1, 70_000), (12_345, 1 << 20), (0, 1 << 20), (77, 3 << 20)];
        for (seed, &(offset, length)) in cases.iter().enumerate() {
            let data = pattern(length, seed);
            file.write_all_at(&data, offset).expect("write");
            assert_eq!(keeper.data.lock()[offset as usize..][..length], data[..], "written, case {seed}");
            let mut back = vec![0u8; length];
            file.read_exact_at(&mut back, offset).expect("read");
            assert!(back == data, "read, case {seed}");
        }
    });
}

#[test]
fn a_value_may_be_built_over_the_requests_own_name() {
    with_keeper(|mount, keeper| {
        let path = mount.path("file");
        assert_eq!(getxattr(&path, "user.abc").expect("getxattr"), b"user.abcuser.abcuser.abc");
        let long = format!("user.{}", "n".repeat(70));
        assert_eq!(getxattr(&path, &long).expect("getxattr"), long.repeat(3).as_bytes());
        let value = pattern(60_000, 3);
        let c_path = c_path(&path);
        // SAFETY: the strings end with NUL, `value` is valid for reads of its length.
        let result = unsafe {
            libc::setxattr(c_path.as_ptr(), c"user.v".as_ptr(), value.as_ptr().cast(), value.len(), 0)
        };
        assert_eq!(result, 0);
        assert_eq!(keeper.data.lock()[..], [b"user.v".as_slice(), &value].concat()[..]);
    });
}

#[test]
fn an_ioctl_carries_data_both_ways() {
    use std::os::fd::AsRawFd;
    with_keeper(|mount, _| {
        const SIZE: usize = 4096;
        // _IOWR('n', 1, 4096)
        const COMMAND: u64 = 3 << 30 | (SIZE as u64) << 16 | (b'n' as u64) << 8 | 1;
        let file = File::open(mount.path("file")).expect("open");
        let mut data = pattern(SIZE, 5);
        let turned: Vec<u8> = data.iter().rev().copied().collect();
        // SAFETY: the command number says that SIZE bytes are read and written at the address.
        let result = unsafe { libc::ioctl(file.as_raw_fd(), COMMAND as libc::Ioctl, data.as_mut_ptr()) };
        assert_eq!(result, SIZE as i32);
        assert!(data == turned);
    });
}

#[test]
fn many_clients_at_once_keep_their_data_apart() {
    const CLIENTS: usize = 8;
    const PIECE: usize = 256 << 10;
    with_keeper(|mount, keeper| {
        keeper.data.lock().resize(CLIENTS * PIECE, 0);
        nacre_env::thread::scope(|scope| {
            for client in 0..CLIENTS {
                let path = mount.path("file");
                scope.spawn(move || {
                    let file = File::options().read(true).write(true).open(path).expect("open");
                    let offset = (client * PIECE) as u64;
                    for round in 0..20 {
                        let data = pattern(PIECE, client * 100 + round);
                        file.write_all_at(&data, offset).expect("write");
                        let mut back = vec![0u8; PIECE];
                        file.read_exact_at(&mut back, offset).expect("read");
                        assert!(back == data, "client {client}, round {round}");
                    }
                });
            }
        });
    });
}

#[test]
fn a_handler_that_panics_answers_eio() {
    struct Panics(NullFs);
    impl Handler for Panics {
        fn handle(&self, request: &Request<'_>, reply: &mut Reply<'_>) {
            assert!(!matches!(request.op, Operation::GetXattr { .. }), "on purpose");
            self.0.handle(request, reply);
        }
    }
    for transport in transports() {
        let mount = Mount::new(transport, Panics(NullFs::new(NullOptions::default())));
        for _ in 0..10 {
            let error = getxattr(mount.root(), "user.x").expect_err("the handler panics");
            assert_eq!(error.raw_os_error(), Some(libc::EIO));
        }
        assert!(std::fs::metadata(mount.path("many")).is_ok(), "the threads live on");
    }
}

#[test]
fn a_small_max_write_splits_writes() {
    if !transports().contains(&TransportChoice::Dev) {
        return;
    }
    for transport in transports() {
        let keeper = Keeper::new();
        let mount = Mount::with(transport, keeper.clone(), |config| config.protocol.max_write = 8192);
        assert_eq!(mount.session.negotiated().max_write, 8192);
        let data = pattern(100_000, 1);
        std::fs::write(mount.path("file"), &data).expect("write");
        assert_eq!(keeper.data.lock()[..], data[..]);
        assert_eq!(std::fs::read(mount.path("file")).expect("read"), data);
    }
}
