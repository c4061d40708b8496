//! A medium with simulated service times, for measurements: [`Simulated`] lets another store do the work and
//! delays callers as long as a disk with one head would take.
//!
//! One transfer is served at a time, in the order of arrival. It takes a seek, unless it continues near where
//! the last one ended in the same object, and its bytes by the bandwidth. Every read and write counts, as if
//! nothing were ever cached. Figures measured this way are to be labelled "simulated".

mod any;

pub use any::AnyMedium;

use super::abilities::leave_to;
use super::{
    Abilities, Fallocate, ObjectAttr, ObjectError, ObjectStore, ObjectStoreStats, ObjectVerifyReport,
    ReadRequest, Result, Seek, Space,
};
use nacre_env::clock::Instant;
use nacre_env::sync::Mutex;
use nacre_types::Fid;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Distance in bytes from the end of the last transfer within which another one needs no seek: a disk's
/// scheduler sorts the requests that several threads send for one stream. Four of the largest transfers that
/// clients send.
const NEAR_BYTES: u64 = 16 << 20;
/// Longest seek, so that every caller returns in bounded time.
const SEEK_MAX: Duration = Duration::from_secs(1);
/// Least bandwidth in bytes per second, for the same reason.
const BANDWIDTH_MIN: u64 = 64 << 10;

/// Service times of a medium. Written `seek=8ms:bandwidth=150M`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Medium {
    /// Time until a transfer at another place begins.
    pub seek: Duration,
    /// Bytes per second.
    pub bandwidth: u64,
}

impl fmt::Display for Medium {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seek={}us:bandwidth={}", self.seek.as_micros(), self.bandwidth)
    }
}

impl FromStr for Medium {
    type Err = ();

    fn from_str(text: &str) -> std::result::Result<Medium, ()> {
        let (mut seek, mut bandwidth) = (None, None);
        for part in text.trim().split(':') {
            match part.split_once('=').ok_or(())? {
                ("seek", value) if seek.is_none() => seek = Some(duration(value).ok_or(())?),
                ("bandwidth", value) if bandwidth.is_none() => bandwidth = Some(bytes(value)?),
                _ => return Err(()),
            }
        }
        let medium = Medium { seek: seek.unwrap_or_default(), bandwidth: bandwidth.ok_or(())? };
        if medium.seek > SEEK_MAX || medium.bandwidth < BANDWIDTH_MIN { Err(()) } else { Ok(medium) }
    }
}

/// Parses a time like `8ms` or `500us`; `None` for anything else.
pub fn duration(text: &str) -> Option<Duration> {
    let number = |digits: &str| digits.parse::<u64>().ok();
    match (text.strip_suffix("us"), text.strip_suffix("ms")) {
        (Some(digits), _) => number(digits).map(Duration::from_micros),
        (_, Some(digits)) => number(digits).map(Duration::from_millis),
        _ => None,
    }
}

/// Parses a number of bytes, with letters for powers of 1024 as everywhere.
pub(super) fn bytes(text: &str) -> std::result::Result<u64, ()> {
    let digits = text.trim_end_matches(['K', 'M', 'G', 'k', 'm', 'g']);
    let shift = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => return Err(()),
    };
    digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift)).ok_or(())
}

/// State of the head: its place, and the time until which it is busy.
#[derive(Debug)]
struct Head {
    medium: Medium,
    /// The object and offset at which the last transfer ended.
    place: Option<(Fid, u64)>,
    free_at: Instant,
}

impl Head {
    /// Submits a transfer and returns its end.
    fn submit(&mut self, now: Instant, object: Fid, offset: u64, length: u64) -> Instant {
        let near = self.place.is_some_and(|(last, end)| last == object && end.abs_diff(offset) <= NEAR_BYTES);
        let seek = if near { Duration::ZERO } else { self.medium.seek };
        let transfer = Duration::from_secs_f64(length as f64 / self.medium.bandwidth as f64);
        self.place = Some((object, offset.saturating_add(length)));
        self.free_at = self.free_at.max(now) + seek + transfer;
        self.free_at
    }
}

/// The switch of the simulation: off, or a medium.
#[derive(Debug, Default)]
pub struct Simulation {
    is_on: AtomicBool,
    head: Mutex<Option<Head>>,
}

impl Simulation {
    /// Returns the simulated medium; `None` if the simulation is off.
    pub fn medium(&self) -> Option<Medium> {
        self.head.lock().as_ref().map(|head| head.medium)
    }

