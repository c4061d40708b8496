use super::super::OPTIONS;
use super::*;
use crate::lfs::getopt::{parse, words_of};

fn read(line: &str) -> Parsed {
    parse(&with_negations(&words_of(line.as_bytes())), OPTIONS).expect(line)
}

#[test]
fn options_count_in_their_order() {
    let all = Fields::ALL;
    let detail = all.with(Fields::DETAIL);
    for (line, fields, level, path) in [
        ("f", all, Level::Files, true),
        ("-d f", all, Level::Itself, false),
        ("-r f", all, Level::Tree, true),
        ("-c f", Fields::COUNT, Level::Itself, false),
        ("--stripe_count f", Fields::COUNT, Level::Itself, false),
        ("-r -c f", Fields::COUNT, Level::Tree, true),
        ("-c -S f", Fields::COUNT.with(Fields::SIZE), Level::Itself, false),
        ("-v f", detail, Level::Files, true),
        ("-d -v f", detail, Level::Itself, true),
        ("-c -v f", detail, Level::Files, true),
        ("-v -c f", detail, Level::Files, true),
        ("-q f", Fields::OBJECTS, Level::Files, true),
        ("-q -v f", Fields::OBJECTS, Level::Files, true),
        ("-m f", Fields::MDT_INDEX, Level::Itself, false),
        ("-m -v f", detail, Level::Files, true),
        ("-v -m f", detail.with(Fields::MDT_INDEX), Level::Files, true),
        // Options with values are conditions, which do not change the shown fields.
        ("-I2 f", all, Level::Files, true),
        ("-I f", Fields::COMPONENT_ID, Level::Itself, false),
        ("-c -E4M f", Fields::COUNT, Level::Itself, false),
        ("--comp-flags=init --comp-count f", Fields::COMPONENT_COUNT, Level::Itself, false),
    ] {
        let (style, found) = style_of(&read(line));
        assert_eq!((style.fields, found), (fields, level), "{line}");
        let path_shown = style.path || line == "-q -v f";
        assert_eq!(path_shown, path, "{line}");
    }
}

#[test]
fn values_say_which_components_are_meant() {
    let filter = |line: &str| filter_of(&read(line)).expect(line);
    let none = Filter::default();
    let mib = 1 << 20;
    for (line, expected) in [
        ("f", none.clone()),
        ("-I0x2 f", Filter { id: Some(2), ..none.clone() }),
        ("--comp-flags=init,^stale f", Filter { flags: Some((0x10, 1)), ..none.clone() }),
        ("-E4M f", Filter { end: Some(Relation::Is(4 * mib, mib)), ..none.clone() }),
        ("-E64 f", Filter { end: Some(Relation::Is(65536, 1)), ..none.clone() }),
        ("-Eeof f", Filter { end: Some(Relation::Is(u64::MAX, 1)), ..none.clone() }),
        ("-E-1 f", Filter { end: Some(Relation::Is(u64::MAX, 1)), ..none.clone() }),
        ("-E+4M f", Filter { end: Some(Relation::Over(4 * mib)), ..none.clone() }),
        ("-E-2G f", Filter { end: Some(Relation::Under(2048 * mib, 1024 * mib)), ..none.clone() }),
        // Starts are bytes, small numbers too.
        ("--component-start=64 f", Filter { start: Some(Relation::Is(64, 1)), ..none.clone() }),
        ("--component-start=-1 f", Filter { start: Some(Relation::Under(1, 1)), ..none.clone() }),
        ("--mirror-id 2 f", Filter { mirror_id: Some((false, Relation::Is(2, 1))), ..none.clone() }),
        ("! --mirror-id=2 f", Filter { mirror_id: Some((true, Relation::Is(2, 1))), ..none.clone() }),
        ("! --mirror-index +2 f", Filter { mirror_index: Some((true, Relation::Over(2))), ..none.clone() }),
        ("! -c --mirror-id=1 f", Filter { mirror_id: Some((false, Relation::Is(1, 1))), ..none.clone() }),
        ("-c -- ! f", none.clone()),
    ] {
        assert_eq!(filter(line), expected, "{line}");
    }
    assert_eq!(read("-c -- ! f").operands.len(), 2, "a file may have any name");
    for (line, message) in [
        ("-Ibad f", "error: getstripe bad component id 'bad'"),
        ("-I0 f", "error: getstripe bad component id '0'"),
        ("--component-flags=x f", "error: getstripe bad component flags 'x'."),
        ("--component-start=+z f", "error: getstripe bad component start 'z'."),
        ("-E4q f", "error: getstripe bad component end '4q'."),
        ("--mirror-id=x f", "lfs getstripe: invalid mirror ID 'x'"),
        ("--mirror-id=0 f", "lfs getstripe: invalid mirror ID '0'"),
        ("--mirror-index=70000 f", "lfs getstripe: invalid mirror index '70000'"),
        ("--mirror-id=1 --mirror-index=1 f", "lfs getstripe: can't specify both mirror index and mirror ID"),
    ] {
        let failure = filter_of(&read(line)).expect_err(line);
        assert_eq!((failure.exit, failure.message.as_str()), (4, message), "{line}");
    }
}
