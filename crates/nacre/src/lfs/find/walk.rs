//! Traverses trees and prints matching entries.
//!
//! A thread walks depth first and prints in that order. It hands directories to idle threads; the order is
//! then arbitrary.

use super::format::Printed;
use super::layout::{Defaults, Shape};
use super::predicate::{Needs, Spread, Subject, some_part_passes};
use super::query::{Output, Query};
use crate::lfs::identity::Names;
use crate::lfs::listing::{Listed, Listing, OwnLayout};
use crate::lfs::mounted;
use nacre_env::sync::{Condvar, Mutex};
use nacre_layout::{DirLayout, UserDir};
use nacre_types::ioctl::ScanWanted;
use nacre_types::{Attr, AttrFlags, SizeSource};
use rustix::io::Errno;
use std::ffi::{CStr, OsStr};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Bytes of output that a thread buffers.
const OUTPUT_BYTES: usize = 64 << 10;

/// A directory to walk.
#[derive(Debug)]
pub struct Directory {
    /// Path as it is printed.
    pub path: Vec<u8>,
    /// Listing of the directory.
    pub listing: Listing,
    /// Levels below the path of the command line.
    pub depth: usize,
    /// Default layout of its own.
    pub layout: Option<Vec<u8>>,
}

/// State that all threads share.
pub struct Walk<'a> {
    query: &'a Query,
    defaults: &'a Defaults,
    threads: usize,
    waiting: Mutex<Waiting>,
    changed: Condvar,
    idle: AtomicUsize,
    matches: AtomicU64,
    /// Errno of the first failure.
    failed: Mutex<Option<Errno>>,
}

#[derive(Default)]
struct Waiting {
    directories: Vec<Directory>,
    idle: usize,
}

/// Returns true if match `n` is left out, so that `percent` of the matches are.
fn is_skipped(n: u64, percent: u64) -> bool {
    (n + 1) * percent / 100 > n * percent / 100
}

impl<'a> Walk<'a> {
    /// Creates a walk by `threads` threads.
    pub fn new(query: &'a Query, defaults: &'a Defaults, threads: usize) -> Walk<'a> {
        Walk {
            query,
            defaults,
            threads,
            waiting: Mutex::default(),
            changed: Condvar::new(),
            idle: AtomicUsize::new(0),
            matches: AtomicU64::new(0),
            failed: Mutex::new(None),
        }
    }

    /// Returns the data that listings must contain.
    pub fn wanted(&self) -> ScanWanted {
        let mut wanted = ScanWanted::empty();
        wanted.set(ScanWanted::LAYOUTS, self.query.needs_layout());
        wanted.set(ScanWanted::SIZES, self.query.needs_data());
        wanted
    }

    /// Tests an entry of the command line in `parent`, and walks it if it is a directory.
    pub fn run(&self, parent: &Listing, root: &Listed, path: &[u8], directory: Option<Directory>) {
        let mut worker = Worker::new(self);
        worker.visit(parent, root, path, 0, None);
        if let Some(directory) = directory.filter(|_| self.query.max_depth > 0) {
            if self.threads <= 1 {
                worker.walk(directory);
            } else {
                worker.flush();
                self.waiting.lock().directories.push(directory);
                self.run_threads();
                return;
            }
        }
        worker.flush();
    }

    fn run_threads(&self) {
        self.waiting.lock().idle = 0;
        nacre_env::thread::scope(|scope| {
            for _ in 0..self.threads {
                scope.spawn(|| {
                    let mut worker = Worker::new(self);
                    while let Some(directory) = self.take() {
                        worker.walk(directory);
                    }
                    worker.flush();
                });
            }
        });
    }

    /// Returns the next directory for an idle thread; `None` once all threads are idle.
    fn take(&self) -> Option<Directory> {
        let mut waiting = self.waiting.lock();
        waiting.idle += 1;
        loop {
            self.idle.store(waiting.idle, Ordering::Relaxed);
            if let Some(directory) = waiting.directories.pop() {
                waiting.idle -= 1;
                self.idle.store(waiting.idle, Ordering::Relaxed);
                return Some(directory);
            }
            if waiting.idle == self.threads {
                self.changed.notify_all();
                return None;
            }
            self.changed.wait(&mut waiting);
        }
    }

    /// Hands a directory to an idle thread; returns it if there is none.
    fn hand_over(&self, directory: Directory) -> Option<Directory> {
        if self.idle.load(Ordering::Relaxed) == 0 {
            return Some(directory);
        }
        let mut waiting = self.waiting.lock();
        if waiting.directories.len() >= waiting.idle {
            return Some(directory);
        }
        waiting.directories.push(directory);
        self.changed.notify_one();
        None
    }

    /// Reports a failure; an entry that has vanished meanwhile is not one.
    pub fn note_failure(&self, path: &[u8], error: &io::Error) {
        let errno = crate::lfs::errno_of(error);
        // A directory that another mount has removed is stale (`ESTALE`) after it was opened.
        if matches!(errno, Errno::NOENT | Errno::STALE) {
            return;
        }
        super::failure(path, errno).report();
        self.failed.lock().get_or_insert(errno);
    }

    /// Returns the errno of the first failure.
    pub fn failed(&self) -> Option<Errno> {
        *self.failed.lock()
    }
}

