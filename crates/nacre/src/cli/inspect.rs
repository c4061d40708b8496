//! `nacre inspect`: shows what the store of an OST on a device is, and what an object in it is, without changing anything.

use super::InspectArgs;
use crate::failure::{EXIT_FAILURE, Failure, Result};
use nacre_ondisk::block::Inline;
use nacre_store::object::block::device::BLOCK;
use nacre_store::object::block::inspect::{Inspector, ObjectInspection, StoreInspection};
use nacre_store::object::block::is_block_store;
use nacre_types::Fid;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Runs the command.
pub fn run(args: &InspectArgs) -> Result<i32> {
    let shown = args.dir.display();
    if !is_block_store(&args.dir) {
        return Err(Failure::new(format!(
            "{shown} is not the directory of an OST that keeps its objects on a device: name one, such as /srv/fs/ost0000"
        )));
    }
    let scratch = scratch_in(args.scratch.clone())?;
    let opened = Inspector::open(&args.dir, scratch.path());
    let inspector = opened.map_err(Failure::because(format!("inspect {shown}")))?;
    let failed = || Failure::because(format!("inspect {shown}"));
    let (mut text, mut damage) = (String::new(), 0);
    if args.object.is_empty() {
        let store = inspector.store().map_err(failed())?;
        store_text(&mut text, &store);
        damage += store.damage.len();
    }
    for object in &args.object {
        let fid: Fid = object.parse().map_err(|_| {
            Failure::usage(format!("--object {object}: write a FID such as [0x100000000:0x2:0x0]"))
        })?;
        let found = inspector.object(fid).map_err(failed())?;
        let found = found.ok_or_else(|| Failure::new(format!("{shown} has no object {fid}")))?;
        object_text(&mut text, fid, &found, args.checksums);
        damage += found.damage.len();
    }
    if args.objects {
        inspector
            .for_each_object(&mut |fid| {
                let _ = writeln!(text, "{fid}");
            })
            .map_err(failed())?;
    }
    print!("{text}");
    Ok(if damage == 0 { 0 } else { EXIT_FAILURE })
}

/// A new directory for the copy of the index, which goes with the value.
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

/// Writing to a String does not fail.
macro_rules! row {
    ($text:expr, $name:expr, $($arg:tt)*) => {{
        let _ = write!($text, "{:<12}", $name);
        let _ = writeln!($text, $($arg)*);
    }};
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
