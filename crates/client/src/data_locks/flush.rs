//! Flushes before a lock is cancelled: data written under it is written back, and cached data under it is
//! dropped.

use crate::data_locks::DataLocks;
use crate::file::FileState;
use crate::file::folios::Range;
use crate::locks::Holder;
use crate::locks::space::{Home, LostLock, bytes_of};
use crate::requests::target_of;
use crate::write_back::table::Scope;
use nacre_env::clock::Instant;
use nacre_env::sync::{Condvar, Mutex};
use nacre_layout::{Layout, object_ranges};
use nacre_lock::{Lvb, Mode, Need, ResourceId};
use nacre_rpc::{MdsEndpoint, OssEndpoint, Recovery};
use nacre_types::{Capability, Fid, ObjectNeed, StatusResult, Timestamp};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Time within which an unlocked page is certainly dropped; a page that is not dropped by then belongs to a
/// waiting request, so it holds nothing outdated. A drop takes microseconds; the rest is for a thread to
/// start on a busy machine.
const IN_DOUBT_WAIT: Duration = Duration::from_millis(25);

/// Counter of unfinished work on other threads.
struct Countdown {
    left: Mutex<usize>,
    changed: Condvar,
}

impl Holder for DataLocks {
    fn ost(&self, index: u16) -> Option<&dyn OssEndpoint> {
        self.requests.osts.get(index)
    }

    fn mdt(&self, index: u16) -> Option<&dyn MdsEndpoint> {
        self.requests.mdt_endpoint(index)
    }

    fn capability(
        &self,
        need: &ObjectNeed,
        refused: Option<&Capability>,
    ) -> StatusResult<Option<Capability>> {
        // The sender of the request that needs it adds the context for the log.
        self.requests.capability(need, refused).map_err(|failure| failure.status())
    }

    fn flush_object(&self, home: &Home, object: Fid, need: &Need) {
        // Without an open file nothing is dirty, and the next open drops what the kernel caches.
        // Pinned: pages that are requested meanwhile, also after a close and another open, are in the same table.
        let Some(pin) = self.nodes.pin_open(home.node) else { return };
        let file = &*pin.file;
        let (start, end) = bytes_of(need);
        file.lock_era.fetch_add(1, Ordering::AcqRel);
        if need.mode.writes() {
            self.write_back.settle_unheard(file, &Scope::Ranges(vec![(object, start, end)]));
        }
        self.drop_cached(file, |hull| file_ranges(&home.layout, object, (start, end), hull));
        file.lock_era.fetch_add(1, Ordering::AcqRel);
    }

    fn replay_data(
        &self,
        ost_index: u16,
        endpoint: &dyn OssEndpoint,
        recovery: Recovery,
    ) -> StatusResult<()> {
        self.requests.keepers.replay(ost_index, endpoint, recovery)
    }

    fn drop_lost(&self, ost_index: u16, lost: Vec<LostLock>) {
        for (resource, need, home) in lost {
            let Some(file) = home.as_ref().and_then(|home| self.nodes.file(home.node)) else { continue };
            file.lock_era.fetch_add(1, Ordering::AcqRel);
            if need.mode.writes() {
                let (start, end) = bytes_of(&need);
                let scope = Scope::Ranges(vec![(resource.fid(), start, end)]);
                self.write_back.lose_dirty_of(&file, scope, target_of(ost_index));
            }
            self.lease.locks().forget_pages(file.node);
        }
    }

    fn leave_objects(&self, fid: Fid, layout: Option<&Layout>) {
        let file = self.nodes.file(fid.inode_number());
        if let Some(file) = &file {
            self.write_back.settle_unheard(file, &Scope::All);
        }
        let locks = self.lease.locks();
        for stripe in layout.iter().flat_map(|layout| layout.objects()) {
            let (space, resource) = (locks.space(stripe.ost_index), ResourceId::of_fid(&stripe.object));
            for mode in [Mode::Pr, Mode::Pw] {
                // A thread of the client itself is never interrupted.
                if let Err(status) = space.surrender(locks, &resource, mode) {
                    log::warn!("a lock on {} was not waited for: {status}", stripe.object);
                }
            }
        }
        if let Some(file) = file {
            if let Err(status) = self.leave_grouped_objects(&file) {
                log::warn!("a group's locks on {fid} were not waited for: {status}");
            }
            self.layouts.forget_layout(&file);
        }
    }

    fn forget_layout(&self, fid: Fid) {
        if let Some(file) = self.nodes.file(fid.inode_number()) {
            self.layouts.forget_layout(&file);
        }
    }

    fn locks_changed(&self, node: u64) {
        if let Some(file) = self.nodes.file(node) {
            file.lock_era.fetch_add(1, Ordering::AcqRel);
        }
    }

    fn known_of(&self, node: u64, object: Fid) -> Lvb {
        let Some(file) = self.nodes.file(node) else { return Lvb::default() };
        let size_bytes = file.dirty.object_end(&object);
        let mtime = if size_bytes > 0 { file.lock().news.mtime.to_tell() } else { None };
        let mtime = mtime.unwrap_or(Timestamp::default());
        Lvb { size_bytes, mtime, ctime: mtime, ..Lvb::default() }
    }

