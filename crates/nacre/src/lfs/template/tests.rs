use super::*;
use crate::lfs::render::{self, Facts, Filter, Style};
use crate::lfs::view::View;
use nacre_layout::{Layout, Pattern, StripeObject, user};
use nacre_types::Fid;
use proptest::prelude::*;

const FILE: Fid = Fid::new(0x2_0000_0401, 7, 0);
const MIB: u64 = 1 << 20;

/// Returns the text of `lfs getstripe` for a file.
fn shown(layout: &Layout, yaml: bool) -> String {
    let facts = Facts { fid: FILE, mdt_index: 0 };
    let style = Style { yaml, ..render::tests::style("*") };
    match View::decode(&user::encode_layout(&FILE, layout)).expect("shown") {
        View::Plain(view) => render::plain("f", &view, &facts, &style, &Filter::default(), None),
        View::Composite(view) => render::composite("f", &view, &facts, &style, &Filter::default(), false),
    }
}

/// Parses the text of a composite file, as scripts do.
fn parsed(text: &str) -> Vec<ComponentSpec> {
    let value = |line: &str| line.split_once(':').expect("a value").1.trim().to_owned();
    let mut found: Vec<ComponentSpec> = Vec::new();
    for line in text.lines().map(str::trim) {
        let key = line.split(':').next().expect("a key");
        if key == "lcme_id" {
            let extent = Extent { start: 0, end: 0 };
            found.push(ComponentSpec {
                extent,
                flags: ComponentFlags::default(),
                spec: LayoutSpec::default(),
            });
        }
        let Some(last) = found.last_mut() else { continue };
        match key {
            "lcme_flags" => last.flags = flags(&value(line)).expect("flags"),
            "lcme_extent.e_start" => last.extent.start = value(line).parse().expect("start"),
            "lcme_extent.e_end" => last.extent.end = value(line).parse().unwrap_or(Extent::EOF),
            "lmm_pattern" if value(line) == "mdt" => last.spec = LayoutSpec::ON_MDT,
            _ if last.spec.pattern == Pattern::Mdt => {}
            "lmm_stripe_count" => {
                last.spec.stripe_count = Some(value(line).parse::<i32>().expect("count") as u16)
            }
            "lmm_extension_size" => {
                let step: u64 = value(line).parse().expect("a size");
                last.spec = LayoutSpec { stripe_size: Some((step / 1024) as u32), ..LayoutSpec::default() };
            }
            _ if last.flags.contains(ComponentFlags::EXTENSION) => {}
            "lmm_stripe_size" => last.spec.stripe_size = Some(value(line).parse().expect("size")),
            "lmm_stripe_offset" => last.spec.first_ost = value(line).parse().ok(),
            _ if line.starts_with("- ") => {
                let ost = line.split(&[' ', ','][..]).skip_while(|word| *word != "l_ost_idx:");
                last.spec.osts.extend(
                    ost.skip(1).find(|word| !word.is_empty()).and_then(|word| word.parse::<u16>().ok()),
                );
            }
            "lmm_pool" => last.spec.pool = PoolName::new(value(line).as_bytes()),
            _ => {}
        }
    }
    found
}

prop_compose! {
    fn any_request()(
        parts in proptest::collection::vec((0u32..4, 1u16..6, any::<bool>(), 0u16..4, 0u8..3, 1u64..64), 1..8),
        open: bool, plain in 0u8..4,
        on_mdt: bool, listed: bool,
    ) -> LayoutRequest {
        let spec = |(size, count, all, first, pool): (u32, u16, bool, u16, u8)| LayoutSpec {
            stripe_size: Some(65536 << size),
            stripe_count: Some(if all { STRIPE_COUNT_ALL } else { count }),
            first_ost: (first > 0).then_some(first),
            pool: (pool == 1).then(|| PoolName::new(b"flash")).flatten(),
            pattern: Pattern::Raid0,
            osts: Vec::new(),
        };
        let (mut start, last) = (0, parts.len() - 1);
        let mut components = Vec::new();
        for (place, (size, count, all, first, pool, len)) in parts.into_iter().enumerate() {
            let mut spec = spec((size, count, all, first, pool));
            if listed && !all && first > 0 {
                spec.osts = (0..count).map(|i| (first + i) % 5).collect();
            }
            if plain == 0 {
                return LayoutRequest::Plain(spec);
            }
            let end = if open && place == last { Extent::EOF } else { start + len * MIB };
            let extent = Extent { start, end };
            start = end;
            let spec = if on_mdt && place == 0 && end != Extent::EOF { LayoutSpec::ON_MDT } else { spec };
            let flags = if pool == 2 { ComponentFlags::PREFER_READ } else { ComponentFlags::default() };
            let grows = extent.start > 0 && size == 1;
            let end = if grows { extent.start } else { end };
            components.push(ComponentSpec { extent: Extent { end, ..extent }, flags, spec });
            if grows {
                let step = LayoutSpec { stripe_size: Some(65536 * u32::from(count)), ..LayoutSpec::default() };
                components.push(ComponentSpec { extent, flags: ComponentFlags::EXTENSION, spec: step });
            }
        }
        LayoutRequest::Composite(components)
    }
}

