//! Giving up a lock: what was written under it goes out, what is cached under it goes away.

use super::folios::Range;
use super::space::{Home, LostLock, Namespace, bytes_of};
use crate::client::Client;
use crate::file::FileState;
use crate::io::dirty::table::Scope;
use nacre_env::sync::{Condvar, Mutex};
use nacre_layout::Layout;
use nacre_layout::object_ranges;
use nacre_lock::{LockHandle, Need, ResourceId};
use nacre_types::Fid;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Time in which a page that nobody has locked is dropped; one that is not by then belongs to a request that waits, so it holds nothing
/// old. Dropping takes microseconds; the rest is for a thread to come on a busy machine.
const IN_DOUBT_WAIT: Duration = Duration::from_millis(25);

impl Client {
    /// Performs a flush. On a thread that serves nobody.
    pub(super) fn flush_lock(
        &self,
        space: &Arc<Namespace>,
        handle: LockHandle,
        resource: &ResourceId,
        need: &Need,
    ) {
        if let Some(home) = space.home(resource) {
            self.flush_object(&home, resource.fid(), need);
        }
        space.on_flushed(self.lease.locks(), handle, resource);
    }

    fn flush_object(&self, home: &Home, object: Fid, need: &Need) {
        // Without an open file nothing is dirty, and what the kernel caches is dropped by the next open.
        let Some(file) = self.nodes.file(home.node) else { return };
        let (start, end) = bytes_of(need);
        file.lock_era.fetch_add(1, Ordering::AcqRel);
        if need.mode.writes()
            && let Err(status) = self.settle_scope(&file, &Scope::Ranges(vec![(object, start, end)]))
        {
            log::warn!("data of {} could not be written: {status}", file.fid);
        }
        self.drop_cached(&file, |hull| file_ranges(&home.layout, object, (start, end), hull));
        file.lock_era.fetch_add(1, Ordering::AcqRel);
    }

    /// Drops pages from the kernel's cache, as often as requests bring some of them back under the lock that is being
    /// given up. `of` gives what the lock covers of what may be cached, which those requests may have added to.
    fn drop_cached(&self, file: &FileState, of: impl Fn(Range) -> Vec<Range>) {
        let Some(kernel) = self.kernel.get() else { return };
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
            // What those requests took of other objects is under other locks.
            ranges = covered()
                .iter()
                .flat_map(|one| brought_back.iter().filter_map(|other| common(*one, *other)))
                .collect();
        }
    }

    /// Has pages dropped that a waiting request may have locked, by threads that may wait for it.
    fn drop_in_doubt(&self, node: u64, pages: Vec<Range>) -> Arc<Countdown> {
        let left = Arc::new(Countdown::new(pages.len()));
        let Some(kernel) = self.kernel.get() else { return left };
        for (start, end) in pages {
            let (kernel, done) = (kernel.clone(), left.clone());
            let drop = move || {
                kernel.drop_data(node, start, end - start);
                done.one_is_done();
            };
            // Each has a thread: one that waits must not keep back one that would not.
            if let Err(error) = nacre_env::thread::Builder::new().name("drop-page".into()).spawn(drop) {
                log::warn!("a page of node {node} may be old for a moment: {error}");
                left.one_is_done();
            }
        }
        left
    }

    /// The OST has dropped this client with all its locks there.
    pub(super) fn lose_locks(&self, ost_index: u16) {
        let space = self.lease.locks().space(ost_index);
        self.drop_lost(space.on_evicted(self.lease.locks()));
    }

    /// Drops what was cached under locks that are gone.
    pub(super) fn drop_lost(&self, lost: Vec<LostLock>) {
        for (resource, need, home) in lost {
            let Some(file) = home.as_ref().and_then(|home| self.nodes.file(home.node)) else { continue };
            file.lock_era.fetch_add(1, Ordering::AcqRel);
            if need.mode.writes() {
                let (start, end) = bytes_of(&need);
                self.lose_dirty_of(&file, Scope::Ranges(vec![(resource.fid(), start, end)]));
            }
            self.lease.locks().forget_pages(file.node);
        }
    }
}

/// Counts what others do.
struct Countdown {
    left: Mutex<usize>,
    changed: Condvar,
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

    /// Returns when nothing is left to do, or after this time.
    fn wait(&self, time: Duration) {
        let mut left = self.left.lock();
        if *left > 0 {
            self.changed.wait_while_for(&mut left, |left| *left > 0, time);
        }
    }
}

/// What two ranges have in common.
fn common(a: Range, b: Range) -> Option<Range> {
    let both = (a.0.max(b.0), a.1.min(b.1));
    (both.0 < both.1).then_some(both)
}

/// Bytes of the file that lie in `[start, end)` of an object and in `hull`.
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
                // A single stripe: one piece follows the other.
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
