//! The benches of `nacre bench` on a running file system: short runs that check the output, not the speed.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nacre_testkit::cluster::Options;
use nacre_testkit::requirements::have_root;
use nacre_testkit::run::Run;
use nacre_testkit::text;
use nacre_testkit::{Cluster, Shape, Stopped, wait};

fn bench(cluster: &Cluster, words: &[&str]) -> String {
    let words: Vec<&str> = std::iter::once("bench").chain(words.iter().copied()).collect();
    cluster.nacre(&words).success().stdout
}

/// Returns the numbers of the row that begins with `name`.
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

#[test]
fn mdtest_works_in_directories_on_several_mdts_and_leaves_nothing() {
    for shape in [Shape::Embedded, Shape::Separate] {
        let cluster = Cluster::start_with(shape, &Options { mdts: 2, ..Options::default() });
        let directories = ["d0", "d1"].map(|name| cluster.mount().join(name));
        for (index, directory) in directories.iter().enumerate() {
            cluster.lfs(&["mkdir", "-i", &index.to_string(), text(directory)]).success();
        }
        let both = directories.each_ref().map(|path| text(path)).join("@");
        for letters in ["-P 3 -i 2 -n 8 -z 1 -b 2 -N 1 -w 100 -e 100", "-P 4 -n 9 -u -F -R -N 1"] {
            let words: Vec<&str> = ["mdtest", "-d", &both].into_iter().chain(letters.split(' ')).collect();
            let table = bench(&cluster, &words);
            let rate = |row: &str| {
                let line = table.lines().find(|line| line.trim_start().starts_with(row));
                let mean = line.and_then(|line| line.split_whitespace().nth(4)?.parse::<f64>().ok());
                mean.unwrap_or_else(|| panic!("{row} in {table}"))
            };
            for row in ["File creation", "File stat", "File read", "File removal", "Tree creation"] {
                assert!(rate(row) > 0.0, "{row} in {table}");
            }
            for directory in &directories {
                assert_eq!(fs::read_dir(directory).expect("there").count(), 0, "{letters}");
            }
        }
    }
}

#[test]
fn ior_checks_what_it_wrote_in_every_order_and_leaves_nothing() {
    let cluster = Cluster::start(Shape::Embedded);
    let directory = cluster.directory("d");
    let file = directory.join("file");
    for letters in [
        "-N 2 -w -r -R -C -F -i 2 -t 64k -b 256k -s 3 -e",
        "-N 2 -w -W -R -t 47008 -b 188032 -s 5 -g",
        "-N 2 -w -R -z -t 4k -b 64k -s 2 --random-offset-seed 3 -m",
        "-N 3 -w -R -Z -F -z -t 4k -b 64k -B",
    ] {
        let words: Vec<&str> =
            ["ior"].into_iter().chain(letters.split(' ')).chain(["-o", text(&file)]).collect();
        let table = bench(&cluster, &words);
        let read = table.lines().rfind(|line| line.starts_with("read ")).unwrap_or_else(|| panic!("{table}"));
        assert!(
            read.split_whitespace().nth(1).is_some_and(|rate| rate.parse().is_ok_and(|rate: f64| rate > 0.0))
        );
        assert_eq!(fs::read_dir(&directory).expect("there").count(), 0, "{letters}");
    }
}

#[test]
fn ior_finds_data_that_is_not_what_was_written() {
    let cluster = Cluster::start(Shape::Embedded);
    let file = cluster.directory("d").join("file");
    let words = |letters: &'static str| {
        let words = ["bench", "ior", "-t", "64k", "-b", "256k", "-o"].into_iter().chain([text(&file)]);
        words.chain(letters.split(' ')).map(str::to_owned).collect::<Vec<String>>()
    };
    cluster.nacre(&words("-w -k -G 5")).success();
    cluster.nacre(&words("-R -k -G 5 -E")).success();
    let other_seed = cluster.nacre(&words("-R -k -G 6")).fails_with(1);
    assert!(other_seed.stderr.contains("4 transfer(s)"), "{}", other_seed.stderr);
    let mut bytes = fs::read(&file).expect("read");
    bytes[70_000] ^= 1;
    fs::write(&file, bytes).expect("written");
    let damaged = cluster.nacre(&words("-R -k -G 5")).fails_with(1);
    assert!(damaged.stderr.contains("wrong data at offset 70000"), "{}", damaged.stderr);
    assert!(damaged.stderr.contains("1 transfer(s)"), "{}", damaged.stderr);
}

