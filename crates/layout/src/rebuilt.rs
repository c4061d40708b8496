//! Layouts rebuilt from what OSTs know: the place of each object in its file.

use crate::layout::{Component, ComponentFlags, Extent, Layout, LayoutForm, Pattern, StripeObject};
use nacre_types::limits::STRIPE_SIZE_MIN;
use nacre_types::{Fid, ObjectPlace};
use std::collections::BTreeMap;

impl Layout {
    /// Returns the place of an object of this layout, which is that of `file`; `None` for other objects and for those
    /// on MDTs, which have the FID of their file.
    pub fn place_of(&self, file: Fid, object: &Fid) -> Option<ObjectPlace> {
        self.components.iter().find_map(|component| {
            let is_it = |stripe: &StripeObject| stripe.object == *object && !stripe.is_on_mdt();
            let stripe = component.objects.iter().position(is_it)?;
            Some(ObjectPlace {
                file,
                component: component.id,
                start: component.extent.start,
                end: component.extent.end,
                stripe_size: component.stripe_size,
                stripe_count: component.objects.len() as u16,
                stripe: stripe as u16,
            })
        })
    }

    /// Rebuilds the layout of a file from its objects and their places. `missing` returns an object that takes the
    /// place of one that was never written; `None` if there can be none. Returns the layout, and the objects that
    /// have no place in it because they contradict others.
    pub fn rebuilt(
        found: &[(StripeObject, ObjectPlace)],
        missing: &mut dyn FnMut(&[u16]) -> Option<StripeObject>,
    ) -> (Option<Layout>, Vec<StripeObject>) {
        let mut components: BTreeMap<u64, Component> = BTreeMap::new();
        let mut holes: BTreeMap<u64, Vec<Option<StripeObject>>> = BTreeMap::new();
        let mut left = Vec::new();
        for (object, place) in found {
            let component = components.entry(place.start).or_insert_with(|| component_of(place));
            // A component may have grown since an object of it was written.
            component.extent.end = component.extent.end.max(place.end);
            let same = component.id == place.component
                && component.stripe_size == place.stripe_size
                && component.stripe_count == place.stripe_count;
            let stripes = holes.entry(place.start).or_insert_with(|| vec![None; place.stripe_count.into()]);
            match stripes.get_mut(usize::from(place.stripe)) {
                Some(slot @ None) if same => *slot = Some(StripeObject { written: true, ..*object }),
                _ => left.push(*object),
            }
        }
        let mut layout = Layout { form: LayoutForm::Composite, generation: 1, components: Vec::new() };
        let mut end = 0;
        let mut next_id = components.values().map(|component| component.id).max().unwrap_or(0) + 1;
        for (start, mut component) in components {
            let stripes = holes.remove(&start).unwrap_or_default();
            let known: Vec<u16> = stripes.iter().flatten().map(|object| object.ost_index).collect();
            let filled: Option<Vec<StripeObject>> =
                stripes.iter().map(|stripe| stripe.or_else(|| missing(&known))).collect();
            let Some(objects) = filled.filter(|_| start >= end) else {
                left.extend(stripes.into_iter().flatten());
                continue;
            };
            if start > end {
                // Components that were never written have no objects that know of them.
                let extent = Extent { start: end, end: start };
                layout.components.push(Component { id: next_id, extent, ..unwritten(&component) });
                next_id += 1;
            }
            end = component.extent.end;
            let generation = component.generation;
            component.flags -= ComponentFlags::INIT;
            layout.components.push(component);
            layout.instantiate(layout.components.len() - 1, objects);
            if let Some(last) = layout.components.last_mut() {
                last.generation = generation;
            }
        }
        if let [only] = &mut layout.components[..]
            && only.extent == Extent::WHOLE
        {
            (layout.form, only.id) = (LayoutForm::Plain, 0);
        } else if let Some(last) = layout.components.last()
            && end != Extent::EOF
        {
            let extent = Extent { start: end, end: Extent::EOF };
            let rest = Component { id: next_id, extent, ..unwritten(last) };
            layout.components.push(rest);
        }
        ((!layout.components.is_empty()).then_some(layout), left)
    }
}

/// Default stripe size of a rebuilt component without objects, and size of a rebuilt head.
const DEFAULT_BYTES: u32 = 1 << 20;

/// Adds the object on an MDT, with `size` bytes, to a layout rebuilt from objects on OSTs, before them.
pub fn with_head(layout: Option<Layout>, object: Fid, size: u64) -> Layout {
    let mut components = layout.map_or_else(Vec::new, |layout| layout.components);
    // The part before the first object on an OST.
    let gap = components.first().filter(|first| !first.is_instantiated()).map(|first| first.extent.end);
    if gap.is_some() {
        components.remove(0);
    }
    let step = u64::from(STRIPE_SIZE_MIN);
    let least = size.max(u64::from(DEFAULT_BYTES)).next_multiple_of(step);
    let end = gap.filter(|end| *end != Extent::EOF).unwrap_or(least);
    let mut next_id = components.iter().map(|component| component.id).max().unwrap_or(0) + 1;
    let place =
        ObjectPlace { file: object, start: 0, end, stripe_size: end as u32, ..ObjectPlace::default() };
    let head = Component {
        id: next_id,
        flags: ComponentFlags::INIT,
        pattern: Pattern::Mdt,
        objects: vec![StripeObject::on_mdt(object)],
        ..component_of(&place)
    };
    if components.is_empty() {
        next_id += 1;
        let (start, end, stripe_size) = (end, Extent::EOF, DEFAULT_BYTES);
        let place = ObjectPlace { start, end, stripe_size, stripe_count: 1, ..place };
        components.push(Component { id: next_id, ..component_of(&place) });
    }
    components.insert(0, head);
    Layout { form: LayoutForm::Composite, generation: 1, components }
}

