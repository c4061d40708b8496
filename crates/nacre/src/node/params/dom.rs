//! Parameters of data on metadata targets: `lod.*.dom_*` and `mdt.*.dom_stats`.

use nacre_layout::spec::MDT_SIZE_MAX;
use nacre_mds::Mds;
use nacre_oss::ObjectServer;
use nacre_params::{Entries, value};
use nacre_types::limits::STRIPE_SIZE_MIN;
use nacre_types::{Status, StatusResult};

/// Enters the parameters of the part that places files.
pub fn enter(lod: &Entries<'_, Mds>) {
    for (leaf, unit) in [("dom_stripesize", 1), ("dom_stripesize_max_kb", 1 << 10)] {
        lod.setting(
            leaf,
            move |mds| mds.dom_limits().0 / unit,
            move |mds, text| {
                mds.set_dom_limit(component_size(text, unit)?);
                Ok(())
            },
        );
    }
    lod.show("dom_stripesize_cur_kb", |mds| mds.dom_limits().1 >> 10);
    lod.setting(
        "dom_threshold_free_mb",
        |mds| mds.dom_threshold() >> 20,
        |mds, text| {
            mds.set_dom_threshold(value::bytes(text, 1 << 20)?);
            Ok(())
        },
    );
}

/// Enters the counters of the data that an MDT keeps, below the MDT.
pub fn enter_stats(mdt: &Entries<'_, ObjectServer>) {
    mdt.counters("dom_stats", |data| data.stats().text(), |data| data.stats().clear());
}

/// Parses a size that components on an MDT can have, or 0.
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
