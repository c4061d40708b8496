//! Recent events of this process as text, saved on request and when a thread panics.

use super::{OperationShot, operation_words, wait_words};
use crate::failure::{Failure, Result};
use nacre_env::activity::events::{self, Event, What};
use nacre_env::activity::{self, STAGES};
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::UNIX_EPOCH;

/// File of the events of this process.
static FILE: OnceLock<PathBuf> = OnceLock::new();

/// Saves the events to `file` whenever a thread of this process panics, from now on.
pub fn save_on_panic(file: PathBuf) {
    if FILE.set(file).is_err() {
        return;
    }
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        usual(panic);
        events::note_text(&format!("panic: {panic}"));
        if let Some(Ok(path)) = FILE.get().map(|file| save(file)) {
            eprintln!("the events before the panic are in {}", path.display());
        }
    }));
}

/// Saves the events, and what the threads do, to `file`; the previous ones stay as `file.1`.
///
/// # Errors
/// If the file cannot be written.
pub fn save(file: &Path) -> Result<PathBuf> {
    let fail = || Failure::because(format!("write {}", file.display()));
    let mut old = file.as_os_str().to_owned();
    old.push(".1");
    // There may be none.
    let _ = std::fs::rename(file, old);
    let mut out =
        OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(file).map_err(fail())?;
    let mut text = String::new();
    for line in lines().into_iter().chain(threads()) {
        text.push_str(&line);
        text.push('\n');
    }
    out.write_all(text.as_bytes()).map_err(fail())?;
    Ok(file.to_path_buf())
}

/// Returns the recent events, one a line, the oldest first.
pub fn lines() -> Vec<String> {
    events::all().iter().map(line).collect()
}

fn line(event: &Event) -> String {
    let what = match &event.what {
        What::Ended { operation, status, took } => {
            let words = operation_words(&OperationShot::new(0, operation, *took, &[0; STAGES]));
            let result =
                if *status == nacre_types::Status::OK { String::new() } else { format!(": {status}") };
            format!("{words} took {} us{result}", took.as_micros())
        }
        What::Waited { cause, took } => {
            format!("waited {} us for {}", took.as_micros(), wait_words(&(*cause).into()))
        }
        What::Lock { what, client, handle: 0 } => format!("{what} client {client}"),
        What::Lock { what, client, handle } => format!("{what} client {client}, lock {handle:#x}"),
        What::Text(text) => text.to_string(),
    };
    let since = event.at.duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{}.{:06} {:>7} {what}", nacre_env::utc(since.as_secs()), since.subsec_micros(), event.tid)
}

/// Describes what the threads of this process do.
fn threads() -> Vec<String> {
    let mut lines = vec!["threads:".to_owned()];
    for thread in activity::threads() {
        let mut line = format!("{:>7} {}", thread.tid, thread.name);
        for operation in &thread.operations {
            let shot =
                OperationShot::new(operation.id.0, &operation.operation, operation.age, &operation.spent);
            // Writing to a String cannot fail.
            let _ = write!(line, ", {} for {} ms", operation_words(&shot), shot.age_ms);
        }
        if let Some((cause, age)) = thread.wait {
            let _ = write!(line, ", waits {} ms for {}", age.as_millis(), wait_words(&cause.into()));
        }
        lines.push(line);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_of_a_thread_saves_the_events() {
        let scratch = tempfile::tempdir().expect("a directory");
        let file = scratch.path().join("panic.events");
        save_on_panic(file.clone());
        let ended = nacre_env::thread::Builder::new()
            .name("unlucky".to_owned())
            .spawn(|| panic!("broken on purpose"))
            .expect("starts")
            .join();
        assert!(ended.is_err());
        let text = std::fs::read_to_string(&file).expect("saved");
        assert!(text.contains("broken on purpose") && text.contains("threads:"), "{text}");
    }

    #[test]
    fn saved_events_contain_texts_and_threads_and_the_previous_ones_stay() {
        let scratch = tempfile::tempdir().expect("a directory");
        let file = scratch.path().join("x.events");
        events::note_text("the first");
        save(&file).expect("saved");
        events::note_text("the second");
        save(&file).expect("saved again");
        let text = std::fs::read_to_string(&file).expect("there");
        assert!(
            text.contains("the first") && text.contains("the second") && text.contains("threads:"),
            "{text}"
        );
        let old = std::fs::read_to_string(scratch.path().join("x.events.1")).expect("there");
        assert!(!old.contains("the second"), "{old}");
    }
}
