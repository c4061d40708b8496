//! The OSTs that a client knows, and the data parts of MDTs: only ever added to, and read without a lock.

use nacre_rpc::OssEndpoint;
use nacre_types::limits::DATA_INDEX_MAX;
use std::sync::{Arc, OnceLock};

const PAGE: usize = 256;
const PAGES: usize = (DATA_INDEX_MAX as usize).div_ceil(PAGE);

type Page = [OnceLock<Arc<dyn OssEndpoint>>; PAGE];

/// Endpoints by OST index, in pages that are made when the first OST of a page appears.
pub(crate) struct OstTable {
    pages: Box<[OnceLock<Box<Page>>]>,
}

impl OstTable {
    pub fn new() -> OstTable {
        OstTable { pages: (0..PAGES).map(|_| OnceLock::new()).collect() }
    }

    /// Adds an OST; false if the index is known already (then nothing changes) or beyond all limits.
    pub fn add(&self, index: u16, endpoint: Arc<dyn OssEndpoint>) -> bool {
        let Some(page) = self.pages.get(usize::from(index) / PAGE) else { return false };
        let page = page.get_or_init(|| Box::new(std::array::from_fn(|_| OnceLock::new())));
        page[usize::from(index) % PAGE].set(endpoint).is_ok()
    }

    pub fn get(&self, index: u16) -> Option<&dyn OssEndpoint> {
        let page = self.pages.get(usize::from(index) / PAGE)?.get()?;
        page[usize::from(index) % PAGE].get().map(|endpoint| &**endpoint)
    }

    /// All OSTs in order of their indexes, then the data parts of MDTs.
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
