//! Text of `lfs getstripe`, byte for byte as Lustre's tools print it: scripts cut columns.

mod composite;
mod fields;
mod foreign;

use super::view::{CompositeView, LayoutView};
use nacre_layout::user::MAGIC_SPECIFIC;
use nacre_types::Fid;
use std::fmt::Write;

pub use composite::{Filter, Relation, composite};
pub use fields::Fields;
pub use foreign::foreign;

const NO_FAILURE: &str = "writing to a string cannot fail";
/// Name of a pool that means none, and overrides directories above.
const POOL_IGNORED: &str = "ignore";

/// Form in which a layout is shown.
#[derive(Clone, Debug, Default)]
pub struct Style {
    /// Fields to show.
    pub fields: Fields,
    /// Prints the path first.
    pub path: bool,
    /// `-y`
    pub yaml: bool,
    /// `--hex-idx`
    pub hex_index: bool,
    /// `-R`: the stored values, without replacing those that stand for a default.
    pub raw: bool,
    /// `-O`: only entries with an object on this OST.
    pub ost: Option<u32>,
}

/// Facts that are not in the layout itself.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// FID of the file or directory.
    pub fid: Fid,
    /// Index of its MDT.
    pub mdt_index: u16,
}

/// Owner of a striping.
#[derive(Clone, Copy, Debug, Default)]
struct Owner {
    /// It is the default of a directory.
    directory: bool,
    /// It is a component.
    component: bool,
    /// It is an extension: reserved extent that the component before it grows into.
    extension: bool,
    /// It has no objects, whatever the value says.
    without_objects: bool,
}

/// Returns the text of a plain layout: of a file, or the default of a directory, which is `inherited` if the
/// directory has none of its own.
pub fn plain(
    path: &str,
    view: &LayoutView,
    facts: &Facts,
    style: &Style,
    filter: &Filter,
    default_of: Option<Inherited>,
) -> String {
    let directory = default_of.is_some();
    if style.fields.asks_for_components() || filter.asks_for_components() {
        return composite(path, &CompositeView::of_plain(view, directory), facts, style, filter, directory);
    }
    let mut out = String::new();
    if style.ost.is_some_and(|ost| directory || !view.is_on(ost)) {
        return out;
    }
    if default_of == Some(Inherited(true)) && style.fields.has(Fields::DETAIL) && !style.raw {
        out.push_str("(Default) ");
    }
    path_line(&mut out, path, style, directory);
    striping(&mut out, view, facts, style, Owner { directory, ..Owner::default() });
    out
}

/// True if a directory's default comes from the root or the file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Inherited(pub bool);

/// Prints the path. If only objects are requested, directories, which have none, are left out.
fn path_line(out: &mut String, path: &str, style: &Style, directory: bool) {
    let has_nothing_to_show = directory && style.fields == Fields::OBJECTS;
    if style.path && !style.yaml && !has_nothing_to_show {
        writeln!(out, "{path}").expect(NO_FAILURE);
    }
}

/// Prints the fields of a striping, its objects, and an empty line unless the form is YAML.
fn striping(out: &mut String, view: &LayoutView, facts: &Facts, style: &Style, owner: Owner) {
    let indent = if owner.component { "      " } else { "" };
    identity(out, view, facts, style, owner, indent);
    let values = values(view, facts, style, owner, indent);
    if !values.is_empty() {
        let between = if owner.directory && !style.yaml { " " } else { "\n" };
        writeln!(out, "{}", values.join(between)).expect(NO_FAILURE);
    }
    let is_listed = view.magic == MAGIC_SPECIFIC;
    let has_objects = match owner.directory {
        true => is_listed,
        false => !view.is_released() && !view.is_on_mdt(),
    };
    // A template names the OSTs of objects that do not exist yet.
    let shown = !owner.without_objects || (style.yaml && is_listed);
    if shown && has_objects && style.fields.has(Fields::OBJECTS) && !view.objects.is_empty() {
        objects(out, view, style, owner);
    }
    if !style.yaml {
        out.push('\n');
    }
}

/// Prints magic and FID.
fn identity(out: &mut String, view: &LayoutView, facts: &Facts, style: &Style, owner: Owner, indent: &str) {
    let Style { fields, yaml, .. } = *style;
    if fields.has(Fields::DETAIL) && !owner.directory {
        let Fid { seq, oid, .. } = view.fid;
        write!(
            out,
            "{indent}lmm_magic:         0x{:08X}\n{indent}lmm_seq:           {seq:#x}\n\
             {indent}lmm_object_id:     {oid:#x}\n",
            view.magic
        )
        .expect(NO_FAILURE);
    }
    if fields.has(Fields::DETAIL.with(Fields::FID)) {
        if fields.labels(Fields::FID) {
            write!(out, "{indent}lmm_fid:           ").expect(NO_FAILURE);
        }
        let fid = if owner.directory { facts.fid } else { view.fid };
        writeln!(out, "{}", fid_text(&fid, yaml)).expect(NO_FAILURE);
    }
}

