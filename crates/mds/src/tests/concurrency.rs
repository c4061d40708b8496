use super::*;
use fastrand::Rng;
use nacre_wire::mds::RenameFlags;

/// Returns true for statuses that a race may end with; anything else is a bug. To an MDT, a removed directory
/// may be a removed shard: `WRONG_SHARD`, upon which clients read the directory again.
fn expected(result: StatusResult<MdsReply>) -> bool {
    let Err(status) = result else { return true };
    [
        Status::ENOENT,
        Status::EEXIST,
        Status::ENOTEMPTY,
        Status::EISDIR,
        Status::ENOTDIR,
        Status::EINVAL,
        Status::WRONG_SHARD,
    ]
    .contains(&status)
}

fn work(f: &Fixture, dirs: &[Fid], seed: u64, steps: usize) {
    let mut dice = Rng::with_seed(seed);
    for _ in 0..steps {
        let dir = dirs[dice.usize(..dirs.len())];
        let other = dirs[dice.usize(..dirs.len())];
        let (name, to) = (format!("n{}", dice.u64(..6)), format!("n{}", dice.u64(..6)));
        let result = match dice.u64(..8) {
            0 | 1 => f.file(dir, &name).map(MdsReply::Attr),
            2 => f.dir(dir, &name).map(MdsReply::Attr),
            3 => f.run(&MdsRequest::Unlink { parent: dir, name: name.as_bytes(), directory: false }),
            4 => f.run(&MdsRequest::Unlink { parent: dir, name: name.as_bytes(), directory: true }),
            5 => match f.lookup(dir, &name) {
                Ok(Some(found)) if !found.is_dir() => {
                    f.run(&MdsRequest::Link { fid: found.fid, parent: other, name: to.as_bytes() })
                }
                Ok(_) => continue,
                Err(status) => Err(status),
            },
            6 => f.run(&MdsRequest::ReadDir {
                fid: dir,
                cookie: 0,
                max_bytes: 4096,
                plus: true,
                locks: LockRange::default(),
            }),
            _ => f.run(&MdsRequest::Rename {
                from_parent: dir,
                from_name: name.as_bytes(),
                to_parent: other,
                to_name: to.as_bytes(),
                flags: if dice.u64(..4) == 0 { RenameFlags::EXCHANGE } else { RenameFlags::empty() },
            }),
        };
        assert!(expected(result.clone()), "{result:?}");
    }
}

#[test]
fn threads_in_shared_directories_leave_a_store_in_order() {
    let f = Fixture::new();
    let mut dirs = vec![Fid::ROOT];
    for i in 0..4 {
        let parent = dirs[i / 2];
        dirs.push(f.dir(parent, &format!("n{}", i % 6)).expect("made").fid);
    }
    nacre_env::thread::scope(|scope| {
        for thread in 0..6 {
            let (f, dirs) = (&f, &dirs);
            scope.spawn(move || work(f, dirs, 1000 + thread, 3000));
        }
    });
    f.check();
}

#[test]
fn of_threads_that_make_the_same_name_one_wins() {
    let f = Fixture::new();
    for round in 0..200 {
        let name = format!("r{round}");
        let wins = nacre_env::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| f.file(Fid::ROOT, &name).is_ok())).collect();
            threads.into_iter().filter_map(|thread| thread.join().ok()).filter(|won| *won).count()
        });
        assert_eq!(wins, 1);
    }
    f.check();
}

#[test]
fn opening_and_removing_at_once_never_loses_an_open_file() {
    let f = Fixture::new();
    for round in 0..300 {
        let name = format!("r{round}");
        let fid = f.file(Fid::ROOT, &name).expect("made").fid;
        let opened = nacre_env::thread::scope(|scope| {
            let open = scope.spawn(|| f.open(fid, OpenFlags::READ));
            let unlink = scope.spawn(|| f.unlink(Fid::ROOT, &name));
            unlink.join().expect("no panic").expect("removed");
            open.join().expect("no panic")
        });
        match opened {
            Ok(handle) => {
                assert_eq!(f.stat(fid).expect("open").nlink, 0);
                assert_eq!(f.close(fid, handle), Ok(MdsReply::Done));
            }
            Err(status) => assert_eq!(status, Status::ENOENT),
        }
        assert_eq!(f.stat(fid), Err(Status::ENOENT));
    }
    f.check();
}
