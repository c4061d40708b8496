//! Parameters of a client's connections to its targets that may change while it runs.

use nacre_types::{Status, StatusResult};
pub use nacre_wire::frame::ChecksumType;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Bytes of the pages that `max_pages_per_rpc` counts.
pub const PAGE_BYTES: u64 = 4096;
/// Largest `short_io_bytes`. Lustre accepts values up to 1 MiB and clamps them silently; larger ones are
/// refused here.
pub const SHORT_IO_MAX: u64 = 64 << 10;
/// Smallest `short_io_bytes` that is not "off".
const SHORT_IO_MIN: u64 = 64;
/// Pages in a frame at most.
const RPC_PAGES_MAX: u64 = nacre_types::limits::BULK_MAX as u64 / PAGE_BYTES;
/// Stands for "inherited from the shared parameters".
const INHERIT: u64 = u64::MAX;

/// One of the parameters; the names are those of `osc.*`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Tunable {
    /// `max_rpcs_in_flight`: reads and writes in flight to one target, 1 to 256. The default, unless it is
    /// set, does not limit short ones (`short_io_bytes`): waiting for admission costs them more than the
    /// send.
    MaxRpcsInFlight = 0,
    /// `max_pages_per_rpc`: pages of 4 KiB in one request, 16 to what a frame carries
    /// ([`nacre_types::limits::BULK_MAX`]).
    MaxPagesPerRpc,
    /// `short_io_bytes`: length in bytes up to which data is received together with its header, 0 for none,
    /// else 64 to 65,536.
    ShortIoBytes,
    /// `checksums`: 1 if bulk data carries a checksum, 0 if not.
    Checksums,
    /// `checksum_type`: see [`ChecksumType`].
    ChecksumType,
    /// `conns_per_peer`: endpoints per NID, 1 to 16.
    ConnsPerPeer,
    /// `resend_count`: how often damaged bulk data is sent again before `EIO`, 0 to 1000.
    ResendCount,
    /// `idle_timeout`: seconds after which idle connections to an object target are closed, 0 for never, at
    /// most 50.
    IdleTimeout,
    /// `max_kept_mb`: MiB of acknowledged changes that are kept for one object target on another host until they are
    /// durable there, 0 to keep none, at most 2047.
    MaxKeptMb,
    /// `max_kept_age`: seconds after which the target is asked to make kept changes durable, 1 to 600.
    MaxKeptAge,
    /// `active`: 0 if the target is deactivated; requests then fail at once. Set by
    /// [`crate::api::OssEndpoint::set_active`].
    Active,
}

const COUNT: usize = Tunable::Active as usize + 1;

impl Tunable {
    /// Returns the default, which is Lustre's. Measured over loopback with two threads that read 4 MiB at a
    /// time, November 2026: requests of 1 MiB at 0.83 of the rate with 4 MiB.
    const fn default_value(self) -> u64 {
        match self {
            Tunable::MaxRpcsInFlight => 8,
            Tunable::MaxPagesPerRpc => 1024,
            Tunable::ShortIoBytes => nacre_types::limits::SHORT_IO_BYTES as u64,
            Tunable::Checksums | Tunable::ConnsPerPeer | Tunable::Active => 1,
            Tunable::ChecksumType => ChecksumType::Crc32c as u64,
            Tunable::ResendCount => 10,
            Tunable::IdleTimeout => 20,
            Tunable::MaxKeptMb => 64,
            Tunable::MaxKeptAge => 5,
        }
    }

    /// Returns the value as it is stored.
    ///
    /// # Errors
    /// `ERANGE` for a number out of range, `EINVAL` for one without a meaning.
    fn checked(self, value: u64) -> StatusResult<u64> {
        let within = |range: std::ops::RangeInclusive<u64>| {
            if range.contains(&value) { Ok(value) } else { Err(Status::ERANGE) }
        };
        match self {
            Tunable::MaxRpcsInFlight => within(1..=256),
            Tunable::MaxPagesPerRpc => within(16..=RPC_PAGES_MAX),
            Tunable::ShortIoBytes if value == 0 => Ok(0),
            Tunable::ShortIoBytes => within(SHORT_IO_MIN..=SHORT_IO_MAX),
            Tunable::Checksums | Tunable::Active if value > 1 => Err(Status::EINVAL),
            Tunable::Checksums | Tunable::Active => Ok(value),
            Tunable::ChecksumType if value > ChecksumType::Adler as u64 => Err(Status::EINVAL),
            Tunable::ChecksumType => Ok(value),
            Tunable::ConnsPerPeer => within(1..=16),
            Tunable::ResendCount => within(0..=1000),
            Tunable::IdleTimeout => within(0..=50),
            Tunable::MaxKeptMb => within(0..=2047),
            Tunable::MaxKeptAge => within(1..=600),
        }
    }
}

