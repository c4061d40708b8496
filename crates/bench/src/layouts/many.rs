//! Files of many components and of many stripes: the time to open, write and read them.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use super::LayoutsRun;
use crate::error::Error;
use crate::instance::Instance;
use crate::machine;
use crate::report::{Against, Row, Unit};
use crate::sample::Samples;
use crate::worker::turns;

/// Size in bytes of a component, and of a stripe of the file with many.
const COMPONENT_BYTES: u64 = 1 << 20;
const STRIPE_BYTES: u64 = 64 << 10;
/// Size of each write and read in bytes.
const PIECE: usize = 4096;

/// Figures of the operations on a file, with the number of places touched.
#[derive(Default)]
struct Figures {
    open: Samples,
    write: Samples,
    read: Samples,
}

impl LayoutsRun<'_> {
    /// Compares a file of many components, a file of many stripes, and a file of a single stripe touched at
    /// the same places.
    pub(super) fn many(&mut self) -> Result<(), Error> {
        let instance = self.instance(false, false)?;
        let (components, stripes) = (self.arguments.components.max(2), self.arguments.stripes.max(2));
        let mut layout = Vec::new();
        for number in 1..components {
            layout.extend(["-E".to_owned(), format!("{number}M"), "-c".to_owned(), "1".to_owned()]);
        }
        layout.extend(["-E", "-1", "-c", "1"].map(str::to_owned));
        self.file(&instance, &format!("{components} components"), &layout, components, COMPONENT_BYTES)?;
        let layout = ["-C", &stripes.to_string(), "-S", "64K"].map(str::to_owned);
        self.file(&instance, &format!("{stripes} stripes"), &layout, stripes, STRIPE_BYTES)
    }

    fn file(
        &mut self,
        instance: &Instance,
        name: &str,
        layout: &[String],
        places: u64,
        distance: u64,
    ) -> Result<(), Error> {
        let layout: Vec<&str> = layout.iter().map(String::as_str).collect();
        let directory = instance.mount();
        let (ours, plain) = (directory.join("many"), directory.join("one"));
        let mut figures: [Figures; 2] = Default::default();
        for round in 0..self.arguments.common.runs.max(1) {
            for which in turns(round, 2) {
                let (path, layout) =
                    if which == 0 { (&ours, &layout[..]) } else { (&plain, &["-c", "1"][..]) };
                match instance.setstripe(path, layout) {
                    Err(Error::Server { reason, .. }) if which == 0 && round == 0 => {
                        self.report.notes.push(format!("{name} are left out: {reason}"));
                        return Ok(());
                    }
                    outcome => outcome?,
                }
                touch(path, places, distance, &mut figures[which])?;
                std::fs::remove_file(path).map_err(Error::io("remove", path))?;
            }
        }
        let [ours, plain] = figures;
        let row = |what: &str, ours: Samples, plain: Samples| {
            let mut row = Row::new(format!("{name}, {what}"), Unit::Milliseconds, ours);
            row.against = Some(Against::of("one stripe", plain));
            row
        };
        self.report.rows.push(row("open + stat + close, cold", ours.open, plain.open));
        self.report.rows.push(row("first write of 4 KiB in each + fsync, for each", ours.write, plain.write));
        self.report.rows.push(row("read of those, cold, for each", ours.read, plain.read));
        Ok(())
    }
}

/// Writes 4 KiB at the start of each part of a new file, opens it and reads them back, comparing.
fn touch(path: &Path, places: u64, distance: u64, figures: &mut Figures) -> Result<(), Error> {
    let milliseconds = |start: Instant| start.elapsed().as_secs_f64() * 1e3;
    let piece = |place: u64| vec![1 + (place % 255) as u8; PIECE];
    let file = OpenOptions::new().write(true).open(path).map_err(Error::io("open", path))?;
    let start = Instant::now();
    for place in 0..places {
        file.write_all_at(&piece(place), place * distance).map_err(Error::io("write", path))?;
    }
    file.sync_all().map_err(Error::io("fsync", path))?;
    figures.write.push(milliseconds(start) / places as f64);
    drop(file);
    machine::drop_caches()?;
    let start = Instant::now();
    let file = File::open(path).map_err(Error::io("open", path))?;
    let size = file.metadata().map_err(Error::io("stat", path))?.len();
    drop(file);
    figures.open.push(milliseconds(start));
    if size != (places - 1) * distance + PIECE as u64 {
        return Err(Error::Worker(format!("{} has {size} bytes", path.display())));
    }
    machine::drop_caches()?;
    let file = File::open(path).map_err(Error::io("open", path))?;
    let start = Instant::now();
    let mut buffer = vec![0; PIECE];
    for place in 0..places {
        file.read_exact_at(&mut buffer, place * distance).map_err(Error::io("read", path))?;
        if buffer != piece(place) {
            return Err(Error::Worker(format!("wrong data at {} of {}", place * distance, path.display())));
        }
    }
    figures.read.push(milliseconds(start) / places as f64);
    Ok(())
}
