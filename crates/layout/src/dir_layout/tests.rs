use super::*;

/// Calls `check` with the samples after random changes of their bytes and lengths.
fn mutate(samples: &[Vec<u8>], check: impl Fn(&[u8])) {
    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..50_000 {
        let mut bytes = samples[random.usize(..samples.len())].clone();
        for _ in 0..random.u8(1..=3) {
            let at = random.usize(..bytes.len());
            match random.u8(..4) {
                0 => bytes[at] = random.u8(..),
                1 => bytes[at] ^= 1 << random.u8(..8),
                2 => bytes.truncate(at.max(1)),
                _ => bytes.push(random.u8(..)),
            }
        }
        check(&bytes);
    }
}

fn shards(count: u32) -> Vec<Fid> {
    (0..count).map(|index| Fid::new(Fid::first_sequence_of_mdt(index as u16), 3 + index, 0)).collect()
}

fn two() -> DirLayout {
    DirLayout::new(DirHash::Crush, 0, shards(2))
}

fn changing(flags: DirFlags, offset: u32, old: DirHash, count: u32) -> DirLayout {
    DirLayout {
        flags: DirFlags::MIGRATION | flags,
        version: 7,
        migrate_offset: offset,
        migrate_hash: old.number().into(),
        ..DirLayout::new(DirHash::Crush, 1, shards(count))
    }
}

fn samples() -> Vec<DirLayout> {
    let odd = DirLayout { hash: 0, flags: DirFlags::BAD_TYPE | DirFlags::LOST_LMV, ..two() };
    vec![
        two(),
        DirLayout::new(DirHash::Fnv1a64, 3, shards(1)),
        DirLayout { hash: 77, flags: DirFlags::FIXED | DirFlags::OVERSTRIPED, ..two() },
        odd,
        changing(DirFlags::empty(), 1, DirHash::Fnv1a64, 4),
        changing(DirFlags::SPLIT, 2, DirHash::Fnv1a64, 4),
        changing(DirFlags::MERGE, 3, DirHash::Crush2, 4),
        DirLayout { former: shards(6)[5], ..changing(DirFlags::empty(), 1, DirHash::Crush, 3) },
    ]
}

#[test]
fn golden_directory_and_shard() {
    let mut expected = vec![0; 88];
    expected[..4].copy_from_slice(&[0xd0, 0x0c, 0xd2, 0x0c]);
    expected[4] = 2;
    expected[12] = 3;
    expected[56..64].copy_from_slice(&[0, 4, 0, 0, 2, 0, 0, 0]);
    expected[64] = 3;
    expected[72..80].copy_from_slice(&[0, 4, 0, 0x40, 2, 0, 0, 0]);
    expected[80] = 4;
    assert_eq!(two().encode(), expected);
    expected[..4].copy_from_slice(&[0xd0, 0x0c, 0xd4, 0x0c]);
    expected[8] = 1;
    assert_eq!(two().encode_shard(1), expected[..56]);
    let moving = changing(DirFlags::SPLIT, 2, DirHash::Fnv1a64, 4).encode();
    assert_eq!(&moving[8..28], &[1, 0, 0, 0, 3, 0, 0, 0x88, 7, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0]);
}

#[test]
fn what_is_stored_is_read_back() {
    for layout in samples() {
        assert_eq!(DirLayout::decode(&layout.encode()).as_ref(), Ok(&layout));
        let shard = DirShard::decode(&Fid::ROOT, &layout.encode_shard(0)).expect("a shard");
        assert_eq!(shard, DirShard { place: 0, version: layout.version, spread: layout.spread() });
    }
    let largest = DirLayout::new(DirHash::Crush2, 0, shards(2000));
    assert_eq!(DirLayout::decode(&largest.encode()), Ok(largest));
}

