//! Checks every page: its content, and that exactly one tree or list owns it.
//!
//! A page belongs to one tree, one overflow run, or the free list, and to nothing else: a flipped bit in a
//! pointer or in the free list shows as a page with two owners or none.

use super::super::report::{VerifyProblem, VerifyReport};
use super::page::{Kind, META_PAGES, Page, Stored, Tree};
use super::{Damage, Pages, STATE_KEY};
use crate::meta::base::note_entry;

/// LMDB's flag of trees with numeric keys, such as the free list.
const FREE_FLAGS: u16 = 8;

fn flags_damage(tree: &Tree, wanted: u16) -> Option<&'static str> {
    (tree.flags != wanted).then_some("its tree is of another kind than it should be")
}

/// Bounds of the keys below a page.
#[derive(Clone, Copy, Default)]
struct Span<'a> {
    from: Option<&'a [u8]>,
    before: Option<&'a [u8]>,
}

impl Span<'_> {
    fn has(&self, key: &[u8]) -> bool {
        self.from.is_none_or(|from| key >= from) && self.before.is_none_or(|before| key < before)
    }
}

/// Pages and entries counted in a tree.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Counts {
    branch: u64,
    leaf: u64,
    overflow: u64,
    entries: u64,
}

/// A set of pages.
struct Owned(Vec<u64>);

impl Owned {
    /// Adds a page; false if it is in the set already.
    fn add(&mut self, page: u64) -> bool {
        let (word, bit) = ((page / 64) as usize, 1 << (page % 64));
        if word >= self.0.len() {
            self.0.resize(word + 1, 0);
        }
        let is_new = self.0[word] & bit == 0;
        self.0[word] |= bit;
        is_new
    }

    fn has(&self, page: u64) -> bool {
        self.0.get((page / 64) as usize).is_some_and(|word| word & (1 << (page % 64)) != 0)
    }
}

/// Receives the key and data of each entry of a tree.
type Visit<'v> = &'v mut dyn FnMut(&[u8], &[u8]) -> Result<(), &'static str>;

struct Walk<'a> {
    pages: &'a Pages,
    owned: Owned,
    damage: Vec<Damage>,
    /// Part of the tree was not read, so counts prove nothing.
    is_partial: bool,
    /// Keys are numbers, in the byte order of the machine.
    has_numbers: bool,
    counts: Counts,
}

impl Pages {
    /// Reads every page in use, and adds damage and counts to the report.
    pub(crate) fn verify(&self, report: &mut VerifyReport, progress: &mut dyn FnMut(u64)) {
        self.damage.iter().for_each(|damage| report.add(damage.clone()));
        let mut walk = Walk::new(self);
        let trees = [Some(self.meta.main), self.state, self.data];
        let mut is_whole = self.damage.is_empty();
        for (which, tree) in trees.into_iter().enumerate() {
            let Some(tree) = tree else { continue };
            if let Some(what) = flags_damage(&tree, 0) {
                report.add(VerifyProblem::Page { page: tree.root, what });
            }
            is_whole &= walk.tree(&tree, &mut |key, stored| {
                if which == 2 {
                    note_entry(report, progress, key, stored);
                } else if which == 1 && key != STATE_KEY {
                    return Err("it has a record that does not belong there");
                }
                Ok(())
            });
        }
        progress(report.entries);
        std::mem::take(&mut walk.damage)
            .into_iter()
            .for_each(|(page, what)| report.add(VerifyProblem::Page { page, what }));
        is_whole &= self.verify_free(&mut walk);
        let flags = flags_damage(&self.meta.free, FREE_FLAGS).map(|what| (self.meta.free.root, what));
        walk.damage.extend(flags);
        walk.damage
            .into_iter()
            .for_each(|(page, what)| report.add(VerifyProblem::Bookkeeping { page, what }));
        if is_whole {
            let lost: Vec<u64> =
                (META_PAGES..=self.meta.last_page).filter(|page| !walk.owned.has(*page)).collect();
            if let Some(first) = lost.first() {
                report.add(VerifyProblem::LostPages { first: *first, count: lost.len() as u64 });
            }
        }
    }

    /// Checks the free list alone, which LMDB trusts when it writes: no page that it names may be in use. Of
    /// the pages in use, only the tree of the list itself is read.
    pub(crate) fn free_list_damage(&self) -> Option<Damage> {
        if let Some(VerifyProblem::Page { page, what } | VerifyProblem::Bookkeeping { page, what }) =
            self.damage.first()
        {
            return Some((*page, what));
        }
        let mut walk = Walk::new(self);
        if let Some(what) = flags_damage(&self.meta.free, FREE_FLAGS) {
            return Some((self.meta.free.root, what));
        }
        let roots = [Some(self.meta.main), self.state, self.data];
        for root in roots.into_iter().flatten().filter(|tree| tree.depth > 0).map(|tree| tree.root) {
            if !walk.owned.add(root) {
                return Some((root, "it is the root of two trees"));
            }
        }
        self.verify_free(&mut walk);
        walk.damage.first().copied()
    }

