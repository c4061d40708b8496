//! Identity of this process on its host, and whether another process has ended.
//!
//! "It has ended" is reported only if it is certain: the same boot of the same host, the same namespaces, and
//! the id is unused or belongs to a process that was started later. After a network failure, for another
//! host, or for a container with a PID namespace of its own, the answer is "not known".

use crate::sim;
use nacre_types::ProcessIdentity;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;

/// Returns the identity of this process.
///
/// In a thread of a simulated process: that of the simulated one.
pub fn own_process() -> ProcessIdentity {
    if sim::is_any()
        && let Some(identity) = sim::identity()
    {
        return identity;
    }
    static OWN: OnceLock<ProcessIdentity> = OnceLock::new();
    *OWN.get_or_init(|| {
        let id =
            |path: &str| fs::read_to_string(path).ok().and_then(|text| parse_id(&text)).unwrap_or([0; 16]);
        let pid = std::process::id();
        let stat = Stat::of("self");
        ProcessIdentity {
            machine: id("/etc/machine-id"),
            boot: id("/proc/sys/kernel/random/boot_id"),
            namespaces: if stat.is_some() { namespaces() } else { 0 },
            pid,
            started: stat.map_or(0, |stat| stat.started),
        }
    })
}

/// True if a process that ran on this host has certainly ended, so that no more messages of it can arrive.
/// The caller guarantees that it ran on this host, in this or an earlier boot.
pub fn has_ended(process: &ProcessIdentity) -> bool {
    if sim::is_any()
        && let Some(ended) = sim::is_ended(process)
    {
        return ended;
    }
    let own = own_process();
    if process.pid == 0 || process.boot == [0; 16] || own.boot == [0; 16] {
        return false;
    }
    if process.boot != own.boot {
        // The host has been rebooted since.
        return process.machine == own.machine && own.machine != [0; 16];
    }
    if process.namespaces != own.namespaces || own.namespaces == 0 {
        return false;
    }
    let Ok(pid) = libc::pid_t::try_from(process.pid) else { return false };
    // SAFETY: signal 0 is not delivered; the call only checks whether the process exists.
    let absent = unsafe { libc::kill(pid, 0) } < 0
        && std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH);
    if absent {
        return true;
    }
    // A process that this one may not inspect counts as alive.
    Stat::of(&pid.to_string()).is_some_and(|stat| stat.started != process.started || stat.is_dead())
}

/// Needed fields of `/proc/PID/stat`, see proc_pid_stat(5).
struct Stat {
    state: u8,
    threads: u64,
    started: u64,
}

impl Stat {
    fn of(pid: &str) -> Option<Stat> {
        Stat::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    fn parse(text: &str) -> Option<Stat> {
        // The name in parentheses may contain any character, including parentheses.
        let mut fields = text.get(text.rfind(')')? + 1..)?.split_ascii_whitespace();
        let state = *fields.next()?.as_bytes().first()?;
        // Fields are numbered from 1; the state is the third.
        let threads = fields.nth(16)?.parse().ok()?;
        let started = fields.nth(1)?.parse().ok()?;
        Some(Stat { state, threads, started })
    }

    /// True for a zombie. A main thread that ended before others does not count.
    fn is_dead(&self) -> bool {
        matches!(self.state, b'Z' | b'X') && self.threads <= 1
    }
}

fn namespaces() -> u64 {
    let inode = |path: &str| fs::metadata(path).map(|found| found.ino() & 0xffff_ffff);
    match (inode("/proc/self/ns/pid"), inode("/proc/self/ns/time")) {
        (Ok(pid), Ok(time)) => (pid << 32) | time,
        // Kernels without time namespaces have a single time.
        (Ok(pid), Err(_)) => pid << 32,
        (Err(_), _) => 0,
    }
}

/// Parses sixteen bytes in hexadecimal digits, with or without dashes.
fn parse_id(text: &str) -> Option<[u8; 16]> {
    let mut id = [0u8; 16];
    let mut digits = text.trim().bytes().filter(|&byte| byte != b'-');
    for byte in &mut id {
        let (high, low) = (digits.next()?, digits.next()?);
        *byte = ((char::from(high).to_digit(16)? << 4) | char::from(low).to_digit(16)?) as u8;
    }
    digits.next().is_none().then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn identity_of(pid: u32) -> ProcessIdentity {
        let stat = Stat::of(&pid.to_string()).expect("it runs");
        ProcessIdentity { pid, started: stat.started, ..own_process() }
    }

    #[test]
    fn ids_are_read_with_and_without_dashes() {
        let id = parse_id("00112233-4455-6677-8899-aabbccddeeff\n").expect("valid");
        assert_eq!(id[..4], [0x00, 0x11, 0x22, 0x33]);
        assert_eq!(parse_id("00112233445566778899aabbccddeeff"), Some(id));
        assert_eq!(parse_id("0011"), None);
        assert_eq!(parse_id("00112233-4455-6677-8899-aabbccddeeff00"), None);
    }

    #[test]
    fn a_process_with_a_strange_name_is_read() {
        let line = "42 (a) b (c)) Z 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 1 18 777 20";
        let stat = Stat::parse(line).expect("complete");
        assert!(stat.is_dead());
        assert_eq!((stat.threads, stat.started), (1, 777));
        assert!(Stat::parse("42 (a").is_none());
    }

    #[test]
    fn a_process_has_ended_when_it_was_killed_and_not_before() {
        assert!(!has_ended(&own_process()));
        let mut child = Command::new("sleep").arg("100").spawn().expect("sleep starts");
        let identity = identity_of(child.id());
        assert!(!has_ended(&identity));
        assert!(
            has_ended(&ProcessIdentity { started: identity.started + 1, ..identity }),
            "the id was used again"
        );
        child.kill().expect("kill");
        // Not waited for yet: it is a zombie, which counts as ended.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while !has_ended(&identity) {
            assert!(std::time::Instant::now() < deadline, "the zombie is noticed");
            crate::thread::yield_now();
        }
        child.wait().expect("wait");
        assert!(has_ended(&identity));
    }

    #[test]
    fn who_is_elsewhere_is_not_judged() {
        let own = own_process();
        let gone = ProcessIdentity { pid: i32::MAX as u32, ..own };
        assert!(has_ended(&gone));
        assert!(!has_ended(&ProcessIdentity { namespaces: own.namespaces + 1, ..gone }));
        let elsewhere = ProcessIdentity { boot: [7; 16], machine: [8; 16], ..gone };
        assert!(!has_ended(&elsewhere), "another host");
        assert!(!has_ended(&ProcessIdentity::default()), "nobody known");
        if own.machine != [0; 16] {
            assert!(has_ended(&ProcessIdentity { boot: [7; 16], ..own }), "an earlier boot of this host");
        }
    }
}
