//! Continuous writing: bandwidth over time, and the effect of trims on it.
//!
//! All objects exist from the start. Threads overwrite random records; after as many of these as an object
//! has records, each thread removes an object and rewrites it, so that space is freed and allocated again. A
//! device that has to erase blocks without knowing which are free slows down under this, and recovers after a
//! trim.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use super::layer::{Backend, Layer, Objects};
use super::plan::Case;
use super::{Bench, Phase, SurveyArguments, pass, simulated, stamp};
use crate::buffer::Buffer;
use crate::chart::{self, Form, Panel};
use crate::error::Error;
use crate::report::{Report, Row, Unit};
use crate::sample::Samples;
use crate::{medium, stop, trim};
use fastrand::Rng;
use nacre_common::size;

/// Number of places on the chart, at most: with more figures, neighbours are averaged.
const PLACES: usize = 60;
/// Number of figures on each side of a trim that are compared.
const BESIDE: usize = 5;
/// Size of a write in bytes when an object is rewritten: large, so that the random records take most of the
/// time.
const PIECE_BYTES: u64 = 1 << 20;
/// Interval of checking for the end during any wait.
const LOOK: Duration = Duration::from_millis(20);

/// Parses a duration: `90s`, `10m`, `1h`, `500ms`.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("'{text}' is no duration: write 500ms, 90s, 10m or 1h");
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let factor: u64 = match &text[digits.len()..] {
        "ms" => 1,
        "s" => 1000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        _ => return Err(wrong()),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    match number.checked_mul(factor) {
        Some(ms) if ms > 0 => Ok(Duration::from_millis(ms)),
        _ => Err(wrong()),
    }
}

/// A completed trim.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Trim {
    /// Number of figures before its start.
    pub(super) from: usize,
    /// Number of figures before its end.
    pub(super) to: usize,
    /// Bytes discarded on the device.
    pub(super) bytes: u64,
    /// Duration in seconds.
    pub(super) seconds: f64,
}

/// Result of a run.
#[derive(Debug, Default)]
pub(super) struct Course {
    /// Bandwidth of each interval in bytes per second.
    pub(super) rates: Vec<f64>,
    pub(super) trims: Vec<Trim>,
    /// Reason why trims are not made.
    pub(super) no_trim: Option<String>,
}

pub(super) fn measure(arguments: &SurveyArguments, bench: &mut Bench, case: Case) -> Result<Report, Error> {
    let directory = bench.directory.path().to_owned();
    let (layer, objects) = &mut bench.layers[0];
    let layer = *layer;
    objects.make(case.objects)?;
    let filled = pass(&**objects, &case, Phase::Write)?;
    let course = run(&**objects, &case, arguments, &directory)?;
    let title = format!(
        "Continuous writing through the {} on {}, {} objects of {}, {} threads, records of {}{}",
        layer.name(),
        arguments.dir.display(),
        case.objects,
        size::show(case.size),
        case.threads,
        size::show(case.record),
        simulated(arguments)
    );
    let mut report = Report::new(title);
    report.rows = rows(filled.all, &course);
    report.notes.extend(medium::some(arguments.simulated_medium).map(medium::note));
    report.notes.extend(notes(arguments, &course, layer));
    report.tables.push(table(arguments.sample, &course));
    let panels = || vec![panel(arguments.sample, &course)];
    chart::write(arguments.html.as_deref(), &report.title, &report, panels)?;
    Ok(report)
}

/// Writers that pause periodically, all together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Bursts {
    pub(super) start: Instant,
    /// Duration of writing.
    pub(super) burst: Duration,
    /// Duration of a pause.
    pub(super) rest: Duration,
}

impl Bursts {
    /// Returns the end of the pause that `now` is in.
    fn rest_end(&self, now: Instant) -> Option<Instant> {
        let period = self.burst + self.rest;
        let since = now.saturating_duration_since(self.start);
        let within = Duration::from_nanos((since.as_nanos() % period.as_nanos().max(1)) as u64);
        (within >= self.burst).then(|| now + (period - within))
    }

