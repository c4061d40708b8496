//! Charts as one page of HTML with drawings inside: nothing is fetched from anywhere.

use std::fmt::Write as _;

/// How values over the places are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// Points joined by lines: places that lie on a scale.
    Lines,
    /// Bars side by side: places that have no order.
    Bars,
}

/// Values over the same places on the horizontal axis.
#[derive(Debug, Clone)]
pub(crate) struct Panel {
    /// Above the drawing.
    pub(crate) title: String,
    /// What its values count.
    pub(crate) unit: &'static str,
    /// How it is drawn.
    pub(crate) form: Form,
    /// Names of the places, from left to right.
    pub(crate) places: Vec<String>,
    /// Name and one value for each place.
    pub(crate) lines: Vec<(String, Vec<f64>)>,
}

/// Colours that can be told apart, also by most colour-blind people. Source: Okabe and Ito, 2008.
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999"];
const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 64.0;
const BOTTOM: f64 = 40.0;
const TOP: f64 = 20.0;
const RIGHT: f64 = 12.0;

/// The page: a title, sentences about how the figures came about, the panels, and a table as text.
pub(crate) fn page(title: &str, notes: &[String], panels: &[Panel], table: &str) -> String {
    let mut figures = String::new();
    for panel in panels {
        let _ = writeln!(figures, "<figure><figcaption>{}</figcaption>", escape(&panel.title));
        figures.push_str(&drawing(panel));
        figures.push_str("</figure>\n");
    }
    frame(title, notes, &figures, table)
}

/// A page around figures, which are HTML already.
pub(crate) fn frame(title: &str, notes: &[String], figures: &str, table: &str) -> String {
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{0}</title>\n<style>\n\
         body {{ font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 1200px; color: #222 }}\n\
         .panels {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(560px, 1fr)); gap: 1.5em }}\n\
         figure {{ margin: 0 }} figcaption {{ font-weight: 600 }}\n\
         svg text {{ font: 11px system-ui, sans-serif; fill: #444 }}\n\
         pre {{ overflow-x: auto; font-size: 12px }}\n</style></head><body>\n<h1>{0}</h1>\n",
        escape(title)
    );
    for note in notes {
        let _ = writeln!(html, "<p>{}</p>", escape(note));
    }
    let _ = writeln!(html, "<div class=\"panels\">\n{figures}");
    let _ = write!(html, "</div>\n<h2>All figures</h2>\n<pre>{}</pre>\n</body></html>\n", escape(table));
    html
}

fn drawing(panel: &Panel) -> String {
    let unit = panel.unit;
    let legend = 18.0 * panel.lines.len().div_ceil(2) as f64;
    let height = HEIGHT + legend;
    let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">\n");
    let most = panel.lines.iter().flat_map(|(_, values)| values).copied().fold(0.0, f64::max);
    let (step, top) = scale(most);
    let x = |place: usize| match panel.form {
        Form::Lines => {
            let gaps = panel.places.len().max(2) - 1;
            LEFT + 20.0 + (WIDTH - LEFT - RIGHT - 40.0) * place as f64 / gaps as f64
        }
        Form::Bars => LEFT + slot_width(panel) * (place as f64 + 0.5),
    };
    let y = |value: f64| HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * value / top;
    let mut mark = 0.0;
    while mark <= top * 1.0001 {
        let at = y(mark);
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{mark}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            at + 4.0
        );
        mark += step;
    }
    for (place, name) in panel.places.iter().enumerate() {
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            x(place),
            HEIGHT - BOTTOM + 18.0,
            escape(name)
        );
    }
    let _ = writeln!(svg, "<text x=\"6\" y=\"{}\">{}</text>", HEIGHT - BOTTOM + 18.0, escape(unit));
    for (number, (name, values)) in panel.lines.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        // Beyond the colours a second round is dashed.
        let dash = if number < COLOURS.len() { "" } else { " stroke-dasharray=\"6 4\"" };
        match panel.form {
            Form::Lines => {
                let points = values.iter().enumerate().map(|(place, value)| (x(place), y(*value), *value));
                svg.push_str(&line(name, unit, (colour, dash), &points.collect::<Vec<_>>()));
            }
            Form::Bars => {
                let width = slot_width(panel) * 0.7 / panel.lines.len() as f64;
                let shift = width * (number as f64 - panel.lines.len() as f64 / 2.0);
                for (place, value) in values.iter().enumerate() {
                    let (left, top) = (x(place) + shift, y(*value));
                    let _ = writeln!(
                        svg,
                        "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{:.1}\" fill=\"{colour}\"/>\
                         <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                        HEIGHT - BOTTOM - top,
                        left + width / 2.0,
                        top - 4.0,
                        shown(*value)
                    );
                }
            }
        }
        svg.push_str(&legend_entry(number, name, colour, dash));
    }
    svg.push_str("</svg>\n");
    svg
}

