//! Layout specifications with any number of components, their defaults and their rules.

use crate::layout::StripeObject;
use crate::layout::{
    Component, ComponentFlags, EXTENSION_UNIT, Extent, Layout, LayoutForm, Pattern, stripes_per_ost,
};
use crate::pool::PoolName;
use crate::spec::{LayoutSpec, MDT_SIZE_MAX, SpecError};
use crate::user;
use nacre_types::limits::{STRIPE_COUNT_MAX, STRIPE_SIZE_DEFAULT, STRIPE_SIZE_MIN, XATTR_VALUE_MAX};
use std::cmp::Ordering;

/// Specification of one component of a composite layout.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ComponentSpec {
    /// Range of file offsets.
    pub extent: Extent,
    /// Requested flags; never [`ComponentFlags::INIT`].
    pub flags: ComponentFlags,
    /// Requested striping.
    pub spec: LayoutSpec,
}

/// A layout specification.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LayoutRequest {
    /// One striping for the whole file.
    Plain(LayoutSpec),
    /// Components in order, at least one.
    Composite(Vec<ComponentSpec>),
}

impl Default for LayoutRequest {
    fn default() -> LayoutRequest {
        LayoutRequest::Plain(LayoutSpec::default())
    }
}

impl LayoutRequest {
    /// Checks every rule that does not depend on inherited values.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn check(&self) -> Result<(), SpecError> {
        let components = match self {
            LayoutRequest::Plain(spec) if spec.pattern == Pattern::Mdt => return Err(SpecError::MdtStriping),
            LayoutRequest::Plain(spec) => return spec.check(),
            LayoutRequest::Composite(components) => components,
        };
        if components.first().ok_or(SpecError::NoComponents)?.extent.start != 0 {
            return Err(SpecError::Start);
        }
        let mut reached = 0;
        for (place, component) in components.iter().enumerate() {
            let ComponentSpec { extent, spec, .. } = component;
            if extent.start != reached {
                return Err(SpecError::NotAdjacent);
            }
            let next = components.get(place + 1);
            match extent.end.cmp(&extent.start) {
                Ordering::Less => return Err(SpecError::EndBeforeStart),
                Ordering::Equal if component.is_extension() => return Err(SpecError::EndBeforeStart),
                Ordering::Equal if !next.is_some_and(ComponentSpec::is_extension) => {
                    return Err(SpecError::ZeroLength);
                }
                _ => {}
            }
            spec.check()?;
            if component.is_extension() {
                check_extension(component, place.checked_sub(1).and_then(|before| components.get(before)))?;
            }
            if spec.pattern == Pattern::Mdt {
                match (extent.start, extent.end) {
                    (0, ..=MDT_SIZE_MAX) => {}
                    (0, end) => return Err(SpecError::MdtSize(end)),
                    _ => return Err(SpecError::MdtNotFirst),
                }
            }
            let unit = u64::from(spec.stripe_size.unwrap_or(STRIPE_SIZE_MIN));
            let has_end = extent.end != Extent::EOF && !extent.is_empty() && !component.is_extension();
            if has_end && !extent.end.is_multiple_of(unit) {
                return Err(SpecError::EndUnaligned);
            }
            reached = extent.end;
        }
        match self.size_with_objects() {
            size if size > XATTR_VALUE_MAX => Err(SpecError::TooLarge(size)),
            _ => Ok(()),
        }
    }

    /// Returns the bytes of the layout when all components have as many objects as they request ("all" and
    /// "the default" count as one).
    fn size_with_objects(&self) -> usize {
        let stripes = |spec: &LayoutSpec| match spec.stripe_count {
            _ if spec.pattern == Pattern::Mdt => 0,
            _ if !spec.osts.is_empty() => spec.osts.len(),
            Some(count) if stripes_per_ost(count).is_none() => usize::from(count),
            _ => 1,
        };
        let has_pool = |spec: &LayoutSpec| spec.pool.is_some() || !spec.osts.is_empty();
        match self {
            LayoutRequest::Plain(spec) => user::plain_len(has_pool(spec), stripes(spec)),
            LayoutRequest::Composite(components) => {
                let stripes = |c: &ComponentSpec| if c.is_extension() { 0 } else { stripes(&c.spec) };
                let each = components.iter().map(|c| user::plain_len(has_pool(&c.spec), stripes(c)));
                user::composite_len(each)
            }
        }
    }

    /// Returns true if nothing is specified: setting this on a directory removes its default.
    pub fn is_empty(&self) -> bool {
        matches!(self, LayoutRequest::Plain(spec) if spec.is_empty())
    }

    /// Returns the striping of each component.
    pub fn specs(&self) -> impl Iterator<Item = &LayoutSpec> {
        let (plain, components) = match self {
            LayoutRequest::Plain(spec) => (Some(spec), &[][..]),
            LayoutRequest::Composite(components) => (None, components.as_slice()),
        };
        plain.into_iter().chain(components.iter().map(|component| &component.spec))
    }

    /// Completes this specification with `base` where it leaves fields open. Where a stripe size of `base`
    /// does not fit a component's end, the size stays open.
    pub fn or(self, base: &LayoutSpec) -> LayoutRequest {
        match self {
            LayoutRequest::Plain(spec) => LayoutRequest::Plain(spec.or(base)),
            LayoutRequest::Composite(mut components) => {
                for place in 0..components.len() {
                    let (ends, component) = (ends(&components, place), &mut components[place]);
                    if component.is_extension() {
                        continue;
                    }
                    let fits = |size: &u32| fitting_stripe_size(*size, &ends) == *size;
                    let base = LayoutSpec { stripe_size: base.stripe_size.filter(fits), ..base.clone() };
                    component.spec = component.spec.or(&base);
                }
                LayoutRequest::Composite(components)
            }
        }
    }

    /// Returns this specification, with `pool` where it names none.
    pub fn with_pool(mut self, pool: Option<PoolName>) -> LayoutRequest {
        match &mut self {
            LayoutRequest::Plain(spec) => spec.pool = spec.pool.or(pool),
            LayoutRequest::Composite(components) => {
                let striped = components.iter_mut().filter(|c| c.is_striped());
                striped.for_each(|c| c.spec.pool = c.spec.pool.or(pool));
            }
        }
        self
    }

    /// Returns the striping that others inherit: its own, or that of its first component with stripes. A
    /// first OST applies to the file created with the specification and is not inherited.
    pub fn inherited(&self) -> LayoutSpec {
        let spec = match self {
            LayoutRequest::Plain(spec) => spec.clone(),
            LayoutRequest::Composite(components) => {
                let striped = components.iter().find(|c| c.is_striped());
                striped.map_or(LayoutSpec::default(), |c| c.spec.clone())
            }
        };
        LayoutSpec { first_ost: None, osts: Vec::new(), ..spec }
    }

    /// Returns the initial layout of a file with this specification, without objects. Open fields come from
    /// `base`, then from the built-in defaults.
    ///
    /// Ids of components count from 1 and the generation begins with their number, as if each had been added
    /// separately.
    pub fn to_layout(&self, base: &LayoutSpec) -> Layout {
        let components = match self {
            LayoutRequest::Plain(spec) => return spec.or(base).to_layout(),
            LayoutRequest::Composite(components) => components,
        };
        let mut layout = Layout {
            form: LayoutForm::Composite,
            generation: 0,
            components: (0..components.len()).map(|place| component_of(components, place, base)).collect(),
        };
        layout.let_first_begin();
        for (id, component) in (1..).zip(&mut layout.components) {
            component.id = id;
        }
        layout.generation = layout.components.len() as u32;
        layout
    }
}

