use super::*;
use crate::lfs::view::ObjectView;
use nacre_layout::user::{MAGIC_V1, MAGIC_V3};

/// Returns a plain file with objects (OST index, id) of MDT0.
pub(in crate::lfs) fn plain_view(count: u16, size: u32, objects: &[(u16, u32)]) -> LayoutView {
    let object = |&(ost, oid): &(u16, u32)| ObjectView {
        ost_index: u32::from(ost),
        id: u64::from(oid),
        group: 0,
        fid: Fid::ost_object(ost, oid),
    };
    LayoutView {
        magic: MAGIC_V1,
        pattern: 1,
        fid: Fid::new(0x2_0000_0401, 7, 0),
        stripe_size: size,
        stripe_count: count,
        offset_or_generation: 0,
        pool: None,
        objects: objects.iter().map(object).collect(),
    }
}

fn pool_file() -> LayoutView {
    LayoutView { pool: Some("flash".into()), magic: MAGIC_V3, ..plain_view(2, 4 << 20, &[(4, 9), (5, 9)]) }
}

fn requested(count: u16, size: u32, pool: Option<&str>) -> LayoutView {
    LayoutView {
        offset_or_generation: u16::MAX,
        pool: pool.map(str::to_owned),
        ..plain_view(count, size, &[])
    }
}

const FACTS: Facts = Facts { fid: Fid::new(0x2_0000_0401, 7, 0), mdt_index: 0 };

/// Returns fields by the letters of their options; `.` is `-v`, `*` the default, `-` no path, `r` raw, `y`
/// YAML, `x` hexadecimal, a digit `-O`; then a component's id, start, end and flags are `I`, `s`, `E` and
/// `f`, their number `n`.
pub(in crate::lfs) fn style(letters: &str) -> Style {
    let mut style = Style { path: letters.contains(['*', '.', '/']), ..Style::default() };
    for letter in letters.chars() {
        let field = match letter {
            'c' => Fields::COUNT,
            'S' => Fields::SIZE,
            'i' => Fields::OFFSET,
            'L' => Fields::PATTERN,
            'g' => Fields::GENERATION,
            'p' => Fields::POOL,
            'F' => Fields::FID,
            'N' => Fields::MIRROR_COUNT,
            'z' => Fields::EXTENSION_SIZE,
            'q' => Fields::OBJECTS,
            'I' => Fields::COMPONENT_ID,
            's' => Fields::COMPONENT_START,
            'E' => Fields::COMPONENT_END,
            'f' => Fields::COMPONENT_FLAGS,
            'n' => Fields::COMPONENT_COUNT,
            '*' => Fields::ALL,
            '.' => Fields::ALL.with(Fields::DETAIL),
            _ => Fields::default(),
        };
        style.fields = style.fields.with(field);
        style.yaml |= letter == 'y';
        style.raw |= letter == 'r';
        style.hex_index |= letter == 'x';
        style.path &= letter != '-';
        style.ost = style.ost.or(letter.to_digit(10));
    }
    style
}

fn file(path: &str, view: &LayoutView, letters: &str) -> String {
    plain(path, view, &FACTS, &style(letters), &Filter::default(), None)
}

fn directory(path: &str, view: &LayoutView, letters: &str) -> String {
    plain(path, view, &FACTS, &style(letters), &Filter::default(), Some(Inherited(false)))
}

