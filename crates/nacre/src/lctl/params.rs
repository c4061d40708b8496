//! `lctl list_param`, `get_param`, `find_param`, `set_param`, `conf_param`: parameters of the processes on this host, and of
//! all nodes for good.

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
    /// With `/` between the components.
    paths: bool,
    /// The same name in several processes is shown for each.
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

/// What a pattern stands for in all processes of this host, in the order of names; an empty list is the error that says so.
fn find(command: &str, pattern: &str, recursive: bool) -> Result<Vec<Found>> {
    if let Err(status) = Pattern::parse(pattern) {
        let errno = Errno::from_raw_os_error(status.errno());
        let text = error_text(errno);
        return Err(refused(errno, format!("error: {command}: param_path '{pattern}': {text}")));
    }
    let found = ask_all(pattern, recursive);
    if found.is_empty() { Err(missing(command, pattern)) } else { Ok(found) }
}

/// What a pattern stands for in all processes of this host, in the order of names.
fn ask_all(pattern: &str, recursive: bool) -> Vec<Found> {
    ask_in(&super::sockets(), pattern, recursive)
}

/// The same in the processes with these control sockets.
fn ask_in(sockets: &[PathBuf], pattern: &str, recursive: bool) -> Vec<Found> {
    let request = Request::FindParams { pattern: pattern.to_owned(), recursive };
    let mut found = Vec::new();
    for (socket, answer) in control::ask_each(sockets, &request) {
        match answer {
            Ok(Answer::Params { params }) => {
                found.extend(params.into_iter().map(|param| Found { socket: socket.clone(), param }));
            }
            // It is just ending, stopped, or of a version that knows of no such question.
            other => log::debug!("{} has no parameters: {other:?}", socket.display()),
        }
    }
    found.sort_by(|a, b| a.param.name.cmp(&b.param.name));
    found
}

/// Names that a pattern stands for in the processes of this host, with their control sockets.
pub fn names_of(pattern: &str) -> Vec<(PathBuf, String)> {
    ask_all(pattern, false).into_iter().map(|found| (found.socket, found.param.name)).collect()
}

/// Names and values of what a pattern stands for in one process.
pub fn values_in(socket: &Path, pattern: &str) -> Vec<(String, String)> {
    let names = ask_in(&[socket.to_path_buf()], pattern, false).into_iter().map(|found| found.param.name);
    let mut values = Vec::new();
    for name in names {
        match control::ask(socket, &Request::ReadParam { name: name.clone() }) {
            Ok(Answer::Value { value }) => values.push((name, value.trim().to_owned())),
            // It was stopped a moment ago: each further question would take as long.
            Err(error) if control::is_silence(&error) => break,
            _ => {}
        }
    }
    values
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
        if let Err(failure) = &one
            && patterns.len() > 1
        {
            eprintln!("{failure}");
        }
        outcome = one.and(outcome);
    }
    // With several patterns their errors are told already.
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
        // What several processes have is one place for people.
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

/// A parameter for programs.
#[derive(Serialize)]
struct NamedValue {
    name: String,
    /// A number, or a text.
    value: serde_json::Value,
}

/// The name and value of a parameter; `None` if its process has ended.
fn value_of(show: Show, found: &Found) -> Result<Option<NamedValue>> {
    let Some(text) = read(&found.socket, &found.param.name)? else { return Ok(None) };
    let value = match text.parse::<i64>() {
        Ok(number) => number.into(),
        Err(_) => text.into(),
    };
    Ok(Some(NamedValue { name: show.name(&found.param), value }))
}

/// `lctl help_param`: what parameters take.
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

/// `lctl find_param`: parameters whose names have a part that a regular expression stands for, shown as `get_param` does.
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

/// Prints one parameter as the options of `get_param` say.
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
    // Without -R, what others lie below has nothing to show; what can only be set neither.
    if !param.readable {
        return Ok(());
    }
    // A process that has ended since it was found took its parameters with it.
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

/// A parameter as an entry of a YAML mapping: a text that is YAML itself as it is, others of several lines as a block.
fn yaml(name: &str, value: &str) -> String {
    if !value.ends_with('\n') {
        let is_word = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
        let is_plain = value.bytes().all(is_word) && value.bytes().next().is_some_and(|first| first != b'-');
        return match is_plain {
            true => format!("{name}: {value}\n"),
            // A string in JSON's form is one in YAML's.
            false => format!("{name}: {}\n", serde_json::Value::from(value)),
        };
    }
    let mark = if value.lines().next().is_some_and(|line| line.ends_with(':')) { "" } else { " |" };
    let lines: String = value.trim_end().lines().map(|line| format!("  {line}\n")).collect();
    format!("{name}:{mark}\n{lines}")
}

/// The value of a parameter; `None` if its process has ended.
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
