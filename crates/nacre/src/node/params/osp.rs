//! Parameters of a metadata target's ways to OSTs: `osp.*`, and `osc.*` where Lustre has them for clients too.

use super::{Params, import_text};
use nacre_mds::{Mds, Reserved};
use nacre_params::{Tree, value};
use nacre_rpc::ImportInfo;
use nacre_types::TargetId;
use std::sync::Arc;

/// `ENOSPC` the way that the kernel writes it.
const NO_SPACE: &str = "-28";

/// Enters what is reserved at an OST, and the state of the way to it.
fn enter_state(tree: &Tree, below: &str, fsname: &str, mds: &Arc<Mds>, ost: u16) {
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
        let mds = mds.clone();
        tree.add_read(&format!("{below}.{leaf}"), move || Ok(show(&mds.osts.reserved(ost)?)));
    }
    for leaf in ["import", "state"] {
        let (mds, name) = (mds.clone(), format!("{fsname}-{}", TargetId::ost(ost)));
        tree.add_read(&format!("{below}.{leaf}"), move || {
            let import = mds.osts.import(ost)?.unwrap_or_else(|| ImportInfo::local(name.clone()));
            Ok(import_text(leaf, &import))
        });
    }
}

impl Params {
    /// Enters those of a metadata target's ways to OSTs, as far as that has not been done. Those that Lustre has for clients
    /// too are there under both names, so that one pattern reaches all.
    pub fn enter_osts_of_mdt(&self, fsname: &str, index: u16, mds: &Arc<Mds>) {
        for ost in mds.osts.indexes() {
            let device = format!("{fsname}-OST{ost:04x}-osc-MDT{index:04x}");
            let [osp, osc] = ["osp", "osc"].map(|kind| format!("{kind}.{device}"));
            if self.tree.read(&format!("{osp}.active")).is_ok() {
                continue;
            }
            for below in [&osp, &osc] {
                let (get, set) = (mds.clone(), mds.clone());
                self.tree.add_both(
                    &format!("{below}.active"),
                    move || get.osts.is_active(ost).map(|active| u8::from(active).to_string()),
                    move |text| set.osts.set_active(ost, value::truth(text)?),
                );
            }
            let (get, set) = (mds.clone(), mds.clone());
            self.tree.add_both(
                &format!("{osp}.max_create_count"),
                move || get.osts.create_count_max(ost).map(|count| count.to_string()),
                move |text| {
                    let count = value::integer(text, 0, i64::from(u32::MAX))?;
                    set.osts.set_create_count_max(ost, count.unsigned_abs() as u32)
                },
            );
            enter_state(&self.tree, &osp, fsname, mds, ost);
            self.apply_lasting(&osp);
            self.apply_lasting(&osc);
        }
    }
}

/// Enters the OSTs that a metadata target has files on, below `lod`.
pub fn enter_targets(tree: &Tree, lod: &str, fsname: &str, mds: &Arc<Mds>) {
    let count = |leaf: &str, all: bool| {
        let mds = mds.clone();
        tree.add_read(&format!("{lod}.{leaf}"), move || {
            let osts = &mds.osts;
            let counted =
                osts.indexes().into_iter().filter(|ost| all || osts.is_active(*ost).unwrap_or(false));
            Ok(counted.count().to_string())
        });
    };
    count("numobd", true);
    count("activeobd", false);
    let (mds, fsname) = (mds.clone(), fsname.to_owned());
    tree.add_read(&format!("{lod}.target_obd"), move || {
        let osts = &mds.osts;
        let line = |ost: u16| {
            let state = if osts.is_active(ost).unwrap_or(false) { "ACTIVE" } else { "INACTIVE" };
            format!("{ost}: {} {state}\n", TargetId::ost(ost).uuid(&fsname))
        };
        Ok(osts.indexes().into_iter().map(line).collect())
    });
}
