//! A file system with one MDT, one OST and one client.

use nacre_client::{Caller, Created, NewFile, OpenFlags, Reader, WriteOptions};
use nacre_sim::{Cluster, Shape, simulate, trace_hash};
use nacre_types::Fid;

fn root() -> Caller {
    Caller { uid: 0, gid: 0, pid: std::process::id() }
}

fn write_and_read() -> Vec<u8> {
    let scratch = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let mut cluster = Cluster::start(Shape { mdts: 1, osts: 1, clients: 1 }, None, scratch.path());
    let mount = cluster.mount(0).expect("mounted");
    let client = &mount.client;
    let what = Created { new: NewFile::Node { rdev: 0 }, mode: 0o100644, umask: 0o22 };
    let open = (OpenFlags::READ | OpenFlags::WRITE, false);
    let (_, opened) = client.opens.create_open(&root(), Fid::ROOT, b"a", &what, open, true).expect("created");
    let data: Vec<u8> = (0..200_000_u32).map(|at| (at / 999) as u8).collect();
    let written = client.data.write(&root(), opened.handle, 0, &data, WriteOptions::default());
    assert_eq!(written, Ok(data.len()));
    client.data.fsync(opened.handle).expect("synced");
    let mut back = vec![0; data.len()];
    assert_eq!(client.data.read(opened.handle, 0, &mut back, Reader::Program), Ok(data.len()));
    assert!(back == data);
    client.opens.release(opened.handle).expect("closed");
    mount.stop();
    cluster.stop().expect("stopped");
    back
}

#[test]
fn a_seed_gives_a_whole_file_system_the_same_steps_each_time() {
    let (first, again) = (simulate(1, write_and_read), simulate(1, write_and_read));
    let differs = first.steps.iter().zip(&again.steps).position(|(one, other)| one != other);
    if let Some(at) = differs {
        panic!("step {at}: {} and {}", first.steps[at], again.steps[at]);
    }
    println!("{} steps, {:?}, left {:?}", first.steps.len(), first.time, first.left);
    assert_eq!(trace_hash(&first), trace_hash(&again));
    assert!(first.left.is_empty());
}
