//! Reads the file of the base page by page, without LMDB.
//!
//! LMDB trusts its pages: a damaged one crashes the process, and a damaged free list makes the next commit
//! overwrite pages in use. A check of a store that may be damaged reads its file through this module instead,
//! which never writes, takes no lock, checks every offset and length, and skips inconsistent pages
//! ([`Pages::scan`]). [`verify`](Pages::verify) names them, and accounts for every page of the file.
//!
//! The format is that of LMDB 0.9 (data version 1): two meta pages, B+trees whose leaves hold keys and data,
//! long data in runs of overflow pages, and a tree of free pages by transaction.
//! `docs/formats/metadata-store.md` has the summary.

mod page;
mod verify;

use std::fs::File;
use std::ops::Bound;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use super::base::{BaseSizes, STATE_KEY, decode_state, open_value};
use super::error::{MetaError, Result};
use super::report::VerifyProblem;
use page::{Data, Kind, META_PAGES, Meta, Page, Tree};

/// Depth of a tree beyond which LMDB itself fails.
const DEPTH_MAX: u16 = 32;
/// Pages that the meta page may count beyond the end of the file: free pages at the end need not exist.
const BEYOND_END_MAX: u64 = 1 << 24;
/// Name of LMDB's file in its directory.
pub(crate) const DATA_NAME: &str = "data.mdb";

