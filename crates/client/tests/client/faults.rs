//! Lines in the log about faults.

use super::*;
use nacre_env::sim;
use nacre_rpc::Recovery;
use nacre_types::{Status, TargetId};
use std::cell::RefCell;
use std::sync::Once;
use std::time::Duration;

const MIB: usize = 1 << 20;

thread_local! {
    /// Lines that this thread has logged: operations run on the thread of their caller.
    static LINES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

struct Recorder;

impl log::Log for Recorder {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::Level::Warn
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            LINES.with_borrow_mut(|lines| lines.push(record.args().to_string()));
        }
    }

    fn flush(&self) {}
}

/// Runs `work`, and returns the lines that it has logged.
fn logged(work: impl FnOnce()) -> Vec<String> {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        log::set_logger(&Recorder).expect("no test has another");
        log::set_max_level(log::LevelFilter::Warn);
    });
    LINES.take();
    work();
    LINES.take()
}

/// Checks that there is one line, which contains all of these parts.
fn one_line(lines: &[String], parts: &[&str]) {
    assert_eq!(lines.len(), 1, "{lines:?}");
    parts.iter().for_each(|part| assert!(lines[0].contains(part), "{part:?} is not in {:?}", lines[0]));
}

/// Creates a client with a file of 3 MiB on two OSTs whose data this client does not have.
fn world_with_file() -> (World, Arc<Client>, Fid, u64) {
    let world = World::new(MIB as u32, 2);
    let client = world.client();
    let (fid, handle) = create(&client, "file");
    write(&client, handle, 0, &vec![7; 3 * MIB]).expect("written");
    client.data.fsync(handle).expect("synced");
    (world, client, fid, handle)
}

fn fail_reads(ost: &FakeOss, status: Option<Status>) {
    *ost.fail_reads.lock().expect("no panic") = status;
}

#[test]
fn a_read_that_an_ost_fails_names_file_place_ost_and_object_and_once_a_second() {
    // Simulated time passes where the test says so, however slow the machine is.
    sim::run(sim::Options { seed: 1, limit: Duration::from_secs(60) }, || {
        let (world, client, fid, handle) = world_with_file();
        client.tunables.set_max_read_ahead_mb(0).expect("may be 0");
        fail_reads(&world.osts[1], Some(Status::EIO));
        let object = world.osts[1].names()[0].to_string();
        let read = |offset| {
            let mut buffer = vec![0; 4096];
            assert_eq!(client.data.read(handle, offset, &mut buffer, Reader::Program), Err(Status::EIO));
        };
        let offset = MIB as u64 + 8192;
        let lines = logged(|| read(offset));
        let place = format!("at byte {offset} on OST0001");
        one_line(&lines, &["read of", &fid.to_string(), &place, "EIO", &object]);
        assert!(logged(|| (0..5).for_each(|_| read(offset))).is_empty(), "the target was named just now");
        nacre_env::thread::sleep(Duration::from_millis(1100));
        one_line(&logged(|| read(offset)), &["(5 failures before not shown)"]);
    });
}

#[test]
fn a_read_across_objects_names_the_one_that_fails() {
    let (world, client, fid, handle) = world_with_file();
    fail_reads(&world.osts[0], Some(Status::ETIMEDOUT));
    let mut buffer = vec![0; 2 * MIB];
    let lines = logged(|| {
        let read = client.data.read(handle, MIB as u64, &mut buffer, Reader::Program);
        assert_eq!(read, Err(Status::ETIMEDOUT));
    });
    let place = format!("at byte {} on OST0000", 2 * MIB);
    one_line(&lines, &["read of", &fid.to_string(), &place, "ETIMEDOUT"]);
}

#[test]
fn a_read_from_an_unreachable_ost_names_the_address_and_why_it_is_not_reached() {
    let (world, client, _, handle) = world_with_file();
    let trouble = "10.0.0.7@tcp: connection refused, 2 s ago; trouble for 11 s";
    *world.osts[0].trouble.lock().expect("no panic") = Some(trouble.to_owned());
    fail_reads(&world.osts[0], Some(Status::ETIMEDOUT));
    let mut buffer = vec![0; 4096];
    let lines = logged(|| {
        let read = client.data.read(handle, 0, &mut buffer, Reader::Program);
        assert_eq!(read, Err(Status::ETIMEDOUT));
    });
    one_line(&lines, &["on OST0000", "ETIMEDOUT", trouble]);
}

