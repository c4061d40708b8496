//! `nacre check` finds nothing on any target.

use crate::cluster::Cluster;
use crate::model::Rules;
use crate::target::mds_config;
use nacre_mds::check::{CheckReport, Problem, check_dir, check_dirs};
use nacre_types::TargetKind;

/// End of the text about an object without a file.
const ORPHAN: &str = "is an object with data that belongs to no file";

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
                let report = check_dir(&target.disk.dir, &mds_config(target.id.index), false, &mut |_| {});
                let tell_all = |report: CheckReport| report.problems.iter().map(tell).collect();
                report.map_or_else(|error| vec![error.to_string()], tell_all)
            }
            _ => {
                let store = target.open_objects(false, false)?;
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
    if mdts.len() > 1 {
        match check_dirs(&mdts, &mds_config(0), &mut |_| {}) {
            Ok(found) => problems.extend(found.iter().map(tell)),
            Err(error) => problems.push(error.to_string()),
        }
    }
    problems.retain(|problem| !(rules.orphans_objects() && problem.ends_with(ORPHAN)));
    if mdts.len() > 1 && rules.splits_transactions() {
        problems.clear();
    }
    if problems.is_empty() { Ok(()) } else { Err(format!("a check finds:\n  {}", problems.join("\n  "))) }
}
