//! One page of the base: offsets and lengths are checked once, when it is parsed.

/// Bytes of a page's header.
pub(super) const HEADER_LEN: usize = 16;
/// Number of meta pages at the beginning of a file.
pub(super) const META_PAGES: u64 = 2;
/// Used bytes of a meta page.
pub(super) const META_LEN: usize = HEADER_LEN + 24 + 2 * TREE_LEN + 16;

const TREE_LEN: usize = 48;
const NODE_LEN: usize = 8;
const MAGIC: u32 = 0xbeef_c0de;
const DATA_VERSION: u32 = 1;
const FLAG_BRANCH: u16 = 1;
const FLAG_LEAF: u16 = 2;
const FLAG_OVERFLOW: u16 = 4;
const FLAG_META: u16 = 8;
const NODE_OVERFLOW: u16 = 1;
const NODE_TREE: u16 = 2;
const KEY_MAX: usize = 511;

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

/// The record of a tree in a meta page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tree {
    pub flags: u16,
    /// Levels; 0 for an empty tree.
    pub depth: u16,
    pub branch: u64,
    pub leaf: u64,
    pub overflow: u64,
    pub entries: u64,
    /// Page number of the root; all ones for an empty tree.
    pub root: u64,
}

impl Tree {
    /// Parses [`TREE_LEN`] bytes.
    fn parse(bytes: &[u8]) -> Tree {
        Tree {
            flags: u16_at(bytes, 4),
            depth: u16_at(bytes, 6),
            branch: u64_at(bytes, 8),
            leaf: u64_at(bytes, 16),
            overflow: u64_at(bytes, 24),
            entries: u64_at(bytes, 32),
            root: u64_at(bytes, 40),
        }
    }
}

/// A meta page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Meta {
    /// Number of this page.
    pub number: u64,
    pub page_bytes: usize,
    pub free: Tree,
    pub main: Tree,
    pub last_page: u64,
    pub txnid: u64,
}

impl Meta {
    pub(super) fn parse(bytes: &[u8; META_LEN]) -> Result<Meta, &'static str> {
        let at = HEADER_LEN;
        if u16_at(bytes, 10) != FLAG_META || u32_at(bytes, at) != MAGIC {
            return Err("it is no meta page");
        }
        if u32_at(bytes, at + 4) != DATA_VERSION {
            return Err("it is of another version of LMDB");
        }
        let (free, main) = (Tree::parse(&bytes[at + 24..]), Tree::parse(&bytes[at + 24 + TREE_LEN..]));
        // The first word of the free list's tree is the page size.
        let page_bytes = u32_at(bytes, at + 24) as usize;
        if !page_bytes.is_power_of_two() || !(512..=65_536).contains(&page_bytes) {
            return Err("it says an impossible size of pages");
        }
        let end = at + 24 + 2 * TREE_LEN;
        let (last_page, txnid) = (u64_at(bytes, end), u64_at(bytes, end + 8));
        Ok(Meta { number: u64_at(bytes, 0), page_bytes, free, main, last_page, txnid })
    }
}

/// Returns the number of pages of an overflow run, given its first page.
pub(super) fn overflow_pages(bytes: &[u8], number: u64) -> Result<u64, &'static str> {
    if u64_at(bytes, 0) != number || u16_at(bytes, 10) != FLAG_OVERFLOW {
        return Err("it is not the overflow page that it should be");
    }
    Ok(u64::from(u32_at(bytes, 12)))
}

/// Expected kind of a tree's page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Branch,
    Leaf,
}

/// Data of a key.
pub(super) enum Data<'a> {
    Value(&'a [u8]),
    Tree(Tree),
}

/// Place of the data.
pub(super) enum Stored<'a> {
    Here(&'a [u8]),
    Overflow { page: u64, len: usize },
    Tree(Tree),
}

/// A page of a tree whose nodes are all inside it.
pub(super) struct Page<'a> {
    bytes: &'a [u8],
    kind: Kind,
    len: usize,
}