/// Parameters that endpoints read whenever they need them, so that a change takes effect with the next
/// request (with the next connection for parameters of connections). Any thread may read and set.
///
/// An endpoint has its own on top of those that all endpoints of a client share ([`Tunables::over`]): its own
/// settings take precedence, the rest is inherited.
#[derive(Debug)]
pub struct Tunables {
    own: [AtomicU64; COUNT],
    shared: Option<Arc<Tunables>>,
}

impl Default for Tunables {
    fn default() -> Tunables {
        Tunables { own: [const { AtomicU64::new(INHERIT) }; COUNT], shared: None }
    }
}

impl Tunables {
    /// Creates parameters without settings, which inherit everything from `shared`.
    pub fn over(shared: Arc<Tunables>) -> Tunables {
        Tunables { shared: Some(shared), ..Tunables::default() }
    }

    /// Returns the effective value.
    pub fn get(&self, tunable: Tunable) -> u64 {
        match self.own[tunable as usize].load(Ordering::Relaxed) {
            INHERIT => match &self.shared {
                Some(shared) => shared.get(tunable),
                None => tunable.default_value(),
            },
            value => value,
        }
    }

    /// Sets a value at this level.
    ///
    /// # Errors
    /// `ERANGE` for a number out of range, `EINVAL` for one without a meaning; see [`Tunable`].
    pub fn set(&self, tunable: Tunable, value: u64) -> StatusResult<()> {
        self.own[tunable as usize].store(tunable.checked(value)?, Ordering::Relaxed);
        Ok(())
    }

    /// Removes the setting at this level, so that the shared value or the default is inherited again.
    pub fn reset(&self, tunable: Tunable) {
        self.own[tunable as usize].store(INHERIT, Ordering::Relaxed);
    }

    /// Returns the limit on reads and writes in flight to one target.
    pub fn max_rpcs_in_flight(&self) -> u32 {
        self.get(Tunable::MaxRpcsInFlight) as u32
    }

    /// Returns true if the parameter is set, here or in the shared parameters.
    pub fn is_set(&self, tunable: Tunable) -> bool {
        self.own[tunable as usize].load(Ordering::Relaxed) != INHERIT
            || self.shared.as_ref().is_some_and(|shared| shared.is_set(tunable))
    }

    /// Returns false if the target is deactivated.
    pub fn is_active(&self) -> bool {
        self.get(Tunable::Active) != 0
    }

    /// Returns the longest data of one request in bytes.
    pub fn rpc_bytes_max(&self) -> usize {
        (self.get(Tunable::MaxPagesPerRpc) * PAGE_BYTES) as usize
    }

    /// Returns the length in bytes up to which data travels inline; 0 for none.
    pub fn short_io_bytes(&self) -> usize {
        self.get(Tunable::ShortIoBytes) as usize
    }

    /// Returns the checksum type for bulk data, `None` for no checksums.
    pub fn checksum(&self) -> Option<ChecksumType> {
        if self.get(Tunable::Checksums) == 0 {
            return None;
        }
        Some(match self.get(Tunable::ChecksumType) {
            1 => ChecksumType::Adler,
            _ => ChecksumType::Crc32c,
        })
    }

    /// Returns the endpoints per NID.
    pub fn conns_per_peer(&self) -> usize {
        self.get(Tunable::ConnsPerPeer) as usize
    }

    /// Returns how often damaged data is sent again.
    pub fn resend_count(&self) -> u32 {
        self.get(Tunable::ResendCount) as u32
    }

