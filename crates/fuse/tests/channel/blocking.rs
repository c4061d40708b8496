use nacre_env::clock::Instant;
use nacre_env::sync::mpsc;
use nacre_env::thread::ThreadId;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use nacre_env::sync::{Condvar, Mutex};
use nacre_fuse::nullfs::{NullFs, NullOptions};
use nacre_fuse::{Handler, Operation, Reply, Request, TransportChoice, Unmount};

use crate::support::*;

/// getxattr of `user.gate` waits for the gate, of `user.pipe` in a read(2) without end; both return when
/// interrupted. Everything else is the null file system's.
struct Gate {
    null: NullFs,
    state: Mutex<GateState>,
    change: Condvar,
    pipe: [i32; 2],
}

#[derive(Default)]
struct GateState {
    open: bool,
    waiting: usize,
    interrupts: Vec<u64>,
    destroyed: usize,
}

impl Gate {
    fn new() -> Arc<Gate> {
        let mut pipe = [0; 2];
        // SAFETY: `pipe` has space for two descriptors.
        assert_eq!(unsafe { libc::pipe2(pipe.as_mut_ptr(), libc::O_CLOEXEC) }, 0);
        let null = NullFs::new(NullOptions { files: vec![("file".into(), 0)], ..NullOptions::default() });
        Arc::new(Gate { null, state: Mutex::default(), change: Condvar::new(), pipe })
    }

    fn open(&self) {
        self.state.lock().open = true;
        self.change.notify_all();
    }

    /// Waits until `count` requests are blocked.
    fn await_blocked(&self, count: usize) {
        let end = Instant::now() + DEADLINE;
        let mut state = self.state.lock();
        while state.waiting != count {
            let late = self.change.wait_until(&mut state, end).timed_out();
            assert!(!late, "only {} of {count} requests arrived", state.waiting);
        }
    }

    fn arrived(&self, by: isize) {
        let mut state = self.state.lock();
        state.waiting = state.waiting.checked_add_signed(by).expect("balanced");
        self.change.notify_all();
    }

    fn wait_at_gate(&self) -> Result<(), i32> {
        nacre_env::blocking(|| {
            let mut state = self.state.lock();
            while !state.open {
                if nacre_env::interrupted() {
                    return Err(libc::EINTR);
                }
                self.change.wait_for(&mut state, Duration::from_millis(5));
            }
            Ok(())
        })
    }

    fn wait_in_pipe(&self) -> Result<(), i32> {
        nacre_env::blocking(|| {
            loop {
                let mut byte = 0u8;
                // SAFETY: `byte` is valid for a write of one byte.
                let n = unsafe { libc::read(self.pipe[0], (&raw mut byte).cast(), 1) };
                if n < 0
                    && io::Error::last_os_error().raw_os_error() == Some(libc::EINTR)
                    && nacre_env::interrupted()
                {
                    return Err(libc::EINTR);
                }
            }
        })
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        // SAFETY: this value owns both descriptors.
        unsafe { (libc::close(self.pipe[0]), libc::close(self.pipe[1])) };
    }
}

impl Handler for Gate {
    fn handle(&self, request: &Request<'_>, reply: &mut Reply<'_>) {
        let outcome = match request.op {
            Operation::GetXattr { name: b"user.gate", .. } => {
                self.arrived(1);
                let outcome = self.wait_at_gate();
                self.arrived(-1);
                outcome
            }
            Operation::GetXattr { name: b"user.pipe", .. } => {
                self.arrived(1);
                let outcome = self.wait_in_pipe();
                self.arrived(-1);
                outcome
            }
            _ => return self.null.handle(request, reply),
        };
        match outcome {
            Ok(()) => reply.bytes(b"passed"),
            Err(errno) => reply.error(errno),
        }
    }

    fn interrupt(&self, unique: u64) {
        self.state.lock().interrupts.push(unique);
    }

