//! `nacre check`: checks every target of a stopped file system, or the targets of a running one in use.

mod objects;
mod online;

use crate::failure::{EXIT_FAILURE, Failure, Result};
use crate::instance::Instance;
use crate::named;
use crate::node;
use crate::output::print_json;
use crate::process::{MOUNT, NODE, RunDir, RunLock};
use crate::progress::Progress;
use nacre_mds::check::{Abandoned, FoundObject, Kind, StoreReport, Targets};
use nacre_ondisk::OwnerRecord;
use nacre_store::object::block::is_block_store;
use nacre_store::object::nxd::{LogDamage, LogSurvey};
use nacre_store::object::{OWNERS, ObjectProblem, repair_index};
use nacre_types::{Fid, TargetId, TargetKind};
use nacre_wire::mgs::TargetConfig;
use serde::{Serialize, Serializer};
use std::path::PathBuf;

/// Checks a file system: names, inodes, layouts and objects.
///
/// Of a stopped one, all is read and compared; --repair repairs all that has a right answer. While it runs, its servers
/// walk what they have at a bounded rate; --repair repairs what can be repaired in use.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit code 0 if everything is well (or was repaired), 1 if damage is left.
Example: nacre check /srv/fs
         nacre check /srv/fs --repair --json
         nacre check /mnt/nacre --rate 500 --data    while it runs")]
pub struct CheckArgs {
    /// Directory or mount point of the file system
    dir: PathBuf,
    /// Repair the damage where possible
    #[arg(long)]
    repair: bool,
    /// While it runs: inodes per second on each MDT, 0 for as many as possible; 2000 unless set
    #[arg(long, value_name = "N")]
    rate: Option<u64>,
    /// While it runs: continue where the last check was interrupted
    #[arg(long)]
    resume: bool,
    /// While it runs: read all data of OSTs too, and compare checksums, 32 KiB for each inode of the rate
    #[arg(long)]
    data: bool,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// A problem in a report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Finding {
    #[serde(serialize_with = "name_of")]
    kind: Kind,
    /// Inode or object concerned, where there is one.
    fid: Option<String>,
    /// Description, a sentence for an administrator.
    text: String,
}

fn name_of<S: Serializer>(kind: &Kind, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.serialize_str(kind.name())
}

/// Findings on one target.
#[derive(Debug, Default, Serialize)]
struct TargetReport {
    target: String,
    /// Description of what was checked.
    checked: String,
    /// Problems, the first ones if there are very many.
    problems: Vec<Finding>,
    /// Number of all problems.
    problem_count: u64,
    /// Number of problems that were repaired.
    repaired: u64,
    /// It cannot be read.
    #[serde(skip)]
    is_closed: bool,
    /// Records of its index are damaged or missing.
    #[serde(skip)]
    has_lost_records: bool,
}

/// Runs the command. Without `--repair` everything is opened read-only, and the directory may be on a
/// read-only file system. While servers run, they check what they serve ([`online`]).
pub fn run(args: &CheckArgs) -> Result<i32> {
    let instance = named::directory(&args.dir)?;
    let run = RunDir::new(instance.run_dir());
    if !run.running().is_empty() {
        return online::run(args, &instance, &run);
    }
    if args.rate.is_some() || args.resume {
        return Err(Failure::new("--rate and --resume are for a file system that runs".to_owned()));
    }
    let _locks = if args.repair { take_all(&instance, &run)? } else { Vec::new() };
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
        if let Some(report) = report_of(&mut reports, TargetId::mdt(found.mdt)) {
            report.add(Kind::Transaction, None, found.text);
            report.repaired += u64::from(found.is_removed);
        }
    }
    check_names(&instance, args.repair, &mut reports, &mut progress);
    progress.show("comparing objects with files");
    objects::compare(&instance, args.repair, &mut reports)?;
    drop(progress);
    let left = reports.iter().map(|report| report.problem_count.saturating_sub(report.repaired)).sum();
    match args.json {
        true => print_json(&reports)?,
        false => print_text(&instance, &reports, left, args),
    }
    Ok(if left == 0 { 0 } else { EXIT_FAILURE })
}

