//! Checks of the source tree that neither the compiler nor clippy makes.
//!
//! `cargo run -p xtask -- CHECK...` with `deps`, `circles`, `spread`, `tidy`, `words`, `licences` or `all`.
//! Exit code 0 without findings; otherwise findings are printed, one a line, and the exit code is 1.
//!
//! - `deps`: crates depend downwards only, by the table in `layers`.
//! - `circles`: no more than five files of a crate import each other in a circle.
//! - `spread`: no type of a crate has `impl` blocks in more than five files.
//! - `tidy`: lengths of files and functions, marks of unfinished work, links of the documentation.
//! - `words`: paraphrases for which the field has a term, in documents and comments.
//! - `licences`: every crate in the dependency graph may be used under a permissive licence.

mod circles;
mod layers;
mod licences;
mod metadata;
mod source;
mod spread;
mod tidy;
mod words;

use std::path::Path;
use std::process::ExitCode;

/// A violation, as printed.
type Finding = String;

const USAGE: &str = "usage: cargo run -p xtask -- all | deps | circles | spread | tidy | words | licences";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = manifest.ancestors().nth(2).expect("this crate lies two levels below the root");
    let known = ["all", "deps", "circles", "spread", "tidy", "words", "licences"];
    if words.is_empty() || words.iter().any(|word| !known.contains(&word.as_str())) {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    }
    let wanted = |name: &str| words.iter().any(|word| word == name || word == "all");
    let mut findings = Vec::new();
    if wanted("deps") || wanted("licences") {
        match metadata::load(root) {
            Ok(packages) => {
                if wanted("deps") {
                    findings.extend(layers::check(&packages));
                }
                if wanted("licences") {
                    findings.extend(licences::check(&packages));
                }
            }
            Err(message) => findings.push(format!("cargo metadata: {message}")),
        }
    }
    if wanted("circles") {
        findings.extend(circles::check(root));
    }
    if wanted("spread") {
        findings.extend(spread::check(root));
    }
    if wanted("tidy") {
        findings.extend(tidy::check(root));
    }
    if wanted("words") {
        findings.extend(words::check(root));
    }
    for finding in &findings {
        println!("{finding}");
    }
    println!("xtask {}: {} finding(s)", words.join(" "), findings.len());
    if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
