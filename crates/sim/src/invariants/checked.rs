//! `nacre check` finds nothing on any target.

use crate::cluster::Cluster;
use crate::model::Rules;
use crate::target::mds_config;
use nacre_mds::check::{Problem, StoreReport, Targets, check_store, check_targets};
use nacre_types::TargetKind;

/// End of the text about an object without a file.
const ORPHAN: &str = "of data that belongs to no file";

/// Checks the stores of all targets, which are stopped.
///
/// # Errors
/// The problems.
pub(crate) fn check(cluster: &Cluster, rules: &Rules) -> Result<(), String> {
    let mut problems = Vec::new();
    let mut mdts = Vec::new();
    let tell = |problem: &Problem| format!("{}: {}", problem.fid, problem.text);
    for target in &cluster.targets {
        let found = match target.id.kind {
            TargetKind::Mdt => {
                mdts.push((target.disk.dir.clone(), target.id.index));
                let report = check_store(&target.disk.dir, &mds_config(target.id.index), false, &mut |_| {});
                let tell_all = |report: StoreReport| report.problems.iter().map(tell).collect();
                report.map_or_else(|error| vec![error.to_string()], tell_all)
            }
            _ => {
                let store = target.open_objects(None, false)?;
                let report = store.verify(false, &mut |_| {});
                let found = report.map_or_else(
                    |error| vec![error.to_string()],
                    |report| {
                        let objects = report.problems.iter().map(ToString::to_string);
                        objects.chain(report.index.problems.iter().map(ToString::to_string)).collect()
                    },
                );
                store.close().map_err(|error| error.to_string())?;
                found
            }
        };
        problems.extend(found.into_iter().map(|problem: String| format!("{}: {problem}", target.id)));
    }
    let (config, are_all) = (&mds_config(0), true);
    match check_targets(&Targets { dirs: &mdts, config, are_all }, false, &|_| true, &mut |_| {}) {
        Ok(reports) => problems.extend(reports.iter().flat_map(|report| &report.problems).map(tell)),
        Err(error) => problems.push(error.to_string()),
    }
    problems.retain(|problem| !(rules.orphans_objects() && problem.ends_with(ORPHAN)));
    if problems.is_empty() { Ok(()) } else { Err(format!("a check finds:\n  {}", problems.join("\n  "))) }
}
