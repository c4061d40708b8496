//! The layers of the I/O path, each on top of the one before it.

use std::fs::{self, File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use nacre_rpc::tcp::{ClientIdentity, TcpOss};
use nacre_rpc::{ClientConfig, OssEndpoint, Tunable};
use nacre_store::object::simulated::{AnyMedium, Simulated};
use nacre_store::object::{
    Abilities, BlockStore, BlockStoreOptions, FileStore, FileStoreOptions, ObjectError, ObjectStore,
};
use nacre_types::{ClientUuid, Fid, Nid, Status};
use nacre_wire::oss::{Bulk, OssReply, OssRequest};
use serde::Serialize;

use crate::buffer::O_DIRECT;
use crate::error::Error;
use crate::instance::Instance;
use crate::medium;
use crate::options::word;

/// Sequence of the objects: that of Lustre's echo client, which is reserved for tests of targets.
const SEQUENCE: u64 = 2;

/// A measured layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Layer {
    /// An object store in this process, with the settings that an OST opens it with
    Store,
    /// An OST in a process of its own, over TCP on this host
    Ost,
    /// Files of one stripe on a mount, opened with O_DIRECT, over the same OST
    Client,
}

impl Layer {
    pub(super) fn name(self) -> String {
        word(self)
    }
}

/// Back end of the objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// A file for each
    #[default]
    File,
    /// One sparse file for all, by a store that has it for itself
    Block,
}

/// Returns the size in bytes of a store's sparse file: the requested one, or half of the available space,
/// since other layers have such a file, too.
pub(super) fn device_bytes(directory: &Path, requested: Option<u64>) -> Result<u64, Error> {
    if let Some(bytes) = requested {
        return Ok(bytes);
    }
    let found = rustix::fs::statvfs(directory).map_err(Error::io("look at the file system of", directory))?;
    let available = found.f_bavail.saturating_mul(found.f_frsize);
    Ok((available / 2) >> 20 << 20)
}

/// Objects by number, from 0. Any thread may call any method.
pub(super) trait Objects: Sync {
    fn write(&self, object: u32, offset: u64, data: &[u8]) -> Result<(), Error>;
    fn read(&self, object: u32, offset: u64, buffer: &mut [u8]) -> Result<(), Error>;
    /// Makes an object durable.
    fn sync(&self, object: u32) -> Result<(), Error>;
    /// Removes an object; later writes create it again.
    fn destroy(&self, object: u32) -> Result<(), Error>;
    /// Discards free space on the device and returns the number of bytes; `None` if the local file system has
    /// to be trimmed instead.
    fn trim(&self) -> Result<Option<u64>, Error> {
        Ok(None)
    }
    /// Creates the objects below this number.
    fn make(&mut self, objects: u32) -> Result<(), Error>;
}

fn fid(object: u32) -> Fid {
    Fid::new(SEQUENCE, object + 1, 0)
}

/// Objects of a store in this process.
pub(super) struct StoreObjects {
    store: Box<dyn ObjectStore>,
}

impl StoreObjects {
    pub(super) fn open(
        dir: &Path,
        backend: Backend,
        device_bytes: u64,
        medium: Option<AnyMedium>,
    ) -> Result<StoreObjects, Error> {
        let store = open_store(dir, backend, device_bytes)?;
        let objects = StoreObjects { store: Box::new(Simulated::new(store)) };
        if let Some(medium) = medium {
            medium::set(medium, &*objects.store, dir)?;
        }
        Ok(objects)
    }
}

/// Creates a store; one with a device for itself gets `size` bytes.
pub(super) fn open_store(dir: &Path, backend: Backend, size: u64) -> Result<Box<dyn ObjectStore>, Error> {
    Ok(match backend {
        Backend::File => Box::new(FileStore::open(dir, FileStoreOptions::create())?),
        Backend::Block => {
            let options = BlockStoreOptions { create: true, size, ..BlockStoreOptions::default() };
            Box::new(BlockStore::open(dir, options)?)
        }
    })
}

