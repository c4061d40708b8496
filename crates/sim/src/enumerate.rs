//! `nacre-sim --enumerate`: power cuts in all workloads of a length, in several processes.

use nacre_env::clock::Instant;
use nacre_sim::{Backend, Exploration, Tally, Workload, explore, workloads};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, BufReader};
use std::process::{Command, ExitCode, Stdio};

/// Arguments of an enumeration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Enumeration {
    /// Operations of each workload.
    pub(crate) length: usize,
    /// Share of this process, and number of shares.
    pub(crate) part: Option<(usize, usize)>,
    /// Explores each workload with one back end and one persistence operation at its end, without mixtures.
    pub(crate) is_quick: bool,
    /// Explores one of so many workloads.
    pub(crate) every: usize,
    /// Number of MDTs.
    pub(crate) mdts: u8,
}

const BACKENDS: [Backend; 3] = [Backend::Records, Backend::File, Backend::Block];
/// Mixtures of unsynced sectors for each cut.
const MIXTURES: u64 = 3;

/// Returns a number that chooses workloads and how they are explored, whatever the shares.
fn number_of(workload: &Workload) -> u64 {
    let mut hasher = DefaultHasher::new();
    workload.to_string().hash(&mut hasher);
    hasher.finish() >> 1
}

impl Enumeration {
    /// Returns how to explore a workload: on each back end, with files that stay open and files that are closed.
    fn explorations(&self, number: u64) -> Vec<Exploration> {
        let with = |data, holds| Exploration {
            data,
            mdts: self.mdts,
            holds,
            mixtures: if self.is_quick { 0 } else { MIXTURES },
            end: self.is_quick.then_some(number as usize),
            bug: None,
        };
        if self.is_quick {
            let data = BACKENDS[number as usize % BACKENDS.len()];
            return vec![with(data, number as usize / BACKENDS.len() % 2 == 1)];
        }
        BACKENDS.into_iter().flat_map(|data| [false, true].map(|holds| with(data, holds))).collect()
    }

    /// Explores the share of this process.
    fn run_part(&self, part: (usize, usize)) -> ExitCode {
        let mut tally = Tally::default();
        let (mut count, every) = (0, self.every as u64);
        for workload in workloads(self.length, part) {
            count += 1;
            let number = number_of(&workload);
            let explorations =
                if number.is_multiple_of(every) { self.explorations(number / every) } else { Vec::new() };
            for exploration in explorations {
                let found = explore(&workload, &exploration);
                found.violations.iter().for_each(|violation| println!("violation: {violation}"));
                tally.add(found);
            }
        }
        let Tally { runs, cuts, outcomes, states, violations } = &tally;
        println!("tally {count} {runs} {cuts} {outcomes} {states} {}", violations.len());
        if violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    /// Runs `jobs` processes, each with a share, unless this process has one.
    pub(crate) fn run(&self, jobs: usize) -> ExitCode {
        if let Some(part) = self.part {
            return self.run_part(part);
        }
        let begin = Instant::now();
        let start = |share: usize| {
            let mut command = Command::new(std::env::current_exe()?);
            command.args(["--enumerate", &self.length.to_string(), "--part", &format!("{share}/{jobs}")]);
            command.args(["--every", &self.every.to_string(), "--mdts", &self.mdts.to_string()]);
            command.args(self.is_quick.then_some("--quick"));
            command.stdout(Stdio::piped()).spawn()
        };
        let (mut sums, mut is_right) = ([0_u64; 6], true);
        // All run at the same time; a pipe that is not read yet holds the few lines of a share.
        for child in (0..jobs).map(start).collect::<Vec<_>>() {
            let Ok(mut child) = child else {
                eprintln!("nacre-sim: a process cannot be started");
                return ExitCode::FAILURE;
            };
            let lines = child.stdout.take().map(BufReader::new).into_iter().flat_map(BufRead::lines);
            for line in lines.map_while(Result::ok) {
                match line.strip_prefix("tally ") {
                    Some(counts) => {
                        let counts = counts.split(' ').filter_map(|count| count.parse::<u64>().ok());
                        sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
                    }
                    None => println!("{line}"),
                }
            }
            is_right &= child.wait().is_ok_and(|status| status.success());
        }
        let [workloads, runs, cuts, outcomes, states, violations] = sums;
        println!(
            "{workloads} workloads, one of {} explored: {runs} runs, {cuts} power cuts, {outcomes} outcomes, \
             {states} states, {violations} violations in {:?}",
            self.every,
            begin.elapsed()
        );
        if is_right { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}
