//! Counting and the text of `rpc_stats`.

use super::*;

fn at(seconds: u64) -> u64 {
    seconds * 1_000_000_000 + 5
}

#[test]
fn rows_are_powers_of_two() {
    let rows: Vec<usize> = [0, 1, 2, 3, 4, 5, 256, 257].iter().map(|&value| power_row(value)).collect();
    assert_eq!(rows, [0, 0, 1, 2, 2, 3, 8, 9]);
    let rows: Vec<usize> = [0, 1, 2, 3, 4, 255, 256].iter().map(|&value| bit_row(value)).collect();
    assert_eq!(rows, [0, 1, 2, 2, 3, 8, 9]);
}

#[test]
fn requests_are_counted_by_size_depth_and_place() {
    let stats = RpcStats::default();
    let first = stats.begin(Direction::Write, 0, 1 << 20);
    let second = stats.begin(Direction::Write, 1 << 20, 4096);
    assert_eq!(stats.in_flight(Direction::Write), 2);
    drop(first);
    let third = stats.begin(Direction::Write, 4095, 2);
    drop((second, third));
    assert_eq!((stats.in_flight(Direction::Write), stats.in_flight(Direction::Read)), (0, 0));
    let [read, write] = stats.pages_per_rpc();
    assert_eq!(read, [0; ROWS]);
    assert_eq!((write[0], write[1], write[8]), (1, 1, 1), "one page, a border between two, 256 pages");
    let [_, depth] = stats.rpcs_in_flight();
    assert_eq!((depth[1], depth[2]), (1, 2));
    let averages = stats.averages(Direction::Write);
    assert_eq!((averages.rpcs, averages.bytes), (3, (1 << 20) + 4098));
    stats.clear();
    assert_eq!(stats.pages_per_rpc(), Rows::default());
    assert_eq!(stats.averages(Direction::Write), Averages::default());
}

#[test]
fn the_last_row_takes_all_that_is_beyond() {
    let stats = RpcStats::default();
    let held: Vec<_> = (0..40).map(|_| stats.begin(Direction::Read, u64::MAX, 1)).collect();
    assert_eq!(stats.rpcs_in_flight()[0][ROWS - 1], 40 - 30);
    drop(held);
}

#[test]
fn counts_of_all_threads_add_up() {
    let stats = RpcStats::default();
    nacre_env::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| (0..1000).for_each(|_| drop(stats.begin(Direction::Read, 0, 4096))));
        }
    });
    assert_eq!(stats.pages_per_rpc()[0][0], 6000);
    assert_eq!(stats.in_flight(Direction::Read), 0);
}

#[test]
fn rpc_stats_has_the_text_form_of_lustre() {
    let stats = RpcStats::default();
    let empty = stats.text_at(at(200), at(100), Pending::default());
    let table = |title: &str, unit: &str, row: &str| {
        format!(
            "\n\t\t\tread\t\t\twrite\n\
             {title}{unit}   % cum % |       {unit}   % cum %\n\
             {row}:\t\t         0   0   0   |          0   0   0\n"
        )
    };
    let head = "snapshot_time:            200.000000005 secs.nsecs\n\
                start_time:               100.000000005 secs.nsecs\n\
                elapsed_time:             100.000000000 secs.nsecs\n\
                read RPCs in flight:  0\nwrite RPCs in flight: 0\nDIO RPCs in flight: 0\n\
                pending write pages:  0\npending read pages:   0\n";
    let tables = [
        table("pages per rpc         ", "rpcs", "1"),
        table("rpcs in flight        ", "rpcs", "1"),
        table("offset                ", "rpcs", "0"),
        table("RPC latency (us)       ", "count", "0"),
    ];
    assert_eq!(empty, format!("{head}{}", tables.concat()));
}

#[test]
fn rpc_stats_shows_counts_percentages_and_sums() {
    let stats = RpcStats::default();
    for pages in [1u64, 1, 4] {
        drop(stats.begin(Direction::Read, 0, pages * 4096));
    }
    let held = stats.begin(Direction::Write, 8192, 4096);
    let text = stats.text_at(at(2), at(1), Pending { dio_rpcs: 1, write_pages: 7, read_pages: 9 });
    for line in [
        "write RPCs in flight: 1\n",
        "DIO RPCs in flight: 1\npending write pages:  7\npending read pages:   9\n",
        "pages per rpc         rpcs   % cum % |       rpcs   % cum %\n\
         1:\t\t         2  66  66   |          1 100 100\n\
         2:\t\t         0   0  66   |          0   0 100\n\
         4:\t\t         1  33 100   |          0   0 100\n\n",
        "rpcs in flight        rpcs   % cum % |       rpcs   % cum %\n\
         1:\t\t         3 100 100   |          1 100 100\n\n",
        "offset                rpcs   % cum % |       rpcs   % cum %\n\
         0:\t\t         3 100 100   |          0   0   0\n\
         1:\t\t         0   0 100   |          0   0   0\n\
         2:\t\t         0   0 100   |          1 100 100\n\n",
    ] {
        assert!(text.contains(line), "{line:?} is not in\n{text}");
    }
    drop(held);
}
