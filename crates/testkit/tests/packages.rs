//! The packages: built from the programs under test, installed in a clean system, upgraded, removed and purged.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nacre_testkit::program::{Outcome, run_command, shell};
use nacre_testkit::requirements::{have, have_root};
use nacre_testkit::run::Run;
use nacre_testkit::{binary, text};

const LIMIT: Duration = Duration::from_secs(300);
/// Longest time from the package to a file system in use.
const INSTALL_LIMIT: Duration = Duration::from_secs(30);

/// A system with the essential packages of Debian alone, in a directory.
struct CleanSystem {
    run: Run,
    root: PathBuf,
}

impl CleanSystem {
    /// Creates one for commands; `None` if the machine lacks a requirement.
    fn new() -> Option<CleanSystem> {
        let system = CleanSystem::bare(&[])?;
        // Device nodes of its own: what cleans up removes them, and not those of the machine.
        let script = r#"
            mount -t proc proc "$1/proc"
            mknod -m 666 "$1/dev/null" c 1 3
            mknod -m 666 "$1/dev/zero" c 1 5
            mknod -m 666 "$1/dev/urandom" c 1 9
            mknod -m 666 "$1/dev/fuse" c 10 229
        "#;
        shell(system.run.directory(), script, [&system.root]).success();
        Some(system)
    }

    /// Creates one with further packages, to be booted.
    fn bare(packages: &[&str]) -> Option<CleanSystem> {
        if !have(&["/dev/fuse", "dpkg-deb", "objcopy", "unshare"]) || !have_root() {
            return None;
        }
        let run = Run::new();
        let root = run.directory().join("root");
        let mut command = run.command(binary::workspace().join("scripts/clean-root"));
        command.arg(&root).args(packages);
        run_command(command, LIMIT).success();
        Some(CleanSystem { run, root })
    }

    /// Boots the system in a container, runs a script in it, and powers it off. Returns what the script printed.
    fn boot(&self, script: &str) -> String {
        fs::write(self.root.join("check"), format!("set -euxo pipefail\n{script}\necho all done\n"))
            .expect("written");
        let unit = "[Unit]\nAfter=basic.target\n[Service]\nType=oneshot\n\
            ExecStart=/bin/sh -c \"bash /check > /check.out 2>&1; systemctl poweroff\"\n";
        let units = self.root.join("etc/systemd/system");
        fs::write(units.join("check.service"), unit).expect("written");
        fs::create_dir_all(units.join("multi-user.target.wants")).expect("made");
        symlink("../check.service", units.join("multi-user.target.wants/check.service")).expect("linked");
        // It waits for interfaces that the container does not have.
        symlink("/dev/null", units.join("systemd-networkd-wait-online.service")).expect("linked");
        // In a mount namespace of its own, so that mounts of other tests are not kept busy.
        let mut command = self.run.command("unshare");
        command.args(["--mount", "--propagation", "private", "systemd-nspawn", "--quiet", "--boot", "-D"]);
        command.arg(&self.root).args(["--register=no", "--keep-unit", "--bind=/dev/fuse"]);
        let booted = run_command(command, LIMIT);
        let told = fs::read_to_string(self.root.join("check.out"));
        told.map(|told| format!("{told}\n{booted}")).unwrap_or_else(|error| panic!("{error}: {booted}"))
    }

    /// Builds a package of this kind and returns its path.
    fn build(&self, kind: &str) -> PathBuf {
        let bin = binary::nacre_with_bench().parent().expect("in a directory");
        let library = bin.join("libnacre_preload.so");
        assert!(library.exists(), "{} is missing: cargo build --release -p nacre-preload", library.display());
        let mut command = self.run.command(binary::workspace().join("scripts/package"));
        command.arg(kind).env("BUILD", bin).env("OUTPUT", self.run.directory()).env("COMPRESSION", "none");
        let built = run_command(command, LIMIT).success();
        PathBuf::from(built.stdout.trim())
    }

    /// Copies a file into the system and returns its path there.
    fn bring(&self, file: &Path) -> String {
        let name = file.file_name().expect("a file").to_str().expect("plain");
        fs::copy(file, self.root.join("opt").join(name)).expect("copied");
        format!("/opt/{name}")
    }

    /// Runs a script in the system.
    fn shell(&self, script: &str) -> Outcome {
        let mut command = self.run.command("chroot");
        command
            .arg(&self.root)
            .args(["/bin/bash", "-euo", "pipefail", "-c", script])
            .env_remove("NACRE_LOG_DIR");
        command.env("PATH", "/usr/sbin:/usr/bin").env("LC_ALL", "C").env("DEBIAN_FRONTEND", "noninteractive");
        run_command(command, LIMIT)
    }

