//! `nacre paf` and `nacre frag` on small real file systems: the tests check the operations, not the speed.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nacre_testkit::cluster::Options;
use nacre_testkit::program::{Outcome, run};
use nacre_testkit::requirements::{have, have_root};
use nacre_testkit::run::Run;
use nacre_testkit::{Cluster, Shape, binary, wait};

const MIB: u64 = 1 << 20;
const LIMIT: Duration = Duration::from_secs(60);

fn text(path: &Path) -> &str {
    path.to_str().expect("test directories have plain names")
}

/// A disk with a file system of its own, and a directory for results.
struct Disk {
    run: Run,
    mount: PathBuf,
    output: PathBuf,
}

impl Disk {
    fn new() -> Option<Disk> {
        if !have_root() || !have(&["mkfs.ext4", "losetup"]) {
            return None;
        }
        let run = Run::new();
        let mount = run.small_disk(700);
        let output = run.directory().join("out");
        Some(Disk { run, mount, output })
    }

    /// Returns the arguments of `nacre paf run` on it, the rest from `letters`.
    fn words<'a>(&'a self, letters: &'a str) -> Vec<&'a str> {
        let place =
            ["paf", "run", "--target", text(&self.mount), "--output", text(&self.output), "--keep-caches"];
        place.into_iter().chain(letters.split_whitespace()).collect()
    }

    fn paf(&self, letters: &str) -> Outcome {
        run(binary::nacre_with_bench(), self.words(letters))
    }

    /// Starts the same without waiting for its end.
    fn start(&self, letters: &str) -> Child {
        let mut command: Command = self.run.command(binary::nacre_with_bench());
        command.args(self.words(letters)).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command.spawn().expect("started")
    }

    /// Returns the names in the disk's directory that a new file system does not have.
    fn names(&self) -> Vec<String> {
        names(&self.mount).into_iter().filter(|name| name != "lost+found").collect()
    }

    /// Returns the stored results of pairs, in the order of their measurement.
    fn kept(&self) -> Vec<String> {
        let state = fs::read_to_string(self.output.join("state.json")).unwrap_or_default();
        let cells = state.split_once("\"cells\":[").map_or("", |(_, cells)| cells);
        let cells = cells.split(']').next().unwrap_or_default();
        cells.split("},").filter(|cell| !cell.is_empty()).map(|cell| cell.replace('}', "")).collect()
    }
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("a directory");
    entries.map(|entry| entry.expect("readable").file_name().to_string_lossy().into_owned()).collect()
}

/// Returns the cells of the rows whose first cell is `name`.
fn rows(table: &str, name: &str) -> Vec<Vec<String>> {
    let cells =
        |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    table.lines().map(cells).filter(|cells| cells.first().is_some_and(|first| first == name)).collect()
}

#[test]
fn a_run_measures_every_pair_of_every_state_and_leaves_nothing_on_the_disk() {
    let Some(disk) = Disk::new() else { return };
    let letters = "--capacity 0,40 --fragment 0,30 --xfer 1M,2M --iterations 2 --file-size 16M";
    let table = disk.paf(letters).success().stdout;
    for state in ["PaF:00.00", "PaF:40.00", "PaF:40.30"] {
        let rows = rows(&table, state);
        // A row for each transfer size, and one about the state.
        assert_eq!(rows.len(), 3, "{state} in {table}");
        for row in &rows[..2] {
            let rates: Vec<f64> = row[2..].iter().map(|cell| cell.parse().expect("a number")).collect();
            assert!(rates.len() == 6 && rates.iter().all(|rate| *rate > 0.0), "{row:?}");
        }
    }
    // ext4 reports the extents of its files and free space; rounds fragment both.
    let free = |state: &str| rows(&table, state)[2][4].parse::<u64>().expect("free extents are known");
    assert!(free("PaF:40.30") > free("PaF:40.00"), "{table}");
    assert!(!table.contains("refused O_DIRECT"), "{table}");
    assert_eq!(disk.names(), [] as [&str; 0]);
    for name in ["results.json", "report.html", "write.svg", "read.svg", "table.txt"] {
        assert!(disk.output.join(name).exists(), "{name}");
    }
    let again = run(binary::nacre_with_bench(), ["paf", "report", text(&disk.output)]).success();
    assert_eq!(again.stdout, table);
    let ended = disk.paf(letters).fails_with(1);
    assert!(ended.stderr.contains("has ended"), "{ended}");
}

