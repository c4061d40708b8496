//! Messages for wrong command lines.

use clap::error::ErrorKind;

/// Reports why a command line was not understood, or prints the requested help. Returns the exit code.
pub fn answer(error: &clap::Error) -> i32 {
    match wrong_call(error) {
        Some(text) => eprintln!("{text}"),
        // Help goes to standard output and is no failure; a closed pipe is not worth a message.
        None => drop(error.print()),
    }
    error.exit_code()
}

/// Returns the message for a wrong command line: first how to get help, last the error itself. `None` for
/// output that is not an error, and for requested help.
pub fn wrong_call(error: &clap::Error) -> Option<String> {
    if !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return None;
    }
    let text = error.render().to_string();
    let (said, usage) = text.split_once("\n\nUsage: ").unwrap_or((&text, "nacre"));
    let (sentence, tips) = said.split_once("\n\n").unwrap_or((said, ""));
    let tips = tips.lines().map(|tip| format!("{}\n", tip.trim())).filter(|tip| tip.contains("similar"));
    let is_name = |word: &&str| {
        word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-') && !word.starts_with('-')
    };
    let command: Vec<&str> = usage.split_whitespace().take_while(is_name).collect();
    let tips = tips.collect::<String>();
    Some(format!("See '{} --help'.\n{tips}{}", command.join(" "), sentence.trim_end()))
}