fn component_of(place: &ObjectPlace) -> Component {
    Component {
        id: place.component,
        extent: Extent { start: place.start, end: place.end },
        flags: ComponentFlags::empty(),
        pattern: Pattern::Raid0,
        stripe_size: place.stripe_size,
        stripe_count: place.stripe_count,
        first_ost: None,
        pool: None,
        osts: Vec::new(),
        generation: 0,
        objects: Vec::new(),
    }
}

/// Returns a component without objects, striped as another one.
fn unwritten(like: &Component) -> Component {
    Component {
        flags: ComponentFlags::empty(),
        first_ost: None,
        stripe_count: 1,
        objects: Vec::new(),
        pattern: Pattern::Raid0,
        ..like.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::user;

    const FILE: Fid = Fid::new(0x2_0000_0401, 3, 0);

    fn component(id: u32, extent: Extent, osts: &[u16]) -> Component {
        let objects = osts.iter().map(|ost| StripeObject {
            written: true,
            ..StripeObject::new(*ost, Fid::ost_object(*ost, id + 10))
        });
        let place = ObjectPlace {
            file: FILE,
            component: id,
            start: extent.start,
            end: extent.end,
            stripe_size: 1 << 16,
            stripe_count: osts.len() as u16,
            stripe: 0,
        };
        Component {
            flags: ComponentFlags::INIT,
            first_ost: osts.first().copied(),
            objects: objects.collect(),
            ..component_of(&place)
        }
    }

    fn places(layout: &Layout) -> Vec<(StripeObject, ObjectPlace)> {
        let place =
            |stripe: &StripeObject| layout.place_of(FILE, &stripe.object).map(|place| (*stripe, place));
        layout.objects().filter_map(place).collect()
    }

    #[test]
    fn a_layout_is_rebuilt_from_the_places_of_its_objects() {
        let plain = Layout {
            form: LayoutForm::Plain,
            generation: 1,
            components: vec![component(0, Extent::WHOLE, &[0, 1, 2])],
        };
        let mut reversed = places(&plain);
        reversed.reverse();
        let (found, left) = Layout::rebuilt(&reversed, &mut |_| None);
        assert_eq!((found, left), (Some(plain), Vec::new()));
        let composite = Layout {
            form: LayoutForm::Composite,
            generation: 1,
            components: vec![
                component(1, Extent { start: 0, end: 1 << 20 }, &[2]),
                component(2, Extent { start: 1 << 20, end: Extent::EOF }, &[1, 0]),
            ],
        };
        let (found, left) = Layout::rebuilt(&places(&composite), &mut |_| None);
        assert_eq!((found.as_ref(), left.len()), (Some(&composite), 0));
        let bytes = user::encode_layout(&FILE, &composite);
        assert_eq!(user::decode_layout(&bytes), Ok(composite));
    }

    #[test]
    fn data_on_an_mdt_becomes_the_head() {
        let object = Fid { ver: 2, ..FILE };
        let small = with_head(None, object, 4000);
        assert_eq!((small.components.len(), small.object_on_mdt().map(|it| it.object)), (2, Some(object)));
        let bytes = user::encode_layout(&FILE, &small);
        assert_eq!(user::decode_layout(&bytes), Ok(small));
        let rest = component(2, Extent { start: 1 << 17, end: Extent::EOF }, &[1, 0]);
        let whole = Layout { form: LayoutForm::Composite, generation: 1, components: vec![rest] };
        let (found, _) = Layout::rebuilt(&places(&whole), &mut |_| None);
        let both = with_head(found, object, 1 << 17);
        let ends: Vec<u64> = both.components.iter().map(|component| component.extent.end).collect();
        assert_eq!(ends, [1 << 17, Extent::EOF]);
        let bytes = user::encode_layout(&FILE, &both);
        assert_eq!(user::decode_layout(&bytes), Ok(both));
    }

    #[test]
    fn objects_that_were_never_written_are_replaced_and_contradictions_are_left_over() {
        let layout = Layout {
            form: LayoutForm::Composite,
            generation: 1,
            components: vec![
                component(1, Extent { start: 0, end: 1 << 20 }, &[2]),
                component(2, Extent { start: 1 << 20, end: 1 << 24 }, &[1, 0]),
            ],
        };
        let mut found = places(&layout);
        found.remove(0);
        let second = found.remove(0);
        let twin = StripeObject::new(0, Fid::ost_object(0, 99));
        found.push((twin, found[0].1));
        let new = StripeObject::new(1, Fid::ost_object(1, 77));
        let (rebuilt, left) = Layout::rebuilt(&found, &mut |known| (known == [0]).then_some(new));
        let rebuilt = rebuilt.expect("a layout");
        assert_eq!(left, [twin]);
        assert_eq!(rebuilt.components[1].objects[0], new);
        assert_ne!(rebuilt.components[1].objects[0], second.0);
        let extents: Vec<_> = rebuilt.components.iter().map(|component| component.extent).collect();
        let bounds = [(0, 1 << 20), (1 << 20, 1 << 24), (1 << 24, Extent::EOF)];
        assert_eq!(extents, bounds.map(|(start, end)| Extent { start, end }));
        let bytes = user::encode_layout(&FILE, &rebuilt);
        assert_eq!(user::decode_layout(&bytes), Ok(rebuilt));
        let (none, left) = Layout::rebuilt(&found, &mut |_| None);
        assert_eq!((none, left.len()), (None, 2), "a stripe is missing and nothing can replace it");
    }
}
