use super::*;
use crate::layout::{LayoutForm, Pattern, StripeObject};
use crate::request::{ComponentSpec, LayoutRequest};
use crate::stripe::chunks;
use crate::{LayoutSpec, object_ranges, object_sizes, user};
use nacre_types::Fid;
use proptest::prelude::*;
use std::collections::{BTreeMap, HashMap};

const MIB: u64 = 1 << 20;
const STEP: u64 = 64 * MIB;
const OSTS: u16 = 4;

/// OSTs, each with or without free space.
struct Osts {
    has_room: [bool; OSTS as usize],
    next_object: u32,
}

impl Osts {
    fn new(has_room: [bool; OSTS as usize]) -> Osts {
        Osts { has_room, next_object: 1 }
    }

    /// Allocates objects for all components that need them, on OSTs with free space if a share is required.
    fn instantiate(&mut self, layout: &mut Layout, end: u64, grown: &Grown) {
        for place in layout.to_instantiate(end).collect::<Vec<_>>() {
            let component = &layout.components[place];
            let wants_room = grown.share(component) > 0;
            let fits = |ost: &u16| !wants_room || self.has_room[usize::from(*ost)];
            let osts: Vec<u16> =
                (0..OSTS).filter(fits).take(usize::from(component.stripe_count.min(OSTS))).collect();
            assert!(!osts.is_empty(), "room was found");
            let object = |ost: u16| {
                let number = self.next_object + u32::from(ost);
                StripeObject::new(ost, Fid::ost_object(ost, number))
            };
            let objects = osts.into_iter().map(object).collect();
            self.next_object += u32::from(OSTS);
            layout.instantiate(place, objects);
        }
    }
}

impl Space for Osts {
    fn has_room(&mut self, component: &Component, _: u64) -> bool {
        component.objects.iter().all(|object| self.has_room[usize::from(object.ost_index)])
    }

    fn finds_room(&mut self, component: &Component, bytes: u64) -> Option<u64> {
        let share = bytes / u64::from(component.stripe_count.clamp(1, OSTS));
        self.has_room.contains(&true).then_some(share)
    }
}

fn spec(extent: Extent, flags: ComponentFlags, stripe_size: u32, count: Option<u16>) -> ComponentSpec {
    let spec = LayoutSpec { stripe_size: Some(stripe_size), stripe_count: count, ..LayoutSpec::default() };
    ComponentSpec { extent, flags, spec }
}

/// Builds a component `[start, end)` that grows by `steps` of 64 MiB, and its extension.
fn growing(start: u64, end: u64, steps: u64, count: u16) -> [ComponentSpec; 2] {
    [
        spec(Extent { start, end: start }, ComponentFlags::default(), 1 << 20, Some(count)),
        spec(Extent { start, end }, ComponentFlags::EXTENSION, (steps * STEP / 1024) as u32, None),
    ]
}

fn fixed(start: u64, end: u64, count: u16) -> [ComponentSpec; 1] {
    [spec(Extent { start, end }, ComponentFlags::default(), 1 << 20, Some(count))]
}

fn layout(parts: &[&[ComponentSpec]]) -> Layout {
    let requested = LayoutRequest::Composite(parts.concat());
    assert_eq!(requested.check(), Ok(()));
    requested.to_layout(&LayoutSpec::default())
}

/// Returns the ends in MiB (0 for the end of the file) and flags of the components.
fn shape(layout: &Layout) -> Vec<(u64, &'static str)> {
    let one = |c: &Component| {
        let end = if c.extent.end == Extent::EOF { 0 } else { c.extent.end / MIB };
        let kind = match (c.is_extension(), c.is_instantiated()) {
            (true, _) => "extension",
            (_, true) => "init",
            _ => "",
        };
        (end, kind)
    };
    layout.components.iter().map(one).collect()
}

fn write(layout: &mut Layout, osts: &mut Osts, end: u64) {
    let grown = layout.grow(end, osts);
    osts.instantiate(layout, end, &grown);
    assert!(!layout.is_to_change(end) && layout.is_sound());
}

