//! Options of the start of a file system's directory: shape, addresses for other hosts, mount point, mount
//! options. Stored in `DIR/start`, so that `nacre up DIR` repeats them.

use crate::failure::{Failure, Result};
use crate::http_address::HttpAddress;
use crate::instance::{Instance, START, absolute, if_there, write_durably};
use crate::listen::{self, Address};
use nacre_ondisk::start::{StartRecord, decode, encode};
use nacre_types::Security;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Option of the process that serves the figures.
pub const METRICS_OPTION: &str = "--metrics";

/// Options of a start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Start {
    /// One process for each server.
    pub is_separate: bool,
    /// Addresses for other hosts, in the order in which they are announced.
    pub listen: Vec<Address>,
    /// Mount point, an absolute path.
    pub mount: Option<PathBuf>,
    /// Mount options, separated by commas.
    pub options: String,
    /// Protection of connections to addresses without their own.
    pub security: Security,
    /// Address that serves figures of the file system.
    pub metrics: Option<HttpAddress>,
}

/// Options that a command gives; the others stay unchanged.
#[derive(Debug, Default)]
pub struct StartOptions<'a> {
    /// One process for each server, or one for all.
    pub is_separate: Option<bool>,
    /// Addresses, or `none`; empty for no change.
    pub listen: &'a [String],
    /// Mount point.
    pub mount: Option<&'a Path>,
    /// Mount options; empty for no change.
    pub options: &'a [String],
    /// Protection of connections.
    pub security: Option<Security>,
    /// Address for figures, or `none`.
    pub metrics: Option<&'a str>,
}

impl StartOptions<'_> {
    /// Returns the start with these options applied to `before`.
    ///
    /// # Errors
    /// If an address is malformed.
    pub fn applied_to(&self, before: &Start) -> Result<Start> {
        Ok(Start {
            is_separate: self.is_separate.unwrap_or(before.is_separate),
            listen: match self.listen {
                [] => before.listen.clone(),
                [word] if word == listen::NONE => Vec::new(),
                words => {
                    words.iter().map(|word| word.parse().map_err(Failure::usage)).collect::<Result<_>>()?
                }
            },
            mount: match self.mount {
                Some(path) => Some(absolute(path)?),
                None => before.mount.clone(),
            },
            options: if self.options.is_empty() { before.options.clone() } else { self.options.join(",") },
            security: self.security.unwrap_or(before.security),
            metrics: match self.metrics {
                None => before.metrics.clone(),
                Some(listen::NONE) => None,
                Some(address) => Some(address.parse().map_err(Failure::usage)?),
            },
        })
    }
}

impl Start {
    /// Reads the options of the last start; `None` before the first one.
    ///
    /// # Errors
    /// If the file cannot be read or is damaged.
    pub fn load(dir: &Path) -> Result<Option<Start>> {
        let path = dir.join(START);
        let text = if_there(fs::read(&path)).map_err(Failure::because(format!("read {}", path.display())))?;
        let Some(text) = text else { return Ok(None) };
        let damaged = || {
            Failure::new(format!(
                "{} is damaged: remove it, and say everything to 'nacre up' again",
                path.display()
            ))
        };
        let record = String::from_utf8(text).ok().and_then(|text| decode(&text)).ok_or_else(damaged)?;
        let listen = record.listen.iter().map(|word| word.parse().map_err(|_| damaged()));
        Ok(Some(Start {
            is_separate: record.is_separate,
            listen: listen.collect::<Result<_>>()?,
            mount: record.mount.map(|bytes| PathBuf::from(OsString::from_vec(bytes))),
            options: record.options,
            security: match record.security.as_str() {
                "" => Security::default(),
                word => word.parse().map_err(|_| damaged())?,
            },
            metrics: match record.metrics.as_str() {
                "" => None,
                address => Some(address.parse().map_err(|_| damaged())?),
            },
        }))
    }

