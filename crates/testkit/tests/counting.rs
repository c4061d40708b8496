//! Statistics of programs' work, by job, client address, size, position, and the page cache of OSTs.

use std::fs;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::process::Command;

use nacre_testkit::{Cluster, Shape, on_each_shape, wait};

fn get(cluster: &Cluster, pattern: &str) -> String {
    cluster.lctl(&["get_param", "-n", pattern]).success().stdout
}

fn set(cluster: &Cluster, setting: &str) {
    cluster.lctl(&["set_param", "-n", setting]).success();
}

/// Returns samples and sum of a row of a job, over all texts; `None` if no text has the job.
fn of_job(text: &str, job: &str, row: &str) -> Option<(u64, u64)> {
    let mut found = None;
    let mut current = "";
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("- job_id:") {
            current = name.trim();
        }
        if current == job
            && let Some(fields) = line.trim().strip_prefix(&format!("{row}:"))
        {
            let field = |name: &str| -> u64 {
                let rest = fields.split_once(&format!(" {name}:")).expect("a field").1;
                rest.split([',', '}']).next().expect("a number").trim().parse().expect("a number")
            };
            let (samples, sum) = found.unwrap_or((0, 0));
            found = Some((samples + field("samples"), sum + field("sum")));
        }
    }
    found
}

/// Returns samples and sum of a row of counters, over all texts.
fn row(text: &str, name: &str) -> (u64, u64) {
    let rows = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let number =
        |fields: &[&str], at: usize| fields.get(at).map_or(0, |text| text.parse().expect("a number"));
    rows.filter(|fields| fields.first() == Some(&name))
        .fold((0, 0), |(samples, sum), fields| (samples + number(&fields, 1), sum + number(&fields, 6)))
}

fn dd(cluster: &Cluster, name: &str, words: &[&str], variable: Option<(&str, &str)>) {
    let to = format!("of={}", cluster.mount().join(name).display());
    let mut command = Command::new("dd");
    command.args(["if=/dev/zero", &to, "status=none"]).args(words).envs(variable);
    assert!(command.status().expect("dd runs").success());
}

/// The naming of jobs is one setting for all mounts of a host, so this is one test.
#[test]
fn work_is_counted_by_job() {
    on_each_shape("cjob", |cluster, fs| {
        let (ost, mdt) = (format!("obdfilter.{fs}-OST*.job_stats"), format!("mdt.{fs}-MDT0000.job_stats"));
        let count = |job: &str, row: &str| of_job(&get(cluster, &ost), job, row).unwrap_or_default();
        dd(cluster, "nameless", &["bs=1M", "count=1", "conv=fsync"], None);
        assert_eq!(get(cluster, &ost).lines().filter(|line| line.starts_with("- ")).count(), 0);
        set(cluster, "jobid_var=procname_uid");
        dd(cluster, "named", &["bs=1M", "count=3", "conv=fsync"], None);
        assert_eq!(count("dd.0", "write_bytes").1, 3 << 20, "{}", get(cluster, &ost));
        assert!(get(cluster, &ost).contains("hist: { "));
        let metadata = get(cluster, &mdt);
        assert!(of_job(&metadata, "dd.0", "open").is_some_and(|open| open.0 == 1), "{metadata}");
        wait::until(wait::SOON, "the close is counted, which nobody waits for", || {
            of_job(&get(cluster, &mdt), "dd.0", "close").filter(|close| close.0 == 1)
        });
        // Write-back by other threads still counts for the job.
        set(cluster, &format!("{ost}=clear"));
        dd(cluster, "small", &["bs=4k", "count=300"], None);
        wait::until(wait::SOON, "it is written", || {
            (count("dd.0", "write_bytes").1 == 300 << 12).then_some(())
        });
        let read = Command::new("cat").arg(cluster.mount().join("named")).output().expect("cat runs");
        assert_eq!(read.stdout.len(), 3 << 20);
        assert!(count("dd.0", "read_bytes").0 == 0);
        // The job id of the batch system, and its substitute without one.
        set(cluster, "jobid_var=NACRE_TEST_JOB");
        dd(cluster, "batch", &["bs=1M", "count=2", "conv=fsync"], Some(("NACRE_TEST_JOB", "batch#7")));
        assert_eq!(count("\"batch\\x237\"", "write_bytes").1, 2 << 20, "{}", get(cluster, &ost));
        set(cluster, &format!("obdfilter.{fs}-OST*.job_cleanup_interval=0"));
        set(cluster, "jobid_name=%j%?none.%g");
        dd(cluster, "without", &["bs=1M", "count=1", "conv=fsync"], None);
        assert_eq!(count("none.0", "write_bytes").1, 1 << 20, "{}", get(cluster, &ost));
        set(cluster, "jobid_name=node-%u");
        set(cluster, "jobid_var=nodelocal");
        dd(cluster, "local", &["bs=1M", "count=1", "conv=fsync"], None);
        assert_eq!(count("node-0", "write_bytes").1, 1 << 20, "{}", get(cluster, &ost));
        set(cluster, "jobid_name=%e.%u");
        set(cluster, "jobid_var=disable");
        let before = get(cluster, &mdt);
        dd(cluster, "nameless again", &["bs=1M", "count=1", "conv=fsync"], None);
        assert_eq!(of_job(&get(cluster, &mdt), "dd.0", "open"), of_job(&before, "dd.0", "open"));
        // An idle job is dropped.
        set(cluster, &format!("mdt.{fs}-MDT0000.job_cleanup_interval=1"));
        wait::until(wait::SOON, "jobs are forgotten", || {
            (get(cluster, &mdt) == "job_stats:\n").then_some(())
        });
        for (bad, errno) in [
            (format!("{ost}=nosuch"), libc::EINVAL),
            (format!("mdt.{fs}-MDT0000.job_cleanup_interval=-1"), libc::ERANGE),
            (format!("mdt.{fs}-MDT0000.job_cleanup_interval=soon"), libc::EINVAL),
            ("jobid_var=two words".to_owned(), libc::EINVAL),
            ("jobid_name=%x".to_owned(), libc::EINVAL),
        ] {
            cluster.lctl(&["set_param", &bad]).fails_with(errno);
        }
    });
}

