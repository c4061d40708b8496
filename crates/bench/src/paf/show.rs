//! The results: the talk's table, JSON, heat maps.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde::Serialize;

use super::state::{Cell, Paf, REPORTS, Rates, Settings, Shape, State};
use crate::error::Error;
use crate::heat::{self, HeatMap};
use crate::machine::Machine;
use crate::report::markdown;
use crate::{chart, medium};
use nacre_common::place::binary;
use nacre_common::size;
use nacre_store::object::simulated::AnyMedium;

/// All iterations of one transfer size in one state.
#[derive(Debug, Clone, Serialize)]
struct Line {
    paf: String,
    #[serde(flatten)]
    state: Paf,
    xfer: u64,
    /// Bandwidth of each iteration in bytes per second.
    write: Vec<f64>,
    read: Vec<f64>,
    write_mean: f64,
    read_mean: f64,
    /// Every transfer bypassed the page cache.
    direct: bool,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    control: Option<Beside>,
}

/// Figures of the control during the iterations of a line.
#[derive(Debug, Clone, Serialize)]
struct Beside {
    /// Bandwidth of each iteration in bytes per second.
    control_write: Vec<f64>,
    control_read: Vec<f64>,
    /// Median of the ratios of each iteration to the control right before it: one iteration with a disturbed
    /// disk has no extra weight.
    write_to_control: f64,
    read_to_control: f64,
}

impl Beside {
    /// Returns `None` unless all cells have a control.
    fn of(cells: &[&Cell]) -> Option<Beside> {
        let rates: Vec<Rates> = cells.iter().map(|cell| cell.control).collect::<Option<_>>()?;
        let ratios = |of: fn(&Cell, &Rates) -> f64| {
            median(cells.iter().zip(&rates).map(|(cell, control)| of(cell, control)).collect())
        };
        Some(Beside {
            control_write: rates.iter().map(|control| control.write).collect(),
            control_read: rates.iter().map(|control| control.read).collect(),
            write_to_control: ratios(|cell, control| cell.write / control.write.max(1.0)),
            read_to_control: ratios(|cell, control| cell.read / control.read.max(1.0)),
        })
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        count => f64::midpoint(values[(count - 1) / 2], values[count / 2]),
    }
}

#[derive(Serialize)]
struct Json<'a> {
    title: String,
    machine: &'a Machine,
    settings: &'a Settings,
    capacity: u64,
    file_bytes: u64,
    ended: bool,
    notes: Vec<String>,
    states: &'a [Shape],
    results: Vec<Line>,
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn lines(state: &State) -> Vec<Line> {
    let mut lines = Vec::new();
    for paf in state.settings.states() {
        for &xfer in &state.settings.xfer {
            let mut cells: Vec<&Cell> =
                state.cells.iter().filter(|cell| cell.paf == paf && cell.xfer == xfer).collect();
            if cells.is_empty() {
                continue;
            }
            cells.sort_by_key(|cell| cell.iteration);
            let of = |value: fn(&Cell) -> f64| cells.iter().map(|cell| value(cell)).collect::<Vec<f64>>();
            let (write, read) = (of(|cell| cell.write), of(|cell| cell.read));
            lines.push(Line {
                paf: paf.to_string(),
                state: paf,
                xfer,
                write_mean: mean(&write),
                read_mean: mean(&read),
                write,
                read,
                direct: cells.iter().all(|cell| cell.direct),
                control: Beside::of(&cells),
            });
        }
    }
    lines
}

fn title(state: &State) -> String {
    format!("Populate and fragment (PaF) on {}", state.label)
}

