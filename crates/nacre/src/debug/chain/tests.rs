use super::super::{LockWaitShot, WaitShot};
use super::*;

fn operation(id: u64, target: Option<&str>, client: Option<&str>, xid: u64) -> OperationShot {
    OperationShot {
        id,
        name: "op".to_owned(),
        target: target.map(str::to_owned),
        fid: None,
        lock: 0,
        client: client.map(str::to_owned),
        nid: client.map(|_| "0@lo".to_owned()),
        xid,
        pid: client.is_none().then_some(9),
        uid: client.is_none().then_some(0),
        age_ms: 5000,
        stages: Vec::new(),
    }
}

fn thread(operations: Vec<OperationShot>, cause: Option<CauseShot>) -> ThreadShot {
    let wait = cause.map(|cause| WaitShot { cause, age_ms: 4000 });
    ThreadShot { name: "t".to_owned(), tid: 1, state: 'S', operations, wait, serves: 0 }
}

fn process(name: &str, pid: u32, targets: &[&str], threads: Vec<ThreadShot>) -> Process {
    let client = format!("uuid-{name}");
    let state = DebugState { name: name.to_owned(), pid, client, threads, ..DebugState::default() };
    let targets = targets.iter().map(|target| (*target).to_owned()).collect();
    Process { name: name.to_owned(), pid: Some(pid), targets, state: Some(state), trouble: None }
}

fn silent(name: &str, pid: u32, targets: &[&str]) -> Process {
    Process {
        state: None,
        trouble: Some("it is stopped".to_owned()),
        ..process(name, pid, targets, Vec::new())
    }
}

fn reply(target: &str, client: &str, xid: u64) -> Option<CauseShot> {
    Some(CauseShot::Reply { target: target.to_owned(), client: client.to_owned(), xid })
}

fn whats(chain: &[Link]) -> Vec<&str> {
    chain.iter().map(|link| link.process.split(' ').next().unwrap_or_default()).collect()
}

#[test]
fn a_chain_goes_from_the_mount_over_servers_to_the_process_that_is_stopped() {
    let mount = thread(vec![operation(1, None, None, 0)], reply("MDT0000", "uuid-mount", 7));
    let first = thread(vec![operation(2, Some("MDT0000"), Some("uuid-mount"), 7)], reply("MDT0001", "m0", 3));
    let processes = [
        process("mount", 10, &[], vec![mount]),
        process("mdt0000", 11, &["MDT0000"], vec![first]),
        silent("mdt0001", 12, &["MDT0001"]),
    ];
    let found = stuck(&processes, 1000, false);
    assert_eq!(found.len(), 1, "the request of the MDT is part of that of the mount: {found:?}");
    let chain = &found[0].chain;
    assert_eq!(whats(chain), ["mount", "mdt0000", "mdt0001"]);
    assert_eq!((chain[2].pid, chain[2].what.as_str()), (Some(12), "it is stopped"));
    assert_eq!(stuck(&processes, 1000, true).len(), 2);
    assert!(stuck(&processes, 10_000, true).is_empty());
}

#[test]
fn a_lock_leads_to_the_client_that_does_not_give_it_back() {
    let cause = CauseShot::Lock { target: "OST0000".to_owned(), resource: "r".to_owned(), handle: 5 };
    let mount = thread(vec![operation(1, None, None, 0)], Some(cause));
    let mut ost = process("ost0000", 11, &["OST0000"], Vec::new());
    let blocker = BlockerShot {
        client: "gone".to_owned(),
        handle: 6,
        need: "PW".to_owned(),
        is_granted: true,
        called_for_ms: Some(3000),
        evicted_in_ms: Some(17_000),
    };
    let wait = LockWaitShot {
        client: "uuid-mount".to_owned(),
        handle: 5,
        resource: "r".to_owned(),
        need: "PR".to_owned(),
        blockers: vec![blocker],
    };
    let client = ClientShot {
        client: "gone".to_owned(),
        nid: "127.0.0.1@tcp".to_owned(),
        pid: Some(12),
        is_server: false,
    };
    ost.state.as_mut().expect("it answers").lock_servers = vec![LockServerShot {
        server: 1,
        target: "OST0000".to_owned(),
        locks: 2,
        resources: 1,
        waits: vec![wait],
        holders: Vec::new(),
        clients: vec![client],
        awaited: Vec::new(),
    }];
    let processes = [process("mount", 10, &[], vec![mount]), ost, silent("mount2", 12, &[])];
    let found = stuck(&processes, 1000, false);
    let end = found[0].chain.last().expect("a chain");
    assert_eq!(end.pid, Some(12));
    assert_eq!(end.what, "holds lock 0x6 (PW) on r, called 3.0 s ago, evicted in 17.0 s; it is stopped");
}

#[test]
fn an_inode_leads_to_the_operation_that_keeps_it_and_circles_end() {
    let turn = |holder| Some(CauseShot::Turn { fid: "f".to_owned(), holder, ticket: 1 });
    let first = thread(vec![operation(1, Some("MDT0000"), Some("a"), 1)], turn(2));
    let second = thread(vec![operation(2, Some("MDT0000"), Some("a"), 2)], turn(1));
    let found = stuck(&[process("mdt0000", 11, &["MDT0000"], vec![first, second])], 0, true);
    assert_eq!(found.len(), 2);
    assert!(found[0].chain.last().expect("a chain").what.contains("deadlock"), "{found:?}");
}

#[test]
fn idle_threads_are_not_stuck() {
    let place = Some(CauseShot::Place { place: "crates/x.rs:1".to_owned() });
    let idle =
        [thread(Vec::new(), place), thread(Vec::new(), reply("MGT", "x", 1)), thread(Vec::new(), None)];
    assert!(stuck(&[process("mount", 1, &[], idle.to_vec())], 0, true).is_empty());
    let busy = thread(Vec::new(), reply("OST0000", "x", 1));
    let found = stuck(&[process("mount", 1, &[], vec![busy])], 0, true);
    assert!(found[0].chain[1].what.contains("another host"), "{found:?}");
}
