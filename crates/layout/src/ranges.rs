//! Ranges and sizes of a file as ranges and sizes of its objects.

use crate::layout::{Extent, Layout, StripeObject};

/// The part of one object that a file range maps to. In RAID-0 a range of the file is one range of each
/// object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ObjectRange {
    /// The object and its OST.
    pub stripe: StripeObject,
    /// First byte, as offset in the object.
    pub start: u64,
    /// One past the last byte, as offset in the object.
    pub end: u64,
}

/// Returns the ranges of all objects that `[start, end)` of the file touches, in the order of the layout,
/// without empty ones.
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

/// Returns the sizes to set on objects when a file of any size becomes one of `size` bytes, in the order of
/// the layout.
///
/// The objects of the component with the last byte get exactly their shares, so that they imply the size;
/// those behind it become empty; those before it may stay as they are.
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
