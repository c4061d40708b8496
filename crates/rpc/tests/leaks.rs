//! Threads and descriptors of the transport. One test, since it counts those of the whole process.

#[path = "support/services.rs"]
mod services;

use nacre_rpc::tcp::{TcpMds, TcpOss};
use nacre_rpc::{MdsEndpoint, ServerConfig};
use nacre_types::Cred;
use nacre_wire::mds::MdsRequest;
use services::*;
use std::sync::Arc;

fn entries(directory: &str) -> usize {
    std::fs::read_dir(directory).expect("procfs").count()
}

#[test]
fn nothing_is_left_of_clients_and_servers() {
    let count = || (entries("/proc/self/task"), entries("/proc/self/fd"));
    let before = count();
    for _ in 0..5 {
        let services = Services::default();
        let server = services.serve(any_port(), ServerConfig::default());
        let nids = [nid(server.addrs()[0])];
        let (mds, _) =
            TcpMds::connect(0, &nids, &identity(1), &quick(), Arc::new(Events::default())).expect("connect");
        let oss = TcpOss::new(0, &nids, &identity(1), &quick()).expect("oss");
        mds.call(&Cred::new(0, 0), &MdsRequest::Statfs).expect("answer");
        nacre_env::thread::scope(|scope| {
            let closed = services.oss.gate.close();
            let reader = scope.spawn(|| ten_reads_at_once(&oss));
            eventually("ten requests wait on as many threads", || {
                services.oss.gate.waiting.load(std::sync::atomic::Ordering::SeqCst) == 10
            });
            drop(closed);
            reader.join().expect("reader");
        });
        drop((mds, oss));
    }
    // The thread that repeats interrupt signals stays for the life of the process.
    eventually("threads and descriptors are gone", || count().0 <= before.0 + 1 && count().1 <= before.1);
}
