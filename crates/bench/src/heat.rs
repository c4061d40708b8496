//! Heat maps as drawings: values over two axes, coloured by their ratio to a baseline.

use std::fmt::Write as _;

use crate::chart::escape;

/// Values of one quantity over rows and columns.
#[derive(Debug, Clone)]
pub(crate) struct HeatMap {
    /// Title above the drawing.
    pub(crate) title: String,
    /// Names of the rows, from the top.
    pub(crate) rows: Vec<String>,
    /// Names of the columns.
    pub(crate) columns: Vec<String>,
    /// Text of a cell and its ratio; `None` for an empty cell.
    pub(crate) cells: Vec<Vec<Option<(String, f64)>>>,
}

const CELL_WIDTH: f64 = 62.0;
const CELL_HEIGHT: f64 = 36.0;
const LEFT: f64 = 70.0;
const TOP: f64 = 44.0;
const GAP: f64 = 28.0;
/// Height of the scale below all maps.
const SCALE: f64 = 60.0;
/// Maps in one row.
const ACROSS: usize = 2;

/// Ratio at the lower end of the scale; below it the colour stays the same.
const LEAST: f64 = 0.5;
/// Ratio at the upper end of the scale.
const MOST: f64 = 1.25;
/// Orange below 1, white at 1, blue above, of the Okabe-Ito palette: told apart by most colour-blind people.
const BELOW: (f64, f64, f64) = (213.0, 94.0, 0.0);
const ABOVE: (f64, f64, f64) = (0.0, 114.0, 178.0);
/// Component of the gray that stands for 1 on a dark page, 0 to 255.
const DARK: f64 = 44.0;

/// Returns all maps in one drawing, with a scale. `x` and `y` name the columns and rows, `base` the baseline
/// of ratios.
pub(crate) fn drawing(maps: &[HeatMap], x: &str, y: &str, base: &str) -> String {
    let columns = maps.iter().map(|map| map.columns.len()).max().unwrap_or(0);
    let rows = maps.iter().map(|map| map.rows.len()).max().unwrap_or(0);
    let map_width = LEFT + CELL_WIDTH * columns as f64;
    let map_height = TOP + CELL_HEIGHT * rows as f64 + 34.0;
    let across = ACROSS.min(maps.len().max(1));
    let width = (map_width + GAP) * across as f64;
    let height = (map_height + GAP) * maps.len().div_ceil(across) as f64 + SCALE;
    let width = width.max(510.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" aria-label=\"{}\" \
         style=\"max-width:{width:.0}px;fill:light-dark(#333,#ddd)\" font-family=\"system-ui, sans-serif\" font-size=\"11\" \
         fill=\"#333\">\n\
         <rect width=\"{width:.0}\" height=\"{height:.0}\" fill=\"#fff\" style=\"fill:Canvas\"/>\n",
        escape(&label(maps, base))
    );
    for (number, map) in maps.iter().enumerate() {
        let left = (map_width + GAP) * (number % across) as f64;
        let top = (map_height + GAP) * (number / across) as f64;
        let _ = writeln!(svg, "<g transform=\"translate({left:.0},{top:.0})\">");
        one(&mut svg, map, x, y);
        svg.push_str("</g>\n");
    }
    scale(&mut svg, height - SCALE + 10.0, base);
    svg.push_str("</svg>\n");
    svg
}

/// Returns the description of the drawing for screen readers.
fn label(maps: &[HeatMap], base: &str) -> String {
    let titles: Vec<&str> = maps.iter().map(|map| map.title.as_str()).collect();
    format!("Heat maps: {}. {base}", titles.join("; "))
}

fn one(svg: &mut String, map: &HeatMap, x: &str, y: &str) {
    let _ = writeln!(
        svg,
        "<text x=\"{LEFT}\" y=\"16\" style=\"font-size:14px;font-weight:600\">{}</text>\n\
         <text x=\"4\" y=\"{:.0}\">{}</text>",
        escape(&map.title),
        TOP - 8.0,
        escape(y)
    );
    for (row, name) in map.rows.iter().enumerate() {
        let top = TOP + CELL_HEIGHT * row as f64;
        let middle = top + CELL_HEIGHT / 2.0;
        let _ = writeln!(
            svg,
            "<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"end\">{}</text>",
            LEFT - 8.0,
            middle + 4.0,
            escape(name)
        );
        let cells = map.cells.get(row).into_iter().flatten();
        for (column, cell) in cells.enumerate() {
            let Some((shown, ratio)) = cell else { continue };
            let left = LEFT + CELL_WIDTH * column as f64;
            let (fill, style, ink) = paint(*ratio);
            let centre = left + CELL_WIDTH / 2.0;
            let _ = writeln!(
                svg,
                "<rect class=\"mark\" x=\"{left:.0}\" y=\"{top:.0}\" width=\"{CELL_WIDTH}\" height=\"{CELL_HEIGHT}\" \
                 fill=\"{fill}\" style=\"{style};stroke:Canvas\" stroke=\"#fff\"/>\
                 <text x=\"{centre:.0}\" y=\"{:.0}\" text-anchor=\"middle\" style=\"font-size:12px;{ink}\">{}</text>\
                 <text x=\"{centre:.0}\" y=\"{:.0}\" text-anchor=\"middle\" style=\"{ink}\">{ratio:.2}</text>",
                middle - 2.0,
                escape(shown),
                middle + 12.0,
            );
        }
    }
    let below = TOP + CELL_HEIGHT * map.rows.len() as f64 + 15.0;
    for (column, name) in map.columns.iter().enumerate() {
        let centre = LEFT + CELL_WIDTH * (column as f64 + 0.5);
        let _ = writeln!(
            svg,
            "<text x=\"{centre:.0}\" y=\"{below:.0}\" text-anchor=\"middle\">{}</text>",
            escape(name)
        );
    }
    let _ = writeln!(svg, "<text x=\"{LEFT}\" y=\"{:.0}\">{}</text>", below + 15.0, escape(x));
}

