//! `lfs changelog` and `lfs changelog_clear`, with Lustre's output.

use super::getopt::{self, Parsed, Takes, long, opt};
use super::{Command, Failure, Outcome, Run};
use crate::changelog::{Changelog, FOLLOW_PAUSE, is_for_now, parse_mdt};
use nacre_ondisk::ChangeRecord;
use nacre_types::{ChangeMask, Fid};
use rustix::io::Errno;
use std::ffi::OsString;
use std::io;

const CHANGELOG_USAGE: &str = "\
usage: lfs changelog [--follow] [--user USER] [--mask MASK] MDTNAME [START [END]]
  -f, --follow     wait for new records after the last one
  -u, --user USER  records that this user has not cleared, of the types that it wants
  -m, --mask MASK  only records of these types, as in CREAT,UNLNK or ALL,-CLOSE
For root of the file system: records have names of all users.
Example: lfs changelog nacre-MDT0000 100
";
const CLEAR_USAGE: &str = "\
usage: lfs changelog_clear MDTNAME USER ENDREC
  USER needs no records up to ENDREC any more, 0 for all so far; what no user needs is removed
Example: lfs changelog_clear nacre-MDT0000 cl1 250
";

/// Entry of `lfs changelog` in the table of commands.
pub const CHANGELOG: Command = Command {
    name: "changelog",
    summary: "records of changes on an MDT",
    usage: CHANGELOG_USAGE,
    run: Run::Parsed(
        &[
            opt('f', "follow", Takes::Nothing),
            opt('u', "user", Takes::Value),
            opt('m', "mask", Takes::Value),
            long('f', "continue", Takes::Nothing),
            getopt::HELP,
        ],
        changelog,
    ),
};

/// Entry of `lfs changelog_clear` in the table of commands.
pub const CLEAR: Command = Command {
    name: "changelog_clear",
    summary: "declare records of an MDT read",
    usage: CLEAR_USAGE,
    run: Run::Parsed(&[getopt::HELP], clear),
};

fn log_of(word: &OsString, command: &str) -> Result<Changelog, Failure> {
    let found = word.to_str().and_then(parse_mdt);
    let (fsname, mdt) = found.ok_or_else(|| {
        let message = format!("lfs {command}: '{}' is no MDT: use a name like nacre-MDT0000", word.display());
        Failure::new(Errno::INVAL, message)
    })?;
    Ok(Changelog::of(fsname, mdt))
}

fn number(word: Option<&OsString>, command: &str, usage: &'static str) -> Result<Option<u64>, Failure> {
    let Some(word) = word else { return Ok(None) };
    let number = word.to_str().and_then(|text| text.parse().ok());
    let wrong = || Failure::usage(format!("lfs {command}: '{}' is no record number", word.display()), usage);
    number.map(Some).ok_or_else(wrong)
}

fn not_started(error: &io::Error) -> Failure {
    match Errno::from_io_error(error) {
        Some(Errno::NODEV) => Failure::new(
            Errno::NODEV,
            "Can't start changelog: no process of this user serves or mounts the file system here".to_owned(),
        ),
        _ => Failure::of(error, "Can't start changelog"),
    }
}

