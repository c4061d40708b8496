//! Lengths, unfinished work, and links.

use std::fs;
use std::path::{Path, PathBuf};

use crate::Finding;
use crate::source::{code_of, files};

/// Lines of a file, at most.
const FILE_LINES_MAX: usize = 800;
/// Lines of a function, at most, signature and braces included.
const FUNCTION_LINES_MAX: usize = 70;
/// Columns of a line of prose in documents, at most.
const PROSE_COLUMNS_MAX: usize = 120;
/// Functions that are longer, by file and name. The list only shrinks: an entry whose function is short
/// enough or removed is a finding.
const LONG_FUNCTIONS: &[(&str, &str)] = &[("crates/client/tests/client/fake_mds.rs", "run")];

/// Returns the findings of lengths, unfinished work and links.
pub fn check(root: &Path) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut long = Vec::new();
    for path in files(root, &[".rs"]) {
        let name = relative(root, &path);
        let text = fs::read_to_string(&path).unwrap_or_default();
        let lines = text.lines().count();
        if lines > FILE_LINES_MAX {
            findings.push(format!(
                "{name}: {lines} lines, {FILE_LINES_MAX} at most: split it by what it is about"
            ));
        }
        let code = code_of(&text);
        findings.extend(unfinished(&name, &text, &code));
        for function in functions(&code).into_iter().filter(|function| function.lines > FUNCTION_LINES_MAX) {
            long.push((name.clone(), function));
        }
    }
    for (name, function) in &long {
        if !LONG_FUNCTIONS.contains(&(name.as_str(), function.name.as_str())) {
            let Function { name: function, line, lines } = function;
            findings
                .push(format!("{name}:{line}: {function} has {lines} lines, {FUNCTION_LINES_MAX} at most"));
        }
    }
    for (file, function) in LONG_FUNCTIONS {
        if !long.iter().any(|(name, found)| name == file && found.name == *function) {
            findings.push(format!("{file}: {function} is short enough now: take it out of LONG_FUNCTIONS"));
        }
    }
    for path in files(root, &[".md"]) {
        let text = fs::read_to_string(&path).unwrap_or_default();
        findings.extend(dead_links(root, &path, &text));
        findings.extend(long_lines(&relative(root, &path), &text));
    }
    findings
}

/// Returns the lines of a document's prose that are too long. Tables and code cannot be wrapped.
fn long_lines(name: &str, text: &str) -> Vec<Finding> {
    let mut is_code = false;
    let mut findings = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        }
        let columns = line.chars().count();
        if columns > PROSE_COLUMNS_MAX && !is_code && !line.starts_with('|') {
            let number = index + 1;
            findings.push(format!("{name}:{number}: {columns} columns, {PROSE_COLUMNS_MAX} at most"));
        }
    }
    findings
}

fn relative(root: &Path, path: &Path) -> String {
    path.strip_prefix(root).unwrap_or(path).display().to_string()
}

/// Returns macros and marks of unfinished work, and disabled tests.
fn unfinished(name: &str, text: &str, code: &str) -> Vec<Finding> {
    let macros = ["todo!", "unimplemented!", "dbg!", "#[ignore"];
    // Concatenated here, so that this file does not match.
    let marks = [["FIX", "ME"].concat(), ["TO", "DO"].concat(), ["XX", "X"].concat()];
    let mut findings = Vec::new();
    for (index, (line, code_line)) in text.lines().zip(code.lines()).enumerate() {
        let number = index + 1;
        for word in macros {
            if code_line.contains(word) {
                findings.push(format!("{name}:{number}: {word}"));
            }
        }
        let is_word = |word: &&str| marks.iter().any(|mark| mark == word);
        let mut words = line.split(|character: char| !character.is_alphanumeric());
        if let Some(word) = words.find(is_word) {
            findings.push(format!("{name}:{number}: {word}: do it, or write down why not"));
        }
    }
    findings
}

/// A function with a body.
#[derive(Debug, PartialEq, Eq)]
struct Function {
    name: String,
    line: usize,
    lines: usize,
}

/// Returns the functions in code without comments and strings, nested ones included.
fn functions(code: &str) -> Vec<Function> {
    let mut found = Vec::new();
    let lines: Vec<&str> = code.lines().collect();
    for (index, line) in lines.iter().enumerate() {
        let Some(name) = function_name(line) else { continue };
        if let Some(length) = body_length(&lines[index..]) {
            found.push(Function { name: name.to_owned(), line: index + 1, lines: length });
        }
    }
    found
}

