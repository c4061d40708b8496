//! `nacre check`: looks at every target of a stopped file system.

use super::CheckArgs;
use crate::failure::{EXIT_FAILURE, Failure, Result};
use crate::instance::Instance;
use crate::node;
use crate::process::{MOUNT, NODE, RunDir, RunLock};
use crate::progress::Progress;
use nacre_store::object::ObjectStore;
use nacre_types::{TargetId, TargetKind};
use serde::Serialize;

/// What was found on one target.
#[derive(Debug, Serialize)]
struct TargetReport {
    target: String,
    problems: Vec<String>,
    repaired: u64,
}

/// Runs the command.
pub fn run(args: &CheckArgs) -> Result<i32> {
    let instance = Instance::open_existing(&args.dir)?;
    let run = RunDir::new(instance.run_dir());
    let _locks = take_all(&instance, &run)?;
    let mut progress = Progress::new(args.json);
    let mut reports = Vec::new();
    for target in instance.targets() {
        progress.show(&format!("checking {target}"));
        reports.push(check_target(&instance, target, args.repair, &mut progress)?);
    }
    drop(progress);
    let left: u64 =
        reports.iter().map(|report| (report.problems.len() as u64).saturating_sub(report.repaired)).sum();
    print_reports(&instance, &reports, left, args)?;
    Ok(if left == 0 { 0 } else { EXIT_FAILURE })
}

/// Nothing may start while targets are looked at.
fn take_all(instance: &Instance, run: &RunDir) -> Result<Vec<RunLock>> {
    let names = [NODE.to_owned(), MOUNT.to_owned()];
    let targets = instance.targets().into_iter().map(crate::instance::target_name);
    let dir = instance.dir.display();
    targets
        .chain(names)
        .map(|name| {
            run.lock(&name).map_err(|_| {
                Failure::new(format!(
                    "'{name}' of {dir} is running: stop the file system with 'nacre down {dir}' first"
                ))
            })
        })
        .collect()
}

fn check_target(
    instance: &Instance,
    target: TargetId,
    repair: bool,
    progress: &mut Progress,
) -> Result<TargetReport> {
    let mut show = |count: u64| progress.show(&format!("checking {target}: {count}"));
    let (problems, repaired) = match target.kind {
        TargetKind::Mgt => match nacre_mgs::service::load(&instance.target_dir(target)) {
            Ok(config) if config.fs_uuid != instance.superblock.fs_uuid => {
                (vec!["the configuration belongs to another file system".to_owned()], 0)
            }
            Ok(_) => (Vec::new(), 0),
            Err(error) => (vec![error.to_string()], 0),
        },
        TargetKind::Ost => {
            let store = node::open_objects(instance, target)?;
            let report =
                store.verify(repair, &mut show).map_err(Failure::because(format!("check {target}")))?;
            store.close().map_err(Failure::because(format!("close {target}")))?;
            (report.problems.iter().map(ToString::to_string).collect(), report.repaired)
        }
        TargetKind::Mdt => check_mdt(instance, target, repair, &mut show)?,
    };
    Ok(TargetReport { target: target.to_string(), problems, repaired })
}

fn check_mdt(
    instance: &Instance,
    target: TargetId,
    repair: bool,
    show: &mut dyn FnMut(u64),
) -> Result<(Vec<String>, u64)> {
    let config = nacre_mds::MdsConfig { index: target.index, ..nacre_mds::MdsConfig::default() };
    let dir = instance.target_dir(target);
    let report = nacre_mds::check::check_dir(&dir, &config, repair, show)
        .map_err(Failure::because(format!("check {target}")))?;
    let problems: Vec<String> = report.problems.iter().map(ToString::to_string).collect();
    let repaired = if repair { problems.len() as u64 } else { 0 };
    Ok((problems, repaired))
}

fn print_reports(instance: &Instance, reports: &[TargetReport], left: u64, args: &CheckArgs) -> Result<()> {
    if args.json {
        let text = serde_json::to_string_pretty(reports).map_err(Failure::because("write JSON"))?;
        println!("{text}");
        return Ok(());
    }
    for report in reports {
        for problem in &report.problems {
            println!("{}: {problem}", report.target);
        }
    }
    let count: usize = reports.iter().map(|report| report.problems.len()).sum();
    let name = &instance.superblock.fsname;
    match (count, left) {
        (0, _) => println!("file system '{name}': {} targets checked, no damage", reports.len()),
        (count, 0) => println!("file system '{name}': {count} problems found and repaired"),
        (count, _) if args.repair => println!("file system '{name}': {count} problems found, {left} left"),
        (count, _) => println!("file system '{name}': {count} problems found: mend them with --repair"),
    }
    Ok(())
}
