//! `lctl nodemap_*`: named sets of clients with their restrictions, stored by the management server. Grammar:
//! Lustre's.

use super::{Outcome, management, refused, with_code};
use crate::control::{self, Answer, Request};
use crate::failure::{Failure, Result};
use nacre_types::nodemap::{Change, DEFAULT, NodemapFlags, Part, Property};
use nacre_types::standing::Proven;
use nacre_types::{IdKind, Identity, KeyId, Nid, Nodemap, Nodemaps, Roles, Standing};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// Options of a command, by name.
type Options<'a> = BTreeMap<&'a str, &'a str>;

fn usage(command: &str, text: impl std::fmt::Display) -> Failure {
    super::usage(format!("lctl {command}: {text}"))
}

/// Parses `--name VALUE` and `--name=VALUE`: each once, and all required ones.
fn options<'a>(
    command: &str,
    args: &'a [String],
    needed: &[&'a str],
    optional: &[&'a str],
) -> Result<Options<'a>> {
    let mut found = Options::new();
    let mut words = args.iter().map(String::as_str);
    while let Some(word) = words.next() {
        let option = word.strip_prefix("--").ok_or_else(|| usage(command, format!("unexpected '{word}'")))?;
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, words.next()),
        };
        if !needed.contains(&name) && !optional.contains(&name) {
            return Err(usage(command, format!("unrecognized option '--{name}'")));
        }
        let value = value.ok_or_else(|| usage(command, format!("--{name} needs a value")))?;
        if found.insert(name, value).is_some() {
            return Err(usage(command, format!("--{name} is given twice")));
        }
    }
    match needed.iter().find(|name| !found.contains_key(*name)) {
        Some(missing) => Err(usage(command, format!("--{missing} is needed"))),
        None => Ok(found),
    }
}

/// Parses the change of a command and its nodemap.
fn change_of(command: &str, args: &[String]) -> Result<Option<(String, Change)>> {
    let parse = |text: String| {
        text.parse::<Change>().map_err(|error| refused(Errno::INVAL, format!("lctl {command}: {error}")))
    };
    let named = |needed: &[&'static str], text: &dyn Fn(&Options<'_>) -> String| {
        let needed: Vec<&str> = needed.iter().copied().chain(["name"]).collect();
        let options = options(command, args, &needed, &[])?;
        Ok((options["name"].to_owned(), parse(text(&options))?))
    };
    let verb = if command.starts_with("nodemap_del") { "remove" } else { "add" };
    let change = match command {
        "nodemap_activate" => match args {
            [word] if word == "0" || word == "1" => (String::new(), Change::Activate(word == "1")),
            _ => return Err(usage(command, "0 or 1 is needed")),
        },
        "nodemap_add" | "nodemap_del" => match args {
            [name] if command == "nodemap_add" => (name.clone(), Change::Create),
            [name] => (name.clone(), Change::Destroy),
            _ => return Err(usage(command, "the name of a nodemap is needed")),
        },
        "nodemap_add_range" | "nodemap_del_range" => {
            named(&["range"], &|options| format!("{verb} range={}", options["range"]))?
        }
        "nodemap_add_key" | "nodemap_del_key" => {
            named(&["key"], &|options| format!("{verb} key={}", options["key"]))?
        }
        "nodemap_add_idmap" | "nodemap_del_idmap" => named(&["idtype", "idmap"], &|options| {
            format!("{verb} {}={}", options["idtype"], options["idmap"])
        })?,
        "nodemap_modify" => named(&["property", "value"], &|options| {
            format!("set {}={}", options["property"], options["value"])
        })?,
        "nodemap_set_fileset" => {
            let options = options(command, args, &["name", "fileset"], &[])?;
            let path = options["fileset"];
            let path = Some(path.trim_end_matches('/')).filter(|path| !path.is_empty());
            let property = Property::Fileset(path.map(str::to_owned));
            (options["name"].to_owned(), parse(format!("set {property}"))?)
        }
        _ => return Ok(None),
    };
    Ok(Some(change))
}

