//! Short and long options of the commands about parameters.

use crate::failure::Result;
use crate::lctl::usage;

/// An option: its letter, its long names, and its argument.
struct Known {
    letter: char,
    names: &'static [&'static str],
    argument: Argument,
}

/// Argument of an option.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Argument {
    None,
    /// Text in the same word: `-CNAME`, `--client=NAME`.
    Optional,
    /// Text in the same word or the next.
    Required,
}

const fn flag(letter: char, names: &'static [&'static str]) -> Known {
    Known { letter, names, argument: Argument::None }
}

/// Options of commands that show parameters.
const SHOWING: &[Known] = &[
    flag('D', &["dir-only"]),
    flag('F', &["classify"]),
    flag('H', &["header"]),
    flag('J', &["json"]),
    flag('l', &["links"]),
    flag('L', &["no-links"]),
    flag('m', &["merge"]),
    flag('M', &["no-merge"]),
    flag('n', &["no-name"]),
    flag('N', &["only-name"]),
    flag('p', &["path"]),
    flag('r', &["readable"]),
    flag('R', &["recursive"]),
    flag('t', &["tunable"]),
    flag('w', &["writable", "writeable"]),
    flag('y', &["yaml"]),
];

/// Options of commands that set parameters.
const SETTING: &[Known] = &[
    Known { letter: 'C', names: &["client"], argument: Argument::Optional },
    flag('d', &["delete"]),
    Known { letter: 'F', names: &["file"], argument: Argument::Required },
    flag('n', &["no-name"]),
    flag('P', &["permanent", "perm"]),
    Known { letter: 't', names: &["thread", "threads"], argument: Argument::Optional },
];

/// Leading options of a command, and the remaining words.
#[derive(Debug)]
pub struct Options<'a> {
    given: Vec<(char, Option<String>)>,
    /// Remaining words.
    pub rest: &'a [String],
}

impl<'a> Options<'a> {
    /// Parses the options of a command that shows parameters; `letters` are the permitted ones.
    pub fn of_showing(command: &str, args: &'a [String], letters: &str) -> Result<Options<'a>> {
        let options = Options::parse(command, args, SHOWING, letters)?;
        match options.rest {
            [] => Err(usage(format!("lctl {command}: a parameter is needed"))),
            _ => Ok(options),
        }
    }

    /// Parses the options of a command that sets parameters; `letters` are the permitted ones.
    pub fn of_setting(command: &str, args: &'a [String], letters: &str) -> Result<Options<'a>> {
        Options::parse(command, args, SETTING, letters)
    }

    /// Returns true if the option was given.
    pub fn has(&self, letter: char) -> bool {
        self.given.iter().any(|(given, _)| *given == letter)
    }

    /// Returns the argument of the option's last occurrence.
    pub fn text(&self, letter: char) -> Option<&str> {
        self.given.iter().rev().find(|(given, _)| *given == letter)?.1.as_deref()
    }

    fn parse(command: &str, args: &'a [String], known: &[Known], letters: &str) -> Result<Options<'a>> {
        let usage = |text: String| usage(format!("lctl {command}: {text}"));
        let known: Vec<&Known> = known.iter().filter(|known| letters.contains(known.letter)).collect();
        let mut given = Vec::new();
        let mut rest = args;
        while let [word, after @ ..] = rest {
            if word.len() < 2 || !word.starts_with('-') {
                break;
            }
            rest = after;
            if word == "--" {
                break;
            }
            if let Some(long) = word.strip_prefix("--") {
                let (name, mut text) = match long.split_once('=') {
                    Some((name, text)) => (name, Some(text.to_owned())),
                    None => (long, None),
                };
                let found = known.iter().find(|known| known.names.contains(&name));
                let found = found.ok_or_else(|| usage(format!("unrecognized option '--{name}'")))?;
                match found.argument {
                    Argument::None if text.is_some() => {
                        return Err(usage(format!("option '--{name}' doesn't allow an argument")));
                    }
                    Argument::Required if text.is_none() => text = take_word(&mut rest),
                    _ => {}
                }
                if found.argument == Argument::Required && text.is_none() {
                    return Err(usage(format!("option '--{name}' requires an argument")));
                }
                given.push((found.letter, text));
                continue;
            }
            let mut left = &word[1..];
            while let Some(letter) = left.chars().next() {
                left = &left[letter.len_utf8()..];
                let found = known.iter().find(|known| known.letter == letter);
                let found = found.ok_or_else(|| usage(format!("invalid option -- '{letter}'")))?;
                if found.argument == Argument::None {
                    given.push((letter, None));
                    continue;
                }
                let mut text = (!left.is_empty()).then(|| left.strip_prefix('=').unwrap_or(left).to_owned());
                if found.argument == Argument::Required && text.is_none() {
                    text = take_word(&mut rest);
                    if text.is_none() {
                        return Err(usage(format!("option requires an argument -- '{letter}'")));
                    }
                }
                given.push((letter, text));
                break;
            }
        }
        Ok(Options { given, rest })
    }
}

fn take_word(words: &mut &[String]) -> Option<String> {
    let (first, rest) = words.split_first()?;
    *words = rest;
    Some(first.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lctl::EXIT_USAGE;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn letters_may_stand_together_and_have_long_names() {
        let args = words("-nN --yaml a b");
        let options = Options::of_showing("get_param", &args, "nNyR").expect("fine");
        assert!(options.has('n') && options.has('N') && options.has('y') && !options.has('R'));
        assert_eq!(options.rest, ["a", "b"]);
        let args = words("-- -n");
        assert_eq!(Options::of_showing("get_param", &args, "n").expect("fine").rest, ["-n"]);
    }

    #[test]
    fn arguments_follow_in_the_same_word_or_the_next_where_they_must() {
        let args = words("-nCtwo -t4 a=1");
        let options = Options::of_setting("set_param", &args, "nCtF").expect("fine");
        assert_eq!((options.text('C'), options.text('t')), (Some("two"), Some("4")));
        assert_eq!(options.rest, ["a=1"]);
        let args = words("-C -F file a=1");
        let options = Options::of_setting("set_param", &args, "nCtF").expect("fine");
        assert_eq!((options.has('C'), options.text('C'), options.text('F')), (true, None, Some("file")));
        assert_eq!(options.rest, ["a=1"]);
        let args = words("--client=two --file x -C=three");
        let options = Options::of_setting("set_param", &args, "nCtF").expect("fine");
        assert_eq!((options.text('C'), options.text('F')), (Some("three"), Some("x")));
    }

    #[test]
    fn what_is_not_known_is_refused() {
        for bad in ["-x a", "-n", "--nosuch a", "--no-name=1 a", "-F"] {
            let outcome = Options::of_showing("get_param", &words(bad), "n").map(drop);
            assert_eq!(outcome.map_err(|error| error.exit), Err(EXIT_USAGE), "{bad}");
        }
        for bad in ["-F", "--file", "-R a=1"] {
            let outcome = Options::of_setting("set_param", &words(bad), "nF").map(drop);
            assert_eq!(outcome.map_err(|error| error.exit), Err(EXIT_USAGE), "{bad}");
        }
    }
}
