//! An MDT in this process, and threads that send it requests.

use std::path::Path;
use std::sync::Arc;

use nacre_mds::{Mds, MdsConfig, first_layout};
use nacre_rpc::{Call, Export, MdsService, NoCallbacks, ReplySlot};
use nacre_types::fid::OIDS_PER_SEQUENCE;
use nacre_types::{ClientUuid, Cred, Fid, FileKind, Nid, OpenHandle, Status, TransNo, Xid};
use nacre_wire::mds::{DataUpdate, LockRange, MdsAnswer, MdsReply, MdsRequest, NewFile, OpenFlags};

use super::Scene;
use crate::error::Error;

/// Size of a page of a listing in bytes, as in clients' requests.
const PAGE_BYTES: u32 = 1 << 20;
/// Digits of a file's number, fixed so that all names have the same length.
const DIGITS: usize = 8;
/// Length of a name in bytes.
pub(super) const NAME_LEN: usize = 7 + DIGITS;

/// Builds the name of file `number` of a thread without an allocation.
pub(super) fn name_of(thread: usize, mut number: u32) -> [u8; NAME_LEN] {
    let mut name = *b"file.a.00000000";
    name[5] = b'a' + (thread % 26) as u8;
    for digit in name[7..].iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
    name
}

/// An open MDT with one client.
pub(super) struct Engine {
    mds: Arc<Mds>,
    export: Arc<Export>,
    cred: Cred,
}

fn failed(what: &str) -> impl FnOnce(nacre_mds::MdsError) -> Error {
    move |error| Error::Server { what: format!("the MDT, {what}"), reason: error.to_string() }
}

fn refused(what: &'static str) -> impl Fn(Status) -> Error {
    move |status| Error::Server { what: format!("the MDT, {what}"), reason: status.to_string() }
}

fn config(cached_inodes: usize) -> MdsConfig {
    MdsConfig { cached_inodes, root_layout: first_layout(), ..MdsConfig::default() }
}

impl Engine {
    /// Creates an MDT in `dir` and opens it.
    pub(super) fn make(dir: &Path, cached_inodes: usize) -> Result<Engine, Error> {
        Mds::format(dir, &config(cached_inodes)).map_err(failed("format"))?;
        Engine::open(dir, cached_inodes)
    }

    /// Opens the MDT in `dir`.
    pub(super) fn open(dir: &Path, cached_inodes: usize) -> Result<Engine, Error> {
        let mds = Mds::open(dir, config(cached_inodes), Vec::new()).map_err(failed("open"))?;
        let client = ClientUuid([7; 16]);
        let export = Arc::new(Export::new(client, Nid::Lo, None, Arc::new(NoCallbacks)));
        mds.connect(&export).map_err(refused("connect"))?;
        Ok(Engine { mds, export, cred: Cred::system() })
    }

    /// Makes all changes durable.
    pub(super) fn commit(&self) -> Result<(), Error> {
        self.call(&MdsRequest::Commit { upto: TransNo(u64::MAX) }, None).map(drop)
    }

    /// Stops the MDT cleanly.
    pub(super) fn stop(self) -> Result<(), Error> {
        self.mds.stop().map_err(failed("stop"))
    }

    fn call(&self, request: &MdsRequest<'_>, slot: Option<ReplySlot>) -> Result<MdsAnswer, Error> {
        let call = Call { reply_slot: slot, ..Call::new(&self.cred) };
        self.mds.handle(&self.export, &call, request).map_err(|status| {
            let what = format!("{request:?}");
            let what = what.split([' ', '{']).next().unwrap_or_default().to_owned();
            Error::Server { what: format!("the MDT, {what}"), reason: status.to_string() }
        })
    }

    /// Reserves a sequence of unused FIDs.
    pub(super) fn sequence(&self) -> Result<u64, Error> {
        match self.call(&MdsRequest::AllocateSequence, None)?.reply {
            MdsReply::Sequence(sequence) => Ok(sequence),
            other => Err(unexpected(&other)),
        }
    }

    /// Creates a directory in the root.
    pub(super) fn make_directory(&self, name: &[u8], fid: Fid) -> Result<(), Error> {
        self.create(Fid::ROOT, name, fid, NewFile::Directory, 0o777)
    }

    /// Creates an empty file.
    pub(super) fn make_file(&self, parent: Fid, name: &[u8], fid: Fid) -> Result<(), Error> {
        let mode = FileKind::Regular.mode_bits() | 0o644;
        self.create(parent, name, fid, NewFile::Node { rdev: 0 }, mode)
    }

    fn create(&self, parent: Fid, name: &[u8], fid: Fid, new: NewFile<'_>, mode: u32) -> Result<(), Error> {
        let (umask, open, exclusive) = (0o022, None, true);
        let request = MdsRequest::Create { parent, name, fid, new, mode, umask, open, exclusive };
        self.call(&request, None).map(drop)
    }

    /// Looks up a name.
    pub(super) fn look_up(&self, parent: Fid, name: &[u8]) -> Result<Fid, Error> {
        match self.call(&MdsRequest::Lookup { parent, name }, None)?.reply {
            MdsReply::Entry { attr: Some(attr), .. } => Ok(attr.fid),
            other => Err(unexpected(&other)),
        }
    }
}

