//! Tests of read-ahead.

use crate::{READ_WRITE, World, create, open, read, root, write};
use nacre_client::{Client, Counter, OpenFlags};
use nacre_env::clock::Instant;
use nacre_types::{Fid, SetAttr, SetAttrValid};
use std::sync::atomic::Ordering;
use std::time::Duration;

const PAGE: usize = 4096;
const MIB: usize = 1 << 20;

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at / 97) as u8 ^ (at as u8).wrapping_mul(7) ^ seed).collect()
}

/// Creates a file of `len` bytes, open for reading and writing, all of which are on the OSTs.
fn filled(client: &Client, name: &str, len: usize) -> (Fid, u64, Vec<u8>) {
    let (fid, handle) = create(client, name);
    let data = pattern(len, 0);
    for (index, piece) in data.chunks(MIB).enumerate() {
        assert_eq!(write(client, handle, (index * MIB) as u64, piece), Ok(piece.len()));
    }
    client.data.fsync(handle).expect("synced");
    (fid, handle, data)
}

fn requests(world: &World) -> u64 {
    world.osts.iter().map(|ost| ost.reads.load(Ordering::Relaxed)).sum()
}

/// Waits until fetches for which no reader waits have freed their memory.
fn assert_memory_comes_back(client: &Client) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while client.read_ahead.read_ahead_bytes() > 0 {
        assert!(Instant::now() < deadline, "{} bytes are left", client.read_ahead.read_ahead_bytes());
        nacre_env::thread::yield_now();
    }
}

#[test]
fn small_reads_in_a_row_cost_few_requests_and_no_memory_afterwards() {
    let world = World::new(1 << 20, 2);
    let client = world.client();
    let (_, handle, data) = filled(&client, "file", 9 * MIB + 100);
    let before = requests(&world);
    for offset in (0..data.len()).step_by(PAGE) {
        let expected = &data[offset..data.len().min(offset + PAGE)];
        assert!(read(&client, handle, offset as u64, PAGE) == expected, "at {offset}");
    }
    // Two before the window opens, one for each MiB, and a few whose fetch was not planned in time.
    assert!(requests(&world) - before < 30, "{} requests", requests(&world) - before);
    assert!(client.read_ahead.read_ahead_stats().get(Counter::Hits) > 2000);
    client.opens.release(handle).expect("open");
    assert_memory_comes_back(&client);
}

#[test]
fn a_failed_fetch_is_told_to_nobody() {
    let world = World::new(1 << 20, 1);
    let client = world.client();
    let (_, handle, data) = filled(&client, "file", 8 * MIB);
    assert!(read(&client, handle, 0, PAGE) == data[..PAGE]);
    world.osts[0].fail_large_reads.store(true, Ordering::Relaxed);
    for offset in (PAGE..data.len()).step_by(PAGE) {
        assert!(read(&client, handle, offset as u64, PAGE) == data[offset..offset + PAGE]);
    }
    assert_eq!(client.read_ahead.read_ahead_stats().get(Counter::Hits), 0);
}

#[test]
fn random_reads_fetch_nothing() {
    let world = World::new(1 << 20, 1);
    let client = world.client();
    let (_, handle, _) = filled(&client, "file", 16 * MIB);
    let before = requests(&world);
    for index in 0..200u64 {
        read(&client, handle, index * 2_654_435_761 % 4000 * PAGE as u64, 100);
    }
    assert_eq!((requests(&world) - before, client.read_ahead.read_ahead_bytes()), (200, 0));
    assert!(client.read_ahead.read_ahead_stats().get(Counter::NotConsecutive) > 150);
}

#[test]
fn parameters_switch_it_off_and_bound_its_memory() {
    let world = World::new(1 << 20, 1);
    let client = world.client();
    let (fid, handle, data) = filled(&client, "file", 16 * MIB);
    let walk = |handle, step: usize| {
        let mut most = 0;
        for offset in (0..data.len()).step_by(step) {
            assert!(read(&client, handle, offset as u64, step) == data[offset..offset + step]);
            most = most.max(client.read_ahead.read_ahead_bytes());
        }
        most
    };
    client.tunables.set_max_read_ahead_mb(2).expect("in range");
    let most = walk(handle, PAGE);
    assert!(most > 0 && most <= 2 * MIB as u64, "{most}");
    client.tunables.set_max_read_ahead_async_active(0).expect("in range");
    client.opens.release(handle).expect("open");
    assert_memory_comes_back(&client);
    let handle = open(&client, fid, READ_WRITE);
    let before = requests(&world);
    assert_eq!(walk(handle, 64 << 10), 0);
    assert_eq!(requests(&world) - before, 256);
}

