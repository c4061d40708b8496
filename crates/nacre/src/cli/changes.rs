//! `nacre changes`: the changelogs of all MDTs as one stream, ordered by time.
//!
//! A record is printed once every MDT has declared that it has no earlier one, so the order of the stream is that
//! of cause and effect, as far as the servers' clocks agree. What was printed is cleared: the next run continues
//! there. If the command is killed in between, the last records come again.

use crate::changelog::{Changelog, FOLLOW_PAUSE, is_for_now};
use crate::control::digits;
use crate::failure::{Failure, Result};
use crate::lfs::access;
use crate::lfs::mounted::Mounted;
use clap::Args;
use nacre_ondisk::ChangeRecord;
use nacre_ondisk::changelog::ChangedName;
use nacre_types::changelog::change_user;
use nacre_types::{TargetKind, Timestamp};
use rustix::io::Errno;
use serde_json::{Map, Value, json};
use std::collections::VecDeque;
use std::io::{self, Write};
use std::path::PathBuf;

/// Prints the changes of a file system: the changelogs of all its MDTs as one stream, in the order of time.
///
/// The command registers a user at each MDT: changes are recorded from then on. It clears what it has printed, and
/// continues there when it runs again. For root, and the owner of the file system's processes.
#[derive(Debug, Args)]
#[command(after_help = "\
Example: nacre changes /mnt/nacre --follow --json
         nacre changes /mnt/nacre --deregister          records are no longer kept for it")]
pub struct ChangesArgs {
    /// Mount point of the file system
    #[arg(value_name = "MOUNT")]
    mount_point: PathBuf,
    /// Wait for further changes
    #[arg(long, short)]
    follow: bool,
    /// Print an object of JSON per line
    #[arg(long)]
    json: bool,
    /// Name of the user that is registered: several readers need several names
    #[arg(long, value_name = "NAME", default_value = "changes")]
    user: String,
    /// Remove the user from all MDTs instead
    #[arg(long)]
    deregister: bool,
}

/// Records of one MDT that wait for those of others; reading pauses beyond.
const WAITING_MAX: usize = 16 << 10;

/// The changelog of an MDT, and what was read of it.
struct Source {
    log: Changelog,
    /// User of this command, as in `cl1-changes`.
    user: String,
    /// Index up to which records were read.
    read: u64,
    /// Index up to which records were printed.
    printed: u64,
    /// Index up to which records were cleared.
    cleared: u64,
    /// Time up to which no other record will come.
    settled: Timestamp,
    waiting: VecDeque<(Timestamp, u64, Vec<u8>)>,
}

impl Source {
    /// Finds the command's user on an MDT, or registers it.
    fn begin(mut log: Changelog, name: &str) -> io::Result<Source> {
        let user = match log.user(name) {
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NOENT) => log.register(name, 0)?,
            found => found?,
        };
        let (user, cleared) = (change_user(user.id, &user.name), user.cleared);
        Ok(Source {
            log,
            user,
            read: cleared,
            printed: cleared,
            cleared,
            settled: Timestamp::default(),
            waiting: VecDeque::new(),
        })
    }

    /// Reads a page; returns true if it had records.
    fn fill(&mut self) -> io::Result<bool> {
        if self.waiting.len() >= WAITING_MAX {
            return Ok(false);
        }
        let page = self.log.read(self.read)?;
        (self.read, self.settled) = (page.upto.max(self.read), page.settled.max(self.settled));
        let has_records = !page.records.is_empty();
        for (index, bytes) in page.records {
            let record = ChangeRecord::decode(&bytes).map_err(io::Error::other)?;
            self.waiting.push_back((record.time, index, bytes));
        }
        Ok(has_records)
    }

    fn clear(&mut self) -> io::Result<()> {
        // Gaps count as printed, once nothing before them waits.
        let printed = if self.waiting.is_empty() { self.read } else { self.printed };
        if printed > self.cleared {
            self.log.clear(&self.user, printed)?;
            self.cleared = printed;
        }
        Ok(())
    }
}

