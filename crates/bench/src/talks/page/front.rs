//! The first page: a card for each talk, and the contents.

use std::fmt::Write as _;

use super::figure::Figure;
use super::{Shown, badge, figure_id};
use crate::chart::escape;
use crate::stats::Verdict;
use crate::talks::catalogue::Talk;

/// Returns the claim of a talk in one plain sentence.
fn claim(talk: Talk) -> &'static str {
    match talk {
        Talk::Lad17 => {
            "Lustre 2.10 does more with names on several servers, with small files, and with layouts that grow with a file."
        }
        Talk::Lug17 => {
            "A client that works on one request in parallel and reads ahead makes a single thread up to twice as fast."
        }
        Talk::Cray => {
            "Applications that share disks hurt each other, and flash for the small part of their I/O helps both."
        }
        Talk::Whamcloud => {
            "Servers read small pieces from flash nearly as fast as without any device, and flash that is trimmed stays fast."
        }
        Talk::Seagate => {
            "The talk lost a fifth of its large writes with 10 % populated and fragmented; what keeps data here is asked to lose less."
        }
    }
}

/// Formats the numbers of a talk's experiments by verdict, in one sentence.
fn verdicts(of_talk: &[&Shown<'_>]) -> String {
    let count = |verdict| of_talk.iter().filter(|one| one.verdict() == verdict).count();
    let (shown, not_shown, undecided) =
        (count(Verdict::Shown), count(Verdict::NotShown), count(Verdict::Undecided));
    let plural = if of_talk.len() == 1 { "" } else { "s" };
    let mut text = format!("Here it is shown in {shown} of {} experiment{plural}", of_talk.len());
    if not_shown > 0 {
        let _ = write!(text, ", not shown in {not_shown}");
    }
    if undecided > 0 {
        let _ = write!(
            text,
            ", not decidable in {undecided}: the noise is larger than the effect, or the runs are too few"
        );
    }
    text + "."
}

/// Formats a card: claim, verdict, and the chart of the talk's first experiment that has one.
pub(super) fn card(talk: Talk, all: &[Shown<'_>]) -> String {
    let mut html =
        format!("<article class=\"card\"><h3>{}</h3>\n<p>{}</p>\n", escape(talk.title()), claim(talk));
    let of_talk: Vec<&Shown<'_>> = all.iter().filter(|one| one.experiment.talk == talk).collect();
    if of_talk.is_empty() {
        html.push_str("<p>Nothing of it was run.</p></article>\n");
        return html;
    }
    let verdict = of_talk.iter().map(|one| one.verdict()).reduce(Verdict::and).unwrap_or(Verdict::Undecided);
    let _ = writeln!(html, "<p>{} {}</p>\n<ul>", badge(verdict), escape(&verdicts(&of_talk)));
    for one in &of_talk {
        let (name, title) = (one.experiment.name, escape(one.experiment.title));
        let _ = writeln!(html, "<li><a href=\"#{name}\">{title}</a>: {}</li>", one.verdict().name());
    }
    html.push_str("</ul>\n");
    let picture = of_talk.iter().find_map(|one| {
        let mut charts = one.experiment.charts.iter().enumerate();
        charts.find_map(|(number, chart)| {
            let id = figure_id(one.experiment, number);
            Some(Figure::of(chart, one.report)?.picture(one.experiment, &id))
        })
    });
    html.push_str(&picture.unwrap_or_default());
    html.push_str("</article>\n");
    html
}

/// Formats links to all parts of the page. `more`: anchors and titles of the parts that are not experiments.
pub(super) fn contents(all: &[Shown<'_>], more: &[(&str, &str)]) -> String {
    let mut html = "<nav aria-labelledby=\"contents\"><h2 id=\"contents\">Contents</h2>\n<ul>\
         <li><a href=\"#verdicts\">Five claims, five verdicts</a></li>\n"
        .to_owned();
    for talk in Talk::ALL {
        let of_talk: Vec<&Shown<'_>> = all.iter().filter(|one| one.experiment.talk == talk).collect();
        if of_talk.is_empty() {
            continue;
        }
        let _ = write!(html, "<li>{}<ul>", escape(talk.title()));
        for one in of_talk {
            let (name, title) = (one.experiment.name, escape(one.experiment.title));
            let _ = write!(html, "<li><a href=\"#{name}\">{title}</a></li>");
        }
        html.push_str("</ul></li>\n");
    }
    for (place, title) in more {
        let _ = writeln!(html, "<li><a href=\"#{place}\">{title}</a></li>");
    }
    html.push_str("</ul></nav>\n");
    html
}
