//! The engine of a run: moves from state to state and measures.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::ageing::{Population, level_of};
use super::control::Control;
use super::ground::{self, Ground, Owner};
use super::ranges::STEP;
use super::state::{Cell, Level, Output, Paf, Rates, Shape, State};
use crate::bar::Bar;
use crate::buffer::Buffer;
use crate::error::Error;
use crate::{machine, stop};
use nacre_common::frag::Unit;
use nacre_common::size;

/// Size of the measured file in bytes, at most, unless an option gives it.
const FILE_MAX: u64 = 4 << 30;
/// Transfers of the largest size that it holds, at least.
const TRANSFERS_MIN: u64 = 4;
/// Divisor of the capacity: its share that the file takes by default, at most.
const FILE_PART: u64 = 20;
/// Divisor of the capacity: its share that is left to the file system's own metadata.
const SPARE_PART: u64 = 50;

/// A run in progress.
pub(super) struct Engine {
    ground: Box<dyn Ground>,
    state: State,
    output: Output,
    /// The expected files; `None` until they were compared with the existing ones.
    population: Option<Population>,
    /// The control file of a running measurement, if requested.
    control: Option<Control>,
}

impl Engine {
    /// Opens the target of a run. A new target is checked first, so that an unusable one is not changed.
    /// `below` are the directories of a mount's objects, if known.
    pub(super) fn open(
        output: Output,
        mut state: State,
        repopulate: bool,
        below: Vec<PathBuf>,
    ) -> Result<Engine, Error> {
        let owner = Owner { id: state.id.clone(), output: output.directory.display().to_string() };
        let medium = state.settings.medium()?;
        let is_new = state.capacity == 0;
        let opened = ground::open(&state.settings.target, &owner, below, medium).and_then(|ground| {
            let room = ground.room()?;
            let sized = if is_new { give_size(&mut state, room) } else { Ok(()) };
            match sized.and_then(|()| control_of(&state)) {
                Ok(control) => Ok((ground, control)),
                Err(error) => {
                    if is_new {
                        ground.leave()?;
                    }
                    Err(error)
                }
            }
        });
        let (ground, control) = opened.inspect_err(|_| output.withdraw())?;
        state.label = ground.label();
        state.is_computed = ground.is_computed();
        if repopulate {
            state.level = None;
        }
        Ok(Engine { ground, state, output, population: None, control })
    }

    /// Measures everything that is missing, and removes the files.
    pub(super) fn run(&mut self) -> Result<&State, Error> {
        if !self.state.cells.is_empty() || self.state.level.is_some() {
            self.state.resumed += 1;
        }
        self.output.save(&self.state)?;
        self.ground.remove_measured()?;
        let bar = Bar::new(self.work_left());
        for paf in self.state.settings.states() {
            let cells = self.state.settings.cells();
            if cells.iter().all(|&(xfer, iteration)| self.state.has(paf, xfer, iteration)) {
                continue;
            }
            self.populate(paf, &bar)?;
            self.note_shape(paf)?;
            for (xfer, iteration) in cells {
                if !self.state.has(paf, xfer, iteration) {
                    bar.say(format!("{paf} {} {iteration}", size::show(xfer)));
                    self.measure(paf, xfer, iteration)?;
                    bar.add(2 * self.state.file_bytes);
                }
            }
        }
        bar.say("removing files".to_owned());
        self.clear()?;
        self.ground.leave()?;
        if let Some(control) = self.control.take() {
            control.remove();
        }
        self.state.ended = true;
        self.output.save(&self.state)?;
        Ok(&self.state)
    }

    /// Returns the directory of the results.
    pub(super) fn output(&self) -> &Path {
        &self.output.directory
    }

    /// Returns the current state of the run.
    pub(super) fn state(&self) -> &State {
        &self.state
    }

    /// Returns the number of bytes still to be written and read.
    fn work_left(&self) -> u64 {
        let state = &self.state;
        let mut at = state.level;
        let mut work = 0;
        for paf in state.settings.states() {
            let cells = state.settings.cells();
            let left =
                cells.iter().filter(|&&(xfer, iteration)| !state.has(paf, xfer, iteration)).count() as u64;
            if left == 0 {
                continue;
            }
            let (level, rounds) = (level_of(state.capacity, paf.capacity), paf.fragment / STEP);
            let rounds_left = match at {
                Some(at) if at.percent == paf.capacity && at.rounds <= rounds => rounds - at.rounds,
                _ => {
                    work += level;
                    rounds
                }
            };
            work += level / 10 * u64::from(rounds_left) + left * 2 * state.file_bytes;
            at = Some(Level { percent: paf.capacity, rounds });
        }
        work
    }

