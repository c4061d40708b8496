use super::*;
use crate::control::{ClockStatus, ProcessStatus};
use std::fs;

/// A machine of which only some files exist.
struct Fake {
    dir: tempfile::TempDir,
}

impl Fake {
    fn new(files: &[(&str, &str)]) -> Fake {
        let fake = Fake { dir: tempfile::tempdir().expect("a directory") };
        files.iter().for_each(|(path, text)| fake.write(path, text));
        fake
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.dir.path().join(path.trim_start_matches('/'));
        fs::create_dir_all(path.parent().expect("it has one")).expect("created");
        fs::write(path, text).expect("written");
    }

    fn machine(&self) -> Machine {
        Machine { root: self.dir.path().to_owned() }
    }

    fn findings(&self) -> Vec<Finding> {
        host::examine(&self.machine())
    }

    /// Returns the level and text of the only finding whose text contains a phrase.
    fn level_of(&self, phrase: &str) -> Level {
        let findings = self.findings();
        let mut found = findings.iter().filter(|finding| finding.text.contains(phrase));
        let first = found.next().unwrap_or_else(|| panic!("nothing says '{phrase}': {findings:#?}"));
        assert_eq!(found.next(), None, "one says '{phrase}'");
        first.level
    }
}

const RELEASE: &str = "/proc/sys/kernel/osrelease";
const URING: &str = "/sys/module/fuse/parameters/enable_uring";
const GOVERNOR: &str = "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor";
const DRIVER: &str = "/sys/devices/system/cpu/cpu0/cpufreq/scaling_driver";

#[test]
fn kernels_are_judged_by_their_version() {
    for (release, level) in [
        ("4.18.0-553.el8", Level::Error),
        ("5.14.0", Level::Error),
        ("5.15.0-91-generic", Level::Note),
        ("6.13.7", Level::Note),
        ("6.14.0", Level::Ok),
        ("10.0.1", Level::Ok),
    ] {
        let fake = Fake::new(&[(RELEASE, release), ("/dev/fuse", "")]);
        assert_eq!(fake.level_of(release), level, "{release}");
    }
}

#[test]
fn a_missing_fuse_device_is_an_error_and_disabled_io_uring_a_safe_change() {
    let fake = Fake::new(&[(RELEASE, "6.18.0\n")]);
    assert_eq!(fake.level_of("/dev/fuse does not exist"), Level::Error);

    let fake = Fake::new(&[(RELEASE, "6.18.0\n"), ("/dev/fuse", ""), (URING, "N\n")]);
    let mut findings = fake.findings();
    let finding =
        findings.iter_mut().find(|finding| finding.text.contains("io_uring is disabled")).expect("found");
    assert_eq!((finding.level, finding.is_safe), (Level::Warning, true));
    fix(finding);
    assert_eq!((finding.level, finding.is_safe), (Level::Ok, false), "{finding:?}");
    assert_eq!(fake.machine().read(URING).as_deref(), Some("Y"));
    assert_eq!(fake.level_of("FUSE over io_uring is enabled"), Level::Ok);
}

#[test]
fn a_change_that_fails_stays_a_warning_and_says_why() {
    let mut finding = Finding::warning("fuse", "disabled")
        .change(Change::Write { path: PathBuf::from("/nonexistent/file"), value: "Y".to_owned() });
    fix(&mut finding);
    assert_eq!((finding.level, finding.is_safe), (Level::Warning, false));
    let remedy = finding.remedy.expect("it stays");
    assert!(remedy.contains("echo Y > /nonexistent/file") && remedy.contains("No such file"), "{remedy}");
}

#[test]
fn only_a_governor_that_keeps_cpus_slow_is_a_warning() {
    for (governor, driver, level) in [
        ("performance", "acpi-cpufreq", Level::Ok),
        ("schedutil", "acpi-cpufreq", Level::Ok),
        ("powersave", "intel_pstate", Level::Ok),
        ("powersave", "acpi-cpufreq", Level::Warning),
        ("conservative", "acpi-cpufreq", Level::Warning),
    ] {
        let fake = Fake::new(&[(GOVERNOR, governor), (DRIVER, driver)]);
        assert_eq!(fake.level_of("frequency governor"), level, "{governor} of {driver}");
    }
}

#[test]
fn idle_states_are_noted_unless_they_are_short_or_disabled() {
    let base = "/sys/devices/system/cpu/cpu0/cpuidle";
    let state = |fake: &Fake, number: u32, name: &str, latency: &str, disabled: &str| {
        for (leaf, text) in [("name", name), ("latency", latency), ("disable", disabled)] {
            fake.write(&format!("{base}/state{number}/{leaf}"), text);
        }
    };
    let fake = Fake::new(&[]);
    state(&fake, 0, "POLL", "0", "0");
    state(&fake, 1, "C1E", "10", "0");
    state(&fake, 2, "C10", "890", "1");
    assert!(fake.findings().iter().all(|finding| !finding.text.contains("wake up")));
    state(&fake, 3, "C6", "133", "0");
    assert_eq!(fake.level_of("133 us to wake up from state C6"), Level::Note);
}