impl ComponentSpec {
    /// Returns true for an extension, into which the component before it grows.
    pub fn is_extension(&self) -> bool {
        self.flags.contains(ComponentFlags::EXTENSION)
    }

    /// Returns true for a component that has, or will have, stripes.
    fn is_striped(&self) -> bool {
        self.spec.pattern != Pattern::Mdt && !self.is_extension()
    }

    /// Returns the bytes by which the component before grows; `None` if this is not an extension.
    fn extension_size(&self) -> Option<u64> {
        self.is_extension().then(|| u64::from(self.spec.stripe_size.unwrap_or(0)) * EXTENSION_UNIT)
    }
}

/// Resets components that grow to their initial state: how far they have grown belongs to one file.
pub fn begin_again(components: &mut [ComponentSpec]) {
    for place in 1..components.len() {
        let (before, rest) = components.split_at_mut(place);
        if let (Some(before), Some(extension)) = (before.last_mut(), rest.first_mut())
            && extension.is_extension()
            && !before.is_extension()
        {
            before.extent.end = before.extent.start;
            extension.extent.start = before.extent.start;
        }
    }
}

/// Checks an extension behind `before`.
fn check_extension(extension: &ComponentSpec, before: Option<&ComponentSpec>) -> Result<(), SpecError> {
    let Some(before) = before else { return Err(SpecError::ExtensionBehindBytes) };
    if before.is_extension() {
        return Err(SpecError::ExtensionTwice);
    }
    if before.spec.pattern == Pattern::Mdt || extension.spec.pattern == Pattern::Mdt {
        return Err(SpecError::ExtensionOfMdt);
    }
    if !before.extent.is_empty() {
        return Err(SpecError::ExtensionBehindBytes);
    }
    let step = LayoutSpec { stripe_size: extension.spec.stripe_size, ..LayoutSpec::default() };
    if extension.spec != step || step.stripe_size.is_none() {
        return Err(SpecError::ExtensionStriping);
    }
    let unit = u64::from(before.spec.stripe_size.unwrap_or(STRIPE_SIZE_MIN));
    if !extension.extension_size().unwrap_or(0).is_multiple_of(unit) {
        return Err(SpecError::ExtensionUnaligned);
    }
    if extension.extent.end != Extent::EOF && !extension.extent.end.is_multiple_of(unit) {
        return Err(SpecError::EndUnaligned);
    }
    Ok(())
}