#[test]
fn impossible_layouts_are_refused() {
    let with = |at: usize, value: u8| {
        let mut bytes = two().encode();
        bytes[at] = value;
        DirLayout::decode(&bytes)
    };
    let field = |name| Err(DirError::Field(name));
    assert_eq!(with(0, 1), Err(DirError::Magic(0x0cd2_0c01)));
    assert_eq!(with(2, 0xd4), Err(DirError::Magic(MAGIC_SHARD)));
    assert_eq!([with(4, 0), with(6, 1)], [(); 2].map(|()| field("count")));
    assert_eq!([with(4, 1), with(4, 3)], [(); 2].map(|()| Err(DirError::Length(88))));
    assert_eq!([with(9, 0xff), with(10, 1)].map(|result| result.is_ok()), [true, false]);
    assert_eq!(with(12, 0), field("hash"));
    assert_eq!([with(14, 1), with(15, 0x40), with(15, 8), with(15, 0x8c)], [(); 4].map(|()| field("flags")));
    // A change without a migrate offset, and an offset without a change.
    assert_eq!([with(15, 0x80), with(20, 1)], [(); 2].map(|()| field("migrate offset")));
    assert_eq!(with(24, 1), field("migrate hash"));
    assert_eq!(with(28, 1), field("padding"));
    assert_eq!(with(55, 1), field("former"), "nothing moves");
    let mut shard = changing(DirFlags::empty(), 1, DirHash::Fnv1a64, 4).encode_shard(0);
    shard[40] = 1;
    assert_eq!(DirShard::decode(&Fid::ROOT, &shard), Err(DirError::Field("former")));
    assert_eq!(with(32, 1), field("moved"));
    let same = DirLayout { shards: vec![shards(1)[0]; 2], ..two() };
    let none = DirLayout { shards: vec![Fid::ZERO, shards(1)[0]], ..two() };
    assert_eq!(
        [same, none].map(|layout| DirLayout::decode(&layout.encode())),
        [(); 2].map(|()| field("shards"))
    );
    assert_eq!(DirShard::decode(&Fid::ROOT, &two().encode_shard(2)), Err(DirError::Field("place")));
    assert_eq!(DirShard::decode(&Fid::ROOT, &two().encode()), Err(DirError::Field("place")));
    assert_eq!(DirLayout::decode(&[]), Err(DirError::Length(0)));
}

#[test]
fn random_changes_of_bytes_give_an_error_or_a_layout_that_encodes_and_finds_names() {
    let bytes: Vec<_> =
        samples().iter().flat_map(|layout| [layout.encode(), layout.encode_shard(0)]).collect();
    mutate(&bytes, |bytes| {
        let whole = DirLayout::decode(bytes);
        if let Ok(layout) = &whole {
            assert_eq!(DirLayout::decode(&layout.encode()).as_ref(), Ok(layout));
        }
        let shard = DirShard::decode(&Fid::ROOT, bytes).map(|shard| shard.spread);
        for spread in [whole.map(|layout| layout.spread()), shard].into_iter().flatten() {
            let places = [spread.shard_of(b"name"), spread.old_shard_of(b"name")];
            assert!(places.into_iter().flatten().all(|place| place < spread.count as usize), "{spread:?}");
        }
    });
}

const NAMES: [&[u8]; 6] = [b"a", b"b", b"foo", b"bar", b"notes.txt", b"data.bin"];

#[test]
fn names_lie_where_the_hash_says() {
    for name in NAMES {
        for hash in DirHash::ALL {
            let layout = DirLayout::new(hash, 0, shards(5));
            assert_eq!(layout.shard_of(name), Some(hash.shard(name, 5) as usize));
            assert_eq!(layout.old_shard_of(name), None);
        }
    }
    let odd = DirLayout { hash: 9, ..two() };
    assert_eq!((odd.shard_of(b"a"), odd.old_shard_of(b"a")), (None, None));
    assert_eq!(DirLayout { shards: shards(1), ..odd }.shard_of(b"a"), Some(0), "there is only one");
}

