//! The program `nacre-sim`: runs seeds of the simulator, and shrinks plans that fail.

mod enumerate;

use enumerate::Enumeration;
use nacre_env::clock::Instant;
use nacre_sim::{Plan, Sizes, run_plan, shrink, trace_hash};
use std::ops::Range;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

/// Interval at which processes are looked at.
const POLL: Duration = Duration::from_millis(2);
const USAGE: &str =
    "usage: nacre-sim [--seed N | --seeds A..B] [--plan N] [--jobs N] [--operations N] [--faults N]
                 [--no-power] [--history] [--log LEVEL] [--shrink] [--seconds N]
       nacre-sim --enumerate N [--jobs N] [--quick] [--every N] [--mdts N] [--part I/N]

  --seed N        run one seed and describe it
  --seeds A..B    run each seed in a process of its own; print those that fail
  --plan N        programs and faults of seed N; the seeds choose only the order of threads
  --jobs N        processes at the same time; 2 unless given
  --operations N  operations of each program
  --faults N      faults at most
  --no-power      no power cuts
  --history       print all calls with their answers
  --log LEVEL     print messages of the servers and clients with the simulated time
  --shrink        remove operations and faults from a plan that fails, as long as it fails; calls and messages are
                  those of the smallest plan
  --seconds N     real time after which a run counts as hung; 60 unless given

  --enumerate N   power cuts in all workloads of N operations
  --quick         each with one back end and one persistence operation at its end
  --every N       one of so many workloads
  --mdts N        metadata targets; 1 unless given
  --part I/N      share I of N, in this process
";

/// Arguments of the program.
struct Arguments {
    seeds: Range<u64>,
    is_single: bool,
    /// Seed of the programs and faults, if it is not that of the order of threads.
    plan: Option<u64>,
    jobs: usize,
    sizes: Sizes,
    history: bool,
    shrinks: bool,
    limit: Duration,
    /// Power cuts in all workloads of a length, instead of seeds.
    enumeration: Enumeration,
    /// Arguments for the processes of single seeds.
    passed_on: Vec<String>,
}

fn number<T: std::str::FromStr>(option: &str, value: Option<String>) -> Result<T, String> {
    value.and_then(|value| value.parse().ok()).ok_or_else(|| format!("{option} needs a valid value"))
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let mut parsed = Arguments {
        seeds: 0..100,
        is_single: false,
        plan: None,
        jobs: 2,
        sizes: Sizes::default(),
        history: false,
        shrinks: false,
        limit: Duration::from_secs(60),
        enumeration: Enumeration { length: 0, part: None, is_quick: false, every: 1, mdts: 1 },
        passed_on: Vec::new(),
    };
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--seed" => {
                let seed: u64 = number(&arg, args.next())?;
                (parsed.seeds, parsed.is_single) = (seed..seed + 1, true);
            }
            "--seeds" => {
                let text = args.next().unwrap_or_default();
                let range = text.split_once("..").and_then(|(a, b)| Some(a.parse().ok()?..b.parse().ok()?));
                parsed.seeds = range.ok_or("--seeds needs a range such as 0..100")?;
            }
            "--plan" => parsed.plan = Some(number(&arg, args.next())?),
            "--jobs" => parsed.jobs = number::<usize>(&arg, args.next())?.max(1),
            "--seconds" => parsed.limit = Duration::from_secs(number(&arg, args.next())?),
            "--operations" => parsed.sizes.operations = number(&arg, args.next())?,
            "--faults" => parsed.sizes.faults = number(&arg, args.next())?,
            "--no-power" => parsed.sizes.power = false,
            "--history" => parsed.history = true,
            "--log" => log::set_max_level(number(&arg, args.next())?),
            "--shrink" => parsed.shrinks = true,
            "--enumerate" => parsed.enumeration.length = number(&arg, args.next())?,
            "--quick" => parsed.enumeration.is_quick = true,
            "--every" => parsed.enumeration.every = number::<usize>(&arg, args.next())?.max(1),
            "--mdts" => parsed.enumeration.mdts = number(&arg, args.next())?,
            "--part" => {
                let text = args.next().unwrap_or_default();
                let part = text.split_once('/').and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
                parsed.enumeration.part = Some(part.ok_or("--part needs a share such as 0/2")?);
            }
            _ => return Err(format!("unknown argument {arg}")),
        }
    }
    let Sizes { operations, faults, power } = parsed.sizes;
    parsed.passed_on.extend([
        "--operations".into(),
        operations.to_string(),
        "--faults".into(),
        faults.to_string(),
    ]);
    parsed.passed_on.extend(parsed.plan.iter().flat_map(|plan| ["--plan".into(), plan.to_string()]));
    parsed.passed_on.extend((!power).then(|| "--no-power".into()));
    parsed.passed_on.extend(parsed.shrinks.then(|| "--shrink".into()));
    Ok(parsed)
}