/// `lfs changelog`.
fn changelog(parsed: &Parsed) -> Outcome {
    super::check_operands(parsed, "lfs changelog: MDTNAME is missing", CHANGELOG_USAGE)?;
    if parsed.operands.len() > 3 {
        return Err(Failure::usage("lfs changelog: too many operands".to_owned(), CHANGELOG_USAGE));
    }
    let mut log = log_of(&parsed.operands[0], "changelog")?;
    let start = number(parsed.operands.get(1), "changelog", CHANGELOG_USAGE)?;
    let end = number(parsed.operands.get(2), "changelog", CHANGELOG_USAGE)?.filter(|end| *end > 0);
    let mut mask = match parsed.value('m') {
        None => ChangeMask::ALL,
        Some(text) => ChangeMask::parse(text, ChangeMask::DEFAULT)
            .map_err(|error| Failure::new(Errno::INVAL, format!("lfs changelog: {error}")))?,
    };
    let mut after = start.unwrap_or(0).saturating_sub(1);
    if let Some(name) = parsed.value('u') {
        let user = log.user(name).map_err(|error| not_started(&error))?;
        after = after.max(user.cleared);
        let of_user = Some(ChangeMask::from_bits(user.mask)).filter(|mask| !mask.is_empty());
        mask = ChangeMask::from_bits(mask.bits() & of_user.unwrap_or(ChangeMask::ALL).bits());
    }
    let mut is_started = false;
    loop {
        let page = match log.read(after) {
            Ok(page) => page,
            // An MDT that restarts.
            Err(error) if is_started && parsed.has('f') && is_for_now(&error) => {
                nacre_env::thread::sleep(FOLLOW_PAUSE);
                continue;
            }
            Err(error) => return Err(not_started(&error)),
        };
        is_started = true;
        let mut text = String::new();
        for (index, bytes) in &page.records {
            if end.is_some_and(|end| *index > end) {
                break;
            }
            let record = ChangeRecord::decode(bytes).map_err(|error| {
                Failure::new(Errno::IO, format!("lfs changelog: record {index} of {}: {error}", log.name()))
            })?;
            if mask.contains(record.kind) {
                text.push_str(&row(*index, &record));
            }
        }
        super::print(&text);
        after = page.upto.max(after);
        if end.is_some_and(|end| after >= end) || page.records.is_empty() && !parsed.has('f') {
            return Ok(());
        }
        if page.records.is_empty() {
            nacre_env::thread::sleep(FOLLOW_PAUSE);
        }
    }
}

/// `lfs changelog_clear`.
fn clear(parsed: &Parsed) -> Outcome {
    let [mdt, user, upto] = &parsed.operands[..] else {
        let message = "lfs changelog_clear: MDTNAME, USER and ENDREC are needed".to_owned();
        return Err(Failure::usage(message, CLEAR_USAGE));
    };
    let mut log = log_of(mdt, "changelog_clear")?;
    let upto = number(Some(upto), "changelog_clear", CLEAR_USAGE)?.unwrap_or(0);
    let user = user.to_string_lossy();
    log.clear(&user, upto).map(drop).map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::INVAL) => {
            Failure::new(Errno::INVAL, format!("changelog_clear: record out of range: {upto}"))
        }
        Some(Errno::NOENT) => {
            Failure::new(Errno::NOENT, format!("changelog_clear: no changelog user: {user}"))
        }
        _ => Failure::of(&error, "changelog_clear error"),
    })
}

/// Returns the access mode of an open as letters.
pub fn access(mode: u8) -> String {
    [(1, 'r'), (2, 'w'), (4, 'x')]
        .map(|(bit, letter)| if mode & bit != 0 { letter } else { '-' })
        .iter()
        .collect()
}

/// Returns a FID as Lustre prints it: with `%#llx`, which gives zero no prefix.
fn shown(fid: &Fid) -> String {
    if fid.seq == 0 { format!("[0:{:#x}:{:#x}]", fid.oid, fid.ver) } else { fid.to_string() }
}

/// Bits of the extra parts: user and group, address, access mode, extended attribute (`CLFE_*`).
const UIDGID: u32 = 1;
const NID: u32 = 2;
const OPEN: u32 = 4;
const XATTR: u32 = 8;

