//! Parameter settings for the mounts of this host only, in files of this host: `lctl set_param -C` writes
//! them and a mount applies them when it starts.
//!
//! `mount.client.params` is for every file system, `mount.FSNAME.params` for one, and takes precedence. Each
//! line is `NAME=VALUE`; empty lines and lines that start with `#` are ignored.

use crate::instance::if_there;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Name or pattern, and value.
pub type Setting = (String, String);

/// Returns the directory of the files: `/etc/nacre` for root, else `nacre` in the user's configuration
/// directory; `None` without one.
fn dir() -> Option<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Some(PathBuf::from("/etc/nacre"));
    }
    let given = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = given("XDG_CONFIG_HOME").or_else(|| given("HOME").map(|home| home.join(".config")));
    base.map(|base| base.join("nacre"))
}

/// Returns the file of one file system, or of all; `None` if this user has no directory for it.
pub fn path(fsname: Option<&str>) -> Option<PathBuf> {
    let name = format!("mount.{}.params", fsname.unwrap_or("client"));
    dir().map(|dir| dir.join(name))
}

/// Parses the setting of a line, if it has one: the name ends at the first `=`.
pub fn setting_in(line: &str) -> Option<Setting> {
    let line = line.trim();
    if line.starts_with('#') {
        return None;
    }
    let (name, value) = line.split_once('=')?;
    let (name, value) = (name.trim(), value.trim());
    (!name.is_empty() && !value.is_empty()).then(|| (name.to_owned(), value.to_owned()))
}

/// Reads the settings of a file, in its order; a missing file has none.
///
/// # Errors
/// If the file cannot be read.
pub fn read(path: &Path) -> io::Result<Vec<Setting>> {
    let text = if_there(fs::read_to_string(path))?.unwrap_or_default();
    Ok(text.lines().filter_map(setting_in).collect())
}

/// Returns the settings that a mount of this file system applies, in this order. Unreadable files are logged.
pub fn of_mount(fsname: &str) -> Vec<Setting> {
    let mut all = Vec::new();
    for path in [path(None), path(Some(fsname))].into_iter().flatten() {
        match read(&path) {
            Ok(settings) => all.extend(settings),
            Err(error) => log::warn!("{} is not used: {error}", path.display()),
        }
    }
    all
}

/// Returns the text of a file with a setting replaced in its place, appended, or (without value) removed.
/// Other lines stay unchanged.
fn edited(text: &str, name: &str, value: Option<&str>) -> String {
    let is_it = |line: &&str| setting_in(line).is_some_and(|(known, _)| known == name);
    let mut out = String::new();
    let mut pending = value.map(|value| format!("{name}={value}\n"));
    for line in text.lines() {
        if !is_it(&line) {
            out += line;
            out.push('\n');
        } else if let Some(new) = pending.take() {
            out += &new;
        }
    }
    out + &pending.unwrap_or_default()
}

/// Stores a setting in a file, or removes it; creates the file and its directory, and removes a file that
/// would be empty. The file is replaced atomically, so that a starting mount reads the old or the new one; it
/// is not synced, so a crash of the host may lose the change.
///
/// # Errors
/// Those of the system; the file is unchanged.
pub fn change(path: &Path, name: &str, value: Option<&str>) -> io::Result<()> {
    let old = if_there(fs::read_to_string(path))?.unwrap_or_default();
    let new = edited(&old, name, value);
    if new.is_empty() {
        return if_there(fs::remove_file(path)).map(drop);
    }
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir)?;
    }
    let draft = path.with_extension(format!("params.{}", std::process::id()));
    let written = fs::write(&draft, new).and_then(|()| fs::rename(&draft, path));
    written.inspect_err(|_| drop(fs::remove_file(&draft)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_replaced_in_its_place_and_the_rest_is_kept() {
        let text = "# why\nosc.*.max_dirty_mb=64\n\nllite.*.stats=0\nosc.*.max_dirty_mb = 7\n";
        let changed = edited(text, "osc.*.max_dirty_mb", Some("32"));
        assert_eq!(changed, "# why\nosc.*.max_dirty_mb=32\n\nllite.*.stats=0\n");
        assert_eq!(edited(&changed, "osc.*.max_dirty_mb", None), "# why\n\nllite.*.stats=0\n");
        assert_eq!(edited("", "a.b", Some("x=y")), "a.b=x=y\n");
        assert_eq!(edited("a.b=1", "a.b", None), "");
    }

    #[test]
    fn files_come_and_go_with_their_settings() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("deep/mount.client.params");
        assert_eq!(read(&path).expect("none is fine"), []);
        change(&path, "a.b", Some("1")).expect("written");
        change(&path, "c.d", Some("2 3")).expect("written");
        let expected = [("a.b".to_owned(), "1".to_owned()), ("c.d".to_owned(), "2 3".to_owned())];
        assert_eq!(read(&path).expect("read"), expected);
        for name in ["a.b", "c.d", "e.f"] {
            change(&path, name, None).expect("taken out");
        }
        assert!(!path.exists() && path.parent().expect("there").read_dir().expect("read").next().is_none());
    }

    #[test]
    fn lines_without_a_setting_are_for_people() {
        for line in ["", "# a=b", "words", "=1", "a=", " "] {
            assert_eq!(setting_in(line), None, "{line}");
        }
    }
}
