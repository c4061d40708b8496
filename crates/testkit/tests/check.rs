//! `nacre check` on real targets: damage of objects and layouts on stopped ones, and checks of a file system in use.

use std::fs;
use std::ops::{Bound, ControlFlow};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use nacre_layout::{Layout, StripeObject, user};
use nacre_ondisk::{DirentRecord, InodeRecord, OwnerRecord};
use nacre_store::object::OWNERS;
use nacre_store::{Batch, MetaStore, MetaStoreOptions, Table};
use nacre_testkit::cluster::Options;
use nacre_testkit::requirements::{have, have_root};
use nacre_testkit::{Cluster, Shape, text, wait};
use nacre_types::{AttrFlags, Fid, Owners};
use rustix::process::Signal;

const INODES: Table = Table(2);
const DIRENTS: Table = Table(3);

fn start(shape: Shape, fsname: &str, mdts: usize) -> Option<Cluster> {
    let ready = have(&["/dev/fuse"]) && have_root();
    let options = Options { mdts, osts: 2, fsname: fsname.to_owned(), listen: true, ..Options::default() };
    let cluster = ready.then(|| Cluster::start_with(shape, &options));
    cluster.filter(|cluster| !cluster.is_foreign())
}

/// Changes the store in `dir` of a stopped target.
fn change(dir: &Path, edit: impl FnOnce(&MetaStore, &mut Batch)) {
    let store = MetaStore::open(dir, MetaStoreOptions::default()).expect("opens");
    let mut batch = Batch::new();
    edit(&store, &mut batch);
    store.commit(&batch).expect("commits");
    store.close().expect("closes");
}

fn record_of(store: &MetaStore, fid: Fid) -> InodeRecord {
    let found = store.get(INODES, &fid.to_key(), |value| InodeRecord::decode(fid, value.expect("there")));
    found.expect("reads").expect("decodes")
}

fn put(batch: &mut Batch, record: &InodeRecord) {
    let mut bytes = Vec::new();
    record.encode(&mut bytes);
    batch.put(INODES, &record.attr.fid.to_key(), &bytes);
}

fn layout_of(record: &InodeRecord) -> Layout {
    user::decode_layout(&record.body).expect("a layout")
}

/// Removes the names of an inode.
fn drop_names(store: &MetaStore, batch: &mut Batch, fid: Fid) {
    let scanned = store.scan(DIRENTS, &[], Bound::Unbounded, &mut |key, value| {
        if DirentRecord::decode(value).is_ok_and(|record| record.fid == fid) {
            batch.delete(DIRENTS, key);
        }
        ControlFlow::Continue(())
    });
    scanned.expect("reads");
}

/// Files with objects on OSTs and known content.
struct Files {
    cluster: Cluster,
    dir: PathBuf,
}

impl Files {
    fn content(name: &str) -> Vec<u8> {
        name.bytes().cycle().take(300_000).collect()
    }

    fn make<const N: usize>(&self, names: [&str; N]) -> [Fid; N] {
        names.iter().for_each(|name| fs::write(self.dir.join(name), Files::content(name)).expect("written"));
        names.map(|name| self.fid(&self.dir.join(name)))
    }

    fn fid(&self, path: &Path) -> Fid {
        let said = self.cluster.lfs(&["path2fid", text(path)]).success().stdout;
        said.trim().parse().expect("a FID")
    }

    fn meta(&self) -> PathBuf {
        self.cluster.data().join("mdt0000/meta")
    }

    fn index(&self, ost: u16) -> PathBuf {
        self.cluster.data().join(format!("ost{ost:04x}/index"))
    }

    /// Returns the kinds of the problems that a check finds, how many of them are left, and its output.
    fn check(&self, more: &[&str]) -> (Vec<String>, u64, String) {
        let words: Vec<&str> =
            ["check", text(self.cluster.data()), "--json"].into_iter().chain(more.iter().copied()).collect();
        let said = self.cluster.nacre(&words).stdout;
        let found: serde_json::Value = serde_json::from_str(&said).expect("JSON");
        let (mut kinds, mut left) = (Vec::new(), 0);
        for report in found.as_array().expect("reports") {
            let problems = report["problems"].as_array().expect("problems");
            kinds.extend(problems.iter().map(|it| it["kind"].as_str().expect("a kind").to_owned()));
            left += report["problem_count"].as_u64().expect("a number")
                - report["repaired"].as_u64().expect("one");
        }
        kinds.sort();
        (kinds, left, said)
    }
}

