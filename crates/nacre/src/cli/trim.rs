//! `nacre trim`: reports free space of object targets to their media.

use super::frag::behind;
use super::status::size;
use crate::backend::Backend;
use crate::control::{self, Answer, Request, TRIM_TIME};
use crate::failure::{EXIT_FAILURE, Failure, Result};
use crate::instance::{Instance, canonical, target_name};
use crate::named;
use crate::output::print_json;
use crate::process::{NODE, RunDir};
use crate::progress::Progress;
use crate::{mounts, node, registry};
use clap::Args;
use nacre_env::clock::Instant;
use nacre_store::object::Trimmed;
use nacre_store::object::trim::trim_for;
use nacre_types::{TargetId, TargetKind};
use serde::Serialize;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Timeout of one answer of a running target: a device may be slow to discard, and other requests may be
/// ahead.
const ANSWER_LIMIT: Duration = Duration::from_secs(600);

/// Reports the free space of OSTs to their media: devices discard it, sparse files release it.
///
/// OSTs do so automatically when they are mostly idle (obdfilter.*.trim_policy). An OST with the back end
/// 'file' trims the file system below it (as fstrim does), which needs root. OSTs that do not run are trimmed
/// too.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit code 0 if all targets were trimmed, 1 if one does not support discard.
Example: nacre trim /srv/fs                all OSTs of a file system here; so does its mount point
         nacre trim /srv/fs/ost0001
         nacre trim nacre-OST0001 --json")]
pub struct TrimArgs {
    /// Directory of a file system, its mount point, directory or name (if it runs here) of an OST or of an
    /// MDT with a device
    #[arg(value_name = "TARGET|MOUNT|DIR")]
    what: PathBuf,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// A target to trim: an OST, or an MDT that keeps data of files on a device.
struct Ost {
    instance: Instance,
    target: TargetId,
}

impl Ost {
    fn dir(&self) -> PathBuf {
        self.instance.objects_dir(self.target)
    }

    /// Returns the index by which its process knows it.
    fn index(&self) -> u16 {
        match self.target.kind {
            TargetKind::Mdt => {
                TargetId::mdt_data(self.target.index).map_or(self.target.index, |data| data.index)
            }
            _ => self.target.index,
        }
    }

