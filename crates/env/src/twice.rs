//! Duplicates of small, essential files: `NAME` and `NAME.copy`, in blocks of their own.
//!
//! The file itself is written first and is authoritative; the copy replaces it when it is damaged. So a copy
//! may be one change behind after a crash, or missing where an older program wrote; [`restore`] makes them
//! equal.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Longest file that is read, in bytes.
const LEN_MAX: u64 = 64 << 20;

/// Result of reading a file and its copy.
pub struct Found<T> {
    /// Contents of the file, or of its copy if the file is damaged.
    pub value: T,
    /// Encoded form of the value.
    pub bytes: Vec<u8>,
    /// Those of the two files that cannot be used, or are missing.
    pub damaged: Vec<PathBuf>,
    /// True if both are equal.
    pub is_whole: bool,
}

/// Returns the path of a file's copy.
pub fn copy_path(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.copy"))
}

/// Decoder of a file's bytes.
pub struct Format<T, E> {
    /// Decodes the bytes of the file at the path.
    pub decode: fn(&[u8], &Path) -> Result<T, E>,
    /// Converts an error of the system.
    pub unreadable: fn(io::Error, &Path) -> E,
    /// True for errors that an undamaged file causes, such as a newer version, for which the copy is no
    /// replacement.
    pub is_final: fn(&E) -> bool,
}

/// Reads a file, and its copy. `None` if neither exists.
///
/// # Errors
/// The error of the file, or of the copy if there is no file.
pub fn read<T, E>(dir: &Path, name: &str, format: &Format<T, E>) -> Result<Option<Found<T>>, E> {
    let paths = [dir.join(name), copy_path(dir, name)];
    let look = |path: &Path| match read_file(path) {
        Ok(None) => None,
        Ok(Some(bytes)) => Some((format.decode)(&bytes, path).map(|value| (value, bytes))),
        Err(error) => Some(Err((format.unreadable)(error, path))),
    };
    let [path, copy_path] = paths;
    match (look(&path), look(&copy_path)) {
        (None, None) => Ok(None),
        (Some(Ok((value, bytes))), copy) => {
            let is_whole = matches!(&copy, Some(Ok((_, copied))) if *copied == bytes);
            let damaged = if matches!(copy, Some(Err(_))) { vec![copy_path] } else { Vec::new() };
            Ok(Some(Found { value, bytes, damaged, is_whole }))
        }
        (Some(Err(error)), _) if (format.is_final)(&error) => Err(error),
        (_, Some(Ok((value, bytes)))) => {
            Ok(Some(Found { value, bytes, damaged: vec![path], is_whole: false }))
        }
        (Some(Err(error)), _) | (None, Some(Err(error))) => Err(error),
    }
}

fn read_file(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    file.take(LEN_MAX).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

/// Replaces the copy of a file.
///
/// # Durability
/// Durable on return.
///
/// # Errors
/// Errors of the system; the old copy is unchanged then.
pub fn write_copy(dir: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    replace(dir, &copy_path(dir, name), bytes)
}

/// Writes what was read over the files that differ from it.
///
/// # Errors
/// Errors of the system; the better one of the two files is unchanged then.
pub fn restore<T>(dir: &Path, name: &str, found: &Found<T>) -> io::Result<()> {
    if found.is_whole {
        return Ok(());
    }
    let path = dir.join(name);
    if found.damaged.contains(&path) {
        replace(dir, &path, &found.bytes)?;
    }
    write_copy(dir, name, &found.bytes)
}

fn replace(dir: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let fresh = path.with_extension("copy.new");
    let written = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&fresh);
    let written = written.and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()));
    if let Err(error) = written {
        // The unfinished file would only take space.
        let _ = fs::remove_file(&fresh);
        return Err(error);
    }
    fs::rename(&fresh, path)?;
    File::open(dir)?.sync_all()
}

/// True if a name in a directory is the copy of `name`, or a leftover of writing it after a crash.
pub fn is_copy_of(name: &str, found: &[u8]) -> bool {
    let rest = found.strip_prefix(name.as_bytes());
    rest.is_some_and(|rest| [&b".copy"[..], b".copy.new"].contains(&rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(dir: &Path) -> Result<Option<Found<String>>, String> {
        let format = Format {
            decode: |bytes, path| match bytes {
                [b'v', ..] => Ok(String::from_utf8_lossy(bytes).into_owned()),
                [b'w', ..] => Err("too new".to_owned()),
                _ => Err(format!("{} is damaged", path.display())),
            },
            unreadable: |error, _| error.to_string(),
            is_final: |error| error == "too new",
        };
        read(dir, "file", &format)
    }

    #[test]
    fn either_file_is_enough_and_restoring_makes_both_the_same() {
        let scratch = std::env::temp_dir().join(format!("nacre-twice-{}", std::process::id()));
        fs::create_dir(&scratch).expect("made");
        let (file, copy) = (scratch.join("file"), copy_path(&scratch, "file"));
        assert!(read_text(&scratch).expect("nothing").is_none());
        fs::write(&file, "v1").expect("written");
        let found = read_text(&scratch).expect("readable").expect("there");
        assert!(found.damaged.is_empty() && !found.is_whole, "as older programs leave it");
        restore(&scratch, "file", &found).expect("restored");
        assert!(read_text(&scratch).expect("readable").expect("there").is_whole);
        for (break_it, broken) in [
            (Box::new(|path: &Path| fs::write(path, "?")) as Box<dyn Fn(&Path) -> io::Result<()>>, &file),
            (Box::new(|path: &Path| fs::remove_file(path)), &file),
            (Box::new(|path: &Path| fs::write(path, "?")), &copy),
        ] {
            break_it(broken).expect("damaged");
            let found = read_text(&scratch).expect("readable").expect("there");
            assert_eq!((&*found.value, &found.damaged), ("v1", &vec![broken.clone()]));
            restore(&scratch, "file", &found).expect("restored");
            assert!(read_text(&scratch).expect("readable").expect("there").is_whole);
        }
        fs::write(&file, "v2").expect("written");
        let found = read_text(&scratch).expect("readable").expect("there");
        assert_eq!((&*found.value, found.damaged.len()), ("v2", 0), "a crash came before the copy");
        fs::write(&file, "w3").expect("written");
        assert_eq!(read_text(&scratch).err().as_deref(), Some("too new"), "a newer program wrote it");
        for path in [&file, &copy] {
            fs::write(path, "?").expect("damaged");
        }
        let error = read_text(&scratch).err().expect("both are damaged");
        assert!(error.contains("file is damaged"), "{error}");
        assert!(is_copy_of("file", b"file.copy") && !is_copy_of("file", b"file.new"));
        fs::remove_dir_all(&scratch).expect("removed");
    }
}
