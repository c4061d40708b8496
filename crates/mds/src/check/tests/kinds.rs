//! Damage of each kind is named, repaired, and not found again; what is sound stays as it is, byte by byte.

use super::*;
use crate::tables::{
    DATA, DESTROYS, LINKS, META, META_KEY, ORPHANS, OST_MARKS, QUOTA_LIMITS, dirent_key, link_key,
};
use nacre_layout::dir_hash::DirHash;
use nacre_layout::{DirLayout, Layout, user};
use nacre_ondisk::{DataRecord, DirentRecord, MdtRecord};
use nacre_store::Table;
use nacre_types::name::name_hash;
use nacre_types::{FileKind, Owners};
use nacre_wire::mds::{MdsRequest, NewFile};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, ControlFlow};

/// Kinds that tests of object stores and of the command inject.
const ELSEWHERE: [Kind; 9] = [
    Kind::Store,
    Kind::Copy,
    Kind::Data,
    Kind::OrphanObject,
    Kind::LostObject,
    Kind::SharedObject,
    Kind::ForeignObject,
    Kind::ObjectOwner,
    Kind::ObjectPlace,
];

/// All records of a store.
type Dump = BTreeMap<(u8, Vec<u8>), Vec<u8>>;

/// A stopped MDT with a tree of each kind of inode.
struct Site {
    temp: tempfile::TempDir,
    seed: u64,
    dir: Fid,
    sub: Fid,
    /// A file with an object on an OST.
    file: Fid,
    /// A file with two names, and without objects.
    empty: Fid,
    striped: Fid,
    shards: Vec<Fid>,
    sound: Vec<Fid>,
    objects: Vec<FoundObject>,
}

impl Site {
    fn new() -> Site {
        let f = Fixture::with_osts(2);
        let dir = f.dir(Fid::ROOT, "dir").expect("made").fid;
        let sub = f.dir(dir, "sub").expect("made").fid;
        let file = f.file(dir, "file").expect("made").fid;
        let empty = f.file(sub, "empty").expect("made").fid;
        f.run(&MdsRequest::Link { fid: empty, parent: dir, name: b"second" }).expect("linked");
        let sound = f.dir(Fid::ROOT, "sound").expect("made").fid;
        let mut sounds = vec![sound, f.symlink(sound, "link", "target").expect("made").fid];
        for name in ["a", "b", "c"] {
            sounds.push(f.file(sound, name).expect("made").fid);
        }
        for fid in [file, sounds[2]] {
            f.run(&MdsRequest::LayoutIntent { fid, start: 0, end: 2 << 20 }).expect("given");
        }
        let value = b"value";
        let request =
            MdsRequest::SetXattr { fid: sounds[2], name: b"user.x", value, flags: Default::default() };
        f.run(&request).expect("set");
        let shards = vec![f.fid(), f.fid()];
        let hash = DirHash::Fnv1a64;
        let lmv = DirLayout::new(hash, 0, shards.clone()).encode();
        let lmv = with_overstriping(&lmv);
        let new = NewFile::Striped { lmv: &lmv, chosen: true };
        let striped = f.create_as(&f.cred, Fid::ROOT, "striped", new, 0o750).expect("made").fid;
        for number in 0..8 {
            let name = format!("n{number}");
            let place = hash.shard(name.as_bytes(), 2) as usize;
            f.file(shards[place], &name).expect("made");
        }
        f.mds.stop().expect("stops");
        let Fixture { dir: temp, mds, .. } = f;
        drop(mds);
        let mut site = Site {
            temp,
            seed: 0,
            dir,
            sub,
            file,
            empty,
            striped,
            shards,
            sound: sounds,
            objects: Vec::new(),
        };
        let store = site.open();
        site.seed = seed(&store);
        for fid in [site.file, site.sound[2]] {
            let layout = layout_in(&store, fid);
            site.objects.extend(layout.objects().map(|stripe| FoundObject {
                ost_index: stripe.ost_index,
                object: stripe.object,
                size: 5000,
                blocks: 16,
                mtime: Some(Timestamp::new(1000, 0)),
                owners: Some(Owners { uid: 7, gid: 8, projid: 9 }),
                place: layout.place_of(fid, &stripe.object),
            }));
        }
        store.close().expect("closes");
        site
    }

