//! Commands that query a mounted file system: `df`, `osts`, `mdts`, `check`, `getname`.

use super::getopt::{self, OptionSpec, Parsed, Takes, long, opt};
use super::mounted::{Mounted, TargetRow};
use super::number;
use super::table::{self, DfStyle};
use super::{Command, Failure, Outcome, Run, json, pools};
use crate::mounts::{self, MountEntry};
use nacre_types::TargetKind;
use rustix::io::Errno;
use std::io;
use std::path::Path;

/// Usage of `lfs df`.
const DF_USAGE: &str = "\
usage: lfs df [-i] [-h|-H] [-m[INDEX]] [-o[INDEX]] [-N] [-s] [-p [FSNAME.]POOL] [-u FIELDS] [-v] [PATH]
  -i, --inodes           inodes instead of space
  -h, --human-readable   sizes with suffixes, powers of 1024
  -H, --si               sizes with suffixes, powers of 1000
  -m, --mdt[=INDEX]      only MDTs, or only this one
  -o, --ost[=INDEX]      only OSTs, or only this one
  -N, --no-header        omit header and summary; implied by an INDEX
  -s, --only-summary     only the summary
  -p, --pool POOL        only the OSTs of a pool
  -u, --output FIELDS    only these columns: source size used free avail pcent itotal iused
                         iavail ipcent target state
  -v, --verbose          all state letters, and deactivated OSTs
      --json             the targets as JSON, with sizes in bytes
Example: lfs df -h /mnt/nacre
";
/// Usage of `lfs osts`.
const OSTS_USAGE: &str = "\
usage: lfs osts [--json] [PATH]
Lists the OSTs of the file system at PATH, or of all mounted ones.
Example: lfs osts /mnt/nacre
";
/// Usage of `lfs mdts`.
const MDTS_USAGE: &str = "\
usage: lfs mdts [--json] [PATH]
Lists the MDTs of the file system at PATH, or of all mounted ones.
Example: lfs mdts /mnt/nacre
";
/// Usage of `lfs check`.
const CHECK_USAGE: &str = "\
usage: lfs check mgts|osts|mdts|all [PATH]
Reports whether each target answers.
Example: lfs check all
";
/// Usage of `lfs getname`.
const GETNAME_USAGE: &str = "\
usage: lfs getname [-i|-n] [PATH...]
  -i, --instance   only the id of the mount
  -n, --fsname     only the name of the file system
Example: lfs getname /mnt/nacre
";

/// Help by its long name alone, for commands that use the short letter otherwise or not at all.
pub const HELP: OptionSpec = OptionSpec { short: None, ..getopt::HELP };

const DF_OPTIONS: &[OptionSpec] = &[
    opt('i', "inodes", Takes::Nothing),
    opt('h', "human-readable", Takes::Nothing),
    opt('H', "si", Takes::Nothing),
    opt('l', "lazy", Takes::Nothing),
    opt('m', "mdt", Takes::MaybeValue),
    opt('o', "ost", Takes::MaybeValue),
    opt('N', "no-header", Takes::Nothing),
    opt('s', "only-summary", Takes::Nothing),
    long('s', "summary", Takes::Nothing),
    opt('p', "pool", Takes::Value),
    opt('u', "output", Takes::Value),
    opt('v', "verbose", Takes::Nothing),
    json::OPTION,
    HELP,
];

/// Entry of `lfs df` in the table of commands.
pub const DF: Command = Command {
    name: "df",
    summary: "space and inodes by target",
    usage: DF_USAGE,
    run: Run::Parsed(DF_OPTIONS, df),
};