/// Returns the notes for readers.
fn notes(state: &State) -> Vec<String> {
    let settings = &state.settings;
    let mut notes = vec![format!(
        "PaF:AA.BB: AA percent of {} populated, BB percent of that removed and rewritten; seed {}, {} writer(s)",
        binary(state.capacity, "B"),
        settings.seed,
        settings.writers
    )];
    notes.push(format!(
        "each figure is a file of {} in transfers of the block size: rewritten until it is durable, then read",
        binary(state.file_bytes, "B")
    ));
    if let Ok(Some(medium)) = settings.medium() {
        notes.insert(0, if state.is_computed { computed_note(medium) } else { medium::note(medium) });
        notes.push(match medium.remembers() {
            _ if state.is_computed => {
                "all was written and read on the real device, whose time counts for nothing".to_owned()
            }
            true => "populating went through the model as well; it restarted each time the run was continued"
                .to_owned(),
            false => "populating and removing took their own time, only what is measured that of the model"
                .to_owned(),
        });
    }
    let buffered = state.cells.iter().filter(|cell| !cell.direct).count();
    if buffered > 0 {
        notes.push(format!(
            "the file system refused O_DIRECT: {buffered} of {} pairs went through the page cache",
            state.cells.len()
        ));
    }
    notes.push(match (settings.keep_caches, state.caches_emptied) {
        (true, _) => "the kernel's caches were left as they were (--keep-caches)".to_owned(),
        (false, true) => "the kernel's caches were emptied before each read".to_owned(),
        (false, false) => "the kernel's caches could not be emptied before reads: only root can".to_owned(),
    });
    if let Some(directory) = &settings.control {
        notes.push(format!(
            "of control: median of the ratios to a file in {} that was written and read in the same way right before each pair",
            directory.display()
        ));
    }
    if let Some(size) = settings.size {
        notes.push(format!(
            "--size {}: the file system is larger, and has free space in addition to what was filled",
            size::show(size)
        ));
    }
    if state.resumed > 0 {
        notes.push(format!("the run was interrupted and continued {} time(s)", state.resumed));
    }
    let all = settings.states().len() * settings.cells().len();
    if state.cells.len() < all {
        notes.push(format!("not finished: {} of {all} pairs are measured", state.cells.len()));
    }
    notes
}

/// Returns the note on computed figures.
fn computed_note(medium: AnyMedium) -> String {
    format!(
        "COMPUTED service times ({medium}): what a simulated disk would take for the extents of the measured file; journal, allocation and \
         the index of the file system are left out"
    )
}

/// Formats the table of the talk, then the fragmentation of the states on the device.
pub(super) fn table(state: &State) -> String {
    let lines = lines(state);
    let iterations = state.settings.iterations;
    let mut head = vec!["PaF:AA.BB".to_owned(), "block size".to_owned()];
    for what in ["write", "read"] {
        head.extend((1..=iterations).map(|iteration| format!("{what} {iteration}")));
        head.push("mean".to_owned());
        if state.settings.control.is_some() {
            head.push("of control".to_owned());
        }
    }
    let mut rows = vec![head];
    for line in &lines {
        let mut row = vec![line.paf.clone(), size::show(line.xfer)];
        let beside = |of: fn(&Beside) -> f64| line.control.as_ref().map(of);
        for (values, mean, ratio) in [
            (&line.write, line.write_mean, beside(|control| control.write_to_control)),
            (&line.read, line.read_mean, beside(|control| control.read_to_control)),
        ] {
            row.extend(values.iter().map(|value| megabytes(*value)));
            // An unfinished run has fewer.
            row.extend((values.len()..iterations as usize).map(|_| String::new()));
            row.push(megabytes(mean));
            row.extend(ratio.map(|ratio| format!("{ratio:.2}")));
        }
        rows.push(row);
    }
    let (title, table) = (title(state), markdown(&rows, true));
    let mut text = format!("{title}, MB/s (10^6)\n{}\n\n{table}\n{}", state.machine, shapes(state));
    for note in notes(state) {
        let _ = writeln!(text, "note: {note}");
    }
    text
}

fn shapes(state: &State) -> String {
    let head = [
        "PaF:AA.BB",
        "files",
        "extents of a file",
        "fragmentation of files",
        "free extents",
        "largest",
        "fragmentation of free space",
    ];
    let unknown = || "not known".to_owned();
    let mut shapes: Vec<&Shape> = state.shapes.iter().collect();
    shapes.sort_by_key(|shape| shape.paf);
    let rows = shapes.iter().map(|shape| {
        let (files, free) = (shape.files.as_ref(), shape.free.as_ref());
        let each = files.map(|files| format!("{:.2}", files.extents as f64 / files.files.max(1) as f64));
        vec![
            shape.paf.to_string(),
            files.map_or_else(unknown, |files| files.files.to_string()),
            each.unwrap_or_else(unknown),
            files.map_or_else(unknown, |files| format!("{:.4}", files.fragmentation)),
            free.map_or_else(unknown, |free| free.extents.to_string()),
            free.map_or_else(unknown, |free| binary(free.largest, "B")),
            free.map_or_else(unknown, |free| format!("{:.4}", free.fragmentation)),
        ]
    });
    let rows: Vec<Vec<String>> = std::iter::once(head.map(str::to_owned).to_vec()).chain(rows).collect();
    format!("{}\n", markdown(&rows, true))
}

