//! `nacre check`: checks every target of a stopped file system.

mod objects;

use super::CheckArgs;
use crate::failure::{EXIT_FAILURE, Failure, Result};
use crate::instance::Instance;
use crate::named;
use crate::node;
use crate::output::print_json;
use crate::process::{MOUNT, NODE, RunDir, RunLock};
use crate::progress::Progress;
use nacre_mds::check::Abandoned;
use nacre_store::object::block::is_block_store;
use nacre_store::object::nxd::{LogDamage, LogSurvey};
use nacre_store::object::repair_index;
use nacre_types::{TargetId, TargetKind};
use serde::Serialize;

/// Findings on one target.
#[derive(Debug, Default, Serialize)]
struct TargetReport {
    target: String,
    /// Description of what was checked.
    checked: String,
    /// Descriptions of problems, the first ones if there are very many.
    problems: Vec<String>,
    /// Number of all problems.
    problem_count: u64,
    /// Number of problems that were repaired.
    repaired: u64,
    /// Its objects cannot be read.
    #[serde(skip)]
    is_closed: bool,
    /// Records of its index are damaged or missing.
    #[serde(skip)]
    has_lost_records: bool,
}

/// Runs the command. Without `--repair` everything is opened read-only, and the directory may be on a
/// read-only file system.
pub fn run(args: &CheckArgs) -> Result<i32> {
    let instance = named::directory(&args.dir)?;
    let run = RunDir::new(instance.run_dir());
    let _locks = if args.repair { take_all(&instance, &run)? } else { refuse_running(&instance, &run)? };
    let mut progress = Progress::new(args.json);
    let mut reports: Vec<TargetReport> = check_superblock(&instance, args.repair)?.into_iter().collect();
    // First: the checks of MDTs leave alone records that a prepared transaction may need.
    let abandoned = abandoned_transactions(&instance, args.repair);
    for target in instance.targets() {
        progress.show(&format!("checking {target}"));
        let report = check_target(&instance, target, args.repair, &mut progress);
        reports.push(report.unwrap_or_else(|failure| TargetReport::unreadable(target, &failure)));
    }
    for found in abandoned {
        let name = TargetId::mdt(found.mdt).to_string();
        if let Some(report) = reports.iter_mut().find(|report| report.target == name) {
            report.problems.push(found.text);
            report.problem_count += 1;
            report.repaired += u64::from(found.is_removed);
        }
    }
    compare_mdts(&instance, &mut reports, &mut progress);
    progress.show("comparing objects with files");
    objects::compare(&instance, args.repair, &mut reports)?;
    drop(progress);
    let left = reports.iter().map(|report| report.problem_count.saturating_sub(report.repaired)).sum();
    print_reports(&instance, &reports, left, args)?;
    Ok(if left == 0 { 0 } else { EXIT_FAILURE })
}

impl TargetReport {
    /// Returns the report of a target that cannot be read; the check continues with the others.
    fn unreadable(target: TargetId, failure: &Failure) -> TargetReport {
        TargetReport {
            target: target.to_string(),
            checked: "not readable".to_owned(),
            problems: vec![failure.message.clone()],
            problem_count: 1,
            is_closed: true,
            ..TargetReport::default()
        }
    }

    /// Counts the problems that a second check after the repair does not find any more.
    fn set_repaired(&mut self, left: u64) {
        self.repaired = self.problem_count.saturating_sub(left);
    }
}

/// Reports damage of the directory's superblock, if any.
fn check_superblock(instance: &Instance, repair: bool) -> Result<Option<TargetReport>> {
    let damaged = instance.damaged_copies();
    if damaged.is_empty() {
        return Ok(None);
    }
    if repair {
        instance.restore_copies().map_err(Failure::because("rewrite the superblock"))?;
    }
    let mut report = TargetReport { target: "DIR".to_owned(), ..TargetReport::default() };
    report.checked = "1 superblock".to_owned();
    report.problems = damaged.iter().map(|path| copy_text(path)).collect();
    report.problem_count = damaged.len() as u64;
    report.set_repaired(instance.damaged_copies().len() as u64);
    Ok(Some(report))
}

fn copy_text(path: &std::path::Path) -> String {
    format!("{} is damaged, its other copy is not", path.display())
}