#[test]
fn requests_are_counted_by_the_address_that_they_come_from() {
    on_each_shape("cexp", |cluster, fs| {
        let nid = if cluster.shape() == Shape::Embedded { "0@lo" } else { "127.0.0.1@tcp" };
        let (ost, mdt) = (format!("obdfilter.{fs}-OST*.exports"), format!("mdt.{fs}-MDT0000.exports"));
        let uuid = get(cluster, &format!("llite.{fs}-*.uuid"));
        // A mount connects to an OST with its first request to it.
        dd(cluster, "file", &["bs=1M", "count=2", "conv=fsync"], None);
        for exports in [&mdt, &ost] {
            let clients = get(cluster, &format!("{exports}.{nid}.uuid"));
            assert!(clients.replace('-', "").contains(uuid.trim()), "{uuid} is none of\n{clients}");
        }
        assert_eq!(row(&get(cluster, &format!("{ost}.{nid}.stats")), "write_bytes").1, 2 << 20);
        assert!(row(&get(cluster, &format!("{mdt}.{nid}.stats")), "open").0 >= 1);
        assert!(get(cluster, &format!("{ost}.{nid}.brw_stats")).contains("1M:\t\t"));
        get(cluster, &format!("{ost}.{nid}.ldlm_stats"));
        let path = cluster.mount().join("file");
        let fid = cluster.lfs(&["path2fid", path.to_str().expect("plain")]).success().stdout;
        let is_open = || get(cluster, &format!("{mdt}.{nid}.open_files")).contains(fid.trim());
        let file = fs::File::open(&path).expect("opened");
        assert!(is_open(), "{fid}");
        drop(file);
        wait::until(wait::SOON, "it is closed, which nobody waits for", || (!is_open()).then_some(()));
        set(cluster, &format!("{ost}.{nid}.brw_stats=0"));
        assert!(!get(cluster, &format!("{ost}.{nid}.brw_stats")).contains("1M:\t\t"));
        set(cluster, &format!("{ost}.clear=1"));
        set(cluster, &format!("{mdt}.clear=1"));
        assert_eq!(row(&get(cluster, &format!("{ost}.{nid}.stats")), "write_bytes"), (0, 0));
        assert_eq!(row(&get(cluster, &format!("{mdt}.{nid}.stats")), "open").0, 0);
        cluster.lctl(&["get_param", &format!("{mdt}.10.9.8.7@tcp.stats")]).fails_with(libc::ENOENT);
        cluster.lctl(&["set_param", &format!("{mdt}.{nid}.uuid=1")]).fails_with(libc::EACCES);
    });
}