    /// Creates the files of a state, from those of the state before where possible.
    fn populate(&mut self, paf: Paf, bar: &Bar) -> Result<(), Error> {
        bar.say(format!("populating {paf}"));
        let rounds = paf.fragment / STEP;
        match self.state.level {
            Some(level) if level.percent == paf.capacity && level.rounds <= rounds => {
                if self.population.is_none() {
                    self.population = Some(self.compare(level)?);
                }
            }
            _ => self.fill(paf.capacity, bar)?,
        }
        while let Some(level) = self.state.level.filter(|level| level.rounds < rounds) {
            self.begin_change()?;
            let population = self.population.as_mut().expect("compared or filled above");
            let round = population.round();
            self.remove(&round.removed)?;
            self.write(&round.written, bar)?;
            self.end_change(Level { rounds: level.rounds + 1, ..level })?;
        }
        Ok(())
    }

    /// Returns the population of a level that an earlier process has left, if the files match.
    fn compare(&self, level: Level) -> Result<Population, Error> {
        let settings = &self.state.settings;
        let population = Population::after(settings.seed, self.state.capacity, level.percent, level.rounds);
        let (wanted, found) = (population.files(), self.ground.files()?);
        let numbers = wanted.keys().chain(found.keys());
        let Some(number) = numbers.into_iter().find(|number| wanted.get(number) != found.get(number)) else {
            return Ok(population);
        };
        let show = |bytes: Option<&u64>| bytes.map_or("missing".to_owned(), |bytes| format!("{bytes} bytes"));
        Err(Error::Usage(format!(
            "{} does not hold the files any more that this run has left: file {number} is {} instead of {}; \
             the same command with --repopulate makes them anew, and keeps what is measured",
            self.ground.label(),
            show(found.get(number)),
            show(wanted.get(number)),
        )))
    }

    /// Fills an empty target up to a level.
    fn fill(&mut self, percent: u8, bar: &Bar) -> Result<(), Error> {
        self.begin_change()?;
        self.clear()?;
        let population = Population::new(self.state.settings.seed, self.state.capacity, percent);
        let files: Vec<(u64, u64)> =
            population.files().iter().map(|(&number, &bytes)| (number, bytes)).collect();
        self.population = Some(population);
        self.write(&files, bar)?;
        self.end_change(Level { percent, rounds: 0 })
    }

    /// Marks the start of a change: a run killed before its end cannot be continued from the existing files.
    fn begin_change(&mut self) -> Result<(), Error> {
        self.state.level = None;
        self.output.save(&self.state)
    }

    fn end_change(&mut self, level: Level) -> Result<(), Error> {
        self.ground.settle()?;
        self.state.level = Some(level);
        self.output.save(&self.state)
    }

    fn clear(&mut self) -> Result<(), Error> {
        self.ground.remove_measured()?;
        let numbers: Vec<u64> = self.ground.files()?.into_keys().collect();
        self.remove(&numbers)
    }

    /// Removes files and waits until their space is usable.
    fn remove(&self, numbers: &[u64]) -> Result<(), Error> {
        if numbers.is_empty() {
            return Ok(());
        }
        self.ground.remove(numbers)?;
        self.ground.settle()?;
        self.ground.await_room()
    }

    /// Writes files, as many concurrently as there are writers.
    fn write(&self, files: &[(u64, u64)], bar: &Bar) -> Result<(), Error> {
        let next = AtomicUsize::new(0);
        let seed = self.state.settings.seed;
        let work = || -> Result<(), Error> {
            while let Some(&(number, bytes)) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                if let Err(error) = self.ground.write(number, bytes, seed) {
                    // The other writers stop.
                    next.store(files.len(), Ordering::Relaxed);
                    return Err(error);
                }
                bar.add(bytes);
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..self.state.settings.writers).map(|_| scope.spawn(work)).collect();
            let mut results = writers.into_iter().map(|writer| writer.join().expect("writers do not panic"));
            results.try_for_each(|result| result)
        })
    }

    fn note_shape(&mut self, paf: Paf) -> Result<(), Error> {
        let (files, free) = self.ground.shape(Unit { bytes: 1 << 20 });
        self.state.shapes.retain(|shape| shape.paf != paf);
        self.state.shapes.push(Shape { paf, files, free });
        self.output.save(&self.state)
    }

    fn measure(&mut self, paf: Paf, xfer: u64, iteration: u32) -> Result<(), Error> {
        if stop::asked() {
            return Err(Error::Interrupted);
        }
        let bytes = self.state.file_bytes / xfer * xfer;
        let mut buffer = Buffer::new(xfer as usize);
        crate::pattern::fill(buffer.slice(), self.state.settings.seed, 0, 0);
        let control = self.control.as_ref().map(|control| -> Result<(f64, f64), Error> {
            Ok((control.write(bytes, &mut buffer)?, control.read(bytes, &mut buffer)?))
        });
        let control = control.transpose()?;
        let pass = self.pass(bytes, &mut buffer);
        // Also after an error: the next write must find the same free space.
        let removed = self.ground.remove_measured().and_then(|()| self.ground.settle());
        let (write, read) = pass?;
        removed?;
        // Whole bytes, which survive a round trip through JSON.
        let rate = |seconds: f64| (bytes as f64 / seconds.max(1e-9)).round();
        let control = control.map(|(write, read)| Rates { write: rate(write), read: rate(read) });
        let direct = write.direct && read.direct;
        let (write, read) = (rate(write.seconds), rate(read.seconds));
        self.state.cells.push(Cell { paf, xfer, iteration, write, read, direct, control });
        self.output.save(&self.state)
    }

    fn pass(&mut self, bytes: u64, buffer: &mut Buffer) -> Result<(ground::Timed, ground::Timed), Error> {
        let write = self.ground.measure_write(bytes, buffer)?;
        if !self.state.settings.keep_caches {
            // Only root can. The report states whether it worked.
            self.state.caches_emptied = machine::drop_caches().is_ok();
        }
        Ok((write, self.ground.measure_read(bytes, buffer)?))
    }
}