/// Returns a record as `lfs changelog` prints it.
pub fn row(index: u64, record: &ChangeRecord<'_>) -> String {
    let date = nacre_env::date::utc(u64::try_from(record.time.sec).unwrap_or(0));
    let (day, time) = date.split_once('T').unwrap_or_default();
    let mut row = format!(
        "{index} {:02}{:<5} {time}.{:09} {} 0x{:x} t={}",
        record.kind as u8,
        record.kind.name(),
        record.time.nsec,
        day.replace('-', "."),
        record.flags,
        shown(&record.target)
    );
    let job = record.origin.as_ref().and_then(|origin| origin.job.as_ref());
    if let Some(job) = job {
        row.push_str(&format!(" j={}", String::from_utf8_lossy(job.as_bytes())));
    }
    let bit = |is_there: bool, bit: u32| if is_there { bit } else { 0 };
    let extra = bit(record.origin.is_some(), UIDGID | NID)
        | bit(record.open.is_some(), OPEN)
        | bit(record.xattr.is_some(), XATTR);
    row.push_str(&format!(" ef=0x{extra:x}"));
    if let Some(origin) = &record.origin {
        row.push_str(&format!(" u={}:{} nid={}", origin.uid, origin.gid, origin.nid));
    }
    if let Some(mode) = record.open {
        row.push_str(&format!(" m={}", access(mode)));
    }
    if let Some(xattr) = record.xattr {
        row.push_str(&format!(" x={}", String::from_utf8_lossy(xattr)));
    }
    if let Some(at) = &record.at {
        row.push_str(&format!(" p={} {}", shown(&at.parent), String::from_utf8_lossy(at.name)));
    }
    if let Some(source) = &record.source {
        let name = String::from_utf8_lossy(source.at.name);
        row.push_str(&format!(" s={} sp={} {name}", shown(&source.fid), shown(&source.at.parent)));
    }
    row + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_ondisk::changelog::{ChangeOrigin, ChangeSource, ChangedName};
    use nacre_types::{ChangeKind, JobId, Timestamp};

    #[test]
    fn rows_are_lustres() {
        let name = |oid, name| ChangedName { parent: Fid::new(0x2_0000_0007, oid, 0), name };
        let created = ChangeRecord {
            time: Timestamp::new(1_515_510_936, 687_592_024),
            at: Some(name(1, b"pics")),
            origin: Some(ChangeOrigin {
                uid: 500,
                gid: 501,
                nid: "10.128.11.159@tcp".parse().expect("a NID"),
                job: None,
            }),
            ..ChangeRecord::new(ChangeKind::Mkdir, Fid::new(0x2_0000_0402, 1, 0))
        };
        assert_eq!(
            row(1, &created),
            "1 02MKDIR 15:15:36.687592024 2018.01.09 0x0 t=[0x200000402:0x1:0x0] ef=0x3 u=500:501 \
             nid=10.128.11.159@tcp p=[0x200000007:0x1:0x0] pics\n"
        );
        let renamed = ChangeRecord {
            flags: 1,
            time: Timestamp::new(1, 5),
            at: Some(name(1, b"new")),
            source: Some(ChangeSource { fid: Fid::new(7, 8, 0), at: name(2, b"old") }),
            origin: Some(ChangeOrigin { job: JobId::new(b"mv.0"), ..created.origin.expect("set") }),
            ..ChangeRecord::new(ChangeKind::Rename, Fid::ZERO)
        };
        assert_eq!(
            row(12, &renamed),
            "12 08RENME 00:00:01.000000005 1970.01.01 0x1 t=[0:0x0:0x0] j=mv.0 ef=0x3 u=500:501 nid=10.128.11.159@tcp \
             p=[0x200000007:0x1:0x0] new s=[0x7:0x8:0x0] sp=[0x200000007:0x2:0x0] old\n"
        );
        let opened = ChangeRecord { open: Some(3), ..ChangeRecord::new(ChangeKind::Open, Fid::ROOT) };
        assert!(
            row(2, &opened).ends_with(
                "2 10OPEN  00:00:00.000000000 1970.01.01 0x0 t=[0x200000007:0x1:0x0] ef=0x4 m=rw-\n"
            )
        );
        let xattr =
            ChangeRecord { xattr: Some(b"user.a"), ..ChangeRecord::new(ChangeKind::SetXattr, Fid::ROOT) };
        assert!(row(3, &xattr).ends_with(" ef=0x8 x=user.a\n"));
    }
}
