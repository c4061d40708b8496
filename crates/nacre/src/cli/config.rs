//! Configuration files of `nacre up`: the options of the command under their names.
//!
//! A file describes the start as a whole: an option that it lacks has its default, not the value of the last start. So an
//! address that is removed from the file is not served any more.

use super::UpArgs;
use super::mount::MountOptions;
use crate::backend::Backends;
use crate::device_words;
use crate::failure::{Failure, Result};
use crate::http_address::HttpAddress;
use crate::listen::{self, Address};
use crate::ost_cache::OstCaches;
use crate::ost_list;
use nacre_types::Security;
use nacre_types::limits::{MDT_COUNT_MAX, TARGET_INDEX_MAX};
use nacre_types::nid::check_fsname;
use serde::Deserialize;
use std::fs;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};

/// Largest file that is read, in bytes.
const SIZE_MAX: u64 = 1 << 20;
/// Similarity of a misspelt key to a known one, from 0 to 1, from which on it is suggested.
const SIMILAR: f64 = 0.85;

/// Value of a key, from the file.
type Value<'a> = Spanned<DeValue<'a>>;

/// A key of the file, named as the option.
struct Key {
    name: &'static str,
    /// What to write, for messages.
    example: &'static str,
}

const fn key(name: &'static str, example: &'static str) -> Key {
    Key { name, example }
}