/// Checks that a file without a name is in `lost+found`, and gives it one.
fn rescued(files: &Files, gone: Fid) {
    let attr = fs::metadata(files.dir.join("damaged")).expect("there");
    assert_eq!((attr.uid(), attr.gid()), (1234, 567), "owners are those of the objects");
    let lost = files.cluster.mount().join(".lustre/lost+found/MDT0000");
    let found: Vec<String> = fs::read_dir(&lost)
        .expect("a directory")
        .map(|entry| entry.expect("read").file_name().into_string().expect("text"))
        .collect();
    assert_eq!(found, [gone.to_string()]);
    assert!(fs::read(lost.join(&found[0])).expect("read") == Files::content("gone"));
    assert_eq!(files.fid(&lost.join(&found[0])), gone);
    let path =
        files.cluster.lfs(&["fid2path", text(files.cluster.mount()), &gone.to_string()]).success().stdout;
    assert!(path.contains(&format!("lost+found/MDT0000/{gone}")), "{path}");
    fs::rename(lost.join(&found[0]), files.dir.join("back")).expect("moved");
}

#[test]
fn files_are_rebuilt_from_objects_and_objects_get_back_to_their_files() {
    let Some(cluster) = start(Shape::Embedded, "chkobj", 1) else { return };
    let dir = cluster.directory("d");
    let mut files = Files { cluster, dir };
    let names = ["damaged", "gone", "first", "second", "owned", "placed", "sparse", "sound"];
    files.cluster.lfs(&["setstripe", "-c", "2", "-S", "64K", text(&files.dir)]).success();
    let fids = files.make(names);
    let [damaged, gone, first, second, owned, placed, sparse, sound] = fids;
    std::os::unix::fs::chown(files.dir.join("damaged"), Some(1234), Some(567)).expect("changed");
    files.cluster.stop();
    files.cluster.check();
    let mut broken = Vec::new();
    change(&files.meta(), |store, batch| {
        batch.put(INODES, &damaged.to_key(), b"?");
        batch.delete(INODES, &gone.to_key());
        drop_names(store, batch, gone);
        let (mut thief, mut lone) = (record_of(store, second), record_of(store, sparse));
        let mut layout = layout_of(&thief);
        layout.components[0].objects[0] = layout_of(&record_of(store, first)).components[0].objects[0];
        thief.body = user::encode_layout(&second, &layout);
        put(batch, &thief);
        let mut layout = layout_of(&lone);
        let stripe = &mut layout.components[0].objects[1];
        *stripe = StripeObject::new(stripe.ost_index, Fid::new(stripe.object.seq + 0x4000, 77, 0));
        lone.body = user::encode_layout(&sparse, &layout);
        put(batch, &lone);
        broken.extend([owned, placed].map(|fid| layout_of(&record_of(store, fid)).components[0].objects[0]));
    });
    for (stripe, is_owner) in broken.iter().zip([true, false]) {
        change(&files.index(stripe.ost_index), |store, batch| {
            let key = stripe.object.to_key();
            let record = store.get(OWNERS, &key, |value| OwnerRecord::decode(value.expect("there")));
            let mut record = record.expect("reads").expect("decodes");
            match is_owner {
                true => record.owners = Owners { uid: 4321, ..record.owners },
                false => record.place.as_mut().expect("a place").file = sound,
            }
            batch.put(OWNERS, &key, &record.encode());
        });
    }
    let (kinds, left, said) = files.check(&[]);
    for kind in
        ["damaged-inode", "shared-object", "foreign-object", "object-owner", "object-place", "orphan-object"]
    {
        assert!(kinds.iter().any(|found| found == kind), "{kind}: {said}");
    }
    assert!(left > 0);
    assert_eq!(files.check(&[]), (kinds, left, said), "a check without repair changes nothing");
    let (_, left, said) = files.check(&["--repair"]);
    assert_eq!(left, 0, "{said}");
    assert_eq!(files.check(&[]).0, Vec::<String>::new());
    files.cluster.start_all();
    for name in ["damaged", "first", "owned", "placed", "sound"] {
        assert!(fs::read(files.dir.join(name)).expect("read") == Files::content(name), "{name}");
    }
    rescued(&files, gone);
    // The stripe that the other file had is a copy of that file's.
    let copied = fs::read(files.dir.join("second")).expect("read");
    assert!(copied[..65_536] == Files::content("first")[..65_536] && copied.len() == 300_000);
    fs::write(files.dir.join("sparse"), b"new").expect("written");
    files.cluster.stop_and_check();
}

