//! Files in pools of OSTs.

use super::*;
use nacre_layout::{
    ComponentFlags, ComponentSpec, Extent, Layout, LayoutRequest, LayoutSpec, Pattern, PoolName,
};
use nacre_wire::mgs::PoolConfig;

fn name(text: &str) -> PoolName {
    PoolName::new(text.as_bytes()).expect("a name")
}

fn pool(text: &str, osts: &[u16]) -> PoolConfig {
    PoolConfig { name: name(text), osts: osts.to_vec() }
}

fn in_pool(text: &str) -> LayoutSpec {
    LayoutSpec { pool: Some(name(text)), ..LayoutSpec::default() }
}

impl Fixture {
    fn request_for(&self, fid: Fid, requested: LayoutRequest) -> StatusResult<Attr> {
        self.attr(&MdsRequest::SetLayout { fid, requested })
    }

    /// Returns the layout of a new file after a write of its first byte.
    fn placed(&self, directory: Fid, file: &str) -> Arc<Layout> {
        let fid = self.file(directory, file).expect("made").fid;
        self.write_at(fid, 0)
    }

    fn write_at(&self, fid: Fid, start: u64) -> Arc<Layout> {
        match self.run(&MdsRequest::LayoutIntent { fid, start, end: start + 1 }) {
            Ok(MdsReply::Layout(Some(layout))) => layout,
            other => panic!("{other:?}"),
        }
    }
}

fn osts(layout: &Layout) -> Vec<u16> {
    layout.objects().map(|object| object.ost_index).collect()
}

#[test]
fn files_are_placed_in_their_pool_and_fall_back_when_it_is_gone_or_empty() {
    let f = Fixture::with_osts(4);
    f.mds.osts.set_pools(&[pool("empty", &[]), pool("flash", &[1, 3])]);
    let dir = f.dir(Fid::ROOT, "d").expect("made").fid;
    f.request_for(dir, LayoutRequest::Plain(LayoutSpec { stripe_count: Some(9), ..in_pool("flash") }))
        .expect("set");
    for number in 0..5 {
        let layout = f.placed(dir, &format!("f{number}"));
        let mut used = osts(&layout);
        used.sort_unstable();
        assert_eq!((used, layout.components[0].pool), (vec![1, 3], Some(name("flash"))));
    }
    f.mds.osts.set_pools(&[pool("flash", &[])]);
    assert_eq!(osts(&f.placed(dir, "empty")).len(), 4);
    f.mds.osts.set_pools(&[]);
    assert_eq!(osts(&f.placed(dir, "gone")).len(), 4);
    f.check();
}

#[test]
fn a_first_ost_has_to_be_in_the_pool_and_a_full_pool_is_not_left() {
    let f = Fixture::with_osts(3);
    f.mds.osts.set_pools(&[pool("flash", &[1, 2])]);
    let fid = f.file(Fid::ROOT, "f").expect("made").fid;
    let first = |index| LayoutRequest::Plain(LayoutSpec { first_ost: Some(index), ..in_pool("flash") });
    assert_eq!(f.request_for(fid, first(0)).err(), Some(Status::EINVAL));
    f.request_for(fid, first(2)).expect("in the pool");
    for ost in &f.osts[1..] {
        ost.statfs.lock().blocks_available = 0;
    }
    let f = f.restart();
    f.mds.osts.set_pools(&[pool("flash", &[1, 2])]);
    eventually("the MDT knows of it", || {
        let fid = f.fid();
        let made = f.file(Fid::ROOT, &fid.to_string()).expect("made").fid;
        f.request_for(made, LayoutRequest::Plain(in_pool("flash"))).err() == Some(Status::ENOSPC)
    });
    assert_eq!(osts(&f.placed(Fid::ROOT, "elsewhere")), [0]);
}

#[test]
fn directories_take_the_pool_of_the_one_above_unless_they_ignore_it() {
    let f = Fixture::with_osts(3);
    f.mds.osts.set_pools(&[pool("flash", &[1]), pool("disk", &[2])]);
    let dir = f.dir(Fid::ROOT, "d").expect("made").fid;
    f.request_for(dir, LayoutRequest::Plain(in_pool("flash"))).expect("set");
    let sub = f.dir(dir, "sub").expect("made").fid;
    let part = |start, end, spec| ComponentSpec {
        extent: Extent { start, end },
        flags: ComponentFlags::default(),
        spec,
    };
    let requested = LayoutRequest::Composite(vec![
        part(0, 1 << 20, LayoutSpec::default()),
        part(1 << 20, Extent::EOF, in_pool("disk")),
    ]);
    f.request_for(sub, requested).expect("set");
    let fid = f.file(sub, "f").expect("made").fid;
    assert_eq!(osts(&f.write_at(fid, 2 << 20)), [1, 2]);
    let free = f.dir(dir, "free").expect("made").fid;
    f.request_for(free, LayoutRequest::Plain(in_pool("ignore"))).expect("set");
    let mut found = std::collections::BTreeSet::new();
    // OSTs without available ids are skipped.
    eventually("all OSTs are used", || {
        found.extend(osts(&f.placed(free, &f.fid().to_string())));
        found.len() == 3
    });
    assert_eq!(f.placed(free, "none").components[0].pool, None);
    f.check();
}