#[test]
fn a_control_is_measured_by_turns_and_taken_away() {
    let Some(disk) = Disk::new() else { return };
    let beside = disk.run.directory().join("beside");
    fs::create_dir(&beside).expect("made");
    let letters = |control: &Path, more: &str| {
        let control = text(control);
        format!(
            "--capacity 0 --fragment 0 --xfer 1M,2M --iterations 2 --file-size 16M --control {control} {more}"
        )
    };
    let refuse = |control: &Path, more: &str, says: &str| {
        let refused = disk.paf(&letters(control, more)).fails_with(1);
        assert!(refused.stderr.contains(says) && refused.stderr.lines().count() == 1, "{says} in {refused}");
        assert_eq!((disk.names().len(), disk.output.exists()), (0, false), "{more}");
    };
    refuse(&disk.mount, "", "is in the target");
    refuse(&beside.join("none"), "", "No such file");
    refuse(&beside, "--simulated-medium disk", "says nothing of a simulated one");
    let other = Run::new();
    let small = other.small_disk(10);
    refuse(&small, "", "has no room for a file as large");
    assert_eq!(names(&small), ["lost+found"]);
    let table = disk.paf(&letters(&beside, "")).success().stdout;
    for row in &rows(&table, "PaF:00.00")[..2] {
        let rates: Vec<f64> = row[2..].iter().map(|cell| cell.parse().expect("a number")).collect();
        assert!(rates.len() == 8 && rates.iter().all(|rate| *rate > 0.0), "{row:?}");
    }
    assert!(table.contains("of control") && table.contains(text(&beside)), "{table}");
    assert_eq!(names(&beside), [] as [&str; 0]);
}

/// Checks that earlier results are unchanged.
fn assert_same(kept: &[String], known: &[String]) {
    assert!(kept.len() >= known.len());
    for (number, (now, before)) in kept.iter().zip(known).enumerate() {
        assert_eq!(now, before, "pair {number}");
    }
}

const LONG: &str = "--capacity 20,30 --fragment 0,20 --xfer 64k,128k,256k --iterations 8 --file-size 8M";
const LONG_PAIRS: usize = 2 * 2 * 3 * 8;

#[test]
fn a_run_that_is_killed_anywhere_goes_on_and_measures_nothing_twice() {
    let Some(disk) = Disk::new() else { return };
    let mut known: Vec<String> = Vec::new();
    // In the first population, among the pairs of the first state, and after the next population has begun.
    for pairs in [0, 1, 25, 50] {
        let mut child = disk.start(LONG);
        wait::until(LIMIT, "so many pairs are measured", || {
            let begun = disk.mount.join("nacre-paf/d00000/f3").exists();
            (disk.kept().len() >= pairs && begun).then_some(())
        });
        child.kill().expect("it runs");
        child.wait().expect("it has ended");
        let kept = disk.kept();
        assert!(kept.len() < LONG_PAIRS, "it was to be killed before its end");
        assert_same(&kept, &known);
        known = kept;
    }
    let table = disk.paf(LONG).success().stdout;
    let kept = disk.kept();
    assert_eq!(kept.len(), LONG_PAIRS);
    assert_same(&kept, &known);
    let mut cells: Vec<&str> =
        kept.iter().map(|cell| cell.split("\"write\"").next().expect("a part")).collect();
    cells.sort_unstable();
    cells.dedup();
    assert_eq!(cells.len(), LONG_PAIRS, "no pair twice");
    assert!(table.contains("interrupted and continued"), "{table}");
    assert_eq!(disk.names(), [] as [&str; 0]);
}

#[test]
fn ctrl_c_keeps_what_is_needed_to_go_on_and_says_so() {
    let Some(disk) = Disk::new() else { return };
    let child = disk.start(LONG);
    wait::until(LIMIT, "a few pairs are measured", || (disk.kept().len() > 2).then_some(()));
    // SAFETY: takes numbers; the process is a child of this one and has not been reaped.
    unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
    let output = wait::deadline(LIMIT, "ending", move || child.wait_with_output()).expect("our own child");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(said.contains("interrupted") && said.contains("the same command continues"), "{said}");
    assert_eq!(disk.names(), ["nacre-paf"]);
    assert!(!disk.mount.join("nacre-paf/measured").exists());
    let report = run(binary::nacre_with_bench(), ["paf", "report", text(&disk.output)]).success().stdout;
    assert!(report.contains("not finished"), "{report}");
    disk.paf(LONG).success();
    assert_eq!((disk.kept().len(), disk.names().len()), (LONG_PAIRS, 0));
}

