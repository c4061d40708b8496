//! What a new client finds after a power cut.

use crate::history::History;
use crate::mount::{Mount, root};
use crate::operation::{Operation, Path};
use crate::program::{Program, xattr};
use nacre_client::{OpenFlags, Reader};
use nacre_types::{Fid, Status};
use std::collections::BTreeMap;

/// Bytes that are read of a file at most: more than any workload writes.
const READ_BYTES: usize = 1 << 17;

/// A file or directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Found {
    pub(crate) fid: Fid,
    pub(crate) directory: bool,
    pub(crate) links: u32,
    pub(crate) size: u64,
    pub(crate) xattr: Option<u8>,
    /// Content of a file.
    pub(crate) bytes: Result<Vec<u8>, Status>,
}

/// All files and directories by path.
pub(crate) type Observed = BTreeMap<Path, Found>;

/// Reads everything below the root.
///
/// # Errors
/// A call that failed, except a read.
pub(crate) fn observe(mount: &Mount) -> Result<Observed, String> {
    let program = Program::new(0, mount.client.clone(), History::new());
    let mut observed = Observed::new();
    visit(mount, &program, (Fid::ROOT, Path(Vec::new())), &mut observed)?;
    Ok(observed)
}

fn visit(
    mount: &Mount,
    program: &Program,
    (directory, path): (Fid, Path),
    observed: &mut Observed,
) -> Result<(), String> {
    let names = program.list(directory).map_err(|status| format!("{path}: cannot be listed: {status}"))?;
    for name in names.into_keys() {
        let shown = name.escape_ascii().to_string();
        let number = match name[..] {
            [letter @ b'a'..=b'c'] => letter - b'a',
            _ => return Err(format!("{path}: a name that was never made: {shown}")),
        };
        let below = Path([&path.0[..], &[number]].concat());
        let (fid, is_directory) = program
            .lookup(directory, name)
            .map_err(|status| format!("{below} is listed and cannot be looked up: {status}"))?;
        let found = look(mount, fid).map_err(|status| format!("{below}: no attributes: {status}"))?;
        if found.directory != is_directory {
            return Err(format!("{below}: its attributes are of another kind of file"));
        }
        observed.insert(below.clone(), found);
        if is_directory {
            visit(mount, program, (fid, below), observed)?;
        }
    }
    Ok(())
}

fn look(mount: &Mount, fid: Fid) -> Result<Found, Status> {
    let client = &mount.client;
    let attr = client.inodes.getattr(fid)?;
    let xattr = match client.inodes.getxattr(&root(), fid, &xattr(0)) {
        Ok(value) => value.first().copied(),
        Err(Status::ENODATA) => None,
        Err(status) => return Err(status),
    };
    let bytes = if attr.is_dir() { Ok(Vec::new()) } else { read(mount, fid) };
    let (directory, links, size) = (attr.is_dir(), attr.nlink, attr.size);
    Ok(Found { fid, directory, links, size, xattr, bytes })
}

fn read(mount: &Mount, fid: Fid) -> Result<Vec<u8>, Status> {
    let client = &mount.client;
    let handle = client.opens.open(&root(), fid, OpenFlags::READ, false)?.handle;
    let mut bytes = vec![0xee; READ_BYTES];
    let read = client.data.read(handle, 0, &mut bytes, Reader::Program);
    client.opens.release(handle)?;
    // As the front door does: conditions between client and servers are I/O errors for programs.
    let read = read.map_err(|status| if status.0 < 4096 { status } else { Status::EIO })?;
    bytes.truncate(read);
    Ok(bytes)
}

/// Removes everything below the root.
///
/// # Errors
/// What is left.
pub(crate) fn remove_all(mount: &Mount, observed: &Observed) -> Result<(), String> {
    let history = History::new();
    let mut program = Program::new(0, mount.client.clone(), history);
    for (path, found) in observed.iter().rev() {
        let path = path.clone();
        let rmdir = found.directory;
        program.run(&if rmdir { Operation::Rmdir { path } } else { Operation::Unlink { path } });
    }
    let left = program.list(Fid::ROOT).map_err(|status| format!("the root cannot be listed: {status}"))?;
    if left.is_empty() { Ok(()) } else { Err(format!("{} names cannot be removed", left.len())) }
}