    /// Stores the options, if they differ from the stored ones.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn save(&self, instance: &Instance) -> Result<()> {
        if Start::load(&instance.dir).is_ok_and(|kept| kept.as_ref() == Some(self)) {
            return Ok(());
        }
        let record = StartRecord {
            is_separate: self.is_separate,
            listen: self.listen.iter().map(Address::to_string).collect(),
            mount: self.mount.as_ref().map(|path| path.as_os_str().as_bytes().to_vec()),
            options: self.options.clone(),
            security: match self.security {
                Security::Encrypt => String::new(),
                security => security.to_string(),
            },
            metrics: self.metrics.as_ref().map_or_else(String::new, HttpAddress::to_string),
        };
        write_durably(&instance.dir, START, encode(&record).as_bytes())
    }

    /// Returns the addresses of one of several servers of this host, which have ports of their own.
    pub fn addresses_at(&self, port: u16) -> Vec<Address> {
        match self.listen.as_slice() {
            [] => vec![self.protected(&Address::loopback(port))],
            listen => listen.iter().map(|address| self.protected(&address.with_port(port))).collect(),
        }
    }

    /// Returns the addresses of one process for all, for other hosts.
    pub fn addresses(&self) -> Vec<Address> {
        self.listen.iter().map(|address| self.protected(address)).collect()
    }

    /// Returns the address with the protection of the start; the default is not written.
    fn protected(&self, address: &Address) -> Address {
        match self.security {
            Security::Encrypt => address.clone(),
            security => address.protected_by(security),
        }
    }

    /// Returns true if processes other than its own can connect.
    pub fn is_reached(&self) -> bool {
        self.is_separate || !self.listen.is_empty()
    }

    /// Returns true if one of its addresses requires a key of its peers.
    pub fn needs_keys(&self) -> bool {
        let is_open = |address: &Address| address.security() == Security::Open;
        self.is_reached() && !self.addresses_at(1).iter().all(is_open)
    }

    /// Returns the arguments of the process that serves the figures.
    pub fn metrics_words(&self) -> Vec<OsString> {
        let address = self.metrics.as_ref();
        address.map_or_else(Vec::new, |address| vec![METRICS_OPTION.into(), address.to_string().into()])
    }

    fn shape_text(&self) -> &'static str {
        if self.is_separate { "in separate processes" } else { "in one process" }
    }

    fn listen_text(&self) -> String {
        let text = match self.listen.as_slice() {
            [] => "for this host alone".to_owned(),
            listen => format!("on {}", listen.iter().map(Address::to_string).collect::<Vec<_>>().join(", ")),
        };
        match self.security {
            Security::Encrypt => text,
            security => format!("{text} ({security})"),
        }
    }

    fn mount_text(&self) -> String {
        let point =
            self.mount.as_ref().map_or_else(|| "nothing".to_owned(), |path| path.display().to_string());
        match self.options.as_str() {
            "" => format!("mounted on {point}"),
            options => format!("mounted on {point} with -o {options}"),
        }
    }

    fn metrics_text(&self) -> String {
        match &self.metrics {
            None => "without figures for Prometheus".to_owned(),
            Some(address) => format!("with figures on {address}"),
        }
    }

    /// Returns the differences from `before`, as texts of the new and the old value.
    pub fn changes(&self, before: &Start) -> Changes {
        let pair = |now: String, before: String| (now != before).then_some((now, before));
        Changes {
            shape: pair(self.shape_text().to_owned(), before.shape_text().to_owned()),
            listen: pair(self.listen_text(), before.listen_text()),
            mount: pair(self.mount_text(), before.mount_text()),
            metrics: pair(self.metrics_text(), before.metrics_text()),
        }
    }
}

/// Differing parts of a start: new value, old value.
#[derive(Debug, PartialEq, Eq)]
pub struct Changes {
    /// Shape: one process, or one for each server.
    pub shape: Option<(String, String)>,
    /// Addresses to listen on.
    pub listen: Option<(String, String)>,
    /// Mount point and options.
    pub mount: Option<(String, String)>,
    /// Address for figures.
    pub metrics: Option<(String, String)>,
}

impl Changes {
    /// Returns one line for people; `None` if nothing differs.
    pub fn text(&self) -> Option<String> {
        let parts: Vec<String> = [&self.shape, &self.listen, &self.mount, &self.metrics]
            .into_iter()
            .flatten()
            .map(|(now, before)| format!("{now} (before: {before})"))
            .collect();
        (!parts.is_empty()).then(|| format!("started otherwise from now on: {}", parts.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instance::FormatOptions;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|&word| word.to_owned()).collect()
    }

    #[test]
    fn what_is_not_said_stays_and_what_differs_is_named() {
        let listen = words(&["10.0.0.1@tcp", "host1:7000@tcp"]);
        let first = StartOptions {
            is_separate: Some(true),
            listen: &listen,
            mount: Some(Path::new("/mnt/a")),
            options: &words(&["ro", "nosuid"]),
            security: None,
            metrics: Some("9820"),
        };
        let first = first.applied_to(&Start::default()).expect("fine");
        assert_eq!(first.options, "ro,nosuid");
        assert_eq!(first.metrics.as_ref().map(HttpAddress::to_string).as_deref(), Some("127.0.0.1:9820"));
        assert_eq!(StartOptions::default().applied_to(&first).expect("fine"), first);
        assert_eq!(first.changes(&first).text(), None);
        let none = words(&["none"]);
        let start_options = StartOptions {
            is_separate: Some(false),
            listen: &none,
            metrics: Some("none"),
            ..StartOptions::default()
        };
        let second = start_options.applied_to(&first).expect("fine");
        assert_eq!(
            second.changes(&first).text().expect("it differs"),
            "started otherwise from now on: in one process (before: in separate processes), for this host alone \
             (before: on 10.0.0.1@tcp, host1:7000@tcp), without figures for Prometheus (before: with figures on \
             127.0.0.1:9820)"
        );
        let wrong = words(&["10.0.0@tcp"]);
        assert_eq!(
            StartOptions { listen: &wrong, ..StartOptions::default() }
                .applied_to(&first)
                .expect_err("wrong")
                .exit,
            2
        );
    }

    #[test]
    fn a_start_is_kept_and_a_damaged_one_is_named() {
        let scratch = tempfile::tempdir().expect("a directory");
        let options = FormatOptions { fsname: "nacre".to_owned(), mdt_count: 1, ost_count: 1, joins: None };
        let instance =
            Instance::format(&scratch.path().join("fs"), &options, |_, _| Ok(()), |_| ()).expect("formatted");
        assert_eq!(Start::load(&instance.dir).expect("nothing yet"), None);
        let start = Start {
            is_separate: true,
            listen: vec!["[::]:7000@tcp".parse().expect("an address")],
            mount: Some(PathBuf::from("/mnt/a b")),
            options: "ro".to_owned(),
            security: Security::Authenticate,
            metrics: Some("[::1]:9820".parse().expect("an address")),
        };
        assert_eq!(start.addresses()[0].to_string(), "[::]:7000@tcp,authenticate");
        assert!(start.needs_keys() && !Start { security: Security::Open, ..start.clone() }.needs_keys());
        start.save(&instance).expect("saved");
        assert_eq!(Start::load(&instance.dir).expect("kept"), Some(start));
        fs::write(instance.dir.join(START), "shape one\n").expect("written");
        assert!(Start::load(&instance.dir).expect_err("damaged").message.contains("start is damaged"));
    }
}
