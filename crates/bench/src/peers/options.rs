//! The options of `nacre bench peers`.

use std::path::PathBuf;

use super::Peer;
use super::flushes::Counter;
use super::parts::Part;
use crate::error::Error;

/// `nacre bench peers`
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "\
Example: nacre bench peers nacre=/mnt/nacre gluster=/mnt/gluster --version gluster='GlusterFS 10.3' --device gluster=/dev/loop1
bench/peers/run starts several file systems on one machine and calls this.")]
pub struct PeersArguments {
    /// Name and mount point of a path; the first one is the subject of all ratios
    #[arg(required = true, value_name = "NAME=PATH")]
    paths: Vec<String>,
    /// Rounds over all paths; the median is shown
    #[arg(long, default_value_t = 3)]
    pub(super) runs: usize,
    /// Parts; all by default
    #[arg(long = "part", value_enum, value_delimiter = ',')]
    parts: Vec<Part>,
    /// Tasks of mdtest and IOR, and jobs of fio
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub(super) tasks: u64,
    /// Files of each task of mdtest
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) files: u64,
    /// MiB that each task of IOR moves, and of the file of fio
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub(super) size_mib: u64,
    /// Seconds of each random read and write of fio
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(super) seconds: u64,
    /// A path that is a ceiling or a variant of the first one: it is shown, but is no candidate for the best
    /// of the others
    #[arg(long = "bound", value_name = "NAME")]
    bounds: Vec<String>,
    /// Block device with the data of NAME, whose flushes are counted; by default the device of the path, if
    /// there is one
    #[arg(long = "device", value_name = "NAME=DEVICE")]
    devices: Vec<String>,
    /// Version of NAME, for the report
    #[arg(long = "version", value_name = "NAME=TEXT")]
    versions: Vec<String>,
    /// Processes that serve NAME, whose memory is shown
    #[arg(long, value_name = "NAME=PID[,PID..]")]
    pids: Vec<String>,
    /// Seconds after which a part counts as hanging; the path gets no further work
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(super) limit: u64,
    /// Also write the results there, for 'bench talks --peers', 'bench compare' and 'bench history'
    #[arg(long, value_name = "FILE")]
    pub(super) out: Option<PathBuf>,
    /// Print JSON with every run instead of tables
    #[arg(long)]
    pub(super) json: bool,
}

impl PeersArguments {
    /// Returns all paths, checked.
    pub(super) fn peers(&self) -> Result<Vec<Peer>, Error> {
        let mut peers: Vec<Peer> = Vec::new();
        for word in &self.paths {
            let (name, path) = pair(word, "a path")?;
            if peers.iter().any(|peer| peer.name == name) {
                return Err(Error::Usage(format!(
                    "two paths are called '{name}': give each a name of its own"
                )));
            }
            let path = std::fs::canonicalize(path).map_err(|error| {
                Error::Usage(format!("{name}: {path} cannot be used, mount it first: {error}"))
            })?;
            if !path.is_dir() {
                return Err(Error::Usage(format!("{name}: {} is no directory", path.display())));
            }
            let mut peer = Peer::new(name, &path);
            peer.counter = Counter::below(&path);
            peers.push(peer);
        }
        for name in &self.bounds {
            named(&mut peers, name, "--bound")?.is_bound = true;
        }
        for word in &self.versions {
            let (peer, text) = of(&mut peers, word, "--version")?;
            peer.version = Some(text.to_owned());
        }
        for word in &self.devices {
            let (peer, device) = of(&mut peers, word, "--device")?;
            peer.counter = Counter::of_device(device.as_ref());
        }
        for word in &self.pids {
            let (peer, text) = of(&mut peers, word, "--pids")?;
            let wrong = || Error::Usage(format!("--pids wants NAME=PID,PID.. with numbers, not '{word}'"));
            let pids = text.split(',').map(|pid| pid.trim().parse().map_err(|_| wrong()));
            peer.pids = pids.collect::<Result<_, Error>>()?;
        }
        Ok(peers)
    }

