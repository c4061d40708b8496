//! Changelogs on real mounts: the commands with Lustre's output, permissions, and a copy of a tree that is kept by
//! nothing but the stream of changes.

use nacre_testkit::cluster::Options;
use nacre_testkit::requirements::{have, have_root};
use nacre_testkit::{Cluster, Shape, on_each_shape_with_mdts, program, text, wait};
use rustix::process::Signal;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Debug;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

fn lctl(cluster: &Cluster, arguments: &[&str]) -> String {
    cluster.lctl(arguments).success().stdout
}

fn changelog(cluster: &Cluster, arguments: &[&str]) -> String {
    cluster.lfs(&[&["changelog"], arguments].concat()).success().stdout
}

/// Returns a row of `lfs changelog` without the time.
fn without_time(row: &str) -> String {
    let words: Vec<&str> = row.split(' ').collect();
    [&words[..2], &words[4..]].concat().join(" ")
}

/// Checks the list of two users, of which none has cleared anything.
fn check_users(cluster: &Cluster, mdt: &str) {
    let users = lctl(cluster, &["get_param", "-n", &format!("mdd.{mdt}.changelog_users")]);
    let users: Vec<Vec<&str>> = users.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(users[0], ["current_index:", "5"]);
    assert_eq!(users[1], ["ID", "index", "(idle)", "mask"]);
    assert_eq!(users[2][..2], ["cl1", "0"]);
    assert_eq!((users[3][0], users[3][3]), ("cl2-audit", "mask=MARK,UNLNK,CLOSE"));
}

#[test]
fn a_stopped_process_of_another_file_system_is_reported_only_by_lists() {
    if !have(&["/dev/fuse", "fusermount3"]) || !have_root() {
        return;
    }
    let start = |fsname: &str| {
        Cluster::start_with(Shape::Embedded, &Options { fsname: fsname.into(), ..Options::default() })
    };
    let (mut cluster, mut other) = (start("chnear"), start("chfar"));
    if cluster.is_foreign() {
        return;
    }
    let node = other.pid("node");
    other.signal(node, Signal::STOP);
    let asked = cluster.lfs(&["changelog", "chnear-MDT0000"]);
    let listed = cluster.lctl(&["list_nids"]);
    let missing = cluster.lfs(&["changelog", "chfar-MDT0000"]);
    other.signal(node, Signal::CONT);
    let report =
        format!("lctl: the process of {} does not answer\n", other.data().join("run/control.sock").display());
    assert_eq!((asked.code(), asked.stderr.as_str()), (0, ""));
    assert_eq!((listed.code(), listed.stderr.contains(&report)), (0, true), "{}", listed.stderr);
    let missing = missing.fails_with(libc::ENODEV);
    assert!(missing.stderr.contains(&report), "{}", missing.stderr);
    cluster.stop_and_check();
    other.stop_and_check();
}

