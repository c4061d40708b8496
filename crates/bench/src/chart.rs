//! Charts as one self-contained HTML page with inline drawings.

use std::fmt::Write as _;
use std::path::Path;

use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::error::Error;
use crate::report::Report;

/// How the values of a panel are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// Points joined by lines, for places on a scale.
    Lines,
    /// Bars next to each other, for places without an order.
    Bars,
}

/// Series of values over the same places of the horizontal axis.
#[derive(Debug, Clone)]
pub(crate) struct Panel {
    /// Title above the drawing.
    pub(crate) title: String,
    /// Unit of the values.
    pub(crate) unit: &'static str,
    /// Form of the drawing.
    pub(crate) form: Form,
    /// Names of the places, from left to right.
    pub(crate) places: Vec<String>,
    /// Series: name, and one value for each place.
    pub(crate) lines: Vec<(String, Vec<f64>)>,
    /// Lower and upper end for each value of each series, drawn as whiskers; empty if unknown.
    pub(crate) spreads: Vec<Vec<(f64, f64)>>,
}

impl Panel {
    /// Creates a panel without whiskers.
    pub(crate) fn new(
        title: String,
        unit: &'static str,
        form: Form,
        places: Vec<String>,
        lines: Vec<(String, Vec<f64>)>,
    ) -> Panel {
        Panel { title, unit, form, places, lines, spreads: Vec::new() }
    }
}

/// The Okabe-Ito palette: told apart by most colour-blind people, on white and on black.
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(153, 153, 153),
    RGBColor(148, 103, 189),
];
/// Placeholder for the text colour, which the page decides.
const TEXT: RGBColor = RGBColor(1, 2, 3);
/// Placeholder for the colour of the grid.
const GRID: RGBColor = RGBColor(3, 2, 1);
const SIZE: (u32, u32) = (500, 300);
/// Font size, legible where a drawing is as wide as a phone.
const TEXT_SIZE: u32 = 17;
/// Number of values up to which bars are labelled with them; more do not fit.
const VALUES_MAX: usize = 9;
/// Share of a place's width that its bars take, 0 to 1.
const BARS: f64 = 0.72;

/// Returns the page: a title, sentences about how the figures were taken, the panels, and a table as text.
pub(crate) fn page(title: &str, notes: &[String], panels: &[Panel], table: &str) -> String {
    frame(title, notes, &panels.iter().map(figure).collect::<String>(), table)
}

/// Writes the page of a report, if requested: its notes and its table, with these panels.
///
/// # Errors
///
/// If the page cannot be written.
pub(crate) fn write(
    path: Option<&Path>,
    title: &str,
    report: &Report,
    panels: impl FnOnce() -> Vec<Panel>,
) -> Result<(), Error> {
    let Some(path) = path else { return Ok(()) };
    let page = page(title, &report.notes, &panels(), &report.table());
    std::fs::write(path, page).map_err(Error::io("write", path))
}

/// Returns a panel with its title and legend.
pub(crate) fn figure(panel: &Panel) -> String {
    let title = escape(&panel.title);
    format!("<figure><figcaption>{title}</figcaption>\n{}{}</figure>\n", drawing(panel), legend(panel))
}

/// Returns the legend: the colour of each series.
pub(crate) fn legend(panel: &Panel) -> String {
    let item = |(number, (name, _)): (usize, &(String, Vec<f64>))| {
        let RGBColor(red, green, blue) = colour(number);
        let name = escape(name);
        format!("<li><span style=\"background:rgb({red},{green},{blue})\"></span>{name}</li>")
    };
    let items: String = panel.lines.iter().enumerate().map(item).collect();
    format!("<ul class=\"legend\">{items}</ul>")
}

/// Style of every page, light and dark.
pub(crate) const STYLE: &str = "\
:root { color-scheme: light dark; --grid: light-dark(#ddd, #444); --soft: light-dark(#f4f4f4, #222); }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 1200px; padding: 0 1em; }
.panels { margin-top: 1em; display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 480px), 1fr)); gap: 1.5em }
figure { margin: 0; max-width: 640px; break-inside: avoid } figcaption { font-weight: 600 }
svg { width: 100%; height: auto }
.legend { list-style: none; padding: 0; margin: 0; font-size: 13px } .legend li { display: inline-block; margin-right: 1.2em }
.legend span { display: inline-block; width: 14px; height: 10px; margin-right: 6px }
pre { overflow-x: auto; font-size: 12px }
";

