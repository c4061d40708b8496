//! Whether an OST has been emptied: by what it still holds, and by the layouts of all files.

use super::page_of_files;
use crate::failure::{Failure, Result};
use crate::lfs::mounted::Mounted;
use nacre_env::clock::Instant;
use nacre_types::{Fid, TargetId};
use std::time::Duration;

/// Files that lost their last descriptor go soon, and so do their objects. If nothing goes for so long, nothing will.
const GONE_WITHIN: Duration = Duration::from_secs(5);
/// Time between two looks at that.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// Files that are named.
const NAMED_MAX: usize = 5;

/// Succeeds if no file has an object on the OST, whether it was ever written or not.
///
/// Objects that no file names are reported, and are no failure: those of removed files stay while the MDTs do not use the OST.
///
/// # Errors
/// What is left, or which target does not tell.
pub fn check_empty(mount: &Mounted, ost: u16) -> Result<()> {
    let target = TargetId::ost(ost);
    wait_for_closes(mount, ost)?;
    let objects = wait_for_destructions(mount, ost)?;
    if objects > 0 {
        // A file that moves to another MDT meanwhile may be passed over once.
        wait_for_closes(mount, ost)?;
        eprintln!(
            "nacre: {target} still holds {objects} objects that no file names; they go when MDTs use it again"
        );
    }
    Ok(())
}

/// Succeeds when no file has an object on the OST. What was just moved off it belongs to files without a name that are being closed.
fn wait_for_closes(mount: &Mounted, ost: u16) -> Result<()> {
    let (mut least, mut deadline) = (usize::MAX, Instant::now() + GONE_WITHIN);
    loop {
        let files = files_on(mount, ost)?;
        match files.len() {
            0 => return Ok(()),
            count if count < least => (least, deadline) = (count, Instant::now() + GONE_WITHIN),
            count if Instant::now() >= deadline => {
                let named: Vec<String> = files.iter().take(NAMED_MAX).map(Fid::to_string).collect();
                let more = if count > NAMED_MAX { " ..." } else { "" };
                let (target, named) = (TargetId::ost(ost), named.join(" "));
                return Err(Failure::new(format!(
                    "{target} is not empty: {count} files still have objects there ({named}{more}); run this again"
                )));
            }
            _ => {}
        }
        nacre_env::thread::sleep(LOOK_AGAIN);
    }
}

fn files_on(mount: &Mounted, ost: u16) -> Result<Vec<Fid>> {
    let (mut files, mut after) = (Vec::new(), Some(Fid::ZERO));
    while let Some(from) = after {
        let (mut found, next) = page_of_files(mount, ost, from)?;
        files.append(&mut found);
        after = next;
    }
    Ok(files)
}

/// Objects on the OST when they do not get fewer any more.
fn wait_for_destructions(mount: &Mounted, ost: u16) -> Result<u64> {
    let (mut least, mut deadline) = (u64::MAX, Instant::now() + GONE_WITHIN);
    loop {
        let space = mount.space_of(TargetId::ost(ost));
        match space.map(|space| space.files.saturating_sub(space.files_free)) {
            Ok(0) => return Ok(0),
            Ok(objects) if objects < least => {
                (least, deadline) = (objects, Instant::now() + GONE_WITHIN);
            }
            Ok(objects) if Instant::now() >= deadline => return Ok(objects),
            Err(error) if Instant::now() >= deadline => {
                let what = format!("learn from {} whether it is empty", TargetId::ost(ost));
                return Err(Failure::because(what)(error));
            }
            _ => {}
        }
        nacre_env::thread::sleep(LOOK_AGAIN);
    }
}
