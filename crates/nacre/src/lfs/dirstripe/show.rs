//! `lfs getdirstripe`: shows the MDTs of directories, and the defaults of new directories.

use crate::lfs::getopt::{self, OptionSpec, Parsed, Takes, long, opt};
use crate::lfs::mounted::{self, Mounted};
use crate::lfs::{Command, Failure, Outcome, Run, check_operands, for_each, json, print, render};
use nacre_layout::dir_default::MAGIC_DEFAULT;
use nacre_layout::dir_layout::{MAGIC_DIRECTORY, hash_text};
use nacre_layout::{DirDefault, DirLayout, UserDir, user};
use nacre_types::{Fid, TargetKind};
use rustix::io::Errno;
use serde_json::json;
use std::fmt::Write;
use std::fs;
use std::io;
use std::path::Path;

/// Text of `--help` and of a wrong call of `lfs getdirstripe`.
const SHOW_USAGE: &str = "\
usage: lfs getdirstripe [-c|-T] [-i|-m] [-H] [-F] [-X] [--max-inherit-rr] [-D] [-R] [-O MDT] [-r] [-v] [-y] [--hex-idx] DIR...
  -c, -T, --mdt-count  number of MDTs: 0 for a directory without stripes
  -i, -m, --mdt-index  first MDT
  -H, --mdt-hash    hash of names
  -F, --fid         the directory's FID
  -D, --default     default of new directories in it
  -R, --raw         with -D: only the default stored with DIR, not that of the root
  -X, --max-inherit with -D: levels that inherit the default
      --max-inherit-rr  with -D: levels with round-robin placement
  -O, --obd MDT     only directories on this MDT: FSNAME-MDT0001_UUID, its name or index
  -r, --recursive   also the directories below
  -v, --verbose     with FID and magic      -y, --yaml  a line for each field      --json  a line of JSON
      --hex-idx  MDTs in hexadecimal
Example: lfs getdirstripe /mnt/nacre/dir
";

const SHOW_OPTIONS: &[OptionSpec] = &[
    opt('c', "mdt-count", Takes::Nothing),
    long('c', "count", Takes::Nothing),
    opt('T', "", Takes::Nothing),
    opt('i', "mdt-index", Takes::Nothing),
    long('i', "index", Takes::Nothing),
    opt('m', "", Takes::Nothing),
    opt('H', "mdt-hash", Takes::Nothing),
    opt('t', "", Takes::Nothing),
    opt('F', "fid", Takes::Nothing),
    opt('D', "default", Takes::Nothing),
    opt('R', "raw", Takes::Nothing),
    opt('X', "max-inherit", Takes::Nothing),
    long('7', "max-inherit-rr", Takes::Nothing),
    opt('v', "verbose", Takes::Nothing),
    opt('y', "yaml", Takes::Nothing),
    opt('O', "obd", Takes::Value),
    json::OPTION,
    opt('r', "recursive", Takes::Nothing),
    long('8', "hex-idx", Takes::Nothing),
    getopt::HELP,
];

const NAME: &str = "lfs getdirstripe";

/// Fields of a directory, one bit each.
const FID: u8 = 1;
const MAGIC: u8 = 2;
const COUNT: u8 = 4;
const INDEX: u8 = 8;
const HASH: u8 = 16;
const INHERIT: u8 = 32;
const IN_TURN: u8 = 64;
const SHARDS: u8 = 128;
/// Fields that are shown by default.
const USUAL: u8 = COUNT | INDEX | HASH | INHERIT | IN_TURN | SHARDS;
const ALL: u8 = USUAL | FID | MAGIC;

/// Fields to show, and their form.
struct Style {
    fields: u8,
    default: bool,
    raw: bool,
    yaml: bool,
    json: bool,
    hex: bool,
    recursive: bool,
    /// Shows only directories on this MDT.
    only: Option<String>,
}

/// Entry of `lfs getdirstripe` in the table of commands.
pub const GETDIRSTRIPE: Command = Command {
    name: "getdirstripe",
    summary: "show how directories are spread over MDTs",
    usage: SHOW_USAGE,
    run: Run::Parsed(SHOW_OPTIONS, show),
};

/// Shows the directories of the command line.
pub fn show(parsed: &Parsed) -> Outcome {
    check_operands(parsed, &format!("{NAME}: DIR must be specified"), SHOW_USAGE)?;
    let style = style_of(parsed);
    for_each(&parsed.operands, |path| {
        show_below(path, &style).map_err(|error| {
            Failure::of(&error, format!("lfs: getdirstripe for '{}' failed", path.display()))
        })
    })
}

