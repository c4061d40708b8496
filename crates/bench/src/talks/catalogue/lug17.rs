//! LUG'17, Intel: parallel I/O in the client.

use super::{Chart, Experiment, FABRIC, Needs, Run, Talk, Value, Words, own};
use crate::stats::Bound;

pub(super) const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        name: "lug17-client",
        talk: Talk::Lug17,
        title: "One thread, with the client's features off and on",
        claim: "Work of one request in parallel, asynchronous read-ahead and several endpoints make one thread up to twice as fast.",
        shape: "a process for each server, one thread, data in memory",
        simulated: Some(FABRIC),
        durability: "fsync has returned before the clock stops; the data is in memory",
        profile: None,
        needs: Needs { memory_mib: 2048, disk_mib: 256, is_root: true },
        quick: Run {
            words: "bench client --memory-dir {dir} --fabric simulated --threads 1 --sizes-kib 64,1024,16384 \
                    --endpoints 1,4 --parallel off,on --runs 5 --json",
            seconds: 55,
        },
        full: Run { words: "bench client --memory-dir {dir} --runs 5 --json", seconds: 1800 },
        checks: &[
            own(
                "reads of 64 KiB are twice as fast with asynchronous read-ahead",
                &["simulated, sequential read, 1 thread(s), 64K, parallel off, async on, 1 endpoint(s)"],
                Bound::AtLeast(2.0),
            ),
            own(
                "reads of 16 MiB are twice as fast over four endpoints",
                &["simulated, sequential read, 1 thread(s), 16M, parallel on, async on, 4 endpoint(s)"],
                Bound::AtLeast(2.0),
            ),
            own(
                "writes of 16 MiB are twice as fast over four endpoints",
                &["simulated, sequential write, 1 thread(s), 16M, parallel on, async on, 4 endpoint(s)"],
                Bound::AtLeast(2.0),
            ),
        ],
        charts: &[
            Chart {
                title: "Reads by one thread, MB/s by transfer size (simulated fabric)",
                value: Value::Figure,
                is_scale: true,
                places: SIZES,
                lines: READS,
            },
            Chart {
                title: "Writes by one thread, MB/s by transfer size (simulated fabric)",
                value: Value::Figure,
                is_scale: true,
                places: SIZES,
                lines: WRITES,
            },
        ],
    },
    Experiment {
        name: "lug17-records",
        talk: Talk::Lug17,
        title: "Fields of an ocean model as records of a Fortran file",
        claim: "With parallel I/O in the client HYCOM's 726 writes of records took 65.8 s instead of 81.2 s (0.091 s instead of 0.112 s each), \
                99 reads 3.48 s instead of 2.25 s, and the whole run 5150 s instead of 5203 s.",
        shape: "a Fortran program with direct-access records of 6.3 MiB, a process for each server, data in memory, no fsync",
        simulated: Some(FABRIC),
        durability: "a record counts when the write has returned; nothing is synced, and the data is in memory",
        profile: None,
        needs: Needs { memory_mib: 3072, disk_mib: 256, is_root: true },
        quick: Run {
            words: "bench records --memory-dir {dir} --writes 60 --reads 30 --fields 30 --runs 5 --json",
            seconds: 10,
        },
        full: Run { words: "bench records --memory-dir {dir} --runs 5 --json", seconds: 180 },
        checks: &[
            own(
                "writes with parallel I/O are no slower than 0.95 of those without",
                &["simulated: write, parallel on"],
                Bound::AtLeast(0.95),
            ),
            own(
                "reads with parallel I/O are no slower than 0.95 of those without",
                &["simulated: read, parallel on"],
                Bound::AtLeast(0.95),
            ),
        ],
        charts: &[Chart {
            title: "Records by a Fortran program, MB/s (simulated fabric)",
            value: Value::Figure,
            is_scale: false,
            places: &[
                ("write", &["simulated: write, "]),
                ("write and close", &["simulated: write and close, "]),
                ("read", &["simulated: read, "]),
            ],
            lines: &[("parallel off", &["parallel off"]), ("parallel on", &["parallel on"])],
        }],
    },
];

const SIZES: &[(&str, Words)] = &[
    ("4K", &[", 4K,"]),
    ("64K", &[", 64K,"]),
    ("1M", &[", 1M,"]),
    ("4M", &[", 4M,"]),
    ("16M", &[", 16M,"]),
    ("64M", &[", 64M,"]),
];

const READS: &[(&str, Words)] = &[
    ("all off", &["simulated, sequential read, 1 thread", "parallel off, async off, 1 endpoint"]),
    ("read-ahead", &["simulated, sequential read, 1 thread", "parallel off, async on, 1 endpoint"]),
    ("parallel", &["simulated, sequential read, 1 thread", "parallel on, async on, 1 endpoint"]),
    ("four endpoints", &["simulated, sequential read, 1 thread", "parallel on, async on, 4 endpoint"]),
];

const WRITES: &[(&str, Words)] = &[
    ("all off", &["simulated, sequential write, 1 thread", "parallel off, async off, 1 endpoint"]),
    ("write-back", &["simulated, sequential write, 1 thread", "parallel off, async on, 1 endpoint"]),
    ("parallel", &["simulated, sequential write, 1 thread", "parallel on, async on, 1 endpoint"]),
    ("four endpoints", &["simulated, sequential write, 1 thread", "parallel on, async on, 4 endpoint"]),
];