    /// Returns false if part of the list could not be read.
    fn verify_free(&self, walk: &mut Walk<'_>) -> bool {
        let (newest, last) = (self.meta.txnid, self.meta.last_page);
        let mut free: Vec<u64> = Vec::new();
        walk.has_numbers = true;
        let is_whole = walk.tree(&self.meta.free, &mut |key, stored| {
            let number = |bytes: &[u8]| bytes.try_into().map(u64::from_le_bytes).ok();
            let words: Option<Vec<u64>> =
                stored.len().is_multiple_of(8).then(|| stored.chunks_exact(8).filter_map(number).collect());
            let words = words.ok_or("a list of free pages is cut off")?;
            let (count, list) = words.split_first().ok_or("a list of free pages is empty")?;
            if !number(key).is_some_and(|txnid| (1..=newest).contains(&txnid)) {
                return Err("it has free pages of a commit that never was");
            }
            let list = usize::try_from(*count).ok().and_then(|count| list.get(..count));
            let list = list.ok_or("a list of free pages is cut off")?;
            let is_sound = list.windows(2).all(|pair| pair[0] > pair[1])
                && list.iter().all(|page| (META_PAGES..=last).contains(page));
            if !is_sound {
                return Err("a list of free pages is damaged");
            }
            free.extend(list);
            Ok(())
        });
        walk.has_numbers = false;
        for page in free {
            if !walk.owned.add(page) {
                walk.damage.push((page, "it is in use, or free twice, by the list of free pages"));
            }
        }
        is_whole
    }
}

impl<'a> Walk<'a> {
    fn new(pages: &'a Pages) -> Walk<'a> {
        Walk {
            pages,
            owned: Owned(Vec::new()),
            damage: Vec::new(),
            is_partial: false,
            has_numbers: false,
            counts: Counts::default(),
        }
    }

    /// Checks a whole tree; false if it is damaged.
    fn tree(&mut self, tree: &Tree, visit: Visit<'_>) -> bool {
        let before = self.damage.len();
        (self.is_partial, self.counts) = (false, Counts::default());
        if tree.depth > super::DEPTH_MAX {
            self.damage.push((tree.root, "the root of a tree is damaged"));
            return false;
        }
        if tree.depth > 0 {
            self.page(tree.root, tree.depth, Span::default(), visit);
        }
        let Counts { branch, leaf, overflow, entries } = self.counts;
        let said = (tree.branch, tree.leaf, tree.overflow, tree.entries);
        if !self.is_partial && said != (branch, leaf, overflow, entries) {
            self.damage.push((tree.root, "its tree has another number of pages or entries than it says"));
        }
        self.damage.len() == before
    }

    fn damaged(&mut self, damage: Damage) {
        self.is_partial = true;
        self.damage.push(damage);
    }

    /// Assigns a page to the tree that is being checked; false if another one owns it.
    fn own(&mut self, number: u64) -> bool {
        let is_new = self.owned.add(number);
        if !is_new {
            self.damaged((number, "it belongs to two"));
        }
        is_new
    }

    fn page(&mut self, number: u64, level: u16, span: Span<'_>, visit: Visit<'_>) {
        let bytes = match self.pages.read_page(number) {
            Ok(bytes) => bytes,
            Err(damage) => return self.damaged(damage),
        };
        // Owned whatever its content is: something refers to it, once.
        if !self.own(number) {
            return;
        }
        let kind = if level > 1 { Kind::Branch } else { Kind::Leaf };
        let page = match Page::parse(&bytes, number, kind) {
            Ok(page) => page,
            Err(what) => return self.damaged((number, what)),
        };
        if !page.is_filled() {
            self.damaged((number, "its nodes lie on each other"));
        }
        let first = usize::from(kind == Kind::Branch);
        let numbers = self.has_numbers;
        let keys = |index: usize| key_order(page.key(index), numbers);
        let is_ordered = (first + 1..page.len()).all(|index| keys(index - 1) < keys(index));
        if !is_ordered || !(first..page.len()).all(|index| span.has(&keys(index))) {
            self.damaged((number, "its keys are not in order"));
        }
        match kind {
            Kind::Leaf => {
                self.counts.leaf += 1;
                self.entries(&page, number, visit);
            }
            Kind::Branch => {
                self.counts.branch += 1;
                for index in 0..page.len() {
                    let own = (index > 0).then(|| keys(index));
                    let next = (index + 1 < page.len()).then(|| keys(index + 1));
                    let below =
                        Span { from: own.as_deref().or(span.from), before: next.as_deref().or(span.before) };
                    self.page(page.child(index), level - 1, below, visit);
                }
            }
        }
    }

    fn entries(&mut self, page: &Page<'_>, number: u64, visit: Visit<'_>) {
        for index in 0..page.len() {
            self.counts.entries += 1;
            let key = page.key(index);
            let visited = match page.data(index) {
                Stored::Here(value) => visit(key, value),
                Stored::Tree(_) => visit(key, &[]),
                Stored::Overflow { page, len } => match self.overflow(page, len) {
                    Ok(value) => visit(key, &value),
                    Err(damage) => {
                        self.damaged(damage);
                        Ok(())
                    }
                },
            };
            if let Err(what) = visited {
                self.damaged((number, what));
            }
        }
    }

    fn overflow(&mut self, number: u64, len: usize) -> Result<Vec<u8>, Damage> {
        let (value, pages) = self.pages.read_overflow(number, len)?;
        self.counts.overflow += pages;
        for page in number..number + pages {
            self.own(page);
        }
        Ok(value)
    }
}

/// Returns the key in a form whose byte order is its order.
fn key_order(key: &[u8], is_number: bool) -> std::borrow::Cow<'_, [u8]> {
    if is_number && key.len() == 8 {
        return key.iter().rev().copied().collect::<Vec<u8>>().into();
    }
    key.into()
}
