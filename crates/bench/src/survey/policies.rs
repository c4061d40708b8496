//! Effect of the trim policies of an OST: bursts of writes on a device that depends on trims, once
//! for each policy.
//!
//! Each policy runs on a new file system and a new device. Alternating runs are not possible: a run leaves
//! its device worn.

use super::layer::Layer;
use super::plan::Case;
use super::{Bench, Phase, SurveyArguments, continuous, pass};
use crate::error::Error;
use crate::medium;
use crate::report::{Against, Report, Row, Unit};
use crate::sample::Samples;
use nacre_common::size;

/// Divisor of the number of figures: the share at the end of a run that counts.
const LAST: usize = 3;

/// Trim policy of an OST.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum TrimPolicy {
    /// Never
    Off,
    /// When there has been no I/O for half a second
    Quiet,
    /// Also during I/O
    Busy,
}

impl TrimPolicy {
    fn label(self) -> &'static str {
        match self {
            TrimPolicy::Off => "no trims",
            TrimPolicy::Quiet => "trims when it is quiet",
            TrimPolicy::Busy => "trims at any time",
        }
    }

    /// Returns the parameters `obdfilter.*.LEAF` that differ from their defaults.
    fn params(self) -> Vec<(&'static str, &'static str, String)> {
        let settings: &[(&str, &str)] = match self {
            TrimPolicy::Off => &[("trim_policy", "off")],
            TrimPolicy::Quiet => &[("trim_idle_ms", "500"), ("trim_urgent_percent", "100")],
            TrimPolicy::Busy => {
                &[("trim_idle_ms", "0"), ("trim_urgent_percent", "1"), ("trim_busy_rate", "1G")]
            }
        };
        settings.iter().map(|(leaf, value)| ("obdfilter", *leaf, (*value).to_owned())).collect()
    }
}

/// Measures the bandwidth in bursts with each policy.
///
/// # Errors
///
/// If a file system does not start, or the disk is full.
pub(super) fn measure(arguments: &SurveyArguments, case: Case) -> Result<Report, Error> {
    if medium::some(arguments.simulated_medium).is_none() {
        return Err(Error::Usage(
            "policies are compared on a device that all begin alike: give --backend block --simulated-medium flash:full=1".to_owned(),
        ));
    }
    let mut report = Report::new(format!(
        "Bursts of writing and trim policies, an OST on {}, {} objects of {}, {} threads, records of {}{}",
        arguments.dir.display(),
        case.objects,
        size::show(case.size),
        case.threads,
        size::show(case.record),
        super::simulated(arguments)
    ));
    let mut base: Option<Samples> = None;
    for &policy in &arguments.policies {
        eprintln!("bench survey: {}", policy.label());
        let Bursty { rates, flash, trims } = bursts(arguments, &case, policy)?;
        report.notes.push(format!("{}: {flash}; {trims}", policy.label()));
        let part = rates.len().div_ceil(LAST);
        let (first, last) = (&rates[..part], &rates[rates.len() - part..]);
        let row = |when: &str, rates: &[f64]| {
            let name = format!("{}, {when} third of the bursts", policy.label());
            Row::new(name, Unit::BytesPerSecond, rates.iter().copied().collect())
        };
        report.rows.push(row("first", first));
        let mut row = row("last", last);
        match &base {
            None => base = Some(row.samples.clone()),
            Some(base) => row.against = Some(Against::of(arguments.policies[0].label(), base.clone())),
        }
        report.rows.push(row);
    }
    report.notes.extend(medium::some(arguments.simulated_medium).map(medium::note));
    report.notes.push(format!(
        "writers work for {:.1} s and rest for {:.1} s; records at random places, now and then an object is removed and written anew; \
         it is quiet after 0.5 s here, so that a run of minutes has many rests, and after 2 s by default",
        arguments.burst.as_secs_f64(),
        arguments.rest.unwrap_or_default().as_secs_f64()
    ));
    report.notes.push("each policy had a new file system; they did not run by turns".to_owned());
    Ok(report)
}

/// Result of one policy.
struct Bursty {
    /// Bandwidth of each interval in the bursts, in bytes per second.
    rates: Vec<f64>,
    /// Counters of the device and of trimming, as the parameters show them.
    flash: String,
    trims: String,
}

fn bursts(arguments: &SurveyArguments, case: &Case, policy: TrimPolicy) -> Result<Bursty, Error> {
    let mut bench = Bench::start(arguments, &[Layer::Ost])?;
    let Some(instance) = &bench.instance else {
        return Err(Error::Usage("policies are those of an OST".to_owned()));
    };
    instance.set_params(&policy.params())?;
    let directory = bench.directory.path().to_owned();
    let objects = &mut bench.layers[0].1;
    objects.make(case.objects)?;
    pass(&**objects, case, Phase::Write)?;
    let rates = continuous::run(&**objects, case, arguments, &directory)?.rates;
    let counted = |(kind, leaf): (&str, &str), wanted: &[&str]| -> Result<String, Error> {
        let text = instance.param(kind, leaf)?;
        let of = |line: &str| -> Option<String> {
            let (what, count) = line.split_once(char::is_whitespace)?;
            wanted.contains(&what).then(|| format!("{} {}", what.replace('_', " "), count.trim()))
        };
        Ok(text.lines().filter_map(of).collect::<Vec<_>>().join(", "))
    };
    let flash = counted(("osd-file", "simulated_flash"), &["pages_written", "pages_copied", "pages_used"])?;
    let trims =
        counted(("obdfilter", "trim_stats"), &["trimmed_bytes", "untrimmed_bytes", "runs", "pauses"])?;
    Ok(Bursty { rates, flash, trims })
}
