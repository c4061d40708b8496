//! `lctl set_param`, `conf_param` and `llog_print`: parameters of this host's processes, persistent ones of
//! all nodes, and persistent ones of this host's mounts.

use super::options::Options;
use super::{Found, find, for_all, missing};
use crate::control::{self, Answer, Request};
use crate::failure::{Failure, Result, error_text};
use crate::lctl::{Outcome, management, refused, usage, with_code};
use crate::local_params::{self, setting_in};
use nacre_env::fault;
use nacre_mgs::params::Param;
use nacre_params::known;
use nacre_types::nid::check_fsname;
use rustix::io::Errno;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Default number of threads that set parameters in parallel.
const THREADS: usize = 8;
/// Largest number of threads.
const THREADS_MAX: usize = 64;

/// Scope and lifetime of a setting.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Reach {
    /// Processes of this host, while they run.
    Now,
    /// All nodes, persistently.
    AllNodes,
    /// This host's mounts of one file system or of all, from the next mount on.
    Mounts(Option<String>),
}

/// A setting to make, or with an empty value to remove.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Setting {
    name: String,
    value: String,
    reach: Reach,
}

/// `lctl set_param`.
pub fn set(args: &[String]) -> Outcome {
    let options = Options::of_setting("set_param", args, "CdFnPt")?;
    let usage = |text: &str| usage(format!("lctl set_param: {text}"));
    let reach = match (options.has('P'), options.has('C')) {
        (true, true) => return Err(usage("-P is for all nodes and -C for this one: take one of them")),
        (true, false) => Reach::AllNodes,
        (false, true) => Reach::Mounts(options.text('C').map(str::to_owned)),
        (false, false) => Reach::Now,
    };
    if options.has('d') && reach == Reach::Now {
        return Err(usage("-d takes a lasting setting back: add -P or -C"));
    }
    if let Reach::Mounts(Some(fsname)) = &reach {
        check_fsname(fsname).map_err(|error| usage(&error.to_string()))?;
    }
    let threads = match (options.has('t'), options.text('t')) {
        (false, _) => 1,
        (true, None) => THREADS,
        (true, Some(text)) => {
            let count = text.parse().ok().filter(|count| (1..=THREADS_MAX).contains(count));
            count
                .ok_or_else(|| usage(&format!("'{text}' is no number of threads from 1 to {THREADS_MAX}")))?
        }
    };
    let mut outcome = Ok(());
    let mut settings = Vec::new();
    for word in options.rest {
        match setting_of(word, options.has('d')) {
            Some((name, value)) => settings.push(Setting { name, value, reach: reach.clone() }),
            None => outcome = tell(invalid("set_param", word)),
        }
    }
    match options.text('F') {
        Some(file) => settings.extend(settings_of_file(file, &reach, options.has('d'))?),
        None => drop(some("set_param", options.rest)?),
    }
    let set = set_all(&settings, threads, options.has('n'));
    match set.and(outcome) {
        // The failure is already reported.
        Err(failure) => Err(Failure::told(failure.exit)),
        Ok(()) => Ok(()),
    }
}

fn some<'a>(command: &str, words: &'a [String]) -> Result<&'a [String]> {
    match words {
        [] => Err(usage(format!("lctl {command}: a parameter is needed"))),
        words => Ok(words),
    }
}

fn invalid(command: &str, setting: &str) -> Failure {
    refused(Errno::INVAL, format!("error: {command}: setting {setting}: {}", error_text(Errno::INVAL)))
}

fn tell(failure: Failure) -> Outcome {
    eprintln!("{failure}");
    Err(failure)
}

/// Parses name and value of a word; with `delete` the value is empty and may be omitted.
fn setting_of(word: &str, delete: bool) -> Option<(String, String)> {
    match (word.split_once('='), delete) {
        (Some((name, _)), true) => Some((name.to_owned(), String::new())),
        (None, true) => Some((word.to_owned(), String::new())),
        (Some((name, value)), false) if !value.is_empty() => Some((name.to_owned(), value.to_owned())),
        _ => None,
    }
}

