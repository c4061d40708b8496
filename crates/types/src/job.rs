//! Job ids: names that attribute requests to a batch job.

use std::fmt;

/// Longest job id in bytes, as in Lustre.
pub const JOB_ID_MAX: usize = 31;

/// Name of a job: 1 to [`JOB_ID_MAX`] bytes, all but control characters and white space. Small enough to be
/// copied.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId {
    /// The name, padded with zeros.
    bytes: [u8; JOB_ID_MAX],
    len: u8,
}

impl JobId {
    /// Creates the job of this name, cut to [`JOB_ID_MAX`] bytes, without control characters and white space;
    /// `None` if nothing is left.
    pub fn new(name: &[u8]) -> Option<JobId> {
        let mut job = JobId { bytes: [0; JOB_ID_MAX], len: 0 };
        let kept = name.iter().filter(|byte| !byte.is_ascii_control() && !byte.is_ascii_whitespace());
        for (place, byte) in job.bytes.iter_mut().zip(kept) {
            *place = *byte;
            job.len += 1;
        }
        (job.len > 0).then_some(job)
    }

    /// Returns the name.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }
}

impl fmt::Debug for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JobId({})", self.as_bytes().escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_cut_and_cleaned() {
        assert_eq!(JobId::new(b"dd.0").expect("a name").as_bytes(), b"dd.0");
        assert_eq!(JobId::new(b" a b\nc\0").expect("a name").as_bytes(), b"abc");
        assert_eq!(JobId::new(&[b'x'; 99]).expect("a name").as_bytes(), [b'x'; JOB_ID_MAX]);
        assert_eq!((JobId::new(b""), JobId::new(b" \t\0")), (None, None));
        assert_eq!(JobId::new(b"a "), JobId::new(b"a"));
    }
}