#[test]
fn a_population_that_was_changed_is_not_measured_unless_it_is_made_anew() {
    let Some(disk) = Disk::new() else { return };
    let mut child = disk.start(LONG);
    wait::until(LIMIT, "a pair is measured", || (!disk.kept().is_empty()).then_some(()));
    child.kill().expect("it runs");
    child.wait().expect("it has ended");
    let file = disk.mount.join("nacre-paf/d00000/f2");
    File::options().append(true).open(&file).and_then(|file| file.write_at(b"x", 1 << 30)).expect("grown");
    let refused = disk.paf(LONG).fails_with(1);
    assert!(refused.stderr.contains("file 2 is") && refused.stderr.contains("--repopulate"), "{refused}");
    let stranger = disk.mount.join("nacre-paf/d00000/thesis.txt");
    fs::write(&stranger, "all of it").expect("written");
    let foreign = disk.paf(&format!("{LONG} --repopulate")).fails_with(1);
    assert!(foreign.stderr.contains("thesis.txt was not created by this run"), "{foreign}");
    assert_eq!(fs::read_to_string(&stranger).expect("there"), "all of it");
    fs::remove_file(&stranger).expect("removed");
    disk.paf(&format!("{LONG} --repopulate")).success();
    assert_eq!((disk.kept().len(), disk.names().len()), (LONG_PAIRS, 0));
}

#[test]
fn what_cannot_be_used_is_refused_in_one_sentence_and_left_as_it_was() {
    let Some(disk) = Disk::new() else { return };
    let refuse = |letters: &str, code: i32, says: &str| {
        let refused = disk.paf(letters).fails_with(code);
        assert!(refused.stderr.contains(says), "{says} in {refused}");
        assert!(!disk.output.exists(), "{letters} leaves no results");
        assert_eq!(refused.stdout, "");
        if code == 1 {
            assert_eq!(refused.stderr.lines().count(), 1, "{refused}");
        }
    };
    refuse("--size 20G", 1, "less than --size");
    refuse("--size 40M", 1, "is too small");
    refuse("--capacity 95", 2, "0 to 90");
    refuse("--fragment 12", 2, "no multiple of 10");
    refuse("--xfer 1000", 2, "no multiple of 4096");
    refuse("--file-size 1000", 1, "no multiple of 4096");
    refuse("--iterations 0", 2, "iterations");
    assert_eq!(disk.names(), [] as [&str; 0]);

    fs::write(disk.mount.join("thesis.txt"), "all of it").expect("written");
    refuse("", 1, "is not empty (there is 'thesis.txt')");
    assert_eq!(disk.names(), ["thesis.txt"]);
    fs::remove_file(disk.mount.join("thesis.txt")).expect("removed");
    fs::create_dir(disk.mount.join("nacre-paf")).expect("made");
    fs::write(disk.mount.join("nacre-paf/f1"), "somebody's").expect("written");
    refuse("", 1, "and it is no run's");
    assert_eq!(names(&disk.mount.join("nacre-paf")), ["f1"]);

    let image = disk.run.directory().join("image");
    let of = |target: &Path, output: &Path| {
        run(binary::nacre_with_bench(), ["paf", "run", "--target", text(target), "--output", text(output)])
            .fails_with(1)
            .stderr
    };
    assert!(of(&image, &disk.output).contains("is not a directory"));
    let loops = run("losetup", ["-n", "-O", "NAME", "-j", text(&image)]).success().stdout;
    let device = PathBuf::from(loops.lines().next().expect("the disk is on one").trim());
    assert!(of(&device, &disk.output).contains("which holds an ext2, ext3 or ext4 file system"));
    let inside = disk.run.make("empty");
    assert!(of(&inside, &inside.join("out")).contains("is in the target"));
    assert!(of(&disk.run.directory().join("none"), &disk.output).contains("find"));
    assert!(!disk.output.exists() && names(&inside).is_empty());
}