    /// Returns whether the interval is entirely within a burst.
    fn is_burst(&self, from: Instant, to: Instant) -> bool {
        self.rest_end(from).is_none() && self.rest_end(to).is_none() && to - from < self.rest
    }
}

/// State shared by the threads.
struct Shared<'a> {
    bursts: Option<Bursts>,
    objects: &'a dyn Objects,
    case: Case,
    ended: AtomicBool,
    written: AtomicU64,
    /// Locks of the objects, shared for a write and exclusive for a removal: a removed object must not be
    /// written.
    turns: Vec<RwLock<()>>,
    failure: Mutex<Option<Error>>,
    /// Number of figures so far.
    figures: AtomicUsize,
}

impl Shared<'_> {
    /// Returns an object that is not being rewritten, if there is one: a thread that waits for a lock puts no
    /// load on the device.
    fn any_object(&self, random: &mut Rng) -> (u32, RwLockReadGuard<'_, ()>) {
        let count = self.case.objects;
        let first = random.u32(..count);
        let objects = (0..count).map(|number| (first + number) % count);
        let mut free =
            objects.filter_map(|object| Some((object, self.turns[object as usize].try_read().ok()?)));
        free.next().unwrap_or_else(|| {
            let guard = self.turns[first as usize].read().unwrap_or_else(PoisonError::into_inner);
            (first, guard)
        })
    }

    /// Waits until a time; returns false, at most [`LOOK`] late, if the run ends before.
    fn rest(&self, until: Instant) -> bool {
        loop {
            if self.ended.load(Ordering::Relaxed) || stop::asked() {
                return false;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            std::thread::sleep(LOOK.min(left));
        }
    }
}

pub(super) fn run(
    objects: &dyn Objects,
    case: &Case,
    arguments: &SurveyArguments,
    directory: &Path,
) -> Result<Course, Error> {
    let (start, rest) = (Instant::now(), arguments.rest);
    let bursts = rest.map(|rest| Bursts { start, burst: arguments.burst, rest });
    let turns = (0..case.objects).map(|_| RwLock::default()).collect();
    let (ended, written, failure) = (AtomicBool::new(false), AtomicU64::new(0), Mutex::new(None));
    let figures = AtomicUsize::new(0);
    let shared = Shared { bursts, objects, case: *case, ended, written, turns, failure, figures };
    let shared = &shared;
    let course = std::thread::scope(|scope| {
        for thread in 0..case.threads {
            scope.spawn(move || {
                if let Err(error) = overwrite(shared, thread) {
                    *shared.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                    shared.ended.store(true, Ordering::Relaxed);
                }
            });
        }
        let trimmer = arguments.trim_every.map(|every| scope.spawn(move || trims(shared, every, directory)));
        let rates = watch(shared, arguments);
        shared.ended.store(true, Ordering::Relaxed);
        let trims = trimmer.map(|trimmer| trimmer.join().expect("trimming does not panic"));
        let (trims, no_trim) = trims.unwrap_or_default();
        Course { rates, trims, no_trim }
    });
    let failure = shared.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
    failure.map_or(Ok(course), Err)
}