/// `lfs df`.
fn df(parsed: &Parsed) -> Outcome {
    let wrong = |text: &str| Failure::usage(format!("lfs df: invalid target index '{text}'"), DF_USAGE);
    let index = |key: char| match parsed.value(key).map(|text| (text, number::parse_unsigned(text))) {
        None => Ok(None),
        Some((_, Some(index))) => Ok(Some(index)),
        Some((text, None)) => Err(wrong(text)),
    };
    let (mdt, ost) = (index('m')?, index('o')?);
    let columns = match parsed.value('u').map(table::columns_of) {
        None => None,
        Some(Ok(columns)) => Some(columns),
        Some(Err(word)) => {
            return Err(Failure::usage(format!("lfs df: unknown field '{word}'"), DF_USAGE));
        }
    };
    let both = parsed.has('m') == parsed.has('o');
    let human = parsed.has('H').then_some(1000).or(parsed.has('h').then_some(1024));
    let style = DfStyle {
        inodes: parsed.has('i'),
        human,
        verbose: parsed.has('v'),
        // A single target has no sum.
        summary_only: parsed.has('s') && mdt.is_none() && ost.is_none(),
        rows_only: parsed.has('N') && !parsed.has('s') || mdt.is_some() || ost.is_some(),
        mdts: both || parsed.has('m'),
        osts: both || parsed.has('o'),
    };
    let wanted = parsed.operands.first().map(Path::new);
    let not_ours = |path: &Path| {
        Failure::new(Errno::OPNOTSUPP, format!("df:{} Not a Lustre filesystem", path.display()))
    };
    let mut found = Vec::new();
    for mount in chosen(wanted, "df", not_ours)? {
        let opened = open(&mount, "df")?;
        let mut rows =
            opened.targets_with_space().map_err(|error| failed("df", &mount.mount_point, &error))?;
        if let Some(word) = parsed.value('p') {
            let members = pools::members_of(&opened, pools::name_in(word, mount.fsname()), "df")?;
            rows.retain(|row| row.target.kind != TargetKind::Ost || members.contains(&row.target.index));
        }
        rows.retain(|row| {
            let (kind_wanted, wanted) = match row.target.kind {
                TargetKind::Ost => (style.osts, ost),
                _ => (style.mdts, mdt),
            };
            kind_wanted && wanted.is_none_or(|index| index == u64::from(row.target.index))
        });
        if parsed.has('J') {
            found.push(json::space(mount.fsname(), &mount.mount_point, &rows));
            continue;
        }
        let point = mount.mount_point.display().to_string();
        super::print(&table::df(&point, &rows, mount.fsname(), &style, columns.as_deref()));
    }
    if parsed.has('J') {
        json::print(&found.into());
    }
    Ok(())
}

/// Entry of `lfs osts` in the table of commands.
pub const OSTS: Command = Command {
    name: "osts",
    summary: "list OSTs",
    usage: OSTS_USAGE,
    run: Run::Parsed(TARGET_OPTIONS, |parsed| targets(TargetKind::Ost, parsed)),
};
/// Entry of `lfs mdts` in the table of commands.
pub const MDTS: Command = Command {
    name: "mdts",
    summary: "list MDTs",
    usage: MDTS_USAGE,
    run: Run::Parsed(TARGET_OPTIONS, |parsed| targets(TargetKind::Mdt, parsed)),
};
const TARGET_OPTIONS: &[OptionSpec] = &[json::OPTION, HELP];

fn targets(kind: TargetKind, parsed: &Parsed) -> Outcome {
    let name = if kind == TargetKind::Ost { "osts" } else { "mdts" };
    let wanted = parsed.operands.first().map(Path::new);
    let mut found = Vec::new();
    for mount in chosen(wanted, name, |path| not_on_lustre(name, path))? {
        let rows = rows_of(&mount, kind, name)?;
        if parsed.has('J') {
            found.push(json::targets(mount.fsname(), &mount.mount_point, &rows));
            continue;
        }
        super::print(if kind == TargetKind::Ost { "OBDS:\n" } else { "MDTS:\n" });
        for row in rows {
            let state = if row.active { "ACTIVE" } else { "INACTIVE" };
            super::print(&format!("{}: {} {state}\n", row.target.index, row.target.uuid(mount.fsname())));
        }
    }
    if parsed.has('J') {
        json::print(&found.into());
    }
    Ok(())
}

/// Entry of `lfs check` in the table of commands.
pub const CHECK: Command = Command {
    name: "check",
    summary: "test which targets answer",
    usage: CHECK_USAGE,
    run: Run::Parsed(&[HELP], check),
};

/// `lfs check`.
fn check(parsed: &Parsed) -> Outcome {
    let what = parsed.operands.first().and_then(|word| word.to_str()).unwrap_or("");
    let kinds: &[TargetKind] = match what {
        "osts" => &[TargetKind::Ost],
        "mdts" => &[TargetKind::Mdt],
        "all" | "servers" => &[TargetKind::Mdt, TargetKind::Ost],
        "mgts" => &[],
        _ => {
            let message = format!("lfs check: '{what}' is none of mgts, osts, mdts and all");
            return Err(Failure::usage(message, CHECK_USAGE));
        }
    };
    let wanted = parsed.operands.get(1).map(Path::new);
    let mut outcome = Ok(());
    for mount in chosen(wanted, "check", |path| not_on_lustre("check", path))? {
        let opened = open(&mount, "check")?;
        let instance = opened.instance();
        let rows =
            opened.targets_with_space().map_err(|error| failed("check", &mount.mount_point, &error))?;
        for row in rows.iter().filter(|row| kinds.contains(&row.target.kind)) {
            let stub = if row.target.kind == TargetKind::Ost { "osc" } else { "mdc" };
            let name = format!("{}-{}-{stub}-{instance}", mount.fsname(), row.target);
            match row.errno {
                0 => super::print(&format!("{name}: active.\n")),
                _ if !row.active => super::print(&format!("{name}: inactive.\n")),
                errno => {
                    let error = io::Error::from_raw_os_error(errno);
                    Failure::numbered(&error, format!("lfs check: error: check '{name}'")).report();
                    outcome = Err(Failure::exit(errno, String::new()));
                }
            }
        }
    }
    outcome
}