    fn reaches_kernel(&self, node: u64, since: Instant, drop: &dyn Fn(u64) -> bool) -> bool {
        self.nodes.reaches_kernel(node, since, drop)
    }
}

impl DataLocks {
    /// Drops pages from the kernel's cache, repeatedly while requests bring some of them back under the lock
    /// that is being cancelled. `of` returns what the lock covers of the cached range, which those requests
    /// may have extended.
    fn drop_cached(&self, file: &FileState, of: impl Fn(Range) -> Vec<Range>) {
        let Some(kernel) = self.lease.kernel() else { return };
        let covered = || file.folios.lock().hull().map_or_else(Vec::new, &of);
        let mut ranges = covered();
        while !ranges.is_empty() {
            let Some(round) = file.folios.lock().begin_drop(&ranges) else { return };
            let in_doubt = self.drop_in_doubt(file.node, round.in_doubt);
            for (start, end) in round.ranges {
                kernel.drop_data(file.node, start, end - start);
            }
            in_doubt.wait(IN_DOUBT_WAIT);
            let brought_back = file.folios.lock().end_drop(round.id);
            // Pages of those requests on other objects are under other locks.
            ranges = covered()
                .iter()
                .flat_map(|one| brought_back.iter().filter_map(|other| common(*one, *other)))
                .collect();
        }
    }

    /// Drops pages that a waiting request may have locked, on threads that may wait for it.
    fn drop_in_doubt(&self, node: u64, pages: Vec<Range>) -> Arc<Countdown> {
        let left = Arc::new(Countdown::new(pages.len()));
        let Some(kernel) = self.lease.kernel() else { return left };
        for (start, end) in pages {
            let (kernel, done) = (kernel.clone(), left.clone());
            let drop = move || {
                kernel.drop_data(node, start, end - start);
                done.one_is_done();
            };
            // One thread per page: a drop that waits must not delay one that would not.
            if let Err(error) = nacre_env::thread::Builder::new().name("drop-page".into()).spawn(drop) {
                log::warn!("a page of node {node} may be old for a moment: {error}");
                left.one_is_done();
            }
        }
        left
    }
}

impl Countdown {
    fn new(left: usize) -> Countdown {
        Countdown { left: Mutex::new(left), changed: Condvar::new() }
    }

    fn one_is_done(&self) {
        let mut left = self.left.lock();
        *left = left.saturating_sub(1);
        self.changed.notify_all();
    }

    /// Returns when no work is left, or after this time.
    fn wait(&self, time: Duration) {
        let mut left = self.left.lock();
        if *left > 0 {
            self.changed.wait_while_for(&mut left, |left| *left > 0, time);
        }
    }
}

/// Returns the intersection of two ranges.
fn common(a: Range, b: Range) -> Option<Range> {
    let both = (a.0.max(b.0), a.1.min(b.1));
    (both.0 < both.1).then_some(both)
}

/// Returns the bytes of the file that are in `[start, end)` of an object and in `hull`.
fn file_ranges(layout: &Layout, object: Fid, (start, end): (u64, u64), hull: Range) -> Vec<Range> {
    let mut found = Vec::new();
    let Some(part) = object_ranges(layout, hull.0, hull.1).find(|part| part.stripe.object == object) else {
        return found;
    };
    let (start, end) = (start.max(part.start), end.min(part.end));
    for component in &layout.components {
        let Some(index) = component.objects.iter().position(|stripe| stripe.object == object) else {
            continue;
        };
        let Some(math) = component.math() else { continue };
        let unit = u64::from(component.stripe_size).max(1);
        let mut at = start;
        while at < end {
            let until = ((at / unit + 1) * unit).min(end);
            let from = math.file_offset(index as u16, at);
            let piece = (from, from + (until - at));
            match found.last_mut() {
                // With a single stripe the pieces are adjacent.
                Some(last) if last.1 == piece.0 => last.1 = piece.1,
                _ => found.push(piece),
            }
            at = until;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_layout::{LayoutSpec, StripeObject};

    #[test]
    fn an_object_is_a_comb_of_the_file() {
        let spec = LayoutSpec { stripe_size: Some(65536), stripe_count: Some(2), ..LayoutSpec::default() };
        let mut layout = spec.to_layout();
        let objects = (0..2).map(|i| StripeObject::new(i, Fid::ost_object(i, 1))).collect();
        layout.components[0].objects = objects;
        let second = Fid::ost_object(1, 1);
        let all = file_ranges(&layout, second, (0, u64::MAX), (0, 4 * 65536));
        assert_eq!(all, [(65536, 131_072), (3 * 65536, 4 * 65536)]);
        let part = file_ranges(&layout, second, (4096, 8192), (0, 4 * 65536));
        assert_eq!(part, [(65536 + 4096, 65536 + 8192)]);
        assert_eq!(file_ranges(&layout, second, (0, u64::MAX), (0, 65536)), []);
        assert_eq!(file_ranges(&layout, Fid::ost_object(2, 1), (0, u64::MAX), (0, 65536)), []);
    }
}
