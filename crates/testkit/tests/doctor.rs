//! `nacre doctor` on a real file system.

use nacre_testkit::cluster::Options;
use nacre_testkit::program::Outcome;
use nacre_testkit::requirements::{have, have_root};
use nacre_testkit::{Cluster, Shape, text, wait};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

fn start(fsname: &str) -> Option<Cluster> {
    let options = Options { osts: 2, fsname: fsname.to_owned(), ..Options::default() };
    let ready = have(&["/dev/fuse"]) && have_root();
    ready.then(|| Cluster::start_with(Shape::Separate, &options)).filter(|cluster| !cluster.is_foreign())
}

fn findings(outcome: &Outcome) -> Vec<Value> {
    let all: Value =
        serde_json::from_str(&outcome.stdout).unwrap_or_else(|error| panic!("{error}: {outcome}"));
    all.as_array().expect("a list").clone()
}

/// Returns the level of the first finding with a phrase in its text.
fn level_of(findings: &[Value], phrase: &str) -> String {
    let has_phrase = |finding: &&Value| finding["text"].as_str().expect("a text").contains(phrase);
    let found =
        findings.iter().find(has_phrase).unwrap_or_else(|| panic!("nothing says {phrase}: {findings:#?}"));
    found["level"].as_str().expect("a level").to_owned()
}

#[test]
fn processes_disks_network_and_keys_are_examined_by_directory_and_by_mount() {
    let Some(cluster) = start("doctora") else { return };
    for path in [cluster.data(), cluster.mount()] {
        let outcome = cluster.nacre(&["doctor", text(path), "--json"]);
        let found = findings(&outcome);
        let areas: BTreeSet<&str> = found.iter().filter_map(|finding| finding["area"].as_str()).collect();
        for area in ["kernel", "fuse", "service", "limits", "network", "disk", "keys", "clock", "memory"] {
            assert!(areas.contains(area), "{area} is not among {areas:?}");
        }
        assert_eq!(level_of(&found, "run and answer"), "ok");
        assert_eq!(level_of(&found, "accepts connections"), "ok");
        level_of(&found, "a sync of 4 KiB takes");
        let is_well = found.iter().all(|finding| finding["level"] == "ok" || finding["level"] == "note");
        assert_eq!(outcome.code() == 0, is_well, "{outcome}");
    }
}

#[test]
fn a_dead_server_and_a_permanent_parameter_are_found_with_their_remedies() {
    let Some(mut cluster) = start("doctorb") else { return };
    cluster.lctl(&["set_param", "-P", "osc.doctorb-*.max_dirty_mb=48"]).success();
    cluster.lctl(&["set_param", "osc.doctorb-OST0000-*.max_pages_per_rpc=64"]).success();
    cluster.kill("ost0001");
    let outcome = cluster.nacre(&["doctor", text(cluster.data())]).fails_with(1);
    for line in [
        "ERROR    service     ost0001 of file system 'doctorb' does not run",
        "-> nacre up DIR",
        "osc.doctorb-*.max_dirty_mb=48 is set permanently",
        "lctl set_param -P -d osc.doctorb-*.max_dirty_mb",
        "max_pages_per_rpc=64; the default is 1024",
    ] {
        assert!(outcome.stdout.contains(line), "no '{line}' in {outcome}");
    }
    let parameters = outcome.stdout.lines().filter(|line| line.contains("note     parameters")).count();
    assert_eq!(parameters, 2, "each once, and no others: {outcome}");
    cluster.start_all();
}

#[test]
fn the_clocks_of_servers_are_compared_with_that_of_the_host_of_the_mount() {
    let Some(cluster) = start("doctorf") else { return };
    let found = wait::until(LIMIT, "the server has answered a ping", || {
        let found = findings(&cluster.nacre(&["doctor", text(cluster.mount()), "--json"]));
        let has = |finding: &&Value| {
            let text = finding["text"].as_str().unwrap_or_default();
            text.starts_with("the clock of 127.0.0.1 (MDT0000")
        };
        found.iter().find(has).cloned()
    });
    assert_eq!(found["level"], "ok", "{found}");
}

#[test]
fn a_key_that_others_may_read_is_an_error_that_fix_repairs() {
    let Some(cluster) = start("doctorc") else { return };
    let keys = cluster.data().join("keys");
    let is_key = |path: &std::path::Path| path.extension().is_some_and(|extension| extension == "key");
    let mut entries = fs::read_dir(&keys).expect("keys").flatten().map(|entry| entry.path());
    let key = entries.find(|path| is_key(path)).expect("a key");
    fs::set_permissions(&key, Permissions::from_mode(0o644)).expect("changed");
    let found = findings(&cluster.nacre(&["doctor", text(cluster.data()), "--json"]).fails_with(1));
    assert_eq!(level_of(&found, "other users may read"), "error");
    let found = findings(&cluster.nacre(&["doctor", text(cluster.data()), "--json", "--fix"]));
    assert_eq!(level_of(&found, "other users may read"), "ok");
    let mode = fs::metadata(&key).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn each_ost_is_measured_and_nothing_is_left_on_the_mount() {
    let Some(cluster) = start("doctord") else { return };
    let found = findings(&cluster.nacre(&["doctor", text(cluster.mount()), "--measure", "--json"]));
    for ost in ["OST0000", "OST0001"] {
        let has = |finding: &&Value| {
            finding["area"] == "throughput"
                && finding["text"].as_str().is_some_and(|text| text.starts_with(ost))
        };
        let finding = found.iter().find(has).unwrap_or_else(|| panic!("{ost} in {found:#?}"));
        assert!(finding["text"].as_str().is_some_and(|text| text.contains("MB/s read")), "{finding}");
    }
    assert_eq!(fs::read_dir(cluster.mount()).expect("listed").count(), 0);
}

#[test]
fn a_path_that_is_no_file_system_is_refused_with_its_name() {
    let Some(cluster) = start("doctore") else { return };
    let outcome = cluster.nacre(&["doctor", "/etc"]).fails_with(1);
    assert!(outcome.stderr.contains("/etc"), "{outcome}");
}
