//! The experiments of the talks that this file system starts from, in one run, with one report.
//!
//! Each experiment is a command of its own ([`catalogue`]), run as a process ([`perform`]); its results are
//! stored ([`outcome`]) as soon as it has ended, so that an interrupted run can be continued. Rules decide
//! what the figures show ([`crate::stats`]), and [`page`] formats them.

mod catalogue;
mod load;
pub(crate) mod outcome;
mod page;
mod peers;
mod perform;
mod scale;

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::bar::Bar;
use crate::error::Error;
use crate::history;
use crate::instance::NacreProgram;
use crate::stop;
use catalogue::{Experiment, Run, experiments};
use perform::Ground;
use scale::Supply;

pub use outcome::{Outcome, Results};

/// Name of the results file in the output directory.
const RESULTS: &str = "results.json";

/// `nacre bench talks`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example: nacre bench talks --quick --out /root/talks
         nacre bench talks --only cray-noisy,lug17-client
The same command again goes on with what is missing. Open /root/talks/index.html in a browser.")]
pub struct TalksArguments {
    /// Directory for results and report: new, empty, or that of the run to continue
    #[arg(long, default_value = "talks")]
    out: PathBuf,
    /// Small sizes and few runs: about ten minutes on two CPUs
    #[arg(long)]
    quick: bool,
    /// As much as fits in this many hours: long runs where there is time for them, short runs otherwise
    #[arg(long, conflicts_with = "quick")]
    hours: Option<f64>,
    /// Experiments; all by default
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    only: Vec<String>,
    /// List the experiments and exit
    #[arg(long)]
    list: bool,
    /// Write the report of a file of results, without running experiments
    #[arg(long, value_name = "RESULTS", conflicts_with_all = ["quick", "hours", "only", "list"])]
    render: Option<PathBuf>,
    /// Directory in memory (tmpfs)
    #[arg(long, default_value = "/dev/shm")]
    memory_dir: PathBuf,
    /// The program that starts file systems.
    #[command(flatten)]
    nacre: NacreProgram,
    /// Show changes since earlier results (results.json, the oldest first) of a run of the same kind
    #[arg(long, value_delimiter = ',', value_name = "RESULTS")]
    earlier: Vec<PathBuf>,
    /// Show the figures of other file systems from 'nacre bench peers --out FILE'
    #[arg(long, value_name = "FILE")]
    peers: Option<PathBuf>,
}

impl TalksArguments {
    /// Returns the directories of experiments, with `out` as the directory of the results.
    fn ground(&self, out: &Path) -> Result<Ground, Error> {
        Ok(Ground {
            program: self.nacre.find()?,
            memory: self.memory_dir.join(format!("nacre-talks-{}", std::process::id())),
            disk: out.to_owned(),
        })
    }
}

/// Runs missing experiments, and writes the report.
///
/// # Errors
///
/// If the directory is unusable, or belongs to a run of another kind; `Interrupted`. An experiment that fails
/// is left out with its reason.
pub fn run(arguments: &TalksArguments) -> Result<(), Error> {
    if let Some(file) = &arguments.render {
        return render(file, arguments);
    }
    let chosen = chosen(&arguments.only)?;
    if arguments.list {
        print!("{}", list(&chosen, arguments.quick, arguments.ground(&arguments.out)?.supply()));
        return Ok(());
    }
    let others = arguments.peers.as_deref().map(peers::load).transpose()?;
    let earlier = history::load(&arguments.earlier)?;
    stop::listen();
    std::fs::create_dir_all(&arguments.out).map_err(Error::io("create directory", &arguments.out))?;
    let out = std::fs::canonicalize(&arguments.out).map_err(Error::io("find", &arguments.out))?;
    let mut results = begin(&out, arguments.quick)?;
    others.into_iter().for_each(|others| results.put(others));
    write(&out, &results, &earlier)?;
    let ground = arguments.ground(&out)?;
    let missing: Vec<&Experiment> = chosen
        .into_iter()
        .filter(|one| results.of(one.name).is_none_or(|known| known.report.is_none()))
        .collect();
    let runs = runs(&missing, arguments, ground.supply());
    let seconds_of = |one: &Experiment, run: &Run| scale::fit(one, run, ground.supply()).seconds;
    let bar = Bar::new(missing.iter().zip(&runs).map(|(one, run)| seconds_of(one, run)).sum());
    let mut left_s = arguments.hours.map(|hours| hours * 3600.0);
    for (experiment, run) in missing.into_iter().zip(runs) {
        let sized = scale::fit(experiment, run, ground.supply());
        bar.say(experiment.name.to_owned());
        eprintln!("bench talks: {} (about {} s)", experiment.title, sized.seconds);
        let late = left_s.filter(|left| (sized.seconds as f64) > *left);
        let why = late.map(|_| "there was no time left for it".to_owned());
        let mut outcome = match why.or_else(|| ground.obstacle(experiment, &sized)) {
            Some(why) => left_out(experiment, why),
            None => perform::perform(experiment, &sized, &ground).inspect_err(|_| {
                eprintln!("bench talks: interrupted; the same command continues with {}", experiment.name);
            })?,
        };
        if let Some(why) = &outcome.skipped {
            eprintln!("bench talks: {} is left out: {why}", experiment.name);
        }
        if let Some(report) = &mut outcome.report
            && !arguments.quick
            && std::ptr::eq(run, &experiment.quick)
        {
            report
                .notes
                .push("this is the short run: there was no time for the long one (--hours)".to_owned());
        }
        left_s = left_s.map(|left| left - outcome.seconds);
        results.put(outcome);
        write(&out, &results, &earlier)?;
        bar.add(sized.seconds);
    }
    drop(bar);
    write(&out, &results, &earlier)?;
    print!("{}", page::summary(&results));
    println!("report: {}", out.join("index.html").display());
    Ok(())
}

