//! Defaults that directories inherit from their parent.

use super::*;
use nacre_layout::{DirDefault, Inherit, InheritRoundRobin};
use nacre_types::AttrFlags;
use nacre_wire::mds::XattrFlags;

impl Fixture {
    fn set_default(&self, cred: &Cred, fid: Fid, value: &[u8]) -> StatusResult<()> {
        let flags = XattrFlags::empty();
        self.run_as(cred, &MdsRequest::SetXattr { fid, name: b"lustre.dmv", value, flags }).map(drop)
    }

    fn default_of(&self, fid: Fid) -> Option<DirDefault> {
        match self.run(&MdsRequest::GetXattr { fid, name: b"lustre.dmv" }) {
            Ok(MdsReply::Bytes(bytes)) => Some(DirDefault::decode(&bytes).expect("a default")),
            Err(Status::ENODATA) => None,
            other => panic!("{other:?}"),
        }
    }

    fn has_default(&self, fid: Fid) -> bool {
        self.stat(fid).expect("there").flags.contains(AttrFlags::HAS_DIR_DEFAULT)
    }
}

fn for_levels(levels: u8) -> DirDefault {
    DirDefault { max_inherit: Inherit(levels), max_inherit_rr: InheritRoundRobin(2), ..DirDefault::default() }
}

#[test]
fn a_new_file_system_places_directories_by_space_and_the_upper_levels_in_turn() {
    let f = Fixture::new();
    assert_eq!(f.default_of(Fid::ROOT), Some(DirDefault::of_root()));
    let dir = f.dir(Fid::ROOT, "d").expect("made").fid;
    assert_eq!((f.default_of(dir), f.has_default(dir)), (None, false), "the root's is followed, not copied");
    f.check();
}

#[test]
fn defaults_are_handed_down_level_by_level_and_come_to_an_end() {
    let f = Fixture::new();
    let mut dir = f.dir(Fid::ROOT, "d").expect("made").fid;
    f.set_default(&f.cred, dir, &for_levels(3).encode()).expect("set");
    for (levels, in_turn) in [(3, 2), (2, 1), (1, 0)] {
        let max_inherit_rr = InheritRoundRobin(in_turn);
        assert_eq!(f.default_of(dir), Some(DirDefault { max_inherit_rr, ..for_levels(levels) }));
        assert!(f.has_default(dir));
        let file = f.file(dir, "f").expect("made").fid;
        assert_eq!((f.default_of(file), f.has_default(file)), (None, false));
        dir = f.dir(dir, "d").expect("made").fid;
    }
    assert_eq!((f.default_of(dir), f.has_default(dir)), (None, false));
    f.check();
}

#[test]
fn a_default_is_removed_with_lustres_word_for_it_and_with_the_attribute() {
    let f = Fixture::new();
    let dir = f.dir(Fid::ROOT, "d").expect("made").fid;
    let removal = DirDefault { count: 0, ..DirDefault::default() };
    for remove in [removal.encode(), Vec::new()] {
        f.set_default(&f.cred, dir, &for_levels(3).encode()).expect("set");
        assert!(f.has_default(dir));
        f.set_default(&f.cred, dir, &remove).expect("removed");
        assert_eq!((f.default_of(dir), f.has_default(dir)), (None, false));
        f.set_default(&f.cred, dir, &remove).expect("nothing to remove");
    }
    f.set_default(&f.cred, dir, &for_levels(3).encode()).expect("set");
    f.run(&MdsRequest::RemoveXattr { fid: dir, name: b"trusted.dmv" }).expect("removed");
    assert!(!f.has_default(dir));
    f.check();
}

