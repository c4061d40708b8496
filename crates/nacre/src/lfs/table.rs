//! The tables of `lfs df`. Source: reference 2.5 and appendix B.2.

use super::mounted::{TargetRow, TargetSpace};
use nacre_types::TargetKind;

/// What is counted, and how.
#[derive(Clone, Copy, Debug, Default)]
pub struct DfStyle {
    /// `-i`: inodes instead of space.
    pub inodes: bool,
    /// `-h` (1024) or `-H` (1000): with suffixes.
    pub human: Option<u32>,
    /// `-v`: all state letters and inactive targets.
    pub verbose: bool,
    /// `-s`: the summary alone.
    pub summary_only: bool,
    /// Show MDTs.
    pub mdts: bool,
    /// Show OSTs.
    pub osts: bool,
}

/// Counts of one row in units of KiB or inodes.
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

    /// used / (used + available), rounded up as `df` does.
    fn percent(&self) -> u64 {
        let whole = u128::from(self.used) + u128::from(self.available);
        if whole == 0 {
            return 0;
        }
        u64::try_from((u128::from(self.used) * 100).div_ceil(whole)).unwrap_or(100)
    }
}

/// Text for one file system mounted on `mount_point`.
pub fn df(mount_point: &str, rows: &[TargetRow], fsname: &str, style: &DfStyle) -> String {
    let mut out = header(style);
    let (mut mdts, mut osts) = (Counts::default(), Counts::default());
    let mut have_osts = false;
    for row in rows {
        let kind_wanted = match row.target.kind {
            TargetKind::Mdt => style.mdts,
            TargetKind::Ost => style.osts,
            TargetKind::Mgt => false,
        };
        if !kind_wanted {
            continue;
        }
        let label = row.target.uuid(fsname);
        let Some(space) = &row.space else {
            out.push_str(&format!("{:<20}: inactive device\n", row.target.to_string()));
            continue;
        };
        let counts = Counts::of(space, style.inodes);
        match row.target.kind {
            TargetKind::Mdt => mdts.add(&counts),
            _ => {
                have_osts = true;
                osts.add(&counts);
            }
        }
        if !style.summary_only {
            let place = format!("{mount_point}[{}:{}]", row.target.kind.label(), row.target.index);
            out.push_str(&line(&label, &counts, &place, &state_letters(space.state, style.verbose), style));
        }
    }
    let total = match (style.inodes, have_osts) {
        // Every file needs an inode on an MDT; objects limit it only where they are fewer.
        (true, true) if mdts.total > 0 => Counts { available: mdts.available.min(osts.available), ..mdts },
        (true, _) if mdts.total > 0 => mdts,
        (_, true) => osts,
        _ => mdts,
    };
    let total = match style.inodes {
        true => Counts { total: total.used.saturating_add(total.available), ..total },
        false => total,
    };
    if !style.summary_only {
        out.push('\n');
    }
    out.push_str(&line("filesystem_summary:", &total, mount_point, "", style));
    out.push('\n');
    out
}

/// A column of `lfs df -u`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Column {
    /// UUID.
    Source,
    /// A number of blocks or inodes: its head, from which counts, which one.
    Count(&'static str, bool, Which),
    /// Mount point and place.
    Target,
    /// State letters.
    State,
}

/// Which of the counts of a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Which {
    Total,
    Used,
    Free,
    Available,
    Percent,
}

/// The columns that a list of names asks for.
///
/// # Errors
/// The first name that is none.
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

/// The table with just these columns, a line per target.
pub fn df_columns(
    mount_point: &str,
    rows: &[TargetRow],
    fsname: &str,
    style: &DfStyle,
    columns: &[Column],
) -> String {
    let mut out = String::new();
    let line = |cells: Vec<String>| cells.join(" ").trim_end().to_owned() + "\n";
    out.push_str(&line(columns.iter().map(|column| column.head(style)).collect()));
    for row in rows {
        let shown = match row.target.kind {
            TargetKind::Mdt => style.mdts,
            TargetKind::Ost => style.osts,
            TargetKind::Mgt => false,
        };
        let Some(space) = row.space.filter(|_| shown) else { continue };
        let place = format!("{mount_point}[{}:{}]", row.target.kind.label(), row.target.index);
        let cell = |column: &Column| match column {
            Column::Source => format!("{:<20}", row.target.uuid(fsname)),
            Column::Target => place.clone(),
            Column::State => format!("{:<5}", state_letters(space.state, style.verbose)),
            Column::Count(_, inodes, which) => column_number(&space, *inodes, *which, style),
        };
        out.push_str(&line(columns.iter().map(cell).collect()));
    }
    out
}