#[test]
fn commands_and_parameters_speak_lustres_language() {
    on_each_shape_with_mdts("chla", 2, |cluster, fsname| {
        let mdt = format!("{fsname}-MDT0000");
        let registered = lctl(cluster, &["--device", &mdt, "changelog_register"]);
        assert_eq!(registered, format!("{mdt}: Registered changelog userid 'cl1'\n"));
        let named =
            lctl(cluster, &["--device", &mdt, "changelog_register", "-u", "audit", "-m", "UNLNK,CLOSE"]);
        assert_eq!(named, format!("{mdt}: Registered changelog userid 'cl2-audit'\n"));

        // On the MDT of the root, which a new directory need not be on.
        let top = cluster.mount().join("top");
        cluster.lfs(&["mkdir", "-i", "0", text(&top)]).success();
        let (file, moved) = (top.join("file"), top.join("moved"));
        fs::write(&file, "data").expect("written");
        // The kernel sends a close after the program has returned from it.
        wait::until(LIMIT, "the close", || changelog(cluster, &[&mdt]).contains(" 11CLOSE ").then_some(()));
        fs::rename(&file, &moved).expect("renamed");
        fs::remove_file(&moved).expect("removed");
        let fid = |path: &Path| cluster.lfs(&["path2fid", text(path)]).success().stdout.trim().to_owned();
        let (root, top_fid) = (fid(cluster.mount()), fid(&top));
        let rows = changelog(cluster, &[&mdt]);
        let rows: Vec<String> = rows.lines().map(without_time).collect();
        let created = &rows[1];
        let target = created.split(" t=").nth(1).and_then(|rest| rest.split(' ').next()).expect("a target");
        let nid = created.split(" nid=").nth(1).and_then(|rest| rest.split(' ').next()).expect("an address");
        let origin = format!("ef=0x3 u=0:0 nid={nid}");
        assert_eq!(rows[0], format!("1 02MKDIR 0x0 t={top_fid} {origin} p={root} top"));
        assert_eq!(*created, format!("2 01CREAT 0x0 t={target} {origin} p={top_fid} file"));
        assert_eq!(rows[2], format!("3 11CLOSE 0x2 t={target} {origin}"));
        assert_eq!(
            rows[3],
            format!("4 08RENME 0x0 t=[0:0x0:0x0] {origin} p={top_fid} moved s={target} sp={top_fid} file")
        );
        assert_eq!(rows[4], format!("5 06UNLNK 0x1 t={target} {origin} p={top_fid} moved"));
        assert_eq!(rows.len(), 5, "{rows:#?}");
        let first = changelog(cluster, &[&mdt, "1", "1"]);
        assert!(first.starts_with("1 02MKDIR ") && first.lines().count() == 1, "{first}");
        let indexes = |arguments: &[&str]| -> Vec<String> {
            let rows = changelog(cluster, arguments);
            rows.lines().map(|row| row.split(' ').next().unwrap_or_default().to_owned()).collect()
        };
        assert_eq!(indexes(&[&mdt, "2", "4"]), ["2", "3", "4"]);
        assert_eq!(indexes(&["--user", "cl2-audit", &mdt]), ["3", "5"]);
        assert_eq!(indexes(&["--mask", "RENME", &mdt]), ["4"]);

        check_users(cluster, &mdt);
        cluster.lfs(&["changelog_clear", &mdt, "cl1", "4"]).success();
        cluster.lfs(&["changelog_clear", &mdt, "cl2-audit", "0"]).success();
        wait::until(LIMIT, "the purge", || (indexes(&[&mdt]) == ["5"]).then_some(()));
        let beyond = cluster.lfs(&["changelog_clear", &mdt, "cl1", "99"]).fails_with(libc::EINVAL);
        assert_eq!(beyond.stderr, "changelog_clear: record out of range: 99\n");
        let unknown = cluster.lfs(&["changelog_clear", &mdt, "cl9", "0"]).fails_with(libc::ENOENT);
        assert_eq!(unknown.stderr, "changelog_clear: no changelog user: cl9\n");

        lctl(cluster, &["set_param", &format!("mdd.{mdt}.changelog_mask=-UNLNK")]);
        let mask = lctl(cluster, &["get_param", "-n", &format!("mdd.{mdt}.changelog_mask")]);
        assert!(mask.starts_with("MARK CREAT MKDIR ") && !mask.contains("UNLNK"), "{mask}");
        let gone = lctl(cluster, &["--device", &mdt, "changelog_deregister", "-u", "audit"]);
        assert_eq!(gone, format!("{mdt}: Deregistered changelog user #2\n"));
        assert_eq!(
            lctl(cluster, &["--device", &mdt, "changelog_deregister", "cl1"]),
            format!("{mdt}: Deregistered changelog user #1\n")
        );
        wait::until(LIMIT, "the purge", || {
            let size = lctl(cluster, &["get_param", "-n", &format!("mdd.{mdt}.changelog_size")]);
            (size.trim() == "0").then_some(())
        });
    });
}

