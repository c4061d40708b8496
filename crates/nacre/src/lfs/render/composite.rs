//! Composite layouts as `lfs getstripe` prints them.

use super::{Facts, Fields, Line, Style, file_lines, index_text};
use crate::lfs::view::{CompositeView, EntryView, LayoutView};
use nacre_layout::user::MAGIC_COMPOSITE;
use std::fmt::Write;

const NO_FAILURE: &str = "writing to a string cannot fail";

/// How a number is to stand to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Relation {
    /// Equal.
    Is(u64),
    /// More than.
    Over(u64),
    /// Less than.
    Under(u64),
}

impl Relation {
    fn holds(self, value: u64) -> bool {
        match self {
            Relation::Is(wanted) => value == wanted,
            Relation::Over(limit) => value > limit,
            Relation::Under(limit) => value < limit,
        }
    }
}

/// Which components are shown; all conditions have to hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Only this one.
    pub id: Option<u32>,
    /// Flags that are set, and that are not.
    pub flags: Option<(u32, u32)>,
    /// Where it begins.
    pub start: Option<Relation>,
    /// Where it ends.
    pub end: Option<Relation>,
    /// Number of its mirror; the first value says "not".
    pub mirror_id: Option<(bool, Relation)>,
    /// Place of its mirror from 1.
    pub mirror_index: Option<(bool, Relation)>,
}

