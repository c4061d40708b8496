//! Cray 2019: flash for shared applications.

use super::{Chart, Check, Experiment, Needs, Run, SERVICE, Talk, Value, own};
use crate::stats::Bound;

pub(super) const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        name: "cray-metadata",
        talk: Talk::Cray,
        title: "Empty files over 1, 2 and 4 MDTs, with and without data on the MDT",
        claim: "Unique directories over 4 MDTs create 2.1 times as fast with data on the MDT; a shared directory over 4 MDTs with it \
                creates 2.3 times as fast as over one MDT without.",
        shape: "a process for each server, several mounts",
        simulated: Some(SERVICE),
        durability: "an operation counts when its MDT has answered; nothing is synced",
        profile: None,
        needs: Needs { memory_mib: 3072, disk_mib: 256, is_root: true },
        quick: Run {
            words: "bench dne-scaling --dir {dir} --mdts 1,4 --data empty-ost,empty-mdt --runs 3 --tasks {cpus:16} \
                    --mounts {cpus:4} --files 20 --simulated-files 5 --json",
            seconds: 35,
        },
        full: Run {
            words: "bench dne-scaling --dir {dir} --mdts 1,2,4 --data empty-ost,empty-mdt --runs 5 --json",
            seconds: 900,
        },
        checks: &[
            Check {
                says: "a shared directory over 4 MDTs with data on the MDT creates 2.2 times as fast as over one without",
                row: &["simulated: create, shared", "DoM 64K, 4 MDT(s)"],
                by: Some(&["simulated: create, shared", "without DoM, 1 MDT(s)"]),
                bound: Bound::AtLeast(2.2),
            },
            Check {
                says: "without data on the MDT, unique directories create at 0.95 of the rate with it: empty files have no objects here",
                row: &["simulated: create, unique", "without DoM, 4 MDT(s)"],
                by: Some(&["simulated: create, unique", "DoM 64K, 4 MDT(s)"]),
                bound: Bound::AtLeast(0.95),
            },
        ],
        charts: &[Chart {
            title: "Operations per second over 4 MDTs, and in a directory on 1, as in Cray's table (simulated service time)",
            value: Value::Figure,
            is_scale: false,
            places: &[
                ("unique", &["unique", "without DoM, 4 MDT(s)"]),
                ("unique, DoM", &["unique", "DoM 64K, 4 MDT(s)"]),
                ("1 shared", &["shared", "without DoM, 1 MDT(s)"]),
                ("shared, DoM", &["shared", "DoM 64K, 4 MDT(s)"]),
            ],
            lines: &[
                ("create", &["simulated: create"]),
                ("stat", &["simulated: stat"]),
                ("read", &["simulated: read"]),
                ("unlink", &["simulated: unlink"]),
            ],
        }],
    },
    Experiment {
        name: "cray-noisy",
        talk: Talk::Cray,
        title: "Noisy neighbours",
        claim: "A stream and small random writes on the same OSTs hurt each other; a progressive layout that sends small I/O to flash helps both.",
        shape: "one process; two OSTs that are disks and one of flash, data in memory",
        simulated: Some("disks of 8 ms a seek and 100 MB/s, flash of 50 us and 400 MB/s"),
        durability: "fsync has returned before the clock of the stream stops; a small write (O_DIRECT) counts when its OST has answered",
        profile: None,
        needs: Needs { memory_mib: 2048, disk_mib: 256, is_root: true },
        quick: Run { words: "bench noisy --memory-dir {dir} --runs 3 --seconds 1 --json", seconds: 20 },
        full: Run { words: "bench noisy --memory-dir {dir} --runs 9 --seconds 3 --json", seconds: 180 },
        checks: &[
            own(
                "on the same disks the stream loses 30 % or more",
                &["all on the disks, stream"],
                Bound::AtMost(0.7),
            ),
            own(
                "with one progressive layout for both it keeps 0.9 of its bandwidth alone",
                &["one PFL for both, stream"],
                Bound::AtLeast(0.9),
            ),
            Check {
                says: "the small writes are ten times as many with that layout",
                row: &["one PFL for both, 4 KiB writes"],
                by: Some(&["all on the disks, 4 KiB writes"]),
                bound: Bound::AtLeast(10.0),
            },
        ],
        charts: &[Chart {
            title: "The stream's bandwidth against alone (simulated media)",
            value: Value::Ratio,
            is_scale: false,
            places: &[
                ("all on the disks", &["all on the disks"]),
                ("writers on flash", &["writers on flash"]),
                ("one PFL for both", &["one PFL for both"]),
            ],
            lines: &[("stream", &[", stream"])],
        }],
    },
    Experiment {
        name: "cray-small-io",
        talk: Talk::Cray,
        title: "Random 4 KiB with a small-block cache, data on the MDT and pools of flash and disk",
        claim: "A cache of small blocks with data on the MDT writes 3 to 4 times as much at random, with a flash OST 3.5 to 4.5 times as much.",
        shape: "one process; each write is durable before the next; data and caches in memory",
        simulated: Some("disks of 8 ms a seek and 100 MB/s, flash of 50 us and 400 MB/s"),
        durability: "each write is durable before the next one; the data is in memory",
        profile: None,
        needs: Needs { memory_mib: 4096, disk_mib: 256, is_root: true },
        quick: Run {
            words: "bench small-io --memory-dir {dir} --sizes-kib 32,1024,8192 --runs 3 --seconds 0.4 --json",
            seconds: 50,
        },
        full: Run { words: "bench small-io --memory-dir {dir} --runs 7 --seconds 1 --json", seconds: 300 },
        checks: &[
            own(
                "files of 32 KiB on a disk with a cache and their head on the MDT are written 3 times as fast",
                &["32K, disk, cache, head on MDT"],
                Bound::AtLeast(3.0),
            ),
            own(
                "files of 8 MiB on a disk with a cache and their head on the MDT are written 3 times as fast",
                &["8M, disk, cache, head on MDT"],
                Bound::AtLeast(3.0),
            ),
            own(
                "files of 8 MiB on flash with a cache are written 3.5 times as fast",
                &["8M, flash, cache"],
                Bound::AtLeast(3.5),
            ),
        ],
        charts: &[Chart {
            title: "Durable random writes of 4 KiB per second, by size of the files (simulated media)",
            value: Value::Figure,
            is_scale: false,
            places: &[("32K", &["32K,"]), ("256K", &["256K,"]), ("1M", &["1M,"]), ("8M", &["8M,"])],
            lines: &[
                ("disk", &[", disk"]),
                ("disk, head on MDT", &[", disk, head on MDT"]),
                ("disk, head on flash", &[", disk, head on flash"]),
                ("disk, cache", &[", disk, cache"]),
                ("disk, cache, head on MDT", &[", disk, cache, head on MDT"]),
                ("flash", &[", flash"]),
                ("flash, cache", &[", flash, cache"]),
            ],
        }],
    },
];
