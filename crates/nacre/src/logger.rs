//! Log: plain lines with time and level, to a file of bounded size or to standard error. Lines for the journal of systemd
//! have a priority instead, as the journal stores the time itself.

pub mod limit;

use limit::{Limit, Line};
use log::{Level, LevelFilter, Log, Metadata, Record};
use nacre_env::clock::Instant;
use nacre_env::sync::Mutex;
use nacre_params::LOG_WORDS;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Size in bytes at which a log file is rotated: renamed to `NAME.1`.
const LOG_BYTES_MAX: u64 = 8 << 20;
/// Rotated files to keep, `NAME.1` the newest.
const OLD_MAX: u32 = 4;

/// Path of this process's log, if it is a file.
static PATH: OnceLock<PathBuf> = OnceLock::new();

/// Returns the path of this process's log, if it is a file.
pub fn path() -> Option<PathBuf> {
    PATH.get().cloned()
}

/// Destination of log lines.
enum Sink {
    Stderr,
    /// Standard error, which systemd reads.
    Journal,
    File {
        path: PathBuf,
        file: File,
        written: u64,
    },
}

struct Logger {
    state: Mutex<State>,
}

struct State {
    sink: Sink,
    limit: Limit,
}

impl State {
    fn write(&mut self, level: Level, target: &str, message: &str) {
        let line = match self.sink {
            Sink::Journal => journal_line(level, target, message),
            Sink::Stderr | Sink::File { .. } => line(nacre_env::clock::wall(), level, target, message),
        };
        // A failure to write a log line cannot be reported.
        let _ = match &mut self.sink {
            Sink::Stderr | Sink::Journal => io::stderr().write_all(line.as_bytes()),
            Sink::File { path, file, written } => append(path, file, written, &line),
        };
    }

    fn write_left_out(&mut self, now: Instant) {
        for left_out in self.limit.ended(now) {
            self.write(left_out.level, &left_out.target, &left_out.message());
        }
    }
}

/// Logs to standard error from now on.
pub fn to_stderr(level: LevelFilter) {
    install(if is_journal() { Sink::Journal } else { Sink::Stderr }, level);
}

/// Returns whether standard error is the journal's: systemd names its device and inode, as a process may have been
/// redirected since.
fn is_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    let is = rustix::fs::fstat(rustix::stdio::stderr());
    is.is_ok_and(|found| stream == format!("{}:{}", found.st_dev, found.st_ino))
}

/// Returns what precedes an error on standard error that is not logged: its priority, if the journal reads it.
pub fn error_prefix() -> &'static str {
    if is_journal() { priority(Level::Error) } else { "" }
}

/// Returns a level as sd-daemon(3) writes it.
fn priority(level: Level) -> &'static str {
    match level {
        Level::Error => "<3>",
        Level::Warn => "<4>",
        Level::Info => "<6>",
        Level::Debug | Level::Trace => "<7>",
    }
}

/// Logs to `path` from now on. Panics go there too if standard error was redirected to the same file.
///
/// # Errors
/// If the file cannot be opened.
pub fn to_file(path: &Path, level: LevelFilter) -> io::Result<()> {
    let (file, written) = open(path)?;
    let _ = PATH.set(path.to_path_buf());
    install(Sink::File { path: path.to_path_buf(), file, written }, level);
    Ok(())
}

/// Opens a log file for appending.
///
/// # Errors
/// If it cannot be opened or created.
pub fn open(path: &Path) -> io::Result<(File, u64)> {
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
    let written = file.metadata()?.len();
    Ok((file, written))
}

/// Levels, in the order of [`LOG_WORDS`].
const LEVELS: [LevelFilter; LOG_WORDS.len()] =
    [LevelFilter::Error, LevelFilter::Warn, LevelFilter::Info, LevelFilter::Debug, LevelFilter::Trace];

/// Returns the name of the level in force.
pub fn level() -> String {
    log::max_level().as_str().to_lowercase()
}

/// Returns the level that words stand for: the most verbose of them. Signs in front, as in Lustre's masks,
/// add to the current level or remove from it.
pub fn parse_level(text: &str, now: LevelFilter) -> Option<LevelFilter> {
    let level_of = |word: &str| {
        let word = word.to_lowercase();
        LEVELS.into_iter().zip(LOG_WORDS).find(|(_, words)| words.contains(&&*word)).map(|(level, _)| level)
    };
    let mut level: Option<LevelFilter> = None;
    for word in text.split_whitespace() {
        level = Some(match (word.strip_prefix('+'), word.strip_prefix('-').filter(|_| word != "-1")) {
            (Some(more), _) => level.unwrap_or(now).max(level_of(more)?),
            (_, Some(less)) => {
                let less = level_of(less)?;
                let below = LEVELS.into_iter().rev().find(|level| *level < less);
                level.unwrap_or(now).min(below.unwrap_or(LevelFilter::Error))
            }
            _ => level.map_or(level_of(word)?, |level| level.max(level_of(word).unwrap_or(level))),
        });
    }
    level
}

/// Changes the log level; returns false for unknown words.
pub fn set_level(text: &str) -> bool {
    let Some(level) = parse_level(text, log::max_level()) else { return false };
    log::set_max_level(level);
    true
}

fn install(sink: Sink, level: LevelFilter) {
    // A second call in one process (tests) keeps the first logger, which is equivalent.
    if log::set_boxed_logger(Box::new(Logger { state: Mutex::new(State { sink, limit: Limit::default() }) }))
        .is_ok()
    {
        log::set_max_level(level);
    }
}

