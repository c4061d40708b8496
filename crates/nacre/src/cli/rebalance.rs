//! `nacre rebalance`: moves the data of files off OSTs that are fuller than the others, or are to be emptied.
//!
//! Each MDT lists its files with objects on an OST, files without names included; each is moved as `lfs
//! migrate` moves it, with its own layout and to OSTs with free space. A file that is being written to is
//! left for a later round; in the last one, writers of files that are not large wait for the copy. The
//! command keeps no state: what was moved is not on the OST any more, so a restarted command continues where
//! the interrupted one stopped.

mod left;
mod plan;

use super::RebalanceArgs;
use crate::failure::{EXIT_FAILURE, Failure, Result};
use crate::lfs::migrate::own_shape;
use crate::lfs::mounted::Mounted;
use crate::lfs::relocate::{Manner, Order, Stopped, relocate};
use crate::progress::Progress;
use nacre_env::clock::Instant;
use nacre_layout::user;
use nacre_types::ioctl::FilesWanted;
use nacre_types::{Fid, TargetId, TargetKind};
use plan::{Plan, Use};
use rustix::io::Errno;
use serde::Serialize;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Unit of space in reports, in bytes (`st_blocks`).
const BLOCK_UNIT: u64 = 512;
/// State bits of targets that take no objects: degraded, read-only, no new objects, no space, no inodes
/// (`OS_STATFS_*`).
const STATE_CLOSED: u32 = 0x01 | 0x02 | 0x04 | 0x20 | 0x40;
/// Rounds over files that were in use.
const ROUNDS: u32 = 3;
/// Pause between two rounds.
const BETWEEN_ROUNDS: Duration = Duration::from_secs(1);
/// Largest file whose writers may have to wait for the copy: a second or less on a slow disk.
const WAITED_FOR_BYTES: u64 = 64 << 20;
/// Timeout for an MDT to list its files, including retries.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);
/// Most failures to print; all are counted.
const SHOWN_MAX: usize = 20;

/// Result of the command.
#[derive(Debug, Default, Serialize)]
struct Report {
    /// Number of files that were moved.
    moved_files: u64,
    /// Bytes of these files.
    moved_bytes: u64,
    /// Number of files that were being written to in each round.
    busy_files: u64,
    /// Number of files that could not be moved for another reason.
    failed_files: u64,
    /// Duration in seconds.
    seconds: f64,
}

/// Runs the command.
pub fn run(args: &RebalanceArgs) -> Result<i32> {
    let mount = Mounted::open(&args.mount_point)
        .map_err(Failure::because(format!("use {} as a mount", args.mount_point.display())))?;
    let mut uses = uses(&mount, args)?;
    if !args.dry_run {
        close_drained(&mount, args, &mut uses);
    }
    let mut plan = Plan::new(uses, &args.drain, args.within_percent)?;
    let mut progress = Progress::new(args.json);
    let mut report = Report::default();
    let began = Instant::now();
    let drained = plan.drained();
    for round in 0..ROUNDS {
        report.busy_files = 0;
        for source in plan.sources() {
            let is_last = round + 1 == ROUNDS;
            let mut work =
                Work { mount: &mount, args, progress: &mut progress, report: &mut report, is_last };
            work.empty(source, &mut plan)?;
        }
        if report.busy_files == 0 || args.dry_run || round + 1 == ROUNDS {
            break;
        }
        progress.tell(&format!("{} files are in use; trying them again", report.busy_files));
        nacre_env::thread::sleep(BETWEEN_ROUNDS);
    }
    report.seconds = began.elapsed().as_secs_f64();
    drop(progress);
    show(args, &report)?;
    let is_well = report.failed_files == 0 && report.busy_files == 0;
    if is_well && !args.dry_run {
        drained.into_iter().try_for_each(|ost| left::check_empty(&mount, ost))?;
    }
    Ok(if is_well { 0 } else { EXIT_FAILURE })
}

/// Returns a page of the files that have objects on an OST.
///
/// # Errors
/// With the name of the MDT that does not answer.
fn page_of_files(mount: &Mounted, ost: u16, after: Fid) -> Result<(Vec<Fid>, Option<Fid>)> {
    let mdt = TargetId::mdt(after.mdt_index());
    let deadline = Instant::now() + ANSWERS_WITHIN;
    loop {
        match mount.files_on(FilesWanted::Objects(ost), after) {
            Err(error) if Errno::from_io_error(&error) != Some(Errno::TIMEDOUT) => {
                return Err(Failure::because(format!("ask {mdt} for files on OST{ost:04x}"))(error));
            }
            Err(_) if Instant::now() >= deadline => return Err(silent(mdt)),
            Err(_) => {}
            Ok(page) => return Ok(page),
        }
    }
}

