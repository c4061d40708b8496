//! Model-based test: a striped file behaves like a vector of bytes.

use super::*;
use nacre_client::{FallocateKind, SeekKind};
use nacre_types::{SetAttr, SetAttrValid, Status};
use proptest::prelude::*;

const SPAN: u64 = 600_000;

#[derive(Clone, Debug)]
enum Step {
    Write {
        offset: u64,
        len: usize,
        byte: u8,
    },
    Append {
        len: usize,
        byte: u8,
    },
    Read {
        offset: u64,
        len: usize,
    },
    Truncate {
        size: u64,
    },
    Punch {
        offset: u64,
        len: u64,
    },
    Zero {
        offset: u64,
        len: u64,
        keep: bool,
    },
    Copy {
        from: u64,
        to: u64,
        len: u64,
    },
    Seek {
        offset: u64,
    },
    Reopen,
    /// A write that may not be held back.
    Odd {
        offset: u64,
        len: usize,
        byte: u8,
        sync: bool,
    },
    Sync,
}

fn step() -> impl Strategy<Value = Step> {
    let byte = 1..=255u8;
    prop_oneof![
        4 => (0..SPAN, 1..200_000usize, byte.clone()).prop_map(|(offset, len, byte)| Step::Write { offset, len, byte }),
        2 => (1..100_000usize, byte).prop_map(|(len, byte)| Step::Append { len, byte }),
        4 => (0..SPAN, 1..300_000usize).prop_map(|(offset, len)| Step::Read { offset, len }),
        2 => (0..SPAN).prop_map(|size| Step::Truncate { size }),
        1 => (0..SPAN, 1..200_000u64).prop_map(|(offset, len)| Step::Punch { offset, len }),
        1 => (0..SPAN, 1..200_000u64, any::<bool>()).prop_map(|(offset, len, keep)| Step::Zero { offset, len, keep }),
        1 => (0..SPAN, 0..SPAN, 1..100_000u64).prop_map(|(from, to, len)| Step::Copy { from, to, len }),
        1 => (0..SPAN).prop_map(|offset| Step::Seek { offset }),
        1 => Just(Step::Reopen),
    ]
}

/// Returns steps around the first data of a file.
fn small_step() -> impl Strategy<Value = Step> {
    const SPAN: u64 = 80_000;
    let byte = 1..=255u8;
    prop_oneof![
        6 => (0..SPAN, 1..20_000usize, byte.clone()).prop_map(|(offset, len, byte)| Step::Write { offset, len, byte }),
        6 => (1..10_000usize, byte.clone()).prop_map(|(len, byte)| Step::Append { len, byte }),
        1 => (0..SPAN, 1..5_000usize, byte, any::<bool>())
            .prop_map(|(offset, len, byte, sync)| Step::Odd { offset, len, byte, sync }),
        3 => (0..SPAN, 1..50_000usize).prop_map(|(offset, len)| Step::Read { offset, len }),
        2 => (0..SPAN).prop_map(|size| Step::Truncate { size }),
        1 => (0..SPAN, 1..20_000u64).prop_map(|(offset, len)| Step::Punch { offset, len }),
        1 => (0..SPAN, 1..20_000u64, any::<bool>()).prop_map(|(offset, len, keep)| Step::Zero { offset, len, keep }),
        1 => (0..SPAN, 0..SPAN, 1..20_000u64).prop_map(|(from, to, len)| Step::Copy { from, to, len }),
        1 => (0..SPAN).prop_map(|offset| Step::Seek { offset }),
        1 => Just(Step::Sync),
        1 => Just(Step::Reopen),
    ]
}

struct Run {
    client: Arc<Client>,
    fid: Fid,
    handle: u64,
    model: Vec<u8>,
}

impl Run {
    fn put(&mut self, offset: u64, data: &[u8]) {
        let end = offset as usize + data.len();
        self.model.resize(self.model.len().max(end), 0);
        self.model[offset as usize..end].copy_from_slice(data);
    }

    fn clear(&mut self, offset: u64, len: u64) {
        let end = ((offset + len) as usize).min(self.model.len());
        if (offset as usize) < end {
            self.model[offset as usize..end].fill(0);
        }
    }