impl Drop for StoreObjects {
    fn drop(&mut self) {
        if let Err(error) = self.store.close() {
            eprintln!("bench: {error}");
        }
    }
}

impl Objects for StoreObjects {
    fn write(&self, object: u32, offset: u64, data: &[u8]) -> Result<(), Error> {
        match self.store.write(fid(object), offset, data)? {
            written if written == data.len() => Ok(()),
            _ => Err(ObjectError::NoSpace.into()),
        }
    }

    fn read(&self, object: u32, offset: u64, buffer: &mut [u8]) -> Result<(), Error> {
        whole(self.store.read(fid(object), offset, buffer, 0)?, buffer.len())
    }

    fn sync(&self, object: u32) -> Result<(), Error> {
        Ok(self.store.sync(fid(object))?)
    }

    fn destroy(&self, object: u32) -> Result<(), Error> {
        self.store.destroy(&[fid(object)])?;
        Ok(())
    }

    fn trim(&self) -> Result<Option<u64>, Error> {
        let Abilities { trim: Some(medium), device_store: Some(_), .. } = self.store.abilities() else {
            return Ok(None);
        };
        let (mut all, mut next) = (0, Some(0));
        while let Some(from) = next {
            let trimmed = medium.trim(from, u64::MAX)?;
            all += trimmed.bytes;
            next = trimmed.next;
        }
        Ok(Some(all))
    }

    fn make(&mut self, objects: u32) -> Result<(), Error> {
        let ids = self.store.abilities().ids_of(SEQUENCE)?;
        while ids.last_reserved(SEQUENCE)? < objects {
            ids.reserve(SEQUENCE, objects)?;
        }
        Ok(())
    }
}

fn whole(found: usize, wanted: usize) -> Result<(), Error> {
    if found == wanted {
        return Ok(());
    }
    let reason = format!("a read of {wanted} bytes gave {found}");
    Err(Error::Server { what: "the survey".to_owned(), reason })
}

/// Objects of an OST, accessed as a client does.
pub(super) struct OstObjects {
    endpoint: TcpOss,
    /// Identifiers of the objects, by number. One that is removed gets another: an OST refuses changes of objects that
    /// were destroyed.
    ids: Vec<AtomicU32>,
}

impl OstObjects {
    /// Connects to the first OST of `instance`, whose servers have processes of their own.
    pub(super) fn connect(instance: &Instance) -> Result<OstObjects, Error> {
        OstObjects::at(&instance.address("OST0000")?)
    }

    /// Connects to the OST with index 0 at a NID.
    pub(super) fn at(address: &str) -> Result<OstObjects, Error> {
        let failed = |reason: String| Error::Server { what: "OST0000".to_owned(), reason };
        let nid: Nid = address.parse().map_err(|error| failed(format!("{address}: {error}")))?;
        let mut id = [0; 16];
        id[..4].copy_from_slice(&std::process::id().to_le_bytes());
        id[15] = 1;
        let identity = ClientIdentity { client: ClientUuid(id), fsname: String::new(), is_server: false };
        let endpoint = TcpOss::new(0, &[nid], &identity, &ClientConfig::default())
            .map_err(|status| failed(status.to_string()))?;
        Ok(OstObjects { endpoint, ids: Vec::new() })
    }

    /// Sets a parameter of the transport.
    pub(super) fn set(&self, tunable: Tunable, value: u64) -> Result<(), Error> {
        self.endpoint.tunables().map_or(Ok(()), |tunables| tunables.set(tunable, value)).map_err(refused)
    }

    fn call(&self, request: &OssRequest, bulk: Bulk<'_>) -> Result<OssReply, Error> {
        self.endpoint.call(request, bulk).map_err(refused)
    }

