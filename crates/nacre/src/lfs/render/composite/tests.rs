use super::*;
use crate::lfs::render::tests::{plain_view, style};
use crate::lfs::render::{Inherited, plain};
use crate::lfs::view::{LayoutView, View};
use nacre_layout::user::{MAGIC_V3, encode_layout, encode_request};
use nacre_layout::{
    Component, ComponentFlags, ComponentSpec, Extent, Layout, LayoutForm, LayoutSpec, Pattern, PoolName,
};
use nacre_layout::{LayoutRequest, StripeObject};
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
            .map(|&(ost, oid)| StripeObject::new(ost, Fid::ost_object(ost, oid)))
            .collect(),
    }
}

/// Returns the file of the transcripts.
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

/// Returns the directory of the transcripts.
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
    view(&encode_request(&FILE, &LayoutRequest::Composite(parts)))
}

fn view(bytes: &[u8]) -> CompositeView {
    match View::decode(bytes) {
        Ok(View::Composite(view)) => view,
        other => panic!("{other:?}"),
    }
}

fn whole() -> Style {
    style("*")
}

fn verbose() -> Style {
    Style { fields: Fields::ALL.with(Fields::DETAIL), ..whole() }
}

fn file(style: &Style, filter: &Filter) -> String {
    composite("pfl", &pfl(), &FACTS, style, filter, false)
}

/// Returns the file of the transcripts whose first component is on the MDT.
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
    let template = view(&encode_request(&FILE, &LayoutRequest::Composite(parts)));
    let text = composite("d", &template, &FACTS, &whole(), &Filter::default(), true);
    let line =
        "stripe_count:  0       stripe_size:   1048576       pattern:       mdt       mdt_index:     -1\n";
    assert!(text.contains(line), "{text}");
}

/// Returns the self-extending file of the transcripts.
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
    let show =
        |letters: &str, filter: &Filter| composite("sel", &sel(), &FACTS, &style(letters), filter, false);
    assert_eq!(show("z", &none), "67108864\n\n");
    assert_eq!(show("c", &none), "1\n\n");
    assert_eq!(show("S", &none), "4194304\n\n");
    // A request for the step selects the component that has one.
    assert_eq!(show("cz", &none), "      lmm_stripe_count:  0\n      lmm_extension_size: 67108864\n\n");
    let second = Filter { id: Some(2), ..none.clone() };
    assert_eq!(show("cz", &second), show("cz", &none));
    assert_eq!(show("S", &second), "\n");
    assert_eq!(show("f", &second), "extension\n\n");
    let first = Filter { id: Some(1), ..none };
    assert_eq!(show("z", &first), "\n");
}

#[test]
fn golden_files() {
    let none = Filter::default();
    assert_eq!(file(&whole(), &none), include_str!("golden/pfl.txt"));
    assert_eq!(file(&verbose(), &none), include_str!("golden/pfl_verbose.txt"));
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
    assert_eq!(show(&verbose()), include_str!("golden/dpfl_verbose.txt"));
}