fn style_of(parsed: &Parsed) -> Style {
    let keys = [
        ('c', COUNT),
        ('T', COUNT),
        ('i', INDEX),
        ('m', INDEX),
        ('H', HASH),
        ('t', HASH),
        ('F', FID),
        ('X', INHERIT),
        ('7', IN_TURN),
        ('v', ALL),
    ];
    let wanted = keys.into_iter().filter(|(key, _)| parsed.has(*key));
    let fields = wanted.fold(0, |all, (_, field)| all | field);
    Style {
        fields: if fields == 0 { USUAL } else { fields },
        default: parsed.has('D'),
        raw: parsed.has('R'),
        yaml: parsed.has('y'),
        json: parsed.has('J'),
        hex: parsed.has('8'),
        recursive: parsed.has('r'),
        only: parsed.value('O').map(str::to_owned),
    }
}

fn show_below(path: &Path, style: &Style) -> io::Result<()> {
    if !fs::symlink_metadata(path)?.is_dir() {
        return Err(io::Error::from(Errno::NOTDIR));
    }
    let mut left = vec![path.to_owned()];
    while let Some(path) = left.pop() {
        print(&show_one(&path, style)?);
        if !style.recursive {
            continue;
        }
        let mut below = Vec::new();
        for entry in fs::read_dir(&path)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                below.push(entry.path());
            }
        }
        left.extend(below.into_iter().rev());
    }
    Ok(())
}

fn show_one(path: &Path, style: &Style) -> io::Result<String> {
    let fid = mounted::fid_of(path, false)?;
    let only = match &style.only {
        Some(name) => Some(mdt_of(path, name)?),
        None => None,
    };
    let shown_path = style.recursive.then(|| path.display().to_string());
    if style.default {
        let default = match style.raw {
            true => mounted::dir_default_stored(path)?,
            false => mounted::dir_default(path)?,
        };
        let subject = match default {
            None if style.raw => return Ok(String::new()),
            default => Subject::of_default(default),
        };
        return Ok(subject.shown(path, &fid, style, only, shown_path.as_deref()));
    }
    let stored = mounted::directory_layout(path)?;
    if let Some(Ok(foreign)) = stored.as_deref().map(user::decode_foreign_directory) {
        if style.json {
            let mut value = json::foreign(&foreign);
            (value["path"], value["fid"]) = (path.display().to_string().into(), fid.to_string().into());
            return Ok(format!("{value}\n"));
        }
        return Ok(render::foreign(&foreign, user::MAGIC_FOREIGN_DIRECTORY, style.fields == ALL));
    }
    let directory = match stored {
        Some(bytes) => UserDir::from(&DirLayout::decode(&bytes).map_err(io::Error::other)?),
        None => UserDir { mdt: fid.mdt_index(), hash: 0, shards: Vec::new() },
    };
    Ok(Subject::of_directory(directory).shown(path, &fid, style, only, shown_path.as_deref()))
}

/// Returns the index of the MDT with this UUID, name or number.
fn mdt_of(path: &Path, name: &str) -> io::Result<u32> {
    let mount = Mounted::open(path)?;
    let (rows, fsname) = (mount.targets()?, mount.fsname());
    let is_meant = |row: &&mounted::TargetRow| {
        let target = &row.target;
        target.kind == TargetKind::Mdt
            && (name == target.uuid(&fsname)
                || name == format!("{fsname}-{target}")
                || name == target.to_string()
                || name == target.index.to_string())
    };
    let found = rows.iter().find(is_meant).map(|row| row.target.index.into());
    found.ok_or_else(|| io::Error::from(Errno::INVAL))
}

/// A directory's layout, or its default.
struct Subject {
    magic: u32,
    count: i32,
    index: i32,
    hash: u32,
    /// Levels of inheritance, of a default.
    inherit: Option<(i32, i32)>,
    shards: Vec<(Fid, u32)>,
}

impl Subject {
    fn of_directory(directory: UserDir) -> Subject {
        Subject {
            magic: MAGIC_DIRECTORY,
            count: directory.shards.len() as i32,
            index: directory.mdt.into(),
            hash: directory.hash,
            inherit: None,
            shards: directory.shards,
        }
    }

    fn of_default(default: Option<DirDefault>) -> Subject {
        // No default is set: shown as by Lustre.
        let default = default.unwrap_or(DirDefault { count: 0, ..DirDefault::default() });
        Subject {
            magic: MAGIC_DEFAULT,
            count: default.count,
            index: default.index,
            hash: default.hash.map_or(0, |hash| hash.number().into()) | default.flags.bits(),
            inherit: Some((default.max_inherit.shown(), default.max_inherit_rr.shown())),
            shards: Vec::new(),
        }
    }

