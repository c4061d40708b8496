//! The report: one page of HTML that needs nothing else, and the same as Markdown.

use std::fmt::Write as _;

use super::catalogue::{Chart, EXPERIMENTS, Experiment, Talk, Value};
use super::outcome::{Found, Outcome, Results, found, verdict};
use super::peers::peers_section;
use crate::chart::{self, Form, Panel, escape};
use crate::peers::EXPERIMENT;
use crate::report::{Report, Row, Unit};
use crate::stats::{Interval, Verdict, interval};

const STYLE: &str = "<style>
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 340px), 1fr)); gap: 1em }
.card { background: var(--soft); border-radius: 8px; padding: 0.8em 1em; break-inside: avoid }
.card h3 { margin: 0 0 0.3em } section { margin-top: 2.5em } code { overflow-wrap: anywhere }
.verdict { display: inline-block; padding: 0 0.6em; border-radius: 1em; font-weight: 600; color: #fff }
.shown { background: #00704f } .not-shown { background: #b34700 } .undecided { background: #5a5a5a }
.simulated { border-left: 4px solid #d55e00; padding-left: 0.6em }
table { border-collapse: collapse; font-size: 14px } .wide { overflow-x: auto }
th, td { text-align: left; padding: 0.2em 0.8em 0.2em 0; border-bottom: 1px solid var(--grid); vertical-align: top }
@media print { body { max-width: none } section { break-before: page } pre { white-space: pre-wrap } }
</style>
";

const METHODS: &[&str] = &[
    "Every figure is the median of several runs. What is compared ran by turns, so that both sides saw the same machine; ratios are those of runs that followed each other.",
    "An interval is a bootstrap of the median that leaves out one drawn median in twenty; with few runs it is about the slowest to the fastest. A claim is shown if its \
     whole interval keeps the bound, not shown if none of it does, and not decidable here otherwise: then the noise is larger than what is between the figure and the bound.",
    "Preparation and the first connections are not in a figure. Whether data was durable when the clock stopped is said where it was written.",
    "What is simulated (service times of media, of a fabric, of a metadata server) is said in each heading and chart. Simulated figures compare layouts and numbers of servers; they say nothing of this \
     machine's speed.",
    "The load is that of the minute before the experiment. Other work on the machine is in every figure.",
];

fn class(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Shown => "shown",
        Verdict::NotShown => "not-shown",
        Verdict::Undecided => "undecided",
    }
}

fn badge(verdict: Verdict) -> String {
    format!("<span class=\"verdict {}\">{}</span>", class(verdict), verdict.name())
}

fn span(interval: &Interval) -> String {
    format!("{:.2} [{:.2}..{:.2}]", interval.median, interval.low, interval.high)
}

/// An experiment with what it gave.
struct Shown<'a> {
    experiment: &'a Experiment,
    outcome: &'a Outcome,
    report: &'a Report,
    found: Vec<Found>,
}

impl Shown<'_> {
    fn verdict(&self) -> Verdict {
        verdict(&self.found)
    }

    /// One sentence that says what the figures show.
    fn sentence(&self) -> String {
        let parts = self
            .found
            .iter()
            .map(|found| format!("{} ({}): {}", found.says, span(&found.interval), found.verdict.name()));
        let text = parts.collect::<Vec<_>>().join("; ");
        if text.is_empty() { "no figure of this run decides the claim".to_owned() } else { text }
    }
}

fn shown(results: &Results) -> Vec<Shown<'_>> {
    let of = |experiment: &'static Experiment| {
        let outcome = results.of(experiment.name)?;
        let report = outcome.report.as_ref()?;
        Some(Shown { experiment, outcome, report, found: found(experiment, report) })
    };
    EXPERIMENTS.iter().filter_map(of).collect()
}

fn skipped(results: &Results) -> Vec<(&'static Experiment, &str)> {
    let of = |experiment: &'static Experiment| {
        Some((experiment, results.of(experiment.name)?.skipped.as_deref()?))
    };
    EXPERIMENTS.iter().filter_map(of).collect()
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

