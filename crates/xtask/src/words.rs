//! Words that documents and comments avoid: paraphrases for which the field has a term (CONTRIBUTING,
//! "Words").

use std::fs;
use std::path::Path;

use crate::Finding;
use crate::source::{code_of, files};

/// Phrases and their replacements.
const BANNED: &[(&str, &str)] = &[
    ("whoever", "the component, or a caller"),
    ("whom", "the component"),
    ("told of", "notified of, reported"),
    ("tells of", "reports"),
    ("tell of", "report"),
    ("mend", "repair"),
    ("mends", "repairs"),
    ("mended", "repaired"),
    ("mending", "repairing"),
    ("beside", "with, next to"),
    ("call back", "revoke"),
    ("calls back", "revokes"),
    ("called back", "revoked"),
    ("hand on", "pass"),
    ("hands on", "passes"),
    ("begins anew", "restarts"),
    ("stands still", "is stopped"),
    ("for good", "permanently"),
    ("all the same", "nevertheless, still"),
];

/// Nouns that stand for people, who may be "who".
const PEOPLE: &[&str] = &[
    "administrator",
    "administrators",
    "caller",
    "engineer",
    "engineers",
    "everybody",
    "owner",
    "people",
    "reader",
    "readers",
    "root",
    "those",
    "user",
    "users",
];

/// Documents that list the words.
const LISTS: &[&str] = &["CONTRIBUTING.md", "docs/glossary.md"];

/// Returns all findings below `root`.
pub fn check(root: &Path) -> Vec<Finding> {
    let mut findings = Vec::new();
    for path in files(root, &[".md", ".rs"]) {
        let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        if LISTS.contains(&name.as_str()) || name == "crates/xtask/src/words.rs" {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap_or_default();
        let prose = if name.ends_with(".md") { prose_of_markdown(&text) } else { comments_of(&text) };
        for (line, phrase, instead) in banned_in(&prose) {
            findings.push(format!("{name}:{line}: \"{phrase}\": write {instead}"));
        }
    }
    findings
}

/// Returns the comments of a source file, with everything else blanked out.
fn comments_of(text: &str) -> String {
    let code = code_of(text);
    let comment = |(line, code): (&str, &str)| {
        // A string may contain two slashes; from the start of a comment on, the code is blank.
        let mut places = line.match_indices("//").map(|(at, _)| at);
        let start = places.find(|at| code.get(*at..).is_some_and(|rest| rest.trim().is_empty()));
        start.map_or_else(String::new, |at| line[at..].to_owned())
    };
    text.lines().zip(code.lines()).map(comment).collect::<Vec<_>>().join("\n")
}

/// Returns a document without its code.
fn prose_of_markdown(text: &str) -> String {
    let mut is_code = false;
    let mut prose = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            // Every second piece is in code font.
            prose.extend(line.split('`').step_by(2).flat_map(|piece| [piece, " ` "]));
        }
        prose.push('\n');
    }
    prose
}

/// Returns banned phrases with their lines. A phrase may continue on the next line.
fn banned_in(prose: &str) -> Vec<(usize, &'static str, &'static str)> {
    let mut words: Vec<(usize, String)> = Vec::new();
    for (index, line) in prose.lines().enumerate() {
        let pieces = line
            .split(|c: char| !c.is_alphanumeric() && c != '`' && c != '.')
            .filter(|word| !word.is_empty());
        words.extend(pieces.map(|word| (index + 1, word.to_lowercase())));
    }
    let mut found = Vec::new();
    for (at, (line, word)) in words.iter().enumerate() {
        for (phrase, instead) in BANNED {
            let mut parts = phrase.split(' ').enumerate();
            let is_here = parts.all(|(offset, part)| {
                words.get(at + offset).is_some_and(|(_, word)| word.trim_end_matches('.') == part)
            });
            if is_here {
                found.push((*line, *phrase, *instead));
            }
        }
        let before = at.checked_sub(1).map(|before| words[before].1.as_str());
        if word == "who" && !before.is_some_and(|before| PEOPLE.contains(&before)) {
            found.push((*line, "who", "the component"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phrases_are_found_in_comments_over_lines_and_not_in_code() {
        let source =
            "/// A lock that is called\n/// back, and mended.\nlet whom = \"who // whoever\"; // beside it\n";
        let found = banned_in(&comments_of(source));
        let phrases: Vec<(usize, &str)> = found.iter().map(|(line, phrase, _)| (*line, *phrase)).collect();
        assert_eq!(phrases, [(1, "called back"), (2, "mended"), (3, "beside")]);
    }

    #[test]
    fn people_may_be_who_and_programs_may_not() {
        let found = |text: &str| banned_in(&prose_of_markdown(text)).len();
        assert_eq!(found("users who mount"), 0);
        assert_eq!(found("Who wants a lock waits."), 1);
        assert_eq!(found("`whoever` is code"), 0);
        assert_eq!(found("```\nwhoever\n```"), 0);
    }
}
