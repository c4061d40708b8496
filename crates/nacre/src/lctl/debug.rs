//! `lctl debug_kernel` and `lctl clear`: recent events of all processes of this host.

use super::{Outcome, usage};
use crate::cli::ask_all_debug;
use crate::control::Answer;
use crate::debug::Question;
use crate::failure::Failure;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;

/// Writes the recent events to a file or to standard output, and removes them, as Lustre's command does.
pub fn debug_kernel(args: &[String]) -> Outcome {
    let mut lines = Vec::new();
    for (process, answer) in ask_all_debug(Question::Events) {
        let Answer::Events { lines: of } = answer else { continue };
        // Lines begin with their times, which order them across processes.
        lines.extend(of.into_iter().map(|line| format!("{line} [{process}]\n")));
    }
    lines.sort();
    let text = lines.concat();
    match args {
        [] => print!("{text}"),
        [file] => {
            let fail = || Failure::because(format!("write {file}"));
            let mut options = OpenOptions::new();
            let mut out =
                options.create(true).truncate(true).write(true).mode(0o600).open(file).map_err(fail())?;
            out.write_all(text.as_bytes()).map_err(fail())?;
            println!("Debug log: {} lines written to {file}.", lines.len());
        }
        _ => return Err(usage("usage: lctl debug_kernel [FILE]")),
    }
    drop(ask_all_debug(Question::Clear));
    Ok(())
}

/// Removes the recent events.
pub fn clear(args: &[String]) -> Outcome {
    if !args.is_empty() {
        return Err(usage("usage: lctl clear"));
    }
    drop(ask_all_debug(Question::Clear));
    Ok(())
}
