//! A read-only device: writes to it stay in memory, and the device itself never changes.

use super::{BLOCK, BlockDevice, DeviceInfo, DeviceStats, Engine, ReadOp, WriteOp, check_range};
use nacre_env::sync::RwLock;
use rustix::io::Errno;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// See the [module documentation](self). Opening a store on it writes little: repairs of a recovery, and
/// labels.
pub struct ShadowDevice {
    file: File,
    path: PathBuf,
    size: u64,
    written: RwLock<HashMap<u64, Box<[u8]>>>,
}

impl ShadowDevice {
    /// Opens a device or file for reading, through the page cache. Other processes may use it meanwhile.
    ///
    /// # Errors
    /// Those of the system.
    pub fn open(path: &Path) -> io::Result<ShadowDevice> {
        let file = File::open(path)?;
        let end = rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0))?;
        Ok(ShadowDevice {
            file,
            path: path.to_owned(),
            size: end / BLOCK * BLOCK,
            written: RwLock::default(),
        })
    }
}

impl BlockDevice for ShadowDevice {
    fn read(&self, batch: &mut [ReadOp<'_>]) -> io::Result<()> {
        let written = self.written.read();
        for op in batch {
            check_range(self.size, op.offset, op.buffer.len())?;
            self.file.read_exact_at(op.buffer, op.offset)?;
            if written.is_empty() {
                continue;
            }
            for (block, bytes) in (op.offset / BLOCK..).zip(op.buffer.chunks_mut(BLOCK as usize)) {
                if let Some(newer) = written.get(&block) {
                    bytes.copy_from_slice(newer);
                }
            }
        }
        Ok(())
    }

    fn write(&self, batch: &[WriteOp<'_>]) -> io::Result<()> {
        let mut written = self.written.write();
        for op in batch {
            check_range(self.size, op.offset, op.data.len())?;
            let blocks = (op.offset / BLOCK..).zip(op.data.chunks(BLOCK as usize));
            written.extend(blocks.map(|(block, bytes)| (block, bytes.into())));
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Err(io::Error::from(Errno::OPNOTSUPP))
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            name: self.path.display().to_string(),
            is_raw: false,
            is_flash: false,
            is_allocated: false,
            engine: Engine::SystemCalls,
        }
    }

    fn stats(&self) -> DeviceStats {
        DeviceStats::default()
    }
}
