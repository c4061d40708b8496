//! How a mount chooses MDTs for new directories: `lmv.*.qos_*`.

use super::lod::{percent, seconds};
use nacre_client::Client;
use nacre_params::Tree;
use std::sync::Arc;

/// Enters those of `lmv`, which is the name of the part that knows all MDTs.
pub fn enter(tree: &Tree, lmv: &str, client: &Arc<Client>) {
    let (get, set) = (client.clone(), client.clone());
    tree.add_both(
        &format!("{lmv}.qos_threshold_rr"),
        move || Ok(format!("{}%", get.placement.dir_qos().threshold_rr_pct)),
        move |text| {
            let percent = percent(text)?;
            set.placement.change_dir_qos(|qos| qos.threshold_rr_pct = percent);
            Ok(())
        },
    );
    let (get, set) = (client.clone(), client.clone());
    tree.add_both(
        &format!("{lmv}.qos_prio_free"),
        move || Ok(format!("{}%", get.placement.dir_qos().prio_free_pct)),
        move |text| {
            let percent = percent(text)?;
            set.placement.change_dir_qos(|qos| qos.prio_free_pct = percent);
            Ok(())
        },
    );
    let (get, set) = (client.clone(), client.clone());
    tree.add_both(
        &format!("{lmv}.qos_maxage"),
        move || Ok(get.placement.dir_qos().maxage.as_secs().to_string()),
        move |text| {
            let maxage = seconds(text)?;
            set.placement.change_dir_qos(|qos| qos.maxage = maxage);
            Ok(())
        },
    );
}