/// A chart of what there is; places without a value on any line are left out.
fn panel(chart: &Chart, report: &Report) -> Option<Panel> {
    let cell = |place: &[&str], line: &[&str]| -> Option<(Interval, &'static str)> {
        let row = report.rows.iter().find(|row| {
            let has = |word: &&str| row.name.contains(word);
            place.iter().all(has) && line.iter().all(has)
        })?;
        Some(match (chart.value, row.ratios()) {
            (Value::Ratio, Some(ratios)) => (interval(&ratios), "x"),
            (Value::Ratio, None) => (Interval { median: 1.0, low: 1.0, high: 1.0 }, "x"),
            (Value::Figure, _) => {
                let (unit, factor) = unit(row);
                (interval(&row.samples.scaled(factor)), unit)
            }
        })
    };
    let places: Vec<_> = chart
        .places
        .iter()
        .filter(|(_, place)| chart.lines.iter().any(|(_, line)| cell(place, line).is_some()))
        .collect();
    let unit = places.iter().find_map(|(_, place)| Some(cell(place, chart.lines.first()?.1)?.1))?;
    let none = Interval { median: 0.0, low: 0.0, high: 0.0 };
    let (mut lines, mut spreads) = (Vec::new(), Vec::new());
    for (name, line) in chart.lines {
        let values: Vec<Interval> =
            places.iter().map(|(_, place)| cell(place, line).map_or(none, |(value, _)| value)).collect();
        lines.push(((*name).to_owned(), values.iter().map(|value| value.median).collect()));
        spreads.push(values.iter().map(|value| (value.low, value.high)).collect());
    }
    Some(Panel {
        title: chart.title.to_owned(),
        unit,
        form: if chart.is_scale { Form::Lines } else { Form::Bars },
        places: places.iter().map(|(name, _)| (*name).to_owned()).collect(),
        lines,
        spreads,
    })
}

fn command(outcome: &Outcome) -> String {
    format!("nacre {}", outcome.command.join(" "))
}