#[test]
fn a_file_begins_with_a_step_and_grows_by_steps_while_there_is_room() {
    let mut osts = Osts::new([true; 4]);
    let mut file = layout(&[&growing(0, Extent::EOF, 1, 1)]);
    assert_eq!(shape(&file), [(64, ""), (0, "extension")]);
    assert_eq!((file.generation, file.components[1].id), (2, 2));
    write(&mut file, &mut osts, 1);
    assert_eq!(shape(&file), [(64, "init"), (0, "extension")]);
    write(&mut file, &mut osts, 64 * MIB);
    assert_eq!(shape(&file), [(64, "init"), (0, "extension")]);
    write(&mut file, &mut osts, 64 * MIB + 1);
    assert_eq!(shape(&file), [(128, "init"), (0, "extension")]);
    write(&mut file, &mut osts, 300 * MIB);
    assert_eq!(shape(&file), [(320, "init"), (0, "extension")]);
    write(&mut file, &mut osts, u64::MAX);
    assert_eq!(shape(&file), [(0, "init")]);
}

#[test]
fn an_extension_ends_where_it_was_said_to() {
    let mut osts = Osts::new([true; 4]);
    let mut file = layout(&[&growing(0, 96 * MIB, 1, 1), &fixed(96 * MIB, Extent::EOF, 2)]);
    assert_eq!(shape(&file), [(64, ""), (96, "extension"), (0, "")]);
    write(&mut file, &mut osts, 65 * MIB);
    assert_eq!(shape(&file), [(96, "init"), (0, "")]);
    write(&mut file, &mut osts, 97 * MIB);
    assert_eq!(shape(&file), [(96, "init"), (0, "init")]);
    let small = layout(&[&growing(0, 32 * MIB, 1, 1)]);
    assert_eq!(shape(&small), [(32, "")], "no more than all of it");
}

#[test]
fn without_room_the_next_component_takes_over() {
    let make = || {
        layout(&[
            &growing(0, 1 << 30, 1, 1),
            &growing(1 << 30, 1 << 40, 2, 2),
            &fixed(1 << 40, Extent::EOF, 4),
        ])
    };
    let mut osts = Osts::new([true; 4]);
    let mut file = make();
    assert_eq!(shape(&file), [(64, ""), (1024, "extension"), (1024, ""), (1 << 20, "extension"), (0, "")]);
    write(&mut file, &mut osts, 10);
    osts.has_room[0] = false;
    write(&mut file, &mut osts, 65 * MIB);
    assert_eq!(shape(&file), [(64, "init"), (192, "init"), (1 << 20, "extension"), (0, "")]);
    assert_eq!(file.components[1].extent.start, 64 * MIB);
    osts.has_room = [false; 4];
    write(&mut file, &mut osts, 193 * MIB);
    assert_eq!(shape(&file), [(64, "init"), (192, "init"), (0, "init")]);
    // A component that never got objects is removed.
    let mut file = make();
    write(&mut file, &mut osts, 1);
    assert_eq!(shape(&file), [(0, "init")]);
    assert_eq!(file.components[0].extent, Extent::WHOLE);
}

#[test]
fn the_last_component_goes_on_elsewhere_or_grows_all_the_same() {
    let mut osts = Osts::new([true; 4]);
    let mut file = layout(&[&growing(0, Extent::EOF, 1, 2)]);
    write(&mut file, &mut osts, 1);
    osts.has_room = [true, false, false, true];
    write(&mut file, &mut osts, 70 * MIB);
    assert_eq!(shape(&file), [(64, "init"), (128, "init"), (0, "extension")]);
    let indexes: Vec<u16> = file.components[1].objects.iter().map(|object| object.ost_index).collect();
    assert_eq!((file.components[1].id, indexes), (3, vec![0, 3]));
    assert_eq!(user::decode_layout(&user::encode_layout(&Fid::ZERO, &file)), Ok(file.clone()));
    osts.has_room = [false; 4];
    write(&mut file, &mut osts, 200 * MIB);
    assert_eq!(shape(&file), [(64, "init"), (256, "init"), (0, "extension")]);
    // As a specification it restarts where it grew last.
    let LayoutRequest::Composite(again) = file.to_request() else { panic!("composite") };
    let ends: Vec<u64> = again.iter().map(|c| c.extent.end).collect();
    assert_eq!(ends, [64 * MIB, 64 * MIB, Extent::EOF]);
}