#[test]
fn data_that_was_answered_and_refused_is_logged_once_however_many_are_told() {
    for status in [Status::EIO, Status::EDQUOT] {
        let world = World::new(MIB as u32, 1);
        let client = world.client();
        client.write_back.settings.set_age(std::time::Duration::from_secs(3600));
        let (fid, first) = create(&client, "file");
        let second = open(&client, fid, READ_WRITE);
        for offset in [0, 10_000, 20_000] {
            write(&client, first, offset, &[7; 10_000]).expect("held back");
        }
        *world.osts[0].fail_write.lock().expect("no panic") = Some(status);
        let lines = logged(|| {
            assert_eq!(client.data.fsync(first), Err(status));
            assert_eq!(client.data.flush(second), Err(status));
        });
        one_line(&lines, &["write back of", &fid.to_string(), "on OST0000", status.name().expect("known")]);
    }
}

/// The host of all servers lost power: with the layout, the client forgot which objects it had written before.
#[test]
fn data_that_an_ost_has_lost_is_reported_though_the_layout_was_forgotten() {
    let world = World::new(MIB as u32, 1);
    let client = world.client();
    for is_closed in [false, true] {
        let (_, handle) = create(&client, if is_closed { "closed" } else { "synced" });
        write(&client, handle, 0, &[7; MIB]).expect("written");
        client.write_back.write_back_all();
        client.lease.locks().lose_layouts(0);
        world.osts[0].epoch.fetch_add(1, Ordering::Relaxed);
        if is_closed {
            assert_eq!(client.data.flush(handle), Err(Status::EIO));
        }
        assert_eq!((client.data.fsync(handle), client.data.fsync(handle)), (Err(Status::EIO), Ok(())));
    }
}

#[test]
fn data_that_an_eviction_took_is_logged_with_its_file_and_target() {
    let world = World::new(MIB as u32, 1);
    let client = world.client();
    client.write_back.settings.set_age(std::time::Duration::from_secs(3600));
    let (fid, handle) = create(&client, "file");
    for offset in [0, 10_000, 20_000] {
        write(&client, handle, offset, &[7; 10_000]).expect("held back");
    }
    let lines = logged(|| {
        client.write_back.lose_dirty_data(TargetId::ost(0));
        assert_eq!(client.data.fsync(handle), Err(Status::EIO));
    });
    one_line(&lines, &["write back of", &fid.to_string(), "on OST0000", "EIO", "evicted this client"]);
}

#[test]
fn locks_that_an_ost_took_back_name_each_file_whose_data_went_with_them() {
    let world = World::new(MIB as u32, 1);
    let (client, _other) = (world.client(), world.client());
    client.write_back.settings.set_age(std::time::Duration::from_secs(3600));
    let (fid, handle) = create(&client, "file");
    for offset in [0, 10_000, 20_000] {
        write(&client, handle, offset, &[7; 10_000]).expect("held back");
    }
    assert!(client.write_back.write_back_stats().dirty_bytes > 0, "under a lock");
    let events = client.lease.locks().events().events(0);
    let way = Way::new(&world.osts[0], ClientUuid([9; 16]), events.clone());
    let lines = logged(|| events.reconnected(&way, Recovery::Evicted).expect("nothing is asked"));
    let lines: Vec<String> = lines.into_iter().filter(|line| line.contains(&fid.to_string())).collect();
    one_line(&lines, &["write back of", "on OST0000", "EIO", "evicted this client"]);
    let told = logged(|| assert_eq!(client.data.fsync(handle), Err(Status::EIO)));
    assert!(told.is_empty(), "{told:?}");
}

#[test]
fn results_that_programs_expect_are_not_logged() {
    let world = World::new(MIB as u32, 1);
    let client = world.client();
    let lines = logged(|| {
        assert!(client.names.lookup(&root(), Fid::ROOT, b"none").expect("an answer").is_err());
        assert_eq!(client.data.fsync(77), Err(Status::EBADF));
        create(&client, "file");
        assert_eq!(client.names.unlink(&root(), Fid::ROOT, b"none", false), Err(Status::ENOENT));
    });
    assert!(lines.is_empty(), "{lines:?}");
}
