//! Simulated service times: [`SimulatedDevice`] performs transfers on a real device and delays callers for as
//! long as a model of another kind of device takes. For tests and measurements; figures measured this way are
//! to be labelled "simulated".
//!
//! Models are pure: they receive times and return when a transfer is done. Real transfers run meanwhile, so
//! only a model slower than the real device has an effect.

mod disk;
mod flash;
#[cfg(test)]
mod tests;

use super::{BlockDevice, DeviceInfo, DeviceStats, Fetch, ReadOp, WriteOp, read_batch};
use crate::object::simulated::{bytes, duration};
use disk::Disk;
pub use disk::DiskSpec;
use flash::Flash;
pub use flash::{FlashSpec, FlashStats};
use nacre_env::clock::Instant;
use nacre_env::sync::Mutex;
use rustix::io::Errno;
use std::fmt;
use std::io;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Limits of a device of any kind. Written `throttle:iops=1000:bandwidth=100M:latency=1ms`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ThrottleSpec {
    /// Transfers per second; 0 for no limit.
    pub iops: u64,
    /// Bytes per second; 0 for no limit.
    pub bandwidth: u64,
    /// Additional time of each transfer; those of several callers overlap.
    pub latency: Duration,
}

/// Simulated medium: a kind, followed by settings that differ from the defaults.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MediaSpec {
    /// A rotating disk, `disk:seek=8ms:turn=8333us:bandwidth=150M:queue=32`.
    Disk(DiskSpec),
    /// Flash, `flash:channels=8:read=50us:program=200us:erase=2ms:block=1M:spare=7:full=0:command=20us`.
    Flash(FlashSpec),
    /// A device without other properties than limits.
    Throttle(ThrottleSpec),
}

/// Parses `name=value` parts separated by colons.
fn parts(text: &str, mut set: impl FnMut(&str, &str) -> Option<()>) -> Result<(), ()> {
    for part in text.split(':').filter(|part| !part.is_empty()) {
        let (name, value) = part.split_once('=').ok_or(())?;
        set(name, value).ok_or(())?;
    }
    Ok(())
}

fn put<T>(place: &mut T, value: Option<T>) -> Option<()> {
    *place = value?;
    Some(())
}

/// Parses a number of bytes, at least 1.
fn some_bytes(text: &str) -> Option<u64> {
    bytes(text).ok().filter(|bytes| *bytes > 0)
}

/// Parses a number from 1 to `max`.
fn number(text: &str, max: u64) -> Option<u64> {
    text.parse::<u64>().ok().filter(|number| (1..=max).contains(number))
}

impl FromStr for MediaSpec {
    type Err = ();

    fn from_str(text: &str) -> Result<MediaSpec, ()> {
        let (kind, rest) = text.trim().split_once(':').unwrap_or((text.trim(), ""));
        match kind {
            "disk" => DiskSpec::parse(rest).map(MediaSpec::Disk),
            "flash" => FlashSpec::parse(rest).map(MediaSpec::Flash),
            "throttle" => {
                let mut spec = ThrottleSpec { iops: 0, bandwidth: 0, latency: Duration::ZERO };
                parts(rest, |name, value| match name {
                    "iops" => put(&mut spec.iops, number(value, 1 << 32)),
                    "bandwidth" => put(&mut spec.bandwidth, some_bytes(value)),
                    "latency" => put(&mut spec.latency, duration(value)),
                    _ => None,
                })?;
                Ok(MediaSpec::Throttle(spec))
            }
            _ => Err(()),
        }
    }
}

impl fmt::Display for MediaSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MediaSpec::Disk(spec) => spec.fmt(f),
            MediaSpec::Flash(spec) => spec.fmt(f),
            MediaSpec::Throttle(ThrottleSpec { iops, bandwidth, latency }) => {
                f.write_str("throttle")?;
                let limits = [("iops", *iops), ("bandwidth", *bandwidth)];
                for (name, limit) in limits.iter().filter(|(_, limit)| *limit > 0) {
                    write!(f, ":{name}={limit}")?;
                }
                write!(f, ":latency={}us", latency.as_micros())
            }
        }
    }
}

/// Kind of a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Read,
    Write,
    Discard,
}

/// A model of service times, counted from the beginning.
trait Model: Send {
    /// Submits a transfer at `now`, which never decreases, and returns its end.
    fn submit(&mut self, now: Duration, kind: Kind, offset: u64, len: u64) -> Duration;

    /// Returns the counters of a flash model.
    fn flash(&self) -> Option<FlashStats> {
        None
    }
}

struct Throttle {
    spec: ThrottleSpec,
    free_at: Duration,
}

impl Model for Throttle {
    fn submit(&mut self, now: Duration, kind: Kind, _offset: u64, len: u64) -> Duration {
        let by = |amount: u64, limit: u64| match limit {
            0 => Duration::ZERO,
            limit => Duration::from_secs_f64(amount as f64 / limit as f64),
        };
        let len = if kind == Kind::Discard { 0 } else { len };
        let took = by(1, self.spec.iops).max(by(len, self.spec.bandwidth));
        self.free_at = self.free_at.max(now) + took;
        self.free_at + self.spec.latency
    }
}