#[test]
fn names_that_move_are_looked_for_in_the_new_place_and_then_in_the_old_one() {
    for name in NAMES {
        let of = |hash: DirHash, count| hash.shard(name, count) as usize;
        let check = |layout: DirLayout, new: usize, old: usize| {
            assert_eq!(layout.shard_of(name), Some(new), "{layout:?}");
            assert_eq!(layout.old_shard_of(name), Some(old).filter(|old| *old != new), "{layout:?}");
        };
        let (old, new) = (DirHash::Fnv1a64, DirHash::Crush);
        check(changing(DirFlags::SPLIT, 2, old, 5), of(new, 5), of(old, 2));
        check(changing(DirFlags::MERGE, 2, old, 5), of(old, 2), of(new, 5));
        check(changing(DirFlags::empty(), 2, old, 5), of(new, 2), 2 + of(old, 3));
        check(changing(DirFlags::empty(), 1, old, 2), 0, 1);
    }
}

#[test]
fn each_name_has_one_home_that_the_old_shard_decides() {
    for layout in samples().into_iter().filter(|layout| layout.shard_of(b"a").is_some()) {
        for (name, position, moved) in
            NAMES.into_iter().flat_map(|name| [(name, 5, 5), (name, 5, 6), (name, 5, u64::MAX)])
        {
            let homes: Vec<Home> = (0..layout.shards.len() as u32)
                .map(|place| {
                    let moved = if layout.old_places().contains(&place) { moved } else { 0 };
                    let bytes = with_moved(&layout.encode_shard(place), moved).expect("a shard");
                    DirShard::decode(&Fid::ROOT, &bytes).expect("a shard").home(name, position)
                })
                .collect();
            let (new, old) = (layout.shard_of(name).expect("known"), layout.old_shard_of(name));
            for (place, home) in homes.into_iter().enumerate() {
                let expected = match old {
                    Some(old) if place == old && position >= moved => Home::Here,
                    Some(old) if place == new => Home::IfMoved { from: old as u32 },
                    None if place == new => Home::Here,
                    _ => Home::Elsewhere,
                };
                assert_eq!(home, expected, "{name:?} in {place} of {layout:?}");
            }
        }
    }
}

#[test]
fn a_directory_that_replaces_another_one_names_it_until_all_names_have_moved() {
    let fids = shards(9);
    let (master, former) = (fids[0], fids[8]);
    let next =
        DirLayout { flags: DirFlags::FIXED, ..DirLayout::new(DirHash::Fnv1a64, 0, fids[..2].to_vec()) };
    let striped = DirLayout { version: 4, ..DirLayout::new(DirHash::Crush, 8, fids[2..5].to_vec()) };
    let list = striped.replaced_by(former, &next).expect("nothing moves");
    assert_eq!((list.version, list.master_mdt, list.former, list.old_places()), (5, 0, former, 2..5));
    assert_eq!(list.inodes(), [&fids[..5], &[former]].concat());
    assert_eq!(DirLayout::decode(&list.encode()).as_ref(), Ok(&list));
    assert_eq!(list.replaced_by(former, &next), None, "one at a time");
    let (settled, left) = list.settled();
    assert_eq!((settled, left), (DirLayout { version: 6, ..next }, fids[2..5].to_vec()));

    let whole = DirLayout::new(DirHash::Crush, 8, vec![former]);
    let list = whole.replaced_by(former, &DirLayout::new(DirHash::Crush, 0, vec![master])).expect("a list");
    assert_eq!((list.inodes(), list.settled().1), (vec![master, former], vec![former]));
    let shard = DirShard::decode(&former, &list.encode()).expect("it is a shard of its own");
    assert!(shard.is_moving() && shard.leaves_for(b"a") == Some(0));
}

