//! The report: one self-contained page of HTML, and the same as Markdown.

mod figure;
mod front;
mod maps;

use std::fmt::Write as _;

use super::catalogue::{Experiment, Talk, experiments};
use super::outcome::{Found, Outcome, Results, found, verdict};
use super::peers::{peers_section, table_of};
use crate::chart::{self, escape};
use crate::peers::EXPERIMENT;
use crate::report::Report;
use crate::stats::{Bound, RUNS_MIN, Verdict};
use figure::{Figure, number, span};

const STYLE: &str = include_str!("page/style.css");

const METHODS: &[&str] = &[
    "Every figure is the median of several runs. What is compared ran by turns, so that both sides saw the same machine; ratios are those of runs that followed each other.",
    "An interval is a bootstrap of the median that leaves out one drawn median in twenty; with few runs it is about the slowest to the fastest. A claim is shown if its \
     whole interval keeps the bound, not shown if none of it does, and not decidable here otherwise: then the noise is larger than what is between the figure and the bound. \
     Fewer than three runs decide nothing.",
    "Warm-up is not in a figure: files and directories are prepared, processes started and first connections opened before the clock runs. Reads that are called cold follow an emptying of the \
     kernel's caches. Of PaF all iterations count, and the first after each change is shown apart, because its difference is what the talk is about.",
    "Each chart says when a write counts as done. Data in memory (tmpfs) is never safe from a power cut, whatever fsync has returned; it is used so that the disk of this machine is in no figure.",
    "What is simulated (service times of media, of a fabric, of a metadata server) is said in each heading, chart and table. Simulated figures compare layouts and numbers of servers; they say nothing of this \
     machine's speed.",
    "The time of other processes is all CPU time of the machine while an experiment ran less that of the experiment's own processes. It includes the kernel's own threads, some of which \
     work for the experiment. Stolen is time in which the hypervisor ran something else. Other work on the machine is in every figure that is not simulated, and widens the intervals of all.",
    "Every command can be repeated as it is shown: {dir} is an empty directory in memory, {out} one on a disk.",
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

/// Returns the name of an experiment's chart by number, for links.
fn figure_id(experiment: &Experiment, number: usize) -> String {
    format!("{}-{}", experiment.name, number + 1)
}

fn bound(bound: Bound) -> String {
    match bound {
        Bound::AtLeast(least) => format!("at least {}", number(least)),
        Bound::AtMost(most) => format!("at most {}", number(most)),
    }
}

/// Formats the verdict on a claim, with its reason.
fn reason(found: &Found) -> String {
    let (name, interval) = (found.verdict.name(), &found.interval);
    match found.verdict {
        Verdict::Shown => format!("{name}: the whole interval keeps the bound"),
        Verdict::NotShown => format!("{name}: none of the interval keeps the bound"),
        Verdict::Undecided if found.runs < RUNS_MIN => format!("{name}: {} run(s) are too few", found.runs),
        Verdict::Undecided => format!(
            "{name}: the noise ({} to {}) is larger than the distance to the bound",
            number(interval.low),
            number(interval.high)
        ),
    }
}

/// An experiment with its results.
struct Shown<'a> {
    experiment: &'static Experiment,
    outcome: &'a Outcome,
    report: &'a Report,
    found: Vec<Found>,
}

impl Shown<'_> {
    /// Returns the bottleneck of the figures, if they do not show the talk's claim.
    fn profile(&self) -> Option<&'static str> {
        self.experiment.profile.filter(|_| self.verdict() != Verdict::Shown)
    }

    fn verdict(&self) -> Verdict {
        verdict(&self.found)
    }

    /// Formats one sentence on what the figures show.
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
    experiments().filter_map(of).collect()
}

fn skipped(results: &Results) -> Vec<(&'static Experiment, &str)> {
    let of = |experiment: &'static Experiment| {
        Some((experiment, results.of(experiment.name)?.skipped.as_deref()?))
    };
    experiments().filter_map(of).collect()
}

fn command(outcome: &Outcome) -> String {
    format!("nacre {}", outcome.command.join(" "))
}

/// Formats one sentence on other load while an experiment ran.
fn load(outcome: &Outcome, report: &Report) -> String {
    let before = format!("the load average of the minute before was {:.1}", report.machine.load);
    match outcome.load {
        Some(load) => format!(
            "Other processes took {:.0} % of the CPU time meanwhile and the hypervisor {:.0} %; {before}.",
            100.0 * load.others,
            100.0 * load.stolen
        ),
        None => format!("What others did meanwhile was not recorded in this run; {before}."),
    }
}