/// Returns the offsets that the stripe size of a component has to divide: its end, or the step and the end of
/// its extension.
fn ends(components: &[ComponentSpec], place: usize) -> Vec<u64> {
    let next = components.get(place + 1).filter(|next| next.is_extension());
    let end = next.unwrap_or(&components[place]).extent.end;
    next.and_then(ComponentSpec::extension_size).into_iter().chain([end]).collect()
}

/// Builds the component at `place` of a layout from the specification, completed by `base`; its id is not set
/// yet.
fn component_of(components: &[ComponentSpec], place: usize, base: &LayoutSpec) -> Component {
    let requested = &components[place];
    let spec = match requested.is_extension() {
        true => requested.spec.clone(),
        false => requested.spec.or(&LayoutSpec { first_ost: None, ..base.clone() }),
    };
    let (stripe_size, stripe_count) = match spec.pattern {
        Pattern::Mdt => (requested.extent.end as u32, 0),
        _ if requested.is_extension() => (spec.stripe_size.unwrap_or(0), 0),
        _ => {
            let wanted = spec.stripe_size.unwrap_or(STRIPE_SIZE_DEFAULT);
            (fitting_stripe_size(wanted, &ends(components, place)), spec.stripe_count.unwrap_or(1))
        }
    };
    Component {
        id: 0,
        extent: requested.extent,
        flags: requested.flags & ComponentFlags::REQUESTABLE,
        pattern: spec.pattern,
        stripe_size,
        stripe_count,
        first_ost: spec.first_ost,
        pool: spec.real_pool(),
        osts: spec.osts,
        generation: 0,
        objects: Vec::new(),
    }
}

