//! `lctl get_param`, `set_param` and `list_param` on a running file system: values are correct, and settings
//! take effect.

#[path = "parameters/monitoring.rs"]
mod monitoring;

use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nacre_testkit::cluster::Options;
use nacre_testkit::requirements::{have, have_root};
use nacre_testkit::{Cluster, Shape, on_each_shape, wait};

fn get(cluster: &Cluster, pattern: &str) -> String {
    cluster.lctl(&["get_param", "-n", pattern]).success().stdout.trim().to_owned()
}

/// Returns the samples of a row of a text with counters.
fn samples(text: &str, row: &str) -> u64 {
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(row));
    line.and_then(|line| line.split_whitespace().nth(1)).map_or(0, |count| count.parse().expect("a count"))
}

#[test]
fn parameters_are_listed_by_patterns_with_marks() {
    on_each_shape("plist", |cluster, fs| {
        let list = |words: &[&str]| cluster.lctl(&[&["list_param"], words].concat()).success().stdout;
        assert_eq!(list(&[&format!("obdfilter.{fs}-*")]).lines().count(), 2);
        let marked = list(&["-F", &format!("obdfilter.{fs}-OST0000"), &format!("obdfilter.{fs}-OST0000.*")]);
        assert!(marked.lines().any(|line| line == format!("obdfilter.{fs}-OST0000/")), "{marked}");
        assert!(marked.lines().any(|line| line.ends_with(".no_create=")), "{marked}");
        assert!(marked.lines().any(|line| line.ends_with(".uuid")), "{marked}");
        let below = list(&["-R", &format!("{{llite,lov,osc}}.{fs}*")]);
        for name in ["llite", "lov", "osc"] {
            assert!(below.lines().any(|line| line.starts_with(name)), "{below}");
        }
        let outcome = cluster.lctl(&["list_param", &format!("osc.{fs}*.nosuch")]).fails_with(libc::ENOENT);
        let expected = format!("error: list_param: param_path 'osc/{fs}*/nosuch': No such file or directory");
        assert_eq!(outcome.stderr.trim(), expected);
    });
}