fn megabytes(rate: f64) -> String {
    let value = rate / 1e6;
    if value < 10.0 { format!("{value:.2}") } else { format!("{value:.0}") }
}

/// Formats all results for programs.
pub(super) fn json(state: &State) -> String {
    let json = Json {
        title: title(state),
        machine: &state.machine,
        settings: &state.settings,
        capacity: state.capacity,
        file_bytes: state.file_bytes,
        ended: state.ended,
        notes: notes(state),
        states: &state.shapes,
        results: lines(state),
    };
    serde_json::to_string_pretty(&json).expect("results have no keys other than strings")
}

/// Returns a heat map for each transfer size, and the name of the baseline of its ratios.
fn maps(state: &State, writes: bool) -> (Vec<HeatMap>, String) {
    let lines = lines(state);
    let settings = &state.settings;
    let capacities: Vec<u8> = settings.capacity.clone();
    let mut fragments: Vec<u8> = settings.states().iter().map(|paf| paf.fragment).collect();
    fragments.sort_unstable();
    fragments.dedup();
    let value = |line: &Line| if writes { line.write_mean } else { line.read_mean };
    // Value that is compared with the first state: the ratio to the control where there is one.
    let compared = |line: &Line| match &line.control {
        Some(control) if writes => control.write_to_control,
        Some(control) => control.read_to_control,
        None => value(line),
    };
    let base = settings.states().first().copied();
    let of = |&xfer: &u64| {
        let find = |paf: Paf| lines.iter().find(|line| line.state == paf && line.xfer == xfer);
        let one = base.and_then(find).map(compared).filter(|&one| one > 0.0).unwrap_or(1.0);
        let row = |&capacity: &u8| {
            let cell = |&fragment: &u8| {
                find(Paf { capacity, fragment }).map(|line| (megabytes(value(line)), compared(line) / one))
            };
            fragments.iter().map(cell).collect()
        };
        HeatMap {
            title: format!(
                "{}, block size {}{}",
                if writes { "Write" } else { "Read" },
                size::show(xfer),
                if settings.simulated_medium.is_some() { ", simulated" } else { "" }
            ),
            rows: capacities.iter().map(|percent| format!("{percent} %")).collect(),
            columns: fragments.iter().map(|percent| format!("{percent} %")).collect(),
            cells: capacities.iter().map(row).collect(),
        }
    };
    let simulated =
        settings.simulated_medium.as_ref().map_or_else(String::new, |medium| format!(", simulated {medium}"));
    let control = if settings.control.is_some() { ", both as ratios to the control" } else { "" };
    let base = base
        .map_or_else(String::new, |paf| format!("MB/s (mean), and its ratio to {paf}{control}{simulated}"));
    (settings.xfer.iter().map(of).collect(), base)
}

