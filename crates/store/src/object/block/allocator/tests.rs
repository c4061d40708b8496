//! The allocator against a bitmap, and its placement of data.

use super::*;
use proptest::prelude::*;

fn owner(oid: u32) -> Fid {
    Fid::ost_object(0, oid)
}

fn requested(oid: u32, blocks: u64) -> AllocationRequest {
    AllocationRequest { owner: owner(oid), after: None, blocks, is_stream: false }
}

/// State of a model: owner of each block.
struct Model {
    taken: Vec<bool>,
    pieces: Vec<Extent>,
}

#[derive(Clone, Debug)]
enum Step {
    Allocate { oid: u32, blocks: u64, is_stream: bool, goes_on: bool },
    Release { which: usize, part: u64 },
    CloseWindow { oid: u32 },
    CloseAll,
    Trim { max: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0u32..5, 1u64..700, any::<bool>(), any::<bool>()).prop_map(|(oid, blocks, is_stream, goes_on)| {
            Step::Allocate { oid, blocks, is_stream, goes_on }
        }),
        5 => (any::<usize>(), 1u64..300).prop_map(|(which, part)| Step::Release { which, part }),
        1 => (0u32..5).prop_map(|oid| Step::CloseWindow { oid }),
        1 => Just(Step::CloseAll),
        1 => (1u64..2000).prop_map(|max| Step::Trim { max }),
    ]
}

impl Model {
    fn apply(&mut self, allocator: &mut Allocator, step: &Step) {
        match *step {
            Step::Allocate { oid, blocks, is_stream, goes_on } => {
                let after = self.pieces.last().filter(|_| goes_on).map(Extent::end);
                let Some(got) =
                    allocator.allocate(AllocationRequest { owner: owner(oid), after, blocks, is_stream })
                else {
                    allocator.close_all_windows();
                    assert_eq!(allocator.free_blocks(), allocator.report().bytes / BLOCK);
                    if allocator.free_blocks() > 0 {
                        assert!(
                            allocator.allocate(requested(oid, 1)).map(|got| self.pieces.push(got)).is_some()
                        );
                        let got = *self.pieces.last().expect("just put there");
                        self.take(got);
                    }
                    return;
                };
                assert!(got.len >= 1 && got.len <= blocks);
                self.take(got);
                self.pieces.push(got);
            }
            Step::Release { which, part } => {
                if self.pieces.is_empty() {
                    return;
                }
                let which = which % self.pieces.len();
                let piece = self.pieces.swap_remove(which);
                let len = part.min(piece.len);
                let gone = Extent { start: piece.start, len };
                if len < piece.len {
                    self.pieces.push(Extent { start: gone.end(), len: piece.len - len });
                }
                self.taken[gone.start as usize..gone.end() as usize].fill(false);
                allocator.release(gone);
            }
            Step::CloseWindow { oid } => allocator.close_window(owner(oid)),
            Step::CloseAll => allocator.close_all_windows(),
            Step::Trim { max } => {
                if let Some(extent) = allocator.take_untold(max * 2 % 4000, max) {
                    let range = extent.start as usize..extent.end() as usize;
                    assert!(self.taken[range].iter().all(|taken| !taken), "blocks in use are not discarded");
                    allocator.told(extent, max % 3 != 0);
                }
            }
        }
    }

    fn take(&mut self, extent: Extent) {
        for block in extent.start..extent.end() {
            assert!(!std::mem::replace(&mut self.taken[block as usize], true), "block {block} given twice");
        }
    }

    fn free(&self) -> u64 {
        self.taken.iter().filter(|taken| !**taken).count() as u64
    }
}

proptest! {
    #[test]
    fn no_block_is_given_twice_or_lost(steps in proptest::collection::vec(step(), 1..120)) {
        let size = 4000;
        let mut allocator = Allocator::new(1, size, &[Extent { start: 1000, len: 10 }]);
        let mut taken = vec![false; size as usize];
        taken[0] = true;
        taken[1000..1010].fill(true);
        let mut model = Model { taken, pieces: Vec::new() };
        for step in &steps {
            model.apply(&mut allocator, step);
            prop_assert_eq!(allocator.free_blocks(), model.free());
            let (mut untold, mut at) = (0, 0);
            while let Some(extent) = allocator.untold.first_from(at) {
                (untold, at) = (untold + extent.len, extent.end());
            }
            prop_assert_eq!(allocator.untold_blocks(), untold);
        }
        allocator.close_all_windows();
        for piece in std::mem::take(&mut model.pieces) {
            allocator.release(piece);
        }
        let report = allocator.report();
        prop_assert_eq!(report.bytes, (size - 11) * BLOCK);
        prop_assert_eq!(report.count, 2, "free space comes together again");
    }

    #[test]
    fn the_same_calls_give_the_same_answers(steps in proptest::collection::vec(step(), 1..60)) {
        let run = || {
            let mut allocator = Allocator::new(1, 4000, &[]);
            let mut model = Model { taken: vec![false; 4000], pieces: Vec::new() };
            steps.iter().for_each(|step| model.apply(&mut allocator, step));
            model.pieces
        };
        prop_assert_eq!(run(), run());
    }
}

