//! The text of `lfs getstripe`, byte for byte as Lustre's tools print it: scripts cut columns. Source: reference 2.2 and
//! appendix B.1.

mod composite;
mod foreign;

use super::view::LayoutView;
use nacre_types::Fid;
use std::fmt::Write;

pub use composite::{Filter, Relation, composite};
pub use foreign::foreign;

/// Which fields are asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Fields {
    /// `-c`
    pub count: bool,
    /// `-S`
    pub size: bool,
    /// `-L`
    pub pattern: bool,
    /// `-g`
    pub generation: bool,
    /// `-i`
    pub offset: bool,
    /// `-p`
    pub pool: bool,
    /// `-m`
    pub mdt_index: bool,
    /// `-F`
    pub fid: bool,
    /// Component count, which a plain file shows as 0.
    pub component_count: bool,
    /// `-N`, which a plain file shows as 1.
    pub mirror_count: bool,
    /// `-I`; like the next four, a plain file has none.
    pub component_id: bool,
    /// Flags of a component.
    pub component_flags: bool,
    /// Where a component begins.
    pub component_start: bool,
    /// `-E`
    pub component_end: bool,
    /// `-z`
    pub extension_size: bool,
    /// The table of objects.
    pub objects: bool,
}

impl Fields {
    /// What is shown when nothing was asked for.
    pub const ALL: Fields = Fields {
        count: true,
        size: true,
        pattern: true,
        generation: true,
        offset: true,
        pool: true,
        mdt_index: false,
        fid: false,
        component_count: true,
        mirror_count: true,
        component_id: true,
        component_flags: true,
        component_start: true,
        component_end: true,
        extension_size: false,
        objects: true,
    };

    /// Number of fields asked for.
    pub fn len(&self) -> usize {
        let flags = [
            self.count,
            self.size,
            self.pattern,
            self.generation,
            self.offset,
            self.pool,
            self.mdt_index,
            self.fid,
            self.component_count,
            self.mirror_count,
            self.component_id,
            self.component_flags,
            self.component_start,
            self.component_end,
            self.extension_size,
            self.objects,
        ];
        flags.iter().filter(|&&flag| flag).count()
    }

    /// Fields that only a component has.
    fn of_components(&self) -> bool {
        self.component_id
            || self.component_flags
            || self.component_start
            || self.component_end
            || self.extension_size
    }

    /// These fields without those that only a composite layout has.
    fn of_one(&self) -> Fields {
        Fields {
            component_count: false,
            mirror_count: false,
            component_id: false,
            component_flags: false,
            component_start: false,
            component_end: false,
            extension_size: false,
            ..*self
        }
    }
}

/// How a layout is shown.
#[derive(Clone, Debug, Default)]
pub struct Style {
    /// The fields.
    pub fields: Fields,
    /// Nothing in particular was asked for, so all of it is shown under the path.
    pub whole: bool,
    /// `-v`
    pub verbose: bool,
    /// `-y`
    pub yaml: bool,
    /// `--hex-idx`
    pub hex_index: bool,
    /// `-O`: mark this OST's objects.
    pub ost: Option<u32>,
}

/// Facts that are not in the layout itself.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// The file or directory.
    pub fid: Fid,
    /// Index of the MDT that holds it.
    pub mdt_index: u16,
}

/// A labelled value of a plain file's header.
struct Line {
    label: &'static str,
    value: String,
}

/// Text for a file. `path` is printed first where the whole is shown.
pub fn file(path: &str, view: &LayoutView, facts: &Facts, style: &Style) -> String {
    let mut out = String::new();
    if style.whole && !style.yaml {
        writeln!(out, "{path}").expect("writing to a string cannot fail");
    }
    if style.verbose {
        verbose_header(&mut out, view);
    }
    let shown = if style.whole { style.fields.of_one() } else { style.fields };
    let lines = file_lines(view, facts, &shown);
    let alone = style.fields.len() == 1 && !style.whole && !style.verbose;
    for line in &lines {
        if alone {
            writeln!(out, "{}", line.value).expect("writing to a string cannot fail");
        } else {
            writeln!(out, "{:<18} {}", line.label, line.value).expect("writing to a string cannot fail");
        }
    }
    if style.fields.objects && !view.objects.is_empty() {
        objects(&mut out, view, style);
    }
    // The MDT index alone is the one value without an empty line after it.
    let without_end = style.yaml || (alone && style.fields.mdt_index);
    if !without_end {
        out.push('\n');
    }
    out
}

