//! Under any sequence of writes, truncations, punches and reads, a file with any layout behaves like a flat
//! file.

use nacre_layout::{
    ComponentFlags, ComponentSpec, Extent, Layout, LayoutRequest, LayoutSpec, StripeObject, chunks,
    object_ranges, object_sizes,
};
use nacre_types::Fid;
use proptest::prelude::*;
use std::collections::HashMap;

const UNIT: u64 = 65536;
/// Bytes of the largest file in this test.
const END: u64 = 24 * UNIT;

/// Objects with the rules of an OST: bytes between are zeros, a truncation cuts or extends.
#[derive(Default)]
struct Objects(HashMap<Fid, Vec<u8>>);

impl Objects {
    fn write(&mut self, object: Fid, at: u64, data: &[u8]) {
        let bytes = self.0.entry(object).or_default();
        let end = at as usize + data.len();
        bytes.resize(bytes.len().max(end), 0);
        bytes[at as usize..end].copy_from_slice(data);
    }

    fn size(&self, object: &Fid) -> u64 {
        self.0.get(object).map_or(0, |bytes| bytes.len() as u64)
    }
}

/// A file of components that get their objects as a server allocates them, and the flat file to compare with.
struct File {
    layout: Layout,
    objects: Objects,
    flat: Vec<u8>,
}

impl File {
    fn new(requested: &LayoutRequest) -> File {
        let mut layout =
            requested.to_layout(&LayoutSpec { stripe_size: Some(2 * UNIT as u32), ..LayoutSpec::default() });
        layout.place_on_mdt(Fid::new(0x2_0000_0401, 1, 0));
        File { layout, objects: Objects::default(), flat: Vec::new() }
    }

    fn instantiate(&mut self, end: u64) {
        for place in self.layout.to_instantiate(end).collect::<Vec<_>>() {
            let count = self.layout.components[place].stripe_count;
            let object = |i| StripeObject::new(i, Fid::ost_object(i, place as u32 + 1));
            self.layout.instantiate(place, (0..count).map(object).collect());
        }
        assert!(self.layout.is_sound());
    }

    /// Writes as a client does, up to the end of the last component.
    fn write(&mut self, at: u64, data: &[u8]) {
        let end = (at + data.len() as u64).min(self.layout.end());
        if at >= end {
            return;
        }
        let data = &data[..(end - at) as usize];
        self.instantiate(end);
        for chunk in chunks(&self.layout, at, data.len() as u64) {
            let from = (chunk.file_offset - at) as usize;
            let stripe = chunk.object.expect("what is written was instantiated");
            self.objects.write(stripe.object, chunk.object_offset, &data[from..from + chunk.len as usize]);
        }
        self.flat.resize(self.flat.len().max(end as usize), 0);
        self.flat[at as usize..end as usize].copy_from_slice(data);
    }

    fn truncate(&mut self, size: u64) {
        let size = size.min(self.layout.end());
        if size > 0 {
            self.instantiate((size + 1).min(self.layout.end()));
        }
        for (stripe, own) in object_sizes(&self.layout, size).collect::<Vec<_>>() {
            self.objects.0.entry(stripe.object).or_default().resize(own as usize, 0);
        }
        self.flat.resize(size as usize, 0);
    }

    fn punch(&mut self, start: u64, end: u64) {
        for range in object_ranges(&self.layout, start, end) {
            let Some(bytes) = self.objects.0.get_mut(&range.stripe.object) else { continue };
            let len = bytes.len();
            bytes[len.min(range.start as usize)..len.min(range.end as usize)].fill(0);
        }
        let len = self.flat.len();
        self.flat[len.min(start as usize)..len.min(end as usize)].fill(0);
    }

    fn size(&self) -> u64 {
        let sizes: Vec<u64> = self.layout.objects().map(|s| self.objects.size(&s.object)).collect();
        self.layout.file_size(&sizes)
    }