#[test]
fn objects_written_side_by_side_stay_in_few_pieces() {
    let mut allocator = Allocator::new(1, 1 << 20, &[]);
    let mut extents = vec![Vec::<Extent>::new(); 8];
    // 64 MiB each, 1 MiB at a time, alternating.
    for _ in 0..64 {
        for (oid, extents) in extents.iter_mut().enumerate() {
            let mut left = 256;
            while left > 0 {
                let after = extents.last().map(Extent::end);
                let requested =
                    AllocationRequest { owner: owner(oid as u32), after, blocks: left, is_stream: true };
                let got = allocator.allocate(requested).expect("room");
                left -= got.len;
                match extents.last_mut() {
                    Some(last) if last.end() == got.start => last.len += got.len,
                    _ => extents.push(got),
                }
            }
        }
    }
    for extents in &extents {
        assert!(extents.len() <= 8, "{} pieces", extents.len());
    }
}

#[test]
fn small_pieces_come_from_the_end_and_leave_the_rest_in_one_piece() {
    let mut allocator = Allocator::new(1, 100_000, &[]);
    let small: Vec<Extent> = (0..1000).map(|_| allocator.allocate(requested(1, 2)).expect("room")).collect();
    assert!(small.iter().all(|extent| extent.start >= 98_000));
    let large = allocator.allocate(requested(2, 5000)).expect("room");
    assert_eq!(large, Extent { start: 1, len: 5000 });
    small.iter().step_by(2).for_each(|extent| allocator.release(*extent));
    let again = allocator.allocate(requested(3, 2)).expect("room");
    assert!(again.start >= 98_000, "a hole of the right length is used first");
    assert_eq!(allocator.report().largest, (100_000 - 2000 - 5001) * BLOCK);
}

#[test]
fn idle_windows_are_given_up() {
    let mut allocator = Allocator::new(1, 100_000, &[]);
    let stream = |oid| AllocationRequest { is_stream: true, ..requested(oid, 10) };
    allocator.allocate(stream(1)).expect("room");
    let before = allocator.close_windows(0);
    allocator.allocate(stream(2)).expect("room");
    let free = allocator.free_blocks();
    allocator.close_windows(before);
    assert_eq!(allocator.windows.keys().copied().collect::<Vec<_>>(), [owner(2)]);
    assert_eq!(allocator.free_blocks(), free);
}

#[test]
fn freed_space_is_told_once() {
    let mut allocator = Allocator::new(1, 1001, &[]);
    let mut told = 0;
    while let Some(extent) = allocator.take_untold(0, 300) {
        assert_eq!(allocator.free_blocks(), 1000);
        told += extent.len;
        allocator.told(extent, true);
    }
    assert_eq!(told, 1000);
    let got = allocator.allocate(requested(1, 100)).expect("room");
    assert_eq!(allocator.take_untold(0, 1000), None);
    allocator.release(got);
    assert_eq!(allocator.take_untold(0, 1000), Some(got));
}

#[test]
fn moved_data_gets_the_tightest_extent_and_leaves_the_longest_one_alone() {
    // Free: 100, 300, 260 and 40,000 blocks.
    let used = [
        Extent { start: 101, len: 10 },
        Extent { start: 411, len: 10 },
        Extent { start: 681, len: 10 },
        Extent { start: 40_691, len: 10 },
    ];
    let mut allocator = Allocator::new(1, 40_701, &used);
    assert_eq!(allocator.take_whole(256, None), Some(Extent { start: 421, len: 256 }));
    assert_eq!(allocator.take_whole(256, None), Some(Extent { start: 111, len: 256 }));
    assert_eq!(allocator.take_whole(60, Some(1)), Some(Extent { start: 1, len: 60 }), "goes on if it can");
    let rest = Extent { start: 61, len: 40 };
    assert_eq!(allocator.take_whole(40, None), Some(Extent { start: rest.start, len: 40 }));
    // Only the longest extent is left: a quarter of it and no more.
    assert_eq!(allocator.take_whole(10_001, None), None);
    assert_eq!(allocator.take_whole(10_001, Some(691)), None);
    assert_eq!(allocator.take_whole(10_000, None), Some(Extent { start: 691, len: 10_000 }));
    assert_eq!(allocator.free_blocks(), 4 + 44 + 30_000);
}

#[test]
fn small_moved_data_is_packed_at_the_end_of_an_extent() {
    let mut allocator = Allocator::new(1, 10_001, &[]);
    assert_eq!(allocator.take_whole(5, None), Some(Extent { start: 9996, len: 5 }));
    assert_eq!(allocator.take_whole(5, None), Some(Extent { start: 9991, len: 5 }));
    assert_eq!(allocator.report().count, 1);
}