/// Writes every form into the output directory.
pub(super) fn write(directory: &Path, state: &State) -> Result<(), Error> {
    let svg = |writes| {
        let (maps, base) = maps(state, writes);
        heat::drawing(&maps, "fragmented", "populated", &base)
    };
    let (write, read, table) = (svg(true), svg(false), table(state));
    let figures = format!("<figure>{write}</figure>\n<figure>{read}</figure>\n");
    let page = chart::frame(&title(state), &notes(state), &figures, &table);
    for (name, text) in REPORTS.into_iter().zip([table, json(state), write, read, page]) {
        let path = directory.join(name);
        fs::write(&path, text).map_err(Error::io("write", &path))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paf::state::Output;
    use crate::paf::state::tests::settings;

    fn measured() -> State {
        let scratch = tempfile::tempdir().expect("a directory");
        let (_output, mut state) = Output::open(&scratch.path().join("out"), &settings()).expect("new");
        state.label = "/mnt/aged (ext4)".into();
        (state.capacity, state.file_bytes) = (1 << 30, 16 << 20);
        for paf in state.settings.states() {
            for (xfer, iteration) in state.settings.cells() {
                let write = 1e9 - f64::from(paf.fragment) * 1e7 + f64::from(iteration) * 1e6;
                let cell = Cell { paf, xfer, iteration, write, read: 2e9, direct: true, control: None };
                state.cells.push(cell);
            }
        }
        state
    }

    #[test]
    fn the_table_has_each_iteration_and_the_mean() {
        let state = measured();
        let table = table(&state);
        let row = table.lines().find(|line| line.contains("PaF:10.70") && line.contains("4 MiB"));
        let cells: Vec<&str> = row.expect("a row").split('|').map(str::trim).collect();
        assert_eq!(cells[1..9], ["PaF:10.70", "4 MiB", "301", "302", "302", "2000", "2000", "2000"]);
        assert_eq!(table.lines().filter(|line| line.contains("MiB |")).count(), 10);
        assert!(!table.contains("not finished") && !table.contains("refused O_DIRECT"), "{table}");
    }

    #[test]
    fn what_is_not_as_it_should_be_is_said() {
        let mut state = measured();
        state.cells.pop();
        state.cells[0].direct = false;
        state.resumed = 1;
        let table = table(&state);
        for said in ["19 of 20 pairs are measured", "refused O_DIRECT: 1 of 19", "continued 1 time"] {
            assert!(table.contains(said), "{said} in {table}");
        }
    }

    #[test]
    fn maps_are_ratios_to_the_first_state_and_json_has_all_pairs() {
        let state = measured();
        let (maps, base) = maps(&state, true);
        assert_eq!(maps.len(), 2);
        assert!(base.contains("PaF:00.00"));
        assert_eq!(maps[0].cells[0][0].as_ref().map(|(_, ratio)| *ratio), Some(1.0));
        assert_eq!(maps[0].cells[0][1], None, "an empty file system is not fragmented");
        let ratio = maps[0].cells[2][1].as_ref().map_or(0.0, |(_, ratio)| *ratio);
        assert!((ratio - 0.3).abs() < 0.01, "{ratio}");
        let json: serde_json::Value = serde_json::from_str(&json(&state)).expect("own output is JSON");
        assert_eq!(json["results"].as_array().expect("an array").len(), 10);
        assert_eq!(json["results"][3]["write"].as_array().expect("an array").len(), 2);
        assert_eq!(json["results"][9]["paf"], "PaF:80.70");
    }

    #[test]
    fn what_the_disk_did_meanwhile_is_taken_out_by_the_control() {
        let mut state = measured();
        state.settings.control = Some("/srv/beside".into());
        for cell in &mut state.cells {
            // A disk whose writes slow down likewise: the target has not changed.
            cell.control = Some(Rates { write: cell.write * 2.0, read: 4e9 });
        }
        state.cells[0].control = Some(Rates { write: 1.0, read: 4e9 });
        let (maps, base) = maps(&state, true);
        let ratios: Vec<f64> = maps[1].cells.iter().flatten().flatten().map(|(_, ratio)| *ratio).collect();
        assert_eq!(ratios.len(), 5);
        assert!(
            ratios.iter().all(|ratio| (ratio - 1.0).abs() < 1e-9) && base.contains("control"),
            "{ratios:?} {base}"
        );
        let table = table(&state);
        let row = table.lines().find(|line| line.contains("PaF:10.70") && line.contains("4 MiB"));
        let cells: Vec<&str> = row.expect("a row").split('|').map(str::trim).collect();
        assert_eq!(cells[5..11], ["302", "0.50", "2000", "2000", "2000", "0.50"], "{table}");
        assert!(table.contains("a file in /srv/beside"));
        let json: serde_json::Value = serde_json::from_str(&json(&state)).expect("own output is JSON");
        assert_eq!(json["results"][3]["write_to_control"], 0.5);
        assert_eq!(json["results"][3]["control_read"].as_array().expect("an array").len(), 2);
        assert_eq!(median(vec![3.0, 1.0, 9.0]), 3.0);
    }

    #[test]
    fn what_is_simulated_says_so_in_every_form() {
        let scratch = tempfile::tempdir().expect("a directory");
        let mut state = measured();
        state.settings.simulated_medium = Some("disk:seek=8ms".to_owned());
        write(scratch.path(), &state).expect("written");
        for name in REPORTS {
            let text = fs::read_to_string(scratch.path().join(name)).expect(name);
            let text = text.to_lowercase();
            let said = ["simulated disk:", "simulated service times (disk:"];
            assert!(said.iter().any(|said| text.contains(said)), "{name}");
        }
    }

    #[test]
    fn all_forms_are_written() {
        let scratch = tempfile::tempdir().expect("a directory");
        write(scratch.path(), &measured()).expect("written");
        for name in REPORTS {
            assert!(fs::metadata(scratch.path().join(name)).expect(name).len() > 500, "{name}");
        }
    }
}
