//! What commands print. The reader may go away, as `head` does: then the rest is for nobody, and the command ends as one
//! that a closed pipe stops.

use std::fmt::Arguments;
use std::io::Write;

/// Exit code of a command that SIGPIPE stops, as shells show it.
const STOPPED_BY_PIPE: i32 = 128 + libc::SIGPIPE;

/// Prints text; the macros below do.
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

/// As that of the standard library, without its panic.
macro_rules! print {
    ($($text:tt)*) => { $crate::output::print(format_args!($($text)*)) };
}

/// As that of the standard library, without its panic.
macro_rules! println {
    () => { $crate::output::print(format_args!("\n")) };
    ($($text:tt)*) => { $crate::output::print(format_args!("{}\n", format_args!($($text)*))) };
}
