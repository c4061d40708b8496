//! `nacre inspect`: shows a target's store on a device, an object in it, or the log of a cache of small
//! writes, read-only.

mod json;

use super::InspectArgs;
use crate::failure::{EXIT_FAILURE, Failure, Result};
use crate::instance::MDT_DATA;
use crate::ost_cache::open_device;
use nacre_ondisk::block::Inline;
use nacre_store::object::block::device::BLOCK;
use nacre_store::object::block::inspect::{Inspector, ObjectInspection, StoreInspection};
use nacre_store::object::block::is_block_store;
use nacre_store::object::nxd::{LogSurvey, cache_of};
use nacre_types::Fid;
use serde_json::json;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Writing to a String cannot fail.
macro_rules! row {
    ($text:expr, $name:expr, $($arg:tt)*) => {{
        let _ = write!($text, "{:<12}", $name);
        let _ = writeln!($text, $($arg)*);
    }};
}

/// Runs the command.
pub fn run(args: &InspectArgs) -> Result<i32> {
    let shown = args.dir.display();
    if let Some(device) = cache_device(args)? {
        return inspect_cache(&device, args.json);
    }
    // The directory's own store, or that of an MDT for data of files.
    let dirs = [args.dir.clone(), args.dir.join(MDT_DATA)];
    let Some(dir) = dirs.iter().find(|dir| is_block_store(dir)) else {
        return Err(Failure::new(format!(
            "{shown} is neither the directory of a target that keeps objects on a device, nor the cache of an OST: name one, such as /srv/fs/ost0000"
        )));
    };
    let scratch = scratch_in(args.scratch.clone())?;
    let opened = Inspector::open(dir, scratch.path());
    let inspector = opened.map_err(Failure::because(format!("inspect {shown}")))?;
    let failed = || Failure::because(format!("inspect {shown}"));
    let (mut text, mut damage) = (String::new(), 0);
    let mut shown_json = json!({});
    if args.object.is_empty() {
        let store = inspector.store().map_err(failed())?;
        store_text(&mut text, &store);
        shown_json["store"] = json::store(&store);
        damage += store.damage.len();
    }
    let mut objects = Vec::new();
    for object in &args.object {
        let fid: Fid = object.parse().map_err(|_| {
            Failure::usage(format!("--object {object}: write a FID such as [0x100000000:0x2:0x0]"))
        })?;
        let found = inspector.object(fid).map_err(failed())?;
        let found = found.ok_or_else(|| Failure::new(format!("{shown} has no object {fid}")))?;
        object_text(&mut text, fid, &found, args.checksums);
        objects.push(json::object(fid, &found, args.checksums));
        damage += found.damage.len();
    }
    if args.objects {
        inspector
            .for_each_object(&mut |fid| {
                let _ = writeln!(text, "{fid}");
                objects.push(json!({ "fid": fid.to_string() }));
            })
            .map_err(failed())?;
    }
    shown_json["objects"] = objects.into();
    match args.json {
        true => println!("{shown_json:#}"),
        false => print!("{text}"),
    }
    Ok(if damage == 0 { 0 } else { EXIT_FAILURE })
}

/// Returns the device of the log to show: with `--cache` that of an OST, else the given path if it is not a
/// directory.
fn cache_device(args: &InspectArgs) -> Result<Option<PathBuf>> {
    if !args.cache {
        return Ok((args.dir.exists() && !args.dir.is_dir()).then(|| args.dir.clone()));
    }
    let shown = args.dir.display();
    let found = cache_of(&args.dir).map_err(Failure::because(format!("inspect {shown}")))?;
    found.map(Some).ok_or_else(|| Failure::new(format!("{shown} has no cache of small writes")))
}

fn inspect_cache(path: &Path, json: bool) -> Result<i32> {
    let action = format!("inspect {}", path.display());
    let device = open_device(path, None).map_err(Failure::because(&action))?;
    let survey = LogSurvey::of(&device).map_err(Failure::because(&action))?;
    if json {
        println!("{:#}", json::cache(path, &survey));
    } else {
        let mut text = String::new();
        cache_text(&mut text, path, &survey);
        print!("{text}");
    }
    Ok(if survey.damage.is_empty() { 0 } else { EXIT_FAILURE })
}

