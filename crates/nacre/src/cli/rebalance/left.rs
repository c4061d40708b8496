//! Verification that an OST is empty: by its remaining objects, and by the layouts of all files.

use super::page_of_files;
use crate::failure::{Failure, Result};
use crate::lfs::mounted::Mounted;
use nacre_env::clock::Instant;
use nacre_types::{Fid, TargetId};
use std::time::Duration;

/// Longest time without progress: files that lost their last descriptor are destroyed soon, and so are their
/// objects.
const GONE_WITHIN: Duration = Duration::from_secs(5);
/// Poll interval.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// Most files to list.
const NAMED_MAX: usize = 5;

/// Succeeds if no file has an object on the OST, whether it was ever written or not.
///
/// Orphan objects are reported, and are no failure: objects of removed files stay while the MDTs do not use
/// the OST.
///
/// # Errors
/// The remaining files, or the target that does not answer.
pub fn check_empty(mount: &Mounted, ost: u16) -> Result<()> {
    let target = TargetId::ost(ost);
    wait_for_closes(mount, ost)?;
    let objects = wait_for_destructions(mount, ost)?;
    if objects > 0 {
        // The list may miss a file once while it moves to another MDT.
        wait_for_closes(mount, ost)?;
        eprintln!(
            "nacre: {target} still holds {objects} objects that no file names; they go when MDTs use it again"
        );
    }
    Ok(())
}

/// Waits until no file has an object on the OST: objects that were just moved off it belong to files without
/// a name that are being closed.
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

/// Returns the number of objects on the OST once it stops falling.
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
