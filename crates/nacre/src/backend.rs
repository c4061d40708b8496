//! Back ends of the targets of a new file system. OSTs keep objects in files of a local file system, MDTs the
//! data of files in their metadata store; either may use a device of its own.

use crate::device_words::DeviceWords;
use crate::failure::{Failure, Result};
use crate::instance::{self, Instance};
use nacre_store::object::block::is_block_store;
use nacre_store::object::file::has_checksums;
use nacre_types::{TargetId, TargetKind};
use std::path::{Path, PathBuf};

/// Kind of target that a set of back ends is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Role {
    /// Command-line option that specifies the back ends.
    option: &'static str,
    /// Name of the back end without a device.
    plain: &'static str,
    /// The targets of this kind, for messages.
    targets: &'static str,
}

const OF_OSTS: Role = Role { option: "--ost-backend", plain: "file", targets: "OSTs" };
const OF_MDTS: Role = Role { option: "--mdt-backend", plain: "meta", targets: "MDTs" };

/// A back end, written `file[,checksums]` (for an MDT `meta`) or `block[:PATH][,size=BYTES][,force]`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Backend {
    /// A file for each object; for an MDT, records in its metadata store.
    #[default]
    Plain,
    /// A file for each object, with checksums of its data.
    Summed,
    /// All objects on one device.
    Block {
        /// A raw device or a file; without one, a sparse file in the directory of the target.
        device: Option<PathBuf>,
        /// Options for the creation of the device.
        words: DeviceWords,
    },
}

/// Command-line form of [`Backend::Summed`].
const SUMMED: &str = "file,checksums";
/// Smallest file that is created, in bytes: it holds the reserve of a target and the grants of its clients.
const SIZE_MIN: u64 = 64 << 20;

impl Backend {
    fn parse(text: &str, role: Role) -> Result<Backend> {
        let Role { option, plain, .. } = role;
        if role == OF_OSTS && text == SUMMED {
            return Ok(Backend::Summed);
        }
        let forms = if role == OF_OSTS { "file, file,checksums" } else { plain };
        let wrong = |why: &str| {
            Failure::usage(format!(
                "{option} {text}: {why}; write {forms}, block, block:/dev/sdx or block:PATH,size=100G"
            ))
        };
        let mut parts = text.split(',');
        let (kind, path) = match parts.next().unwrap_or("").split_once(':') {
            Some((kind, path)) => (kind, Some(path)),
            None => (text.split(',').next().unwrap_or(""), None),
        };
        let words = DeviceWords::parse(parts, wrong)?;
        match kind {
            _ if kind == plain && path.is_none() && words.is_empty() => Ok(Backend::Plain),
            _ if kind == plain => Err(wrong(&format!("{plain} has no such settings"))),
            "block" if path == Some("") => Err(wrong("the path is empty")),
            "block" if words.size.is_some_and(|size| size < SIZE_MIN) => {
                Err(wrong("the size is less than 64M"))
            }
            "block" => {
                let device = path.map(|path| instance::absolute(Path::new(path))).transpose()?;
                Ok(Backend::Block { device, words })
            }
            _ => Err(wrong("there is no such back end")),
        }
    }

    /// Returns the back end of an existing target; `None` for a target without objects.
    pub fn kind_of(instance: &Instance, target: TargetId) -> Option<&'static str> {
        let plain = match target.kind {
            TargetKind::Ost if has_checksums(&instance.objects_dir(target)) => SUMMED,
            TargetKind::Ost => OF_OSTS.plain,
            TargetKind::Mdt => OF_MDTS.plain,
            TargetKind::Mgt => return None,
        };
        Some(if is_block_store(&instance.objects_dir(target)) { "block" } else { plain })
    }

    fn device(&self) -> Option<&PathBuf> {
        match self {
            Backend::Block { device, .. } => device.as_ref(),
            Backend::Plain | Backend::Summed => None,
        }
    }

    /// Returns the command-line form.
    fn text(&self, role: Role) -> String {
        match self {
            Backend::Plain => role.plain.to_owned(),
            Backend::Summed => SUMMED.to_owned(),
            Backend::Block { device: None, words } => format!("block{words}"),
            Backend::Block { device: Some(device), words } => format!("block:{}{words}", device.display()),
        }
    }
}

