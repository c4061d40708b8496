//! Parameters of capabilities: how long they are good for.

use nacre_mds::Mds;
use nacre_params::{Tree, value};
use std::sync::Arc;

/// Enters those of the metadata target whose parameters are below `mdt`.
pub fn enter(tree: &Tree, mdt: &str, mds: &Arc<Mds>) {
    let (get, set) = (mds.clone(), mds.clone());
    tree.add_both(
        &format!("{mdt}.capability_expire_s"),
        move || Ok(get.capabilities.expire_s().to_string()),
        move |text| set.capabilities.set_expire_s(value::integer(text, 0, i64::MAX)? as u64),
    );
}
