//! Parameters of a mount's choice of MDTs for new directories: `lmv.*.qos_*`.

use super::lod::{percent, seconds};
use nacre_client::Client;
use nacre_params::Entries;

/// Enters the parameters of the part that knows all MDTs.
pub fn enter(lmv: &Entries<'_, Client>) {
    lmv.setting(
        "qos_threshold_rr",
        |client| format!("{}%", client.placement.dir_qos().threshold_rr_pct),
        |client, text| {
            let percent = percent(text)?;
            client.placement.change_dir_qos(|qos| qos.threshold_rr_pct = percent);
            Ok(())
        },
    );
    lmv.setting(
        "qos_prio_free",
        |client| format!("{}%", client.placement.dir_qos().prio_free_pct),
        |client, text| {
            let percent = percent(text)?;
            client.placement.change_dir_qos(|qos| qos.prio_free_pct = percent);
            Ok(())
        },
    );
    lmv.setting(
        "qos_maxage",
        |client| client.placement.dir_qos().maxage.as_secs(),
        |client, text| {
            let maxage = seconds(text)?;
            client.placement.change_dir_qos(|qos| qos.maxage = maxage);
            Ok(())
        },
    );
}