    fn destroy(&self) {
        self.state.lock().destroyed += 1;
    }
}

fn gates() -> impl Iterator<Item = (Arc<Gate>, Mount)> {
    transports().into_iter().map(|transport| {
        let gate = Gate::new();
        let mount = Mount::with(transport, gate.clone(), |config| {
            config.threads.workers_per_cpu = 1;
            config.threads.readers = Some(1);
        });
        (gate, mount)
    })
}

#[test]
fn blocked_handlers_hold_nobody_up() {
    const BLOCKED: usize = 20;
    for (gate, mount) in gates() {
        let root = mount.path("file");
        let clients: Vec<_> = (0..BLOCKED)
            .map(|_| {
                let root = root.clone();
                client(move || {
                    // All on one CPU, so that one queue has to take them all.
                    let _ = nacre_env::pin_to_cpu(0);
                    getxattr(&root, "user.gate")
                })
            })
            .collect();
        gate.await_blocked(BLOCKED);
        let other = mount.path("many");
        in_time("a request beside blocked ones", move || {
            let _ = nacre_env::pin_to_cpu(0);
            std::fs::metadata(other).expect("stat")
        });
        assert!(mount.session.thread_count() > BLOCKED);
        gate.open();
        for client in clients {
            assert_eq!(client.join().expect("client").expect("getxattr"), b"passed");
        }
        mount.session.unmount(Unmount::Clean).expect("unmount");
        assert_eq!(gate.state.lock().destroyed, 1);
    }
}

#[test]
fn threads_are_bounded_and_waiting_requests_are_served_later() {
    for transport in transports() {
        let gate = Gate::new();
        let mount = Mount::with(transport, gate.clone(), |config| {
            config.threads.workers_per_cpu = 1;
            config.threads.workers_per_cpu_max = 4;
            config.threads.readers = Some(1);
        });
        let clients: Vec<_> = (0..12)
            .map(|_| {
                let root = mount.path("file");
                client(move || {
                    let _ = nacre_env::pin_to_cpu(0);
                    getxattr(&root, "user.gate")
                })
            })
            .collect();
        gate.await_blocked(4);
        // One reader of FORGETs in addition to the workers of each CPU.
        let most = 4 * nacre_env::possible_cpu_count() + 1;
        assert!(mount.session.thread_count() <= most, "{} threads", mount.session.thread_count());
        gate.open();
        for client in clients {
            assert_eq!(in_time("the rest", || client.join().expect("client").expect("getxattr")), b"passed");
        }
    }
}

extern "C" fn ignore(_signal: libc::c_int) {}

/// Installs a handler, so that `signal` interrupts system calls of this process.
fn catch_signal(signal: i32) {
    // SAFETY: sigaction is plain data, zeroes are no flags; the handler does nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = ignore as extern "C" fn(libc::c_int) as libc::sighandler_t;
        assert_eq!(libc::sigaction(signal, &action, std::ptr::null_mut()), 0);
    }
}

#[test]
fn an_interrupted_caller_gets_eintr_and_others_go_on() {
    catch_signal(libc::SIGALRM);
    for (gate, mount) in gates() {
        for name in ["user.pipe", "user.gate"] {
            let (tell, told) = mpsc::channel();
            let root = mount.path("file");
            let victim = client(move || {
                // SAFETY: pthread_self takes no arguments.
                tell.send(unsafe { libc::pthread_self() }).expect("test is listening");
                getxattr(&root, name).expect_err("interrupted").raw_os_error()
            });
            let thread = told.recv().expect("client lives");
            gate.await_blocked(1);
            // SAFETY: the thread waits for its request and was not joined yet.
            assert_eq!(unsafe { libc::pthread_kill(thread, libc::SIGALRM) }, 0);
            let outcome = in_time("an interrupted request", move || victim.join().expect("client"));
            assert_eq!(outcome, Some(libc::EINTR));
            gate.await_blocked(0);
        }
        let interrupts = gate.state.lock().interrupts.clone();
        assert_eq!(interrupts.len(), 2, "each interrupt is told once: {interrupts:?}");
        assert_ne!(interrupts[0], interrupts[1]);
        assert!(std::fs::metadata(mount.path("many")).is_ok());
    }
}

