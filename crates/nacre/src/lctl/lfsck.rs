//! `lctl lfsck_start`, `lfsck_stop` and `lfsck_query`: the check of MDTs in use by Lustre's commands.

use super::{Outcome, params, refused, usage};
use crate::changelog::parse_mdt;
use crate::failure::Result;
use crate::lfs::getopt::{self, OptionSpec, Takes, opt};
use rustix::io::Errno;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// Interval of the questions of `lfsck_query -w`: a parameter is read, not waited for.
const PAUSE: Duration = Duration::from_millis(200);

const START: &[OptionSpec] = &[
    opt('M', "device", Takes::Value),
    opt('A', "all", Takes::Nothing),
    opt('t', "type", Takes::Value),
    opt('s', "speed", Takes::Value),
    opt('n', "dryrun", Takes::Nothing),
    opt('r', "reset", Takes::Nothing),
];
const STOP: &[OptionSpec] = &[opt('M', "device", Takes::Value), opt('A', "all", Takes::Nothing)];
const QUERY: &[OptionSpec] = &[
    opt('M', "device", Takes::Value),
    opt('A', "all", Takes::Nothing),
    opt('t', "type", Takes::Value),
    opt('w', "wait", Takes::Nothing),
];

/// Kinds of checks in Lustre. One walk of an MDT does all of them.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Type {
    Namespace,
    Layout,
}

impl Type {
    fn name(self) -> &'static str {
        match self {
            Type::Namespace => "lfsck_namespace",
            Type::Layout => "lfsck_layout",
        }
    }
}

fn parsed(command: &str, args: &[String], options: &[OptionSpec]) -> Result<getopt::Parsed> {
    let words: Vec<OsString> = args.iter().map(OsString::from).collect();
    let parsed =
        getopt::parse(&words, options).map_err(|message| usage(format!("lctl {command}: {message}")))?;
    match parsed.operands.first() {
        None => Ok(parsed),
        Some(word) => Err(usage(format!("lctl {command}: '{}' is not expected", word.to_string_lossy()))),
    }
}

/// Returns the pattern for the MDTs: the one of `-M`, with `-A` all of its file system; without `-M` all of this host.
fn devices(command: &str, parsed: &getopt::Parsed) -> Result<String> {
    let Some(device) = parsed.value('M') else { return Ok("mdd.*".to_owned()) };
    let (fsname, mdt) = parse_mdt(device).ok_or_else(|| {
        refused(Errno::INVAL, format!("{command}: '{device}' is no MDT: use a name like nacre-MDT0000"))
    })?;
    Ok(match parsed.has('A') {
        true => format!("mdd.{fsname}-MDT*"),
        false => format!("mdd.{fsname}-MDT{mdt:04x}"),
    })
}

fn types(command: &str, parsed: &getopt::Parsed) -> Result<Vec<Type>> {
    let all = [Type::Namespace, Type::Layout];
    let mut types = Vec::new();
    for word in parsed.value('t').unwrap_or("all").split(',') {
        match word {
            "all" | "default" | "scrub" => types.extend(all),
            "namespace" => types.push(Type::Namespace),
            "layout" => types.push(Type::Layout),
            other => {
                let text = format!("{command}: '{other}' is no type: use namespace, layout or all");
                return Err(refused(Errno::INVAL, text));
            }
        }
    }
    Ok(all.into_iter().filter(|one| types.contains(one)).collect())
}

/// Starts the check; repairs unless `-n` is given, as Lustre does.
pub fn start(args: &[String]) -> Outcome {
    const COMMAND: &str = "lfsck_start";
    let parsed = parsed(COMMAND, args, START)?;
    let devices = devices(COMMAND, &parsed)?;
    if types(COMMAND, &parsed)?.len() == 1 {
        eprintln!(
            "lctl {COMMAND}: names and objects are checked in one walk: the other type is checked as well"
        );
    }
    let mut order = "start".to_owned();
    if !parsed.has('n') {
        order.push_str(" repair");
    }
    if !parsed.has('r') {
        order.push_str(" resume");
    }
    if let Some(speed) = parsed.value('s') {
        let rate: u64 = speed.parse().map_err(|_| {
            refused(Errno::INVAL, format!("{COMMAND}: '{speed}' is no number of inodes per second"))
        })?;
        order.push_str(&format!(" rate={rate}"));
    }
    order_of(&devices, &order)?;
    println!("Started LFSCK on the device {}: scrub layout namespace", shown(&devices));
    Ok(())
}

/// Stops the check.
pub fn stop(args: &[String]) -> Outcome {
    const COMMAND: &str = "lfsck_stop";
    let parsed = parsed(COMMAND, args, STOP)?;
    let devices = devices(COMMAND, &parsed)?;
    order_of(&devices, "stop")?;
    println!("Stopped LFSCK on the device {}.", shown(&devices));
    Ok(())
}

/// Shows the state; with `-w` once it is no longer `scanning`.
pub fn query(args: &[String]) -> Outcome {
    const COMMAND: &str = "lfsck_query";
    let parsed = parsed(COMMAND, args, QUERY)?;
    let (devices, types) = (devices(COMMAND, &parsed)?, types(COMMAND, &parsed)?);
    let mut found: Vec<(PathBuf, String)> = Vec::new();
    for one in &types {
        found.extend(params::names_of(&format!("{devices}.{}", one.name())));
    }
    if found.is_empty() {
        return Err(refused(
            Errno::NODEV,
            format!("{COMMAND}: no process of this host serves {}", shown(&devices)),
        ));
    }
    for (socket, name) in found {
        loop {
            let values = params::values_in(&socket, &name);
            if values.is_empty() {
                let text = format!("{COMMAND}: the process with {name} has ended: start it, and ask again");
                return Err(refused(Errno::NODEV, text));
            }
            let is_scanning = values.iter().any(|(_, text)| text.contains("\nstatus: scanning"));
            if !(parsed.has('w') && is_scanning) {
                values.iter().for_each(|(name, text)| println!("{name}=\n{text}"));
                break;
            }
            nacre_env::thread::sleep(PAUSE);
        }
    }
    Ok(())
}

fn shown(devices: &str) -> &str {
    devices.trim_start_matches("mdd.")
}

fn order_of(devices: &str, order: &str) -> Outcome {
    params::set(&["-n".to_owned(), format!("{devices}.lfsck={order}")])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_calls_are_refused_before_anything_is_ordered() {
        let run = |command: fn(&[String]) -> Outcome, words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            command(&words).expect_err("refused").exit
        };
        let invalid = Errno::INVAL.raw_os_error();
        assert_eq!(run(start, &["-M", "nonesuch-OST0000"]), invalid);
        assert_eq!(run(start, &["-M", "nonesuch-MDT0000", "-t", "what"]), invalid);
        assert_eq!(run(start, &["-M", "nonesuch-MDT0000", "-s", "fast"]), invalid);
        assert_eq!(run(start, &["-x"]), super::super::EXIT_USAGE);
        assert_eq!(run(stop, &["nonesuch-MDT0000"]), super::super::EXIT_USAGE);
        assert_eq!(run(query, &["-M", "nonesuch-MDT0000"]), Errno::NODEV.raw_os_error());
    }
}