/// Runs `lctl nodemap_...`.
pub fn run(command: &str, args: &[String]) -> Outcome {
    if let Some((name, change)) = change_of(command, args)? {
        let socket = management(None)?;
        let request = Request::ChangeNodemap { name: name.clone(), change: change.to_string() };
        return match control::ask(&socket, &request) {
            Ok(Answer::Done) => Ok(()),
            Ok(Answer::Error { errno, message }) => Err(with_code(
                errno,
                format!("{command}: {}: {message}", refusal(&name, &change, Errno::from_raw_os_error(errno))),
            )),
            other => {
                Err(refused(Errno::IO, format!("{command}: the management server did not answer: {other:?}")))
            }
        };
    }
    match command {
        "nodemap_info" => info(args),
        "nodemap_test_nid" => match args {
            [nid] => {
                println!("{}", standing(command, &known(&management(None)?)?, nid, None)?.0);
                Ok(())
            }
            _ => Err(usage(command, "a NID is needed")),
        },
        "nodemap_test_id" => test_id(command, args),
        other => {
            Err(Failure::new(format!("lctl: '{other}' is not a valid command. See 'lctl --list-commands'.")))
        }
    }
}

/// Returns the message for a refused change.
fn refusal(name: &str, change: &Change, errno: Errno) -> String {
    match (change, errno) {
        (_, Errno::INVAL) if name == DEFAULT => {
            format!("'{DEFAULT}' is the nodemap of all clients that are in no other")
        }
        (Change::Create, Errno::EXIST) => format!("there is a nodemap '{name}' already"),
        (Change::Add(Part::Ids(..)), Errno::EXIST) => format!("'{name}' maps one of these ids already"),
        (Change::Add(_), Errno::EXIST) => "a nodemap has it already".to_owned(),
        (Change::Remove(_), Errno::NOENT) => {
            format!("there is no nodemap '{name}', or it does not have this")
        }
        (_, Errno::NOENT) => format!("there is no nodemap '{name}'"),
        _ => format!("nodemap '{name}'"),
    }
}

fn known(socket: &Path) -> Result<Nodemaps> {
    match control::ask(socket, &Request::Nodemaps) {
        Ok(Answer::Nodemaps { active, maps }) => {
            let maps: std::result::Result<Vec<Nodemap>, _> = maps.iter().map(|text| text.parse()).collect();
            let maps = maps.map_err(|error| refused(Errno::IO, format!("lctl: nodemaps: {error}")))?;
            let mut nodemaps = Nodemaps { active, maps: maps.into_iter().map(Arc::new).collect() };
            if nodemaps.find(DEFAULT).is_none() {
                let default = nodemaps.default_map();
                nodemaps.maps.push(default);
            }
            Ok(nodemaps)
        }
        Ok(Answer::Error { errno, message }) => Err(with_code(errno, format!("lctl: nodemaps: {message}"))),
        other => Err(refused(Errno::IO, format!("lctl: the management server gave no nodemaps: {other:?}"))),
    }
}

/// `lctl nodemap_info [list|all|NAME]`.
fn info(args: &[String]) -> Outcome {
    let nodemaps = known(&management(None)?)?;
    let what = match args {
        [] => "list",
        [what] => what,
        _ => return Err(usage("nodemap_info", "list, all or the name of a nodemap is needed")),
    };
    match what {
        "list" => {
            println!("nodemap.active={}", u8::from(nodemaps.active));
            nodemaps.maps.iter().for_each(|map| println!("nodemap.{}", map.name()));
        }
        "all" => {
            println!("nodemap.active={}", u8::from(nodemaps.active));
            nodemaps.maps.iter().for_each(|map| print!("{}", shown(map)));
        }
        name => {
            let map = nodemaps.find(name);
            let map =
                map.ok_or(refused(Errno::NOENT, format!("nodemap_info: there is no nodemap '{name}'")))?;
            print!("{}", shown(map));
        }
    }
    Ok(())
}

/// Formats a nodemap as lines of Lustre's parameters.
fn shown(map: &Nodemap) -> String {
    let mut lines = Vec::new();
    for property in map.properties() {
        lines.push(match property {
            Property::Flag(NodemapFlags::ADMIN, on) => format!("admin_nodemap={}", u8::from(on)),
            Property::Flag(NodemapFlags::TRUSTED, on) => format!("trusted_nodemap={}", u8::from(on)),
            Property::Fileset(path) => format!("fileset={}", path.unwrap_or_default()),
            other => other.to_string(),
        });
    }
    let (mut ids, mut ranges, mut keys) = (Vec::new(), Vec::new(), Vec::new());
    for part in map.parts() {
        match part {
            Part::Range(range) => ranges.push(range.to_string()),
            Part::Key(key) => keys.push(key.to_string()),
            Part::Ids(kind, client, fs) => {
                ids.push(format!("{{ idtype: {kind}, client_id: {client}, fs_id: {fs} }}"));
            }
        }
    }
    for (name, list) in [("idmap", ids), ("keys", keys), ("ranges", ranges)] {
        lines.push(match list.as_slice() {
            [] => format!("{name}=[]"),
            list => format!("{name}=[ {} ]", list.join(", ")),
        });
    }
    lines.sort();
    lines.iter().map(|line| format!("nodemap.{}.{line}\n", map.name())).collect()
}