#[test]
fn a_signal_that_does_not_ask_to_stop_interrupts_nothing() {
    catch_signal(libc::SIGUSR2);
    for (gate, mount) in gates() {
        let (tell, told) = mpsc::channel();
        let path = mount.path("file");
        let caller = client(move || {
            // SAFETY: pthread_self and gettid take no arguments.
            tell.send(unsafe { (libc::pthread_self(), libc::gettid()) }).expect("test is listening");
            getxattr(&path, "user.gate").map_err(|error| error.raw_os_error())
        });
        let (thread, id) = told.recv().expect("client lives");
        gate.await_blocked(1);
        // SAFETY: the thread waits for its request and was not joined yet.
        assert_eq!(unsafe { libc::pthread_kill(thread, libc::SIGUSR2) }, 0);
        // The kernel has sent the interrupt once the caller is in a wait that only a fatal signal ends.
        let state = format!("/proc/self/task/{id}/stat");
        let deadline = Instant::now() + DEADLINE;
        while !std::fs::read_to_string(&state).is_ok_and(|line| line.contains(") D ")) {
            assert!(Instant::now() < deadline, "the signal changed nothing");
            nacre_env::thread::yield_now();
        }
        gate.open();
        let outcome = in_time("a request whose caller got a signal", move || caller.join().expect("client"));
        assert_eq!(outcome, Ok(b"passed".to_vec()));
        assert!(gate.state.lock().interrupts.is_empty());
    }
}

#[test]
fn a_forced_unmount_interrupts_what_is_blocked() {
    for (gate, mount) in gates() {
        let clients: Vec<_> = ["user.gate", "user.pipe"]
            .into_iter()
            .map(|name| {
                let root = mount.path("file");
                client(move || getxattr(&root, name).expect_err("cut off").raw_os_error())
            })
            .collect();
        gate.await_blocked(2);
        in_time("a forced unmount", move || {
            mount.session.unmount(Unmount::Force).expect("unmount");
            assert!(mount.session.has_ended());
            assert_eq!(mount.session.thread_count(), 0);
        });
        for client in clients {
            let errno = client.join().expect("client").expect("an errno");
            assert!([libc::ECONNABORTED, libc::ENOTCONN, libc::EINTR].contains(&errno), "{errno}");
        }
        assert_eq!(gate.state.lock().destroyed, 1);
    }
}

#[test]
fn a_cpu_whose_threads_have_met_no_file_takes_up_what_waits() {
    if nacre_env::possible_cpu_count() < 2 {
        return eprintln!("skipped: one CPU meets every file");
    }
    for (gate, mount) in gates() {
        let path = mount.path("file");
        let on_cpu = |cpu: usize, path: std::path::PathBuf| {
            client(move || {
                nacre_env::pin_to_cpu(cpu).expect("the CPU exists");
                getxattr(&path, "user.gate").map_err(|error| error.raw_os_error())
            })
        };
        let look = path.clone();
        let looked = client(move || {
            nacre_env::pin_to_cpu(0).expect("CPU 0 exists");
            std::fs::metadata(&look).is_ok()
        });
        assert!(looked.join().expect("client"));
        let clients = [on_cpu(1, path.clone()), on_cpu(1, path.clone()), on_cpu(1, path)];
        gate.await_blocked(3);
        gate.open();
        for client in clients {
            assert_eq!(client.join().expect("client"), Ok(b"passed".to_vec()));
        }
    }
}