#[test]
fn values_are_shown_in_the_forms_that_scripts_expect() {
    on_each_shape("pget", |cluster, fs| {
        let show = |words: &[&str]| cluster.lctl(&[&["get_param"], words].concat()).success().stdout;
        let uuid = format!("obdfilter.{fs}-OST0001.uuid");
        assert_eq!(show(&[&uuid]), format!("{uuid}={fs}-OST0001_UUID\n"));
        assert_eq!(show(&["-n", &uuid]), format!("{fs}-OST0001_UUID\n"));
        assert_eq!(show(&["-N", &uuid]), format!("{uuid}\n"));
        let targets = format!("lov.{fs}-clilov-*.target_obd");
        let text = show(&[&targets]);
        assert!(text.lines().next().is_some_and(|line| line.ends_with(".target_obd=")), "{text}");
        assert!(text.ends_with(&format!("1: {fs}-OST0001_UUID ACTIVE\n")), "{text}");
        let text = show(&["-H", &targets]);
        assert!(
            text.lines().all(|line| line.contains(".target_obd=")) && text.lines().count() == 2,
            "{text}"
        );
        let text = show(&["--json", &uuid]);
        assert!(text.contains(&format!(r#""value": "{fs}-OST0001_UUID""#)), "{text}");
        let text = show(&["--json", &format!("obdfilter.{fs}-OST0001.degraded")]);
        assert!(text.contains(r#""value": 0"#), "{text}");
        let help = cluster.lctl(&["help_param", "osc.max_rpcs_in_flight"]).success().stdout;
        assert_eq!(help, "osc.*.max_rpcs_in_flight: a number from 1 to 256\n");
        let outcome = cluster.lctl(&["get_param"]).fails_with(4);
        assert_eq!(outcome.stderr, "See 'lctl help'.\nlctl get_param: a parameter is needed\n");
        // A pattern without a match is reported and does not prevent the others.
        let outcome = cluster.lctl(&["get_param", "-n", "nosuch", &uuid]);
        assert_eq!((outcome.code(), outcome.stdout.trim()), (libc::ENOENT, &*format!("{fs}-OST0001_UUID")));
        assert!(outcome.stderr.contains("param_path 'nosuch'"), "{outcome}");
    });
}

#[test]
fn space_and_counters_follow_what_happens() {
    on_each_shape("pstat", |cluster, fs| {
        cluster.set_default(&["-d"]);
        let free = |what: &str| get(cluster, what).parse::<u64>().expect("a number");
        assert!(free(&format!("obdfilter.{fs}-OST0000.kbytesfree")) > 0);
        assert!(free(&format!("llite.{fs}-*.kbytestotal")) > 0);
        assert!(free(&format!("llite.{fs}-*.filesfree")) > 0);
        let (llite, mdt) = (format!("llite.{fs}-*.stats"), format!("mdt.{fs}-MDT0000.md_stats"));
        for name in [&llite, &mdt] {
            cluster.lctl(&["set_param", "-n", &format!("{name}=0")]).success();
        }
        for number in 0..7 {
            fs::write(cluster.mount().join(format!("file{number}")), [7; 5000]).expect("written");
        }
        for number in 0..3 {
            fs::remove_file(cluster.mount().join(format!("file{number}"))).expect("removed");
        }
        let (mount, server) = (get(cluster, &llite), get(cluster, &mdt));
        assert_eq!((samples(&mount, "create"), samples(&mount, "unlink")), (7, 3), "{mount}");
        assert_eq!(samples(&mount, "write_bytes"), 7, "{mount}");
        assert!(mount.contains("[bytes] 5000 5000 35000 "), "{mount}");
        assert_eq!((samples(&server, "open"), samples(&server, "unlink")), (7, 3), "{server}");
        let written = |index: u16| {
            samples(&get(cluster, &format!("obdfilter.{fs}-OST{index:04x}.stats")), "write_bytes")
        };
        fs::File::open(cluster.mount().join("file6")).and_then(|file| file.sync_all()).expect("synced");
        assert!(written(0) + written(1) >= 4);
        monitoring::check_exported(cluster);
        monitoring::check_for_everybody(cluster, fs);
        // Lustre's services count these requests: seven files were created, opened and written.
        let of_this = |pattern: &str| {
            let mount = cluster.mount().to_str().expect("plain");
            cluster.lctl(&["--fs", mount, "get_param", "-n", pattern]).success().stdout.trim().to_owned()
        };
        let (mdt, ost) = (of_this("mds.MDS.mdt.stats"), of_this("ost.OSS.ost_io.stats"));
        assert!(samples(&mdt, "mds_reint_open") >= 7 && samples(&mdt, "mds_reint_unlink") >= 3, "{mdt}");
        // Summed over the processes.
        let writes: u64 = ost
            .lines()
            .filter(|line| line.starts_with("ost_write"))
            .map(|line| samples(line, "ost_write"))
            .sum();
        assert!(writes >= 4, "{ost}");
        assert_eq!(
            get(cluster, &format!("osd-*.{fs}-MDT0000.kbytestotal")),
            get(cluster, &format!("mdt.{fs}-MDT0000.kbytestotal"))
        );
        assert_eq!(get(cluster, &format!("lod.{fs}-MDT0000-mdtlov.numobd")), "2");
        let targets = get(cluster, &format!("lod.{fs}-MDT0000-mdtlov.target_obd"));
        assert_eq!(targets, format!("0: {fs}-OST0000_UUID ACTIVE\n1: {fs}-OST0001_UUID ACTIVE"));
        let stock = |leaf: &str| {
            let name = format!("osp.{fs}-OST0000-osc-MDT0000.{leaf}");
            get(cluster, &name).parse::<u64>().expect("a number")
        };
        assert!(stock("prealloc_next_id") <= stock("prealloc_last_id") && stock("create_count") >= 32);
        assert_eq!(stock("prealloc_status"), 0);
        assert_eq!(get(cluster, &format!("osp.{fs}-OST0000-osc-MDT0000.state")), "current_state: FULL");
        assert_eq!(of_this("mgc.*.state"), "current_state: FULL");
        assert_eq!(get(cluster, &format!("mdt.{fs}-MDT0000.instance")), "1");
    });
}

#[test]
fn an_ost_that_takes_no_new_objects_gets_none() {
    on_each_shape("pnew", |cluster, fs| {
        cluster.set_default(&["-d"]);
        let here = cluster.directory("d");
        let osts_of = |name: &str| {
            let path = here.join(name);
            fs::write(&path, "x").expect("written");
            cluster
                .lfs(&["getstripe", "-i", path.to_str().expect("plain")])
                .success()
                .stdout
                .trim()
                .to_owned()
        };
        let parameter = format!("obdfilter.{fs}-OST0000.no_create");
        let outcome = cluster.lctl(&["set_param", &format!("{parameter}=1")]).success();
        assert_eq!(outcome.stdout, format!("{parameter}=1\n"));
        assert_eq!(get(cluster, &parameter), "1");
        // MDTs learn of it with their next query of the target's space. New files use the targets
        // round-robin.
        let in_a_row = || (0..4).map(|number| osts_of(&number.to_string())).collect::<Vec<_>>();
        let again = || (0..4).try_for_each(|number| fs::remove_file(here.join(number.to_string())));
        let wait_for = |what: &str, condition: fn(&str) -> bool| {
            wait::until(wait::SOON, what, || {
                let good = in_a_row().iter().all(|index| condition(index));
                again().expect("removed");
                good.then_some(())
            });
        };
        wait_for("the MDT avoids the target", |index| index == "1");
        cluster.lctl(&["set_param", &format!("{parameter}=0")]).success();
        wait::until(wait::SOON, "the target is used again", || {
            let used = in_a_row().iter().any(|index| index == "0");
            again().expect("removed");
            used.then_some(())
        });
        let outcome = cluster.lctl(&["set_param", &format!("{parameter}=maybe")]).fails_with(libc::EINVAL);
        assert!(outcome.stderr.contains("setting obdfilter.") && outcome.stderr.contains("Invalid argument"));
        cluster.lctl(&["set_param", &format!("obdfilter.{fs}-OST0000.uuid=x")]).fails_with(libc::EACCES);
        cluster.lctl(&["set_param", &parameter]).fails_with(libc::EINVAL);
    });
}

#[test]
fn a_lasting_setting_reaches_all_nodes_and_survives_a_restart() {
    on_each_shape("plast", |cluster, fs| {
        let pattern = format!("obdfilter.{fs}-*.degraded");
        let values = |cluster: &Cluster| get(cluster, &pattern);
        assert_eq!(values(cluster), "0\n0");
        cluster.lctl(&["set_param", "-P", &format!("{pattern}=1")]).success();
        wait::until(wait::SOON, "all targets have it", || (values(cluster) == "1\n1").then_some(()));
        cluster.stop();
        cluster.start_all();
        assert_eq!(values(cluster), "1\n1");
        cluster.lctl(&["set_param", "-P", "-d", &pattern]).success();
        cluster.stop();
        cluster.start_all();
        assert_eq!(values(cluster), "0\n0");
        let typo = format!("obdfilter.{fs}-*.degradet=1");
        cluster.lctl(&["set_param", "-P", &typo]).fails_with(libc::ENOENT);
    });
}

#[test]
fn whatever_can_be_set_can_be_set_for_good() {
    on_each_shape("pall", |cluster, fs| {
        let kinds = format!("{{llite,lov,lod,osc,mdc,mdt,obdfilter}}.{fs}*");
        let locks = format!("ldlm.namespaces.filter-{fs}*");
        let names = cluster.lctl(&["list_param", "-Rw", &kinds, &locks]).success().stdout;
        assert!(names.contains("contended_locks"), "{names}");
        assert!(names.lines().count() >= 8, "{names}");
        let all = |options: &[&str], settings: &[String]| {
            let words: Vec<&str> = settings.iter().map(String::as_str).collect();
            let mount = cluster.mount().to_str().expect("plain");
            cluster.lctl(&[&["--fs", mount, "set_param"], options, &words].concat())
        };
        // The current value of a parameter is a valid setting.
        let values = cluster.lctl(&["get_param", "-RwH", &kinds, &locks]).success().stdout;
        let count = |name: &str| values.lines().filter(|line| line.split('=').next() == Some(name)).count();
        let taken: Vec<String> = values
            .lines()
            .filter(|line| {
                line.split_once('=').is_some_and(|(name, value)| count(name) == 1 && !value.is_empty())
            })
            .filter(|line| !line.ends_with(']') && !line.contains(".job_stats="))
            .map(str::to_owned)
            .collect();
        assert!(taken.len() > 40, "{values}");
        all(&["-P"], &taken).success();
        // A value that no node accepts is not stored.
        let refused = |options: &[&str], settings: &[String]| -> Vec<String> {
            let outcome = all(options, settings);
            let names =
                outcome.stderr.lines().filter_map(|line| line.split("setting ").nth(1)?.split('=').next());
            let mut names: Vec<String> = names.map(str::to_owned).collect();
            names.sort();
            names
        };
        let odd_ones = ["neither this", "-7", "99999999999999999999"];
        for odd in odd_ones.into_iter().filter(|_| cluster.shape() == Shape::Embedded) {
            // A job that one node does not know may exist on another; orders of scrubs are no settings.
            let is_setting = |name: &&str| !name.ends_with(".job_stats") && !name.ends_with(".scrub");
            let names = names.lines().filter(is_setting);
            let settings: Vec<String> = names.map(|name| format!("{name}={odd}")).collect();
            assert_eq!(refused(&["-P"], &settings), refused(&[], &settings), "{odd}");
        }
        let setting = format!("osc.{fs}-*.max_rpcs_in_flight=300");
        let outcome = cluster.lctl(&["set_param", "-P", &setting]).fails_with(libc::ERANGE);
        let expected = format!("setting {setting}: it takes a number from 1 to 256");
        assert!(outcome.stderr.contains(&expected), "{outcome}");
        for bad in ["debug=loud", "jobid_name=%x"] {
            let outcome = all(&["-P"], &[bad.to_owned()]).fails_with(libc::EINVAL);
            assert!(outcome.stderr.contains(&format!("setting {bad}: it takes ")), "{outcome}");
        }
        let names: Vec<String> = names.lines().map(str::to_owned).collect();
        all(&["-P", "-d"], &names).success();
        assert_eq!(cluster.lctl(&["llog_print", &format!("{fs}-params")]).success().stdout, "");
    });
}

#[test]
fn default_striping_is_one_value_with_many_names() {
    on_each_shape("pstr", |cluster, fs| {
        cluster.set_default(&["-d"]);
        cluster.lctl(&["set_param", &format!("lov.{fs}-clilov-*.stripecount=2")]).success();
        assert_eq!(get(cluster, &format!("lod.{fs}-MDT0000-mdtlov.stripecount")), "2");
        wait::until(wait::SOON, "new files have it", || {
            let path = cluster.mount().join("file");
            fs::remove_file(&path).ok();
            fs::write(&path, "x").expect("written");
            let count = cluster.lfs(&["getstripe", "-c", path.to_str().expect("plain")]).success().stdout;
            (count.trim() == "2").then_some(())
        });
        cluster.lctl(&["conf_param", &format!("{fs}.lov.stripecount=1")]).success();
        assert_eq!(get(cluster, &format!("lov.{fs}-*.stripecount")), "1");
        cluster.lctl(&["conf_param", &format!("{fs}.sys.jobid_var=procname_uid")]).success();
        let mount = cluster.mount().to_str().expect("plain");
        let jobs = || cluster.lctl(&["--fs", mount, "get_param", "-n", "jobid_var"]).success().stdout;
        wait::until(wait::SOON, "the mount has it", || (jobs() == "procname_uid\n").then_some(()));
        cluster.lctl(&["set_param", &format!("lov.{fs}-*.stripesize=100000")]).fails_with(libc::EINVAL);
    });
}

#[test]
fn ways_to_targets_are_tuned_and_their_requests_counted() {
    on_each_shape("posc", |cluster, fs| {
        let osc = format!("osc.{fs}-OST000*-osc-*");
        let name = |leaf: &str| format!("{osc}.{leaf}");
        let path = cluster.mount().join("file");
        let path_text = path.to_str().expect("plain").to_owned();
        let pages = |cluster: &Cluster, row: &str| {
            let text = get(cluster, &name("rpc_stats"));
            let mut tables = text.split("pages per rpc").skip(1);
            tables
                .next()
                .into_iter()
                .flat_map(|table| table.lines().take_while(|line| !line.contains("rpcs in flight")))
                .filter(|line| line.starts_with(row))
                .filter_map(|line| line.split('|').nth(1)?.split_whitespace().next()?.parse::<u64>().ok())
                .sum::<u64>()
        };
        cluster.lctl(&["set_param", "-n", &format!("{}=0", name("rpc_stats"))]).success();
        cluster.lfs(&["setstripe", "-c", "1", "-i", "0", &path_text]).success();
        let write = || {
            let file = fs::OpenOptions::new().write(true).open(&path).expect("open");
            std::os::unix::fs::FileExt::write_all_at(&file, &vec![1; 1 << 20], 0).expect("written");
            file.sync_all().expect("synced");
        };
        write();
        assert!(pages(cluster, "256:") >= 1, "{}", get(cluster, &name("rpc_stats")));
        // Smaller requests appear in the histogram of pages.
        if cluster.shape() == Shape::Separate {
            cluster.lctl(&["set_param", "-n", &format!("{}=64", name("max_pages_per_rpc"))]).success();
            cluster.lctl(&["set_param", "-n", &format!("{}=0", name("rpc_stats"))]).success();
            write();
            assert!(pages(cluster, "64:") >= 4, "{}", get(cluster, &name("rpc_stats")));
        }
        cluster.lctl(&["set_param", "-n", &format!("{}=adler", name("checksum_type"))]).success();
        assert_eq!(get(cluster, &name("checksum_type")), "[adler] crc32c\n[adler] crc32c");
        write();
        for (bad, errno) in [
            ("max_rpcs_in_flight=0", libc::ERANGE),
            ("max_pages_per_rpc=1025", libc::ERANGE),
            ("short_io_bytes=65537", libc::ERANGE),
            ("checksum_type=md5", libc::EINVAL),
            ("checksums=perhaps", libc::EINVAL),
        ] {
            cluster.lctl(&["set_param", &name(bad)]).fails_with(errno);
        }
        let import = get(cluster, &format!("osc.{fs}-OST0000-osc-*.import"));
        assert!(
            import.contains(&format!("name: {fs}-OST0000")) && import.contains("state: FULL"),
            "{import}"
        );
        assert_eq!(get(cluster, &format!("mdc.{fs}-MDT0000-mdc-*.state")), "current_state: FULL");
        let brw = get(cluster, &format!("obdfilter.{fs}-OST0000.brw_stats"));
        assert!(brw.contains("pages per bulk r/w") && brw.contains("disk I/O size"), "{brw}");
    });
}

const FILE_BYTES: u64 = 9 << 20;

/// Writes a file whose bytes are all 7.
fn file_to_read(cluster: &Cluster) -> PathBuf {
    let path = cluster.mount().join("read");
    fs::write(&path, vec![7; FILE_BYTES as usize]).expect("written");
    path
}

/// Reads the file sequentially in pieces; returns whether read-ahead served some.
fn reads_are_served_ahead(cluster: &Cluster, fsname: &str, path: &Path, piece_bytes: usize) -> bool {
    let stats = format!("llite.{fsname}-*.read_ahead_stats");
    cluster.lctl(&["set_param", "-n", &format!("{stats}=0")]).success();
    let file = fs::OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path).expect("open");
    let mut piece = vec![0; piece_bytes];
    for offset in (0..FILE_BYTES).step_by(piece_bytes) {
        file.read_exact_at(&mut piece, offset).expect("read");
        assert!(piece.iter().all(|byte| *byte == 7));
    }
    get(cluster, &stats).contains("hits")
}

#[test]
fn read_ahead_and_statahead_do_what_their_parameters_say() {
    on_each_shape("pahd", |cluster, fs| {
        let name = |leaf: &str| format!("llite.{fs}-*.{leaf}");
        let set =
            |leaf: &str, value: &str| cluster.lctl(&["set_param", "-n", &format!("{}={value}", name(leaf))]);
        for (leaf, value) in [
            ("max_read_ahead_mb", "1E"),
            ("max_read_ahead_whole_mb", "1T"),
            ("max_read_ahead_async_active", "513"),
            ("statahead_max", "2049"),
            ("statahead_batch_max", "1025"),
        ] {
            let before = get(cluster, &name(leaf));
            set(leaf, value).fails_with(libc::ERANGE);
            assert_eq!(get(cluster, &name(leaf)), before, "{leaf}");
        }
        if cluster.shape() == Shape::Embedded {
            return;
        }
        let file = file_to_read(cluster);
        let hits = || reads_are_served_ahead(cluster, fs, &file, 4096);
        assert!(hits());
        for (leaf, usual) in [("max_read_ahead_async_active", "1"), ("max_read_ahead_per_file_mb", "64")] {
            set(leaf, "0").success();
            assert!(!hits(), "{leaf}");
            set(leaf, usual).success();
            assert!(hits(), "{leaf}");
        }
        set("max_read_ahead_mb", "0").success();
        assert!(!hits());
    });
}

#[test]
fn large_calls_go_past_what_gathers_and_reads_ahead_as_parameters_say() {
    on_each_shape("phyb", |cluster, fs| {
        let name = |leaf: &str| format!("llite.{fs}-*.{leaf}");
        let set =
            |leaf: &str, value: &str| cluster.lctl(&["set_param", "-n", &format!("{}={value}", name(leaf))]);
        set("hybrid_io", "2").fails_with(libc::EINVAL);
        set("hybrid_io_write_threshold_bytes", "-1").fails_with(libc::EINVAL);
        assert_eq!(get(cluster, &name("hybrid_io_write_threshold_bytes")), "524288");
        // Idle CPUs do not cause write-back of large writes, and data stays in the write-back cache.
        set("write_back_idle_percent", "101").success();
        set("write_back_age_ms", "600000").success();
        let held_back = |number: u32| {
            let path = cluster.mount().join(format!("written{number}"));
            let file = fs::File::create(&path).expect("create");
            let before = dirty_bytes(cluster, fs);
            for piece in 0..4u64 {
                file.write_all_at(&vec![5; 600 << 10], piece * (600 << 10)).expect("write");
            }
            let held = dirty_bytes(cluster, fs) > before;
            file.sync_all().expect("fsync");
            held
        };
        assert!(!held_back(0), "600 KiB are large");
        set("hybrid_io", "0").success();
        assert!(held_back(1), "nothing is large");
        set("hybrid_io", "1").success();
        set("hybrid_io_write_threshold_bytes", "1M").success();
        assert!(held_back(2), "1 MiB is large");
        if cluster.shape() == Shape::Embedded {
            return;
        }
        let file = file_to_read(cluster);
        let hits = || reads_are_served_ahead(cluster, fs, &file, 64 << 10);
        assert!(hits());
        set("hybrid_io_read_threshold_bytes", "64K").success();
        assert!(!hits(), "64 KiB are large");
    });
}

fn dirty_bytes(cluster: &Cluster, fs: &str) -> u64 {
    let text = get(cluster, &format!("llite.{fs}-*.write_back_stats"));
    let line = text.lines().find_map(|line| line.strip_prefix("dirty_bytes")).expect("a row");
    line.trim().parse().expect("a number")
}

#[test]
fn ways_to_targets_stay_within_their_bounds() {
    on_each_shape("pway", |cluster, fs| {
        let osc = format!("osc.{fs}-OST0000-osc-*");
        let set = |setting: &str| cluster.lctl(&["set_param", "-n", &format!("{osc}.{setting}")]);
        for (leaf, low, high) in [
            ("conns_per_peer", "0", "17"),
            ("idle_timeout", "-1", "4294967296"),
            ("resend_count", "-1", "4294967296"),
            ("max_kept_age", "0", "601"),
            ("max_kept_mb", "-1", "2048"),
            ("max_rpcs_in_flight", "0", "257"),
            ("max_dirty_mb", "0", "2048"),
        ] {
            let before = get(cluster, &format!("{osc}.{leaf}"));
            for bad in [low, high] {
                set(&format!("{leaf}={bad}")).fails_with(libc::ERANGE);
            }
            set(&format!("{leaf}=some")).fails_with(libc::EINVAL);
            assert_eq!(get(cluster, &format!("{osc}.{leaf}")), before, "{leaf}");
        }
        let path = cluster.mount().join("file");
        let path_text = path.to_str().expect("plain");
        cluster.lfs(&["setstripe", "-c", "1", "-i", "0", path_text]).success();
        // The cache stays within its limit, however long its data may wait.
        cluster.lctl(&["set_param", "-n", &format!("llite.{fs}-*.write_back_age_ms=600000")]).success();
        set("max_dirty_mb=1").success();
        let file = fs::OpenOptions::new().write(true).open(&path).expect("open");
        for number in 0..1024 {
            file.write_all_at(&[7; 4000], number * 4000).expect("written");
            if number % 128 == 0 {
                let dirty: u64 = get(cluster, &format!("{osc}.cur_dirty_bytes")).parse().expect("a number");
                assert!(dirty <= 1 << 20, "{dirty} bytes are held back");
            }
        }
        drop(file);
        assert!(fs::read(&path).expect("read") == [7; 1024 * 4000]);
        if cluster.shape() == Shape::Embedded {
            return;
        }
        let lanes = || get(cluster, &format!("{osc}.import")).matches("lane: ").count();
        set("conns_per_peer=3").success();
        assert_eq!(lanes(), 3, "{}", get(cluster, &format!("{osc}.import")));
        set("conns_per_peer=1").success();
        assert_eq!(lanes(), 1);
    });
}

#[test]
fn writes_are_held_back_as_far_as_parameters_allow() {
    on_each_shape("pwb", |cluster, fs| {
        let llite = format!("llite.{fs}-*");
        let count = |cluster: &Cluster, row: &str| -> u64 {
            let text = get(cluster, &format!("llite.{fs}-*.write_back_stats"));
            let line = text.lines().find(|line| line.split_whitespace().next() == Some(row));
            line.and_then(|line| line.split_whitespace().nth(1)).expect(row).parse().expect("a count")
        };
        let sent = |cluster: &Cluster| count(cluster, "rpcs");
        let stream = |name: &str| {
            use std::io::Write;
            let mut file = fs::File::create(cluster.mount().join(name)).expect("created");
            (0..1024).for_each(|_| file.write_all(&[7; 4096]).expect("written"));
            file.sync_all().expect("synced");
        };
        stream("gathered");
        let gathered = sent(cluster);
        assert!((1..=64).contains(&gathered), "{gathered} requests for 4 MiB in pieces of 4 KiB");
        cluster.lctl(&["set_param", "-n", &format!("{llite}.write_back=0")]).success();
        stream("through");
        assert_eq!(sent(cluster), gathered);
        cluster.lctl(&["set_param", "-n", &format!("{llite}.write_back=1")]).success();
        stream("gathered again");
        assert!(sent(cluster) > gathered);
        // Write-back of large writes on idle CPUs: always, and never. The kernel splits writes at a page of
        // the program's memory, and the rest is a small write, so full windows are counted.
        let large = |percent: u32| {
            use std::io::Write;
            let name = format!("{llite}.write_back_idle_percent={percent}");
            cluster.lctl(&["set_param", "-n", &name]).success();
            let before = count(cluster, "full_rpcs");
            let mut file = fs::File::create(cluster.mount().join("large")).expect("created");
            (0..8).for_each(|_| file.write_all(&vec![7; 1 << 20]).expect("written"));
            file.sync_all().expect("synced");
            count(cluster, "full_rpcs") - before
        };
        assert!(large(0) > 0);
        assert_eq!(large(101), 0);
        let osc = format!("osc.{fs}-OST000*-osc-*");
        cluster.lctl(&["set_param", "-n", &format!("{osc}.max_dirty_mb=4")]).success();
        assert_eq!(get(cluster, &format!("{osc}.max_dirty_mb")), "4\n4");
        assert!(get(cluster, &format!("{osc}.cur_dirty_bytes")).lines().all(|line| line == "0"));
        let grants = get(cluster, &format!("{osc}.cur_grant_bytes"));
        assert!(grants.lines().any(|line| line != "0"), "{grants}");
        for bad in ["max_dirty_mb=0", "max_dirty_mb=2048", "max_dirty_mb=4G"] {
            cluster.lctl(&["set_param", &format!("{osc}.{bad}")]).fails_with(libc::ERANGE);
        }
        for bad in ["write_back_age_ms=0", "write_back_idle_percent=102"] {
            cluster.lctl(&["set_param", &format!("{llite}.{bad}")]).fails_with(libc::ERANGE);
        }
    });
}

#[test]
fn large_transfers_are_divided_over_cpus_as_parallel_io_says() {
    on_each_shape("ppar", |cluster, fs| {
        let llite = format!("llite.{fs}-*");
        let set = |setting: &str| cluster.lctl(&["set_param", "-n", &format!("{llite}.{setting}")]);
        let path = cluster.mount().join("file");
        let data: Vec<u8> = (0..8 << 20).map(|at: usize| (at / 4099) as u8 ^ at as u8).collect();
        let divided = |setting: &str| {
            set(&format!("parallel_io={setting}")).success();
            assert_eq!(get(cluster, &format!("{llite}.parallel_io")), setting);
            let count = || {
                let text = get(cluster, &format!("{llite}.parallel_io_stats"));
                text.split_whitespace().nth(1).expect("a count").parse::<u64>().expect("a number")
            };
            let before = count();
            let file = fs::File::create(&path).expect("created");
            data.chunks(4 << 20).enumerate().for_each(|(index, piece)| {
                file.write_all_at(piece, (index as u64) << 22).expect("written");
            });
            file.sync_all().expect("synced");
            let direct = fs::OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path);
            let mut back = vec![0; data.len()];
            direct.expect("open").read_exact_at(&mut back, 0).expect("read");
            assert!(back == data, "{setting}");
            count() - before
        };
        assert!(divided("on") > 0);
        assert_eq!(divided("off"), 0);
        divided("auto");
        for bad in ["maybe", "1", ""] {
            cluster.lctl(&["set_param", &format!("{llite}.parallel_io={bad}")]).fails_with(libc::EINVAL);
        }
    });
}

#[test]
fn the_client_keeps_no_more_data_than_max_cached_mb() {
    on_each_shape("pcch", |cluster, fs| {
        let name = format!("llite.{fs}-*.max_cached_mb");
        let row_of = |text: &str, row: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(&format!("{row}: ")));
            line.unwrap_or_else(|| panic!("{text}")).parse::<u64>().expect("a number")
        };
        let row = |row: &str| row_of(&get(cluster, &name), row);
        let full_rpcs = || {
            let text = get(cluster, &format!("llite.{fs}-*.write_back_stats"));
            let line = text.lines().find(|line| line.starts_with("rpcs ")).expect("there").to_owned();
            line.split_whitespace().nth(1).expect("a count").parse::<u64>().expect("a number")
        };
        let set = |value: &str| cluster.lctl(&["set_param", "-n", &format!("{name}={value}")]);
        // In the write-back cache: the file stays open, and the data is not due yet.
        cluster.lctl(&["set_param", "-n", &format!("llite.{fs}-*.write_back_age_ms=600000")]).success();
        let stream = |name: &str| {
            use std::io::Write;
            let mut file = fs::File::create(cluster.mount().join(name)).expect("created");
            (0..700).for_each(|_| file.write_all(&[7; 4096]).expect("written"));
            file
        };
        let file = stream("kept");
        // From one read: data may be sent between two.
        let text = get(cluster, &name);
        let [used, unused, max] = ["used_mb", "unused_mb", "max_cached_mb"].map(|row| row_of(&text, row));
        assert!(used >= 1 && unused + used == max, "{text}");
        drop(file);
        set("0").success();
        let before = full_rpcs();
        let file = stream("through");
        assert_eq!((row("max_cached_mb"), row("used_mb"), full_rpcs()), (0, 0, before));
        assert!(fs::read(cluster.mount().join("through")).expect("read") == [7; 700 * 4096]);
        drop(file);
        set("max_cached_mb: 64").success();
        assert_eq!(row("max_cached_mb"), 64);
        set("1E").fails_with(libc::ERANGE);
        set("many").fails_with(libc::EINVAL);
        assert_eq!(row("max_cached_mb"), 64);
    });
}

#[test]
fn parameters_are_found_by_parts_of_their_names_and_shown_as_wanted() {
    on_each_shape("pfind", |cluster, fs| {
        let lctl = |words: &[&str]| cluster.lctl(words).success().stdout;
        let names = lctl(&["find_param", "-N", &format!("^osc[.]{fs}-OST000[01].*max_(dirty|rpcs)")]);
        assert_eq!(names.lines().count(), 4, "{names}");
        let degraded = format!("obdfilter.{fs}-OST0001.degraded");
        assert_eq!(lctl(&["find_param", &format!("{fs}-OST0001[.]degraded$")]), format!("{degraded}=0\n"));
        let json = lctl(&["find_param", "--json", &format!("{fs}-OST0001[.]degraded$")]);
        let is_there = json.contains(&format!(r#""name": "{degraded}""#)) && json.contains(r#""value": 0"#);
        assert!(is_there && json.starts_with('['), "{json}");
        assert_eq!(lctl(&["list_param", "-pF", &degraded]), format!("{}=\n", degraded.replace('.', "/")));
        assert_eq!(lctl(&["get_param", "--yaml", &degraded]), format!("{degraded}: 0\n"));
        let outcome = cluster.lctl(&["find_param", &format!("{fs}.*nosuch")]).fails_with(libc::ENOENT);
        assert!(outcome.stderr.contains("No such file or directory"), "{outcome}");
        cluster.lctl(&["find_param", "("]).fails_with(libc::EINVAL);
        // Only those that can be set, and several at a time.
        let settable = lctl(&["list_param", "-t", &format!("obdfilter.{fs}-OST0001.*")]);
        assert!(settable.contains("degraded") && !settable.contains("uuid"), "{settable}");
        let both = format!("obdfilter.{fs}-OST000*");
        lctl(&["set_param", "-n", "-t4", &format!("{both}.degraded=1"), &format!("{both}.no_create=1")]);
        assert_eq!(get(cluster, &format!("{both}.{{degraded,no_create}}")), "1\n1\n1\n1");
    });
}

#[test]
fn settings_are_saved_to_a_file_and_set_from_it() {
    on_each_shape("pfile", |cluster, fs| {
        let pattern = format!("obdfilter.{fs}-*.degraded");
        cluster.lctl(&["set_param", "-P", &format!("{pattern}=1")]).success();
        let log = cluster.lctl(&["llog_print", &format!("{fs}-params")]).success().stdout;
        assert!(
            log.contains(&format!("event: set_param, device: general, parameter: {pattern}, value: 1 }}"))
        );
        cluster.lctl(&["set_param", "-P", "-d", &pattern]).success();
        assert_eq!(cluster.lctl(&["llog_print", &format!("{fs}-params")]).success().stdout, "");
        let file = cluster.mount().join("params");
        let file_text = file.to_str().expect("plain");
        let dirty = format!("osc.{fs}-*.max_dirty_mb");
        fs::write(&file, format!("# mine\n{dirty}=9\n{}", log.replace("value: 1", "value: 0")))
            .expect("written");
        let told = cluster.lctl(&["set_param", "-F", file_text]).success().stdout;
        assert_eq!(told.lines().filter(|line| line.ends_with("=9")).count(), 2, "{told}");
        assert_eq!(get(cluster, &dirty), "9\n9");
        wait::until(wait::SOON, "it is set permanently", || (get(cluster, &pattern) == "0\n0").then_some(()));
        fs::write(&file, "no setting\n").expect("written");
        cluster.lctl(&["set_param", "-F", file_text]).fails_with(libc::EINVAL);
        cluster.lctl(&["set_param", "-F", "/nosuch"]).fails_with(libc::ENOENT);
        cluster.lctl(&["llog_print", "nosuch"]).fails_with(libc::ENOENT);
    });
}

#[test]
fn settings_of_this_host_are_applied_by_its_next_mounts() {
    on_each_shape("pcli", |cluster, fs| {
        let name = format!("osc.{fs}-*.max_dirty_mb");
        let of_this = format!("-C{fs}");
        // Runs even if the test fails: the file belongs to the host.
        struct Undo<'a>(&'a dyn Fn());
        impl Drop for Undo<'_> {
            fn drop(&mut self) {
                (self.0)();
            }
        }
        let file = std::path::PathBuf::from(format!("/etc/nacre/mount.{fs}.params"));
        let undo = || {
            drop(fs::remove_file(&file));
            // Removed only if empty.
            drop(fs::remove_dir("/etc/nacre"));
        };
        let _undo = Undo(&undo);
        cluster.lctl(&["set_param", &of_this, &format!("{name}=7")]).success();
        assert_ne!(get(cluster, &name), "7\n7", "from the next mount on");
        cluster.stop();
        cluster.start_all();
        assert_eq!(get(cluster, &name), "7\n7");
        cluster.lctl(&["set_param", &of_this, "-d", &name]).success();
        assert!(!file.exists());
        cluster.stop();
        cluster.start_all();
        assert_ne!(get(cluster, &name), "7\n7");
        cluster.lctl(&["set_param", &of_this, "osc.*.nosuch=1"]).fails_with(libc::ENOENT);
        cluster.lctl(&["set_param", "-C../x", "osc.*.checksums=1"]).fails_with(4);
        cluster.lctl(&["set_param", "-d", "osc.*.checksums"]).fails_with(4);
    });
}

#[test]
fn a_command_whose_reader_goes_away_ends_without_a_word() {
    if !have(&["/dev/fuse"]) || !have_root() {
        return;
    }
    let cluster = Cluster::start(Shape::Embedded);
    if cluster.is_foreign() {
        return;
    }
    let mut command = cluster.command();
    command.args(["lctl", "get_param", "-R", "*"]);
    // More output than a pipe holds, into one without a reader.
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let ended = command.stdout(writer).output().expect("it starts");
    assert_eq!(ended.status.code(), Some(128 + libc::SIGPIPE));
    assert_eq!(String::from_utf8_lossy(&ended.stderr), "");
}

/// Returns the largest number of bytes by which an object's file on the OST exceeds its size.
fn most_beyond_size(cluster: &Cluster) -> u64 {
    fn walk(dir: &Path, most: &mut u64) {
        for entry in fs::read_dir(dir).expect("readable").flatten() {
            let Ok(meta) = entry.metadata() else { continue };
            if meta.is_dir() {
                walk(&entry.path(), most);
            } else {
                *most = (*most).max((meta.blocks() * 512).saturating_sub(meta.len()));
            }
        }
    }
    let mut most = 0;
    walk(&cluster.data().join("ost0000/objects"), &mut most);
    most
}

#[test]
fn space_ahead_of_streams_is_reserved_as_far_as_a_parameter_says() {
    let options = Options { osts: 1, fsname: "ahead".to_owned(), ..Options::default() };
    if !have(&["/dev/fuse"]) || !have_root() {
        return;
    }
    let mut cluster = Cluster::start_with(Shape::Embedded, &options);
    let name = "osd-file.ahead-OST0000.reserve_ahead_max_mb";
    // Not on a block device, nor on a file system without preallocation.
    if cluster.is_foreign() || cluster.lctl(&["get_param", "-n", name]).code() != 0 {
        return;
    }
    let set = |value: &str| cluster.lctl(&["set_param", &format!("{name}={value}")]);
    assert_eq!(get(&cluster, name).trim(), "64");
    for wrong in ["-1", "2048", "1.5", "much"] {
        assert_ne!(set(wrong).code(), 0, "{wrong}");
    }
    let directory = cluster.directory("d");
    let write = |number: u32| {
        let mut file = fs::File::create(directory.join(format!("f{number}"))).expect("created");
        for _ in 0..24 {
            file.write_all(&vec![7; 1 << 20]).expect("written");
        }
        file.sync_all().expect("synced");
    };
    const MIB: u64 = 1 << 20;
    let mut number = 0;
    let mut seen = |from: u64| {
        wait::until(wait::SOON, "space is reserved", || {
            number += 1;
            write(number);
            Some(most_beyond_size(&cluster)).filter(|most| *most >= from)
        })
    };
    assert!(seen(8 * MIB) <= 64 * MIB);
    set("0").success();
    assert!(most_beyond_size(&cluster) < MIB, "it was given back at once");
    write(1000);
    assert!(most_beyond_size(&cluster) < MIB);
    set("4").success();
    assert!(seen(2 * MIB) <= 5 * MIB);
    assert_eq!(get(&cluster, name).trim(), "4");
    cluster.stop_and_check();
}
