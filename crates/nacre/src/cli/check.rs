//! `nacre check`: looks at every target of a stopped file system.

mod objects;

use super::CheckArgs;
use crate::failure::{EXIT_FAILURE, Failure, Result};
use crate::instance::Instance;
use crate::node;
use crate::process::{MOUNT, NODE, RunDir, RunLock};
use crate::progress::Progress;
use nacre_store::object::block::is_block_store;
use nacre_store::object::nxd::{LogDamage, LogSurvey};
use nacre_types::{TargetId, TargetKind};
use serde::Serialize;

/// What was found on one target.
#[derive(Debug, Default, Serialize)]
struct TargetReport {
    target: String,
    /// What was looked at, in words.
    checked: String,
    /// Problems in words, the first ones if there are very many.
    problems: Vec<String>,
    /// All problems.
    problem_count: u64,
    /// Problems that were mended.
    repaired: u64,
    /// Its objects cannot be looked at.
    #[serde(skip)]
    is_closed: bool,
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
    compare_mdts(&instance, &mut reports, &mut progress)?;
    progress.show("comparing objects with files");
    objects::compare(&instance, args.repair, &mut reports)?;
    drop(progress);
    let left = reports.iter().map(|report| report.problem_count.saturating_sub(report.repaired)).sum();
    print_reports(&instance, &reports, left, args)?;
    Ok(if left == 0 { 0 } else { EXIT_FAILURE })
}

/// Nothing may start while targets are looked at.
pub(super) fn take_all(instance: &Instance, run: &RunDir) -> Result<Vec<RunLock>> {
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
    let report = match target.kind {
        TargetKind::Mgt => check_mgt(instance, target),
        TargetKind::Ost => check_ost(instance, target, repair, &mut show)?,
        TargetKind::Mdt => check_mdt(instance, target, repair, &mut show)?,
    };
    Ok(TargetReport { target: target.to_string(), ..report })
}

fn check_mgt(instance: &Instance, target: TargetId) -> TargetReport {
    let problem = match nacre_mgs::service::load(&instance.target_dir(target)) {
        Ok(config) if config.fs_uuid == instance.superblock.fs_uuid => None,
        Ok(_) => Some("the configuration belongs to another file system".to_owned()),
        Err(error) => Some(error.to_string()),
    };
    let problem_count = u64::from(problem.is_some());
    let problems = problem.into_iter().collect();
    TargetReport { checked: "1 configuration".to_owned(), problems, problem_count, ..TargetReport::default() }
}

/// The objects of an OST, or of an MDT that keeps data of files in a store of its own.
fn check_ost(
    instance: &Instance,
    target: TargetId,
    repair: bool,
    show: &mut dyn FnMut(u64),
) -> Result<TargetReport> {
    let failed = || Failure::because(format!("check the cache of {target}"));
    let mut cache =
        CacheReport::of(crate::ost_cache::survey(&instance.target_dir(target)).map_err(failed())?);
    if cache.is_refused {
        return Ok(TargetReport {
            checked: "its cache only, as it does not open with that".to_owned(),
            problem_count: cache.count,
            problems: cache.problems,
            is_closed: true,
            ..TargetReport::default()
        });
    }
    let store = node::open_objects(instance, target)?;
    let report = store.verify(repair, show).map_err(Failure::because(format!("check {target}")))?;
    store.close().map_err(Failure::because(format!("close {target}")))?;
    let objects = report.problems.iter().map(ToString::to_string);
    cache.problems.extend(objects.chain(report.index.problems.iter().map(ToString::to_string)));
    Ok(TargetReport {
        checked: format!("{} objects{}", report.objects, cache.checked),
        problems: cache.problems,
        problem_count: cache.count + report.problem_count + report.index.problem_count,
        repaired: cache.repaired + report.repaired,
        ..TargetReport::default()
    })
}

/// What a look at the log of a cache has shown.
#[derive(Default)]
struct CacheReport {
    checked: String,
    problems: Vec<String>,
    count: u64,
    repaired: u64,
    is_refused: bool,
}

