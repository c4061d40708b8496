//! Allocations of requests, of client and server together. One test, since it counts those of the whole
//! process.

#[path = "support/services.rs"]
mod services;

use nacre_rpc::tcp::{Server, Targets, TcpOss};
use nacre_rpc::{Call, OssEndpoint, OssService, ServerConfig};
use nacre_types::{Fid, StatusResult};
use nacre_wire::oss::{Bulk, OssReply, OssRequest};
use services::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: all calls go to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: forwarded under the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: forwarded under the same contract.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: forwarded under the same contract.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Answers without allocating.
struct Null;

impl OssService for Null {
    fn handle(
        &self,
        _: &nacre_rpc::Export,
        _: &Call<'_>,
        _: &OssRequest,
        bulk: Bulk<'_>,
    ) -> StatusResult<OssReply> {
        Ok(match bulk {
            Bulk::None => OssReply::Done,
            Bulk::Send(data) => OssReply::written(data.len() as u32),
            Bulk::Receive(buffer) => OssReply::Read(buffer.len() as u32),
        })
    }
}

/// Returns the allocations per call.
fn per_call(mut call: impl FnMut()) -> f64 {
    const COUNT: u64 = 2000;
    // Warm-up: buffers grow and connections open first.
    (0..COUNT).for_each(|_| call());
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    (0..COUNT).for_each(|_| call());
    (ALLOCATIONS.load(Ordering::Relaxed) - before) as f64 / COUNT as f64
}

#[test]
fn reads_and_writes_allocate_next_to_nothing() {
    nacre_env::pin_to_cpu(nacre_env::online_cpus()[0]).expect("a CPU of ours");
    let targets = Targets::new().with_ost(0, Arc::new(Null));
    let server = Server::bind(&[any_port()], targets, ServerConfig::default()).expect("a free port");
    let oss = TcpOss::new(0, &[nid(server.addrs()[0])], &identity(1), &quick()).expect("oss");
    let object = Fid::new(9, 2, 0);
    let mut buffer = vec![7u8; 64 << 10];
    for len in [4096, 64 << 10] {
        let read = OssRequest::plain_read(object, 0, len);
        let write = OssRequest::plain_write(object, 0);
        let data = &mut buffer[..len as usize];
        let reading = per_call(|| assert!(oss.call(&read, Bulk::Receive(data)).is_ok()));
        let writing = per_call(|| assert!(oss.call(&write, Bulk::Send(data)).is_ok()));
        println!("{len} bytes: {reading:.2} allocations per read, {writing:.2} per write");
        assert!(reading <= 0.1 && writing <= 0.1, "{len} bytes: {reading} per read, {writing} per write");
    }
}
