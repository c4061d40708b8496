//! Building and reading the pages of a directory.
//!
//! Bytes of an entry: cookie u64, FID 16 bytes, kind u8, optional parts u8 (bits: 1 attributes, 2 a layout, 4
//! a layout that was too long, 8 a lock), name length u16, name, then the attributes (120 bytes), the lock
//! (u64) and the layout (length u32, bytes) if present. Entries follow each other without padding.

use crate::codec::{Decode, DecodeError, DecodeResult, Encode, Reader};
use nacre_lock::LockHandle;
use nacre_types::limits::{NAME_MAX, XATTR_VALUE_MAX};
use nacre_types::name::COOKIE_FIRST;
use nacre_types::{Attr, Fid, FileKind};

/// Largest page in bytes; `max_bytes` of a request is cut to it.
pub const DIR_PAGE_MAX: usize = 1 << 20;
/// Bytes of an entry before its name.
const ENTRY_HEAD_BYTES: usize = 28;
/// Bytes of encoded attributes.
pub const ATTR_BYTES: usize = 124;
/// Bytes of a lock handle.
pub const LOCK_BYTES: usize = 8;
/// Bytes of the length before a layout.
const LAYOUT_LEN_BYTES: usize = 4;
/// Bits for the optional parts after an entry's name.
const HAS_ATTR: u8 = 1;
const HAS_LAYOUT: u8 = 2;
const LAYOUT_TOO_LONG: u8 = 4;
const HAS_LOCK: u8 = 8;

/// Entries of a directory in encoded form, so that a page costs one allocation.
///
/// The module and `docs/protocol` describe the bytes of an entry. Little-endian.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DirPage {
    /// Encoded entries.
    pub bytes: Vec<u8>,
    /// True if no entry follows the last one of this page.
    pub end: bool,
    /// True if all users may search the directory, see [`crate::mds::MdsReply::Entry`].
    pub public: bool,
    /// Lock on the content of the directory, if the request asked for one: as in
    /// [`crate::mds::MdsReply::Intent`]. No name has changed since the page was read.
    pub lock: LockHandle,
}

/// One entry of a [`DirPage`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirEntry<'a> {
    /// Position after this entry, at least [`nacre_types::name::COOKIE_FIRST`].
    pub cookie: u64,
    /// Inode that the name leads to.
    pub fid: Fid,
    /// Kind of the inode.
    pub kind: FileKind,
    /// Name in the directory.
    pub name: &'a [u8],
    /// Attributes of the inode, if they were requested and the inode still exists.
    pub attr: Option<Attr>,
    /// Lock on the inode, if one was requested: as in [`crate::mds::MdsReply::Intent`].
    pub lock: LockHandle,
    /// Layout of the inode, if it was requested.
    pub layout: ListedLayout<'a>,
}

/// The layout of an entry of a [`DirPage`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ListedLayout<'a> {
    /// The inode has none, or it was not requested.
    #[default]
    None,
    /// Lustre's binary form of the layout, as in the attribute `lustre.lov`.
    Bytes(&'a [u8]),
    /// The layout does not fit into a page: the attribute has it.
    TooLong,
}

impl DirEntry<'_> {
    /// Returns the bytes that this entry takes in a page.
    pub fn encoded_len(&self) -> usize {
        let layout = match self.layout {
            ListedLayout::Bytes(bytes) => LAYOUT_LEN_BYTES + bytes.len(),
            ListedLayout::None | ListedLayout::TooLong => 0,
        };
        let attr = if self.attr.is_some() { ATTR_BYTES } else { 0 };
        let lock = if self.lock.0 != 0 { LOCK_BYTES } else { 0 };
        ENTRY_HEAD_BYTES + self.name.len() + attr + lock + layout
    }

    fn contents(&self) -> u8 {
        let attr = if self.attr.is_some() { HAS_ATTR } else { 0 };
        let lock = if self.lock.0 != 0 { HAS_LOCK } else { 0 };
        attr | lock
            | match self.layout {
                ListedLayout::None => 0,
                ListedLayout::Bytes(_) => HAS_LAYOUT,
                ListedLayout::TooLong => LAYOUT_TOO_LONG,
            }
    }
}

impl DirPage {
    /// Adds an entry unless the page would grow beyond `max_bytes` (capped at [`DIR_PAGE_MAX`]); returns
    /// whether it was added.
    ///
    /// A caller that gets `false` for the first entry has too small a limit (`EINVAL`). Names longer than
    /// [`NAME_MAX`] are never added.
    pub fn push(&mut self, entry: &DirEntry<'_>, max_bytes: u32) -> bool {
        let limit = usize::try_from(max_bytes).unwrap_or(DIR_PAGE_MAX).min(DIR_PAGE_MAX);
        if entry.name.len() > NAME_MAX || self.bytes.len() + entry.encoded_len() > limit {
            return false;
        }
        let out = &mut self.bytes;
        entry.cookie.encode(out);
        entry.fid.encode(out);
        entry.kind.encode(out);
        entry.contents().encode(out);
        (entry.name.len() as u16).encode(out);
        out.extend_from_slice(entry.name);
        if let Some(attr) = &entry.attr {
            attr.encode(out);
        }
        if entry.lock.0 != 0 {
            entry.lock.encode(out);
        }
        if let ListedLayout::Bytes(bytes) = entry.layout {
            bytes.encode(out);
        }
        true
    }

