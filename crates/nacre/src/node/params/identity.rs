//! Whose groups are whose at a metadata target: `mdt.*.identity_*`, `mdt.*.trust_client_groups`.

use nacre_mds::Mds;
use nacre_params::{Tree, value};
use std::sync::Arc;

/// Longest time that an answer of the user database counts, in seconds: a day.
const EXPIRE_MAX_S: i64 = 24 * 3600;

/// Enters those of the metadata target whose parameters are below `mdt`.
pub fn enter(tree: &Tree, mdt: &str, mds: &Arc<Mds>) {
    let (get, set) = (mds.clone(), mds.clone());
    tree.add_both(
        &format!("{mdt}.identity_expire"),
        move || Ok(get.tenants.identity_expire_s().to_string()),
        move |text| {
            set.tenants.set_identity_expire_s(value::integer(text, 0, EXPIRE_MAX_S)? as u64);
            Ok(())
        },
    );
    let flushed = mds.clone();
    tree.add_write(&format!("{mdt}.identity_flush"), move |text| {
        // -1 is all of them.
        flushed.tenants.flush_identities(u32::try_from(value::integer(text, -1, u32::MAX.into())?).ok());
        Ok(())
    });
    let (get, set) = (mds.clone(), mds.clone());
    tree.add_both(
        &format!("{mdt}.trust_client_groups"),
        move || Ok(u8::from(get.tenants.trusts_client_groups()).to_string()),
        move |text| {
            set.tenants.set_trusts_client_groups(value::truth(text)?);
            Ok(())
        },
    );
}
