//! Simulated media below the measured object stores, and the notes of results on them.

use std::path::Path;

use nacre_store::object::ObjectStore;
use nacre_store::object::simulated::AnyMedium;
use rustix::io::Errno;

use crate::error::Error;

/// Service times of the two kinds of simulated OSTs.
#[derive(Debug, clap::Args)]
pub(crate) struct Media {
    /// A simulated disk
    #[arg(long, value_name = "MEDIUM", default_value = "seek=8ms:bandwidth=100M")]
    pub(crate) disk: String,
    /// A simulated flash OST
    #[arg(long, value_name = "MEDIUM", default_value = "seek=50us:bandwidth=400M")]
    pub(crate) flash: String,
}

/// Parses a value of `osd-file.*.simulated_medium`.
pub(crate) fn parse(text: &str) -> Result<AnyMedium, String> {
    text.parse().map_err(|()| {
        format!(
            "'{text}' is no medium: write seek=8ms:bandwidth=150M, or for a store on a device disk:seek=8ms, flash:full=1 or throttle:iops=1000"
        )
    })
}

/// Makes the store of `directory` simulate a medium, or none.
pub(crate) fn set(medium: AnyMedium, store: &dyn ObjectStore, directory: &Path) -> Result<(), Error> {
    medium.set(store).map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::OPNOTSUPP) => Error::Usage(format!(
            "the store in {} keeps a file for each object: {medium} is simulated of a store on a device, seek=8ms:bandwidth=150M of any",
            directory.display()
        )),
        _ => Error::io("simulate a medium below", directory)(error),
    })
}

/// Returns the medium unless it simulates nothing.
pub(crate) fn some(medium: Option<AnyMedium>) -> Option<AnyMedium> {
    medium.filter(|medium| *medium != AnyMedium::Nothing)
}

/// Returns the note for readers of figures.
pub(crate) fn note(medium: AnyMedium) -> String {
    let what = match medium {
        AnyMedium::Nothing => return "service times are the device's own".to_owned(),
        AnyMedium::Store(_) => {
            "a transfer seeks unless it continues its object, wherever that is stored; the index takes its own time"
        }
        AnyMedium::Device(_) => "a model of the whole device of the store; the index takes its own time",
    };
    format!("SIMULATED service times ({medium}): {what}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_are_read_as_the_parameter_reads_them_and_wrong_ones_are_named() {
        for right in ["off", "seek=8ms:bandwidth=150M", "disk", "flash:full=1", "throttle:iops=10"] {
            assert!(parse(right).is_ok(), "{right}");
        }
        for wrong in ["", "tape", "disk:seek=8", "seek=8ms"] {
            assert!(parse(wrong).expect_err("refused").contains("is no medium"), "{wrong}");
        }
        assert_eq!(some(parse("off").ok()), None);
        assert!(note(parse("disk").expect("a disk")).starts_with("SIMULATED"));
    }
}