#[test]
fn files_of_one_run_are_not_taken_by_another() {
    let Some(disk) = Disk::new() else { return };
    let mut child = disk.start(LONG);
    wait::until(LIMIT, "a pair is measured", || (!disk.kept().is_empty()).then_some(()));
    let beside = disk.paf(LONG).fails_with(1);
    assert!(beside.stderr.contains("another process works on the run"), "{beside}");
    child.kill().expect("it runs");
    child.wait().expect("it has ended");
    let other = disk.paf(&format!("{LONG} --seed 2")).fails_with(1);
    assert!(other.stderr.contains("seed was 1 and is now 2"), "{other}");
    let elsewhere = disk.run.directory().join("elsewhere");
    let words = ["paf", "run", "--target", text(&disk.mount), "--output", text(&elsewhere)];
    let taken = run(binary::nacre_with_bench(), words).fails_with(1);
    assert!(taken.stderr.contains(&format!("continue it with --output {}", text(&disk.output))), "{taken}");
    assert!(!elsewhere.exists());
    disk.paf(LONG).success();
    assert_eq!(disk.names(), [] as [&str; 0]);
}

#[test]
fn a_directory_in_memory_with_a_size_of_its_own_is_measured_too() {
    if !have_root() {
        return;
    }
    let run_dir = Run::new();
    let (target, output) = (run_dir.make("aged"), run_dir.directory().join("out"));
    let words = ["paf", "run", "--target", text(&target), "--output", text(&output), "--size", "64M"];
    let more = [
        "--capacity",
        "30",
        "--fragment",
        "0,10",
        "--xfer",
        "1M",
        "--iterations",
        "1",
        "--json",
        "--keep-caches",
    ];
    let json = run(binary::nacre_with_bench(), words.into_iter().chain(more)).success().stdout;
    assert!(json.contains("\"paf\": \"PaF:30.10\"") && json.contains("\"capacity\": 67108864"), "{json}");
    assert!(json.contains("the file system is larger"), "{json}");
    assert_eq!(names(&target), [] as [&str; 0]);
}

#[test]
fn the_store_of_a_stopped_ost_is_measured_through_its_own_interface_and_is_well_afterwards() {
    if !have_root() {
        return;
    }
    for backend in ["file", "block,size=1G"] {
        a_stopped_ost_is_measured(backend);
    }
}

fn a_stopped_ost_is_measured(backend: &str) {
    let options = Options { osts: 1, ost_backend: vec![backend.to_owned()], ..Options::default() };
    let mut cluster = Cluster::start_with(Shape::Embedded, &options);
    if cluster.is_foreign() {
        return;
    }
    let target = cluster.data().join("ost0000");
    let output = cluster.run().directory().join("out");
    let paf = |cluster: &Cluster| {
        let words = ["paf", "run", "--target", text(&target), "--output", text(&output), "--size", "200M"];
        let more = [
            "--capacity",
            "0,40",
            "--fragment",
            "0,20",
            "--xfer",
            "1M",
            "--iterations",
            "2",
            "--keep-caches",
        ];
        cluster.nacre(&words.into_iter().chain(more).collect::<Vec<_>>())
    };
    let used = paf(&cluster).fails_with(1);
    assert!(used.stderr.contains("is in use: stop its target first"), "{used}");
    fs::write(cluster.mount().join("file"), vec![1; 100_000]).expect("written");
    cluster.stop();
    let full = paf(&cluster).fails_with(1);
    assert!(full.stderr.contains("it holds 1 objects of a file system"), "{full}");
    cluster.start_all();
    fs::remove_file(cluster.mount().join("file")).expect("removed");
    wait::until(LIMIT, "the object is gone", || {
        let listed = cluster.lfs(&["df", "-i", text(cluster.mount())]).success().stdout;
        let ost = listed.lines().find(|line| line.contains("OST0000"))?.to_owned();
        (ost.split_whitespace().nth(2)? == "0").then_some(())
    });
    cluster.stop();
    let table = paf(&cluster).success().stdout;
    assert!(table.contains("(object store)") && rows(&table, "PaF:40.20").len() == 2, "{table}");
    if backend != "file" {
        // The store itself knows the location of its objects, and no read goes through a cache.
        let shape = &rows(&table, "PaF:40.20")[1];
        assert!(shape[1].parse::<u64>().is_ok_and(|objects| objects > 0), "{shape:?}");
        assert!(!table.contains("refused O_DIRECT"), "{table}");
    }
    let checked = cluster.nacre(&["check", text(cluster.data())]).success().stdout;
    assert!(checked.contains("OST0000  0 objects, 0 problems"), "{checked}");
    cluster.start_all();
    fs::write(cluster.mount().join("after"), b"well").expect("the OST works");
    cluster.stop_and_check();
}

