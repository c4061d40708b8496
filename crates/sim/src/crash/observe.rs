//! What a new client finds after a power cut.

use crate::history::History;
use crate::mount::{Mount, root};
use crate::operation::{Operation, Path};
use crate::program::{Program, xattr};
use nacre_client::{OpenFlags, Reader};
use nacre_types::{Fid, Status};
use std::collections::BTreeMap;
use std::ops::Range;

/// Bytes of each read.
const PIECE_BYTES: usize = 4096;
/// More bytes than any workload writes to a file.
const BYTES_MAX: usize = 1 << 17;

/// What can be read of a file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Content {
    pub(crate) bytes: Vec<u8>,
    /// Ranges in which reads fail with `EIO`.
    pub(crate) lost: Vec<Range<u64>>,
}

/// A file or directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Found {
    pub(crate) fid: Fid,
    pub(crate) directory: bool,
    pub(crate) links: u32,
    pub(crate) size: u64,
    pub(crate) xattr: Option<u8>,
    /// Content of a file, or the call that failed.
    pub(crate) content: Result<Content, String>,
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
    let content = if attr.is_dir() { Ok(Content::default()) } else { read(mount, fid, attr.size) };
    let (directory, links, size) = (attr.is_dir(), attr.nlink, attr.size);
    Ok(Found { fid, directory, links, size, xattr, content })
}

/// Reads a file piece by piece.
fn read(mount: &Mount, fid: Fid, size: u64) -> Result<Content, String> {
    let client = &mount.client;
    let failed = |what| move |status| format!("{what} fails: {status}");
    let handle = client.opens.open(&root(), fid, OpenFlags::READ, false).map_err(failed("an open"))?.handle;
    let mut content = Content::default();
    loop {
        let offset = content.bytes.len() as u64;
        let mut piece = [0xee; PIECE_BYTES];
        match client.data.read(handle, offset, &mut piece, Reader::Program) {
            Ok(0) => break,
            Ok(read) => content.bytes.extend(&piece[..read]),
            // As the front door does: conditions between client and servers are I/O errors for programs.
            Err(status) if status == Status::EIO || status.0 >= 4096 => {
                let rest = size.saturating_sub(offset).min(PIECE_BYTES as u64);
                if rest == 0 {
                    // The size is that of the other parts.
                    content.lost.push(offset..u64::MAX);
                    break;
                }
                content.lost.push(offset..offset + rest);
                content.bytes.resize((offset + rest) as usize, 0);
            }
            Err(status) => return Err(failed("a read")(status)),
        }
        if content.bytes.len() > BYTES_MAX {
            return Err("a file without an end".to_owned());
        }
    }
    client.opens.release(handle).map_err(failed("a close"))?;
    Ok(content)
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