    /// Returns its text, or a line of JSON.
    fn shown(
        &self,
        path: &Path,
        fid: &Fid,
        style: &Style,
        only: Option<u32>,
        shown_path: Option<&str>,
    ) -> String {
        if !style.json {
            return text_of(fid, self, style, only, shown_path);
        }
        if only.is_some_and(|mdt| !self.is_on(mdt)) {
            return String::new();
        }
        let shards = self.shards.iter();
        let shards = shards.map(|(fid, mdt)| json!({ "mdt_index": mdt, "fid": fid.to_string() }));
        let value = json!({
            "path": path.display().to_string(),
            "fid": fid.to_string(),
            "default": self.inherit.is_some(),
            "mdt_count": self.count,
            "mdt_index": self.index,
            "hash": json::hash_name(self.hash),
            "max_inherit": self.inherit.map(|(levels, _)| levels),
            "max_inherit_rr": self.inherit.map(|(_, levels)| levels),
            "shards": shards.collect::<Vec<_>>(),
        });
        format!("{value}\n")
    }

    fn is_on(&self, mdt: u32) -> bool {
        match self.shards.is_empty() {
            true => i64::from(self.index) == i64::from(mdt),
            false => self.shards.iter().any(|(_, of_shard)| *of_shard == mdt),
        }
    }
}

fn bare(fid: &Fid) -> String {
    format!("{:#x}:{:#x}:{:#x}", fid.seq, fid.oid, fid.ver)
}

fn text_of(fid: &Fid, subject: &Subject, style: &Style, only: Option<u32>, path: Option<&str>) -> String {
    let mut out = String::new();
    let prefix = if subject.inherit.is_some() { "(Default)" } else { "" };
    if let Some(mdt) = only {
        if !subject.is_on(mdt) {
            return out;
        }
        if let (Some(path), false) = (path, subject.shards.is_empty()) {
            out = format!("{prefix}{path}\n");
        }
    }
    if let Some(path) = path.filter(|_| style.fields != SHARDS) {
        let _ = writeln!(out, "{prefix}{path}");
    }
    let index = match style.hex {
        // -1 (any MDT) is 0xffffffff in hexadecimal, and -1 in decimal.
        true => format!("{:#x}", subject.index),
        false => subject.index.to_string(),
    };
    // Labels are padded to the longest one, as Lustre does.
    let (max_inherit, in_turn) = subject.inherit.unwrap_or_default();
    let of_default = subject.inherit.is_some();
    let fields = [
        (FID, "lmv_fid: ", "          ", bare(fid), true),
        (MAGIC, "lmv_magic: ", "        ", format!("{:#x}", subject.magic), true),
        (COUNT, "lmv_stripe_count: ", " ", subject.count.to_string(), true),
        (INDEX, "lmv_stripe_offset: ", "", index.clone(), true),
        (HASH, "lmv_hash_type: ", "    ", hash_text(subject.hash), true),
        (INHERIT, "lmv_max_inherit: ", "  ", max_inherit.to_string(), of_default),
        (IN_TURN, "lmv_max_inherit_rr: ", "", in_turn.to_string(), of_default),
    ];
    let mut separator = "";
    for (field, label, fill, value, exists) in fields {
        if style.fields & field == 0 || !exists {
            continue;
        }
        out.push_str(separator);
        if style.fields != field {
            out.push_str(label);
            out.push_str(if style.yaml { fill } else { "" });
        }
        out.push_str(&value);
        separator = if style.yaml { "\n" } else { " " };
    }
    out.push('\n');
    if style.fields & SHARDS != 0 && !of_default {
        put_shards(&mut out, fid, subject, style, only, &index);
    }
    out
}

