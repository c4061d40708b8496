//! Tables of `lfs df`.

use super::mounted::{TargetRow, TargetSpace};
use nacre_types::TargetKind;

/// Contents and form of the table.
#[derive(Clone, Copy, Debug, Default)]
pub struct DfStyle {
    /// `-i`: inodes instead of space.
    pub inodes: bool,
    /// `-h` (1024) or `-H` (1000): with suffixes.
    pub human: Option<u32>,
    /// `-v`: all state letters and inactive targets.
    pub verbose: bool,
    /// `-s`: the summary alone, without a header.
    pub summary_only: bool,
    /// `-N`, or one target alone: neither header nor summary.
    pub rows_only: bool,
    /// MDTs are shown.
    pub mdts: bool,
    /// OSTs are shown.
    pub osts: bool,
}

/// Counts of one row in KiB or inodes.
#[derive(Clone, Copy, Default)]
struct Counts {
    total: u64,
    used: u64,
    available: u64,
}

impl Counts {
    fn of(space: &TargetSpace, inodes: bool) -> Counts {
        if inodes {
            let used = space.files.saturating_sub(space.files_free);
            return Counts { total: space.files, used, available: space.files_free };
        }
        let kib = |blocks: u64| {
            let bytes = u128::from(blocks) * u128::from(space.block_size.max(1));
            u64::try_from(bytes >> 10).unwrap_or(u64::MAX)
        };
        Counts {
            total: kib(space.blocks),
            used: kib(space.blocks.saturating_sub(space.blocks_free)),
            available: kib(space.blocks_available),
        }
    }

    fn add(&mut self, other: &Counts) {
        self.total = self.total.saturating_add(other.total);
        self.used = self.used.saturating_add(other.used);
        self.available = self.available.saturating_add(other.available);
    }

    /// Returns used / (used + available) in percent, rounded up as `df` does.
    fn percent(&self) -> u64 {
        let whole = u128::from(self.used) + u128::from(self.available);
        if whole == 0 {
            return 0;
        }
        u64::try_from((u128::from(self.used) * 100).div_ceil(whole)).unwrap_or(100)
    }
}

/// Returns the text for one file system mounted on `mount_point`: a line of these columns for each target,
/// and their sum.
pub fn df(
    mount_point: &str,
    rows: &[TargetRow],
    fsname: &str,
    style: &DfStyle,
    columns: Option<&[Column]>,
) -> String {
    let columns = columns.unwrap_or(if style.inodes { &INODES } else { &BLOCKS });
    let mut out = String::new();
    if !style.summary_only && !style.rows_only {
        out.push_str(&line(columns, |column| column.head(style)));
    }
    let mut sums = Sums::default();
    for row in rows {
        let kind_wanted = match row.target.kind {
            TargetKind::Mdt => style.mdts,
            TargetKind::Ost => style.osts,
            TargetKind::Mgt => false,
        };
        if !kind_wanted {
            continue;
        }
        let Some(space) = &row.space else {
            // Targets that an operator has deactivated are not reported.
            if !style.summary_only && (row.active || style.verbose) {
                out.push_str(&format!("{:<20}: inactive device\n", row.target.to_string()));
            }
            continue;
        };
        sums.add(row.target.kind, space);
        if !style.summary_only {
            let place = format!("{mount_point}[{}:{}]", row.target.kind.label(), row.target.index);
            let letters = state_letters(space.state, style.verbose);
            let label = row.target.uuid(fsname);
            let [blocks, inodes] = [false, true].map(|inodes| Counts::of(space, inodes));
            out.push_str(&line(columns, |column| {
                column.cell(&label, &blocks, &inodes, &place, &letters, style)
            }));
        }
    }
    if style.rows_only {
        return out;
    }
    let (blocks, inodes) = (sums.blocks(), sums.inodes());
    let summary =
        line(columns, |column| column.cell("filesystem_summary:", &blocks, &inodes, mount_point, "", style));
    match style.summary_only {
        true => summary,
        false => format!("{out}\n{summary}\n"),
    }
}

fn line(columns: &[Column], cell: impl Fn(&Column) -> Option<String>) -> String {
    columns.iter().filter_map(cell).collect::<Vec<_>>().join(" ") + "\n"
}

/// Sums over the targets.
#[derive(Default)]
struct Sums {
    mdt_blocks: Counts,
    mdt_inodes: Counts,
    ost_blocks: Counts,
    ost_inodes: Counts,
    have_osts: bool,
}

impl Sums {
    fn add(&mut self, kind: TargetKind, space: &TargetSpace) {
        let (blocks, inodes) = match kind {
            TargetKind::Mdt => (&mut self.mdt_blocks, &mut self.mdt_inodes),
            _ => {
                self.have_osts = true;
                (&mut self.ost_blocks, &mut self.ost_inodes)
            }
        };
        blocks.add(&Counts::of(space, false));
        inodes.add(&Counts::of(space, true));
    }

    /// Returns the sum of space: of the OSTs, if there are any.
    fn blocks(&self) -> Counts {
        if self.have_osts { self.ost_blocks } else { self.mdt_blocks }
    }

