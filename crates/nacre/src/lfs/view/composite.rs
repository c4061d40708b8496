//! Fields of Lustre's `lov_comp_md_v1`, decoded without validation.

use super::{LayoutView, u32_at, u64_at};
use nacre_layout::user::{MAGIC_COMPOSITE, MAGIC_V1};

const HEADER: usize = 32;
const ENTRY: usize = 48;
const INIT: u32 = 0x10;
/// Names of component flags; the first entry whose bits are all set applies, so `prefer` precedes its halves.
const FLAGS: [(u32, &str); 12] = [
    (0x10, "init"),
    (0x1, "stale"),
    (0x6, "prefer"),
    (0x2, "prefrd"),
    (0x4, "prefwr"),
    (0x8, "offline"),
    (0x20, "nosync"),
    (0x40, "extension"),
    (0x80, "parity"),
    (0x100, "compress"),
    (0x200, "partial"),
    (0x400, "nocompr"),
];

/// Fields of a composite layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompositeView {
    /// Size of the value in bytes.
    pub size: u32,
    /// Generation of the layout: it counts changes.
    pub generation: u32,
    /// State of the mirrors.
    pub flags: u16,
    /// Number of mirrors, from 1.
    pub mirror_count: u32,
    /// Components in order.
    pub entries: Vec<EntryView>,
    /// The layout is a plain one, shown as one component.
    is_plain: bool,
}

/// A component.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryView {
    /// Number within the file; 0 in templates.
    pub id: u32,
    /// Flag bits of the component.
    pub flags: u32,
    /// Offset of its first byte.
    pub start: u64,
    /// Offset after its last byte, all ones for the end of the file.
    pub end: u64,
    /// Offset of its striping in the value.
    pub offset: u32,
    /// Size of its striping in bytes.
    pub size: u32,
    /// Striping of the component.
    pub layout: LayoutView,
}

impl CompositeView {
    pub(super) fn decode(bytes: &[u8]) -> Result<CompositeView, &'static str> {
        const SHORT: &str = "the layout is cut short";
        let word = |at: usize| u32_at(bytes, at).ok_or(SHORT);
        let (flags_and_count, mirrors) = (word(12)?, word(16)?);
        let count = (flags_and_count >> 16) as usize;
        let mut entries = Vec::new();
        for at in (0..count).map(|place| HEADER + ENTRY * place) {
            let (offset, size) = (word(at + 24)?, word(at + 28)?);
            let end = offset.checked_add(size).ok_or(SHORT)?;
            let part = bytes.get(offset as usize..end as usize).ok_or(SHORT)?;
            if u32_at(part, 0) == Some(MAGIC_COMPOSITE) {
                return Err("a component is itself composite");
            }
            entries.push(EntryView {
                id: word(at)?,
                flags: word(at + 4)?,
                start: u64_at(bytes, at + 8).ok_or(SHORT)?,
                end: u64_at(bytes, at + 16).ok_or(SHORT)?,
                offset,
                size,
                layout: LayoutView::decode(part)?,
            });
        }
        Ok(CompositeView {
            size: word(4)?,
            generation: word(8)?,
            flags: flags_and_count as u16,
            mirror_count: (mirrors & 0xffff) + 1,
            entries,
            is_plain: false,
        })
    }

    /// Returns a plain layout as one component, for requests of fields that only components have.
    pub fn of_plain(layout: &LayoutView, directory: bool) -> CompositeView {
        let header = if layout.magic == MAGIC_V1 { super::HEADER_V1 } else { super::HEADER_V3 };
        let objects = if directory { 0 } else { layout.objects.len() };
        let size = (header + super::OBJECT * objects) as u32;
        let offset = (HEADER + ENTRY) as u32;
        let entry = EntryView {
            id: 0,
            flags: if directory { 0 } else { INIT },
            start: 0,
            end: u64::MAX,
            offset,
            size,
            layout: layout.clone(),
        };
        CompositeView {
            size: offset + size,
            generation: if directory { 0 } else { u32::from(layout.generation()) },
            flags: 0,
            mirror_count: 1,
            entries: vec![entry],
            is_plain: true,
        }
    }

    /// Returns the magic of the whole value.
    pub fn magic(&self) -> u32 {
        match self.entries.first() {
            Some(entry) if self.is_plain => entry.layout.magic,
            _ => MAGIC_COMPOSITE,
        }
    }

    /// Returns the number of components as shown to users: 0 for a plain layout.
    pub fn shown_entries(&self) -> u32 {
        if self.is_plain { 0 } else { self.entries.len() as u32 }
    }

    /// Returns the offsets that the stripe size of a component has to divide: its end, or the step and the
    /// end of its extension.
    pub fn ends(&self, place: usize) -> Vec<u64> {
        match self.entries.get(place + 1).filter(|next| next.is_extension()) {
            Some(extension) => vec![extension.layout.extension_size(), extension.end],
            None => self.entries.get(place).map(|entry| entry.end).into_iter().collect(),
        }
    }
}

impl EntryView {
    /// Returns true if it has objects.
    pub fn is_instantiated(&self) -> bool {
        self.flags & INIT != 0
    }

    /// Returns true for an extension: reserved extent for the growth of the component before it.
    pub fn is_extension(&self) -> bool {
        self.flags & 0x40 != 0
    }

    /// Returns the flags in words, `0` if there are none.
    pub fn flags_text(&self) -> String {
        let mut rest = self.flags;
        let mut words: Vec<String> = Vec::new();
        for (bits, word) in FLAGS {
            if rest & bits == bits {
                words.push(word.to_owned());
                rest &= !bits;
            }
        }
        if rest != 0 || words.is_empty() {
            words.push(if rest == 0 { "0".to_owned() } else { format!("{rest:#x}") });
        }
        words.join(",")
    }

    /// Returns its end, in words for the end of the file.
    pub fn end_text(&self) -> String {
        if self.end == u64::MAX { "EOF".to_owned() } else { self.end.to_string() }
    }

    /// Returns the number of its mirror, 0 in files without mirrors.
    pub fn mirror_id(&self) -> u32 {
        (self.id >> 16) & 0x7fff
    }
}

/// Parses comma-separated words of flags: bits to set, and bits to clear (`^` before the word).
pub fn parse_flags(text: &str) -> Option<(u32, u32)> {
    let (mut set, mut clear) = (0, 0);
    for word in text.split(',') {
        let (name, bits) = match word.strip_prefix('^') {
            Some(name) => (name, &mut clear),
            None => (word, &mut set),
        };
        *bits |= FLAGS.iter().find(|(_, known)| *known == name)?.0;
    }
    Some((set, clear))
}
