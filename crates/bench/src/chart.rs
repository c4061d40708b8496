//! Charts as one page of HTML with drawings inside: nothing is fetched from anywhere.

use std::fmt::Write as _;

/// Lines over the same places on the horizontal axis.
#[derive(Debug, Clone)]
pub(crate) struct Panel {
    /// Above the drawing.
    pub(crate) title: String,
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
const TOP: f64 = 12.0;
const RIGHT: f64 = 12.0;

/// The page: a title, sentences about how the figures came about, the panels, and a table as text.
pub(crate) fn page(title: &str, notes: &[String], unit: &str, panels: &[Panel], table: &str) -> String {
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
    html.push_str("<div class=\"panels\">\n");
    for panel in panels {
        let _ = writeln!(html, "<figure><figcaption>{}</figcaption>", escape(&panel.title));
        html.push_str(&drawing(panel, unit));
        html.push_str("</figure>\n");
    }
    let _ = write!(html, "</div>\n<h2>All figures</h2>\n<pre>{}</pre>\n</body></html>\n", escape(table));
    html
}

fn drawing(panel: &Panel, unit: &str) -> String {
    let legend = 18.0 * panel.lines.len().div_ceil(2) as f64;
    let height = HEIGHT + legend;
    let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">\n");
    let most = panel.lines.iter().flat_map(|(_, values)| values).copied().fold(0.0, f64::max);
    let (step, top) = scale(most);
    let x = |place: usize| {
        let gaps = panel.places.len().max(2) - 1;
        LEFT + 20.0 + (WIDTH - LEFT - RIGHT - 40.0) * place as f64 / gaps as f64
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
        let points: Vec<String> = values
            .iter()
            .enumerate()
            .map(|(place, value)| format!("{:.1},{:.1}", x(place), y(*value)))
            .collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/>",
            points.join(" ")
        );
        for (point, value) in points.iter().zip(values) {
            let (px, py) = point.split_once(',').unwrap_or(("0", "0"));
            let _ = writeln!(
                svg,
                "<circle cx=\"{px}\" cy=\"{py}\" r=\"3\" fill=\"{colour}\"><title>{}: {value:.0} {unit}</title></circle>",
                escape(name)
            );
        }
        svg.push_str(&legend_entry(number, name, colour, dash));
    }
    svg.push_str("</svg>\n");
    svg
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

fn escape(text: &str) -> String {
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
            places: vec!["4K".into(), "1M".into()],
            lines: vec![("off".into(), vec![1.0, 2.0]), ("on".into(), vec![2.0, 4.0])],
        };
        let html = page("Client & co", &["simulated".into()], "MB/s", &[panel], "a < b");
        assert_eq!(html.matches("<polyline").count(), 2);
        assert!(
            html.contains("read &lt;b&gt;") && html.contains("Client &amp; co") && html.contains("a &lt; b")
        );
        assert!(!html.contains("http"), "nothing is fetched");
    }
}