    /// Returns the idle time after which a connection is closed, `None` for never.
    pub fn idle_timeout(&self) -> Option<Duration> {
        Some(self.get(Tunable::IdleTimeout)).filter(|&s| s > 0).map(Duration::from_secs)
    }

    /// Returns the most bytes of acknowledged changes that are kept until they are durable.
    pub fn kept_bytes_max(&self) -> u64 {
        self.get(Tunable::MaxKeptMb) << 20
    }

    /// Returns the age of a kept change at which the target is asked to make it durable.
    pub fn kept_age_max(&self) -> Duration {
        Duration::from_secs(self.get(Tunable::MaxKeptAge))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_follows_the_shared_value_until_it_has_its_own() {
        let shared = Arc::new(Tunables::default());
        let ost = Tunables::over(shared.clone());
        assert_eq!((ost.max_rpcs_in_flight(), ost.is_set(Tunable::MaxRpcsInFlight)), (8, false));
        shared.set(Tunable::MaxRpcsInFlight, 16).unwrap();
        assert_eq!((ost.max_rpcs_in_flight(), ost.is_set(Tunable::MaxRpcsInFlight)), (16, true));
        ost.set(Tunable::MaxRpcsInFlight, 3).unwrap();
        shared.set(Tunable::MaxRpcsInFlight, 32).unwrap();
        assert_eq!((ost.max_rpcs_in_flight(), shared.max_rpcs_in_flight()), (3, 32));
        ost.reset(Tunable::MaxRpcsInFlight);
        assert_eq!(ost.max_rpcs_in_flight(), 32);
    }

    #[test]
    fn numbers_out_of_range_are_refused_and_change_nothing() {
        let tunables = Tunables::default();
        let range = [
            (Tunable::MaxRpcsInFlight, 1, 256),
            (Tunable::MaxPagesPerRpc, 16, 1024),
            (Tunable::ConnsPerPeer, 1, 16),
            (Tunable::ResendCount, 0, 1000),
            (Tunable::IdleTimeout, 0, 50),
        ];
        for (tunable, min, max) in range {
            for good in [min, max] {
                assert_eq!(tunables.set(tunable, good), Ok(()), "{tunable:?} {good}");
                assert_eq!(tunables.get(tunable), good);
            }
            for bad in [min.wrapping_sub(1), max + 1, u64::MAX] {
                assert_eq!(tunables.set(tunable, bad), Err(Status::ERANGE), "{tunable:?} {bad}");
                assert_eq!(tunables.get(tunable), max);
            }
        }
        for tunable in [Tunable::Checksums, Tunable::ChecksumType] {
            assert_eq!(tunables.set(tunable, 2), Err(Status::EINVAL));
        }
    }

    #[test]
    fn short_io_is_off_or_between_64_bytes_and_what_fits() {
        let tunables = Tunables::default();
        let set = |bytes| tunables.set(Tunable::ShortIoBytes, bytes).map(|()| tunables.short_io_bytes());
        assert_eq!(tunables.short_io_bytes(), 16 << 10);
        assert_eq!(set(0), Ok(0));
        assert_eq!(set(63), Err(Status::ERANGE));
        assert_eq!(set(64), Ok(64));
        assert_eq!(set(64 << 10), Ok(64 << 10));
        assert_eq!(set((64 << 10) + 1), Err(Status::ERANGE));
    }

    #[test]
    fn checksums_have_names_and_can_be_off() {
        let tunables = Tunables::default();
        assert_eq!(tunables.checksum(), Some(ChecksumType::Crc32c));
        let adler = ChecksumType::from_name("adler").unwrap();
        tunables.set(Tunable::ChecksumType, adler as u64).unwrap();
        assert_eq!(tunables.checksum(), Some(ChecksumType::Adler));
        tunables.set(Tunable::Checksums, 0).unwrap();
        assert_eq!(tunables.checksum(), None);
    }

    #[test]
    fn requests_never_grow_beyond_what_a_frame_carries() {
        let tunables = Tunables::default();
        assert_eq!(tunables.rpc_bytes_max(), 4 << 20);
        tunables.set(Tunable::MaxPagesPerRpc, 16).unwrap();
        assert_eq!(tunables.rpc_bytes_max(), 64 << 10);
    }
}
