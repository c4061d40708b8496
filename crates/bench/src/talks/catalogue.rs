//! The experiments: what each talk says, what is run for it, and which figures decide whether it is so here.

use crate::stats::Bound;

/// One of the talks that the file system starts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Talk {
    Lad17,
    Lug17,
    Cray,
    Whamcloud,
    Seagate,
}

impl Talk {
    pub(super) const ALL: [Talk; 5] = [Talk::Lad17, Talk::Lug17, Talk::Cray, Talk::Whamcloud, Talk::Seagate];

    pub(super) fn title(self) -> &'static str {
        match self {
            Talk::Lad17 => "LAD'17, Intel: Lustre from 2.9 to 2.10",
            Talk::Lug17 => "LUG'17, Intel: client I/O in parallel",
            Talk::Cray => "Cray 2019: flash for shared applications",
            Talk::Whamcloud => "Whamcloud 2019: optimizations for flash",
            Talk::Seagate => "Seagate 2017: fragmentation and capacity",
        }
    }
}

/// Words that the name of a row contains, all of them.
pub(super) type Words = &'static [&'static str];

/// One figure that decides.
#[derive(Debug, Clone, Copy)]
pub(super) struct Check {
    /// What is claimed, as the end of a sentence about the figure.
    pub(super) says: &'static str,
    /// The row.
    pub(super) row: Words,
    /// What the row is divided by: another one, or what it ran against by turns.
    pub(super) by: Option<Words>,
    pub(super) bound: Bound,
}

/// What a chart shows of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Value {
    /// The ratio to what it ran against; 1 for a row that is what others are compared with.
    Ratio,
    /// The figure.
    Figure,
}

/// A chart of rows: a value for each place and line, found by the words of both.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chart {
    pub(super) title: &'static str,
    pub(super) value: Value,
    /// Places that lie on a scale are joined by lines.
    pub(super) is_scale: bool,
    pub(super) places: &'static [(&'static str, Words)],
    pub(super) lines: &'static [(&'static str, Words)],
}

/// What an experiment needs of the machine.
#[derive(Debug, Clone, Copy)]
pub(super) struct Needs {
    pub(super) memory_mib: u64,
    pub(super) is_root: bool,
}

/// A command and about how long it takes on two CPUs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    /// What follows the program; `{dir}` is a new directory in memory, `{out}` one on the disk that is kept until the experiment has ended, `{store}` an object store.
    pub(super) words: &'static str,
    pub(super) seconds: u64,
}

/// An experiment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Experiment {
    pub(super) name: &'static str,
    pub(super) talk: Talk,
    pub(super) title: &'static str,
    /// What the talk says.
    pub(super) claim: &'static str,
    /// What runs, and how.
    pub(super) shape: &'static str,
    /// What is simulated, if anything is.
    pub(super) simulated: Option<&'static str>,
    pub(super) needs: Needs,
    pub(super) quick: Run,
    pub(super) full: Run,
    pub(super) checks: &'static [Check],
    pub(super) charts: &'static [Chart],
}

const fn own(says: &'static str, row: Words, bound: Bound) -> Check {
    Check { says, row, by: None, bound }
}

const SERVICE: &str = "each metadata operation takes 2 ms, one at a time for each MDT";
const FABRIC: &str = "a fabric of 1 GB/s and 0.2 ms each way for each endpoint";
const MDTS: &[(&str, Words)] =
    &[("1", &["1 MDT(s)"]), ("2", &["2 MDT(s)"]), ("4", &["4 MDT(s)"]), ("8", &["8 MDT(s)"])];