/// Returns the nodemap of a client at an address, or with a key, and its rights.
fn standing(command: &str, nodemaps: &Nodemaps, nid: &str, key: Option<&str>) -> Result<(String, Standing)> {
    let nid: Nid = nid.parse().map_err(|error| usage(command, error))?;
    let key = key.map(|key| key.parse::<KeyId>().map_err(|error| usage(command, error))).transpose()?;
    let identity = key.map(|key| Identity::new("", key, Roles::CLIENT, ""));
    let proven = Proven { identity: identity.as_ref(), is_server: false, nid };
    let standing = Standing::of(proven, &Nodemaps { active: true, ..nodemaps.clone() }, false);
    let name = standing.nodemap().map_or(DEFAULT, |map| map.name()).to_owned();
    Ok((name, standing))
}

/// `lctl nodemap_test_id --nid NID [--key KEYID] --idtype TYPE --id ID`.
fn test_id(command: &str, args: &[String]) -> Outcome {
    let options = options(command, args, &["nid", "idtype", "id"], &["key"])?;
    let kind: IdKind = options["idtype"].parse().map_err(|error| usage(command, error))?;
    let id: u32 = options["id"].parse().map_err(|_| usage(command, "--id is a number"))?;
    let nodemaps = known(&management(None)?)?;
    let (_, standing) = standing(command, &nodemaps, options["nid"], options.get("key").copied())?;
    match standing.to_fs(kind, id) {
        Ok(id) => {
            println!("{id}");
            Ok(())
        }
        Err(_) => {
            Err(refused(Errno::ACCESS, format!("{command}: {kind} {id} has no mapping and is refused")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lctl::EXIT_USAGE;

    fn change(line: &str) -> std::result::Result<(String, String), i32> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let change = change_of(&words[0], &words[1..]).map_err(|failure| failure.exit)?;
        change.map(|(name, change)| (name, change.to_string())).ok_or(-1)
    }

    #[test]
    fn commands_say_what_is_to_be_done_in_lustres_words() {
        for (line, name, expected) in [
            ("nodemap_activate 1", "", "activate 1"),
            ("nodemap_add remote", "remote", "create"),
            ("nodemap_del remote", "remote", "destroy"),
            ("nodemap_add_range --name a --range 10.0.0.[1-9]@tcp", "a", "add range=10.0.0.[1-9]@tcp"),
            ("nodemap_del_range --range=10.0.0.0/8@tcp --name=a", "a", "remove range=10.0.0.0/8@tcp"),
            ("nodemap_add_key --name a --key 00000000000000ab", "a", "add key=00000000000000ab"),
            ("nodemap_add_idmap --name a --idtype gid --idmap 5:6", "a", "add gid=5:6"),
            ("nodemap_del_idmap --name a --idtype projid --idmap 5:6", "a", "remove projid=5:6"),
            ("nodemap_modify --name default --property banned --value 1", "default", "set banned=1"),
            ("nodemap_set_fileset --name a --fileset /a/b/", "a", "set fileset=/a/b"),
            ("nodemap_set_fileset --name a --fileset=", "a", "set fileset="),
        ] {
            assert_eq!(change(line), Ok((name.to_owned(), expected.to_owned())), "{line}");
        }
        for (line, code) in [
            ("nodemap_activate 2", EXIT_USAGE),
            ("nodemap_add", EXIT_USAGE),
            ("nodemap_add_range --name a", EXIT_USAGE),
            ("nodemap_add_range --name a --range", EXIT_USAGE),
            ("nodemap_add_range --name a --name b --range 10.0.0.1@tcp", EXIT_USAGE),
            ("nodemap_add_range --name a --ranges 10.0.0.1@tcp", EXIT_USAGE),
            ("nodemap_add_range --name a --range 10.0.0.1", Errno::INVAL.raw_os_error()),
            ("nodemap_add_idmap --name a --idtype pid --idmap 5:6", Errno::INVAL.raw_os_error()),
            ("nodemap_modify --name a --property audit_mode --value 1", Errno::INVAL.raw_os_error()),
            ("nodemap_set_fileset --name a --fileset a", Errno::INVAL.raw_os_error()),
        ] {
            assert_eq!(change(line), Err(code), "{line}");
        }
    }
}