impl<'a> Page<'a> {
    pub(super) fn parse(bytes: &'a [u8], number: u64, kind: Kind) -> Result<Page<'a>, &'static str> {
        let wanted = if kind == Kind::Branch { FLAG_BRANCH } else { FLAG_LEAF };
        if u64_at(bytes, 0) != number || u16_at(bytes, 10) != wanted {
            return Err("it is not the page of a tree that it should be");
        }
        let (lower, upper) = (usize::from(u16_at(bytes, 12)), usize::from(u16_at(bytes, 14)));
        if lower <= HEADER_LEN || !lower.is_multiple_of(2) || lower > upper || upper > bytes.len() {
            return Err("its header is damaged");
        }
        let page = Page { bytes, kind, len: (lower - HEADER_LEN) / 2 };
        match (0..page.len).all(|index| page.node_len(index, upper).is_some()) {
            true => Ok(page),
            false => Err("a node lies outside of it"),
        }
    }

    /// Number of entries; at least one.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Offset of a node.
    fn at(&self, index: usize) -> usize {
        usize::from(u16_at(self.bytes, HEADER_LEN + 2 * index))
    }

    /// Returns the bytes of a node if it is at or after `upper` and inside the page.
    fn node_len(&self, index: usize, upper: usize) -> Option<usize> {
        let at = self.at(index);
        if at < upper || !at.is_multiple_of(2) || at + NODE_LEN > self.bytes.len() {
            return None;
        }
        let (flags, key) = (u16_at(self.bytes, at + 4), usize::from(u16_at(self.bytes, at + 6)));
        let data = match (self.kind, flags) {
            (Kind::Branch, _) => 0,
            (Kind::Leaf, 0) => u32_at(self.bytes, at) as usize,
            (Kind::Leaf, NODE_OVERFLOW) => 8,
            (Kind::Leaf, NODE_TREE) if u32_at(self.bytes, at) as usize == TREE_LEN => TREE_LEN,
            (Kind::Leaf, _) => return None,
        };
        let is_key = key <= KEY_MAX && (key > 0 || self.kind == Kind::Branch && index == 0);
        let len = NODE_LEN.checked_add(key)?.checked_add(data)?;
        (is_key && len <= self.bytes.len() - at).then_some(len)
    }

    /// Whether nodes fill the page from its upper bound to its end, without overlap.
    pub(super) fn is_filled(&self) -> bool {
        let upper = usize::from(u16_at(self.bytes, 14));
        let mut nodes: Vec<(usize, usize)> = (0..self.len)
            .map(|index| (self.at(index), self.node_len(index, upper).unwrap_or(0).next_multiple_of(2)))
            .collect();
        nodes.sort_unstable();
        let end = nodes.iter().try_fold(upper, |end, (at, len)| (*at == end).then_some(at + len));
        end == Some(self.bytes.len())
    }

    pub(super) fn key(&self, index: usize) -> &'a [u8] {
        let at = self.at(index);
        &self.bytes[at + NODE_LEN..][..usize::from(u16_at(self.bytes, at + 6))]
    }

    /// Returns the page that a node of a branch points to.
    pub(super) fn child(&self, index: usize) -> u64 {
        let at = self.at(index);
        u64::from(u32_at(self.bytes, at)) | u64::from(u16_at(self.bytes, at + 4)) << 32
    }

    /// Returns the node of a branch whose subtree covers a key. The first node has no key of its own.
    pub(super) fn child_of(&self, key: &[u8]) -> usize {
        (1..self.len).take_while(|&index| self.key(index) <= key).last().unwrap_or(0)
    }

    pub(super) fn data(&self, index: usize) -> Stored<'a> {
        let at = self.at(index);
        let (len, flags) = (u32_at(self.bytes, at) as usize, u16_at(self.bytes, at + 4));
        let bytes = &self.bytes[at + NODE_LEN + usize::from(u16_at(self.bytes, at + 6))..];
        match flags {
            NODE_OVERFLOW => Stored::Overflow { page: u64_at(bytes, 0), len },
            NODE_TREE => Stored::Tree(Tree::parse(bytes)),
            _ => Stored::Here(&bytes[..len]),
        }
    }
}
