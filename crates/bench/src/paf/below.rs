//! Local directories of objects below a NacreFS mount.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::Error;
use nacre_common::frag::Report;
use nacre_common::{partner, place};
use nacre_store::object::block::is_block_store;

/// Returns the directories with the objects of a mount; none if it is not a NacreFS mount, its OSTs are on
/// other hosts, or they are on devices.
///
/// # Errors
///
/// If it is a NacreFS mount and the program that reports the directories is missing.
pub(super) fn objects_of(mount: &Path) -> Result<Vec<PathBuf>, Error> {
    if place::file_system(mount).ok().as_deref() != Some("fuse.nacre") {
        return Ok(Vec::new());
    }
    let nacre = partner::find(partner::NACRE).map_err(Error::Usage)?;
    let told = Command::new(&nacre).args(["frag", "--json"]).arg(mount).output();
    let told = told.map_err(Error::io("start", &nacre))?;
    Ok(of_osts(&told.stdout))
}

/// Extracts the OST directories from the output of `nacre frag --json`, if it has any; MDTs and devices are
/// skipped.
fn of_osts(json: &[u8]) -> Vec<PathBuf> {
    let reports: Vec<Report> = serde_json::from_slice(json).unwrap_or_default();
    let osts = reports.into_iter().filter(|report| report.name.starts_with("OST"));
    let paths: Vec<PathBuf> = osts.map(|report| report.path).collect();
    if paths.iter().any(|path| is_block_store(path)) { Vec::new() } else { paths }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn osts_that_keep_files_are_looked_below_all_or_none() {
        let report = |name: &str, path: &Path| {
            format!(
                r#"{{"name":"{name}","path":"{}","file_system":"ext4","kind":"object","unit":1048576}}"#,
                path.display()
            )
        };
        let scratch = tempfile::tempdir().expect("a directory");
        let [first, second, data] = ["a", "b", "c"].map(|name| scratch.path().join(name));
        std::fs::create_dir(&second).expect("made");
        let json = format!(
            "[{},{},{}]",
            report("OST0000", &first),
            report("OST0001", &second),
            report("MDT0000-data", &data)
        );
        assert_eq!(of_osts(json.as_bytes()), [first, second.clone()]);
        std::fs::write(second.join("device"), "").expect("written");
        assert_eq!(of_osts(json.as_bytes()), [] as [PathBuf; 0]);
        assert_eq!(of_osts(b""), [] as [PathBuf; 0]);
        assert_eq!(objects_of(scratch.path()).expect("no mount of ours"), [] as [PathBuf; 0]);
    }
}
