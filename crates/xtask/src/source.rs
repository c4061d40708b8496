//! Files of the source tree.

use std::fs;
use std::path::{Path, PathBuf};

use crate::Finding;

/// Directories that are not part of the source tree.
const SKIPPED: &[&str] = &["target", ".git", "node_modules"];

/// Returns all files below `root` whose names end in one of `endings`, sorted.
pub fn files(root: &Path, endings: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            let path = entry.path();
            let name = entry.file_name().to_string_lossy().into_owned();
            let kind = entry.file_type();
            if kind.as_ref().is_ok_and(|kind| kind.is_dir()) {
                if !SKIPPED.contains(&name.as_str()) {
                    directories.push(path);
                }
            } else if kind.is_ok_and(|kind| kind.is_file())
                && endings.iter().any(|ending| name.ends_with(ending))
            {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Returns the text with comments, strings and characters blanked out, so that only code is left; line
/// Returns the findings of a check that looks at each directory below `crates`, sorted.
pub fn in_each_crate(root: &Path, check: impl Fn(&Path) -> Vec<Finding>) -> Vec<Finding> {
    let crates = fs::read_dir(root.join("crates")).into_iter().flatten().flatten();
    let mut findings: Vec<Finding> = crates.flat_map(|entry| check(&entry.path())).collect();
    findings.sort();
    findings
}

/// numbers do not change.
pub fn code_of(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut code: Vec<u8> = Vec::with_capacity(bytes.len());
    let mut position = 0;
    while position < bytes.len() {
        let end = match bytes[position] {
            b'/' if bytes[position..].starts_with(b"//") => end_of_line(bytes, position),
            b'/' if bytes[position..].starts_with(b"/*") => end_of_block(bytes, position),
            b'"' => end_of_string(bytes, position),
            b'r' | b'b' if starts_raw(bytes, position) => end_of_raw(bytes, position),
            b'\'' => end_of_character(bytes, position),
            _ => position,
        };
        if end == position {
            code.push(bytes[position]);
            position += 1;
        } else {
            code.extend(bytes[position..end].iter().map(|&byte| if byte == b'\n' { b'\n' } else { b' ' }));
            position = end;
        }
    }
    String::from_utf8_lossy(&code).into_owned()
}

fn end_of_line(bytes: &[u8], start: usize) -> usize {
    bytes[start..].iter().position(|&byte| byte == b'\n').map_or(bytes.len(), |length| start + length)
}

fn end_of_block(bytes: &[u8], start: usize) -> usize {
    let (mut depth, mut position) = (0, start);
    while position < bytes.len() {
        if bytes[position..].starts_with(b"/*") {
            depth += 1;
            position += 2;
        } else if bytes[position..].starts_with(b"*/") {
            depth -= 1;
            position += 2;
            if depth == 0 {
                return position;
            }
        } else {
            position += 1;
        }
    }
    bytes.len()
}

fn end_of_string(bytes: &[u8], start: usize) -> usize {
    let mut position = start + 1;
    while position < bytes.len() {
        match bytes[position] {
            b'\\' => position += 2,
            b'"' => return position + 1,
            _ => position += 1,
        }
    }
    bytes.len()
}

/// Returns true at `r"`, `r#"`, `br"` and so on, false at the end of a name.
fn starts_raw(bytes: &[u8], start: usize) -> bool {
    let after_name = start > 0 && (bytes[start - 1].is_ascii_alphanumeric() || bytes[start - 1] == b'_');
    let rest = bytes[start..].strip_prefix(b"b").unwrap_or(&bytes[start..]);
    let Some(rest) = rest.strip_prefix(b"r") else { return false };
    let hashes = rest.iter().take_while(|&&byte| byte == b'#').count();
    !after_name && rest.get(hashes) == Some(&b'"')
}

fn end_of_raw(bytes: &[u8], start: usize) -> usize {
    let quote =
        bytes[start..].iter().position(|&byte| byte == b'"').map_or(bytes.len(), |length| start + length);
    let hashes = bytes[start..quote].iter().filter(|&&byte| byte == b'#').count();
    let end = [b"\"".as_slice(), &vec![b'#'; hashes]].concat();
    let body = (quote + 1).min(bytes.len());
    let length = bytes[body..].windows(end.len()).position(|window| window == end);
    length.map_or(bytes.len(), |length| body + length + end.len())
}

/// Returns the end of a character literal, which is short and ends in a quote; a lifetime does not.
fn end_of_character(bytes: &[u8], start: usize) -> usize {
    let rest = &bytes[start + 1..];
    if rest.first() == Some(&b'\\') {
        let length = rest.iter().skip(2).position(|&byte| byte == b'\'');
        return length.map_or(start, |length| start + 1 + 2 + length + 1);
    }
    let text = std::str::from_utf8(rest.get(..rest.len().min(4)).unwrap_or_default());
    let valid = match &text {
        Ok(text) => text,
        Err(error) => std::str::from_utf8(&rest[..error.valid_up_to()]).unwrap_or_default(),
    };
    let mut characters = valid.chars();
    match (characters.next(), characters.next()) {
        (Some(first), Some('\'')) => start + 1 + first.len_utf8() + 1,
        _ => start,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_strings_and_characters_are_no_code() {
        let text = "let a = \"x{ // no\"; // {\nlet b = '{'; /* { /* { */ */ let c = r#\"{\"# ;\nfn f<'a>(x: &'a str) {}";
        let code = code_of(text);
        assert_eq!(code.lines().count(), text.lines().count());
        assert_eq!(code.matches('{').count(), 1, "{code}");
        assert!(code.contains("let c =") && code.contains("&'a str"));
        assert!(code_of("let x = '\\''; y{").ends_with("y{"));
        assert!(code_of("let x = 'é'; y{").ends_with("y{"));
    }
}
