//! `nacre bench` and `nacre paf`: nacre-bench does them in the place of this process.

use crate::failure::Failure;
use nacre_common::partner;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Whether it is a command of nacre-bench.
pub fn knows(command: &OsStr) -> bool {
    command == "bench" || command == "paf"
}

/// Becomes nacre-bench, with these words. Says why if it cannot.
pub fn hand_over(command: &str, words: &[OsString]) -> Failure {
    let program = match partner::find(partner::NACRE_BENCH) {
        Ok(program) => program,
        Err(missing) => return Failure::new(missing),
    };
    // By its own name, help and results would not show the command that was given.
    let error = Command::new(&program).arg0(partner::NACRE).arg(command).args(words).exec();
    Failure::because(format!("start {}", program.display()))(error)
}
