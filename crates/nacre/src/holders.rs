//! Users of a mount: processes with an open file, a directory or a mapping in it, found in `/proc` without a
//! request to the file system, which may be unresponsive.

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use std::fs;
use std::path::{Path, PathBuf};

/// Most processes that a message names.
const NAMED_MAX: usize = 5;

/// The device of a mount, major and minor number.
pub type Device = (u32, u32);

/// Returns the device of the file system that contains a path, from the kernel's cached attributes.
pub fn device_of(path: &Path) -> Option<Device> {
    let found = statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE).ok()?;
    Some((found.stx_dev_major, found.stx_dev_minor))
}

/// A process that uses a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Process id.
    pub pid: u32,
    /// Name of its program.
    pub name: String,
}

/// Returns all processes that use a device, as far as this user may see them.
pub fn of_device(device: Device) -> Vec<Holder> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let me = std::process::id();
    let mut found: Vec<Holder> = pids
        .filter(|&pid| pid != me && holds(Path::new(&format!("/proc/{pid}")), device))
        .map(|pid| {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            Holder { pid, name: name.trim_end().to_owned() }
        })
        .collect();
    found.sort_by_key(|holder| holder.pid);
    found
}

fn holds(process: &Path, device: Device) -> bool {
    let is_on = |path: PathBuf| device_of(&path) == Some(device);
    let descriptors = fs::read_dir(process.join("fd")).into_iter().flatten();
    ["cwd", "root", "exe"].into_iter().any(|link| is_on(process.join(link)))
        || descriptors.filter_map(Result::ok).any(|entry| is_on(entry.path()))
        || maps(&fs::read(process.join("maps")).unwrap_or_default(), device.0, device.1)
}

/// Returns true if a line of `/proc/PID/maps` is of the device: its fourth field, in hexadecimal.
fn maps(text: &[u8], major: u32, minor: u32) -> bool {
    let wanted = format!("{major:02x}:{minor:02x}");
    let mut lines = text.split(|&byte| byte == b'\n');
    lines.any(|line| line.split(|&byte| byte == b' ').nth(3) == Some(wanted.as_bytes()))
}

/// Names the processes in half a sentence: `in use by bash (pid 12) and less (pid 15)`.
pub fn named(holders: &[Holder]) -> String {
    let mut words: Vec<String> = holders
        .iter()
        .take(NAMED_MAX)
        .map(|holder| format!("{} (pid {})", holder.name, holder.pid))
        .collect();
    if holders.len() > NAMED_MAX {
        words.push(format!("{} more", holders.len() - NAMED_MAX));
    }
    match words.split_last() {
        None if rustix::process::geteuid().is_root() => {
            "in use by no process that can be seen from here (another mount on it, or a container)".to_owned()
        }
        None => "in use by processes that only root can see".to_owned(),
        Some((last, [])) => format!("in use by {last}"),
        Some((last, others)) => format!("in use by {} and {last}", others.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_files_directories_and_mappings_of_a_device_are_found() {
        let null = device_of(Path::new("/proc/self")).expect("proc is a file system");
        let mut child =
            std::process::Command::new("sleep").arg("100").current_dir("/proc").spawn().expect("sleep");
        let found = of_device(null);
        child.kill().expect("kill");
        child.wait().expect("wait");
        assert!(found.contains(&Holder { pid: child.id(), name: "sleep".to_owned() }), "{found:?}");
        let line = b"7f00-7f01 r--p 00000000 00:2f 12  /mnt/x\n";
        assert!(maps(line, 0, 0x2f) && !maps(line, 0, 0x2e));
    }

    #[test]
    fn holders_are_named_in_words() {
        let holder = |pid| Holder { pid, name: "cat".to_owned() };
        assert_eq!(named(&[holder(1)]), "in use by cat (pid 1)");
        assert_eq!(named(&[holder(1), holder(2)]), "in use by cat (pid 1) and cat (pid 2)");
        let many: Vec<Holder> = (1..9).map(holder).collect();
        assert!(named(&many).ends_with("cat (pid 5) and 3 more"), "{}", named(&many));
    }
}