#[test]
fn golden_plain_files() {
    let over = LayoutView { pattern: 0x201, ..plain_view(4, 4 << 20, &[(0, 9), (0, 10), (1, 9), (1, 10)]) };
    let released =
        LayoutView { pattern: 0x8000_0001, offset_or_generation: 1, ..plain_view(2, 1 << 20, &[]) };
    let table = "\tobdidx\t\t objid\t\t objid\t\t group\n";
    let pooled = "lmm_stripe_count:  2\nlmm_stripe_size:   4194304\nlmm_pattern:       raid0\n\
        lmm_layout_gen:    0\nlmm_stripe_offset: 4\nlmm_pool:          flash\n";
    let first = "\t     4\t             9\t          0x9\t             0";
    let second = "\t     5\t             9\t          0x9\t             0";
    let identity = "lmm_magic:         0x0BD30BD0\nlmm_seq:           0x200000401\n\
        lmm_object_id:     0x7\nlmm_fid:           [0x200000401:0x7:0x0]\n";
    let hex = pooled.replace("offset: 4", "offset: 0x4");
    let yaml_objects = "lmm_objects:\n      - l_ost_idx: 4\n        l_fid:     0x100040000:0x9:0x0\n\
        \x20     - l_ost_idx: 5\n        l_fid:     0x100050000:0x9:0x0\n";
    let rows = |from: &[(u32, &str, u32)]| -> String {
        from.iter().map(|(ost, hex, id)| format!("\t{ost:>6}\t{id:14}\t{hex:>13}\t{:14}\n", 0)).collect()
    };
    let over_rows = rows(&[(0, "0x9", 9), (0, "0xa", 10), (1, "0x9", 9), (1, "0xa", 10)]);
    for (view, letters, expected) in [
        (&pool_file(), "*", format!("f\n{pooled}{table}{first}\n{second}\n\n")),
        (&pool_file(), "*-", format!("{pooled}{table}{first}\n{second}\n\n")),
        (&pool_file(), ".", format!("f\n{identity}{pooled}{table}{first}\n{second}\n\n")),
        (&pool_file(), "*y", format!("{pooled}{yaml_objects}")),
        (&pool_file(), ".y", format!("{}{pooled}{yaml_objects}", identity.replace(['[', ']'], ""))),
        (&pool_file(), "*x", {
            let rows = format!("{first}\n{second}\n")
                .replace("     4\t", "   0x4\t")
                .replace("     5\t", "   0x5\t");
            format!("f\n{hex}{table}{rows}\n")
        }),
        (&pool_file(), "*5", format!("f\n{pooled}{table}{second} *\n\n")),
        (&pool_file(), "*0", String::new()),
        (&pool_file(), "q/", format!("f\n{table}{first}\n{second}\n\n")),
        (&pool_file(), "q", format!("{table}{first}\n{second}\n\n")),
        (
            &over,
            "*",
            format!(
                "f\nlmm_stripe_count:  4\nlmm_stripe_size:   4194304\nlmm_pattern:       raid0,overstriped\n\
                 lmm_layout_gen:    0\nlmm_stripe_offset: 0\n{table}{over_rows}\n"
            ),
        ),
        (
            &released,
            "*",
            "f\nlmm_stripe_count:  2\nlmm_stripe_size:   1048576\nlmm_pattern:       raid0,released\n\
             lmm_layout_gen:    1\nlmm_stripe_offset: 0\n\n"
                .to_owned(),
        ),
        (
            &requested(u16::MAX, 1 << 20, None),
            "*",
            "f\nlmm_stripe_count:  -1\nlmm_stripe_size:   1048576\nlmm_pattern:       raid0\n\
             lmm_layout_gen:    0\nlmm_stripe_offset: -1\n\n"
                .to_owned(),
        ),
    ] {
        assert_eq!(file("f", view, letters), expected, "{letters}");
    }
}