/// Formats the claims of an experiment with their results.
fn claims(found: &[Found]) -> String {
    let mut html = "<div class=\"wide\" role=\"region\" tabindex=\"0\" aria-label=\"Claims and verdicts\"><table>\n<thead><tr>\
         <th scope=\"col\">claim</th><th scope=\"col\">ratio [95 % interval]</th><th scope=\"col\">bound</th>\
         <th scope=\"col\">runs</th><th scope=\"col\">verdict</th></tr></thead>\n<tbody>"
        .to_owned();
    for one in found {
        let _ = writeln!(
            html,
            "<tr><th scope=\"row\">{}</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            escape(one.says),
            span(&one.interval),
            bound(one.bound),
            one.runs,
            escape(&reason(one))
        );
    }
    html.push_str("</tbody></table></div>\n");
    html
}

fn section(one: &Shown<'_>) -> String {
    let Shown { experiment, outcome, report, found } = one;
    let (name, title) = (experiment.name, escape(experiment.title));
    let mut html = format!(
        "<section id=\"{name}\" aria-labelledby=\"{name}-title\"><h2 id=\"{name}-title\">{title} {}</h2>\n\
         <p><b>The talk:</b> {}</p>\n<p><b>Here:</b> {}.</p>\n",
        badge(one.verdict()),
        escape(experiment.claim),
        escape(experiment.shape)
    );
    if let Some(simulated) = experiment.simulated {
        let _ = writeln!(html, "<p class=\"simulated\">Simulated: {}.</p>", escape(simulated));
    }
    html.push_str(&claims(found));
    if let Some(profile) = one.profile() {
        let _ = writeln!(html, "<p><b>What bounds it</b> (2 CPUs, November 2026): {}</p>", escape(profile));
    }
    html.push_str("<div class=\"panels\">\n");
    for (number, chart) in experiment.charts.iter().enumerate() {
        let id = figure_id(experiment, number);
        html.extend(Figure::of(chart, report).map(|figure| figure.html(experiment, &id)));
    }
    html.push_str("</div>\n");
    html.push_str(&maps::html(experiment, report));
    let _ = writeln!(
        html,
        "<p><b>Command:</b> <code>{}</code> ({:.0} s)</p>\n<p><b>Load:</b> {}</p>\n\
         <details><summary>All figures with the spread of their runs</summary><pre tabindex=\"0\">{}</pre></details></section>",
        escape(&command(outcome)),
        outcome.seconds,
        escape(&load(outcome, report)),
        escape(&report.table())
    );
    html
}

fn about(results: &Results) -> String {
    let machine = &results.machine;
    let commit =
        if results.commit.is_empty() { String::new() } else { format!(" (commit {})", results.commit) };
    format!(
        "NacreFS {}{commit}, {}, {} mode; {} CPUs ({}), {} MiB, Linux {}",
        results.version,
        results.date,
        results.mode,
        machine.cpu_count,
        machine.cpu,
        machine.memory_mib,
        machine.kernel
    )
}

/// Changes since earlier results: a sentence, and a Markdown table.
type Generations = (String, String);

/// Formats the page.
pub(super) fn html(results: &Results, generations: Option<&Generations>) -> String {
    let all = shown(results);
    let left_out = skipped(results);
    let mut html = chart::head("The talks, reproduced");
    let _ = write!(
        html,
        "<style>\n{STYLE}</style>\n<a class=\"skip\" href=\"#main\">To the verdicts</a>\n<main id=\"main\">\n\
         <h1>The talks, reproduced</h1>\n<p>{}</p>\n<h2 id=\"verdicts\">Five claims, five verdicts</h2>\n<div class=\"cards\">\n",
        escape(&about(results))
    );
    html.extend(Talk::ALL.map(|talk| front::card(talk, &all)));
    html.push_str("</div>\n");
    let others = results.of(EXPERIMENT).and_then(|outcome| outcome.report.as_ref());
    let more = [
        generations.map(|_| ("generations", "Since earlier versions")),
        others.map(|_| ("peers", "Against others")),
        (!left_out.is_empty()).then_some(("left-out", "Left out")),
        Some(("methods", "Methods")),
    ];
    html.push_str(&front::contents(&all, &more.into_iter().flatten().collect::<Vec<_>>()));
    html.extend(all.iter().map(section));
    if let Some((sentence, table)) = generations {
        let table = table_of(&format!("Figures that changed\n{table}"));
        let _ = writeln!(
            html,
            "<section id=\"generations\"><h2>Since earlier versions</h2>\n<p>{}</p>\n{table}</section>",
            escape(sentence)
        );
    }
    html.extend(others.map(peers_section));
    if !left_out.is_empty() {
        html.push_str("<section id=\"left-out\"><h2>Left out</h2><ul>\n");
        for (experiment, why) in left_out {
            let _ = writeln!(html, "<li>{}: {}</li>", escape(experiment.title), escape(why));
        }
        html.push_str("</ul></section>\n");
    }
    html.push_str("<section id=\"methods\"><h2>Methods</h2>\n");
    METHODS.iter().for_each(|text| html.extend(["<p>", &escape(text), "</p>\n"]));
    html.push_str("</section>\n</main></body></html>\n");
    html
}