/// Back ends of all targets of one kind in a new file system, by index.
#[derive(Clone, PartialEq, Eq, Debug)]
struct OfKind {
    role: Role,
    given: Vec<Backend>,
}

impl OfKind {
    /// Parses the given back ends: none, one for all targets, or one for each.
    fn parse(role: Role, given: &[String], count: u16) -> Result<OfKind> {
        let Role { option, targets, .. } = role;
        let given = given.iter().map(|text| Backend::parse(text, role)).collect::<Result<Vec<_>>>()?;
        if given.len() > 1 && given.len() != usize::from(count) {
            let times = given.len();
            return Err(Failure::usage(format!(
                "{option} was given {times} times for {count} {targets}: once, or for each"
            )));
        }
        let devices: Vec<&PathBuf> = given.iter().filter_map(Backend::device).collect();
        let is_shared = given.len() == 1 && count > 1 && !devices.is_empty();
        let twice = twice(&devices).or(is_shared.then(|| devices[0]));
        if let Some(device) = twice {
            return Err(Failure::usage(format!(
                "{} cannot belong to several {targets}: give {option} for each",
                device.display()
            )));
        }
        Ok(OfKind { role, given })
    }

    fn of(&self, index: u16) -> Backend {
        self.given.get(usize::from(index)).or(self.given.first()).cloned().unwrap_or_default()
    }
}

/// Returns a device that is named twice.
fn twice<'a>(devices: &[&'a PathBuf]) -> Option<&'a PathBuf> {
    let found = devices.iter().enumerate().find(|(at, device)| devices[..*at].contains(device));
    found.map(|(_, device)| *device)
}

/// Back ends of all targets of a new file system.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Backends {
    osts: OfKind,
    mdts: OfKind,
}

impl Default for Backends {
    fn default() -> Backends {
        let none = |role| OfKind { role, given: Vec::new() };
        Backends { osts: none(OF_OSTS), mdts: none(OF_MDTS) }
    }
}

impl Backends {
    /// Parses the back ends of `ost_count` OSTs and `mdt_count` MDTs: for each kind none, one for all
    /// targets, or one for each.
    ///
    /// # Errors
    /// If a back end cannot be parsed, or a device is given to several targets.
    pub fn parse(osts: &[String], ost_count: u16, mdts: &[String], mdt_count: u16) -> Result<Backends> {
        let osts = OfKind::parse(OF_OSTS, osts, ost_count)?;
        let mdts = OfKind::parse(OF_MDTS, mdts, mdt_count)?;
        let devices: Vec<&PathBuf> =
            osts.given.iter().chain(&mdts.given).filter_map(Backend::device).collect();
        match twice(&devices) {
            Some(device) => Err(Failure::usage(format!(
                "{} cannot belong to an OST and to an MDT: give each a device of its own",
                device.display()
            ))),
            None => Ok(Backends { osts, mdts }),
        }
    }

    fn of_kind(&self, kind: TargetKind) -> &OfKind {
        if kind == TargetKind::Mdt { &self.mdts } else { &self.osts }
    }

    /// Returns the back end of a target.
    pub fn of(&self, target: TargetId) -> Backend {
        self.of_kind(target.kind).of(target.index)
    }

    /// Returns the command-line form of a target's back end, if one was given.
    pub fn text(&self, target: TargetId) -> Option<String> {
        let all = self.of_kind(target.kind);
        (!all.given.is_empty()).then(|| all.of(target.index).text(all.role))
    }

