//! `lfs migrate -m`: directories moved to another MDT. Only those that are there already can be asked for so far.

use super::{NAME, wrong};
use crate::lfs::getopt::Parsed;
use crate::lfs::mounted::{self, Mounted};
use crate::lfs::number::parse_signed;
use crate::lfs::{Failure, Outcome, errno_of, error_text};
use crate::ost_list;
use nacre_types::TargetKind;
use std::io;
use std::path::Path;

/// Options that go with `-m`.
const WITH: [char; 9] = ['m', 'c', 'C', 'H', 'd', 'Z', 'v', 'F', '0'];
/// Ways to spread names over MDTs.
const HASHES: [&str; 4] = ["all_char", "fnv_1a_64", "crush", "crush2"];

/// MDTs that directories are to be on; `None` if files are to be moved.
pub fn of_options(parsed: &Parsed) -> Result<Option<Vec<u16>>, Failure> {
    let Some(list) = parsed.value('m') else {
        return match [('H', "-H"), ('d', "-d"), ('Z', "--clear-fixed")]
            .iter()
            .find(|(key, _)| parsed.has(*key))
        {
            Some((_, name)) => Err(wrong(&format!("{name} must be specified with -m"))),
            None => Ok(None),
        };
    };
    if parsed.options.iter().any(|(key, _)| !WITH.contains(key)) {
        return Err(wrong("cannot specify -m with layout options of files"));
    }
    let mdts = ost_list::listed(list, 10).ok_or_else(|| wrong(&format!("invalid MDT index '{list}'")))?;
    for key in ['c', 'C'] {
        let count = parsed.value(key).map(|text| (text, parse_signed(text)));
        if let Some((text, _)) =
            count.filter(|(_, count)| !count.is_some_and(|count| (-5..=2000).contains(&count)))
        {
            return Err(wrong(&format!("invalid stripe count '{text}'")));
        }
    }
    let known = |text: &str| HASHES.iter().any(|hash| text.split(',').next() == Some(*hash));
    if let Some(hash) = parsed.value('H').filter(|hash| !known(hash)) {
        return Err(wrong(&format!("bad directory hash type '{hash}'")));
    }
    Ok(Some(mdts))
}

/// Moves one directory.
pub fn migrate(mdts: &[u16], path: &Path) -> Outcome {
    let failed = |error: io::Error| {
        let errno = errno_of(&error);
        Failure::new(
            errno,
            format!("{NAME}: {} migrate failed: {} (-{errno})", path.display(), error_text(errno)),
        )
    };
    let errno = |errno| failed(io::Error::from_raw_os_error(errno));
    if !path.symlink_metadata().map_err(failed)?.is_dir() {
        return Err(errno(libc::ENOTDIR));
    }
    let mount = Mounted::open(path).map_err(failed)?;
    if !rustix::process::geteuid().is_root() {
        return Err(errno(libc::EPERM));
    }
    let targets = mount.targets().map_err(failed)?;
    let exists = |index: &u16| {
        targets.iter().any(|row| row.target.kind == TargetKind::Mdt && row.target.index == *index)
    };
    if !mdts.iter().all(exists) {
        return Err(errno(libc::ENODEV));
    }
    let fid = mounted::fid_of(path, false).map_err(failed)?;
    match mdts.first() == Some(&fid.mdt_index()) && mdts.len() == 1 {
        true => Ok(()),
        false => Err(errno(libc::EOPNOTSUPP)),
    }
}
