//! Settings of parameters that hold for this host's mounts only, kept in files of this host: what `lctl set_param -C` writes
//! and a mount applies when it starts.
//!
//! `mount.client.params` is for every file system, `mount.FSNAME.params` for one, and counts more. Each line is
//! `NAME=VALUE`; empty lines and those with `#` in front are for people.

use crate::instance::if_there;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A name or pattern, and a value.
pub type Setting = (String, String);

/// Directory of the files: `/etc/nacre` for root, else `nacre` in the user's directory of settings; `None` without one.
fn dir() -> Option<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Some(PathBuf::from("/etc/nacre"));
    }
    let given = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = given("XDG_CONFIG_HOME").or_else(|| given("HOME").map(|home| home.join(".config")));
    base.map(|base| base.join("nacre"))
}

/// The file of one file system, or of all; `None` if this user has no place for it.
pub fn path(fsname: Option<&str>) -> Option<PathBuf> {
    let name = format!("mount.{}.params", fsname.unwrap_or("client"));
    dir().map(|dir| dir.join(name))
}

/// The setting in a line, if there is one. What comes before the first `=` is the name.
pub fn setting_in(line: &str) -> Option<Setting> {
    let line = line.trim();
    if line.starts_with('#') {
        return None;
    }
    let (name, value) = line.split_once('=')?;
    let (name, value) = (name.trim(), value.trim());
    (!name.is_empty() && !value.is_empty()).then(|| (name.to_owned(), value.to_owned()))
}

/// The settings of a file, in its order; a file that is not there has none.
///
/// # Errors
/// If the file cannot be read.
pub fn read(path: &Path) -> io::Result<Vec<Setting>> {
    let text = if_there(fs::read_to_string(path))?.unwrap_or_default();
    Ok(text.lines().filter_map(setting_in).collect())
}

/// What a mount of this file system has to apply, in this order. Files that cannot be read are logged.
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

/// The text of a file with a setting replaced in its place, appended, or without value taken out. The rest stays as it was.
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

/// Puts a setting into a file, or takes it out; makes the file and its directory, and removes a file that would be empty.
/// The file is replaced whole, so that a mount that starts reads the old or the new one; a crash of the host may lose the
/// change.
///
/// # Errors
/// What the system says; the file is as it was.
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
