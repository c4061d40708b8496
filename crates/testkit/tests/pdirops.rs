//! Concurrent operations on one directory, from two mounts. While one is held at its MDT with all its locks,
//! those on other names proceed, and those on the same name wait for it. Lustre's sanityn 40 to 47 test the
//! same.
//!
//! The names are on the MDT of their parent, on another one, or striped over two; inodes are on the MDT of
//! their name or on the other.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;

use nacre_testkit::cluster::Options;
use nacre_testkit::requirements::{have, have_root};
use nacre_testkit::{Cluster, Shape, on_each_shape_with, text, wait};

/// Operation on a name `f`; `g` is another name, and `s` an existing file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Act {
    Create,
    Mkdir,
    /// Creates a directory whose inode is on another MDT than its name.
    RemoteMkdir,
    /// Links `s` to the name `f`.
    Link,
    Unlink,
    /// Renames `s` to `f`.
    RenameTo,
    /// Renames `f` to `g`.
    RenameFrom,
    Stat,
}

use Act::{Create, Link, Mkdir, RemoteMkdir, RenameFrom, RenameTo, Stat, Unlink};
use rustix::process::Signal;

const ON_THE_SAME: [Act; 7] = [Create, Mkdir, Link, Unlink, RenameTo, RenameFrom, Stat];

impl Act {
    /// Returns the request to hold.
    fn request(self) -> &'static str {
        match self {
            Create | Mkdir | RemoteMkdir => "Create",
            Link => "Link",
            Unlink => "Unlink",
            RenameTo | RenameFrom => "Rename",
            Stat => "Lookup",
        }
    }

    fn needs_the_name(self) -> bool {
        matches!(self, Unlink | RenameFrom)
    }

    /// Returns whether `f` exists afterwards, and whether it is a directory.
    fn leaves(self) -> (bool, bool) {
        (!self.needs_the_name(), matches!(self, Mkdir | RemoteMkdir))
    }

    /// Returns the outcome after `first`.
    fn expected_after(self, first: Act) -> Result<(), i32> {
        match (self, first.leaves()) {
            (Create | Mkdir | RemoteMkdir | Link, (true, _)) => Err(libc::EEXIST),
            (Unlink | RenameTo, (true, true)) => Err(libc::EISDIR),
            (Unlink | RenameFrom | Stat, (false, _)) => Err(libc::ENOENT),
            _ => Ok(()),
        }
    }
}

/// Names of one attempt in a directory, as one mount sees them.
#[derive(Clone)]
struct Place {
    dir: PathBuf,
    number: u32,
    /// Command and options of `lfs`, up to the path.
    lfs: PathBuf,
}

impl Place {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}{}", self.number))
    }

    fn act(&self, act: Act, source: &str) -> io::Result<()> {
        let (f, g, s) = (self.path("f"), self.path("g"), self.path(source));
        match act {
            Create => OpenOptions::new().write(true).create_new(true).open(f).map(drop),
            Mkdir => fs::create_dir(f),
            RemoteMkdir => {
                let mut command = std::process::Command::new(&self.lfs);
                let status = command.args(["lfs", "mkdir", "-i", "1", text(&f)]).status()?;
                if status.success() { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EIO)) }
            }
            Link => fs::hard_link(s, f),
            Unlink => fs::remove_file(f),
            RenameTo => fs::rename(s, f),
            RenameFrom => fs::rename(f, g),
            Stat => fs::symlink_metadata(f).map(drop),
        }
    }
}

/// Two mounts, and directories of each kind.
struct Stage<'a> {
    cluster: &'a Cluster,
    mounts: [PathBuf; 2],
    dirs: Vec<PathBuf>,
    tries: AtomicU32,
}

