//! Parameters that monitoring reads, in the format that it parses.

use nacre_testkit::identity::Identity;
use nacre_testkit::requirements::have_root;
use nacre_testkit::{Cluster, program};

/// Parameters of this file system that Whamcloud's lustrefs-exporter (0.12) reads, with the format that its
/// parsers expect.
const EXPORTED: &[(&str, Form)] = &[
    ("memused", Form::Number),
    ("memused_max", Form::Number),
    ("health_check", Form::Word("healthy")),
    ("mdt.*.exports.*.uuid", Form::Lines),
    ("osd-*.*.stats", Form::Stats),
    ("osd-*.*.filesfree", Form::Number),
    ("osd-*.*.filestotal", Form::Number),
    ("osd-*.*.fstype", Form::Lines),
    ("osd-*.*.kbytesavail", Form::Number),
    ("osd-*.*.kbytesfree", Form::Number),
    ("osd-*.*.kbytestotal", Form::Number),
    ("osd-*.*.brw_stats", Form::Transfers),
    ("osp.*.active", Form::Number),
    ("osp.*.max_create_count", Form::Number),
    ("mgs.*.mgs.stats", Form::Stats),
    ("ost.OSS.ost.stats", Form::Stats),
    ("ost.OSS.ost_io.stats", Form::Stats),
    ("ost.OSS.ost_create.stats", Form::Stats),
    ("obdfilter.*OST*.stats", Form::Stats),
    ("obdfilter.*OST*.num_exports", Form::Number),
    ("obdfilter.*OST*.tot_granted", Form::Number),
    ("obdfilter.*OST*.exports.*.stats", Form::Stats),
    ("mds.MDS.mdt.stats", Form::Stats),
    ("mds.MDS.mdt_out.stats", Form::Stats),
    ("mds.MDS.mdt_readpage.stats", Form::Stats),
    ("mds.MDS.mdt_seqs.stats", Form::Stats),
    ("mdt.*.md_stats", Form::Stats),
    ("mdt.*MDT*.num_exports", Form::Number),
    ("mdt.*MDT*.exports.*.stats", Form::Stats),
    ("ldlm.namespaces.{mdt-,filter-}*.contended_locks", Form::Number),
    ("ldlm.namespaces.{mdt-,filter-}*.contention_seconds", Form::Number),
    ("ldlm.namespaces.{mdt-,filter-}*.lock_count", Form::Number),
    ("ldlm.namespaces.{mdt-,filter-}*.lock_timeouts", Form::Number),
    ("ldlm.namespaces.{mdt-,filter-}*.resource_count", Form::Number),
    ("ldlm.services.ldlm_canceld.stats", Form::Stats),
    ("ldlm.services.ldlm_cbd.stats", Form::Stats),
    ("llite.*.stats", Form::Stats),
    ("{obdfilter,mdt}.*.recovery_status", Form::Recovery),
    ("{obdfilter,mdt}.*.job_stats", Form::Word("job_stats:")),
    ("mgs.*.live.*", Form::Lines),
];

/// Format of a value.
#[derive(Clone, Copy)]
enum Form {
    Number,
    Word(&'static str),
    Lines,
    /// A header with times, then rows of counters.
    Stats,
    /// Histograms of reads and writes.
    Transfers,
    Recovery,
}

impl Form {
    /// Returns whether a value, the text after `NAME=`, has the format.
    fn fits(self, value: &str) -> bool {
        let is_number = |text: &str| text.parse::<u64>().is_ok();
        let is_time = |text: &str| text.split_once('.').is_some_and(|(s, ns)| is_number(s) && is_number(ns));
        let is_row = |line: &str| match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["snapshot_time" | "start_time" | "elapsed_time", time, _] => is_time(time),
            [_, count, "samples", unit, ref sums @ ..] => {
                is_number(count) && unit.starts_with('[') && sums.iter().all(|sum| is_number(sum))
            }
            _ => false,
        };
        let mut lines = value.lines().filter(|line| !line.is_empty());
        match self {
            Form::Number => is_number(value),
            Form::Word(word) => value.trim() == word,
            Form::Lines => !value.trim().is_empty(),
            Form::Stats => {
                lines.clone().next().is_some_and(|line| line.starts_with("snapshot_time"))
                    && lines.all(is_row)
            }
            Form::Transfers => {
                lines.next().is_some_and(|line| line.starts_with("snapshot_time:"))
                    && value.contains("pages per bulk r/w")
                    && value.contains("disk I/O size")
            }
            Form::Recovery => ["status: INACTIVE", "status: COMPLETE", "status: RECOVERING"]
                .iter()
                .any(|status| value.trim_start().starts_with(status)),
        }
    }
}

/// Checks that all parameters that the exporter reads exist and have the expected format.
pub fn check_exported(cluster: &Cluster) {
    let mount = cluster.mount().to_str().expect("plain");
    let get =
        |words: &[&str]| cluster.lctl(&[&["--fs", mount, "get_param"], words].concat()).success().stdout;
    for (pattern, form) in EXPORTED {
        let names = get(&["-N", pattern]);
        assert!(!names.is_empty(), "{pattern}");
        let text = get(&[pattern]);
        // Each value begins with its name, at the beginning of a line.
        let mut values: Vec<String> = Vec::new();
        for line in text.lines() {
            match line.split_once('=').filter(|(name, _)| names.lines().any(|known| known == *name)) {
                Some((_, value)) => values.push(value.to_owned()),
                None => {
                    let value = values.last_mut().expect("a name comes first");
                    value.push('\n');
                    value.push_str(line);
                }
            }
        }
        assert_eq!(values.len(), names.lines().count(), "{pattern}: {text}");
        assert!(values.iter().all(|value| form.fits(value)), "{pattern}: {text}");
    }
}

/// Checks that users other than root can read public parameters, and change none.
pub fn check_for_everybody(cluster: &Cluster, fs: &str) {
    if !have_root() {
        return;
    }
    let as_user = |words: &[&str]| {
        let mut command = cluster.command();
        command.arg("lctl").args(words);
        Identity::user(12345).act(|| program::run_command(command, program::LIMIT))
    };
    let size = format!("obdfilter.{fs}-OST0000.kbytestotal");
    let words = ["get_param", "-n", &size];
    assert_eq!(as_user(&words).success().stdout, cluster.lctl(&words).success().stdout);
    as_user(&["get_param", &format!("obdfilter.{fs}-OST0000.stats")]).fails_with(libc::ENOENT);
    as_user(&["set_param", &format!("obdfilter.{fs}-OST0000.degraded=1")]).fails_with(libc::EPERM);
}