fn file_lines(view: &LayoutView, facts: &Facts, fields: &Fields) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut add = |wanted: bool, label: &'static str, value: String| {
        if wanted {
            lines.push(Line { label, value });
        }
    };
    add(fields.mdt_index, "lmm_mdt_index:", facts.mdt_index.to_string());
    add(fields.component_count, "lcm_entry_count:", "0".to_owned());
    add(fields.mirror_count, "lcm_mirror_count:", "1".to_owned());
    add(fields.of_components() && fields.len() == 1, "", String::new());
    add(fields.fid, "lmm_fid:", facts.fid.to_string());
    add(fields.count, "lmm_stripe_count:", format!("{}", view.shown_count()));
    add(fields.size, "lmm_stripe_size:", view.stripe_size.to_string());
    add(fields.pattern, "lmm_pattern:", view.pattern_text());
    add(fields.generation, "lmm_layout_gen:", view.generation().to_string());
    match view.is_on_mdt() {
        true => add(fields.offset, "lmm_mdt_index:", facts.mdt_index.to_string()),
        false => add(fields.offset, "lmm_stripe_offset:", view.file_offset().to_string()),
    }
    // The pool line appears only if one is set, except where it alone was asked for.
    let pool_alone = fields.pool && fields.len() == 1;
    add(
        fields.pool && (view.pool.is_some() || pool_alone),
        "lmm_pool:",
        view.pool.clone().unwrap_or_default(),
    );
    lines
}

fn verbose_header(out: &mut String, view: &LayoutView) {
    let Fid { seq, oid, .. } = view.fid;
    write!(
        out,
        "lmm_magic:         0x{:08X}\nlmm_seq:           {seq:#x}\nlmm_object_id:     {oid:#x}\nlmm_fid:           {}\n",
        view.magic, view.fid
    )
    .expect("writing to a string cannot fail");
}

fn objects(out: &mut String, view: &LayoutView, style: &Style) {
    if style.yaml {
        out.push_str("lmm_objects:\n");
        for object in &view.objects {
            let fid = object.fid.to_string();
            let fid = fid.trim_start_matches('[').trim_end_matches(']');
            let index = index_text(object.ost_index, style.hex_index);
            writeln!(out, "      - l_ost_idx: {index}\n        l_fid:     {fid}")
                .expect("writing to a string cannot fail");
        }
        return;
    }
    out.push_str("\tobdidx\t\t objid\t\t objid\t\t group\n");
    for object in &view.objects {
        let index = index_text(object.ost_index, style.hex_index);
        let group = match object.group {
            0 => format!("{:14}", 0),
            group => format!("{group:#14x}"),
        };
        let mark = if style.ost == Some(object.ost_index) { " *" } else { "" };
        let id = match object.id {
            0 => format!("{:13}", 0),
            id => format!("{id:#13x}"),
        };
        writeln!(out, "\t{index:>6}\t{:14}\t{id}\t{group}{mark}", object.id)
            .expect("writing to a string cannot fail");
    }
}

fn index_text(index: u32, hex: bool) -> String {
    if hex { format!("{index:#x}") } else { index.to_string() }
}

