//! Locations of the programs under test.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::requirements::find_program;

/// Returns the `nacre` binary: `NACRE_BINARY`, or else the one of this target directory and profile. That one
/// is built first, with `nacre-bench` next to it, so that tests never run against outdated programs.
///
/// # Panics
///
/// If the build fails.
pub fn nacre() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| match std::env::var_os("NACRE_BINARY") {
        Some(path) => {
            let path = PathBuf::from(path);
            std::path::absolute(&path).unwrap_or(path)
        }
        None => build(),
    })
}

/// Returns the same binary for tests of `nacre bench` and `nacre paf`, which run the `nacre-bench` next to
/// it.
///
/// # Panics
///
/// If `nacre-bench` is missing: one in PATH may be of another version.
#[track_caller]
pub fn nacre_with_bench() -> &'static Path {
    let bench = nacre().with_file_name("nacre-bench");
    assert!(bench.is_file(), "{} is missing: cargo build --release --bin nacre-bench", bench.display());
    nacre()
}

fn build() -> PathBuf {
    let test = std::env::current_exe().expect("/proc is mounted");
    // <target>/<profile>/deps/<test>
    let profile = test.parent().and_then(Path::parent).expect("tests are built by cargo");
    let target = profile.parent().expect("a profile's directory is in the target directory");
    let name = match profile.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(name) => name,
    };
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args([
            "build",
            "--quiet",
            "--bin",
            "nacre",
            "--bin",
            "nacre-bench",
            "--profile",
            name,
            "--target-dir",
        ])
        .arg(target)
        .current_dir(workspace())
        .status();
    assert!(status.is_ok_and(|status| status.success()), "nacre and nacre-bench cannot be built");
    profile.join("nacre")
}

/// Returns the root of the source tree.
pub fn workspace() -> &'static Path {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.ancestors().nth(2).expect("this crate lies two levels below the root")
}

/// Returns a test tool that `scripts/test-tools` installs, or one of that name in PATH.
pub fn tool(name: &str) -> Option<PathBuf> {
    let directory = std::env::var_os("NACRE_TOOLS").map_or(workspace().join("target/tools"), PathBuf::from);
    let installed = directory.join("bin").join(name);
    if installed.is_file() { Some(installed) } else { find_program(name) }
}
