//! The text of `lfs getstripe`, byte for byte as Lustre's tools print it: scripts cut columns. Source: reference 2.2 and
//! appendix B.1.

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
/// A pool of this name says that there is none, whatever a directory above says.
const POOL_IGNORED: &str = "ignore";

/// How a layout is shown.
#[derive(Clone, Debug, Default)]
pub struct Style {
    /// The fields.
    pub fields: Fields,
    /// The path is printed first.
    pub path: bool,
    /// `-y`
    pub yaml: bool,
    /// `--hex-idx`
    pub hex_index: bool,
    /// `-R`: what is stored, also what stands for a default.
    pub raw: bool,
    /// `-O`: only what lies on this OST.
    pub ost: Option<u32>,
}

/// Facts that are not in the layout itself.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// The file or directory.
    pub fid: Fid,
    /// Index of the MDT that holds it.
    pub mdt_index: u16,
}

/// What a striping belongs to.
#[derive(Clone, Copy, Debug, Default)]
struct Owner {
    /// A directory, whose default it is.
    directory: bool,
    /// A component.
    component: bool,
    /// Room that the component before it grows into.
    extension: bool,
    /// There are no objects, whatever the value says.
    without_objects: bool,
}

/// Text for a plain layout: of a file, or the default of a directory, which is `inherited` if the directory has none of its own.
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

/// Whether a directory's default is that of the root or of the file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Inherited(pub bool);

/// Who asks for the objects alone sees no paths of directories, which have none.
fn path_line(out: &mut String, path: &str, style: &Style, directory: bool) {
    let has_nothing_to_show = directory && style.fields == Fields::OBJECTS;
    if style.path && !style.yaml && !has_nothing_to_show {
        writeln!(out, "{path}").expect(NO_FAILURE);
    }
}

/// The fields of a striping, its objects, and an empty line where no program reads it.
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
    // A template tells where objects are to be before there are any.
    let shown = !owner.without_objects || (style.yaml && is_listed);
    if shown && has_objects && style.fields.has(Fields::OBJECTS) && !view.objects.is_empty() {
        objects(out, view, style, owner);
    }
    if !style.yaml {
        out.push('\n');
    }
}

/// Magic and FID.
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

/// A value for each field that is asked for and there, with its label unless it is alone.
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
        (_, true) => view.wish_offset(),
        (false, false) if owner.without_objects => view.wish_offset(),
        (false, false) => view.file_offset(),
    };
    let offset = u32::try_from(offset).map_or("-1".to_owned(), |index| index_text(index, style.hex_index));
    add(Fields::OFFSET, label, offset);
    // The pool appears only if one is set, also where it alone was asked for; beside a list of OSTs it says nothing new.
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

/// An index; 0 has no prefix, as C writes it.
pub fn index_text(index: u32, hex: bool) -> String {
    if hex && index > 0 { format!("{index:#x}") } else { index.to_string() }
}

/// A FID, in YAML without brackets.
fn fid_text(fid: &Fid, yaml: bool) -> String {
    let text = fid.to_string();
    match yaml {
        true => text.trim_start_matches('[').trim_end_matches(']').to_owned(),
        false => text,
    }
}

#[cfg(test)]
pub(super) mod tests;
