//! Conformance tests that every object store has to pass, for any back end.
//!
//! [`run`] takes a way to open a store in a directory and panics with the name of the case that fails.

use super::{Advice, Fallocate, Ids, ObjectAttr, ObjectError, ObjectStore, Seek};
use nacre_types::{Fid, Status};
use std::collections::HashMap;
use std::path::Path;

/// Opens the store in a directory, creating it if there is none.
pub type Open<'a> = &'a dyn Fn(&Path) -> Box<dyn ObjectStore>;

/// Name and body of a case.
type Case = (&'static str, fn(&Path, Open<'_>));

/// Returns an object id of the tests.
fn fid(oid: u32) -> Fid {
    Fid::ost_object(0, oid)
}

const SEQUENCE: u64 = nacre_types::fid::SEQ_IDIF;

/// Runs all cases, each in a directory of its own below `dir`.
///
/// # Panics
/// If the store does not conform.
pub fn run(dir: &Path, open: Open<'_>) {
    run_without_ids(dir, open);
    run_cases(
        dir,
        open,
        &[
            ("ids-are-reserved-once", ids_are_reserved_once),
            ("orphans-are-destroyed-and-their-ids-not-reused", orphans_are_destroyed),
        ],
    );
}

/// Runs all cases for a store that does not allocate the ids of its objects.
///
/// # Panics
/// If the store does not conform.
pub fn run_without_ids(dir: &Path, open: Open<'_>) {
    let cases: &[Case] = &[
        ("missing-objects-are-empty", missing_objects_are_empty),
        ("reads-return-what-was-written", reads_return_what_was_written),
        ("holes-read-as-zeros", holes_read_as_zeros),
        ("advice-changes-no-data", advice_changes_no_data),
        ("truncation-cuts-and-extends-with-zeros", truncation_cuts_and_extends_with_zeros),
        ("ranges-are-allocated-punched-and-zeroed", ranges_are_allocated_punched_and_zeroed),
        ("impossible-ranges-are-refused", impossible_ranges_are_refused),
        ("seek-finds-data-and-holes", seek_finds_data_and_holes),
        ("destroyed-objects-are-gone", destroyed_objects_are_gone),
        ("new-objects-never-show-old-bytes", new_objects_never_show_old_bytes),
        ("everything-is-there-after-reopening", everything_is_there_after_reopening),
        ("threads-do-not-disturb-each-other", threads_do_not_disturb_each_other),
        ("destroying-while-writing-is-safe", destroying_while_writing_is_safe),
        ("a-closed-store-refuses-changes", a_closed_store_refuses_changes),
        ("random-operations-match-a-model", random_operations_match_a_model),
    ];
    run_cases(dir, open, cases);
}

fn run_cases(dir: &Path, open: Open<'_>, cases: &[Case]) {
    for (name, case) in cases {
        let dir = dir.join(name);
        println!("case {name}");
        case(&dir, open);
    }
}

fn ids(store: &dyn ObjectStore) -> &dyn Ids {
    store.abilities().ids.expect("it gives out ids")
}

