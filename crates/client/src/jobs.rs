//! The jobs that programs work for, as servers see them: `jobid_var` and `jobid_name`.
//!
//! While jobs are not named (the default), a request costs one load of an atomic. Otherwise the name is built
//! from the calling program: its command, its user, a variable of its environment. Each thread caches the
//! names of some programs for a moment ([`AGE_MAX`]), so that a busy program is looked up ten times a second.
//!
//! The environment of a program cannot be read while the program waits in a page fault: the kernel locks its
//! memory map for both. Reads and writes may come from a page fault, so they never read the environment; they
//! belong to the cached job of the program, or else to the job that opened or wrote the file last.

mod format;

use crate::caller::Caller;
use crate::file::FileState;
use crate::jobs::format::{Facts, host_name};
use nacre_env::clock::Instant;
use nacre_env::sync::{Mutex, RwLock};
use nacre_env::{JobGuard, current_job, enter_job};
use nacre_types::{JobId, StatusResult};
use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub use format::{DEFAULT_FORMAT, JobFormat, JobVar};

/// How long a thread uses the cached job of a program. Short, since a shell opens files before it becomes the
/// command that writes them.
const AGE_MAX: Duration = Duration::from_millis(100);
/// Programs whose jobs a thread caches; a power of two.
const REMEMBERED: usize = 16;
/// Most bytes of an environment that are searched.
const ENVIRONMENT_MAX: usize = 1 << 20;
/// Numbers settings, over all clients of the process, so that an entry of a thread's cache belongs to one of
/// them.
static GENERATIONS: AtomicU64 = AtomicU64::new(1);

thread_local! {
    static KNOWN: RefCell<[Option<Known>; REMEMBERED]> = const { RefCell::new([const { None }; REMEMBERED]) };
}

/// Entry of a thread's cache: the job of one program.
struct Known {
    pid: u32,
    uid: u32,
    gid: u32,
    generation: u64,
    at: Instant,
    job: Option<JobId>,
}

/// Settings for the naming of jobs.
#[derive(Debug)]
pub struct Jobs {
    /// Number of the settings; 0 while jobs are not named.
    generation: AtomicU64,
    settings: RwLock<Settings>,
}

#[derive(Clone, Debug)]
struct Settings {
    var: JobVar,
    format: JobFormat,
    host: String,
}

impl Default for Jobs {
    fn default() -> Jobs {
        let settings = Settings { var: JobVar::Disable, format: JobFormat::default(), host: host_name() };
        Jobs { generation: AtomicU64::new(0), settings: RwLock::new(settings) }
    }
}

impl Jobs {
    /// Returns `jobid_var`: what jobs are named after.
    pub fn var(&self) -> String {
        self.settings.read().var.to_string()
    }

    /// Sets [`Jobs::var`].
    ///
    /// # Errors
    /// `EINVAL` for text that is neither a kind of name nor a variable.
    pub fn set_var(&self, text: &str) -> StatusResult<()> {
        let var = text.trim().parse()?;
        self.change(|settings| settings.var = var);
        Ok(())
    }

    /// Returns `jobid_name`: the format of names.
    pub fn format(&self) -> String {
        self.settings.read().format.to_string()
    }

    /// Sets [`Jobs::format`].
    ///
    /// # Errors
    /// `EINVAL` if it is empty, too long, or has an unknown code.
    pub fn set_format(&self, text: &str) -> StatusResult<()> {
        let format = text.trim().parse()?;
        self.change(|settings| settings.format = format);
        Ok(())
    }

    fn change(&self, change: impl FnOnce(&mut Settings)) {
        let mut settings = self.settings.write();
        change(&mut settings);
        let number = match settings.var {
            JobVar::Disable => 0,
            _ => GENERATIONS.fetch_add(1, Ordering::Relaxed),
        };
        self.generation.store(number, Ordering::Release);
    }

    /// True if jobs are named at all.
    pub fn is_enabled(&self) -> bool {
        self.generation.load(Ordering::Acquire) != 0
    }

    /// Returns the job of a caller. Reads the caller's environment, if that is needed, only with `may_look`;
    /// `None` if the job is unknown without it.
    pub(crate) fn job_of(&self, caller: &Caller, may_look: bool) -> Option<JobId> {
        let generation = self.generation.load(Ordering::Acquire);
        let slot = caller.pid as usize % REMEMBERED;
        let now = Instant::now();
        let known = KNOWN.with_borrow(|known| {
            let known = known[slot].as_ref()?;
            let is_same = known.pid == caller.pid
                && (known.uid, known.gid, known.generation) == (caller.uid, caller.gid, generation);
            is_same.then(|| (known.job, now.duration_since(known.at) <= AGE_MAX))
        });
        if let Some((job, is_fresh)) = known
            && (is_fresh || (!may_look && self.settings.read().needs_environment()))
        {
            return job;
        }
        let settings = self.settings.read().clone();
        if settings.needs_environment() && !may_look {
            return None;
        }
        let job = settings.name(caller);
        let found = Known { pid: caller.pid, uid: caller.uid, gid: caller.gid, generation, at: now, job };
        KNOWN.with_borrow_mut(|known| known[slot] = Some(found));
        job
    }

