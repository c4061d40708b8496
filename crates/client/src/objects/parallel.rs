//! Work of one request on several CPUs (`llite.*.parallel_io`).
//!
//! Work that can be divided: requests for several stripes or for the pieces of a large one (each thread sends
//! or receives some, with their checksums), and copies into and out of buffers. Waking another CPU costs 20
//! to 50 us, and a busy CPU is no gain, so [`ParallelIo::Auto`] requires enough bytes and CPUs that were idle
//! lately. Lustre had the same and removed it because it was slower on busy machines; here no thread waits
//! for a helper that has not begun ([`crate::tasks`]).

use crate::objects::Objects;
use crate::objects::idle::Pace;
use crate::tasks::Tasks;
use crate::tunables::{DIVIDE_MIN, ParallelIo};
use nacre_layout::Chunk;
use nacre_rpc::{Helpers, IoCall, run_all_by};
use nacre_types::StatusResult;
use nacre_wire::oss::OssReply;
use std::ops::Range;

/// Size of the pieces of a copy, in bytes.
const COPY_PIECE: usize = 128 << 10;
/// Size of the pieces of a transfer, in bytes: servers still bypass their page caches for pieces of this
/// size.
const REQUEST_PIECE: u64 = 512 << 10;

/// Threads of the pool, as helpers for requests.
struct Pool<'a> {
    tasks: &'a Tasks,
    helpers: usize,
}

impl Helpers for Pool<'_> {
    fn share(&self, items: usize, work: &(dyn Fn(usize) + Sync)) {
        self.tasks.share(items, self.helpers, work);
    }
}

impl Objects {
    /// Returns how many threads should help with this many bytes of one request.
    pub(crate) fn helpers_for(&self, bytes: u64) -> usize {
        // Counting CPUs is a system call.
        if bytes < DIVIDE_MIN {
            return 0;
        }
        let cpus = nacre_env::cpu_count();
        let helpers = self.tunables.parallel_io().helpers(bytes, cpus, || self.idle.per_cent());
        if helpers > 0 {
            self.tunables.count_divided();
        }
        helpers
    }

    /// Runs requests that move `bytes` in total; see [`nacre_rpc::run_all`]. `pace` is that of calls of this
    /// kind.
    pub(crate) fn run_calls(
        &self,
        calls: Vec<IoCall<'_>>,
        bytes: u64,
        pace: Option<&Pace>,
    ) -> Vec<StatusResult<OssReply>> {
        let gains = calls.len() > 1 && pace.is_none_or(|pace| self.gains_by_division(|| pace.is_slow()));
        let helpers = if gains { self.helpers_for(bytes) } else { 0 };
        run_all_by(calls, &Pool { tasks: &self.tasks, helpers })
    }

    /// Divides a chunk that is large enough for several threads; `None` if it is to stay whole.
    pub(crate) fn divided(&self, chunk: &Chunk, pace: &Pace) -> Option<Vec<Chunk>> {
        let is_large = chunk.object.is_some() && chunk.len >= 2 * REQUEST_PIECE;
        let gains = is_large && self.gains_by_division(|| pace.wants_division());
        (gains && self.helpers_for(chunk.len) > 0).then(|| cut(chunk).collect())
    }

    /// True if division pays off. In automatic mode a request to servers in other processes is divided only
    /// if they keep callers waiting: over loopback the wake-ups cost more than a second CPU gains (0.7 to 0.9
    /// of the throughput).
    fn gains_by_division(&self, is_slow: impl FnOnce() -> bool) -> bool {
        self.tunables.parallel_io() != ParallelIo::Auto || self.requests.is_embedded() || is_slow()
    }

    /// Copies bytes; both slices have the same length.
    pub(crate) fn copy(&self, from: &[u8], to: &mut [u8]) {
        assert_eq!(from.len(), to.len());
        let helpers = self.helpers_for(from.len() as u64);
        if helpers == 0 {
            return to.copy_from_slice(from);
        }
        // SAFETY: both are valid for their length and cannot overlap.
        unsafe { self.copy_by(helpers, from.as_ptr(), to.as_mut_ptr(), from.len()) };
    }

