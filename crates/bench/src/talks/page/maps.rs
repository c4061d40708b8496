//! Heat maps of PaF, from the rows of a report: first iterations separate from later ones, since the first
//! one after a change is a different case.

use std::fmt::Write as _;

use super::figure::{conditions, number, tag};
use crate::chart::escape;
use crate::heat::{self, HeatMap};
use crate::report::{Report, Row};
use crate::sample::Samples;
use crate::talks::catalogue::Experiment;

/// Parts of the name of a row: `ext4: PaF:10.30, write, 16 MiB`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Key {
    line: String,
    capacity: u8,
    fragment: u8,
    what: String,
    xfer: String,
}

impl Key {
    fn of(name: &str) -> Option<Key> {
        let (line, rest) = name.split_once("PaF:")?;
        let mut parts = rest.split(", ");
        let (capacity, fragment) = parts.next()?.split_once('.')?;
        let (what, xfer) = (parts.next()?.to_owned(), parts.next()?.to_owned());
        let line = line.trim_end_matches(": ").to_owned();
        Some(Key { line, capacity: capacity.parse().ok()?, fragment: fragment.parse().ok()?, what, xfer })
    }
}

/// Iterations of a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Which {
    First,
    Later,
}

impl Which {
    fn name(self) -> &'static str {
        match self {
            Which::First => "first iteration",
            Which::Later => "later iterations",
        }
    }

    fn of(self, samples: &Samples) -> Option<f64> {
        match self {
            Which::First => samples.values().first().copied(),
            Which::Later if samples.count() < 2 => None,
            Which::Later => Some(samples.values()[1..].iter().copied().collect::<Samples>().median()),
        }
    }
}

/// The rows of one line and direction.
struct Group<'a> {
    line: &'a str,
    what: &'a str,
    rows: Vec<(Key, &'a Row)>,
}

/// Returns the distinct values in the order of their first appearance.
fn distinct<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    values.fold(Vec::new(), |mut all, value| {
        if !all.contains(&value) {
            all.push(value);
        }
        all
    })
}

impl Group<'_> {
    fn value(&self, xfer: &str, state: (u8, u8), which: Which) -> Option<f64> {
        let is = |(key, _): &&(Key, &Row)| key.xfer == xfer && (key.capacity, key.fragment) == state;
        which.of(&self.rows.iter().find(is)?.1.samples)
    }

    fn xfers(&self) -> Vec<&str> {
        distinct(self.rows.iter().map(|(key, _)| key.xfer.as_str()))
    }

    fn levels(&self, of: fn(&Key) -> u8) -> Vec<u8> {
        let mut levels = distinct(self.rows.iter().map(|(key, _)| of(key)));
        levels.sort_unstable();
        levels
    }

    fn base(&self) -> (u8, u8) {
        self.rows.first().map_or((0, 0), |(key, _)| (key.capacity, key.fragment))
    }

    fn maps(&self, which: Which) -> Vec<HeatMap> {
        let (capacities, fragments) = (self.levels(|key| key.capacity), self.levels(|key| key.fragment));
        let percents = |levels: &[u8]| levels.iter().map(|level| format!("{level} %")).collect::<Vec<_>>();
        let map = |xfer: &str| {
            let base = self.value(xfer, self.base(), which).filter(|value| *value > 0.0);
            let cell = |capacity: u8, fragment: u8| {
                let value = self.value(xfer, (capacity, fragment), which)?;
                Some((number(value / 1e6), value / base?))
            };
            let row = |&capacity: &u8| fragments.iter().map(|&fragment| cell(capacity, fragment)).collect();
            HeatMap {
                title: format!("{}, {}, {xfer}", self.line, self.what),
                rows: percents(&capacities),
                columns: percents(&fragments),
                cells: capacities.iter().map(row).collect(),
            }
        };
        self.xfers().into_iter().map(map).collect()
    }
}

/// Returns the lowest ratio of all maps, and its position.
fn least(maps: &[HeatMap]) -> Option<(f64, String)> {
    let mut least: Option<(f64, String)> = None;
    for map in maps {
        for (row, cells) in map.rows.iter().zip(&map.cells) {
            for (column, (_, ratio)) in
                map.columns.iter().zip(cells).filter_map(|(c, cell)| Some((c, cell.as_ref()?)))
            {
                if least.as_ref().is_none_or(|(known, _)| ratio < known) {
                    let place = format!("{}, {row} populated, {column} fragmented", map.title);
                    least = Some((*ratio, place));
                }
            }
        }
    }
    least
}

fn table(maps: &[HeatMap], id: &str, caption: &str) -> String {
    let columns = maps.first().map_or(&[][..], |map| map.columns.as_slice());
    let mut html = format!(
        "<div class=\"wide\" role=\"region\" tabindex=\"0\" aria-label=\"Table: {caption}\"><table id=\"{id}-data\">\n<caption>{caption}</caption>\n\
         <thead><tr><th scope=\"col\">transfer size, populated</th>",
        caption = escape(caption)
    );
    for column in columns {
        let _ = write!(html, "<th scope=\"col\">{} fragmented</th>", escape(column));
    }
    html.push_str("</tr></thead>\n<tbody>");
    for map in maps {
        for (row, cells) in map.rows.iter().zip(&map.cells) {
            let xfer = map.title.rsplit(", ").next().unwrap_or_default();
            let _ = write!(html, "<tr><th scope=\"row\">{}, {}</th>", escape(xfer), escape(row));
            for cell in cells {
                html.push_str(&match cell {
                    Some((shown, ratio)) => {
                        format!("<td class=\"value\">{} ({ratio:.2})</td>", escape(shown))
                    }
                    None => "<td class=\"none\">no such state</td>".to_owned(),
                });
            }
            html.push_str("</tr>\n");
        }
    }
    html.push_str("</tbody></table></div>\n");
    html
}

