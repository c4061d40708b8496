//! Formats of job names.

use nacre_types::job::JOB_ID_MAX;
use nacre_types::{JobId, Status};
use std::fmt;
use std::str::FromStr;

/// The default format of names: command and user.
pub const DEFAULT_FORMAT: &str = "%e.%u";
/// Longest name of a variable in bytes.
const VARIABLE_MAX: usize = 64;

/// What jobs are named after: `jobid_var`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum JobVar {
    /// Nothing: requests carry no job.
    Disable,
    /// The program's command and user.
    ProcnameUid,
    /// The format alone, for all programs of the host.
    NodeLocal,
    /// The value of this variable in the program's environment.
    Variable(String),
}

impl fmt::Display for JobVar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            JobVar::Disable => "disable",
            JobVar::ProcnameUid => "procname_uid",
            JobVar::NodeLocal => "nodelocal",
            JobVar::Variable(name) => name,
        })
    }
}

impl FromStr for JobVar {
    type Err = Status;

    fn from_str(text: &str) -> Result<JobVar, Status> {
        let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        match text {
            "disable" => Ok(JobVar::Disable),
            "procname_uid" => Ok(JobVar::ProcnameUid),
            "nodelocal" => Ok(JobVar::NodeLocal),
            // Lustre's name for a source of jobs that does not exist here, rather than a variable.
            "session" => Err(Status::EINVAL),
            name if (1..=VARIABLE_MAX).contains(&name.len())
                && name.bytes().all(is_word)
                && !name.starts_with(|letter: char| letter.is_ascii_digit()) =>
            {
                Ok(JobVar::Variable(name.to_owned()))
            }
            _ => Err(Status::EINVAL),
        }
    }
}

/// A format of names: text with codes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JobFormat {
    text: String,
}

/// Values for the codes of a format, except command and job.
pub(crate) struct Facts<'a> {
    pub uid: u32,
    pub gid: u32,
    pub pid: u32,
    /// Full name of the host.
    pub host: &'a str,
}

impl Default for JobFormat {
    fn default() -> JobFormat {
        JobFormat { text: DEFAULT_FORMAT.to_owned() }
    }
}

impl fmt::Display for JobFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for JobFormat {
    type Err = Status;

    fn from_str(text: &str) -> Result<JobFormat, Status> {
        let fits = nacre_params::is_job_format(text);
        fits.then(|| JobFormat { text: text.to_owned() }).ok_or(Status::EINVAL)
    }
}

impl JobFormat {
    /// True if the format contains the job of the batch system (`%j`).
    pub fn uses_job(&self) -> bool {
        self.text.contains("%j")
    }

    /// Builds the name: `%e` command, `%u` user, `%g` group, `%p` process, `%h` host, `%H` host without its
    /// domain, `%j` the job of the batch system, `%%` a percent sign. The part after `%?` counts only if the
    /// part before it is empty.
    pub(super) fn name(
        &self,
        facts: &Facts<'_>,
        command: impl FnOnce() -> Vec<u8>,
        job: Option<&[u8]>,
    ) -> Option<JobId> {
        let mut name: Vec<u8> = Vec::with_capacity(2 * JOB_ID_MAX);
        let command = if self.text.contains("%e") { command() } else { Vec::new() };
        let mut letters = self.text.chars();
        while let Some(letter) = letters.next() {
            if letter != '%' {
                name.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
                continue;
            }
            match letters.next() {
                Some('e') => name.extend_from_slice(&command),
                Some('u') => name.extend_from_slice(facts.uid.to_string().as_bytes()),
                Some('g') => name.extend_from_slice(facts.gid.to_string().as_bytes()),
                Some('p') => name.extend_from_slice(facts.pid.to_string().as_bytes()),
                Some('h') => name.extend_from_slice(facts.host.as_bytes()),
                Some('H') => name.extend(facts.host.bytes().take_while(|byte| *byte != b'.')),
                Some('j') => name.extend_from_slice(job.unwrap_or_default()),
                Some('?') if !name.is_empty() => break,
                Some('%') => name.push(b'%'),
                _ => {}
            }
        }
        JobId::new(&name)
    }
}

/// Returns the name of this host; empty if it has none.
pub(crate) fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(format: &str, job: Option<&str>) -> String {
        let facts = Facts { uid: 500, gid: 100, pid: 4711, host: "n1.site.org" };
        let format: JobFormat = format.parse().expect("a form");
        let name = format.name(&facts, || b"dd".to_vec(), job.map(str::as_bytes));
        name.map(|name| String::from_utf8_lossy(name.as_bytes()).into_owned()).unwrap_or_default()
    }

    #[test]
    fn codes_stand_for_what_is_known_of_the_program() {
        assert_eq!(name("%e.%u", None), "dd.500");
        assert_eq!(name("%H:%h:%g:%p", None), "n1:n1.site.org:100:4711");
        assert_eq!(name("100%%-%j", Some("17")), "100%-17");
        assert_eq!(name("%j%?%e.%u", Some("17")), "17");
        assert_eq!(name("%j%?%e.%u", None), "dd.500");
        assert_eq!(name("%j", None), "");
        assert_eq!(
            name("0123456789 0123456789 0123456789 xyz", None),
            "0123456789012345678901234567890"[..30].to_owned() + "x"
        );
    }

    #[test]
    fn forms_and_variables_are_checked() {
        for bad in ["", "%", "%x", "a%", &"y".repeat(65)] {
            assert_eq!(bad.parse::<JobFormat>(), Err(Status::EINVAL), "{bad}");
        }
        for bad in ["session", "a-b", "", "9a", &"y".repeat(65)] {
            assert_eq!(bad.parse::<JobVar>(), Err(Status::EINVAL), "{bad}");
        }
        assert_eq!("SLURM_JOB_ID".parse(), Ok(JobVar::Variable("SLURM_JOB_ID".to_owned())));
    }
}
