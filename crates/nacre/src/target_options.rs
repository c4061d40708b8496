//! Options of a target that is added to a file system: the same words as of `nacre up`, for one target.

use crate::backend::Backends;
use crate::failure::{Failure, Result};
use crate::ost_cache::OstCaches;
use nacre_types::{TargetId, TargetKind};
use serde::{Deserialize, Serialize};

/// Options; see the module's documentation. A process gets them in a request with absolute paths
/// ([`TargetOptions::anywhere`]).
#[derive(Debug, Clone, Default, PartialEq, Eq, clap::Args, Serialize, Deserialize)]
pub struct TargetOptions {
    /// Back end for objects of an OST: file, or block[:PATH][,size=BYTES][,force] for a device or one large
    /// file [default: file]
    #[arg(long, value_name = "BACKEND")]
    ost_backend: Option<String>,
    /// Back end for data of files on an MDT: meta for its metadata store, or
    /// block[:PATH][,size=BYTES][,force] for a device or one large file [default: meta]
    #[arg(long, value_name = "BACKEND")]
    mdt_backend: Option<String>,
    /// Flash device as cache for small writes of an OST: PATH[,size=BYTES][,force]
    #[arg(long, value_name = "CACHE")]
    ost_cache: Option<String>,
    /// The OST is on flash, whatever its device reports; stored, and shown by 'lfs df -v'
    #[arg(long, conflicts_with = "disk")]
    pub flash: bool,
    /// The OST is on a rotating disk, likewise
    #[arg(long)]
    pub disk: bool,
}

/// Returns an option as the slice that the parsers of `nacre up` take.
fn given(word: Option<&String>) -> Vec<String> {
    word.cloned().into_iter().collect()
}

impl TargetOptions {
    /// Checks the options for a target of this kind, and makes their paths absolute.
    ///
    /// # Errors
    /// If an option is malformed, or is for targets of another kind.
    pub fn anywhere(&self, kind: TargetKind) -> Result<TargetOptions> {
        let of_mdt = TargetOptions { mdt_backend: self.mdt_backend.clone(), ..TargetOptions::default() };
        if kind != TargetKind::Ost && *self != of_mdt {
            return Err(Failure::usage(
                "--ost-backend, --ost-cache, --flash and --disk are for OSTs: leave them out for an MDT",
            ));
        }
        if kind != TargetKind::Mdt && self.mdt_backend.is_some() {
            return Err(Failure::usage("--mdt-backend is for MDTs: leave it out for an OST"));
        }
        let backends = self.backends()?;
        let (ost_backend, mdt_backend) = (backends.text(TargetId::ost(0)), backends.text(TargetId::mdt(0)));
        let cache = self.caches(0)?.of(0).map(ToString::to_string);
        Ok(TargetOptions { ost_backend, mdt_backend, ost_cache: cache, ..self.clone() })
    }

    /// Returns options with these back ends only.
    pub fn of_backends(ost_backend: Option<String>, mdt_backend: Option<String>) -> TargetOptions {
        TargetOptions { ost_backend, mdt_backend, ..TargetOptions::default() }
    }

    /// Returns the back ends of one target.
    ///
    /// # Errors
    /// If the option is malformed.
    pub fn backends(&self) -> Result<Backends> {
        Backends::parse(&given(self.ost_backend.as_ref()), 1, &given(self.mdt_backend.as_ref()), 1)
    }

    /// Returns the cache of the OST `index`.
    ///
    /// # Errors
    /// If the option is malformed.
    pub fn caches(&self, index: u16) -> Result<OstCaches> {
        Ok(OstCaches::parse(&given(self.ost_cache.as_ref()), 1)?.moved_to(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        target_options: TargetOptions,
    }

    fn parse(words: &str) -> TargetOptions {
        let words = ["add"].into_iter().chain(words.split_whitespace());
        Program::try_parse_from(words).expect("understood").target_options
    }

    #[test]
    fn words_mean_the_same_in_any_directory_and_survive_a_request() {
        let here = std::env::current_dir().expect("somewhere");
        let target_options = parse("--ost-backend block:dev,size=1G,force --ost-cache cache,force --flash");
        let anywhere = target_options.anywhere(TargetKind::Ost).expect("well");
        let expected = format!(
            "--ost-backend block:{0}/dev,size=1073741824,force --ost-cache {0}/cache,force --flash",
            here.display()
        );
        assert_eq!(anywhere, parse(&expected));
        let text = serde_json::to_string(&anywhere).expect("JSON");
        assert_eq!(serde_json::from_str::<TargetOptions>(&text).expect("the same"), anywhere);
        assert_eq!(anywhere.anywhere(TargetKind::Ost).expect("again"), anywhere);
        for word in
            ["--ost-backend file", "--ost-backend block", "--ost-backend block,size=67108864", "--disk", ""]
        {
            assert_eq!(parse(word).anywhere(TargetKind::Ost).expect(word), parse(word), "{word}");
        }
        let of_mdt = parse("--mdt-backend block:dev,size=64M").anywhere(TargetKind::Mdt).expect("well");
        let expected = format!("--mdt-backend block:{}/dev,size=67108864", here.display());
        assert_eq!(of_mdt, parse(&expected));
        assert_eq!(
            parse("--mdt-backend meta").anywhere(TargetKind::Mdt).expect("well"),
            parse("--mdt-backend meta")
        );
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for words in ["--ost-backend zfs", "--ost-backend block:", "--ost-cache /dev/x,what"] {
            parse(words).anywhere(TargetKind::Ost).expect_err(words);
        }
        for words in ["--ost-backend file", "--ost-cache /dev/x", "--flash", "--disk"] {
            let refused = parse(words).anywhere(TargetKind::Mdt).expect_err(words);
            assert!(refused.message.contains("are for OSTs"), "{refused}");
        }
        let refused = parse("--mdt-backend block").anywhere(TargetKind::Ost).expect_err("of an OST");
        assert!(refused.message.contains("is for MDTs"), "{refused}");
        parse("--mdt-backend file").anywhere(TargetKind::Mdt).expect_err("no such back end");
        assert!(parse("").anywhere(TargetKind::Mdt).is_ok());
        assert!(Program::try_parse_from(["add", "--flash", "--disk"]).is_err());
    }
}
