//! `lctl pool_new`, `pool_add`, `pool_remove`, `pool_destroy`, `pool_list`: OST pools, stored by the
//! management server. Messages go to standard error as Lustre's do.

use super::{Outcome, find_names, management, refused, usage, with_code};
use crate::control::{self, Answer, PoolStep, Request};
use crate::failure::{Failure, Result, error_text};
use crate::ost_list;
use nacre_env::clock::Instant;
use nacre_layout::PoolName;
use nacre_types::TargetId;
use nacre_types::nid::check_fsname;
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Timeout for a change to reach the mounts and metadata servers of this host (Lustre waits as long for a
/// client).
const SEEN_LIMIT: Duration = Duration::from_secs(12);
/// Poll interval of that wait.
const SEEN_STEP: Duration = Duration::from_millis(20);

/// A pool: its name and its OSTs.
type Pool = (String, Vec<u16>);

/// Pools and OSTs that the management server of a file system knows.
struct Known {
    socket: PathBuf,
    pools: Vec<Pool>,
    osts: Vec<u16>,
}

impl Known {
    fn of(fsname: &str) -> Result<Known> {
        let socket = management(Some(fsname))?;
        match control::ask(&socket, &Request::Pools) {
            Ok(Answer::Pools { pools, osts }) => Ok(Known { socket, pools, osts }),
            Ok(Answer::Error { errno, message }) => Err(with_code(errno, format!("lctl: pools: {message}"))),
            other => Err(refused(Errno::IO, format!("lctl: the management server gave no pools: {other:?}"))),
        }
    }

    fn pool(&self, name: &str) -> Option<&Pool> {
        self.pools.iter().find(|(known, _)| known == name)
    }
}

/// Returns the operands of a command, and whether it must not wait (`-n`).
fn words<'a>(command: &str, args: &'a [String]) -> Result<(bool, &'a [String])> {
    match args.split_first() {
        Some((word, rest)) if word == "-n" || word == "--nowait" => Ok((true, rest)),
        Some((word, _)) if word.starts_with('-') => {
            Err(usage(format!("lctl {command}: unrecognized option '{word}'")))
        }
        _ => Ok((false, args)),
    }
}

/// Splits `FSNAME.POOL`, by the rules for new names if `is_new`.
fn names<'a>(command: &str, word: &'a str, is_new: bool) -> Result<(&'a str, &'a str)> {
    let bad = |text: String| refused(Errno::INVAL, format!("{command}: {text}: Invalid argument"));
    let split =
        word.split_once('.').ok_or_else(|| bad(format!("argument {word} must be <fsname>.<poolname>")));
    let (fsname, pool) = split?;
    check_fsname(fsname).map_err(|error| bad(error.to_string()))?;
    if is_new {
        PoolName::for_pool(pool).map_err(|error| bad(error.to_string()))?;
    }
    Ok((fsname, pool))
}

/// Makes one change; reports a refusal of the server.
fn change(known: &Known, pool: &str, step: PoolStep) -> Outcome {
    match control::ask(&known.socket, &Request::ChangePool { pool: pool.to_owned(), step }) {
        Ok(Answer::Done) => Ok(()),
        Ok(Answer::Error { errno, message }) => Err(with_code(errno, message)),
        other => Err(refused(Errno::IO, format!("the management server did not answer: {other:?}"))),
    }
}

/// Waits until every mount and metadata server of this host knows the current members of the pool.
fn wait_until_seen(fsname: &str, pool: &str) -> Outcome {
    let deadline = Instant::now() + SEEN_LIMIT;
    let wanted: Option<Vec<u16>> = Known::of(fsname)?.pool(pool).map(|(_, osts)| osts.clone());
    let wanted = wanted.map(|osts| osts.iter().map(|index| uuid(fsname, *index) + "\n").collect::<String>());
    while !is_seen(fsname, pool, wanted.as_deref()) {
        if Instant::now() >= deadline {
            eprintln!("Warning, pool {fsname}.{pool}: not all of this host have seen the change yet");
            return Ok(());
        }
        nacre_env::thread::sleep(SEEN_STEP);
    }
    Ok(())
}

fn is_seen(fsname: &str, pool: &str, wanted: Option<&str>) -> bool {
    let patterns = [format!("lov.{fsname}-clilov-*"), format!("lod.{fsname}-MDT*-mdtlov")];
    patterns.iter().flat_map(|above| find_names(above)).all(|(socket, above)| {
        let read = Request::ReadParam { name: format!("{above}.pools.{pool}") };
        match control::ask_if_there(&socket, &read) {
            Some(Ok(Answer::Value { value })) => wanted == Some(value.as_str()),
            Some(Ok(Answer::Error { errno, .. })) if errno == Errno::NOENT.raw_os_error() => wanted.is_none(),
            // A process that does not answer would not answer within the timeout either.
            _ => true,
        }
    })
}

fn uuid(fsname: &str, index: u16) -> String {
    TargetId::ost(index).uuid(fsname)
}

fn not_found(command: &str, fsname: &str, pool: &str) -> Failure {
    refused(Errno::NOENT, format!("Pool {fsname}.{pool} not found\n{command}: No such file or directory"))
}

/// `lctl pool_new FSNAME.POOL`.
pub fn new(args: &[String]) -> Outcome {
    let (no_wait, rest) = words("pool_new", args)?;
    let [word] = rest else { return Err(usage("lctl pool_new: FSNAME.POOL is needed")) };
    let (fsname, pool) = names("pool_new", word, true)?;
    let known = Known::of(fsname)?;
    if known.pool(pool).is_some() {
        return Err(refused(
            Errno::EXIST,
            format!("Pool {fsname}.{pool} already exists\npool_new: File exists"),
        ));
    }
    change(&known, pool, PoolStep::Create)
        .map_err(|failure| with_code(failure.exit, format!("pool_new: {failure}")))?;
    if !no_wait {
        wait_until_seen(fsname, pool)?;
    }
    eprintln!("Pool {fsname}.{pool} created");
    Ok(())
}