#[test]
fn listed_osts_are_used_in_their_order_for_files_components_and_directories() {
    let f = Fixture::with_osts(4);
    let listed = |osts: &[u16]| LayoutSpec { osts: osts.to_vec(), ..LayoutSpec::default() };
    let file = f.file(Fid::ROOT, "f").expect("made").fid;
    f.request_for(file, LayoutRequest::Plain(listed(&[3, 0, 2]))).expect("set");
    let layout = f.write_at(file, 0);
    assert_eq!((osts(&layout), layout.components[0].pattern), (vec![3, 0, 2], Pattern::Raid0));
    let file = f.file(Fid::ROOT, "turned").expect("made").fid;
    f.request_for(file, LayoutRequest::Plain(LayoutSpec { first_ost: Some(0), ..listed(&[3, 0, 2]) }))
        .expect("set");
    assert_eq!(osts(&f.write_at(file, 0)), [0, 2, 3], "the list begins where it is told to");
    let dir = f.dir(Fid::ROOT, "d").expect("made").fid;
    let part = |start, end, spec| ComponentSpec {
        extent: Extent { start, end },
        flags: ComponentFlags::default(),
        spec,
    };
    let over = LayoutSpec { pattern: Pattern::Overstriped, ..listed(&[2, 1, 2]) };
    let parts = vec![part(0, 1 << 20, listed(&[1])), part(1 << 20, Extent::EOF, over)];
    f.request_for(dir, LayoutRequest::Composite(parts)).expect("set");
    let fid = f.file(dir, "f").expect("made").fid;
    assert_eq!(osts(&f.write_at(fid, 0)), [1]);
    let f = f.restart();
    let layout = f.write_at(fid, 5 << 20);
    assert_eq!((osts(&layout), layout.components[1].pattern), (vec![1, 2, 1, 2], Pattern::Overstriped));
    let other = f.file(Fid::ROOT, "g").expect("made").fid;
    let refused = |spec: LayoutSpec| f.request_for(other, LayoutRequest::Plain(spec)).err();
    assert_eq!(refused(listed(&[0, 7])), Some(Status::EINVAL), "no such OST");
    assert_eq!(refused(listed(&[0, 0])), Some(Status::EINVAL), "twice without overstriping");
    assert_eq!(refused(LayoutSpec { first_ost: Some(3), ..listed(&[0, 1]) }), Some(Status::EINVAL));
    assert_eq!(refused(LayoutSpec { stripe_count: Some(3), ..listed(&[0, 1]) }), Some(Status::EINVAL));
    f.mds.osts.set_pools(&[pool("flash", &[1, 2])]);
    assert_eq!(refused(LayoutSpec { osts: vec![1, 3], ..in_pool("flash") }), Some(Status::EINVAL));
    f.check();
}

#[test]
fn overstriped_files_have_as_many_stripes_as_they_ask_for() {
    let f = Fixture::with_osts(3);
    let striped = |name: &str, count: u16| {
        let fid = f.file(Fid::ROOT, name).expect("made").fid;
        let spec =
            LayoutSpec { stripe_count: Some(count), pattern: Pattern::Overstriped, ..LayoutSpec::default() };
        f.request_for(fid, LayoutRequest::Plain(spec)).expect("set");
        let layout = f.write_at(fid, 0);
        let each = [0, 1, 2].map(|ost| osts(&layout).iter().filter(|index| **index == ost).count());
        (each, layout.components[0].pattern)
    };
    assert_eq!(striped("a", 6), ([2, 2, 2], Pattern::Overstriped));
    let (each, pattern) = striped("b", 4);
    assert_eq!((each.iter().sum::<usize>(), each.iter().max(), pattern), (4, Some(&2), Pattern::Overstriped));
    assert_eq!(striped("c", 3), ([1, 1, 1], Pattern::Raid0), "said only of what really is");
    assert_eq!(striped("d", u16::MAX), ([1, 1, 1], Pattern::Raid0));
    assert_eq!(striped("e", 0xfffe), ([2, 2, 2], Pattern::Overstriped));
    assert_eq!(striped("f", 0xffe0), ([32, 32, 32], Pattern::Overstriped));
    let (each, _) = striped("g", 2000);
    assert_eq!(each.iter().sum::<usize>(), 2000);
    f.check();
}
