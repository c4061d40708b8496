//! Self-extending layouts (SEL): components grow as long as their OSTs have free space. Pure.
//!
//! A component that grows is followed by an *extension*, the range of the file that it does not cover yet. A
//! write or truncation that reaches into the extension moves the border by steps, if each OST of the
//! component has free space for its share of a step. Otherwise the rest of the file is placed elsewhere:
//!
//! | behind the extension | what happens |
//! | --- | --- |
//! | another component | it begins where this one ends (*spill over*); without objects this one is removed |
//! | nothing, and other OSTs have free space | a copy of the component continues there (*repeat*) |
//! | nothing, and no OST has free space | the component grows regardless, until its OSTs are full |
//!
//! Bytes that have an object keep it, so an outdated layout is incomplete but never wrong. A component that
//! has not grown yet is empty; the first of a file begins with one step.

use crate::layout::{Component, ComponentFlags, Extent, Layout, Pattern};

/// Ids of components are below this.
const ID_END: u32 = u16::MAX as u32;

/// Free space on OSTs, as far as it is known.
pub trait Space {
    /// Returns true if each OST of `component`, which has objects, has free space for its share of `bytes`
    /// more.
    fn has_room(&mut self, component: &Component, bytes: u64) -> bool;

    /// Returns the share of each OST in bytes if there are OSTs with free space for `bytes` of `component`,
    /// which has no objects yet.
    fn finds_room(&mut self, component: &Component, bytes: u64) -> Option<u64>;
}

/// Outcome of growing a layout.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Grown {
    /// True if components have grown, were added or were removed.
    pub changed: bool,
    /// Ids of components without objects, with the bytes of free space found on each of their OSTs.
    shares: Vec<(u32, u64)>,
}

impl Grown {
    /// Returns the bytes that an OST must have free to get an object of the component; 0 for no requirement.
    pub fn share(&self, component: &Component) -> u64 {
        self.shares.iter().find(|(id, _)| *id == component.id).map_or(0, |(_, bytes)| *bytes)
    }
}

impl Layout {
    /// Returns true if an extension follows the component at `place`.
    pub fn grows(&self, place: usize) -> bool {
        self.components.get(place + 1).is_some_and(Component::is_extension)
    }

    /// Grows components as far as a write that ends at `end` needs, so that no extension begins before `end`.
    /// The caller then allocates objects for all of [`Layout::to_instantiate`] and raises the generation.
    pub fn grow(&mut self, end: u64, space: &mut impl Space) -> Grown {
        let mut grown = Grown::default();
        let mut place = 0;
        while self.components.get(place).is_some_and(|component| component.extent.start < end) {
            place = if self.grows(place) { self.grow_at(place, end, space, &mut grown) } else { place + 1 };
        }
        grown
    }

    /// Grows the component at `place`; returns the place to continue at.
    fn grow_at(&mut self, place: usize, end: u64, space: &mut impl Space, grown: &mut Grown) -> usize {
        let (own, extension) = (&self.components[place], &self.components[place + 1]);
        let step = extension.extension_size().unwrap_or(u64::MAX);
        let is_reached = extension.extent.start < end;
        let (id, has_objects) = (own.id, own.is_instantiated());
        if has_objects && !is_reached {
            return place + 2;
        }
        let share = match has_objects {
            true => space.has_room(own, step).then_some(0),
            false => space.finds_room(own, step),
        };
        if share.is_none() {
            if place + 2 < self.components.len() {
                return self.spill(place, grown);
            }
            if has_objects && self.repeat(place, step, space, grown) {
                return self.extend(place + 1, step, end, grown);
            }
        }
        if !has_objects {
            grown.shares.push((id, share.unwrap_or(0)));
        }
        if is_reached { self.extend(place, step, end, grown) } else { place + 2 }
    }

