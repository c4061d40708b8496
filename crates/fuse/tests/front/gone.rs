//! Names whose files another mount replaces between the requests of one system call.

use super::support::{Mount, Servers, on_servers};
use nacre_fuse::front::FrontOptions;
use nacre_rpc::MdsEndpoint;
use nacre_types::{Cred, Status, StatusResult};
use nacre_wire::mds::{MdsAnswer, MdsRequest, OpenFlags};
use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Way to the MDT on which something happens before a request.
struct Late<F> {
    mdt: Arc<dyn MdsEndpoint>,
    before: F,
}

impl<F: Fn(&MdsRequest<'_>) + Send + Sync> MdsEndpoint for Late<F> {
    fn call(&self, cred: &Cred, request: &MdsRequest<'_>) -> StatusResult<MdsAnswer> {
        (self.before)(request);
        match self.mdt.call(cred, request) {
            // As for a name in a directory that moved to another MDT.
            Err(Status::ENOENT) if is_lookup(request) || matches!(request, MdsRequest::Unlink { .. }) => {
                Err(Status::ESTALE)
            }
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

fn is_lookup(request: &MdsRequest<'_>) -> bool {
    matches!(
        request,
        MdsRequest::Lookup { name: b"file", .. } | MdsRequest::Intent { name: Some(b"file"), .. }
    )
}

/// Mounts through such a way.
fn mount(servers: &Servers, before: impl Fn(&MdsRequest<'_>) + Send + Sync + 'static) -> Mount {
    servers.mount_through(FrontOptions::default(), |mdt| Arc::new(Late { mdt, before }))
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

/// Gives the name of a file to a spare one.
fn replace(file: &Path, number: u32) {
    fs::remove_file(file).expect("removed");
    fs::rename(spare(file, number), file).expect("renamed");
}

#[test]
fn a_name_whose_file_is_replaced_before_every_open_can_be_opened() {
    on_servers(1, |servers| {
        let other = servers.mount();
        let file = other.path("file");
        fs::write(&file, "content").expect("written");
        // New ones would still be open when they are removed.
        (0..5).for_each(|number| fs::write(spare(&file, number), "content").expect("written"));
        all_are_closed(&servers);
        let counts: Arc<[AtomicU32; 3]> = Arc::default();
        let seen = counts.clone();
        let [opens, holds, _] = &*seen;
        let mount = mount(&servers, move |request| {
            let MdsRequest::Open { flags, .. } = request else { return };
            let [opens, holds, spares] = &*counts;
            // The kernel opens twice; a file that is held is not removed.
            let (count, late) = if flags.contains(OpenFlags::READ) { (opens, 2) } else { (holds, 3) };
            if count.fetch_add(1, Ordering::Relaxed) < late {
                replace(&file, spares.fetch_add(1, Ordering::Relaxed));
            }
        });
        assert_eq!(fs::read_to_string(mount.path("file")).expect("the name exists throughout"), "content");
        assert_eq!(opens.load(Ordering::Relaxed), 2, "no hold without need");
        assert!(holds.load(Ordering::Relaxed) > 3);
        all_are_closed(&servers);
        assert_eq!(fs::read_to_string(mount.path("file")).expect("the name exists throughout"), "content");
        assert_eq!(opens.load(Ordering::Relaxed), 3);
    });
}

#[test]
fn a_name_whose_file_is_replaced_before_it_is_linked_gets_the_link() {
    on_servers(1, |servers| {
        let other = servers.mount();
        let file = other.path("file");
        fs::write(&file, "old").expect("written");
        fs::write(spare(&file, 0), "new").expect("written");
        all_are_closed(&servers);
        let count: Arc<AtomicU32> = Arc::default();
        let links = count.clone();
        let mount = mount(&servers, move |request| {
            if matches!(request, MdsRequest::Link { .. }) && count.fetch_add(1, Ordering::Relaxed) == 0 {
                replace(&file, 0);
            }
        });
        fs::hard_link(mount.path("file"), mount.path("link"))
            .expect("the kernel looks the name up once more");
        assert_eq!(fs::read_to_string(mount.path("link")).expect("there"), "new");
        assert_eq!(links.load(Ordering::Relaxed), 2);
    });
}

/// Removes a file whose directory becomes another one before each request that `is_late`.
fn remove_while_its_directory_changes(is_late: impl Fn(&MdsRequest<'_>) -> bool + Send + Sync + 'static) {
    on_servers(1, |servers| {
        let other = servers.mount();
        let dir = other.path("above/dir");
        fs::create_dir(other.path("above")).expect("made");
        make(&dir);
        let mount = mount(&servers, move |request| {
            if is_late(request) {
                fs::remove_dir_all(&dir).expect("removed");
                make(&dir);
            }
        });
        fs::remove_file(mount.path("above/dir/file")).expect("the name exists throughout");
        assert!(!other.path("above/dir/file").exists());
    });
}

#[test]
fn a_name_is_removed_although_its_directory_becomes_another_one_again_and_again() {
    let count: Arc<AtomicU32> = Arc::default();
    let removals = count.clone();
    remove_while_its_directory_changes(move |request| {
        matches!(request, MdsRequest::Unlink { .. }) && count.fetch_add(1, Ordering::Relaxed) < 5
    });
    assert_eq!(removals.load(Ordering::Relaxed), 6);
}

#[test]
fn a_name_is_removed_although_its_directory_becomes_another_one_before_the_lookup_and_again_afterwards() {
    let (lookups, removals): (Arc<AtomicU32>, Arc<AtomicU32>) = Default::default();
    let (looked_up, removed) = (lookups.clone(), removals.clone());
    remove_while_its_directory_changes(move |request| match request {
        MdsRequest::Unlink { .. } => removed.fetch_add(1, Ordering::Relaxed) < 3,
        request => is_lookup(request) && looked_up.fetch_add(1, Ordering::Relaxed) == 0,
    });
    assert!(lookups.load(Ordering::Relaxed) > 1);
    assert_eq!(removals.load(Ordering::Relaxed), 4);
}

#[test]
fn a_truncation_whose_file_goes_while_it_is_under_way_applies_to_the_file_that_has_the_name() {
    on_servers(1, |servers| {
        let other = servers.mount();
        let file = other.path("file");
        fs::write(&file, "old").expect("written");
        fs::write(spare(&file, 0), "new").expect("written");
        all_are_closed(&servers);
        let count: Arc<AtomicU32> = Arc::default();
        let sizes = count.clone();
        let mount = mount(&servers, move |request| {
            let is_of_layout =
                matches!(request, MdsRequest::LayoutAccess { .. } | MdsRequest::LayoutIntent { .. });
            match count.load(Ordering::Relaxed) {
                0 if matches!(request, MdsRequest::SetAttr { .. }) => count.store(1, Ordering::Relaxed),
                1 if is_of_layout => {
                    count.store(2, Ordering::Relaxed);
                    replace(&file, 0);
                }
                _ => {}
            }
        });
        let path = CString::new(mount.path("file").as_os_str().as_bytes()).expect("no zeros");
        // SAFETY: the path ends with a zero. truncate(2) opens nothing, unlike `File::set_len`.
        let truncated = unsafe { libc::truncate(path.as_ptr(), 200_000) };
        assert_eq!(truncated, 0, "{}", std::io::Error::last_os_error());
        assert_eq!(sizes.load(Ordering::Relaxed), 2);
        let found = fs::read(mount.path("file")).expect("read");
        assert!(found.len() == 200_000 && found.starts_with(b"new"), "{}", found.len());
    });
}