#[test]
fn golden_fields_of_plain_files() {
    let f1 = plain_view(2, 1 << 20, &[(0, 9), (1, 9)]);
    let component =
        "    lcme_id:             N/A\n    lcme_mirror_id:      N/A\n    lcme_flags:          init\n";
    for (letters, expected) in [
        ("c", "2\n\n"),
        ("S", "1048576\n\n"),
        ("i", "0\n\n"),
        ("ix", "0\n\n"),
        ("L", "raid0\n\n"),
        ("g", "0\n\n"),
        // A field that a plain file lacks is empty, even if it is requested.
        ("p", "\n"),
        ("z", "\n"),
        ("N", "\n"),
        ("F", "[0x200000401:0x7:0x0]\n\n"),
        ("Fy", "0x200000401:0x7:0x0\n"),
        ("Fc", "lmm_fid:           [0x200000401:0x7:0x0]\nlmm_stripe_count:  2\n\n"),
        ("ci", "lmm_stripe_count:  2\nlmm_stripe_offset: 0\n\n"),
        ("ciy", "lmm_stripe_count:  2\nlmm_stripe_offset: 0\n"),
        ("c/", "f\n2\n\n"),
        ("cp", "lmm_stripe_count:  2\n\n"),
        // One component, if its fields are requested.
        ("n", "0\n\n"),
        ("I", "N/A\n\n"),
        ("f", "init\n\n"),
        ("s", "0\n\n"),
        ("E", "EOF\n\n"),
        ("nc", "  lcm_entry_count:   0\n      lmm_stripe_count:  2\n\n"),
        ("gE", "  lcm_layout_gen:    0\n    lcme_extent.e_end:   EOF\n      lmm_layout_gen:    0\n\n"),
    ] {
        assert_eq!(file("f", &f1, letters), expected, "{letters}");
    }
    assert_eq!(file("f", &pool_file(), "p"), "flash\n\n");
    let ignored = LayoutView { pool: Some("ignore".into()), ..pool_file() };
    assert_eq!(
        (file("f", &ignored, "p"), file("f", &ignored, "pr")),
        ("\n".to_owned(), "ignore\n\n".to_owned())
    );
    let filtered = |letters: &str, filter: &Filter| plain("f", &f1, &FACTS, &style(letters), filter, None);
    let init = Filter { flags: Some((0x10, 0)), ..Filter::default() };
    assert_eq!(filtered("c", &init), "2\n\n");
    let text = filtered("*", &init);
    assert!(
        text.starts_with("f\n  lcm_layout_gen:    0\n  lcm_mirror_count:  1\n  lcm_entry_count:   0\n"),
        "{text}"
    );
    assert!(text.contains(component), "{text}");
    let other = Filter { id: Some(2), ..Filter::default() };
    assert_eq!(filtered("c", &other), "");
    let mirror = Filter { mirror_id: Some((false, Relation::Is(1, 1))), ..Filter::default() };
    assert_eq!(filtered("c", &mirror), "2\n\n", "mirrors do not count where there are none");
}

#[test]
fn golden_directories() {
    let plain_one = requested(2, 4 << 20, None);
    let pooled = requested(u16::MAX, 1 << 20, Some("flash"));
    let line = "stripe_count:  2 stripe_size:   4194304 pattern:       raid0 stripe_offset: -1\n";
    let nothing = "stripe_count:  0 stripe_size:   0 pattern:        stripe_offset: -1\n";
    for (view, letters, expected) in [
        (&plain_one, "*", format!("d\n{line}\n")),
        (&plain_one, "*-", format!("{line}\n")),
        (&plain_one, ".", format!("d\nlmm_fid:           [0x200000401:0x7:0x0]\n{line}\n")),
        (&plain_one, "*y", line.replace(" s", "\ns").replace(" p", "\np")),
        (&plain_one, "c", "2\n\n".to_owned()),
        (&plain_one, "c/", "d\n2\n\n".to_owned()),
        (&plain_one, "cS", "stripe_count:  2 stripe_size:   4194304\n\n".to_owned()),
        (&plain_one, "F", "[0x200000401:0x7:0x0]\n\n".to_owned()),
        (&plain_one, "g", "\n".to_owned()),
        (&plain_one, "p", "\n".to_owned()),
        (&plain_one, "n", "0\n\n".to_owned()),
        (&plain_one, "f", "0\n\n".to_owned()),
        // Directories have no objects.
        (&plain_one, "q/", "\n".to_owned()),
        (&plain_one, "*0", String::new()),
        (&pooled, "p", "flash\n\n".to_owned()),
        (&pooled, "*", {
            let line = "stripe_count:  -1 stripe_size:   1048576 pattern:       raid0 stripe_offset: -1";
            format!("d\n{line} pool:          flash\n\n")
        }),
        (&LayoutView::nothing(), "*r", format!("d\n{nothing}\n")),
    ] {
        assert_eq!(directory("d", view, letters), expected, "{letters}");
    }
    let inherited =
        |letters| plain("d", &plain_one, &FACTS, &style(letters), &Filter::default(), Some(Inherited(true)));
    assert_eq!(inherited("."), format!("(Default) d\nlmm_fid:           [0x200000401:0x7:0x0]\n{line}\n"));
    assert_eq!(inherited("*"), format!("d\n{line}\n"));
    assert_eq!(inherited(".r"), directory("d", &plain_one, "."));
}
