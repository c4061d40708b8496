//! `lctl --device MDT changelog_register` and `changelog_deregister`.

use super::{Outcome, params, refused, usage};
use crate::changelog::{Changelog, parse_mdt};
use crate::failure::{Failure, Result, error_text};
use crate::lfs::getopt::{self, OptionSpec, Takes, opt};
use nacre_types::ChangeMask;
use nacre_types::changelog::{change_user, is_change_user_name};
use rustix::io::Errno;
use std::ffi::OsString;
use std::io;

const OPTIONS: &[OptionSpec] =
    &[opt('u', "user", Takes::Value), opt('m', "mask", Takes::Value), opt('n', "nameonly", Takes::Nothing)];

/// `lctl --device NAME COMMAND`: commands for a device.
pub fn device(args: &[String]) -> Outcome {
    match args {
        [device, command, rest @ ..] if command == "changelog_register" => register(device, rest),
        [device, command, rest @ ..] if command == "changelog_deregister" => deregister(device, rest),
        args => params::activate(args),
    }
}

fn changelog(device: &str, command: &str) -> Result<Changelog> {
    let (fsname, mdt) = parse_mdt(device).ok_or_else(|| {
        refused(Errno::INVAL, format!("{command}: '{device}' is no MDT: use a name like nacre-MDT0000"))
    })?;
    Ok(Changelog::of(fsname, mdt))
}

fn parsed(command: &str, args: &[String]) -> Result<getopt::Parsed> {
    let words: Vec<OsString> = args.iter().map(OsString::from).collect();
    getopt::parse(&words, OPTIONS).map_err(|message| usage(format!("lctl {command}: {message}")))
}

fn failed(command: &str, what: &str, error: &io::Error) -> Failure {
    let errno = Errno::from_io_error(error).unwrap_or(Errno::IO);
    let text = match errno {
        Errno::NODEV => "no process of this host serves or mounts it".to_owned(),
        Errno::EXIST => "a user with this name is registered".to_owned(),
        Errno::NOENT => "no such changelog user".to_owned(),
        errno => error_text(errno),
    };
    refused(errno, format!("{command}: {what}: {text}"))
}

fn register(device: &str, args: &[String]) -> Outcome {
    const COMMAND: &str = "changelog_register";
    let mut log = changelog(device, COMMAND)?;
    let parsed = parsed(COMMAND, args)?;
    let by_operand = parsed.operands.first().and_then(|word| word.to_str());
    let name = parsed.value('u').or(by_operand).unwrap_or_default();
    if parsed.operands.len() > 1 || !name.is_empty() && !is_change_user_name(name) {
        return Err(refused(
            Errno::INVAL,
            format!(
                "{COMMAND}: a user's name has up to 30 letters, digits, '_', '-' and '.', the first a letter"
            ),
        ));
    }
    let mask = match parsed.value('m') {
        None => 0,
        Some(text) => ChangeMask::parse(text, ChangeMask::DEFAULT)
            .map_err(|error| refused(Errno::INVAL, format!("{COMMAND}: {error}")))?
            .bits(),
    };
    let user = log.register(name, mask).map_err(|error| failed(COMMAND, device, &error))?;
    let shown = change_user(user.id, &user.name);
    match parsed.has('n') {
        true => println!("{shown}"),
        false => println!("{}: Registered changelog userid '{shown}'", log.name()),
    }
    Ok(())
}

fn deregister(device: &str, args: &[String]) -> Outcome {
    const COMMAND: &str = "changelog_deregister";
    let mut log = changelog(device, COMMAND)?;
    let parsed = parsed(COMMAND, args)?;
    let by_operand = parsed.operands.first().and_then(|word| word.to_str());
    let name = parsed
        .value('u')
        .or(by_operand)
        .filter(|_| parsed.operands.len() <= 1)
        .ok_or_else(|| usage(format!("lctl {COMMAND}: one user is needed, as in cl1 or -u NAME")))?;
    let user = log.deregister(name).map_err(|error| failed(COMMAND, name, &error))?;
    println!("{}: Deregistered changelog user #{}", log.name(), user.id);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_calls_are_refused_before_anything_is_asked() {
        let run = |words: &[&str]| device(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        let mdt = "nonesuch-MDT0000";
        let exit = |words: &[&str]| run(words).expect_err("refused").exit;
        let invalid = Errno::INVAL.raw_os_error();
        assert_eq!(exit(&["nacre-OST0000", "changelog_register"]), invalid);
        assert_eq!(exit(&[mdt, "changelog_register", "-u", "1x"]), invalid);
        assert_eq!(exit(&[mdt, "changelog_register", "-m", "WHAT"]), invalid);
        assert_eq!(exit(&[mdt, "changelog_register", "-x"]), super::super::EXIT_USAGE);
        assert_eq!(exit(&[mdt, "changelog_deregister"]), super::super::EXIT_USAGE);
    }
}
