use super::*;
use crate::lfs::render::tests::plain;
use crate::lfs::view::View;
use nacre_layout::user::{MAGIC_V3, encode_layout, encode_wish};
use nacre_layout::{
    Component, ComponentFlags, ComponentSpec, Extent, Layout, LayoutForm, LayoutSpec, Pattern, PoolName,
};
use nacre_layout::{StripeObject, Wish};
use nacre_types::Fid;

const FILE: Fid = Fid::new(0x2_0000_0401, 7, 0);
const FACTS: Facts = Facts { fid: FILE, mdt_index: 0 };
const MIB: u64 = 1 << 20;

fn component(id: u32, end: u64, count: u16, size: u32, objects: &[(u16, u32)]) -> Component {
    let start = if id == 1 { 0 } else { [4, 64][id as usize - 2] * MIB };
    Component {
        id,
        extent: Extent { start, end },
        flags: if objects.is_empty() { ComponentFlags::default() } else { ComponentFlags::INIT },
        pattern: Pattern::Raid0,
        stripe_size: size,
        stripe_count: count,
        first_ost: None,
        pool: None,
        osts: Vec::new(),
        generation: 0,
        objects: objects
            .iter()
            .map(|&(ost, oid)| StripeObject { ost_index: ost, object: Fid::ost_object(ost, oid) })
            .collect(),
    }
}

/// The file of the transcripts.
fn pfl() -> CompositeView {
    let layout = Layout {
        form: LayoutForm::Composite,
        generation: 3,
        components: vec![
            component(1, 4 * MIB, 1, 1 << 20, &[(0, 2)]),
            component(2, 64 * MIB, 2, 1 << 20, &[(1, 2), (0, 3)]),
            component(3, Extent::EOF, 0xffff, 4 << 20, &[]),
        ],
    };
    view(&encode_layout(&FILE, &layout))
}

/// The directory of the transcripts.
fn dpfl() -> CompositeView {
    let part = |start, end, count, size, pool| ComponentSpec {
        extent: Extent { start, end },
        flags: ComponentFlags::default(),
        spec: LayoutSpec {
            stripe_size: Some(size),
            stripe_count: Some(count),
            pool,
            ..LayoutSpec::default()
        },
    };
    let pool = PoolName::new(b"hdd");
    let parts = vec![part(0, 4 * MIB, 1, 1 << 20, None), part(4 * MIB, Extent::EOF, 0xffff, 4 << 20, pool)];
    view(&encode_wish(&FILE, &Wish::Composite(parts)))
}

fn view(bytes: &[u8]) -> CompositeView {
    match View::decode(bytes) {
        Ok(View::Composite(view)) => view,
        other => panic!("{other:?}"),
    }
}

fn whole() -> Style {
    Style { fields: Fields::ALL, whole: true, ..Style::default() }
}

fn file(style: &Style, filter: &Filter) -> String {
    composite("pfl", &pfl(), &FACTS, style, filter, false)
}

/// The file of the transcripts whose first component is on the MDT.
fn dom() -> CompositeView {
    let first = Component { pattern: Pattern::Mdt, ..component(1, MIB, 0, 1 << 20, &[]) };
    let second =
        Component { extent: Extent { start: MIB, end: Extent::EOF }, ..component(2, 0, 1, 4 << 20, &[]) };
    let mut layout = Layout { form: LayoutForm::Composite, generation: 2, components: vec![first, second] };
    layout.place_on_mdt(FILE);
    view(&encode_layout(&FILE, &layout))
}