#[test]
fn ior_stripes_new_files_as_its_directives_say() {
    let cluster = Cluster::start(Shape::Embedded);
    let file = cluster.directory("d").join("file");
    let stripes = |words: &[&str]| {
        let words: Vec<&str> = ["ior", "-N", "2", "-w", "-k", "-t", "64k", "-b", "256k", "-o", text(&file)]
            .iter()
            .chain(words)
            .copied()
            .collect();
        bench(&cluster, &words);
        let shown = cluster.lfs(&["getstripe", "-c", "-S", "-i", text(&file)]).success().stdout;
        shown.split_whitespace().filter_map(|word| word.parse().ok()).collect::<Vec<i64>>()
    };
    assert_eq!(
        stripes(&["-O", "lustreStripeCount=2,lustreStripeSize=128k,lustreStartOST=1"]),
        [2, 131_072, 1]
    );
    assert_eq!(stripes(&["--posix.lustre.stripecount=1", "--posix.lustre.stripesize=64k"])[..2], [1, 65_536]);
    let refused =
        cluster.nacre(&["bench", "ior", "-E", "-O", "lustreStripeCount=2", "-o", text(&file)]).fails_with(1);
    assert!(refused.stderr.contains("has its stripes already"), "{}", refused.stderr);
}

#[test]
fn noisy_neighbours_are_measured_on_simulated_media_and_nothing_is_left() {
    let cluster = Cluster::start(Shape::Embedded);
    let scratch = cluster.run().make("noisy");
    let page = scratch.join("page.html");
    let words =
        ["noisy", "--memory-dir", text(&scratch), "--runs", "1", "--seconds", "0.2", "--html", text(&page)];
    let table = bench(&cluster, &words);
    assert!(table.contains("simulated: one PFL for both, stream"), "{table}");
    assert!(table.contains("seek=8ms:bandwidth=100M"), "{table}");
    assert!(fs::read_to_string(&page).expect("written").contains("simulated"));
    fs::remove_file(&page).expect("there");
    assert_eq!(fs::read_dir(&scratch).expect("there").count(), 0);
}

#[test]
fn a_simulated_medium_makes_an_ost_take_its_time() {
    let options = Options { fsname: "simmed".to_owned(), ..Options::default() };
    let cluster = Cluster::start_with(Shape::Embedded, &options);
    cluster.set_default(&["-c", "1"]);
    let file = cluster.directory("d").join("file");
    let name = "osd-file.simmed-OST*.simulated_medium";
    let set = |value: &str| cluster.lctl(&["set_param", "-n", &format!("{name}={value}")]);
    let get = || cluster.lctl(&["get_param", "-n", name]).success().stdout;
    assert!(get().lines().all(|line| line == "off"), "{}", get());
    set("nonsense").fails_with(22);
    set("seek=100ms:bandwidth=1G").success();
    assert!(get().lines().all(|line| line == "seek=100000us:bandwidth=1073741824"), "{}", get());
    let write_synced = || {
        let start = Instant::now();
        let mut made = fs::File::create(&file).expect("made");
        made.write_all(b"data").and_then(|()| made.sync_all()).expect("written");
        start.elapsed()
    };
    assert!(write_synced() >= Duration::from_millis(100));
    set("off").success();
    assert_eq!(fs::read(&file).expect("read"), b"data");
    assert!(get().lines().all(|line| line == "off"), "{}", get());
}

#[test]
fn a_simulated_service_time_makes_an_mdt_take_its_time() {
    let options = Options { fsname: "simmdt".to_owned(), ..Options::default() };
    let cluster = Cluster::start_with(Shape::Embedded, &options);
    let directory = cluster.directory("d");
    let name = "mdt.simmdt-MDT*.simulated_service";
    let set = |value: &str| cluster.lctl(&["set_param", "-n", &format!("{name}={value}")]);
    let get = || cluster.lctl(&["get_param", "-n", name]).success().stdout;
    assert_eq!(get().trim(), "off");
    set("time=0us").fails_with(22);
    set("time=100ms:at_once=1").success();
    assert_eq!(get().trim(), "time=100000us:at_once=1");
    let start = Instant::now();
    // Creates in one directory are serialised, whichever thread they come from.
    std::thread::scope(|scope| {
        for number in 0..3 {
            let path = directory.join(number.to_string());
            scope.spawn(move || fs::create_dir(path).expect("made"));
        }
    });
    assert!(start.elapsed() >= Duration::from_millis(300));
    set("off").success();
    assert_eq!(get().trim(), "off");
    assert_eq!(fs::read_dir(&directory).expect("there").count(), 3);
}

