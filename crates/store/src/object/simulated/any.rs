//! All simulations below a store, in one grammar: service times of the transfers of the store itself, or a
//! model of its device below its checksums and its allocator.

use super::{Medium, Simulation};
use crate::object::block::Core;
use crate::object::block::device::model::MediaSpec;
use crate::object::{Abilities, ObjectStore};
use rustix::io::Errno;
use std::fmt;
use std::io;
use std::str::FromStr;

/// Simulation below a store. Written `off`, as a [`Medium`] or as a [`MediaSpec`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AnyMedium {
    /// Nothing: service times are the device's own.
    Nothing,
    /// Service times of the transfers of any store.
    Store(Medium),
    /// Model of the device of a store that has one.
    Device(MediaSpec),
}

impl AnyMedium {
    /// Returns the simulation of `store`.
    pub fn of(store: &dyn ObjectStore) -> AnyMedium {
        let Abilities { simulation, device_store, .. } = store.abilities();
        let device = device_store.and_then(|core| core.simulated_device().media()).map(AnyMedium::Device);
        let medium = || simulation.and_then(Simulation::medium).map(AnyMedium::Store);
        device.or_else(medium).unwrap_or(AnyMedium::Nothing)
    }

    /// Makes `store` simulate this from now on, instead of its previous simulation.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the store does not support it, with nothing changed; `EFBIG` if its device is too
    /// large for the model.
    pub fn set(self, store: &dyn ObjectStore) -> io::Result<()> {
        let refused = || io::Error::from(Errno::OPNOTSUPP);
        let (medium, media) = match self {
            AnyMedium::Nothing => (None, None),
            AnyMedium::Store(medium) => (Some(medium), None),
            AnyMedium::Device(media) => (None, Some(media)),
        };
        let Abilities { simulation, device_store, .. } = store.abilities();
        let device = device_store.map(Core::simulated_device);
        if (medium.is_some() && simulation.is_none()) || (media.is_some() && device.is_none()) {
            return Err(refused());
        }
        if let Some(device) = device {
            device.set_media(media)?;
        }
        if let Some(simulation) = simulation {
            simulation.set_medium(medium);
        }
        Ok(())
    }

    /// Whether service times depend on earlier transfers: then every transfer must be simulated.
    pub fn remembers(self) -> bool {
        matches!(self, AnyMedium::Device(MediaSpec::Flash(_)))
    }
}

impl FromStr for AnyMedium {
    type Err = ();

    fn from_str(text: &str) -> Result<AnyMedium, ()> {
        let text = text.trim();
        if matches!(text, "off" | "0") {
            return Ok(AnyMedium::Nothing);
        }
        let medium = text.parse().map(AnyMedium::Store);
        medium.or_else(|()| text.parse().map(AnyMedium::Device))
    }
}

impl fmt::Display for AnyMedium {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AnyMedium::Nothing => f.write_str("off"),
            AnyMedium::Store(medium) => medium.fmt(f),
            AnyMedium::Device(media) => media.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Simulated;
    use super::*;
    use crate::object::{BlockStore, BlockStoreOptions, FileStore, FileStoreOptions};

    fn parse(text: &str) -> AnyMedium {
        text.parse().expect("understood")
    }

    #[test]
    fn media_of_stores_and_of_devices_are_told_apart() {
        for off in ["off", " 0 "] {
            assert_eq!(parse(off), AnyMedium::Nothing);
        }
        for text in ["seek=8000us:bandwidth=1048576", "off"] {
            assert_eq!(parse(text).to_string(), text);
        }
        let flash = parse("flash:channels=2:full=1");
        assert!(matches!(flash, AnyMedium::Device(MediaSpec::Flash(_))) && flash.remembers());
        assert!(!parse("disk").remembers() && !parse("seek=1ms:bandwidth=1M").remembers());
        assert_eq!(parse(&flash.to_string()), flash);
        assert_eq!("tape".parse::<AnyMedium>(), Err(()));
    }

    #[test]
    fn a_store_simulates_the_last_medium_that_it_was_told_and_refuses_what_it_has_not() {
        let scratch = tempfile::tempdir().expect("a directory");
        let (disk, times) = (parse("disk:seek=1ms"), parse("seek=1ms:bandwidth=1G"));
        let options = BlockStoreOptions { create: true, size: 64 << 20, ..BlockStoreOptions::default() };
        let block = BlockStore::open(&scratch.path().join("block"), options).expect("made");
        let block = Simulated::new(Box::new(block));
        for medium in [disk, times, AnyMedium::Nothing, times, disk] {
            medium.set(&block).expect("has both");
            assert_eq!(AnyMedium::of(&block), medium);
        }
        let file = FileStore::open(&scratch.path().join("file"), FileStoreOptions::create()).expect("made");
        let file = Simulated::new(Box::new(file));
        times.set(&file).expect("has that");
        let refused = disk.set(&file).expect_err("has no device");
        assert_eq!(Errno::from_io_error(&refused), Some(Errno::OPNOTSUPP));
        assert_eq!(AnyMedium::of(&file), times, "a refused one changes nothing");
        block.close().expect("closed");
        file.close().expect("closed");
    }
}