    /// Returns the selected parts in order.
    pub(super) fn parts(&self) -> Vec<Part> {
        let is_wanted = |part: &Part| self.parts.is_empty() || self.parts.contains(part);
        Part::ALL.into_iter().filter(is_wanted).collect()
    }
}

/// Splits `NAME=VALUE` into name and value, neither of them empty.
fn pair<'a>(word: &'a str, what: &str) -> Result<(&'a str, &'a str), Error> {
    let found = word.split_once('=').filter(|(name, value)| !name.is_empty() && !value.is_empty());
    found.ok_or_else(|| Error::Usage(format!("{what} is given as NAME=VALUE, not as '{word}'")))
}

/// Returns the peer that an option names.
fn named<'a>(peers: &'a mut [Peer], name: &str, option: &str) -> Result<&'a mut Peer, Error> {
    let peer = peers.iter_mut().find(|peer| peer.name == name);
    peer.ok_or_else(|| Error::Usage(format!("{option}: no path is called '{name}'")))
}

/// Returns the peer that an option names, and the option's value.
fn of<'a>(peers: &'a mut [Peer], word: &'a str, option: &str) -> Result<(&'a mut Peer, &'a str), Error> {
    let (name, value) = pair(word, option)?;
    Ok((named(peers, name, option)?, value))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    #[command(disable_version_flag = true)]
    struct Program {
        #[command(flatten)]
        arguments: PeersArguments,
    }

    fn parse(words: &[&str]) -> PeersArguments {
        let words = ["peers"].iter().chain(words);
        Program::try_parse_from(words).map(|program| program.arguments).expect("understood")
    }

    #[test]
    fn names_tie_paths_versions_and_processes_together() {
        let words = ["a=/", "b=/proc", "--version", "b=proc 1 = best", "--pids", "a=1,22"];
        let peers = parse(&words).peers().expect("both are there");
        assert_eq!((peers[0].name.as_str(), peers[1].path.as_path()), ("a", "/proc".as_ref()));
        assert_eq!(peers[1].version.as_deref(), Some("proc 1 = best"));
        assert_eq!((peers[0].pids.as_slice(), peers[1].pids.len()), (&[1, 22][..], 0));
        assert!(peers[1].counter.as_ref().is_err_and(|why| why.contains("--device")));
    }

    #[test]
    fn wishes_that_make_no_sense_are_refused_in_one_sentence() {
        for (words, says) in [
            (&["/mnt"][..], "a path is given as NAME=VALUE, not as '/mnt'"),
            (&["=/"], "NAME=VALUE"),
            (&["a="], "NAME=VALUE"),
            (&["a=/", "a=/proc"], "two paths are called 'a'"),
            (&["a=/does/not/exist"], "a: /does/not/exist cannot be used, mount it first"),
            (&["a=/proc/version"], "is no directory"),
            (&["a=/", "--version", "b=1"], "--version: no path is called 'b'"),
            (&["a=/", "--device", "b=/dev/x"], "--device: no path is called 'b'"),
            (&["a=/", "--bound", "b"], "--bound: no path is called 'b'"),
            (&["a=/", "--pids", "a=1,x"], "--pids wants NAME=PID"),
        ] {
            let said = parse(words).peers().expect_err(says).to_string();
            assert!(said.contains(says) && !said.contains('\n'), "{said}");
        }
        assert!(Program::try_parse_from(["peers"]).is_err());
        assert!(Program::try_parse_from(["peers", "a=/", "--tasks", "0"]).is_err());
    }

    #[test]
    fn parts_keep_their_order() {
        assert_eq!(parse(&["a=/"]).parts(), Part::ALL);
        let chosen = parse(&["a=/", "--part", "ior-easy,mdtest-hard"]).parts();
        assert_eq!(chosen, [Part::MdtestHard, Part::IorEasy]);
    }
}