impl Column {
    fn head(self, style: &DfStyle) -> String {
        match self {
            Column::Source => format!("{:<20}", "UUID"),
            Column::Target => "Mounted on".to_owned(),
            Column::State => format!("{:<5}", "State"),
            Column::Count(head, _, Which::Percent) => format!("{head:>5}"),
            Column::Count("1K-blocks", ..) if style.human.is_some() => format!("{:>11}", "bytes"),
            Column::Count(head, ..) => format!("{head:>11}"),
        }
    }
}

fn column_number(space: &TargetSpace, inodes: bool, which: Which, style: &DfStyle) -> String {
    let counts = Counts::of(space, inodes);
    let number = match which {
        Which::Total => counts.total,
        Which::Used => counts.used,
        Which::Free => counts.total.saturating_sub(counts.used),
        Which::Available => counts.available,
        Which::Percent => return format!("{:>4}%", counts.percent()),
    };
    let text = style.human.map_or_else(|| number.to_string(), |base| human(number, base, inodes));
    format!("{text:>11}")
}

fn header(style: &DfStyle) -> String {
    let [total, used, available, percent] = match (style.inodes, style.human) {
        (true, _) => ["Inodes", "IUsed", "IFree", "IUse%"],
        (false, None) => ["1K-blocks", "Used", "Available", "Use%"],
        (false, Some(_)) => ["bytes", "Used", "Available", "Use%"],
    };
    format!("{:<20} {total:>11} {used:>11} {available:>11} {percent:>4}  Mounted on\n", "UUID")
}

fn line(label: &str, counts: &Counts, place: &str, letters: &str, style: &DfStyle) -> String {
    let number = |n: u64| match style.human {
        None => format!(" {n:>11}"),
        Some(base) => format!(" {:>9}", human(n, base, style.inodes)),
    };
    format!(
        "{label:<20}{}{}{} {:>3}%  {place} {letters}\n",
        number(counts.total),
        number(counts.used),
        number(counts.available),
        counts.percent()
    )
}

/// `1024.0M`: the largest unit that keeps the number at or below the base. `plain` numbers count ones, others KiB.
fn human(number: u64, base: u32, plain: bool) -> String {
    const UNITS: [char; 7] = [' ', 'K', 'M', 'G', 'T', 'P', 'E'];
    let base = f64::from(base);
    let (mut value, mut unit) = match plain {
        true => (number as f64, 0),
        // KiB are binary whatever the base of the display is.
        false => (number as f64 * 1024.0 / base, 1),
    };
    while value > base && unit + 1 < UNITS.len() {
        value /= base;
        unit += 1;
    }
    if unit == 0 { number.to_string() } else { format!("{value:.1}{}", UNITS[unit]) }
}

/// Letters of the state bits: errors always, others when asked.
fn state_letters(state: u32, verbose: bool) -> String {
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
            .map(|target| TargetRow { target, active: true, space: Some(space) })
            .to_vec()
    }

    fn show(style: DfStyle) -> String {
        df("/mnt/x", &rows(), "testfs", &DfStyle { mdts: true, osts: true, ..style })
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
        let text = df("/m", &rows, "t", &DfStyle { osts: true, ..DfStyle::default() });
        assert!(text.contains("OST0001             : inactive device\n"), "{text}");
    }

    #[test]
    fn columns_can_be_chosen() {
        let columns = columns_of("source,itotal,pcent,free,target,state").expect("known");
        let style = DfStyle { mdts: true, verbose: true, ..DfStyle::default() };
        let expected = "\
UUID                      Inodes  Use%        Free Mounted on State
testfs-MDT0000_UUID       100000   25%      800000 /mnt/x[MDT:0] f
";
        assert_eq!(df_columns("/mnt/x", &rows(), "testfs", &style, &columns), expected);
        assert_eq!(columns_of("size,bogus"), Err("bogus".to_owned()));
    }

    #[test]
    fn empty_targets_are_zero_percent_used() {
        assert_eq!(Counts::default().percent(), 0);
        let full = Counts { total: 10, used: 10, available: 0 };
        assert_eq!(full.percent(), 100);
    }
}