/// Runs the command.
pub fn run(args: &ChangesArgs) -> Result<i32> {
    let mount = Mounted::open(&args.mount_point)
        .map_err(Failure::because(format!("use {} as a mount", args.mount_point.display())))?;
    let mut sources = Vec::new();
    join(&mount, args, &mut sources)?;
    if args.deregister {
        for source in &mut sources {
            source
                .log
                .deregister(&source.user)
                .map_err(Failure::because(because(&source.log, "deregister at")))?;
        }
        return Ok(0);
    }
    loop {
        let mut has_more = false;
        for source in &mut sources {
            match source.fill() {
                Ok(found) => has_more |= found,
                // Others wait for this MDT.
                Err(error) if args.follow && is_for_now(&error) => {}
                Err(error) => {
                    return Err(Failure::because(because(&source.log, "read the changelog of"))(error));
                }
            }
        }
        let has_printed = print_settled(&mut sources, args.json)?;
        for source in &mut sources {
            match source.clear() {
                Err(error) if args.follow && is_for_now(&error) => {}
                outcome => {
                    outcome.map_err(Failure::because(because(&source.log, "clear the changelog of")))?
                }
            }
        }
        if has_more || has_printed {
            continue;
        }
        if !args.follow && sources.iter().all(|source| source.waiting.is_empty()) {
            return Ok(0);
        }
        nacre_env::thread::sleep(FOLLOW_PAUSE);
        join(&mount, args, &mut sources)?;
    }
}

fn because(log: &Changelog, what: &str) -> String {
    format!("{what} {}", log.name())
}

/// Adds the MDTs of the file system that are not among the sources.
fn join(mount: &Mounted, args: &ChangesArgs, sources: &mut Vec<Source>) -> Result<()> {
    let targets = mount.targets().map_err(Failure::because("ask the mount for its targets"))?;
    let mdts =
        targets.into_iter().filter(|row| row.target.kind == TargetKind::Mdt).map(|row| row.target.index);
    for mdt in mdts {
        if sources.iter().any(|source| source.log.mdt == mdt) {
            continue;
        }
        let log = Changelog::of(&mount.fsname(), mdt);
        let name = log.name();
        match Source::begin(log, &args.user) {
            Ok(source) => sources.push(source),
            Err(error) if !sources.is_empty() && args.follow && is_for_now(&error) => {}
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NODEV) => {
                return Err(Failure::new(format!(
                    "no process of this user serves {name} or mounts it here: run this as root or as their owner"
                )));
            }
            Err(error) => return Err(Failure::because(format!("register at {name}"))(error)),
        }
    }
    Ok(())
}

/// Prints the records that no record still to come precedes; returns true if there were some.
fn print_settled(sources: &mut [Source], as_json: bool) -> Result<bool> {
    let until = sources.iter().map(|source| source.settled).min().unwrap_or_default();
    let mut text = Vec::new();
    loop {
        let first = sources.iter().enumerate().filter_map(|(place, source)| {
            let (time, index, _) = source.waiting.front()?;
            Some((*time, source.log.mdt, *index, place))
        });
        let Some((_, mdt, _, place)) = first.min().filter(|(time, ..)| *time <= until) else { break };
        let Some((_, index, bytes)) = sources.get_mut(place).and_then(|source| source.waiting.pop_front())
        else {
            break;
        };
        let record = ChangeRecord::decode(&bytes)
            .map_err(Failure::because(format!("read record {index} of MDT{mdt:04x}")))?;
        match as_json {
            true => text.extend(format!("{}\n", shown(mdt, index, &record)).into_bytes()),
            false => {
                text.extend(format!("MDT{mdt:04x} {}", crate::lfs::change_row(index, &record)).into_bytes())
            }
        }
        if let Some(source) = sources.get_mut(place) {
            source.printed = index;
        }
    }
    if text.is_empty() {
        return Ok(false);
    }
    let mut out = io::stdout().lock();
    // Records that were not printed must not be cleared.
    match out.write_all(&text).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        outcome => outcome.map(|()| true).map_err(Failure::because("print the changes")),
    }
}

/// Adds a name: as text, or if it is none, as hexadecimal digits.
fn put_name(object: &mut Map<String, Value>, at: &ChangedName<'_>) {
    object.insert("parent".into(), at.parent.to_string().into());
    match std::str::from_utf8(at.name) {
        Ok(name) => object.insert("name".into(), name.into()),
        Err(_) => object.insert("name_hex".into(), digits(at.name).into()),
    };
}