/// State of one thread.
struct Worker<'a> {
    walk: &'a Walk<'a>,
    names: Names,
    out: Vec<u8>,
}

impl<'a> Worker<'a> {
    fn new(walk: &'a Walk<'a>) -> Worker<'a> {
        Worker { walk, names: Names::default(), out: Vec::new() }
    }

    fn walk(&mut self, root: Directory) {
        let mut stack = vec![root];
        while let Some(top) = stack.last_mut() {
            let entry = match top.listing.next_entry() {
                Ok(Some(entry)) => entry,
                Ok(None) => {
                    stack.pop();
                    continue;
                }
                Err(error) => {
                    self.walk.note_failure(&top.path, &error);
                    stack.pop();
                    continue;
                }
            };
            let path = joined(&top.path, &entry.name);
            let depth = top.depth + 1;
            self.visit(&top.listing, &entry, &path, depth, top.layout.as_deref());
            if entry.kind != nacre_types::FileKind::Directory || depth >= self.walk.query.max_depth {
                continue;
            }
            match Listing::open_in(top.listing.directory(), &entry.name, self.walk.wanted()) {
                Ok(listing) => {
                    let layout = match entry.layout {
                        OwnLayout::Bytes(bytes) => Some(bytes),
                        OwnLayout::TooLong => top.listing.long_layout(&entry.name).ok().flatten(),
                        OwnLayout::None => None,
                    };
                    stack.extend(self.walk.hand_over(Directory { path, listing, depth, layout }));
                }
                Err(error) => self.walk.note_failure(&path, &error),
            }
        }
    }

    /// Prints an entry if it matches. `inherited` is the default layout of its directory.
    fn visit(
        &mut self,
        parent: &Listing,
        entry: &Listed,
        path: &[u8],
        depth: usize,
        inherited: Option<&[u8]>,
    ) {
        match self.matching(parent, entry, inherited) {
            Ok(Some((attr, shape, spread))) if depth >= self.walk.query.min_depth => {
                let n = self.walk.matches.fetch_add(1, Ordering::Relaxed);
                if !is_skipped(n, self.walk.query.skip_percent) {
                    self.print(&Printed { path, attr: &attr, shape: &shape, spread: &spread });
                }
            }
            Ok(_) => {}
            Err(error) => self.walk.note_failure(path, &error),
        }
    }

    fn print(&mut self, entry: &Printed<'_>) {
        match &self.walk.query.output {
            Output::Path(end) => {
                self.out.extend_from_slice(entry.path);
                self.out.push(*end);
            }
            Output::Format(format) => format.print(entry, &mut self.names, &mut self.out),
            Output::Json => self.out.extend_from_slice(entry.json_line().as_bytes()),
        }
        if self.out.len() >= OUTPUT_BYTES {
            self.flush();
        }
    }

    fn flush(&mut self) {
        let mut out = io::stdout().lock();
        // A closed pipe (`| head`) is not reported.
        if out.write_all(&self.out).and_then(|()| out.flush()).is_err() {
            std::process::exit(0);
        }
        self.out.clear();
    }

    /// Returns the known data of an entry that matches.
    fn matching(
        &self,
        parent: &Listing,
        entry: &Listed,
        inherited: Option<&[u8]>,
    ) -> io::Result<Option<(Attr, Shape, Spread)>> {
        let query = self.walk.query;
        // Removed between the listing and the read of its attributes.
        let Some(mut attr) = entry.attr else { return Ok(None) };
        let passes = |attr: &Attr, from: Needs, to: Needs| {
            let subject = Subject { name: &entry.name, attr };
            let tests = query.tests.iter().filter(|test| (from..=to).contains(&test.needs()));
            tests.into_iter().all(|test| test.passes_attr(&subject))
        };
        if !passes(&attr, Needs::Listing, Needs::Listing) {
            return Ok(None);
        }
        if query.needs_data() && attr.size_source == SizeSource::Objects {
            parent.complete(&entry.name, &mut attr)?;
        }
        if !passes(&attr, Needs::Data, Needs::Data) {
            return Ok(None);
        }
        let mut shape = Shape::None;
        if query.needs_layout() {
            shape = self.shape_of(parent, entry, &attr, inherited)?;
            let fits = query.tests.iter().filter(|test| test.needs() == Needs::Layout);
            if !fits.into_iter().all(|test| test.passes_layout(&shape))
                || !some_part_passes(&query.part_tests, &shape)
            {
                return Ok(None);
            }
        }
        let mut about_spread = query.tests.iter().filter(|test| test.is_about_spread()).peekable();
        let mut spread = Spread::default();
        if about_spread.peek().is_some() || query.prints_spread() {
            spread = Worker::spread_of(parent, entry, &attr)?;
        }
        if !about_spread.all(|test| attr.is_dir() && test.passes_spread(&spread)) {
            return Ok(None);
        }
        for test in query.tests.iter().filter(|test| test.needs() == Needs::Xattrs) {
            if let super::predicate::What::Xattr(wanted) = &test.what
                && wanted.passes(&parent.path_of(&entry.name))? == test.negated
            {
                return Ok(None);
            }
        }
        Ok(Some((attr, shape, spread)))
    }

    /// Returns the distribution of a directory's names over MDTs.
    fn spread_of(parent: &Listing, entry: &Listed, attr: &Attr) -> io::Result<Spread> {
        if !attr.is_dir() || !attr.flags.contains(AttrFlags::STRIPED) {
            return Ok(Spread::default());
        }
        let path = parent.path_of(&entry.name);
        let stored = mounted::directory_layout(Path::new(OsStr::from_bytes(&path)))?;
        let Some(layout) = stored.and_then(|bytes| DirLayout::decode(&bytes).ok()) else {
            return Ok(Spread::default());
        };
        let seen = UserDir::from(&layout);
        Ok(Spread { mdts: seen.shards.iter().map(|(_, mdt)| *mdt).collect(), hash: seen.hash })
    }

    /// Returns the layout of an entry: its own; for a file that was never written, the one that it will get;
    /// for a directory without a default, the file system's.
    fn shape_of(
        &self,
        parent: &Listing,
        entry: &Listed,
        attr: &Attr,
        inherited: Option<&[u8]>,
    ) -> io::Result<Shape> {
        let defaults = self.walk.defaults;
        Ok(match &entry.layout {
            OwnLayout::Bytes(bytes) => defaults.resolved(Shape::decode(bytes)),
            OwnLayout::TooLong => match parent.long_layout(&entry.name)? {
                Some(bytes) => defaults.resolved(Shape::decode(&bytes)),
                None => Shape::None,
            },
            OwnLayout::None if attr.is_regular() => defaults.of_new_file(inherited),
            OwnLayout::None if attr.is_dir() => defaults.of_new_file(None),
            OwnLayout::None => Shape::None,
        })
    }
}

fn joined(directory: &[u8], name: &CStr) -> Vec<u8> {
    let mut path = Vec::with_capacity(directory.len() + 1 + name.count_bytes());
    path.extend_from_slice(directory);
    if !directory.ends_with(b"/") {
        path.push(b'/');
    }
    path.extend_from_slice(name.to_bytes());
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_joined_with_one_slash() {
        assert_eq!(joined(b".", c"f"), b"./f");
        assert_eq!(joined(b"/mnt/", c"f"), b"/mnt/f");
        assert_eq!(joined(b"/", c"f"), b"/f");
    }

    #[test]
    fn a_part_of_the_matches_is_left_out_evenly() {
        for percent in [0, 1, 33, 50, 99, 100] {
            let skipped = (0..1000).filter(|n| is_skipped(*n, percent)).count() as u64;
            assert_eq!(skipped, percent * 10, "{percent}");
        }
    }
}
