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
    /// Available in memory, and in the directory in memory.
    pub(super) memory_mib: u64,
    /// Free on the disk of the output directory.
    pub(super) disk_mib: u64,
    pub(super) is_root: bool,
}

/// A command and about how long it takes on two CPUs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    /// What follows the program; `{dir}` is a new directory in memory, `{disk}` one on the disk of the output directory.
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
    /// When what is written or changed counts as done.
    pub(super) durability: &'static str,
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
        durability: "an operation counts when its MDT has answered; nothing is synced",
        needs: Needs { memory_mib: 3072, disk_mib: 256, is_root: true },
        quick: Run {
            words: "bench dne-scaling --dir {dir} --mdts 1,4 --runs 3 --tasks 32 --mounts 8 --files 20 \
                    --simulated-files 10 --json",
            seconds: 60,
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
        durability: "a file counts when close has returned; nothing is synced, and the data is in memory",
        needs: Needs { memory_mib: 2048, disk_mib: 256, is_root: true },
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
        name: "lad17-small-files-dne",
        talk: Talk::Lad17,
        title: "Files of 4 KiB over several MDTs",
        claim: "Small files without data on the MDT scale with DNE 2 over up to 8 MDTs, not linearly; creates level off for lack of clients.",
        shape: "a process for each server, several mounts, a directory for each task",
        simulated: Some(SERVICE),
        durability: "a file counts when close has returned; nothing is synced",
        needs: Needs { memory_mib: 3072, disk_mib: 256, is_root: true },
        quick: Run {
            words: "bench dne-scaling --dir {dir} --mdts 1,4 --layout unique --data ost,mdt --runs 3 --tasks 16 \
                    --mounts 4 --files 20 --simulated-files 10 --json",
            seconds: 40,
        },
        full: Run {
            words: "bench dne-scaling --dir {dir} --mdts 1,2,4,8 --layout unique --data ost,mdt --runs 5 --json",
            seconds: 600,
        },
        checks: &[
            own(
                "files on OSTs are made 3.7 times as fast over 4 MDTs",
                &["simulated: create", "4 KiB on an OST, 4 MDT(s)"],
                Bound::AtLeast(3.7),
            ),
            own(
                "files on MDTs are made 3.7 times as fast over 4 MDTs",
                &["simulated: create", "4 KiB on the MDT, 4 MDT(s)"],
                Bound::AtLeast(3.7),
            ),
            own(
                "files on OSTs are made 7.2 times as fast over 8 MDTs",
                &["simulated: create", "4 KiB on an OST, 8 MDT(s)"],
                Bound::AtLeast(7.2),
            ),
        ],
        charts: &[Chart {
            title: "Files of 4 KiB: rate against one MDT (simulated service time)",
            value: Value::Ratio,
            is_scale: false,
            places: MDTS,
            lines: &[
                ("create, OST", &["simulated: create", "4 KiB on an OST"]),
                ("create, MDT", &["simulated: create", "4 KiB on the MDT"]),
                ("read, OST", &["simulated: read", "4 KiB on an OST"]),
                ("read, MDT", &["simulated: read", "4 KiB on the MDT"]),
            ],
        }],
    },
    Experiment {
        name: "lad17-backends",
        talk: Talk::Lad17,
        title: "Metadata by back end",
        claim: "OpenZFS creates at about 75 % of ldiskfs, and removes at less.",
        shape: "one process; a file system of ours on ext4, xfs and btrfs each, and with a block store, by turns on one disk",
        simulated: None,
        durability: "a file counts when close has returned; nothing is synced",
        needs: Needs { memory_mib: 2048, disk_mib: 4096, is_root: true },
        quick: Run {
            words: "bench backends --dir {disk} --files 1000 --runs 3 --seconds 0.1 --json",
            seconds: 40,
        },
        full: Run { words: "bench backends --dir {disk} --runs 9 --seconds 0.5 --json", seconds: 500 },
        checks: &[
            own(
                "the metadata store creates on xfs at 0.75 of its rate on ext4 or more",
                &["metadata store on xfs, unique directories, create"],
                Bound::AtLeast(0.75),
            ),
            own(
                "files of 4 KiB are made on a block store at 0.75 of the rate on ext4 or more",
                &["block, unique directories, create"],
                Bound::AtLeast(0.75),
            ),
        ],
        charts: &[
            Chart {
                title: "Empty files: the metadata store by what it lies on",
                value: Value::Figure,
                is_scale: false,
                places: BACKEND_PLACES,
                lines: &[
                    ("ext4", &["metadata store on ext4"]),
                    ("xfs", &["metadata store on xfs"]),
                    ("btrfs", &["metadata store on btrfs"]),
                ],
            },
            Chart {
                title: "Files of 4 KiB by what objects lie in",
                value: Value::Figure,
                is_scale: false,
                places: BACKEND_PLACES,
                lines: &[
                    ("file on ext4", &["file on ext4"]),
                    ("file on xfs", &["file on xfs"]),
                    ("file on btrfs", &["file on btrfs"]),
                    ("block", &["block, "]),
                ],
            },
        ],
    },
    Experiment {
        name: "lad17-pfl",
        talk: Talk::Lad17,
        title: "Progressive layouts against plain stripes",
        claim: "A progressive layout writes 4.6 % faster than a plain stripe over all OSTs, and reads as fast.",
        shape: "one process; two writers, a file for each and one for both, 1 MiB transfers, data in memory",
        simulated: None,
        durability: "fsync has returned before the clock stops; the data is in memory",
        needs: Needs { memory_mib: 2048, disk_mib: 256, is_root: true },
        quick: Run {
            words: "bench layouts --memory-dir {dir} --part pfl --size-mib 96 --runs 9 --json",
            seconds: 20,
        },
        full: Run {
            words: "bench layouts --memory-dir {dir} --part pfl --size-mib 384 --runs 15 --json",
            seconds: 240,
        },
        checks: &[
            own(
                "files of one writer are written no slower than 0.98 of plain stripes",
                &["PFL, file per process, sequential write"],
                Bound::AtLeast(0.98),
            ),
            own(
                "files of one writer are read no slower than 0.98",
                &["PFL, file per process, sequential read"],
                Bound::AtLeast(0.98),
            ),
            own(
                "a shared file is written no slower than 0.98",
                &["PFL, shared file, sequential write"],
                Bound::AtLeast(0.98),
            ),
            own(
                "a shared file is read no slower than 0.98",
                &["PFL, shared file, sequential read"],
                Bound::AtLeast(0.98),
            ),
        ],
        charts: &[Chart {
            title: "PFL against a plain stripe over all OSTs",
            value: Value::Ratio,
            is_scale: false,
            places: SHAPES,
            lines: LAYOUTS,
        }],
    },
    Experiment {
        name: "lad17-pfl-tuned",
        talk: Talk::Lad17,
        title: "A stripe size for each component",
        claim: "With a stripe size for each component a progressive layout writes 8.7 % and reads 9.2 % faster than plain stripes.",
        shape: "a process for each server; two writers, a file for each and one for both, 1 MiB transfers, data in memory",
        simulated: Some(FABRIC),
        durability: "fsync has returned before the clock stops; the data is in memory",
        needs: Needs { memory_mib: 2048, disk_mib: 256, is_root: true },
        quick: Run {
            words: "bench layouts --memory-dir {dir} --part fabric --size-mib 96 --runs 9 --json",
            seconds: 40,
        },
        full: Run {
            words: "bench layouts --memory-dir {dir} --part fabric --size-mib 384 --runs 15 --json",
            seconds: 400,
        },
        checks: &[
            own(
                "files of one writer are written as fast as plain stripes or faster",
                &["tuned PFL, file per process, sequential write"],
                Bound::AtLeast(1.0),
            ),
            own(
                "files of one writer are read as fast as plain stripes or faster",
                &["tuned PFL, file per process, sequential read"],
                Bound::AtLeast(1.0),
            ),
        ],
        charts: &[Chart {
            title: "PFL with and without stripe sizes against a plain stripe (simulated fabric)",
            value: Value::Ratio,
            is_scale: false,
            places: SHAPES,
            lines: LAYOUTS,
        }],
    },
    Experiment {
        name: "lug17-client",
        talk: Talk::Lug17,
        title: "One thread, with the client's features off and on",
        claim: "Work of one request in parallel, asynchronous read-ahead and several endpoints make one thread up to twice as fast.",
        shape: "a process for each server, one thread, data in memory",
        simulated: Some(FABRIC),
        durability: "fsync has returned before the clock stops; the data is in memory",
        needs: Needs { memory_mib: 2048, disk_mib: 256, is_root: true },
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
        name: "cray-metadata",
        talk: Talk::Cray,
        title: "Empty files over 1, 2 and 4 MDTs, with and without data on the MDT",
        claim: "Unique directories over 4 MDTs create 2.1 times as fast with data on the MDT; a shared directory over 4 MDTs with it \
                creates 2.3 times as fast as over one MDT without.",
        shape: "a process for each server, several mounts",
        simulated: Some(SERVICE),
        durability: "an operation counts when its MDT has answered; nothing is synced",
        needs: Needs { memory_mib: 3072, disk_mib: 256, is_root: true },
        quick: Run {
            words: "bench dne-scaling --dir {dir} --mdts 1,4 --data empty-ost,empty-mdt --runs 3 --tasks 16 \
                    --mounts 4 --files 20 --simulated-files 5 --json",
            seconds: 50,
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
            title: "Operations per second as in Cray's table (simulated service time)",
            value: Value::Figure,
            is_scale: false,
            places: &[
                ("unique, 4 MDTs", &["unique", "without DoM, 4 MDT(s)"]),
                ("unique, 4, DoM", &["unique", "DoM 64K, 4 MDT(s)"]),
                ("shared, 1 MDT", &["shared", "without DoM, 1 MDT(s)"]),
                ("shared, 4, DoM", &["shared", "DoM 64K, 4 MDT(s)"]),
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
        needs: Needs { memory_mib: 2048, disk_mib: 256, is_root: true },
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
        title: "Random 4 KiB with a small-block cache, data on the MDT and pools of flash and disk",
        claim: "A cache of small blocks with data on the MDT writes 3 to 4 times as much at random, with a flash OST 3.5 to 4.5 times as much.",
        shape: "one process; each write is durable before the next; data and caches in memory",
        simulated: Some("disks of 8 ms a seek and 100 MB/s, flash of 50 us and 400 MB/s"),
        durability: "each write is durable before the next one; the data is in memory",
        needs: Needs { memory_mib: 4096, disk_mib: 256, is_root: true },
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
                ("disk, head on MDT", &[", disk, head on MDT"]),
                ("disk, head on flash", &[", disk, head on flash"]),
                ("disk, cache", &[", disk, cache"]),
                ("disk, cache, head on MDT", &[", disk, cache, head on MDT"]),
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
        durability: "only reads are measured",
        needs: Needs { memory_mib: 2048, disk_mib: 256, is_root: false },
        quick: Run {
            words: "bench survey --dir {dir} --backend block --fake-io --feature short-io,reuse --objects 4 \
                    --threads 8 --record 4k,64k,1M --size 64M --runs 9 --seconds 0.3 --json",
            seconds: 45,
        },
        full: Run {
            words: "bench survey --dir {dir} --backend block --fake-io --feature short-io,reuse --objects 4 \
                    --threads 1,8,32 --record 4k,16k,64k,256k,1M --size 256M --runs 15 --json",
            seconds: 900,
        },
        checks: &[
            own(
                "reads of 4 KiB reach 0.8 of those of a store that does no I/O",
                &["random read", "thr 8 rsz 4K"],
                Bound::AtLeast(0.8),
            ),
            own(
                "reads of 4 KiB are 1.1 times as many with buffers that threads use again (the talk: contexts, about 1.1)",
                &["buffers used again", "thr 8 rsz 4K"],
                Bound::AtLeast(1.1),
            ),
        ],
        charts: &[Chart {
            title: "Random reads of eight threads, by size of a record",
            value: Value::Ratio,
            is_scale: true,
            places: RECORDS,
            lines: &[
                ("block store against the fake store", &["ost, block, random read"]),
                ("short I/O against none", &["short I/O:"]),
                ("buffers used again against new ones", &["buffers used again:"]),
            ],
        }],
    },
    Experiment {
        name: "whamcloud-cache",
        talk: Talk::Whamcloud,
        title: "Reads around the page cache of the server",
        claim: "Without the page cache of the OSS, reads from SSDs are about 13 % faster, most when memory has to be reclaimed.",
        shape: "OSTs with a file for each object in processes of their own, by turns on one disk; caches emptied before each round",
        simulated: None,
        durability: "only reads are measured",
        needs: Needs { memory_mib: 1024, disk_mib: 2048, is_root: true },
        quick: Run {
            words: "bench survey --dir {disk} --backend file --fake-io --feature cache-bypass --objects 4 --threads 8 \
                    --record 4k,64k,1M --size 64M --runs 7 --seconds 0.3 --json",
            seconds: 30,
        },
        full: Run {
            words: "bench survey --dir {disk} --backend file --fake-io --feature cache-bypass --objects 4 --threads 8 \
                    --record 4k,16k,64k,256k,1M --size 512M --runs 15 --json",
            seconds: 400,
        },
        checks: &[own(
            "cold reads of 4 KiB are as many around the cache as through it",
            &["page cache bypassed", "thr 8 rsz 4K"],
            Bound::AtLeast(1.0),
        )],
        charts: &[Chart {
            title: "Random reads of eight threads around the page cache against through it, by size of a record",
            value: Value::Ratio,
            is_scale: true,
            places: RECORDS,
            lines: &[("page cache bypassed", &["page cache bypassed:"])],
        }],
    },
    Experiment {
        name: "whamcloud-decay",
        talk: Talk::Whamcloud,
        title: "Writing on and on, and what a trim changes",
        claim: "Throughput falls as a flash device runs out of erased blocks; trimming brings it back.",
        shape: "the object store of an OST, 8 threads, records of 4 KiB at random places, data in memory",
        simulated: Some("flash of four channels that was written once as a whole, with 7 % spare"),
        durability: "each thread syncs after every 16th record, and after an object was written anew; the data is in memory",
        needs: Needs { memory_mib: 2048, disk_mib: 256, is_root: false },
        quick: Run {
            words: "bench survey --dir {dir} --layer store --backend block --device-size 1G --simulated-medium flash:channels=4:full=1 \
                    --objects 4 --threads 8 --record 4k --size 64M --continuous --for 50s --sample 1s --trim-every 35s --json",
            seconds: 55,
        },
        full: Run {
            words: "bench survey --dir {dir} --layer store --backend block --device-size 2G --simulated-medium flash:channels=4:full=1 \
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
        name: "whamcloud-trim",
        talk: Talk::Whamcloud,
        title: "Trim policies",
        claim: "Trimming when the target is quiet, by policy, keeps the throughput up without a discard for each unlink.",
        shape: "an OST in a process of its own on a block store; 8 threads write in bursts, records of 4 KiB at random places, data in memory",
        simulated: Some("flash of four channels that was written once as a whole, with 7 % spare"),
        durability: "each thread syncs after every 16th record, and after an object was written anew; the data is in memory",
        needs: Needs { memory_mib: 3072, disk_mib: 256, is_root: true },
        quick: Run {
            words: "bench survey --dir {dir} --backend block --device-size 1G --simulated-medium flash:channels=4:full=1 \
                    --objects 4 --threads 8 --record 4k --size 64M --continuous --for 18s --sample 400ms --burst 2s --rest 2s \
                    --trim-policy off,quiet --json",
            seconds: 50,
        },
        full: Run {
            words: "bench survey --dir {dir} --backend block --device-size 2G --simulated-medium flash:channels=4:full=1 \
                    --objects 4 --threads 8 --record 4k --size 64M --continuous --for 180s --sample 500ms --burst 5s --rest 3s \
                    --trim-policy off,quiet,busy --json",
            seconds: 600,
        },
        checks: &[own(
            "with trims when it is quiet it writes 1.5 times as much in the end as without any",
            &["trims when it is quiet, last third"],
            Bound::AtLeast(1.5),
        )],
        charts: &[Chart {
            title: "Bandwidth in bursts by trim policy (simulated flash)",
            value: Value::Figure,
            is_scale: false,
            places: &[("first third", &["first third"]), ("last third", &["last third"])],
            lines: &[
                ("no trims", &["no trims"]),
                ("when it is quiet", &["trims when it is quiet"]),
                ("at any time", &["trims at any time"]),
            ],
        }],
    },
    Experiment {
        name: "seagate-paf",
        talk: Talk::Seagate,
        title: "Populated and fragmented",
        claim: "At 10 % populated and 10 % fragmented, 16 MiB writes lose 20 % at first; reads little.",
        shape: "object stores on a device (block) and on ext4 (file) through their own interface, and ext4, xfs and btrfs; each on an image in memory",
        simulated: Some(
            "a disk of 8 ms a seek and 150 MB/s: block waits for it, of the others its time is computed from the extents of the file, so that writing takes as long as reading",
        ),
        durability: "a file counts when fsync has returned",
        needs: Needs { memory_mib: 4096, disk_mib: 256, is_root: true },
        quick: Run {
            words: "paf backends --dir {dir} --size 1G --file-size 32M --capacity 0,10,60 --fragment 0,10,30 --xfer 1M,16M --iterations 3 \
                    --simulated-medium disk:seek=8ms:bandwidth=150M --json",
            seconds: 60,
        },
        full: Run {
            words: "paf backends --dir {dir} --size 2G --file-size 128M --capacity 0,10..80 --fragment 0..70 --xfer 1M..64M \
                    --iterations 5 --simulated-medium disk:seek=8ms:bandwidth=150M --json",
            seconds: 14_400,
        },
        checks: &[
            own(
                "writes of 16 MiB keep 0.8 of the empty store's bandwidth at 10 % populated and 10 % fragmented (block)",
                &["block: PaF:10.10, write, 16 MiB"],
                Bound::AtLeast(0.8),
            ),
            own(
                "reads of 16 MiB keep 0.8 at 60 % populated and 30 % fragmented (block)",
                &["block: PaF:60.30, read, 16 MiB"],
                Bound::AtLeast(0.8),
            ),
        ],
        charts: &[
            Chart {
                title: "Writes of 16 MiB against the empty state (simulated disk)",
                value: Value::Ratio,
                is_scale: false,
                places: STATES,
                lines: BACKENDS_WRITE,
            },
            Chart {
                title: "Reads of 16 MiB against the empty state (simulated disk)",
                value: Value::Ratio,
                is_scale: false,
                places: STATES,
                lines: BACKENDS_READ,
            },
        ],
    },
];

const SHAPES: &[(&str, Words)] = &[
    ("own files, write", &["file per process", "write"]),
    ("own files, read", &["file per process", "read"]),
    ("shared, write", &["shared file", "write"]),
    ("shared, read", &["shared file", "read"]),
];
const LAYOUTS: &[(&str, Words)] = &[("PFL", &["PFL, "]), ("PFL with stripe sizes", &["tuned PFL, "])];
const BACKEND_PLACES: &[(&str, Words)] = &[
    ("unique create", &["unique", "create"]),
    ("unique remove", &["unique", "remove"]),
    ("shared create", &["shared", "create"]),
    ("shared remove", &["shared", "remove"]),
];
const RECORDS: &[(&str, Words)] = &[
    ("4K", &["thr 8 rsz 4K"]),
    ("16K", &["thr 8 rsz 16K"]),
    ("64K", &["thr 8 rsz 64K"]),
    ("256K", &["thr 8 rsz 256K"]),
    ("1M", &["thr 8 rsz 1M"]),
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
const BACKENDS_WRITE: &[(&str, Words)] = &[
    ("block", &["block: ", ", write, 16 MiB"]),
    ("file, computed", &["file: ", ", write, 16 MiB"]),
    ("ext4, computed", &["ext4: ", ", write, 16 MiB"]),
    ("xfs, computed", &["xfs: ", ", write, 16 MiB"]),
    ("btrfs, computed", &["btrfs: ", ", write, 16 MiB"]),
];
const BACKENDS_READ: &[(&str, Words)] = &[
    ("block", &["block: ", ", read, 16 MiB"]),
    ("file, computed", &["file: ", ", read, 16 MiB"]),
    ("ext4, computed", &["ext4: ", ", read, 16 MiB"]),
    ("xfs, computed", &["xfs: ", ", read, 16 MiB"]),
    ("btrfs, computed", &["btrfs: ", ", read, 16 MiB"]),
];
const STATES: &[(&str, Words)] = &[
    ("00.00", &["PaF:00.00"]),
    ("10.00", &["PaF:10.00"]),
    ("10.10", &["PaF:10.10"]),
    ("10.30", &["PaF:10.30"]),
    ("60.00", &["PaF:60.00"]),
    ("60.30", &["PaF:60.30"]),
];