const KEYS: &[Key] = &[
    key("dir", r#"dir = "/srv/fs""#),
    key("mount", r#"mount = "/mnt/nacre""#),
    key("options", r#"options = "ro,noatime""#),
    key("separate", "separate = true, or false for one process"),
    key("port", "port = 7000"),
    key("listen", r#"listen = ["10.0.0.1@tcp"]"#),
    key("security", r#"security = "encrypt", "authenticate" or "open""#),
    key("metrics", r#"metrics = "127.0.0.1:9820""#),
    key("fsname", r#"fsname = "nacre""#),
    key("mdts", "mdts = 1"),
    key("osts", "osts = 4"),
    key("ost-backend", r#"ost-backend = ["block:/dev/sdb"]"#),
    key("mdt-backend", r#"mdt-backend = ["block:/dev/sdc"]"#),
    key("ost-cache", r#"ost-cache = ["/dev/nvme0n1p1"]"#),
    key("flash", r#"flash = "0-3,8""#),
    key("disk", r#"disk = "4-7""#),
    key("foreground", "foreground = true"),
    key("json", "json = true"),
];

impl Key {
    /// Returns the message for a wrong value. Refusals of the command line name the option and what to write.
    fn refusal(&self, why: &str) -> String {
        let (name, example) = (self.name, self.example);
        match why.strip_prefix("--") {
            Some(refusal) => refusal.to_owned(),
            None => format!("{name}: {why}; write {example}"),
        }
    }

    /// Checks a value and stores it; the error says what is wrong with the value.
    fn set(&self, args: &mut UpArgs, value: Value<'_>) -> std::result::Result<(), String> {
        let shape = &mut args.shape;
        match self.name {
            "dir" => args.dir = Some(absolute(value)?),
            "mount" => args.mount = Some(absolute(value)?),
            "options" => args.options = mount_options(value)?,
            "separate" => {
                args.separate = read(value)?;
                args.one_process = !args.separate;
            }
            "port" => args.port = Some(number(value, 1, u16::MAX)?),
            "listen" => args.listen = addresses(value)?,
            "security" => args.security = Some(security(value)?),
            "metrics" => args.metrics = Some(metrics(value)?),
            "fsname" => shape.fsname = Some(fsname(value)?),
            "mdts" => shape.mdts = Some(number(value, 1, MDT_COUNT_MAX)?),
            "osts" => shape.osts = Some(number(value, 1, TARGET_INDEX_MAX)?),
            "ost-backend" => {
                shape.ost_backend = devices(value)?;
                let given = &shape.ost_backend;
                Backends::parse(given, count(given), &[], 1).map_err(|failure| failure.message)?;
            }
            "mdt-backend" => {
                shape.mdt_backend = devices(value)?;
                let given = &shape.mdt_backend;
                Backends::parse(&[], 1, given, count(given)).map_err(|failure| failure.message)?;
            }
            "ost-cache" => {
                shape.ost_cache = devices(value)?;
                let given = &shape.ost_cache;
                OstCaches::parse(given, count(given)).map_err(|failure| failure.message)?;
            }
            "flash" => shape.flash = Some(osts(value)?),
            "disk" => shape.disk = Some(osts(value)?),
            "foreground" => args.foreground = read(value)?,
            "json" => args.json = read(value)?,
            other => return Err(format!("'{other}' is no option")),
        }
        Ok(())
    }
}

/// Returns the options of `args` completed by those of the file that they name: an option of the command line
/// replaces the one of the file.
///
/// # Errors
/// If the file cannot be read, or has an unknown key or a wrong value.
pub fn complete(args: &UpArgs, path: &Path) -> Result<UpArgs> {
    let file = load(path)?;
    let UpArgs { shape, .. } = &args;
    let says_shape = args.separate || args.one_process;
    let mut all = UpArgs {
        dir: args.dir.clone().or(file.dir),
        mount: args.mount.clone().or(file.mount),
        separate: if says_shape { args.separate } else { file.separate },
        one_process: if says_shape { args.one_process } else { file.one_process },
        port: args.port.or(file.port),
        listen: either(&args.listen, file.listen),
        security: args.security.or(file.security),
        metrics: args.metrics.clone().or(file.metrics),
        options: either(&args.options, file.options),
        foreground: args.foreground || file.foreground,
        json: args.json || file.json,
        shape: file.shape,
        ..args.clone()
    };
    all.shape.fsname = shape.fsname.clone().or(all.shape.fsname);
    all.shape.mdts = shape.mdts.or(all.shape.mdts);
    all.shape.osts = shape.osts.or(all.shape.osts);
    all.shape.flash = shape.flash.clone().or(all.shape.flash);
    all.shape.disk = shape.disk.clone().or(all.shape.disk);
    all.shape.ost_backend = either(&shape.ost_backend, all.shape.ost_backend);
    all.shape.mdt_backend = either(&shape.mdt_backend, all.shape.mdt_backend);
    all.shape.ost_cache = either(&shape.ost_cache, all.shape.ost_cache);
    Ok(all)
}

fn either(given: &[String], file: Vec<String>) -> Vec<String> {
    if given.is_empty() { file } else { given.to_vec() }
}

fn load(path: &Path) -> Result<UpArgs> {
    let what = format!("read the configuration {}", path.display());
    let mut text = String::new();
    let file = fs::File::open(path).map_err(Failure::because(&what))?;
    let read = file.take(SIZE_MAX + 1).read_to_string(&mut text).map_err(Failure::because(&what))?;
    if read as u64 > SIZE_MAX {
        return Err(Failure::new(format!("cannot {what}: it has more than {SIZE_MAX} bytes")));
    }
    parse(&text).map_err(|wrong| {
        Failure::usage(match wrong.line {
            Some(line) => format!("{}, line {line}: {}", path.display(), wrong.text),
            None => format!("{}: {}", path.display(), wrong.text),
        })
    })
}

/// What is wrong with a file.
#[derive(Debug, PartialEq, Eq)]
struct Wrong {
    /// Number of the line, from 1.
    line: Option<usize>,
    text: String,
}

impl Wrong {
    fn at(text: &str, place: Option<Range<usize>>, message: String) -> Wrong {
        let line =
            place.map(|place| 1 + text.bytes().take(place.start).filter(|byte| *byte == b'\n').count());
        Wrong { line, text: message }
    }
}

fn parse(text: &str) -> std::result::Result<UpArgs, Wrong> {
    let table = DeTable::parse(text)
        .map_err(|error| Wrong::at(text, error.span(), format!("{}: write KEY = VALUE", error.message())))?;
    let mut args = UpArgs::default();
    // Errors name the first wrong line, so keys are read in their order in the file.
    let mut entries: Vec<_> = table.into_inner().into_iter().collect();
    entries.sort_by_key(|(name, _)| name.span().start);
    for (name, value) in entries {
        let place = name.span();
        let Some(key) = KEYS.iter().find(|key| key.name == name.get_ref().as_ref()) else {
            return Err(Wrong::at(text, Some(place), unknown(name.get_ref())));
        };
        key.set(&mut args, value).map_err(|why| Wrong::at(text, Some(place), key.refusal(&why)))?;
    }
    if args.one_process && args.port.is_some() {
        let port = text.find("\nport").map(|at| at + 1..at + 1);
        let message = "port: one process has the ports of listen; write separate = true, or remove port";
        return Err(Wrong::at(text, port, message.to_owned()));
    }
    Ok(args)
}

fn unknown(name: &str) -> String {
    if name == "one-process" {
        return "unknown key 'one-process': write separate = false".to_owned();
    }
    let name_as_option = name.to_lowercase().replace('_', "-");
    let similar = |key: &&Key| strsim::jaro_winkler(key.name, &name_as_option);
    let best = KEYS.iter().max_by(|one, other| similar(one).total_cmp(&similar(other)));
    match best.filter(|key| similar(key) >= SIMILAR) {
        Some(key) => format!("unknown key '{name}': write {}", key.example),
        None => {
            let names: Vec<_> = KEYS.iter().map(|key| key.name).collect();
            format!("unknown key '{name}': keys are {}", names.join(", "))
        }
    }
}

/// Reads a value of a type.
fn read<'a, T: Deserialize<'a>>(value: Value<'a>) -> std::result::Result<T, String> {
    T::deserialize(ValueDeserializer::from(value)).map_err(|error| error.message().to_owned())
}

/// Reads one string or a list of strings.
fn list(value: Value<'_>) -> std::result::Result<Vec<String>, String> {
    match value.get_ref() {
        DeValue::String(_) => Ok(vec![read(value)?]),
        _ => read(value),
    }
}

/// Reads an absolute path: a service has another working directory than its administrator.
fn absolute(value: Value<'_>) -> std::result::Result<PathBuf, String> {
    let path: PathBuf = read(value)?;
    match path.is_absolute() {
        true => Ok(path),
        false => Err(format!("'{}' is not an absolute path", path.display())),
    }
}

fn number(value: Value<'_>, min: u16, max: u16) -> std::result::Result<u16, String> {
    let number: i64 = read(value)?;
    u16::try_from(number)
        .ok()
        .filter(|number| (min..=max).contains(number))
        .ok_or_else(|| format!("{number} is not from {min} to {max}"))
}

fn osts(value: Value<'_>) -> std::result::Result<String, String> {
    let list: String = read(value)?;
    match ost_list::indexes(&list, 10) {
        Some(_) => Ok(list),
        None => Err(format!("'{list}' is no list of OSTs")),
    }
}

fn mount_options(value: Value<'_>) -> std::result::Result<Vec<String>, String> {
    let options = list(value)?;
    MountOptions::parse(&options, false).map_err(|failure| failure.message)?;
    Ok(options)
}

fn addresses(value: Value<'_>) -> std::result::Result<Vec<String>, String> {
    let listen = list(value)?;
    if listen != [listen::NONE] {
        listen.iter().try_for_each(|word| word.parse::<Address>().map(drop))?;
    }
    Ok(listen)
}

fn security(value: Value<'_>) -> std::result::Result<Security, String> {
    let word: String = read(value)?;
    word.parse().map_err(|_| format!("'{word}' is no protection"))
}

fn metrics(value: Value<'_>) -> std::result::Result<String, String> {
    let address: String = read(value)?;
    if address != listen::NONE {
        address.parse::<HttpAddress>()?;
    }
    Ok(address)
}

fn fsname(value: Value<'_>) -> std::result::Result<String, String> {
    let name: String = read(value)?;
    check_fsname(&name).map_err(|error| error.to_string())?;
    Ok(name)
}

fn count(given: &[String]) -> u16 {
    u16::try_from(given.len()).unwrap_or(u16::MAX)
}

/// Reads specifications of devices. In a file `force` would overwrite a device at every start.
fn devices(value: Value<'_>) -> std::result::Result<Vec<String>, String> {
    let given = list(value)?;
    match given.iter().find(|text| text.split(',').any(|word| word == device_words::FORCE)) {
        Some(text) => Err(format!("'{text}' overwrites data, which only the command line can say")),
        None => Ok(given),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::{CommandFactory, Parser};

    const EXAMPLE: &str = include_str!("../../../../packaging/example.toml");

    fn wrong(text: &str) -> (usize, String) {
        let wrong = parse(text).expect_err(text);
        (wrong.line.unwrap_or_else(|| panic!("{text}: {wrong:?}")), wrong.text)
    }

    fn up(words: &[&str]) -> UpArgs {
        match Cli::try_parse_from([&["nacre", "up"], words].concat()).expect("well formed").command {
            crate::cli::Command::Up(args) => args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_option_of_the_command_has_a_key_and_is_in_the_example() {
        // The file itself, help, and what 'separate = false' says.
        let others = ["config", "help", "one-process"];
        let command = Cli::command();
        let up = command.find_subcommand("up").expect("it exists");
        let options = up.get_arguments().map(|arg| arg.get_long().unwrap_or(arg.get_id().as_str()));
        for option in options.filter(|option| !others.contains(option)) {
            assert!(KEYS.iter().any(|key| key.name == option), "no key for --{option}");
            assert!(EXAMPLE.lines().any(|line| line.starts_with(&format!("#{option} = "))), "{option}");
        }
        assert!(EXAMPLE.contains("--one-process"));
    }

    #[test]
    fn the_example_is_valid_as_it_is_and_with_each_of_its_options() {
        parse(EXAMPLE).expect("as it is");
        let options: Vec<&str> = EXAMPLE.lines().filter_map(|line| line.strip_prefix('#')).collect();
        let options: Vec<&str> =
            options.into_iter().filter(|line| !line.starts_with(' ') && !line.is_empty()).collect();
        assert!(options.len() >= KEYS.len(), "{options:?}");
        for option in &options {
            parse(option).unwrap_or_else(|wrong| panic!("{option}: {wrong:?}"));
        }
    }

    #[test]
    fn a_wrong_file_is_refused_with_line_key_and_what_to_write() {
        let cases = [
            ("\nosts = \"4\"\n", 2, "osts: invalid type: string \"4\", expected i64; write osts = 4"),
            ("osts = 0", 1, "osts: 0 is not from 1 to "),
            ("dir = \"/a\"\nost_backend = \"file\"", 2, "unknown key 'ost_backend': write ost-backend = ["),
            ("mounts = \"/a\"", 1, "unknown key 'mounts': write mount = \"/mnt/nacre\""),
            ("xyzzy = 1", 1, "unknown key 'xyzzy': keys are dir, mount, "),
            ("[mount]\n", 1, "mount: invalid type: map"),
            ("one-process = true", 1, "unknown key 'one-process': write separate = false"),
            ("mount = \"mnt\"", 1, "mount: 'mnt' is not an absolute path; write mount = \"/mnt/nacre\""),
            ("listen = [\n  \"10.0.0.1@tcp\",\n  \"10.0.0@tcp\",\n]", 1, "listen: "),
            ("listen = 5", 1, "listen: invalid type: integer `5`"),
            ("metrics = \"nine\"", 1, "metrics: "),
            ("security = \"none\"", 1, "security: 'none' is no protection; write security = \"encrypt\""),
            ("options = \"rw,bogus\"", 1, "options: unknown mount option 'bogus'"),
            ("fsname = \"toolongname\"", 1, "fsname: "),
            ("ost-backend = \"blocc\"", 1, "ost-backend blocc: there is no such back end; write file, "),
            ("ost-backend = \"block:/dev/x,force\"", 1, "ost-backend: 'block:/dev/x,force' overwrites data"),
            ("ost-cache = [\"/dev/x\", \"/dev/x\"]", 1, "ost-cache: /dev/x cannot be the cache of several"),
            ("flash = \"first\"", 1, "flash: 'first' is no list of OSTs; write flash = \"0-3,8\""),
            ("port = 70000", 1, "port: 70000 is not from 1 to 65535; write port = 7000"),
            ("separate = false\nport = 7000", 2, "port: one process has the ports of listen"),
            ("dir = \"/a\"\ndir = \"/b\"", 2, "duplicate key"),
            ("dir = /a", 1, "write KEY = VALUE"),
        ];
        for (text, line, part) in cases {
            let (found, message) = wrong(text);
            assert!(found == line && message.contains(part), "{text}: line {found}: {message}");
        }
    }

    #[test]
    fn options_of_the_command_line_replace_those_of_the_file() {
        let scratch = tempfile::tempdir().expect("a directory");
        let path = scratch.path().join("x.toml");
        let text = "dir = \"/srv/fs\"\nmount = \"/mnt\"\nseparate = true\nosts = 4\nlisten = \"10.0.0.1@tcp\"\n\
            ost-backend = [\"file\"]\noptions = [\"ro\", \"noatime\"]\nforeground = true\n";
        fs::write(&path, text).expect("written");
        let file = complete(&up(&["--config", path.to_str().expect("text")]), &path).expect("valid");
        assert_eq!(
            (file.dir.as_deref(), file.mount.as_deref()),
            (Some("/srv/fs".as_ref()), Some("/mnt".as_ref()))
        );
        assert!(file.separate && !file.one_process && file.foreground && !file.json);
        assert_eq!((file.shape.osts, file.listen.len(), file.options.len()), (Some(4), 1, 2));
        let words =
            ["/other", "--mount", "/a", "--one-process", "--listen", "none", "--osts", "2", "-o", "rw"];
        let both = complete(&up(&words), &path).expect("valid");
        assert_eq!(
            (both.dir.as_deref(), both.mount.as_deref()),
            (Some("/other".as_ref()), Some("/a".as_ref()))
        );
        assert!(both.one_process && !both.separate);
        assert_eq!(
            (both.shape.osts, both.listen, both.options),
            (Some(2), vec!["none".into()], vec!["rw".into()])
        );
        assert_eq!(both.shape.ost_backend, ["file"]);
        let missing = complete(&up(&["/x"]), &scratch.path().join("none.toml")).expect_err("missing");
        assert!(missing.message.contains("none.toml: No such file"), "{missing}");
    }
}
