//! Each object belongs to one file, or waits to be destroyed; each object that was written to is there.

use crate::cluster::Cluster;
use crate::model::Rules;
use crate::target::mds_config;
use nacre_mds::check::{ObjectReferences, object_references};
use nacre_types::TargetKind;
use std::collections::HashSet;

/// Compares files with objects; all targets are stopped.
///
/// # Errors
/// Objects without a file, or with two, and lost ones.
pub(crate) fn check(cluster: &Cluster, rules: &Rules) -> Result<(), String> {
    let mut known = ObjectReferences::default();
    for target in cluster.targets.iter().filter(|target| target.id.kind == TargetKind::Mdt) {
        let found = object_references(&target.disk.dir, &mds_config(target.id.index));
        known.merge(found.map_err(|error| error.to_string())?);
    }
    if let Some(((ost, object), file)) = known.shared.first() {
        return Err(format!("object {object} on OST{ost:04x} belongs to {file} and to another file"));
    }
    for target in cluster.targets.iter().filter(|target| target.id.kind == TargetKind::Ost) {
        let index = target.id.index;
        let (mut there, mut orphan) = (HashSet::new(), None);
        let store = target.open_objects(None, false)?;
        let visited = store.for_each_object(&mut |object| {
            there.insert(object);
            // Ids above the mark of used ones are destroyed when the MDT starts.
            let mark = known.marks.get(&(index, object.mdt_index()));
            let may_be_new = mark.is_none_or(|(seq, last)| object.seq == *seq && object.oid > *last);
            if !known.knows(&(index, object)) && !may_be_new {
                orphan = Some(object);
            }
        });
        visited.map_err(|error| error.to_string())?;
        store.close().map_err(|error| error.to_string())?;
        if let Some(object) = orphan.filter(|_| !rules.orphans_objects()) {
            return Err(format!("object {object} on {} belongs to no file", target.id));
        }
        let lost = known.written.iter().find(|(ost, object)| *ost == index && !there.contains(object));
        // An unsynced object may be lost with the power of its host, or of the MDT that had assigned it.
        if let Some((_, object)) = lost.filter(|_| !rules.ost_power && !rules.mdt_power) {
            return Err(format!("object {object} on {} was written to, and is missing", target.id));
        }
    }
    Ok(())
}