/// Runs one thread until the end.
fn overwrite(shared: &Shared<'_>, thread: u32) -> Result<(), Error> {
    let case = &shared.case;
    let mut random = Rng::with_seed(u64::from(thread) + 1);
    let piece = case.record * (PIECE_BYTES / case.record).max(1);
    let mut buffer = Buffer::new(piece as usize);
    let mut count = 0;
    while !shared.ended.load(Ordering::Relaxed) {
        let rest_end = shared.bursts.and_then(|bursts| bursts.rest_end(Instant::now()));
        if rest_end.is_some_and(|end| !shared.rest(end)) {
            break;
        }
        count += 1;
        if count % case.records() == 0 {
            let object = random.u32(..case.objects);
            let _alone = shared.turns[object as usize].write().unwrap_or_else(PoisonError::into_inner);
            shared.objects.destroy(object)?;
            let mut offset = 0;
            while offset < case.size {
                let len = piece.min(case.size - offset);
                write(shared, object, offset, &mut buffer.slice()[..len as usize])?;
                offset += len;
            }
            shared.objects.sync(object)?;
        } else {
            let (object, _others) = shared.any_object(&mut random);
            let record = &mut buffer.slice()[..case.record as usize];
            write(shared, object, random.u64(..case.records()) * case.record, record)?;
            // Periodic syncs: writes that only memory absorbs are no figure of a device.
            if count % 16 == 0 {
                shared.objects.sync(object)?;
            }
        }
    }
    Ok(())
}

/// Writes whole records.
fn write(shared: &Shared<'_>, object: u32, offset: u64, data: &mut [u8]) -> Result<(), Error> {
    let record = shared.case.record;
    for (data, offset) in data.chunks_mut(record as usize).zip((offset..).step_by(record as usize)) {
        stamp(data, object, offset);
    }
    shared.objects.write(object, offset, data)?;
    shared.written.fetch_add(data.len() as u64, Ordering::Relaxed);
    Ok(())
}

/// Takes a figure each interval, during bursts only; an interrupted interval has none.
fn watch(shared: &Shared<'_>, arguments: &SurveyArguments) -> Vec<f64> {
    let start = Instant::now();
    let (mut last, mut seen) = (start, 0);
    let mut rates = Vec::new();
    while start.elapsed() < arguments.duration && shared.rest(last + arguments.sample) {
        let (now, written) = (Instant::now(), shared.written.load(Ordering::Relaxed));
        if shared.bursts.is_none_or(|bursts| bursts.is_burst(last, now)) {
            rates.push((written - seen) as f64 / now.duration_since(last).as_secs_f64());
        }
        shared.figures.store(rates.len(), Ordering::Relaxed);
        (last, seen) = (now, written);
    }
    rates
}

/// Trims whenever it is due, concurrently with the writers. Returns the trims, and the reason why there are
/// no more, if one failed.
fn trims(shared: &Shared<'_>, every: Duration, directory: &Path) -> (Vec<Trim>, Option<String>) {
    let mut trims = Vec::new();
    let mut due = Instant::now() + every;
    while shared.rest(due) {
        let start = Instant::now();
        let from = shared.figures.load(Ordering::Relaxed);
        let told = shared.objects.trim();
        match told.and_then(|told| told.map_or_else(|| trim::trim(directory), Ok)) {
            Ok(bytes) => {
                let (to, seconds) = (shared.figures.load(Ordering::Relaxed), start.elapsed().as_secs_f64());
                trims.push(Trim { from, to, bytes, seconds });
            }
            Err(error) => return (trims, Some(error.to_string())),
        }
        due = Instant::now() + every;
    }
    (trims, None)
}

fn samples(rates: &[f64]) -> Samples {
    rates.iter().copied().collect()
}

fn rows(filled: f64, course: &Course) -> Vec<Row> {
    let row = |name: &str, rates: &[f64]| Row::new(name, Unit::BytesPerSecond, samples(rates));
    let tenth = course.rates.len().div_ceil(10);
    let mut rows = vec![
        row("first fill", &[filled]),
        row("overwriting, first tenth", &course.rates[..tenth]),
        row("overwriting, last tenth", &course.rates[course.rates.len() - tenth..]),
        row("overwriting, all", &course.rates),
    ];
    let count = course.rates.len();
    // The figures during which a trim begins or ends count for neither side.
    let before = |trim: &Trim| trim.from.saturating_sub(BESIDE)..trim.from;
    let during = |trim: &Trim| trim.from.min(count)..(trim.to + 1).min(count);
    let after = |trim: &Trim| (trim.to + 1).min(count)..(trim.to + 1 + BESIDE).min(count);
    let mut add = |name: &str, range: &dyn Fn(&Trim) -> std::ops::Range<usize>| {
        let rates: Vec<f64> =
            course.trims.iter().flat_map(|trim| course.rates[range(trim)].to_vec()).collect();
        if !rates.is_empty() {
            rows.push(row(name, &rates));
        }
    };
    add("before trims", &before);
    add("during trims", &during);
    add("after trims", &after);
    rows
}