    /// Iterates over the entries in order. A page from the network was checked when it was decoded; if bytes
    /// are damaged later, the iterator ends early.
    pub fn entries(&self) -> DirEntries<'_> {
        DirEntries { reader: Reader::new(&self.bytes) }
    }

    /// Returns the entry at a byte offset of a checked page, and the offset of the next one; `None` after the
    /// last one.
    #[inline]
    pub fn entry_from(&self, at: usize) -> Option<(DirEntry<'_>, usize)> {
        let mut reader = Reader::new(self.bytes.get(at..).filter(|rest| !rest.is_empty())?);
        let entry = decode_entry(&mut reader).ok()?;
        Some((entry, self.bytes.len() - reader.remaining()))
    }

    /// Returns the cookie of the entry at a byte offset.
    #[inline]
    pub fn cookie_at(&self, at: usize) -> Option<u64> {
        Some(u64::from_le_bytes(*self.bytes.get(at..)?.first_chunk()?))
    }

    /// Iterates over the cookies of the entries of a checked page, with their byte offsets.
    pub fn places(&self) -> impl Iterator<Item = (u64, usize)> + '_ {
        let mut at = 0;
        std::iter::from_fn(move || {
            let rest = self.bytes.get(at..)?;
            let head: &[u8; ENTRY_HEAD_BYTES] = rest.first_chunk()?;
            let name_len = usize::from(u16::from_le_bytes([head[26], head[27]]));
            let mut len = ENTRY_HEAD_BYTES + name_len;
            len += if head[25] & HAS_ATTR != 0 { ATTR_BYTES } else { 0 };
            len += if head[25] & HAS_LOCK != 0 { LOCK_BYTES } else { 0 };
            if head[25] & HAS_LAYOUT != 0 {
                let layout: &[u8; LAYOUT_LEN_BYTES] = rest.get(len..)?.first_chunk()?;
                len += LAYOUT_LEN_BYTES + u32::from_le_bytes(*layout) as usize;
            }
            let place = (u64::from_le_bytes(*head.first_chunk()?), at);
            at += len;
            (at <= self.bytes.len()).then_some(place)
        })
    }

    /// True if the page has no entry.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Checks all entries.
    ///
    /// # Errors
    /// The error of the first entry that cannot be decoded.
    pub fn check(&self) -> DecodeResult<()> {
        let mut reader = Reader::new(&self.bytes);
        while reader.remaining() > 0 {
            decode_entry(&mut reader)?;
        }
        Ok(())
    }
}

/// Iterator over a page, see [`DirPage::entries`].
#[derive(Clone, Debug)]
pub struct DirEntries<'a> {
    reader: Reader<'a>,
}

impl<'a> Iterator for DirEntries<'a> {
    type Item = DirEntry<'a>;

    fn next(&mut self) -> Option<DirEntry<'a>> {
        if self.reader.remaining() == 0 {
            return None;
        }
        match decode_entry(&mut self.reader) {
            Ok(entry) => Some(entry),
            Err(_) => {
                self.reader = Reader::new(&[]);
                None
            }
        }
    }
}

fn decode_entry<'a>(reader: &mut Reader<'a>) -> DecodeResult<DirEntry<'a>> {
    let cookie = u64::decode(reader)?;
    if cookie < COOKIE_FIRST {
        return Err(DecodeError::Invalid { what: "directory cookie" });
    }
    let fid = Fid::decode(reader)?;
    let kind = FileKind::decode(reader)?;
    let contents = u8::decode(reader)?;
    let both = HAS_LAYOUT | LAYOUT_TOO_LONG;
    if contents & !(HAS_ATTR | HAS_LOCK | both) != 0 || contents & both == both {
        return Err(DecodeError::Unknown {
            what: "content of a directory entry",
            value: u64::from(contents),
        });
    }
    let name_len = usize::from(u16::decode(reader)?);
    if name_len == 0 || name_len > NAME_MAX {
        return Err(DecodeError::TooLong { what: "file name", len: name_len as u64, max: NAME_MAX as u64 });
    }
    let name = reader.take(name_len, "file name")?;
    let attr = if contents & HAS_ATTR != 0 { Some(Attr::decode(reader)?) } else { None };
    let lock = match contents & HAS_LOCK {
        0 => LockHandle(0),
        _ => LockHandle::decode(reader)?,
    };
    if contents & HAS_LOCK != 0 && lock.0 == 0 {
        return Err(DecodeError::Invalid { what: "lock of a directory entry" });
    }
    let layout = match contents {
        bits if bits & HAS_LAYOUT != 0 => {
            ListedLayout::Bytes(reader.bytes(XATTR_VALUE_MAX, "listed layout")?)
        }
        bits if bits & LAYOUT_TOO_LONG != 0 => ListedLayout::TooLong,
        _ => ListedLayout::None,
    };
    Ok(DirEntry { cookie, fid, kind, name, attr, lock, layout })
}