fn scale(svg: &mut String, top: f64, base: &str) {
    const STEPS: usize = 15;
    const STEP: f64 = 26.0;
    let ratio = |step: usize| LEAST + (MOST - LEAST) * step as f64 / STEPS as f64;
    for step in 0..=STEPS {
        let left = LEFT + STEP * step as f64;
        let (fill, style, _) = paint(ratio(step));
        let _ = writeln!(
            svg,
            "<rect x=\"{left:.0}\" y=\"{top:.0}\" width=\"{STEP}\" height=\"12\" fill=\"{fill}\" style=\"{style}\"/>"
        );
        if step % 5 == 0 {
            let _ = writeln!(
                svg,
                "<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"middle\">{:.2}</text>",
                left + STEP / 2.0,
                top + 25.0,
                ratio(step)
            );
        }
    }
    let _ = writeln!(svg, "<text x=\"{LEFT}\" y=\"{:.0}\">{}</text>", top + 41.0, escape(base));
}

/// A colour, and the colour of text on it.
type Colours = (String, &'static str);

/// Returns the colours of a cell on a light page, and on a dark one.
fn colours(ratio: f64) -> [Colours; 2] {
    let (part, end) = if ratio < 1.0 {
        ((1.0 - ratio) / (1.0 - LEAST), BELOW)
    } else {
        ((ratio - 1.0) / (MOST - 1.0), ABOVE)
    };
    let part = part.clamp(0.0, 1.0);
    let from = |start: f64| {
        let mix = |end: f64| (start + (end - start) * part).round() as u8;
        format!("#{:02x}{:02x}{:02x}", mix(end.0), mix(end.1), mix(end.2))
    };
    // White text on the deep blue only: black is more legible on every light shade of orange. On dark shades
    // it is the reverse.
    let light = if ratio > 1.0 && part > 0.6 { "#fff" } else { "#111" };
    let dark = if ratio < 1.0 && part > 0.7 { "#111" } else { "#fff" };
    [(from(255.0), light), (from(DARK), dark)]
}

/// Returns the colour of a cell, the style that replaces it where pages can be dark, and the style of its
/// text.
fn paint(ratio: f64) -> (String, String, String) {
    let [(fill, ink), (dark_fill, dark_ink)] = colours(ratio);
    let style = format!("fill:light-dark({fill},{dark_fill})");
    (fill, style, format!("fill:{ink};fill:light-dark({ink},{dark_ink})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_fast_as_the_base_is_white_or_dark_gray_and_the_ends_are_deep() {
        let light = |ratio| colours(ratio)[0].clone();
        assert_eq!((light(1.0).0.as_str(), colours(1.0)[1].0.as_str()), ("#ffffff", "#2c2c2c"));
        assert_eq!(light(0.1).0, "#d55e00");
        assert_eq!((light(0.1).0, colours(0.1)[1].0.as_str()), (light(LEAST).0, "#d55e00"));
        assert_eq!(light(9.0), ("#0072b2".to_owned(), "#fff"));
        assert_ne!(light(0.9).0, light(0.8).0);
    }

    #[test]
    fn every_cell_that_was_measured_is_drawn_with_its_value() {
        let map = HeatMap {
            title: "1 MiB <b>".into(),
            rows: vec!["10 %".into(), "20 %".into()],
            columns: vec!["0 %".into(), "70 %".into()],
            cells: vec![vec![Some(("1234".into(), 1.0)), None], vec![Some(("567".into(), 0.4)), None]],
        };
        let svg = drawing(&[map.clone(), map], "fragmented", "populated", "ratio to PaF:00.00");
        assert_eq!(svg.matches(">1234</text>").count(), 2);
        assert_eq!(svg.matches(">0.40</text>").count(), 2);
        assert!(svg.contains("1 MiB &lt;b&gt;"));
        // Four cells, the background and the scale.
        assert_eq!(svg.matches("<rect").count(), 4 + 1 + 16);
        assert_eq!(svg.matches("<text").count(), svg.matches("</text>").count());
    }
}
