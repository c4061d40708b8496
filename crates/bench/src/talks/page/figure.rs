//! A chart of the report, with a sentence on what it shows and a table.

use std::fmt::Write as _;

use crate::chart::{self, Form, Panel, escape};
use crate::report::{Report, Row, Unit};
use crate::stats::{Interval, interval};
use crate::talks::catalogue::{Chart, Experiment, Value};

/// A chart with its values.
pub(super) struct Figure<'a> {
    chart: &'a Chart,
    unit: &'static str,
    /// Names of the places with a value on any series.
    places: Vec<&'static str>,
    /// Name of each series, and its value at each place.
    lines: Vec<(&'static str, Vec<Option<Cell>>)>,
}

#[derive(Clone, Copy)]
struct Cell {
    interval: Interval,
    runs: usize,
    /// The baseline of others: 1 by definition.
    is_base: bool,
    unit: &'static str,
}

fn unit(row: &Row) -> (&'static str, f64) {
    match row.unit {
        Unit::OpsPerSecond => ("1/s", 1.0),
        Unit::BytesPerSecond => ("MB/s", 1e-6),
        Unit::Bytes => ("MiB", 1.0 / f64::from(1 << 20)),
        Unit::Seconds => ("s", 1.0),
        Unit::Milliseconds => ("ms", 1.0),
    }
}

fn cell(value: Value, row: &Row) -> Cell {
    let runs = row.samples.count();
    match (value, row.ratios()) {
        (Value::Ratio, Some(ratios)) => {
            Cell { interval: interval(&ratios), runs: ratios.count(), is_base: false, unit: "ratio" }
        }
        (Value::Ratio, None) => {
            let interval = Interval { median: 1.0, low: 1.0, high: 1.0 };
            Cell { interval, runs, is_base: true, unit: "ratio" }
        }
        (Value::Figure, _) => {
            let (unit, factor) = unit(row);
            Cell { interval: interval(&row.samples.scaled(factor)), runs, is_base: false, unit }
        }
    }
}

