//! `lctl`: Lustre's operator command, as far as NacreFS has something to operate: devices and file-system parameters of
//! what runs on this host, and reaching a server.

use crate::control::{self, Answer, ProcessStatus, Request};
use crate::process::RunDir;
use crate::registry;
use nacre_rpc::tcp::{ClientIdentity, TcpMgs};
use nacre_rpc::{ClientConfig, MgsEndpoint};
use nacre_types::{ClientUuid, Nid};
use nacre_wire::mgs::MgsRequest;
use std::ffi::OsString;
use std::io::{self, BufRead, IsTerminal, Write};
use std::time::{Duration, Instant};

const USAGE: &str = "\
usage: lctl dl                                  list devices: targets and mounts of this host
       lctl list_param [-D] PATTERN...          names of parameters
       lctl get_param [-n|-N] PATTERN...        values of parameters
       lctl set_param [-n] [-P] [-d] NAME=VALUE...
       lctl conf_param [-d] FSNAME.NAME=VALUE...
                                                set for all nodes, for good; -d NAME goes back to the default
       lctl ping NID [TIMEOUT]                  does a server answer there
       lctl list_nids                           addresses of this host's servers
Parameters are kept by the management server; -P, 'permanent' in Lustre, is always so.
Example: lctl set_param lov.stripesize=1M && lctl get_param 'lov.*'
";
const EXIT_USAGE: i32 = 4;
/// Longest wait for an answer to `lctl ping`.
const PING_LIMIT: Duration = Duration::from_secs(10);

/// Why a command failed: exit code and message.
type Outcome = Result<(), (i32, String)>;

/// Runs `lctl ARGS` and returns the exit code.
pub fn main(args: &[OsString]) -> i32 {
    let words: Vec<String> = args.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    if words.is_empty() {
        return interactive();
    }
    run(&words)
}

fn interactive() -> i32 {
    let prompt = io::stdin().is_terminal();
    let mut code = 0;
    let mut lines = io::stdin().lock().lines();
    loop {
        if prompt {
            print!("lctl > ");
            let _ = io::stdout().flush();
        }
        let Some(Ok(line)) = lines.next() else { return code };
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        match words.first().map(String::as_str) {
            None => {}
            Some("exit" | "quit") => return code,
            Some(_) => code = run(&words),
        }
    }
}

fn run(words: &[String]) -> i32 {
    let (name, args) = (words[0].as_str(), &words[1..]);
    let outcome = match name {
        "dl" | "device_list" => device_list(),
        "list_param" => list_param(args),
        "get_param" => get_param(args),
        "set_param" => set_param(args),
        "conf_param" => conf_param(args),
        "ping" => ping(args),
        "list_nids" => list_nids(),
        "--version" | "version" => {
            println!("lctl {}_nacre", env!("CARGO_PKG_VERSION"));
            Ok(())
        }
        "--list-commands" => {
            println!("dl device_list get_param set_param conf_param list_param ping list_nids version help");
            Ok(())
        }
        "help" | "--help" | "-h" => {
            print!("{USAGE}");
            Ok(())
        }
        other => Err((1, format!("lctl: '{other}' is not a valid command. See 'lctl --list-commands'."))),
    };
    match outcome {
        Ok(()) => 0,
        Err((code, message)) => {
            eprintln!("{message}");
            if code == EXIT_USAGE {
                eprint!("{USAGE}");
            }
            code
        }
    }
}

fn processes() -> Vec<ProcessStatus> {
    let status = |run: &RunDir, name: &str| match control::ask(&run.socket(name), &Request::Status) {
        Ok(Answer::Status(status)) => Some(status),
        _ => None,
    };
    registry::running()
        .iter()
        .flat_map(|run| run.running().into_iter().filter_map(|name| status(run, &name)).collect::<Vec<_>>())
        .collect()
}

/// Rows as Lustre prints them: number, state, type, name, UUID, references.
fn device_list() -> Outcome {
    let mut number = 0;
    for process in processes() {
        let fsname = &process.fsname;
        let mut row = |kind: &str, name: String, uuid: String, references: u64| {
            println!("{number:>3} UP {kind} {name} {uuid} {references}");
            number += 1;
        };
        for target in &process.targets {
            let references = target.clients.unwrap_or(0) + 1;
            match target.target.get(..3) {
                Some("MGT") => row("mgs", "MGS".to_owned(), "MGS".to_owned(), references),
                Some("MDT") => {
                    let name = format!("{fsname}-{}", target.target);
                    row("mdt", name.clone(), format!("{name}_UUID"), references);
                }
                _ => {
                    let name = format!("{fsname}-{}", target.target);
                    row("obdfilter", name.clone(), format!("{name}_UUID"), references);
                }
            }
        }
        if let Some(mount) = &process.mount {
            row("lov", format!("{fsname}-clilov"), mount.mount_point.display().to_string(), 1);
        }
    }
    Ok(())
}

