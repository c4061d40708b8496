//! Closures run as another user: in Linux a thread has its own credentials if they are set by bare system
//! calls.

use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// Credentials of a thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// User id, real and effective.
    pub uid: u32,
    /// Group id, real and effective.
    pub gid: u32,
    /// Supplementary group ids.
    pub groups: Vec<u32>,
}

impl Identity {
    /// Returns user `uid` with the group of the same number and no supplementary groups.
    pub fn user(uid: u32) -> Identity {
        Identity { uid, gid: uid, groups: Vec::new() }
    }

    /// Returns the same user with these supplementary groups.
    pub fn with_groups(mut self, groups: &[u32]) -> Identity {
        self.groups = groups.to_vec();
        self
    }

    /// Runs `work` on a new thread as this user, without capabilities unless it is root.
    ///
    /// # Panics
    ///
    /// Without the privilege to change user, or if `work` panics.
    pub fn act<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                self.assume();
                work()
            });
            match thread.join() {
                Ok(value) => value,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    /// By bare system calls: the functions of the C library change all threads of a process.
    fn assume(&self) {
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        let groups: Vec<Gid> = self.groups.iter().map(|group| Gid::from_raw(*group)).collect();
        let outcome = set_thread_groups(&groups)
            .and_then(|()| set_thread_res_gid(gid, gid, gid))
            .and_then(|()| set_thread_res_uid(uid, uid, uid));
        assert_eq!(outcome, Ok(()), "only root can become {self:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_new_thread_becomes_somebody_else() {
        if !crate::requirements::is_root() {
            return;
        }
        let inside = Identity::user(12345).with_groups(&[7]).act(|| {
            let status = std::fs::read_to_string("/proc/thread-self/status").expect("/proc is mounted");
            let line = |name: &str| {
                let line = status.lines().find(|line| line.starts_with(name)).expect("known line");
                line.split_whitespace().nth(1).map(str::to_owned)
            };
            (line("Uid:"), line("Groups:"), line("CapEff:"))
        });
        assert_eq!(inside.0.as_deref(), Some("12345"));
        assert_eq!(inside.1.as_deref(), Some("7"));
        assert_eq!(inside.2.as_deref(), Some("0000000000000000"));
        assert!(crate::requirements::is_root());
    }
}
