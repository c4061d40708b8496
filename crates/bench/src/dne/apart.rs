//! The same creates on independent file systems.
//!
//! More processes cost more on the same CPUs whatever they do, since each runs with colder caches. This
//! measures how much.

use std::path::PathBuf;

use super::task::{Order, Phase, Setup};
use super::{Case, Data, DneRun, Files, Layout, find, spent_on};
use crate::error::Error;
use crate::instance::{Instance, InstanceOptions};
use crate::sample::Samples;
use crate::team::Team;

impl DneRun<'_> {
    /// Compares creates in unique directories on the most MDTs with as many file systems of one MDT each.
    pub(super) fn compare_apart(&mut self) -> Result<(), Error> {
        let most = self.arguments.mdts.iter().copied().max().unwrap_or(1).max(1);
        eprintln!("bench dne-scaling: {most} file systems of one MDT");
        let apart = self.apart(most)?;
        let files = Files { layout: Layout::Unique, data: Data::Empty };
        let case = Case { mdts: most, files, phase: Phase::Create, simulated: false };
        let together = find(&self.figures, case);
        let against = together.map_or(String::new(), |figure| {
            let ratio = figure.cpu_us.median() / apart.median();
            format!("; one file system of {most} MDTs against that: {ratio:.2} x")
        });
        let (low, high) = (apart.min(), apart.max());
        self.notes.push(format!(
            "CPU time of a create on {most} file systems of one MDT, each with a mount that works and one that does not: \
             {:.1} [{low:.1}..{high:.1}] us{against}",
            apart.median(),
        ));
        Ok(())
    }

    /// Measures the CPU time of a create, run by run.
    fn apart(&self, count: usize) -> Result<Samples, Error> {
        let (program, tasks) = (self.arguments.nacre.find()?, self.arguments.tasks.max(1));
        let mut instances = Vec::new();
        for number in 0..count {
            let options = InstanceOptions { osts: 1, mdts: 1, separate: true, ..InstanceOptions::default() };
            let name = format!("bench-dne-{number}");
            let mut instance = Instance::start(&program, &self.arguments.dir, &name, options)?;
            // A single client would get the exclusive lease and cache more.
            instance.add_mount()?;
            instances.push(instance);
        }
        let directories: Vec<PathBuf> =
            (0..tasks).map(|task| PathBuf::from(format!("unique.{task}"))).collect();
        for (instance, directory) in instances.iter().cycle().zip(&directories) {
            instance.work_directory(&directory.to_string_lossy())?;
        }
        let mounts: Vec<PathBuf> = instances.iter().map(|instance| instance.mount().to_owned()).collect();
        let setups: Vec<Setup> = (0..tasks).map(|rank| Setup { rank, mounts: mounts.clone() }).collect();
        let mut team = Team::start(self.myself, "dne", &setups, false)?;
        let mut processes = Vec::new();
        for instance in &instances {
            processes.extend(instance.processes()?);
        }
        let files = self.arguments.files.max(1);
        let mut cpu_us = Samples::new();
        for run in 0..=self.arguments.common.runs.max(1) {
            for phase in [Phase::Create, Phase::Unlink] {
                // The directory of another task may be on another file system.
                let (directories, round) = (directories.clone(), run as u64);
                let order = Order { phase, directories, distance: 0, round, files, bytes: 0 };
                let (_, spent) = spent_on(&mut team, &order, &processes)?;
                // The first run includes the setup of connections.
                if run > 0 && phase == Phase::Create {
                    cpu_us.push(spent / (files * tasks as u64) as f64);
                }
            }
        }
        Ok(cpu_us)
    }
}
