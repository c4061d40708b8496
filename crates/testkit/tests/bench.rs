//! The benches of `nacre bench` on a file system that runs: short runs that look at what they print, not at how fast it is.

use std::fs;
use std::path::Path;

use nacre_testkit::{Cluster, Shape};

fn text(path: &Path) -> &str {
    path.to_str().expect("test directories have plain names")
}

fn bench(cluster: &Cluster, words: &[&str]) -> String {
    let words: Vec<&str> = std::iter::once("bench").chain(words.iter().copied()).collect();
    cluster.nacre(&words).success().stdout
}

/// The numbers of the row of a table that begins with `name`.
fn numbers(table: &str, name: &str) -> Vec<f64> {
    let row = table.lines().find(|line| line.trim_start().starts_with(name));
    let row = row.unwrap_or_else(|| panic!("no {name} in:\n{table}"));
    row.trim_start()[name.len()..].split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

#[test]
fn mdtest_runs_every_phase_of_two_tasks_and_leaves_nothing() {
    let cluster = Cluster::start(Shape::Embedded);
    let directory = cluster.mount().join("mdtest");
    let words = [
        "-P", "2", "-i", "2", "-n", "24", "-z", "1", "-b", "2", "-L", "-N", "1", "-R", "-w", "100", "-e",
        "100",
    ];
    let words: Vec<&str> = ["mdtest"].into_iter().chain(words).chain(["-d", text(&directory)]).collect();
    let table = bench(&cluster, &words);
    assert!(table.contains("2 tasks, 48 files/directories"), "{table}");
    let phases = [
        "Directory creation",
        "Directory stat",
        "Directory removal",
        "File creation",
        "File stat",
        "File read",
    ];
    for name in phases.into_iter().chain(["File removal", "Tree creation", "Tree removal"]) {
        let row = numbers(&table, name);
        assert!(row.len() == 4 && row[1] > 0.0 && row[0] >= row[1], "{name}: {row:?}");
    }
    assert!(!directory.exists(), "what it made is gone");
}

#[test]
fn mdtest_phases_can_be_runs_of_their_own() {
    let cluster = Cluster::start(Shape::Embedded);
    let directory = cluster.directory("d");
    let run = |letters: &[&str]| {
        let words = ["mdtest", "-I", "5", "-u", "-F", "--json", "-d", text(&directory)];
        let words: Vec<&str> = words.iter().chain(letters).copied().collect();
        let json = bench(&cluster, &words);
        ["File creation", "File stat", "File removal"].map(|name| {
            let ran = json.contains(&format!(r#""operation":"{name}","results":[{{"items":5,"#));
            let idle = json.contains(&format!(r#""operation":"{name}","results":[],"#));
            assert!(ran != idle, "{name} in {json}");
            ran
        })
    };
    assert_eq!(run(&["-C"]), [true, false, false]);
    assert_eq!(fs::read_dir(directory.join("test-dir.0-0/mdtest_tree.0.0")).expect("made").count(), 5);
    assert_eq!(run(&["-T"]), [false, true, false]);
    assert_eq!(run(&["-r"]), [false, false, true]);
    assert_eq!(fs::read_dir(&directory).expect("there").count(), 0);
}
