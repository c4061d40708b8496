//! Rows of `lfs quota`, and grace times.

use nacre_types::lustre::QuotaNumbers;
use nacre_types::quota::{GRACE_MAX_S, GRACE_NOTIFY_S};
use nacre_types::{QuotaId, QuotaKind};

/// Width of the first column; a longer name has a line of its own.
const NAME_WIDTH: usize = 15;
/// Units of grace times with their seconds.
const UNITS: [(char, u64); 5] = [('w', 7 * 86400), ('d', 86400), ('h', 3600), ('m', 60), ('s', 1)];
/// Word for a grace time without an end.
const NOTIFY: &str = "notify";

/// Columns that have values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Columns {
    /// All.
    All,
    /// Those of a share at an MDT: it has neither soft limits nor grace times.
    Mdt,
    /// Those of a share at an OST, which has no inodes either.
    Ost,
    /// Limits without use; the others are left out.
    Limits,
}

/// Form of rows.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// Columns with values.
    pub columns: Columns,
    /// Sizes have suffixes.
    pub is_human: bool,
    /// Time in seconds since the epoch, for running grace times.
    pub now_s: u64,
}

/// Returns the line above the table of an id.
pub fn title(id: QuotaId, name: &str) -> String {
    let number = match id.kind {
        QuotaKind::User => "uid",
        QuotaKind::Group => "gid",
        QuotaKind::Project => "pid",
    };
    format!("Disk quotas for {} {name} ({number} {}):\n", id.kind.name(), id.id)
}

/// Returns the names of the columns.
pub fn header(first: &str, style: &Style) -> String {
    let used = if style.is_human { "used" } else { "kbytes" };
    let names = [used, "bquota", "blimit", "bgrace", "files", "iquota", "ilimit", "igrace"];
    line(first, &names.map(str::to_owned), style)
}

/// Returns the numbers of an id or target as a row.
pub fn row(name: &str, numbers: &QuotaNumbers, style: &Style) -> String {
    let size = |kib: u64| if style.is_human { human(kib) } else { kib.to_string() };
    let is_valid = |bit: u32| numbers.valid & bit != 0;
    let space = Resource {
        used: numbers.space_used.div_ceil(1024),
        is_over: is_over(numbers.space_used, (numbers.space_soft_kib, numbers.space_hard_kib), 1024),
        soft: numbers.space_soft_kib,
        hard: is_valid(QuotaNumbers::SPACE_LIMITS).then_some(numbers.space_hard_kib),
        is_complete: is_valid(QuotaNumbers::SPACE),
        time: numbers.space_time,
    };
    let inodes = Resource {
        used: numbers.inodes_used,
        is_over: is_over(numbers.inodes_used, (numbers.inodes_soft, numbers.inodes_hard), 1),
        soft: numbers.inodes_soft,
        hard: is_valid(QuotaNumbers::INODES_LIMITS).then_some(numbers.inodes_hard),
        is_complete: is_valid(QuotaNumbers::INODES),
        time: numbers.inodes_time,
    };
    let inodes = match style.columns {
        Columns::Ost => ["-"; 4].map(str::to_owned),
        _ => inodes.cells(style, |count| count.to_string()),
    };
    let [used, soft, hard, grace] = space.cells(style, size);
    let [files, files_soft, files_hard, files_grace] = inodes;
    line(name, &[used, soft, hard, grace, files, files_soft, files_hard, files_grace], style)
}

/// Returns sentences about numbers that need an explanation.
pub fn notes(id: QuotaId, numbers: &QuotaNumbers) -> String {
    let mut text = String::new();
    if (numbers.space_time | numbers.inodes_time) & QuotaNumbers::DEFAULT != 0 {
        text.push_str(&format!("{id} has the default limits\n"));
    }
    let complete = QuotaNumbers::SPACE | QuotaNumbers::INODES;
    if numbers.valid & complete != complete {
        text.push_str("[N]: incomplete, as a target has not answered or still counts its use\n");
    }
    text
}

