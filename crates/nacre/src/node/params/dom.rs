//! Parameters of data on metadata targets: `lod.*.dom_*` and `mdt.*.dom_stats`.

use nacre_layout::spec::MDT_SIZE_MAX;
use nacre_mds::Mds;
use nacre_oss::ObjectServer;
use nacre_params::{Tree, value};
use nacre_types::limits::STRIPE_SIZE_MIN;
use nacre_types::{Status, StatusResult};
use std::sync::Arc;

/// Enters those of the metadata target whose parameters are below `mdt` and `lod`.
pub fn enter(tree: &Tree, mdt: &str, lod: &str, mds: &Arc<Mds>, data: Option<&Arc<ObjectServer>>) {
    let limit = |leaf: &str, unit: u64| {
        let (get, set) = (mds.clone(), mds.clone());
        tree.add_both(
            &format!("{lod}.{leaf}"),
            move || Ok((get.dom_limits().0 / unit).to_string()),
            move |text| {
                set.set_dom_limit(component_size(text, unit)?);
                Ok(())
            },
        );
    };
    limit("dom_stripesize", 1);
    limit("dom_stripesize_max_kb", 1 << 10);
    let now = mds.clone();
    tree.add_read(
        &format!("{lod}.dom_stripesize_cur_kb"),
        move || Ok((now.dom_limits().1 >> 10).to_string()),
    );
    let (get, set) = (mds.clone(), mds.clone());
    tree.add_both(
        &format!("{lod}.dom_threshold_free_mb"),
        move || Ok((get.dom_threshold() >> 20).to_string()),
        move |text| {
            set.set_dom_threshold(value::bytes(text, 1 << 20)?);
            Ok(())
        },
    );
    let Some(data) = data else { return };
    let (stats, clear) = (data.clone(), data.clone());
    tree.add_both(
        &format!("{mdt}.dom_stats"),
        move || Ok(stats.stats().text()),
        move |_| {
            clear.stats().clear();
            Ok(())
        },
    );
}

/// A size that components on an MDT can have, or 0.
fn component_size(text: &str, unit: u64) -> StatusResult<u64> {
    let bytes = value::bytes(text, unit)?;
    match bytes.is_multiple_of(u64::from(STRIPE_SIZE_MIN)) {
        true if bytes <= MDT_SIZE_MAX => Ok(bytes),
        true => Err(Status::ERANGE),
        false => Err(Status::EINVAL),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_components_on_an_mdt_are_checked() {
        assert_eq!(component_size("1M", 1), Ok(1 << 20));
        assert_eq!(component_size("64", 1 << 10), Ok(65536));
        assert_eq!(component_size("0", 1), Ok(0));
        assert_eq!(component_size("1G", 1), Ok(1 << 30));
        assert_eq!(component_size("2G", 1), Err(Status::ERANGE));
        assert_eq!(component_size("100000", 1), Err(Status::EINVAL));
    }
}
