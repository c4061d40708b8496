//! Parameters of a metadata target's connections to OSTs: `osp.*`, and `osc.*` where Lustre has them for
//! clients too.

use super::{Params, enter_import};
use nacre_mds::{Mds, Reserved};
use nacre_params::{Entries, value};
use nacre_rpc::ImportInfo;
use nacre_types::TargetId;
use std::sync::Arc;

/// `ENOSPC` in the kernel's notation.
const NO_SPACE: &str = "-28";

/// Enters the reservation at an OST, and the state of the connection to it.
fn enter_state(osp: &Entries<'_, Mds>, fsname: &str, ost: u16) {
    type Show = fn(&Reserved) -> String;
    let shown: [(&str, Show); 6] = [
        ("create_count", |reserved| reserved.refill.to_string()),
        ("prealloc_last_id", |reserved| reserved.last.to_string()),
        ("prealloc_last_seq", |reserved| format!("{:#x}", reserved.sequence)),
        ("prealloc_next_id", |reserved| reserved.next.to_string()),
        ("prealloc_next_seq", |reserved| format!("{:#x}", reserved.sequence)),
        ("prealloc_status", |reserved| if reserved.no_space { NO_SPACE } else { "0" }.to_owned()),
    ];
    for (leaf, show) in shown {
        osp.read(leaf, move |mds| Ok(show(&mds.osts.reserved(ost)?)));
    }
    let name = format!("{fsname}-{}", TargetId::ost(ost));
    enter_import(osp, move |mds| {
        Ok(mds.osts.import(ost)?.unwrap_or_else(|| ImportInfo::local(name.clone())))
    });
}

impl Params {
    /// Enters the parameters of a metadata target's connections to new OSTs. Those that Lustre has for
    /// clients too exist under both names, so that one pattern reaches all.
    pub fn enter_osts_of_mdt(&self, fsname: &str, index: u16, mds: &Arc<Mds>) {
        for ost in mds.osts.indexes() {
            let device = format!("{fsname}-OST{ost:04x}-osc-MDT{index:04x}");
            let [osp, osc] = ["osp", "osc"].map(|kind| format!("{kind}.{device}"));
            if self.tree.read(&format!("{osp}.active")).is_ok() {
                continue;
            }
            let ways = [&osp, &osc].map(|below| self.tree.of(below, mds));
            for way in &ways {
                way.both(
                    "active",
                    move |mds| mds.osts.is_active(ost).map(u8::from),
                    move |mds, text| mds.osts.set_active(ost, value::truth(text)?),
                );
            }
            let [way, _] = &ways;
            way.both(
                "max_create_count",
                move |mds| mds.osts.create_count_max(ost),
                move |mds, text| {
                    let count = value::integer(text, 0, i64::from(u32::MAX))?;
                    mds.osts.set_create_count_max(ost, count.unsigned_abs() as u32)
                },
            );
            enter_state(way, fsname, ost);
            self.apply_lasting(&osp);
            self.apply_lasting(&osc);
        }
    }
}

/// Enters the OSTs that a metadata target places files on.
pub fn enter_targets(lod: &Entries<'_, Mds>, fsname: &str) {
    let is_active = |mds: &Mds, ost: u16| mds.osts.is_active(ost).unwrap_or(false);
    lod.show("numobd", |mds| mds.osts.indexes().len());
    lod.show("activeobd", move |mds| {
        mds.osts.indexes().into_iter().filter(|ost| is_active(mds, *ost)).count()
    });
    let fsname = fsname.to_owned();
    lod.show("target_obd", move |mds| {
        let line = |ost: u16| {
            let state = if is_active(mds, ost) { "ACTIVE" } else { "INACTIVE" };
            format!("{ost}: {} {state}\n", TargetId::ost(ost).uuid(&fsname))
        };
        mds.osts.indexes().into_iter().map(line).collect::<String>()
    });
}