/// Reserves ids where the store allocates them.
fn set_aside(store: &dyn ObjectStore, count: u32) {
    if let Some(ids) = store.abilities().ids {
        match ids.reserve(SEQUENCE, count) {
            Ok(_) | Err(ObjectError::SequenceFull(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Gives advice, where the store takes it.
fn advise(store: &dyn ObjectStore, offset: u64, len: u64, advice: Advice) -> Result<(), ObjectError> {
    store.abilities().advise.map_or(Ok(()), |able| able.advise(fid(1), offset, len, advice))
}

fn objects_of(store: &dyn ObjectStore) -> u64 {
    store.verify(false, &mut |_| {}).expect("verify runs").objects
}

fn assert_verifies(store: &dyn ObjectStore) {
    let report = store.verify(false, &mut |_| {}).expect("verify runs");
    assert!(report.is_clean(), "{report:?}");
}

fn read(store: &dyn ObjectStore, object: Fid, offset: u64, len: usize) -> Vec<u8> {
    let mut buffer = vec![0xee; len];
    let read = store.read(object, offset, &mut buffer, 0).expect("read");
    buffer.truncate(read);
    buffer
}

fn size(store: &dyn ObjectStore, object: Fid) -> u64 {
    store.attr(object).expect("attr").size
}

fn status<T: std::fmt::Debug>(result: Result<T, ObjectError>) -> Status {
    result.expect_err("refused").status()
}

fn missing_objects_are_empty(dir: &Path, open: Open<'_>) {
    let store = open(dir);
    assert_eq!(store.attr(fid(1)).expect("attr"), ObjectAttr::default());
    assert_eq!(read(&*store, fid(1), 0, 10), b"");
    assert_eq!(read(&*store, fid(1), u64::MAX, 10), b"");
    assert_eq!(status(store.seek(fid(1), 0, Seek::Data)), Status::ENXIO);
    store.sync(fid(1)).expect("nothing to sync");
    store.write(fid(1), 5, b"").expect("nothing written");
    assert_eq!(store.truncate(fid(1), 0).expect("cut"), ObjectAttr::default());
    assert_eq!(store.fallocate(fid(1), Fallocate::Punch, 0, 5).expect("punch"), ObjectAttr::default());
    assert_eq!(store.destroy(&[fid(1), fid(2)]).expect("skipped"), 0);
    assert_eq!(objects_of(&*store), 0);
    assert_verifies(&*store);
}

fn reads_return_what_was_written(dir: &Path, open: Open<'_>) {
    let store = open(dir);
    set_aside(&*store, 10);
    store.write(fid(1), 0, b"hello, world").expect("write");
    store.write(fid(1), 7, b"there").expect("overwrite");
    assert_eq!(read(&*store, fid(1), 0, 100), b"hello, there");
    assert_eq!(read(&*store, fid(1), 7, 3), b"the");
    assert_eq!(read(&*store, fid(1), 12, 3), b"");
    assert_eq!(read(&*store, fid(2), 0, 3), b"", "another object");
    let attr = store.attr(fid(1)).expect("attr");
    assert_eq!(attr.size, 12);
    assert!(attr.mtime.is_some());
    assert_verifies(&*store);
}

fn advice_changes_no_data(dir: &Path, open: Open<'_>) {
    let store = open(dir);
    for advice in [Advice::WillRead, Advice::DontNeed] {
        advise(&*store, 0, 4096, advice).expect("what does not exist needs nothing");
    }
    let data: Vec<u8> = (0..300_000u32).map(|at| at as u8).collect();
    assert_eq!(store.write(fid(1), 0, &data).expect("written"), data.len());
    for (advice, offset, len) in [
        (Advice::DontNeed, 0, 300_000),
        (Advice::WillRead, 4096, 100_000),
        (Advice::DontNeed, 5000, 1),
        (Advice::WillRead, 0, 1 << 40),
        (Advice::DontNeed, 1 << 30, 4096),
    ] {
        advise(&*store, offset, len, advice).expect("advice");
        let mut found = vec![0; data.len()];
        assert_eq!(store.read(fid(1), 0, &mut found, 0).expect("read"), data.len());
        assert!(found == data, "{advice:?}");
    }
    let can_advise = store.abilities().advise.is_some();
    assert_eq!(advise(&*store, u64::MAX, 2, Advice::WillRead).is_err(), can_advise);
}

fn holes_read_as_zeros(dir: &Path, open: Open<'_>) {
    let store = open(dir);
    set_aside(&*store, 10);
    store.write(fid(1), 1 << 30, b"end").expect("write");
    assert_eq!(size(&*store, fid(1)), (1 << 30) + 3);
    assert_eq!(read(&*store, fid(1), (1 << 30) - 5, 100), b"\0\0\0\0\0end");
    assert_eq!(read(&*store, fid(1), 0, 4096), [0; 4096]);
    let blocks = store.attr(fid(1)).expect("attr").blocks;
    assert!(blocks < 4096, "a hole takes no space: {blocks} blocks");
}

fn truncation_cuts_and_extends_with_zeros(dir: &Path, open: Open<'_>) {
    let store = open(dir);
    set_aside(&*store, 10);
    store.write(fid(1), 0, b"0123456789").expect("write");
    assert_eq!(store.truncate(fid(1), 4).expect("cut").size, 4);
    assert_eq!(store.truncate(fid(1), 8).expect("extend").size, 8);
    assert_eq!(read(&*store, fid(1), 0, 20), b"0123\0\0\0\0");
    assert_eq!(store.truncate(fid(2), 3).expect("makes the object").size, 3);
    assert_eq!(read(&*store, fid(2), 0, 20), b"\0\0\0");
    assert_eq!(objects_of(&*store), 2);
}

fn ranges_are_allocated_punched_and_zeroed(dir: &Path, open: Open<'_>) {
    let store = open(dir);
    set_aside(&*store, 10);
    let object = fid(1);
    let keep = Fallocate::Allocate { keep_size: true };
    let attr = store.fallocate(object, keep, 0, 1 << 20).expect("allocate");
    assert_eq!(attr.size, 0);
    assert!(attr.blocks >= 2048);
    let attr =
        store.fallocate(object, Fallocate::Allocate { keep_size: false }, 0, 100_000).expect("allocate");
    assert_eq!(attr.size, 100_000);
    store.write(object, 0, &[7; 100_000]).expect("write");
    assert_eq!(store.fallocate(object, Fallocate::Punch, 4096, 8192).expect("punch").size, 100_000);
    assert_eq!(read(&*store, object, 4095, 8194), [&[7][..], &[0; 8192], &[7]].concat());
    store.fallocate(object, Fallocate::Zero { keep_size: true }, 50_000, 100_000).expect("zero");
    assert_eq!(size(&*store, object), 100_000);
    assert_eq!(read(&*store, object, 49_999, 100_000), [&[7][..], &[0; 50_000]].concat());
    let attr = store.fallocate(object, Fallocate::Zero { keep_size: false }, 99_000, 2000).expect("zero");
    assert_eq!(attr.size, 101_000);
}

fn impossible_ranges_are_refused(dir: &Path, open: Open<'_>) {
    let store = open(dir);
    set_aside(&*store, 10);
    store.write(fid(1), 0, b"x").expect("write");
    for object in [fid(1), fid(2)] {
        assert_eq!(status(store.write(object, u64::MAX, b"ab")), Status::EFBIG);
        assert_eq!(status(store.write(object, i64::MAX as u64, b"a")), Status::EFBIG);
        assert_eq!(status(store.truncate(object, u64::MAX)), Status::EFBIG);
        let all = Fallocate::Allocate { keep_size: false };
        assert_eq!(status(store.fallocate(object, all, u64::MAX, u64::MAX)), Status::EFBIG);
        assert_eq!(status(store.fallocate(object, all, 0, 0)), Status::EINVAL);
        assert_eq!(read(&*store, object, u64::MAX - 2, 100), b"");
        assert_eq!(read(&*store, object, i64::MAX as u64 - 2, 100), b"");
    }
    assert_eq!(size(&*store, fid(1)), 1);
    assert_eq!(store.attr(fid(2)).expect("attr"), ObjectAttr::default(), "a refused write makes no object");
}

fn seek_finds_data_and_holes(dir: &Path, open: Open<'_>) {
    let store = open(dir);
    set_aside(&*store, 10);
    let mib = 1 << 20;
    store.write(fid(1), mib, &vec![1; mib as usize]).expect("write");
    store.truncate(fid(1), 4 * mib).expect("extend");
    assert_eq!(store.seek(fid(1), 0, Seek::Hole).expect("hole"), 0);
    assert_eq!(store.seek(fid(1), 0, Seek::Data).expect("data"), mib);
    assert_eq!(store.seek(fid(1), mib + 5, Seek::Data).expect("data"), mib + 5);
    assert_eq!(store.seek(fid(1), mib + 5, Seek::Hole).expect("hole"), 2 * mib);
    assert_eq!(status(store.seek(fid(1), 2 * mib, Seek::Data)), Status::ENXIO);
    assert_eq!(status(store.seek(fid(1), 4 * mib, Seek::Hole)), Status::ENXIO);
    assert_eq!(status(store.seek(fid(1), u64::MAX, Seek::Data)), Status::ENXIO);
    store.write(fid(2), 0, b"solid").expect("write");
    assert_eq!(store.seek(fid(2), 0, Seek::Hole).expect("the end is a hole"), 5);
}

fn destroyed_objects_are_gone(dir: &Path, open: Open<'_>) {
    let store = open(dir);
    set_aside(&*store, 1000);
    let objects: Vec<Fid> = (1..=300).map(fid).collect();
    for &object in &objects {
        store.write(object, 0, &[1; 5000]).expect("write");
    }
    assert_eq!(objects_of(&*store), 300);
    let mut doomed = objects[..200].to_vec();
    doomed.extend([fid(1), fid(900)]);
    assert_eq!(store.destroy(&doomed).expect("destroy"), 200);
    for (i, &object) in objects.iter().enumerate() {
        let attr = store.attr(object).expect("attr");
        assert_eq!(attr.size, if i < 200 { 0 } else { 5000 }, "{object}");
        assert_eq!(attr.mtime.is_none(), i < 200);
    }
    assert_eq!(objects_of(&*store), 100);
    assert_eq!(store.destroy(&doomed).expect("again"), 0);
    assert_verifies(&*store);
}

fn new_objects_never_show_old_bytes(dir: &Path, open: Open<'_>) {
    let store = open(dir);
    set_aside(&*store, 10_000);
    for round in 0..20u32 {
        let objects: Vec<Fid> = (round * 20 + 1..=round * 20 + 20).map(fid).collect();
        for (i, &object) in objects.iter().enumerate() {
            let offset = i as u64 * 1000;
            store.write(object, offset, b"new").expect("write");
            let data = read(&*store, object, 0, 100_000);
            assert!(data[..offset as usize].iter().all(|&b| b == 0), "old bytes before the new ones");
            assert_eq!(&data[offset as usize..], b"new", "old bytes behind the new ones");
            store.truncate(object, 60_000).expect("extend");
            assert!(read(&*store, object, offset + 3, 60_000).iter().all(|&b| b == 0));
            store.write(object, 0, &[0xab; 50_000]).expect("fill");
        }
        assert_eq!(store.destroy(&objects).expect("destroy"), 20);
    }
    assert_verifies(&*store);
}

fn ids_are_reserved_once(dir: &Path, open: Open<'_>) {
    let store = open(dir);
    assert_eq!(ids(&*store).last_reserved(SEQUENCE).expect("last"), 0);
    assert_eq!(ids(&*store).reserve(SEQUENCE, 32).expect("reserve"), 1..33);
    assert_eq!(ids(&*store).reserve(SEQUENCE, 0).expect("reserve"), 33..33);
    assert_eq!(ids(&*store).reserve(SEQUENCE + 1, 5).expect("another sequence"), 1..6);
    drop(store);
    let store = open(dir);
    assert_eq!(ids(&*store).last_reserved(SEQUENCE).expect("last"), 32);
    assert_eq!(ids(&*store).reserve(SEQUENCE, 20_000).expect("reserve"), 33..20_033);
    let rest = ids(&*store).reserve(SEQUENCE, u32::MAX).expect("what is left");
    assert_eq!(rest.start, 20_033);
    assert_eq!(status(ids(&*store).reserve(SEQUENCE, 1)), Status::ENOSPC);
    let next = std::sync::atomic::AtomicU32::new(0);
    nacre_env::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..10 {
                    let got = ids(&*store).reserve(SEQUENCE + 2, 7).expect("reserve");
                    next.fetch_add(got.len() as u32, std::sync::atomic::Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(ids(&*store).last_reserved(SEQUENCE + 2).expect("last"), next.into_inner());
}

fn orphans_are_destroyed(dir: &Path, open: Open<'_>) {
    let store = open(dir);
    set_aside(&*store, 100);
    ids(&*store).reserve(SEQUENCE + 1, 100).expect("reserve");
    for oid in 1..=50 {
        store.write(fid(oid), 0, b"data").expect("write");
    }
    let other = Fid::new(SEQUENCE + 1, 40, 0);
    store.write(other, 0, b"other sequence").expect("write");
    assert_eq!(ids(&*store).destroy_orphans(SEQUENCE, 20).expect("orphans"), 101);
    assert_eq!(objects_of(&*store), 21);
    assert_eq!((size(&*store, fid(20)), size(&*store, fid(21)), size(&*store, other)), (4, 0, 14));
    assert_eq!(ids(&*store).reserve(SEQUENCE, 1).expect("reserve"), 101..102);
    assert_eq!(
        ids(&*store).destroy_orphans(SEQUENCE, 500).expect("none"),
        501,
        "the caller knows of more ids"
    );
    assert_eq!(ids(&*store).reserve(SEQUENCE, 1).expect("reserve"), 501..502);
    assert_eq!(ids(&*store).destroy_orphans(SEQUENCE + 9, 0).expect("unknown sequence"), 1);
    assert_eq!(status(ids(&*store).destroy_orphans(SEQUENCE, u32::MAX)), Status::ENOSPC);
    assert_verifies(&*store);
}

fn everything_is_there_after_reopening(dir: &Path, open: Open<'_>) {
    let store = open(dir);
    set_aside(&*store, 100);
    for oid in 1..=40 {
        store.write(fid(oid), u64::from(oid), &[oid as u8; 100]).expect("write");
    }
    store.sync(fid(1)).expect("sync");
    store.sync_all().expect("sync");
    store.destroy(&[fid(40)]).expect("destroy");
    let mtime = store.attr(fid(3)).expect("attr").mtime;
    store.close().expect("close");
    drop(store);
    let store = open(dir);
    assert_eq!(objects_of(&*store), 39);
    assert_eq!(store.attr(fid(3)).expect("attr").mtime, mtime);
    for oid in 1..40u32 {
        let data = read(&*store, fid(oid), 0, 1000);
        assert_eq!(data, [vec![0; oid as usize], vec![oid as u8; 100]].concat());
    }
    assert_eq!(size(&*store, fid(40)), 0);
    assert_verifies(&*store);
}

fn threads_do_not_disturb_each_other(dir: &Path, open: Open<'_>) {
    let store = open(dir);
    set_aside(&*store, 1000);
    let store = &*store;
    nacre_env::thread::scope(|scope| {
        for thread in 0..4u8 {
            scope.spawn(move || {
                for round in 0..100u32 {
                    let shared = fid(round % 7 + 1);
                    let own = fid(100 + u32::from(thread) * 100 + round);
                    store.write(shared, u64::from(thread) * 4096, &[thread + 1; 4096]).expect("write");
                    store.write(own, 0, &[thread; 100]).expect("write");
                    let data = read(store, shared, u64::from(thread) * 4096, 4096);
                    assert!(data.iter().all(|&b| b == thread + 1));
                    assert_eq!(read(store, own, 0, 1000), [thread; 100]);
                    if round % 10 == 0 {
                        store.sync(own).expect("sync");
                    }
                    if round % 3 == 0 {
                        assert_eq!(store.destroy(&[own]).expect("destroy"), 1);
                    }
                }
            });
        }
    });
    assert_verifies(store);
}

fn destroying_while_writing_is_safe(dir: &Path, open: Open<'_>) {
    let store = open(dir);
    set_aside(&*store, 1000);
    let store = &*store;
    nacre_env::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for round in 0..100 {
                    store.write(fid(round % 3 + 1), 0, &[9; 9000]).expect("write");
                }
            });
        }
        scope.spawn(|| {
            for round in 0..100 {
                store.destroy(&[fid(round % 3 + 1)]).expect("destroy");
            }
        });
        scope.spawn(|| {
            // Files pass from the objects above to these and back, always empty.
            for round in 0..100 {
                let object = fid(100 + round);
                store.truncate(object, 9000).expect("extend");
                assert!(read(store, object, 0, 9000).iter().all(|&b| b == 0), "bytes of another object");
                store.destroy(&[object]).expect("destroy");
            }
        });
    });
    assert_verifies(store);
}

fn a_closed_store_refuses_changes(dir: &Path, open: Open<'_>) {
    let store = open(dir);
    set_aside(&*store, 10);
    store.write(fid(1), 0, b"x").expect("write");
    store.close().expect("close");
    assert_eq!(status(store.write(fid(1), 0, b"y")), Status::ESHUTDOWN);
    assert_eq!(status(store.truncate(fid(1), 0)), Status::ESHUTDOWN);
    assert_eq!(status(store.destroy(&[fid(1)])), Status::ESHUTDOWN);
    if let Some(ids) = store.abilities().ids {
        assert_eq!(status(ids.reserve(SEQUENCE, 1)), Status::ESHUTDOWN);
    }
    drop(store);
    assert_eq!(read(&*open(dir), fid(1), 0, 9), b"x");
}

/// Largest object of the model in bytes.
const MODEL_SIZE: u64 = 300_000;
/// Number of operations per seed.
const MODEL_STEPS: u32 = 400;

fn random_operations_match_a_model(dir: &Path, open: Open<'_>) {
    for seed in 0..4 {
        model(&dir.join(seed.to_string()), open, seed);
    }
}

fn model(dir: &Path, open: Open<'_>, seed: u64) {
    std::fs::create_dir_all(dir).expect("directory of the seed");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut store = open(dir);
    set_aside(&*store, 10);
    let mut objects: HashMap<Fid, Vec<u8>> = HashMap::new();
    for step in 0..MODEL_STEPS {
        let object = fid(random.u32(..5) + 1);
        // Every other range is aligned to the boundaries that direct transfers need.
        let grain = if random.bool() { 4096 } else { 1 };
        let offset = random.u64(..MODEL_SIZE / 2) / grain * grain;
        let len = (random.u64(..40_000) / grain * grain).max(grain);
        let context = format!("seed {seed} step {step} {object} {offset}+{len}");
        model_step(&*store, &mut objects, object, offset, len, &mut random, &context);
        if random.u64(..60) == 0 {
            drop(store);
            store = open(dir);
        }
        let data = objects.get(&object).cloned().unwrap_or_default();
        assert_eq!(size(&*store, object), data.len() as u64, "{context}");
        let start = (offset as usize).min(data.len());
        let end = (start + len as usize).min(data.len());
        assert!(read(&*store, object, offset, len as usize) == data[start..end], "{context}");
    }
    for (object, data) in &objects {
        assert!(read(&*store, *object, 0, MODEL_SIZE as usize) == *data, "seed {seed} {object}");
    }
    assert_verifies(&*store);
}

fn model_step(
    store: &dyn ObjectStore,
    objects: &mut HashMap<Fid, Vec<u8>>,
    object: Fid,
    offset: u64,
    len: u64,
    random: &mut fastrand::Rng,
    context: &str,
) {
    let (start, end) = (offset as usize, (offset + len) as usize);
    let existed = objects.contains_key(&object);
    let mut put = |bytes: u8, grows: bool, sets: bool| {
        let data = objects.entry(object).or_default();
        if grows && data.len() < end {
            data.resize(end, 0);
        }
        let end = end.min(data.len());
        if sets && start < end {
            data[start..end].fill(bytes);
        }
    };
    match random.u64(..10) {
        0..4 => {
            let byte = random.u8(..);
            store.write(object, offset, &vec![byte; len as usize]).expect(context);
            put(byte, true, true);
        }
        4 => {
            store.truncate(object, offset).expect(context);
            if offset > 0 || existed {
                objects.entry(object).or_default().resize(start, 0);
            }
        }
        5 => {
            store.fallocate(object, Fallocate::Punch, offset, len).expect(context);
            if existed {
                put(0, false, true);
            }
        }
        6 => {
            let keep_size = random.bool();
            store.fallocate(object, Fallocate::Zero { keep_size }, offset, len).expect(context);
            put(0, !keep_size, true);
        }
        7 => {
            let keep_size = random.bool();
            store.fallocate(object, Fallocate::Allocate { keep_size }, offset, len).expect(context);
            put(0, !keep_size, false);
        }
        8 => store.sync(object).expect(context),
        _ => {
            objects.remove(&object);
            assert_eq!(store.destroy(&[object]).expect(context), u64::from(existed), "{context}");
        }
    }
}