    fn fid(&self, object: u32) -> Fid {
        Fid::new(SEQUENCE, self.ids[object as usize].load(Ordering::Relaxed), 0)
    }

    /// Reserves up to `count` identifiers, at least one.
    fn reserve(&self, count: u32) -> Result<Range<u32>, Error> {
        match self.call(&OssRequest::Precreate { sequence: SEQUENCE, count }, Bulk::None)? {
            OssReply::Precreated { first, count } if count > 0 => Ok(first..first + count),
            _ => Err(refused(Status::EPROTO)),
        }
    }
}

fn refused(status: Status) -> Error {
    Error::Server { what: "OST0000".to_owned(), reason: status.to_string() }
}

impl Objects for OstObjects {
    fn write(&self, object: u32, offset: u64, data: &[u8]) -> Result<(), Error> {
        match self.call(&OssRequest::plain_write(self.fid(object), offset), Bulk::Send(data))? {
            OssReply::Written { bytes, .. } if bytes as usize == data.len() => Ok(()),
            _ => Err(refused(Status::ENOSPC)),
        }
    }

    fn read(&self, object: u32, offset: u64, buffer: &mut [u8]) -> Result<(), Error> {
        let length = buffer.len();
        let request = OssRequest::plain_read(self.fid(object), offset, length as u32);
        match self.call(&request, Bulk::Receive(buffer))? {
            OssReply::Read(read) => whole(read as usize, length),
            _ => Err(refused(Status::EPROTO)),
        }
    }

    fn sync(&self, object: u32) -> Result<(), Error> {
        self.call(&OssRequest::Sync { object: Some(self.fid(object)) }, Bulk::None).map(drop)
    }

    fn destroy(&self, object: u32) -> Result<(), Error> {
        self.call(&OssRequest::Destroy { objects: vec![self.fid(object)] }, Bulk::None)?;
        self.ids[object as usize].store(self.reserve(1)?.start, Ordering::Relaxed);
        Ok(())
    }

    fn make(&mut self, objects: u32) -> Result<(), Error> {
        while self.ids.len() < objects as usize {
            let missing = objects - self.ids.len() as u32;
            self.ids.extend(self.reserve(missing)?.take(missing as usize).map(AtomicU32::new));
        }
        Ok(())
    }
}

/// Objects as files on a mount.
pub(super) struct FileObjects {
    directory: PathBuf,
    files: Vec<File>,
}

impl FileObjects {
    pub(super) fn new(directory: PathBuf) -> FileObjects {
        FileObjects { directory, files: Vec::new() }
    }

    fn path(&self, object: u32) -> PathBuf {
        self.directory.join(format!("object{object}"))
    }
}

impl Objects for FileObjects {
    fn write(&self, object: u32, offset: u64, data: &[u8]) -> Result<(), Error> {
        self.files[object as usize].write_all_at(data, offset).map_err(Error::io("write", self.path(object)))
    }

    fn read(&self, object: u32, offset: u64, buffer: &mut [u8]) -> Result<(), Error> {
        self.files[object as usize]
            .read_exact_at(buffer, offset)
            .map_err(Error::io("read", self.path(object)))
    }

    fn sync(&self, object: u32) -> Result<(), Error> {
        self.files[object as usize].sync_all().map_err(Error::io("fsync", self.path(object)))
    }

    /// The file stays, and its objects with it: only their space is freed.
    fn destroy(&self, object: u32) -> Result<(), Error> {
        self.files[object as usize].set_len(0).map_err(Error::io("truncate", self.path(object)))
    }

    fn make(&mut self, objects: u32) -> Result<(), Error> {
        fs::create_dir_all(&self.directory).map_err(Error::io("create directory", &self.directory))?;
        for object in self.files.len() as u32..objects {
            let path = self.path(object);
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(true).custom_flags(O_DIRECT);
            self.files.push(options.open(&path).map_err(Error::io("open", &path))?);
        }
        Ok(())
    }
}