#[test]
fn users_of_a_mount_are_refused() {
    let mut options = Options { fsname: "chlb".to_owned(), ..Options::default() };
    options.mdts = 2;
    let mut cluster = Cluster::start_with(Shape::Separate, &options);
    let mdt = "chlb-MDT0000";
    lctl(&cluster, &["--device", mdt, "changelog_register"]);
    fs::write(cluster.mount().join("secret-name"), "").expect("written");
    let point = text(cluster.mount());
    let refused = [
        &["lfs", "changelog", mdt][..],
        &["lfs", "changelog_clear", mdt, "cl1", "0"],
        &["lctl", "--device", mdt, "changelog_register"],
        &["changes", point],
    ]
    .map(|words| {
        let mut command = cluster.command();
        command.args(words).uid(1000).gid(1000);
        program::run_command(command, LIMIT)
    });
    for outcome in refused {
        assert_ne!(outcome.code(), 0, "{outcome:?}");
        assert!(!outcome.stdout.contains("secret-name"), "{outcome:?}");
    }
    assert!(changelog(&cluster, &[mdt]).contains("secret-name"));
    cluster.stop_and_check();
}

/// A copy of a tree, kept by the stream of changes alone. Files are copied when they were closed or truncated.
struct Mirror {
    source: PathBuf,
    root: PathBuf,
    /// Name of each inode: a path below the root; several for hard links.
    paths: HashMap<String, Vec<PathBuf>>,
}

impl Mirror {
    fn path(&self, parent: &str, name: &str) -> PathBuf {
        let parents = self.paths.get(parent);
        let parent =
            parents.and_then(|paths| paths.first()).unwrap_or_else(|| panic!("{parent} is not known"));
        parent.join(name)
    }

    fn drop_path(&mut self, path: &Path) {
        for paths in self.paths.values_mut() {
            paths.retain(|known| known != path);
        }
    }

    /// Moves a path, and all below it.
    fn move_path(&mut self, from: &Path, to: &Path) {
        for path in self.paths.values_mut().flatten() {
            if let Ok(rest) = path.strip_prefix(from) {
                *path = if rest.as_os_str().is_empty() { to.to_owned() } else { to.join(rest) };
            }
        }
    }

    /// Returns the inode in the source, whatever name it has by now.
    fn of_source(&self, fid: &str) -> PathBuf {
        self.source.join(".lustre/fid").join(fid)
    }

    fn apply(&mut self, change: &Value) {
        let word = |key: &str| change[key].as_str().unwrap_or_default().to_owned();
        let (fid, kind) = (word("fid"), word("type"));
        let at = change["parent"].as_str().map(|parent| self.path(parent, &word("name")));
        match (kind.as_str(), at) {
            ("CREAT", Some(at)) => {
                fs::write(self.root.join(&at), "").expect("made");
                self.paths.entry(fid).or_default().push(at);
            }
            ("MKDIR", Some(at)) => {
                fs::create_dir(self.root.join(&at)).expect("made");
                self.paths.entry(fid).or_default().push(at);
            }
            ("SLINK", Some(at)) => {
                // A link that is removed by now has a record of that.
                let target = fs::read_link(self.of_source(&fid)).unwrap_or_else(|_| "gone".into());
                symlink(target, self.root.join(&at)).expect("made");
                self.paths.entry(fid).or_default().push(at);
            }
            ("HLINK", Some(at)) => {
                let known = self.paths[&fid][0].clone();
                fs::hard_link(self.root.join(known), self.root.join(&at)).expect("linked");
                self.paths.entry(fid).or_default().push(at);
            }
            ("UNLNK", Some(at)) => {
                fs::remove_file(self.root.join(&at)).expect("removed");
                self.drop_path(&at);
            }
            ("RMDIR", Some(at)) => {
                fs::remove_dir(self.root.join(&at)).expect("removed");
                self.drop_path(&at);
            }
            ("RENME", Some(at)) => {
                let from = &change["source"];
                let part = |key: &str| from[key].as_str().expect("a source");
                let from = self.path(part("parent"), part("name"));
                fs::rename(self.root.join(&from), self.root.join(&at)).expect("renamed");
                self.drop_path(&at);
                self.move_path(&from, &at);
            }
            ("MIGRT", Some(_)) => {
                let old = change["source"]["fid"].as_str().expect("an old FID");
                let paths = self.paths.remove(old).unwrap_or_default();
                self.paths.insert(fid, paths);
            }
            ("CLOSE" | "TRUNC" | "SATTR", None) => self.copy(&fid),
            (other, at) => panic!("{other} {at:?}: {change}"),
        }
    }

