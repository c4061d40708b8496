//! Status numbers: stable results that are sent to peers.
//!
//! A status is 0, a Linux errno (1..4096), or one of a few conditions between client and server that a
//! program never sees. Numbers are never reused.

use std::fmt;

/// The result of a request, as sent on the wire and returned to programs. `Status::OK` is not an error.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Status(pub u16);

/// Shorthand for results whose error is a [`Status`].
pub type StatusResult<T> = Result<T, Status>;

macro_rules! errnos {
    ($($name:ident = $value:literal, $text:literal;)*) => {
        impl Status {
            $(#[doc = $text] pub const $name: Status = Status($value);)*

            /// Returns the symbolic name of a known value.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 { $($value => Some(stringify!($name)),)* _ => None }
            }

            /// Returns a short phrase for the value.
            pub const fn text(self) -> &'static str {
                match self.0 { $($value => $text,)* _ => "unknown error" }
            }
        }
    };
}

errnos! {
    OK = 0, "success";
    EPERM = 1, "operation not permitted";
    ENOENT = 2, "no such file or directory";
    EINTR = 4, "interrupted";
    EIO = 5, "input/output error";
    ENXIO = 6, "no such device or address";
    E2BIG = 7, "argument too long";
    EBADF = 9, "bad file handle";
    EAGAIN = 11, "would block";
    ENOMEM = 12, "out of memory";
    EACCES = 13, "permission denied";
    EFAULT = 14, "bad address";
    EBUSY = 16, "device or resource busy";
    EEXIST = 17, "file exists";
    EXDEV = 18, "cross-device link";
    ENODEV = 19, "no such device";
    ENOTDIR = 20, "not a directory";
    EISDIR = 21, "is a directory";
    EINVAL = 22, "invalid argument";
    ENFILE = 23, "too many open files in system";
    EMFILE = 24, "too many open files";
    ENOTTY = 25, "inappropriate ioctl for device";
    ETXTBSY = 26, "text file busy";
    EFBIG = 27, "file too large";
    ENOSPC = 28, "no space left on device";
    ESPIPE = 29, "illegal seek";
    EROFS = 30, "read-only file system";
    EMLINK = 31, "too many links";
    ERANGE = 34, "result too large for the buffer";
    EDEADLK = 35, "resource deadlock would occur";
    ENAMETOOLONG = 36, "file name too long";
    ENOLCK = 37, "no locks available";
    ENOSYS = 38, "function not implemented";
    ENOTEMPTY = 39, "directory not empty";
    ELOOP = 40, "too many levels of symbolic links";
    ENODATA = 61, "no such attribute or data";
    ETIME = 62, "timer expired";
    EREMOTEIO = 121, "remote input/output error";
    EPROTO = 71, "protocol error";
    EBADMSG = 74, "damaged message or record";
    EOVERFLOW = 75, "value too large";
    EILSEQ = 84, "invalid byte sequence";
    EOPNOTSUPP = 95, "operation not supported";
    ESHUTDOWN = 108, "the service is stopping";
    ETIMEDOUT = 110, "timed out";
    EALREADY = 114, "already done";
    EINPROGRESS = 115, "in progress";
    ESTALE = 116, "stale file handle";
    EUCLEAN = 117, "stored structure needs cleaning";
    EDQUOT = 122, "quota exceeded";
    ENOKEY = 126, "required key not available";
    EKEYEXPIRED = 127, "key has expired";
    EKEYREVOKED = 128, "key has been revoked";
    EKEYREJECTED = 129, "key was rejected";
    ECONNREFUSED = 111, "connection refused";
    ENOTCONN = 107, "not connected";
    NEED_CREDENTIALS = 10001, "the server needs the caller's groups and capabilities to decide";
    STALE_LAYOUT = 10002, "the layout has changed: fetch it again";
    WRONG_TARGET = 10003, "this target does not own the object";
    EVICTED = 10004, "the server has dropped this client: connect again";
    BAD_VERSION = 10005, "the peer speaks another protocol version";
    WRONG_FSNAME = 10006, "the server serves a file system of another name";
    WRONG_SHARD = 10007, "names of this directory lie in shards: fetch the list again";
    RECOVERING = 10008, "the server waits for clients of its last run: ask again";
    OBJECT_LOST = 10009, "the target has lost an object that data was written to";
    NO_CAPABILITY = 10010, "the request brings no capability that is valid for the object";
}

impl Status {
    /// Returns the errno for a program. Conditions between client and server that leak out are I/O errors.
    pub const fn errno(self) -> i32 {
        match self.0 {
            0..4096 => self.0 as i32,
            10010 => 13,
            _ => 5,
        }
    }

    /// True if something is broken that an administrator should know of, rather than a result that programs
    /// expect.
    pub const fn is_fault(self) -> bool {
        matches!(
            self,
            Status::EIO
                | Status::ENOMEM
                | Status::EREMOTEIO
                | Status::EPROTO
                | Status::EBADMSG
                | Status::EUCLEAN
                | Status::ETIMEDOUT
                | Status::ECONNREFUSED
                | Status::ENOTCONN
                | Status::EVICTED
                | Status::BAD_VERSION
                | Status::WRONG_FSNAME
                | Status::WRONG_TARGET
                | Status::OBJECT_LOST
        )
    }

    /// Returns the status of an operating system error; one without an errno is an I/O error.
    pub fn from_io(error: &std::io::Error) -> Status {
        match error.raw_os_error() {
            Some(code) if (1..4096).contains(&code) => Status(code as u16),
            _ => Status::EIO,
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{} ({name})", self.text()),
            None => write!(f, "error {}", self.0),
        }
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "Status({})", self.0),
        }
    }
}

impl std::error::Error for Status {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_between_peers_reach_programs_as_io_errors() {
        assert_eq!(Status::NEED_CREDENTIALS.errno(), 5);
        assert_eq!(Status::ENOTEMPTY.errno(), 39);
        assert_eq!(Status::from_io(&std::io::Error::from_raw_os_error(28)), Status::ENOSPC);
    }
}
