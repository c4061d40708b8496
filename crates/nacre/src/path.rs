//! Search for programs.

use std::path::PathBuf;

/// Finds the program `name` in `$PATH` or the usual directories of administrators' programs.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/bin", "/bin", "/usr/sbin", "/sbin", "/usr/local/bin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(usual).map(|dir| dir.join(name)).find(|path| path.is_file())
}