#[test]
fn dropping_a_session_ends_it_like_a_forced_unmount() {
    for (gate, mount) in gates() {
        let root = mount.path("file");
        let client = client(move || getxattr(&root, "user.gate").is_err());
        gate.await_blocked(1);
        in_time("the drop", move || drop(mount));
        assert!(client.join().expect("client"));
        assert_eq!(gate.state.lock().destroyed, 1);
    }
}

#[test]
fn the_ring_prefers_the_thread_that_finished_last() {
    if !transports().contains(&TransportChoice::Uring) {
        return;
    }
    let served: Arc<Mutex<HashMap<ThreadId, usize>>> = Arc::default();
    let counts = served.clone();
    let options = NullOptions {
        attr_timeout: Duration::ZERO,
        hook: Some(Arc::new(move |_| {
            *counts.lock().entry(nacre_env::thread::current().id()).or_default() += 1
        })),
        ..NullOptions::default()
    };
    let mount = Mount::with(TransportChoice::Uring, Arc::new(NullFs::new(options)), |config| {
        config.threads.workers_per_cpu = 8;
    });
    let path = mount.path("many");
    client(move || {
        nacre_env::pin_to_cpu(0).expect("CPU 0 exists");
        for _ in 0..5000 {
            std::fs::metadata(&path).expect("stat");
        }
    })
    .join()
    .expect("client");
    let served = served.lock();
    let (most, all) = (served.values().max().copied().unwrap_or(0), served.values().sum::<usize>());
    assert!(all >= 5000);
    assert!(most * 100 >= all * 95, "one of 8 threads should serve nearly all: {:?}", served.values());
}

#[test]
fn a_killed_daemon_ends_although_its_own_threads_are_blocked() {
    // In a process of its own, which is killed while 20 of its threads are blocked.
    const MOUNT_POINT: &str = "NACRE_FUSE_TEST_KILLED";
    if let Some(directory) = std::env::var_os(MOUNT_POINT) {
        let mut config = nacre_fuse::SessionConfig::new(directory);
        config.threads.workers_per_cpu = 1;
        let gate = Gate::new();
        let session = nacre_fuse::Session::mount(config, gate.clone()).expect("mount");
        gate.await_blocked(20);
        println!("blocked");
        session.join().expect("never comes back");
        return;
    }
    if transports().is_empty() {
        return;
    }
    let directory = tempfile::tempdir().expect("scratch directory");
    let mut daemon = std::process::Command::new(std::env::current_exe().expect("own path"))
        .args([
            "--exact",
            "blocking::a_killed_daemon_ends_although_its_own_threads_are_blocked",
            "--nocapture",
        ])
        .env(MOUNT_POINT, directory.path())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("start");
    let file = directory.path().join("file");
    let mut lines = io::BufRead::lines(io::BufReader::new(daemon.stdout.take().expect("piped")));
    let clients: Vec<_> = (0..20)
        .map(|_| {
            let file = file.clone();
            client(move || {
                let _ = nacre_env::pin_to_cpu(0);
                let end = Instant::now() + DEADLINE;
                // Until it is mounted.
                while !file.exists() && Instant::now() < end {
                    nacre_env::thread::yield_now();
                }
                getxattr(&file, "user.gate").err().and_then(|error| error.raw_os_error())
            })
        })
        .collect();
    in_time("blocking", move || while lines.next().is_some_and(|line| line.expect("text") != "blocked") {});
    daemon.kill().expect("kill");
    in_time("the end of the daemon", move || daemon.wait().expect("wait"));
    for client in clients {
        let errno = in_time("a client", move || client.join().expect("client"));
        assert!([Some(libc::ECONNABORTED), Some(libc::ENOTCONN)].contains(&errno), "{errno:?}");
    }
    // A crash leaves a dead mount, and the next mount clears it.
    let mut config = nacre_fuse::SessionConfig::new(directory.path());
    config.mount.subtype = "nacre".into();
    drop(nacre_fuse::Session::mount(config, Gate::new()).expect("mount again"));
}
