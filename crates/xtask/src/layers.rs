//! Which crate may depend on which: the table of ARCHITECTURE.md, enforced.

use crate::Finding;
use crate::metadata::Package;

/// A crate of the workspace and the workspace crates that it may use. A crate that is not in the table is a
/// finding, so that a new one is added when it is created.
const TABLE: &[(&str, &[&str])] = &[
    // Vocabulary.
    ("nacre-types", &[]),
    ("nacre-layout", &["nacre-types"]),
    // Encodings: data that leaves memory. Never each other. Terms of locks are those of the lock engine,
    // which has no I/O.
    ("nacre-wire", &["nacre-types", "nacre-layout", "nacre-lock"]),
    ("nacre-ondisk", VOCABULARY),
    // Engines and seams: no I/O in lock, quota and session.
    ("nacre-env", &["nacre-types"]),
    ("nacre-lock", &["nacre-types", "nacre-env"]),
    ("nacre-session", &["nacre-types"]),
    ("nacre-keys", &["nacre-types", "nacre-env"]),
    ("nacre-params", &["nacre-types", "nacre-env"]),
    ("nacre-quota", &["nacre-types", "nacre-wire", "nacre-env"]),
    // Plumbing.
    (
        "nacre-rpc",
        &[
            "nacre-types",
            "nacre-layout",
            "nacre-lock",
            "nacre-wire",
            "nacre-env",
            "nacre-session",
            "nacre-keys",
            "nacre-params",
        ],
    ),
    ("nacre-dlm", &["nacre-types", "nacre-lock", "nacre-wire", "nacre-env", "nacre-rpc"]),
    ("nacre-store", &["nacre-types", "nacre-layout", "nacre-ondisk", "nacre-env"]),
    // Client: never services, store or ondisk.
    (
        "nacre-client",
        &[
            "nacre-types",
            "nacre-layout",
            "nacre-wire",
            "nacre-env",
            "nacre-lock",
            "nacre-session",
            "nacre-params",
            "nacre-rpc",
        ],
    ),
    // Services: never each other, nor client.
    ("nacre-mgs", SERVICE),
    ("nacre-mds", SERVICE),
    ("nacre-oss", SERVICE),
    // Parts that both programs have in common.
    ("nacre-common", &["nacre-types", "nacre-store"]),
    // Monitoring: figures in, text and pages out; no part of the file system.
    ("nacre-monitor", &["nacre-env", "nacre-params"]),
    // Front doors.
    ("nacre-fuse", &["nacre-types", "nacre-layout", "nacre-env", "nacre-params", "nacre-client"]),
    (
        "nacre",
        &[
            "nacre-types",
            "nacre-layout",
            "nacre-wire",
            "nacre-ondisk",
            "nacre-env",
            "nacre-lock",
            "nacre-session",
            "nacre-keys",
            "nacre-params",
            "nacre-rpc",
            "nacre-dlm",
            "nacre-store",
            "nacre-mgs",
            "nacre-mds",
            "nacre-oss",
            "nacre-client",
            "nacre-fuse",
            "nacre-common",
            "nacre-monitor",
        ],
    ),
    // Proof. `nacre-bench` opens an MDT, an OST and a store to measure them alone; it starts `nacre` as a
    // process.
    (
        "nacre-bench",
        &[
            "nacre-types",
            "nacre-wire",
            "nacre-ondisk",
            "nacre-env",
            "nacre-rpc",
            "nacre-store",
            "nacre-mds",
            "nacre-oss",
            "nacre-fuse",
            "nacre-common",
        ],
    ),
    // The simulator assembles targets and clients as `nacre` does, and starts no other process.
    (
        "nacre-sim",
        &[
            "nacre-types",
            "nacre-layout",
            "nacre-wire",
            "nacre-env",
            "nacre-lock",
            "nacre-rpc",
            "nacre-store",
            "nacre-mds",
            "nacre-oss",
            "nacre-client",
        ],
    ),
    ("nacre-testkit", &["nacre-types"]),
    ("nacre-preload", &["nacre-types"]),
    ("xtask", &[]),
];

const VOCABULARY: &[&str] = &["nacre-types", "nacre-layout"];
const SERVICE: &[&str] = &[
    "nacre-types",
    "nacre-layout",
    "nacre-wire",
    "nacre-ondisk",
    "nacre-env",
    "nacre-lock",
    "nacre-session",
    "nacre-keys",
    "nacre-params",
    "nacre-quota",
    "nacre-rpc",
    "nacre-dlm",
    "nacre-store",
];

/// Returns the edges between workspace crates that the table does not allow. Dependencies of tests are not
/// restricted.
pub fn check(packages: &[Package]) -> Vec<Finding> {
    let members: Vec<&Package> = packages.iter().filter(|package| package.is_member).collect();
    let is_ours = |name: &str| members.iter().any(|member| member.name == name);
    let mut findings = Vec::new();
    for member in &members {
        let Some((_, allowed)) = TABLE.iter().find(|(name, _)| *name == member.name) else {
            findings.push(format!(
                "deps: {} has no place in the table of crates/xtask/src/layers.rs",
                member.name
            ));
            continue;
        };
        for dependency in member.dependencies.iter().filter(|name| is_ours(name)) {
            if !allowed.contains(&dependency.as_str()) {
                findings.push(format!("deps: {} may not use {dependency}", member.name));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(name: &str, dependencies: &[&str]) -> Package {
        let dependencies = dependencies.iter().map(|&name| name.to_owned()).collect();
        Package { name: name.to_owned(), is_member: true, dependencies, ..Package::default() }
    }

    #[test]
    fn upward_edges_and_unknown_crates_are_found() {
        let packages = [
            member("nacre-types", &["nacre-mds", "libc"]),
            member("nacre-mds", &["nacre-types", "nacre-client"]),
            member("nacre-client", &["nacre-types"]),
            member("nacre-new", &[]),
        ];
        let findings = check(&packages);
        assert_eq!(findings.len(), 3, "{findings:?}");
        assert!(findings[0].contains("nacre-types may not use nacre-mds"));
        assert!(findings[1].contains("nacre-mds may not use nacre-client"));
        assert!(findings[2].contains("nacre-new"));
    }

    #[test]
    fn the_table_has_no_cycles() {
        let mut left: Vec<&(&str, &[&str])> = TABLE.iter().collect();
        while !left.is_empty() {
            let names: Vec<&str> = left.iter().map(|(name, _)| *name).collect();
            let before = left.len();
            left.retain(|(_, allowed)| allowed.iter().any(|name| names.contains(name)));
            assert!(left.len() < before, "cycle among {names:?}");
        }
    }
}