/// Prints messages to the standard error.
struct Printer;

impl log::Log for Printer {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let time = nacre_env::clock::wall().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        eprintln!("{:.6} {} {}: {}", time.as_secs_f64(), record.level(), record.target(), record.args());
    }

    fn flush(&self) {}
}

fn main() -> ExitCode {
    // Cannot fail: it is set once. Nothing is printed until an argument sets the level.
    let _ = log::set_logger(&Printer);
    match parse(std::env::args().skip(1)) {
        Err(problem) => {
            eprintln!("nacre-sim: {problem}\n{USAGE}");
            ExitCode::from(2)
        }
        Ok(args) if args.enumeration.length > 0 => args.enumeration.run(args.jobs),
        Ok(args) if args.is_single => run_one(&args),
        Ok(args) => run_many(&args),
    }
}

/// Runs one seed in this process.
fn run_one(args: &Arguments) -> ExitCode {
    let seed = args.seeds.start;
    let plan = Plan { seed, ..Plan::of_seed(args.plan.unwrap_or(seed), args.sizes) };
    let (begin, level) = (Instant::now(), log::max_level());
    // Messages are those of the smallest plan.
    if args.shrinks {
        log::set_max_level(log::LevelFilter::Off);
    }
    let (report, outcome) = run_plan(&plan);
    println!(
        "seed {seed}: {} calls, {} steps, {:?} simulated in {:?}, trace {:016x}",
        report.calls,
        outcome.steps.len(),
        outcome.time,
        begin.elapsed(),
        trace_hash(&outcome),
    );
    if args.history && !args.shrinks {
        report.history.iter().for_each(|call| println!("{call}"));
    }
    let Some(problem) = report.problem else { return ExitCode::SUCCESS };
    println!("{problem}\n{}", plan.describe());
    println!("again: nacre-sim --seed {seed} {}", args.passed_on.join(" "));
    if args.shrinks {
        let (small, problem) = shrink(&plan, problem);
        println!("smallest plan that fails:\n{}\n{problem}", small.describe());
        log::set_max_level(level);
        if args.history || level > log::LevelFilter::Off {
            let calls = run_plan(&small).0.history;
            calls.iter().filter(|_| args.history).for_each(|call| println!("{call}"));
        }
    }
    ExitCode::FAILURE
}

fn start(args: &Arguments, seed: u64) -> std::io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--seed", &seed.to_string()]).args(&args.passed_on);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
}

/// Ends the process of a seed that failed, and prints its output.
fn show(seed: u64, mut child: Child, is_late: bool) {
    let _ = child.kill();
    let output = child.wait_with_output().map(|output| (output.stdout, output.stderr));
    let (out, err) = output.unwrap_or_default();
    let reason = if is_late { "hangs" } else { "fails" };
    println!("=== seed {seed} {reason}\n{}", String::from_utf8_lossy(&out));
    println!("{}", String::from_utf8_lossy(&err));
}

/// Runs each seed in a process of its own, so that one that hangs or aborts ends no other.
fn run_many(args: &Arguments) -> ExitCode {
    let mut seeds = args.seeds.clone();
    let mut running: Vec<(u64, Instant, Child)> = Vec::new();
    let (mut failed, begin) = (Vec::new(), Instant::now());
    loop {
        while running.len() < args.jobs
            && let Some(seed) = seeds.next()
        {
            match start(args, seed) {
                Ok(child) => running.push((seed, Instant::now(), child)),
                Err(error) => {
                    eprintln!("nacre-sim: cannot start a process for seed {seed}: {error}");
                    return ExitCode::FAILURE;
                }
            }
        }
        if running.is_empty() {
            break;
        }
        nacre_env::thread::sleep(POLL);
        let mut left = Vec::new();
        for (seed, started, mut child) in running {
            let is_late = started.elapsed() > args.limit;
            match child.try_wait() {
                Ok(None) if !is_late => left.push((seed, started, child)),
                Ok(Some(status)) if status.success() => {}
                _ => {
                    show(seed, child, is_late);
                    failed.push(seed);
                }
            }
        }
        running = left;
    }
    let count = args.seeds.end.saturating_sub(args.seeds.start);
    println!("{count} seeds in {:?}, {} failed: {failed:?}", begin.elapsed(), failed.len());
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
