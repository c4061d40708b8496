//! `lctl list_param`, `get_param`, `set_param`, `conf_param`: parameters of the processes on this host, and of all nodes for
//! good.

use super::{EXIT_USAGE, Outcome};
use crate::control::{self, Answer, ParamName, Request};
use crate::registry;
use nacre_params::Pattern;
use std::path::{Path, PathBuf};

/// A parameter and the process that has it.
struct Found {
    socket: PathBuf,
    param: ParamName,
}

/// What is shown of names.
#[derive(Clone, Copy, Default)]
struct Show {
    /// `/` behind what others lie below, `=` behind what can be set.
    marks: bool,
    recursive: bool,
    directories_only: bool,
    readable_only: bool,
    writable_only: bool,
}

impl Show {
    fn of(letters: &str) -> Show {
        let has = |letter| letters.contains(letter);
        Show {
            marks: has('F'),
            recursive: has('R'),
            directories_only: has('D'),
            readable_only: has('r'),
            writable_only: has('w'),
        }
    }

    fn wants(self, param: &ParamName) -> bool {
        (!self.directories_only || param.directory)
            && (!self.readable_only || param.readable)
            && (!self.writable_only || param.writable)
    }

    fn name(self, param: &ParamName) -> String {
        let mark = match (param.directory, param.writable) {
            _ if !self.marks => "",
            (true, _) => "/",
            (false, true) => "=",
            (false, false) => "",
        };
        format!("{}{mark}", param.name)
    }
}

/// Splits leading one-letter options from the rest.
fn split_options<'a>(
    command: &str,
    args: &'a [String],
    known: &str,
) -> Result<(String, &'a [String]), (i32, String)> {
    let count = args.iter().take_while(|word| word.len() > 1 && word.starts_with('-')).count();
    let letters: String = args[..count].iter().flat_map(|word| word.chars().skip(1)).collect();
    if let Some(unknown) = letters.chars().find(|letter| !known.contains(*letter)) {
        return Err((EXIT_USAGE, format!("lctl {command}: invalid option -- '{unknown}'")));
    }
    match &args[count..] {
        [] => Err((EXIT_USAGE, format!("lctl {command}: a parameter is needed"))),
        rest => Ok((letters, rest)),
    }
}