fn figure(group: &Group<'_>, which: Which, experiment: &Experiment, id: &str) -> Option<String> {
    let maps = group.maps(which);
    let (ratio, place) = least(&maps)?;
    let simulated = if experiment.simulated.is_some() { ", simulated" } else { "" };
    let (capacity, fragment) = group.base();
    let base = format!("MB/s, and its ratio to PaF:{capacity:02}.{fragment:02}, {}{simulated}", which.name());
    let title = format!("{}, {}, {}", group.line, group.what, which.name());
    Some(format!(
        "<figure class=\"heat\" id=\"{id}\" data-table=\"{id}-data\"><figcaption>{}{}</figcaption>\n<div class=\"wide\" tabindex=\"0\" role=\"region\" \
         aria-label=\"Heat maps: {}\">{}</div>\n<p>The lowest is {} of the first state ({}).</p>\n<p class=\"small\">{}</p>\n\
         <details><summary>Table</summary>\n{}</details></figure>\n",
        escape(&title),
        tag(experiment),
        escape(&title),
        heat::drawing(&maps, "fragmented", "populated", &base),
        number(ratio),
        escape(&place),
        escape(&conditions(experiment)),
        table(&maps, id, &format!("{title}: {base}"))
    ))
}

/// Formats the lowest ratio of first iterations to later ones, of one line.
fn sentence(groups: &[&Group<'_>]) -> String {
    let part = |group: &&Group<'_>| {
        let of = |which| least(&group.maps(which)).map(|(ratio, _)| number(ratio));
        let first = of(Which::First)?;
        let later = of(Which::Later).map_or_else(String::new, |later| format!(", later ones {later}"));
        Some(format!("{}: first iterations reach {first} of the first state at the least{later}", group.what))
    };
    let parts: Vec<String> = groups.iter().filter_map(part).collect();
    format!("{}.", parts.join("; "))
}

/// Formats the maps of a report; empty if it has no rows of PaF.
pub(super) fn html(experiment: &Experiment, report: &Report) -> String {
    let rows: Vec<(Key, &Row)> =
        report.rows.iter().filter_map(|row| Some((Key::of(&row.name)?, row))).collect();
    let mut html = String::new();
    let lines = distinct(rows.iter().map(|(key, _)| key.line.as_str()));
    for line in lines {
        let name = if line.is_empty() { "store" } else { line };
        let what =
            distinct(rows.iter().filter(|(key, _)| key.line == line).map(|(key, _)| key.what.as_str()));
        let group = |what| {
            let of = |(key, _): &&(Key, &Row)| key.line == line && key.what == what;
            let rows = rows.iter().filter(of).map(|(key, row)| (key.clone(), *row)).collect();
            Group { line: name, what, rows }
        };
        let groups: Vec<Group<'_>> = what.into_iter().map(group).collect();
        let sentence = sentence(&groups.iter().collect::<Vec<_>>());
        let open = if html.is_empty() { " open" } else { "" };
        let _ = write!(
            html,
            "<details{open}><summary>Heat maps: {} ({})</summary>\n<div class=\"panels maps\">\n",
            escape(name),
            escape(&sentence)
        );
        for group in &groups {
            for which in [Which::First, Which::Later] {
                let id = format!(
                    "{}-{name}-{}-{}",
                    experiment.name,
                    group.what,
                    which.name().split(' ').next().unwrap_or("")
                );
                html.extend(figure(group, which, experiment, &id));
            }
        }
        html.push_str("</div></details>\n");
    }
    html
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Unit;
    use crate::talks::catalogue::experiments;

    #[test]
    fn rows_of_paf_say_their_state_and_others_are_none() {
        let key = Key::of("ext4: PaF:10.30, write, 16 MiB").expect("a row of paf");
        assert_eq!((key.line.as_str(), key.capacity, key.fragment), ("ext4", 10, 30));
        assert_eq!((key.what.as_str(), key.xfer.as_str()), ("write", "16 MiB"));
        assert_eq!(Key::of("PaF:00.00, read, 1 MiB").expect("a row of a single run").line, "");
        assert_eq!(Key::of("create, unique directories, 1 MDT(s)"), None);
    }

    #[test]
    fn first_iterations_are_apart_from_later_ones() {
        let mut report = Report::new("x");
        for (state, values) in [("00.00", [100e6, 100e6, 100e6]), ("10.30", [50e6, 90e6, 80e6])] {
            let name = format!("ext4: PaF:{state}, write, 16 MiB");
            report.rows.push(Row::new(name, Unit::BytesPerSecond, values.into_iter().collect()));
        }
        let experiment = experiments().find(|one| one.name == "seagate-paf").expect("there");
        let html = html(experiment, &report);
        assert!(
            html.contains("first iterations reach 0.50 of the first state at the least, later ones 0.80"),
            "{html}"
        );
        assert_eq!(html.matches("<figure").count(), 2);
        assert_eq!(html.matches("class=\"mark\"").count(), html.matches("class=\"value\"").count());
        assert!(super::html(experiment, &Report::new("none")).is_empty());
    }
}