    fn read(&self, at: u64, len: u64) -> Vec<u8> {
        let end = (at + len).min(self.size());
        let mut found = vec![0; end.saturating_sub(at) as usize];
        for chunk in chunks(&self.layout, at, found.len() as u64) {
            let Some(stripe) = chunk.object else { continue };
            let from = (chunk.file_offset - at) as usize;
            let place = &mut found[from..from + chunk.len as usize];
            let bytes = self.objects.0.get(&stripe.object).map_or(&[][..], |bytes| bytes);
            let there = bytes.get(chunk.object_offset as usize..).unwrap_or(&[]);
            let there = &there[..there.len().min(place.len())];
            place[..there.len()].copy_from_slice(there);
        }
        found
    }
}

#[derive(Clone, Debug)]
enum Step {
    Write(u64, u64, u8),
    Truncate(u64),
    Punch(u64, u64),
    Read(u64, u64),
}

/// Offsets of which half are at borders.
fn offset() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..END,
        (0..END / UNIT).prop_map(|unit| unit * UNIT),
        (1..END / UNIT).prop_map(|unit| unit * UNIT - 1),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (offset(), 1..3 * UNIT, 1u8..).prop_map(|(at, len, byte)| Step::Write(at, len, byte)),
        offset().prop_map(Step::Truncate),
        (offset(), 1..6 * UNIT).prop_map(|(at, len)| Step::Punch(at, at + len)),
        (offset(), 1..6 * UNIT).prop_map(|(at, len)| Step::Read(at, len)),
    ]
}

prop_compose! {
    fn requested()(
        parts in proptest::collection::vec((1u64..7, 0u32..4, 0u16..4), 1..5), open: bool, plain: bool, on_mdt: bool,
    ) -> LayoutRequest {
        let spec = |size: u32, count: u16| LayoutSpec {
            stripe_size: (size == 1).then_some(UNIT as u32),
            stripe_count: (count > 0).then_some(count),
            ..LayoutSpec::default()
        };
        if plain {
            return LayoutRequest::Plain(spec(parts[0].1, parts[0].2));
        }
        let (mut start, last) = (0, parts.len() - 1);
        LayoutRequest::Composite(parts.into_iter().enumerate().map(|(place, (units, size, count))| {
            let end = if open && place == last { Extent::EOF } else { start + units * UNIT };
            let extent = Extent { start, end };
            start = end;
            let spec = match on_mdt && extent.start == 0 && end != Extent::EOF {
                true => LayoutSpec::ON_MDT,
                false => spec(size, count),
            };
            ComponentSpec { extent, flags: ComponentFlags::default(), spec }
        }).collect())
    }
}

proptest! {
    #[test]
    fn any_layout_is_a_flat_file(requested in requested(), steps in proptest::collection::vec(step(), 1..20)) {
        prop_assert_eq!(requested.check(), Ok(()));
        let mut file = File::new(&requested);
        for step in steps {
            match step {
                Step::Write(at, len, byte) => file.write(at, &vec![byte; len as usize]),
                Step::Truncate(size) => file.truncate(size),
                Step::Punch(start, end) => file.punch(start, end),
                Step::Read(at, len) => {
                    let size = file.flat.len() as u64;
                    let (from, to) = (at.min(size) as usize, (at + len).min(size) as usize);
                    prop_assert!(file.read(at, len) == file.flat[from..to]);
                }
            }
            prop_assert_eq!(file.size(), file.flat.len() as u64);
            let lacking = file.layout.components.iter().find(|c| !c.is_instantiated());
            prop_assert!(lacking.is_none_or(|c| c.extent.start >= file.size()), "data behind what has no objects");
        }
        prop_assert!(file.read(0, END * 2) == file.flat);
    }

    #[test]
    fn ranges_of_objects_are_the_union_of_the_chunks(requested in requested(), at in offset(), len in 1..6 * UNIT) {
        let mut file = File::new(&requested);
        file.instantiate(END);
        let layout = &file.layout;
        for range in object_ranges(layout, at, at + len) {
            let mine: Vec<_> = chunks(layout, at, len).filter(|c| c.object == Some(range.stripe)).collect();
            prop_assert_eq!(mine.iter().map(|c| c.object_offset).min(), Some(range.start));
            prop_assert_eq!(mine.iter().map(|c| c.object_offset + c.len).max(), Some(range.end));
            prop_assert_eq!(mine.iter().map(|c| c.len).sum::<u64>(), range.end - range.start);
        }
    }
}