#[test]
fn damage_is_found_and_repaired_in_use() {
    let Some(cluster) = start(Shape::Separate, "chkuse", 2) else { return };
    let dir = cluster.directory("d");
    let mut files = Files { cluster, dir };
    files.cluster.lfs(&["setstripe", "-c", "1", text(&files.dir)]).success();
    let [owned, bare, linked, _, _] = files.make(["owned", "bare", "linked", "dangling", "sound"]);
    fs::write(files.dir.join("empty"), b"").expect("written");
    let empty = files.fid(&files.dir.join("empty"));
    let parent = files.fid(&files.dir);
    let mut meta = files.meta();
    meta.set_file_name("meta");
    files.cluster.stop();
    assert_eq!(parent.mdt_index(), 0, "the test changes MDT0000");
    let mut stripe = StripeObject::default();
    change(&meta, |store, batch| {
        batch.delete(INODES, &empty.to_key());
        let mut record = record_of(store, linked);
        record.attr.nlink = 9;
        put(batch, &record);
        let mut record = record_of(store, parent);
        record.attr.size = 77;
        put(batch, &record);
        stripe = layout_of(&record_of(store, owned)).components[0].objects[0];
        let mut record = record_of(store, bare);
        record.body.clear();
        record.attr.flags -= AttrFlags::HAS_LAYOUT | AttrFlags::HAS_OBJECTS;
        record.attr.size = 0;
        put(batch, &record);
    });
    change(&files.index(stripe.ost_index), |store, batch| {
        let record =
            store.get(OWNERS, &stripe.object.to_key(), |value| OwnerRecord::decode(value.expect("there")));
        let record = record.expect("reads").expect("decodes");
        let owners = Owners { gid: 99, ..record.owners };
        batch.put(OWNERS, &stripe.object.to_key(), &OwnerRecord { owners, ..record }.encode());
    });
    files.cluster.start_all();
    let all = ["dangling-name", "entry-count", "link-count", "object-owner", "orphan-object"];
    let fast = ["--rate", "0"];
    let (kinds, left, said) = files.check(&fast);
    assert_eq!((kinds, left), (all.map(str::to_owned).to_vec(), 5), "{said}");
    assert_eq!(files.check(&fast).1, 5, "a check without repair changes nothing");
    let shown = files.cluster.nacre(&["status", text(files.cluster.data())]).stdout;
    assert!(shown.contains("MDT0000: 5 problems"), "{shown}");
    let (kinds, left, said) = files.check(&["--rate", "0", "--repair"]);
    assert_eq!((kinds.len(), left), (5, 0), "{said}");
    // The OST learns of the owners a moment later.
    wait::until(wait::SOON, "nothing is found any more", || (files.check(&fast).1 == 0).then_some(()));
    let mut names: Vec<String> = fs::read_dir(&files.dir)
        .expect("listed")
        .map(|entry| entry.expect("read").file_name().into_string().expect("text"))
        .collect();
    names.sort();
    assert_eq!(names, ["bare", "dangling", "linked", "owned", "sound"]);
    assert_eq!(fs::metadata(files.dir.join("linked")).expect("there").nlink(), 1);
    for name in ["owned", "linked", "dangling", "sound"] {
        assert!(fs::read(files.dir.join(name)).expect("read") == Files::content(name), "{name}");
    }
    files.cluster.stop_and_check();
}

/// Changes of all kinds, until it is to stop.
fn work(dir: &Path, number: usize, is_over: &AtomicBool) {
    let own = |round: usize| dir.join(format!("{number}-{}", round % 7));
    for round in 0.. {
        if is_over.load(Ordering::Relaxed) {
            return;
        }
        let (file, other) = (own(round), own(round + 3));
        fs::write(&file, vec![number as u8; 100_000]).expect("written");
        let link = dir.join(format!("{number}-link"));
        fs::hard_link(&file, &link).expect("linked");
        std::os::unix::fs::chown(&file, Some(round as u32 % 5), None).expect("changed");
        fs::rename(&link, &other).expect("moved");
        let sub = dir.join(format!("{number}-dir"));
        fs::create_dir(&sub).expect("made");
        // Either name may be of the same inode: then the rename did nothing.
        let inner = sub.join("inner");
        fs::rename(&file, &inner).expect("moved");
        fs::remove_file(&inner).expect("removed");
        fs::remove_dir(&sub).expect("removed");
        let _ = fs::remove_file(dir.join(format!("{number}-link")));
    }
}