fn notes(arguments: &SurveyArguments, course: &Course, layer: Layer) -> Vec<String> {
    let is_device_store = arguments.backend == Backend::Block && layer == Layer::Store;
    let mut notes = vec![format!(
        "a figure for each {:.1} s; records at random places, now and then an object is removed and rewritten",
        arguments.sample.as_secs_f64()
    )];
    match (arguments.trim_every, &course.no_trim) {
        (None, _) => notes.push("no trims (--trim-every)".to_owned()),
        (_, Some(why)) => notes.push(format!("no trims: {why}")),
        _ if is_device_store => notes.push(format!("{} trims of the store's device", course.trims.len())),
        _ => notes.push(format!("{} trims of the local file system below", course.trims.len())),
    }
    for trim in &course.trims {
        notes.push(format!(
            "trim after {} figures: {} in {:.2} s",
            trim.from,
            size::show(trim.bytes),
            trim.seconds
        ));
    }
    if stop::asked() {
        notes.push("interrupted before its time".to_owned());
    }
    notes
}

/// Averages neighbours so that at most [`PLACES`] means are left, each with the time at its end in seconds.
fn thinned(sample: Duration, rates: &[f64]) -> Vec<(f64, f64)> {
    let group = rates.len().div_ceil(PLACES).max(1);
    let mean = |(index, some): (usize, &[f64])| {
        let end = (index * group + some.len()) as f64 * sample.as_secs_f64();
        (end, some.iter().sum::<f64>() / some.len() as f64)
    };
    rates.chunks(group).enumerate().map(mean).collect()
}

fn table(sample: Duration, course: &Course) -> String {
    let mut text = "| until s | MB/s |\n| ---: | ---: |\n".to_owned();
    for (end, rate) in thinned(sample, &course.rates) {
        text.push_str(&format!("| {end:.1} | {:.0} |\n", rate / 1e6));
    }
    text
}

