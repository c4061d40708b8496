//! Seagate 2017: file systems that are populated and fragmented.

use super::{Chart, Experiment, Needs, Run, Talk, Value, Words, own};
use crate::stats::Bound;

pub(super) const EXPERIMENTS: &[Experiment] = &[Experiment {
    name: "seagate-paf",
    talk: Talk::Seagate,
    title: "Populated and fragmented",
    claim: "At 10 % populated and 10 % fragmented, 16 MiB writes lose 20 % at first; reads little.",
    shape: "object stores on a device (block) and on ext4 (file) through their own interface, and ext4, xfs and btrfs; each on an image in memory",
    simulated: Some(
        "a disk of 8 ms a seek and 150 MB/s: block waits for it, of the others its time is computed from the extents of the file, so that writing takes as long as reading",
    ),
    durability: "a file counts when fsync has returned",
    profile: None,
    needs: Needs { memory_mib: 4096, disk_mib: 256, is_root: true },
    quick: Run {
        words: "paf backends --dir {dir} --size {mib:1024}M --file-size {mib:32}M --capacity 0,10,60 --fragment 0,10,30 --xfer 1M,16M --iterations 3 \
                    --simulated-medium disk:seek=8ms:bandwidth=150M --json",
        seconds: 35,
    },
    full: Run {
        words: "paf backends --dir {dir} --size {mib:2048}M --file-size {mib:128}M --capacity 0,10..80 --fragment 0..70 --xfer 1M..64M \
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
}];

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
