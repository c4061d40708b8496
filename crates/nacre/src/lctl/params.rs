//! `lctl list_param`, `get_param`, `find_param`, `set_param`, `conf_param`: parameters of the processes on
//! this host, and persistent ones of all nodes.

mod options;
mod set;

pub use set::{activate, conf, llog_print, set};

use super::{Outcome, refused, usage, with_code};
use crate::control::{self, Answer, ParamName, Request};
use crate::failure::{Failure, Result, error_text};
use crate::regex::Regex;
use nacre_params::Pattern;
use nacre_params::pattern::path_of;
use options::Options;
use rustix::io::Errno;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// A parameter and the control socket of its process.
struct Found {
    socket: PathBuf,
    param: ParamName,
}

/// Form in which names are shown.
#[derive(Clone, Copy, Default)]
struct Show {
    /// `/` after directories of parameters, `=` after parameters that can be set.
    marks: bool,
    recursive: bool,
    directories_only: bool,
    readable_only: bool,
    writable_only: bool,
    /// `/` between the components.
    paths: bool,
    /// A name that several processes have is shown for each.
    each_process: bool,
}

impl Show {
    fn of(options: &Options<'_>) -> Show {
        Show {
            marks: options.has('F'),
            recursive: options.has('R'),
            directories_only: options.has('D'),
            readable_only: options.has('r'),
            writable_only: options.has('w') || options.has('t'),
            paths: options.has('p'),
            each_process: options.has('M'),
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
        let name = if self.paths { path_of(&param.name) } else { param.name.clone() };
        format!("{name}{mark}")
    }
}

fn missing(command: &str, pattern: &str) -> Failure {
    let path = pattern.replace('.', "/");
    refused(Errno::NOENT, format!("error: {command}: param_path '{path}': {}", error_text(Errno::NOENT)))
}

/// Returns the matches of a pattern in all processes of this host, in the order of names; no match is an
/// error.
fn find(command: &str, pattern: &str, recursive: bool) -> Result<Vec<Found>> {
    if let Err(status) = Pattern::parse(pattern) {
        let errno = Errno::from_raw_os_error(status.errno());
        let text = error_text(errno);
        return Err(refused(errno, format!("error: {command}: param_path '{pattern}': {text}")));
    }
    let found = ask_all(pattern, recursive);
    if found.is_empty() { Err(missing(command, pattern)) } else { Ok(found) }
}

/// Returns the matches of a pattern in all processes of this host, in the order of names.
fn ask_all(pattern: &str, recursive: bool) -> Vec<Found> {
    ask_in(&super::sockets(), pattern, recursive)
}

/// Returns the matches in the processes with these control sockets.
fn ask_in(sockets: &[PathBuf], pattern: &str, recursive: bool) -> Vec<Found> {
    let request = Request::FindParams { pattern: pattern.to_owned(), recursive };
    let mut found = Vec::new();
    for (socket, answer) in control::ask_each(sockets, &request) {
        match answer {
            Ok(Answer::Params { params }) => {
                found.extend(params.into_iter().map(|param| Found { socket: socket.clone(), param }));
            }
            // The process is ending, stopped, or of a version without this request.
            other => log::debug!("{} has no parameters: {other:?}", socket.display()),
        }
    }
    found.sort_by(|a, b| a.param.name.cmp(&b.param.name));
    found
}

/// Returns the names that match a pattern in the processes of this host, with their control sockets.
pub fn names_of(pattern: &str) -> Vec<(PathBuf, String)> {
    ask_all(pattern, false).into_iter().map(|found| (found.socket, found.param.name)).collect()
}

/// Returns names and values of the matches of a pattern in one process.
pub fn values_in(socket: &Path, pattern: &str) -> Vec<(String, String)> {
    let names = ask_in(&[socket.to_path_buf()], pattern, false).into_iter().map(|found| found.param.name);
    let mut values = Vec::new();
    for name in names {
        match control::ask(socket, &Request::ReadParam { name: name.clone() }) {
            Ok(Answer::Value { value }) => values.push((name, value.trim().to_owned())),
            // The process was stopped meanwhile: each further request would run into the timeout.
            Err(error) if control::is_silence(&error) => break,
            _ => {}
        }
    }
    values
}

/// Runs `act` for all items, also after errors; returns the last error.
fn for_all<T>(items: &[T], mut act: impl FnMut(&T) -> Outcome) -> Outcome {
    let mut outcome = Ok(());
    for item in items {
        outcome = act(item).and(outcome);
    }
    outcome
}

/// Runs `act` for the matches of each pattern; continues after errors and returns the last one.
fn each(
    command: &str,
    patterns: &[String],
    recursive: bool,
    mut act: impl FnMut(&Found) -> Outcome,
) -> Outcome {
    let mut outcome = Ok(());
    for pattern in patterns {
        let one = find(command, pattern, recursive).and_then(|found| for_all(&found, &mut act));
        if let Err(failure) = &one
            && patterns.len() > 1
        {
            eprintln!("{failure}");
        }
        outcome = one.and(outcome);
    }
    // With several patterns, their errors are already printed.
    match outcome {
        Err(failure) if patterns.len() > 1 => Err(Failure::told(failure.exit)),
        outcome => outcome,
    }
}

/// `lctl list_param`.
pub fn list(args: &[String]) -> Outcome {
    let options = Options::of_showing("list_param", args, "DFJlLmMpRrtw")?;
    let show = Show::of(&options);
    let mut last = String::new();
    if options.has('J') {
        let mut listed = Vec::new();
        let outcome = each("list_param", options.rest, show.recursive, |found| {
            listed.extend(show.wants(&found.param).then(|| found.param.clone()));
            Ok(())
        });
        return crate::lctl::print_json(&listed).and(outcome);
    }
    each("list_param", options.rest, show.recursive, |found| {
        let name = show.name(&found.param);
        // People see one entry for a name that several processes have.
        if show.wants(&found.param) && (show.each_process || name != last) {
            println!("{name}");
        }
        last = name;
        Ok(())
    })
}

/// Options of `get_param` and `find_param`.
const GET_LETTERS: &str = "FHJlLmMnNpRrtwy";

/// `lctl get_param`.
pub fn get(args: &[String]) -> Outcome {
    let options = Options::of_showing("get_param", args, GET_LETTERS)?;
    let show = Show::of(&options);
    if !options.has('J') {
        return each("get_param", options.rest, show.recursive, |found| show_value(&options, show, found));
    }
    let mut values = Vec::new();
    let outcome = each("get_param", options.rest, show.recursive, |found| {
        if show.wants(&found.param) && found.param.readable {
            values.extend(value_of(show, found)?);
        }
        Ok(())
    });
    crate::lctl::print_json(&values).and(outcome)
}

/// A parameter in JSON output.
#[derive(Serialize)]
struct NamedValue {
    name: String,
    /// Number or text.
    value: serde_json::Value,
}

/// Returns the name and value of a parameter; `None` if its process has ended.
fn value_of(show: Show, found: &Found) -> Result<Option<NamedValue>> {
    let Some(text) = read(&found.socket, &found.param.name)? else { return Ok(None) };
    let value = match text.parse::<i64>() {
        Ok(number) => number.into(),
        Err(_) => text.into(),
    };
    Ok(Some(NamedValue { name: show.name(&found.param), value }))
}

/// `lctl help_param`: shows the values that parameters accept.
pub fn help(args: &[String]) -> Outcome {
    if args.is_empty() {
        return Err(usage("lctl help_param: a parameter is needed"));
    }
    for_all(args, |name: &String| {
        let taken = nacre_params::known::help(name);
        if taken.is_empty() {
            let failure = missing("help_param", name);
            eprintln!("{failure}");
            return Err(Failure::told(failure.exit));
        }
        taken.iter().for_each(|(name, what)| println!("{name}: {what}"));
        Ok(())
    })
}

/// `lctl find_param`: parameters with a component that matches a regular expression, shown as by `get_param`.
pub fn find_by_regex(args: &[String]) -> Outcome {
    let options = Options::of_showing("find_param", args, GET_LETTERS)?;
    let show = Show::of(&options);
    let all = ask_all("*", true);
    let (mut outcome, mut values) = (Ok(()), Vec::new());
    let mut show_one = |found: &&Found| match options.has('J') {
        true if show.wants(&found.param) && found.param.readable => {
            value_of(show, found).map(|value| values.extend(value))
        }
        true => Ok(()),
        false => show_value(&options, show, found),
    };
    for text in options.rest {
        let failed =
            |errno| refused(errno, format!("error: find_param: param_path '{text}': {}", error_text(errno)));
        let one = match Regex::new(text) {
            None => Err(failed(Errno::INVAL)),
            Some(regex) => {
                let is_it = |found: &&Found| !found.param.directory && regex.is_in(&found.param.name);
                let found: Vec<&Found> = all.iter().filter(is_it).collect();
                match found[..] {
                    [] => Err(failed(Errno::NOENT)),
                    _ => for_all(&found, &mut show_one),
                }
            }
        };
        if let Err(failure) = &one {
            eprintln!("{failure}");
        }
        outcome = one.and(outcome);
    }
    if options.has('J') {
        outcome = crate::lctl::print_json(&values).and(outcome);
    }
    outcome.map_err(|failure| Failure::told(failure.exit))
}

/// Prints one parameter in the form that the options of `get_param` select.
fn show_value(options: &Options<'_>, show: Show, found: &Found) -> Outcome {
    let param = &found.param;
    if !show.wants(param) {
        return Ok(());
    }
    let name = show.name(param);
    if options.has('N') {
        println!("{name}");
        return Ok(());
    }
    // Without -R, directories and write-only parameters have nothing to show.
    if !param.readable {
        return Ok(());
    }
    // The parameters of a process that has ended meanwhile no longer exist.
    let Some(value) = read(&found.socket, &param.name)? else { return Ok(()) };
    let lines = value.trim_end_matches('\n');
    match (options.has('H'), options.has('y'), options.has('n')) {
        (true, ..) if lines.is_empty() => println!("{name}="),
        (true, ..) => lines.lines().for_each(|line| println!("{name}={line}")),
        (_, true, _) => print!("{}", yaml(&name, &value)),
        (.., true) => println!("{lines}"),
        _ if value.ends_with('\n') => println!("{name}=\n{lines}"),
        _ => println!("{name}={lines}"),
    }
    Ok(())
}

/// Formats a parameter as an entry of a YAML mapping: a text that is YAML as it is, other texts of several
/// lines as a block.
fn yaml(name: &str, value: &str) -> String {
    if !value.ends_with('\n') {
        let is_word = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
        let is_plain = value.bytes().all(is_word) && value.bytes().next().is_some_and(|first| first != b'-');
        return match is_plain {
            true => format!("{name}: {value}\n"),
            // A JSON string is a YAML string.
            false => format!("{name}: {}\n", serde_json::Value::from(value)),
        };
    }
    let mark = if value.lines().next().is_some_and(|line| line.ends_with(':')) { "" } else { " |" };
    let lines: String = value.trim_end().lines().map(|line| format!("  {line}\n")).collect();
    format!("{name}:{mark}\n{lines}")
}

/// Reads the value of a parameter; `None` if its process has ended.
fn read(socket: &Path, name: &str) -> Result<Option<String>> {
    let failed =
        |errno, message: &str| Err(with_code(errno, format!("error: get_param: reading {name}: {message}")));
    match control::ask_if_there(socket, &Request::ReadParam { name: name.to_owned() }) {
        None => Ok(None),
        Some(Ok(Answer::Value { value })) => Ok(Some(value)),
        Some(Ok(Answer::Error { errno, message })) => failed(errno, &message),
        Some(_) => failed(Errno::IO.raw_os_error(), "no answer"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_and_choices_follow_the_options() {
        let param =
            |directory, writable| ParamName { name: "a.b".into(), directory, readable: !directory, writable };
        let show = |word: &str| {
            let args = [word.to_owned(), "x".to_owned()];
            Show::of(&Options::of_showing("list_param", &args, "FwDtp").expect("fine"))
        };
        assert_eq!(show("-F").name(&param(true, false)), "a.b/");
        assert_eq!(show("-F").name(&param(false, true)), "a.b=");
        assert_eq!(show("--").name(&param(false, true)), "a.b");
        assert_eq!(show("-pF").name(&param(false, true)), "a/b=");
        for letter in ["-w", "-t"] {
            assert!(show(letter).wants(&param(false, true)) && !show(letter).wants(&param(false, false)));
        }
        assert!(show("-D").wants(&param(true, false)) && !show("-D").wants(&param(false, false)));
    }

    #[test]
    fn values_are_entries_of_a_yaml_mapping() {
        assert_eq!(yaml("a.b", "64"), "a.b: 64\n");
        assert_eq!(yaml("a.b", "adler [crc32c]"), "a.b: \"adler [crc32c]\"\n");
        assert_eq!(yaml("a.b", ""), "a.b: \"\"\n");
        assert_eq!(yaml("a.b", "-"), "a.b: \"-\"\n");
        assert_eq!(yaml("a.b", "x 1\ny 2\n"), "a.b: |\n  x 1\n  y 2\n");
        assert_eq!(yaml("a.b", "job_stats:\n- job_id: x\n"), "a.b:\n  job_stats:\n  - job_id: x\n");
    }
}