    /// Simulates `medium` from now on, or none.
    pub fn set_medium(&self, medium: Option<Medium>) {
        let mut head = self.head.lock();
        *head = medium.map(|medium| Head { medium, place: None, free_at: Instant::now() });
        self.is_on.store(medium.is_some(), Ordering::Relaxed);
    }

    /// Waits as long as a transfer takes after the previous ones.
    fn transfer(&self, object: Fid, offset: u64, length: usize) {
        if !self.is_on.load(Ordering::Relaxed) || length == 0 {
            return;
        }
        let now = Instant::now();
        let done = self.head.lock().as_mut().map(|head| head.submit(now, object, offset, length as u64));
        if let Some(wait) = done.map(|done| done.saturating_duration_since(now)) {
            nacre_env::blocking(|| nacre_env::thread::sleep(wait));
        }
    }
}

/// A store on a medium that may be simulated; switched off, it costs one read of a flag.
pub struct Simulated {
    inner: Box<dyn ObjectStore>,
    simulation: Arc<Simulation>,
}

impl Simulated {
    /// Creates a store over `inner`, with nothing simulated yet.
    pub fn new(inner: Box<dyn ObjectStore>) -> Simulated {
        Simulated { inner, simulation: Arc::default() }
    }
}

impl ObjectStore for Simulated {
    fn write(&self, object: Fid, offset: u64, data: &[u8]) -> Result<usize> {
        let written = self.inner.write(object, offset, data)?;
        self.simulation.transfer(object, offset, written);
        Ok(written)
    }

    fn write_promised(&self, object: Fid, offset: u64, data: &[u8]) -> Result<usize> {
        let written = self.inner.write_promised(object, offset, data)?;
        self.simulation.transfer(object, offset, written);
        Ok(written)
    }

    fn read(&self, object: Fid, offset: u64, buffer: &mut [u8], ahead: u32) -> Result<usize> {
        let read = self.inner.read(object, offset, buffer, ahead)?;
        self.simulation.transfer(object, offset, read);
        Ok(read)
    }

    fn read_all(&self, reads: &mut [ReadRequest<'_>], failed: &mut dyn FnMut(usize, ObjectError)) {
        self.inner.read_all(reads, failed);
        for request in reads {
            self.simulation.transfer(request.object, request.offset, request.read);
        }
    }

    fn abilities(&self) -> Abilities<'_> {
        Abilities { simulation: Some(&self.simulation), ..self.inner.abilities() }
    }

    leave_to! { inner:
        fn attr(&self, object: Fid) -> Result<ObjectAttr>;
        fn exists(&self, object: Fid) -> Result<bool>;
        fn truncate(&self, object: Fid, size: u64) -> Result<ObjectAttr>;
        fn fallocate(&self, object: Fid, how: Fallocate, offset: u64, len: u64) -> Result<ObjectAttr>;
        fn seek(&self, object: Fid, offset: u64, what: Seek) -> Result<u64>;
        fn sync(&self, object: Fid) -> Result<()>;
        fn sync_all(&self) -> Result<()>;
        fn destroy(&self, objects: &[Fid]) -> Result<u64>;
        fn space(&self) -> Result<Space>;
        fn durability_epoch(&self) -> u64;
        fn verify(&self, repair: bool, progress: &mut dyn FnMut(u64)) -> Result<ObjectVerifyReport>;
        fn for_each_object(&self, visit: &mut dyn FnMut(Fid)) -> Result<()>;
        fn stats(&self) -> ObjectStoreStats;
        fn close(&self) -> Result<()>;
    }
}

#[cfg(test)]
mod tests {
    use super::super::file::{FileStore, FileStoreOptions};
    use super::*;

    const DISK: Medium = Medium { seek: Duration::from_millis(8), bandwidth: 1 << 20 };

    fn fid(oid: u32) -> Fid {
        Fid { seq: 0x1_0000_0400, oid, ver: 0 }
    }