/// Reads the settings of a file: the options determine the scope of `NAME=VALUE` lines; entries of a
/// configuration log (as `lctl llog_print` shows it) are for all nodes.
fn settings_of_file(file: &str, reach: &Reach, delete: bool) -> Result<Vec<Setting>> {
    let text = std::fs::read_to_string(file).map_err(|error| {
        let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
        refused(errno, format!("error: set_param: cannot open '{file}': {}", error_text(errno)))
    })?;
    let mut settings = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (found, reach) = match line.strip_prefix("- ") {
            Some(entry) => match logged(entry) {
                Some(Logged::Setting(name, value)) => (Some((name, value)), Reach::AllNodes),
                // Other entries of a log are not parameters.
                Some(Logged::Other) => continue,
                None => (None, Reach::AllNodes),
            },
            None => (setting_in(line), reach.clone()),
        };
        let Some((name, value)) = found else {
            let at = number + 1;
            return Err(refused(
                Errno::INVAL,
                format!("error: set_param: line {at} of '{file}' is no setting: {line}"),
            ));
        };
        settings.push(Setting { name, value: if delete { String::new() } else { value }, reach });
    }
    Ok(settings)
}

/// An entry of a configuration log.
#[derive(PartialEq, Eq, Debug)]
enum Logged {
    Setting(String, String),
    Other,
}

/// Parses `{ index: 2, event: set_param, device: general, parameter: NAME, value: VALUE }`; `None` if it is
/// not an entry.
fn logged(entry: &str) -> Option<Logged> {
    let inner = entry.trim().strip_prefix('{')?.strip_suffix('}')?.trim();
    let field = |name: &str| {
        let at = inner.split(", ").find_map(|field| field.trim().strip_prefix(name)?.strip_prefix(':'))?;
        Some(at.trim().trim_matches('"').to_owned())
    };
    match field("event")?.as_str() {
        "set_param" => Some(Logged::Setting(field("parameter")?, field("value")?)),
        _ => Some(Logged::Other),
    }
}

/// Makes the settings, one at a time or several in parallel. Continues after errors, reports each, and
/// returns the last.
fn set_all(settings: &[Setting], threads: usize, quiet: bool) -> Outcome {
    let outcome = Mutex::new(Ok(()));
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(setting) = settings.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(failure) = set_one(setting, quiet) {
                let told = if failure.message.is_empty() { Err(failure) } else { tell(failure) };
                *outcome.lock().unwrap_or_else(|poison| poison.into_inner()) = told;
            }
        }
    };
    nacre_env::thread::scope(|scope| {
        (1..threads.min(settings.len())).for_each(|_| drop(scope.spawn(work)));
        work();
    });
    outcome.into_inner().unwrap_or_else(|poison| poison.into_inner())
}

fn set_one(Setting { name, value, reach }: &Setting, quiet: bool) -> Outcome {
    match reach {
        Reach::Now => set_now(name, value, quiet),
        Reach::AllNodes => set_for_good(fsname_in(name), name, value, quiet),
        Reach::Mounts(fsname) => set_for_mounts(fsname.as_deref(), name, value, quiet),
    }
}