fn list_nids() -> Outcome {
    let mut nids: Vec<String> =
        processes().into_iter().flat_map(|p| p.targets).flat_map(|target| target.nids).collect();
    nids.sort();
    nids.dedup();
    nids.iter().for_each(|nid| println!("{nid}"));
    Ok(())
}

/// The process that has the parameters: the one with the MGT.
/// Control socket of the process with the management server: of file system `fsname`, or of the first one.
fn management(fsname: Option<&str>) -> Result<std::path::PathBuf, (i32, String)> {
    for run in registry::running() {
        for name in run.running() {
            let socket = run.socket(&name);
            if let Ok(Answer::Status(status)) = control::ask(&socket, &Request::Status)
                && status.targets.iter().any(|target| target.target == "MGT")
                && fsname.is_none_or(|wanted| wanted == status.fsname)
            {
                return Ok(socket);
            }
        }
    }
    Err((libc::ENODEV, "lctl: no management server runs on this host: run this where it does".to_owned()))
}

fn parameters() -> Result<Vec<(String, String)>, (i32, String)> {
    match control::ask(&management(None)?, &Request::GetParams) {
        Ok(Answer::Params { params }) => Ok(params),
        Ok(Answer::Error { errno, message }) => Err((errno, format!("lctl: {message}"))),
        Ok(_) => Err((libc::EPROTO, "lctl: the management server gave a strange answer".to_owned())),
        Err(error) => Err((libc::EIO, format!("lctl: the management server does not answer: {error}"))),
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

/// Runs `show` for each parameter that each pattern matches; the error of the last pattern without any is the result.
fn each_match(command: &str, patterns: &[String], mut show: impl FnMut(&str, &str)) -> Outcome {
    let all = parameters()?;
    let mut outcome = Ok(());
    for pattern in patterns {
        let mut found = all.iter().filter(|(name, _)| matches(pattern, name)).peekable();
        if found.peek().is_none() {
            let path = pattern.replace('.', "/");
            let message = format!("error: {command}: param_path '{path}': No such file or directory");
            outcome = Err((libc::ENOENT, message));
        }
        found.for_each(|(name, value)| show(name, value));
    }
    outcome
}

fn list_param(args: &[String]) -> Outcome {
    let (_, patterns) = split_options("list_param", args, "DFRLlprw")?;
    each_match("list_param", patterns, |name, _| println!("{name}"))
}

fn get_param(args: &[String]) -> Outcome {
    let (letters, patterns) = split_options("get_param", args, "nNFRH")?;
    each_match("get_param", patterns, |name, value| {
        if letters.contains('n') {
            println!("{value}");
        } else if letters.contains('N') {
            println!("{name}");
        } else {
            println!("{name}={value}");
        }
    })
}

fn set_param(args: &[String]) -> Outcome {
    let (letters, settings) = split_options("set_param", args, "nPd")?;
    let all = parameters()?;
    let mut outcome = Ok(());
    for setting in settings {
        let (pattern, value) = match (setting.split_once('='), letters.contains('d')) {
            (Some((pattern, value)), false) => (pattern, value),
            (None, true) => (setting.as_str(), ""),
            (Some((pattern, _)), true) => (pattern, ""),
            (None, false) => {
                outcome =
                    Err((libc::EINVAL, format!("error: set_param: setting {setting}: Invalid argument")));
                continue;
            }
        };
        let socket = management(fsname_in(pattern))?;
        let mut found = false;
        for (name, _) in all.iter().filter(|(name, _)| matches(pattern, name)) {
            found = true;
            match control::ask(&socket, &Request::SetParam { name: name.clone(), value: value.to_owned() }) {
                Ok(Answer::Done) if letters.contains('n') => {}
                Ok(Answer::Done) => println!("{name}={value}"),
                Ok(Answer::Error { errno, message }) => {
                    outcome = Err((errno, format!("error: set_param: setting {name}={value}: {message}")));
                }
                Ok(_) | Err(_) => {
                    outcome = Err((libc::EIO, format!("error: set_param: setting {name}: no answer")));
                }
            }
        }
        if !found {
            let path = pattern.replace('.', "/");
            let message = format!("error: set_param: param_path '{path}': No such file or directory");
            outcome = Err((libc::ENOENT, message));
        }
    }
    outcome
}

/// `FSNAME.lov.stripesize=1M` or `FSNAME-MDT0000.lov.stripesize=1M`: the same as `set_param` with the name in its place.
fn conf_param(args: &[String]) -> Outcome {
    let (letters, settings) = split_options("conf_param", args, "d")?;
    let bad =
        |setting: &str| (libc::EINVAL, format!("error: conf_param: setting {setting}: Invalid argument"));
    let mut words = vec!["-n".to_owned()];
    words.extend(letters.contains('d').then(|| "-d".to_owned()));
    for setting in settings {
        let (device, rest) = setting.split_once('.').ok_or_else(|| bad(setting))?;
        let (kind, leaf) = rest.split_once('.').ok_or_else(|| bad(setting))?;
        let fsname = device.split('-').next().unwrap_or(device);
        words.push(format!("{kind}.{fsname}-*.{leaf}"));
    }
    set_param(&words)
}

/// The file system that a pattern like `lov.nacre-clilov-*.stripesize` is about, if it says.
fn fsname_in(pattern: &str) -> Option<&str> {
    let mut parts = pattern.split(['.', '/']);
    let (_, instance, _) = (parts.next()?, parts.next()?, parts.next()?);
    instance.split('-').next().filter(|name| !name.contains('*'))
}

/// Does a pattern match a parameter's name? `*` stands for any text in one part. Names here have no instance, so one in
/// the pattern (`lov.nacre-clilov-*.stripesize`) is left out, and `lod` means `lov`.
fn matches(pattern: &str, name: &str) -> bool {
    let parts: Vec<&str> = pattern.split(['.', '/']).collect();
    let named: Vec<&str> = name.split('.').collect();
    let parts = match parts.as_slice() {
        [kind, _, leaf] if named.len() == 2 => vec![*kind, *leaf],
        parts => parts.to_vec(),
    };
    parts.len() == named.len()
        && parts
            .iter()
            .zip(&named)
            .all(|(part, name)| glob(part.as_bytes(), name.as_bytes()) || (*part == "lod" && *name == "lov"))
}

/// `*` stands for any bytes, everything else for itself.
fn glob(pattern: &[u8], text: &[u8]) -> bool {
    match (pattern.split_first(), text.split_first()) {
        (None, None) => true,
        (Some((b'*', rest)), _) => (0..=text.len()).any(|skip| glob(rest, &text[skip..])),
        (Some((p, pattern)), Some((t, text))) if p == t => glob(pattern, text),
        _ => false,
    }
}

fn ping(args: &[String]) -> Outcome {
    let [nid, rest @ ..] = args else {
        return Err((EXIT_USAGE, "lctl ping: a NID is needed".to_owned()));
    };
    let parsed: Nid = nid.parse().map_err(|error| (libc::EINVAL, format!("lctl ping: {error}")))?;
    let limit = match rest.first() {
        None => PING_LIMIT,
        Some(text) => text
            .parse()
            .map(Duration::from_secs)
            .map_err(|_| (EXIT_USAGE, format!("lctl ping: '{text}' is no number of seconds")))?,
    };
    let failed = |text: String| (libc::EIO, format!("failed to ping {nid}: {text}"));
    if parsed == Nid::Lo {
        return Err(failed("0@lo is inside each process".to_owned()));
    }
    let identity = ClientIdentity { client: ClientUuid([0xff; 16]), fsname: String::new() };
    let config =
        ClientConfig { first_connect_deadline: limit, deadline: Some(limit), ..ClientConfig::default() };
    let start = Instant::now();
    let endpoint = TcpMgs::new(&[parsed], &identity, &config).map_err(|status| failed(status.to_string()))?;
    // Any answer shows that a server is there, also that it has no management target.
    match endpoint.call(&MgsRequest::Ping) {
        Ok(_) => {}
        Err(status) if status == nacre_types::Status::ETIMEDOUT => return Err(failed(status.to_string())),
        Err(status) => log::debug!("ping: {status}"),
    }
    println!("{nid} answered after {:.1} ms", start.elapsed().as_secs_f64() * 1000.0);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_may_name_its_file_system() {
        assert_eq!(fsname_in("lov.nacre-clilov-*.stripesize"), Some("nacre"));
        assert_eq!(fsname_in("lod.two-MDT0000-mdtlov.stripesize"), Some("two"));
        assert_eq!(fsname_in("lov.*.stripesize"), None);
        assert_eq!(fsname_in("lov.stripesize"), None);
    }

    #[test]
    fn patterns_match_with_and_without_instance() {
        for pattern in [
            "lov.stripesize",
            "lov.*",
            "*.stripesize",
            "lov.*.stripesize",
            "lod/*/stripesize",
            "lod.stripesize",
        ] {
            assert!(matches(pattern, "lov.stripesize"), "{pattern}");
        }
        for pattern in ["lov", "osc.*", "lov.stripe", "lov.a.b.stripesize", ""] {
            assert!(!matches(pattern, "lov.stripesize"), "{pattern}");
        }
        assert!(matches("lov.stripe*", "lov.stripecount"));
    }

    #[test]
    fn unknown_commands_say_so() {
        assert_eq!(run(&["frobnicate".to_owned()]), 1);
        assert_eq!(run(&["get_param".to_owned()]), EXIT_USAGE);
        assert_eq!(run(&["get_param".to_owned(), "-Z".to_owned(), "x".to_owned()]), EXIT_USAGE);
    }
}
