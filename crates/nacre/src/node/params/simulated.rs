//! Service times of a metadata target that is slower than this machine, for measurements: `mdt.*.simulated_service`.

use nacre_mds::Mds;
use nacre_mds::simulated::ServiceTime;
use nacre_params::Tree;
use nacre_types::Status;
use std::sync::Arc;

/// Enters the one of the metadata target whose parameters are below `mdt`.
pub fn enter(tree: &Tree, mdt: &str, mds: &Arc<Mds>) {
    let (get, set, label) = (mds.clone(), mds.clone(), mdt.to_owned());
    tree.add_both(
        &format!("{mdt}.simulated_service"),
        move || {
            let service = get.simulation.service();
            Ok(service.map_or_else(|| "off".to_owned(), |service| service.to_string()))
        },
        move |text| {
            let service = match text.trim() {
                "off" | "0" => None,
                text => Some(text.parse::<ServiceTime>().map_err(|()| Status::EINVAL)?),
            };
            set.simulation.set_service(service);
            match service {
                Some(service) => log::warn!("{label}: service times are simulated ({service})"),
                None => log::info!("{label}: service times are its own"),
            }
            Ok(())
        },
    );
}
