use super::*;
use crate::layout::{STRIPE_COUNT_ALL, StripeObject};
use crate::pool::PoolName;
use crate::user::{
    decode_added, decode_layout, decode_request, encode_added, encode_layout, encode_request, has_objects,
};
use proptest::prelude::*;

const FILE: Fid = Fid::new(0x2_0000_0401, 7, 0);
const MIB: u64 = 1 << 20;

fn component(start: u64, end: u64, count: u16) -> ComponentSpec {
    let spec = LayoutSpec { stripe_count: Some(count), ..LayoutSpec::default() };
    ComponentSpec { extent: Extent { start, end }, flags: ComponentFlags::default(), spec }
}

/// The specification of `lfs setstripe -E 4M -c 1 -E 64M -c 2 -E -1 -c -1`.
fn pfl() -> LayoutRequest {
    LayoutRequest::Composite(vec![
        component(0, 4 * MIB, 1),
        component(4 * MIB, 64 * MIB, 2),
        component(64 * MIB, Extent::EOF, STRIPE_COUNT_ALL),
    ])
}

fn objects(first: u16, count: u16, oid: u32) -> Vec<StripeObject> {
    (first..first + count).map(|i| StripeObject::new(i, Fid::ost_object(i, oid))).collect()
}

fn file() -> Layout {
    let mut layout = pfl().to_layout(&LayoutSpec::default());
    layout.instantiate(0, objects(0, 1, 2));
    layout.instantiate(1, objects(1, 2, 3));
    layout.generation = 5;
    layout
}

#[test]
fn the_bytes_are_those_that_lustres_tool_sends() {
    let bytes = encode_request(&Fid::ZERO, &pfl());
    assert_eq!(bytes.len(), 272);
    assert_eq!(
        &bytes[..32],
        [
            0xd0, 0x0b, 0xd6, 0x0b, 16, 1, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
            0, 0, 0, 0
        ]
    );
    let second: Vec<u8> = [
        &[0; 8][..],
        &(4 * MIB).to_le_bytes(),
        &(64 * MIB).to_le_bytes(),
        &[208, 0, 0, 0, 32, 0, 0, 0],
        &[0; 16],
    ]
    .concat();
    assert_eq!(&bytes[80..128], second);
    let last: Vec<u8> =
        [&[0xd0, 0x0b, 0xd1, 0x0b, 1, 0, 0, 0][..], &[0; 16], &[0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]].concat();
    assert_eq!(&bytes[240..], last);
    assert_eq!(decode_request(&bytes), Ok(pfl()));
    assert!(!has_objects(&bytes));
}

#[test]
fn the_layout_of_a_file_has_offsets_and_sizes_as_lustres() {
    let bytes = encode_layout(&FILE, &file());
    let u32_at = |at: usize| u32::from_le_bytes(*bytes[at..].first_chunk().expect("inside"));
    // As in the output of `lfs getstripe -v pfl`: header, then (offset, size) of each component.
    assert_eq!((u32_at(4), u32_at(8)), (344, 5));
    let place = |index: usize| (u32_at(32 + 48 * index + 24), u32_at(32 + 48 * index + 28));
    assert_eq!([place(0), place(1), place(2)], [(176, 56), (232, 80), (312, 32)]);
    let ids_and_flags = |index: usize| (u32_at(32 + 48 * index), u32_at(32 + 48 * index + 4));
    assert_eq!([ids_and_flags(0), ids_and_flags(1), ids_and_flags(2)], [(1, 0x10), (2, 0x10), (3, 0)]);
    assert_eq!(decode_layout(&bytes), Ok(file()));
    assert!(has_objects(&bytes));
    // A layout copied from a file is a specification of the same shape.
    let Ok(LayoutRequest::Composite(copied)) = decode_request(&bytes) else { panic!("a request") };
    assert_eq!(
        copied.iter().map(|c| c.spec.stripe_count).collect::<Vec<_>>(),
        [Some(1), Some(2), Some(0xffff)]
    );
    assert!(copied.iter().all(|c| c.flags.is_empty() && c.spec.first_ost.is_none()));
}

/// Returns the same layout as a machine of the other byte order stores it.
fn swapped(bytes: &[u8]) -> Vec<u8> {
    let mut out = bytes.to_vec();
    let mut swap = |at: usize, len: usize| out[at..at + len].reverse();
    [(0, 4), (4, 4), (8, 4), (12, 2), (14, 2), (16, 2)].iter().for_each(|(at, len)| swap(*at, *len));
    for entry in (0..3).map(|i| 32 + 48 * i) {
        [(0, 4), (4, 4), (8, 8), (16, 8), (24, 4), (28, 4)]
            .iter()
            .for_each(|(at, len)| swap(entry + at, *len));
    }
    for (at, count) in [(176, 1), (232, 2), (312, 0)] {
        [(0, 4), (4, 4), (8, 8), (16, 8), (24, 4), (28, 2), (30, 2)]
            .iter()
            .for_each(|(o, len)| swap(at + o, *len));
        for object in (0..count).map(|i| at + 32 + 24 * i) {
            [(0, 8), (8, 4), (12, 4), (20, 4)].iter().for_each(|(o, len)| swap(object + o, *len));
        }
    }
    out
}