    /// Returns the sum of inodes: every file needs one on an MDT; objects are the limit only where they are
    /// fewer.
    fn inodes(&self) -> Counts {
        let (mdts, osts) = (self.mdt_inodes, self.ost_inodes);
        let total = match (self.have_osts, mdts.total > 0) {
            (true, true) => Counts { available: mdts.available.min(osts.available), ..mdts },
            (true, false) => osts,
            (false, _) => mdts,
        };
        Counts { total: total.used.saturating_add(total.available), ..total }
    }
}

/// A column of `lfs df -u`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Column {
    /// UUID of the target.
    Source,
    /// Number of blocks or inodes: its header, the table that it is from, and which number.
    Count(&'static str, bool, Which),
    /// Mount point and target.
    Target,
    /// Letters of the state bits.
    State,
}

/// One of a target's numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Which {
    Total,
    Used,
    Free,
    Available,
    Percent,
}

/// Parses a list of names of columns.
///
/// # Errors
/// The first unknown name.
pub fn columns_of(list: &str) -> Result<Vec<Column>, String> {
    let column = |name: &str| {
        Ok(match name {
            "source" => Column::Source,
            "size" => Column::Count("1K-blocks", false, Which::Total),
            "used" => Column::Count("Used", false, Which::Used),
            "free" => Column::Count("Free", false, Which::Free),
            "avail" => Column::Count("Available", false, Which::Available),
            "pcent" => Column::Count("Use%", false, Which::Percent),
            "itotal" => Column::Count("Inodes", true, Which::Total),
            "iused" => Column::Count("IUsed", true, Which::Used),
            "iavail" => Column::Count("IFree", true, Which::Available),
            "ipcent" => Column::Count("IUse%", true, Which::Percent),
            "target" => Column::Target,
            "state" => Column::State,
            other => return Err(other.to_owned()),
        })
    };
    list.split(',').map(column).collect()
}

/// Columns without `-u`, and with `-i`.
const BLOCKS: [Column; 7] = [
    Column::Source,
    Column::Count("1K-blocks", false, Which::Total),
    Column::Count("Used", false, Which::Used),
    Column::Count("Available", false, Which::Available),
    Column::Count("Use%", false, Which::Percent),
    Column::Target,
    Column::State,
];
const INODES: [Column; 7] = [
    Column::Source,
    Column::Count("Inodes", true, Which::Total),
    Column::Count("IUsed", true, Which::Used),
    Column::Count("IFree", true, Which::Available),
    Column::Count("IUse%", true, Which::Percent),
    Column::Target,
    Column::State,
];

impl Column {
    /// Returns the header; the state has none.
    fn head(self, style: &DfStyle) -> Option<String> {
        Some(match self {
            Column::Source => format!("{:<20}", "UUID"),
            Column::Target => " Mounted on".to_owned(),
            Column::State => return None,
            Column::Count(head, _, Which::Percent) => format!("{head:>4}"),
            Column::Count("1K-blocks", ..) if style.human.is_some() => format!("{:>11}", "bytes"),
            Column::Count(head, ..) => format!("{head:>11}"),
        })
    }

    fn cell(
        self,
        label: &str,
        blocks: &Counts,
        inodes: &Counts,
        place: &str,
        letters: &str,
        style: &DfStyle,
    ) -> Option<String> {
        let (of_inodes, which) = match self {
            Column::Source => return Some(format!("{label:<20}")),
            Column::Target => return Some(format!(" {place}")),
            Column::State => return Some(letters.to_owned()),
            Column::Count(_, of_inodes, which) => (of_inodes, which),
        };
        let counts = if of_inodes { inodes } else { blocks };
        let number = match which {
            Which::Total => counts.total,
            Which::Used => counts.used,
            Which::Free => counts.total.saturating_sub(counts.used),
            Which::Available => counts.available,
            Which::Percent => return Some(format!("{:>3}%", counts.percent())),
        };
        Some(match style.human {
            None => format!("{number:>11}"),
            Some(base) => format!("{:>9}", human(number, base, of_inodes)),
        })
    }
}

/// Formats like `1024.0M`: the largest unit that keeps the number at or below the base. The unit of a `plain`
/// number is one, else KiB.
fn human(number: u64, base: u32, plain: bool) -> String {
    const UNITS: [char; 7] = [' ', 'K', 'M', 'G', 'T', 'P', 'E'];
    let base = f64::from(base);
    let (mut value, mut unit) = match plain {
        true => (number as f64, 0),
        // KiB are binary in either base of the display.
        false => (number as f64 * 1024.0 / base, 1),
    };
    while value > base && unit + 1 < UNITS.len() {
        value /= base;
        unit += 1;
    }
    if unit == 0 { number.to_string() } else { format!("{value:.1}{}", UNITS[unit]) }
}