nacre_testkit::on_every_shape! {
    fn a_whole_mount_is_measured_and_is_empty_afterwards(cluster) {
        let output = cluster.run().directory().join("out");
        let words = ["paf", "run", "--target", text(cluster.mount()), "--output", text(&output), "--size", "100M"];
        let more = ["--capacity", "0,30", "--fragment", "0,20", "--xfer", "1M,4M", "--iterations", "1"];
        let more = more.into_iter().chain(["--file-size", "8M", "--keep-caches"]);
        let table = cluster.nacre(&words.into_iter().chain(more).collect::<Vec<_>>()).success().stdout;
        assert_eq!(rows(&table, "PaF:30.20").len(), 3, "{table}");
        assert!(table.contains("(fuse.nacre)") && !table.contains("refused O_DIRECT"), "{table}");
        assert_eq!(names(cluster.mount()), [] as [&str; 0]);
        // The objects are destroyed by the end of the run, not later.
        let left = cluster.nacre(&["frag", text(cluster.data())]).success().stdout;
        let objects = left.lines().filter(|line| line.contains(" objects with "));
        assert!(objects.clone().all(|line| line.trim().starts_with("0 objects")), "{left}");
        // The stores below the mount are examined, if they report extents.
        let shape = &rows(&table, "PaF:30.20")[2];
        assert!(shape[1] != "0" && (shape[1] == "not known") == (objects.count() == 0), "{shape:?}");
    }

    fn frag_reports_the_osts_behind_a_mount_and_says_what_cannot_be_told(cluster) {
        let file = cluster.mount().join("file");
        let data = File::create(&file).expect("made");
        data.write_all_at(&vec![7; 3 * MIB as usize], 0).expect("written");
        data.sync_all().expect("durable");
        let by_mount = cluster.nacre(&["frag", text(cluster.mount())]).success().stdout;
        let by_directory = cluster.nacre(&["frag", text(cluster.data())]).success().stdout;
        for found in [by_mount, by_directory] {
            let objects = |line: &&str| line.contains(" objects with ");
            let counts = found.lines().filter(objects).filter_map(|line| line.trim().split(' ').next()?.parse::<u64>().ok());
            let (osts, objects) = counts.fold((0, 0), |(osts, all), count| (osts + 1, all + count));
            // If the local file system reports no extents, the output says so instead.
            assert!((osts == 4 && objects >= 1) || found.contains("does not report"), "{found}");
        }
        let one = cluster.nacre(&["frag", text(&file)]).fails_with(1);
        assert!(one.stderr.contains("only the OSTs know"), "{one}");
        let json = cluster.nacre(&["frag", "--json", text(&cluster.data().join("ost0001"))]).success().stdout;
        assert!(json.contains("\"name\": \"OST0001\"") && json.contains("\"unit\": 1048576"), "{json}");
    }
}