#[test]
fn golden_fields() {
    let none = Filter::default();
    let id = |id| Filter { id: Some(id), ..none.clone() };
    let flags = |set, clear| Filter { flags: Some((set, clear)), ..none.clone() };
    let end = |relation| Filter { end: Some(relation), ..none.clone() };
    let start = |relation| Filter { start: Some(relation), ..none.clone() };
    let index = |index| Filter { mirror_index: Some((false, Relation::Is(index, 1))), ..none.clone() };
    let objects = "      lmm_objects:\n      -   0: { l_ost_idx:   1, l_fid: [0x100010000:0x2:0x0] }\n      \
        -   1: { l_ost_idx:   0, l_fid: [0x100000000:0x3:0x0] }\n\n";
    let unit = 1 << 20;
    for (letters, filter, expected) in [
        // The last component with objects represents the file.
        ("c", &none, "2\n\n"),
        ("S", &none, "1048576\n\n"),
        ("i", &none, "1\n\n"),
        ("ix", &none, "0x1\n\n"),
        ("p", &none, "\n"),
        ("L", &none, "raid0\n\n"),
        ("g", &none, "3\n0\n\n"),
        ("I", &none, "2\n\n"),
        ("s", &none, "4194304\n\n"),
        ("E", &none, "67108864\n\n"),
        ("f", &none, "init\n\n"),
        ("N", &none, "1\n\n"),
        ("n", &none, "3\n\n"),
        ("F", &none, "[0x200000401:0x7:0x0]\n\n"),
        ("z", &none, "\n"),
        ("q", &none, objects),
        ("ci", &none, "      lmm_stripe_count:  2\n      lmm_stripe_offset: 1\n\n"),
        ("cN", &none, "  lcm_mirror_count:  1\n      lmm_stripe_count:  2\n\n"),
        ("Fc", &none, "      lmm_fid:           [0x200000401:0x7:0x0]\n      lmm_stripe_count:  2\n\n"),
        ("IE", &none, "    lcme_id:             2\n    lcme_extent.e_end:   67108864\n\n"),
        ("c/", &none, "pfl\n2\n\n"),
        ("cy", &none, "components:\n  - lcme_id:             2\n    sub_layout:\n2\n"),
        // Conditions show all components that meet them.
        ("c", &id(2), "2\n\n"),
        ("c", &id(3), "-1\n\n"),
        ("i", &id(3), "-1\n\n"),
        ("c", &id(4), ""),
        ("n", &id(4), "3\n"),
        ("c", &flags(0x10, 0), "1\n\n2\n\n"),
        ("I", &flags(0, 0x10), "3\n\n"),
        ("q", &flags(0, 0x10), "\n"),
        ("c", &end(Relation::Is(4 << 20, unit)), "1\n\n"),
        ("I", &end(Relation::Is((4 << 20) + 5, unit)), "1\n\n"),
        ("I", &end(Relation::Is((4 << 20) + 5, 1)), ""),
        ("I", &end(Relation::Is(u64::MAX, 1)), "3\n\n"),
        ("I", &end(Relation::Under(64 << 20, unit)), "1\n\n"),
        ("I", &end(Relation::Under(u64::MAX, 1)), "1\n\n2\n\n"),
        ("I", &end(Relation::Over(4 << 20)), "2\n\n3\n\n"),
        ("I", &start(Relation::Over(1 << 20)), "2\n\n3\n\n"),
        ("I", &start(Relation::Is(0, 1)), "1\n\n"),
        // Without mirrors there is none to count.
        ("I", &index(1), ""),
    ] {
        assert_eq!(file(&style(letters), filter), expected, "{letters} {filter:?}");
    }
}

#[test]
fn golden_fields_of_directories() {
    for (letters, expected) in [
        // The last component represents a template.
        ("c", "-1\n\n"),
        ("S", "4194304\n\n"),
        ("p", "hdd\n\n"),
        ("i", "-1\n\n"),
        ("I", "N/A\n\n"),
        ("g", "0\n\n"),
        ("E", "EOF\n\n"),
        ("q", "\n"),
        ("cS", "      stripe_count:  -1       stripe_size:   4194304\n\n"),
        ("*3", ""),
    ] {
        assert_eq!(
            composite("d", &dpfl(), &FACTS, &style(letters), &Filter::default(), true),
            expected,
            "{letters}"
        );
    }
    let first = Filter { start: Some(Relation::Is(0, 1)), ..Filter::default() };
    assert_eq!(composite("d", &dpfl(), &FACTS, &style("c"), &first, true), "1\n\n");
}

#[test]
fn only_what_lies_on_an_ost_is_shown_of_it() {
    let text = file(&style("*1"), &Filter::default());
    assert!(text.starts_with("pfl\n  lcm_layout_gen:    3\n"), "{text}");
    assert!(
        !text.contains("lcme_id:             1\n") && !text.contains("lcme_id:             3\n"),
        "{text}"
    );
    assert!(
        text.ends_with("lmm_objects:\n      -   0: { l_ost_idx:   1, l_fid: [0x100010000:0x2:0x0] }\n\n")
    );
    assert_eq!(file(&style("*7"), &Filter::default()), "");
}

#[test]
fn hexadecimal_indices_have_room_for_their_prefix() {
    let text = file(&style("*x"), &Filter::default());
    assert!(text.contains("lmm_stripe_offset: 0\n") && text.contains("lmm_stripe_offset: 0x1\n"), "{text}");
    assert!(
        text.contains("-   0: { l_ost_idx:   0x1, l_fid: ") && text.contains("{ l_ost_idx:     0, l_fid: "),
        "{text}"
    );
}

