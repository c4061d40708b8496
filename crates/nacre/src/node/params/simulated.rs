//! Simulated service times of a slower metadata target, for measurements: `mdt.*.simulated_service`.

use nacre_mds::Mds;
use nacre_mds::simulated::ServiceTime;
use nacre_params::Entries;
use nacre_types::Status;

/// Enters the parameter of the metadata target whose parameters are below `label`.
pub fn enter(mdt: &Entries<'_, Mds>, label: &str) {
    let label = label.to_owned();
    mdt.setting(
        "simulated_service",
        |mds| mds.simulation.service().map_or_else(|| "off".to_owned(), |service| service.to_string()),
        move |mds, text| {
            let service = match text.trim() {
                "off" | "0" => None,
                text => Some(text.parse::<ServiceTime>().map_err(|()| Status::EINVAL)?),
            };
            mds.simulation.set_service(service);
            match service {
                Some(service) => log::warn!("{label}: service times are simulated ({service})"),
                None => log::info!("{label}: service times are its own"),
            }
            Ok(())
        },
    );
}