/// Returns a value for each requested field that exists, with its label unless it is the only field.
fn values(view: &LayoutView, facts: &Facts, style: &Style, owner: Owner, indent: &str) -> Vec<String> {
    let fields = style.fields;
    let prefix = if owner.directory { "" } else { "lmm_" };
    let mut values = Vec::new();
    let mut add = |field: Fields, label: &str, value: String| {
        if fields.has(field) {
            values.push(match fields.labels(field) {
                true => format!("{indent}{prefix}{label}{value}"),
                false => value,
            });
        }
    };
    let count = if owner.extension { 0 } else { view.shown_count() };
    add(Fields::COUNT, "stripe_count:  ", count.to_string());
    match owner.extension {
        true => add(Fields::EXTENSION_SIZE, "extension_size: ", view.extension_size().to_string()),
        false => add(Fields::SIZE, "stripe_size:   ", view.stripe_size.to_string()),
    }
    add(Fields::PATTERN, "pattern:       ", view.pattern_text());
    if !owner.directory {
        let generation = if owner.without_objects { 0 } else { view.generation() };
        add(Fields::GENERATION, "layout_gen:    ", generation.to_string());
    }
    let label = if view.is_on_mdt() { "mdt_index:     " } else { "stripe_offset: " };
    let offset = match (view.is_on_mdt(), owner.directory) {
        (true, false) => i64::from(facts.mdt_index),
        (_, true) => view.request_offset(),
        (false, false) if owner.without_objects => view.request_offset(),
        (false, false) => view.file_offset(),
    };
    let offset = u32::try_from(offset).map_or("-1".to_owned(), |index| index_text(index, style.hex_index));
    add(Fields::OFFSET, label, offset);
    // The pool appears only if one is set, even if only the pool is requested; next to a list of OSTs it is
    // redundant.
    let is_told = !(owner.component && view.magic == MAGIC_SPECIFIC) || style.yaml;
    if let Some(pool) = view.pool.as_ref().filter(|pool| is_told && (*pool != POOL_IGNORED || style.raw)) {
        add(Fields::POOL, "pool:          ", pool.clone());
    }
    values
}

fn objects(out: &mut String, view: &LayoutView, style: &Style, owner: Owner) {
    out.push_str(match (owner.component, style.yaml) {
        (true, _) => "      lmm_objects:\n",
        (false, true) => "lmm_objects:\n",
        (false, false) => "\tobdidx\t\t objid\t\t objid\t\t group\n",
    });
    for (place, object) in view.objects.iter().enumerate() {
        if style.ost.is_some_and(|ost| ost != object.ost_index) {
            continue;
        }
        let index = index_text(object.ost_index, style.hex_index);
        let fid = fid_text(&object.fid, style.yaml);
        let group = match object.group {
            0 => format!("{:14}", 0),
            group => format!("{group:#14x}"),
        };
        let mark = if style.ost.is_some() { " *" } else { "" };
        let id = match object.id {
            0 => format!("{:13}", 0),
            id => format!("{id:#13x}"),
        };
        match (style.yaml, owner.component, owner.directory) {
            (true, ..) => writeln!(out, "      - l_ost_idx: {index}\n        l_fid:     {fid}"),
            (_, true, _) => {
                let width = if style.hex_index { 5 } else { 3 };
                writeln!(out, "      - {place:>3}: {{ l_ost_idx: {index:>width$}, l_fid: {fid} }}")
            }
            (.., true) => writeln!(out, "\t{:>6}\t{1:>14}\t{1:>13}\t{1:>14}", object.ost_index, "N/A"),
            _ => writeln!(out, "\t{index:>6}\t{:14}\t{id}\t{group}{mark}", object.id),
        }
        .expect(NO_FAILURE);
    }
}

/// Formats an index; 0 has no prefix, as in C.
pub fn index_text(index: u32, hex: bool) -> String {
    if hex && index > 0 { format!("{index:#x}") } else { index.to_string() }
}

/// Formats a FID, in YAML without brackets.
fn fid_text(fid: &Fid, yaml: bool) -> String {
    let text = fid.to_string();
    match yaml {
        true => text.trim_start_matches('[').trim_end_matches(']').to_owned(),
        false => text,
    }
}

#[cfg(test)]
pub(super) mod tests;