    /// Copies data and mode of an inode that exists, and still has a name.
    fn copy(&self, fid: &str) {
        let Some(path) = self.paths.get(fid).and_then(|paths| paths.first()) else { return };
        let (from, to) = (self.of_source(fid), self.root.join(path));
        let Ok(found) = fs::symlink_metadata(&from) else { return };
        if found.is_file() {
            // It may be removed at any moment.
            if let Ok(data) = fs::read(&from) {
                fs::write(&to, data).expect("copied");
            }
        }
        fs::set_permissions(&to, fs::Permissions::from_mode(found.mode() & 0o7777)).expect("set");
    }
}

/// Returns what there is in a tree: type and mode, and data or target, by path; hard links by their first path.
fn content(root: &Path) -> BTreeMap<PathBuf, (u32, u64, String)> {
    let mut all = BTreeMap::new();
    let mut left = vec![PathBuf::new()];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(root.join(&dir)).expect("listed") {
            let entry = entry.expect("an entry");
            let path = dir.join(entry.file_name());
            let found = entry.metadata().expect("metadata");
            let data = match () {
                () if found.is_symlink() => {
                    fs::read_link(entry.path()).expect("a link").display().to_string()
                }
                () if found.is_dir() => {
                    left.push(path.clone());
                    String::new()
                }
                () => fs::read_to_string(entry.path()).expect("read"),
            };
            let links = if found.is_dir() { 0 } else { found.nlink() };
            all.insert(path, (found.mode(), links, data));
        }
    }
    all
}

/// Compares two trees, and prints the first difference.
fn is_equal<T: PartialEq + Debug>(tree: &BTreeMap<PathBuf, T>, copy: &BTreeMap<PathBuf, T>) -> bool {
    let paths: BTreeSet<&PathBuf> = tree.keys().chain(copy.keys()).collect();
    let first = paths.into_iter().find(|path| tree.get(*path) != copy.get(*path));
    if let Some(path) = first {
        eprintln!("{}: {:?} in the tree, {:?} in its copy", path.display(), tree.get(path), copy.get(path));
    }
    first.is_none()
}

/// Starts a command that prints changes as they come.
fn follow(cluster: &Cluster) -> Child {
    let mut command = cluster.command();
    command.args(["changes", text(cluster.mount()), "--follow", "--json"]).stdout(Stdio::piped());
    command.spawn().expect("starts")
}