#[test]
fn golden_mirrors() {
    let mut view = pfl();
    view.entries.truncate(2);
    let (first, second) = (65537, 131_074);
    (view.entries[0].id, view.entries[1].id) = (first, second);
    view.entries[1].flags = 0x11;
    (view.flags, view.mirror_count) = (1, 2);
    let show = |letters: &str, filter: &Filter| composite("f", &view, &FACTS, &style(letters), filter, false);
    let none = Filter::default();
    assert_eq!(show("N", &none), "2\n\n");
    assert!(show(".", &none).contains("  lcm_flags:         ro\n"));
    let text = show("*", &none);
    let parts =
        "    lcme_id:             131074\n    lcme_mirror_id:      2\n    lcme_flags:          init,stale\n";
    assert!(text.contains(parts), "{text}");
    let by_id = |not, relation| Filter { mirror_id: Some((not, relation)), ..none.clone() };
    let by_index = |not, relation| Filter { mirror_index: Some((not, relation)), ..none.clone() };
    for (filter, expected) in [
        (by_id(false, Relation::Is(1, 1)), "65537\n\n"),
        (by_id(true, Relation::Is(1, 1)), "131074\n\n"),
        (by_id(false, Relation::Over(1)), "131074\n\n"),
        (by_id(false, Relation::Under(2, 1)), "65537\n\n"),
        (by_index(false, Relation::Is(2, 1)), "131074\n\n"),
        (by_index(true, Relation::Is(2, 1)), "65537\n\n"),
        (by_index(false, Relation::Is(3, 1)), ""),
    ] {
        assert_eq!(show("I", &filter), expected, "{filter:?}");
    }
}

#[test]
fn a_file_that_was_never_written_is_shown_by_its_first_component() {
    let mut view = pfl();
    view.entries.iter_mut().for_each(|entry| entry.flags = 0);
    let show = |letters| composite("f", &view, &FACTS, &style(letters), &Filter::default(), false);
    assert_eq!((show("I"), show("c")), ("1\n\n".to_owned(), "1\n\n".to_owned()));
}

#[test]
fn flags_are_words_and_mirrors_numbered() {
    let mut entry = pfl().entries.remove(0);
    entry.flags = 0x16;
    assert_eq!(entry.flags_text(), "init,prefer");
    entry.flags = 0x17;
    assert_eq!(entry.flags_text(), "init,stale,prefer");
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
        LayoutView { pool: Some("flash".into()), magic: MAGIC_V3, ..plain_view(1, 1 << 20, &[(0, 2)]) };
    let text = composite("f", &view, &FACTS, &whole(), &Filter::default(), false);
    assert!(
        text.contains("      lmm_stripe_offset: 0\n      lmm_pool:          flash\n      lmm_objects:\n"),
        "{text}"
    );
}

#[test]
fn listed_osts_are_told_by_templates_and_by_plain_directories() {
    let pool = PoolName::new(b"flash");
    let spec = LayoutSpec { osts: vec![1, 0], stripe_count: Some(2), pool, ..LayoutSpec::default() };
    let requested = LayoutRequest::Composite(vec![ComponentSpec {
        extent: Extent::WHOLE,
        flags: ComponentFlags::default(),
        spec: spec.clone(),
    }]);
    let show = |letters: &str, directory| {
        composite(
            "p",
            &view(&encode_request(&FILE, &requested)),
            &FACTS,
            &style(letters),
            &Filter::default(),
            directory,
        )
    };
    let rows = "      - l_ost_idx: 1\n        l_fid:     0x100010000:0x0:0x0\n";
    for directory in [false, true] {
        let text = show("*", directory);
        assert!(text.contains("stripe_offset: 1\n") && !text.contains("objects"), "{text}");
        assert!(!text.contains("pool"), "it says no more than the list: {text}");
        assert!(show("*y", directory).contains(rows) && show("*y", directory).contains("pool:"));
    }
    let View::Plain(listed) =
        View::decode(&encode_request(&FILE, &LayoutRequest::Plain(spec))).expect("a request")
    else {
        panic!("plain")
    };
    let text = plain("d", &listed, &FACTS, &whole(), &Filter::default(), Some(Inherited(false)));
    let expected = "d\nstripe_count:  2 stripe_size:   0 pattern:       raid0 stripe_offset: 1 pool:          flash\n\
        \tobdidx\t\t objid\t\t objid\t\t group\n\
        \t     1\t           N/A\t          N/A\t           N/A\n\
        \t     0\t           N/A\t          N/A\t           N/A\n\n";
    assert_eq!(text, expected);
    let hex = Style { hex_index: true, ..whole() };
    let text = plain("d", &listed, &FACTS, &hex, &Filter::default(), Some(Inherited(false)));
    assert_eq!(text, expected.replace("offset: 1", "offset: 0x1"), "the rows have decimal numbers");
    assert!(listed.placed().is_empty());
}