fn silent(mdt: TargetId) -> Failure {
    Failure::new(format!(
        "{mdt} does not answer, and may have files on the OST: start it, then run this again"
    ))
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

/// Keeps new objects off the OSTs to be emptied, where copies would go, too. An OST on another host may have been closed otherwise
/// (`osp.*.active=0` on the MDTs): then a warning is all.
fn close_drained(mount: &Mounted, args: &RebalanceArgs, uses: &mut [Use]) {
    for ost in uses.iter_mut().filter(|ost| args.drain.contains(&ost.index) && !ost.is_closed) {
        if let Err(failure) = super::drain::close(mount, TargetId::ost(ost.index)) {
            eprintln!("nacre: {}", failure.message);
        }
        ost.is_closed = true;
    }
}

/// Returns the space of all OSTs that answer.
fn uses(mount: &Mounted, args: &RebalanceArgs) -> Result<Vec<Use>> {
    let rows = mount.targets_with_space().map_err(Failure::because("ask for the space of targets"))?;
    // Files of an MDT that does not answer cannot be moved.
    if let Some(mdt) = rows.iter().find(|row| row.target.kind == TargetKind::Mdt && row.space.is_none()) {
        return Err(silent(mdt.target));
    }
    let is_silent = |row: &&crate::lfs::mounted::TargetRow| {
        let is_drained = row.target.kind == TargetKind::Ost && args.drain.contains(&row.target.index);
        is_drained && row.space.is_none() && row.errno == Errno::TIMEDOUT.raw_os_error()
    };
    if let Some(ost) = rows.iter().find(is_silent) {
        let target = ost.target;
        return Err(Failure::new(format!(
            "{target} does not answer, so what is on it cannot be read: start it, then run this again"
        )));
    }
    let osts = rows.into_iter().filter(|row| row.target.kind == TargetKind::Ost);
    let used = |row: crate::lfs::mounted::TargetRow| {
        // An OST that is to be emptied need not report its space.
        let drained = args.drain.contains(&row.target.index);
        let none = drained.then_some(Use { index: row.target.index, used: 0, room: 0, is_closed: true });
        let Some(space) = row.space else { return none };
        let bytes = |blocks: u64| blocks.saturating_mul(u64::from(space.block_size));
        let used = bytes(space.blocks.saturating_sub(space.blocks_free));
        let is_closed = space.state & STATE_CLOSED != 0;
        Some(Use { index: row.target.index, used, room: used + bytes(space.blocks_available), is_closed })
    };
    Ok(osts.filter_map(used).collect())
}

/// State of one OST being emptied.
struct Work<'a> {
    mount: &'a Mounted,
    args: &'a RebalanceArgs,
    progress: &'a mut Progress,
    report: &'a mut Report,
    /// Last round: files in use are left.
    is_last: bool,
}

impl Work<'_> {
    /// Moves files off an OST while it has too much.
    fn empty(&mut self, source: u16, plan: &mut Plan) -> Result<()> {
        let mut after = Fid::ZERO;
        loop {
            let (fids, next) = page_of_files(self.mount, source, after)?;
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
        let root = self.root();
        let (path, directory) = match self.mount.paths_of(&fid, Some(0)) {
            Ok(paths) => (paths.first().map(|path| root.join(path)), None),
            // The file has lost its names, but may still be open.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NOENT) => (None, Some(&*root)),
            Err(error) => return self.note_failure(&format!("{fid}: cannot find a name: {error}")),
        };
        let path = path.unwrap_or_else(|| root.join(format!(".lustre/fid/{fid}")));
        let metadata = match path.symlink_metadata() {
            Ok(metadata) => metadata,
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NOENT) => return,
            Err(error) => return self.note_failure(&format!("{}: cannot stat: {error}", path.display())),
        };
        let (stripes, bytes) = (objects_of(&path).len().max(1) as u64, metadata.blocks() * BLOCK_UNIT);
        let share = bytes / stripes;
        let target = plan.target_for(source, share);
        if self.args.dry_run {
            self.note_moved(bytes);
            plan.moved(source, target, share);
            return;
        }
        // Copied at full speed, so that writers wait only briefly; a rate limit would prolong it.
        let may_wait = self.is_last && (self.args.block || bytes <= WAITED_FOR_BYTES);
        let manner = if may_wait { Manner::Block } else { Manner::Try };
        match self.relocate(&path, directory, source, target.filter(|_| stripes == 1), manner, plan) {
            Ok(_) => {
                self.note_moved(bytes);
                plan.moved(source, target, share);
            }
            Err(stopped) if stopped.is_for_now() => self.report.busy_files += 1,
            Err(stopped) if Errno::from_io_error(&stopped.error) == Some(Errno::NOENT) => {}
            Err(stopped) => {
                let (path, action, error) = (path.display(), stopped.action, &stopped.error);
                self.note_failure(&format!("{path}: cannot {action}: {error}"));
            }
        }
    }

    fn note_failure(&mut self, what: &str) {
        self.report.failed_files += 1;
        if self.report.failed_files as usize <= SHOWN_MAX {
            self.progress.tell(what);
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
        directory: Option<&Path>,
        source: u16,
        first: Option<u16>,
        manner: Manner,
        plan: &Plan,
    ) -> std::result::Result<u64, Stopped> {
        let failed = |error| Stopped { action: "get the layout", error };
        let layout = own_shape(path, first).map_err(failed)?;
        let mut nothing = |_, _| {};
        // Objects on another OST that is to be emptied would have to move again.
        let accept = |bytes: &[u8]| {
            user::decode_layout(bytes).map_or(true, |layout| {
                !layout.objects().any(|o| o.ost_index == source || plan.is_drained(o.ost_index))
            })
        };
        let mut order = Order {
            layout: &layout,
            directory,
            manner,
            bytes_per_second: (self.args.rate > 0 && manner == Manner::Try).then_some(self.args.rate << 20),
            progress: &mut nothing,
            accept: &accept,
        };
        relocate(path, &mut order)
    }

    /// Returns the root of the mount, to which paths of FIDs are relative.
    fn root(&self) -> PathBuf {
        let given = self.mount.path();
        let found = given.canonicalize().ok().and_then(|path| crate::mounts::mount_of(&path).ok().flatten());
        found.map_or_else(|| given.to_path_buf(), |mount| mount.mount_point)
    }
}

/// Returns the OSTs of the objects of a file.
fn objects_of(path: &Path) -> Vec<u16> {
    let bytes = crate::lfs::mounted::layout_of(path).ok().flatten().unwrap_or_default();
    user::decode_layout(&bytes).map_or_else(|_| Vec::new(), |l| l.objects().map(|o| o.ost_index).collect())
}