fn set_for_mounts(fsname: Option<&str>, name: &str, value: &str, quiet: bool) -> Outcome {
    let failed =
        |errno| refused(errno, format!("error: set_param: setting {name}={value}: {}", error_text(errno)));
    match known::check(name, value) {
        Err(_) if !known::may_be_set(name) => return Err(missing("set_param", name)),
        Err(refusal) if !value.is_empty() => {
            let reason = refusal.reason;
            let message = format!("error: set_param: setting {name}={value}: {reason}");
            return Err(with_code(refusal.status.errno(), message));
        }
        _ => {}
    }
    let path = local_params::path(fsname).ok_or_else(|| failed(Errno::NOENT))?;
    let value = Some(value).filter(|value| !value.is_empty());
    local_params::change(&path, name, value)
        .map_err(|error| failed(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
    if let Some(value) = value.filter(|_| !quiet) {
        println!("{name}={value}");
    }
    Ok(())
}

fn set_now(pattern: &str, value: &str, quiet: bool) -> Outcome {
    if matches!(pattern, "fail_loc" | "fail_val") && !fault::ENABLED {
        return Err(refused(
            Errno::OPNOTSUPP,
            format!("error: set_param: setting {pattern}: {}", fault::ABSENT),
        ));
    }
    let found = find("set_param", pattern, false)?;
    let parameters: Vec<&Found> = found.iter().filter(|found| !found.param.directory).collect();
    if parameters.is_empty() {
        return Err(missing("set_param", pattern));
    }
    let one = |found: &&Found| {
        let name = &found.param.name;
        if Param::shown_as(name).is_some() {
            // The key of the server that shows it may not permit changes of the configuration.
            return set_for_good(fsname_in(name), name, value, quiet);
        }
        let request = Request::WriteParam { name: name.clone(), value: value.to_owned() };
        let failed = |errno, message: &str| {
            Err(with_code(errno, format!("error: set_param: setting {name}={value}: {message}")))
        };
        match control::ask_if_there(&found.socket, &request) {
            // The process has ended, and its parameters with it.
            None => Ok(()),
            Some(Ok(Answer::Done)) if quiet => Ok(()),
            Some(Ok(Answer::Done)) => {
                println!("{name}={value}");
                Ok(())
            }
            Some(Ok(Answer::Error { errno, message })) => failed(errno, &message),
            Some(_) => failed(Errno::IO.raw_os_error(), "no answer"),
        }
    };
    for_all(&parameters, one)
}

fn set_for_good(fsname: Option<&str>, pattern: &str, value: &str, quiet: bool) -> Outcome {
    let socket = management(fsname)?;
    let request = Request::SetForGood { name: pattern.to_owned(), value: value.to_owned() };
    match control::ask(&socket, &request) {
        Ok(Answer::Done) if quiet || value.is_empty() => Ok(()),
        Ok(Answer::Done) => {
            println!("{pattern}={value}");
            Ok(())
        }
        Ok(Answer::Error { errno, .. }) if errno == Errno::NOENT.raw_os_error() => {
            Err(missing("set_param", pattern))
        }
        Ok(Answer::Error { errno, message }) => {
            Err(with_code(errno, format!("error: set_param: setting {pattern}={value}: {message}")))
        }
        Ok(_) | Err(_) => Err(refused(Errno::IO, format!("error: set_param: setting {pattern}: no answer"))),
    }
}

/// `lctl llog_print params`: the persistent settings of a file system, in the form that `set_param -F` reads.
pub fn llog_print(args: &[String]) -> Outcome {
    let bad = |name: &str| {
        refused(Errno::NOENT, format!("lctl llog_print: there is no log '{name}': params or FSNAME-params"))
    };
    let [name] = args else {
        return Err(usage("lctl llog_print: the name of a log is needed"));
    };
    let fsname = match name.as_str() {
        "params" => None,
        name => Some(name.strip_suffix("-params").ok_or_else(|| bad(name))?),
    };
    let socket = management(fsname)?;
    match control::ask(&socket, &Request::LastingParams) {
        Ok(Answer::Settings { settings }) => {
            for (index, (name, value)) in settings.iter().enumerate() {
                println!(
                    "- {{ index: {}, event: set_param, device: general, parameter: {name}, value: {value} }}",
                    index + 1
                );
            }
            Ok(())
        }
        Ok(Answer::Error { errno, message }) => Err(with_code(errno, format!("lctl llog_print: {message}"))),
        Ok(_) | Err(_) => Err(refused(Errno::IO, "lctl llog_print: no answer")),
    }
}

/// `FSNAME.lov.stripesize=1M` or `FSNAME-OST0001.osc.max_dirty_mb=64`: translated into the name of `set_param
/// -P`.
pub fn conf(args: &[String]) -> Outcome {
    let options = Options::of_setting("conf_param", args, "d")?;
    let bad = |setting: &str| {
        refused(Errno::INVAL, format!("error: conf_param: setting {setting}: Invalid argument"))
    };
    for setting in some("conf_param", options.rest)? {
        let (device, rest) = setting.split_once('.').ok_or_else(|| bad(setting))?;
        let (kind, leaf) = rest.split_once('.').ok_or_else(|| bad(setting))?;
        let (leaf, value) = setting_of(leaf, options.has('d')).ok_or_else(|| bad(setting))?;
        let fsname = device.split('-').next();
        match kind {
            // Parameters that each process has once.
            "sys" => set_for_good(fsname, &leaf, &value, true)?,
            kind => set_for_good(fsname, &format!("{kind}.{device}*.{leaf}"), &value, true)?,
        }
    }
    Ok(())
}

/// `lctl --device NAME activate|deactivate`: sets `active` of the connection to an OST. Device numbers differ
/// between hosts and change, so they are refused.
pub fn activate(args: &[String]) -> Outcome {
    let [device, action] = args else {
        return Err(usage("lctl --device: NAME activate|deactivate is needed"));
    };
    let value = match action.as_str() {
        "activate" => 1,
        "deactivate" => 0,
        other => return Err(usage(format!("lctl --device: '{other}' is unknown"))),
    };
    if device.parse::<u64>().is_ok() || !device.contains("-OST") {
        let message =
            format!("lctl --device: '{device}' is no name of a way to an OST: see list_param 'os?.*'");
        return Err(refused(Errno::INVAL, message));
    }
    set(&["-n".to_owned(), format!("osc.{device}.active={value}")])
}

/// Returns the file system of a pattern like `lov.nacre-clilov-*.stripesize`, if it names one.
fn fsname_in(pattern: &str) -> Option<&str> {
    let mut parts = pattern.split(['.', '/']);
    let (_, instance, next) = (parts.next()?, parts.next()?, parts.next()?);
    // Parameters of locks have the instance one level further down; those of servers have a word before it.
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
    fn a_file_has_lines_of_settings_and_entries_of_a_log() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("params");
        let text = "# saved\n\nosc.*.max_dirty_mb=64\n\
            - { index: 1, event: attach, device: x, type: mgc }\n\
            - { index: 2, event: set_param, device: general, parameter: osc.{a,b}*.checksums, value: 0 }\n";
        std::fs::write(&path, text).expect("written");
        let path = path.to_str().expect("plain");
        let mounts = Reach::Mounts(None);
        let setting = |name: &str, value: &str, reach: Reach| Setting {
            name: name.to_owned(),
            value: value.to_owned(),
            reach,
        };
        let expected = [
            setting("osc.*.max_dirty_mb", "64", mounts.clone()),
            setting("osc.{a,b}*.checksums", "0", Reach::AllNodes),
        ];
        assert_eq!(settings_of_file(path, &mounts, false).expect("fine"), expected);
        std::fs::write(path, "a.b\n").expect("written");
        assert_eq!(
            settings_of_file(path, &mounts, false).map_err(|error| error.exit),
            Err(Errno::INVAL.raw_os_error())
        );
        assert_eq!(
            settings_of_file("/nosuch", &mounts, false).map_err(|error| error.exit),
            Err(Errno::NOENT.raw_os_error())
        );
        assert_eq!(logged("{ event: set_param, parameter: a }"), None);
        assert_eq!(logged("index: 1"), None);
    }

    #[test]
    fn words_that_set_nothing_are_refused() {
        assert_eq!(setting_of("a.b=1=2", false), Some(("a.b".into(), "1=2".into())));
        assert_eq!((setting_of("a.b", false), setting_of("a.b=", false)), (None, None));
        assert_eq!(setting_of("a.b", true), Some(("a.b".into(), String::new())));
    }
}
