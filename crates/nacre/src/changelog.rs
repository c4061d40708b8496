//! Changelogs of a file system, for the commands `lfs changelog`, `lctl changelog_register` and `nacre changes`:
//! requests through the control socket of the MDT's process, or of a mount on this host.

use crate::control::{self, Answer, ChangelogAnswer, ChangelogStep, Request, ShownUser};
use crate::lctl::find_processes;
use nacre_types::{TargetId, Timestamp};
use rustix::io::Errno;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Timeout of a request: longer than the wait of a mount for an MDT.
const LIMIT: Duration = Duration::from_secs(20);
/// Interval at which a reader that follows a changelog polls the MDT when there is nothing new. MDTs hold no request
/// of a reader open, so that slow readers cost them nothing.
pub const FOLLOW_PAUSE: Duration = Duration::from_millis(200);

/// Parses `FSNAME-MDT0000`: the name of the file system, and the index.
pub fn parse_mdt(text: &str) -> Option<(&str, u16)> {
    let name = text.strip_suffix("_UUID").unwrap_or(text);
    let (fsname, digits) = name.rsplit_once("-MDT")?;
    let index = u16::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 4)?;
    (!fsname.is_empty()).then_some((fsname, index))
}

/// The changelog of one MDT.
#[derive(Debug, Clone)]
pub struct Changelog {
    fsname: String,
    /// Index of the MDT.
    pub mdt: u16,
    socket: Option<PathBuf>,
}

/// A page of records.
#[derive(Debug, Default)]
pub struct Page {
    /// Indexes, and records in their form on disk.
    pub records: Vec<(u64, Vec<u8>)>,
    /// Index up to which there are no others.
    pub upto: u64,
    /// Time up to which there are no others.
    pub settled: Timestamp,
}

impl Changelog {
    /// Returns the changelog of an MDT.
    pub fn of(fsname: &str, mdt: u16) -> Changelog {
        Changelog { fsname: fsname.to_owned(), mdt, socket: None }
    }

    /// Returns the name of the MDT.
    pub fn name(&self) -> String {
        format!("{}-{}", self.fsname, TargetId::mdt(self.mdt))
    }

    /// Returns the socket to ask: that of the MDT's process, or else of a mount.
    fn find(&self) -> io::Result<PathBuf> {
        let of_it = find_processes(|process| process.fsname == self.fsname);
        let target = TargetId::mdt(self.mdt).to_string();
        let serves =
            of_it.iter().find(|(_, process)| process.targets.iter().any(|known| known.target == target));
        let mounts = || of_it.iter().find(|(_, process)| process.mount.is_some());
        match serves.or_else(mounts) {
            Some((socket, _)) => Ok(socket.clone()),
            None => Err(Errno::NODEV.into()),
        }
    }

    fn ask(&mut self, step: ChangelogStep) -> io::Result<ChangelogAnswer> {
        let socket = match &self.socket {
            Some(socket) => socket.clone(),
            None => self.find()?,
        };
        let answer = control::ask_for(&socket, &Request::Changelog { mdt: self.mdt, step }, LIMIT);
        // A process that has ended may be replaced by another one.
        self.socket = answer.is_ok().then_some(socket);
        match answer? {
            Answer::Changelog(answer) => Ok(answer),
            Answer::Error { errno, .. } => Err(io::Error::from_raw_os_error(errno)),
            _ => Err(Errno::PROTO.into()),
        }
    }

    fn ask_user(&mut self, step: ChangelogStep) -> io::Result<ShownUser> {
        match self.ask(step)? {
            ChangelogAnswer::User { user } => Ok(user),
            _ => Err(Errno::PROTO.into()),
        }
    }

    /// Registers a user with a name, which may be empty, and a mask (0: that of the MDT).
    ///
    /// # Errors
    /// `EEXIST` if a user has the name; `EPERM`; `ENODEV` if no process of this host can ask the MDT; `EAGAIN` if it is
    /// unreachable.
    pub fn register(&mut self, name: &str, mask: u32) -> io::Result<ShownUser> {
        self.ask_user(ChangelogStep::Register { name: name.to_owned(), mask })
    }

    /// Removes a user.
    ///
    /// # Errors
    /// As [`Changelog::register`]; `ENOENT`.
    pub fn deregister(&mut self, user: &str) -> io::Result<ShownUser> {
        self.ask_user(ChangelogStep::Deregister { user: user.to_owned() })
    }

    /// Clears records up to an index, 0 for all.
    ///
    /// # Errors
    /// As [`Changelog::deregister`]; `EINVAL` beyond the newest record.
    pub fn clear(&mut self, user: &str, upto: u64) -> io::Result<ShownUser> {
        self.ask_user(ChangelogStep::Clear { user: user.to_owned(), upto })
    }

    /// Returns the users.
    ///
    /// # Errors
    /// As [`Changelog::register`].
    pub fn users(&mut self) -> io::Result<Vec<ShownUser>> {
        match self.ask(ChangelogStep::Users)? {
            ChangelogAnswer::Users { users, .. } => Ok(users),
            _ => Err(Errno::PROTO.into()),
        }
    }

    /// Returns the user that a text names: `cl1`, `cl1-name` or the name.
    ///
    /// # Errors
    /// As [`Changelog::users`]; `ENOENT`.
    pub fn user(&mut self, text: &str) -> io::Result<ShownUser> {
        let shown = |user: &ShownUser| nacre_types::changelog::change_user(user.id, &user.name);
        let is_it =
            |user: &ShownUser| text == format!("cl{}", user.id) || text == shown(user) || text == user.name;
        self.users()?.into_iter().find(is_it).ok_or_else(|| Errno::NOENT.into())
    }

    /// Reads records after an index.
    ///
    /// # Errors
    /// As [`Changelog::register`].
    pub fn read(&mut self, after: u64) -> io::Result<Page> {
        let ChangelogAnswer::Changes { records, upto, settled } = self.ask(ChangelogStep::Read { after })?
        else {
            return Err(Errno::PROTO.into());
        };
        let bytes = |(index, digits): (u64, String)| Some((index, control::bytes_of(&digits)?));
        let records = records.into_iter().map(bytes).collect::<Option<Vec<_>>>().ok_or(Errno::PROTO)?;
        Ok(Page { records, upto, settled: Timestamp::new(settled.0, settled.1) })
    }
}

/// Returns true for the error of an MDT that is down or unreachable for a while.
pub fn is_for_now(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::AGAIN | Errno::NODEV | Errno::CONNREFUSED | Errno::NOENT | Errno::SHUTDOWN | Errno::NOTCONN))
        || control::is_silence(error)
        || matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
        // A process that is killed while it answers leaves a part of a line.
        || error.kind() == io::ErrorKind::InvalidData
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_mdts_have_a_file_system_and_four_digits() {
        assert_eq!(parse_mdt("nacre-MDT0000"), Some(("nacre", 0)));
        assert_eq!(parse_mdt("a-b-MDT00ff_UUID"), Some(("a-b", 255)));
        for wrong in ["nacre-OST0000", "MDT0000", "-MDT0000", "nacre-MDT0", "nacre-MDT000g"] {
            assert_eq!(parse_mdt(wrong), None, "{wrong}");
        }
    }
}