    /// Returns a copy with a directory of its own.
    fn copy(&self) -> Site {
        fn copy_all(from: &Path, to: &Path) {
            for entry in std::fs::read_dir(from).expect("read").map(|entry| entry.expect("read")) {
                let target = to.join(entry.file_name());
                match entry.file_type().expect("known").is_dir() {
                    true => {
                        std::fs::create_dir(&target).expect("made");
                        copy_all(&entry.path(), &target);
                    }
                    false => drop(std::fs::copy(entry.path(), &target).expect("copied")),
                }
            }
        }
        let temp = tempfile::tempdir().expect("a directory");
        copy_all(self.temp.path(), temp.path());
        let (shards, sound, objects) = (self.shards.clone(), self.sound.clone(), self.objects.clone());
        Site { temp, shards, sound, objects, ..*self }
    }

    fn open(&self) -> MetaStore {
        MetaStore::open(&store_path(self.temp.path()), config().store).expect("opens")
    }

    fn key(&self, parent: Fid, name: &str) -> Vec<u8> {
        dirent_key(&parent, name_hash(self.seed, name.as_bytes()), name.as_bytes()).as_slice().to_vec()
    }

    /// Returns the shard of a name, and the other one.
    fn homes_of(&self, name: &str) -> (Fid, Fid) {
        let place = DirHash::Fnv1a64.shard(name.as_bytes(), 2) as usize;
        (self.shards[place], self.shards[1 - place])
    }

    fn check(&self, repair: bool) -> CheckReport {
        let dirs = [(self.temp.path().to_owned(), 0)];
        let targets = Targets { dirs: &dirs, config: &config(), are_all: true };
        let visit = |take: &mut dyn FnMut(FoundObject)| {
            self.objects.iter().for_each(|object| take(*object));
            true
        };
        check_targets(&targets, repair, &visit, &mut |_| {}).expect("checks").remove(0)
    }

    fn dump(&self) -> Dump {
        let store = self.open();
        let mut dump = Dump::new();
        for table in 0..=u8::MAX {
            let scanned = store.scan(Table(table), &[], Bound::Unbounded, &mut |key, value| {
                dump.insert((table, key.to_vec()), value.to_vec());
                ControlFlow::Continue(())
            });
            scanned.expect("reads");
        }
        store.close().expect("closes");
        dump
    }

    /// Returns the records of inodes that no damage concerns.
    fn sound_records(&self, dump: &Dump) -> Dump {
        let is_sound = |key: &[u8]| self.sound.iter().any(|fid| key.starts_with(&fid.to_key()));
        dump.iter()
            .filter(|((_, key), _)| is_sound(key))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect()
    }
}

/// Both shards are on one MDT.
fn with_overstriping(lmv: &[u8]) -> Vec<u8> {
    let mut layout = DirLayout::decode(lmv).expect("a list");
    layout.flags |= nacre_layout::DirFlags::OVERSTRIPED;
    layout.encode()
}

fn record_in(store: &MetaStore, fid: Fid) -> InodeRecord {
    let found = store.get(INODES, &fid.to_key(), |value| InodeRecord::decode(fid, value.expect("there")));
    found.expect("reads").expect("decodes")
}

fn layout_in(store: &MetaStore, fid: Fid) -> Layout {
    user::decode_layout(&record_in(store, fid).body).expect("a layout")
}

fn has(store: &MetaStore, table: Table, key: &[u8]) -> bool {
    store.get(table, key, |value| value.is_some()).expect("reads")
}

fn leads_to(store: &MetaStore, key: &[u8]) -> Option<(Fid, FileKind)> {
    let found = store.get(DIRENTS, key, |value| value.and_then(|value| DirentRecord::decode(value).ok()));
    found.expect("reads").map(|found| (found.fid, found.kind))
}