#[test]
fn golden_data_on_an_mdt() {
    let head = "    lcme_id:             1\n    lcme_mirror_id:      0\n    lcme_flags:          init\n    \
        lcme_extent.e_start: 0\n    lcme_extent.e_end:   1048576\n      lmm_stripe_count:  0\n      \
        lmm_stripe_size:   1048576\n      lmm_pattern:       mdt\n      lmm_layout_gen:    0\n      \
        lmm_mdt_index:     0\n\n    lcme_id:             2\n";
    let text = composite("dom", &dom(), &FACTS, &whole(), &Filter::default(), false);
    assert!(
        text.starts_with("dom\n  lcm_layout_gen:    2\n  lcm_mirror_count:  1\n  lcm_entry_count:   2\n")
    );
    assert!(text.contains(head), "{text}");
    let yaml = composite("dom", &dom(), &FACTS, &Style { yaml: true, ..whole() }, &Filter::default(), false);
    assert!(yaml.contains(
        "      lmm_pattern:       mdt\n      lmm_layout_gen:    0\n      lmm_mdt_index:     0\n  - "
    ));
    let parts = vec![
        ComponentSpec {
            extent: Extent { start: 0, end: MIB },
            flags: ComponentFlags::default(),
            spec: LayoutSpec::ON_MDT,
        },
        ComponentSpec {
            extent: Extent { start: MIB, end: Extent::EOF },
            flags: ComponentFlags::default(),
            spec: LayoutSpec::default(),
        },
    ];
    let template = view(&encode_wish(&FILE, &Wish::Composite(parts)));
    let text = composite("d", &template, &FACTS, &whole(), &Filter::default(), true);
    let line =
        "stripe_count:  0       stripe_size:   1048576       pattern:       mdt       stripe_offset: -1\n";
    assert!(text.contains(line), "{text}");
}

/// The file of the transcripts that grows.
fn sel() -> CompositeView {
    let first = component(1, 64 * MIB, 1, 4 << 20, &[(0, 5)]);
    let second = Component {
        extent: Extent { start: 64 * MIB, end: Extent::EOF },
        flags: ComponentFlags::EXTENSION,
        ..component(2, 0, 0, 65536, &[])
    };
    let layout = Layout { form: LayoutForm::Composite, generation: 2, components: vec![first, second] };
    view(&encode_layout(&FILE, &layout))
}

#[test]
fn golden_components_that_grow() {
    let none = Filter::default();
    let text = composite("sel", &sel(), &FACTS, &whole(), &none, false);
    assert_eq!(text, include_str!("golden/sel.txt"));
    let show = |set: fn(&mut Fields), filter: &Filter| {
        let mut style = Style::default();
        set(&mut style.fields);
        composite("sel", &sel(), &FACTS, &style, filter, false)
    };
    assert_eq!(show(|f| f.extension_size = true, &none), "67108864\n\n");
    let second = Filter { id: Some(2), ..none };
    assert_eq!(
        show(|f| (f.count, f.extension_size) = (true, true), &second),
        "      lmm_stripe_count:  0\n      lmm_extension_size: 67108864\n\n"
    );
    assert_eq!(show(|f| f.component_flags = true, &second), "extension\n\n");
}

#[test]
fn golden_files() {
    let none = Filter::default();
    assert_eq!(file(&whole(), &none), include_str!("golden/pfl.txt"));
    let verbose = Style { verbose: true, ..whole() };
    assert_eq!(file(&verbose, &none), include_str!("golden/pfl_verbose.txt"));
    let yaml = Style { yaml: true, ..whole() };
    assert_eq!(file(&yaml, &none), include_str!("golden/pfl_yaml.txt"));
    let second = Filter { id: Some(2), ..none };
    assert_eq!(file(&whole(), &second), include_str!("golden/component.txt"));
}

#[test]
fn golden_directories() {
    let none = Filter::default();
    let show = |style: &Style| composite("dpfl", &dpfl(), &FACTS, style, &none, true);
    assert_eq!(show(&whole()), include_str!("golden/dpfl.txt"));
    assert_eq!(show(&Style { verbose: true, ..whole() }), include_str!("golden/dpfl_verbose.txt"));
}