#[test]
fn layouts_of_machines_with_the_other_byte_order_are_read() {
    assert_eq!(decode_layout(&swapped(&encode_layout(&FILE, &file()))), Ok(file()));
}

#[test]
fn each_field_that_cannot_be_is_refused() {
    let good = encode_layout(&FILE, &file());
    let with = |at: usize, value: &[u8]| {
        let mut bytes = good.clone();
        bytes[at..at + value.len()].copy_from_slice(value);
        decode_layout(&bytes)
    };
    assert_eq!(with(4, &[0x57]), Err(UserMdError::Field("size")));
    assert_eq!(with(4, &[0x59]), Err(UserMdError::Short));
    assert_eq!(with(12, &[1]), Err(UserMdError::Field("mirror count")));
    assert_eq!(with(16, &[1]), Err(UserMdError::Field("mirror count")));
    assert_eq!(with(14, &[0]), Err(UserMdError::Field("entry count")));
    assert_eq!(with(14, &[9]), Err(UserMdError::Short));
    assert_eq!(with(32, &[0]), Err(UserMdError::Field("component id")));
    assert_eq!(with(32, &[2]), Err(UserMdError::Field("component id")));
    assert_eq!(with(34, &[1]), Err(UserMdError::Field("component id")));
    assert_eq!(with(36, &[0x80]), Err(UserMdError::Flags(0x80)));
    assert_eq!(with(36, &[0x40]), Err(UserMdError::Field("component size")), "an extension with objects");
    assert_eq!(with(132, &[0x40]), Err(UserMdError::Field("component extent")), "behind one with bytes");
    assert_eq!(with(36, &[1]), Err(UserMdError::Flags(1)));
    // A component without its objects, and a component with objects that it must not have.
    assert_eq!(with(36, &[0]), Err(UserMdError::Field("component size")));
    assert_eq!(with(132, &[0x10]), Err(UserMdError::Field("stripe count")));
    assert_eq!(with(40, &[1]), Err(UserMdError::Field("component extent")));
    assert_eq!(with(48, &[1]), Err(UserMdError::Field("component end")));
    assert_eq!(with(50, &[0x30]), Err(UserMdError::Field("component extent")));
    assert_eq!(with(56, &[0]), Err(UserMdError::Field("component offset")));
    assert_eq!(with(56, &[0xff, 0xff, 0xff, 0xff]), Err(UserMdError::Short));
    assert_eq!(with(60, &[0xff, 0xff, 0xff, 0xff]), Err(UserMdError::Short));
    assert_eq!(with(60, &[57]), Err(UserMdError::Field("component offset")));
    assert_eq!(with(180, &[0, 4]), Err(UserMdError::Pattern(0x400)));
    assert!(with(180, &[0, 1]).is_err(), "stripes on an MDT");
    assert_eq!(with(176, &[0]), Err(UserMdError::Magic(0x0BD1_0B00)));
    assert_eq!(decode_layout(&good[..20]), Err(UserMdError::Short));
}

/// The specification of `lfs setstripe -E 1M -L mdt -E -1`, and the file created with it.
fn on_mdt() -> (LayoutRequest, Layout) {
    let first = ComponentSpec { spec: LayoutSpec::ON_MDT, ..component(0, MIB, 1) };
    let requested = LayoutRequest::Composite(vec![first, component(MIB, Extent::EOF, 1)]);
    let mut layout = requested.to_layout(&LayoutSpec::default());
    layout.place_on_mdt(FILE);
    (requested, layout)
}

#[test]
fn data_on_an_mdt_has_no_stripes_and_the_size_of_its_component() {
    let (requested, layout) = on_mdt();
    let bytes = encode_layout(&FILE, &layout);
    // As in the output of `lfs getstripe -v dom`.
    assert_eq!(bytes.len(), 192);
    let head: Vec<u8> = [
        &[0xd0, 0x0b, 0xd1, 0x0b, 0, 1, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 1, 4, 0, 0, 2, 0, 0, 0][..],
        &[0, 0, 0x10, 0, 0, 0, 0, 0],
    ]
    .concat();
    assert_eq!(&bytes[128..160], head);
    assert!(has_objects(&bytes));
    assert_eq!(decode_layout(&bytes), Ok(layout.clone()));
    assert_eq!(layout.object_on_mdt(), Some(&StripeObject::on_mdt(FILE)));
    assert_eq!(layout.to_instantiate(u64::MAX).collect::<Vec<_>>(), [1]);
    // An object keeps its FID when its layout moves to another file.
    let other = Fid::new(FILE.seq, 8, 0);
    let mut moved = decode_layout(&encode_layout(&other, &layout)).expect("sound");
    moved.place_on_mdt(other);
    assert_eq!(moved, layout);
    let next = Fid { ver: 1, ..FILE };
    moved.components[0].objects = vec![StripeObject::on_mdt(next)];
    assert_eq!(decode_layout(&encode_layout(&FILE, &moved)), Ok(moved));
    let Ok(LayoutRequest::Composite(copied)) = decode_request(&bytes) else { panic!("a request") };
    assert_eq!(copied[0].spec, LayoutSpec::ON_MDT);
    // The default of a directory shows the size as well.
    assert_eq!(&encode_request(&FILE, &requested)[152..160], [0, 0, 0x10, 0, 0, 0, 0xff, 0xff]);
    let with = |at: usize, value: &[u8]| {
        let mut bytes = bytes.clone();
        bytes[at..at + value.len()].copy_from_slice(value);
        decode_layout(&bytes)
    };
    for (at, value) in [(152, &[0, 0, 0x20][..]), (156, &[1]), (136, &[0]), (164, &[0, 1]), (132, &[1])] {
        assert!(with(at, value).is_err(), "{at}");
    }
}