/// Returns the line below the targets of `lfs quota -v`: the sums of the shares at MDTs and at OSTs.
pub fn totals(inodes: u64, space_kib: u64, is_human: bool) -> String {
    let space = if is_human { human(space_kib) } else { space_kib.to_string() };
    format!("Total allocated inode limit: {inodes}, total allocated block limit: {space}\n")
}

/// Returns the line of `lfs quota -t`.
pub fn times(space_s: u64, inodes_s: u64) -> String {
    format!("Block grace time: {}; Inode grace time: {}\n", duration(space_s), duration(inodes_s))
}

/// Returns a row of columns, the first of them on a line of its own if it is too long.
fn line(first: &str, cells: &[String; 8], style: &Style) -> String {
    let mut text = match first.chars().count() > NAME_WIDTH {
        true => format!("{first}\n{:NAME_WIDTH$}", ""),
        false => format!("{first:>NAME_WIDTH$}"),
    };
    for (place, cell) in cells.iter().enumerate() {
        if style.columns != Columns::Limits || place % 4 != 0 {
            text.push_str(&format!(" {cell:>7}"));
        }
    }
    text + "\n"
}

/// Use and limits of one resource, in the unit in which they are shown.
struct Resource {
    used: u64,
    is_over: bool,
    soft: u64,
    /// `None` for a share without a limit.
    hard: Option<u64>,
    is_complete: bool,
    time: u64,
}

impl Resource {
    fn cells(&self, style: &Style, shown: impl Fn(u64) -> String) -> [String; 4] {
        let number = shown(self.used);
        let mut used = if self.is_complete { number } else { format!("[{number}]") };
        let hard = self.hard.map_or_else(|| "-".to_owned(), &shown);
        if matches!(style.columns, Columns::Mdt | Columns::Ost) {
            // A use above a share is no excess: the target acquires a larger one.
            return [used, "-".to_owned(), hard, "-".to_owned()];
        }
        if self.is_over {
            used.push('*');
        }
        [used, shown(self.soft), hard, grace(self.time & QuotaNumbers::TIME_MASK, style.now_s)]
    }
}

/// Returns true if a use has reached the hard limit or exceeds the soft one; limits count in `unit`.
fn is_over(used: u64, (soft, hard): (u64, u64), unit: u64) -> bool {
    hard != 0 && used >= hard.saturating_mul(unit) || soft != 0 && used > soft.saturating_mul(unit)
}

/// Returns the rest of a grace time that ends at `ends_s`.
fn grace(ends_s: u64, now_s: u64) -> String {
    match ends_s {
        0 => "-".to_owned(),
        GRACE_NOTIFY_S.. => NOTIFY.to_owned(),
        _ if ends_s <= now_s => "expired".to_owned(),
        _ => duration(ends_s - now_s),
    }
}