#[test]
fn a_change_begins_and_settles() {
    let fids = shards(9);
    let four = DirLayout::new(DirHash::Crush, 0, fids[..4].to_vec());
    let check = |changing: Option<DirLayout>, left: &[Fid], kept: &[Fid], hash: DirHash| {
        let changing = changing.expect("a change");
        assert_eq!(DirLayout::decode(&changing.encode()).as_ref(), Ok(&changing));
        assert_eq!((changing.version, changing.growing(hash, &fids[8..])), (1, None), "one at a time");
        let (settled, gone) = changing.settled();
        assert_eq!(settled, DirLayout { version: 2, ..DirLayout::new(hash, 0, kept.to_vec()) });
        assert_eq!(gone, left);
        for name in NAMES {
            let new = changing.shards[changing.shard_of(name).expect("known")];
            assert_eq!(Some(new), settled.shard_of(name).map(|place| kept[place]));
            let old = changing.old_shard_of(name).map_or(new, |place| changing.shards[place]);
            assert_eq!(Some(old), four.shard_of(name).map(|place| four.shards[place]));
        }
    };
    check(four.growing(DirHash::Fnv1a64, &fids[4..6]), &[], &fids[..6], DirHash::Fnv1a64);
    check(four.shrinking(DirHash::AllChar, 2), &fids[2..4], &fids[..2], DirHash::AllChar);
    check(four.moving_to(DirHash::Crush2, &fids[4..8]), &fids[..4], &fids[4..8], DirHash::Crush2);
    assert_eq!(four.shrinking(DirHash::Crush, 4), None);
    assert_eq!(four.growing(DirHash::Crush, &[]), None);
    // A directory that is not striped is its only shard.
    let whole = DirLayout::new(DirHash::Crush, 0, fids[8..].to_vec());
    let moving = whole.moving_to(DirHash::Crush, &fids[..2]).expect("a change");
    let stored = with_moved(&moving.encode(), 7).expect("a list");
    let shard = DirShard::decode(&fids[8], &stored).expect("its own shard");
    assert_eq!((shard.place, shard.moved(), moving.old_places()), (2, 7, 2..3));
    assert_eq!((shard.home(b"a", 6), shard.home(b"a", 7)), (Home::Elsewhere, Home::Here));
    assert_eq!(shard.leaves_for(b"a").map(u64::from), moving.shard_of(b"a").map(|place| place as u64));
}

#[test]
fn what_programs_see_is_read_back_and_bounded() {
    let seen = UserDir::from(&two());
    let bytes = seen.encode();
    assert_eq!((bytes.len(), &bytes[..4]), (48 + 2 * 24, &[0xd0, 0x0c, 0xd2, 0x0c][..]));
    assert_eq!((bytes[48 + 8], bytes[48 + 20], bytes[72 + 8], bytes[72 + 20]), (3, 0, 4, 1));
    assert_eq!(UserDir::decode(&bytes), Ok(seen.clone()));
    assert_eq!(UserDir::decode(&[&bytes[..], &[1, 2, 3]].concat()), Ok(seen), "more room than needed");
    assert_eq!(UserDir::decode(&bytes[..90]), Err(DirError::Length(90)));
    let whole = UserDir { mdt: 3, hash: 0, shards: Vec::new() };
    assert_eq!(UserDir::decode(&whole.encode()), Ok(whole));
    mutate(&[bytes], |bytes| {
        if let Ok(seen) = UserDir::decode(bytes) {
            assert_eq!(UserDir::decode(&seen.encode()), Ok(seen));
        }
    });
}

#[test]
fn hashes_are_named_as_lustre_names_them() {
    let texts = [0, 3, 7, 0x8000_0002, 0x3300_0004, 0x0041_0001].map(hash_text);
    let expected = [
        "none",
        "crush",
        "0x7",
        "fnv_1a_64,migrating",
        "crush2,overstriped,bad_type,lost_lmv,fixed",
        "all_char,unknown_410000",
    ];
    assert_eq!(texts, expected);
}