    fn apply(&mut self, step: &Step) {
        let client = self.client.clone();
        match *step {
            Step::Write { offset, len, byte } => {
                let data = vec![byte; len];
                assert_eq!(write(&client, self.handle, offset, &data), Ok(len));
                self.put(offset, &data);
            }
            Step::Odd { offset, len, byte, sync } => {
                let data = vec![byte; len];
                let options = WriteOptions { sync, direct: !sync, ..WriteOptions::default() };
                assert_eq!(client.data.write(&root(), self.handle, offset, &data, options), Ok(len));
                self.put(offset, &data);
            }
            Step::Sync => client.data.fsync(self.handle).expect("synced"),
            Step::Append { len, byte } => {
                let data = vec![byte; len];
                assert_eq!(append(&client, self.handle, &data), Ok(len));
                self.put(self.model.len() as u64, &data);
            }
            Step::Read { offset, len } => {
                let start = (offset as usize).min(self.model.len());
                let end = (start + len).min(self.model.len());
                assert!(read(&client, self.handle, offset, len) == self.model[start..end], "{step:?}");
            }
            Step::Truncate { size } => {
                let valid = SetAttrValid::SIZE | SetAttrValid::OPEN_FOR_WRITE;
                let set = SetAttr { valid, size, ..SetAttr::default() };
                let (attr, _) = client.names.setattr(&root(), self.fid, set).expect("cut");
                assert_eq!(attr.size, size);
                self.model.resize(size as usize, 0);
            }
            Step::Punch { offset, len } => {
                client
                    .data
                    .fallocate(&root(), self.handle, FallocateKind::Punch, offset, len)
                    .expect("punched");
                self.clear(offset, len);
            }
            Step::Zero { offset, len, keep } => {
                let kind = if keep { FallocateKind::ZeroKeepSize } else { FallocateKind::Zero };
                client.data.fallocate(&root(), self.handle, kind, offset, len).expect("zeroed");
                if !keep {
                    self.model.resize(self.model.len().max((offset + len) as usize), 0);
                }
                self.clear(offset, len);
            }
            Step::Copy { from, to, len } => self.copy(from, to, len),
            Step::Seek { offset } => self.seek(offset),
            Step::Reopen => {
                client.opens.release(self.handle).expect("open");
                assert_eq!(client.inodes.getattr(self.fid).expect("there").size, self.model.len() as u64);
                self.handle = open(&client, self.fid, READ_WRITE);
            }
        }
        let attr = client.inodes.getattr(self.fid).expect("there");
        assert_eq!(attr.size, self.model.len() as u64, "after {step:?}");
    }

    fn copy(&mut self, from: u64, to: u64, len: u64) {
        let result = self.client.data.copy_range(&root(), (self.handle, from), (self.handle, to), len);
        let len = len.min((self.model.len() as u64).saturating_sub(from));
        if from < to + len && to < from + len {
            assert_eq!(result, Err(Status::EINVAL));
            return;
        }
        assert_eq!(result, Ok(len));
        if len > 0 {
            let data = self.model[from as usize..(from + len) as usize].to_vec();
            self.put(to, &data);
        }
    }

    /// Holes may be fewer and smaller than the zeros, but no data may be in one.
    fn seek(&self, offset: u64) {
        let size = self.model.len() as u64;
        let data = self.client.data.seek(self.handle, offset, SeekKind::Data);
        let hole = self.client.data.seek(self.handle, offset, SeekKind::Hole);
        if offset >= size {
            assert_eq!((data, hole), (Err(Status::ENXIO), Err(Status::ENXIO)));
            return;
        }
        let skipped_to = data.unwrap_or(size);
        assert!(skipped_to >= offset && skipped_to <= size);
        assert!(self.model[offset as usize..skipped_to as usize].iter().all(|&byte| byte == 0));
        let hole = hole.expect("the end of the file is a hole");
        assert!(hole >= offset && hole <= size);
        assert!(hole == offset || skipped_to == offset, "every byte is data or hole");
    }
}

fn run(world: &World, sharers: usize, steps: &[Step]) {
    let client = world.client();
    let _others: Vec<_> = (0..sharers).map(|_| world.client()).collect();
    let (fid, handle) = create(&client, "file");
    let mut run = Run { client, fid, handle, model: Vec::new() };
    for step in steps {
        run.apply(step);
    }
    let all = read(&run.client, run.handle, 0, run.model.len() + 10);
    assert!(all == run.model, "the whole file after all steps");
    run.client.opens.release(run.handle).expect("open");
    // A new client sees the same.
    let fresh = world.client();
    let handle = open(&fresh, fid, OpenFlags::READ);
    assert!(read(&fresh, handle, 0, run.model.len() + 10) == run.model, "as another client sees it");
    let layout = world.mds.layout(fid);
    let has =
        |object: &Fid| layout.iter().flat_map(|layout| layout.objects()).any(|own| own.object == *object);
    let names = world.osts.iter().chain(&world.data).flat_map(|ost| ost.names());
    assert_eq!(names.filter(|name| !has(name)).count(), 0, "no object is nobody's");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, max_shrink_iters: 400, ..ProptestConfig::default() })]

    #[test]
    fn a_striped_file_is_a_vector_of_bytes(
        stripe_count in 1..5u16,
        sharers in 0..2usize,
        steps in proptest::collection::vec(step(), 1..40),
    ) {
        run(&World::new(65536, stripe_count), sharers, &steps);
    }

    #[test]
    fn a_file_whose_first_data_decides_where_it_begins_is_a_vector_of_bytes(
        stripe_count in 1..4u16,
        sharers in 0..2usize,
        steps in proptest::collection::vec(small_step(), 1..30),
    ) {
        run(&World::with_heads(65536, stripe_count), sharers, &steps);
    }
}
