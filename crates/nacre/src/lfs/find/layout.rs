//! Queries of layouts by predicates and formats.

use crate::lfs::mounted::Mounted;
use crate::lfs::view::{EntryView, LayoutView, View};
use nacre_layout::request::fitting_stripe_size;
use nacre_layout::user;
use nacre_types::limits::STRIPE_SIZE_DEFAULT;
use std::io;

/// Magic of a foreign layout, its first word.
const MAGIC_FOREIGN: u32 = 0x0BD7_0BD0;
const PATTERN_RAID0: u32 = 1;
const PATTERN_RELEASED: u32 = 0x8000_0000;

/// Flag of a component with objects.
const COMPONENT_INIT: u32 = 0x10;
/// Flag of an extension: reserved extent for the growth of the component before it.
const COMPONENT_EXTENSION: u32 = 0x40;

/// Layout of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// No layout to query: none of its own, or one that cannot be decoded.
    None,
    /// A foreign layout of this type.
    Foreign(u32),
    /// A layout with stripes.
    Striped(View),
}

/// A component, or the whole of a plain layout.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// Flag bits of the component.
    pub flags: u32,
    /// Offset of its first byte.
    pub start: u64,
    /// Offset after its last byte.
    pub end: u64,
    /// Striping of the component.
    pub layout: &'a LayoutView,
}

impl Part<'_> {
    /// Returns the OST of each stripe, `?` for one without an object; nothing for data on an MDT.
    pub fn places(&self) -> impl Iterator<Item = String> {
        let objects = self.layout.placed();
        let stripes = match self.layout.stripe_count {
            _ if self.layout.is_on_mdt() => 0,
            // "All OSTs" is shown as one question mark.
            u16::MAX => 1,
            count => usize::from(count),
        };
        let known = objects.iter().map(|object| object.ost_index.to_string());
        known.chain(std::iter::repeat("?".to_owned())).take(stripes.max(objects.len()))
    }
}

impl Shape {
    /// Decodes the value of `lustre.lov`.
    pub fn decode(bytes: &[u8]) -> Shape {
        let word = |at: usize| bytes.get(at..)?.first_chunk().map(|word| u32::from_le_bytes(*word));
        match word(0) {
            Some(MAGIC_FOREIGN) => Shape::Foreign(word(8).unwrap_or(0)),
            _ => View::decode(bytes).map_or(Shape::None, Shape::Striped),
        }
    }

    fn view(&self) -> Option<&View> {
        match self {
            Shape::Striped(view) => Some(view),
            Shape::None | Shape::Foreign(_) => None,
        }
    }

    /// Returns the components; a plain layout counts as one that covers the file.
    pub fn parts(&self) -> Vec<Part<'_>> {
        match self.view() {
            None => Vec::new(),
            Some(View::Plain(layout)) => {
                let flags = if layout.is_request() { 0 } else { COMPONENT_INIT };
                vec![Part { flags, start: 0, end: u64::MAX, layout }]
            }
            Some(View::Composite(view)) => view
                .entries
                .iter()
                .map(|entry| {
                    let EntryView { flags, start, end, layout, .. } = entry;
                    Part { flags: *flags, start: *start, end: *end, layout }
                })
                .collect(),
        }
    }

    /// Returns the component that represents the file in tests of a single value: the last one with objects
    /// that is not an extension, in templates the last.
    pub fn main(&self) -> Option<Part<'_>> {
        let parts = self.parts();
        let real = |part: &&Part<'_>| part.flags & COMPONENT_EXTENSION == 0;
        let with_objects = parts.iter().rfind(|part| real(part) && part.flags & COMPONENT_INIT != 0);
        with_objects.or(parts.iter().rfind(real)).copied()
    }

    /// Returns the number of mirrors of the file.
    pub fn mirror_count(&self) -> Option<u32> {
        match self.view()? {
            View::Plain(_) => Some(1),
            View::Composite(view) => Some(view.mirror_count),
        }
    }

    /// Returns the state of the mirrors: 1 in sync, 2 written to, 3 being resynced, 0 none.
    pub fn mirror_state(&self) -> u16 {
        match self.view() {
            Some(View::Composite(view)) => view.flags & 0xf,
            _ => 0,
        }
    }

    /// Returns the number of components, 0 for all other layouts.
    pub fn component_count(&self) -> u64 {
        match self.view() {
            Some(View::Composite(view)) => view.entries.len() as u64,
            Some(View::Plain(_)) | None => 0,
        }
    }

    /// Returns the stripe count of the main component; 65535 for all OSTs, 0 without stripes.
    pub fn stripe_count(&self) -> u64 {
        self.main().map_or(0, |part| u64::from(part.layout.stripe_count))
    }

    /// Returns the stripe size of the main component in bytes.
    pub fn stripe_size(&self) -> Option<u64> {
        self.main().map(|part| u64::from(part.layout.stripe_size))
    }

    /// Returns the growth steps of extendable components, in bytes.
    pub fn extension_sizes(&self) -> impl Iterator<Item = u64> {
        let parts = self.parts();
        parts
            .into_iter()
            .filter(|part| part.flags & COMPONENT_EXTENSION != 0)
            .map(|part| part.layout.extension_size())
    }

    /// Returns the indexes of the OSTs of all objects, in the order of the layout.
    pub fn osts(&self) -> impl Iterator<Item = u32> {
        let view = self.view();
        view.into_iter().flat_map(View::layouts).flat_map(LayoutView::placed).map(|o| o.ost_index)
    }

    /// Returns true if a component has this pool; `""` for none.
    pub fn has_pool(&self, pool: &str) -> bool {
        self.parts().iter().any(|part| part.layout.pool.as_deref().unwrap_or("") == pool)
    }

    /// Returns true if a component has any of these pattern bits.
    pub fn has_pattern(&self, bits: u32) -> bool {
        self.parts().iter().any(|part| part.layout.pattern & bits != 0)
    }
}

