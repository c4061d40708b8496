//! `nacre rebalance`: moves the data of files off OSTs that are fuller than the others, or are to be emptied.
//!
//! The MDT says which files have objects on an OST; each is moved as `lfs migrate` moves it, with its own layout and on OSTs that
//! have room. A file that somebody writes to is left for a later round. Nothing is remembered anywhere: what was moved is not on the OST any
//! more, so a command that was ended and is started again goes on where it was.

mod plan;

use super::RebalanceArgs;
use crate::failure::{EXIT_FAILURE, Failure, Result};
use crate::lfs::migrate::own_shape;
use crate::lfs::mounted::Mounted;
use crate::lfs::relocate::{Manner, Order, Stopped, relocate};
use crate::progress::Progress;
use nacre_layout::user;
use nacre_types::Fid;
use plan::{Plan, Use};
use serde::Serialize;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Space is shown in units of this many bytes (`st_blocks`).
const BLOCK_UNIT: u64 = 512;
/// Rounds over files that were in use.
const ROUNDS: u32 = 3;
/// Time between two of them.
const BETWEEN_ROUNDS: Duration = Duration::from_secs(2);
/// Failures that are printed; all are counted.
const SHOWN_MAX: usize = 20;

/// What was done.
#[derive(Debug, Default, Serialize)]
struct Report {
    /// Files that were moved.
    moved_files: u64,
    /// Their bytes.
    moved_bytes: u64,
    /// Files that others wrote to each time.
    busy_files: u64,
    /// Files that could not be moved for another reason.
    failed_files: u64,
    /// Time that it took, in seconds.
    seconds: f64,
}

/// Runs the command.
pub fn run(args: &RebalanceArgs) -> Result<i32> {
    let mount = Mounted::open(&args.mount_point)
        .map_err(Failure::because(format!("use {} as a mount", args.mount_point.display())))?;
    let mut plan = Plan::new(uses(&mount)?, &args.drain, args.within_percent)?;
    let mut progress = Progress::new(args.json);
    let mut report = Report::default();
    let began = Instant::now();
    let drained = plan.drained();
    for round in 0..ROUNDS {
        report.busy_files = 0;
        for source in plan.sources() {
            let mut work = Work { mount: &mount, args, progress: &mut progress, report: &mut report };
            work.empty(source, &mut plan)?;
        }
        if report.busy_files == 0 || args.dry_run || round + 1 == ROUNDS {
            break;
        }
        progress.tell(&format!("{} files are in use; trying them again", report.busy_files));
        std::thread::sleep(BETWEEN_ROUNDS);
    }
    report.seconds = began.elapsed().as_secs_f64();
    drop(progress);
    show(args, &report)?;
    let left =
        drained.iter().any(|ost| !mount.files_on(*ost, Fid::ZERO).is_ok_and(|found| found.0.is_empty()));
    let is_well = report.failed_files == 0 && report.busy_files == 0 && (args.dry_run || !left);
    Ok(if is_well { 0 } else { EXIT_FAILURE })
}

fn show(args: &RebalanceArgs, report: &Report) -> Result<()> {
    if args.json {
        println!("{}", serde_json::to_string(report).map_err(Failure::because("write JSON"))?);
        return Ok(());
    }
    let verb = if args.dry_run { "would move" } else { "moved" };
    println!(
        "{verb} {} files, {} MiB in {:.1} s; {} in use, {} failed",
        report.moved_files,
        report.moved_bytes >> 20,
        report.seconds,
        report.busy_files,
        report.failed_files
    );
    Ok(())
}

/// Space of all OSTs that answer.
fn uses(mount: &Mounted) -> Result<Vec<Use>> {
    let rows = mount.targets_with_space().map_err(Failure::because("ask for the space of targets"))?;
    let osts = rows.into_iter().filter(|row| row.target.kind == nacre_types::TargetKind::Ost);
    let used = |row: crate::lfs::mounted::TargetRow| {
        let space = row.space?;
        let bytes = |blocks: u64| blocks.saturating_mul(u64::from(space.block_size));
        let used = bytes(space.blocks.saturating_sub(space.blocks_free));
        Some(Use { index: row.target.index, used, room: used + bytes(space.blocks_available) })
    };
    Ok(osts.filter_map(used).collect())
}

