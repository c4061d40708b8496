//! Output of `nacre inspect --json`. Sizes and positions are bytes, checksums CRC-32C of blocks.

use super::hex;
use nacre_ondisk::block::Inline;
use nacre_store::object::block::device::BLOCK;
use nacre_store::object::block::inspect::{ObjectInspection, StoreInspection};
use nacre_store::object::nxd::LogSurvey;
use nacre_types::Fid;
use serde_json::{Value, json};
use std::path::Path;

/// Returns the JSON of a store on a device.
pub fn store(store: &StoreInspection) -> Value {
    let labels = store.labels.iter().map(|found| match found {
        Ok(found) => json!({ "label": found.label, "identity": hex(&found.uuid) }),
        Err(error) => json!({ "error": error.to_string() }),
    });
    let classes = store.free.classes.iter();
    let classes = classes
        .map(|class| json!({ "min_bytes": class.min_bytes, "extents": class.count, "bytes": class.bytes }));
    json!({
        "target": store.label.label,
        "identity": hex(&store.label.uuid),
        "created": store.label.created.sec,
        "device": store.device.display().to_string(),
        "device_bytes": store.device_bytes,
        "labels": labels.collect::<Vec<_>>(),
        "generation": store.generation,
        "closed_in_order": store.is_clean,
        "blocks_to_recover": store.blocks_to_recover,
        "objects": store.objects,
        "objects_in_records": store.inline,
        "maps": store.maps,
        "sequences": store.sequences,
        "used_bytes": store.used_bytes,
        "total_bytes": store.total_bytes,
        "free": {
            "bytes": store.free.bytes,
            "extents": store.free.count,
            "largest": store.free.largest,
            "classes": classes.collect::<Vec<_>>(),
        },
        "damage": store.damage,
    })
}

/// Returns the JSON of an object in it.
pub fn object(fid: Fid, object: &ObjectInspection, checksums: bool) -> Value {
    let head = &object.head;
    let in_record = match &head.inline {
        Inline::Nothing => None,
        Inline::All(bytes) | Inline::Kept(_, bytes) => Some(bytes.len()),
    };
    let extents = object.pieces.iter().map(|piece| {
        let mut value = json!({
            "logical": piece.logical,
            "physical": piece.physical,
            "bytes": piece.len,
            "set_aside": piece.checksums.is_empty(),
            "damaged": piece.damaged.iter().map(|(offset, _)| *offset).collect::<Vec<_>>(),
        });
        if checksums {
            value["block_bytes"] = BLOCK.into();
            value["checksums"] = piece.checksums.clone().into();
        }
        value
    });
    json!({
        "fid": fid.to_string(),
        "size": head.size,
        "blocks": head.blocks,
        "mtime": format!("{}.{:09}", head.mtime.sec, head.mtime.nsec),
        "bytes_in_record": in_record,
        "extents": extents.collect::<Vec<_>>(),
        "damage": object.damage,
    })
}

/// Returns the JSON of the log of a cache of small writes.
pub fn cache(path: &Path, survey: &LogSurvey) -> Value {
    let superblock = &survey.superblock;
    json!({
        "cache": path.display().to_string(),
        "identity": hex(&superblock.cache),
        "store": hex(&superblock.store),
        "size_bytes": superblock.size,
        "first_block": superblock.tail,
        "end_block": survey.end,
        "durable_block": survey.durable.max(superblock.tail),
        "batches": survey.batches,
        "entries": survey.entries,
        "epoch": superblock.epoch,
        "behind": survey.behind,
        "damage": survey.damage.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "damage_count": survey.damage_count,
    })
}
