use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nacre_env::sync::{Condvar, Mutex};
use nacre_fuse::nullfs::{NullFs, NullOptions};
use nacre_fuse::{Handler, Notifier, Operation, Reply, Request, Unmount, abi};

use crate::support::*;

/// Counts requests, and stores data retrieved from the page cache.
struct Counter {
    null: NullFs,
    lookups: AtomicUsize,
    getattrs: AtomicUsize,
    reads: AtomicUsize,
    retrieved: Mutex<Option<(u64, Vec<u8>)>>,
    arrived: Condvar,
}

impl Handler for Counter {
    fn handle(&self, request: &Request<'_>, reply: &mut Reply<'_>) {
        let counter = match request.op {
            Operation::Lookup { .. } => &self.lookups,
            Operation::GetAttr { .. } => &self.getattrs,
            Operation::Read { .. } => &self.reads,
            Operation::NotifyReply { data, .. } => {
                *self.retrieved.lock() = Some((request.unique, data.to_vec()));
                self.arrived.notify_all();
                return reply.none();
            }
            _ => return self.null.handle(request, reply),
        };
        counter.fetch_add(1, Ordering::SeqCst);
        self.null.handle(request, reply);
    }
}

fn with_counter(work: impl Fn(&Mount, &Counter, &Notifier)) {
    for transport in transports() {
        let options = NullOptions {
            direct_io: false,
            fill: Some(7),
            files: vec![("file".into(), 8192)],
            ..NullOptions::default()
        };
        let counter = Arc::new(Counter {
            null: NullFs::new(options),
            lookups: AtomicUsize::new(0),
            getattrs: AtomicUsize::new(0),
            reads: AtomicUsize::new(0),
            retrieved: Mutex::new(None),
            arrived: Condvar::new(),
        });
        let mount = Mount::with(transport, counter.clone(), |_| {});
        let notifier = mount.session.notifier();
        work(&mount, &counter, &notifier);
    }
}

/// Returns how much `counter` rises by a stat of the file.
fn rise(mount: &Mount, counter: &AtomicUsize) -> usize {
    let before = counter.load(Ordering::SeqCst);
    std::fs::metadata(mount.path("file")).expect("stat");
    counter.load(Ordering::SeqCst) - before
}

#[test]
fn cached_names_and_attributes_are_asked_again_after_a_notification() {
    with_counter(|mount, counter, notifier| {
        let node = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(mount.path("file")).expect("stat"));
        assert_eq!((rise(mount, &counter.lookups), rise(mount, &counter.getattrs)), (0, 0), "cached");
        notifier.inval_entry(abi::ROOT_ID, b"file", false).expect("inval_entry");
        assert_eq!(rise(mount, &counter.lookups), 1);
        notifier.inval_entry(abi::ROOT_ID, b"file", true).expect("expire");
        assert_eq!(rise(mount, &counter.lookups), 1);
        notifier.inval_inode(node, -1, 0).expect("inval_inode");
        assert_eq!(rise(mount, &counter.getattrs), 1);
        match notifier.inc_epoch() {
            Ok(()) => assert_eq!(rise(mount, &counter.lookups), 1),
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EINVAL), "an older kernel"),
        }
        assert_eq!(rise(mount, &counter.lookups), 0, "cached again");
        notifier.inval_inode(1 << 60, 0, 0).expect("what the kernel does not have needs no invalidation");
        notifier.inval_entry(abi::ROOT_ID, b"never seen", false).expect("likewise");
    });
}

#[test]
fn cached_data_is_dropped_stored_and_retrieved() {
    with_counter(|mount, counter, notifier| {
        let path = mount.path("file");
        let node = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(&path).expect("stat"));
        let read = || {
            let before = counter.reads.load(Ordering::SeqCst);
            let mut data = vec![0u8; 4096];
            std::fs::File::open(&path).expect("open").read_exact(&mut data).expect("read");
            (data[0], counter.reads.load(Ordering::SeqCst) - before)
        };
        assert_eq!(read().0, 7);
        assert_eq!(read(), (7, 0), "from the page cache");
        notifier.inval_inode(node, 0, 0).expect("inval_inode");
        let (byte, reads) = read();
        assert!(byte == 7 && reads > 0, "read again");
        notifier.store(node, 0, &[9u8; 4096]).expect("store");
        assert_eq!(read(), (9, 0), "what was stored");
        let number = 1 << 40;
        notifier.retrieve(number, node, 0, 4096).expect("retrieve");
        let mut retrieved = counter.retrieved.lock();
        while retrieved.is_none() {
            assert!(!counter.arrived.wait_for(&mut retrieved, DEADLINE).timed_out());
        }
        let (unique, data) = retrieved.take().expect("arrived");
        assert_eq!((unique, data.len(), data[0]), (number, 4096, 9));
    });
}

#[test]
fn notifications_after_the_end_say_not_connected() {
    with_counter(|mount, _, notifier| {
        mount.session.unmount(Unmount::Clean).expect("unmount");
        let error = notifier.inc_epoch().expect_err("ended");
        assert_eq!(error.raw_os_error(), Some(libc::ENOTCONN));
        assert!(notifier.inval_entry(1, b"", false).is_err(), "names are checked");
        assert!(notifier.retrieve(3, 1, 0, 0).is_err(), "numbers are checked");
        assert!(notifier.prune(&[]).is_err());
    });
}

#[test]
fn unused_inodes_can_be_pruned() {
    with_counter(|mount, counter, notifier| {
        let node = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(mount.path("file")).expect("stat"));
        match notifier.prune(&[node]) {
            Ok(()) => assert_eq!(rise(mount, &counter.lookups), 1),
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EINVAL), "an older kernel"),
        }
    });
}