/// Returns seconds as in `1w4d` or `6d23h59m50s`.
pub fn duration(seconds: u64) -> String {
    if seconds >= GRACE_NOTIFY_S {
        return NOTIFY.to_owned();
    }
    let (mut text, mut rest) = (String::new(), seconds);
    for (letter, unit) in UNITS {
        if rest >= unit {
            text.push_str(&format!("{}{letter}", rest / unit));
            rest %= unit;
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

/// Parses seconds, numbers with units as in `1w4d`, or `notify`; `None` if it is malformed or too long.
pub fn parse_duration(text: &str) -> Option<u64> {
    if text == NOTIFY {
        return Some(GRACE_NOTIFY_S);
    }
    let mut sum = 0u64;
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(rest.len());
        let (digits, after) = rest.split_at(end);
        let mut letters = after.chars();
        let unit = match letters.next() {
            // Only a number alone needs no unit.
            None if digits.len() == text.len() => 1,
            None => return None,
            Some(letter) => UNITS.iter().find(|(known, _)| *known == letter)?.1,
        };
        sum = sum.checked_add(digits.parse::<u64>().ok()?.checked_mul(unit)?)?;
        rest = letters.as_str();
    }
    (!text.is_empty() && sum <= GRACE_MAX_S).then_some(sum)
}

/// Formats KiB with four significant digits and a suffix, as in `9.766G`.
fn human(kib: u64) -> String {
    const SUFFIXES: [char; 5] = ['k', 'M', 'G', 'T', 'P'];
    let (mut value, mut place) = (kib as f64, 0);
    while value >= 1024.0 && place + 1 < SUFFIXES.len() {
        value /= 1024.0;
        place += 1;
    }
    let decimals = [(10.0, 3), (100.0, 2), (1000.0, 1)];
    let decimals = decimals.iter().find(|(below, _)| value < *below).map_or(0, |(_, decimals)| *decimals);
    let number = format!("{value:.decimals$}");
    let number = match number.contains('.') {
        true => number.trim_end_matches('0').trim_end_matches('.'),
        false => &number,
    };
    format!("{number}{}", SUFFIXES[place])
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Style = Style { columns: Columns::All, is_human: false, now_s: 1000 };
    const ALL_VALID: u32 = 63;

    fn with(columns: Columns) -> Style {
        Style { columns, ..PLAIN }
    }

    #[test]
    fn golden_table_without_limits() {
        let root = QuotaId { kind: QuotaKind::User, id: 0 };
        let numbers =
            QuotaNumbers { space_used: 5000, inodes_used: 3, valid: ALL_VALID, ..QuotaNumbers::default() };
        let text = title(root, "root") + &header("Filesystem", &PLAIN) + &row("/mnt/nacre", &numbers, &PLAIN);
        let expected = "\
Disk quotas for usr root (uid 0):
     Filesystem  kbytes  bquota  blimit  bgrace   files  iquota  ilimit  igrace
     /mnt/nacre       5       0       0       -       3       0       0       -
";
        assert_eq!(text, expected);
        let project = QuotaId { kind: QuotaKind::Project, id: 42 };
        assert_eq!(title(project, "films"), "Disk quotas for prj films (pid 42):\n");
        let group = QuotaId { kind: QuotaKind::Group, id: 1 };
        assert_eq!(title(group, "1"), "Disk quotas for grp 1 (gid 1):\n");
    }

    #[test]
    fn golden_row_over_soft_and_hard_limits() {
        let numbers = QuotaNumbers {
            space_hard_kib: 20480,
            space_soft_kib: 10240,
            space_used: 10_485_761,
            inodes_hard: 5,
            inodes_soft: 4,
            inodes_used: 5,
            space_time: 1000 + 604_790,
            inodes_time: 1000,
            valid: ALL_VALID,
        };
        let expected =
            "     /mnt/nacre  10241*   10240   20480 6d23h59m50s      5*       4       5 expired\n";
        assert_eq!(row("/mnt/nacre", &numbers, &PLAIN), expected);
        let exact = QuotaNumbers { space_used: 10_485_760, inodes_used: 4, ..numbers };
        let text = row("/mnt/nacre", &exact, &PLAIN);
        assert!(!text.contains('*'), "a soft limit may be reached: {text}");
        let partial = QuotaNumbers { space_used: 10_485_759, ..numbers };
        assert!(row("m", &partial, &PLAIN).contains("   10240 "), "rounded up, and not over");
    }

    #[test]
    fn incomplete_numbers_are_in_brackets() {
        let id = QuotaId { kind: QuotaKind::User, id: 5 };
        let numbers = QuotaNumbers {
            space_used: 1 << 20,
            inodes_used: 7,
            space_hard_kib: 1024,
            inodes_time: QuotaNumbers::DEFAULT,
            valid: QuotaNumbers::SPACE_LIMITS | QuotaNumbers::INODES_LIMITS | QuotaNumbers::INODES,
            ..QuotaNumbers::default()
        };
        let expected = "              m [1024]*       0    1024       -       7       0       0       -\n";
        assert_eq!(row("m", &numbers, &PLAIN), expected);
        let notes_of = |valid, inodes_time| notes(id, &QuotaNumbers { valid, inodes_time, ..numbers });
        assert_eq!(notes_of(ALL_VALID, 0), "");
        assert_eq!(notes_of(ALL_VALID, QuotaNumbers::DEFAULT), "usr 5 has the default limits\n");
        assert!(notes_of(0, 0).starts_with("[N]: incomplete"));
    }

    #[test]
    fn golden_rows_of_targets() {
        let numbers = QuotaNumbers {
            space_used: 2048,
            space_hard_kib: 1,
            inodes_used: 3,
            inodes_hard: 1024,
            valid: ALL_VALID,
            ..QuotaNumbers::default()
        };
        let mdt = "nacre-MDT0000_UUID\n                      2       -       1       -       3       -    1024       -\n";
        assert_eq!(row("nacre-MDT0000_UUID", &numbers, &with(Columns::Mdt)), mdt);
        let unlimited = QuotaNumbers { valid: QuotaNumbers::SPACE, ..numbers };
        let ost = "nacre-OST0001_UUID\n                      2       -       -       -       -       -       -       -\n";
        assert_eq!(row("nacre-OST0001_UUID", &unlimited, &with(Columns::Ost)), ost);
    }

    #[test]
    fn golden_limits_without_use() {
        let numbers = QuotaNumbers {
            space_soft_kib: 1,
            space_hard_kib: 2,
            inodes_soft: 3,
            inodes_hard: 4,
            valid: ALL_VALID,
            ..QuotaNumbers::default()
        };
        let style = with(Columns::Limits);
        let expected = "     Filesystem  bquota  blimit  bgrace  iquota  ilimit  igrace\n     /mnt/nacre       1       2       -       3       4       -\n";
        assert_eq!(header("Filesystem", &style) + &row("/mnt/nacre", &numbers, &style), expected);
    }

    #[test]
    fn sizes_for_people_have_four_digits() {
        for (kib, text) in [
            (0, "0k"),
            (1023, "1023k"),
            (1024, "1M"),
            (1536, "1.5M"),
            (10_240_000, "9.766G"),
            (1 << 30, "1T"),
            (u64::MAX >> 10, "16384P"),
        ] {
            assert_eq!(human(kib), text, "{kib}");
        }
        let style = Style { is_human: true, ..PLAIN };
        assert!(header("Filesystem", &style).starts_with("     Filesystem    used  bquota"));
    }

    #[test]
    fn grace_times_are_read_as_they_are_shown() {
        for (text, seconds) in [
            ("1w4d", 11 * 86400),
            ("6d23h59m50s", 604_790),
            ("0s", 0),
            ("1m", 60),
            ("notify", GRACE_NOTIFY_S),
        ] {
            assert_eq!(parse_duration(text), Some(seconds), "{text}");
            assert_eq!(duration(seconds), text);
        }
        assert_eq!(parse_duration("90"), Some(90));
        assert_eq!(parse_duration("281474976710655"), Some(GRACE_MAX_S));
        for bad in
            ["", "w", "1w4", "1x", "-1", "1 w", "281474976710656", "99999999999999999999", "9999999999999w"]
        {
            assert_eq!(parse_duration(bad), None, "{bad}");
        }
        assert_eq!(times(604_800, GRACE_NOTIFY_S), "Block grace time: 1w; Inode grace time: notify\n");
        for (ends_s, text) in [(0, "-"), (9, "expired"), (10, "1s"), (GRACE_NOTIFY_S, "notify")] {
            assert_eq!(grace(ends_s, 9), text, "{ends_s}");
        }
    }
}