fn text_of(errno: i32) -> String {
    let text = std::io::Error::from_raw_os_error(errno).to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

fn missing(command: &str, pattern: &str) -> (i32, String) {
    let path = pattern.replace('.', "/");
    (libc::ENOENT, format!("error: {command}: param_path '{path}': {}", text_of(libc::ENOENT)))
}

/// What a pattern stands for in all processes of this host, in the order of names; an empty list is the error that says so.
fn find(command: &str, pattern: &str, recursive: bool) -> Result<Vec<Found>, (i32, String)> {
    if let Err(status) = Pattern::parse(pattern) {
        let text = text_of(status.errno());
        return Err((status.errno(), format!("error: {command}: param_path '{pattern}': {text}")));
    }
    let request = Request::FindParams { pattern: pattern.to_owned(), recursive };
    let mut found = Vec::new();
    for run in registry::running() {
        for name in run.running() {
            let socket = run.socket(&name);
            match control::ask(&socket, &request) {
                Ok(Answer::Params { params }) => {
                    found.extend(params.into_iter().map(|param| Found { socket: socket.clone(), param }));
                }
                // It is just ending, or of a version that knows of no such question.
                other => log::debug!("{} has no parameters: {other:?}", socket.display()),
            }
        }
    }
    if found.is_empty() {
        return Err(missing(command, pattern));
    }
    found.sort_by(|a, b| a.param.name.cmp(&b.param.name));
    Ok(found)
}

/// Runs `act` for all, also after errors; gives the last error.
fn for_all<T>(items: &[T], mut act: impl FnMut(&T) -> Outcome) -> Outcome {
    let mut outcome = Ok(());
    for item in items {
        outcome = act(item).and(outcome);
    }
    outcome
}

/// Runs `act` for what each pattern stands for; goes on after errors and gives the last one.
fn each(
    command: &str,
    patterns: &[String],
    recursive: bool,
    mut act: impl FnMut(&Found) -> Outcome,
) -> Outcome {
    let mut outcome = Ok(());
    for pattern in patterns {
        let one = find(command, pattern, recursive).and_then(|found| for_all(&found, &mut act));
        if let Err((_, message)) = &one
            && patterns.len() > 1
        {
            eprintln!("{message}");
        }
        outcome = one.and(outcome);
    }
    // With several patterns their errors are told already.
    match outcome {
        Err((code, _)) if patterns.len() > 1 => Err((code, String::new())),
        outcome => outcome,
    }
}

/// `lctl list_param`.
pub fn list(args: &[String]) -> Outcome {
    let (letters, patterns) = split_options("list_param", args, "DFRrw")?;
    let show = Show::of(&letters);
    let mut last = String::new();
    each("list_param", patterns, show.recursive, |found| {
        let name = show.name(&found.param);
        // What several processes have is one place for people.
        if show.wants(&found.param) && name != last {
            println!("{name}");
        }
        last = name;
        Ok(())
    })
}

/// `lctl get_param`.
pub fn get(args: &[String]) -> Outcome {
    let (letters, patterns) = split_options("get_param", args, "nNFRHrw")?;
    let show = Show::of(&letters);
    let has = |letter| letters.contains(letter);
    each("get_param", patterns, show.recursive, |found| {
        let param = &found.param;
        if !show.wants(param) {
            return Ok(());
        }
        if has('N') {
            println!("{}", show.name(param));
            return Ok(());
        }
        // Without -R, what others lie below has nothing to show; what can only be set neither.
        if !param.readable {
            return Ok(());
        }
        let value = read(&found.socket, &param.name)?;
        let lines = value.trim_end_matches('\n');
        match (has('H'), has('n')) {
            (true, _) => lines.lines().for_each(|line| println!("{}={line}", show.name(param))),
            (false, true) => println!("{lines}"),
            (false, false) if value.ends_with('\n') => println!("{}=\n{lines}", show.name(param)),
            (false, false) => println!("{}={lines}", show.name(param)),
        }
        Ok(())
    })
}

fn read(socket: &Path, name: &str) -> Result<String, (i32, String)> {
    match control::ask(socket, &Request::ReadParam { name: name.to_owned() }) {
        Ok(Answer::Value { value }) => Ok(value),
        Ok(Answer::Error { errno, message }) => {
            Err((errno, format!("error: get_param: reading {name}: {message}")))
        }
        Ok(_) | Err(_) => Err((libc::EIO, format!("error: get_param: reading {name}: no answer"))),
    }
}

/// `lctl set_param`.
pub fn set(args: &[String]) -> Outcome {
    let (letters, settings) = split_options("set_param", args, "nPd")?;
    let has = |letter| letters.contains(letter);
    let mut outcome = Ok(());
    for setting in settings {
        let (pattern, value) = match (setting.split_once('='), has('d')) {
            (Some((pattern, _)), true) => (pattern, ""),
            (None, true) => (setting.as_str(), ""),
            (Some((pattern, value)), false) if !value.is_empty() => (pattern, value),
            _ => {
                outcome =
                    Err((libc::EINVAL, format!("error: set_param: setting {setting}: Invalid argument")));
                continue;
            }
        };
        let one = match (has('P'), has('d')) {
            (true, _) => set_for_good(pattern, value, has('n')),
            (false, true) => {
                Err((EXIT_USAGE, "lctl set_param: -d takes a lasting setting back: add -P".to_owned()))
            }
            (false, false) => set_now(pattern, value, has('n')),
        };
        outcome = one.and(outcome);
    }
    outcome
}

fn set_now(pattern: &str, value: &str, quiet: bool) -> Outcome {
    let found = find("set_param", pattern, false)?;
    let parameters: Vec<&Found> = found.iter().filter(|found| !found.param.directory).collect();
    if parameters.is_empty() {
        return Err(missing("set_param", pattern));
    }
    let one = |found: &&Found| {
        let name = &found.param.name;
        let request = Request::WriteParam { name: name.clone(), value: value.to_owned() };
        let failed = |errno, message: &str| {
            Err((errno, format!("error: set_param: setting {name}={value}: {message}")))
        };
        match control::ask(&found.socket, &request) {
            Ok(Answer::Done) if quiet => Ok(()),
            Ok(Answer::Done) => {
                println!("{name}={value}");
                Ok(())
            }
            Ok(Answer::Error { errno, message }) => failed(errno, &message),
            Ok(_) | Err(_) => failed(libc::EIO, "no answer"),
        }
    };
    for_all(&parameters, one)
}

fn set_for_good(pattern: &str, value: &str, quiet: bool) -> Outcome {
    let socket = super::management(fsname_in(pattern))?;
    let request = Request::SetForGood { name: pattern.to_owned(), value: value.to_owned() };
    match control::ask(&socket, &request) {
        Ok(Answer::Done) if quiet || value.is_empty() => Ok(()),
        Ok(Answer::Done) => {
            println!("{pattern}={value}");
            Ok(())
        }
        Ok(Answer::Error { errno: libc::ENOENT, .. }) => Err(missing("set_param", pattern)),
        Ok(Answer::Error { errno, message }) => {
            Err((errno, format!("error: set_param: setting {pattern}={value}: {message}")))
        }
        Ok(_) | Err(_) => Err((libc::EIO, format!("error: set_param: setting {pattern}: no answer"))),
    }
}

/// `FSNAME.lov.stripesize=1M` or `FSNAME-OST0001.osc.max_dirty_mb=64`: the same as `set_param -P` with the name in its place.
pub fn conf(args: &[String]) -> Outcome {
    let (letters, settings) = split_options("conf_param", args, "d")?;
    let bad =
        |setting: &str| (libc::EINVAL, format!("error: conf_param: setting {setting}: Invalid argument"));
    let mut words = vec!["-nP".to_owned()];
    words.extend(letters.contains('d').then(|| "-d".to_owned()));
    for setting in settings {
        let (device, rest) = setting.split_once('.').ok_or_else(|| bad(setting))?;
        let (kind, leaf) = rest.split_once('.').ok_or_else(|| bad(setting))?;
        words.push(format!("{kind}.{device}*.{leaf}"));
    }
    set(&words)
}

/// The file system that a pattern like `lov.nacre-clilov-*.stripesize` is about, if it says.
fn fsname_in(pattern: &str) -> Option<&str> {
    let mut parts = pattern.split(['.', '/']);
    let (_, instance, next) = (parts.next()?, parts.next()?, parts.next()?);
    // Those of locks are one level further down; servers' have a word before the name.
    let instance = match instance {
        "namespaces" => next.strip_prefix("filter-").unwrap_or(next),
        instance => instance,
    };
    instance.split(['-', '*']).next().filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_may_name_its_file_system() {
        assert_eq!(fsname_in("lov.nacre-clilov-*.stripesize"), Some("nacre"));
        assert_eq!(fsname_in("lod.two-MDT0000-mdtlov.stripesize"), Some("two"));
        assert_eq!(fsname_in("osc.two*.stripesize"), Some("two"));
        assert_eq!(fsname_in("lov.*.stripesize"), None);
        assert_eq!(fsname_in("ldlm.namespaces.filter-two-OST0000_UUID.contended_locks"), Some("two"));
        assert_eq!(fsname_in("ldlm.namespaces.filter-*.contended_locks"), None);
        assert_eq!(fsname_in("lov.stripesize"), None);
    }

    #[test]
    fn marks_and_choices_follow_the_letters() {
        let param =
            |directory, writable| ParamName { name: "a.b".into(), directory, readable: !directory, writable };
        let show = Show::of("F");
        assert_eq!(show.name(&param(true, false)), "a.b/");
        assert_eq!(show.name(&param(false, true)), "a.b=");
        assert_eq!(Show::of("").name(&param(false, true)), "a.b");
        assert!(Show::of("w").wants(&param(false, true)) && !Show::of("w").wants(&param(false, false)));
        assert!(Show::of("D").wants(&param(true, false)) && !Show::of("D").wants(&param(false, false)));
    }

    #[test]
    fn unknown_options_are_refused() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(
            split_options("get_param", &words("-x a"), "n").map(drop).map_err(|e| e.0),
            Err(EXIT_USAGE)
        );
        assert_eq!(split_options("get_param", &words("-n"), "n").map(drop).map_err(|e| e.0), Err(EXIT_USAGE));
        let args = words("-nN a b");
        let (letters, rest) = split_options("get_param", &args, "nN").expect("fine");
        assert_eq!((letters.as_str(), rest.len()), ("nN", 2));
    }
}