impl CacheReport {
    fn of(survey: Option<LogSurvey>) -> CacheReport {
        let Some(survey) = survey else { return CacheReport::default() };
        let is_copy = |damage: &&LogDamage| matches!(damage, LogDamage::Superblock { .. });
        let is_refused = survey.is_refused();
        // If the store opens it names itself what is damaged and not covered by anything newer.
        let counts = |damage: &&LogDamage| is_refused || !matches!(damage, LogDamage::Data { .. });
        let named = survey.damage.iter().filter(counts).map(ToString::to_string);
        let problems = named.chain(survey.hidden_text());
        CacheReport {
            checked: format!(", {} batches of the cache", survey.batches),
            problems: problems.collect(),
            count: survey.damage_count - if is_refused { 0 } else { survey.damaged_data },
            // Opening the store writes them anew.
            repaired: if is_refused { 0 } else { survey.damage.iter().filter(is_copy).count() as u64 },
            is_refused,
        }
    }
}

fn check_mdt(
    instance: &Instance,
    target: TargetId,
    repair: bool,
    show: &mut dyn FnMut(u64),
) -> Result<TargetReport> {
    let config = nacre_mds::MdsConfig { index: target.index, ..nacre_mds::MdsConfig::default() };
    let dir = instance.target_dir(target);
    let report = nacre_mds::check::check_dir(&dir, &config, repair, show)
        .map_err(Failure::because(format!("check {target}")))?;
    let mut found = TargetReport {
        checked: format!("{} inodes, {} names", report.inodes, report.names),
        problems: report.problems.iter().map(text_of).collect(),
        problem_count: report.problems.len() as u64,
        repaired: report.repaired,
        ..TargetReport::default()
    };
    if is_block_store(&instance.objects_dir(target)) {
        let data = check_ost(instance, target, repair, show)?;
        found.checked = format!("{}, {}", found.checked, data.checked);
        found.problems.extend(data.problems);
        found.problem_count += data.problem_count;
        found.repaired += data.repaired;
    }
    Ok(found)
}

/// Adds what only a look at all MDTs together tells, which is not repaired.
fn compare_mdts(instance: &Instance, reports: &mut [TargetReport], progress: &mut Progress) -> Result<()> {
    let mdts = || instance.targets().into_iter().filter(|target| target.kind == TargetKind::Mdt);
    if mdts().count() < 2 {
        return Ok(());
    }
    let dirs: Vec<_> = mdts().map(|target| (instance.target_dir(target), target.index)).collect();
    let mut show = |count: u64| progress.show(&format!("comparing metadata targets: {count}"));
    let found = nacre_mds::check::check_dirs(&dirs, &nacre_mds::MdsConfig::default(), &mut show)
        .map_err(Failure::because("compare the metadata targets"))?;
    for problem in found {
        let target = TargetId::mdt(if problem.fid.is_zero() { 0 } else { problem.fid.mdt_index() });
        let Some(report) = reports.iter_mut().find(|report| report.target == target.to_string()) else {
            continue;
        };
        let text = text_of(&problem);
        if !report.problems.contains(&text) {
            report.problems.push(text);
            report.problem_count += 1;
        }
    }
    Ok(())
}

fn text_of(problem: &nacre_mds::check::Problem) -> String {
    match problem.fid.is_zero() {
        true => problem.text.clone(),
        false => format!("{}: {}", problem.fid, problem.text),
    }
}

fn print_reports(instance: &Instance, reports: &[TargetReport], left: u64, args: &CheckArgs) -> Result<()> {
    if args.json {
        let text = serde_json::to_string_pretty(reports).map_err(Failure::because("write JSON"))?;
        println!("{text}");
        return Ok(());
    }
    for report in reports {
        println!("{:<8} {}, {} problems", report.target, report.checked, report.problem_count);
        for problem in &report.problems {
            println!("         {problem}");
        }
    }
    let count: u64 = reports.iter().map(|report| report.problem_count).sum();
    let name = &instance.superblock.fsname;
    match (count, left) {
        (0, _) => println!("file system '{name}': {} targets checked, no damage", reports.len()),
        (count, 0) => println!("file system '{name}': {count} problems found and repaired"),
        (count, _) if args.repair => println!("file system '{name}': {count} problems found, {left} left"),
        (count, _) => println!("file system '{name}': {count} problems found: mend them with --repair"),
    }
    Ok(())
}