impl Encode for DirPage {
    fn encode(&self, out: &mut Vec<u8>) {
        self.end.encode(out);
        self.public.encode(out);
        self.lock.encode(out);
        self.bytes.encode(out);
    }
}

impl Decode<'_> for DirPage {
    fn decode(reader: &mut Reader<'_>) -> DecodeResult<DirPage> {
        let end = bool::decode(reader)?;
        let public = bool::decode(reader)?;
        let lock = LockHandle::decode(reader)?;
        let bytes = reader.bytes(DIR_PAGE_MAX, "directory page")?.to_vec();
        let page = DirPage { bytes, end, public, lock };
        page.check()?;
        Ok(page)
    }
}

/// Subset of the inodes of an MDT.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InodeKind {
    /// Directories; for a shard, the directory that it is a shard of.
    Directories,
    /// All other inodes whose first name is on the MDT with this index.
    NamedOn(u16),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &[u8], attr: Option<Attr>) -> DirEntry<'_> {
        let layout = ListedLayout::None;
        let (fid, kind, lock) = (Fid::new(5, 6, 0), FileKind::Regular, LockHandle(0));
        DirEntry { cookie: 77, fid, kind, name, attr, lock, layout }
    }

    #[test]
    fn entries_come_back_in_order_and_the_limit_holds() {
        let attr = Attr { mode: FileKind::Regular.mode_bits() | 0o644, size: 9, ..Attr::default() };
        let mut page = DirPage::default();
        assert!(page.push(&entry(b"a", Some(attr)), 4096));
        assert!(page.push(&entry(b"bc", None), 4096));
        assert!(!page.push(&entry(b"d", None), page.bytes.len() as u32 + 28));
        let back: Vec<_> = page.entries().collect();
        assert_eq!(back, vec![entry(b"a", Some(attr)), entry(b"bc", None)]);
        assert_eq!(page.bytes.len(), 28 + 1 + ATTR_BYTES + 28 + 2);
        assert_eq!(DirPage::from_bytes(&page.to_bytes()), Ok(page));
    }

    #[test]
    fn layouts_come_back_and_are_bounded() {
        let attr = Attr { mode: FileKind::Regular.mode_bits() | 0o644, ..Attr::default() };
        let with = |layout| DirEntry { layout, ..entry(b"a", Some(attr)) };
        let entries = [
            with(ListedLayout::Bytes(b"layout")),
            with(ListedLayout::TooLong),
            DirEntry { layout: ListedLayout::Bytes(b""), ..entry(b"b", None) },
            DirEntry { lock: LockHandle(7), ..with(ListedLayout::Bytes(b"layout")) },
            DirEntry { lock: LockHandle(8), ..entry(b"c", Some(attr)) },
        ];
        let mut page = DirPage::default();
        assert!(entries.iter().all(|entry| page.push(entry, 4096)));
        let places: Vec<(u64, usize)> = page.places().collect();
        assert_eq!(places.len(), entries.len());
        let mut begins = 0;
        for ((cookie, at), entry) in places.into_iter().zip(&entries) {
            assert_eq!((cookie, at), (entry.cookie, begins));
            assert_eq!(page.cookie_at(at), Some(cookie));
            let (found, next) = page.entry_from(at).expect("an entry begins here");
            assert_eq!((found, next), (*entry, at + entry.encoded_len()));
            begins = next;
        }
        assert_eq!((page.entry_from(begins), page.cookie_at(begins)), (None, None));
        assert_eq!(page.bytes.len(), entries.iter().map(DirEntry::encoded_len).sum::<usize>());
        assert_eq!(page.entries().collect::<Vec<_>>(), entries);
        assert_eq!(DirPage::from_bytes(&page.to_bytes()), Ok(page.clone()));
        assert!(!page.push(&with(ListedLayout::Bytes(&[0; 100])), page.bytes.len() as u32 + 200));
        for contents in [16, 6, 7, 14] {
            page.bytes[25] = contents;
            assert!(page.check().is_err(), "{contents}");
        }
    }

    #[test]
    fn a_damaged_page_is_refused_and_iterates_to_its_damage() {
        let mut page = DirPage::default();
        assert!(page.push(&entry(b"good", None), 4096));
        let end_of_good = page.bytes.len();
        assert!(page.push(&entry(b"bad", None), 4096));
        page.bytes[end_of_good + 24] = 99;
        assert!(page.check().is_err());
        assert!(DirPage::from_bytes(&page.to_bytes()).is_err());
        assert_eq!(page.entries().count(), 1);
    }
}