/// One OST being emptied.
struct Work<'a> {
    mount: &'a Mounted,
    args: &'a RebalanceArgs,
    progress: &'a mut Progress,
    report: &'a mut Report,
}

impl Work<'_> {
    /// Moves files off an OST as long as it has too much.
    fn empty(&mut self, source: u16, plan: &mut Plan) -> Result<()> {
        let mut after = Fid::ZERO;
        loop {
            let (fids, next) = self
                .mount
                .files_on(source, after)
                .map_err(Failure::because(format!("ask for files on OST{source:04x}")))?;
            for fid in fids {
                if !plan.has_too_much(source) {
                    return Ok(());
                }
                self.move_one(fid, source, plan);
            }
            match next {
                Some(next) => after = next,
                None => return Ok(()),
            }
        }
    }

    fn move_one(&mut self, fid: Fid, source: u16, plan: &mut Plan) {
        // One that has lost its names meanwhile goes by itself.
        let Ok(paths) = self.mount.paths_of(&fid, Some(0)) else { return };
        let Some(path) = paths.first().map(|path| self.root().join(path)) else { return };
        let Ok(metadata) = path.symlink_metadata() else { return };
        let (stripes, bytes) = (objects_of(&path).len().max(1) as u64, metadata.blocks() * BLOCK_UNIT);
        let share = bytes / stripes;
        let target = plan.target_for(source, share);
        if self.args.dry_run {
            self.note_moved(bytes);
            plan.moved(source, target, share);
            return;
        }
        match self.relocate(&path, source, target.filter(|_| stripes == 1), plan) {
            Ok(_) => {
                self.note_moved(bytes);
                plan.moved(source, target, share);
            }
            Err(stopped) if stopped.is_for_now() => self.report.busy_files += 1,
            Err(stopped) if stopped.error.raw_os_error() == Some(libc::ENOENT) => {}
            Err(stopped) => {
                self.report.failed_files += 1;
                if self.report.failed_files as usize <= SHOWN_MAX {
                    let (path, action, error) = (path.display(), stopped.action, &stopped.error);
                    self.progress.tell(&format!("{path}: cannot {action}: {error}"));
                }
            }
        }
    }

    fn note_moved(&mut self, bytes: u64) {
        self.report.moved_files += 1;
        self.report.moved_bytes += bytes;
        let report = &self.report;
        self.progress.show(&format!("{} files, {} MiB moved", report.moved_files, report.moved_bytes >> 20));
    }

    fn relocate(
        &self,
        path: &Path,
        source: u16,
        first: Option<u16>,
        plan: &Plan,
    ) -> std::result::Result<u64, Stopped> {
        let failed = |error| Stopped { action: "get the layout", error };
        let layout = own_shape(path, first).map_err(failed)?;
        let mut nothing = |_, _| {};
        // Objects on another OST that is to be emptied would be moved for nothing.
        let accept = |bytes: &[u8]| {
            user::decode_layout(bytes).map_or(true, |layout| {
                !layout.objects().any(|o| o.ost_index == source || plan.is_drained(o.ost_index))
            })
        };
        let mut order = Order {
            layout: &layout,
            manner: Manner::GiveUp,
            bytes_per_second: (self.args.rate > 0).then_some(self.args.rate << 20),
            progress: &mut nothing,
            accept: &accept,
        };
        relocate(path, &mut order)
    }

    /// The root of the mount, to which paths of FIDs are relative.
    fn root(&self) -> PathBuf {
        let given = self.mount.path();
        let found = given.canonicalize().ok().and_then(|path| crate::mounts::mount_of(&path).ok().flatten());
        found.map_or_else(|| given.to_path_buf(), |mount| mount.mount_point)
    }
}

/// OSTs of the objects of a file.
fn objects_of(path: &Path) -> Vec<u16> {
    let bytes = crate::lfs::mounted::layout_of(path).ok().flatten().unwrap_or_default();
    user::decode_layout(&bytes).map_or_else(|_| Vec::new(), |l| l.objects().map(|o| o.ost_index).collect())
}
