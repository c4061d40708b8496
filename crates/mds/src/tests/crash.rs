//! A server process that is killed in the middle of its work loses nothing that it acknowledged.

use super::*;
use fastrand::Rng;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

/// Directory in which the child works; without it the child's test does nothing.
const DIR_VARIABLE: &str = "NACRE_MDS_CRASH_TEST_DIR";
/// Longest run of the child in acknowledged operations, so that it ends even if it is not killed.
const STEPS_MAX: usize = 200_000;

/// The child: works and reports its progress, until it is killed.
#[test]
fn crash_test_child() {
    let Some(dir) = std::env::var_os(DIR_VARIABLE) else { return };
    let mds = Mds::open(std::path::Path::new(&dir), config(), Vec::new()).expect("starts");
    let (export, _) = export(1, Nid::Lo);
    mds.connect(&export).expect("connects");
    let cred = Cred::system();
    let run = |request: &MdsRequest<'_>| mds.handle(&export, &Call::new(&cred), request).map(|a| a.reply);
    let Ok(MdsReply::Sequence(sequence)) = run(&MdsRequest::AllocateSequence) else { panic!("a sequence") };
    let mut dice = Rng::with_seed(sequence);
    let mut out = std::io::stdout().lock();
    for step in 0..STEPS_MAX as u32 {
        let name = format!("{sequence:x}-{}", dice.u64(..200));
        let create = MdsRequest::Create {
            parent: Fid::ROOT,
            name: name.as_bytes(),
            fid: Fid::new(sequence, step + 1, 0),
            new: NewFile::Node { rdev: 0 },
            mode: 0o644,
            umask: 0,
            open: None,
            exclusive: true,
        };
        // Announced first: if the kill comes in between, either outcome is right.
        writeln!(out, "?{name}").expect("the parent listens");
        out.flush().expect("the parent listens");
        let unlink = MdsRequest::Unlink { parent: Fid::ROOT, name: name.as_bytes(), directory: false };
        let done = match run(&create) {
            Ok(_) => writeln!(out, "+{name}"),
            Err(Status::EEXIST) => {
                run(&unlink).expect("removed");
                writeln!(out, "-{name}")
            }
            Err(status) => panic!("{status}"),
        };
        done.and_then(|()| out.flush()).expect("the parent listens");
    }
}

#[test]
fn what_was_acknowledged_survives_a_killed_process() {
    let dir = tempfile::tempdir().expect("a directory");
    Mds::format(dir.path(), &config()).expect("formats");
    let mut expected = std::collections::BTreeMap::new();
    for round in 0..4usize {
        let mut child = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "tests::crash::crash_test_child", "--nocapture", "--test-threads=1"])
            .env(DIR_VARIABLE, dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("starts");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut note = |line: &str| match line.split_at_checked(1) {
            Some(("+", name)) => drop(expected.insert(name.to_owned(), Some(true))),
            Some(("-", name)) => drop(expected.insert(name.to_owned(), Some(false))),
            Some(("?", name)) => drop(expected.insert(name.to_owned(), None)),
            _ => {}
        };
        for (count, line) in lines.map_while(Result::ok).enumerate() {
            note(&line);
            if count == 500 + 1700 * round {
                child.kill().expect("killed");
            }
        }
        child.wait().expect("ended");
        check_dir(dir.path());
        let mds = Mds::open(dir.path(), config(), Vec::new()).expect("starts");
        let (export, _) = export(2, Nid::Lo);
        mds.connect(&export).expect("connects");
        for (name, there) in &expected {
            let lookup = MdsRequest::Lookup { parent: Fid::ROOT, name: name.as_bytes() };
            let answer = mds.handle(&export, &Call::new(&Cred::system()), &lookup).expect("looks");
            let MdsReply::Entry { attr, .. } = answer.reply else { panic!("an entry") };
            let found = attr.is_some();
            assert!(there.is_none_or(|there| there == found), "{name}: {there:?}, found {found}");
        }
        mds.stop().expect("stops");
    }
    assert!(expected.len() > 100);
}

#[test]
fn a_sequence_that_a_client_got_is_not_given_out_again_after_a_power_cut() {
    let dir = tempfile::tempdir().expect("a directory");
    let [live, cut] = ["live", "cut"].map(|name| dir.path().join(name));
    Mds::format(&live, &config()).expect("formats");
    let witness = nacre_store::meta::witness::Witness::new(|_| {});
    let sequence = |mds: &Arc<Mds>| {
        let (export, _) = export(1, Nid::Lo);
        mds.connect(&export).expect("connects");
        let answer = mds.handle(&export, &Call::new(&Cred::system()), &MdsRequest::AllocateSequence);
        let MdsReply::Sequence(sequence) = answer.expect("allocated").reply else { panic!("a sequence") };
        sequence
    };
    let mds = witness.watch(|| Mds::open(&live, config(), Vec::new())).expect("starts");
    let first = sequence(&mds);
    let copied = Command::new("cp").arg("-r").args([&live, &cut]).status().expect("cp runs");
    assert!(copied.success());
    // Nothing is left that was not synced.
    witness.medium().cut(&cut.join("meta"), &mut |_| 0).expect("written");
    mds.stop().expect("stops");
    let mds = Mds::open(&cut, config(), Vec::new()).expect("starts");
    assert_ne!(sequence(&mds), first);
    mds.stop().expect("stops");
}
