//! `--json`: output of commands for programs. Sizes are bytes; unknown values are null.

use super::getopt::{OptionSpec, Takes, long};
use super::mounted::TargetRow;
use super::render::Facts;
use super::view::{LayoutView, View};
use nacre_layout::user::Foreign;
use nacre_layout::{DirHash, Extent};
use nacre_types::TargetKind;
use serde_json::{Value, json};
use std::path::Path;

/// The option `--json`.
pub const OPTION: OptionSpec = long('J', "json", Takes::Nothing);

/// Prints a document on lines of its own.
pub fn print(value: &Value) {
    super::print(&format!("{value:#}\n"));
}

/// Returns the targets of a mounted file system, without their space.
pub fn targets(fsname: &str, mount_point: &Path, rows: &[TargetRow]) -> Value {
    let targets = rows.iter().map(|row| target(fsname, row));
    json!({
        "filesystem": fsname,
        "mount_point": mount_point.display().to_string(),
        "targets": targets.collect::<Vec<_>>(),
    })
}

fn target(fsname: &str, row: &TargetRow) -> Value {
    json!({ "uuid": row.target.uuid(fsname), "index": row.target.index, "active": row.active })
}

/// Returns the targets with their space.
pub fn space(fsname: &str, mount_point: &Path, rows: &[TargetRow]) -> Value {
    let targets = rows.iter().map(|row| {
        let mut value = target(fsname, row);
        value["type"] = if row.target.kind == TargetKind::Mdt { "MDT" } else { "OST" }.into();
        value["errno"] = row.errno.into();
        let counts = row.space.map(|space| {
            let bytes = |blocks: u64| blocks.saturating_mul(space.block_size.into());
            json!({
                "total_bytes": bytes(space.blocks),
                "used_bytes": bytes(space.blocks.saturating_sub(space.blocks_free)),
                "available_bytes": bytes(space.blocks_available),
                "total_inodes": space.files,
                "free_inodes": space.files_free,
                "state": super::table::state_letters(space.state, true),
            })
        });
        value["space"] = counts.unwrap_or_default();
        value
    });
    json!({
        "filesystem": fsname,
        "mount_point": mount_point.display().to_string(),
        "targets": targets.collect::<Vec<_>>(),
    })
}

/// File or directory that a layout belongs to.
pub struct Owner<'a> {
    pub path: &'a str,
    pub facts: &'a Facts,
    /// It is a directory: the layout is that of new files in it.
    pub is_directory: bool,
    /// It has no layout of its own.
    pub is_inherited: bool,
}

impl Owner<'_> {
    fn with(&self, layout: Value) -> Value {
        json!({
            "path": self.path,
            "type": if self.is_directory { "directory" } else { "file" },
            "fid": self.facts.fid.to_string(),
            "mdt_index": self.facts.mdt_index,
            "inherited": self.is_inherited,
            "layout": layout,
        })
    }

    /// Returns a line with a layout, or without one.
    pub fn line(&self, view: Option<&View>) -> String {
        format!("{}\n", self.with(view.map(layout).unwrap_or_default()))
    }

    /// Returns a line with a foreign layout.
    pub fn foreign_line(&self, foreign: &Foreign) -> String {
        format!("{}\n", self.with(self::foreign(foreign)))
    }
}

/// Returns a layout with stripes.
pub fn layout(view: &View) -> Value {
    let view = match view {
        View::Plain(layout) => return plain(layout),
        View::Composite(view) => view,
    };
    let components = view.entries.iter().map(|entry| {
        let mut value = match entry.is_extension() {
            true => json!({ "extension_size": entry.layout.extension_size() }),
            false => plain(&entry.layout),
        };
        value["id"] = entry.id.into();
        value["flags"] = entry.flags_text().into();
        value["start"] = entry.start.into();
        value["end"] = Some(entry.end).filter(|end| *end != Extent::EOF).into();
        value
    });
    json!({
        "generation": view.generation,
        "mirror_count": view.mirror_count,
        "components": components.collect::<Vec<_>>(),
    })
}

/// Returns a foreign layout.
pub fn foreign(foreign: &Foreign) -> Value {
    json!({
        "foreign_type": foreign.kind,
        "foreign_flags": foreign.flags,
        "value": String::from_utf8_lossy(&foreign.text),
    })
}

fn plain(layout: &LayoutView) -> Value {
    let objects = layout.placed().iter();
    let objects =
        objects.map(|object| json!({ "ost_index": object.ost_index, "fid": object.fid.to_string() }));
    json!({
        "pattern": layout.pattern_text(),
        "stripe_size": layout.stripe_size,
        "stripe_count": layout.shown_count(),
        "stripe_offset": layout.file_offset(),
        "pool": layout.pool,
        "objects": objects.collect::<Vec<_>>(),
    })
}

/// Returns the name of a directory's hash; null for none.
pub fn hash_name(hash: u32) -> Value {
    let known = u16::try_from(hash & 0xffff).ok().and_then(DirHash::from_number);
    known.map(|hash| hash.name().to_owned()).into()
}
