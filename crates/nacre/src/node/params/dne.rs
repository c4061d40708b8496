//! Parameters of directories on several metadata targets.

use nacre_mds::Mds;
use nacre_params::{Tree, value};
use std::sync::Arc;

/// Enters those of the metadata target whose parameters are below `mdt`.
pub fn enter(tree: &Tree, mdt: &str, mds: &Arc<Mds>) {
    let (get, set) = (mds.clone(), mds.clone());
    tree.add_both(
        &format!("{mdt}.enable_remote_dir_gid"),
        move || Ok(get.remote_dir_gid().to_string()),
        move |text| {
            set.set_remote_dir_gid(value::integer(text, -1, u32::MAX.into())?);
            Ok(())
        },
    );
}