fn report_of(reports: &mut [TargetReport], target: TargetId) -> Option<&mut TargetReport> {
    let name = target.to_string();
    reports.iter_mut().find(|report| report.target == name)
}

impl TargetReport {
    /// Returns the report of a target that cannot be read; the check continues with the others.
    fn unreadable(target: TargetId, failure: &Failure) -> TargetReport {
        let mut report =
            TargetReport { target: target.to_string(), is_closed: true, ..TargetReport::default() };
        "not readable".clone_into(&mut report.checked);
        report.add(Kind::Store, None, failure.message.clone());
        report
    }

    fn add(&mut self, kind: Kind, fid: Option<Fid>, text: String) {
        self.problem_count += 1;
        self.problems.push(Finding { kind, fid: fid.map(|fid| fid.to_string()), text });
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
    damaged.iter().for_each(|path| report.add(Kind::Copy, None, copy_text(path)));
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
    found.damaged.iter().for_each(|path| report.add(Kind::Copy, None, copy_text(path)));
    if found.value.fs_uuid != instance.superblock.fs_uuid {
        report.add(Kind::Store, None, "the configuration belongs to another file system".to_owned());
    } else if repair && !found.damaged.is_empty() {
        nacre_mgs::service::restore(&dir).map_err(failed())?;
        report.repaired = found.damaged.len() as u64;
    }
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
        // Its objects are in files or blocks that no other record names: changes could only increase the damage.
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
            let refused = refused.and_then(std::result::Result::err).map(|error| error.to_string());
            cache.problems.extend(refused.map(|text| Finding { kind: Kind::Store, fid: None, text }));
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
    let finding = |kind, text| Finding { kind, fid: None, text };
    cache.problems.extend(report.problems.iter().map(|it| finding(kind_of(it), it.to_string())));
    cache.problems.extend(report.index.problems.iter().map(|it| finding(Kind::Store, it.to_string())));
    Ok(TargetReport {
        checked: format!("{} objects{}", report.objects, cache.checked),
        problems: cache.problems,
        problem_count: cache.count + report.problem_count + report.index.problem_count,
        has_lost_records: !report.index.keeps_entries(),
        ..TargetReport::default()
    })
}

fn kind_of(problem: &ObjectProblem) -> Kind {
    match problem {
        ObjectProblem::Copy { .. } => Kind::Copy,
        ObjectProblem::Data { .. }
        | ObjectProblem::Sum { .. }
        | ObjectProblem::Unreadable { .. }
        | ObjectProblem::Cached { .. } => Kind::Data,
        _ => Kind::Store,
    }
}

/// Findings on the log of a cache.
#[derive(Default)]
struct CacheReport {
    checked: String,
    problems: Vec<Finding>,
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
        let finding = |text| Finding { kind: Kind::Data, fid: None, text };
        let problems = named.chain(survey.hidden_text()).map(finding);
        CacheReport {
            checked: format!(", {} batches of the cache", survey.batches),
            problems: problems.collect(),
            count: survey.damage_count - if is_refused { 0 } else { survey.damaged_data },
            is_refused,
        }
    }
}

