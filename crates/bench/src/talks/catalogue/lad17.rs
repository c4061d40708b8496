//! LAD'17, Intel: generations of Lustre, metadata over several MDTs, progressive layouts.

use super::{Chart, Experiment, FABRIC, Needs, Run, SERVICE, Talk, Value, Words, own};
use crate::stats::Bound;

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
        profile: Some(
            "In a shared directory no more creates are under way than there are mounts, since a kernel changes a directory by one program at a time. Of N requests over M servers \
            at random, N/(N+M-1) of the servers are busy: 2.9 to 3.3 of 4 with 8 mounts. Measured over 4 MDTs: 3.2 with 8 mounts, 3.61 with 16, 3.68 with 32.",
        ),
        needs: Needs { memory_mib: 3072, disk_mib: 256, is_root: true },
        quick: Run {
            words: "bench dne-scaling --dir {dir} --mdts 1,4 --runs 3 --tasks {cpus:32} --mounts {cpus:8} --files 20 \
                    --simulated-files 10 --json",
            seconds: 60,
        },
        full: Run {
            words: "bench dne-scaling --dir {dir} --mdts 1,2,4,8 --mounts {cpus:32} --tasks {cpus:64} --simulated-files 60 --runs 3 --json",
            seconds: 1500,
        },
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
            own(
                "creates in one shared directory are 7.2 times as fast over 8 MDTs",
                &["simulated: create", "shared", "8 MDT(s)"],
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
        profile: Some(
            "Lustre makes an object with each file, which data on the MDT saves. Here a file has no object before it has data. In separate processes, data that cost nothing at all \
            would give 1.65 for a create, and 1.3 for a read; in one process the requests of the kernel are more than half of both (docs/design/data-on-mdt.md).",
        ),
        needs: Needs { memory_mib: 2048, disk_mib: 256, is_root: true },
        quick: Run {
            words: "bench layouts --memory-dir {dir} --part dom --runs 5 --small-files 1000 --seconds 0.3 \
                    --json",
            seconds: 25,
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
        profile: None,
        needs: Needs { memory_mib: 3072, disk_mib: 256, is_root: true },
        quick: Run {
            words: "bench dne-scaling --dir {dir} --mdts 1,4 --layout unique --data ost,mdt --runs 3 --tasks {cpus:16} \
                    --mounts {cpus:4} --files 20 --simulated-files 10 --json",
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
        profile: None,
        needs: Needs { memory_mib: 2048, disk_mib: 4096, is_root: true },
        quick: Run {
            words: "bench backends --dir {disk} --files 1000 --runs 3 --seconds 0.1 --json",
            seconds: 35,
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
        profile: None,
        needs: Needs { memory_mib: 2048, disk_mib: 256, is_root: true },
        quick: Run {
            words: "bench layouts --memory-dir {dir} --part pfl --size-mib {mib:96} --runs 9 --json",
            seconds: 15,
        },
        full: Run {
            words: "bench layouts --memory-dir {dir} --part pfl --size-mib {mib:384} --runs 15 --json",
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
        profile: None,
        needs: Needs { memory_mib: 2048, disk_mib: 256, is_root: true },
        quick: Run {
            words: "bench layouts --memory-dir {dir} --part fabric --size-mib {mib:96} --runs 9 --json",
            seconds: 30,
        },
        full: Run {
            words: "bench layouts --memory-dir {dir} --part fabric --size-mib {mib:384} --runs 15 --json",
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

const MDTS: &[(&str, Words)] =
    &[("1", &["1 MDT(s)"]), ("2", &["2 MDT(s)"]), ("4", &["4 MDT(s)"]), ("8", &["8 MDT(s)"])];