fn is_running(instance: &Instance, name: &str) -> Failure {
    let dir = instance.dir.display();
    Failure::new(format!("'{name}' of {dir} is running: stop the file system with 'nacre down {dir}' first"))
}

/// Refuses to check a running file system. Locks keep processes from starting during the check.
fn refuse_running(instance: &Instance, run: &RunDir) -> Result<Vec<RunLock>> {
    match run.running().first() {
        Some(name) => Err(is_running(instance, name)),
        None => Ok(Vec::new()),
    }
}

/// Takes the locks of all processes, so that none starts during the check.
pub(super) fn take_all(instance: &Instance, run: &RunDir) -> Result<Vec<RunLock>> {
    let names = [NODE.to_owned(), MOUNT.to_owned()];
    let targets = instance.targets().into_iter().map(crate::instance::target_name);
    targets.chain(names).map(|name| run.lock(&name).map_err(|_| is_running(instance, &name))).collect()
}

fn check_target(
    instance: &Instance,
    target: TargetId,
    repair: bool,
    progress: &mut Progress,
) -> Result<TargetReport> {
    let mut show = |count: u64| progress.show(&format!("checking {target}: {count}"));
    let report = match target.kind {
        TargetKind::Mgt => check_mgt(instance, target, repair)?,
        TargetKind::Ost => check_ost(instance, target, repair, &mut show)?,
        TargetKind::Mdt => check_mdt(instance, target, repair, &mut show)?,
    };
    Ok(TargetReport { target: target.to_string(), ..report })
}

fn check_mgt(instance: &Instance, target: TargetId, repair: bool) -> Result<TargetReport> {
    let dir = instance.target_dir(target);
    let failed = || Failure::because(format!("check {target}"));
    let found = nacre_mgs::service::load_copies(&dir).map_err(failed())?;
    let mut report = TargetReport { checked: "1 configuration".to_owned(), ..TargetReport::default() };
    report.problems = found.damaged.iter().map(|path| copy_text(path)).collect();
    if found.value.fs_uuid != instance.superblock.fs_uuid {
        report.problems.push("the configuration belongs to another file system".to_owned());
    } else if repair && !found.damaged.is_empty() {
        nacre_mgs::service::restore(&dir).map_err(failed())?;
        report.repaired = found.damaged.len() as u64;
    }
    report.problem_count = report.problems.len() as u64;
    Ok(report)
}

/// Checks the objects of an OST, or of an MDT that keeps data of files in a store of its own.
fn check_ost(
    instance: &Instance,
    target: TargetId,
    repair: bool,
    show: &mut dyn FnMut(u64),
) -> Result<TargetReport> {
    let mut report = look_at_ost(instance, target, show)?;
    if !repair || report.problem_count == 0 || report.is_closed {
        return Ok(report);
    }
    let failed = || Failure::because(format!("repair {target}"));
    if report.has_lost_records {
        // Changes to an index with lost records could increase the damage.
        return Ok(report);
    }
    repair_index(&instance.objects_dir(target)).map_err(failed())?;
    let store = node::open_objects(instance, target)?;
    store.verify(true, show).map_err(failed())?;
    store.close().map_err(failed())?;
    drop(store);
    report.set_repaired(look_at_ost(instance, target, show)?.problem_count);
    Ok(report)
}

/// Like [`check_ost`], read-only.
fn look_at_ost(instance: &Instance, target: TargetId, show: &mut dyn FnMut(u64)) -> Result<TargetReport> {
    let failed = || Failure::because(format!("check the cache of {target}"));
    let mut cache =
        CacheReport::of(crate::ost_cache::survey(&instance.target_dir(target)).map_err(failed())?);
    let opened = match cache.is_refused {
        true => None,
        false => Some(node::look_at_objects(instance, target)),
    };
    let store = match opened {
        Some(Ok(store)) => store,
        refused => {
            cache.problems.extend(refused.and_then(std::result::Result::err).map(|error| error.to_string()));
            let only = "its cache only, as it does not open with that";
            return Ok(TargetReport {
                checked: if cache.is_refused { only } else { "not readable" }.to_owned(),
                problem_count: cache.count.max(cache.problems.len() as u64),
                problems: cache.problems,
                is_closed: true,
                ..TargetReport::default()
            });
        }
    };
    let report = store.verify(false, show).map_err(Failure::because(format!("check {target}")))?;
    let objects = report.problems.iter().map(ToString::to_string);
    cache.problems.extend(objects.chain(report.index.problems.iter().map(ToString::to_string)));
    Ok(TargetReport {
        checked: format!("{} objects{}", report.objects, cache.checked),
        problems: cache.problems,
        problem_count: cache.count + report.problem_count + report.index.problem_count,
        has_lost_records: !report.index.keeps_entries(),
        ..TargetReport::default()
    })
}