/// Checks the stores of an MDT: [`check_names`] checks what they mean.
fn check_mdt(
    instance: &Instance,
    target: TargetId,
    repair: bool,
    show: &mut dyn FnMut(u64),
) -> Result<TargetReport> {
    let config = nacre_mds::MdsConfig { index: target.index, ..nacre_mds::MdsConfig::default() };
    let dir = instance.target_dir(target);
    let StoreReport { problems, problem_count, repaired, .. } =
        nacre_mds::check::check_store(&dir, &config, repair, show)
            .map_err(Failure::because(format!("check {target}")))?;
    let mut found = TargetReport {
        problems: problems.into_iter().map(Finding::from).collect(),
        problem_count,
        repaired,
        ..TargetReport::default()
    };
    if is_block_store(&instance.objects_dir(target)) {
        let data = check_ost(instance, target, repair, show)?;
        found.checked = data.checked;
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

/// Checks names, inodes and logs of all MDTs together. An MDT that cannot be read is left out; its own check reports it.
fn check_names(instance: &Instance, repair: bool, reports: &mut [TargetReport], progress: &mut Progress) {
    let targets = instance.targets().into_iter().filter(|target| target.kind == TargetKind::Mdt);
    let is_open = |target: &TargetId| {
        let name = target.to_string();
        !reports.iter().any(|report| report.target == name && report.is_closed)
    };
    let mdts: Vec<TargetId> = targets.filter(is_open).collect();
    let Some(first) = mdts.first().copied() else { return };
    let dirs: Vec<(PathBuf, u16)> =
        mdts.iter().map(|target| (instance.target_dir(*target), target.index)).collect();
    let are_all = objects::has_all_mdts(instance) && dirs.len() == count_mdts(instance);
    let config = &nacre_mds::MdsConfig::default();
    let mut show = |count: u64| progress.show(&format!("checking names and inodes: {count}"));
    let visit = |take: &mut dyn FnMut(FoundObject)| visit_objects(instance, take);
    let targets = Targets { dirs: &dirs, config, are_all };
    let found = match nacre_mds::check::check_targets(&targets, repair, &visit, &mut show) {
        Ok(found) => found,
        Err(error) => {
            if let Some(report) = report_of(reports, first) {
                report.add(Kind::Store, None, format!("names and inodes cannot be checked: {error}"));
            }
            return;
        }
    };
    for found in found {
        let Some(report) = report_of(reports, TargetId::mdt(found.mdt)) else { continue };
        let data = std::mem::take(&mut report.checked);
        let separator = if data.is_empty() { "" } else { ", " };
        report.checked = format!("{} inodes, {} names{separator}{data}", found.inodes, found.names);
        report.problem_count += found.problems.len() as u64;
        report.problems.extend(found.problems.into_iter().map(Finding::from));
        report.repaired += found.repaired;
    }
}

fn count_mdts(instance: &Instance) -> usize {
    instance.targets().iter().filter(|target| target.kind == TargetKind::Mdt).count()
}

/// Visits the objects of all targets of this directory; returns false if some are missing, or are elsewhere.
fn visit_objects(instance: &Instance, take: &mut dyn FnMut(FoundObject)) -> bool {
    let here = instance.targets();
    let config = nacre_mgs::service::load(&instance.target_dir(TargetId::mgt()));
    let is_here = |it: &TargetConfig| it.target.kind != TargetKind::Ost || here.contains(&it.target);
    let mut is_complete = config.is_ok_and(|config| config.targets.iter().all(is_here));
    for target in here {
        let ost_index = match target.kind {
            TargetKind::Ost => target.index,
            TargetKind::Mdt if is_block_store(&instance.objects_dir(target)) => {
                TargetId::mdt_data(target.index).map_or(target.index, |data| data.index)
            }
            _ => continue,
        };
        let Ok(store) = node::look_at_objects(instance, target) else {
            is_complete = false;
            continue;
        };
        let mut all_read = true;
        let visited = store.for_each_object(&mut |object| {
            let Ok(attr) = store.attr(object) else {
                all_read = false;
                return;
            };
            let owned = store.abilities().index.and_then(|index| {
                let read = index.get(OWNERS, &object.to_key(), |value| value.map(OwnerRecord::decode));
                read.ok().flatten().and_then(std::result::Result::ok)
            });
            let (size, blocks, mtime) = (attr.size, attr.blocks, attr.mtime);
            let (owners, place) = (owned.map(|it| it.owners), owned.and_then(|it| it.place));
            take(FoundObject { ost_index, object, size, blocks, mtime, owners, place });
        });
        is_complete &= visited.is_ok() && all_read;
    }
    is_complete
}

impl From<nacre_mds::check::Problem> for Finding {
    fn from(problem: nacre_mds::check::Problem) -> Finding {
        let fid = (!problem.fid.is_zero()).then(|| problem.fid.to_string());
        let text = match &fid {
            None => problem.text,
            Some(fid) => format!("{fid}: {}", problem.text),
        };
        Finding { kind: problem.kind, fid, text }
    }
}

fn print_text(instance: &Instance, reports: &[TargetReport], left: u64, args: &CheckArgs) {
    for report in reports {
        println!("{:<8} {}, {} problems", report.target, report.checked, report.problem_count);
        for problem in &report.problems {
            println!("         {}", problem.text);
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
}