/// Formats the same as Markdown, for code review.
pub(super) fn markdown(results: &Results, generations: Option<&Generations>) -> String {
    let mut text = format!("# The talks, reproduced\n\n{}\n", about(results));
    let all = shown(results);
    for talk in Talk::ALL {
        let _ = write!(text, "\n## {}\n", talk.title());
        for one in all.iter().filter(|one| one.experiment.talk == talk) {
            let simulated =
                one.experiment.simulated.map_or_else(String::new, |what| format!(" Simulated: {what}."));
            let profile =
                one.profile().map_or_else(String::new, |profile| format!(" What bounds it: {profile}"));
            let _ = write!(
                text,
                "\n### {}: {}\n\n{}{simulated} Durability: {}. Here: {}.{profile}\n\n`{}`\n\n{}\n\n```\n{}```\n",
                one.experiment.title,
                one.verdict().name(),
                one.experiment.claim,
                one.experiment.durability,
                one.sentence(),
                command(one.outcome),
                load(one.outcome, one.report),
                one.report.table()
            );
        }
        for (experiment, why) in skipped(results).iter().filter(|(experiment, _)| experiment.talk == talk) {
            let _ = write!(text, "\n### {}: left out\n\n{why}\n", experiment.title);
        }
    }
    if let Some((sentence, table)) = generations {
        let _ = write!(text, "\n## Since earlier versions\n\n{sentence}\n\n{table}");
    }
    text
}

/// Formats a line for each experiment, for the terminal.
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
    use crate::report::{Against, Row, Unit};
    use crate::stats::Interval;
    use crate::talks::catalogue::{Chart, Value};
    use crate::talks::outcome::row_with;

    fn results() -> Results {
        let mut results = Results::new("2026-11-24T00:00:00Z".to_owned(), "quick");
        let mut report = Report::new("x");
        for (name, value) in [
            ("PFL, file per process, sequential write", 110.0),
            ("PFL, file per process, sequential read", 50.0),
        ] {
            let mut row = Row::new(name, Unit::BytesPerSecond, [value; 5].into_iter().collect());
            let plain = Row::new("", Unit::BytesPerSecond, [100.0; 5].into_iter().collect());
            row.against = Some(Against::new("<plain>", plain));
            report.rows.push(row);
        }
        let command = vec!["bench".to_owned(), "layouts".to_owned()];
        let experiment = "lad17-pfl".to_owned();
        let load = Some(crate::talks::load::Load { others: 0.25, stolen: 0.02 });
        results.put(Outcome { experiment, command, seconds: 2.0, load, report: Some(report), skipped: None });
        let why = Some("it needs root & more".to_owned());
        let experiment = "cray-noisy".to_owned();
        let command = Vec::new();
        results.put(Outcome { experiment, command, seconds: 0.0, load: None, report: None, skipped: why });
        results
    }

    #[test]
    fn the_page_says_what_is_shown_what_not_and_what_was_left_out() {
        let html = html(&results(), None);
        assert!(html.contains("0.50 [0.50..0.50]") && html.contains("1.10 [1.10..1.10]"));
        assert!(html.contains("verdict not-shown") && html.contains("it needs root &amp; more"));
        assert!(html.contains("&lt;plain&gt;") && html.contains("href=\"#lad17-pfl\""));
        assert_eq!(html.matches("<section").count(), 3);
        assert!(
            html.contains("Other processes took 25 % of the CPU time meanwhile and the hypervisor 2 %"),
            "{html}"
        );
        assert!(html.contains("Durability: fsync has returned"), "{html}");
        let places = html.replace("http://www.w3.org/2000/svg", "");
        assert!(!places.contains("http") && !places.contains("<script"), "nothing is fetched");
        let text = markdown(&results(), None);
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
        let figure = Figure::of(&chart, report).expect("drawn");
        let panel = figure.panel();
        assert_eq!(panel.places, ["write", "read"]);
        assert_eq!(panel.lines[0].1, [1.1, 0.5]);
        assert_eq!(
            figure.sentence(),
            "The highest is 1.10 times (PFL, write), the lowest 0.50 times (PFL, read)."
        );
        assert!(row_with(report, &["PFL", "read"]).is_some());
        let none = Chart { places: &[("none", &["none"])], ..chart };
        assert!(Figure::of(&none, report).is_none());
    }

    #[test]
    fn a_verdict_comes_with_its_reason() {
        let of = |low, high, runs, verdict| Found {
            says: "",
            bound: Bound::AtLeast(1.0),
            verdict,
            interval: Interval { median: 1.0, low, high },
            runs,
        };
        let noisy = reason(&of(0.9, 1.2, 5, Verdict::Undecided));
        assert_eq!(
            noisy,
            "not decidable here: the noise (0.90 to 1.20) is larger than the distance to the bound"
        );
        assert!(reason(&of(1.0, 1.0, 2, Verdict::Undecided)).contains("2 run(s) are too few"));
        assert!(reason(&of(1.1, 1.2, 5, Verdict::Shown)).contains("the whole interval"));
    }
}