#[test]
fn a_layout_without_room_for_a_copy_grows_where_it_is() {
    let mut osts = Osts::new([true; 4]);
    let parts: Vec<ComponentSpec> = (0..628)
        .flat_map(|at| fixed(at * MIB, (at + 1) * MIB, 1))
        .chain(growing(628 * MIB, Extent::EOF, 1, 1))
        .collect();
    let mut file = layout(&[&parts]);
    write(&mut file, &mut osts, 629 * MIB);
    let components = file.components.len();
    osts.has_room[0] = false;
    write(&mut file, &mut osts, 1 << 30);
    assert_eq!(file.components.len(), components);
    assert!(user::encode_layout(&Fid::ZERO, &file).len() <= nacre_types::limits::XATTR_VALUE_MAX);
}

#[test]
fn rules_of_components_that_grow_are_checked() {
    use crate::SpecError;
    let check = |parts: &[&[ComponentSpec]]| LayoutRequest::Composite(parts.concat()).check();
    let [own, room] = growing(0, Extent::EOF, 1, 1);
    assert_eq!(check(&[&[own.clone(), room.clone()]]), Ok(()));
    assert_eq!(check(&[std::slice::from_ref(&own)]), Err(SpecError::ZeroLength));
    assert_eq!(check(&[std::slice::from_ref(&room)]), Err(SpecError::ExtensionBehindBytes));
    assert_eq!(
        check(&[&fixed(0, MIB, 1), &growing(MIB, Extent::EOF, 1, 1)[1..]]),
        Err(SpecError::ExtensionBehindBytes)
    );
    let ended = Extent { start: 0, end: STEP };
    let rooms =
        [ComponentSpec { extent: ended, ..room.clone() }, growing(STEP, Extent::EOF, 1, 1)[1].clone()];
    assert_eq!(check(&[std::slice::from_ref(&own), &rooms]), Err(SpecError::ExtensionTwice));
    let on_mdt = ComponentSpec { spec: LayoutSpec::ON_MDT, ..own.clone() };
    assert_eq!(check(&[&[on_mdt, room.clone()]]), Err(SpecError::ExtensionOfMdt));
    let striped = spec(room.extent, ComponentFlags::EXTENSION, 65536, Some(2));
    assert_eq!(check(&[&[own.clone(), striped]]), Err(SpecError::ExtensionStriping));
    let uneven = spec(own.extent, ComponentFlags::default(), 3 * 65536, Some(1));
    assert_eq!(check(&[&[uneven, room.clone()]]), Err(SpecError::ExtensionUnaligned));
    let end = Extent { start: 0, end: 65536 * 17 };
    assert_eq!(
        check(&[&[own.clone(), ComponentSpec { extent: end, ..room.clone() }]]),
        Err(SpecError::EndUnaligned)
    );
    // Neither its beginning nor the unit of its step needs to fit its stripes.
    let (begin, [_, rest]) = (fixed(0, 65536, 1), growing(65536, 3 * STEP + MIB, 2, 1));
    let begin = ComponentSpec { spec: LayoutSpec::default(), ..begin[0].clone() };
    assert_eq!(check(&[&[begin], &growing(65536, 3 * STEP + MIB, 2, 1)[..1], &[rest]]), Ok(()));
    // An open stripe size becomes one that fits.
    let silent = ComponentSpec { spec: LayoutSpec::default(), ..own };
    let base = LayoutSpec { stripe_size: Some(3 * 65536), ..LayoutSpec::default() };
    let made = LayoutRequest::Composite(vec![silent, room]).to_layout(&base);
    assert_eq!((made.components[0].stripe_size, made.components[0].extent.end), (1 << 26, STEP));
}

#[test]
fn ids_are_found_again_when_the_last_is_in_use() {
    let mut file = layout(&[&growing(0, Extent::EOF, 1, 1)]);
    assert_eq!(file.free_id(), Some(3));
    file.components[1].id = ID_END - 1;
    assert_eq!(file.free_id(), Some(2));
}

prop_compose! {
    /// Any layout of components with and without extensions.
    fn any_layout()(
        parts in proptest::collection::vec((1u64..200, any::<bool>(), 1u64..3, 1u16..4), 1..5), open: bool,
    ) -> Layout {
        let mut start = 0;
        let last = parts.len() - 1;
        let mut all = Vec::new();
        for (place, (len, grows, steps, count)) in parts.into_iter().enumerate() {
            let end = if open && place == last { Extent::EOF } else { start + len * 3 * MIB };
            match grows {
                true => all.extend(growing(start, end, steps, count)),
                false => all.extend(fixed(start, end, count)),
            }
            start = end;
        }
        LayoutRequest::Composite(all).to_layout(&LayoutSpec::default())
    }
}