#[test]
fn scaling_over_mdts_is_measured_and_nothing_is_left() {
    let cluster = Cluster::start(Shape::Embedded);
    let scratch = cluster.run().make("dne");
    let page = scratch.join("page.html");
    let words = ["--mdts", "1,2", "--mounts", "2", "--tasks", "4", "--files", "5", "--simulated-files", "5"];
    let words: Vec<&str> =
        ["dne-scaling", "--dir", text(&scratch), "--html", text(&page), "--runs", "1", "--layout", "unique"]
            .into_iter()
            .chain(words)
            .chain(["--service", "time=5ms:at_once=1"])
            .collect();
    let table = bench(&cluster, &words);
    for row in ["| create, unique directories, 1 MDT(s)", "| simulated: unlink, unique directories, 2 MDT(s)"]
    {
        assert!(table.contains(row), "{row} in {table}");
    }
    assert!(table.contains("Rate normalised to 1 MDT(s), simulated service time"), "{table}");
    assert!(fs::read_to_string(&page).expect("written").contains("simulated"));
    fs::remove_file(&page).expect("there");
    assert_eq!(fs::read_dir(&scratch).expect("there").count(), 0);
}

#[test]
fn a_directory_that_is_spread_is_measured_and_nothing_is_left() {
    let cluster = Cluster::start(Shape::Embedded);
    let scratch = cluster.run().make("split");
    let words = ["dne-split", "--dir", text(&scratch), "--runs", "1", "--seconds", "0.1", "--one-process"];
    let words: Vec<&str> = words.into_iter().chain(["--names", "600", "--mdts", "2"]).collect();
    let table = bench(&cluster, &words);
    for row in ["| all names have moved after ", "| longest create while names move ", "| creates after "] {
        assert!(table.contains(row), "{row} in {table}");
    }
    assert_eq!(fs::read_dir(&scratch).expect("there").count(), 0);
}

#[test]
fn servers_are_killed_and_started_again_and_nothing_is_left() {
    let cluster = Cluster::start(Shape::Embedded);
    let scratch = cluster.run().make("restart");
    let words = ["restart", "--dir", text(&scratch), "--runs", "1", "--seconds", "0.1", "--files", "300"];
    let table = bench(&cluster, &words);
    for row in ["| longest create or stat, MDT killed ", "| longest write and sync, all OSTs killed "] {
        assert!(table.contains(row), "{row} in {table}");
    }
    assert_eq!(fs::read_dir(&scratch).expect("there").count(), 0);
}

#[test]
fn the_engine_of_an_mdt_is_measured_alone_and_with_many_inodes() {
    let cluster = Cluster::start(Shape::Embedded);
    let scratch = cluster.run().make("mdt");
    let common = ["mdt", "--dir", text(&scratch), "--runs", "1"];
    let words: Vec<&str> = common.into_iter().chain(["--files", "400", "--scene", "one,two"]).collect();
    let table = bench(&cluster, &words);
    assert!(table.contains("| create, 2 threads against 1 "), "{table}");
    let words: Vec<&str> = common.into_iter().chain(["--inodes", "3000", "--entries", "1000"]).collect();
    let table = bench(&cluster, &words);
    for row in ["| opens after a stop ", "| opens after a kill ", "| memory of its own, filled "] {
        assert!(table.contains(row), "{row} in {table}");
    }
    assert_eq!(fs::read_dir(&scratch).expect("there").count(), 0);
}

