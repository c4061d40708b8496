//! Files of a crate that import each other in a circle.
//!
//! A circle reads as one file: none of its parts can be understood, moved or tested without the others. Names
//! are resolved as far as `use` and paths that begin with `crate`, `self` or `super` allow; parents that only
//! list their modules count as files, too, and the root of a crate does not.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::Finding;
use crate::source::{code_of, files, in_each_crate};

/// Files of a circle, at most.
const CIRCLE_MAX: usize = 5;

/// The files of a crate by module path.
type Modules = BTreeMap<String, String>;
/// Imports of each module.
type Imports = BTreeMap<String, BTreeSet<String>>;

/// Returns the circles that are too large.
pub fn check(root: &Path) -> Vec<Finding> {
    in_each_crate(root, check_crate)
}

fn check_crate(directory: &Path) -> Vec<Finding> {
    let source = directory.join("src");
    let mut modules = Modules::new();
    for path in files(&source, &[".rs"]) {
        let name = path.strip_prefix(&source).unwrap_or(&path).with_extension("").display().to_string();
        if name.split('/').all(|part| part != "tests") && name != "lib" && name != "main" {
            modules.insert(name.replace('/', "::"), fs::read_to_string(&path).unwrap_or_default());
        }
    }
    circles(&imports(&modules))
        .into_iter()
        .filter(|circle| circle.len() > CIRCLE_MAX)
        .map(|circle| {
            let names: Vec<&str> = circle.iter().map(String::as_str).collect();
            format!(
                "{}: {} files import each other in a circle, {CIRCLE_MAX} at most: {}",
                directory.display(),
                names.len(),
                names.join(", ")
            )
        })
        .collect()
}

fn imports(modules: &Modules) -> Imports {
    let of = |(module, text): (&String, &String)| {
        let code = code_of(text);
        let product = code.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let found = paths(product).iter().filter_map(|path| resolve(modules, module, path)).collect();
        (module.clone(), found)
    };
    modules.iter().map(of).collect()
}

/// Returns the paths in code that begin in this crate, with the groups of `use` expanded.
fn paths(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    for start in ["crate::", "super::", "self::"] {
        for (at, _) in code.match_indices(start) {
            let before = code[..at].chars().next_back();
            if before.is_some_and(|letter| is_word(letter) || letter == ':') {
                continue;
            }
            let end = code[at..].find(|letter: char| !(is_word(letter) || ":{}, \n*".contains(letter)));
            let rest = &code[at..at + end.unwrap_or(code.len() - at)];
            // A group belongs to a path only directly after `::`; otherwise it is other code.
            let plain = rest.find(|letter: char| !(is_word(letter) || letter == ':')).unwrap_or(rest.len());
            match rest[..plain].ends_with("::") && rest[plain..].starts_with('{') {
                true => drop(expand(&rest[..plain], &rest[plain + 1..], &mut found)),
                false => found.push(rest[..plain].to_owned()),
            }
        }
    }
    found
}

/// Appends the paths of a group, whose opening brace follows `prefix`. Returns the text after its closing
/// brace.
fn expand<'a>(prefix: &str, mut group: &'a str, found: &mut Vec<String>) -> &'a str {
    loop {
        group = group.trim_start_matches([' ', '\n', ',']);
        let end = group.find(['{', '}', ',']).unwrap_or(group.len());
        let path = format!("{prefix}{}", group[..end].trim());
        match group[end..].chars().next() {
            Some('{') => group = expand(&path, &group[end + 1..], found),
            next => {
                if end > 0 {
                    found.push(path);
                }
                match next {
                    Some(',') => group = &group[end + 1..],
                    Some(_) => return &group[end + 1..],
                    None => return "",
                }
            }
        }
    }
}

/// Returns the module that a path in `module` leads to, if it is another file.
fn resolve(modules: &Modules, module: &str, path: &str) -> Option<String> {
    let mut place: Vec<&str> = module.split("::").collect();
    let mut parts = path.split("::").filter(|part| !part.is_empty()).peekable();
    while let Some(&part) = parts.peek() {
        match part {
            "crate" => place.clear(),
            "super" => drop(place.pop()),
            "self" => {}
            _ => break,
        }
        parts.next();
    }
    place.extend(parts);
    (1..=place.len())
        .rev()
        .map(|length| place[..length].join("::"))
        .find(|name| modules.contains_key(name))
        .filter(|name| name != module)
}

/// Returns the sets of two or more files in which each is reachable from each other one.
fn circles(imports: &Imports) -> BTreeSet<BTreeSet<String>> {
    let reached: BTreeMap<&String, BTreeSet<&String>> =
        imports.keys().map(|from| (from, reach(imports, from))).collect();
    let circle = |(from, to): (&&String, &BTreeSet<&String>)| -> BTreeSet<String> {
        to.iter().filter(|other| reached[**other].contains(*from)).map(|&other| other.clone()).collect()
    };
    reached.iter().map(circle).filter(|circle| circle.len() > 1).collect()
}

fn reach<'a>(imports: &'a Imports, from: &'a String) -> BTreeSet<&'a String> {
    let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(at) = open.pop() {
        open.extend(imports[at].iter().filter(|next| seen.insert(*next)));
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn modules(texts: &[(&str, &str)]) -> Modules {
        texts.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn a_circle_is_found_through_groups_parents_and_bare_paths() {
        let found = circles(&imports(&modules(&[
            ("a", "use crate::{b::{self, Thing}, x};\nuse std::fmt;"),
            ("b", "fn work() { crate::c::d::run(1) }"),
            ("c", "mod d;"),
            ("c::d", "use super::super::a::Other;"),
            ("x", "// crate::a\nfn text() -> &'static str { \"crate::b\" }"),
        ])));
        let circle: BTreeSet<String> = ["a", "b", "c::d"].map(str::to_owned).into();
        assert_eq!(found, BTreeSet::from([circle]));
    }

    #[test]
    fn imports_of_tests_and_what_goes_one_way_make_no_circle() {
        let found = circles(&imports(&modules(&[
            ("a", "use crate::b;"),
            ("b", "fn one() {}\n#[cfg(test)]\nmod tests {\n use crate::a;\n}"),
        ])));
        assert!(found.is_empty(), "{found:?}");
    }
}
