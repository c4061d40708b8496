use super::*;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;
const LIMITS: Limits = Limits { rpc_bytes: MIB, window_bytes: 8 * MIB, whole_bytes: 4 * MIB };

/// Reads pieces of `len` from `start`, `step` apart, and returns the planned ranges.
fn run(reader: &mut Reader, start: u64, len: u64, step: i64, count: u64, size: u64) -> Vec<Range<u64>> {
    let offset = |index: u64| start.wrapping_add_signed(step * index as i64);
    (0..count)
        .flat_map(|index| {
            let plan = reader.on_read(offset(index), len, size, &LIMITS);
            plan.ranges().collect::<Vec<_>>()
        })
        .collect()
}

fn one(range: Range<u64>) -> Vec<Range<u64>> {
    std::iter::once(range).collect()
}

#[test]
fn the_second_read_in_a_row_opens_the_window() {
    let mut reader = Reader::default();
    assert_eq!(run(&mut reader, 0, 4096, 4096, 1, 100 * MIB), []);
    assert_eq!(run(&mut reader, 4096, 4096, 4096, 1, 100 * MIB), one(8192..MIB));
    // The next RPC is planned when the reader comes near it, once.
    let planned = run(&mut reader, 8192, 4096, 4096, 254, 100 * MIB);
    assert_eq!(planned, one(MIB..2 * MIB));
}

#[test]
fn reads_in_the_middle_of_a_file_are_followed_too() {
    let mut reader = Reader::default();
    assert_eq!(run(&mut reader, 50 * MIB, 4096, 4096, 1, 100 * MIB), []);
    let planned = run(&mut reader, 50 * MIB + 4096, 4096, 4096, 1, 100 * MIB);
    assert_eq!(planned, one(50 * MIB + 8192..51 * MIB));
}

#[test]
fn the_window_grows_only_while_somebody_waits() {
    let mut reader = Reader::default();
    let without = run(&mut reader, 0, MIB, MIB as i64, 20, 1000 * MIB);
    assert_eq!(without.last().map(|range| range.end), Some(21 * MIB));
    let mut end = 0;
    for index in 20..60 {
        reader.on_wait();
        let plan = reader.on_read(index * MIB, MIB, 1000 * MIB, &LIMITS);
        end = plan.ranges().last().map_or(end, |range| range.end);
    }
    assert_eq!(end, 60 * MIB + LIMITS.window_bytes);
}

#[test]
fn reads_that_outrun_the_window_expect_only_what_was_planned() {
    let mut reader = Reader::default();
    run(&mut reader, 0, MIB, MIB as i64, 2, 1000 * MIB);
    assert!(reader.is_inside(2 * MIB) && !reader.is_inside(3 * MIB));
    // Two reads of 8 MiB: the window is behind the first one, then behind the second one.
    run(&mut reader, 2 * MIB, 8 * MIB, 8 * MIB as i64, 2, 1000 * MIB);
    assert!(!reader.is_inside(11 * MIB) && !reader.is_inside(17 * MIB) && reader.is_inside(18 * MIB));
}

#[test]
fn a_small_file_is_fetched_whole_once() {
    let mut reader = Reader::default();
    assert_eq!(run(&mut reader, 0, 4096, 4096, 100, 3 * MIB), one(8192..3 * MIB));
}

#[test]
fn random_reads_plan_nothing_and_close_the_window() {
    let mut reader = Reader::default();
    assert!(!run(&mut reader, 0, 4096, 4096, 3, 100 * MIB).is_empty());
    let plan = reader.on_read(70 * MIB, 4096, 100 * MIB, &LIMITS);
    assert!(plan.reset && plan.count == 0 && plan.pattern == Pattern::Random);
    let plan = reader.on_read(30 * MIB, 4096, 100 * MIB, &LIMITS);
    assert!(!plan.reset && plan.count == 0, "there was nothing left to give up");
}

#[test]
fn pieces_of_large_reads_may_arrive_in_any_order() {
    let mut reader = Reader::default();
    for offset in [0, 2, 1, 3, 5, 4, 6] {
        assert!(!reader.on_read(offset * MIB, MIB, 100 * MIB, &LIMITS).reset);
    }
    assert!(reader.is_inside(7 * MIB));
}

#[test]
fn strides_fetch_only_what_is_wanted() {
    let mut reader = Reader::default();
    let planned = run(&mut reader, 0, 47_008, 94_016, 6, 100 * MIB);
    assert!(planned.len() > 10);
    for range in &planned {
        assert_eq!((range.start % 94_016, range.end - range.start), (0, 47_008));
        assert!(range.start >= 3 * 94_016);
    }
}

#[test]
fn a_reader_that_goes_backward_finds_what_lies_before() {
    let mut reader = Reader::default();
    let planned = run(&mut reader, 50 * MIB, 4096, -4096, 300, 100 * MIB);
    let low = planned.iter().map(|range| range.start).min();
    assert_eq!(low, Some(48 * MIB));
    assert!(planned.iter().all(|range| range.end < 50 * MIB));
}

#[test]
fn a_stride_that_overflows_is_no_stride() {
    let mut reader = Reader::default();
    for offset in [0, u64::MAX / 3, u64::MAX / 3 * 2, u64::MAX - 1] {
        let plan = reader.on_read(offset, u64::MAX, u64::MAX, &LIMITS);
        assert!(plan.ranges().all(|range| range.start <= range.end));
    }
}

proptest! {
    /// For any sequence of reads, plans stay inside the file and the window, and no range ahead of the reader
    /// is planned twice in a run.
    #[test]
    fn plans_stay_inside_the_file_and_the_window(
        reads in prop::collection::vec((0u64..64, 1u64..300, any::<bool>(), any::<bool>()), 1..200),
        size in 0u64..200 * MIB,
    ) {
        let mut reader = Reader::default();
        let mut position = 0;
        for (jump, pages, go_on, wait) in reads {
            let len = pages * 4096;
            let offset = if go_on { position } else { jump * 3 * MIB };
            if offset >= size {
                continue;
            }
            if wait {
                reader.on_wait();
            }
            let plan = reader.on_read(offset, len, size, &LIMITS);
            position = (offset + len).min(size);
            let mut total = 0;
            for range in plan.ranges() {
                prop_assert!(range.start < range.end && range.end <= size, "{range:?} of {size}");
                total += range.end - range.start;
            }
            prop_assert!(total <= LIMITS.window_bytes.max(LIMITS.whole_bytes) + MIB);
        }
    }

    /// If a file is read from its start to its end, every byte behind the second read is planned once, in
    /// order.
    #[test]
    fn a_sequential_reader_has_everything_planned_once(
        pages in 1u64..600, size in 5 * MIB..40 * MIB, waits in prop::collection::vec(any::<bool>(), 64),
    ) {
        let len = pages * 4096;
        let mut reader = Reader::default();
        let (mut offset, mut expected) = (0, None);
        for index in 0.. {
            if offset >= size {
                break;
            }
            if waits[index % waits.len()] {
                reader.on_wait();
            }
            let plan = reader.on_read(offset, len, size, &LIMITS);
            offset += len;
            for range in plan.ranges() {
                let from = expected.unwrap_or(offset);
                prop_assert_eq!(range.start, from.max(offset));
                expected = Some(range.end);
            }
        }
        // Larger reads may reach the end before the window does.
        prop_assert!(expected == Some(size) || len * 2 > LIMITS.rpc_bytes);
    }
}