#[test]
fn frag_counts_the_extents_of_files_and_the_free_space_of_ext4() {
    let Some(disk) = Disk::new() else { return };
    // Pairs of blocks are allocated to two files alternately, so that neither has two adjacent pairs.
    let files = ["a", "b"].map(|name| File::create(disk.mount.join(name)).expect("made"));
    for block in 0..32u64 {
        for file in &files {
            file.write_all_at(&[1; 8192], block * 8192).expect("written");
            file.sync_all().expect("durable");
        }
    }
    let whole = vec![2; 4 * MIB as usize];
    fs::write(disk.mount.join("whole"), &whole).expect("written");
    let report = |path: &Path| run(binary::nacre(), ["frag", text(path)]).success().stdout;
    let fragmentation = |text: &str, line: &str| {
        let line =
            text.lines().find(|found| found.contains(line)).unwrap_or_else(|| panic!("{line} in {text}"));
        line.rsplit(' ').next().and_then(|word| word.parse::<f64>().ok()).expect("a figure at the end")
    };
    let one = report(&disk.mount.join("whole"));
    assert_eq!(fragmentation(&one, "1 files with 4.0 MiB"), 0.0, "{one}");
    let scattered = report(&disk.mount.join("a"));
    let extents =
        scattered.lines().find(|line| line.contains("1 files with 256.0 KiB in ")).expect("its line");
    let count: u64 =
        extents.split(" in ").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok()).expect("a count");
    assert!(count > 1, "{scattered}");
    let expected = 1.0 - 1.0 / count as f64;
    assert!((fragmentation(&scattered, "1 files with") - expected).abs() < 1e-3, "{scattered}");

    let all = report(&disk.mount);
    assert!(all.contains("3 files with 4.5 MiB") && all.contains("most extents:"), "{all}");
    let free = run("stat", ["-f", "-c", "%f %S", text(&disk.mount)]).success().stdout;
    let numbers: Vec<f64> = free.split_whitespace().map(|word| word.parse().expect("a number")).collect();
    let told = all.lines().find(|line| line.trim().starts_with("free: ")).expect("ext4 tells it");
    let told: f64 = told.trim().split(' ').nth(1).and_then(|word| word.parse().ok()).expect("MiB");
    let is = numbers[0] * numbers[1] / MIB as f64;
    assert!((told - is).abs() < is * 0.02, "{told} MiB told, {is} MiB free");
    assert!((0.0..=1.0).contains(&fragmentation(&all, "free: ")));

    let none = run(binary::nacre(), ["frag", text(&disk.mount.join("none"))]).fails_with(1);
    assert_eq!(none.stderr.lines().count(), 1, "{none}");
    run(binary::nacre(), ["frag", "--unit", "1x", text(&disk.mount)]).fails_with(2);
    let memory = run(binary::nacre(), ["frag", "/dev/shm"]).success().stdout;
    assert!(memory.contains("tmpfs does not report where its free space lies"), "{memory}");
}

#[test]
fn a_survey_measures_every_layer_over_the_same_disk_and_leaves_nothing() {
    let Some(disk) = Disk::new() else { return };
    if !have(&["/dev/fuse", "fusermount3"]) {
        return;
    }
    let page = disk.run.directory().join("survey.html");
    let words = ["bench", "survey", "--dir", text(&disk.mount), "--objects", "2", "--threads", "1,3"];
    let small = ["--record", "64k", "--size", "2M", "--runs", "1"];
    let more = small.into_iter().chain(["--html", text(&page)]);
    let table = run(binary::nacre_with_bench(), words.into_iter().chain(more)).success().stdout;
    for layer in ["store", "ost", "client"] {
        let rows = rows(&table, layer);
        assert_eq!(rows.len(), 2, "{layer} in {table}");
        for row in rows {
            assert_eq!((row[1].as_str(), row[3].as_str()), ("2", "64K"));
            let rate = |cell: &String| cell.split(' ').next().and_then(|word| word.parse::<f64>().ok());
            assert!(row[4..7].iter().all(|cell| rate(cell).is_some_and(|rate| rate > 0.0)), "{row:?}");
        }
    }
    assert!(table.contains("| store | + ost | + client |"), "{table}");
    let block = run(binary::nacre_with_bench(), words.into_iter().chain(small).chain(["--backend", "block"]))
        .success()
        .stdout;
    for layer in ["store", "ost", "client"] {
        assert_eq!(rows(&block, layer).len(), 2, "{layer} in {block}");
    }
    assert!(block.contains("a store that has a sparse file"), "{block}");
    assert!(fs::read_to_string(&page).expect("written").contains("<svg"));
    assert_eq!(disk.names(), [] as [&str; 0]);
    let nowhere = disk.mount.join("none");
    let refused = run(binary::nacre_with_bench(), ["bench", "survey", "--dir", text(&nowhere)]).fails_with(1);
    assert!(refused.stderr.contains("is no directory"), "{refused}");
}

