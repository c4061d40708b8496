//! `lfs pool_list`, and OST pools for other commands.

use super::getopt::Parsed;
use super::mounted::Mounted;
use super::{Command, Failure, Outcome, Run, query};
use nacre_layout::PoolName;
use nacre_types::TargetId;
use nacre_types::limits::POOL_NAME_MAX;
use rustix::io::Errno;
use std::path::Path;

/// Usage of `lfs pool_list`.
const LIST_USAGE: &str = "\
usage: lfs pool_list FSNAME[.POOL] | PATH
Lists the OST pools of a file system, or the OSTs of one pool.
Example: lfs pool_list nacre.flash
";

/// Entry of `lfs pool_list` in the table of commands.
pub const POOL_LIST: Command = Command {
    name: "pool_list",
    summary: "list OST pools, or the OSTs of one",
    usage: LIST_USAGE,
    run: Run::Parsed(&[query::HELP], list),
};

/// `lfs pool_list`.
fn list(parsed: &Parsed) -> Outcome {
    let [word] = parsed.operands.as_slice() else {
        let text = "lfs pool_list: FSNAME[.POOL] or a path is needed";
        return Err(Failure::usage(text.to_owned(), LIST_USAGE));
    };
    let word = word.to_string_lossy();
    // A path starts with a slash; any other word names a file system.
    let is_path = word.starts_with('/');
    let (device, pool) = match word.split_once('.') {
        Some((fsname, pool)) if !is_path => (fsname, Some(pool)),
        _ => (&*word, None),
    };
    let mount = match is_path {
        true => query::by_name_or_path(Path::new(device), "pool_list")?,
        false => query::by_name(device).ok_or_else(|| {
            let text =
                format!("lfs pool_list: cannot find file system '{device}': No such file or directory (2)");
            Failure::new(Errno::NOENT, text)
        })?,
    };
    let fsname = mount.fsname().to_owned();
    let opened = query::open(&mount, "pool_list")?;
    match pool {
        None => {
            let names = opened.pools().map_err(|error| query::failed("pool_list", opened.path(), &error))?;
            let lines: String = names.iter().map(|name| format!("{fsname}.{name}\n")).collect();
            super::print(&format!("Pools from {fsname}:\n{lines}"));
        }
        Some(pool) => {
            let members = members_of(&opened, pool, "pool_list")?;
            let lines: String =
                members.iter().map(|index| TargetId::ost(*index).uuid(&fsname) + "\n").collect();
            super::print(&format!("Pool: {fsname}.{pool}\n{lines}"));
        }
    }
    Ok(())
}

/// Returns the OSTs of a pool, which has to exist.
pub fn members_of(mount: &Mounted, pool: &str, command: &str) -> Result<Vec<u16>, Failure> {
    let found = mount.pool_members(pool).map_err(|error| query::failed(command, mount.path(), &error))?;
    found.ok_or_else(|| {
        let fsname = mount.fsname();
        let text = format!(
            "lfs {command}: pool '{pool} fsname {fsname}' does not exist: No such file or directory (2)"
        );
        Failure::new(Errno::NOENT, text)
    })
}

/// Returns the pool part of `POOL` or `FSNAME.POOL`.
pub fn name_in<'a>(word: &'a str, fsname: &str) -> &'a str {
    word.split_once('.').filter(|(known, _)| *known == fsname).map_or(word, |(_, pool)| pool)
}

/// Returns the file systems that options `-p FSNAME.POOL` name.
pub fn owners(parsed: &Parsed) -> Vec<String> {
    let pools =
        parsed.options.iter().filter(|(key, _)| *key == 'p').filter_map(|(_, value)| value.as_deref());
    pools.filter_map(|pool| pool.rsplit_once('.')).map(|(fsname, _)| fsname.to_owned()).collect()
}

/// Refuses pools of other file systems than the mounted one.
pub fn check_owners(command: &str, mount: &Mounted, owners: &[String]) -> Outcome {
    let fsname = mount.fsname();
    match owners.iter().find(|owner| **owner != fsname) {
        None => Ok(()),
        Some(owner) => {
            let text = format!(
                "{command}: pools of file system '{owner}' are not in '{fsname}': Invalid argument (22)"
            );
            Err(Failure::new(Errno::INVAL, text))
        }
    }
}

/// Parses a pool in the grammar of `setstripe -p`: `None` inherits.
pub fn requested_pool(command: &str, text: &str) -> Result<Option<PoolName>, Failure> {
    match text {
        "" | "inherit" | "none" => return Ok(None),
        "ignore" => return Ok(Some(PoolName::ignore())),
        _ => {}
    }
    // The file system's name is checked later, once the file system is known.
    let pool = text.rsplit_once('.').map_or(text, |(_, pool)| pool);
    let invalid =
        || Failure::new(Errno::INVAL, format!("{command}: Invalid Poolname '{text}': Invalid argument (22)"));
    if pool.len() > POOL_NAME_MAX {
        return Err(invalid());
    }
    PoolName::for_pool(pool).map(Some).map_err(|_| invalid())
}

/// Refuses a pool that does not exist or has no OSTs, or that lacks a requested OST.
pub fn check_requested(
    command: &str,
    mount: &Mounted,
    pool: PoolName,
    wanted: impl Iterator<Item = u16>,
) -> Outcome {
    let failed = |text: String| Err(Failure::new(Errno::INVAL, format!("{command}: {text}")));
    let fsname = mount.fsname();
    let members = mount.pool_members(pool.as_str());
    match members.map_err(|error| query::failed(command, mount.path(), &error))? {
        None => {
            failed(format!("pool '{pool} fsname {fsname}' does not exist: No such file or directory (2)"))
        }
        Some(members) if members.is_empty() => {
            failed(format!("pool '{pool} fsname {fsname}' has no OSTs: Invalid argument (22)"))
        }
        Some(members) => match wanted.into_iter().find(|index| !members.contains(index)) {
            Some(index) => failed(format!(
                "OST index {index} is not in pool '{pool} fsname {fsname}': Invalid argument (22)"
            )),
            None => Ok(()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_are_wished_for_by_name_or_by_word() {
        let requested = |text: &str| requested_pool("lfs setstripe", text).expect(text);
        for word in ["", "inherit", "none"] {
            assert_eq!(requested(word), None);
        }
        assert_eq!(requested("ignore"), Some(PoolName::ignore()));
        assert_eq!(requested("flash").map(|pool| pool.to_string()).as_deref(), Some("flash"));
        assert_eq!(requested("testfs.flash").map(|pool| pool.to_string()).as_deref(), Some("flash"));
        for bad in ["toolongpoolname123", "a b", "a/b"] {
            let failure = requested_pool("lfs setstripe", bad).expect_err(bad);
            let text = format!("lfs setstripe: Invalid Poolname '{bad}': Invalid argument (22)");
            assert_eq!((failure.exit, failure.message), (22, text));
        }
        assert_eq!(
            (name_in("fs.a", "fs"), name_in("a", "fs"), name_in("other.a", "fs")),
            ("a", "a", "other.a")
        );
    }
}
