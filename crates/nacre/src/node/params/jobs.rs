//! Parameters of jobs: how a mount names them, and the counters of targets for each.

use nacre_client::Client;
use nacre_params::jobs::INTERVAL_S_MAX;
use nacre_params::{Entries, JobStats, Tree, value};
use std::sync::Arc;

/// Enters the counters of a target by job.
pub fn enter_stats<S: Send + Sync + 'static>(entries: &Entries<'_, S>, jobs: fn(&S) -> &JobStats) {
    entries.changing(
        "job_stats",
        move |server| Ok(jobs(server).text()),
        move |server, text| jobs(server).clear(text),
    );
    entries.setting(
        "job_cleanup_interval",
        move |server| jobs(server).interval_s(),
        move |server, text| {
            let seconds = value::integer(text, 0, INTERVAL_S_MAX.cast_signed())?;
            jobs(server).set_interval_s(seconds.unsigned_abs())
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