fn function_name(line: &str) -> Option<&str> {
    let mut rest = line.trim_start();
    // `fn` comes first after qualifiers; elsewhere it is a type or part of a name.
    while let Some((word, tail)) = rest.split_once(' ') {
        if word == "fn" {
            let end = tail.find(|c: char| !c.is_alphanumeric() && c != '_')?;
            return Some(&tail[..end]).filter(|name| !name.is_empty());
        }
        let qualifier =
            ["pub", "const", "async", "unsafe", "extern"].contains(&word) || word.starts_with("pub(");
        if !qualifier {
            return None;
        }
        rest = tail.trim_start();
    }
    None
}

/// Returns the lines from the signature to the closing brace; `None` for a declaration without body.
fn body_length(lines: &[&str]) -> Option<usize> {
    let (mut depth, mut round, mut started) = (0, 0, false);
    for (index, line) in lines.iter().enumerate() {
        for character in line.chars() {
            match character {
                '(' | '[' => round += 1,
                ')' | ']' => round -= 1,
                ';' if !started && round == 0 => return None,
                '{' => {
                    started = true;
                    depth += 1;
                }
                '}' => depth -= 1,
                _ => {}
            }
            if started && depth == 0 {
                return Some(index + 1);
            }
        }
    }
    None
}

/// Returns the relative links of a Markdown file whose targets do not exist.
fn dead_links(root: &Path, path: &Path, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut in_code = false;
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        if in_code {
            continue;
        }
        for target in link_targets(line) {
            let file = target.split('#').next().unwrap_or_default();
            if file.is_empty() || file.contains("://") || file.starts_with("mailto:") {
                continue;
            }
            let place: PathBuf = path.parent().unwrap_or(root).join(file);
            if !place.exists() {
                findings.push(format!(
                    "{}:{}: link to {target} leads nowhere",
                    relative(root, path),
                    index + 1
                ));
            }
        }
    }
    findings
}

/// Returns the targets of `[text](target)` outside of code spans.
fn link_targets(line: &str) -> Vec<&str> {
    let mut targets = Vec::new();
    for (index, span) in line.split('`').enumerate() {
        if index % 2 == 1 {
            continue;
        }
        let mut rest = span;
        while let Some((_, tail)) = rest.split_once("](") {
            let Some((target, after)) = tail.split_once(')') else { break };
            targets.push(target.split_whitespace().next().unwrap_or_default());
            rest = after;
        }
    }
    targets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_measured_from_signature_to_brace() {
        let code = "pub(crate) fn one(\n    x: u8,\n) -> u8 {\n    if x > 0 { 1 } else { 2 }\n}\ntrait T {\n    fn two(&self);\n}\nlet f: fn(u8) = g;\n";
        let found = functions(code);
        assert_eq!(found, [Function { name: "one".to_owned(), line: 1, lines: 5 }]);
        assert_eq!(functions("fn f() -> [u8; 4] {\n}\n")[0].lines, 2);
    }

    #[test]
    fn unfinished_work_is_found_in_code_and_comments() {
        let text = "fn f() { todo!() }\n// TO\u{44}O later\nlet s = \"todo!\";\nlet xxx = 1;\n";
        let findings = unfinished("f.rs", text, &code_of(text));
        assert_eq!(findings.len(), 2, "{findings:?}");
        assert!(findings[0].starts_with("f.rs:1") && findings[1].starts_with("f.rs:2"));
    }

    #[test]
    fn prose_is_wrapped_and_tables_and_code_are_not() {
        let long = "word ".repeat(25);
        let text = format!("{long}\n| {long} |\n```\n{long}\n```\nshort\n");
        let findings = long_lines("a.md", &text);
        assert_eq!(findings, ["a.md:1: 125 columns, 120 at most"]);
    }

    #[test]
    fn links_are_followed_to_files_only() {
        assert_eq!(link_targets("[a](b.md) `[no](c)` [d](e.md#part \"title\")"), ["b.md", "e.md#part"]);
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let text =
            "[good](Cargo.toml) [web](https://example.org) [here](#x)\n[bad](none.md)\n```\n[code](x)\n```\n";
        let findings = dead_links(root, &root.join("README.md"), text);
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert!(findings[0].contains("README.md:2"));
    }
}