/// `lctl pool_destroy FSNAME.POOL`.
pub fn destroy(args: &[String]) -> Outcome {
    let (no_wait, rest) = words("pool_destroy", args)?;
    let [word] = rest else {
        return Err(usage("lctl pool_destroy: FSNAME.POOL is needed"));
    };
    let (fsname, pool) = names("pool_destroy", word, false)?;
    let known = Known::of(fsname)?;
    let (_, osts) = known.pool(pool).ok_or_else(|| not_found("pool_destroy", fsname, pool))?;
    if !osts.is_empty() {
        let text = format!(
            "Pool {fsname}.{pool} not empty, please remove all members\npool_destroy: Directory not empty"
        );
        return Err(refused(Errno::NOTEMPTY, text));
    }
    change(&known, pool, PoolStep::Destroy)
        .map_err(|failure| with_code(failure.exit, format!("pool_destroy: {failure}")))?;
    if !no_wait {
        wait_until_seen(fsname, pool)?;
    }
    eprintln!("Pool {fsname}.{pool} destroyed");
    Ok(())
}

/// `lctl pool_add FSNAME.POOL OST...` and `lctl pool_remove FSNAME.POOL OST...`.
pub fn members(args: &[String], adds: bool) -> Outcome {
    let command = if adds { "pool_add" } else { "pool_remove" };
    let (no_wait, rest) = words(command, args)?;
    let [word, lists @ ..] = rest else {
        return Err(usage(format!("lctl {command}: FSNAME.POOL and OSTs are needed")));
    };
    if lists.is_empty() {
        return Err(usage(format!("lctl {command}: OSTs are needed")));
    }
    let (fsname, pool) = names(command, word, false)?;
    let known = Known::of(fsname)?;
    let (_, before) = known.pool(pool).ok_or_else(|| not_found(command, fsname, pool))?;
    let mut failed = None;
    let mut fail = |errno: Errno, text: String| {
        eprintln!("{text}");
        failed = Some(errno);
    };
    for list in lists {
        let indexes = match ost_list::parse(list, fsname) {
            Ok(indexes) => indexes,
            Err(text) => {
                fail(Errno::INVAL, text);
                continue;
            }
        };
        for index in indexes {
            let name = uuid(fsname, index);
            if adds && !known.osts.contains(&index) {
                fail(Errno::NOENT, format!("OST {name} is not part of the '{fsname}' fs."));
                continue;
            }
            let (step, done) = match adds {
                true => (PoolStep::Add { ost: index }, "added to"),
                false => (PoolStep::Remove { ost: index }, "removed from"),
            };
            let Err(failure) = change(&known, pool, step) else {
                eprintln!("OST {name} {done} pool {fsname}.{pool}");
                continue;
            };
            match Errno::from_raw_os_error(failure.exit) {
                Errno::EXIST => fail(Errno::EXIST, format!("OST {name} is already in pool {fsname}.{pool}")),
                Errno::NODEV if !before.contains(&index) => {
                    fail(Errno::NOENT, format!("OST {name} not found in pool {fsname}.{pool}"));
                }
                errno => fail(errno, format!("{command}: OST {name}: {failure}")),
            }
        }
    }
    if !no_wait {
        wait_until_seen(fsname, pool)?;
    }
    match failed {
        Some(errno) => Err(refused(errno, format!("{command}: {}", error_text(errno)))),
        None => Ok(()),
    }
}

/// `lctl pool_list FSNAME[.POOL]|PATH`: if the management server runs on another host, shows the pools that a
/// mount knows.
pub fn list(args: &[String]) -> Outcome {
    let [word] = args else {
        return Err(usage("lctl pool_list: FSNAME[.POOL] or a path is needed"));
    };
    let (fsname, pool) = word.split_once('.').map_or((word.as_str(), None), |(fs, pool)| (fs, Some(pool)));
    let known = match Path::new(word).is_absolute() {
        true => None,
        false => Known::of(fsname).ok(),
    };
    let Some(known) = known else {
        return match crate::lfs::main(&["pool_list".into(), word.into()]) {
            0 => Ok(()),
            code => Err(Failure::told(code)),
        };
    };
    match pool {
        None => {
            println!("Pools from {fsname}:");
            known.pools.iter().for_each(|(name, _)| println!("{fsname}.{name}"));
        }
        Some(pool) => {
            let (_, osts) = known.pool(pool).ok_or_else(|| not_found("pool_list", fsname, pool))?;
            println!("Pool: {fsname}.{pool}");
            osts.iter().for_each(|index| println!("{}", uuid(fsname, *index)));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_pools_have_a_file_system_before_them() {
        assert_eq!(names("pool_new", "testfs.flash", true), Ok(("testfs", "flash")));
        let says = |word: &str| names("pool_new", word, true).expect_err(word).message;
        assert_eq!(says("flash"), "pool_new: argument flash must be <fsname>.<poolname>: Invalid argument");
        assert!(says("testfs.").contains("empty"), "{}", says("testfs."));
        assert!(says("testfs.none").contains("reserved"));
        assert!(says("testfs.a.b").contains("'.'"));
        assert!(says("toolongname.a").contains("Invalid argument"));
        assert!(names("pool_add", "testfs.a.b", false).is_ok(), "one that was never made is not found");
    }
}