/// Formats a figure for sentences and tables.
pub(super) fn number(value: f64) -> String {
    match value.abs() {
        small if small < 10.0 => format!("{value:.2}"),
        small if small < 100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// Formats an interval: `1.02 [0.98..1.05]`.
pub(super) fn span(interval: &Interval) -> String {
    format!("{} [{}..{}]", number(interval.median), number(interval.low), number(interval.high))
}

impl<'a> Figure<'a> {
    /// Returns the values of a report for a chart; `None` if there are none. Places without a value on any
    /// series are left out.
    pub(super) fn of(chart: &'a Chart, report: &Report) -> Option<Figure<'a>> {
        let find = |place: &[&str], line: &[&str]| {
            let has = |row: &&Row| place.iter().chain(line).all(|word| row.name.contains(word));
            report.rows.iter().find(has).map(|row| cell(chart.value, row))
        };
        let is_measured = |place: &[&str]| chart.lines.iter().any(|(_, line)| find(place, line).is_some());
        let places: Vec<_> = chart.places.iter().filter(|(_, place)| is_measured(place)).collect();
        let cells = |line| places.iter().map(|(_, place)| find(place, line)).collect::<Vec<_>>();
        let lines: Vec<_> = chart.lines.iter().map(|(name, line)| (*name, cells(line))).collect();
        let lines: Vec<_> =
            lines.into_iter().filter(|(_, cells)| cells.iter().any(Option::is_some)).collect();
        let unit = lines.iter().flat_map(|(_, cells)| cells).flatten().next()?.unit;
        Some(Figure { chart, unit, places: places.iter().map(|(name, _)| *name).collect(), lines })
    }

    /// Returns the panel to draw; a missing value is NaN.
    pub(super) fn panel(&self) -> Panel {
        let values = |of: fn(&Interval) -> f64, cells: &[Option<Cell>]| -> Vec<f64> {
            cells.iter().map(|cell| cell.map_or(f64::NAN, |cell| of(&cell.interval))).collect()
        };
        let spread = |cells: &Vec<Option<Cell>>| {
            let (lows, highs) = (values(|i| i.low, cells), values(|i| i.high, cells));
            lows.into_iter().zip(highs).collect()
        };
        Panel {
            title: self.chart.title.to_owned(),
            unit: self.unit,
            form: if self.chart.is_scale { Form::Lines } else { Form::Bars },
            places: self.places.iter().map(|name| (*name).to_owned()).collect(),
            lines: self
                .lines
                .iter()
                .map(|(name, cells)| ((*name).to_owned(), values(|i| i.median, cells)))
                .collect(),
            spreads: self.lines.iter().map(|(_, cells)| spread(cells)).collect(),
        }
    }

    fn amount(&self, interval: &Interval) -> String {
        match self.chart.value {
            Value::Ratio => format!("{} times", number(interval.median)),
            Value::Figure => format!("{} {}", number(interval.median), self.unit),
        }
    }

    /// Formats one sentence on what the chart shows.
    pub(super) fn sentence(&self) -> String {
        let named = |(line, cells): &(&str, Vec<Option<Cell>>)| {
            let of = |(place, cell): (&&str, &Option<Cell>)| Some((format!("{line}, {place}"), (*cell)?));
            self.places.iter().zip(cells).filter_map(of).collect::<Vec<_>>()
        };
        let all: Vec<(String, Cell)> =
            self.lines.iter().flat_map(named).filter(|(_, cell)| !cell.is_base).collect();
        let median = |(_, cell): &&(String, Cell)| cell.interval.median;
        let by = |one: &&(String, Cell), other: &&(String, Cell)| median(one).total_cmp(&median(other));
        let (Some((least, low)), Some((most, high))) = (all.iter().min_by(by), all.iter().max_by(by)) else {
            return "Nothing is compared here: only the base was measured.".to_owned();
        };
        if all.len() == 1 {
            return format!("{least}: {}.", self.amount(&low.interval));
        }
        let noise = match low.interval.high >= high.interval.low {
            true => "; their intervals meet, so the noise is larger than what is between them",
            false => "",
        };
        let (low, high) = (self.amount(&low.interval), self.amount(&high.interval));
        format!("The highest is {high} ({most}), the lowest {low} ({least}){noise}.")
    }

    fn table(&self, id: &str, simulated: &str) -> String {
        let runs: Vec<usize> =
            self.lines.iter().flat_map(|(_, cells)| cells).flatten().map(|cell| cell.runs).collect();
        let (least, most) =
            (runs.iter().min().copied().unwrap_or(0), runs.iter().max().copied().unwrap_or(0));
        let runs = if least == most { least.to_string() } else { format!("{least} to {most}") };
        let mut html = format!(
            "<div class=\"wide\" role=\"region\" tabindex=\"0\" aria-label=\"Table: {title}\"><table id=\"{id}-data\">\n\
             <caption>{title}: {unit}, median [95 % interval] of {runs} runs{simulated}</caption>\n<thead><tr><th scope=\"col\">place</th>",
            title = escape(self.chart.title),
            unit = self.unit
        );
        for (name, _) in &self.lines {
            let _ = write!(html, "<th scope=\"col\">{}</th>", escape(name));
        }
        html.push_str("</tr></thead>\n<tbody>");
        for (at, place) in self.places.iter().enumerate() {
            let _ = write!(html, "<tr><th scope=\"row\">{}</th>", escape(place));
            for (_, cells) in &self.lines {
                html.push_str(&match cells.get(at).copied().flatten() {
                    Some(cell) if cell.is_base => "<td class=\"value\">1 (the base)</td>".to_owned(),
                    Some(cell) => format!("<td class=\"value\">{}</td>", span(&cell.interval)),
                    None => "<td class=\"none\">not measured</td>".to_owned(),
                });
            }
            html.push_str("</tr>\n");
        }
        html.push_str("</tbody></table></div>\n");
        html
    }

    /// Formats the chart with its sentence and its table.
    pub(super) fn html(&self, experiment: &Experiment, id: &str) -> String {
        let simulated = if experiment.simulated.is_some() { ", simulated" } else { "" };
        let panel = self.panel();
        format!(
            "<figure id=\"{id}\" data-table=\"{id}-data\"><figcaption>{}{}</figcaption>\n{}{}\n\
             <p>{}</p>\n<p class=\"small\">{}</p>\n<details><summary>Table</summary>\n{}</details></figure>\n",
            escape(self.chart.title),
            tag(experiment),
            chart::drawing(&panel),
            chart::legend(&panel),
            escape(&self.sentence()),
            escape(&conditions(experiment)),
            self.table(id, simulated)
        )
    }

    /// Formats the chart alone, for a card of the first page; `id` is that of the full chart.
    pub(super) fn picture(&self, experiment: &Experiment, id: &str) -> String {
        let panel = self.panel();
        format!(
            "<figure data-table=\"{id}-data\"><figcaption>{}{}</figcaption>\n{}{}\n\
             <p>{}</p><p class=\"small\">{} <a href=\"#{id}\">The chart with its table</a></p></figure>\n",
            escape(self.chart.title),
            tag(experiment),
            chart::drawing(&panel),
            chart::legend(&panel),
            escape(&self.sentence()),
            escape(&conditions(experiment))
        )
    }
}

/// Returns the mark of simulated figures in a heading.
pub(super) fn tag(experiment: &Experiment) -> &'static str {
    if experiment.simulated.is_some() { " <span class=\"tag\">simulated</span>" } else { "" }
}

/// Formats what is simulated, and when an operation counts as done.
pub(super) fn conditions(experiment: &Experiment) -> String {
    let simulated = experiment.simulated.map_or_else(String::new, |what| format!("Simulated: {what}. "));
    format!("{simulated}Durability: {}.", experiment.durability)
}