#[test]
fn changes_under_way_are_no_findings() {
    for (shape, fsname) in [(Shape::Embedded, "chkbusy1"), (Shape::Separate, "chkbusy2")] {
        let Some(mut cluster) = start(shape, fsname, 2) else { return };
        let striped = cluster.mount().join("striped");
        cluster.lfs(&["mkdir", "-c", "2", text(&striped)]).success();
        cluster.lfs(&["setstripe", "-c", "1", text(&striped)]).success();
        let other = cluster.add_mount().join("striped");
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            for number in 0..4 {
                let (dir, is_over) = (if number % 2 == 0 { &striped } else { &other }, &is_over);
                scope.spawn(move || work(dir, number, is_over));
            }
            let words = ["check", text(cluster.data()), "--rate", "0"];
            let checks: Vec<_> = (0..12).map(|_| cluster.nacre(&words)).collect();
            is_over.store(true, Ordering::Relaxed);
            for found in checks {
                assert!(found.stdout.contains("no damage"), "{found}");
            }
        });
        cluster.stop_and_check();
    }
}

#[test]
fn a_check_continues_where_it_was_stopped_even_after_a_restart() {
    let Some(mut cluster) = start(Shape::Separate, "chkgoon", 1) else { return };
    let dir = cluster.directory("d");
    (0..300).for_each(|number| fs::write(dir.join(number.to_string()), b"").expect("written"));
    let lctl = |cluster: &Cluster, words: &[&str]| cluster.lctl(words).success().stdout;
    const MDT: &str = "chkgoon-MDT0000";
    let shown = |cluster: &Cluster, field: &str| {
        let text = lctl(cluster, &["get_param", "-n", "mdd.chkgoon-MDT0000.lfsck_namespace"]);
        let line =
            text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(": ").map(str::to_owned));
        line.unwrap_or_else(|| panic!("no {field} in {text}"))
    };
    // The continuous check is off, also after the restart: it moves the same position.
    lctl(&cluster, &["set_param", "-P", "mdd.chkgoon-MDT0000.lfsck_speed_limit=0"]);
    lctl(&cluster, &["set_param", "mdd.chkgoon-MDT0000.lfsck_speed_limit=0"]);
    let started = lctl(&cluster, &["lfsck_start", "-M", MDT, "-n", "-r", "-s", "20"]);
    assert!(started.starts_with("Started LFSCK on the device chkgoon-MDT0000"), "{started}");
    let checked = |cluster: &Cluster| shown(cluster, "checked").parse::<u64>().expect("a number");
    wait::until(wait::SOON, "a part is checked", || (checked(&cluster) > 0).then_some(()));
    assert!(shown(&cluster, "status").starts_with("scanning"));
    lctl(&cluster, &["lfsck_stop", "-M", MDT]);
    let position = shown(&cluster, "current_position");
    assert!(position.starts_with("inodes [0x"), "{position}");
    // A restart finds the stored position.
    cluster.stop();
    cluster.start_all();
    let complete = |cluster: &Cluster| {
        let text = lctl(cluster, &["lfsck_query", "-M", MDT, "-t", "namespace", "-w"]);
        assert!(text.starts_with("mdd.chkgoon-MDT0000.lfsck_namespace=\n"), "{text}");
        assert!(text.contains("\nstatus: completed\n"), "{text}");
        checked(cluster)
    };
    lctl(&cluster, &["lfsck_start", "-M", MDT, "-n"]);
    let rest = complete(&cluster);
    lctl(&cluster, &["lfsck_start", "-A", "-M", MDT, "-n", "-r"]);
    let all = complete(&cluster);
    assert!(rest > 0 && rest < all, "{rest} of {all}");
    cluster.stop_and_check();
}

/// The thread of the check waited for the OST without a limit, and a stop of the MDT waited for the thread.
#[test]
fn a_check_passes_over_a_target_that_hangs_and_holds_up_no_stop() {
    let Some(mut cluster) = start(Shape::Separate, "chkhang", 1) else { return };
    let dir = cluster.directory("d");
    (0..20).for_each(|number| fs::write(dir.join(number.to_string()), b"text").expect("written"));
    cluster.lfs(&["setstripe", "-c", "1", "-i", "0", text(&dir.join("placed"))]).success();
    fs::write(dir.join("placed"), vec![1; 1 << 20]).expect("written");
    let (ost, mdt) = (cluster.pid("ost0000"), cluster.pid("mdt0000"));
    cluster.signal(ost, Signal::STOP);
    cluster.lctl(&["lfsck_start", "-M", "chkhang-MDT0000", "-n", "-r"]).success();
    wait::until(Duration::from_secs(120), "the objects of the OST are skipped", || {
        let text = cluster.lctl(&["lfsck_query", "-M", "chkhang-MDT0000"]).success().stdout;
        let skipped = text.lines().find_map(|line| line.strip_prefix("skipped: "));
        (skipped.expect("the number is shown") != "0").then_some(())
    });
    cluster.signal(mdt, Signal::TERM);
    wait::until_ended(Duration::from_secs(120), mdt);
    cluster.signal(ost, Signal::CONT);
    cluster.start_all();
    cluster.stop_and_check();
}