    fn is_there(&self, path: &str) -> bool {
        fs::symlink_metadata(self.root.join(path)).is_ok()
    }
}

const CONFIGURATION: &str = "dir = \"/srv/nacre\"\nmount = \"/mnt/nacre\"\nfsname = \"pkg\"\nosts = 2\n";

#[test]
fn a_package_is_installed_used_upgraded_removed_and_purged_and_the_data_stays() {
    let Some(system) = CleanSystem::new() else { return };
    let package = system.build("deb");
    let version = env!("CARGO_PKG_VERSION");
    assert!(text(&package).contains(&format!("nacrefs_{version}-1_")), "{}", package.display());
    let higher = system.run.directory().join("nacrefs_99.0.0-1.deb");
    let script = r#"
        dpkg-deb -R "$1" again
        sed -i 's/^Version: .*/Version: 99.0.0-1/' again/DEBIAN/control
        dpkg-deb --root-owner-group -Znone --build again "$2"
    "#;
    shell(system.run.directory(), script, [&package, &higher]).success();
    let (package, higher) = (system.bring(&package), system.bring(&higher));

    let start = Instant::now();
    system.shell(&format!("dpkg -i {package}")).success();
    fs::write(system.root.join("etc/nacre/home.toml"), CONFIGURATION).expect("written");
    let up = "nacre up --config /etc/nacre/home.toml && echo kept > /mnt/nacre/file && cat /mnt/nacre/file";
    let used = system.shell(up).success();
    let time = start.elapsed();
    eprintln!("from the package to a file: {:.1} s", time.as_secs_f64());
    assert!(used.stdout.ends_with("kept\n") && time < INSTALL_LIMIT, "{time:?}: {used}");
    system
        .shell("lfs getstripe /mnt/nacre/file && lctl dl && mount.nacre -h && id nacre && nacre bench --help")
        .success();
    let owner =
        system.shell("stat -c %U:%a /var/lib/nacre; cat /usr/lib/systemd/system/nacre@.service").success();
    assert!(owner.stdout.starts_with("nacre:750\n"), "{owner}");
    assert!(owner.stdout.contains("ExecStart=/usr/bin/nacre up --config /etc/nacre/%i.toml"), "{owner}");

    // The processes go on, and the administrator is told.
    let processes = system.run.processes();
    let upgrade = system.shell(&format!("dpkg -i {higher}")).success();
    assert!(
        upgrade.stderr.contains("run the version before") && upgrade.stderr.contains("  /srv/nacre"),
        "{upgrade}"
    );
    assert_eq!(system.run.processes(), processes);
    assert_eq!(system.shell("cat /mnt/nacre/file").success().stdout, "kept\n");

    // A file system in use keeps the package.
    let refused = system.shell("dpkg --remove nacrefs");
    assert!(refused.code() != 0 && refused.stderr.contains("file systems are in use"), "{refused}");
    assert!(refused.stderr.contains("directory /srv/nacre"), "{refused}");
    assert_eq!(system.shell("cat /mnt/nacre/file && nacre down /srv/nacre").success().code(), 0);

    system.shell("dpkg --remove nacrefs").success();
    assert!(!system.is_there("usr/bin/nacre") && !system.is_there("usr/sbin/mount.nacre"));
    assert!(system.is_there("etc/nacre/example.toml") && system.is_there("srv/nacre/superblock"));
    system
        .shell("mkdir -p /var/log/nacre && touch /var/log/nacre/mount-x.log && dpkg --purge nacrefs")
        .success();
    assert!(!system.is_there("etc/nacre/example.toml") && !system.is_there("var/log/nacre"));
    assert!(system.is_there("etc/nacre/home.toml") && system.is_there("srv/nacre/superblock"));
    let left = system.shell("find / -xdev -path /proc -prune -o -name '*nacre*' -print").stdout;
    let left: BTreeSet<&str> = left.lines().filter(|line| line.starts_with('/')).collect();
    let data =
        |path: &&str| path.starts_with("/srv/") || path.starts_with("/opt/") || path.starts_with("/mnt/");
    let others: Vec<&str> = left.into_iter().filter(|path| !data(path)).collect();
    assert_eq!(
        others,
        ["/etc/nacre", "/run/nacre", "/run/nacre-public"],
        "the configuration of the administrator"
    );

    let again = "nacre up --config /etc/nacre/home.toml && cat /mnt/nacre/file && nacre down /srv/nacre";
    let again = system.shell(&format!("dpkg -i {package} && {again} && dpkg --purge nacrefs")).success();
    assert!(again.stdout.contains("\nkept\n"), "{again}");
}