#[test]
fn a_slow_clock_source_and_little_memory_are_warnings() {
    let source = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    let memory = "MemTotal:       16000000 kB\nMemFree: 1 kB\nMemAvailable:     500000 kB\n";
    let fake = Fake::new(&[(source, "hpet\n"), ("/proc/meminfo", memory)]);
    assert_eq!(fake.level_of("hpet"), Level::Warning);
    assert_eq!(fake.level_of("488.3MiB of 15.3GiB"), Level::Warning);
    fake.write(source, "tsc");
    assert_eq!(fake.level_of("tsc"), Level::Ok);
}

#[test]
fn garbage_in_files_of_the_kernel_is_no_finding() {
    let idle = "/sys/devices/system/cpu/cpu0/cpuidle/state0/latency";
    let fake = Fake::new(&[(RELEASE, "Linux"), ("/proc/meminfo", "MemTotal: x"), (idle, "-1")]);
    for finding in fake.findings() {
        assert!(["fuse", "clock"].contains(&finding.area), "{finding:?}");
    }
}

#[test]
fn schedulers_are_changed_only_to_ones_that_the_disk_has() {
    let fake = Fake::new(&[("/sys/block/sda/queue/scheduler", "")]);
    let dir = fake.machine().path("/sys/block/sda");
    for (text, rotational, change) in [
        ("none [mq-deadline] kyber", false, Some("none")),
        ("[none] mq-deadline", false, None),
        ("none [bfq] mq-deadline", true, None),
        ("[none] mq-deadline", true, Some("mq-deadline")),
        ("[none]", true, None),
    ] {
        let found = storage::scheduler(&dir, "sda", text, rotational, "OST0000");
        let wanted =
            change.map(|value| Change::Write { path: dir.join("queue/scheduler"), value: value.to_owned() });
        assert_eq!(found.change, wanted, "{text}, rotational {rotational}: {found:?}");
    }
}

#[test]
fn clocks_of_other_hosts_are_judged_by_what_is_certain_of_their_difference() {
    let clock = |target: &str, nid: &str, ahead_us, within_us| ClockStatus {
        target: target.to_owned(),
        nid: nid.to_owned(),
        ahead_us,
        within_us,
    };
    let clocks = vec![
        clock("MDT0000", "10.0.0.1:7988@tcp", 2_000_000, 300),
        clock("OST0000", "10.0.0.1:7988@tcp", 2_500_000, 900_000),
        clock("OST0001", "10.0.0.2:7988@tcp", -250_000, 300),
        clock("OST0002", "10.0.0.3:7988@tcp", 2_000_000, 1_990_000),
    ];
    let process = ProcessStatus {
        name: "mount".to_owned(),
        pid: 1,
        uptime_seconds: 1,
        fsname: "x".to_owned(),
        targets: Vec::new(),
        mount: None,
        log: None,
        checksum_errors: 0,
        listening: Vec::new(),
        clocks,
    };
    let found = network::clocks(&[process]);
    let levels: Vec<Level> = found.iter().map(|finding| finding.level).collect();
    assert_eq!(levels, [Level::Warning, Level::Note, Level::Ok]);
    assert_eq!(
        found[0].text,
        "the clock of 10.0.0.1 (MDT0000, OST0000) is 2000.0 ms ahead of that of this host, give or take 0.3 ms"
    );
    assert!(found[1].text.contains("10.0.0.2 (OST0001) is 250.0 ms behind"), "{}", found[1].text);
    assert!(found[0].remedy.is_some() && found[1].remedy.is_some());
}

#[test]
fn the_same_setting_of_several_targets_is_one_finding_with_one_command() {
    let param = |name: &str, value: &str| (name.to_owned(), value.to_owned(), "32".to_owned());
    let groups = parameters::grouped(vec![
        param("osc.x-OST0000-osc.max_dirty_mb", "64"),
        param("osc.x-OST0001-osc.max_dirty_mb", "64"),
        param("osc.x-OST0002-osc.max_dirty_mb", "16"),
        param("jobid_var", "disable"),
    ]);
    let found: Vec<(String, String)> = groups
        .iter()
        .map(|group| group.finding())
        .map(|finding| (finding.text, finding.remedy.expect("a command")))
        .collect();
    let expected = [
        ("jobid_var=disable; the default is 32", "lctl set_param 'jobid_var=32'"),
        (
            "osc.x-OST0002-osc.max_dirty_mb=16; the default is 32",
            "lctl set_param 'osc.x-OST0002-osc.max_dirty_mb=32'",
        ),
        (
            "osc.x-OST0000-osc.max_dirty_mb=64 and 1 like it; the default is 32",
            "lctl set_param 'osc.x-OST000*.max_dirty_mb=32'",
        ),
    ];
    for ((text, remedy), (wanted, command)) in found.iter().zip(expected) {
        assert_eq!(text, wanted);
        assert!(remedy.ends_with(command), "{remedy}");
    }
    assert_eq!(found.len(), 3);
}