    /// Moves the border between the component at `place` and its extension to `end` or beyond.
    fn extend(&mut self, place: usize, step: u64, end: u64, grown: &mut Grown) -> usize {
        grown.changed = true;
        let own = &mut self.components[place];
        let missing = end.saturating_sub(own.extent.end).div_ceil(step).saturating_mul(step);
        // The component need not begin at a stripe boundary.
        let reached = own.extent.end.checked_add(missing);
        let reached = reached.and_then(|end| end.checked_next_multiple_of(u64::from(own.stripe_size)));
        let border = reached.unwrap_or(Extent::EOF).min(self.components[place + 1].extent.end);
        self.components[place].extent.end = border;
        let extension = &mut self.components[place + 1];
        extension.extent.start = border;
        if extension.extent.is_empty() {
            self.components.remove(place + 1);
            return place + 1;
        }
        place + 2
    }

    /// Ends the growth of the component at `place`: the component behind its extension takes over.
    fn spill(&mut self, place: usize, grown: &mut Grown) -> usize {
        grown.changed = true;
        self.components.remove(place + 1);
        let Component { extent, .. } = self.components[place];
        if self.components[place].is_instantiated() {
            self.begin_at(place + 1, extent.end);
            return place + 1;
        }
        self.components.remove(place);
        self.begin_at(place, extent.start);
        place
    }

    /// Inserts a copy of the component at `place` behind it, to continue on other OSTs. Returns false if no
    /// OSTs have free space for it, or the layout cannot hold another component.
    fn repeat(&mut self, place: usize, step: u64, space: &mut impl Space, grown: &mut Grown) -> bool {
        let own = &self.components[place];
        let Some(id) = self.free_id() else { return false };
        let copy = Component {
            id,
            extent: Extent { start: own.extent.end, end: own.extent.end },
            flags: own.flags - ComponentFlags::INIT,
            first_ost: None,
            generation: 0,
            objects: Vec::new(),
            ..own.clone()
        };
        let Some(share) = space.finds_room(&copy, step) else { return false };
        self.components.insert(place + 1, copy);
        if self.stripes_that_fit(place + 1) == 0 {
            self.components.remove(place + 1);
            return false;
        }
        grown.changed = true;
        grown.shares.push((id, share));
        true
    }

    /// Returns an id that no component has; `None` if all are used.
    pub fn free_id(&self) -> Option<u32> {
        let last = self.components.iter().map(|component| component.id).max().unwrap_or(0);
        let is_free = |id: &u32| self.components.iter().all(|component| component.id != *id);
        std::iter::once(last + 1).chain(1..ID_END).filter(|id| *id < ID_END).find(is_free)
    }

    /// Moves the beginning of the component at `place`, which has no objects, to `start`. An empty component
    /// stays empty.
    pub fn begin_at(&mut self, place: usize, start: u64) {
        let grows = self.grows(place);
        let Some(component) = self.components.get_mut(place) else { return };
        let was_empty = component.extent.is_empty();
        component.extent.start = start;
        if was_empty && grows {
            component.extent.end = start;
            self.components[place + 1].extent.start = start;
        }
    }

    /// Removes a first component on an MDT that has no object yet: the component behind it begins at 0, as if
    /// no head had been requested. Does nothing if there is no such component, or none behind it.
    pub fn leave_out_head(&mut self) {
        let is_open = |first: &Component| first.pattern == Pattern::Mdt && !first.is_instantiated();
        if self.components.len() < 2 || !is_open(&self.components[0]) {
            return;
        }
        self.begin_at(1, 0);
        self.components.remove(0);
        self.let_first_begin();
        (1..).zip(&mut self.components).for_each(|(id, component)| component.id = id);
        self.generation = self.components.len() as u32;
    }

    /// Gives the first component of a file its first step if it grows and is empty.
    pub fn let_first_begin(&mut self) {
        let [first, extension, ..] = self.components.as_slice() else { return };
        if !first.extent.is_empty() || first.extent.start != 0 {
            return;
        }
        if let Some(step) = extension.extension_size() {
            self.extend(0, step, first.extent.end + 1, &mut Grown::default());
        }
    }
}

#[cfg(test)]
mod tests;
