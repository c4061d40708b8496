//! Common programs, with their own checks.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use nacre_testkit::program::run_command;
use nacre_testkit::requirements::have;
use nacre_testkit::{binary, on_every_shape};

const LIMIT: Duration = Duration::from_secs(600);

/// Runs a script in `directory` with `parameters`; stops at the first command that fails.
#[track_caller]
fn script(directory: &Path, text: &str, parameters: &[&Path]) -> String {
    let mut command = Command::new("bash");
    command.args(["-euo", "pipefail", "-c", text, "bash"]).args(parameters).current_dir(directory);
    // Without the settings of the current user; and a source tree may belong to another user.
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_SYSTEM", "/dev/null");
    command.envs([
        ("GIT_CONFIG_COUNT", "3"),
        ("GIT_CONFIG_KEY_0", "safe.directory"),
        ("GIT_CONFIG_VALUE_0", "*"),
    ]);
    command.envs([("GIT_CONFIG_KEY_1", "user.name"), ("GIT_CONFIG_VALUE_1", "Test")]);
    command.envs([("GIT_CONFIG_KEY_2", "user.email"), ("GIT_CONFIG_VALUE_2", "test@example.org")]);
    run_command(command, LIMIT).success().stdout
}

fn sqlite(directory: &Path, journal: &str) {
    let text = r#"
        sqlite3 db "PRAGMA journal_mode=$1; CREATE TABLE t(id INTEGER PRIMARY KEY, who TEXT, x BLOB); CREATE INDEX i ON t(who, x);" >/dev/null
        load() {
            for batch in $(seq 20); do
                echo "PRAGMA busy_timeout=60000; PRAGMA synchronous=FULL; BEGIN IMMEDIATE;"
                for n in $(seq 100); do echo "INSERT INTO t(who, x) VALUES('$1', randomblob(300));"; done
                echo "COMMIT;"
            done | sqlite3 -bail db >/dev/null
        }
        load a & first=$!
        load b & second=$!
        wait $first; wait $second
        sqlite3 db "PRAGMA busy_timeout=60000; UPDATE t SET x = randomblob(500) WHERE id % 3 = 0; DELETE FROM t WHERE id % 7 = 0;" >/dev/null
        sqlite3 db "PRAGMA integrity_check; SELECT count(*) FROM t WHERE id % 7 != 0; VACUUM; PRAGMA integrity_check;"
    "#;
    let mut command = Command::new("bash");
    command.args(["-euo", "pipefail", "-c", text, "bash", journal]).current_dir(directory);
    let output = run_command(command, LIMIT).success().stdout;
    assert_eq!(output, "ok\n3429\nok\n", "4000 rows without every seventh, and no damage");
}

on_every_shape! {
    fn git_clones_this_repository_and_works_in_it(cluster) {
        if !have(&["git"]) {
            return;
        }
        let root = cluster.directory("git");
        // A source tree without a repository (an archive) becomes one first.
        let text = r#"
            if [ -e "$1/.git" ]; then git clone -q "file://$1" work; else
                mkdir work; tar -C "$1" --exclude=./target -cf - . | tar -C work -xf -
                (cd work; git init -q; git add -A; git commit -qm start)
            fi
            cd work
            git fsck --strict --no-dangling
            test -z "$(git status --porcelain)"
            git checkout -q -b side
            for n in $(seq 30); do echo "$n" > "new-$n"; git add "new-$n"; git commit -qm "new $n"; done
            git checkout -q - && test ! -e new-1
            git merge -q side && test -e new-30
            git gc -q --prune=now
            git fsck --strict --no-dangling
            test -z "$(git status --porcelain)"
            git clone -q . ../second && diff -r --exclude=.git . ../second
        "#;
        script(&root, text, &[binary::workspace()]);
    }

    fn a_tar_of_many_small_files_unpacks_and_compares(cluster) {
        if !have(&["tar", "diff", "/usr/include"]) {
            return;
        }
        let root = cluster.directory("tar");
        let text = r#"
            tar -C /usr -cf - include | tar -xf -
            diff -r --no-dereference /usr/include include
            find include -type f | wc -l
            tar -cf - include | tar -df -
            rm -rf include
            test -z "$(ls -A)"
        "#;
        let count: u32 = script(&root, text, &[]).lines().next().and_then(|n| n.trim().parse().ok()).expect("count");
        assert!(count > 500, "only {count} files are no test");
    }

    fn cargo_builds_and_tests_a_crate(cluster) {
        if !have(&["cargo", "cc"]) {
            return;
        }
        let root = cluster.directory("cargo");
        let text = r#"
            export CARGO_TARGET_DIR="$PWD/target" CARGO_NET_OFFLINE=true
            unset RUSTFLAGS CARGO_ENCODED_RUSTFLAGS
            cargo new -q --vcs none --lib small && cd small
            for n in $(seq 20); do
                printf 'pub fn f(x: u64) -> u64 { x + %d }\n#[test]\nfn adds() { assert_eq!(f(1), %d); }\n' $n $((n + 1)) > src/m$n.rs
                echo "pub mod m$n;"
            done > src/lib.rs
            cargo test -q 2>&1 | grep -c '20 passed'
            touch src/lib.rs
            cargo build -q --release
            cargo clean -q
            test ! -e "$CARGO_TARGET_DIR/release"
        "#;
        script(&root, text, &[]);
    }

    fn make_and_the_c_compiler_build_in_parallel(cluster) {
        if !have(&["make", "cc", "ar"]) {
            return;
        }
        let root = cluster.directory("make");
        let text = r#"
            for n in $(seq 40); do echo "int f$n(int x) { return x + $n; }" > f$n.c; done
            { for n in $(seq 40); do echo "int f$n(int);"; done
              echo 'int main(void) { int s = 0;'; for n in $(seq 40); do echo "s = f$n(s);"; done
              echo 'return s == 820 ? 0 : 1; }'; } > main.c
            printf 'OBJ := $(patsubst %%.c,%%.o,$(wildcard *.c))\nall: $(OBJ)\n\tar rc lib.a $(filter-out main.o,$(OBJ))\n\t$(CC) -o all main.o lib.a\n' > Makefile
            make -s -j4 && ./all
            test -z "$(make -s -j4 -n | grep -v '^ar\|^cc\|all')"
        "#;
        script(&root, text, &[]);
    }

    fn sqlite_survives_load_with_a_rollback_journal(cluster) {
        if have(&["sqlite3"]) {
            sqlite(&cluster.directory("sqlite"), "delete");
        }
    }

    fn sqlite_survives_load_with_a_write_ahead_log(cluster) {
        if have(&["sqlite3"]) {
            sqlite(&cluster.directory("sqlite"), "wal");
        }
    }
}