/// A directory's default. `show_path` is false for `-d`.
pub fn directory(path: &str, view: &LayoutView, facts: &Facts, style: &Style, inherited: bool) -> String {
    let mut out = String::new();
    if style.whole && !style.yaml && !path.is_empty() {
        writeln!(out, "{path}").expect("writing to a string cannot fail");
    }
    let fields = if style.whole { style.fields.of_one() } else { style.fields };
    if style.verbose {
        writeln!(out, "lmm_fid:           {}", facts.fid).expect("writing to a string cannot fail");
        if inherited {
            out.push_str("(Default) ");
        }
    }
    let alone = fields.len() == 1 && !style.whole && !style.verbose;
    let mut words = Vec::new();
    let mut add = |wanted: bool, label: &'static str, value: String| {
        if wanted {
            words.push(if alone { value } else { format!("{label}{value}") });
        }
    };
    add(fields.mdt_index, "mdt_index:     ", facts.mdt_index.to_string());
    add(fields.fid, "lmm_fid:           ", facts.fid.to_string());
    add(fields.component_count, "lcm_entry_count:  ", "0".to_owned());
    add(fields.mirror_count, "lcm_mirror_count:  ", "1".to_owned());
    add(fields.count, "stripe_count:  ", view.shown_count().to_string());
    add(fields.size, "stripe_size:   ", view.stripe_size.to_string());
    add(fields.pattern, "pattern:       ", view.pattern_text());
    add(fields.offset, "stripe_offset: ", view.wish_offset().to_string());
    add(
        fields.pool && (view.pool.is_some() || alone),
        "pool:          ",
        view.pool.clone().unwrap_or_default(),
    );
    out.push_str(&words.join(if style.yaml { "\n" } else { " " }));
    out.push('\n');
    if fields.objects && !view.objects.is_empty() {
        objects(&mut out, view, style);
    }
    let without_end = style.yaml || (alone && fields.mdt_index);
    if !without_end {
        out.push('\n');
    }
    out
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::lfs::view::ObjectView;
    use nacre_layout::user::{MAGIC_V1, MAGIC_V3};

    /// A plain file with objects (OST index, id) of MDT0.
    pub(in crate::lfs) fn plain(count: u16, size: u32, objects: &[(u16, u32)]) -> LayoutView {
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
        LayoutView { pool: Some("flash".into()), magic: MAGIC_V3, ..plain(2, 4 << 20, &[(4, 9), (5, 9)]) }
    }

    fn wish(count: u16, size: u32, pool: Option<&str>) -> LayoutView {
        LayoutView {
            offset_or_generation: u16::MAX,
            pool: pool.map(str::to_owned),
            ..plain(count, size, &[])
        }
    }

    const FACTS: Facts = Facts { fid: Fid::new(0x2_0000_0401, 7, 0), mdt_index: 0 };

    fn whole() -> Style {
        Style { fields: Fields::ALL, whole: true, ..Style::default() }
    }

    fn only(set: impl FnOnce(&mut Fields)) -> Style {
        let mut style = Style::default();
        set(&mut style.fields);
        style
    }

    #[test]
    fn golden_plain_files() {
        let expected = "poolf\nlmm_stripe_count:  2\nlmm_stripe_size:   4194304\nlmm_pattern:       raid0\n\
            lmm_layout_gen:    0\nlmm_stripe_offset: 4\nlmm_pool:          flash\n\
            \tobdidx\t\t objid\t\t objid\t\t group\n\
            \t     4\t             9\t          0x9\t             0\n\
            \t     5\t             9\t          0x9\t             0\n\n";
        assert_eq!(file("poolf", &pool_file(), &FACTS, &whole()), expected);

        let over = LayoutView { pattern: 0x201, ..plain(4, 4 << 20, &[(0, 9), (0, 10), (1, 9), (1, 10)]) };
        let expected = "over\nlmm_stripe_count:  4\nlmm_stripe_size:   4194304\n\
            lmm_pattern:       raid0,overstriped\nlmm_layout_gen:    0\nlmm_stripe_offset: 0\n\
            \tobdidx\t\t objid\t\t objid\t\t group\n\
            \t     0\t             9\t          0x9\t             0\n\
            \t     0\t            10\t          0xa\t             0\n\
            \t     1\t             9\t          0x9\t             0\n\
            \t     1\t            10\t          0xa\t             0\n\n";
        assert_eq!(file("over", &over, &FACTS, &whole()), expected);
    }

    #[test]
    fn verbose_adds_magic_and_identity() {
        let text = file("f", &plain(1, 1 << 20, &[(0, 2)]), &FACTS, &Style { verbose: true, ..whole() });
        let expected = "f\nlmm_magic:         0x0BD10BD0\nlmm_seq:           0x200000401\n\
            lmm_object_id:     0x7\nlmm_fid:           [0x200000401:0x7:0x0]\nlmm_stripe_count:  1\n";
        assert!(text.starts_with(expected), "{text}");
    }

    #[test]
    fn a_file_without_objects_has_no_table() {
        let released = LayoutView { pattern: 0x8000_0001, offset_or_generation: 1, ..plain(2, 1 << 20, &[]) };
        let expected = "rel\nlmm_stripe_count:  2\nlmm_stripe_size:   1048576\n\
            lmm_pattern:       raid0,released\nlmm_layout_gen:    1\nlmm_stripe_offset: 0\n\n";
        assert_eq!(file("rel", &released, &FACTS, &whole()), expected);
        let expected = "f\nlmm_stripe_count:  -1\nlmm_stripe_size:   1048576\nlmm_pattern:       raid0\n\
            lmm_layout_gen:    0\nlmm_stripe_offset: -1\n\n";
        assert_eq!(file("f", &wish(u16::MAX, 1 << 20, None), &FACTS, &whole()), expected);
    }

    #[test]
    fn golden_single_values() {
        let f1 = plain(2, 1 << 20, &[(0, 9), (1, 9)]);
        let show = |view: &LayoutView, set: fn(&mut Fields)| file("f", view, &FACTS, &only(set));
        assert_eq!(show(&f1, |f| f.count = true), "2\n\n");
        assert_eq!(show(&f1, |f| f.size = true), "1048576\n\n");
        assert_eq!(show(&f1, |f| f.offset = true), "0\n\n");
        assert_eq!(show(&f1, |f| f.pattern = true), "raid0\n\n");
        assert_eq!(show(&f1, |f| f.generation = true), "0\n\n");
        assert_eq!(show(&f1, |f| f.pool = true), "\n\n");
        assert_eq!(show(&pool_file(), |f| f.pool = true), "flash\n\n");
        assert_eq!(show(&f1, |f| f.fid = true), "[0x200000401:0x7:0x0]\n\n");
        assert_eq!(show(&f1, |f| f.mdt_index = true), "0\n");
        assert_eq!(show(&f1, |f| f.component_count = true), "0\n\n");
        let both = |f: &mut Fields| (f.offset, f.count) = (true, true);
        assert_eq!(show(&f1, both), "lmm_stripe_count:  2\nlmm_stripe_offset: 0\n\n");
    }

    #[test]
    fn golden_directories() {
        let plain =
            "dplain\nstripe_count:  2 stripe_size:   4194304 pattern:       raid0 stripe_offset: -1\n\n";
        assert_eq!(directory("dplain", &wish(2, 4 << 20, None), &FACTS, &whole(), false), plain);
        let pool = "dpool\nstripe_count:  -1 stripe_size:   1048576 pattern:       raid0 stripe_offset: -1 \
            pool:          flash\n\n";
        assert_eq!(
            directory("dpool", &wish(u16::MAX, 1 << 20, Some("flash")), &FACTS, &whole(), false),
            pool
        );
        let bare = "stripe_count:  2 stripe_size:   4194304 pattern:       raid0 stripe_offset: -1\n\n";
        assert_eq!(directory("", &wish(2, 4 << 20, None), &FACTS, &whole(), false), bare);
        let count = only(|f| f.count = true);
        assert_eq!(directory("d", &wish(2, 4 << 20, None), &FACTS, &count, false), "2\n\n");
        let verbose = Style { verbose: true, ..whole() };
        let expected = "dplain\nlmm_fid:           [0x200000401:0x7:0x0]\n\
            stripe_count:  2 stripe_size:   4194304 pattern:       raid0 stripe_offset: -1\n\n";
        assert_eq!(directory("dplain", &wish(2, 4 << 20, None), &FACTS, &verbose, false), expected);
    }

    #[test]
    fn yaml_has_no_path_and_no_brackets() {
        let style = Style { yaml: true, ..whole() };
        let expected = "lmm_stripe_count:  1\nlmm_stripe_size:   1048576\nlmm_pattern:       raid0\n\
            lmm_layout_gen:    0\nlmm_stripe_offset: 1\nlmm_objects:\n      - l_ost_idx: 1\n\
            \x20       l_fid:     0x100010000:0x2:0x0\n";
        assert_eq!(file("f", &plain(1, 1 << 20, &[(1, 2)]), &FACTS, &style), expected);
    }
}
