//! A layout as `lfs` shows it: every field of Lustre's `lov_user_md`, decoded without validation.
//!
//! `nacre_layout::user` decodes the same bytes into a usable layout and refuses invalid ones; a viewer must
//! show the stored bytes.

mod composite;

pub use composite::{CompositeView, EntryView, parse_flags};

use nacre_layout::layout::{EXTENSION_UNIT, stripes_per_ost};
use nacre_layout::user::{MAGIC_COMPOSITE, MAGIC_SPECIFIC, MAGIC_V1, MAGIC_V3};
use nacre_types::Fid;

const HEADER_V1: usize = 32;
const HEADER_V3: usize = 48;
const OBJECT: usize = 24;
const PATTERN_RELEASED: u32 = 0x8000_0000;
const PATTERN_MDT: u32 = 0x100;
const POOL: std::ops::Range<usize> = 32..48;

/// Sequences below this are object group numbers of the old form, not FIDs.
const SEQ_FID_FIRST: u64 = 0x1_0000_0000;

/// A layout of either form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum View {
    /// A plain layout: a single striping.
    Plain(LayoutView),
    /// A composite layout: a striping for each component.
    Composite(CompositeView),
}

impl View {
    /// Decodes the value of `lustre.lov`.
    ///
    /// # Errors
    /// A short phrase with the reason.
    pub fn decode(bytes: &[u8]) -> Result<View, &'static str> {
        match u32_at(bytes, 0) {
            Some(MAGIC_COMPOSITE) => CompositeView::decode(bytes).map(View::Composite),
            _ => LayoutView::decode(bytes).map(View::Plain),
        }
    }

    /// Returns the striping of each component.
    pub fn layouts(&self) -> impl Iterator<Item = &LayoutView> {
        let (plain, entries) = match self {
            View::Plain(layout) => (Some(layout), &[][..]),
            View::Composite(view) => (None, view.entries.as_slice()),
        };
        plain.into_iter().chain(entries.iter().map(|entry| &entry.layout))
    }
}

/// Fields of a plain layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutView {
    /// Version 1 or 3, or the magic of a template with exact OSTs.
    pub magic: u32,
    /// Bits of the pattern.
    pub pattern: u32,
    /// FID of the file, or of the directory whose default it is.
    pub fid: Fid,
    /// Stripe size in bytes; 0 for the default.
    pub stripe_size: u32,
    /// Number of stripes; 0 for the default, 0xffff for all OSTs.
    pub stripe_count: u16,
    /// Layout generation of a file, first OST of a template.
    pub offset_or_generation: u16,
    /// Pool name, if set.
    pub pool: Option<String>,
    /// Objects in stripe order; for a template with exact OSTs the OSTs that it names, with id 0.
    pub objects: Vec<ObjectView>,
}

/// An object of a stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectView {
    /// Index of its OST.
    pub ost_index: u32,
    /// Number within its group.
    pub id: u64,
    /// 0 for objects of MDT0, else the FID's sequence.
    pub group: u64,
    /// FID of the object.
    pub fid: Fid,
}

impl LayoutView {
    /// Decodes a plain layout.
    ///
    /// # Errors
    /// A short phrase with the reason.
    pub fn decode(bytes: &[u8]) -> Result<LayoutView, &'static str> {
        const SHORT: &str = "the layout is cut short";
        let magic = u32_at(bytes, 0).ok_or(SHORT)?;
        let header = match magic {
            MAGIC_V1 => HEADER_V1,
            MAGIC_V3 | MAGIC_SPECIFIC => HEADER_V3,
            _ => return Err("this kind of layout cannot be shown yet"),
        };
        let field = bytes.get(..header).ok_or(SHORT)?;
        let pool = (magic != MAGIC_V1).then(|| text_of(&field[POOL])).filter(|pool| !pool.is_empty());
        let object = if magic == MAGIC_SPECIFIC { ObjectView::wanted } else { ObjectView::decode };
        let objects = bytes[header..].chunks_exact(OBJECT).map(object).collect();
        let u16_at = |at: usize| u16::from_le_bytes([field[at], field[at + 1]]);
        let oid = u64_at(field, 8).ok_or(SHORT)?;
        Ok(LayoutView {
            magic,
            pattern: u32_at(field, 4).ok_or(SHORT)?,
            fid: Fid::new(u64_at(field, 16).ok_or(SHORT)?, oid as u32, (oid >> 32) as u32),
            stripe_size: u32_at(field, 24).ok_or(SHORT)?,
            stripe_count: u16_at(28),
            offset_or_generation: u16_at(30),
            pool,
            objects,
        })
    }

    /// Returns the layout of a directory without settings.
    pub fn nothing() -> LayoutView {
        LayoutView {
            magic: MAGIC_V1,
            pattern: 0,
            fid: Fid::ZERO,
            stripe_size: 0,
            stripe_count: 0,
            offset_or_generation: u16::MAX,
            pool: None,
            objects: Vec::new(),
        }
    }

    /// Returns the pattern in words, as in `raid0,released`; empty if none is set.
    pub fn pattern_text(&self) -> String {
        const BITS: [(u32, &str); 9] = [
            (0x1, "raid0"),
            (0x2, "raid1"),
            (0x4, "parity"),
            (PATTERN_MDT, "mdt"),
            (0x200, "overstriped"),
            (0x400, "foreign"),
            (0x800, "compress"),
            (0x4000_0000, "hole"),
            (PATTERN_RELEASED, "released"),
        ];
        let mut words: Vec<String> = BITS
            .iter()
            .filter(|(bit, _)| self.pattern & bit != 0)
            .map(|(_, word)| (*word).to_owned())
            .collect();
        let unknown = BITS.iter().fold(self.pattern, |rest, (bit, _)| rest & !bit);
        if unknown != 0 {
            words.push(format!("unknown_{unknown:x}"));
        }
        words.join(",")
    }

    /// Returns the stripe count as shown: -1 for all OSTs, -2 for twice as many.
    pub fn shown_count(&self) -> i32 {
        match stripes_per_ost(self.stripe_count) {
            Some(several) => -i32::from(several),
            None => i32::from(self.stripe_count),
        }
    }

    /// Returns true for a file without objects: its bytes are the requested layout. (A released file has none
    /// either.)
    pub fn is_request(&self) -> bool {
        let has_objects = !self.objects.is_empty() && self.magic != MAGIC_SPECIFIC;
        !has_objects && self.pattern & PATTERN_RELEASED == 0
    }

    /// Returns the existing objects; none for a template.
    pub fn placed(&self) -> &[ObjectView] {
        if self.is_request() { &[] } else { &self.objects }
    }

    /// Returns true if one of the existing objects is on this OST.
    pub fn is_on(&self, ost_index: u32) -> bool {
        self.placed().iter().any(|object| object.ost_index == ost_index)
    }

    /// Returns true for a file whose data is in an archive.
    pub fn is_released(&self) -> bool {
        self.pattern & PATTERN_RELEASED != 0
    }

    /// Returns true for data on the MDT, which has no OST.
    pub fn is_on_mdt(&self) -> bool {
        self.pattern & PATTERN_MDT != 0
    }

    /// Returns the first OST of a file: that of its first object, or the requested one; -1 for any.
    pub fn file_offset(&self) -> i64 {
        match self.objects.first() {
            _ if self.is_request() => self.request_offset(),
            Some(object) => i64::from(object.ost_index),
            None => 0,
        }
    }

    /// Returns the growth step of an extension in bytes, by which the component before it grows.
    pub fn extension_size(&self) -> u64 {
        u64::from(self.stripe_size) * EXTENSION_UNIT
    }

    /// Returns the layout generation of a file: it counts changes of its objects, and is 0 while there are
    /// none.
    pub fn generation(&self) -> u16 {
        if self.is_request() && !self.is_on_mdt() { 0 } else { self.offset_or_generation }
    }

    /// Returns the first OST that a template names, -1 for any.
    pub fn request_offset(&self) -> i64 {
        match self.offset_or_generation {
            _ if self.is_on_mdt() => -1,
            u16::MAX => -1,
            index => i64::from(index),
        }
    }
}