/// What an administrator does. `wait_for` waits for a condition.
const SERVICES: &str = r#"
wait_for() { timeout 60 bash -c "until $1; do sleep 0.1; done"; }
dpkg -i /opt/*.deb
printf 'dir = "/srv/nacre"\nmount = "/mnt/nacre"\nfsname = "pkg"\nlisten = "127.0.0.12:7956@tcp"\n' > /etc/nacre/home.toml
systemctl start nacre@home
systemctl show -P StatusText nacre@home
echo kept > /mnt/nacre/file
nacre status
: A crash.
systemctl kill -s KILL --kill-whom=main nacre@home
wait_for '[ "$(systemctl show -P NRestarts nacre@home)" = 1 ]'
wait_for '[ "$(cat /mnt/nacre/file 2>/dev/null)" = kept ]'
systemctl show -P NRestarts nacre@home | sed 's/^/restarts /'
: A disk that is not mounted.
systemctl stop nacre@home
mv /srv/nacre /srv/disk
! systemctl start nacre@home
journalctl -q -o cat -p err -u nacre@home | grep -m 1 -o "has had the file system 'pkg' there"
rm -rf /srv/nacre
mv /srv/disk /srv/nacre
systemctl reset-failed nacre@home
systemctl start nacre@home
cat /mnt/nacre/file
: Separate processes.
printf 'dir = "/srv/sep"\nmount = "/mnt/sep"\nfsname = "sep"\nosts = 1\nseparate = true\n' > /etc/nacre/sep.toml
systemctl start nacre@sep
echo apart > /mnt/sep/file
cat /mnt/sep/file
systemctl stop nacre@sep
test ! -e /mnt/sep/file
systemctl show -P Result nacre@sep | sed 's/^/result /'
: A host that serves targets, without root.
token=$(nacre key token --role server /srv/nacre)
as_user="setpriv --reuid=nacre --regid=nacre --clear-groups env HOME=/var/lib/nacre"
$as_user nacre join --token "$token" 127.0.0.12:7956@tcp:/pkg /var/lib/nacre/fs --listen 127.0.0.13:7957@tcp
$as_user nacre down /var/lib/nacre/fs
echo 'dir = "/var/lib/nacre/fs"' > /etc/nacre/fs.toml
mkdir /etc/systemd/system/nacre@fs.service.d
printf '[Service]\nUser=nacre\n' > /etc/systemd/system/nacre@fs.service.d/user.conf
systemctl daemon-reload
systemctl start nacre@fs
systemctl show -P StatusText nacre@fs
lfs setstripe -i 2 -c 1 /mnt/nacre/on2
echo far > /mnt/nacre/on2
sync -f /mnt/nacre/on2
ps -o user= -C nacre-ost0002
systemctl stop nacre@fs
: A wrong file is not tried again.
echo 'osts = 0' > /etc/nacre/bad.toml
systemctl start nacre@bad || systemctl show -P NRestarts nacre@bad | sed 's/^/restarts of a wrong file /'
journalctl -q -o cat -p err -u nacre@bad | grep osts
: The log, and the end.
journalctl -q -o cat -u nacre@home | grep 'node is ready'
dpkg --remove nacrefs
systemctl is-active nacre@home || test -e /srv/nacre/superblock
"#;

#[test]
fn services_start_crash_and_stop_under_systemd() {
    if !have(&["systemd-nspawn"]) {
        return;
    }
    let Some(system) = CleanSystem::bare(&["systemd", "systemd-sysv", "dbus", "procps"]) else { return };
    system.bring(&system.build("deb"));
    let told = system.boot(SERVICES);
    let expected = [
        "file system 'pkg' is up, mounted on /mnt/nacre",
        "restarts 1",
        "has had the file system 'pkg' there",
        "kept",
        "apart",
        "result success",
        "the targets of file system 'pkg' here are up",
        "nacre",
        "restarts of a wrong file 0",
        "nacre: /etc/nacre/bad.toml, line 1: osts: 0 is not from 1 to 65504; write osts = 4",
        "nacre: node is ready",
        "all done",
    ];
    let mut lines = told.lines();
    for line in expected {
        assert!(lines.any(|found| found.trim_end() == line), "'{line}' is missing or out of order:\n{told}");
    }
}

#[test]
fn both_packages_have_the_same_programs_and_documents() {
    if !have(&["rpmbuild"]) {
        return;
    }
    let Some(system) = CleanSystem::new() else { return };
    let (deb, rpm) = (system.build("deb"), system.build("rpm"));
    let script = r#"dpkg-deb --fsys-tarfile "$1" | tar -t | sed 's|^\./|/|' | grep -v '/$'"#;
    let of_deb = shell(system.run.directory(), script, [&deb]).success().stdout;
    let script = r#"rpm -qpl --dbpath "$PWD/db" "$1""#;
    let of_rpm = shell(system.run.directory(), script, [&rpm]).success().stdout;
    let files = |list: &str| -> BTreeSet<String> {
        // The lists of documents differ, and one of them has directories.
        let is_common = |line: &&str| {
            let is_directory = ["/etc/nacre", "/var/lib/nacre"].contains(line);
            !is_directory && !line.starts_with("/usr/share/doc") && !line.contains("lintian")
        };
        let paths = list.lines().filter(is_common);
        let library = |path: &str| match path.ends_with("libnacre_preload.so") {
            true => "libnacre_preload.so".to_owned(),
            false => path.to_owned(),
        };
        paths.map(library).collect()
    };
    let of_rpm_documents = of_rpm.clone();
    let (of_deb, of_rpm) = (files(&of_deb), files(&of_rpm));
    assert_eq!(of_deb, of_rpm);
    for path in [
        "/usr/bin/nacre",
        "/usr/bin/nacre-bench",
        "/usr/bin/lfs",
        "/usr/bin/lctl",
        "/usr/sbin/mount.nacre",
        "/usr/lib/systemd/system/nacre@.service",
        "/usr/lib/sysusers.d/nacre.conf",
        "/usr/share/man/man8/nacre-up.8.gz",
        "/usr/share/man/man8/nacre-bench-meta.8.gz",
        "/usr/share/man/man1/lfs.1.gz",
        "/usr/share/zsh/site-functions/_nacre",
        "/etc/nacre/example.toml",
        "libnacre_preload.so",
    ] {
        assert!(of_deb.contains(path), "{path}: {of_deb:?}");
    }
    let script = r#"
        dpkg-deb --fsys-tarfile "$1" | tar -x ./usr/share/doc/nacrefs
        gzip -dc usr/share/doc/nacrefs/third-party-texts.txt.gz
    "#;
    let texts = shell(system.run.directory(), script, [&deb]).success().stdout;
    for text in ["OpenLDAP Public License", "Permission is hereby granted", "serde_json 1.", "Apache License"]
    {
        assert!(texts.contains(text), "{text} is missing in {} bytes", texts.len());
    }
    assert!(of_rpm_documents.contains("/usr/share/doc/nacrefs/third-party-texts.txt.gz"));
    // The package manager of another family, on the same system.
    let script = r#"
        rpm --root "$2" --install --nodeps "$1"
        chroot "$2" nacre --version && chroot "$2" id nacre
        rpm --root "$2" --erase nacrefs
        test ! -e "$2/usr/bin/nacre"
    "#;
    let installed = shell(system.run.directory(), script, [&rpm, &system.root]).success();
    assert!(installed.stdout.contains(&format!("nacre {}", env!("CARGO_PKG_VERSION"))), "{installed}");
}

#[test]
fn manual_pages_are_without_errors() {
    if !have(&["man", "mandoc"]) {
        return;
    }
    let run = Run::new();
    let script = r#"
        "$1" generate man .
        "$2" generate man .
        ls | wc -l
        for page in *; do
            # Every message of man is a defect; mandoc also has remarks on style.
            man --warnings=all --local-file --encoding=UTF-8 "./$page" 2>&1 >/dev/null
            mandoc -T lint -W error "$page"
        done
    "#;
    let bench = binary::nacre_with_bench().with_file_name("nacre-bench");
    let checked = shell(&run.make("pages"), script, [binary::nacre(), &bench]).success();
    let (count, messages) = checked.stdout.trim().split_once('\n').unwrap_or((checked.stdout.trim(), ""));
    assert!(count.parse::<u32>().expect("a number") > 50, "{checked}");
    assert_eq!(messages, "", "{checked}");
}

#[test]
fn completions_are_valid_in_their_shells() {
    if !have(&["bash"]) {
        return;
    }
    let run = Run::new();
    let script = r#"
        for command in nacre lfs lctl; do
            "$1" generate completions bash $command > $command.bash
            bash -n $command.bash
            "$1" generate completions fish $command > $command.fish
            "$1" generate completions zsh $command > _$command
            if command -v fish >/dev/null; then fish --no-execute $command.fish; fi
            if command -v zsh >/dev/null; then zsh -n _$command; fi
        done
        # What the shell does at "nacre re<TAB>" and "lfs setstripe --stripe-c<TAB>".
        . ./nacre.bash
        COMP_WORDS=(nacre re) COMP_CWORD=1 COMPREPLY=()
        _nacre nacre re nacre
        echo "${COMPREPLY[@]}"
        . ./lfs.bash
        COMP_WORDS=(lfs setstripe --stripe-c) COMP_CWORD=2 COMPREPLY=()
        _lfs lfs --stripe-c setstripe
        echo "${COMPREPLY[@]}"
    "#;
    let done = shell(&run.make("completions"), script, [binary::nacre()]).success();
    assert_eq!(done.stdout, "rebalance\n--stripe-count\n");
}
