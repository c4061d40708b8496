//! Text of composite layouts in `lfs getstripe`.

use super::{Facts, Fields, NO_FAILURE, Owner, Style, path_line, striping};
use crate::lfs::view::{CompositeView, EntryView};
use std::fmt::Write;

/// Required relation of a value to a given number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Relation {
    /// Equal, in units of the second number, rounded up; the largest number matches only the end of files.
    Is(u64, u64),
    /// Greater than.
    Over(u64),
    /// Less than, by at least the second number. The end of files is not less than any number.
    Under(u64, u64),
}

impl Relation {
    fn holds(self, value: u64) -> bool {
        match self {
            Relation::Is(wanted, unit) => {
                value == wanted || (value < wanted && value.checked_add(unit).is_some_and(|end| end > wanted))
            }
            Relation::Over(limit) => value > limit,
            Relation::Under(limit, by) => {
                value.checked_add(by).is_some_and(|end| end <= limit) && value < u64::MAX
            }
        }
    }
}

/// Selection of components; all conditions have to hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Only the component with this id.
    pub id: Option<u32>,
    /// Flags that are set, and flags that are clear.
    pub flags: Option<(u32, u32)>,
    /// Start of the extent.
    pub start: Option<Relation>,
    /// End of the extent.
    pub end: Option<Relation>,
    /// Number of the mirror; the first value negates.
    pub mirror_id: Option<(bool, Relation)>,
    /// Position of the mirror, from 1.
    pub mirror_index: Option<(bool, Relation)>,
}

impl Filter {
    /// Returns true if all components are selected.
    pub fn is_empty(&self) -> bool {
        *self == Filter::default()
    }

    /// Returns true if a plain layout has to be shown as one component: for all conditions but those on
    /// mirrors.
    pub(super) fn asks_for_components(&self) -> bool {
        *self != Filter { mirror_id: self.mirror_id, mirror_index: self.mirror_index, ..Filter::default() }
    }

    fn admits(&self, entry: &EntryView, mirror_index: u64) -> bool {
        let mirror = |wanted: Option<(bool, Relation)>, value: u64| {
            wanted.is_none_or(|(not, relation)| relation.holds(value) != not)
        };
        self.id.is_none_or(|id| entry.id == id)
            && self.flags.is_none_or(|(set, clear)| entry.flags & set == set && entry.flags & clear == 0)
            && self.start.is_none_or(|relation| relation.holds(entry.start))
            && self.end.is_none_or(|relation| relation.holds(entry.end))
            && mirror(self.mirror_id, u64::from(entry.mirror_id()))
            && mirror(self.mirror_index, mirror_index)
    }
}

/// Returns the text for a file or a directory's default.
pub fn composite(
    path: &str,
    view: &CompositeView,
    facts: &Facts,
    style: &Style,
    filter: &Filter,
    directory: bool,
) -> String {
    let page = Page { view, facts, style, directory };
    let mut out = String::new();
    let is_on = |ost| view.entries.iter().any(|entry| entry.is_instantiated() && entry.layout.is_on(ost));
    if style.ost.is_some_and(|ost| directory || !is_on(ost)) {
        return out;
    }
    path_line(&mut out, path, style, directory);
    page.header(&mut out);
    match style.fields.is_whole() || !filter.is_empty() {
        true => page.admitted(filter).for_each(|place| page.component(&mut out, place, page.is_empty(place))),
        false => {
            if let Some(place) = page.representative() {
                page.component(&mut out, place, false);
            }
        }
    }
    out
}

/// Parameters of all parts of the text.
struct Page<'a> {
    view: &'a CompositeView,
    facts: &'a Facts,
    style: &'a Style,
    directory: bool,
}