/// Returns the letters of the state bits: errors always, others if `verbose`.
pub fn state_letters(state: u32, verbose: bool) -> String {
    const ERRORS: [(u32, char); 5] = [(1, 'D'), (2, 'R'), (4, 'N'), (0x20, 'S'), (0x40, 'I')];
    const OTHERS: [(u32, char); 2] = [(0x100, 'a'), (0x200, 'f')];
    let others = if verbose { &OTHERS[..] } else { &[] };
    ERRORS.iter().chain(others).filter(|(bit, _)| state & bit != 0).map(|(_, letter)| *letter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_types::TargetId;

    fn rows() -> Vec<TargetRow> {
        let space = TargetSpace {
            block_size: 1024,
            blocks: 1_048_576,
            blocks_free: 1_048_576 - 248_576,
            blocks_available: 760_000,
            files: 100_000,
            files_free: 90_000,
            state: 0x200,
        };
        [TargetId::mdt(0), TargetId::ost(0), TargetId::ost(1)]
            .map(|target| TargetRow { target, active: true, space: Some(space), errno: 0 })
            .to_vec()
    }

    fn show(style: DfStyle) -> String {
        df("/mnt/x", &rows(), "testfs", &DfStyle { mdts: true, osts: true, ..style }, None)
    }

    #[test]
    fn golden_blocks() {
        let expected = "\
UUID                   1K-blocks        Used   Available Use%  Mounted on
testfs-MDT0000_UUID      1048576      248576      760000  25%  /mnt/x[MDT:0] 
testfs-OST0000_UUID      1048576      248576      760000  25%  /mnt/x[OST:0] 
testfs-OST0001_UUID      1048576      248576      760000  25%  /mnt/x[OST:1] 

filesystem_summary:      2097152      497152     1520000  25%  /mnt/x 

";
        assert_eq!(show(DfStyle::default()), expected);
    }

    #[test]
    fn golden_human() {
        let expected = "\
UUID                       bytes        Used   Available Use%  Mounted on
testfs-MDT0000_UUID    1024.0M    242.8M    742.2M  25%  /mnt/x[MDT:0] 
testfs-OST0000_UUID    1024.0M    242.8M    742.2M  25%  /mnt/x[OST:0] 
testfs-OST0001_UUID    1024.0M    242.8M    742.2M  25%  /mnt/x[OST:1] 

filesystem_summary:       2.0G    485.5M      1.4G  25%  /mnt/x 

";
        assert_eq!(show(DfStyle { human: Some(1024), ..DfStyle::default() }), expected);
    }

    #[test]
    fn golden_inodes() {
        let expected = "\
UUID                      Inodes       IUsed       IFree IUse%  Mounted on
testfs-MDT0000_UUID       100000       10000       90000  10%  /mnt/x[MDT:0] 
testfs-OST0000_UUID       100000       10000       90000  10%  /mnt/x[OST:0] 
testfs-OST0001_UUID       100000       10000       90000  10%  /mnt/x[OST:1] 

filesystem_summary:       100000       10000       90000  10%  /mnt/x 

";
        assert_eq!(show(DfStyle { inodes: true, ..DfStyle::default() }), expected);
    }

    #[test]
    fn verbose_adds_letters_and_missing_targets_are_named() {
        assert!(show(DfStyle { verbose: true, ..DfStyle::default() }).contains("/mnt/x[OST:1] f\n"));
        let mut rows = rows();
        rows[2].space = None;
        let text = |rows: &[TargetRow], verbose| {
            df("/m", rows, "t", &DfStyle { osts: true, verbose, ..DfStyle::default() }, None)
        };
        let said = "OST0001             : inactive device\n";
        assert!(text(&rows, false).contains(said));
        // Deactivated.
        rows[2].active = false;
        assert!(!text(&rows, false).contains("OST0001"));
        assert!(text(&rows, true).contains(said));
    }

    #[test]
    fn columns_can_be_chosen() {
        let columns = columns_of("source,itotal,pcent,free,target,state").expect("known");
        let style = DfStyle { mdts: true, verbose: true, ..DfStyle::default() };
        let row = "testfs-MDT0000_UUID       100000  25%      800000  /mnt/x[MDT:0] f\n";
        let expected = format!(
            "UUID                      Inodes Use%        Free  Mounted on\n{row}\n\
             filesystem_summary:       100000  25%      800000  /mnt/x \n\n"
        );
        assert_eq!(df("/mnt/x", &rows(), "testfs", &style, Some(&columns)), expected);
        let style = DfStyle { rows_only: true, ..style };
        assert_eq!(df("/mnt/x", &rows(), "testfs", &style, Some(&columns)), row);
        assert_eq!(columns_of("size,bogus"), Err("bogus".to_owned()));
    }

    #[test]
    fn golden_parts_of_the_table() {
        let summary = "filesystem_summary:      2097152      497152     1520000  25%  /mnt/x \n";
        assert_eq!(show(DfStyle { summary_only: true, ..DfStyle::default() }), summary);
        let whole = show(DfStyle::default());
        let rows: String = whole.lines().skip(1).take(3).map(|line| format!("{line}\n")).collect();
        assert_eq!(show(DfStyle { rows_only: true, ..DfStyle::default() }), rows);
    }

    #[test]
    fn empty_targets_are_zero_percent_used() {
        assert_eq!(Counts::default().percent(), 0);
        let full = Counts { total: 10, used: 10, available: 0 };
        assert_eq!(full.percent(), 100);
    }
}