/// Works below a directory through a mount: creates, writes, links, moves and removes names of three directories,
/// until a number of steps after the kill of a server.
fn work(mount: &Path, who: &str, killed: &AtomicBool) {
    const STEPS_AFTER_KILL: usize = 200;
    let mut dice = fastrand::Rng::with_seed(who.len() as u64);
    let dirs = ["d0", "d1", "d2"].map(|dir| mount.join("tree").join(dir));
    let mut names: Vec<PathBuf> = Vec::new();
    let mut new = 0;
    let mut last = usize::MAX;
    for step in 0.. {
        if last == usize::MAX && killed.load(Ordering::Relaxed) {
            last = step + STEPS_AFTER_KILL;
        }
        if step >= last {
            return;
        }
        let dir = &dirs[dice.usize(..dirs.len())];
        new += 1;
        let fresh = dir.join(format!("{who}{new}"));
        match dice.u32(..10) {
            0..3 => fs::write(&fresh, format!("{who} {step}")).expect("written"),
            3 => fs::create_dir(&fresh).expect("made"),
            4 => symlink(format!("to {step}"), &fresh).expect("made"),
            _ if names.is_empty() => {}
            other => {
                let old = names.swap_remove(dice.usize(..names.len()));
                let found = fs::symlink_metadata(&old).expect("there");
                match other {
                    5 => fs::rename(&old, &fresh).expect("renamed"),
                    6 if found.is_file() => {
                        fs::hard_link(&old, &fresh).expect("linked");
                        names.push(old);
                    }
                    7 if found.is_file() => {
                        fs::write(&old, format!("again {step}")).expect("written");
                        names.push(old);
                        continue;
                    }
                    8 if !found.is_symlink() => {
                        let mode = if found.is_dir() { 0o750 } else { 0o640 };
                        fs::set_permissions(&old, fs::Permissions::from_mode(mode)).expect("set");
                        names.push(old);
                        continue;
                    }
                    _ if found.is_dir() => {
                        fs::remove_dir(&old).expect("removed");
                        continue;
                    }
                    _ => {
                        fs::remove_file(&old).expect("removed");
                        continue;
                    }
                }
            }
        }
        if fs::symlink_metadata(&fresh).is_ok() {
            names.push(fresh);
        }
    }
}

#[test]
fn a_tree_is_mirrored_by_the_stream_alone_while_an_mdt_is_killed() {
    let options = Options { fsname: "chlc".to_owned(), mdts: 3, ..Options::default() };
    let mut cluster = Cluster::start_with(Shape::Separate, &options);
    let other = cluster.add_mount();
    let tree = cluster.mount().join("tree");
    // What is below is new, so the stream has all of it.
    cluster.lfs(&["mkdir", "-i", "0", text(&tree)]).success();
    let top = cluster.lfs(&["path2fid", text(&tree)]).success().stdout.trim().to_owned();
    cluster.nacre(&["changes", text(cluster.mount())]).success();
    for mdt in 0..3 {
        cluster.lfs(&["mkdir", "-i", &mdt.to_string(), text(&tree.join(format!("d{mdt}")))]).success();
    }
    let scratch = cluster.run().make("mirror");
    let mut mirror = Mirror {
        source: cluster.mount().to_owned(),
        root: scratch,
        paths: HashMap::from([(top, vec![PathBuf::new()])]),
    };

    let (sender, changes) = std::sync::mpsc::channel::<Value>();
    let mut child = follow(&cluster);
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let reader = std::thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            if sender.send(serde_json::from_str(&line).expect("JSON")).is_err() {
                return;
            }
        }
    });
    let (here, there) = (cluster.mount().to_owned(), other.clone());
    let killed = Arc::new(AtomicBool::new(false));
    let workers = [(here, "a"), (there, "bb")].map(|(mount, who)| {
        let killed = Arc::clone(&killed);
        std::thread::spawn(move || work(&mount, who, &killed))
    });
    let mut applied = 0;
    while workers.iter().any(|worker| !worker.is_finished()) {
        if let Ok(change) = changes.recv_timeout(Duration::from_millis(50)) {
            mirror.apply(&change);
            applied += 1;
        }
        if applied > 100 && !killed.load(Ordering::Relaxed) {
            cluster.kill("mdt0001");
            killed.store(true, Ordering::Relaxed);
            cluster.start_all();
        }
    }
    workers.into_iter().for_each(|worker| worker.join().expect("no failure"));
    wait::until(LIMIT, "the mirror is equal", || {
        while let Ok(change) = changes.recv_timeout(Duration::from_millis(300)) {
            mirror.apply(&change);
        }
        is_equal(&content(&tree), &content(&mirror.root)).then_some(())
    });
    cluster.signal(child.id(), Signal::TERM);
    child.wait().expect("our child");
    drop(changes);
    reader.join().expect("no failure");
    cluster.nacre(&["changes", text(cluster.mount()), "--deregister"]).success();
    cluster.stop_and_check();
}