    #[test]
    fn transfers_wait_for_those_before_and_seek_unless_they_go_on() {
        let start = Instant::now();
        let mut head = Head { medium: DISK, place: None, free_at: start };
        let mut done = |after_ms: u64, object, offset, length| {
            let now = start + Duration::from_millis(after_ms);
            head.submit(now, fid(object), offset, length).duration_since(start).as_millis()
        };
        assert_eq!(done(0, 1, 0, 1 << 20), 1008, "a seek and a second");
        assert_eq!(done(0, 1, 1 << 20, 1 << 20), 2008, "goes on, after the first");
        assert_eq!(done(0, 2, 0, 0), 2016, "another object");
        assert_eq!(done(3000, 1, 2 << 20, 0), 3008, "idle in between");
        assert_eq!(done(3000, 1, (2 << 20) + NEAR_BYTES + 1, 0), 3016, "too far");
        assert_eq!(done(3000, 1, 3 << 20, 0), 3016, "near enough");
    }

    #[test]
    fn media_are_written_as_they_are_read() {
        let disk: Medium = "seek=8ms:bandwidth=1M".parse().expect("understood");
        assert_eq!(disk, DISK);
        assert_eq!(disk.to_string().parse(), Ok(disk));
        assert_eq!("bandwidth=1G".parse(), Ok(Medium { seek: Duration::ZERO, bandwidth: 1 << 30 }));
        for wrong in [
            "",
            "seek=8ms",
            "bandwidth=0",
            "bandwidth=1M:seek=2",
            "seek=2000ms:bandwidth=1M",
            "bandwidth=1M:x=1",
        ] {
            assert_eq!(wrong.parse::<Medium>(), Err(()), "{wrong}");
        }
        assert!("bandwidth=1M:bandwidth=1M".parse::<Medium>().is_err());
        assert!("bandwidth=99999999999999G".parse::<Medium>().is_err());
    }

    #[test]
    fn a_simulated_store_is_as_good_as_the_one_below() {
        let dir = tempfile::tempdir().expect("a directory");
        let options =
            FileStoreOptions { create: true, reserve_bytes: Some(0), ..FileStoreOptions::default() };
        super::super::conformance::run(dir.path(), &|dir| {
            let inner = FileStore::open(dir, options.clone()).expect("opens");
            Box::new(Simulated::new(Box::new(inner)))
        });
    }

    #[test]
    fn a_store_takes_as_long_as_its_medium_while_that_is_on() {
        let dir = tempfile::tempdir().expect("a directory");
        let inner = FileStore::open(&dir.path().join("ost"), FileStoreOptions::create()).expect("opens");
        let store = Simulated::new(Box::new(inner));
        let simulation = store.abilities().simulation.expect("there is one");
        assert_eq!(simulation.medium(), None);
        simulation.set_medium(Some(Medium { seek: Duration::from_millis(30), bandwidth: 1 << 30 }));
        let start = Instant::now();
        assert_eq!(store.write(fid(1), 0, b"data").expect("written"), 4);
        let mut buffer = [0; 4];
        assert_eq!(store.read(fid(2), 0, &mut buffer, 0).expect("nothing there"), 0);
        assert_eq!(store.read(fid(1), 0, &mut buffer, 0).expect("read"), 4);
        assert_eq!(&buffer, b"data");
        assert!(start.elapsed() >= Duration::from_millis(30));
        simulation.set_medium(None);
        assert_eq!(simulation.medium(), None);
        store.close().expect("closed");
    }

    #[test]
    fn a_store_that_reads_for_many_at_once_still_does_where_media_can_be_simulated() {
        use crate::object::{BlockStore, BlockStoreOptions};
        let dir = tempfile::tempdir().expect("a directory");
        let options = BlockStoreOptions { create: true, size: 64 << 20, ..BlockStoreOptions::default() };
        let store = Simulated::new(Box::new(BlockStore::open(dir.path(), options).expect("made")));
        assert!(store.abilities().reads_at_once > 1);
        store.write(fid(1), 0, &[7; 16384]).expect("written");
        let batches = |store: &Simulated| {
            store.abilities().device_store.expect("a device").device().stats().ring_batches
        };
        let before = batches(&store);
        let mut memory = vec![0; 16384];
        let mut reads: Vec<ReadRequest<'_>> = memory
            .chunks_mut(4096)
            .zip((0..).step_by(4096))
            .map(|(buffer, offset)| ReadRequest::new(fid(1), offset, buffer))
            .collect();
        store.read_all(&mut reads, &mut |_, error| panic!("{error}"));
        assert!(reads.iter().all(|read| read.read == 4096));
        assert!(memory.iter().all(|byte| *byte == 7));
        assert!(batches(&store) - before <= 1, "one submission for all");
        store.close().expect("closed");
    }
}
