//! Several clients of one file system: what is cached, and when they see each other's changes.

use super::*;
use nacre_env::sync::mpsc;
use nacre_rpc::Recovery;
use nacre_types::{SetAttr, SetAttrValid, TargetId};
use std::rc::Rc;
use std::sync::atomic::AtomicBool;
use std::sync::{Condvar, Mutex, OnceLock, Weak};

/// What happens while the kernel drops data in a range.
trait OnDrop: Send + Sync {
    fn on_drop(&self, offset: u64, len: u64);
}

/// Caches of a kernel that know everything.
struct Dropping<T>(Arc<T>);

impl<T: OnDrop> KernelCaches for Dropping<T> {
    fn expire_names(&self) {}

    fn drop_inode(&self, _: u64) -> bool {
        true
    }

    fn drop_attributes(&self, _: u64) -> bool {
        true
    }

    fn drop_data(&self, _: u64, offset: u64, len: u64) {
        self.0.on_drop(offset, len);
    }
}

#[test]
fn the_first_client_drops_what_it_cached_before_the_second_gets_in() {
    let world = World::new(65536, 1);
    let first = world.client();
    let kernel = Arc::new(Kernel::default());
    first.lease.set_kernel_caches(kernel.clone());
    create(&first, "a");
    create(&first, "b");
    assert!(first.lease.exclusive());
    let second = world.client();
    assert!(!first.lease.exclusive() && !second.lease.exclusive());
    assert!(kernel.expired.load(Ordering::Relaxed) > 0);
    assert_eq!(kernel.dropped.load(Ordering::Relaxed), 3, "two files and the root");
}

/// A release takes as long as an OST is away that requests wait for.
#[test]
fn a_client_that_still_drops_its_caches_answers_each_repeated_revocation() {
    struct Slow {
        mds: Arc<FakeMds>,
        is_late: AtomicBool,
    }
    impl KernelCaches for Slow {
        fn expire_names(&self) {
            let started = nacre_env::clock::Instant::now();
            for count in 1..4 {
                self.mds.revoke_again();
                while self.mds.answered().0.len() < count && !self.is_late.load(Ordering::Relaxed) {
                    nacre_env::thread::yield_now();
                    self.is_late.fetch_or(started.elapsed().as_secs() > 5, Ordering::Relaxed);
                }
            }
        }

        fn drop_inode(&self, _: u64) -> bool {
            true
        }

        fn drop_attributes(&self, _: u64) -> bool {
            true
        }

        fn drop_data(&self, _: u64, _: u64, _: u64) {}
    }
    let world = World::new(65536, 1);
    let first = world.client();
    let kernel = Arc::new(Slow { mds: world.mds.clone(), is_late: AtomicBool::default() });
    first.lease.set_kernel_caches(kernel.clone());
    let _second = world.client();
    assert!(!kernel.is_late.load(Ordering::Relaxed), "each was answered");
    let (busy, released) = world.mds.answered();
    assert!(busy.len() >= 3 && busy.iter().all(|epoch| *epoch == released), "{busy:?}, {released}");
}

#[test]
fn a_size_that_only_the_first_client_knew_is_told_when_the_second_comes() {
    let world = World::new(65536, 2);
    let first = world.client();
    let (fid, handle) = create(&first, "file");
    write(&first, handle, 0, &[7; 100_000]).expect("written");
    let second = world.client();
    assert_eq!(second.inodes.getattr(fid).expect("there").size, 100_000);
    // The first client still writes; other clients see its data without its close.
    append(&first, handle, &[8; 5]).expect("written");
    assert_eq!(second.inodes.getattr(fid).expect("there").size, 100_005);
}