/// Returns a page around figures, which are HTML already.
pub(crate) fn frame(title: &str, notes: &[String], figures: &str, table: &str) -> String {
    let mut html = head(title);
    let _ = writeln!(html, "<h1>{}</h1>", escape(title));
    for note in notes {
        let _ = writeln!(html, "<p>{}</p>", escape(note));
    }
    let _ = writeln!(html, "<div class=\"panels\">\n{figures}");
    let _ = write!(html, "</div>\n<h2>All figures</h2>\n<pre>{}</pre>\n</body></html>\n", escape(table));
    html
}

/// Returns the start of a page, up to its body.
pub(crate) fn head(title: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><title>{}</title>\n\
         <style>\n{STYLE}</style></head><body>\n",
        escape(title)
    )
}

fn colour(number: usize) -> RGBColor {
    COLOURS[number % COLOURS.len()]
}

/// Returns the drawing of a panel. Each bar or point that stands for a value has the class `mark`.
pub(crate) fn drawing(panel: &Panel) -> String {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        if let Err(error) = draw(panel, &area) {
            return format!("<p>not drawn: {}</p>", escape(&error.to_string()));
        }
    }
    let hex = |RGBColor(red, green, blue): RGBColor| format!("#{red:02X}{green:02X}{blue:02X}");
    for colour in COLOURS {
        let fill = format!("fill=\"{}\"", hex(colour));
        svg = svg.replace(&fill, &format!("class=\"mark\" {fill}"));
    }
    let label = format!("<svg role=\"img\" aria-label=\"{}, {}\" ", escape(&panel.title), panel.unit);
    svg.replacen("<svg ", &label, 1).replace(&hex(TEXT), "currentColor").replace(&hex(GRID), "var(--grid)")
}

/// The places on the horizontal axis by number, each one unit wide, with a mark at its middle.
struct Places(usize);

impl Ranged for Places {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (left, right): (i32, i32)) -> i32 {
        left + ((value + 0.5) / self.0 as f64 * f64::from(right - left)) as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        (0..self.0).map(|place| place as f64).collect()
    }

    fn range(&self) -> std::ops::Range<f64> {
        -0.5..self.0 as f64 - 0.5
    }
}

/// A value at its position, with its whisker if it has one.
struct Point {
    x: f64,
    y: f64,
    spread: Option<(f64, f64)>,
}

impl Point {
    /// Returns the position above the whisker.
    fn top(&self) -> f64 {
        self.spread.map_or(self.y, |(_, high)| self.y.max(high))
    }
}