impl ObjectView {
    /// Returns an OST that will get an object, as Lustre shows it: object 0 of MDT0 on that OST.
    fn wanted(bytes: &[u8]) -> ObjectView {
        let ost_index = u32_at(bytes, 20).unwrap_or(0);
        ObjectView { ost_index, id: 0, group: 0, fid: Fid::ost_object(ost_index as u16, 0) }
    }

    /// Decodes 24 bytes. A first word in the range of FIDs means a FID, else the old form (id, group).
    fn decode(bytes: &[u8]) -> ObjectView {
        let first = u64_at(bytes, 0).unwrap_or(0);
        let second = u64_at(bytes, 8).unwrap_or(0);
        let ost_index = u32_at(bytes, 20).unwrap_or(0);
        if first < SEQ_FID_FIRST {
            let fid = Fid::new(second, first as u32, (first >> 32) as u32);
            return ObjectView { ost_index, id: first, group: second, fid };
        }
        let fid = Fid::new(first, second as u32, (second >> 32) as u32);
        if fid.is_idif() {
            // Objects of MDT0: 48 bits of id, the upper 16 of them in the sequence; shown as group 0.
            let id = (fid.seq & 0xffff) << 32 | u64::from(fid.oid);
            return ObjectView { ost_index, id, group: 0, fid };
        }
        ObjectView { ost_index, id: u64::from(fid.oid), group: fid.seq, fid }
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|b| u32::from_le_bytes(*b))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|b| u64::from_le_bytes(*b))
}

fn text_of(padded: &[u8]) -> String {
    let end = padded.iter().position(|&b| b == 0).unwrap_or(padded.len());
    String::from_utf8_lossy(&padded[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn patterns_are_words_and_unknown_bits_hexadecimal() {
        let text = |pattern| {
            let view = LayoutView { pattern, ..super::super::render::tests::plain_view(1, 0, &[]) };
            view.pattern_text()
        };
        assert_eq!(text(1), "raid0");
        assert_eq!(text(0x201), "raid0,overstriped");
        assert_eq!(text(0x8000_0001), "raid0,released");
        assert_eq!(text(0x1001), "raid0,unknown_1000");
        assert_eq!(text(0), "");
    }

    #[test]
    fn objects_of_other_mdts_show_their_sequence() {
        let mut bytes = [0u8; 24];
        bytes[..8].copy_from_slice(&0x2_8000_0401u64.to_le_bytes());
        bytes[8..12].copy_from_slice(&7u32.to_le_bytes());
        let object = ObjectView::decode(&bytes);
        assert_eq!((object.id, object.group), (7, 0x2_8000_0401));
    }

    proptest! {
        #[test]
        fn any_bytes_are_shown_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200), v3: bool) {
            let mut bytes = bytes;
            if let Some(magic) = bytes.first_chunk_mut::<4>() {
                *magic = if v3 { MAGIC_V3 } else { MAGIC_V1 }.to_le_bytes();
            }
            let _ = View::decode(&bytes);
            let mut composite = bytes.clone();
            if let Some(magic) = composite.first_chunk_mut::<4>() {
                *magic = MAGIC_COMPOSITE.to_le_bytes();
            }
            let _ = View::decode(&composite);
            if let Ok(view) = LayoutView::decode(&bytes) {
                let _ = (view.pattern_text(), view.shown_count(), view.file_offset());
            }
        }
    }
}
