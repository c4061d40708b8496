//! Throughput of each OST through a mount, client, network and disk together: one slow OST slows all wide
//! files.

use super::{Finding, Subject};
use crate::failure::{Failure, Result};
use nacre_env::clock::Instant;
use nacre_types::{TargetId, TargetKind};
use rustix::fs::{Mode, OFlags};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

const AREA: &str = "throughput";
/// Bytes that are written to each OST, and read back.
const BYTES: usize = 64 << 20;
/// Bytes of one write or read.
const CHUNK: usize = 1 << 20;

/// Rates of one OST in MB/s.
struct Rates {
    ost: TargetId,
    write: f64,
    read: f64,
}

/// Writes and reads a file on each OST of a mounted file system, one after the other.
pub fn examine(subject: &Subject) -> Vec<Finding> {
    let mount = subject.overview.processes.iter().find_map(|process| process.mount.as_ref());
    let Some(mount) = mount else {
        return vec![Finding::note(AREA, "not measured: the file system is not mounted on this host")];
    };
    let mut findings = Vec::new();
    let mut all = Vec::new();
    for ost in osts(subject) {
        match measure(&mount.mount_point, ost) {
            Ok(rates) => all.push(rates),
            Err(failure) => {
                findings.push(Finding::warning(AREA, format!("{ost} was not measured: {}", failure.message)));
            }
        }
    }
    findings.extend(judge(&all));
    findings
}

fn osts(subject: &Subject) -> BTreeSet<TargetId> {
    let overview = &subject.overview;
    let here = overview.processes.iter().flat_map(|process| &process.targets).map(|target| &target.target);
    let elsewhere = overview.elsewhere.iter().map(|target| &target.target);
    let ids = here.chain(elsewhere).filter_map(|name| name.parse::<TargetId>().ok());
    ids.filter(|id| id.kind == TargetKind::Ost).collect()
}

/// Compares each OST with the median of all.
fn judge(all: &[Rates]) -> Vec<Finding> {
    let median = |value: fn(&Rates) -> f64| {
        let mut values: Vec<f64> = all.iter().map(value).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(0.0)
    };
    let (write, read) = (median(|rates| rates.write), median(|rates| rates.read));
    let finding = |rates: &Rates| {
        let text =
            format!("{}: {:.0} MB/s written and synced, {:.0} MB/s read", rates.ost, rates.write, rates.read);
        match rates.write < write / 2.0 || rates.read < read / 2.0 {
            true => Finding::warning(
                AREA,
                format!("{text}: less than half of the median of all OSTs ({write:.0} and {read:.0} MB/s)"),
            )
            .remedy(format!("look at the disk and network of {}, or what else uses them; 'nacre rebalance --drain' empties it", rates.ost)),
            false => Finding::ok(AREA, text),
        }
    };
    all.iter().map(finding).collect()
}

/// A file on the mount that is removed when this is dropped.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn measure(mount_point: &Path, ost: TargetId) -> Result<Rates> {
    let scratch = Scratch(mount_point.join(format!(".nacre-doctor-{}-{ost}", std::process::id())));
    create_on(&scratch.0, ost)?;
    let failed = |what: &str| Failure::because(format!("{what} {}", scratch.0.display()));
    let rate = |start: Instant| BYTES as f64 / 1e6 / start.elapsed().as_secs_f64().max(1e-9);
    let start = Instant::now();
    write(&scratch.0).map_err(failed("write"))?;
    let write = rate(start);
    let start = Instant::now();
    read(&scratch.0).map_err(failed("read"))?;
    Ok(Rates { ost, write, read: rate(start) })
}

/// Creates a file with one stripe on an OST.
fn create_on(path: &Path, ost: TargetId) -> Result<()> {
    let program = std::env::current_exe().map_err(Failure::because("find this program"))?;
    let index = ost.index.to_string();
    let made = Command::new(program)
        .args(["lfs", "setstripe", "-c", "1", "-i", &index])
        .arg(path)
        .output()
        .map_err(Failure::because("start 'lfs setstripe'"))?;
    match made.status.success() {
        true => Ok(()),
        false => Err(Failure::new(String::from_utf8_lossy(&made.stderr).trim().to_owned())),
    }
}

fn write(path: &Path) -> io::Result<()> {
    let mut file = File::options().write(true).open(path)?;
    // Data that neither compresses nor repeats.
    let mut chunk = vec![0; CHUNK];
    fastrand::Rng::with_seed(1).fill(&mut chunk);
    for _ in 0..BYTES / CHUNK {
        file.write_all(&chunk)?;
    }
    file.sync_data()
}

/// Reads the file past the cache of the kernel on this host.
fn read(path: &Path) -> io::Result<()> {
    const ALIGNMENT: usize = 4096;
    let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let mut buffer = vec![0; CHUNK + ALIGNMENT];
    let begin = buffer.as_ptr().align_offset(ALIGNMENT);
    let mut left = BYTES;
    while left > 0 {
        match file.read(&mut buffer[begin..begin + CHUNK])? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => left = left.saturating_sub(read),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::doctor::Level;

    #[test]
    fn an_ost_at_less_than_half_of_the_median_is_a_warning() {
        let rates = |index, write, read| Rates { ost: TargetId::ost(index), write, read };
        let all =
            [rates(0, 400.0, 900.0), rates(1, 180.0, 900.0), rates(2, 420.0, 300.0), rates(3, 390.0, 950.0)];
        let levels: Vec<Level> = judge(&all).iter().map(|finding| finding.level).collect();
        assert_eq!(levels, [Level::Ok, Level::Warning, Level::Warning, Level::Ok]);
        assert!(judge(&[]).is_empty());
    }
}