#[test]
fn components_to_be_added_and_selectors_survive_their_bytes() {
    let LayoutRequest::Composite(parts) = pfl() else { panic!("composite") };
    assert_eq!(decode_added(&encode_added(&parts[1..])), Ok(parts[1..].to_vec()));
    assert!(decode_request(&encode_added(&parts[1..])).is_err(), "a request begins at 0");
    assert!(decode_added(&encode_request(&FILE, &LayoutRequest::default())).is_err());
    for selector in [Selector::Id(3), Selector::WithoutObjects] {
        assert_eq!(decode_selector(&encode_selector(selector)), Ok(selector));
    }
    let with = |at: usize, value: u8| {
        let mut bytes = encode_selector(Selector::Id(3));
        bytes[at] = value;
        decode_selector(&bytes)
    };
    assert_eq!(with(14, 2), Err(UserMdError::Field("entry count")));
    assert_eq!(with(34, 1), Err(UserMdError::Field("component id")));
    assert_eq!(with(32, 0), Err(UserMdError::Flags(0)));
}

prop_compose! {
    fn any_spec()(size in 0u32..5, count in 0u16..6, all: bool, first in 0u16..4, pool in 0u8..3,
        osts in proptest::collection::vec(0u16..4, 0..5), listed: bool,
    ) -> LayoutSpec {
        let spec = LayoutSpec {
            // Sizes that divide each of the ends below.
            stripe_size: (size > 0).then(|| 65536 << (size - 1)),
            stripe_count: if all { Some(STRIPE_COUNT_ALL) } else { (count > 0).then_some(count) },
            first_ost: (first > 0).then_some(first),
            pool: (pool == 1).then(|| PoolName::new(b"flash")).flatten(),
            pattern: Pattern::Raid0,
            osts: Vec::new(),
        };
        if !listed || osts.is_empty() {
            return spec;
        }
        LayoutSpec {
            stripe_count: Some(osts.len() as u16),
            first_ost: Some(osts[0]),
            pattern: Pattern::Overstriped,
            osts,
            ..spec
        }
    }
}

prop_compose! {
    /// Any specification of one to eight components.
    pub(crate) fn any_request()(
        parts in proptest::collection::vec((any_spec(), 1u64..64, 0u32..4), 1..8), open: bool, plain in 0u8..4,
        on_mdt: bool,
    ) -> LayoutRequest {
        if plain == 0 {
            return LayoutRequest::Plain(parts[0].0.clone());
        }
        let mut start = 0;
        let last = parts.len() - 1;
        LayoutRequest::Composite(parts.into_iter().enumerate().map(|(place, (spec, len, flags))| {
            let end = if open && place == last { Extent::EOF } else { start + len * MIB };
            let extent = Extent { start, end };
            start = end;
            let flags = ComponentFlags::from_bits_truncate(flags << 1);
            let spec = if on_mdt && place == 0 && end != Extent::EOF { LayoutSpec::ON_MDT } else { spec };
            ComponentSpec { extent, flags, spec }
        }).collect())
    }
}

prop_compose! {
    /// Any layout of a file whose components up to some place are instantiated.
    pub(crate) fn any_layout()(requested in any_request(), until in 0usize..9, generation in 0u16..9) -> Layout {
        let mut layout = requested.to_layout(&LayoutSpec::default());
        layout.place_on_mdt(FILE);
        for place in 0..layout.components.len().min(until) {
            if layout.components[place].pattern == Pattern::Mdt {
                continue;
            }
            let count = layout.components[place].stripe_count.min(5);
            layout.instantiate(place, objects(place as u16, count, 40 + place as u32));
            layout.components[place].generation = generation;
        }
        if layout.form == LayoutForm::Plain && layout.components[0].is_instantiated() {
            layout.generation = u32::from(generation);
        }
        layout
    }
}

proptest! {
    #[test]
    fn every_wish_survives_its_bytes(requested in any_request()) {
        prop_assert_eq!(requested.check(), Ok(()));
        prop_assert_eq!(decode_request(&encode_request(&FILE, &requested)), Ok(requested));
    }

    #[test]
    fn every_layout_survives_its_bytes(layout in any_layout()) {
        prop_assert!(layout.is_sound());
        let bytes = encode_layout(&FILE, &layout);
        prop_assert_eq!(has_objects(&bytes), layout.has_objects());
        prop_assert_eq!(decode_layout(&bytes), Ok(layout));
    }
}