#[test]
fn layouts_are_measured_and_nothing_is_left() {
    if !have_root() {
        return;
    }
    let cluster = Cluster::start(Shape::Embedded);
    let scratch = cluster.run().make("layouts");
    let words =
        ["--runs", "1", "--seconds", "0.05", "--size-mib", "2", "--files", "60", "--small-files", "20"];
    let words: Vec<&str> =
        ["layouts", "--memory-dir", text(&scratch), "--part", "pfl,small,list,many", "--components", "20"]
            .into_iter()
            .chain(words)
            .chain(["--stripes", "8"])
            .collect();
    let table = bench(&cluster, &words);
    for row in [
        "| PFL, file per process, sequential write",
        "| PFL, shared file, sequential read",
        "| tuned PFL, shared file, sequential write",
        "| create with 3901 bytes, shared directory",
        "| lfs getstripe -r, 62 entries",
        "| lfs find -stripe-count 1, 62 entries",
        "| 20 components, open + stat + close, cold",
    ] {
        assert!(table.contains(row), "no {row} in:\n{table}");
    }
    assert_eq!(fs::read_dir(&scratch).expect("there").count(), 0);
}

#[test]
fn an_ost_is_measured_beside_one_with_fake_io_that_is_called_so() {
    let cluster = Cluster::start(Shape::Embedded);
    let scratch = cluster.run().make("survey");
    for backend in ["file", "block"] {
        let common = ["survey", "--dir", text(&scratch), "--backend", backend, "--fake-io", "--runs", "2"];
        let work =
            ["--seconds", "0.1", "--objects", "2", "--threads", "1,6", "--record", "4k", "--size", "2M"];
        let words: Vec<&str> = common.into_iter().chain(work).collect();
        let table = bench(&cluster, &words);
        for threads in [1, 6] {
            let row = format!("| ost, {backend}, random read, obj 2 thr {threads} rsz 4K ");
            let row = table.lines().find(|line| line.starts_with(&row)).unwrap_or_else(|| panic!("{table}"));
            assert!(row.contains("FAKE null store (no I/O)") && row.contains(">= 0.90"), "{row}");
        }
        assert!(table.contains("data is not, reads give zeros"), "{table}");
    }
    assert_eq!(fs::read_dir(&scratch).expect("there").count(), 0);
}