/// Returns the control file, if requested.
fn control_of(state: &State) -> Result<Option<Control>, Error> {
    let make = |directory: &PathBuf| Control::make(directory, &state.id, state.file_bytes);
    state.settings.control.as_ref().map(make).transpose()
}

/// Sets the capacity that percentages refer to, and the size of the measured file.
fn give_size(state: &mut State, room: u64) -> Result<(), Error> {
    let settings = &state.settings;
    let target = settings.target.display();
    let capacity = match settings.size {
        Some(size) if size > room => {
            return Err(Error::Usage(format!(
                "{target} has room for {}, less than --size {}: give a smaller one",
                size::show(room),
                size::show(size)
            )));
        }
        Some(size) => size,
        None => room,
    };
    let largest = settings.xfer.iter().copied().max().unwrap_or(1);
    let file = settings.file_size.unwrap_or_else(|| {
        let usual = (TRANSFERS_MIN * largest).max((capacity / FILE_PART).min(FILE_MAX));
        usual / largest * largest
    });
    if file < largest {
        return Err(Error::Usage(format!(
            "--file-size {} is smaller than a transfer of {}",
            size::show(file),
            size::show(largest)
        )));
    }
    let most = settings.capacity.iter().copied().max().unwrap_or(0);
    // A control on the same file system takes the same space again.
    let device = |path: &Path| std::fs::metadata(path).map(|found| found.dev()).ok();
    let beside =
        settings.control.as_deref().is_some_and(|control| device(control) == device(&settings.target));
    let files = file.saturating_mul(1 + u64::from(beside));
    let needed = level_of(capacity, most).saturating_add(files).saturating_add(capacity / SPARE_PART);
    if needed > capacity {
        let capacity = size::show(capacity);
        return Err(Error::Usage(format!(
            "{target} is too small: of {capacity} it should hold {most} % and a file of {} beside them; \
             give a smaller --file-size, --xfer or --capacity",
            size::show(file)
        )));
    }
    (state.capacity, state.file_bytes) = (capacity, file);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paf::state::Settings;
    use crate::paf::state::tests::settings;

    const GIB: u64 = 1 << 30;

    fn sized(settings: &Settings, room: u64) -> Result<(u64, u64), String> {
        let scratch = tempfile::tempdir().expect("a directory");
        let (_output, mut state) = Output::open(&scratch.path().join("out"), settings).expect("new");
        give_size(&mut state, room).map_err(|error| error.to_string())?;
        Ok((state.capacity, state.file_bytes))
    }

    #[test]
    fn the_measured_file_is_a_twentieth_and_holds_the_largest_transfer_four_times() {
        assert_eq!(sized(&settings(), 10 * GIB), Ok((10 * GIB, 512 << 20)));
        assert_eq!(sized(&settings(), 200 << 20), Ok((200 << 20, 16 << 20)));
        assert_eq!(sized(&settings(), 400 * GIB).expect("large").1, 4 * GIB);
        let bounded = Settings { size: Some(GIB), file_size: Some(64 << 20), ..settings() };
        assert_eq!(sized(&bounded, 10 * GIB), Ok((GIB, 64 << 20)));
    }

    #[test]
    fn too_small_file_systems_are_refused() {
        assert!(sized(&settings(), 20 << 20).expect_err("small").contains("is too small"));
        let larger = Settings { size: Some(2 * GIB), ..settings() };
        assert!(sized(&larger, GIB).expect_err("less").contains("less than --size"));
        let file = Settings { file_size: Some(1 << 20), ..settings() };
        assert!(sized(&file, GIB).expect_err("small").contains("smaller than a transfer"));
        let full = Settings { capacity: vec![90], file_size: Some(200 << 20), ..settings() };
        assert!(sized(&full, GIB).expect_err("full").contains("is too small"));
        let here = std::env::current_dir().expect("a directory");
        let alone = Settings { file_size: Some(128 << 20), target: here.clone(), ..settings() };
        assert!(sized(&alone, GIB).is_ok());
        let beside = Settings { control: Some(here), ..alone };
        assert!(sized(&beside, GIB).expect_err("two files").contains("is too small"));
    }
}