/// Returns the points of a series, moved by `shift` from the middle of their places. A missing value is NaN.
fn points_of(panel: &Panel, line: usize, shift: f64) -> Vec<Point> {
    let spread = |place: usize| panel.spreads.get(line)?.get(place).copied();
    let values = panel.lines.get(line).into_iter().flat_map(|(_, values)| values).enumerate();
    let values = values.filter(|(_, value)| value.is_finite());
    values.map(|(place, y)| Point { x: place as f64 + shift, y: *y, spread: spread(place) }).collect()
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

fn draw(panel: &Panel, area: &Area<'_>) -> Drawn {
    let count = panel.places.len().max(1);
    let tops = panel.lines.iter().flat_map(|(_, values)| values.iter().copied());
    let tops = tops.chain(panel.spreads.iter().flatten().map(|(_, high)| *high));
    let top = tops.filter(|value| value.is_finite()).fold(0.0, f64::max);
    let top = if top > 0.0 { top * 1.1 } else { 1.0 };
    let mut chart = ChartBuilder::on(area)
        .margin(8)
        .x_label_area_size(34)
        .y_label_area_size(70)
        .build_cartesian_2d(Places(count), 0.0..top)?;
    let text = ("sans-serif", TEXT_SIZE).into_font().color(&TEXT);
    let place = |at: &f64| panel.places.get(at.round().max(0.0) as usize).cloned().unwrap_or_default();
    chart
        .configure_mesh()
        .disable_x_mesh()
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .axis_style(GRID)
        .label_style(text.clone())
        .x_label_formatter(&place)
        .y_label_formatter(&|value| shown(*value))
        .y_desc(panel.unit)
        .draw()?;
    for number in 0..panel.lines.len() {
        let colour = colour(number);
        let width = BARS / panel.lines.len() as f64;
        let shift = match panel.form {
            Form::Lines => 0.0,
            Form::Bars => width * (number as f64 - (panel.lines.len() - 1) as f64 / 2.0),
        };
        let points = points_of(panel, number, shift);
        match panel.form {
            Form::Lines => {
                let points: Vec<(f64, f64)> = points.iter().map(|point| (point.x, point.y)).collect();
                // With more series than colours, the second round of colours has thin lines.
                let stroke = if number < COLOURS.len() { 2 } else { 1 };
                chart.draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(stroke)))?;
                chart.draw_series(points.iter().map(|point| Circle::new(*point, 3, colour.filled())))?;
            }
            Form::Bars => {
                chart.draw_series(points.iter().map(|Point { x, y, .. }| {
                    Rectangle::new([(x - width / 2.0, 0.0), (x + width / 2.0, *y)], colour.filled())
                }))?;
                if panel.lines.len() * count <= VALUES_MAX {
                    let above = text.pos(Pos::new(HPos::Center, VPos::Bottom));
                    let labels = points.iter().map(|point| (shown(point.y), (point.x, point.top())));
                    chart.draw_series(labels.map(|(value, place)| Text::new(value, place, &above)))?;
                }
            }
        }
        let whiskers = points.iter().filter_map(|point| Some((point, point.spread?)));
        chart.draw_series(whiskers.map(|(point, (low, high))| {
            ErrorBar::new_vertical(point.x, low, point.y, high, TEXT.stroke_width(1), 6)
        }))?;
    }
    area.present()?;
    Ok(())
}

/// Formats a value with as many decimals as are significant.
fn shown(value: f64) -> String {
    match value {
        0.0 => "0".to_owned(),
        value if value < 10.0 => format!("{value:.2}"),
        value => format!("{value:.0}"),
    }
}

/// Escapes text for HTML.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn panel(form: Form) -> Panel {
        Panel {
            title: "read <b>".into(),
            unit: "MB/s",
            form,
            places: vec!["4K".into(), "1M & more".into()],
            lines: vec![("off".into(), vec![1.0, 2.0]), ("on".into(), vec![2.0, 4.0])],
            spreads: vec![vec![(0.9, 1.1), (1.9, 2.1)], vec![(1.5, 2.5), (3.0, 5.0)]],
        }
    }

    #[test]
    fn a_page_shows_every_line_and_no_markup_of_its_names() {
        let html =
            page("Client & co", &["simulated".into()], &[panel(Form::Lines), panel(Form::Bars)], "a < b");
        assert_eq!(html.matches("<rect").count(), 4, "a bar for each value");
        assert_eq!(html.matches("class=\"mark\"").count(), 8, "a mark for each value of both");
        assert_eq!(
            html.matches("<circle").count(),
            4 + 8,
            "a point for each value of lines, and in each whisker"
        );
        assert!(
            html.contains("read &lt;b&gt;") && html.contains("Client &amp; co") && html.contains("a &lt; b")
        );
        assert!(html.contains("1M &amp; more") && html.contains("currentColor"));
        let links = html.replace("http://www.w3.org/2000/svg", "");
        assert!(!links.contains("http"), "nothing is fetched");
    }

    #[test]
    fn panels_without_values_are_drawn_too() {
        let none = Panel { places: Vec::new(), lines: Vec::new(), spreads: Vec::new(), ..panel(Form::Bars) };
        let odd = Panel { lines: vec![("x".into(), vec![f64::NAN, 0.0])], ..panel(Form::Lines) };
        assert_eq!(drawing(&odd).matches("class=\"mark\"").count(), 1, "what is missing is not drawn");
        for panel in [none, odd] {
            assert!(drawing(&panel).starts_with("<svg role=\"img\""), "{panel:?}");
        }
    }
}
