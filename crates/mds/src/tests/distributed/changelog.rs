//! Changelogs of operations over several MDTs: the coordinator records them, once.

use super::single::rename;
use super::*;
use nacre_ondisk::ChangeRecord;
use nacre_types::{ChangeKind, ChangeMask};
use nacre_wire::changelog::{ChangelogReply, ChangelogRequest};

/// Types and names of all records of an MDT.
fn changes(world: &World, mdt: u16) -> Vec<(ChangeKind, String)> {
    let request = MdsRequest::Changelog(ChangelogRequest::Read { after: 0, bytes_max: 1 << 16 });
    let Ok(MdsReply::Changelog(ChangelogReply::Changes { records, .. })) = world.run(mdt, &request) else {
        panic!("records")
    };
    let seen = |(_, bytes): &(u64, nacre_wire::peer::RecordBytes)| {
        let record = ChangeRecord::decode(&bytes.0).expect("a record");
        let name = record.at.map(|at| String::from_utf8_lossy(at.name).into_owned()).unwrap_or_default();
        (record.kind, name)
    };
    records.iter().map(seen).collect()
}

fn register(world: &World) {
    for mdt in 0..world.count() {
        let request = ChangelogRequest::Register { name: String::new(), mask: ChangeMask::NONE };
        world.run(mdt, &MdsRequest::Changelog(request)).expect("registered");
    }
}

#[test]
fn the_coordinator_records_an_operation_over_several_mdts_once() {
    let world = World::new(2, 3);
    register(&world);
    let (here, there, file) = (world.fid(0), world.fid(1), world.fid(0));
    world.make(Fid::ROOT, "here", here, true).expect("made");
    world.make(Fid::ROOT, "there", there, true).expect("made");
    world.make(here, "file", file, false).expect("made");
    world.run(0, &rename((here, "file"), (there, "moved"))).expect("moved");
    world.run(1, &MdsRequest::Unlink { parent: there, name: b"moved", directory: false }).expect("removed");
    world
        .run(0, &MdsRequest::Unlink { parent: Fid::ROOT, name: b"there", directory: true })
        .expect("removed");
    let named = |kind, name: &str| (kind, name.to_owned());
    assert_eq!(
        changes(&world, 0),
        [
            named(ChangeKind::Mkdir, "here"),
            named(ChangeKind::Mkdir, "there"),
            named(ChangeKind::Create, "file"),
            named(ChangeKind::Rename, "moved"),
            named(ChangeKind::Rmdir, "there"),
        ]
    );
    assert_eq!(changes(&world, 1), [named(ChangeKind::Unlink, "moved")]);
    world.check();
}

#[test]
fn a_move_to_another_mdt_has_both_fids() {
    let world = World::new(2, 3);
    let (directory, file, to) = (world.fid(1), world.fid(0), world.fid(1));
    world.make(Fid::ROOT, "directory", directory, true).expect("made");
    world.make(Fid::ROOT, "file", file, false).expect("made");
    register(&world);
    world.run(0, &MdsRequest::Migrate { fid: file, to, lmv: b"" }).expect("moved");
    let request = MdsRequest::Changelog(ChangelogRequest::Read { after: 0, bytes_max: 1 << 16 });
    let Ok(MdsReply::Changelog(ChangelogReply::Changes { records, .. })) = world.run(0, &request) else {
        panic!("records")
    };
    let [(1, bytes)] = &records[..] else { panic!("{records:?}") };
    let record = ChangeRecord::decode(&bytes.0).expect("a record");
    assert_eq!((record.kind, record.target), (ChangeKind::Migrate, to));
    assert_eq!(record.source.map(|source| source.fid), Some(file));
    assert_eq!(record.at.map(|at| (at.parent, at.name)), Some((Fid::ROOT, &b"file"[..])));
    world.check();
}

/// The participant returns the transaction, and the coordinator's part has the record.
#[test]
fn a_record_that_was_lost_with_the_power_is_written_again() {
    let mut world = World::new(2, 3);
    register(&world);
    let there = world.fid(1);
    world.make(Fid::ROOT, "before", there, true).expect("made");
    world.recover();
    assert_eq!(changes(&world, 0).len(), 1);
    let old = world.synced_image(0);
    let after = world.fid(1);
    world.make(Fid::ROOT, "after", after, true).expect("made");
    assert!(world.lose_power(old), "something was synced");
    world.recover();
    let named = |name: &str| (ChangeKind::Mkdir, name.to_owned());
    assert_eq!(changes(&world, 0), [named("before"), named("after")]);
    world.check();
}