/// Findings on the log of a cache.
#[derive(Default)]
struct CacheReport {
    checked: String,
    problems: Vec<String>,
    count: u64,
    is_refused: bool,
}

impl CacheReport {
    fn of(survey: Option<LogSurvey>) -> CacheReport {
        let Some(survey) = survey else { return CacheReport::default() };
        let is_refused = survey.is_refused();
        // A store that can be opened reports damaged data that no newer data covers itself.
        let counts = |damage: &&LogDamage| is_refused || !matches!(damage, LogDamage::Data { .. });
        let named = survey.damage.iter().filter(counts).map(ToString::to_string);
        let problems = named.chain(survey.hidden_text());
        CacheReport {
            checked: format!(", {} batches of the cache", survey.batches),
            problems: problems.collect(),
            count: survey.damage_count - if is_refused { 0 } else { survey.damaged_data },
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
        problem_count: report.problem_count(),
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

/// Returns distributed transactions that MDTs prepared and no coordinator decided, which a repair has
/// removed; none where an MDT cannot be read, which its own check reports.
fn abandoned_transactions(instance: &Instance, repair: bool) -> Vec<Abandoned> {
    let targets = instance.targets();
    let of = |kind: TargetKind| targets.iter().filter(move |target| target.kind == kind);
    let dirs: Vec<_> =
        of(TargetKind::Mdt).map(|target| (instance.target_dir(*target), target.index)).collect();
    // Only the MGS knows the targets of other hosts. A target that has not registered yet is in this
    // directory.
    let config = of(TargetKind::Mgt).find_map(|mgt| {
        nacre_mgs::service::load_copies(&instance.target_dir(*mgt)).ok().map(|found| found.value)
    });
    let all: Option<Vec<u16>> = config.map(|config| {
        let known = config.targets.iter().map(|known| known.target);
        let mdts = known.filter(|target| target.kind == TargetKind::Mdt).map(|target| target.index);
        mdts.chain(dirs.iter().map(|(_, index)| *index)).collect()
    });
    let config = nacre_mds::MdsConfig::default();
    nacre_mds::check::abandoned_transactions(&dirs, all.as_deref(), &config, repair).unwrap_or_default()
}

/// Adds problems that only a comparison of all MDTs shows, which are not repaired. An MDT that cannot be read
/// is left out; its own check reports it.
fn compare_mdts(instance: &Instance, reports: &mut [TargetReport], progress: &mut Progress) {
    let is_open = |target: &TargetId| {
        let name = target.to_string();
        !reports.iter().any(|report| report.target == name && report.is_closed)
    };
    let mdts: Vec<TargetId> = instance
        .targets()
        .into_iter()
        .filter(|target| target.kind == TargetKind::Mdt && is_open(target))
        .collect();
    if mdts.len() < 2 {
        return;
    }
    let dirs: Vec<_> = mdts.iter().map(|target| (instance.target_dir(*target), target.index)).collect();
    let mut show = |count: u64| progress.show(&format!("comparing metadata targets: {count}"));
    let found = match nacre_mds::check::check_dirs(&dirs, &nacre_mds::MdsConfig::default(), &mut show) {
        Ok(found) => found,
        Err(error) => {
            let first = mdts[0].to_string();
            if let Some(report) = reports.iter_mut().find(|report| report.target == first) {
                report.problems.push(format!("the metadata targets cannot be compared: {error}"));
                report.problem_count += 1;
            }
            return;
        }
    };
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
}

fn text_of(problem: &nacre_mds::check::Problem) -> String {
    match problem.fid.is_zero() {
        true => problem.text.clone(),
        false => format!("{}: {}", problem.fid, problem.text),
    }
}

fn print_reports(instance: &Instance, reports: &[TargetReport], left: u64, args: &CheckArgs) -> Result<()> {
    if args.json {
        return print_json(reports);
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
        (count, _) => println!("file system '{name}': {count} problems found: repair them with --repair"),
    }
    Ok(())
}
