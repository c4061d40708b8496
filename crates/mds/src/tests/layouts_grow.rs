use super::*;
use nacre_layout::{ComponentFlags, ComponentSpec, Extent, Layout, LayoutRequest, LayoutSpec};

const MIB: u64 = 1 << 20;
const STEP: u64 = 64 * MIB;

/// Builds components that grow by 64 MiB, with these ends.
fn growing(ends: &[u64]) -> LayoutRequest {
    let mut start = 0;
    let parts = ends.iter().flat_map(|&end| {
        let own = Extent { start, end: start };
        let room = Extent { start, end };
        start = end;
        let step = LayoutSpec { stripe_size: Some(65536), ..LayoutSpec::default() };
        [
            ComponentSpec { extent: own, flags: ComponentFlags::default(), spec: LayoutSpec::default() },
            ComponentSpec { extent: room, flags: ComponentFlags::EXTENSION, spec: step },
        ]
    });
    LayoutRequest::Composite(parts.collect())
}

/// Returns the start and end in MiB and the OST of each component; 0 MiB for the end of the file, 9 for no
/// OST.
fn shape(layout: &Layout) -> Vec<(u64, u64, u16)> {
    let mib = |bytes: u64| if bytes == Extent::EOF { 0 } else { bytes / MIB };
    let ost = |objects: &[nacre_layout::StripeObject]| objects.first().map_or(9, |object| object.ost_index);
    layout.components.iter().map(|c| (mib(c.extent.start), mib(c.extent.end), ost(&c.objects))).collect()
}

impl Fixture {
    fn grown(&self, fid: Fid, end: u64) -> Vec<(u64, u64, u16)> {
        match self.run(&MdsRequest::LayoutIntent { fid, start: end - 1, end }) {
            Ok(MdsReply::Layout(Some(layout))) => shape(&layout),
            other => panic!("{other:?}"),
        }
    }

    /// Sets the free space that an OST reports, and waits until the earlier figures are outdated.
    fn set_free(&self, ost: usize, bytes: u64) {
        self.osts[ost].statfs.lock().blocks_available = bytes / 4096;
        self.mds.osts.change_qos(|qos| qos.statfs_age = std::time::Duration::ZERO);
    }
}

#[test]
fn components_grow_where_there_is_room_and_go_on_elsewhere_where_not() {
    let f = Fixture::with_osts(2);
    let fid = f.file(Fid::ROOT, "f").expect("made").fid;
    f.attr(&MdsRequest::SetLayout { fid, requested: growing(&[Extent::EOF]) }).expect("set");
    let first = f.grown(fid, 1);
    let own = first[0].2;
    let other = 1 - own;
    assert_eq!(first, [(0, 64, own), (64, 0, 9)]);
    assert_eq!(f.grown(fid, STEP), first, "nothing changes within a step");
    assert_eq!(f.grown(fid, STEP + 1), [(0, 128, own), (128, 0, 9)]);
    f.set_free(usize::from(own), STEP - 4096);
    assert_eq!(f.grown(fid, 3 * STEP), [(0, 128, own), (128, 192, other), (192, 0, 9)]);
    f.set_free(usize::from(other), 16 * MIB);
    assert_eq!(f.grown(fid, 4 * STEP), [(0, 128, own), (128, 256, other), (256, 0, 9)], "nowhere is room");
    let f = f.restart();
    assert_eq!(f.grown(fid, 1), [(0, 128, own), (128, 256, other), (256, 0, 9)]);
    f.check();
}

#[test]
fn a_component_without_room_gives_way_to_the_next_one() {
    let f = Fixture::with_osts(1);
    let file = |name: &str| {
        let fid = f.file(Fid::ROOT, name).expect("made").fid;
        f.attr(&MdsRequest::SetLayout { fid, requested: growing(&[16 * STEP, Extent::EOF]) }).expect("set");
        fid
    };
    let fid = file("f");
    assert_eq!(f.grown(fid, 1), [(0, 64, 0), (64, 1024, 9), (1024, 1024, 9), (1024, 0, 9)]);
    f.set_free(0, 16 * MIB);
    assert_eq!(f.grown(fid, STEP + 1), [(0, 64, 0), (64, 128, 0), (128, 0, 9)]);
    // A component without objects is removed.
    assert_eq!(f.grown(file("g"), 1), [(0, 64, 0), (64, 0, 9)]);
    f.check();
}
