//! Listings of directories with attributes and layouts of the entries, a page per request, for `find` and
//! `getstripe -r`.

use super::mounted;
use nacre_types::ioctl::ScanWanted;
use nacre_types::{Attr, Fid, FileKind, SizeSource, Timestamp};
use nacre_wire::mds::{DirPage, ListedLayout};
use rustix::fs::{AtFlags, Mode, OFlags, Statx, StatxFlags};
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Name of the entry.
    pub name: CString,
    /// Kind of file.
    pub kind: FileKind,
    /// Attributes of the entry; `None` if it was removed meanwhile.
    pub attr: Option<Attr>,
    /// Layout, if it was requested.
    pub layout: OwnLayout,
}

/// The layout of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnLayout {
    /// The entry has none, or it was not requested.
    None,
    /// Value of `lustre.lov`.
    Bytes(Vec<u8>),
    /// Too long for a page: available from `lustre.lov` only.
    TooLong,
}

/// An open directory during a listing.
#[derive(Debug)]
pub struct Listing {
    directory: OwnedFd,
    wanted: ScanWanted,
    cookie: u64,
    end: bool,
    page: std::vec::IntoIter<Listed>,
}

impl Listing {
    /// Opens the directory `name` in `parent` for listing; symbolic links are not followed.
    ///
    /// # Errors
    /// Those of openat(2).
    pub fn open_in(parent: BorrowedFd<'_>, name: &CStr, wanted: ScanWanted) -> io::Result<Listing> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(Listing::of(rustix::fs::openat(parent, name, flags, Mode::empty())?, wanted))
    }

    /// Lists an open directory from its start.
    pub fn of(directory: OwnedFd, wanted: ScanWanted) -> Listing {
        Listing { directory, wanted, cookie: 0, end: false, page: Vec::new().into_iter() }
    }

    /// Returns the open directory.
    pub fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// Returns the next entry; `None` after the last.
    ///
    /// # Errors
    /// `ENOTTY` if the directory is not on NacreFS; errors of the mount.
    pub fn next_entry(&mut self) -> io::Result<Option<Listed>> {
        loop {
            if let Some(entry) = self.page.next() {
                return Ok(Some(entry));
            }
            if self.end {
                return Ok(None);
            }
            let answer = mounted::scan(self.directory.as_fd(), self.cookie, self.wanted)?;
            let page = DirPage { bytes: answer.entries, end: answer.end, ..DirPage::default() };
            let entries: Vec<Listed> = page
                .entries()
                .filter_map(|entry| {
                    self.cookie = entry.cookie;
                    let layout = match entry.layout {
                        ListedLayout::None => OwnLayout::None,
                        ListedLayout::Bytes(bytes) => OwnLayout::Bytes(bytes.to_vec()),
                        ListedLayout::TooLong => OwnLayout::TooLong,
                    };
                    let name = CString::new(entry.name).ok()?;
                    Some(Listed { name, kind: entry.kind, attr: entry.attr, layout })
                })
                .collect();
            self.end = page.end || entries.is_empty();
            self.page = entries.into_iter();
        }
    }

    /// Returns a path to an entry, for calls that take no descriptor.
    pub fn path_of(&self, name: &CStr) -> Vec<u8> {
        let mut path = format!("/proc/self/fd/{}/", self.directory.as_raw_fd()).into_bytes();
        path.extend_from_slice(name.to_bytes());
        path
    }

    /// Reads the layout of an entry that did not fit into a page.
    ///
    /// # Errors
    /// Those of lgetxattr(2).
    pub fn long_layout(&self, name: &CStr) -> io::Result<Option<Vec<u8>>> {
        mounted::layout_of_link(&self.path_of(name))
    }

    /// Refreshes the attributes for which the writers of an entry, and not the MDT, have the newest values.
    ///
    /// # Errors
    /// Those of statx(2).
    pub fn complete(&self, name: &CStr, attr: &mut Attr) -> io::Result<()> {
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        let found = rustix::fs::statx(&self.directory, name, flags, StatxFlags::BASIC_STATS)?;
        let own = attr_of(&found, attr.fid);
        (attr.size, attr.blocks) = (own.size, own.blocks);
        (attr.atime, attr.mtime, attr.ctime) = (own.atime, own.mtime, own.ctime);
        attr.size_source = SizeSource::Exact;
        Ok(())
    }
}

/// Returns the result of statx(2) as attributes, without the project.
pub fn attr_of(found: &Statx, fid: Fid) -> Attr {
    let time = |stamp: &rustix::fs::StatxTimestamp| Timestamp::new(stamp.tv_sec, stamp.tv_nsec);
    Attr {
        fid,
        mode: u32::from(found.stx_mode),
        uid: found.stx_uid,
        gid: found.stx_gid,
        nlink: found.stx_nlink,
        size: found.stx_size,
        blocks: found.stx_blocks,
        atime: time(&found.stx_atime),
        mtime: time(&found.stx_mtime),
        ctime: time(&found.stx_ctime),
        btime: time(&found.stx_btime),
        ..Attr::default()
    }
}