/// Messages so far: errors, warnings.
static COUNTS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// Returns the numbers of errors and of warnings since the start, including those that the limit left out.
pub fn counts() -> [(&'static str, u64); 2] {
    let count = |index: usize| COUNTS[index].load(Ordering::Relaxed);
    [("error", count(0)), ("warning", count(1))]
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let (level, target, now) = (record.level(), record.target(), Instant::now());
        match level {
            Level::Error => drop(COUNTS[0].fetch_add(1, Ordering::Relaxed)),
            Level::Warn => drop(COUNTS[1].fetch_add(1, Ordering::Relaxed)),
            _ => {}
        }
        let message = record.args().to_string();
        nacre_env::activity::events::note_text(&format!("{}: {message}", level.as_str().to_lowercase()));
        let peer = record.key_values().get("peer".into()).map_or_else(String::new, |peer| peer.to_string());
        let origin = (record.file().unwrap_or(target), record.line().unwrap_or(0));
        let mut state = self.state.lock();
        state.write_left_out(now);
        // Rate limits do not apply to levels above the default.
        if level > Level::Info
            || state.limit.admit(now, &Line { level, target, origin, peer: &peer, message: &message })
        {
            state.write(level, target, &message);
        }
    }

    /// Logs the number of suppressed lines, if it is time for that.
    fn flush(&self) {
        self.state.lock().write_left_out(Instant::now());
    }
}

/// Appends a line, and rotates a full file first.
///
/// # Errors
/// If it cannot be written.
pub fn append(path: &Path, file: &mut File, written: &mut u64, line: &str) -> io::Result<()> {
    if *written + line.len() as u64 > LOG_BYTES_MAX {
        let old = |number: u32| PathBuf::from(format!("{}.{number}", path.display()));
        for number in (1..OLD_MAX).rev() {
            // Files that do not exist yet.
            let _ = std::fs::rename(old(number), old(number + 1));
        }
        std::fs::rename(path, old(1))?;
        reopen(path, file, written)?;
    } else if rustix::fs::fstat(&*file).is_ok_and(|found| found.st_nlink == 0) {
        // The file was removed. If its directory is missing too, the process creates it again.
        let _ = reopen(path, file, written);
    }
    file.write_all(line.as_bytes())?;
    *written += line.len() as u64;
    Ok(())
}

fn reopen(path: &Path, file: &mut File, written: &mut u64) -> io::Result<()> {
    let takes_stderr = is_same(&*file, rustix::stdio::stderr());
    (*file, *written) = open(path)?;
    if takes_stderr {
        // Panics and output of libraries go to the new file; best effort.
        let _ = rustix::stdio::dup2_stderr(&*file);
    }
    Ok(())
}

fn is_same(one: impl AsFd, other: impl AsFd) -> bool {
    match (rustix::fs::fstat(one), rustix::fs::fstat(other)) {
        (Ok(one), Ok(other)) => (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino),
        _ => false,
    }
}

fn journal_line(level: Level, target: &str, message: &str) -> String {
    format!("{}{}\n", priority(level), event(target, message))
}

/// Returns an event as one line, whatever text a peer sent.
fn event(target: &str, message: &str) -> String {
    let target = target.split("::").next().unwrap_or(target);
    format!("{target}: {}", message.replace(['\n', '\r'], " "))
}

fn line(now: SystemTime, level: Level, target: &str, message: &str) -> String {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let event = event(target, message);
    format!("{}.{:03}Z {level:<5} {event}\n", nacre_env::utc(since.as_secs()), since.subsec_millis())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn an_event_is_one_line() {
        let text = line(UNIX_EPOCH + Duration::from_millis(1500), Level::Warn, "nacre_mds::x", "a\nb");
        assert_eq!(text, "1970-01-01T00:00:01.500Z WARN  nacre_mds: a b\n");
        assert_eq!(journal_line(Level::Warn, "nacre_mds::x", "a\nb"), "<4>nacre_mds: a b\n");
    }

    #[test]
    fn levels_have_names_of_their_own_and_those_of_lustre() {
        let level = |text: &str| parse_level(text, LevelFilter::Info);
        assert_eq!(level("debug"), Some(LevelFilter::Debug));
        assert_eq!(level("WARN"), Some(LevelFilter::Warn));
        assert_eq!(level("error warning"), Some(LevelFilter::Warn));
        assert_eq!((level("-1"), level("0")), (Some(LevelFilter::Trace), Some(LevelFilter::Error)));
        assert_eq!(level("+rpctrace"), Some(LevelFilter::Trace));
        assert_eq!(level("+warning"), Some(LevelFilter::Info), "it is more already");
        assert_eq!(level("-ha"), Some(LevelFilter::Warn));
        assert_eq!(level("-trace"), Some(LevelFilter::Info), "it is less already");
        for text in ["", "loud", "+loud", "-", "1"] {
            assert_eq!(level(text), None, "{text}");
        }
    }

    #[test]
    fn full_logs_are_put_aside_and_the_oldest_goes() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("x.log");
        let (mut file, mut written) = open(&path).expect("open");
        for round in 0..OLD_MAX + 3 {
            written += LOG_BYTES_MAX;
            append(&path, &mut file, &mut written, &format!("line {round}\n")).expect("append");
        }
        assert_eq!(std::fs::read_to_string(&path).expect("read"), format!("line {}\n", OLD_MAX + 2));
        let oldest = dir.path().join(format!("x.log.{OLD_MAX}"));
        assert_eq!(std::fs::read_to_string(oldest).expect("read"), "line 2\n");
        assert_eq!(std::fs::read_dir(dir.path()).expect("read").count() as u32, OLD_MAX + 1);
        std::fs::remove_file(&path).expect("cleaned away");
        append(&path, &mut file, &mut written, "again\n").expect("append");
        assert_eq!(std::fs::read_to_string(&path).expect("made again"), "again\n");
    }
}