/// Writes the report of existing results, without the results themselves.
fn render(file: &Path, arguments: &TalksArguments) -> Result<(), Error> {
    let (mut results, out) = (Results::load(file)?, &arguments.out);
    let others = arguments.peers.as_deref().map(peers::load).transpose()?;
    others.into_iter().for_each(|others| results.put(others));
    std::fs::create_dir_all(out).map_err(Error::io("create directory", out))?;
    let kept = out.join(RESULTS);
    if kept.exists() {
        return Err(Error::Usage(format!("{} holds a run: name another --out", out.display())));
    }
    write_report(out, &results, &history::load(&arguments.earlier)?)?;
    println!("report: {}", out.join("index.html").display());
    Ok(())
}

fn left_out(experiment: &Experiment, why: String) -> Outcome {
    let (experiment, skipped) = (experiment.name.to_owned(), Some(why));
    Outcome { experiment, command: Vec::new(), seconds: 0.0, load: None, report: None, skipped }
}

fn run_of(experiment: &Experiment, quick: bool) -> &Run {
    if quick { &experiment.quick } else { &experiment.full }
}

/// Selects the run of each experiment.
fn runs<'a>(experiments: &[&'a Experiment], arguments: &TalksArguments, supply: Supply) -> Vec<&'a Run> {
    match arguments.hours {
        Some(hours) => scale::forms(experiments, hours, |one, run| scale::fit(one, run, supply).seconds),
        None => experiments.iter().map(|one| run_of(one, arguments.quick)).collect(),
    }
}

fn chosen(only: &[String]) -> Result<Vec<&'static Experiment>, Error> {
    if let Some(wrong) = only.iter().find(|name| !experiments().any(|one| one.name == **name)) {
        return Err(Error::Usage(format!("there is no experiment '{wrong}': --list shows them")));
    }
    Ok(experiments().filter(|one| only.is_empty() || only.iter().any(|name| name == one.name)).collect())
}

fn list(chosen: &[&Experiment], quick: bool, supply: Supply) -> String {
    let line = |one: &&Experiment| {
        let run = scale::fit(one, run_of(one, quick), supply);
        format!("{:22} {:>6} s  {}\n{:32} nacre {}\n", one.name, run.seconds, one.title, "", run.words)
    };
    chosen.iter().map(line).collect()
}

/// Loads the results of the run to continue, or creates new ones.
fn begin(out: &Path, quick: bool) -> Result<Results, Error> {
    let (path, mode) = (out.join(RESULTS), if quick { "quick" } else { "full" });
    if !path.exists() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        return Ok(Results::new(format!("{}Z", nacre_env::utc(now)), mode));
    }
    let results = Results::load(&path)?;
    let version = env!("CARGO_PKG_VERSION");
    if results.mode != mode || results.version != version {
        return Err(Error::Usage(format!(
            "{} holds a {} run of version {}: name another --out, or give the same options",
            out.display(),
            results.mode,
            results.version
        )));
    }
    Ok(results)
}

/// Writes all forms; the results first.
fn write(out: &Path, results: &Results, earlier: &[Results]) -> Result<(), Error> {
    let json = serde_json::to_string_pretty(results).map_err(Error::usage)?;
    replace(out, RESULTS, &json)?;
    write_report(out, results, earlier)
}

fn write_report(out: &Path, results: &Results, earlier: &[Results]) -> Result<(), Error> {
    let generations = match earlier {
        [] => None,
        _ => Some(history::generations(&[earlier, std::slice::from_ref(results)].concat())?),
    };
    replace(out, "index.html", &page::html(results, generations.as_ref()))?;
    replace(out, "report.md", &page::markdown(results, generations.as_ref()))
}

/// Replaces a file atomically.
fn replace(out: &Path, name: &str, text: &str) -> Result<(), Error> {
    let (path, new) = (out.join(name), out.join(format!("{name}.new")));
    std::fs::write(&new, text).map_err(Error::io("write", &new))?;
    std::fs::rename(&new, &path).map_err(Error::io("rename", &new))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experiments_have_names_of_their_own_and_quick_runs_take_ten_minutes_together() {
        let mut names: Vec<&str> = experiments().map(|one| one.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), experiments().count());
        assert!(experiments().map(|one| one.quick.seconds).sum::<u64>() <= 600);
        let supply = Supply { cpus: 2, memory_mib: 24 << 10, disk_mib: 24 << 10 };
        for one in experiments() {
            assert!(!one.checks.is_empty() && !one.charts.is_empty(), "{}", one.name);
            assert!(list(&[one], true, supply).contains(one.name));
            let is_said = one.simulated.is_some() || !one.quick.words.contains("simulated");
            assert!(is_said, "{} says what is simulated", one.name);
            assert!(!one.durability.is_empty(), "{}", one.name);
        }
        assert!(chosen(&["nonsense".to_owned()]).expect_err("unknown").to_string().contains("--list"));
        assert_eq!(chosen(&["lad17-pfl".to_owned()]).expect("known").len(), 1);
    }

    #[test]
    fn a_run_is_gone_on_with_by_the_same_options_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut results = begin(dir.path(), true).expect("new");
        let first = experiments().next().expect("one");
        results.put(left_out(first, "why".to_owned()));
        write(dir.path(), &results, &[]).expect("written");
        let back = begin(dir.path(), true).expect("the same");
        assert_eq!(back.of(first.name).and_then(|one| one.skipped.as_deref()), Some("why"));
        assert!(begin(dir.path(), false).expect_err("another mode").to_string().contains("quick run"));
        assert!(dir.path().join("index.html").exists() && dir.path().join("report.md").exists());
    }
}