/// Changes of a file: a kind, an offset and a length in KiB, and which OSTs have free space.
fn any_steps() -> impl Strategy<Value = Vec<(u8, u64, u64, [bool; 4])>> {
    proptest::collection::vec((0u8..4, 0u64..2_000_000, 1u64..300, any::<[bool; 4]>()), 1..24)
}

/// A file in objects and the same file in one piece, in blocks of 64 KiB.
#[derive(Default)]
struct Both {
    flat: BTreeMap<u64, u32>,
    objects: HashMap<(Fid, u64), u32>,
}

const BLOCK: u64 = 65536;

impl Both {
    fn write(&mut self, layout: &Layout, (start, end): (u64, u64), value: u32) {
        for at in (start..end).step_by(BLOCK as usize) {
            let chunk = chunks(layout, at, BLOCK).next().expect("inside");
            let object = chunk.object.expect("it has objects");
            assert_eq!(chunk.len, BLOCK);
            self.flat.insert(at, value);
            self.objects.insert((object.object, chunk.object_offset), value);
        }
    }

    fn truncate(&mut self, layout: &Layout, size: u64) {
        self.flat.retain(|at, _| *at < size);
        for (object, size) in object_sizes(layout, size) {
            self.objects.retain(|(fid, at), _| *fid != object.object || *at < size);
        }
    }

    fn punch(&mut self, layout: &Layout, (start, end): (u64, u64)) {
        self.flat.retain(|at, _| *at < start || *at >= end);
        for range in object_ranges(layout, start, end) {
            let inside = |at: u64| range.start <= at && at < range.end;
            self.objects.retain(|(fid, at), _| *fid != range.stripe.object || !inside(*at));
        }
    }

    fn check(&self, layout: &Layout) {
        let mut found = 0;
        for (at, value) in &self.flat {
            let chunk = chunks(layout, *at, BLOCK).next().expect("inside");
            let object = chunk.object.expect("data has an object").object;
            assert_eq!(self.objects.get(&(object, chunk.object_offset)), Some(value), "at {at}");
            found += 1;
        }
        assert_eq!(self.objects.len(), found, "nothing else is there");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn whatever_is_written_a_growing_file_holds_it(file in any_layout(), steps in any_steps()) {
        let mut file = file;
        let (form, whole) = (file.form, file.end());
        prop_assert!(form == LayoutForm::Composite && file.is_sound());
        let (mut osts, mut both) = (Osts::new([true; 4]), Both::default());
        for (number, (kind, offset_kib, len_blocks, has_room)) in steps.into_iter().enumerate() {
            osts.has_room = has_room;
            let start = (offset_kib * 1024 / BLOCK * BLOCK).min(whole.saturating_sub(BLOCK));
            let end = (start + len_blocks * BLOCK).min(whole);
            let before = file.clone();
            match kind {
                0 | 1 => {
                    write(&mut file, &mut osts, end);
                    both.write(&file, (start, end), number as u32 + 1);
                }
                2 => {
                    write(&mut file, &mut osts, (start + 1).min(whole));
                    both.truncate(&file, start);
                }
                _ => both.punch(&file, (start, end)),
            }
            both.check(&file);
            prop_assert_eq!(file.end(), whole);
            prop_assert!(file.components.iter().all(|c| c.pattern == Pattern::Raid0));
            // A byte with an object keeps it, and growth is in whole steps of whole stripes.
            for (place, c) in file.components.iter().enumerate() {
                let old = before.components.iter().find(|old| old.id == c.id && old.is_instantiated());
                if let Some(old) = old {
                    prop_assert_eq!(&old.objects, &c.objects);
                    prop_assert!(old.extent.start == c.extent.start && old.extent.end <= c.extent.end);
                }
                if file.grows(place) && !c.extent.is_empty() {
                    prop_assert_eq!((c.extent.end - c.extent.start) % STEP, 0);
                }
            }
            prop_assert!(before.objects().all(|object| file.objects().any(|kept| kept == object)));
            let bytes = user::encode_layout(&Fid::ZERO, &file);
            prop_assert_eq!(user::decode_layout(&bytes), Ok(file.clone()));
            let again = user::decode_request(&bytes).expect("a shape that can be asked for");
            prop_assert_eq!(again.check(), Ok(()));
        }
    }
}