fn put_shards(out: &mut String, fid: &Fid, subject: &Subject, style: &Style, only: Option<u32>, index: &str) {
    if style.yaml {
        out.push_str("lmv_objects:\n");
        if subject.shards.is_empty() {
            let _ = writeln!(out, "      - l_mdt_idx: {index}\n        l_fid:     {}", bare(fid));
        }
    } else if !subject.shards.is_empty() {
        out.push_str("mdtidx\t\t FID[seq:oid:ver]\n");
    }
    for (fid, mdt) in subject.shards.iter().filter(|(_, mdt)| only.is_none_or(|only| only == *mdt)) {
        let mark = if only == Some(*mdt) { " *" } else { "" };
        let index = if style.hex { format!("{mdt:#x}") } else { mdt.to_string() };
        let _ = match style.yaml {
            true => writeln!(out, "      - l_mdt_idx: {index}\n        l_fid:     {}", bare(fid)),
            false => writeln!(out, "{index:>6}\t\t {fid}\t\t{mark}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lfs::getopt::{parse, words_of};
    use nacre_layout::{DirHash, Inherit};

    const OWN: Fid = Fid::new(0x2_0000_0401, 9, 0);

    fn shown(line: &str, subject: &Subject, only: Option<u32>, path: Option<&str>) -> String {
        let parsed = parse(&words_of(line.as_bytes()), SHOW_OPTIONS).expect(line);
        text_of(&OWN, subject, &style_of(&parsed), only, path)
    }

    fn two() -> Subject {
        let shards = vec![Fid::new(0x2_0000_0401, 3, 0), Fid::new(0x2_4000_0401, 4, 0)];
        Subject::of_directory(UserDir::from(&DirLayout::new(DirHash::Crush, 0, shards)))
    }

    fn whole() -> Subject {
        Subject::of_directory(UserDir { mdt: 0, hash: 0, shards: Vec::new() })
    }

    fn default() -> Subject {
        let hash = Some(DirHash::Crush);
        let default = DirDefault { count: 2, hash, max_inherit: Inherit(3), ..DirDefault::default() };
        Subject::of_default(Some(default))
    }

    #[test]
    fn golden_directories() {
        let rows = "mdtidx\t\t FID[seq:oid:ver]\n     0\t\t [0x200000401:0x3:0x0]\t\t\n     1\t\t [0x240000401:0x4:0x0]\t\t\n";
        let line = "lmv_stripe_count: 2 lmv_stripe_offset: 0 lmv_hash_type: crush\n";
        assert_eq!(shown("d", &two(), None, None), format!("{line}{rows}"));
        let verbose = "lmv_fid: 0x200000401:0x9:0x0 lmv_magic: 0xcd20cd0 ";
        assert_eq!(shown("-v d", &two(), None, None), format!("{verbose}{line}{rows}"));
        let yaml = "lmv_stripe_count:  2\nlmv_stripe_offset: 0\nlmv_hash_type:     crush\nlmv_objects:\n      \
                    - l_mdt_idx: 0\n        l_fid:     0x200000401:0x3:0x0\n      \
                    - l_mdt_idx: 1\n        l_fid:     0x240000401:0x4:0x0\n";
        assert_eq!(shown("-y d", &two(), None, None), yaml);
        let plain = "lmv_stripe_count: 0 lmv_stripe_offset: 0 lmv_hash_type: none\n";
        assert_eq!(shown("d", &whole(), None, None), plain);
        assert_eq!(shown("-v d", &whole(), None, None), format!("{verbose}{plain}"));
    }

    #[test]
    fn golden_defaults() {
        let line = "lmv_stripe_count: 2 lmv_stripe_offset: -1 lmv_hash_type: crush lmv_max_inherit: 3 lmv_max_inherit_rr: 0\n";
        assert_eq!(shown("-D d", &default(), None, None), line);
        let none = "lmv_stripe_count: 0 lmv_stripe_offset: -1 lmv_hash_type: none lmv_max_inherit: -1 lmv_max_inherit_rr: 0\n";
        assert_eq!(shown("-D d", &Subject::of_default(None), None, None), none);
        let root = Subject::of_default(Some(DirDefault::of_root()));
        assert_eq!(shown("-D --max-inherit-rr d", &root, None, None), "3\n");
        assert_eq!(shown("-D -X d", &root, None, None), "-1\n");
        let yaml = "lmv_stripe_count:  2\nlmv_stripe_offset: -1\nlmv_hash_type:     crush\nlmv_max_inherit:   3\nlmv_max_inherit_rr: 0\n";
        assert_eq!(shown("-D -y d", &default(), None, None), yaml);
    }

    #[test]
    fn single_fields_have_no_label_and_several_do() {
        for (option, value) in [("-c", "2"), ("-T", "2"), ("-m", "0"), ("-i", "0"), ("-H", "crush")] {
            assert_eq!(shown(&format!("{option} d"), &two(), None, None), format!("{value}\n"));
        }
        assert_eq!(shown("-F d", &two(), None, None), "0x200000401:0x9:0x0\n");
        assert_eq!(shown("-D -X d", &default(), None, None), "3\n");
        assert_eq!(shown("-c -i d", &two(), None, None), "lmv_stripe_count: 2 lmv_stripe_offset: 0\n");
    }

    #[test]
    fn one_mdt_alone_and_trees_are_shown() {
        assert_eq!(shown("-c d", &two(), Some(2), None), "");
        let row = "mdtidx\t\t FID[seq:oid:ver]\n     1\t\t [0x240000401:0x4:0x0]\t\t *\n";
        assert!(shown("d", &two(), Some(1), None).ends_with(row));
        assert_eq!(shown("-c -r d", &whole(), None, Some("d/e")), "d/e\n0\n");
        assert_eq!(shown("-c -r -D d", &default(), None, Some("d/e")), "(Default)d/e\n2\n");
        assert!(shown("--hex-idx d", &two(), None, None).contains("\n   0x1\t\t ["));
    }
}
