//! Names whose files another mount replaces between the requests of one system call.

use super::support::{Servers, on_servers};
use nacre_env::sync::Mutex;
use nacre_fuse::front::FrontOptions;
use nacre_rpc::MdsEndpoint;
use nacre_types::{Cred, Status, StatusResult};
use nacre_wire::mds::{MdsAnswer, MdsRequest, OpenFlags};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Way to the MDT on which opens are late: the file is removed and another one has its name.
struct Late {
    mdt: Arc<dyn MdsEndpoint>,
    /// Name on another mount, once it exists.
    path: Arc<Mutex<Option<PathBuf>>>,
    opens: Arc<AtomicU32>,
    holds: Arc<AtomicU32>,
    /// Files that were used. New ones would still be open when they are removed.
    spares: AtomicU32,
}

impl MdsEndpoint for Late {
    fn call(&self, cred: &Cred, request: &MdsRequest<'_>) -> StatusResult<MdsAnswer> {
        let path = self.path.lock().clone();
        if let (MdsRequest::Open { flags, .. }, Some(path)) = (request, path) {
            let is_hold = !flags.contains(OpenFlags::READ);
            let before = if is_hold { &self.holds } else { &self.opens }.fetch_add(1, Ordering::Relaxed);
            // The kernel opens twice; a file that is held is not removed.
            if before < if is_hold { 3 } else { 2 } {
                fs::remove_file(&path).expect("removed");
                let spare = spare(&path, self.spares.fetch_add(1, Ordering::Relaxed));
                fs::rename(spare, &path).expect("renamed");
            }
        }
        self.mdt.call(cred, request)
    }

    fn post(&self, cred: &Cred, request: &MdsRequest<'_>) {
        self.mdt.post(cred, request);
    }

    fn wait_for_posts(&self) -> StatusResult<()> {
        self.mdt.wait_for_posts()
    }

    fn is_local(&self) -> bool {
        self.mdt.is_local()
    }
}

/// Way to the MDT on which removals of names are late: another directory has the name of theirs by then.
struct Moved {
    mdt: Arc<dyn MdsEndpoint>,
    /// Directory on another mount, once it exists.
    dir: Arc<Mutex<Option<PathBuf>>>,
    removals: Arc<AtomicU32>,
}

impl MdsEndpoint for Moved {
    fn call(&self, cred: &Cred, request: &MdsRequest<'_>) -> StatusResult<MdsAnswer> {
        let dir = self.dir.lock().clone();
        if let (MdsRequest::Unlink { .. }, Some(dir)) = (request, dir)
            && self.removals.fetch_add(1, Ordering::Relaxed) < 5
        {
            fs::remove_dir_all(&dir).expect("removed");
            make(&dir);
        }
        match self.mdt.call(cred, request) {
            // As for a directory that moved to another MDT.
            Err(Status::ENOENT) if matches!(request, MdsRequest::Unlink { .. }) => Err(Status::ESTALE),
            outcome => outcome,
        }
    }

    fn post(&self, cred: &Cred, request: &MdsRequest<'_>) {
        self.mdt.post(cred, request);
    }

    fn wait_for_posts(&self) -> StatusResult<()> {
        self.mdt.wait_for_posts()
    }

    fn is_local(&self) -> bool {
        self.mdt.is_local()
    }
}

fn make(dir: &Path) {
    fs::create_dir(dir).expect("made");
    fs::write(dir.join("file"), "content").expect("written");
}

/// Waits until no file is open: the kernel closes without waiting. The time limit of the test applies.
fn all_are_closed(servers: &Servers) {
    while servers.open_files() > 0 {
        nacre_env::thread::yield_now();
    }
}

/// Returns the path of a file that takes the name of another one.
fn spare(path: &Path, number: u32) -> PathBuf {
    path.with_extension(number.to_string())
}

#[test]
fn a_name_whose_file_is_replaced_before_every_open_can_be_opened() {
    on_servers(1, |servers| {
        let other = servers.mount();
        let (path, opens, holds) = <(Arc<Mutex<Option<PathBuf>>>, Arc<AtomicU32>, Arc<AtomicU32>)>::default();
        let late = |mdt| {
            let spares = AtomicU32::new(0);
            Late { mdt, path: path.clone(), opens: opens.clone(), holds: holds.clone(), spares }
        };
        let mount = servers.mount_through(FrontOptions::default(), |mdt| Arc::new(late(mdt)));
        let file = other.path("file");
        fs::write(&file, "content").expect("written");
        (0..5).for_each(|number| fs::write(spare(&file, number), "content").expect("written"));
        all_are_closed(&servers);
        *path.lock() = Some(file);
        assert_eq!(fs::read_to_string(mount.path("file")).expect("the name exists throughout"), "content");
        assert_eq!(opens.load(Ordering::Relaxed), 2, "no hold without need");
        assert!(holds.load(Ordering::Relaxed) > 3);
        all_are_closed(&servers);
        assert_eq!(fs::read_to_string(mount.path("file")).expect("the name exists throughout"), "content");
        assert_eq!(opens.load(Ordering::Relaxed), 3);
    });
}

#[test]
fn a_name_is_removed_although_its_directory_becomes_another_one_again_and_again() {
    on_servers(1, |servers| {
        let other = servers.mount();
        let (dir, removals) = <(Arc<Mutex<Option<PathBuf>>>, Arc<AtomicU32>)>::default();
        let moved = |mdt| Moved { mdt, dir: dir.clone(), removals: removals.clone() };
        let mount = servers.mount_through(FrontOptions::default(), |mdt| Arc::new(moved(mdt)));
        fs::create_dir(other.path("above")).expect("made");
        make(&other.path("above/dir"));
        *dir.lock() = Some(other.path("above/dir"));
        fs::remove_file(mount.path("above/dir/file")).expect("the name exists throughout");
        assert_eq!(removals.load(Ordering::Relaxed), 6);
        assert!(!other.path("above/dir/file").exists());
    });
}