fn panel(sample: Duration, course: &Course) -> Panel {
    let points = thinned(sample, &course.rates);
    let trims = match course.trims.len() {
        0 => String::new(),
        count => format!(", {count} trims"),
    };
    // Labels of all places would overlap.
    let every = points.len().div_ceil(12).max(1);
    let place = |(index, (end, _)): (usize, &(f64, f64))| {
        if index % every == 0 { format!("{end:.0}") } else { String::new() }
    };
    let places = points.iter().enumerate().map(place).collect();
    let lines = vec![("overwriting".to_owned(), points.iter().map(|(_, rate)| rate / 1e6).collect())];
    Panel::new(format!("Bandwidth over time (s){trims}"), "MB/s", Form::Lines, places, lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        assert_eq!(duration("1h"), Ok(Duration::from_secs(3600)));
        assert_eq!(duration("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        for wrong in ["", "5", "0s", "1d", "s", "-1s", "99999999999999999999h", "9999999999999999h"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    /// Objects on a disk that fails after this many writes.
    struct Failing(AtomicU64);

    impl Objects for Failing {
        fn write(&self, _object: u32, _offset: u64, _data: &[u8]) -> Result<(), Error> {
            match self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)) {
                Ok(_) => Ok(()),
                Err(_) => Err(Error::Usage("the disk has failed".to_owned())),
            }
        }

        fn read(&self, _object: u32, _offset: u64, _buffer: &mut [u8]) -> Result<(), Error> {
            Ok(())
        }

        fn sync(&self, _object: u32) -> Result<(), Error> {
            Ok(())
        }

        fn destroy(&self, _object: u32) -> Result<(), Error> {
            Ok(())
        }

        fn make(&mut self, _objects: u32) -> Result<(), Error> {
            Ok(())
        }
    }

    #[test]
    fn a_failure_ends_the_run_before_the_next_figure_and_the_next_trim_are_due() {
        use clap::Parser;
        #[derive(Parser)]
        struct Program {
            #[command(flatten)]
            arguments: SurveyArguments,
        }
        let words = ["survey", "--dir=/tmp", "--continuous", "--for=1h", "--sample=1h", "--trim-every=1h"];
        let arguments = Program::try_parse_from(words).expect("well").arguments;
        let case = Case { objects: 2, threads: 3, record: 4096, size: 64 << 10 };
        let (told, outcome) = std::sync::mpsc::channel();
        // A separate thread, so that a run that does not end fails the test at its deadline.
        std::thread::spawn(move || {
            let outcome = run(&Failing(AtomicU64::new(1000)), &case, &arguments, Path::new("/none"));
            let _ = told.send(outcome);
        });
        let outcome = outcome.recv_timeout(Duration::from_secs(60)).expect("ended long before its hour");
        assert!(outcome.expect_err("failed").to_string().contains("the disk has failed"));
    }

    #[test]
    fn figures_are_of_bursts_and_not_of_what_lies_between() {
        let start = Instant::now();
        let bursts = Bursts { start, burst: Duration::from_secs(4), rest: Duration::from_secs(2) };
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(bursts.rest_end(at(3999)), None);
        assert_eq!(bursts.rest_end(at(4500)), Some(at(6000)));
        assert_eq!(bursts.rest_end(at(6000)), None);
        assert!(bursts.is_burst(at(6100), at(7100)));
        assert!(!bursts.is_burst(at(3500), at(4500)), "it ends in the rest");
        assert!(!bursts.is_burst(at(3900), at(6100)), "a rest lies between");
    }

    #[test]
    fn a_run_without_a_figure_is_shown_as_well() {
        let course = Course::default();
        assert!(rows(1.0, &course).iter().skip(1).all(|row| row.samples.count() == 0));
        let panel = panel(Duration::from_secs(1), &course);
        let page = chart::page("none", &[], &[panel], &table(Duration::from_secs(1), &course));
        assert!(page.contains("Bandwidth over time"), "{page}");
        assert!(!page.contains("NaN") && !page.contains("inf"), "{page}");
    }

    #[test]
    fn figures_before_during_and_after_trims_are_told_apart() {
        let mut rates = vec![100.0; 10];
        rates.push(1.0);
        rates.extend([200.0; 9]);
        let trims = vec![Trim { from: 10, to: 10, bytes: 1 << 30, seconds: 0.1 }];
        let course = Course { rates, trims, no_trim: None };
        let rows = rows(300.0, &course);
        let median = |name: &str| {
            rows.iter().find(|row| row.name == name).map(|row| row.samples.median()).expect("a row")
        };
        assert_eq!((median("before trims"), median("after trims")), (100.0, 200.0));
        assert_eq!(median("during trims"), 1.0);
        assert_eq!((median("overwriting, first tenth"), median("overwriting, last tenth")), (100.0, 200.0));
        assert_eq!(median("first fill"), 300.0);
    }

    #[test]
    fn long_courses_are_thinned_to_means_with_their_times() {
        let rates: Vec<f64> = (0..120).map(f64::from).collect();
        let points = thinned(Duration::from_secs(2), &rates);
        assert_eq!(points.len(), 60);
        assert_eq!((points[0], points[59]), ((4.0, 0.5), (240.0, 118.5)));
        assert!(thinned(Duration::from_secs(1), &[]).is_empty());
        let names = panel(Duration::from_secs(1), &Course { rates, ..Course::default() }).places;
        assert!(names.iter().filter(|name| !name.is_empty()).count() <= 13);
    }
}