    /// Makes this thread work for the job that wrote the file last, while jobs are named.
    pub(crate) fn enter_job_of(&self, file: &FileState) -> Option<JobGuard> {
        self.is_enabled().then(|| enter_job(file.job.get().or_else(current_job)))
    }
}

impl Settings {
    fn needs_environment(&self) -> bool {
        matches!(self.var, JobVar::Variable(_))
    }

    /// Returns the job of a caller whose environment may be read.
    fn name(&self, caller: &Caller) -> Option<JobId> {
        let facts = Facts { uid: caller.uid, gid: caller.gid, pid: caller.pid, host: &self.host };
        match &self.var {
            JobVar::Disable => None,
            JobVar::NodeLocal => self.format.name(&facts, || command(caller.pid), None),
            // A caller without a process id here has no name.
            _ if caller.pid == 0 => None,
            JobVar::ProcnameUid => JobFormat::default().name(&facts, || command(caller.pid), None),
            JobVar::Variable(name) => {
                let value = variable(caller.pid, name);
                match (&value, self.format.uses_job()) {
                    (Some(value), false) => JobId::new(value),
                    (value, true) => self.format.name(&facts, || command(caller.pid), value.as_deref()),
                    (None, false) => JobFormat::default().name(&facts, || command(caller.pid), None),
                }
            }
        }
    }
}

/// Returns the name of a thread's command; empty if it cannot be read.
fn command(pid: u32) -> Vec<u8> {
    let mut name = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.truncate(name.trim_ascii_end().len());
    name
}

/// Returns a variable of a program's environment as it was when the program started; `None` if it is not set
/// or may not be read.
fn variable(pid: u32, name: &str) -> Option<Vec<u8>> {
    use std::io::Read;
    let mut environment = Vec::new();
    let file = std::fs::File::open(format!("/proc/{pid}/environ")).ok()?;
    file.take(ENVIRONMENT_MAX as u64).read_to_end(&mut environment).ok()?;
    variable_in(&environment, name)
}

fn variable_in(environment: &[u8], name: &str) -> Option<Vec<u8>> {
    environment
        .split(|byte| *byte == 0)
        .find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
        .filter(|value| !value.is_empty())
        .map(<[u8]>::to_vec)
}

/// The job that last opened or wrote a file.
#[derive(Default, Debug)]
pub(crate) struct JobCell(Mutex<Option<JobId>>);

impl JobCell {
    /// Records the job that this thread works for, if it is known.
    pub fn note(&self) {
        if let job @ Some(_) = current_job() {
            *self.0.lock() = job;
        }
    }

    pub fn get(&self) -> Option<JobId> {
        *self.0.lock()
    }
}

/// Where a request comes from, as far as the name of its job depends on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JobSource {
    /// A system call of the caller.
    Call,
    /// Possibly a page fault of the caller, or its exit: its memory must not be read.
    MayFault,
    /// The kernel itself: the caller is unrelated to the request.
    Kernel,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Caller {
        Caller { uid: 7, gid: 8, pid: std::process::id() }
    }

    fn named(jobs: &Jobs, may_look: bool) -> Option<String> {
        let job = jobs.job_of(&own(), may_look)?;
        Some(String::from_utf8_lossy(job.as_bytes()).into_owned())
    }

    #[test]
    fn names_are_made_as_the_settings_say() {
        let jobs = Jobs::default();
        assert_eq!((jobs.var(), jobs.format(), jobs.is_enabled()), ("disable".into(), "%e.%u".into(), false));
        jobs.set_var("procname_uid").expect("known");
        assert!(jobs.is_enabled());
        let command = String::from_utf8(command(std::process::id())).expect("plain");
        assert_eq!(named(&jobs, false), Some(format!("{command}.7")));
        jobs.set_var("nodelocal").expect("known");
        jobs.set_format("batch-%g").expect("fine");
        assert_eq!(named(&jobs, false).as_deref(), Some("batch-8"), "what was remembered is of the past");
        for bad in ["", "two words", "1st", "a=b"] {
            assert!(jobs.set_var(bad).is_err(), "{bad}");
        }
        jobs.set_var("disable").expect("known");
        assert!(!jobs.is_enabled());
    }

    #[test]
    fn environments_are_looked_at_only_when_that_is_safe() {
        let jobs = Jobs::default();
        // The environment of this process has a path.
        jobs.set_var("PATH").expect("a variable");
        let expected = JobId::new(std::env::var("PATH").expect("it has one").as_bytes());
        let expected = expected.map(|job| String::from_utf8_lossy(job.as_bytes()).into_owned());
        assert_eq!(named(&jobs, false), None);
        assert_eq!(named(&jobs, true), expected);
        assert_eq!(named(&jobs, false), expected, "remembered");
        jobs.set_var("NO_SUCH_VARIABLE_HERE").expect("a variable");
        assert!(named(&jobs, true).is_some_and(|name| name.ends_with(".7")), "command and user instead");
    }

    #[test]
    fn variables_are_found_by_their_whole_names() {
        let environment = b"XJOB=1\0JOB_ID=a b\0JOB=\0JOB2=3\0";
        assert_eq!(variable_in(environment, "JOB_ID").as_deref(), Some(&b"a b"[..]));
        assert_eq!(variable_in(environment, "JOB"), None, "empty");
        assert_eq!(variable_in(environment, "NONE"), None);
    }
}