pub(super) const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        name: "lad17-dne",
        talk: Talk::Lad17,
        title: "Metadata over several MDTs",
        claim: "DNE 2 over up to 8 metadata servers scales, not linearly; ldiskfs stops after 2 on that hardware. \
                Cray's table of 2019 has 4.4 times the rate in unique directories sharded over 4 MDTs.",
        shape: "a process for each server, several mounts",
        simulated: Some(SERVICE),
        needs: Needs { memory_mib: 3072, is_root: true },
        quick: Run {
            words: "bench dne-scaling --dir {dir} --mdts 1,4 --runs 3 --tasks 32 --mounts 8 --files 40 \
                    --simulated-files 20 --json",
            seconds: 100,
        },
        full: Run { words: "bench dne-scaling --dir {dir} --mdts 1,2,4,8 --runs 5 --json", seconds: 600 },
        checks: &[
            own(
                "creates in unique directories are 3.7 times as fast over 4 MDTs",
                &["simulated: create", "unique", "4 MDT(s)"],
                Bound::AtLeast(3.7),
            ),
            own(
                "creates in one shared directory are 3.7 times as fast over 4 MDTs",
                &["simulated: create", "shared", "4 MDT(s)"],
                Bound::AtLeast(3.7),
            ),
            own(
                "creates in unique directories are 7.2 times as fast over 8 MDTs",
                &["simulated: create", "unique", "8 MDT(s)"],
                Bound::AtLeast(7.2),
            ),
        ],
        charts: &[
            Chart {
                title: "Unique directories: rate against one MDT (simulated service time)",
                value: Value::Ratio,
                is_scale: false,
                places: MDTS,
                lines: OPERATIONS_UNIQUE,
            },
            Chart {
                title: "One shared directory: rate against one MDT (simulated service time)",
                value: Value::Ratio,
                is_scale: false,
                places: MDTS,
                lines: OPERATIONS_SHARED,
            },
        ],
    },
    Experiment {
        name: "lad17-small-files",
        talk: Talk::Lad17,
        title: "Files of 4 KiB, with and without their data on the MDT",
        claim: "Small files are up to 4 times as fast as a year before; Cray's table of 2019 has creates twice as fast with data on the MDT.",
        shape: "one process, and a process for each server; data in memory",
        simulated: None,
        needs: Needs { memory_mib: 2048, is_root: true },
        quick: Run {
            words: "bench layouts --memory-dir {dir} --part dom --runs 5 --small-files 1000 --seconds 0.3 \
                    --json",
            seconds: 20,
        },
        full: Run { words: "bench layouts --memory-dir {dir} --part dom --runs 9 --json", seconds: 180 },
        checks: &[
            own(
                "a file of 4 KiB is made twice as fast with its data on the MDT",
                &["data on MDT, separate, create"],
                Bound::AtLeast(2.0),
            ),
            own("it is opened and read twice as fast", &["data on MDT, separate, open"], Bound::AtLeast(2.0)),
        ],
        charts: &[Chart {
            title: "Data on the MDT against data on an OST",
            value: Value::Ratio,
            is_scale: false,
            places: &[
                ("create", &["create + 4 KiB"]),
                ("stat", &[", stat"]),
                ("open + read, cold", &["open + read"]),
                ("unlink", &["unlink"]),
            ],
            lines: &[
                ("one process", &["data on MDT, one process"]),
                ("separate processes", &["data on MDT, separate"]),
            ],
        }],
    },
    Experiment {
        name: "lad17-pfl",
        talk: Talk::Lad17,
        title: "Progressive layouts against plain stripes",
        claim: "A progressive layout writes 4.6 % faster than a plain stripe over all OSTs, and reads as fast.",
        shape: "one process; two files of two writers, 1 MiB transfers, data in memory",
        simulated: None,
        needs: Needs { memory_mib: 2048, is_root: true },
        quick: Run {
            words: "bench layouts --memory-dir {dir} --part pfl --size-mib 96 --runs 9 --json",
            seconds: 5,
        },
        full: Run {
            words: "bench layouts --memory-dir {dir} --part pfl --size-mib 384 --runs 9 --json",
            seconds: 180,
        },
        checks: &[
            own(
                "it writes no slower than 0.98 of plain stripes",
                &["PFL, sequential write"],
                Bound::AtLeast(0.98),
            ),
            own(
                "it reads no slower than 0.98 of plain stripes",
                &["PFL, sequential read"],
                Bound::AtLeast(0.98),
            ),
        ],
        charts: &[Chart {
            title: "PFL against a plain stripe over all OSTs",
            value: Value::Ratio,
            is_scale: false,
            places: &[("write", &["write"]), ("read", &["read"])],
            lines: &[("PFL", &["PFL, "])],
        }],
    },
    Experiment {
        name: "lad17-pfl-tuned",
        talk: Talk::Lad17,
        title: "A stripe size for each component",
        claim: "With a stripe size for each component a progressive layout writes 8.7 % and reads 9.2 % faster than plain stripes.",
        shape: "a process for each server; two files of two writers, 1 MiB transfers, data in memory",
        simulated: Some(FABRIC),
        needs: Needs { memory_mib: 2048, is_root: true },
        quick: Run {
            words: "bench layouts --memory-dir {dir} --part fabric --size-mib 96 --runs 9 --json",
            seconds: 10,
        },
        full: Run {
            words: "bench layouts --memory-dir {dir} --part fabric --size-mib 384 --runs 9 --json",
            seconds: 180,
        },
        checks: &[
            own(
                "it writes as fast as plain stripes or faster",
                &["tuned PFL, sequential write"],
                Bound::AtLeast(1.0),
            ),
            own(
                "it reads as fast as plain stripes or faster",
                &["tuned PFL, sequential read"],
                Bound::AtLeast(1.0),
            ),
        ],
        charts: &[Chart {
            title: "PFL with stripe sizes against a plain stripe (simulated fabric)",
            value: Value::Ratio,
            is_scale: false,
            places: &[("write", &["write"]), ("read", &["read"])],
            lines: &[("tuned PFL", &["tuned PFL, "])],
        }],
    },
    Experiment {
        name: "lug17-client",
        talk: Talk::Lug17,
        title: "One thread, with the client's features off and on",
        claim: "Work of one request in parallel, asynchronous read-ahead and several endpoints make one thread up to twice as fast.",
        shape: "a process for each server, one thread, data in memory",
        simulated: Some(FABRIC),
        needs: Needs { memory_mib: 2048, is_root: true },
        quick: Run {
            words: "bench client --memory-dir {dir} --fabric simulated --threads 1 --sizes-kib 64,1024,16384 \
                    --endpoints 1,4 --parallel off,on --runs 5 --json",
            seconds: 45,
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
        needs: Needs { memory_mib: 3072, is_root: true },
        quick: Run {
            words: "bench records --memory-dir {dir} --writes 60 --reads 30 --fields 30 --runs 7 --json",
            seconds: 20,
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
    Experiment {
        name: "cray-noisy",
        talk: Talk::Cray,
        title: "Noisy neighbours",
        claim: "A stream and small random writes on the same OSTs hurt each other; a progressive layout that sends small I/O to flash helps both.",
        shape: "one process; two OSTs that are disks and one of flash, data in memory",
        simulated: Some("disks of 8 ms a seek and 100 MB/s, flash of 50 us and 400 MB/s"),
        needs: Needs { memory_mib: 2048, is_root: true },
        quick: Run { words: "bench noisy --memory-dir {dir} --runs 3 --seconds 1 --json", seconds: 15 },
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
        title: "Random 4 KiB with a small-block cache, data on the MDT and flash",
        claim: "A cache of small blocks with data on the MDT writes 3 to 4 times as much at random, with a flash OST 3.5 to 4.5 times as much.",
        shape: "one process; each write is durable before the next; data and caches in memory",
        simulated: Some("disks of 8 ms a seek and 100 MB/s, flash of 50 us and 400 MB/s"),
        needs: Needs { memory_mib: 4096, is_root: true },
        quick: Run {
            words: "bench small-io --memory-dir {dir} --sizes-kib 32,1024,8192 --runs 3 --seconds 0.5 --json",
            seconds: 40,
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
                ("disk, head on MDT", &[", disk, head"]),
                ("disk, cache", &[", disk, cache"]),
                ("disk, cache, head on MDT", &[", disk, cache, head"]),
                ("flash", &[", flash"]),
                ("flash, cache", &[", flash, cache"]),
            ],
        }],
    },
    Experiment {
        name: "whamcloud-null-store",
        talk: Talk::Whamcloud,
        title: "Random reads against a store that does no I/O",
        claim: "Random 4 KiB reads reach 70 % of a run from memory, and 80 % of the rate of fake I/O with a newer kernel.",
        shape: "an OST in a process of its own, and one over a fake store by turns; data in memory",
        simulated: None,
        needs: Needs { memory_mib: 2048, is_root: false },
        quick: Run {
            words: "bench survey --dir {dir} --backend block --fake-io --objects 4 --threads 8 --record \
                    4k,64k,1M --size 64M --runs 9 --json",
            seconds: 30,
        },
        full: Run {
            words: "bench survey --dir {dir} --backend block --fake-io --objects 4 --threads 1,8,32 --record \
                    4k,16k,64k,256k,1M --size 256M --runs 9 --json",
            seconds: 300,
        },
        checks: &[own(
            "reads of 4 KiB reach 0.8 of those of a store that does no I/O",
            &["random read", "thr 8 rsz 4K"],
            Bound::AtLeast(0.8),
        )],
        charts: &[Chart {
            title: "Random reads of eight threads against the fake store, by size of a record",
            value: Value::Ratio,
            is_scale: true,
            places: &[
                ("4K", &["thr 8 rsz 4K"]),
                ("16K", &["thr 8 rsz 16K"]),
                ("64K", &["thr 8 rsz 64K"]),
                ("256K", &["thr 8 rsz 256K"]),
                ("1M", &["thr 8 rsz 1M"]),
            ],
            lines: &[("block store", &["ost, block, random read"])],
        }],
    },
    Experiment {
        name: "whamcloud-decay",
        talk: Talk::Whamcloud,
        title: "Writing on and on, and what a trim changes",
        claim: "Throughput falls as a flash device runs out of erased blocks; trimming brings it back.",
        shape: "the object store of an OST, 8 threads, records of 4 KiB at random places, data in memory",
        simulated: Some("flash of four channels that was written once as a whole, with 7 % spare"),
        needs: Needs { memory_mib: 2048, is_root: false },
        quick: Run {
            words: "bench survey --dir {dir} --layer store --backend block --simulated-medium flash:channels=4:full=1 \
                    --objects 4 --threads 8 --record 4k --size 64M --continuous --for 60s --sample 1s --trim-every 40s --json",
            seconds: 65,
        },
        full: Run {
            words: "bench survey --dir {dir} --layer store --backend block --simulated-medium flash:channels=4:full=1 \
                    --objects 4 --threads 8 --record 4k --size 64M --continuous --for 300s --sample 1s --trim-every 100s --json",
            seconds: 320,
        },
        checks: &[
            Check {
                says: "before the trim it writes at most 0.7 of what it began with",
                row: &["before trims"],
                by: Some(&["overwriting, first tenth"]),
                bound: Bound::AtMost(0.7),
            },
            Check {
                says: "after the trim it writes 1.5 times as much as before it",
                row: &["after trims"],
                by: Some(&["before trims"]),
                bound: Bound::AtLeast(1.5),
            },
        ],
        charts: &[Chart {
            title: "Bandwidth while records are written over (simulated flash)",
            value: Value::Figure,
            is_scale: false,
            places: &[
                ("at first", &["overwriting, first tenth"]),
                ("before trims", &["before trims"]),
                ("during", &["during trims"]),
                ("after", &["after trims"]),
            ],
            lines: &[("4 KiB at random", &[])],
        }],
    },
    Experiment {
        name: "seagate-paf",
        talk: Talk::Seagate,
        title: "Populated and fragmented",
        claim: "At 10 % populated and 10 % fragmented, 16 MiB writes lose 20 % at first; reads little.",
        shape: "an object store on a device, through its own interface",
        simulated: Some("a disk of 8 ms a seek and 150 MB/s"),
        needs: Needs { memory_mib: 4096, is_root: true },
        quick: Run {
            words: "paf run --target {store} --output {out} --size 1G --file-size 64M --capacity 0,10,60 \
                    --fragment 0,30 --xfer 1M,16M --iterations 3 --simulated-medium \
                    disk:seek=8ms:bandwidth=150M --json",
            seconds: 30,
        },
        full: Run {
            words: "paf run --target {store} --output {out} --size 2G --file-size 256M --capacity 0,10..80 \
                    --fragment 0..70 --xfer 1M..64M --iterations 5 --simulated-medium \
                    disk:seek=8ms:bandwidth=150M --json",
            seconds: 14_400,
        },
        checks: &[
            own(
                "writes of 16 MiB keep 0.8 of the empty store's bandwidth at 10 % populated and 30 % fragmented",
                &["PaF:10.30, write, 16 MiB"],
                Bound::AtLeast(0.8),
            ),
            own(
                "reads of 16 MiB keep 0.8 at 60 % populated and 30 % fragmented",
                &["PaF:60.30, read, 16 MiB"],
                Bound::AtLeast(0.8),
            ),
        ],
        charts: &[
            Chart {
                title: "Writes against the empty store (simulated disk)",
                value: Value::Ratio,
                is_scale: false,
                places: STATES,
                lines: &[("1 MiB", &[", write, 1 MiB"]), ("16 MiB", &[", write, 16 MiB"])],
            },
            Chart {
                title: "Reads against the empty store (simulated disk)",
                value: Value::Ratio,
                is_scale: false,
                places: STATES,
                lines: &[("1 MiB", &[", read, 1 MiB"]), ("16 MiB", &[", read, 16 MiB"])],
            },
        ],
    },
];

const OPERATIONS_UNIQUE: &[(&str, Words)] = &[
    ("create", &["simulated: create, unique"]),
    ("stat", &["simulated: stat, unique"]),
    ("read", &["simulated: read, unique"]),
    ("unlink", &["simulated: unlink, unique"]),
];
const OPERATIONS_SHARED: &[(&str, Words)] = &[
    ("create", &["simulated: create, shared"]),
    ("stat", &["simulated: stat, shared"]),
    ("read", &["simulated: read, shared"]),
    ("unlink", &["simulated: unlink, shared"]),
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
const STATES: &[(&str, Words)] = &[
    ("00.00", &["PaF:00.00"]),
    ("10.00", &["PaF:10.00"]),
    ("10.30", &["PaF:10.30"]),
    ("60.00", &["PaF:60.00"]),
    ("60.30", &["PaF:60.30"]),
];