/// An MDT takes a last writer whose close carries no size for one that wrote nothing: the file would be
/// empty.
#[test]
fn a_close_does_not_overtake_the_size_that_is_told_because_another_client_comes() {
    struct Tell(mpsc::Sender<&'static str>);
    impl nacre_env::BlockingHook for Tell {
        fn enter(&self) {
            let _ = self.0.send("waits");
        }
        fn exit(&self) {}
    }
    let world = World::new(65536, 1);
    let first = world.client();
    let (fid, handle) = create(&first, "file");
    write(&first, handle, 0, &[7; 100_000]).expect("written");
    let (send, receive) = mpsc::channel();
    let (closed, closing) = (send.clone(), Arc::new(Mutex::new(None)));
    *world.mds.at_close.lock().expect("no panic") = Some(Box::new(move || {
        let _ = closed.send("closed");
    }));
    let (closer, begun) = (first.clone(), closing.clone());
    *world.mds.at_update.lock().expect("no panic") = Some(Box::new(move || {
        let thread = nacre_env::thread::spawn(move || {
            let _hook = nacre_env::install_hook(Rc::new(Tell(send)));
            closer.opens.release(handle).expect("open");
        });
        assert_eq!(receive.recv(), Ok("waits"), "the close is sent before the size is told");
        *begun.lock().expect("no panic") = Some(thread);
    }));
    let second = world.client();
    let closing = closing.lock().expect("no panic").take().expect("the size was told");
    closing.join().expect("closed");
    assert_eq!(second.inodes.getattr(fid).expect("there").size, 100_000);
}

/// A request for pages that are being dropped is served under the lock that is about to be cancelled. It may
/// exceed every range requested before, and none of its pages may stay.
#[test]
fn pages_that_come_while_others_are_dropped_are_dropped_too() {
    const PAGE: u64 = 4096;
    struct Reader {
        client: OnceLock<(Weak<Client>, u64)>,
        dropped: Mutex<Vec<(u64, u64)>>,
    }
    impl OnDrop for Reader {
        fn on_drop(&self, offset: u64, len: u64) {
            let is_first = self.dropped.lock().expect("no panic").is_empty();
            self.dropped.lock().expect("no panic").push((offset, offset + len));
            let Some((client, handle)) = self.client.get().filter(|_| is_first) else { return };
            let client = client.upgrade().expect("in use");
            let mut pages = [0; 7 * PAGE as usize];
            assert_eq!(
                client.data.read(*handle, PAGE, &mut pages, nacre_client::Reader::Pages),
                Ok(pages.len())
            );
            assert_eq!(pages, [7; 7 * PAGE as usize]);
        }
    }
    let world = World::new(65536, 1);
    let (first, second) = (world.client(), world.client());
    let kernel = Arc::new(Reader { client: OnceLock::new(), dropped: Mutex::default() });
    first.lease.set_kernel_caches(Arc::new(Dropping(kernel.clone())));
    let (fid, handle) = create(&first, "file");
    write(&first, handle, 0, &[7; 8 * PAGE as usize]).expect("written");
    let mut pages = [0; 2 * PAGE as usize];
    assert_eq!(first.data.read(handle, 0, &mut pages, nacre_client::Reader::Pages), Ok(pages.len()));
    kernel.dropped.lock().expect("no panic").clear();
    kernel.client.set((Arc::downgrade(&first), handle)).expect("once");
    let other = open(&second, fid, READ_WRITE);
    write(&second, other, 0, &[8; 8 * PAGE as usize]).expect("written");
    let dropped = kernel.dropped.lock().expect("no panic").clone();
    let is_dropped = |page: u64| dropped.iter().any(|(start, end)| *start <= page && page + PAGE <= *end);
    assert!((0..8).all(|page| is_dropped(page * PAGE)), "{dropped:?}");
}

/// The kernel locks a page for a request, and drops it when the request is answered. The request waited for another
/// client, which waited for the drop.
#[test]
fn pages_are_served_while_they_are_dropped_although_the_file_was_closed_and_opened_again() {
    const PAGE: usize = 4096;
    struct Reader {
        client: OnceLock<(Weak<Client>, Fid, u64)>,
        is_served: Mutex<Option<bool>>,
    }
    impl OnDrop for Reader {
        fn on_drop(&self, _: u64, _: u64) {
            let Some((client, fid, handle)) = self.client.get() else { return };
            if self.is_served.lock().expect("no panic").is_some() {
                return;
            }
            let (client, fid, handle) = (client.upgrade().expect("in use"), *fid, *handle);
            let (send, receive) = mpsc::channel();
            nacre_env::thread::spawn(move || {
                client.opens.release(handle).expect("open");
                let again = open(&client, fid, OpenFlags::READ);
                let mut page = [0; PAGE];
                let read = client.data.read(again, 0, &mut page, nacre_client::Reader::Pages);
                let _ = send.send((read, page));
            });
            // The kernel would wait without a limit.
            let served = receive.recv_timeout(std::time::Duration::from_secs(5));
            *self.is_served.lock().expect("no panic") = Some(served == Ok((Ok(PAGE), [7; PAGE])));
        }
    }
    let world = World::new(65536, 1);
    let (first, second) = (world.client(), world.client());
    let kernel = Arc::new(Reader { client: OnceLock::new(), is_served: Mutex::default() });
    first.lease.set_kernel_caches(Arc::new(Dropping(kernel.clone())));
    let (fid, handle) = create(&first, "file");
    write(&first, handle, 0, &[7; PAGE]).expect("written");
    assert_eq!(first.data.read(handle, 0, &mut [0; PAGE], nacre_client::Reader::Pages), Ok(PAGE));
    kernel.client.set((Arc::downgrade(&first), fid, handle)).expect("once");
    let other = open(&second, fid, READ_WRITE);
    write(&second, other, 0, &[8; PAGE]).expect("written");
    assert_eq!(
        *kernel.is_served.lock().expect("no panic"),
        Some(true),
        "the page is served, and dropped again"
    );
}

/// A request that had lost one of its locks waited for the next one, while its pages were dropped under the other.
#[test]
fn pages_are_served_while_they_are_dropped_although_a_lock_was_lost_meanwhile() {
    const STRIPE: usize = 65536;
    /// Pages are dropped when the request for them is answered.
    #[derive(Default)]
    struct Locked {
        is_answered: Mutex<bool>,
        answered: Condvar,
        is_late: AtomicBool,
    }
    impl OnDrop for Locked {
        fn on_drop(&self, _: u64, _: u64) {
            let limit = std::time::Duration::from_secs(5);
            let is_answered = self.is_answered.lock().expect("no panic");
            let waited = self.answered.wait_timeout_while(is_answered, limit, |is_answered| !*is_answered);
            self.is_late.fetch_or(waited.expect("no panic").1.timed_out(), Ordering::Relaxed);
        }
    }
    let world = World::new(STRIPE as u32, 2);
    let (first, second) = (world.client(), world.client());
    let kernel = Arc::new(Locked::default());
    first.lease.set_kernel_caches(Arc::new(Dropping(kernel.clone())));
    let (fid, handle) = create(&first, "file");
    write(&first, handle, 0, &[7; 2 * STRIPE]).expect("written");
    first.data.fsync(handle).expect("synced");
    let other = open(&second, fid, READ_WRITE);
    let (evicted, oss, writer) = (first.clone(), world.osts[0].clone(), second.clone());
    let (send, receive) = mpsc::channel();
    *world.osts[0].at_read.lock().expect("no panic") = Some(Box::new(move || {
        let events = evicted.lease.locks().events().events(0);
        let way = Way::new(&oss, ClientUuid([9; 16]), events.clone());
        events.reconnected(&way, Recovery::Evicted).expect("nothing is asked");
        let writing = nacre_env::thread::spawn(move || {
            write(&writer, other, STRIPE as u64, &[8; STRIPE]).expect("written");
        });
        while evicted.lease.locks().counts(TargetId::ost(1)).callbacks == 0 {
            nacre_env::thread::yield_now();
        }
        let _ = send.send(writing);
    }));
    let mut pages = vec![0; 2 * STRIPE];
    let read = first.data.read(handle, 0, &mut pages, nacre_client::Reader::Pages);
    *kernel.is_answered.lock().expect("no panic") = true;
    kernel.answered.notify_all();
    receive.recv().expect("the OST was read").join().expect("written");
    assert_eq!(read, Ok(2 * STRIPE));
    assert!(!kernel.is_late.load(Ordering::Relaxed), "the request and the drop waited for each other");
}

#[test]
fn what_was_written_before_a_close_is_read_after_an_open() {
    let world = World::new(65536, 2);
    let (one, two) = (world.client(), world.client());
    let (fid, handle) = create(&one, "file");
    for round in 1..20u8 {
        let (writer, reader) = if round % 2 == 0 { (&one, &two) } else { (&two, &one) };
        let len = usize::from(round) * 10_000;
        let out = open(writer, fid, READ_WRITE | OpenFlags::TRUNCATE);
        write(writer, out, 0, &vec![round; len]).expect("written");
        writer.opens.release(out).expect("open");
        let back = open(reader, fid, OpenFlags::READ);
        assert!(read(reader, back, 0, 1 << 20) == vec![round; len], "round {round}");
        assert_eq!(reader.inodes.getattr(fid).expect("there").size, len as u64);
        reader.opens.release(back).expect("open");
    }
    one.opens.release(handle).expect("open");
}

/// The flushes for all OSTs shared their threads, so one OST that hung led to evictions by the others.
#[test]
fn a_flush_for_one_ost_that_hangs_holds_up_no_locks_of_another() {
    const FILES: u64 = 40;
    const STRIPE: u64 = 65536;
    /// Hangs while pages of the first stripe are dropped.
    #[derive(Default)]
    struct Hanging(std::sync::RwLock<()>);
    impl OnDrop for Hanging {
        fn on_drop(&self, offset: u64, _: u64) {
            if offset < STRIPE {
                drop(self.0.read());
            }
        }
    }
    let world = World::new(STRIPE as u32, 2);
    let (one, two) = (world.client(), world.client());
    let kernel = Arc::new(Hanging::default());
    one.lease.set_kernel_caches(Arc::new(Dropping(kernel.clone())));
    let cached_at = |name: &str, offset: u64| {
        let (fid, handle) = create(&one, name);
        write(&one, handle, offset, &[7; 4096]).expect("written");
        let mut page = [0; 4096];
        assert_eq!(one.data.read(handle, offset, &mut page, nacre_client::Reader::Pages), Ok(4096));
        fid
    };
    let files: Vec<Fid> = (0..FILES).map(|number| cached_at(&number.to_string(), 0)).collect();
    let other = cached_at("other", STRIPE);
    let hanging = kernel.0.write().expect("no panic");
    let change = |fid: Fid, offset: u64| {
        let handle = open(&two, fid, READ_WRITE);
        write(&two, handle, offset, &[8; 4096]).expect("written");
    };
    nacre_env::thread::scope(|scope| {
        let change = &change;
        let writers: Vec<_> = files.iter().map(|fid| scope.spawn(move || change(*fid, 0))).collect();
        while one.lease.locks().counts(TargetId::ost(0)).callbacks < FILES {
            nacre_env::thread::yield_now();
        }
        change(other, STRIPE);
        assert!(writers.iter().all(|writer| !writer.is_finished()));
        drop(hanging);
    });
}

#[test]
fn an_append_goes_behind_what_the_other_client_wrote() {
    let world = World::new(65536, 2);
    let (one, two) = (world.client(), world.client());
    let (fid, first) = create(&one, "log");
    let second = open(&two, fid, READ_WRITE);
    for _ in 0..10 {
        append(&one, first, b"one").expect("written");
        append(&two, second, b"two").expect("written");
    }
    assert_eq!(read(&one, first, 0, 1000), b"onetwo".repeat(10));
    assert_eq!(read(&two, second, 0, 1000), b"onetwo".repeat(10));
}

#[test]
fn a_reader_follows_a_file_that_another_client_extends() {
    let world = World::new(65536, 2);
    let (one, two) = (world.client(), world.client());
    let (fid, writer) = create(&one, "log");
    let reader = open(&two, fid, OpenFlags::READ);
    assert_eq!(read(&two, reader, 0, 10), b"");
    append(&one, writer, b"line").expect("written");
    assert_eq!(read(&two, reader, 0, 10), b"line");
}

#[test]
fn sizes_are_exact_after_the_last_close_and_need_no_ost() {
    let world = World::new(65536, 1);
    let client = world.client();
    let (fid, handle) = create(&client, "file");
    write(&client, handle, 0, &[1; 5000]).expect("written");
    client.opens.release(handle).expect("open");
    let attr = client.inodes.getattr(fid).expect("there");
    assert_eq!((attr.size, attr.blocks), (5000, 16));
    assert_eq!(world.osts[0].attrs.load(Ordering::Relaxed), 0, "nobody had to ask the OST");
    let handle = open(&client, fid, READ_WRITE);
    client.opens.release(handle).expect("open");
    assert_eq!(client.inodes.getattr(fid).expect("there").size, 5000);
    let set = SetAttr { valid: SetAttrValid::SIZE, size: 10, ..SetAttr::default() };
    client.names.setattr(&root(), fid, set).expect("cut");
    assert_eq!(client.inodes.getattr(fid).expect("there").size, 10);
}

#[test]
fn a_writer_that_vanished_leaves_a_size_that_can_be_found() {
    let world = World::new(65536, 2);
    let first = world.client();
    let (fid, handle) = create(&first, "file");
    write(&first, handle, 0, &[1; 100_000]).expect("written");
    // No close: this client and its state are gone.
    drop(first);
    world.mds.evict_all();
    let second = world.client();
    assert_eq!(second.inodes.getattr(fid).expect("there").size, 100_000);
    let found = second.names.lookup(&root(), Fid::ROOT, b"file").expect("answered").expect("there");
    assert_eq!(found.attr.size, 100_000);
}

#[test]
fn a_layout_is_asked_for_once_and_again_when_objects_come() {
    let world = World::new(65536, 2);
    let (one, two) = (world.client(), world.client());
    let asked = || world.mds.layouts.load(Ordering::Relaxed);
    let (fid, writer) = create(&one, "file");
    assert_eq!(asked(), 0, "who makes a file knows what is in it");
    let reader = open(&two, fid, OpenFlags::READ);
    assert!(read(&two, reader, 0, 100).is_empty());
    let before = asked();
    for _ in 0..20 {
        assert!(read(&two, reader, 0, 100).is_empty());
    }
    assert_eq!(asked(), before, "also of a file without objects");
    write(&one, writer, 0, &[7; 1000]).expect("written");
    let before = asked();
    for _ in 0..20 {
        assert_eq!(read(&two, reader, 0, 2000), [7; 1000]);
        assert!(read(&two, reader, 1000, 100).is_empty());
    }
    assert_eq!(asked(), before + 1, "its objects have come");
}