/// Returns the stripe size of a component: `wanted`, or if one of `ends` would be within a stripe, the
/// largest power of two that divides them all (at least 64 KiB, since ends are multiples of that).
pub fn fitting_stripe_size(wanted: u32, ends: &[u64]) -> u32 {
    let ends = ends.iter().filter(|end| **end != Extent::EOF);
    if wanted == 0 || ends.clone().all(|end| end.is_multiple_of(u64::from(wanted))) {
        return wanted;
    }
    1 << ends.map(|end| end.trailing_zeros()).fold(31, u32::min)
}

impl Layout {
    /// Returns the specification that would create such a layout, without the choices of the MDT.
    pub fn to_request(&self) -> LayoutRequest {
        let spec = |component: &Component| match component.pattern {
            Pattern::Mdt => LayoutSpec::ON_MDT,
            _ if component.is_extension() => {
                LayoutSpec { stripe_size: Some(component.stripe_size), ..LayoutSpec::default() }
            }
            pattern => LayoutSpec {
                stripe_size: Some(component.stripe_size),
                stripe_count: Some(component.stripe_count).filter(|count| *count != 0),
                first_ost: component.first_ost.filter(|_| !component.is_instantiated()),
                pool: component.pool,
                pattern,
                osts: component.osts.clone(),
            },
        };
        match (self.form, self.components.as_slice()) {
            (LayoutForm::Plain, [only]) => LayoutRequest::Plain(spec(only)),
            (_, components) => {
                let part = |c: &Component| ComponentSpec {
                    extent: c.extent,
                    flags: c.flags & ComponentFlags::REQUESTABLE,
                    spec: spec(c),
                };
                let mut parts: Vec<ComponentSpec> = components.iter().map(part).collect();
                begin_again(&mut parts);
                LayoutRequest::Composite(parts)
            }
        }
    }

    /// Returns the number of stripes that the component at `place` may get, so that the layout still fits an
    /// attribute value when the other components without objects get one for each stripe they request ("all"
    /// counts as one).
    pub fn stripes_that_fit(&self, place: usize) -> u16 {
        if self.form == LayoutForm::Plain {
            return STRIPE_COUNT_MAX;
        }
        let stripes = |(other, component): (usize, &Component)| {
            let count = match component.is_instantiated() {
                _ if other == place || component.pattern == Pattern::Mdt || component.is_extension() => 0,
                true => component.objects.len(),
                false if stripes_per_ost(component.stripe_count).is_some() => 1,
                false => usize::from(component.stripe_count),
            };
            user::plain_len(component.pool.is_some() || !component.osts.is_empty(), count)
        };
        let taken = user::composite_len(self.components.iter().enumerate().map(stripes));
        let room = XATTR_VALUE_MAX.saturating_sub(taken) / user::OBJECT_LEN;
        room.min(usize::from(STRIPE_COUNT_MAX)) as u16
    }

    /// Returns true for a layout that can be used; checked wherever a layout is received: components in order
    /// without gap from 0, numbers within the range of stripe arithmetic, objects where the flags say so.
    pub fn is_sound(&self) -> bool {
        let mut reached = 0;
        let sound = |place: usize, c: &Component| {
            (c.extent.start < c.extent.end || (c.extent.is_empty() && self.grows(place)))
                && (!c.is_extension() || self.is_sound_extension(place))
                && c.stripe_size != 0
                && c.stripe_size.is_multiple_of(STRIPE_SIZE_MIN)
                && c.is_instantiated() != c.objects.is_empty()
                && (c.osts.is_empty() || !c.is_instantiated())
                && match c.pattern {
                    Pattern::Raid0 | Pattern::Overstriped => {
                        c.objects.iter().all(|object| !object.is_on_mdt())
                            && (!c.is_instantiated() || c.objects.len() == usize::from(c.stripe_count))
                    }
                    Pattern::Mdt => {
                        c.extent.start == 0
                            && c.extent.end == u64::from(c.stripe_size)
                            && c.extent.end <= MDT_SIZE_MAX
                            && c.stripe_count == 0
                            && c.objects.len() <= 1
                            && c.objects.iter().all(|object| *object == StripeObject::on_mdt(object.object))
                            && self.form == LayoutForm::Composite
                    }
                }
        };
        !self.components.is_empty()
            && self.components.iter().enumerate().all(|(place, c)| {
                let follows = c.extent.start == reached;
                reached = c.extent.end;
                follows && sound(place, c)
            })
    }

