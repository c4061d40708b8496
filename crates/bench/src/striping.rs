//! Striping of a new file, set by the program that creates it through Lustre's binary interface.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// Flags of an open that delay the allocation of a new file's objects, so that its striping can still be set.
/// They combine two flags that mean nothing together elsewhere (`FASYNC | O_NOCTTY`); other file systems
/// ignore them.
const O_LOV_DELAY_CREATE: i32 = libc::O_ASYNC | libc::O_NOCTTY;
/// Name of the attribute for setting and getting a layout.
const ATTRIBUTE: &str = "lustre.lov";
/// Magic number of `lov_user_md_v1`.
const MAGIC_V1: u32 = 0x0bd1_0bd0;
/// Magic number of `lov_user_md_v3`, which has a pool.
const MAGIC_V3: u32 = 0x0bd3_0bd0;
/// Length of a pool's name in the structure in bytes, terminator included.
const POOL_BYTES: usize = 16;

/// Requested striping; values that are not set come from the directory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Striping {
    /// Number of OSTs; -1 for all.
    pub(crate) count: Option<i32>,
    /// Stripe size in bytes.
    pub(crate) size: Option<u32>,
    /// Index of the first OST.
    pub(crate) first: Option<u16>,
    /// Name of the pool of OSTs.
    pub(crate) pool: Option<String>,
}

impl Striping {
    /// Returns whether no value is set.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Striping::default()
    }

    /// Creates a file, open for reading and writing; fails if it exists.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` where striping is not supported; other errors of the file system.
    pub(crate) fn create(&self, path: &Path, flags: i32) -> io::Result<File> {
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .custom_flags(flags | O_LOV_DELAY_CREATE)
            .open(path)?;
        rustix::fs::fsetxattr(&file, ATTRIBUTE, &self.encode()?, rustix::fs::XattrFlags::empty())?;
        Ok(file)
    }

    fn encode(&self) -> io::Result<Vec<u8>> {
        const RAID0: u32 = 1;
        let magic = if self.pool.is_some() { MAGIC_V3 } else { MAGIC_V1 };
        let count = match self.count {
            None => 0,
            Some(-1) => u16::MAX,
            Some(count) => u16::try_from(count).map_err(|_| io::Error::from(Errno::INVAL))?,
        };
        let mut bytes = Vec::with_capacity(48);
        bytes.extend(magic.to_le_bytes());
        bytes.extend(RAID0.to_le_bytes());
        bytes.extend([0; 16]);
        bytes.extend(self.size.unwrap_or(0).to_le_bytes());
        bytes.extend(count.to_le_bytes());
        bytes.extend(self.first.unwrap_or(u16::MAX).to_le_bytes());
        if let Some(pool) = &self.pool {
            if pool.len() >= POOL_BYTES {
                return Err(io::Error::from(Errno::INVAL));
            }
            bytes.extend(pool.bytes().chain(std::iter::repeat(0)).take(POOL_BYTES));
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wishes_have_lustres_bytes() {
        let requested = Striping { count: Some(-1), size: Some(1 << 20), first: None, pool: None };
        let bytes = requested.encode().expect("encodes");
        assert_eq!(bytes.len(), 32);
        assert_eq!(bytes[..8], [0xd0, 0x0b, 0xd1, 0x0b, 1, 0, 0, 0]);
        assert_eq!(bytes[24..], [0, 0, 16, 0, 0xff, 0xff, 0xff, 0xff]);
        let pooled = Striping { count: Some(2), first: Some(3), pool: Some("flash".to_owned()), ..requested };
        let bytes = pooled.encode().expect("encodes");
        assert_eq!(bytes.len(), 48);
        assert_eq!(bytes[28..38], [2, 0, 3, 0, b'f', b'l', b'a', b's', b'h', 0]);
    }

    #[test]
    fn impossible_wishes_are_refused() {
        assert!(Striping { count: Some(70_000), ..Striping::default() }.encode().is_err());
        let pool = Some("a".repeat(16));
        assert!(Striping { pool, ..Striping::default() }.encode().is_err());
        assert!(Striping::default().is_empty());
    }
}
