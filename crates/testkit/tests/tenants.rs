//! Credentials and view of clients: hosts, users and tenants, each with a key and a host of its own.

use nacre_testkit::hosts::Hosts;
use nacre_testkit::program::Outcome;
use nacre_testkit::requirements::{have, have_root};
use nacre_testkit::run::Run;
use nacre_testkit::{binary, text, wait};
use std::path::{Path, PathBuf};

/// A file system with two MDTs on the first of several hosts, and mounts of it.
struct Site<'a> {
    run: &'a Run,
    hosts: Hosts,
}

impl<'a> Site<'a> {
    /// Starts a site; `None` if that is not possible.
    fn new(run: &'a Run, count: usize) -> Option<Site<'a>> {
        if !have(&["/dev/fuse", "unshare", "nsenter", "ip", "findmnt", "setpriv"]) || !have_root() {
            return None;
        }
        let site = Site { run, hosts: Hosts::new(run, count) };
        let (data, mount, address) = (site.data(), site.mount(0), site.hosts.address(0));
        let targets = ["--mdts", "2", "--osts", "1", "--separate", "--listen", &address];
        site.nacre(0, &[&["up", text(&data), "--mount", text(&mount)][..], &targets].concat());
        Some(site)
    }

    fn data(&self) -> PathBuf {
        self.run.directory().join("fs")
    }

    fn mount(&self, host: usize) -> PathBuf {
        self.run.directory().join(format!("mnt{host}"))
    }

    fn source(&self) -> String {
        format!("{}:/nacre", self.hosts.address(0))
    }

    fn nacre(&self, host: usize, words: &[&str]) -> String {
        let outcome = self.hosts.nacre(self.run, host, words).success();
        outcome.stdout + &outcome.stderr
    }

    fn lctl(&self, line: &str) -> String {
        self.nacre(0, &[&["lctl"][..], &line.split(' ').collect::<Vec<_>>()].concat())
    }

    /// Returns the number of changes of this kind in the management server's audit log.
    fn changes_of(&self, kind: &str) -> usize {
        let audit = std::fs::read_to_string(self.data().join("run/audit-mgs.log")).expect("an audit");
        let is_one = |line: &&str| line.contains(r#""event":"changed""#) && line.contains(kind);
        audit.lines().filter(is_one).count()
    }

    /// Mounts on a host with a token; returns the number of the key.
    fn enrol(&self, host: usize, options: &[&str]) -> String {
        let data = self.data();
        let token = self.nacre(0, &[&["key", "token", text(&data)][..], options].concat());
        let mount = self.run.make(&format!("mnt{host}"));
        let said = self.nacre(host, &["mount", "--token", token.trim(), &self.source(), text(&mount)]);
        said.split("key ").nth(1).and_then(|rest| rest.split(' ').next()).expect("a number").to_owned()
    }

    /// Runs a script in the mount of a host.
    fn script(&self, host: usize, script: &str) -> Outcome {
        self.hosts.shell(self.run, host, &format!("cd {} && {{ {script}; }}", self.mount(host).display()))
    }

    fn ok(&self, host: usize, script: &str) -> String {
        self.script(host, script).success().stdout.trim().to_owned()
    }

    /// Checks that the script fails with this message.
    fn refused(&self, host: usize, script: &str, says: &str) {
        let outcome = self.script(host, script);
        assert!(outcome.stderr.contains(says), "host {host}: {script}: {outcome}");
        let tried = self.script(host, &format!("if {script}; then echo reached; fi")).stdout;
        assert!(!tried.contains("reached"), "host {host}: {script}");
    }

    fn until(&self, host: usize, what: &str, script: &str) {
        wait::until(wait::SOON, what, || {
            let said = self.script(host, &format!("if {script}; then echo yes; fi")).stdout;
            said.contains("yes").then_some(())
        });
    }

    fn end(self, mounts: &[usize]) {
        for host in mounts {
            let mount = self.mount(*host);
            self.hosts.shell(self.run, *host, &format!("umount -l {}", mount.display()));
        }
        let data = self.data();
        self.nacre(0, &["down", text(&data)]);
    }
}

/// Returns a script that runs as a user of the system's database.
fn as_user(uid: u32, script: &str) -> String {
    format!("setpriv --reuid {uid} --regid {uid} --clear-groups sh -c '{script}'")
}

#[test]
fn root_of_a_host_is_nobody_and_its_users_are_themselves() {
    let run = Run::new();
    let Some(site) = Site::new(&run, 3) else { return };
    site.ok(0, "chmod 777 . && echo root > secret && chmod 600 secret && mkdir -m 700 private");
    site.enrol(1, &[]);
    site.enrol(2, &["--uid", "1"]);
    let owner = |host, name: &str| site.ok(host, &format!("stat -c %u:%g {name}"));
    site.ok(1, "echo mine > by_root");
    assert_eq!(owner(0, "by_root"), "65534:65534");
    site.refused(1, "cat secret", "Permission denied");
    site.refused(1, "ls private", "Permission denied");
    site.refused(1, "chown 1 by_root", "Operation not permitted");
    site.refused(1, "chmod 644 secret", "Operation not permitted");
    site.refused(1, "mknod device b 8 1", "Operation not permitted");
    site.refused(1, "setfattr -n trusted.a -v 1 by_root", "Operation not permitted");
    // A user's cache entries are not visible to root.
    site.ok(
        1,
        &as_user(1, "umask 077; mkdir home; echo text > home/file; cat home/file; ls home; stat home/file"),
    );
    assert_eq!(owner(0, "home/file"), "1:1");
    for script in ["cat home/file", "ls home", "stat home/file", "rm home/file"] {
        site.refused(1, script, "Permission denied");
        site.refused(1, &as_user(2, script), "Permission denied");
    }
    assert_eq!(site.ok(1, &as_user(1, "cat home/file")), "text");
    // A key with a uid acts as that user for every process.
    assert_eq!(site.ok(2, "cat home/file"), "text");
    site.ok(2, &format!("touch by_root_there && {}", as_user(2, "touch by_two_there")));
    assert_eq!((owner(0, "by_root_there"), owner(0, "by_two_there")), ("1:1".into(), "1:1".into()));
    site.refused(2, "cat secret", "Permission denied");
    site.end(&[1, 2]);
}

#[test]
fn what_users_of_a_host_have_open_lives_through_a_restart_of_the_servers() {
    let run = Run::new();
    let Some(site) = Site::new(&run, 2) else { return };
    site.ok(0, "chmod 777 .");
    site.enrol(1, &[]);
    let script = "umask 777; exec 3>log; chmod 400 log; echo one >&3; touch ready; \
         until [ -e go ]; do sleep 0.1; done; echo two >&3; exec 3>&-; touch done";
    site.ok(1, &format!("({}) > /dev/null 2>&1 & true", as_user(1, script)));
    site.until(1, "the file is open", "[ -e ready ]");
    let data = site.data();
    site.nacre(0, &["down", text(&data)]);
    site.nacre(0, &["up", text(&data), "--mount", text(&site.mount(0))]);
    site.ok(0, "touch go");
    site.until(1, "it was written", "[ -e done ]");
    assert_eq!(site.ok(0, "cat log"), "one\ntwo");
    site.end(&[1]);
}

#[test]
fn a_key_that_may_read_only_changes_nothing() {
    let run = Run::new();
    let Some(site) = Site::new(&run, 2) else { return };
    site.ok(0, "chmod 777 . && echo text > file && chmod 666 file");
    site.enrol(1, &["--read-only"]);
    assert_eq!(site.ok(1, "cat file && ls"), "text\nfile");
    for script in [
        "echo more >> file",
        "truncate -s 0 file",
        "touch new",
        "mkdir new",
        "rm -f file",
        "mv file new",
        "chmod 600 file",
    ] {
        site.refused(1, &as_user(1, script), "Read-only file system");
    }
    assert_eq!(site.ok(0, "cat file && ls"), "text\nfile");
    site.end(&[1]);
}

#[test]
fn nodemaps_map_squash_and_ban_live_mounts_by_key_and_by_address() {
    let run = Run::new();
    let Some(site) = Site::new(&run, 3) else { return };
    site.ok(0, "chmod 777 .");
    let key = site.enrol(1, &[]);
    site.enrol(2, &[]);
    let address = site.hosts.address(2);
    for line in [
        "nodemap_add first",
        "nodemap_add second",
        &format!("nodemap_add_key --name first --key {key}"),
        "nodemap_add_range --name second --range 10.77.0.[3-9]@tcp",
        "nodemap_add_idmap --name first --idtype uid --idmap 1:33",
        "nodemap_add_idmap --name first --idtype gid --idmap 1:33",
        "nodemap_modify --name second --property squash_uid --value 34",
        "nodemap_activate 1",
    ] {
        site.lctl(line);
    }
    assert_eq!(site.lctl(&format!("nodemap_test_nid {address}")).trim(), "second");
    let id = format!("nodemap_test_id --nid {address} --key {key} --idtype uid --id 1");
    assert_eq!(site.lctl(&id).trim(), "33");
    let shown = site.lctl("nodemap_info first");
    assert!(shown.contains("idmap=[ { idtype: uid, client_id: 1, fs_id: 33 }"), "{shown}");
    assert!(shown.contains(&format!("keys=[ {key} ]")) && shown.contains("squash_uid=65534"), "{shown}");
    assert_eq!(site.changes_of("nodemap "), 8);
    site.until(
        1,
        "the mapping counts",
        &format!("{} && [ $(stat -c %u made) = 1 ]", as_user(1, "rm -f made; touch made")),
    );
    site.until(1, "seen from the other side", "[ $(stat -c %u made) = 1 ]");
    site.until(0, "it is stored as another", "[ $(stat -c %u:%g made) = 33:33 ]");
    // The mount has the former ids in its cache.
    site.lctl("nodemap_del_idmap --name first --idtype uid --idmap 1:33");
    site.lctl("nodemap_add_idmap --name first --idtype uid --idmap 2:33");
    site.until(1, "another mapping counts for what is cached", "[ $(stat -c %u made) = 2 ]");
    site.lctl("nodemap_del_idmap --name first --idtype uid --idmap 2:33");
    site.lctl("nodemap_add_idmap --name first --idtype uid --idmap 1:33");
    site.until(1, "and the first again", "[ $(stat -c %u made) = 1 ]");
    site.until(
        2,
        "squashed",
        &format!("{} && [ $(stat -c %u other) = 34 ]", as_user(1, "rm -f other; touch other")),
    );
    site.until(0, "stored so", "[ $(stat -c %u other) = 34 ]");
    site.lctl("nodemap_modify --name first --property readonly_mount --value 1");
    site.until(1, "read only", &format!("! {}", as_user(1, "echo x > made")));
    site.refused(1, &as_user(1, "echo x > made"), "Read-only file system");
    site.lctl("nodemap_modify --name first --property readonly_mount --value 0");
    site.lctl("nodemap_modify --name first --property admin --value 1");
    site.until(1, "root is root", "rm -f by_root && touch by_root && chown 1 by_root");
    site.lctl("nodemap_modify --name second --property banned --value 1");
    let log = site.data().join("run/mdt0000.log");
    wait::until(wait::SOON, "the ban", || {
        std::fs::read_to_string(&log).expect("a log").contains("may not continue").then_some(())
    });
    let again = run.make("again");
    let said = site.hosts.nacre(&run, 2, &["mount", &site.source(), text(&again)]).fails_with(1).stderr;
    assert!(said.contains("does not let this client in"), "{said}");
    let file = format!("cat {}", site.mount(2).join("other").display());
    let cut_off = site.hosts.shell(&run, 2, &file);
    assert!(cut_off.stderr.contains("Permission denied"), "{cut_off}");
    site.lctl("nodemap_modify --name second --property banned --value 0");
    site.until(2, "it is let in again", "cat other");
    site.ok(1, "cat made");
    site.end(&[1, 2]);
}

#[test]
fn tenants_reach_nothing_of_each_other_by_any_way_there_is() {
    let run = Run::new();
    let Some(site) = Site::new(&run, 3) else { return };
    let lfs = format!("{} lfs", binary::nacre().display());
    // The second is on the other MDT.
    site.ok(0, &format!("mkdir -p projects/a/deep && {lfs} mkdir -i 1 projects/b && chmod -R 777 projects"));
    site.ok(0, "echo a > projects/a/own && echo b > projects/b/own && echo deep > projects/a/deep/file");
    let fid = |path: &str| site.ok(0, &format!("{lfs} path2fid {path}"));
    let foreign = [fid("projects/b"), fid("projects/b/own"), fid("projects"), fid(".")];
    // With the rights of root, so that only the subtree restricts access.
    site.lctl("nodemap_add tenants");
    for property in ["admin", "trusted"] {
        site.lctl(&format!("nodemap_modify --name tenants --property {property} --value 1"));
    }
    for (host, root) in [(1, "/projects/a"), (2, "/projects/b")] {
        let key = site.enrol(host, &["--filesystem-root", root]);
        site.lctl(&format!("nodemap_add_key --name tenants --key {key}"));
    }
    site.lctl("nodemap_activate 1");
    site.until(1, "root is root", &format!("{lfs} fid2path . $({lfs} path2fid own)"));
    site.until(2, "root is root", &format!("{lfs} fid2path . $({lfs} path2fid own)"));
    assert_eq!(site.ok(1, "ls"), "deep\nown");
    assert_eq!((site.ok(1, "cat own"), site.ok(2, "cat own")), ("a".into(), "b".into()));
    let of_own = site.ok(1, &format!("{lfs} path2fid deep/file"));
    let path = site.ok(1, &format!("{lfs} fid2path . {of_own}"));
    assert_eq!(Path::new(&path), site.mount(1).join("deep/file"));
    site.refused(1, "ls .lustre", "No such file");
    for fid in foreign {
        site.refused(1, &format!("{lfs} fid2path . \"{fid}\""), "No such file");
        site.refused(1, &format!("cat \".lustre/fid/{fid}\""), "No such file");
        site.refused(1, &format!("{lfs} rmfid . \"{fid}\""), "No such file");
    }
    let source = format!("{}/projects/b", site.source());
    let other = run.make("other");
    let said = site.hosts.nacre(&run, 1, &["mount", &source, text(&other)]).fails_with(1).stderr;
    assert!(said.contains("cannot be mounted"), "{said}");
    // A directory of its own can be mounted.
    let source = format!("{}/deep", site.source());
    site.nacre(1, &["mount", &source, text(&other)]);
    let seen = site.hosts.shell(&run, 1, &format!("ls {0}; umount {0}", other.display())).success().stdout;
    assert_eq!(seen.trim(), "file");
    // A directory that an administrator moves to the other subtree belongs to that tenant from then on.
    site.ok(1, "ls deep; cat deep/file");
    site.ok(0, "mv projects/a/deep projects/b/deep");
    site.until(1, "it is gone", "! cat deep/file");
    site.until(2, "it has come", "cat deep/file");
    let moved = site.ok(0, &format!("{lfs} path2fid projects/b/deep/file"));
    site.refused(1, &format!("{lfs} fid2path . {moved}"), "No such file");
    site.ok(2, "echo new > deep/new && mv deep/new new && rm -r deep && cat new");
    site.end(&[1, 2]);
}