/// A card of the first page: a talk, its verdict, and the picture of its first experiment.
fn card(talk: Talk, all: &[Shown<'_>]) -> String {
    let mut html = format!("<div class=\"card\"><h3>{}</h3>\n", escape(talk.title()));
    let of_talk: Vec<&Shown<'_>> = all.iter().filter(|one| one.experiment.talk == talk).collect();
    let Some(first) = of_talk.first() else {
        html.push_str("<p>Nothing of it was run.</p></div>\n");
        return html;
    };
    let verdict = of_talk.iter().map(|one| one.verdict()).reduce(Verdict::and).unwrap_or(Verdict::Undecided);
    let _ = writeln!(html, "<p>{} {}</p>", badge(verdict), escape(first.experiment.claim));
    for one in &of_talk {
        let (name, title) = (one.experiment.name, escape(one.experiment.title));
        let _ = writeln!(html, "<p><a href=\"#{name}\">{title}</a>: {}</p>", one.verdict().name());
    }
    let picture = first.experiment.charts.iter().find_map(|chart| panel(chart, first.report));
    html.push_str(&picture.map_or_else(String::new, |panel| chart::figure(&panel)));
    html.push_str("</div>\n");
    html
}

fn section(one: &Shown<'_>) -> String {
    let Shown { experiment, outcome, report, found } = one;
    let mut html = format!(
        "<section id=\"{}\"><h2>{} {}</h2>\n<p><b>The talk:</b> {}</p>\n<p><b>Here:</b> {}.</p>\n",
        experiment.name,
        escape(experiment.title),
        badge(one.verdict()),
        escape(experiment.claim),
        escape(experiment.shape)
    );
    if let Some(simulated) = experiment.simulated {
        let _ = writeln!(html, "<p class=\"simulated\">Simulated: {}.</p>", escape(simulated));
    }
    html.push_str(
        "<div class=\"wide\"><table><tr><th>claim</th><th>ratio</th><th>runs</th><th>verdict</th></tr>\n",
    );
    for Found { says, verdict, interval, runs } in found {
        let _ = writeln!(
            html,
            "<tr><td>{}</td><td>{}</td><td>{runs}</td><td>{}</td></tr>",
            escape(says),
            span(interval),
            verdict.name()
        );
    }
    html.push_str("</table></div>\n<div class=\"panels\">\n");
    for panel in experiment.charts.iter().filter_map(|chart| panel(chart, report)) {
        html.push_str(&chart::figure(&panel));
    }
    let _ = writeln!(
        html,
        "</div>\n<p><code>{}</code>, {:.0} s, load {:.1} at its start</p>\n<details><summary>All figures</summary><pre>{}</pre></details></section>",
        escape(&command(outcome)),
        outcome.seconds,
        report.machine.load,
        escape(&report.table())
    );
    html
}

fn about(results: &Results) -> String {
    let machine = &results.machine;
    format!(
        "NacreFS {}, {}, {} mode; {} CPUs ({}), {} MiB, Linux {}",
        results.version,
        results.date,
        results.mode,
        machine.cpu_count,
        machine.cpu,
        machine.memory_mib,
        machine.kernel
    )
}

/// The page.
pub(super) fn html(results: &Results) -> String {
    let all = shown(results);
    let mut html = chart::head("The talks, reproduced");
    html.push_str(STYLE);
    let _ = writeln!(
        html,
        "<h1>The talks, reproduced</h1>\n<p>{}</p>\n<div class=\"cards\">",
        escape(&about(results))
    );
    html.extend(Talk::ALL.map(|talk| card(talk, &all)));
    html.push_str("</div>\n");
    html.extend(all.iter().map(section));
    let others = results.of(EXPERIMENT).and_then(|outcome| outcome.report.as_ref());
    html.extend(others.map(peers_section));
    let left_out = skipped(results);
    if !left_out.is_empty() {
        html.push_str("<section><h2>Left out</h2><ul>\n");
        for (experiment, why) in left_out {
            let _ = writeln!(html, "<li>{}: {}</li>", escape(experiment.title), escape(why));
        }
        html.push_str("</ul></section>\n");
    }
    html.push_str("<section id=\"methods\"><h2>Methods</h2>\n");
    METHODS.iter().for_each(|text| html.extend(["<p>", &escape(text), "</p>\n"]));
    html.push_str("</section></body></html>\n");
    html
}

/// The same for a review of code.
pub(super) fn markdown(results: &Results) -> String {
    let mut text = format!("# The talks, reproduced\n\n{}\n", about(results));
    let all = shown(results);
    for talk in Talk::ALL {
        let _ = write!(text, "\n## {}\n", talk.title());
        for one in all.iter().filter(|one| one.experiment.talk == talk) {
            let simulated =
                one.experiment.simulated.map_or_else(String::new, |what| format!(" Simulated: {what}."));
            let _ = write!(
                text,
                "\n### {}: {}\n\n{}{simulated} Here: {}.\n\n`{}`\n\n```\n{}```\n",
                one.experiment.title,
                one.verdict().name(),
                one.experiment.claim,
                one.sentence(),
                command(one.outcome),
                one.report.table()
            );
        }
        for (experiment, why) in skipped(results).iter().filter(|(experiment, _)| experiment.talk == talk) {
            let _ = write!(text, "\n### {}: left out\n\n{why}\n", experiment.title);
        }
    }
    text
}

/// A line for each experiment, for the terminal.
pub(super) fn summary(results: &Results) -> String {
    let mut text = String::new();
    for one in shown(results) {
        let _ = writeln!(text, "{:22} {:18} {}", one.experiment.name, one.verdict().name(), one.sentence());
    }
    for (experiment, why) in skipped(results) {
        let _ = writeln!(text, "{:22} {:18} {why}", experiment.name, "left out");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Against;
    use crate::talks::outcome::row_with;

    fn results() -> Results {
        let mut results = Results::new("2026-11-24T00:00:00Z".to_owned(), "quick");
        let mut report = Report::new("x");
        for (name, value) in [("PFL, sequential write", 110.0), ("PFL, sequential read", 50.0)] {
            let mut row = Row::new(name, Unit::BytesPerSecond, [value; 5].into_iter().collect());
            let plain = Row::new("", Unit::BytesPerSecond, [100.0; 5].into_iter().collect());
            row.against = Some(Against::new("<plain>", plain));
            report.rows.push(row);
        }
        let command = vec!["bench".to_owned(), "layouts".to_owned()];
        let experiment = "lad17-pfl".to_owned();
        results.put(Outcome { experiment, command, seconds: 2.0, report: Some(report), skipped: None });
        let why = Some("it needs root & more".to_owned());
        let experiment = "cray-noisy".to_owned();
        results.put(Outcome { experiment, command: Vec::new(), seconds: 0.0, report: None, skipped: why });
        results
    }

    #[test]
    fn the_page_says_what_is_shown_what_not_and_what_was_left_out() {
        let html = html(&results());
        assert!(html.contains("0.50 [0.50..0.50]") && html.contains("1.10 [1.10..1.10]"));
        assert!(html.contains("verdict not-shown") && html.contains("it needs root &amp; more"));
        assert!(html.contains("&lt;plain&gt;") && html.contains("href=\"#lad17-pfl\""));
        assert_eq!(html.matches("<section").count(), 3);
        let places = html.replace("http://www.w3.org/2000/svg", "");
        assert!(!places.contains("http") && !places.contains("<script"), "nothing is fetched");
        let text = markdown(&results());
        assert!(text.contains("### Progressive layouts against plain stripes: not shown"), "{text}");
        assert!(summary(&results()).contains("left out"));
    }

    #[test]
    fn charts_leave_out_places_that_were_not_measured() {
        let results = results();
        let report = results.of("lad17-pfl").and_then(|one| one.report.as_ref()).expect("there");
        let chart = Chart {
            title: "t",
            value: Value::Ratio,
            is_scale: false,
            places: &[("write", &["write"]), ("none", &["none"]), ("read", &["read"])],
            lines: &[("PFL", &["PFL"])],
        };
        let panel = panel(&chart, report).expect("drawn");
        assert_eq!(panel.places, ["write", "read"]);
        assert_eq!(panel.lines[0].1, [1.1, 0.5]);
        assert!(row_with(report, &["PFL", "read"]).is_some());
        let none = Chart { places: &[("none", &["none"])], ..chart };
        assert!(super::panel(&none, report).is_none());
    }
}
