//! Directories and their placement on MDTs.

use nacre_client::{Created, NewFile, XattrFlags};
use nacre_layout::dir_default::MAGIC_DEFAULT;
use nacre_layout::dir_layout::{MAGIC_DIRECTORY, USER_ROW};
use nacre_layout::{DirDefault, DirLayout, UserDir, user};
use nacre_types::attr::{FileKind, S_ISVTX};
use nacre_types::lustre::{self, name_in};
use nacre_types::{Status, StatusResult};

use crate::front::ioctl::{Asked, make_or_restripe, u32_at};
use crate::reply::Reply;

/// Offsets of fields in `lmv_user_md`.
const COUNT: usize = 4;
const TYPE: usize = 16;
/// Type in a request for the stored default, instead of the effective one.
const TYPE_RAW: u32 = 1;

const LAYOUT: &[u8] = b"lustre.lmv";
const DEFAULT: &[u8] = b"lustre.dmv";

/// Returns the shards of a directory or its foreign layout; or the default of new directories in it.
pub(super) fn directory_layout(asked: &Asked<'_>, reply: &mut Reply<'_>) -> StatusResult<()> {
    match u32_at(asked.call.data, 0)? {
        MAGIC_DEFAULT => {
            let is_raw = u32_at(asked.call.data, TYPE)? == TYPE_RAW;
            let default = match is_raw {
                true => asked.client.inodes.getxattr(asked.caller, asked.fid, DEFAULT)?,
                // The reply has no space for a list of MDTs.
                false => {
                    DirDefault { mdts: Vec::new(), ..asked.client.placement.dir_default(asked.fid)? }.encode()
                }
            };
            asked.answer_with_room(&default, reply);
        }
        MAGIC_DIRECTORY => {
            tell_layout(asked)?;
            reply.ioctl(0, &[]);
        }
        _ => return Err(Status::EINVAL),
    }
    Ok(())
}

fn tell_layout(asked: &Asked<'_>) -> StatusResult<()> {
    let stored = asked.client.inodes.getxattr(asked.caller, asked.fid, LAYOUT)?;
    // Lustre counts a foreign layout in units of the size of a shard's entry.
    let (layout, rows) = match user::is_foreign_directory(&stored) {
        true => (stored.clone(), stored.len().div_ceil(USER_ROW)),
        false => {
            let layout = DirLayout::decode(&stored).map_err(|_| Status::EPROTO)?;
            (UserDir::from(&layout).encode(), layout.shards.len())
        }
    };
    let room = u32_at(asked.call.data, COUNT)? as usize;
    let memory = asked.memory()?;
    if room < rows {
        let at = memory.argument().checked_add(COUNT as u64).ok_or(Status::EFAULT)?;
        memory.write(at, &(rows as u32).to_le_bytes())?;
        return Err(Status::E2BIG);
    }
    memory.write(memory.argument(), &layout)
}

/// Sets the default of new directories in a directory.
pub(super) fn set_directory_default(asked: &Asked<'_>) -> StatusResult<i32> {
    let default = asked.call.data;
    if u32_at(default, 0)? != MAGIC_DEFAULT {
        return Err(Status::EINVAL);
    }
    asked.client.names.setxattr(asked.caller, asked.fid, DEFAULT, default, XattrFlags::empty())?;
    Ok(0)
}

/// Migrates a named inode to other MDTs.
pub(super) fn migrate(asked: &Asked<'_>) -> StatusResult<i32> {
    let memory = asked.memory()?;
    let question = asked.obd(&memory)?;
    let name = name_in(&question.inline[0]).ok_or(Status::EINVAL)?;
    let requested = DirDefault::decode(&question.inline[1]).map_err(|_| Status::EINVAL)?;
    let outcome = asked.client.names.migrate(asked.caller, (asked.fid, name), &requested);
    asked.names.expire();
    outcome.map(|()| 0)
}

/// Creates a directory for which the caller specifies MDTs.
pub(super) fn make_directory(asked: &Asked<'_>) -> StatusResult<i32> {
    let memory = asked.memory()?;
    let question = asked.obd(&memory)?;
    let name = name_in(&question.inline[0]).ok_or(Status::EINVAL)?;
    let requested = &question.inline[1];
    let mode = FileKind::Directory.mode_bits() | question.kind & (0o777 | S_ISVTX);
    let what = Created { new: NewFile::Directory, mode, umask: memory.umask() };
    if u32_at(requested, 0)? != lustre::LMV_MAGIC_FOREIGN {
        let requested = DirDefault::decode(requested).map_err(|_| Status::EINVAL)?;
        // Lustre's programs send a count of one if the user has not specified any.
        let restripes = !(0..=1).contains(&requested.count);
        return make_or_restripe(asked, name, &what, &requested, restripes).map(|()| 0);
    }
    let made = asked.client.names.create_on(asked.caller, (asked.fid, name), &what, None)?;
    asked.client.inodes.forget(made.node, 1);
    if let Err(status) =
        asked.client.names.setxattr(asked.caller, made.attr.fid, LAYOUT, requested, XattrFlags::CREATE)
    {
        // No plain directory may be left in its place.
        if let Err(status) = asked.client.names.unlink(asked.caller, asked.fid, name, true) {
            log::warn!("a directory that was to be foreign stays as a plain one: {status}");
        }
        return Err(status);
    }
    // The kernel may have cached that the name does not exist.
    asked.names.expire();
    Ok(0)
}
