//! `nacre rebalance`: moves the data of files off OSTs that are fuller than the others, or are to be emptied.
//!
//! The MDT says which files have objects on an OST; each is moved as `lfs migrate` moves it, with its own layout and on OSTs that
//! have room. A file that somebody writes to is left for a later round; in the last one, writers of files that are not large wait for the copy. Nothing is remembered anywhere: what was moved is not on the OST any
//! more, so a command that was ended and is started again goes on where it was.

mod plan;

use super::RebalanceArgs;
use crate::failure::{EXIT_FAILURE, Failure, Result};
use crate::lfs::migrate::own_shape;
use crate::lfs::mounted::Mounted;
use crate::lfs::relocate::{Manner, Order, Stopped, relocate};
use crate::progress::Progress;
use nacre_layout::user;
use nacre_types::{Fid, TargetId};
use plan::{Plan, Use};
use serde::Serialize;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Space is shown in units of this many bytes (`st_blocks`).
const BLOCK_UNIT: u64 = 512;
/// State bits of targets that get nothing: degraded, read-only, no new objects, no space, no inodes (`OS_STATFS_*`).
const STATE_CLOSED: u32 = 0x01 | 0x02 | 0x04 | 0x20 | 0x40;
/// Rounds over files that were in use.
const ROUNDS: u32 = 3;
/// Time between two of them.
const BETWEEN_ROUNDS: Duration = Duration::from_secs(1);
/// Files that take longer to copy are not taken away from their writers; a second or less on a slow disk.
const WAITED_FOR_BYTES: u64 = 64 << 20;
/// How long files that lost their last descriptor may take to go.
const CLOSED_WITHIN: Duration = Duration::from_secs(3);
/// Time between two looks at that.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
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
    let mut plan = Plan::new(uses(&mount, args)?, &args.drain, args.within_percent)?;
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
        std::thread::sleep(BETWEEN_ROUNDS);
    }
    report.seconds = began.elapsed().as_secs_f64();
    drop(progress);
    show(args, &report)?;
    let is_well = report.failed_files == 0 && report.busy_files == 0;
    let mut emptied = drained.iter().filter(|_| is_well && !args.dry_run);
    if let Some(ost) = emptied.find(|ost| !is_empty_soon(&mount, **ost)) {
        eprintln!("nacre: files without a name that are open still have objects on OST{ost:04x}");
        return Ok(EXIT_FAILURE);
    }
    Ok(if is_well { 0 } else { EXIT_FAILURE })
}

/// True if no file has objects on the OST. What was just moved off it belongs to files without a name that are being closed.
fn is_empty_soon(mount: &Mounted, ost: u16) -> bool {
    let deadline = Instant::now() + CLOSED_WITHIN;
    loop {
        match has_files(mount, ost) {
            Ok(false) => return true,
            _ if Instant::now() >= deadline => return false,
            _ => std::thread::sleep(LOOK_AGAIN),
        }
    }
}

fn has_files(mount: &Mounted, ost: u16) -> std::io::Result<bool> {
    let mut after = Some(Fid::ZERO);
    while let Some(from) = after {
        let (fids, next) = mount.files_on(TargetId::ost(ost), from)?;
        if !fids.is_empty() {
            return Ok(true);
        }
        after = next;
    }
    Ok(false)
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
fn uses(mount: &Mounted, args: &RebalanceArgs) -> Result<Vec<Use>> {
    let rows = mount.targets_with_space().map_err(Failure::because("ask for the space of targets"))?;
    let osts = rows.into_iter().filter(|row| row.target.kind == nacre_types::TargetKind::Ost);
    let used = |row: crate::lfs::mounted::TargetRow| {
        // One that is to be emptied need not say what it has.
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

/// One OST being emptied.
struct Work<'a> {
    mount: &'a Mounted,
    args: &'a RebalanceArgs,
    progress: &'a mut Progress,
    report: &'a mut Report,
    /// What is in use this time is left.
    is_last: bool,
}

impl Work<'_> {
    /// Moves files off an OST as long as it has too much.
    fn empty(&mut self, source: u16, plan: &mut Plan) -> Result<()> {
        let mut after = Fid::ZERO;
        loop {
            let (fids, next) = self
                .mount
                .files_on(TargetId::ost(source), after)
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
        // Copied at once, so that nobody waits for long; a limit would make it long.
        let may_wait = self.is_last && (self.args.block || bytes <= WAITED_FOR_BYTES);
        let manner = if may_wait { Manner::Block } else { Manner::Try };
        match self.relocate(&path, (source, target.filter(|_| stripes == 1)), manner, plan) {
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
        (source, first): (u16, Option<u16>),
        manner: Manner,
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
            manner,
            bytes_per_second: (self.args.rate > 0 && manner == Manner::Try).then_some(self.args.rate << 20),
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
