//! The log: plain lines with time and level, to a file of bounded size or to standard error.

use log::{Level, LevelFilter, Log, Metadata, Record};
use parking_lot::Mutex;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// A log file that has grown to this is renamed to `NAME.1` (replacing the one before), so that at most twice as much
/// is kept.
const LOG_BYTES_MAX: u64 = 8 << 20;

/// Where lines go.
enum Sink {
    Stderr,
    File { path: PathBuf, file: File, written: u64 },
}

struct Logger {
    sink: Mutex<Sink>,
}

/// Logs to standard error from here on.
pub fn to_stderr(level: LevelFilter) {
    install(Sink::Stderr, level);
}

/// Logs to `path` from here on. Panics go there too if standard error was redirected to the same file.
///
/// # Errors
/// If the file cannot be opened.
pub fn to_file(path: &Path, level: LevelFilter) -> io::Result<()> {
    let (file, written) = open(path)?;
    install(Sink::File { path: path.to_path_buf(), file, written }, level);
    Ok(())
}

/// Opens a log file for appending.
///
/// # Errors
/// If it cannot be opened or made.
pub fn open(path: &Path) -> io::Result<(File, u64)> {
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
    let written = file.metadata()?.len();
    Ok((file, written))
}

fn install(sink: Sink, level: LevelFilter) {
    // A second call in one process (tests) keeps the first logger, which is as good.
    if log::set_boxed_logger(Box::new(Logger { sink: Mutex::new(sink) })).is_ok() {
        log::set_max_level(level);
    }
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let line = line(SystemTime::now(), record.level(), record.target(), &record.args().to_string());
        let mut sink = self.sink.lock();
        // There is nowhere to report that a log line could not be written.
        let _ = match &mut *sink {
            Sink::Stderr => io::stderr().write_all(line.as_bytes()),
            Sink::File { path, file, written } => append(path, file, written, &line),
        };
    }

    fn flush(&self) {}
}

fn append(path: &Path, file: &mut File, written: &mut u64, line: &str) -> io::Result<()> {
    if *written + line.len() as u64 > LOG_BYTES_MAX {
        let mut old = path.as_os_str().to_owned();
        old.push(".1");
        std::fs::rename(path, old)?;
        (*file, *written) = open(path)?;
    }
    file.write_all(line.as_bytes())?;
    *written += line.len() as u64;
    Ok(())
}

fn line(now: SystemTime, level: Level, target: &str, message: &str) -> String {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let target = target.split("::").next().unwrap_or(target);
    // One event is one line, whatever a peer put into its text.
    let message = message.replace(['\n', '\r'], " ");
    format!("{}.{:03}Z {level:<5} {target}: {message}\n", utc(since.as_secs()), since.subsec_millis())
}

/// `YYYY-MM-DDTHH:MM:SS` of seconds since 1970. Days to dates by the civil calendar, eras of 400 years.
pub fn utc(seconds: u64) -> String {
    let days = seconds / 86_400 + 719_468;
    let of_day = seconds % 86_400;
    let era = days / 146_097;
    let day_of_era = days % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn dates_are_right_around_leap_days() {
        assert_eq!(utc(0), "1970-01-01T00:00:00");
        assert_eq!(utc(951_782_400), "2000-02-29T00:00:00");
        assert_eq!(utc(1_709_251_199), "2024-02-29T23:59:59");
        assert_eq!(utc(4_107_542_400), "2100-03-01T00:00:00");
    }

    #[test]
    fn an_event_is_one_line() {
        let text = line(UNIX_EPOCH + Duration::from_millis(1500), Level::Warn, "nacre_mds::x", "a\nb");
        assert_eq!(text, "1970-01-01T00:00:01.500Z WARN  nacre_mds: a b\n");
    }

    #[test]
    fn a_full_log_is_put_aside_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("x.log");
        let (mut file, mut written) = open(&path).expect("open");
        written += LOG_BYTES_MAX;
        append(&path, &mut file, &mut written, "line\n").expect("append");
        assert_eq!(std::fs::read_to_string(&path).expect("read"), "line\n");
        assert!(dir.path().join("x.log.1").exists());
    }
}