    fn name(&self) -> String {
        format!("{}-{}", self.instance.superblock.fsname, self.target)
    }
}

/// Result for one target.
#[derive(Debug, Serialize)]
struct Report {
    target: String,
    backend: &'static str,
    /// Reported free space, in bytes.
    bytes: u64,
    /// Number of extents, where it is known.
    extents: Option<u64>,
    seconds: f64,
    /// Target on the same file system, which was trimmed for both.
    with: Option<String>,
    error: Option<String>,
}

/// Runs the command.
pub fn run(args: &TrimArgs) -> Result<i32> {
    let osts = targets(&args.what)?;
    let mut progress = Progress::new(args.json);
    let mut trimmed: BTreeMap<u64, String> = BTreeMap::new();
    let mut reports = Vec::new();
    for ost in &osts {
        let backend = Backend::kind_of(&ost.instance, ost.target).unwrap_or("");
        let mut report = Report {
            target: ost.name(),
            backend,
            bytes: 0,
            extents: None,
            seconds: 0.0,
            with: None,
            error: None,
        };
        // Targets on one file system share its free space: it is trimmed once.
        let below = std::fs::metadata(ost.dir()).ok().filter(|_| backend == "file").map(|meta| meta.dev());
        match below.and_then(|below| trimmed.get(&below)) {
            Some(other) => report.with = Some(other.clone()),
            None => trim(ost, &mut report, &mut progress),
        }
        if let Some(below) = below {
            trimmed.entry(below).or_insert_with(|| report.target.clone());
        }
        reports.push(report);
    }
    drop(progress);
    if args.json {
        print_json(&reports)?;
    } else {
        reports.iter().for_each(|report| println!("{}", line(report)));
    }
    Ok(if reports.iter().any(|report| report.error.is_some()) { EXIT_FAILURE } else { 0 })
}

fn line(report: &Report) -> String {
    let Report { target, backend, .. } = report;
    let what = match (&report.error, &report.with, report.extents) {
        (Some(error), ..) => error.clone(),
        (_, Some(with), _) => format!("on the file system of {with}"),
        (.., Some(extents)) => {
            format!("{} in {extents} extents, {:.2} s", size(report.bytes), report.seconds)
        }
        (.., None) => format!("{}, {:.2} s", size(report.bytes), report.seconds),
    };
    format!("{target:<16} {backend:<6} {what}")
}

/// Returns the object targets that the argument names.
fn targets(what: &Path) -> Result<Vec<Ost>> {
    if !what.exists() {
        return named(&what.to_string_lossy());
    }
    let path = canonical(what)?;
    if let Some(mount) = mounts::mount_of(&path).map_err(Failure::because("read the mount table"))? {
        return osts_of(&behind(&mount.mount_point, &path)?);
    }
    if let Ok(Some(instance)) = Instance::open(&path) {
        return osts_of(&instance);
    }
    let instance = path.parent().and_then(|dir| Instance::open(dir).ok().flatten());
    let found = instance.and_then(|instance| osts_of(&instance).ok()).unwrap_or_default();
    let is_it = |ost: &Ost| ost.instance.target_dir(ost.target) == path;
    let found: Vec<Ost> = found.into_iter().filter(is_it).collect();
    match found.is_empty() {
        false => Ok(found),
        true => Err(Failure::new(format!(
            "{} is no mount point, no directory of a file system and none of a target of ours with objects",
            path.display()
        ))),
    }
}

fn osts_of(instance: &Instance) -> Result<Vec<Ost>> {
    let targets = instance.object_targets()?;
    Ok(targets.into_iter().map(|target| Ost { instance: instance.clone(), target }).collect())
}

/// Returns targets of file systems that run on this host, by a name with or without that of the file system.
fn named(name: &str) -> Result<Vec<Ost>> {
    let runs = registry::running();
    let instances = runs.iter().filter_map(named::instance_of);
    let is_it = |ost: &Ost| ost.name() == name || ost.target.to_string() == name;
    let found: Vec<Ost> =
        instances.flat_map(|instance| osts_of(&instance).unwrap_or_default()).filter(is_it).collect();
    match found.len() {
        1 => Ok(found),
        0 => Err(Failure::new(format!(
            "there is no '{name}': no path, and no target with objects that runs here"
        ))),
        _ => {
            let names: Vec<String> =
                found.iter().map(|ost| format!("{} ({})", ost.name(), ost.dir().display())).collect();
            Err(Failure::new(format!("'{name}' is several: {}; name the directory", names.join(", "))))
        }
    }
}

fn trim(ost: &Ost, report: &mut Report, progress: &mut Progress) {
    let begun = Instant::now();
    let result = match socket_of(ost) {
        Some(socket) => to_the_end(report, progress, |from| ask(&socket, ost.index(), from)),
        None => trim_stopped(ost, report, progress),
    };
    report.error = result.err().map(|failure| failure.message);
    report.seconds = begun.elapsed().as_secs_f64();
}

/// Repeats the request until no free space is left to report.
fn to_the_end(
    report: &mut Report,
    progress: &mut Progress,
    mut some: impl FnMut(u64) -> Result<Trimmed>,
) -> Result<()> {
    let mut from = Some(0);
    while let Some(at) = from {
        progress.show(&format!("trimming {}: {}", report.target, size(report.bytes)));
        let trimmed = some(at)?;
        report.bytes += trimmed.bytes;
        report.extents = trimmed.extents.map(|extents| report.extents.unwrap_or(0) + extents);
        from = trimmed.next;
    }
    Ok(())
}

/// Returns the control socket of the process that serves a target, if it runs.
fn socket_of(ost: &Ost) -> Option<PathBuf> {
    let run = RunDir::new(ost.instance.run_dir());
    let names = [target_name(ost.target), NODE.to_owned()];
    let name = names.iter().find(|name| run.pid(name).is_some())?;
    Some(run.socket(name))
}

fn ask(socket: &Path, ost: u16, from: u64) -> Result<Trimmed> {
    match control::ask_for(socket, &Request::Trim { ost, from }, ANSWER_LIMIT) {
        Ok(Answer::Trimmed { bytes, extents, next }) => Ok(Trimmed { bytes, extents, next }),
        Ok(Answer::Error { message, .. }) => Err(Failure::new(message)),
        Ok(_) => Err(Failure::new("the process that serves it is of a version that cannot be asked")),
        Err(error) => Err(Failure::new(format!("the process that serves it does not answer: {error}"))),
    }
}

fn trim_stopped(ost: &Ost, report: &mut Report, progress: &mut Progress) -> Result<()> {
    let run = RunDir::new(ost.instance.run_dir());
    // The locks keep any process from starting it meanwhile.
    let _locks = [run.lock(&target_name(ost.target))?, run.lock(NODE)?];
    let store = node::open_objects(&ost.instance, ost.target)?;
    let some = |from| trim_for(&*store, from, TRIM_TIME).map_err(|error| Failure::new(error.to_string()));
    let result = to_the_end(report, progress, some);
    store.close().map_err(Failure::because(format!("close {}", ost.target)))?;
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        Report {
            target: "x-OST0001".to_owned(),
            backend: "block",
            bytes: 3 << 29,
            extents: Some(7),
            seconds: 0.25,
            with: None,
            error: None,
        }
    }

    #[test]
    fn a_line_says_what_was_told_or_why_not() {
        assert_eq!(line(&report()), "x-OST0001        block  1.5GiB in 7 extents, 0.25 s");
        let file = Report { backend: "file", extents: None, ..report() };
        assert_eq!(line(&file), "x-OST0001        file   1.5GiB, 0.25 s");
        let same = Report { with: Some("x-OST0000".to_owned()), ..report() };
        assert!(line(&same).ends_with("on the file system of x-OST0000"));
        let refused = Report { error: Some("no".to_owned()), ..report() };
        assert!(line(&refused).ends_with("block  no"));
    }

    #[test]
    fn what_is_no_target_is_said_to_be_none() {
        let dir = tempfile::tempdir().expect("a directory");
        let error = |what: &Path| targets(what).err().expect("refused").message;
        assert!(error(dir.path()).contains("none of a target of ours"));
        assert!(error(Path::new("none-OST0000")).contains("no target with objects that runs here"));
    }

    #[test]
    fn pieces_add_up_to_the_end() {
        let mut report = Report { bytes: 0, extents: None, ..report() };
        let mut asked = Vec::new();
        let some = |from: u64| {
            asked.push(from);
            Ok(Trimmed { bytes: 10, extents: Some(2), next: (from < 2).then_some(from + 1) })
        };
        to_the_end(&mut report, &mut Progress::new(true), some).expect("no failure");
        assert_eq!((report.bytes, report.extents, asked), (30, Some(6), vec![0, 1, 2]));
    }
}