impl Filter {
    /// True if nothing is left out.
    pub fn is_empty(&self) -> bool {
        *self == Filter::default()
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

/// Text for a file or a directory's default. `path` is empty where it is not to be printed.
pub fn composite(
    path: &str,
    view: &CompositeView,
    facts: &Facts,
    style: &Style,
    filter: &Filter,
    directory: bool,
) -> String {
    let page =
        Page { facts, style, directory, alone: style.fields.len() == 1 && !style.whole && !style.verbose };
    let mut out = String::new();
    if style.whole && !style.yaml && !path.is_empty() {
        writeln!(out, "{path}").expect(NO_FAILURE);
    }
    page.header(&mut out, view);
    // What only the header has says nothing of components.
    let only_header =
        Fields { component_count: false, mirror_count: false, fid: false, mdt_index: false, ..style.fields };
    if !style.whole && only_header.len() == 0 {
        page.end(&mut out);
        return out;
    }
    for entry in page.chosen(view, filter) {
        page.entry(&mut out, entry);
        page.end(&mut out);
    }
    out
}

/// What all parts of the text depend on.
struct Page<'a> {
    facts: &'a Facts,
    style: &'a Style,
    directory: bool,
    /// One value without a label.
    alone: bool,
}

impl Page<'_> {
    fn chosen<'v>(&self, view: &'v CompositeView, filter: &Filter) -> Vec<&'v EntryView> {
        if self.style.whole || !filter.is_empty() {
            let mut mirrors: Vec<u32> = Vec::new();
            let admitted = |entry: &&EntryView| {
                if mirrors.last() != Some(&entry.mirror_id()) {
                    mirrors.push(entry.mirror_id());
                }
                filter.admits(entry, mirrors.len() as u64)
            };
            return view.entries.iter().filter(admitted).collect();
        }
        let mut one = if self.directory { view.entries.last() } else { view.last_instantiated() };
        if self.style.fields.extension_size && self.alone {
            // The step is written behind the component that it is for.
            let behind = view.entries.iter().skip_while(|entry| one.is_some_and(|one| one != *entry)).nth(1);
            one = behind.filter(|entry| entry.is_extension()).or(one);
        }
        one.into_iter().collect()
    }

    /// An empty line after each part, except where a program reads it and after the MDT index alone.
    fn end(&self, out: &mut String) {
        let without = self.style.yaml || (self.alone && self.style.fields.mdt_index);
        if !without {
            out.push('\n');
        }
    }

    fn line(&self, out: &mut String, indent: &str, label: &str, value: &str) {
        match self.alone {
            true => writeln!(out, "{value}"),
            false => writeln!(out, "{indent}{label}{value}"),
        }
        .expect(NO_FAILURE);
    }

    fn header(&self, out: &mut String, view: &CompositeView) {
        let Style { fields, verbose, yaml, whole, .. } = *self.style;
        let indent = if yaml { "" } else { "  " };
        if verbose {
            if !yaml {
                out.push_str("composite_header:\n");
            }
            let flags = match (view.flags & 0xf, self.directory) {
                (0, true) => "",
                (0, false) => "0",
                (1, _) => "ro",
                (2, _) => "wp",
                (3, _) => "sp",
                _ => "unknown",
            };
            writeln!(out, "{indent}lcm_magic:         0x{MAGIC_COMPOSITE:08X}").expect(NO_FAILURE);
            writeln!(out, "{indent}lcm_size:          {}", view.size).expect(NO_FAILURE);
            writeln!(out, "{indent}lcm_flags:         {flags}").expect(NO_FAILURE);
        }
        if !whole && fields.fid {
            self.line(out, indent, "lmm_fid:           ", &self.facts.fid.to_string());
        }
        if !whole && fields.mdt_index {
            self.line(out, indent, "lmm_mdt_index:     ", &self.facts.mdt_index.to_string());
        }
        if fields.generation {
            self.line(out, indent, "lcm_layout_gen:    ", &view.generation.to_string());
        }
        if fields.mirror_count {
            self.line(out, indent, "lcm_mirror_count:  ", &view.mirror_count.to_string());
        }
        if fields.component_count {
            self.line(out, indent, "lcm_entry_count:   ", &view.entries.len().to_string());
        }
        if whole && (verbose || yaml) {
            out.push_str("components:\n");
        }
    }

    fn entry(&self, out: &mut String, entry: &EntryView) {
        let Style { fields, verbose, yaml, whole, .. } = *self.style;
        let listed = whole && (verbose || yaml);
        let number = |value: u32| if self.directory { "N/A".to_owned() } else { value.to_string() };
        if fields.component_id {
            self.line(out, if listed { "  - " } else { "    " }, "lcme_id:             ", &number(entry.id));
        }
        if whole {
            self.line(out, "    ", "lcme_mirror_id:      ", &number(entry.mirror_id()));
        }
        if fields.component_flags {
            self.line(out, "    ", "lcme_flags:          ", &entry.flags_text());
        }
        if fields.component_start {
            self.line(out, "    ", "lcme_extent.e_start: ", &entry.start.to_string());
        }
        if fields.component_end {
            self.line(out, "    ", "lcme_extent.e_end:   ", &entry.end_text());
        }
        if whole && verbose {
            self.line(out, "    ", "lcme_offset:         ", &entry.offset.to_string());
            self.line(out, "    ", "lcme_size:           ", &entry.size.to_string());
        }
        if listed {
            out.push_str("    sub_layout:\n");
        }
        match self.directory {
            true => self.template(out, entry),
            false => self.striping(out, entry),
        }
    }

    /// The fields of a component of a file, a line each.
    fn striping(&self, out: &mut String, entry: &EntryView) {
        let view = &entry.layout;
        let Style { fields, verbose, .. } = *self.style;
        let mut text = String::new();
        if verbose {
            super::verbose_header(&mut text, view);
        }
        let own = Fields { mdt_index: false, fid: false, ..fields.of_one() };
        let mut lines = file_lines(view, self.facts, &Fields { size: false, ..own });
        if let Some((label, value)) = self.size_of(entry) {
            let place = usize::from(own.count).min(lines.len());
            lines.insert(place, Line { label, value });
        }
        for Line { label, value } in lines {
            let is_absent_pool = self.alone && fields.pool && view.pool.is_none();
            match self.alone {
                _ if is_absent_pool => {}
                true => writeln!(text, "{value}").expect(NO_FAILURE),
                false => writeln!(text, "{label:<18} {value}").expect(NO_FAILURE),
            }
        }
        let indent = if self.alone { "" } else { "      " };
        text.lines().for_each(|line| writeln!(out, "{indent}{line}").expect(NO_FAILURE));
        self.objects(out, view);
    }

    /// The stripe size, or the step of an extension, if it is wanted.
    fn size_of(&self, entry: &EntryView) -> Option<(&'static str, String)> {
        let Style { fields, whole, .. } = self.style;
        match entry.is_extension() {
            true => (fields.extension_size || *whole)
                .then(|| ("lmm_extension_size:", entry.layout.extension_size().to_string())),
            false => fields.size.then(|| ("lmm_stripe_size:", entry.layout.stripe_size.to_string())),
        }
    }

    fn objects(&self, out: &mut String, view: &LayoutView) {
        if !self.style.fields.objects || view.objects.is_empty() {
            return;
        }
        out.push_str("      lmm_objects:\n");
        for (place, object) in view.objects.iter().enumerate() {
            let index = index_text(object.ost_index, self.style.hex_index);
            let fid = object.fid.to_string();
            let mark = if self.style.ost == Some(object.ost_index) { " *" } else { "" };
            match self.style.yaml {
                true => {
                    let bare = fid.trim_start_matches('[').trim_end_matches(']');
                    writeln!(out, "      - l_ost_idx: {index}\n        l_fid:     {bare}")
                }
                false => writeln!(out, "      - {place:>3}: {{ l_ost_idx: {index:>3}, l_fid: {fid} }}{mark}"),
            }
            .expect(NO_FAILURE);
        }
    }

    /// The fields of a component of a directory's default, on one line.
    fn template(&self, out: &mut String, entry: &EntryView) {
        let view = &entry.layout;
        let size = self.size_of(entry).map(|(_, value)| value);
        let size_label = if entry.is_extension() { "extension_size: " } else { "stripe_size:   " };
        let Style { fields, verbose, yaml, .. } = *self.style;
        if verbose {
            writeln!(out, "      lmm_fid:           {}", self.facts.fid).expect(NO_FAILURE);
        }
        let all = [
            (fields.count, "stripe_count:  ", view.shown_count().to_string()),
            (size.is_some(), size_label, size.unwrap_or_default()),
            (fields.pattern, "pattern:       ", view.pattern_text()),
            (fields.offset, "stripe_offset: ", view.wish_offset().to_string()),
            (fields.pool && view.pool.is_some(), "pool:          ", view.pool.clone().unwrap_or_default()),
        ];
        let words: Vec<String> = all
            .into_iter()
            .filter(|(wanted, ..)| *wanted)
            .map(|(_, label, value)| if self.alone { value } else { format!("      {label}{value}") })
            .collect();
        if !words.is_empty() {
            writeln!(out, "{}", words.join(if yaml { "\n" } else { " " })).expect(NO_FAILURE);
        }
        self.objects(out, view);
    }
}

#[cfg(test)]
mod tests;