/// Largest device in bytes for which flash is simulated: the model takes 8 bytes of memory for each 4096.
const FLASH_MAX: u64 = 64 << 30;

/// The current simulation.
struct Simulated {
    spec: MediaSpec,
    begun: Instant,
    model: Box<dyn Model>,
}

/// See the [module documentation](self). Nothing is simulated until [`SimulatedDevice::set_media`]; until
/// then the cost is one read of a flag.
pub struct SimulatedDevice {
    inner: Arc<dyn BlockDevice>,
    is_on: AtomicBool,
    simulated: Mutex<Option<Simulated>>,
}

impl SimulatedDevice {
    /// Creates a device over `inner`, with nothing simulated yet.
    pub fn new(inner: Arc<dyn BlockDevice>) -> SimulatedDevice {
        SimulatedDevice { inner, is_on: AtomicBool::new(false), simulated: Mutex::new(None) }
    }

    /// Returns the simulated medium.
    pub fn media(&self) -> Option<MediaSpec> {
        self.simulated.lock().as_ref().map(|simulated| simulated.spec)
    }

    /// Whether a medium is simulated. Then asynchronous reads would cost nothing, and must not be used.
    pub(in crate::object::block) fn is_simulating(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Simulates a medium from now on, or none. Flash begins empty, or full if specified, whatever is on the
    /// device.
    ///
    /// # Errors
    /// `EFBIG` if the device is too large for the model.
    pub fn set_media(&self, media: Option<MediaSpec>) -> io::Result<()> {
        let size = self.inner.size();
        let model = |spec| -> io::Result<Box<dyn Model>> {
            Ok(match spec {
                MediaSpec::Flash(_) if size > FLASH_MAX => {
                    return Err(io::Error::from(Errno::FBIG));
                }
                MediaSpec::Disk(spec) => Box::new(Disk::new(spec, size)),
                MediaSpec::Flash(spec) => Box::new(Flash::new(spec, size)),
                MediaSpec::Throttle(spec) => Box::new(Throttle { spec, free_at: Duration::ZERO }),
            })
        };
        let begun = Instant::now();
        let new = media.map(|spec| Ok::<_, io::Error>(Simulated { spec, begun, model: model(spec)? }));
        let new = new.transpose()?;
        let mut simulated = self.simulated.lock();
        self.is_on.store(new.is_some(), Ordering::Relaxed);
        *simulated = new;
        Ok(())
    }

    /// Returns the counters of a flash model; `None` for other media.
    pub fn flash_stats(&self) -> Option<FlashStats> {
        self.simulated.lock().as_ref()?.model.flash()
    }

    /// Performs transfers, and waits as long as the model takes for them.
    fn timed(
        &self,
        transfers: impl Iterator<Item = (Kind, u64, u64)>,
        work: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        if !self.is_on.load(Ordering::Relaxed) {
            return work();
        }
        let done = self.simulated.lock().as_mut().and_then(|Simulated { begun, model, .. }| {
            let now = begun.elapsed();
            let done = transfers.map(|(kind, offset, len)| model.submit(now, kind, offset, len)).max();
            done.map(|done| *begun + done)
        });
        let result = work();
        let wait = done.map_or(Duration::ZERO, |done| done.saturating_duration_since(Instant::now()));
        if !wait.is_zero() {
            nacre_env::blocking(|| nacre_env::thread::sleep(wait));
        }
        result
    }
}

impl BlockDevice for SimulatedDevice {
    fn read(&self, batch: &mut [ReadOp<'_>]) -> io::Result<()> {
        if !self.is_on.load(Ordering::Relaxed) {
            return self.inner.read(batch);
        }
        let transfers: Vec<_> =
            batch.iter().map(|op| (Kind::Read, op.offset, op.buffer.len() as u64)).collect();
        self.timed(transfers.into_iter(), || self.inner.read(batch))
    }

    fn read_each<'a>(
        &self,
        next: &mut dyn FnMut() -> Option<ReadOp<'a>>,
        done: &mut dyn FnMut(usize, usize, &[u8]),
    ) -> io::Result<()> {
        if !self.is_on.load(Ordering::Relaxed) {
            return self.inner.read_each(next, done);
        }
        read_batch(|batch| self.read(batch), next, done)
    }

    fn fetcher(&self) -> Option<Box<dyn Fetch>> {
        self.inner.fetcher()
    }

    fn write(&self, batch: &[WriteOp<'_>]) -> io::Result<()> {
        let transfers = batch.iter().map(|op| (Kind::Write, op.offset, op.data.len() as u64));
        self.timed(transfers, || self.inner.write(batch))
    }

    fn flush(&self) -> io::Result<()> {
        self.inner.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.timed(std::iter::once((Kind::Discard, offset, len)), || self.inner.discard(offset, len))
    }

    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn info(&self) -> DeviceInfo {
        let info = self.inner.info();
        match self.media() {
            None => info,
            Some(spec) => DeviceInfo {
                name: format!("{} (simulated {spec})", info.name),
                is_flash: matches!(spec, MediaSpec::Flash(_)),
                ..info
            },
        }
    }

    fn stats(&self) -> DeviceStats {
        self.inner.stats()
    }
}
