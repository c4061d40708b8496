//! Tests of the client against servers in memory.

mod ahead;
mod fake_mds;
mod fake_oss;
mod faults;
mod files;
mod head;
mod model;
mod namespace;
mod recovery;
mod sharing;
mod statahead;
mod write_back;

use fake_mds::FakeMds;
use fake_oss::{FakeOss, Way};
use nacre_client::{
    Caller, Client, ClientConfig, Created, KernelCaches, Lease, NewFile, OpenFlags, Reader, WriteOptions,
};
use nacre_layout::LayoutSpec;
use nacre_rpc::{MdsEndpoint, OssEndpoint};
use nacre_types::limits::TARGET_INDEX_MAX;
use nacre_types::{ClientUuid, Fid, StatusResult};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Root of this machine, whose capabilities can be read.
fn root() -> Caller {
    Caller { uid: 0, gid: 0, pid: std::process::id() }
}

/// Servers, and clients of them.
struct World {
    mds: Arc<FakeMds>,
    osts: Vec<Arc<FakeOss>>,
    /// Data part of the MDT, if the file system's default begins there.
    data: Option<Arc<FakeOss>>,
}

/// Counts the invalidations that the client sends to the kernel.
#[derive(Default)]
struct Kernel {
    expired: AtomicU64,
    dropped: AtomicU64,
}

impl KernelCaches for Kernel {
    fn expire_names(&self) {
        self.expired.fetch_add(1, Ordering::Relaxed);
    }
    fn drop_attributes(&self, _node: u64) -> bool {
        true
    }

    fn drop_data(&self, _node: u64, _offset: u64, _len: u64) {}

    fn drop_inode(&self, _node: u64) -> bool {
        self.dropped.fetch_add(1, Ordering::Relaxed);
        true
    }
}

impl World {
    fn new(stripe_size: u32, stripe_count: u16) -> World {
        World::made(stripe_size, stripe_count, None)
    }

    /// Creates a world whose files begin on the MDT if their first data is small.
    fn with_heads(stripe_size: u32, stripe_count: u16) -> World {
        World::made(stripe_size, stripe_count, Some(Arc::default()))
    }

    fn made(stripe_size: u32, stripe_count: u16, data: Option<Arc<FakeOss>>) -> World {
        let spec = LayoutSpec {
            stripe_size: Some(stripe_size),
            stripe_count: Some(stripe_count),
            ..LayoutSpec::default()
        };
        let osts = (0..stripe_count).map(|_| Arc::new(FakeOss::default())).collect();
        World { mds: FakeMds::new(spec, stripe_count, data.clone()), osts, data }
    }

    fn client(&self) -> Arc<Client> {
        static CLIENTS: AtomicU64 = AtomicU64::new(1);
        let mut uuid = ClientUuid([7; 16]);
        uuid.0[8..].copy_from_slice(&CLIENTS.fetch_add(1, Ordering::Relaxed).to_le_bytes());
        let lease = Lease::new();
        let events = lease.locks().events();
        let endpoint: Arc<dyn MdsEndpoint> = self.mds.connect(lease.callbacks(0));
        let osts: BTreeMap<u16, Arc<dyn OssEndpoint>> = self
            .osts
            .iter()
            .zip(0..)
            .chain(self.data.iter().map(|data| (data, TARGET_INDEX_MAX)))
            .map(|(ost, index)| {
                let way = Way::new(ost, uuid, events.events(index));
                (index, Arc::new(way) as Arc<dyn OssEndpoint>)
            })
            .collect();
        let config = ClientConfig::new("nacre", uuid);
        Client::new(config, lease, vec![endpoint], osts).expect("the fakes answer")
    }
}

const READ_WRITE: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

/// Creates and opens a file in the root directory.
fn create(client: &Client, name: &str) -> (Fid, u64) {
    let what = Created { new: NewFile::Node { rdev: 0 }, mode: 0o100644, umask: 0o22 };
    let (found, opened) = client
        .opens
        .create_open(&root(), Fid::ROOT, name.as_bytes(), &what, (READ_WRITE, false), true)
        .expect("a new name");
    (found.attr.fid, opened.handle)
}

fn open(client: &Client, fid: Fid, flags: OpenFlags) -> u64 {
    client.opens.open(&root(), fid, flags, false).expect("the file exists").handle
}

fn write(client: &Client, handle: u64, offset: u64, data: &[u8]) -> StatusResult<usize> {
    client.data.write(&root(), handle, offset, data, WriteOptions::default())
}

fn append(client: &Client, handle: u64, data: &[u8]) -> StatusResult<usize> {
    let options = WriteOptions { append: true, ..WriteOptions::default() };
    client.data.write(&root(), handle, 0, data, options)
}

fn read(client: &Client, handle: u64, offset: u64, len: usize) -> Vec<u8> {
    let mut buffer = vec![0xaa; len];
    let bytes = client.data.read(handle, offset, &mut buffer, Reader::Program).expect("reading works");
    buffer.truncate(bytes);
    buffer
}
