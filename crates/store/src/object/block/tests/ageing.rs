//! Placement on a device that fills and ages: objects of all sizes, several written at once, removed at
//! random.

use super::*;
use device::{BlockDevice, DeviceInfo, DeviceStats, Engine, ReadOp, WriteOp};

/// Discards all writes: only placement matters here.
struct Nowhere(u64);

impl BlockDevice for Nowhere {
    fn read(&self, batch: &mut [ReadOp<'_>]) -> std::io::Result<()> {
        batch.iter_mut().for_each(|op| op.buffer.fill(0));
        Ok(())
    }

    fn write(&self, _batch: &[WriteOp<'_>]) -> std::io::Result<()> {
        Ok(())
    }

    fn flush(&self) -> std::io::Result<()> {
        Ok(())
    }

    fn discard(&self, _offset: u64, _len: u64) -> std::io::Result<()> {
        Ok(())
    }

    fn size(&self) -> u64 {
        self.0
    }

    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            name: "nowhere".to_owned(),
            is_raw: false,
            is_flash: false,
            is_allocated: false,
            engine: Engine::Memory,
        }
    }

    fn stats(&self) -> DeviceStats {
        DeviceStats::default()
    }
}

const CHUNK: u64 = 1 << 20;

/// A store filled by several writers, each with an object of its own that it writes chunk by chunk.
struct Aged {
    store: BlockStore,
    random: fastrand::Rng,
    /// Existing objects and their sizes.
    there: Vec<(Fid, u64)>,
    next: u32,
}

impl Aged {
    fn new(dir: &Path, bytes: u64) -> Aged {
        let store = BlockStore::open_with(dir, options(), Arc::new(Nowhere(bytes))).expect("made");
        store.reserve(fid(1).seq, 1_000_000).expect("reserved");
        Aged { store, random: fastrand::Rng::with_seed(1), there: Vec::new(), next: 1 }
    }

    /// Returns a size from 64 KiB to 8 MiB, each octave equally likely.
    fn size(&mut self) -> u64 {
        let octave = 65536 << self.random.u64(..7);
        (octave + self.random.u64(..octave)) / BLOCK * BLOCK
    }

    fn fill(&mut self, mut bytes: u64) {
        let data = vec![5; CHUNK as usize];
        // For each writer: object, size, bytes written.
        let mut writers: Vec<(Fid, u64, u64)> = Vec::new();
        while bytes > 0 || !writers.is_empty() {
            while writers.len() < 4 && bytes > 0 {
                let size = self.size().min(bytes);
                bytes -= size;
                writers.push((fid(self.next), size, 0));
                self.there.push((fid(self.next), size));
                self.next += 1;
            }
            let at = self.random.usize(..writers.len());
            let (object, size, done) = &mut writers[at];
            let len = (*size - *done).min(CHUNK);
            assert_eq!(self.store.write(*object, *done, &data[..len as usize]).expect("room"), len as usize);
            *done += len;
            if done == size {
                writers.swap_remove(at);
            }
        }
        self.store.sync_all().expect("synced");
    }

    /// Removes objects until `bytes` are free, and fills the store again.
    fn round(&mut self, bytes: u64) {
        let (mut freed, mut doomed) = (0, Vec::new());
        while freed < bytes {
            let at = self.random.usize(..self.there.len());
            let (object, size) = self.there.swap_remove(at);
            freed += size;
            doomed.push(object);
        }
        self.store.destroy(&doomed).expect("destroyed");
        self.store.sync_all().expect("synced");
        self.fill(freed);
    }

    /// Returns the share of 1 MiB transfers that only fragmentation causes, the share of free space too short
    /// for such a transfer, and the number of free extents.
    fn figures(&self) -> (f64, f64, usize) {
        let (mut transfers, mut least) = (0, 0);
        for (object, size) in &self.there {
            let extents = self.store.objects.extents(*object).expect("read").expect("known");
            transfers += extents.iter().map(|extent| extent.len.div_ceil(CHUNK)).sum::<u64>();
            least += size.div_ceil(CHUNK);
        }
        let free = self.store.free_pieces();
        let bytes: u64 = free.iter().map(|piece| piece.end - piece.start).sum();
        let usable: u64 = free.iter().map(|piece| (piece.end - piece.start) / CHUNK * CHUNK).sum();
        (1.0 - least as f64 / transfers as f64, 1.0 - usable as f64 / bytes as f64, free.len())
    }
}

#[test]
fn objects_and_free_space_stay_in_large_pieces_as_a_device_ages() {
    let dir = tempfile::tempdir().expect("a directory");
    let size = 2 << 30;
    let mut aged = Aged::new(dir.path(), size);
    let level = size / 100 * 80 / BLOCK * BLOCK;
    aged.fill(level);
    let (files, free, count) = aged.figures();
    assert!(
        files < 0.002 && free < 0.02 && count < 150,
        "filled: files {files:.4}, free {free:.4} in {count}"
    );
    for round in 0..7 {
        aged.round(level / 10);
        let (files, free, count) = aged.figures();
        let shown = format!("round {round}: files {files:.4}, free {free:.4} in {count}");
        assert!(files < 0.004 && free < 0.3 && count < 600, "{shown}");
    }
    assert_clean_places(&aged.store);
}

fn assert_clean_places(store: &BlockStore) {
    let free = store.free_pieces();
    assert!(free.windows(2).all(|pair| pair[0].end < pair[1].start), "apart and in order");
    let bytes: u64 = free.iter().map(|piece| piece.end - piece.start).sum();
    assert_eq!(bytes, store.space().expect("space").free, "nothing waits, and nothing is left out");
}
