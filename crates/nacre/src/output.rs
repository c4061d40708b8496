//! Output of commands. If the reader closes the pipe, as `head` does, the command ends with the exit code of
//! SIGPIPE.

use crate::failure::{Failure, Result};
use rustix::process::Signal;
use serde::Serialize;
use std::fmt::Arguments;
use std::io::{IsTerminal, Write};

/// Exit code of a command that SIGPIPE ends, as shells show it.
const STOPPED_BY_PIPE: i32 = 128 + Signal::PIPE.as_raw();

/// Prints text; the macros below use it.
pub fn print(text: Arguments<'_>) {
    if let Err(error) = std::io::stdout().write_fmt(text) {
        match error.kind() {
            std::io::ErrorKind::BrokenPipe => std::process::exit(STOPPED_BY_PIPE),
            _ => {
                eprintln!("nacre: cannot write what was found: {error}");
                std::process::exit(1);
            }
        }
    }
}

/// Returns text as a warning: red on a terminal.
pub fn warning(text: &str) -> String {
    let is_plain = !std::io::stdout().is_terminal() || std::env::var_os("NO_COLOR").is_some();
    if is_plain { text.to_owned() } else { format!("\x1b[31m{text}\x1b[0m") }
}

/// Prints a value as JSON.
pub fn print_json(value: &(impl Serialize + ?Sized)) -> Result<()> {
    let text = serde_json::to_string_pretty(value).map_err(Failure::because("write JSON"))?;
    print(format_args!("{text}\n"));
    Ok(())
}

/// Like that of the standard library, without its panic.
macro_rules! print {
    ($($text:tt)*) => { $crate::output::print(format_args!($($text)*)) };
}

/// Like that of the standard library, without its panic.
macro_rules! println {
    () => { $crate::output::print(format_args!("\n")) };
    ($($text:tt)*) => { $crate::output::print(format_args!("{}\n", format_args!($($text)*))) };
}
