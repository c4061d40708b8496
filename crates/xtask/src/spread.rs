//! Files of a crate with an `impl` of one type.
//!
//! Each of these files may change the fields of the type, so that its invariants are not written in one
//! place. Implementations of traits count, too; test files do not.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::Finding;
use crate::source::{files, in_each_crate};

/// Files with an `impl` of one type, at most.
const FILES_MAX: usize = 5;

/// Returns the types that are spread over too many files.
pub fn check(root: &Path) -> Vec<Finding> {
    in_each_crate(root, check_crate)
}

fn check_crate(directory: &Path) -> Vec<Finding> {
    let source = directory.join("src");
    let mut spread: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for path in files(&source, &[".rs"]) {
        let name = path.strip_prefix(&source).unwrap_or(&path).display().to_string();
        if name.starts_with("tests") || name.contains("/tests") || name.ends_with("tests.rs") {
            continue;
        }
        for of in fs::read_to_string(&path).unwrap_or_default().lines().filter_map(type_of) {
            spread.entry(of.to_owned()).or_default().insert(name.clone());
        }
    }
    let finding = |(of, names): (String, BTreeSet<String>)| {
        let listed: Vec<&str> = names.iter().map(String::as_str).collect();
        format!(
            "{}: {of} has `impl` blocks in {} files, {FILES_MAX} at most: {}",
            directory.display(),
            names.len(),
            listed.join(", ")
        )
    };
    spread.into_iter().filter(|(_, names)| names.len() > FILES_MAX).map(finding).collect()
}

/// Returns the type of an `impl` that begins on this line, if it is written as a plain name of the crate.
fn type_of(line: &str) -> Option<&str> {
    let head = line.strip_prefix("impl")?;
    let (mut depth, mut end) = (0, 0);
    if head.starts_with('<') {
        end = head.find(|letter: char| {
            depth += i32::from(letter == '<') - i32::from(letter == '>');
            depth == 0
        })? + 1;
    }
    let head = head[end..].strip_prefix(' ')?;
    let of = head.split_once(" for ").map_or(head, |(_, of)| of);
    let end = of.find(|letter: char| !(letter.is_alphanumeric() || letter == '_')).unwrap_or(of.len());
    let is_path = of[end..].starts_with("::");
    (of.starts_with(char::is_uppercase) && !is_path).then_some(&of[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_type_is_what_is_implemented_or_what_a_trait_is_implemented_for() {
        for (line, expected) in [
            ("impl Server {", Some("Server")),
            ("impl<'a, T: Into<Vec<u8>>> Reader<'a, T> {", Some("Reader")),
            ("impl fmt::Display for Status {", Some("Status")),
            ("impl<T> From<Vec<T>> for List<T>", Some("List")),
            ("impl Handler for Arc<Node> {", Some("Arc")),
            ("impl Trait for std::fs::File {", None),
            ("impl Trait for [u8] {", None),
            ("    impl Inner {", None),
            ("implied();", None),
        ] {
            assert_eq!(type_of(line), expected, "{line}");
        }
    }

    #[test]
    fn a_type_in_too_many_files_is_found_and_tests_do_not_count() {
        let root = std::env::temp_dir().join(format!("xtask-spread-{}", std::process::id()));
        let source = root.join("crates/one/src");
        fs::create_dir_all(source.join("tests")).expect("a directory");
        for name in ["a", "b", "c", "d", "e", "e_tests", "tests/f"] {
            fs::write(source.join(format!("{name}.rs")), "impl Big {}\nimpl Small {}\n").expect("a file");
        }
        assert_eq!(check(&root), Vec::<Finding>::new());
        fs::write(source.join("f.rs"), "impl Clone for Big {\n").expect("a file");
        let found = check(&root);
        fs::remove_dir_all(&root).expect("removed");
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].contains("one: Big has `impl` blocks in 6 files, 5 at most: a.rs, b.rs"),
            "{found:?}"
        );
    }
}