impl Page<'_> {
    /// Returns the positions of the selected components.
    fn admitted(&self, filter: &Filter) -> impl Iterator<Item = usize> {
        // Files without mirrors have mirror number 0, which is not counted.
        let mut mirrors: Vec<u32> = vec![0];
        let admitted = |(place, entry): (usize, &EntryView)| {
            if mirrors.last() != Some(&entry.mirror_id()) {
                mirrors.push(entry.mirror_id());
            }
            let lies_there =
                self.style.ost.is_none_or(|ost| entry.is_instantiated() && entry.layout.is_on(ost));
            (lies_there && filter.admits(entry, mirrors.len() as u64 - 1)).then_some(place)
        };
        self.view.entries.iter().enumerate().filter_map(admitted).collect::<Vec<_>>().into_iter()
    }

    /// Returns true if a component has no objects.
    fn is_empty(&self, place: usize) -> bool {
        self.view.entries.get(place).is_none_or(|entry| !entry.is_instantiated())
    }

    /// Returns the component that represents the layout if a single field is requested: the one before the
    /// first without objects, the last of a directory's; if the growth step is requested, the one with the
    /// step.
    fn representative(&self) -> Option<usize> {
        let entries = &self.view.entries;
        let last = entries.len().checked_sub(1)?;
        // A file that was never written is shown like a new one of Lustre: with its first component.
        let is_new = !self.directory && !entries.iter().any(EntryView::is_instantiated);
        let has_objects = |place: usize| entries[place].is_instantiated() || (is_new && place == 0);
        let by_step = self.style.fields.has(Fields::EXTENSION_SIZE);
        let stop = (0..entries.len())
            .find(|&place| !has_objects(place) && (!by_step || entries[place].is_extension()));
        Some(match stop {
            Some(place) if by_step => place,
            Some(0) | None => last,
            Some(place) => place - 1,
        })
    }

    fn component(&self, out: &mut String, place: usize, without_objects: bool) {
        let Some(entry) = self.view.entries.get(place) else { return };
        self.entry(out, entry);
        let owner = Owner {
            directory: self.directory,
            component: true,
            extension: entry.is_extension(),
            without_objects,
        };
        striping(out, &entry.layout, self.facts, self.style, owner);
    }

    fn header(&self, out: &mut String) {
        let (Style { fields, yaml, .. }, view) = (self.style, self.view);
        if fields.has(Fields::DETAIL) {
            let flags = match (view.flags & 0xf, self.directory) {
                (_, true) if view.mirror_count > 1 => "mirrored",
                (_, true) => "",
                (0, false) => "0",
                (1, _) => "ro",
                (2, _) => "wp",
                (3, _) => "sp",
                _ => "unknown",
            };
            write!(
                out,
                "composite_header:\n  lcm_magic:         0x{:08X}\n  lcm_size:          {}\n  lcm_flags:         {flags}\n",
                view.magic(),
                view.size
            )
            .expect(NO_FAILURE);
        }
        let indent = if *yaml { "" } else { "  " };
        let mut line = |field: Fields, label: &str, value: u32| {
            match (fields.has(field), fields.labels(field)) {
                (true, true) => writeln!(out, "{indent}{label}{value}"),
                (true, false) => writeln!(out, "{value}"),
                (false, _) => Ok(()),
            }
            .expect(NO_FAILURE);
        };
        line(Fields::GENERATION, "lcm_layout_gen:    ", view.generation);
        line(Fields::MIRROR_COUNT, "lcm_mirror_count:  ", view.mirror_count);
        line(Fields::COMPONENT_COUNT, "lcm_entry_count:   ", view.shown_entries());
        if fields.has(Fields::DETAIL) || *yaml {
            out.push_str("components:\n");
        }
    }

    fn entry(&self, out: &mut String, entry: &EntryView) {
        let Style { fields, yaml, .. } = *self.style;
        let listed = fields.has(Fields::DETAIL) || yaml;
        let number = |value: u32| if entry.id == 0 { "N/A".to_owned() } else { value.to_string() };
        let line = |out: &mut String, field: Fields, indent: &str, label: &str, value: String| {
            match (fields.has(field), fields.labels(field)) {
                (true, true) => writeln!(out, "{indent}{label}{value}"),
                (true, false) => writeln!(out, "{value}"),
                (false, _) => Ok(()),
            }
            .expect(NO_FAILURE);
        };
        const LABEL: &str = "lcme_id:             ";
        match yaml {
            // A list has items whichever fields are requested.
            true => writeln!(out, "  - {LABEL}{}", number(entry.id)).expect(NO_FAILURE),
            false => {
                let indent = if listed { "  - " } else { "    " };
                line(out, Fields::COMPONENT_ID, indent, LABEL, number(entry.id));
            }
        }
        line(out, Fields::MIRROR_ID, "    ", "lcme_mirror_id:      ", number(entry.mirror_id()));
        line(out, Fields::COMPONENT_FLAGS, "    ", "lcme_flags:          ", entry.flags_text());
        line(out, Fields::COMPONENT_START, "    ", "lcme_extent.e_start: ", entry.start.to_string());
        line(out, Fields::COMPONENT_END, "    ", "lcme_extent.e_end:   ", entry.end_text());
        if listed && !yaml {
            line(out, Fields::DETAIL, "    ", "lcme_offset:         ", entry.offset.to_string());
            line(out, Fields::DETAIL, "    ", "lcme_size:           ", entry.size.to_string());
        }
        if listed {
            out.push_str("    sub_layout:\n");
        }
    }
}

#[cfg(test)]
mod tests;