#[test]
fn only_who_may_choose_mdts_sets_a_default_or_chooses_one() {
    let f = Fixture::new();
    let mine = f.create_as(&user(7, 70, &[]), Fid::ROOT, "mine", NewFile::Directory, 0o755);
    assert_eq!(mine, Err(Status::EACCES));
    let open = f.dir(Fid::ROOT, "open").expect("made").fid;
    let mode =
        nacre_types::SetAttr { valid: nacre_types::SetAttrValid::MODE, mode: 0o777, ..Default::default() };
    f.run(&MdsRequest::SetAttr { fid: open, set: mode }).expect("opened");
    let dir = f.create_as(&user(7, 70, &[]), open, "mine", NewFile::Directory, 0o755).expect("made").fid;
    let value = for_levels(3).encode();
    let chosen = NewFile::ChosenDirectory { default: &value };
    let choose = |cred: &Cred, name: &str| f.create_as(cred, open, name, chosen, 0o755).map(|attr| attr.fid);
    let owner = user(7, 70, &[]);
    assert_eq!(f.set_default(&owner, dir, &value), Err(Status::EPERM));
    assert_eq!(choose(&owner, "a"), Err(Status::EPERM));
    f.mds.placement.set_remote_dir_gid(70);
    assert_eq!(f.set_default(&owner, dir, &value), Ok(()));
    assert!(choose(&owner, "b").is_ok());
    assert_eq!(f.set_default(&user(8, 80, &[]), dir, &value), Err(Status::EPERM));
    f.mds.placement.set_remote_dir_gid(-1);
    // A user may choose for own directories but not for those of others.
    assert_eq!(f.set_default(&user(8, 80, &[]), dir, &[]), Err(Status::EPERM));
    assert!(f.has_default(dir));
    assert_eq!(f.set_default(&owner, dir, &[]), Ok(()));
    assert!(choose(&user(8, 80, &[]), "c").is_ok());
    f.check();
}

#[test]
fn what_was_said_for_a_directory_stands_in_place_of_what_it_would_inherit() {
    let f = Fixture::new();
    let dir = f.dir(Fid::ROOT, "d").expect("made").fid;
    f.set_default(&f.cred, dir, &for_levels(3).encode()).expect("set");
    let here = DirDefault { index: 0, ..DirDefault::default() };
    let none = DirDefault { count: 0, ..DirDefault::default() };
    let make = |name, default: &DirDefault| {
        let default = default.encode();
        f.create_as(&f.cred, dir, name, NewFile::ChosenDirectory { default: &default }, 0o755)
            .expect("made")
            .fid
    };
    assert_eq!(f.default_of(make("a", &here)), Some(here));
    assert_eq!(f.default_of(make("b", &none)), None);
    f.check();
}

#[test]
fn impossible_defaults_are_refused() {
    let f = Fixture::new();
    let (dir, file) = (f.dir(Fid::ROOT, "d").expect("made").fid, f.file(Fid::ROOT, "f").expect("made").fid);
    assert_eq!(f.set_default(&f.cred, dir, b"x"), Err(Status::EINVAL));
    let mut odd_hash = for_levels(3).encode();
    odd_hash[12] = 9;
    assert_eq!(f.set_default(&f.cred, dir, &odd_hash), Err(Status::EINVAL));
    assert_eq!(f.set_default(&f.cred, file, &for_levels(3).encode()), Err(Status::ENOTDIR));
    let chosen = f.create_as(&f.cred, dir, "n", NewFile::ChosenDirectory { default: b"x" }, 0o755);
    assert_eq!(chosen.map(drop), Err(Status::EINVAL));
    assert!(!f.has_default(dir));
    f.check();
}

#[test]
fn defaults_survive_a_restart() {
    let f = Fixture::new();
    let dir = f.dir(Fid::ROOT, "d").expect("made").fid;
    f.set_default(&f.cred, dir, &for_levels(9).encode()).expect("set");
    let f = f.restart();
    assert_eq!(f.default_of(dir), Some(for_levels(9)));
    assert_eq!(f.default_of(Fid::ROOT), Some(DirDefault::of_root()));
    f.check();
}