fn slot_width(panel: &Panel) -> f64 {
    (WIDTH - LEFT - RIGHT) / panel.places.len().max(1) as f64
}

/// A line through points, each with its value.
fn line(name: &str, unit: &str, (colour, dash): (&str, &str), points: &[(f64, f64, f64)]) -> String {
    let path: Vec<String> = points.iter().map(|(x, y, _)| format!("{x:.1},{y:.1}")).collect();
    let mut svg = format!(
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/>\n",
        path.join(" ")
    );
    for (x, y, value) in points {
        let _ = writeln!(
            svg,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"><title>{}: {} {unit}</title></circle>",
            escape(name),
            shown(*value)
        );
    }
    svg
}

/// With decimals where they say something.
fn shown(value: f64) -> String {
    if value < 10.0 { format!("{value:.2}") } else { format!("{value:.0}") }
}

/// Line and name below the drawing, two in a row.
fn legend_entry(number: usize, name: &str, colour: &str, dash: &str) -> String {
    let (column, row) = (number % 2, number / 2);
    let (x, y) = (LEFT + 250.0 * column as f64, HEIGHT - 8.0 + 18.0 * row as f64);
    format!(
        "<line x1=\"{x}\" x2=\"{}\" y1=\"{y}\" y2=\"{y}\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/>\
         <text x=\"{}\" y=\"{}\">{}</text>\n",
        x + 18.0,
        x + 24.0,
        y + 4.0,
        escape(name)
    )
}

/// Distance of the marks on the vertical axis, and its end.
fn scale(most: f64) -> (f64, f64) {
    if most <= 0.0 {
        return (1.0, 1.0);
    }
    let rough = most / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|n| n * power).find(|step| *step >= rough);
    let step = step.unwrap_or(power * 10.0);
    (step, (most / step).ceil() * step)
}

/// Text as HTML has it.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_round_numbers_that_cover_everything() {
        assert_eq!(scale(0.0), (1.0, 1.0));
        for most in [0.3, 1.0, 7.0, 99.0, 3801.0] {
            let (step, top) = scale(most);
            assert!(top >= most && top / step <= 6.0, "{most}");
        }
    }

    #[test]
    fn a_page_shows_every_line_and_no_markup_of_its_names() {
        let panel = Panel {
            title: "read <b>".into(),
            unit: "MB/s",
            form: Form::Lines,
            places: vec!["4K".into(), "1M".into()],
            lines: vec![("off".into(), vec![1.0, 2.0]), ("on".into(), vec![2.0, 4.0])],
        };
        let bars = Panel { form: Form::Bars, ..panel.clone() };
        let html = page("Client & co", &["simulated".into()], &[panel, bars], "a < b");
        assert_eq!(html.matches("<rect").count(), 4);
        assert_eq!(html.matches("<polyline").count(), 2);
        assert!(
            html.contains("read &lt;b&gt;") && html.contains("Client &amp; co") && html.contains("a &lt; b")
        );
        assert!(!html.contains("http"), "nothing is fetched");
    }
}