    /// Refuses a back end that differs from that of an existing target.
    ///
    /// # Errors
    /// If the directory of the target holds another back end.
    pub fn check(&self, instance: &Instance, target: TargetId) -> Result<()> {
        let all = self.of_kind(target.kind);
        let Some(is) = Backend::kind_of(instance, target) else { return Ok(()) };
        let wanted = match all.of(target.index) {
            Backend::Plain => all.role.plain,
            Backend::Summed => SUMMED,
            Backend::Block { .. } => "block",
        };
        if all.given.is_empty() || is == wanted {
            return Ok(());
        }
        Err(Failure::new(format!(
            "{} was made with {} {is}, not {wanted}: leave the option out, or use a new directory",
            instance.target_dir(target).display(),
            all.role.option
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(device: Option<&str>, size: Option<u64>, force: bool) -> Backend {
        Backend::Block { device: device.map(PathBuf::from), words: DeviceWords { size, force } }
    }

    #[test]
    fn back_ends_are_read() {
        for role in [OF_OSTS, OF_MDTS] {
            for (text, wanted) in [
                (role.plain, Backend::Plain),
                ("block", block(None, None, false)),
                ("block,size=1G", block(None, Some(1 << 30), false)),
                ("block:/dev/sdx", block(Some("/dev/sdx"), None, false)),
                ("block:/dev/sdx,force", block(Some("/dev/sdx"), None, true)),
                ("block:/srv/a:b,size=64M,force", block(Some("/srv/a:b"), Some(64 << 20), true)),
            ] {
                assert_eq!(Backend::parse(text, role).expect(text), wanted, "{text}");
            }
            let other = if role == OF_OSTS { "meta" } else { "file" };
            for text in [
                "",
                "zfs",
                other,
                &format!("{},force", role.plain),
                &format!("{}:/x", role.plain),
                "block:",
                "block,size=",
                "block,size=10",
                "block,size=1X",
                "block,size=99999999T",
                "block,force,force",
                "block,what",
            ] {
                let failure = Backend::parse(text, role).expect_err(text);
                assert!(failure.message.contains(role.option), "{failure}");
            }
        }
    }

    #[test]
    fn files_of_osts_alone_may_have_checksums() {
        assert_eq!(Backend::parse("file,checksums", OF_OSTS).expect("read"), Backend::Summed);
        assert_eq!(Backend::Summed.text(OF_OSTS), "file,checksums");
        Backend::parse("meta,checksums", OF_MDTS).expect_err("its store has them anyway");
        Backend::parse("file,checksums,force", OF_OSTS).expect_err("nothing to force");
    }

    #[test]
    fn one_is_for_all_and_no_device_for_two() {
        let words = |given: &[&str]| given.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let parse = |osts: &[&str], ost_count, mdts: &[&str], mdt_count| {
            Backends::parse(&words(osts), ost_count, &words(mdts), mdt_count)
        };
        let none = parse(&[], 3, &[], 2).expect("default");
        assert_eq!((none.of(TargetId::ost(2)), none.of(TargetId::mdt(1))), (Backend::Plain, Backend::Plain));
        assert_eq!(none, Backends::default());
        let all = parse(&["block"], 3, &["block,size=64M"], 2).expect("for all");
        assert_eq!(all.of(TargetId::ost(2)), block(None, None, false));
        assert_eq!(all.of(TargetId::mdt(1)), block(None, Some(64 << 20), false));
        assert_eq!(all.text(TargetId::mdt(1)).as_deref(), Some("block,size=67108864"));
        let osts = ["block:/dev/a", "file", "block:/dev/b"];
        let each = parse(&osts, 3, &["meta", "block:/dev/c"], 2).expect("for each");
        assert_eq!(each.of(TargetId::ost(2)), block(Some("/dev/b"), None, false));
        assert_eq!(each.of(TargetId::ost(1)), Backend::Plain);
        assert_eq!(each.of(TargetId::mdt(0)), Backend::Plain);
        assert_eq!(each.of(TargetId::mdt(1)), block(Some("/dev/c"), None, false));
        for (osts, ost_count, mdts, mdt_count) in [
            (&["block:/dev/a"][..], 2, &[][..], 1),
            (&["block:/dev/a", "block:/dev/a"][..], 2, &[][..], 1),
            (&["block", "file"][..], 3, &[][..], 1),
            (&[][..], 2, &["block:/dev/a"][..], 2),
            (&[][..], 2, &["block", "meta"][..], 1),
            (&["block:/dev/a"][..], 1, &["block:/dev/a,force"][..], 1),
        ] {
            parse(osts, ost_count, mdts, mdt_count).expect_err("refused");
        }
    }
}