fn unexpected(reply: &MdsReply) -> Error {
    Error::Server { what: "the MDT".to_owned(), reason: format!("answered {reply:?}") }
}

/// The files of a scene: number, directories and FIDs.
pub(super) struct Files {
    scene: Scene,
    count: u32,
    directories: Vec<Fid>,
    /// Sequences of FIDs by thread.
    sequences: Vec<Vec<u64>>,
}

impl Files {
    /// Creates the directories.
    pub(super) fn new(engine: &Engine, scene: Scene, count: u32) -> Result<Files, Error> {
        let sequence = engine.sequence()?;
        let mut directories = Vec::new();
        for thread in 0..scene.threads() as u32 {
            let fid = Fid::new(sequence, thread + 1, 0);
            engine.make_directory(format!("d{thread}").as_bytes(), fid)?;
            directories.push(if scene == Scene::Shared { Fid::new(sequence, 1, 0) } else { fid });
        }
        let needed = count.div_ceil(OIDS_PER_SEQUENCE - 1).max(1);
        let sequences = (0..scene.threads())
            .map(|_| (0..needed).map(|_| engine.sequence()).collect())
            .collect::<Result<_, Error>>()?;
        Ok(Files { scene, count, directories, sequences })
    }

    fn fid(&self, thread: usize, number: u32) -> Fid {
        let width = OIDS_PER_SEQUENCE - 1;
        Fid::new(self.sequences[thread][(number / width) as usize], number % width + 1, 0)
    }

    fn slot(&self, engine: &Engine, thread: usize, number: u32) -> Option<ReplySlot> {
        let (client, tag) = (engine.export.client, thread as u16);
        (self.scene == Scene::Kept).then(|| ReplySlot { client, tag, xid: Xid(u64::from(number) + 1) })
    }

    pub(super) fn create(&self, engine: &Engine, thread: usize) -> Result<u64, Error> {
        let parent = self.directories[thread];
        for number in 0..self.count {
            let (name, fid) = (name_of(thread, number), self.fid(thread, number));
            if !matches!(self.scene, Scene::Opened | Scene::Kept) {
                engine.make_file(parent, &name, fid)?;
                continue;
            }
            let handle = OpenHandle(u64::from(number) + 1);
            let request = MdsRequest::Create {
                parent,
                name: &name,
                fid,
                new: NewFile::Node { rdev: 0 },
                mode: FileKind::Regular.mode_bits() | 0o644,
                umask: 0o022,
                open: Some((handle, OpenFlags::WRITE)),
                exclusive: true,
            };
            engine.call(&request, self.slot(engine, thread, 2 * number))?;
            let close = MdsRequest::Close { fid, handle, update: DataUpdate::default(), written: Vec::new() };
            engine.call(&close, self.slot(engine, thread, 2 * number + 1))?;
        }
        Ok(u64::from(self.count))
    }

    pub(super) fn stat(&self, engine: &Engine, thread: usize) -> Result<u64, Error> {
        for number in 0..self.count {
            let found = engine.look_up(self.directories[thread], &name_of(thread, number))?;
            if found != self.fid(thread, number) {
                return Err(Error::Worker("a name leads to another file".to_owned()));
            }
        }
        Ok(u64::from(self.count))
    }

    pub(super) fn get_attr(&self, engine: &Engine, thread: usize) -> Result<u64, Error> {
        for number in 0..self.count {
            engine.call(&MdsRequest::GetAttr { fid: self.fid(thread, number) }, None)?;
        }
        Ok(u64::from(self.count))
    }

    pub(super) fn read_dir(&self, engine: &Engine, thread: usize) -> Result<u64, Error> {
        let (fid, max_bytes, plus) = (self.directories[thread], PAGE_BYTES, true);
        let (mut cookie, mut entries) = (0, 0);
        loop {
            let request = MdsRequest::ReadDir { fid, cookie, max_bytes, plus, locks: LockRange::default() };
            let MdsReply::Directory(page) = engine.call(&request, None)?.reply else {
                return Err(Error::Worker("a listing is no page".to_owned()));
            };
            for entry in page.entries() {
                cookie = entry.cookie;
                entries += 1;
            }
            if page.end {
                break;
            }
        }
        let expected = u64::from(self.count) * if self.scene == Scene::Shared { 2 } else { 1 };
        if entries != expected {
            return Err(Error::Worker(format!("{entries} entries are listed, not {expected}")));
        }
        Ok(entries)
    }

    pub(super) fn unlink(&self, engine: &Engine, thread: usize) -> Result<u64, Error> {
        let parent = self.directories[thread];
        for number in 0..self.count {
            let name = name_of(thread, number);
            let request = MdsRequest::Unlink { parent, name: &name, directory: false };
            engine.call(&request, self.slot(engine, thread, 2 * self.count + number))?;
        }
        Ok(u64::from(self.count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_threads_and_numbers_apart() {
        assert_eq!(name_of(0, 123), *b"file.a.00000123");
        assert_eq!(name_of(1, 99_999_999), *b"file.b.99999999");
    }
}
