//! Whamcloud 2019: the I/O path for flash, and a device that is never trimmed.

use super::{Chart, Check, Experiment, Needs, Run, Talk, Value, Words, own};
use crate::stats::Bound;

pub(super) const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        name: "whamcloud-null-store",
        talk: Talk::Whamcloud,
        title: "Random reads against a store that does no I/O",
        claim: "Random 4 KiB reads reach 70 % of a run from memory, and 80 % of the rate of fake I/O with a newer kernel.",
        shape: "an OST in a process of its own, and one over a fake store by turns; data in memory",
        simulated: None,
        durability: "only reads are measured",
        profile: None,
        needs: Needs { memory_mib: 2048, disk_mib: 256, is_root: false },
        quick: Run {
            words: "bench survey --dir {dir} --backend block --fake-io --feature short-io,reuse --objects 4 \
                    --threads 8 --record 4k,64k,1M --size {mib:64}M --runs 9 --seconds 0.3 --json",
            seconds: 45,
        },
        full: Run {
            words: "bench survey --dir {dir} --backend block --fake-io --feature short-io,reuse --objects 4 \
                    --threads 1,8,{cpus:32} --record 4k,16k,64k,256k,1M --size {mib:256}M --runs 15 --json",
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
        profile: None,
        needs: Needs { memory_mib: 1024, disk_mib: 2048, is_root: true },
        quick: Run {
            words: "bench survey --dir {disk} --backend file --fake-io --feature cache-bypass --objects 4 --threads 8 \
                    --record 4k,64k,1M --size {mib:64}M --runs 7 --seconds 0.3 --json",
            seconds: 25,
        },
        full: Run {
            words: "bench survey --dir {disk} --backend file --fake-io --feature cache-bypass --objects 4 --threads 8 \
                    --record 4k,16k,64k,256k,1M --size {mib:512}M --runs 15 --json",
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
        simulated: Some("new flash of four channels, half of it in use, with 7 % spare"),
        durability: "each thread syncs after every 16th record, and after an object was rewritten; the data is in memory",
        profile: None,
        needs: Needs { memory_mib: 2048, disk_mib: 256, is_root: false },
        quick: Run {
            words: "bench survey --dir {dir} --layer store --backend block --device-size 1G --simulated-medium flash:channels=4 \
                    --objects 4 --threads 8 --record 4k --size 128M --continuous --for 55s --sample 1s --trim-every 38s --json",
            seconds: 60,
        },
        full: Run {
            words: "bench survey --dir {dir} --layer store --backend block --device-size 1G --simulated-medium flash:channels=4 \
                    --objects 4 --threads 8 --record 4k --size 128M --continuous --for 300s --sample 1s --trim-every 100s --json",
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
        durability: "each thread syncs after every 16th record, and after an object was rewritten; the data is in memory",
        profile: None,
        needs: Needs { memory_mib: 3072, disk_mib: 256, is_root: true },
        quick: Run {
            words: "bench survey --dir {dir} --backend block --device-size 1G --simulated-medium flash:channels=4:full=1 \
                    --objects 4 --threads 8 --record 4k --size 64M --continuous --for 18s --sample 400ms --burst 2s --rest 2s \
                    --trim-policy off,quiet --json",
            seconds: 55,
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
];

const RECORDS: &[(&str, Words)] = &[
    ("4K", &["thr 8 rsz 4K"]),
    ("16K", &["thr 8 rsz 16K"]),
    ("64K", &["thr 8 rsz 64K"]),
    ("256K", &["thr 8 rsz 256K"]),
    ("1M", &["thr 8 rsz 1M"]),
];