#[test]
fn no_more_data_is_kept_than_max_cached_mb_and_a_lower_bound_counts_at_once() {
    let world = World::new(1 << 20, 1);
    let client = world.client();
    let (_, handle, data) = filled(&client, "file", 16 * MIB);
    // Data that is held back already stays until it is written.
    client.data.fsync(handle).expect("synced");
    client.write_back.set_max_cached_mb(2).expect("in range");
    for offset in (0..64 * PAGE).step_by(PAGE) {
        assert!(read(&client, handle, offset as u64, PAGE) == data[offset..offset + PAGE]);
        assert!(client.write_back.cached_bytes() <= 2 * MIB as u64);
    }
    assert!(client.read_ahead.read_ahead_bytes() > 0);
    client.write_back.set_max_cached_mb(0).expect("in range");
    assert_memory_comes_back(&client);
    assert!(client.tunables.reclaims() > 0);
    client.write_back.set_max_cached_mb(2).expect("in range");
    let (_, other) = create(&client, "other");
    for offset in (0..3 * MIB).step_by(PAGE) {
        assert_eq!(write(&client, other, offset as u64, &[7; PAGE]), Ok(PAGE));
        assert!(client.write_back.cached_bytes() <= 2 * MIB as u64);
    }
    client.data.fsync(other).expect("synced");
    assert!(client.write_back.write_back_stats().rpcs > 0, "{:?}", client.write_back.write_back_stats());
    assert_eq!(client.write_back.set_max_cached_mb(u64::MAX), Err(nacre_types::Status::ERANGE));
}

#[test]
fn nothing_is_kept_when_the_lease_is_shared() {
    let world = World::new(1 << 20, 1);
    let client = world.client();
    let (fid, handle, data) = filled(&client, "file", 8 * MIB);
    for offset in (0..MIB).step_by(PAGE) {
        read(&client, handle, offset as u64, PAGE);
    }
    let other = world.client();
    let theirs = open(&other, fid, READ_WRITE);
    write(&other, theirs, MIB as u64, &[0xee; 3 * MIB]).expect("written");
    for offset in (MIB..4 * MIB).step_by(PAGE) {
        assert!(read(&client, handle, offset as u64, PAGE) == [0xee; PAGE], "at {offset}");
    }
    assert!(read(&client, handle, 4 * MIB as u64, MIB) == data[4 * MIB..5 * MIB]);
    other.opens.release(theirs).expect("open");
}

/// Checks sequential reads, with writes, truncations and holes in between, by two opens of one file, against
/// a vector.
#[test]
fn readers_see_every_change_made_here() {
    let world = World::new(256 << 10, 3);
    let client = world.client();
    let (fid, writer, mut model) = filled(&client, "file", 6 * MIB);
    let reader = open(&client, fid, OpenFlags::READ);
    let mut numbers = fastrand::Rng::with_seed(1);
    let mut random = move |below: usize| numbers.usize(..below.max(1));
    let mut position = 0;
    for step in 0..6000u32 {
        match random(100) {
            0..=89 => {
                let len = 1 + random(3 * PAGE);
                let end = (position + len).min(model.len());
                let got = read(&client, reader, position as u64, len);
                assert!(got == model[position.min(end)..end], "step {step}, {position} + {len}");
                position = if got.is_empty() { 0 } else { position + got.len() };
            }
            90..=96 => {
                // Close to the reader, where data was fetched already.
                let at = position + random(2 * MIB);
                let data = pattern(1 + random(100_000), step as u8);
                if at + data.len() > 8 * MIB {
                    continue;
                }
                assert_eq!(write(&client, writer, at as u64, &data), Ok(data.len()));
                model.resize(model.len().max(at + data.len()), 0);
                model[at..at + data.len()].copy_from_slice(&data);
            }
            97 => {
                let size = (position + random(2 * MIB)).min(8 * MIB);
                let set = SetAttr { size: size as u64, valid: SetAttrValid::SIZE, ..SetAttr::default() };
                client.names.setattr(&root(), fid, set).expect("cut");
                model.resize(size, 0);
            }
            98 => {
                let (at, len) = (position + random(MIB), 1 + random(300_000));
                let kind = nacre_client::FallocateKind::Punch;
                client.data.fallocate(&root(), writer, kind, at as u64, len as u64).expect("punched");
                let end = (at + len).min(model.len());
                model[at.min(end)..end].fill(0);
            }
            _ => position = random(model.len()),
        }
    }
    assert!(client.read_ahead.read_ahead_stats().get(Counter::Hits) > 1000);
    client.opens.release(reader).expect("open");
    client.opens.release(writer).expect("open");
    assert_memory_comes_back(&client);
}
