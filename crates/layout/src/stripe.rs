//! RAID-0 arithmetic.
//!
//! stripe number = offset / stripe size; object = stripe number mod count; object offset = (stripe number /
//! count) x stripe size + offset mod stripe size. Stripes are numbered by absolute file offset in every
//! component.

use crate::layout::{Component, Extent, Layout, StripeObject};

/// Stripe size and count of an instantiated component, both at least 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StripeMath {
    stripe_size: u64,
    stripe_count: u64,
}

impl StripeMath {
    /// Builds the arithmetic; `None` if either number is 0.
    pub const fn new(stripe_size: u32, stripe_count: u16) -> Option<StripeMath> {
        if stripe_size == 0 || stripe_count == 0 {
            return None;
        }
        Some(StripeMath { stripe_size: stripe_size as u64, stripe_count: stripe_count as u64 })
    }

    /// Returns the index of the object with file byte `offset`, and the offset inside that object.
    pub const fn locate(&self, offset: u64) -> (u16, u64) {
        let stripe = offset / self.stripe_size;
        let index = stripe % self.stripe_count;
        let object_offset = (stripe / self.stripe_count) * self.stripe_size + offset % self.stripe_size;
        (index as u16, object_offset)
    }

    /// Returns the file offset of byte `object_offset` of object `index`; saturates at the largest offset.
    pub const fn file_offset(&self, index: u16, object_offset: u64) -> u64 {
        let stripe =
            (object_offset / self.stripe_size).saturating_mul(self.stripe_count).saturating_add(index as u64);
        stripe.saturating_mul(self.stripe_size).saturating_add(object_offset % self.stripe_size)
    }

    /// Returns the bytes from `offset` to the end of its stripe, at least 1.
    pub const fn to_stripe_end(&self, offset: u64) -> u64 {
        self.stripe_size - offset % self.stripe_size
    }

    /// Returns the smallest file size that contains all of object `index` when it holds `object_size` bytes;
    /// 0 for an empty object.
    pub const fn file_size(&self, index: u16, object_size: u64) -> u64 {
        if object_size == 0 {
            return 0;
        }
        self.file_offset(index, object_size - 1).saturating_add(1)
    }

    /// Returns the largest size of object `index` when the file ends at `file_size`.
    pub const fn object_size(&self, index: u16, file_size: u64) -> u64 {
        let stripe = file_size / self.stripe_size;
        let full_rounds = stripe / self.stripe_count;
        let position = stripe % self.stripe_count;
        let base = full_rounds * self.stripe_size;
        if (index as u64) < position {
            base + self.stripe_size
        } else if index as u64 == position {
            base + file_size % self.stripe_size
        } else {
            base
        }
    }
}

/// A piece of a file range within one stripe of one object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chunk {
    /// The object; `None` if the component has no objects yet (reads return zeros).
    pub object: Option<StripeObject>,
    /// Offset in the object in bytes.
    pub object_offset: u64,
    /// Offset in the file in bytes.
    pub file_offset: u64,
    /// Length in bytes, at least 1.
    pub len: u64,
}

/// Cuts `[offset, offset + len)` into chunks, in file order. Neighbouring stripes on the same object are
/// merged when they are contiguous there (one stripe, or a single-stripe file).
///
/// The iterator ends early at the end of the last component.
pub fn chunks(layout: &Layout, offset: u64, len: u64) -> impl Iterator<Item = Chunk> + '_ {
    let end = offset.saturating_add(len);
    let mut position = offset;
    std::iter::from_fn(move || {
        if position >= end {
            return None;
        }
        let component = layout.component_at(position)?;
        let chunk = next_chunk(component, position, end);
        position += chunk.len;
        Some(chunk)
    })
}

fn next_chunk(component: &Component, position: u64, end: u64) -> Chunk {
    let limit = if component.extent.end == Extent::EOF { end } else { end.min(component.extent.end) };
    let Some(math) = component.math() else {
        return Chunk { object: None, object_offset: 0, file_offset: position, len: limit - position };
    };
    let (index, object_offset) = math.locate(position);
    let len = match component.objects.len() {
        1 => limit - position,
        _ => math.to_stripe_end(position).min(limit - position),
    };
    let object = component.objects.get(usize::from(index)).copied();
    Chunk { object, object_offset, file_offset: position, len }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{ComponentFlags, LayoutForm, Pattern};
    use nacre_types::Fid;
    use proptest::prelude::*;

    fn plain(stripe_size: u32, count: u16) -> Layout {
        let objects = (0..count).map(|i| StripeObject::new(i, Fid::ost_object(i, 7))).collect::<Vec<_>>();
        Layout {
            form: LayoutForm::Plain,
            generation: 0,
            components: vec![Component {
                id: 0,
                extent: Extent::WHOLE,
                flags: ComponentFlags::INIT,
                pattern: Pattern::Raid0,
                stripe_size,
                stripe_count: count,
                first_ost: None,
                pool: None,
                osts: Vec::new(),
                generation: 0,
                objects,
            }],
        }
    }

    #[test]
    fn bytes_go_round_the_objects_stripe_by_stripe() {
        let math = StripeMath::new(65536, 3).expect("valid");
        assert_eq!(math.locate(0), (0, 0));
        assert_eq!(math.locate(65536), (1, 0));
        assert_eq!(math.locate(3 * 65536 + 5), (0, 65541));
        assert_eq!(math.file_size(1, 1), 65537);
        assert_eq!(math.file_size(2, 0), 0);
    }

    #[test]
    fn a_single_stripe_file_is_one_chunk() {
        let all: Vec<_> = chunks(&plain(65536, 1), 10, 10 << 20).collect();
        assert_eq!(all.len(), 1);
        assert_eq!((all[0].object_offset, all[0].len), (10, 10 << 20));
    }

    proptest! {
        #[test]
        fn locating_a_byte_and_mapping_it_back_gives_the_same_byte(
            units in 1u32..64, count in 1u16..200, offset in 0u64..1 << 50,
        ) {
            let math = StripeMath::new(units * 65536, count).expect("valid");
            let (index, object_offset) = math.locate(offset);
            prop_assert!(index < count);
            prop_assert_eq!(math.file_offset(index, object_offset), offset);
        }

        #[test]
        fn object_sizes_of_a_file_add_up_and_imply_its_size(
            units in 1u32..8, count in 1u16..20, size in 0u64..1 << 34,
        ) {
            let layout = plain(units * 65536, count);
            let math = layout.components[0].math().expect("instantiated");
            let sizes: Vec<u64> = (0..count).map(|i| math.object_size(i, size)).collect();
            prop_assert_eq!(sizes.iter().sum::<u64>(), size);
            prop_assert_eq!(layout.file_size(&sizes), size);
        }

        #[test]
        fn chunks_cover_a_range_without_gap_or_overlap(
            count in 1u16..9, offset in 0u64..1 << 30, len in 1u64..4 << 20,
        ) {
            let layout = plain(65536, count);
            let math = layout.components[0].math().expect("instantiated");
            let mut position = offset;
            for chunk in chunks(&layout, offset, len) {
                prop_assert_eq!(chunk.file_offset, position);
                let (index, object_offset) = math.locate(position);
                prop_assert_eq!(chunk.object.map(|o| o.ost_index), Some(index));
                prop_assert_eq!(chunk.object_offset, object_offset);
                position += chunk.len;
            }
            prop_assert_eq!(position, offset + len);
        }
    }
}