/// Entry of `lfs getname` in the table of commands.
pub const GETNAME: Command = Command {
    name: "getname",
    summary: "names of mounted file systems",
    usage: GETNAME_USAGE,
    run: Run::Parsed(
        &[
            opt('i', "instance", Takes::Nothing),
            opt('n', "fsname", Takes::Nothing),
            opt('u', "uuid", Takes::Nothing),
            getopt::HELP,
        ],
        getname,
    ),
};

/// `lfs getname`.
fn getname(parsed: &Parsed) -> Outcome {
    let show = |mount: &MountEntry, path: bool| -> Outcome {
        let opened = open(mount, "getname")?;
        let mut text = match (parsed.has('i'), parsed.has('n'), parsed.has('u')) {
            (true, _, _) => opened.instance(),
            (_, true, _) => mount.fsname().to_owned(),
            (_, _, true) => opened.client_uuid(),
            _ => format!("{}-{}", mount.fsname(), opened.instance()),
        };
        if path {
            text.push_str(&format!(" {}", mount.mount_point.display()));
        }
        super::print(&format!("{text}\n"));
        Ok(())
    };
    if parsed.operands.is_empty() {
        let mounts = chosen(None, "getname", |path| not_on_lustre("getname", path))?;
        return mounts.iter().try_for_each(|mount| show(mount, true));
    }
    super::for_each(&parsed.operands, |path| {
        chosen(Some(path), "getname", |path| not_on_lustre("getname", path))?
            .iter()
            .try_for_each(|mount| show(mount, false))
    })
}

/// Returns a mount of the file system with this name.
pub fn by_name(fsname: &str) -> Option<MountEntry> {
    mounts::nacre_mounts().ok()?.into_iter().find(|mount| mount.fsname() == fsname)
}

/// Returns a mount of a file system given by its name, or by a path on it.
pub fn by_name_or_path(device: &Path, command: &str) -> Result<MountEntry, Failure> {
    if let Some(mount) = device.to_str().and_then(by_name) {
        return Ok(mount);
    }
    let found = chosen(Some(device), command, |path| not_on_lustre(command, path))?;
    found.into_iter().next().ok_or_else(|| not_on_lustre(command, device))
}

/// Returns the mount that contains `path`, or without a path all mounts.
pub fn chosen(
    path: Option<&Path>,
    command: &str,
    not_ours: impl FnOnce(&Path) -> Failure,
) -> Result<Vec<MountEntry>, Failure> {
    let Some(path) = path else {
        let mounts = mounts::nacre_mounts().map_err(|error| failed(command, Path::new("/proc"), &error))?;
        if mounts.is_empty() {
            let message =
                format!("lfs {command}: no NacreFS file system is mounted here: No such device (19)");
            return Err(Failure::new(Errno::NODEV, message));
        }
        return Ok(mounts);
    };
    match mounts::find_mount(path).map_err(|error| failed(command, path, &error))? {
        Some(mount) => Ok(vec![mount]),
        None => Err(not_ours(path)),
    }
}

/// Opens a mount for requests.
pub fn open(mount: &MountEntry, command: &str) -> Result<Mounted, Failure> {
    Mounted::open(&mount.mount_point).map_err(|error| failed(command, &mount.mount_point, &error))
}

fn rows_of(mount: &MountEntry, kind: TargetKind, command: &str) -> Result<Vec<TargetRow>, Failure> {
    let rows =
        open(mount, command)?.targets().map_err(|error| failed(command, &mount.mount_point, &error))?;
    Ok(rows.into_iter().filter(|row| row.target.kind == kind).collect())
}

/// Returns the failure for a path on another file system.
pub fn not_on_lustre(command: &str, path: &Path) -> Failure {
    let message =
        format!("lfs {command}: '{}' is not on a Lustre filesystem: No such device (19)", path.display());
    Failure::new(Errno::NODEV, message)
}

/// Returns the failure for an error on a path.
pub fn failed(command: &str, path: &Path, error: &io::Error) -> Failure {
    Failure::numbered(error, format!("lfs {command}: '{}'", path.display()))
}