fn cache_text(text: &mut String, path: &Path, survey: &LogSurvey) {
    let superblock = &survey.superblock;
    row!(text, "cache", "{}, {} bytes, identity {}", path.display(), superblock.size, hex(&superblock.cache));
    row!(text, "store", "identity {}", hex(&superblock.store));
    row!(
        text,
        "log",
        "blocks {}..{} of {}: {} batches with {} entries, epoch {}",
        superblock.tail,
        survey.end,
        superblock.size / BLOCK - 2,
        survey.batches,
        survey.entries,
        superblock.epoch
    );
    row!(text, "durable", "up to block {}, as far as something says so", survey.durable.max(superblock.tail));
    if survey.behind > 0 {
        row!(text, "behind", "{} batches that are not a part of the log, which is in order", survey.behind);
    }
    for damage in &survey.damage {
        row!(text, "damage", "{damage}");
    }
    if let Some(hidden) = survey.hidden_text() {
        row!(text, "", "{hidden}");
    }
    if survey.damage_count > survey.damage.len() as u64 {
        row!(text, "", "{} more", survey.damage_count - survey.damage.len() as u64);
    }
}

/// Creates a directory for the copy of the index; it is removed with the value.
fn scratch_in(dir: Option<PathBuf>) -> Result<Scratch> {
    let base = dir.unwrap_or_else(std::env::temp_dir);
    let path = base.join(format!("nacre-inspect-{}", std::process::id()));
    std::fs::DirBuilder::new()
        .create(&path)
        .map_err(Failure::because(format!("make the directory {}", path.display())))?;
    Ok(Scratch(path))
}

struct Scratch(PathBuf);

impl Scratch {
    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("nacre: remove {}: {error}", self.0.display());
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn store_text(text: &mut String, store: &StoreInspection) {
    let label = &store.label;
    row!(
        text,
        "target",
        "{}, identity {}, made {} s after 1970",
        label.label,
        hex(&label.uuid),
        label.created.sec
    );
    row!(text, "device", "{}, {} bytes", store.device.display(), store.device_bytes);
    for (name, found) in ["first label", "last label"].iter().zip(&store.labels) {
        match found {
            Ok(found) if found.uuid == label.uuid => row!(text, name, "that of this store"),
            Ok(found) => {
                row!(text, name, "that of another store, {}, identity {}", found.label, hex(&found.uuid))
            }
            Err(error) => row!(text, name, "{error}"),
        }
    }
    let how = match store.is_clean {
        true => "closed in order",
        false => {
            "not closed in order: what changed after that is compared with its checksums when it is opened"
        }
    };
    row!(text, "state", "durable up to generation {}; {how}", store.generation);
    if store.blocks_to_recover > 0 {
        row!(text, "recovery", "{} blocks will go back to what they were before", store.blocks_to_recover);
    }
    row!(
        text,
        "objects",
        "{}, {} of them in their records; {} maps, {} sequences",
        store.objects,
        store.inline,
        store.maps,
        store.sequences
    );
    row!(
        text,
        "space",
        "{} bytes in use of {}; {} free in {} extents, the longest {}",
        store.used_bytes,
        store.total_bytes,
        store.free.bytes,
        store.free.count,
        store.free.largest
    );
    for class in &store.free.classes {
        row!(
            text,
            "",
            "free extents of {} bytes and more: {}, {} bytes",
            class.min_bytes,
            class.count,
            class.bytes
        );
    }
    for problem in &store.damage {
        row!(text, "damage", "{problem}");
    }
}

fn object_text(text: &mut String, fid: Fid, object: &ObjectInspection, checksums: bool) {
    let head = &object.head;
    row!(
        text,
        "object",
        "{fid}: {} bytes, {} blocks, changed {}.{:09} s after 1970",
        head.size,
        head.blocks,
        head.mtime.sec,
        head.mtime.nsec
    );
    match &head.inline {
        Inline::Nothing => {}
        Inline::All(bytes) => {
            row!(text, "record", "holds the data, {} bytes; what is missing is zeros", bytes.len())
        }
        Inline::Kept(generation, bytes) => {
            row!(
                text,
                "record",
                "still holds {} bytes that went to the device in generation {generation}",
                bytes.len()
            );
        }
    }
    for piece in &object.pieces {
        let what = if piece.checksums.is_empty() { "set aside" } else { "data" };
        let state = match piece.damaged.len() {
            _ if piece.checksums.is_empty() => String::new(),
            0 => ", checksums match".to_owned(),
            count => format!(", {count} blocks DAMAGED"),
        };
        row!(
            text,
            "extent",
            "{}..{} at {} of the device, {} bytes of {what}{state}",
            piece.logical,
            piece.logical + piece.len,
            piece.physical,
            piece.len
        );
        if checksums {
            for (number, crc) in piece.checksums.iter().enumerate() {
                row!(text, "", "{} {crc:08x}", piece.logical + number as u64 * BLOCK);
            }
        }
    }
    for problem in &object.damage {
        row!(text, "damage", "{problem}");
    }
}
