//! What OSTs of a new file system keep their objects in: files of a local file system, or a device of their own.

use crate::device_words::DeviceWords;
use crate::failure::{Failure, Result};
use crate::instance;
use nacre_store::object::block::is_block_store;
use std::fmt;
use std::path::{Path, PathBuf};

/// A back end, written `file` or `block[:PATH][,size=BYTES][,force]`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum OstBackend {
    /// A file for each object.
    #[default]
    File,
    /// All objects on one device.
    Block {
        /// A raw device or a file; none: a sparse file in the directory of the target.
        device: Option<PathBuf>,
        /// How it is made.
        words: DeviceWords,
    },
}

/// Smallest file that is made: an OST has a reserve, and its clients grants.
const SIZE_MIN: u64 = 64 << 20;

impl OstBackend {
    fn parse(text: &str) -> Result<OstBackend> {
        let wrong = |why: &str| {
            Failure::usage(format!(
                "--ost-backend {text}: {why}; write file, block, block:/dev/sdx or block:PATH,size=100G"
            ))
        };
        let mut parts = text.split(',');
        let (kind, path) = match parts.next().unwrap_or("").split_once(':') {
            Some((kind, path)) => (kind, Some(path)),
            None => (text.split(',').next().unwrap_or(""), None),
        };
        let words = DeviceWords::parse(parts, wrong)?;
        match kind {
            "file" if path.is_none() && words.is_empty() => Ok(OstBackend::File),
            "file" => Err(wrong("file has no settings")),
            "block" if path == Some("") => Err(wrong("the path is empty")),
            "block" if words.size.is_some_and(|size| size < SIZE_MIN) => {
                Err(wrong("the size is less than 64M"))
            }
            "block" => {
                let device = path.map(|path| instance::absolute(Path::new(path))).transpose()?;
                Ok(OstBackend::Block { device, words })
            }
            _ => Err(wrong("there is no such back end")),
        }
    }

    /// What a target that was made has.
    pub fn kind_of(dir: &Path) -> &'static str {
        if is_block_store(dir) { "block" } else { "file" }
    }

    fn kind(&self) -> &'static str {
        match self {
            OstBackend::File => "file",
            OstBackend::Block { .. } => "block",
        }
    }
}

impl fmt::Display for OstBackend {
    /// As it is written.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OstBackend::File => f.write_str("file"),
            OstBackend::Block { device: None, words } => write!(f, "block{words}"),
            OstBackend::Block { device: Some(device), words } => {
                write!(f, "block:{}{words}", device.display())
            }
        }
    }
}

/// The back ends of the OSTs of a new file system, by index.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct OstBackends(Vec<OstBackend>);

impl OstBackends {
    /// Reads what was given: nothing, one for all OSTs, or one for each.
    ///
    /// # Errors
    /// If it cannot be understood, or a device is given to several OSTs.
    pub fn parse(given: &[String], osts: u16) -> Result<OstBackends> {
        let backends = given.iter().map(|text| OstBackend::parse(text)).collect::<Result<Vec<_>>>()?;
        if backends.len() > 1 && backends.len() != usize::from(osts) {
            let count = backends.len();
            return Err(Failure::usage(format!(
                "--ost-backend was given {count} times for {osts} OSTs: once, or for each"
            )));
        }
        let devices: Vec<&PathBuf> = backends
            .iter()
            .filter_map(|backend| match backend {
                OstBackend::Block { device, .. } => device.as_ref(),
                OstBackend::File => None,
            })
            .collect();
        let is_shared = backends.len() == 1 && osts > 1 && !devices.is_empty();
        let twice = devices.iter().enumerate().find(|(at, device)| devices[..*at].contains(device));
        if let Some(device) = twice.map(|(_, device)| *device).or(is_shared.then(|| devices[0])) {
            return Err(Failure::usage(format!(
                "{} cannot belong to several OSTs: give --ost-backend for each",
                device.display()
            )));
        }
        Ok(OstBackends(backends))
    }

    /// The back end of an OST.
    pub fn of(&self, index: u16) -> OstBackend {
        self.0.get(usize::from(index)).or(self.0.first()).cloned().unwrap_or_default()
    }

    /// Refuses what is not what an OST was made with.
    ///
    /// # Errors
    /// If its directory holds another back end.
    pub fn check(&self, index: u16, dir: &Path) -> Result<()> {
        let (is, wanted) = (OstBackend::kind_of(dir), self.of(index).kind());
        if self.0.is_empty() || is == wanted {
            return Ok(());
        }
        Err(Failure::new(format!(
            "{} was made with --ost-backend {is}, not {wanted}: leave the option out, or use a new directory",
            dir.display()
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(device: Option<&str>, size: Option<u64>, force: bool) -> OstBackend {
        OstBackend::Block { device: device.map(PathBuf::from), words: DeviceWords { size, force } }
    }

    #[test]
    fn back_ends_are_read() {
        for (text, wanted) in [
            ("file", OstBackend::File),
            ("block", block(None, None, false)),
            ("block,size=1G", block(None, Some(1 << 30), false)),
            ("block:/dev/sdx", block(Some("/dev/sdx"), None, false)),
            ("block:/dev/sdx,force", block(Some("/dev/sdx"), None, true)),
            ("block:/srv/a:b,size=64M,force", block(Some("/srv/a:b"), Some(64 << 20), true)),
        ] {
            assert_eq!(OstBackend::parse(text).expect(text), wanted, "{text}");
        }
        for text in [
            "",
            "zfs",
            "file,force",
            "file:/x",
            "block:",
            "block,size=",
            "block,size=10",
            "block,size=1X",
            "block,size=99999999T",
            "block,force,force",
            "block,what",
        ] {
            let failure = OstBackend::parse(text).expect_err(text);
            assert!(failure.message.contains("--ost-backend"), "{failure}");
        }
    }

    #[test]
    fn one_is_for_all_and_no_device_for_two() {
        let parse = |given: &[&str], osts| {
            OstBackends::parse(&given.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>(), osts)
        };
        assert_eq!(parse(&[], 3).expect("default").of(2), OstBackend::File);
        assert_eq!(parse(&["block"], 3).expect("for all").of(2), block(None, None, false));
        let each = parse(&["block:/dev/a", "file", "block:/dev/b"], 3).expect("for each");
        assert_eq!(each.of(2), block(Some("/dev/b"), None, false));
        assert_eq!(each.of(1), OstBackend::File);
        for (given, osts) in [
            (&["block:/dev/a"][..], 2),
            (&["block:/dev/a", "block:/dev/a"][..], 2),
            (&["block", "file"][..], 3),
        ] {
            parse(given, osts).expect_err("refused");
        }
    }
}
