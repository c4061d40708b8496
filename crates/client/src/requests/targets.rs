//! The targets that a client knows: added but never removed, and read without a lock.

use crate::requests::mdt::Mdt;
use nacre_rpc::OssEndpoint;
use nacre_types::limits::{DATA_INDEX_MAX, MDT_COUNT_MAX};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

const PAGE: usize = 256;
const PAGES: usize = (DATA_INDEX_MAX as usize).div_ceil(PAGE);

type Page = [OnceLock<Arc<dyn OssEndpoint>>; PAGE];

/// MDTs by index, without gaps.
pub(crate) struct MdtTable {
    slots: Box<[OnceLock<Mdt>]>,
    /// Slots in use, from the first on.
    count: AtomicUsize,
}

impl MdtTable {
    pub fn new() -> MdtTable {
        let slots = (0..MDT_COUNT_MAX).map(|_| OnceLock::new()).collect();
        MdtTable { slots, count: AtomicUsize::new(0) }
    }

    /// Adds the next MDT; false if the table is full. Not to be called by two threads at once.
    pub fn push(&self, mdt: Mdt) -> bool {
        let count = self.len();
        let added = self.slots.get(count).is_some_and(|slot| slot.set(mdt).is_ok());
        if added {
            self.count.store(count + 1, Ordering::Release);
        }
        added
    }

    pub fn len(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    pub fn get(&self, index: usize) -> Option<&Mdt> {
        // Bounded by the count, which leaves out an MDT that is just being added.
        if index < self.len() { self.slots.get(index)?.get() } else { None }
    }

    pub fn iter(&self) -> impl Iterator<Item = &Mdt> {
        self.slots.iter().take(self.len()).filter_map(OnceLock::get)
    }
}

/// Endpoints by OST index, and by that of the data parts of MDTs, in pages that are allocated when the first
/// OST of a page appears.
pub(crate) struct OstTable {
    pages: Box<[OnceLock<Box<Page>>]>,
}

impl OstTable {
    pub fn new() -> OstTable {
        OstTable { pages: (0..PAGES).map(|_| OnceLock::new()).collect() }
    }

    /// Adds an OST; false if the index is known already (then nothing changes) or out of range.
    pub fn add(&self, index: u16, endpoint: Arc<dyn OssEndpoint>) -> bool {
        let Some(page) = self.pages.get(usize::from(index) / PAGE) else { return false };
        let page = page.get_or_init(|| Box::new(std::array::from_fn(|_| OnceLock::new())));
        page[usize::from(index) % PAGE].set(endpoint).is_ok()
    }

    pub fn get(&self, index: u16) -> Option<&dyn OssEndpoint> {
        let page = self.pages.get(usize::from(index) / PAGE)?.get()?;
        page[usize::from(index) % PAGE].get().map(|endpoint| &**endpoint)
    }

    /// Iterates over all OSTs in order of their indexes, then the data parts of MDTs.
    pub fn iter(&self) -> impl Iterator<Item = (u16, &dyn OssEndpoint)> {
        self.pages.iter().enumerate().filter_map(|(number, page)| Some((number, page.get()?))).flat_map(
            |(number, page)| {
                page.iter().enumerate().filter_map(move |(slot, endpoint)| {
                    Some(((number * PAGE + slot) as u16, &**endpoint.get()?))
                })
            },
        )
    }
}