#[test]
fn reads_and_writes_are_counted_by_size_and_position_when_asked() {
    on_each_shape("cext", |cluster, fs| {
        let name = |leaf: &str| format!("llite.{fs}-*.{leaf}");
        assert!(get(cluster, &name("extents_stats")).starts_with("disabled\n"));
        let path = cluster.mount().join("file");
        let direct = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .custom_flags(libc::O_DIRECT)
            .open(&path)
            .expect("opened");
        // Aligned memory, for direct I/O.
        let memory = vec![7; 3 << 12];
        let page = &memory[memory.as_ptr().align_offset(1 << 12)..][..1 << 12];
        let write = |offset: u64| direct.write_all_at(page, offset).expect("written");
        write(0);
        set(cluster, &format!("{}=1", name("offset_stats")));
        (0..3).for_each(|number| write(number << 12));
        write(1 << 20);
        let sizes = get(cluster, &name("extents_stats"));
        let pages = |text: &str| {
            let line =
                text.lines().find(|line| line.trim_start().starts_with("4K -    8K")).map(str::to_owned);
            line.and_then(|line| line.split('|').nth(1)?.split_whitespace().next()?.parse::<u64>().ok())
        };
        assert_eq!(pages(&sizes), Some(4), "{sizes}");
        let process = get(cluster, &name("extents_stats_per_process"));
        assert!(process.contains("\nPID: ") && pages(&process) == Some(4), "{process}");
        let offsets = get(cluster, &name("offset_stats"));
        let rows: Vec<Vec<&str>> = offsets
            .lines()
            .filter(|line| line.trim_start().starts_with("W "))
            .map(|line| line.split_whitespace().skip(2).collect())
            .collect();
        let jump = (1 << 20) - (3 << 12);
        let expected = [
            ["0", "12288", "4096", "4096", "0"].map(str::to_owned),
            ["1048576".into(), "1052672".into(), "4096".into(), "4096".into(), format!("{jump}")],
        ];
        assert_eq!(rows, expected, "{offsets}");
        set(cluster, &format!("{}=again", name("extents_stats")));
        assert_eq!(pages(&get(cluster, &name("extents_stats"))), None);
        set(cluster, &format!("{}=disabled", name("extents_stats_per_process")));
        for leaf in ["extents_stats", "extents_stats_per_process", "offset_stats"] {
            assert!(get(cluster, &name(leaf)).starts_with("disabled\n"), "{leaf}");
        }
    });
}

#[test]
fn the_page_cache_of_osts_is_used_as_its_parameters_say() {
    on_each_shape("ccache", |cluster, fs| {
        let name = |leaf: &str| format!("osd-*.{fs}-OST*.{leaf}");
        let one = |leaf: &str| get(cluster, &format!("obdfilter.{fs}-OST0000.{leaf}")).trim().to_owned();
        let count = |row_name: &str| row(&get(cluster, &name("stats")), row_name).0;
        let path = cluster.mount().join("file");
        fs::write(&path, vec![7; 4 << 20]).expect("written");
        let read = || {
            let direct = fs::OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path);
            // Aligned, or the kernel splits the transfer at unaligned positions.
            let mut memory = vec![0; (4 << 20) + (1 << 12)];
            let start = memory.as_ptr().align_offset(1 << 12);
            let back = &mut memory[start..][..4 << 20];
            direct.expect("opened").read_exact_at(back, 0).expect("read");
            assert!(back.iter().all(|byte| *byte == 7));
        };
        let reads_direct = |setting: &str| {
            set(cluster, &name(setting));
            let before = count("direct_read");
            read();
            count("direct_read") - before
        };
        set(cluster, &format!("llite.{fs}-*.max_read_ahead_mb=0"));
        assert_eq!((one("read_cache_enable"), one("readcache_max_io_mb")), ("1".into(), "8".into()));
        assert_eq!(reads_direct("read_cache_enable=1"), 0);
        assert!(reads_direct("read_cache_enable=0") > 0);
        assert_eq!(reads_direct("read_cache_enable=1"), 0);
        assert!(reads_direct("readcache_max_io_mb=16k") > 0);
        assert_eq!(reads_direct("readcache_max_io_mb=8"), 0);
        assert!(reads_direct("readcache_max_filesize=1M") > 0);
        assert_eq!(reads_direct("readcache_max_filesize=1G"), 0);
        let writes_direct = |setting: &str| {
            set(cluster, &name(setting));
            let before = count("direct_write");
            dd(cluster, "written", &["bs=1M", "count=4", "oflag=direct"], None);
            count("direct_write") - before
        };
        assert_eq!(writes_direct("writethrough_max_io_mb=8"), 0);
        assert!(writes_direct("writethrough_max_io_mb=0.5") > 0);
        set(cluster, &name("writethrough_max_io_mb=8"));
        assert!(writes_direct("writethrough_cache_enable=0") > 0);
        cluster.lctl(&["set_param", &name("readcache_max_io_mb=65")]).fails_with(libc::ERANGE);
        cluster.lctl(&["set_param", &name("read_cache_enable=2")]).fails_with(libc::EINVAL);
    });
}
