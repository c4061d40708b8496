//! Parameters of jobs: how a mount names them, and what targets count for each.

use nacre_client::Client;
use nacre_params::jobs::INTERVAL_S_MAX;
use nacre_params::{JobStats, Tree, value};
use std::sync::Arc;

/// Enters what a target counts by job below `below`, which is the target's.
pub fn enter_stats<S: Send + Sync + 'static>(
    tree: &Tree,
    below: &str,
    server: &Arc<S>,
    jobs: fn(&S) -> &JobStats,
) {
    let (get, set) = (server.clone(), server.clone());
    tree.add_both(
        &format!("{below}.job_stats"),
        move || Ok(jobs(&get).text()),
        move |text| jobs(&set).clear(text),
    );
    let (get, set) = (server.clone(), server.clone());
    tree.add_both(
        &format!("{below}.job_cleanup_interval"),
        move || Ok(jobs(&get).interval_s().to_string()),
        move |text| {
            let seconds = value::integer(text, 0, INTERVAL_S_MAX.cast_signed())?;
            jobs(&set).set_interval_s(seconds.unsigned_abs())
        },
    );
}

/// Enters how the mount of this process names jobs.
pub fn enter_names(tree: &Tree, client: &Arc<Client>) {
    let (get, set) = (client.clone(), client.clone());
    tree.add_both("jobid_var", move || Ok(get.jobs.var()), move |text| set.jobs.set_var(text));
    let (get, set) = (client.clone(), client.clone());
    tree.add_both("jobid_name", move || Ok(get.jobs.format()), move |text| set.jobs.set_format(text));
}