/// Returns the pattern bits of the word `released`, `raid0` or `mdt`.
pub fn pattern_bits(word: &str) -> Option<u32> {
    Some(match word {
        "released" => PATTERN_RELEASED,
        "raid0" => 1,
        "mdt" => 0x100,
        "overstriped" => 0x200,
        _ => return None,
    })
}

/// Defaults of the file system for unset fields of a layout.
#[derive(Clone, Debug)]
pub struct Defaults {
    stripe_count: u16,
    stripe_size: u32,
    /// Layout of files in directories without a default of their own.
    layout: Vec<u8>,
}

impl Defaults {
    /// Reads the defaults of a mounted file system.
    ///
    /// # Errors
    /// Those of getxattr(2) on its root.
    pub fn of(mount: &Mounted) -> io::Result<Defaults> {
        let layout = mount.default_layout()?;
        let requested = user::decode_request(&layout).unwrap_or_default().inherited();
        Ok(Defaults {
            stripe_count: requested.stripe_count.unwrap_or(1),
            stripe_size: requested.stripe_size.unwrap_or(STRIPE_SIZE_DEFAULT),
            layout,
        })
    }

    /// Returns the layout that a file gets in a directory with this default.
    pub fn of_new_file(&self, inherited: Option<&[u8]>) -> Shape {
        self.resolved(Shape::decode(inherited.unwrap_or(&self.layout)))
    }

    /// Replaces the unset fields of a layout by the defaults.
    pub fn resolved(&self, mut shape: Shape) -> Shape {
        let resolve = |layout: &mut LayoutView, ends: &[u64]| {
            if !layout.is_request() || layout.pattern & PATTERN_RAID0 == 0 {
                return;
            }
            if layout.stripe_count == 0 {
                layout.stripe_count = self.stripe_count;
            }
            if layout.stripe_size == 0 {
                layout.stripe_size = fitting_stripe_size(self.stripe_size, ends);
            }
        };
        match &mut shape {
            Shape::None | Shape::Foreign(_) => {}
            Shape::Striped(View::Plain(layout)) => resolve(layout, &[]),
            Shape::Striped(View::Composite(view)) => {
                for place in 0..view.entries.len() {
                    let ends = view.ends(place);
                    let entry = &mut view.entries[place];
                    if !entry.is_extension() {
                        resolve(&mut entry.layout, &ends);
                    }
                }
            }
        }
        shape
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_layout::{ComponentFlags, ComponentSpec, Extent, LayoutRequest, LayoutSpec};
    use nacre_types::Fid;

    const DEFAULTS: Defaults = Defaults { stripe_count: 3, stripe_size: 1 << 20, layout: Vec::new() };

    fn part(start: u64, end: u64, count: Option<u16>) -> ComponentSpec {
        let spec = LayoutSpec { stripe_count: count, ..LayoutSpec::default() };
        ComponentSpec { extent: Extent { start, end }, flags: ComponentFlags::empty(), spec }
    }

    #[test]
    fn what_a_wish_leaves_open_is_the_file_systems_default() {
        let bytes = user::encode_spec(&Fid::ZERO, &LayoutSpec::default());
        let shape = DEFAULTS.of_new_file(Some(&bytes));
        assert_eq!((shape.stripe_count(), shape.stripe_size()), (3, Some(1 << 20)));
        assert_eq!((shape.component_count(), shape.mirror_count()), (0, Some(1)));
        assert_eq!(shape.osts().count(), 0);
        assert!(shape.has_pool("") && !shape.has_pool("flash") && shape.has_pattern(1));
    }

    #[test]
    fn of_a_template_the_last_component_speaks() {
        let requested =
            LayoutRequest::Composite(vec![part(0, 1 << 20, Some(1)), part(1 << 20, u64::MAX, Some(2))]);
        let shape = DEFAULTS.resolved(Shape::decode(&user::encode_request(&Fid::ZERO, &requested)));
        assert_eq!((shape.stripe_count(), shape.component_count()), (2, 2));
        assert_eq!(shape.parts().iter().map(|part| part.end).collect::<Vec<_>>(), [1 << 20, u64::MAX]);
    }

    #[test]
    fn foreign_and_damaged_layouts_have_nothing_to_compare() {
        let mut foreign = MAGIC_FOREIGN.to_le_bytes().to_vec();
        foreign.extend_from_slice(&[4, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, b'a', b'b', b'c', b'd']);
        assert_eq!(Shape::decode(&foreign), Shape::Foreign(5));
        assert_eq!(Shape::decode(&foreign).stripe_count(), 0);
        assert_eq!(Shape::decode(b"\xd0\x0b"), Shape::None);
        assert_eq!(Shape::decode(b""), Shape::None);
    }
}
