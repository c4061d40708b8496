//! `nacre bench` and `nacre paf`: this process executes nacre-bench.

use crate::failure::Failure;
use nacre_common::partner;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Returns true for a command of nacre-bench.
pub fn knows(command: &OsStr) -> bool {
    command == "bench" || command == "paf"
}

/// Executes nacre-bench in place of this process, with these arguments. Returns the reason if that fails.
pub fn hand_over(command: &str, words: &[OsString]) -> Failure {
    let program = match partner::find(partner::NACRE_BENCH) {
        Ok(program) => program,
        Err(missing) => return Failure::new(missing),
    };
    // Under its own name, help and results would not show the command as given.
    let error = Command::new(&program).arg0(partner::NACRE).arg(command).args(words).exec();
    Failure::because(format!("start {}", program.display()))(error)
}