/// Kind, name of the damage, injection, and what holds after the repair.
type Case = (Kind, &'static str, fn(&Site, &MetaStore, &mut Batch), fn(&Site, &MetaStore));

const GONE: Fid = Fid::new(0x2_0000_0401, 0x7777, 0);

fn is_whole(site: &Site, store: &MetaStore) {
    assert_eq!(leads_to(store, &site.key(site.dir, "file")), Some((site.file, FileKind::Regular)));
    let record = record_in(store, site.file);
    assert_eq!((record.parent, record.name), (site.dir, b"file".to_vec()));
}

fn is_rescued(store: &MetaStore, site: &Site, fid: Fid) {
    let place = Fid::lost_and_found(0);
    let kind = record_in(store, fid).attr.kind();
    assert_eq!(leads_to(store, &site.key(place, &fid.to_string())), Some((fid, kind)));
    let record = record_in(store, place);
    assert_eq!((record.attr.size, record.name.as_slice()), (1, &b".lustre/lost+found/MDT0000"[..]));
}

fn of_names() -> Vec<Case> {
    vec![
        (
            Kind::DanglingName,
            "an inode without objects is gone",
            |site, _, batch| batch.delete(INODES, &site.empty.to_key()),
            |site, store| assert_eq!(leads_to(store, &site.key(site.sub, "empty")), None),
        ),
        (
            Kind::DanglingName,
            "a name in a file",
            |site, _, batch| {
                let value = DirentRecord { fid: site.empty, kind: FileKind::Regular }.encode();
                batch.put(DIRENTS, &site.key(site.file, "inside"), &value);
            },
            |site, store| assert_eq!(leads_to(store, &site.key(site.file, "inside")), None),
        ),
        (
            Kind::DamagedName,
            "a name cannot be decoded",
            |site, _, batch| batch.put(DIRENTS, &site.key(site.dir, "file"), b"?"),
            is_whole,
        ),
        (
            Kind::MisplacedName,
            "a name is at another position",
            |site, _, batch| {
                let name = b"file";
                let wrong = dirent_key(&site.dir, name_hash(site.seed, name) ^ 1, name);
                batch.delete(DIRENTS, &site.key(site.dir, "file"));
                let value = DirentRecord { fid: site.file, kind: FileKind::Regular }.encode();
                batch.put(DIRENTS, wrong.as_slice(), &value);
            },
            is_whole,
        ),
    ]
}

fn of_places() -> Vec<Case> {
    vec![
        (
            Kind::MisplacedName,
            "a name is in another shard",
            |site, store, batch| {
                let (home, other) = site.homes_of("n0");
                let (fid, kind) = leads_to(store, &site.key(home, "n0")).expect("there");
                batch.delete(DIRENTS, &site.key(home, "n0"));
                batch.put(DIRENTS, &site.key(other, "n0"), &DirentRecord { fid, kind }.encode());
            },
            |site, store| {
                let (home, other) = site.homes_of("n0");
                assert!(has(store, DIRENTS, &site.key(home, "n0")));
                assert!(!has(store, DIRENTS, &site.key(other, "n0")));
            },
        ),
        (
            Kind::WrongKind,
            "a name says another kind",
            |site, _, batch| {
                let value = DirentRecord { fid: site.file, kind: FileKind::Fifo }.encode();
                batch.put(DIRENTS, &site.key(site.dir, "file"), &value);
            },
            is_whole,
        ),
        (
            Kind::ExtraName,
            "a directory has a second name",
            |site, _, batch| {
                let value = DirentRecord { fid: site.sub, kind: FileKind::Directory }.encode();
                batch.put(DIRENTS, &site.key(Fid::ROOT, "again"), &value);
            },
            |site, store| {
                assert!(has(store, DIRENTS, &site.key(site.dir, "sub")));
                assert!(!has(store, DIRENTS, &site.key(Fid::ROOT, "again")));
            },
        ),
        (
            Kind::ExtraName,
            "the root has a name",
            |site, _, batch| {
                let value = DirentRecord { fid: Fid::ROOT, kind: FileKind::Directory }.encode();
                batch.put(DIRENTS, &site.key(site.sub, "up"), &value);
            },
            |site, store| assert!(!has(store, DIRENTS, &site.key(site.sub, "up"))),
        ),
    ]
}

fn of_trees() -> Vec<Case> {
    vec![
        (
            Kind::Loop,
            "a directory is below itself",
            |site, store, batch| {
                batch.delete(DIRENTS, &site.key(Fid::ROOT, "dir"));
                let value = DirentRecord { fid: site.dir, kind: FileKind::Directory }.encode();
                batch.put(DIRENTS, &site.key(site.sub, "dir"), &value);
                let sub = site.sub;
                edit(store, batch, site.dir, |record| record.parent = sub);
            },
            |site, store| {
                is_rescued(store, site, site.dir.min(site.sub));
                is_whole(site, store);
            },
        ),
        (
            Kind::Root,
            "the root is gone",
            |_, _, batch| batch.delete(INODES, &Fid::ROOT.to_key()),
            |site, store| {
                let root = record_in(store, Fid::ROOT);
                assert_eq!((root.attr.is_dir(), root.entries(), root.attr.nlink), (true, 3, 5));
                is_whole(site, store);
            },
        ),
    ]
}

fn of_inodes() -> Vec<Case> {
    vec![
        (
            Kind::DamagedInode,
            "a file with objects",
            |site, _, batch| batch.put(INODES, &site.file.to_key(), &[1, 2, 3]),
            |site, store| {
                is_whole(site, store);
                let attr = record_in(store, site.file).attr;
                assert_eq!((attr.size, attr.uid, attr.gid, attr.projid), (5000, 7, 8, 9));
                let places: Vec<_> = layout_in(store, site.file).objects().map(|it| it.object).collect();
                assert_eq!(places, [site.objects[0].object]);
            },
        ),
        (
            Kind::DamagedInode,
            "a file with two names and no objects",
            |site, _, batch| batch.put(INODES, &site.empty.to_key(), b""),
            |site, store| {
                let record = record_in(store, site.empty);
                assert_eq!((record.attr.nlink, record.attr.size), (2, 0));
                assert!(has(store, DIRENTS, &site.key(site.dir, "second")));
            },
        ),
        (
            Kind::DamagedInode,
            "a directory with names",
            |site, _, batch| batch.put(INODES, &site.dir.to_key(), &[9; 200]),
            |site, store| {
                let record = record_in(store, site.dir);
                assert_eq!((record.entries(), record.attr.nlink, record.parent), (3, 3, Fid::ROOT));
                is_whole(site, store);
            },
        ),
        (
            Kind::DamagedInode,
            "a striped directory",
            |site, _, batch| batch.put(INODES, &site.striped.to_key(), &[9; 200]),
            |site, store| {
                let record = record_in(store, site.striped);
                let list = DirLayout::decode(&record.lmv).expect("a list");
                assert_eq!((list.shards, record.attr.mode & 0o777), (site.shards.clone(), 0o750));
            },
        ),
        (
            Kind::DamagedInode,
            "a shard",
            |site, _, batch| batch.put(INODES, &site.shards[1].to_key(), &[9; 200]),
            |site, store| {
                let record = record_in(store, site.shards[1]);
                assert_eq!((record.parent, record.attr.mode & 0o777), (site.striped, 0o750));
            },
        ),
    ]
}

fn of_lists() -> Vec<Case> {
    vec![
        (
            Kind::LostInode,
            "a name is gone",
            |site, _, batch| batch.delete(DIRENTS, &site.key(site.dir, "file")),
            |site, store| is_rescued(store, site, site.file),
        ),
        (
            Kind::OrphanList,
            "a file with a name says that it has none",
            |site, store, batch| edit(store, batch, site.file, |it| it.attr.flags |= AttrFlags::ORPHAN),
            is_whole,
        ),
        (
            Kind::OrphanList,
            "an inode on the list does not exist",
            |_, _, batch| batch.put(ORPHANS, &GONE.to_key(), &OrphanKind::Unlinked.encode()),
            |_, store| assert!(!has(store, ORPHANS, &GONE.to_key())),
        ),
        (
            Kind::LinkCount,
            "a count of links is wrong",
            |site, store, batch| edit(store, batch, site.empty, |it| it.attr.nlink = 7),
            |site, store| assert_eq!(record_in(store, site.empty).attr.nlink, 2),
        ),
        (
            Kind::EntryCount,
            "a count of entries is wrong",
            |site, store, batch| edit(store, batch, site.dir, |it| it.attr.size = 9),
            |site, store| assert_eq!(record_in(store, site.dir).entries(), 3),
        ),
        (
            Kind::Links,
            "a file says another name",
            |site, store, batch| edit(store, batch, site.file, |it| it.name = b"other".to_vec()),
            is_whole,
        ),
        (
            Kind::Links,
            "a second name is not in the list",
            |site, _, batch| {
                batch.delete(LINKS, link_key(&site.empty, &site.dir, b"second").as_slice());
                batch.delete(LINKS, link_key(&site.empty, &site.sub, b"empty").as_slice());
            },
            |site, store| assert_eq!(record_in(store, site.empty).attr.nlink, 2),
        ),
    ]
}

fn of_contents() -> Vec<Case> {
    vec![
        (
            Kind::Attributes,
            "a default for directories cannot be decoded",
            |site, store, batch| {
                edit(store, batch, site.dir, |record| {
                    record.attr.flags |= AttrFlags::HAS_DIR_DEFAULT;
                    record.default_lmv = b"nonsense".to_vec();
                });
            },
            |site, store| assert!(record_in(store, site.dir).default_lmv.is_empty()),
        ),
        (
            Kind::Attributes,
            "an ACL cannot be decoded",
            |site, store, batch| {
                edit(store, batch, site.file, |record| {
                    record.attr.flags |= AttrFlags::HAS_ACL;
                    record.acl = b"nonsense".to_vec();
                });
            },
            |site, store| {
                assert!(record_in(store, site.file).acl.is_empty());
                is_whole(site, store);
            },
        ),
        (
            Kind::Layout,
            "a layout cannot be decoded",
            |site, store, batch| edit(store, batch, site.file, |it| it.body = vec![7; 40]),
            |site, store| {
                let found: Vec<_> = layout_in(store, site.file).objects().map(|it| it.object).collect();
                assert_eq!(
                    (found, record_in(store, site.file).attr.size),
                    (vec![site.objects[0].object], 5000)
                );
            },
        ),
    ]
}

fn of_other_records() -> Vec<Case> {
    vec![
        (
            Kind::Leftover,
            "an attribute and a link of an inode that does not exist",
            |site, _, batch| {
                batch.put(XATTRS, xattr_key(&GONE, b"user.x").as_slice(), &[1]);
                batch.put(LINKS, link_key(&GONE, &site.dir, b"x").as_slice(), &[1]);
            },
            |site, store| {
                assert!(!has(store, XATTRS, xattr_key(&GONE, b"user.x").as_slice()));
                assert!(!has(store, LINKS, link_key(&GONE, &site.dir, b"x").as_slice()));
            },
        ),
        (
            Kind::Shard,
            "a shard has another owner",
            |site, store, batch| edit(store, batch, site.shards[0], |it| it.attr.uid = 77),
            |site, store| assert_eq!(record_in(store, site.shards[0]).attr.uid, 0),
        ),
        (
            Kind::Shard,
            "a directory does not list its shards",
            |site, store, batch| {
                edit(store, batch, site.striped, |record| {
                    record.lmv.clear();
                    record.attr.flags -= AttrFlags::STRIPED;
                });
            },
            |site, store| assert!(site.shards.iter().all(|fid| record_in(store, *fid).lmv.is_empty())),
        ),
        (
            Kind::ShardList,
            "a shard is gone",
            |site, _, batch| batch.delete(INODES, &site.shards[1].to_key()),
            |site, store| {
                let record = record_in(store, site.shards[1]);
                assert_eq!((record.parent, record.attr.mode & 0o777), (site.striped, 0o750));
                let names = (0..8).map(|number| format!("n{number}"));
                let here = names.filter(|name| site.homes_of(name).0 == site.shards[1]).count();
                assert_eq!(record.entries(), here as u64);
            },
        ),
        (
            Kind::ShardList,
            "a list of shards cannot be decoded",
            |site, store, batch| edit(store, batch, site.striped, |it| it.lmv.truncate(60)),
            |site, store| {
                let list = DirLayout::decode(&record_in(store, site.striped).lmv).expect("a list");
                assert_eq!(list.shards, site.shards);
            },
        ),
    ]
}

fn of_records() -> Vec<Case> {
    vec![
        (
            Kind::ObjectMark,
            "a mark is gone",
            |site, _, batch| batch.delete(OST_MARKS, &site.objects[0].ost_index.to_be_bytes()),
            |site, store| assert!(has(store, OST_MARKS, &site.objects[0].ost_index.to_be_bytes())),
        ),
        (
            Kind::ObjectMark,
            "a mark cannot be decoded",
            |site, _, batch| batch.put(OST_MARKS, &site.objects[0].ost_index.to_be_bytes(), b"?"),
            |site, store| assert!(has(store, OST_MARKS, &site.objects[0].ost_index.to_be_bytes())),
        ),
        (
            Kind::UnusedData,
            "data of a file that does not exist",
            |_, _, batch| {
                let (mut head, mtime) = (Vec::new(), Timestamp::default());
                DataRecord { size: 5, allocated: 4096, mtime, inline: Some(b"bytes") }.encode(&mut head);
                batch.put(DATA, &GONE.to_key(), &head);
            },
            |site, store| {
                is_rescued(store, site, GONE);
                assert_eq!(record_in(store, GONE).attr.size, 5);
                assert_eq!(layout_in(store, GONE).object_on_mdt().map(|it| it.object), Some(GONE));
            },
        ),
        (
            Kind::Transaction,
            "a prepared transaction cannot be decoded",
            |_, _, batch| {
                batch.put(PREPARED, op_key(&TransactionId { mdt: 0, boot: 1, number: 2 }).as_slice(), b"?")
            },
            |_, store| {
                let key = op_key(&TransactionId { mdt: 0, boot: 1, number: 2 });
                assert!(!has(store, PREPARED, key.as_slice()));
            },
        ),
    ]
}

fn of_logs() -> Vec<Case> {
    vec![
        (
            Kind::Changelog,
            "a record and the head of the changelog cannot be decoded",
            |_, _, batch| {
                batch.put(CHANGES, &change_key(2), b"\x01\xff");
                batch.put(META, crate::tables::CHANGES_HEAD_KEY, b"?");
            },
            |_, store| assert!(!has(store, CHANGES, &change_key(2))),
        ),
        (
            Kind::Quota,
            "a limit cannot be decoded",
            |_, _, batch| batch.put(QUOTA_LIMITS, b"??????", b"?"),
            |_, store| assert!(!has(store, QUOTA_LIMITS, b"??????")),
        ),
        (
            Kind::DamagedRecord,
            "keys and values that cannot be decoded",
            |site, _, batch| {
                batch.put(INODES, b"odd", b"?");
                batch.put(DIRENTS, b"odd", b"?");
                batch.put(LINKS, b"odd", b"?");
                batch.put(XATTRS, b"odd", b"?");
                batch.put(DATA, b"odd", b"?");
                batch.put(DESTROYS, b"odd", b"?");
                batch.put(XATTRS, xattr_key(&site.file, b"user.x").as_slice(), b"?");
                batch.put(ORPHANS, &site.file.to_key(), b"?");
            },
            |site, store| {
                for table in [INODES, DIRENTS, LINKS, XATTRS, DATA, DESTROYS] {
                    assert!(!has(store, table, b"odd"), "{table:?}");
                }
                is_whole(site, store);
            },
        ),
    ]
}

fn all_cases() -> impl Iterator<Item = Case> {
    let lists = [
        of_names,
        of_places,
        of_trees,
        of_inodes,
        of_lists,
        of_contents,
        of_other_records,
        of_records,
        of_logs,
    ];
    lists.into_iter().flat_map(|list: fn() -> Vec<Case>| list())
}

#[test]
fn each_kind_of_damage_is_named_and_repaired_and_what_is_sound_stays() {
    let mut tried = BTreeSet::from(ELSEWHERE);
    let whole = Site::new();
    assert_eq!(whole.check(false).problems, []);
    for (kind, name, damage, holds) in all_cases() {
        let site = whole.copy();
        let store = site.open();
        let mut batch = Batch::new();
        damage(&site, &store, &mut batch);
        store.commit(&batch).expect("commits");
        store.close().expect("closes");
        drop(store);
        let damaged = site.dump();
        let found = site.check(false);
        assert!(found.problems.iter().any(|it| it.kind == kind), "{name}: {:#?}", found.problems);
        assert_eq!(site.dump(), damaged, "{name}: a check without repair changes nothing");
        let repaired = site.check(true);
        assert!(!repaired.is_damaged(), "{name}: {repaired:#?}, left {:#?}", site.check(false).problems);
        assert_eq!(site.check(false).problems, [], "{name}");
        assert_eq!(site.sound_records(&site.dump()), site.sound_records(&damaged), "{name}: what is sound");
        let store = site.open();
        holds(&site, &store);
        store.close().expect("closes");
        tried.insert(kind);
    }
    assert_eq!(tried.into_iter().collect::<Vec<_>>(), Kind::ALL, "every kind is tried");
}

#[test]
fn a_store_that_has_lost_records_keeps_the_others_and_files_get_back_what_objects_know() {
    let site = Site::new();
    let base = store_path(site.temp.path()).join("base/data.mdb");
    let mut bytes = std::fs::read(&base).expect("read");
    // The record of the file, in whichever page it is: its checksum does not match afterwards.
    let name = b"file";
    let record = {
        let store = site.open();
        let (mut bytes, record) = (Vec::new(), record_in(&store, site.file));
        record.encode(&mut bytes);
        store.close().expect("closes");
        bytes
    };
    let places: Vec<usize> =
        (0..bytes.len() - record.len()).filter(|at| bytes[*at..].starts_with(&record)).collect();
    assert!(!places.is_empty() && record.ends_with(&record[record.len() - name.len()..]));
    places.iter().for_each(|at| bytes[at + 4] ^= 0xff);
    std::fs::write(&base, &bytes).expect("written");
    let found = check_store(site.temp.path(), &config(), false, &mut |_| {}).expect("readable");
    assert!(found.has_lost_records, "{:#?}", found.problems);
    assert_eq!(found.problems[0].kind, Kind::Store);
    let repaired = check_store(site.temp.path(), &config(), true, &mut |_| {}).expect("readable");
    assert_eq!(repaired.repaired, repaired.problem_count, "{:#?}", repaired.problems);
    let kept = store_path(site.temp.path()).with_file_name("meta.damaged");
    assert!(kept.join("base/data.mdb").exists(), "the damaged store stays");
    let repaired = site.check(true);
    assert!(!repaired.problems.is_empty() && !repaired.is_damaged(), "{repaired:#?}");
    assert_eq!(site.check(false).problems, []);
    let store = site.open();
    is_whole(&site, &store);
    assert_eq!(record_in(&store, site.file).attr.size, 5000);
    store.close().expect("closes");
}

/// A repair deleted the name of the same key in the store of the directory's MDT.
#[test]
fn a_record_in_the_store_of_another_mdt_is_named_and_that_of_the_right_mdt_stays() {
    let site = Site::new();
    let other = tempfile::tempdir().expect("a directory");
    let options = MetaStoreOptions { create: true, ..config().store };
    let store = MetaStore::open(&store_path(other.path()), options).expect("opens");
    let of_site = site.open();
    let record = crate::records::read_record(&of_site, site.temp.path()).expect("formatted");
    drop(of_site);
    let mut batch = Batch::new();
    batch.put(META, META_KEY, &MdtRecord { index: 1, ..record }.encode());
    let stray = site.key(site.sound[0], "a");
    let gone = DirentRecord { fid: GONE, kind: FileKind::Regular }.encode();
    batch.put(DIRENTS, &stray, &gone);
    store.commit(&batch).expect("commits");
    store.close().expect("closes");
    drop(store);
    let before = site.dump();
    let dirs = [(site.temp.path().to_owned(), 0), (other.path().to_owned(), 1)];
    let targets = Targets { dirs: &dirs, config: &config(), are_all: true };
    let reports = check_targets(&targets, true, &|_| true, &mut |_| {}).expect("checks");
    let named: Vec<(u16, Kind)> = reports
        .iter()
        .flat_map(|report| report.problems.iter().map(|problem| (problem.mdt, problem.kind)))
        .collect();
    assert_eq!(named, [(1, Kind::DamagedRecord)], "{reports:?}");
    assert_eq!(site.sound_records(&site.dump()), site.sound_records(&before), "what is sound stays");
}
