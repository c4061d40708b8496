//! Options that mount(8) does not pass on. `dev` and `suid` are defaults of the kernel, so mount(8) drops
//! them as redundant; mounts of NacreFS are `nodev` and `nosuid` unless these options are given. They are
//! still in the command line of mount(8) and in the table that it reads.
//!
//! Only the administrator can use this: for other users mount(8) and fusermount3 add `nosuid,nodev`.

use crate::mounts::unescape;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

/// The options, each with its opposite.
const KEPT: [(&str, &str); 2] = [("dev", "nodev"), ("suid", "nosuid")];

/// Returns the options that mount(8) was given and has not `passed` on.
pub(super) fn words(passed: &[String], source: &str, mount_point: &Path) -> Vec<String> {
    let parent = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    let Ok(command) = fs::read(format!("/proc/{parent}/cmdline")) else { return Vec::new() };
    let command: Vec<String> =
        command.split(|&byte| byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect();
    let is_mount = command.first().is_some_and(|name| Path::new(name).file_name() == Some("mount".as_ref()));
    if !is_mount {
        return Vec::new();
    }
    let (table, said) = read(&command);
    let line = fs::read(table).ok().and_then(|table| line_of(&table, source, mount_point));
    asked(passed, line.iter().chain(&said))
}

/// Returns the table that a call of mount(8) names, and the values of its `-o`.
fn read(command: &[String]) -> (String, Vec<String>) {
    let (mut table, mut options) = ("/etc/fstab".to_owned(), Vec::new());
    let mut words = command.iter().skip(1);
    while let Some(word) = words.next() {
        let (name, value) = match word.split_once('=') {
            Some((name, value)) if name.starts_with("--") => (name, Some(value.to_owned())),
            _ if word.starts_with("--") => (word.as_str(), None),
            // Letters without a value may precede it.
            _ => match word.find(['o', 'T', 'O']).filter(|_| word.starts_with('-')) {
                Some(at) => (&word[at..=at], (at + 1 < word.len()).then(|| word[at + 1..].to_owned())),
                None => continue,
            },
        };
        if matches!(name, "o" | "--options" | "T" | "--fstab" | "O" | "--test-opts") {
            let value = value.or_else(|| words.next().cloned()).unwrap_or_default();
            match name {
                "o" | "--options" => options.push(value),
                "T" | "--fstab" => table = value,
                _ => {}
            }
        }
    }
    (table, options)
}

/// Returns the options of the last line of a table for this source and mount point.
fn line_of(table: &[u8], source: &str, mount_point: &Path) -> Option<String> {
    let fields = |line: &[u8]| -> Vec<Vec<u8>> {
        let fields = line.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty());
        fields.map(|field| unescape(field).into_vec()).collect()
    };
    let is_it = |fields: &Vec<Vec<u8>>| match fields.as_slice() {
        [from, on, ..] => {
            from == source.as_bytes() && Path::new(&*String::from_utf8_lossy(on)) == mount_point
        }
        _ => false,
    };
    let line = table.split(|&byte| byte == b'\n').map(fields).rfind(is_it)?;
    line.get(3).map(|options| String::from_utf8_lossy(options).into_owned())
}

/// Returns the dropped options of these lists: the last word takes precedence.
fn asked<'a>(passed: &[String], said: impl Iterator<Item = &'a String>) -> Vec<String> {
    let said: Vec<&str> = said.flat_map(|list| list.split(',')).collect();
    let passed: Vec<&str> = passed.iter().flat_map(|list| list.split(',')).collect();
    let is_asked = |(word, opposite): &(&str, &str)| {
        let last = said.iter().rfind(|said| *said == word || *said == opposite);
        last == Some(word) && !passed.contains(opposite)
    };
    KEPT.iter().filter(|kept| is_asked(kept)).map(|(word, _)| (*word).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn the_command_line_of_mount_is_understood() {
        let read = |line: &str| read(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        let fstab = "/etc/fstab".to_owned();
        assert_eq!(read("mount -t nacre -o dev,ro a b"), (fstab.clone(), strings(&["dev,ro"])));
        assert_eq!(read("mount -vodev a b --options=suid"), (fstab.clone(), strings(&["dev", "suid"])));
        assert_eq!(read("mount -a -O _netdev -T /my/tab"), ("/my/tab".to_owned(), Vec::new()));
        assert_eq!(read("mount --fstab=/x --options ro b"), ("/x".to_owned(), strings(&["ro"])));
        assert_eq!(read("mount b -o"), (fstab, strings(&[""])));
    }

    #[test]
    fn lines_of_a_table_are_found_by_source_and_mount_point() {
        let table = b"# x\nh@tcp:/fs /a nacre dev 0 0\nh@tcp:/fs\t/my\\040mnt nacre suid,ro\nh@tcp:/fs /short nacre\n";
        let of = |path: &str| line_of(table, "h@tcp:/fs", Path::new(path));
        assert_eq!((of("/a"), of("/my mnt")), (Some("dev".into()), Some("suid,ro".into())));
        assert_eq!((of("/short"), of("/other")), (None, None));
        assert_eq!(line_of(table, "other@tcp:/fs", Path::new("/a")), None);
    }

    #[test]
    fn the_last_word_counts_and_what_was_passed_on_wins() {
        let asked = |passed: &[&str], said: &[&str]| asked(&strings(passed), strings(said).iter());
        assert_eq!(asked(&["rw"], &["dev,suid"]), ["dev", "suid"]);
        assert_eq!(asked(&["rw"], &["dev", "nodev,suid"]), ["suid"]);
        assert_eq!(asked(&["rw,nodev"], &["dev"]), Vec::<String>::new());
        assert_eq!(asked(&["rw"], &["defaults"]), Vec::<String>::new());
    }
}