#[test]
fn golden_single_values() {
    let show = |set: fn(&mut Fields), filter: &Filter| {
        let mut style = Style::default();
        set(&mut style.fields);
        file(&style, filter)
    };
    let none = Filter::default();
    assert_eq!(show(|f| f.count = true, &none), "2\n\n");
    assert_eq!(show(|f| f.size = true, &none), "1048576\n\n");
    assert_eq!(show(|f| f.offset = true, &none), "1\n\n");
    assert_eq!(show(|f| f.pool = true, &none), "\n");
    assert_eq!(show(|f| f.pattern = true, &none), "raid0\n\n");
    assert_eq!(show(|f| f.generation = true, &none), "3\n0\n\n");
    assert_eq!(show(|f| f.component_id = true, &none), "2\n\n");
    assert_eq!(show(|f| f.component_end = true, &none), "67108864\n\n");
    assert_eq!(show(|f| f.mirror_count = true, &none), "1\n\n");
    assert_eq!(show(|f| f.fid = true, &none), "[0x200000401:0x7:0x0]\n\n");
    assert_eq!(show(|f| f.mdt_index = true, &none), "0\n");
    assert_eq!(show(|f| f.component_count = true, &none), "3\n\n");
    assert_eq!(show(|f| f.component_start = true, &none), "4194304\n\n");
    assert_eq!(show(|f| f.component_flags = true, &none), "init\n\n");
    assert_eq!(show(|f| f.extension_size = true, &none), "\n");
    assert_eq!(show(|f| f.count = true, &Filter { id: Some(2), ..none.clone() }), "2\n\n");
    let init = Filter { flags: Some((0x10, 0)), ..none.clone() };
    assert_eq!(show(|f| f.count = true, &init), "1\n\n2\n\n");
    let end = Filter { end: Some(Relation::Is(4 << 20)), ..none.clone() };
    assert_eq!(show(|f| f.count = true, &end), "1\n\n");
    let behind = Filter { start: Some(Relation::Over(1 << 20)), ..none.clone() };
    assert_eq!(show(|f| f.component_id = true, &behind), "2\n\n3\n\n");
    let both = "      lmm_stripe_count:  2\n      lmm_stripe_offset: 1\n\n";
    assert_eq!(show(|f| (f.count, f.offset) = (true, true), &none), both);
}

#[test]
fn flags_are_words_and_mirrors_numbered() {
    let mut entry = pfl().entries.remove(0);
    entry.flags = 0x16;
    assert_eq!(entry.flags_text(), "init,prefer");
    entry.flags = 0x11;
    assert_eq!(entry.flags_text(), "init,stale");
    entry.flags = 0x1000;
    assert_eq!(entry.flags_text(), "0x1000");
    entry.id = 131_074;
    assert_eq!(entry.mirror_id(), 2);
    assert_eq!(crate::lfs::view::parse_flags("init,^stale"), Some((0x10, 1)));
    assert_eq!(crate::lfs::view::parse_flags("nonsense"), None);
}

#[test]
fn pools_of_components_have_a_line() {
    let mut view = pfl();
    view.entries[0].layout =
        LayoutView { pool: Some("flash".into()), magic: MAGIC_V3, ..plain(1, 1 << 20, &[(0, 2)]) };
    let text = composite("f", &view, &FACTS, &whole(), &Filter::default(), false);
    assert!(
        text.contains("      lmm_stripe_offset: 0\n      lmm_pool:          flash\n      lmm_objects:\n"),
        "{text}"
    );
}

#[test]
fn listed_osts_are_shown_before_there_are_objects() {
    let spec = LayoutSpec { osts: vec![1, 0], stripe_count: Some(2), ..LayoutSpec::default() };
    let wish = Wish::Composite(vec![ComponentSpec {
        extent: Extent::WHOLE,
        flags: ComponentFlags::default(),
        spec: spec.clone(),
    }]);
    let style = Style { fields: Fields::ALL, whole: true, ..Style::default() };
    let yaml = Style { yaml: true, ..style.clone() };
    let show = |style: &Style, directory| {
        composite("p", &view(&encode_wish(&FILE, &wish)), &FACTS, style, &Filter::default(), directory)
    };
    let rows = "      lmm_objects:\n      -   0: { l_ost_idx:   1, l_fid: [0x100010000:0x0:0x0] }\n      \
        -   1: { l_ost_idx:   0, l_fid: [0x100000000:0x0:0x0] }\n\n";
    for directory in [false, true] {
        let text = show(&style, directory);
        assert!(text.ends_with(rows) && text.contains("stripe_offset: 1\n"), "{text}");
    }
    let rows = "      - l_ost_idx: 1\n        l_fid:     0x100010000:0x0:0x0\n";
    assert!(show(&yaml, true).contains(rows));
    let View::Plain(plain) = View::decode(&encode_wish(&FILE, &Wish::Plain(spec))).expect("a wish") else {
        panic!("plain")
    };
    let text = crate::lfs::render::directory("d", &plain, &FACTS, &style, false);
    let expected = "d\nstripe_count:  2 stripe_size:   0 pattern:       raid0 stripe_offset: 1\n\
        \tobdidx\t\t objid\t\t objid\t\t group\n\
        \t     1\t             0\t            0\t             0\n\
        \t     0\t             0\t            0\t             0\n\n";
    assert_eq!(text, expected);
    assert!(plain.placed().is_empty());
}