    /// Copies `len` bytes.
    ///
    /// # Safety
    /// As [`std::ptr::copy_nonoverlapping`].
    pub(crate) unsafe fn copy_raw(&self, from: *const u8, to: *mut u8, len: usize) {
        match self.helpers_for(len as u64) {
            // SAFETY: promised by the caller.
            0 => unsafe { std::ptr::copy_nonoverlapping(from, to, len) },
            // SAFETY: promised by the caller.
            helpers => unsafe { self.copy_by(helpers, from, to, len) },
        }
    }

    /// Copies `len` bytes with this number of helpers.
    ///
    /// # Safety
    /// As [`std::ptr::copy_nonoverlapping`].
    unsafe fn copy_by(&self, helpers: usize, from: *const u8, to: *mut u8, len: usize) {
        struct Ends(*const u8, *mut u8);
        // SAFETY: used below only for pieces that do not overlap, while the caller waits.
        unsafe impl Sync for Ends {}
        impl Ends {
            /// Copies one piece.
            ///
            /// # Safety
            /// The piece is within both buffers, and no other thread accesses it.
            unsafe fn copy(&self, piece: Range<usize>) {
                // SAFETY: promised by the caller.
                unsafe {
                    std::ptr::copy_nonoverlapping(
                        self.0.add(piece.start),
                        self.1.add(piece.start),
                        piece.len(),
                    );
                }
            }
        }
        let ends = Ends(from, to);
        self.tasks.share(len.div_ceil(COPY_PIECE), helpers, &|index| {
            let start = index * COPY_PIECE;
            // SAFETY: each index is passed to one thread once, and its piece ends within the length.
            unsafe { ends.copy(start..len.min(start + COPY_PIECE)) };
        });
    }
}

/// Divides a chunk into pieces; they end at multiples of [`REQUEST_PIECE`] in the object.
fn cut(chunk: &Chunk) -> impl Iterator<Item = Chunk> + use<> {
    let (whole, mut done) = (*chunk, 0);
    std::iter::from_fn(move || {
        let at = whole.object_offset + done;
        let len = (REQUEST_PIECE - at % REQUEST_PIECE).min(whole.len - done);
        let piece = Chunk { file_offset: whole.file_offset + done, object_offset: at, len, ..whole };
        done += len;
        (len > 0).then_some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_layout::StripeObject;
    use nacre_types::Fid;
    use nacre_types::Status;

    #[test]
    fn idle_cpus_and_size_decide() {
        let helpers = |setting: ParallelIo, bytes, cpus, idle| setting.helpers(bytes, cpus, || idle);
        for setting in [ParallelIo::Off, ParallelIo::Auto, ParallelIo::On] {
            assert_eq!(helpers(setting, DIVIDE_MIN - 1, 8, 100), 0);
        }
        assert_eq!(helpers(ParallelIo::Off, 1 << 30, 8, 100), 0);
        assert_eq!(helpers(ParallelIo::On, DIVIDE_MIN, 8, 0), 7);
        assert_eq!(helpers(ParallelIo::On, DIVIDE_MIN, 1, 0), 1);
        let auto = |cpus, idle| helpers(ParallelIo::Auto, DIVIDE_MIN, cpus, idle);
        assert_eq!([auto(2, 24), auto(2, 25), auto(2, 100)], [0, 1, 1]);
        assert_eq!([auto(8, 6), auto(8, 50), auto(8, 100), auto(1, 100)], [0, 4, 7, 0]);
    }

    #[test]
    fn settings_have_names() {
        for name in ParallelIo::NAMES {
            assert_eq!(name.parse::<ParallelIo>().map(ParallelIo::name), Ok(name));
        }
        assert_eq!("1".parse::<ParallelIo>(), Err(Status::EINVAL));
    }

    #[test]
    fn pieces_cover_a_chunk() {
        let stripe = StripeObject::new(1, Fid::ost_object(1, 1));
        for (at, len) in [(0, 4 << 20), (5, 1 << 20), (REQUEST_PIECE - 1, 2 * REQUEST_PIECE + 2)] {
            let chunk = Chunk { file_offset: 77, object: Some(stripe), object_offset: at, len };
            let pieces: Vec<Chunk> = cut(&chunk).collect();
            let mut done = 0;
            for piece in &pieces {
                assert_eq!((piece.file_offset, piece.object_offset), (77 + done, at + done));
                assert!(piece.len > 0 && piece.len <= REQUEST_PIECE && piece.object == chunk.object);
                done += piece.len;
            }
            assert_eq!(done, len);
        }
    }
}