    fn is_sound_extension(&self, place: usize) -> bool {
        let (before, own) =
            (place.checked_sub(1).map(|before| &self.components[before]), &self.components[place]);
        before.is_some_and(|before| !before.is_extension() && before.pattern != Pattern::Mdt)
            && !own.extent.is_empty()
            && !own.is_instantiated()
            && (own.pattern, own.stripe_count) == (Pattern::Raid0, 0)
            && own.pool.is_none()
            && own.osts.is_empty()
            && own.first_ost.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::STRIPE_COUNT_ALL;

    const MIB: u64 = 1 << 20;

    fn part(start: u64, end: u64, spec: LayoutSpec) -> ComponentSpec {
        ComponentSpec { extent: Extent { start, end }, flags: ComponentFlags::default(), spec }
    }

    #[test]
    fn rules_of_composite_layouts_are_checked() {
        let none = LayoutSpec::default();
        let check = |parts: &[(u64, u64)]| {
            LayoutRequest::Composite(
                parts.iter().map(|(start, end)| part(*start, *end, none.clone())).collect(),
            )
            .check()
        };
        assert_eq!(check(&[(0, 4 * MIB), (4 * MIB, Extent::EOF)]), Ok(()));
        assert_eq!(check(&[(0, 4 * MIB)]), Ok(()), "files may end where their last component ends");
        assert_eq!(check(&[]), Err(SpecError::NoComponents));
        assert_eq!(check(&[(MIB, 4 * MIB)]), Err(SpecError::Start));
        assert_eq!(check(&[(0, MIB), (2 * MIB, 4 * MIB)]), Err(SpecError::NotAdjacent));
        assert_eq!(check(&[(0, 2 * MIB), (2 * MIB, MIB)]), Err(SpecError::EndBeforeStart));
        assert_eq!(check(&[(0, 100)]), Err(SpecError::EndUnaligned));
        let large = LayoutSpec { stripe_size: Some(8 << 20), ..none.clone() };
        assert_eq!(
            LayoutRequest::Composite(vec![part(0, 4 * MIB, large)]).check(),
            Err(SpecError::EndUnaligned)
        );
        let wide = |count| LayoutSpec { stripe_count: Some(count), ..none.clone() };
        let three = |count| {
            let ends = [(0, MIB), (MIB, 2 * MIB), (2 * MIB, Extent::EOF)];
            LayoutRequest::Composite(
                ends.iter().map(|(start, end)| part(*start, *end, wide(count))).collect(),
            )
            .check()
        };
        assert!(matches!(three(2000), Err(SpecError::TooLarge(_))));
        assert_eq!(three(STRIPE_COUNT_ALL), Ok(()));
        let many = |count: u64| (0..count).map(|i| (i * MIB, (i + 1) * MIB)).collect::<Vec<_>>();
        assert_eq!(check(&many(500)), Ok(()));
        assert!(matches!(check(&many(700)), Err(SpecError::TooLarge(_))));
    }

    #[test]
    fn what_is_not_said_comes_from_the_base_and_stripe_sizes_fit_the_end() {
        let base = LayoutSpec { stripe_count: Some(3), first_ost: Some(1), ..LayoutSpec::default() };
        let own = LayoutSpec { stripe_size: Some(65536), first_ost: Some(2), ..LayoutSpec::default() };
        let requested =
            LayoutRequest::Composite(vec![part(0, MIB, LayoutSpec::default()), part(MIB, Extent::EOF, own)]);
        let layout = requested.to_layout(&base);
        let [first, second] = layout.components.as_slice() else { panic!("two") };
        assert_eq!((first.id, first.stripe_size, first.stripe_count, first.first_ost), (1, 1 << 20, 3, None));
        assert_eq!((second.id, second.stripe_size, second.first_ost), (2, 65536, Some(2)));
        assert_eq!((layout.generation, layout.end()), (2, Extent::EOF));
        assert_eq!(fitting_stripe_size(3 * 65536, &[1 << 40]), 1 << 31);
        assert_eq!(requested.inherited(), LayoutSpec::default());
    }

    #[test]
    fn data_on_an_mdt_comes_first_has_an_end_and_nothing_of_osts() {
        let on_mdt = LayoutSpec::ON_MDT;
        let place = |start, end| part(start, end, LayoutSpec::ON_MDT);
        let check = |parts: Vec<ComponentSpec>| LayoutRequest::Composite(parts).check();
        let rest = |start| part(start, Extent::EOF, LayoutSpec::default());
        assert_eq!(check(vec![place(0, MIB), rest(MIB)]), Ok(()));
        assert_eq!(check(vec![place(0, MDT_SIZE_MAX)]), Ok(()));
        assert_eq!(check(vec![place(0, 2 << 30), rest(2 << 30)]), Err(SpecError::MdtSize(2 << 30)));
        assert_eq!(check(vec![place(0, Extent::EOF)]), Err(SpecError::MdtSize(Extent::EOF)));
        let second = vec![part(0, MIB, LayoutSpec::default()), place(MIB, 2 * MIB)];
        assert_eq!(check(second), Err(SpecError::MdtNotFirst));
        let striped = LayoutSpec { stripe_count: Some(2), ..LayoutSpec::ON_MDT };
        assert_eq!(check(vec![part(0, MIB, striped)]), Err(SpecError::MdtStriping));
        assert_eq!(LayoutRequest::Plain(LayoutSpec::ON_MDT).check(), Err(SpecError::MdtStriping));
        // A specification without fields inherits the stripe count, not the first OST.
        let wide = LayoutSpec { stripe_count: Some(4), ..LayoutSpec::default() };
        let requested = LayoutRequest::Composite(vec![place(0, MIB), part(MIB, Extent::EOF, wide.clone())]);
        assert_eq!(requested.inherited(), wide);
        assert_eq!(requested.to_layout(&LayoutSpec::default()).to_request().specs().next(), Some(&on_mdt));
    }

    #[test]
    fn a_layout_never_outgrows_what_an_attribute_can_hold() {
        let all = LayoutSpec { stripe_count: Some(STRIPE_COUNT_ALL), ..LayoutSpec::default() };
        let ends = [(0, MIB), (MIB, 2 * MIB), (2 * MIB, Extent::EOF)];
        let requested = LayoutRequest::Composite(
            ends.iter().map(|(start, end)| part(*start, *end, all.clone())).collect(),
        );
        let mut layout = requested.to_layout(&LayoutSpec::default());
        for place in 0..3 {
            let count = layout.stripes_that_fit(place).min(1900);
            let object = |i| crate::StripeObject::new(i, nacre_types::Fid::ost_object(i, 1));
            layout.instantiate(place, (0..count).map(object).collect());
        }
        let counts: Vec<usize> = layout.components.iter().map(|c| c.objects.len()).collect();
        assert_eq!(counts, [1900, 818, 1]);
        assert!(user::encode_layout(&nacre_types::Fid::ZERO, &layout).len() <= XATTR_VALUE_MAX);
    }
}
