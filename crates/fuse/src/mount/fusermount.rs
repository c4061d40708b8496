//! The set-uid helper fusermount3: it mounts for ordinary users and passes the descriptor over a socket whose
//! number is in the variable `_FUSE_COMMFD`.

use std::io::{self, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rustix::io::FdFlags;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

use crate::device::Device;
use crate::error::Error;

const NAMES: [&str; 2] = ["fusermount3", "fusermount"];

pub(super) fn mount(path: &Path, options: &str) -> Result<Device, Error> {
    let (ours, theirs) = UnixStream::pair().map_err(Error::system("making a socket for fusermount3"))?;
    let output = run(|command| {
        command.arg("-o").arg(options).arg("--").arg(path);
        inherit(command, &theirs);
    })?;
    drop(theirs);
    if !output.status.success() {
        return Err(refused(path, &output));
    }
    match receive_descriptor(&ours) {
        Ok(Some(fd)) => Ok(Device::from_fd(fd)),
        Ok(None) => Err(refused(path, &output)),
        Err(error) => {
            Err(Error::System { action: "receiving the descriptor from fusermount3", source: error })
        }
    }
}

pub(super) fn unmount(path: &Path, lazy: bool) -> Result<(), Error> {
    let output = run(|command| {
        command.arg("-u").arg("-q");
        if lazy {
            command.arg("-z");
        }
        command.arg("--").arg(path);
    })?;
    if output.status.success() || super::MountEntry::at(path).is_none() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr);
    if message.contains("busy") || !lazy {
        Err(Error::Busy(path.to_owned()))
    } else {
        Err(refused(path, &output))
    }
}

fn run(prepare: impl Fn(&mut Command)) -> Result<Output, Error> {
    for name in NAMES {
        let mut command = Command::new(name);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        prepare(&mut command);
        match spawn_and_collect(&mut command) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            outcome => return outcome.map_err(Error::system("starting fusermount3")),
        }
    }
    Err(Error::NoFusermount)
}

/// Like `Command::output`, but does not wait for the end of the error stream when a process that the helper
/// left behind (for automatic unmounts) keeps it open.
fn spawn_and_collect(command: &mut Command) -> io::Result<Output> {
    let mut child = command.spawn()?;
    let mut errors = child.stderr.take();
    let status = child.wait()?;
    let mut stderr = Vec::new();
    if let Some(pipe) = &mut errors {
        // Messages of the helper are short; all of its output is in the pipe at this point.
        let mut piece = [0u8; 4096];
        if !status.success() {
            let n = pipe.read(&mut piece)?;
            stderr.extend_from_slice(&piece[..n]);
        }
    }
    Ok(Output { status, stdout: Vec::new(), stderr })
}

/// Lets the child, and no other child of this process, inherit the socket under the same number.
fn inherit(command: &mut Command, socket: &UnixStream) {
    let fd = socket.as_raw_fd();
    command.env("_FUSE_COMMFD", fd.to_string());
    // SAFETY: the closure runs in the child between fork and exec; fcntl may be called there, and nothing
    // allocates.
    unsafe {
        command.pre_exec(move || {
            let socket = BorrowedFd::borrow_raw(fd);
            Ok(rustix::io::fcntl_setfd(socket, FdFlags::empty())?)
        });
    }
}

fn refused(path: &Path, output: &Output) -> Error {
    let text = String::from_utf8_lossy(&output.stderr);
    if text.contains("user_allow_other") {
        return Error::AllowOtherDenied;
    }
    let line = text.lines().next().unwrap_or_default();
    let message = line.split_once(": ").map_or(line, |(_, message)| message).trim();
    let message = if message.is_empty() { "it gave no reason" } else { message };
    Error::Fusermount { path: path.to_owned(), message: message.to_owned() }
}

/// Returns the descriptor in the ancillary data of one byte; `None` at the end of the stream.
fn receive_descriptor(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0u8; 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        let mut parts = [IoSliceMut::new(&mut byte)];
        rustix::net::recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    if received.bytes == 0 {
        return Ok(None);
    }
    Ok(control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    }))
}