#[test]
fn the_talks_are_broken_off_and_gone_on_with_and_leave_nothing_but_a_report() {
    if !have_root() {
        return;
    }
    let run = Run::new();
    let out = run.directory().join("talks");
    let results = || fs::read_to_string(out.join("results.json")).unwrap_or_default();
    let words = ["bench", "talks", "--quick", "--only", "lad17-pfl,lad17-pfl-tuned", "--out", text(&out)];
    let command = || {
        let mut command = run.command(nacre_testkit::binary::nacre_with_bench());
        command.args(words).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let child = command().spawn().expect("started");
    let memory = Path::new("/dev/shm").join(format!("nacre-talks-{}", child.id()));
    wait::until(wait::SOON, "the second experiment", || {
        (results().contains("lad17-pfl") && memory.exists()).then_some(())
    });
    // SAFETY: takes numbers; the process is a child of this one and has not been reaped.
    unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
    let output = wait::deadline(wait::SOON, "ending", move || child.wait_with_output()).expect("our child");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(said.contains("the same command continues with lad17-pfl-tuned"), "{said}");
    let is_clean = || {
        let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts");
        assert!(!mounts.contains("nacre-talks") && !mounts.contains(text(&out)), "{mounts}");
        let mut left: Vec<_> =
            fs::read_dir(&out).expect("there").flatten().map(|one| one.file_name()).collect();
        left.sort();
        assert_eq!(left, ["index.html", "report.md", "results.json"]);
    };
    is_clean();
    assert!(!memory.exists() && !results().contains("lad17-pfl-tuned"), "{}", results());
    let output = command().output().expect("run");
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{shown}{}", String::from_utf8_lossy(&output.stderr));
    for name in ["lad17-pfl ", "lad17-pfl-tuned "] {
        let line = shown.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{shown}"));
        assert!(!line.contains("left out"), "{shown}");
    }
    is_clean();
    let page = fs::read_to_string(out.join("index.html")).expect("a page");
    assert!(page.contains("id=\"lad17-pfl-tuned\"") && page.contains("Simulated: a fabric"), "{page}");
    let file = out.join("results.json");
    let same = run
        .command(nacre_testkit::binary::nacre_with_bench())
        .args(["bench", "compare", text(&file), text(&file), "--gate"])
        .output();
    let same = same.expect("compared");
    assert!(
        same.status.success() && String::from_utf8_lossy(&same.stdout).contains("are the same"),
        "{same:?}"
    );
}

/// Runs two short experiments of the talks; returns the progress output and the report.
fn noisy_and_pfl(mut command: Command, out: &Path, more: &[&str]) -> (String, String) {
    command.args(["bench", "talks", "--quick", "--only", "cray-noisy,lad17-pfl", "--out", text(out)]);
    let output = command.args(more).output().expect("run");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    (said, fs::read_to_string(out.join("report.md")).expect("a report"))
}

#[test]
fn experiments_of_the_talks_that_lack_something_are_left_out_and_the_rest_goes_on() {
    if !have_root() {
        return;
    }
    let run = Run::new();
    let nacre = || run.command(nacre_testkit::binary::nacre_with_bench());
    let small = run.small_disk(100);
    let left_out = |said: &str, report: &str, why: &str, times: usize| {
        assert_eq!(said.matches(&format!(" is left out: {why}")).count(), times, "{why}: {said}");
        assert_eq!(report.matches(&format!(": left out\n\n{why}")).count(), times, "{why}: {report}");
    };

    // One of the two fits with smaller sizes.
    let (said, report) = noisy_and_pfl(nacre(), &small.join("talks"), &[]);
    left_out(&said, &report, "it needs 256 MiB in ", 1);
    assert!(report.contains("--size-mib 24 ") || report.contains("--size-mib 48 "), "{report}");

    let (said, report) = noisy_and_pfl(nacre(), &run.make("memory"), &["--memory-dir", text(&small)]);
    left_out(&said, &report, "it needs 2048 MiB in ", 1);
    left_out(&said, &report, "it needs 512 MiB in ", 1);

    let home = run.make("home");
    let nobody = 65534;
    std::os::unix::fs::chown(&home, Some(nobody), Some(nobody)).expect("chown");
    // The binaries may be in a directory that only root can reach.
    for name in ["nacre", "nacre-bench"] {
        fs::copy(nacre_testkit::binary::nacre_with_bench().with_file_name(name), home.join(name))
            .expect("copy");
    }
    let mut command = run.command("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "./nacre"]).current_dir(&home);
    let (said, report) = noisy_and_pfl(command, &home.join("talks"), &[]);
    left_out(&said, &report, "it needs root", 2);
}

/// Options of `bench peers` in all tests.
const PEERS: [&str; 8] = ["--tasks", "2", "--files", "40", "--size-mib", "1", "--seconds", "1"];

#[test]
fn peers_are_set_side_by_side_and_nothing_is_left() {
    if !have_root() {
        return;
    }
    let cluster = Cluster::start(Shape::Embedded);
    let scratch = cluster.run().make("peers");
    let (plain, out) = (scratch.join("plain"), scratch.join("peers.json"));
    fs::create_dir(&plain).expect("made");
    let ours = format!("ours={}", text(cluster.mount()));
    let theirs = format!("plain={}", text(&plain));
    let parts = ["--part", "mdtest-easy,mdtest-hard,ior-easy,ior-hard,fsync", "--runs", "2"];
    let pids = format!("ours={}", std::process::id());
    let words = ["peers", &ours, &theirs, "--out", text(&out), "--version", "plain=a | b", "--pids", &pids];
    let words: Vec<&str> = words.into_iter().chain(parts).chain(PEERS).collect();
    let table = bench(&cluster, &words);
    for row in [
        "mdtest easy create",
        "mdtest easy remove",
        "mdtest hard stat",
        "mdtest hard read",
        "IOR easy write",
        "IOR easy read",
        "IOR hard write",
        "IOR hard read",
        "append 4 KiB, fsync",
    ] {
        let line = table.lines().find(|line| line.starts_with(&format!("| {row} ")));
        let line = line.unwrap_or_else(|| panic!("no {row} in:\n{table}"));
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        assert_eq!(cells.len(), 4, "{line}");
        assert!(cells[1].contains('[') && cells[2].contains('['), "both were measured twice: {line}");
        assert!(cells[3].parse::<f64>().is_ok_and(|ratio| ratio > 0.0), "{line}");
    }
    assert!(table.contains("ours / plain") && table.contains("a / b"), "{table}");
    assert!(table.contains("plain is not a mount point"), "{table}");
    assert!(table.contains("| memory of its processes"), "{table}");
    assert!(table.lines().any(|line| line.starts_with("| ours ") && line.contains("not counted")), "{table}");
    let same = bench(&cluster, &["compare", text(&out), text(&out), "--all"]);
    assert!(same.contains("IOR hard read, ours to plain"), "{same}");
    for directory in [cluster.mount(), plain.as_path()] {
        assert_eq!(fs::read_dir(directory).expect("there").count(), 0, "{}", directory.display());
    }
}

#[test]
fn a_peer_that_disappears_is_noted_and_the_others_go_on() {
    if !have_root() {
        return;
    }
    let run = Run::new();
    let (stays, goes) = (run.make("stays"), run.make("goes"));
    let (first, second) = (format!("stays={}", text(&stays)), format!("goes={}", text(&goes)));
    let child = run
        .command(nacre_testkit::binary::nacre_with_bench())
        .args(["bench", "peers", &first, &second, "--part", "mdtest-easy", "--runs", "12"])
        .args(PEERS)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    wait::until(wait::SOON, "work on the path that goes", || fs::read_dir(&goes).ok()?.next().map(drop));
    fs::rename(&goes, run.directory().join("gone")).expect("moved");
    let output = wait::deadline(wait::SOON, "ending", move || child.wait_with_output()).expect("our child");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        table.contains("note: goes: ") && table.contains("disappeared before the end of 'mdtest easy'"),
        "{table}"
    );
    let line = table.lines().find(|line| line.starts_with("| mdtest easy create "));
    let line = line.unwrap_or_else(|| panic!("{table}"));
    assert!(line.contains("op/s ["), "the path that stays was measured in all rounds: {line}");
    assert!(said.contains("round 12 of 12"), "{said}");
    assert_eq!(fs::read_dir(&stays).expect("there").count(), 0);
}

#[test]
fn a_peer_that_hangs_is_left_behind_and_the_others_go_on() {
    if !have_root() {
        return;
    }
    let cluster = Cluster::start(Shape::Embedded);
    let stays = cluster.run().make("stays");
    let (first, second) = (format!("stays={}", text(&stays)), format!("hangs={}", text(cluster.mount())));
    let child = cluster
        .run()
        .command(nacre_testkit::binary::nacre_with_bench())
        .args(["bench", "peers", &first, &second, "--part", "mdtest-easy", "--runs", "3", "--limit", "10"])
        .args(PEERS)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    wait::until(wait::SOON, "work on the path that hangs", || {
        let work = fs::read_dir(cluster.mount()).ok()?.next()?.ok()?.path();
        fs::read_dir(work).ok()?.next().map(drop)
    });
    let stopped = Stopped::begin(&cluster, cluster.pid("node"));
    let output =
        wait::deadline(wait::SOON * 2, "ending", move || child.wait_with_output()).expect("our child");
    drop(stopped);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(table.contains("note: hangs: 'mdtest easy' took longer than 10 s (--limit)"), "{table}");
    assert!(said.contains("hangs: remove ") && said.contains("round 3 of 3"), "{said}");
    assert_eq!(fs::read_dir(&stays).expect("there").count(), 0);
}

#[test]
fn peers_that_cannot_be_measured_are_refused_in_one_sentence() {
    let run = Run::new();
    let missing = format!("x={}", text(&run.directory().join("none")));
    for (word, says) in
        [(missing.as_str(), "cannot be used, mount it first"), ("x", "is given as NAME=VALUE")]
    {
        let mut command = run.command(nacre_testkit::binary::nacre_with_bench());
        let output = command.args(["bench", "peers", word]).output().expect("run");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(says) && said.trim().lines().count() == 1, "{said}");
    }
}

#[test]
fn rows_of_fio_are_left_out_where_it_is_not_installed() {
    if !have_root() {
        return;
    }
    let run = Run::new();
    let (directory, empty) = (run.make("d"), run.make("empty"));
    let mut command = run.command(nacre_testkit::binary::nacre_with_bench());
    let path = format!("d={}", text(&directory));
    command.args(["bench", "peers", &path, "--part", "fio,fsync", "--runs", "1"]).env("PATH", &empty);
    let output = command.output().expect("run");
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(table.contains("note: the rows of fio are left out: fio is not installed"), "{table}");
    assert!(table.contains("| append 4 KiB, fsync") && !table.contains("fio write"), "{table}");
}
