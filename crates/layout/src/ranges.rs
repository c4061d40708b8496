//! Ranges and sizes of a file as ranges and sizes of its objects.

use crate::layout::{Extent, Layout, StripeObject};

/// The part of one object that a file range maps to. In RAID-0 a range of the file is one range of each object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ObjectRange {
    /// The object.
    pub stripe: StripeObject,
    /// First byte in the object.
    pub start: u64,
    /// One past the last.
    pub end: u64,
}

/// Ranges of all objects that `[start, end)` of the file touches, in the order of the layout, empty ones left out.
pub fn object_ranges(layout: &Layout, start: u64, end: u64) -> impl Iterator<Item = ObjectRange> + '_ {
    layout.components.iter().flat_map(move |component| {
        let (from, to) = (start.max(component.extent.start), end.min(component.extent.end));
        let math = if from < to { component.math() } else { None };
        component.objects.iter().enumerate().filter_map(move |(index, stripe)| {
            let math = math?;
            let (start, end) = (math.object_size(index as u16, from), math.object_size(index as u16, to));
            (start < end).then_some(ObjectRange { stripe: *stripe, start, end })
        })
    })
}

/// Sizes that objects are given when a file of whatever size becomes one of `size` bytes, in the order of the layout.
///
/// The component with the last byte gets exactly its share, so that its objects imply the size; those behind it become empty;
/// those before it may stay as they are.
pub fn object_sizes(layout: &Layout, size: u64) -> impl Iterator<Item = (StripeObject, u64)> + '_ {
    let concerned = move |extent: &Extent| size <= extent.end || extent.end == Extent::EOF;
    layout.components.iter().filter(move |c| concerned(&c.extent)).flat_map(move |component| {
        let math = component.math();
        let here = component.extent.start < size;
        component.objects.iter().enumerate().filter_map(move |(index, stripe)| {
            let own = if here { math?.object_size(index as u16, size) } else { 0 };
            Some((*stripe, own))
        })
    })
}
