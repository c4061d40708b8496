//! `mount.nacre`: the helper that mount(8) calls for `mount -t nacre` and lines in /etc/fstab. As
//! `mount.fuse.nacre`, the type in the kernel's table, it is called for `mount -o remount`.
//!
//! Exit codes are those of mount(8): 0 success, 1 wrong call, 2 system error, 32 mount failure.

mod kept_back;

use crate::cli;
use crate::failure::EXIT_USAGE;
use nacre_common::manual::{self, Page, Usage};
use std::ffi::OsString;
use std::path::Path;

const USAGE: &str = "\
usage: mount.nacre NID[:NID..]:/FSNAME[/DIRECTORY] MOUNT_POINT [-sfnv] [-o OPTIONS]
  -s   ignore options that are not known
  -f   only check, do not mount
  -n   do not write /etc/mtab (never done)
  -v   tell what is done
Example: mount -t nacre 10.0.0.1@tcp:/nacre /mnt/nacre -o ro
         in /etc/fstab: 10.0.0.1@tcp:/nacre /mnt/nacre nacre _netdev,nofail 0 0
";
const EXIT_CALL: i32 = 1;
const EXIT_MOUNT: i32 = 32;

/// Returns the manual page.
pub fn manual() -> Page {
    let usage = Usage {
        name: "mount.nacre",
        section: manual::ADMINISTRATION,
        about: "mounts a NacreFS file system for mount(8)",
        synopsis: "NID[:NID..]:/FSNAME[/DIRECTORY] MOUNT_POINT [-sfnv] [-o OPTIONS]",
        parts: vec![
            ("DESCRIPTION", vec![("", USAGE.to_owned())]),
            ("MOUNT OPTIONS", vec![("", cli::OPTIONS_HELP.to_owned())]),
            ("EXIT STATUS", vec![("", "0 success, 1 wrong call, 32 mount failure".to_owned())]),
        ],
        related: "mount(8), fstab(5), nacre-mount(8), nacre(8)",
    };
    usage.page()
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Call {
    operands: Vec<OsString>,
    options: Vec<String>,
    sloppy: bool,
    fake: bool,
    verbose: bool,
    help: bool,
    remount: bool,
}

/// Runs `mount.nacre ARGS` and returns the exit code.
pub fn main(args: &[OsString]) -> i32 {
    let mut call = match parse(args) {
        Ok(call) => call,
        Err(message) => return wrong_call(&message),
    };
    if call.help {
        print!("{USAGE}");
        return 0;
    }
    let [source, mount_point] = call.operands.as_slice() else {
        return wrong_call("a source and a mount point are needed");
    };
    let source = source.to_string_lossy().into_owned();
    if call.fake {
        return match cli::MountOptions::parse(&call.options, call.sloppy) {
            Ok(_) => 0,
            Err(failure) => wrong_call(&failure.message),
        };
    }
    let mount_point = Path::new(mount_point);
    call.options.extend(kept_back::words(&call.options, &source, mount_point));
    let outcome = match call.remount {
        true => cli::remount(mount_point, &call.options),
        false => cli::mount_source(&source, mount_point, &call.options, call.sloppy),
    };
    match outcome {
        Ok(()) => {
            if call.verbose {
                println!("mount.nacre: {source} mounted on {}", mount_point.display());
            }
            0
        }
        Err(failure) => {
            eprintln!("mount.nacre: {failure}");
            if failure.exit == EXIT_USAGE { EXIT_CALL } else { EXIT_MOUNT }
        }
    }
}

fn wrong_call(message: &str) -> i32 {
    eprint!("mount.nacre: {message}\n{USAGE}");
    EXIT_CALL
}

fn parse(args: &[OsString]) -> Result<Call, String> {
    let mut call = Call::default();
    let mut words = args.iter();
    while let Some(word) = words.next() {
        let text = word.to_string_lossy();
        match text.as_ref() {
            "--help" => call.help = true,
            // mount(8) passes the type with its sub-type.
            "-t" => drop(words.next()),
            letters if letters.len() > 1 && letters.starts_with('-') => {
                for (index, letter) in letters.char_indices().skip(1) {
                    match letter {
                        's' => call.sloppy = true,
                        'f' => call.fake = true,
                        'v' => call.verbose = true,
                        'n' => {}
                        'h' => call.help = true,
                        'o' => {
                            let rest = &letters[index + 1..];
                            let value = match rest.is_empty() {
                                false => rest.to_owned(),
                                true => words
                                    .next()
                                    .map(|word| word.to_string_lossy().into_owned())
                                    .ok_or("option -o needs a value")?,
                            };
                            call.options.push(value);
                            break;
                        }
                        other => return Err(format!("unknown option -{other}")),
                    }
                }
            }
            _ => call.operands.push(word.clone()),
        }
    }
    call.remount = call.options.iter().any(|list| list.split(',').any(|option| option == "remount"));
    Ok(call)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Call, String> {
        parse(&line.split_whitespace().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn calls_by_mount_are_understood() {
        let call = read("10.0.0.1@tcp:/nacre /mnt -v -n -o ro,_netdev").expect("as mount does");
        assert_eq!(call.operands, ["10.0.0.1@tcp:/nacre", "/mnt"]);
        assert_eq!(call.options, ["ro,_netdev"]);
        assert!(!call.remount && read("x /mnt -o remount,rw").expect("well formed").remount);
        assert!(call.verbose && !call.fake);
        let call = read("-sf -oro a b -t nacre").expect("glued");
        assert!(call.sloppy && call.fake);
        assert_eq!((call.options, call.operands.len()), (vec!["ro".to_owned()], 2));
        assert!(read("-x").is_err());
        assert!(read("a b -o").is_err());
    }
}