/// Number of a damaged or unreadable page, and a description of the damage.
type Damage = (u64, &'static str);

/// The file of a base opened read-only.
pub(crate) struct Pages {
    file: File,
    path: PathBuf,
    page_bytes: usize,
    file_pages: u64,
    /// Meta page of the newest commit.
    meta: Meta,
    data: Option<Tree>,
    state: Option<Tree>,
    /// Damage found by opening.
    damage: Vec<VerifyProblem>,
    /// A scan has skipped damage.
    is_partial: AtomicBool,
}

impl Pages {
    /// Opens the file in `dir`.
    ///
    /// # Errors
    /// [`MetaError::Io`], and [`MetaError::Corrupt`] if neither meta page can be used.
    pub(crate) fn open(dir: &Path) -> Result<Pages> {
        let path = dir.join(DATA_NAME);
        let io = |action| {
            let path = path.clone();
            move |source| MetaError::Io { action, path, source }
        };
        let file = File::open(&path).map_err(io("open"))?;
        let len = file.metadata().map_err(io("stat"))?.len();
        let (page_bytes, metas) = read_metas(&file);
        let file_pages = len / page_bytes as u64;
        let mut damage = Vec::new();
        let mut usable: Vec<Meta> = Vec::new();
        for (number, meta) in (0u64..).zip(metas) {
            match meta.and_then(|meta| check_meta(meta, number, file_pages)) {
                Ok(meta) => usable.push(meta),
                Err(what) => damage.push(VerifyProblem::Bookkeeping { page: number, what }),
            }
        }
        usable.sort_by_key(|meta| meta.txnid);
        if let [older, newer] = usable[..]
            && newer.txnid != older.txnid + 1
        {
            let what = "its number does not follow that of the other meta page";
            damage.push(VerifyProblem::Bookkeeping { page: newer.txnid % META_PAGES, what });
        }
        let Some(meta) = usable.pop() else {
            return Err(MetaError::Corrupt { what: "both meta pages of the base", path, offset: 0 });
        };
        let mut pages = Pages {
            file,
            path,
            page_bytes,
            file_pages,
            meta,
            data: None,
            state: None,
            damage,
            is_partial: AtomicBool::new(false),
        };
        for name in ["data", "state"] {
            let found = pages.find(&meta.main, name.as_bytes(), |data| match data {
                Some(Data::Tree(tree)) => Some(tree),
                _ => None,
            });
            let tree = found.unwrap_or_default();
            if tree.is_none() {
                let what = "the name of a table of the base is not found";
                pages.damage.push(VerifyProblem::Page { page: meta.main.root, what });
            }
            if name == "data" { pages.data = tree } else { pages.state = tree }
        }
        Ok(pages)
    }

    /// Returns the newest transaction that the base contains.
    ///
    /// # Errors
    /// [`MetaError::Corrupt`] if its record is damaged or belongs to another store.
    pub(crate) fn read_state(&self, uuid: &[u8; 16]) -> Result<u64> {
        let damaged = |what| MetaError::Corrupt { what, path: self.path.clone(), offset: 0 };
        let tree = self.state.as_ref().ok_or_else(|| damaged("missing state record"))?;
        let read = self.find(tree, STATE_KEY, |data| match data {
            Some(Data::Value(bytes)) => decode_state(bytes, uuid),
            _ => Err("missing state record"),
        });
        read.map_err(|(_, what)| damaged(what))?.map_err(damaged)
    }

    /// Calls `f` with the value of `key`.
    ///
    /// # Errors
    /// [`MetaError::Corrupt`] if the entry, or a page on the path to it, is damaged.
    pub(crate) fn get<R>(&self, key: &[u8], f: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        let damaged = |page: u64, what| MetaError::Corrupt {
            what,
            path: self.path.clone(),
            offset: self.offset_of(page),
        };
        let tree = self.data.as_ref().ok_or_else(|| damaged(0, "the table of the base"))?;
        let found = self.find(tree, key, |data| match data {
            None => Ok(f(None)),
            Some(Data::Value(stored)) => open_value(key, stored).map(|value| f(Some(value))).ok_or(()),
            Some(Data::Tree(_)) => Err(()),
        });
        found.map_err(|(page, what)| damaged(page, what))?.map_err(|()| damaged(0, "checksum of an entry"))
    }

    /// Calls `f` with the entries from `from` on that begin with `prefix`, until it returns false. Skips
    /// damage.
    pub(crate) fn scan(&self, prefix: &[u8], from: Bound<&[u8]>, f: &mut dyn FnMut(&[u8], &[u8]) -> bool) {
        let Some(tree) = self.data.filter(|tree| tree.depth > 0) else { return };
        self.scan_page(tree.root, tree.depth, from, &mut |key, stored| {
            if !key.starts_with(prefix) {
                return key < prefix;
            }
            match open_value(key, stored) {
                Some(value) => f(key, value),
                None => self.pass_over(),
            }
        });
    }

    /// Whether a scan has skipped damage.
    pub(crate) fn is_partial(&self) -> bool {
        self.data.is_none() || self.is_partial.load(Ordering::Relaxed)
    }

    /// Notes skipped damage; returns true, so that a scan continues.
    fn pass_over(&self) -> bool {
        self.is_partial.store(true, Ordering::Relaxed);
        true
    }

    /// Returns false if the scan has ended.
    fn scan_page(
        &self,
        number: u64,
        level: u16,
        from: Bound<&[u8]>,
        f: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> bool {
        let Ok(bytes) = self.read_page(number) else { return self.pass_over() };
        let kind = if level > 1 { Kind::Branch } else { Kind::Leaf };
        let Ok(page) = Page::parse(&bytes, number, kind) else { return self.pass_over() };
        if kind == Kind::Branch {
            let first = match from {
                Bound::Included(key) | Bound::Excluded(key) => page.child_of(key),
                Bound::Unbounded => 0,
            };
            return (first..page.len()).all(|index| {
                let from = if index == first { from } else { Bound::Unbounded };
                self.scan_page(page.child(index), level - 1, from, f)
            });
        }
        for index in 0..page.len() {
            let key = page.key(index);
            let is_before = match from {
                Bound::Included(from) => key < from,
                Bound::Excluded(from) => key <= from,
                Bound::Unbounded => false,
            };
            if is_before {
                continue;
            }
            let go_on = match page.data(index) {
                page::Stored::Here(value) => f(key, value),
                page::Stored::Overflow { page, len } => match self.read_overflow(page, len) {
                    Ok((value, _)) => f(key, &value),
                    Err(_) => self.pass_over(),
                },
                page::Stored::Tree(_) => self.pass_over(),
            };
            if !go_on {
                return false;
            }
        }
        true
    }

    /// Calls `f` with the data stored under `key` in a tree.
    fn find<R>(
        &self,
        tree: &Tree,
        key: &[u8],
        f: impl FnOnce(Option<Data<'_>>) -> R,
    ) -> std::result::Result<R, Damage> {
        if tree.depth == 0 {
            return Ok(f(None));
        }
        let (mut number, mut level) = (tree.root, tree.depth);
        loop {
            let bytes = self.read_page(number)?;
            let kind = if level > 1 { Kind::Branch } else { Kind::Leaf };
            let page = Page::parse(&bytes, number, kind).map_err(|what| (number, what))?;
            if kind == Kind::Branch {
                (number, level) = (page.child(page.child_of(key)), level - 1);
                continue;
            }
            let found = (0..page.len()).find(|&index| page.key(index) == key);
            return match found.map(|index| page.data(index)) {
                None => Ok(f(None)),
                Some(page::Stored::Here(value)) => Ok(f(Some(Data::Value(value)))),
                Some(page::Stored::Tree(tree)) => Ok(f(Some(Data::Tree(tree)))),
                Some(page::Stored::Overflow { page, len }) => {
                    let (value, _) = self.read_overflow(page, len)?;
                    Ok(f(Some(Data::Value(&value))))
                }
            };
        }
    }

    /// Offset of a page in the file, in bytes.
    pub(crate) fn offset_of(&self, page: u64) -> u64 {
        page.saturating_mul(self.page_bytes as u64)
    }

    fn read_page(&self, number: u64) -> std::result::Result<Vec<u8>, Damage> {
        if !(META_PAGES..self.file_pages.min(self.meta.last_page.saturating_add(1))).contains(&number) {
            return Err((number, "it lies outside of the file"));
        }
        let mut bytes = vec![0; self.page_bytes];
        let read = self.file.read_exact_at(&mut bytes, self.offset_of(number));
        read.map_err(|_| (number, "it cannot be read"))?;
        Ok(bytes)
    }

    /// Reads data of `len` bytes that begins on an overflow page; returns it with its number of pages.
    fn read_overflow(&self, number: u64, len: usize) -> std::result::Result<(Vec<u8>, u64), Damage> {
        let first = self.read_page(number)?;
        let pages = page::overflow_pages(&first, number).map_err(|what| (number, what))?;
        let needed = (page::HEADER_LEN + len).div_ceil(self.page_bytes) as u64;
        let end = number.checked_add(pages).filter(|end| *end <= self.file_pages);
        if pages < needed || end.is_none() {
            return Err((number, "it says a wrong number of overflow pages"));
        }
        let mut bytes = vec![0; len];
        let read = self.file.read_exact_at(&mut bytes, self.offset_of(number) + page::HEADER_LEN as u64);
        read.map_err(|_| (number, "its overflow pages cannot be read"))?;
        Ok((bytes, pages))
    }

    /// Returns the number of entries, and the bytes of the file.
    pub(crate) fn sizes(&self) -> BaseSizes {
        let page = self.page_bytes as u64;
        let trees = [self.data, self.state].into_iter().flatten();
        let used: u64 =
            trees.map(|tree| tree.branch.saturating_add(tree.leaf).saturating_add(tree.overflow)).sum();
        let file_bytes = self.meta.last_page.saturating_add(1).saturating_mul(page);
        BaseSizes {
            entries: self.data.map_or(0, |tree| tree.entries),
            file_bytes,
            free_bytes: file_bytes.saturating_sub(used.saturating_mul(page)),
        }
    }
}

/// Reads the page size and the two meta pages.
fn read_metas(file: &File) -> (usize, [std::result::Result<Meta, &'static str>; 2]) {
    let read = |offset: usize| {
        let mut bytes = [0; page::META_LEN];
        let read = file.read_exact_at(&mut bytes, offset as u64);
        read.map_err(|_| "it cannot be read").and_then(|()| Meta::parse(&bytes))
    };
    let first = read(0);
    // If the first meta page is damaged, the second one is at the usual page size.
    let usual = rustix::param::page_size();
    let sizes = [usual, 4096, 8192, 16_384, 32_768, 65_536];
    let page_bytes = match &first {
        Ok(meta) => meta.page_bytes,
        Err(_) => {
            let fits = |size: &usize| read(*size).is_ok_and(|meta| meta.page_bytes == *size);
            sizes.into_iter().find(fits).unwrap_or(usual)
        }
    };
    (page_bytes, [first, read(page_bytes)])
}

fn check_meta(meta: Meta, number: u64, file_pages: u64) -> std::result::Result<Meta, &'static str> {
    if meta.number != number || meta.txnid % META_PAGES != number {
        return Err("it is not the meta page of its place");
    }
    if meta.last_page < META_PAGES - 1 || meta.last_page >= file_pages.saturating_add(BEYOND_END_MAX) {
        return Err("it counts more pages than the file can have");
    }
    let is_sound = |tree: &Tree| tree.depth <= DEPTH_MAX && (tree.depth == 0) == (tree.root == u64::MAX);
    if !is_sound(&meta.free) || !is_sound(&meta.main) {
        return Err("the root of a tree is damaged");
    }
    Ok(meta)
}