impl<'a> Stage<'a> {
    fn new(cluster: &'a mut Cluster) -> Stage<'a> {
        let second = cluster.add_mount();
        let mounts = [cluster.mount().to_owned(), second];
        let top = cluster.directory("top");
        let make = |name: &str, words: &[&str]| {
            let path = top.join(name);
            cluster.lfs(&[&["mkdir"], words, &[text(&path)]].concat()).success();
            Path::new("top").join(name)
        };
        let dirs = vec![
            make("plain", &["-i", "0"]),
            make("remote", &["-i", "1"]),
            make("striped", &["-c", "2", "-i", "0"]),
        ];
        Stage { cluster, mounts, dirs, tries: AtomicU32::new(0) }
    }

    fn place(&self, dir: &Path) -> [Place; 2] {
        let number = self.tries.fetch_add(1, Ordering::Relaxed);
        let lfs = PathBuf::from(self.cluster.command().get_program());
        [0, 1].map(|mount| Place { dir: self.mounts[mount].join(dir), number, lfs: lfs.clone() })
    }

    fn parameter(&self, name: &str) -> String {
        format!("mdt.{}-MDT*.{name}", self.cluster.fsname())
    }

    fn parameters(&self, name: &str) -> Vec<String> {
        let found = self.cluster.lctl(&["get_param", "-n", &self.parameter(name)]).success().stdout;
        found.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect()
    }

    fn set_hold(&self, what: &str) {
        self.cluster
            .lctl(&["set_param", "-n", &format!("{}={what}", self.parameter("hold_request"))])
            .success();
    }

    fn waiters(&self) -> usize {
        let waiters = self.parameters("lock_waiters");
        waiters.iter().map(|number| number.parse::<usize>().expect("a number")).sum()
    }

    /// Starts an operation through the first mount, and returns when its MDT holds it.
    fn hold(&self, place: &Place, act: Act) -> JoinHandle<io::Result<()>> {
        let held = format!("held locked {}", act.request());
        self.set_hold(&format!("locked {}", act.request()));
        let place = place.clone();
        let thread = std::thread::spawn(move || place.act(act, "s"));
        wait::until(wait::SOON, "the first operation is held", || {
            assert!(!thread.is_finished(), "{act:?} was not held");
            self.parameters("hold_request").contains(&held).then_some(())
        });
        // No request may be held at another MDT.
        for mdt in 0..2 {
            let name = format!("mdt.{}-MDT{mdt:04x}.hold_request", self.cluster.fsname());
            let found = self.cluster.lctl(&["get_param", "-n", &name]).success().stdout;
            if found.trim() != held {
                self.cluster.lctl(&["set_param", "-n", &format!("{name}=none")]).success();
            }
        }
        thread
    }

    /// Creates the files that an operation needs. Both mounts have the directory cached, the second one none
    /// of the names.
    fn prepare(&self, first: &Place, second: &Place, act: Act) {
        for name in ["s", "t"] {
            fs::write(first.path(name), name).expect("written");
        }
        if act.needs_the_name() {
            fs::write(first.path("f"), "f").expect("written");
        }
        fs::metadata(&second.dir).expect("there");
    }
}

fn done(thread: JoinHandle<io::Result<()>>) -> Result<(), i32> {
    wait::until(wait::SOON, "the operation is over", || thread.is_finished().then_some(()));
    thread.join().expect("no panic").map_err(|error| error.raw_os_error().unwrap_or_default())
}

/// Runs all operations on other names of the directory.
fn do_others(place: &Place) -> io::Result<()> {
    let path = |name: &str| place.path(name);
    fs::write(path("o"), "other")?;
    fs::hard_link(path("o"), path("p"))?;
    fs::create_dir(path("q"))?;
    fs::rename(path("p"), path("r"))?;
    fs::set_permissions(path("o"), Permissions::from_mode(0o600))?;
    fs::metadata(path("r"))?;
    fs::metadata(&place.dir)?;
    assert_eq!(fs::read_to_string(path("o"))?, "other");
    let listed = fs::read_dir(&place.dir)?.map(|entry| entry.map(|entry| entry.path()));
    let listed: Vec<PathBuf> = listed.collect::<io::Result<_>>()?;
    assert!(listed.contains(&path("q")) && listed.contains(&path("r")), "{listed:?}");
    fs::remove_dir(path("q"))?;
    fs::remove_file(path("r"))?;
    fs::rename(path("o"), path("p"))?;
    File::open(path("p")).map(drop)
}

/// While `first` is held, all operations on other names proceed.
fn others_go_on(stage: &Stage<'_>, first: Act) {
    for dir in &stage.dirs {
        let [one, two] = stage.place(dir);
        stage.prepare(&one, &two, first);
        let held = stage.hold(&one, first);
        let what = format!("{first:?} in {}", dir.display());
        wait::deadline(wait::SOON, &what, move || do_others(&two)).expect(&what);
        assert!(!held.is_finished(), "{what} is not held any more");
        stage.set_hold("none");
        assert_eq!(done(held), Ok(()), "{what}");
    }
}

/// While `first` is held, each other operation on the same name waits, and then sees its effect.
fn the_same_name_waits(stage: &Stage<'_>, first: Act) {
    for dir in &stage.dirs {
        for second in ON_THE_SAME {
            let [one, two] = stage.place(dir);
            stage.prepare(&one, &two, first);
            let held = stage.hold(&one, first);
            let what = format!("{second:?} while {first:?} in {}", dir.display());
            let waiting = std::thread::spawn(move || two.act(second, "t"));
            wait::until(wait::SOON, &format!("{what} waits"), || {
                assert!(!waiting.is_finished(), "{what} did not wait");
                (stage.waiters() > 0).then_some(())
            });
            assert!(!waiting.is_finished() && !held.is_finished(), "{what}");
            stage.set_hold("none");
            assert_eq!(done(held), Ok(()), "{what}");
            assert_eq!(done(waiting), second.expected_after(first), "{what}");
        }
    }
}

/// Defines tests, each on a file system of each shape.
macro_rules! sanityn {
    ($($name:ident: $fsname:literal, $test:ident($($act:ident),*);)*) => {
        $(
            #[test]
            fn $name() {
                let options = Options { mdts: 2, osts: 1, listen: true, ..Options::default() };
                on_each_shape_with($fsname, &options, |cluster, _| {
                    let stage = Stage::new(cluster);
                    $( $test(&stage, $act); )*
                });
            }
        )*
    };
}

sanityn! {
    sanityn_40_other_names_go_on_while_one_operation_is_held: "pdra", others_go_on(Create, Mkdir, RemoteMkdir, Link, Unlink, RenameTo, RenameFrom);
    sanityn_41_the_same_name_waits_for_a_create: "pdrb", the_same_name_waits(Create);
    sanityn_42_the_same_name_waits_for_a_mkdir: "pdrc", the_same_name_waits(Mkdir);
    sanityn_43_the_same_name_waits_for_an_unlink: "pdrd", the_same_name_waits(Unlink);
    sanityn_44_the_new_name_waits_for_a_rename: "pdre", the_same_name_waits(RenameTo);
    sanityn_45_the_old_name_waits_for_a_rename: "pdrf", the_same_name_waits(RenameFrom);
    sanityn_46_the_same_name_waits_for_a_link: "pdrg", the_same_name_waits(Link);
    sanityn_47_the_same_name_waits_for_a_mkdir_on_another_mdt: "pdrh", the_same_name_waits(RemoteMkdir);
}

/// An operation that waits for a distributed transaction whose coordinator is down can be interrupted, and
/// then blocks no other operation.
#[test]
fn who_waits_for_an_operation_of_an_mdt_that_is_away_can_be_interrupted() {
    let options = Options { mdts: 2, osts: 1, fsname: "pdri".into(), ..Options::default() };
    if !have(&["/dev/fuse", "fusermount3"]) || !have_root() {
        return;
    }
    let mut cluster = Cluster::start_with(Shape::Separate, &options);
    if cluster.is_foreign() {
        return;
    }
    let stage = Stage::new(&mut cluster);
    let [plain, remote] = [0, 1].map(|dir| stage.mounts[0].join(&stage.dirs[dir]));
    let (file, other) = (plain.join("file"), stage.mounts[1].join(&stage.dirs[0]).join("file"));
    fs::write(&file, "data").expect("written");
    stage.set_hold("locked Link");
    let linked = remote.join("link");
    let link = {
        let (file, linked) = (file.clone(), linked.clone());
        std::thread::spawn(move || fs::hard_link(file, linked))
    };
    wait::until(wait::SOON, "the link is held", || {
        stage.parameters("hold_request").contains(&"held locked Link".to_owned()).then_some(())
    });
    stage.cluster.kill("mdt0001");
    // The file is locked at MDT 0 until MDT 1 is back.
    for command in ["chmod 600", "mv -T -n", "rm"] {
        let mut words = command.split(' ');
        let mut waiting = std::process::Command::new(words.next().expect("a word"));
        waiting.args(words).arg(&other);
        if command.starts_with("mv") {
            waiting.arg(other.with_file_name("moved"));
        }
        let mut waiting = waiting.stderr(std::process::Stdio::null()).spawn().expect("starts");
        let name = format!("mdt.{}-MDT0000.lock_waiters", stage.cluster.fsname());
        let waiters = || stage.cluster.lctl(&["get_param", "-n", &name]).success().stdout.trim().to_owned();
        wait::until(wait::SOON, &format!("{command} waits"), || {
            let ended = waiting.try_wait().expect("our child");
            assert!(ended.is_none(), "{command} did not wait: {ended:?}");
            (waiters() != "0").then_some(())
        });
        stage.cluster.signal(waiting.id(), Signal::INT);
        let ended =
            wait::until(wait::SOON, &format!("{command} ends"), || waiting.try_wait().expect("our child"));
        assert!(!ended.success(), "{command}: {ended}");
        wait::until(wait::SOON, "nobody waits any more", || (waiters() == "0").then_some(()));
        // Operations that do not need the file proceed.
        fs::write(plain.join("beside"), command).expect("written");
    }
    drop(stage);
    cluster.start_all();
    wait::until(wait::SOON, "the link is over", || link.is_finished().then_some(()));
    link.join().expect("no panic").expect("linked when the MDT is there again");
    assert_eq!(fs::read_to_string(&linked).expect("read"), "data");
    fs::set_permissions(&other, Permissions::from_mode(0o600)).expect("nobody has it locked");
    cluster.stop_and_check();
}