/// Returns a record as an object of the schema in `docs/operations/changelogs.md`.
fn shown(mdt: u16, index: u64, record: &ChangeRecord<'_>) -> Value {
    let Timestamp { sec, nsec } = record.time;
    let time = format!("{}.{nsec:09}Z", nacre_env::date::utc(u64::try_from(sec).unwrap_or(0)));
    let mut object = Map::new();
    let mut put = |key: &str, value: Value| drop(object.insert(key.to_owned(), value));
    put("time", time.into());
    put("mdt", mdt.into());
    put("index", index.into());
    put("type", record.kind.name().into());
    put("flags", record.flags.into());
    put("fid", record.target.to_string().into());
    if let Some(origin) = &record.origin {
        put("uid", origin.uid.into());
        put("gid", origin.gid.into());
        put("nid", origin.nid.to_string().into());
        if let Some(job) = &origin.job {
            put("job", String::from_utf8_lossy(job.as_bytes()).into());
        }
    }
    if let Some(mode) = record.open {
        put("open", access(mode).into());
    }
    if let Some(xattr) = record.xattr {
        put("xattr", String::from_utf8_lossy(xattr).into());
    }
    if let Some(at) = &record.at {
        put_name(&mut object, at);
    }
    if let Some(source) = &record.source {
        let mut from = Map::new();
        from.insert("fid".into(), source.fid.to_string().into());
        put_name(&mut from, &source.at);
        object.insert("source".into(), from.into());
    }
    json!(object)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_ondisk::changelog::ChangeSource;
    use nacre_types::{ChangeKind, Fid};

    fn source(mdt: u16, settled: i64, times: &[i64]) -> Source {
        let waiting = times.iter().enumerate().map(|(place, sec)| {
            let record = ChangeRecord {
                time: Timestamp::new(*sec, 0),
                ..ChangeRecord::new(ChangeKind::Create, Fid::ROOT)
            };
            let mut bytes = Vec::new();
            record.encode(&mut bytes);
            (record.time, place as u64 + 1, bytes)
        });
        Source {
            log: Changelog::of("x", mdt),
            user: "cl1".to_owned(),
            read: times.len() as u64,
            printed: 0,
            cleared: 0,
            settled: Timestamp::new(settled, 0),
            waiting: waiting.collect(),
        }
    }

    #[test]
    fn records_wait_until_no_mdt_can_have_an_earlier_one() {
        let mut sources = [source(0, 9, &[1, 4, 9]), source(1, 5, &[2, 3])];
        assert_eq!(print_settled(&mut sources, true), Ok(true));
        assert_eq!(sources[0].printed, 2);
        assert_eq!(sources[1].printed, 2);
        assert_eq!(sources[0].waiting.len(), 1, "MDT1 may still have one of the sixth second");
        assert_eq!(print_settled(&mut sources, true), Ok(false));
        sources[1].settled = Timestamp::new(9, 0);
        assert_eq!(print_settled(&mut sources, true), Ok(true));
        assert_eq!(sources[0].printed, 3);
    }

    #[test]
    fn objects_have_the_documented_keys() {
        let record = ChangeRecord {
            flags: 1,
            time: Timestamp::new(1, 5),
            at: Some(ChangedName { parent: Fid::ROOT, name: b"new" }),
            source: Some(ChangeSource {
                fid: Fid::new(7, 8, 0),
                at: ChangedName { parent: Fid::ROOT, name: b"\xff" },
            }),
            ..ChangeRecord::new(ChangeKind::Rename, Fid::ZERO)
        };
        assert_eq!(
            shown(1, 12, &record),
            json!({
                "time": "1970-01-01T00:00:01.000000005Z", "mdt": 1, "index": 12, "type": "RENME", "flags": 1,
                "fid": "[0x0:0x0:0x0]", "parent": "[0x200000007:0x1:0x0]", "name": "new",
                "source": { "fid": "[0x7:0x8:0x0]", "parent": "[0x200000007:0x1:0x0]", "name_hex": "ff" },
            })
        );
    }
}
