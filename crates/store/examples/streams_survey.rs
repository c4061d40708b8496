//! Objects that are written concurrently in a store of files: bandwidth, and extents of an object as FIEMAP
//! reports them.
//!
//! `cargo run --release -p nacre-store --example streams_survey -- DIR STREAMS MIB RUNS
//! AHEAD_MIB[,AHEAD_MIB..] [cached]`: each run writes STREAMS objects of MIB MiB, a thread each, by 1 MiB
//! until all is durable, with that much space reserved ahead of each at most (0 for none); runs alternate.
//! All files are in a new directory in DIR, which is removed at the end. `filefrag` counts the extents.

use nacre_env::clock::Instant;
use nacre_store::object::{DirectIo, FileStore, FileStoreOptions, Ids, ObjectStore};
use nacre_types::Fid;
use std::path::Path;
use std::process::Command;

const MIB: usize = 1 << 20;

fn object(number: u32) -> Fid {
    Fid::new(2, number + 1, 0)
}

/// Returns MB/s, and extents of all objects.
fn run(dir: &Path, streams: u32, mib: usize, ahead_mib: u64, direct: DirectIo) -> (f64, usize) {
    let options = FileStoreOptions { ahead_max_bytes: ahead_mib << 20, direct, ..FileStoreOptions::create() };
    let store = FileStore::open(dir, options).expect("a store");
    store.reserve(2, streams).expect("reserved");
    let start = Instant::now();
    nacre_env::thread::scope(|scope| {
        for number in 0..streams {
            let store = &store;
            scope.spawn(move || {
                let layout = std::alloc::Layout::from_size_align(MIB, 4096).expect("a size");
                // SAFETY: the layout has a size; the memory is never freed, there are few threads.
                let data = unsafe { std::slice::from_raw_parts_mut(std::alloc::alloc_zeroed(layout), MIB) };
                data.fill(number as u8 + 1);
                for piece in 0..mib {
                    store.write(object(number), (piece * MIB) as u64, data).expect("written");
                }
                store.sync(object(number)).expect("durable");
            });
        }
    });
    let rate = (streams as usize * mib * MIB) as f64 / start.elapsed().as_secs_f64() / 1e6;
    store.close().expect("closed");
    drop(store);
    let files = Command::new("sh")
        .args(["-c", "find \"$0\" -type f -size +1M -exec filefrag {} +"])
        .arg(dir.join("objects"))
        .output()
        .expect("filefrag");
    let text = String::from_utf8_lossy(&files.stdout).into_owned();
    let extents = |line: &str| line.rsplit_once(": ")?.1.split(' ').next()?.parse::<usize>().ok();
    let found: Vec<usize> = text.lines().filter_map(extents).collect();
    assert_eq!(found.len(), streams as usize, "{text}");
    (rate, found.iter().sum())
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize| words.get(index).and_then(|word| word.parse::<u64>().ok());
    let (Some(dir), Some(streams), Some(mib), Some(runs), Some(aheads)) =
        (words.first(), number(1), number(2), number(3), words.get(4))
    else {
        eprintln!("streams_survey DIR STREAMS MIB RUNS AHEAD_MIB[,AHEAD_MIB..] [cached]");
        std::process::exit(2);
    };
    let direct = if words.len() > 5 { DirectIo::Never } else { DirectIo::LargeWrites };
    let aheads: Vec<u64> = aheads.split(',').filter_map(|ahead| ahead.parse().ok()).collect();
    println!("| ahead MiB | MB/s | extents of an object |\n| ---: | ---: | ---: |");
    for run_number in 0..runs {
        for turn in 0..aheads.len() {
            // Runs alternate, in the opposite order each round.
            let index = if run_number % 2 == 0 { turn } else { aheads.len() - 1 - turn };
            let scratch = Path::new(dir).join(format!("streams-{}", std::process::id()));
            let (rate, extents) = run(&scratch, streams as u32, mib as usize, aheads[index], direct);
            println!("| {} | {rate:.0} | {:.1} |", aheads[index], extents as f64 / streams as f64);
            std::fs::remove_dir_all(&scratch).expect("removed");
        }
    }
}
