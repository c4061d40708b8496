//! Licences of every dependency, at run time and at build time.

use crate::Finding;
use crate::metadata::Package;

/// Permissive licences, by their SPDX names.
const ALLOWED: &[&str] = &[
    "MIT",
    "MIT-0",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "Zlib",
    "BSL-1.0",
    "0BSD",
    "CC0-1.0",
    "Unlicense",
    "Unicode-3.0",
    "Unicode-DFS-2016",
];

/// Returns the packages that cannot be used under permissive licences alone.
pub fn check(packages: &[Package]) -> Vec<Finding> {
    let refused = packages.iter().filter(|package| !is_allowed(&package.licence));
    let describe = |package: &Package| {
        let licence = if package.licence.is_empty() { "no licence" } else { &package.licence };
        format!("licences: {} {} has {licence}", package.name, package.version)
    };
    refused.map(describe).collect()
}

/// Returns true if an SPDX expression allows permissive use. Alternatives are separated by OR (or `/` in old
/// packages), conjunctions by AND, which binds tighter; parentheses nest.
fn is_allowed(expression: &str) -> bool {
    let expression = expression.trim();
    if let Some(inner) = enclosed(expression) {
        return is_allowed(inner);
    }
    for separator in [" OR ", "/"] {
        let parts = split(expression, separator);
        if parts.len() > 1 {
            return parts.into_iter().any(is_allowed);
        }
    }
    let parts = split(expression, " AND ");
    match parts.len() {
        1 => ALLOWED.contains(&expression),
        _ => parts.into_iter().all(is_allowed),
    }
}

/// Returns the content of parentheses around the whole expression.
fn enclosed(expression: &str) -> Option<&str> {
    let inner = expression.strip_prefix('(')?.strip_suffix(')')?;
    let mut depth = 0i32;
    for character in inner.chars() {
        depth += match character {
            '(' => 1,
            ')' => -1,
            _ => 0,
        };
        if depth < 0 {
            return None;
        }
    }
    Some(inner)
}

/// Splits an expression at separators outside of parentheses.
fn split<'a>(expression: &'a str, separator: &str) -> Vec<&'a str> {
    let mut parts = Vec::new();
    let (mut depth, mut start, mut position) = (0, 0, 0);
    while position < expression.len() {
        let rest = &expression[position..];
        if depth == 0 && rest.starts_with(separator) {
            parts.push(&expression[start..position]);
            position += separator.len();
            start = position;
            continue;
        }
        let character = rest.chars().next().expect("position is inside the text");
        depth += match character {
            '(' => 1,
            ')' => -1,
            _ => 0,
        };
        position += character.len_utf8();
    }
    parts.push(&expression[start..]);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_read_as_spdx_has_them() {
        for good in [
            "MIT",
            "MIT OR Apache-2.0",
            "MIT/Apache-2.0",
            "GPL-2.0 OR MIT",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception OR GPL-3.0",
            "MIT AND (Zlib OR GPL-2.0)",
        ] {
            assert!(is_allowed(good), "{good}");
        }
        for bad in ["", "GPL-2.0", "MIT AND GPL-2.0", "LGPL-2.1 OR GPL-2.0", "(MIT OR ISC) AND APSL-2.0"] {
            assert!(!is_allowed(bad), "{bad}");
        }
    }
}