proptest! {
    #[test]
    fn every_layout_survives_yaml_and_a_script_that_reads_the_text(requested in any_request(), until in 0usize..9) {
        let mut layout = requested.to_layout(&LayoutSpec::default());
        prop_assert_eq!(parse(&shown(&layout, true)), Ok(requested.clone()));
        if let LayoutRequest::Composite(components) = &requested {
            // Templates contain lists of OSTs with their pools; the text has objects only.
            let mut without_lists = components.clone();
            for spec in without_lists.iter_mut().map(|part| &mut part.spec).filter(|spec| !spec.osts.is_empty()) {
                (spec.osts, spec.pool) = (Vec::new(), None);
            }
            prop_assert_eq!(parsed(&shown(&layout, false)), without_lists);
        }
        // With objects, the OST of the first one becomes the requested first OST.
        layout.place_on_mdt(FILE);
        for place in 0..layout.components.len().min(until) {
            let component = &layout.components[place];
            if component.pattern == Pattern::Mdt || component.is_extension() || component.extent.is_empty() {
                continue;
            }
            let first = layout.components[place].first_ost.unwrap_or(2);
            let count = layout.components[place].stripe_count.min(5);
            let object = |i| StripeObject::new(first + i, Fid::ost_object(first + i, 9));
            layout.instantiate(place, (0..count).map(object).collect());
        }
        let text = format!("composite_header:\n{}", shown(&layout, true));
        let read = parse(&text).expect("a template");
        prop_assert_eq!(read.specs().count(), layout.components.len());
        for (spec, component) in read.specs().zip(&layout.components) {
            prop_assert_eq!(spec.pattern, component.pattern);
            if spec.pattern == Pattern::Mdt {
                prop_assert_eq!(spec, &LayoutSpec::ON_MDT);
                continue;
            }
            if component.is_extension() {
                prop_assert_eq!((spec.stripe_size, spec.stripe_count), (Some(component.stripe_size), None));
                continue;
            }
            // The OSTs of its objects, or the requested ones.
            let on: Vec<u16> = match component.objects.as_slice() {
                [] => component.osts.clone(),
                objects => objects.iter().map(|object| object.ost_index).collect(),
            };
            prop_assert_eq!(&spec.osts, &on);
            let own = (spec.stripe_size, spec.stripe_count, spec.first_ost, spec.pool);
            let wanted = (Some(component.stripe_size), Some(component.stripe_count), component.first_ost, component.pool);
            prop_assert_eq!(own, wanted);
        }
    }

    #[test]
    fn any_text_is_read_or_refused(text in "[a-z_:. \\-0-9\\n]{0,200}") {
        let _ = parse(&text);
    }
}

#[test]
fn misspelt_keys_and_impossible_values_are_refused_with_their_line() {
    let head = "components:\n  - lcme_id: 1\n";
    for (text, line, what) in [
        ("lmm_stripe_count: 2\nlmm_strip_size: 1", 2, "unknown key 'strip_size'"),
        ("lmm_stripe_count: 5000", 1, "'5000' is no value of 'lmm_stripe_count'"),
        ("lmm_stripe_count: abc", 1, "'abc' is no value of 'lmm_stripe_count'"),
        ("lmm_stripe_count:", 1, "'' is no value of 'lmm_stripe_count'"),
        ("lmm_pattern: parity", 1, "pattern 'parity' is not supported yet"),
        ("lcm_mirror_count: 2", 1, "mirrors are not supported yet"),
        ("lcme_extent.e_end: 5", 1, "'lcme_extent.e_end' outside of a component"),
        ("- lcme_id: 1", 1, "a list outside of 'components'"),
        (&format!("{head}    lcme_flags: bogus"), 3, "'bogus' is no value of 'lcme_flags'"),
        (&format!("{head}    lcme_extent.e_end: 1M"), 3, "'1M' is no value of 'lcme_extent.e_end'"),
        (&format!("{head}    lcme_timestam: 1"), 3, "unknown key 'lcme_timestam'"),
    ] {
        assert_eq!(parse(text), Err(Refusal::Impossible(Some(line), what.to_owned())), "{text}");
    }
}

#[test]
fn what_is_no_template_is_refused_as_such() {
    for (text, line, what) in [
        ("hello", 1, "'hello' has no key"),
        ("# a remark\n\nlmm_stripe_count: [1", 3, "'[1' is no plain value"),
        ("lmm_stripe_count: 2\n\tlmm_stripe_size: 65536", 2, "a tab before a key"),
        ("lmm_pool: \"flash\"", 1, "'\"flash\"' is no plain value"),
    ] {
        let refusal = parse(text).expect_err(text);
        assert_eq!(refusal, Refusal::Malformed(line, what.to_owned()));
        assert_eq!(refusal.to_string(), format!("line {line}: {what}"));
    }
}

#[test]
fn what_a_template_leaves_out_is_the_default_but_for_ends() {
    assert_eq!(parse(""), Ok(LayoutRequest::Plain(LayoutSpec::default())));
    assert_eq!(parse("---\n# nothing\n...\n"), Ok(LayoutRequest::Plain(LayoutSpec::default())));
    let lost =
        |place| Err(Refusal::Impossible(None, format!("component {place} has no 'lcme_extent.e_end'")));
    assert_eq!(parse("components:\n- lcme_id: 1"), lost(1));
    assert_eq!(parse("components:\n- lcme_extent.e_end: 1048576\n- lcme_flags: 0\n"), lost(2));
    assert_eq!(parse("components:\n"), Err(Refusal::Impossible(None, "'components' has none".to_owned())));
    let text = "components:\n- lcme_extent.e_end: 1048576\n- lcme_extent.e_end: EOF\n  sub_layout:\n    \
        lmm_stripe_count: 2\n";
    let Ok(LayoutRequest::Composite(parts)) = parse(text) else { panic!("components") };
    let extents: Vec<Extent> = parts.iter().map(|part| part.extent).collect();
    assert_eq!(extents, [Extent { start: 0, end: 1 << 20 }, Extent { start: 1 << 20, end: Extent::EOF }]);
    assert_eq!(parts[1].spec.stripe_count, Some(2));
}