#[test]
fn a_continuous_survey_shows_bandwidth_over_time_and_gives_trimmed_space_back() {
    let Some(disk) = Disk::new() else { return };
    let image = disk.run.directory().join("image");
    let blocks = || std::os::unix::fs::MetadataExt::blocks(&fs::metadata(&image).expect("the disk's file"));
    // Free space that was used before, which a trim can discard.
    let rubbish = disk.mount.join("rubbish");
    let file = File::create(&rubbish).expect("made");
    file.write_all_at(&vec![1; 200 * MIB as usize], 0).expect("written");
    file.sync_all().expect("durable");
    drop(file);
    fs::remove_file(&rubbish).expect("removed");
    File::open(&disk.mount).and_then(|directory| directory.sync_all()).expect("durable");
    let before = blocks();
    let words =
        ["bench", "survey", "--dir", text(&disk.mount), "--layer", "store", "--objects", "4", "--size", "4M"];
    let more = ["--continuous", "--for", "3s", "--sample", "100ms", "--trim-every", "1s", "--json"];
    let json = run(binary::nacre_with_bench(), words.into_iter().chain(more)).success().stdout;
    for row in ["first fill", "overwriting, first tenth", "overwriting, last tenth", "during trims"] {
        assert!(json.contains(&format!("\"name\":\"{row}\"")), "{row} in {json}");
    }
    assert!(json.contains("trim after ") && !json.contains("no trims"), "{json}");
    assert!(blocks() + (100 << 11) < before, "{} blocks of the disk's file before, {} now", before, blocks());
    assert_eq!(disk.names(), [] as [&str; 0]);
}

/// Returns the command `nacre paf backends` on small images, with all files in one directory.
fn backends(run: &Run, letters: &str) -> Command {
    let mut command = run.command(binary::nacre_with_bench());
    command.args([
        "paf",
        "backends",
        "--dir",
        text(run.directory()),
        "--fragment",
        "0,30",
        "--file-size",
        "8M",
    ]);
    command
        .args(letters.split_whitespace())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Checks that nothing is left mounted, on a loop device, or in its directory.
fn is_clean(run: &Run) {
    let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts");
    assert!(!mounts.contains(text(run.directory())), "{mounts}");
    let loops = Command::new("losetup").arg("-a").output().map(|output| output.stdout).unwrap_or_default();
    let loops = String::from_utf8_lossy(&loops).into_owned();
    assert!(!loops.contains(text(run.directory())), "{loops}");
    let left = names(run.directory()).into_iter().filter(|name| name.starts_with("nacre-paf-"));
    assert_eq!(left.collect::<Vec<_>>(), [] as [&str; 0]);
}

#[test]
fn back_ends_are_made_measured_on_one_disk_and_taken_away() {
    if !have_root() || !have(&["mkfs.ext4", "mkfs.xfs", "mkfs.btrfs", "losetup"]) {
        return;
    }
    let run = Run::new();
    let letters = "--size 320M --capacity 0,40 --xfer 1M,2M --iterations 2 --json";
    let output = backends(&run, letters).output().expect("run");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    let json = String::from_utf8_lossy(&output.stdout).into_owned();
    for name in ["block", "file", "ext4", "xfs", "btrfs"] {
        assert!(json.contains(&format!("\"name\": \"{name}\"")), "{name} in {json}");
    }
    assert!(!json.contains("left_out"), "{said}{json}");
    assert_eq!(json.matches("\"paf\": \"PaF:40.30\"").count(), 5 * 2, "{json}");
    assert_eq!(json.matches("COMPUTED service times").count(), 4, "{json}");
    is_clean(&run);
    let refused = backends(&run, "--simulated-medium flash").output().expect("run");
    assert!(
        String::from_utf8_lossy(&refused.stderr).contains("give --simulated-medium disk:"),
        "{refused:?}"
    );
}

#[test]
fn back_ends_that_are_broken_off_leave_nothing_mounted() {
    if !have_root() || !have(&["mkfs.ext4", "losetup"]) {
        return;
    }
    let run = Run::new();
    let letters = "--lines ext4 --size 320M --capacity 0,10..80 --xfer 1M,2M --iterations 1000";
    let child = backends(&run, letters).spawn().expect("started");
    let kept = || names(run.directory()).into_iter().find(|name| name.starts_with("nacre-paf-"));
    wait::until(LIMIT, "a pair is measured", || {
        let state = run.directory().join(kept()?).join("out/state.json");
        fs::read_to_string(state).is_ok_and(|state| state.contains("\"iteration\":")).then_some(())
    });
    // SAFETY: takes numbers; the process is a child of this one and has not been reaped.
    unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
    let output = wait::deadline(LIMIT, "ending", move || child.wait_with_output()).expect("our child");
    assert_eq!(output.status.code(), Some(130), "{}", String::from_utf8_lossy(&output.stderr));
    is_clean(&run);
}
