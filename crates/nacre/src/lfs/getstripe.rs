//! `lfs getstripe`: shows layouts of files and default layouts of directories. Source: reference 2.2.

use super::getopt::{OptionSpec, Parsed, Takes, long, opt};
use super::listing::{Listing, OwnLayout};
use super::mounted::{self, Mounted};
use super::number::{parse_stripe_size, parse_unsigned};
use super::render::{self, Facts, Fields, Filter, Relation, Style};
use super::view::{View, parse_flags};
use super::{Failure, Outcome};
use nacre_layout::{LayoutSpec, Wish, user};
use nacre_types::Fid;
use nacre_types::TargetId;
use nacre_types::ioctl::ScanWanted;
use rustix::fs::{Mode, OFlags};
use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// What `--help` and a wrong call print.
pub const USAGE: &str = "\
usage: lfs getstripe [OPTIONS] FILE|DIR...
  -c -S -i -L -g -p -m -F    only stripe count, size, index, pattern, layout generation, pool,
                             MDT index, FID; alone without a label
  -N --component-count       only the number of mirrors, of components
  -I[ID] -E[END] --component-start[=START] --component-flags[=FLAGS]
                             only a component's id, end, start, flags; with a value (+N more,
                             -N less, ^FLAG not) only components that match
  -d, --directory            a directory itself, not what is in it
  -r, --recursive            the whole tree
  -O, --ost NAME             only files with an object on this OST, marked with *
  -q, --quiet                only the objects
  -v, --verbose              also magic and identity
  -y, --yaml                 as YAML
  -R, --raw                  what is stored, defaults not resolved
      --hex-idx              OST indices in hexadecimal
      --no-follow            a symbolic link itself
Example: lfs getstripe -c /mnt/nacre/wide
";

const OPTIONS: &[OptionSpec] = &[
    opt('c', "stripe-count", Takes::Nothing),
    opt('C', "overstripe-count", Takes::Nothing),
    opt('S', "stripe-size", Takes::Nothing),
    opt('i', "stripe-index", Takes::Nothing),
    long('i', "stripe-offset", Takes::Nothing),
    opt('L', "layout", Takes::Nothing),
    opt('g', "generation", Takes::Nothing),
    opt('p', "pool", Takes::Nothing),
    opt('m', "mdt-index", Takes::Nothing),
    opt('F', "fid", Takes::Nothing),
    opt('I', "component-id", Takes::MaybeValue),
    opt('E', "component-end", Takes::MaybeValue),
    opt('z', "extension-size", Takes::Nothing),
    long('z', "ext-size", Takes::Nothing),
    opt('N', "mirror-count", Takes::Nothing),
    long('1', "component-count", Takes::Nothing),
    long('2', "component-flags", Takes::MaybeValue),
    long('3', "component-start", Takes::MaybeValue),
    long('4', "mirror-index", Takes::Value),
    long('5', "mirror-id", Takes::Value),
    opt('d', "directory", Takes::Nothing),
    opt('D', "default", Takes::Nothing),
    opt('r', "recursive", Takes::Nothing),
    opt('O', "ost", Takes::Value),
    long('O', "obd", Takes::Value),
    opt('q', "quiet", Takes::Nothing),
    opt('v', "verbose", Takes::Nothing),
    opt('y', "yaml", Takes::Nothing),
    opt('R', "raw", Takes::Nothing),
    long('H', "hex-idx", Takes::Nothing),
    long('n', "no-follow", Takes::Nothing),
    opt('h', "help", Takes::Nothing),
];

const NAME: &str = "lfs getstripe";
/// Bytes of output that are gathered.
const OUTPUT_BYTES: usize = 64 << 10;

/// Runs the command.
pub fn run(args: &[OsString]) -> Outcome {
    let parsed = super::parse(NAME, args, OPTIONS, USAGE)?;
    if parsed.has('h') {
        return super::print_usage(USAGE);
    }
    if parsed.operands.is_empty() {
        return Err(Failure::usage("error: getstripe: no filename|pathname".to_owned(), USAGE));
    }
    let show = Show {
        style: style_of(&parsed),
        directory_only: parsed.has('d') || parsed.has('D'),
        recursive: parsed.has('r'),
        raw: parsed.has('R'),
        follow: !parsed.has('n'),
        ost: parsed.value('O').map(str::to_owned),
        filter: filter_of(&parsed)?,
        out: RefCell::default(),
    };
    super::allow_many_open_directories();
    super::for_each(&parsed.operands, |path| show.argument(path))
}

fn style_of(parsed: &Parsed) -> Style {
    // With a value it says which components are meant, not what to show of them.
    let asked = |key: char| parsed.has(key) && parsed.value(key).is_none();
    let fields = Fields {
        count: parsed.has('c') || parsed.has('C'),
        size: parsed.has('S'),
        pattern: parsed.has('L'),
        generation: parsed.has('g'),
        offset: parsed.has('i'),
        pool: parsed.has('p'),
        mdt_index: parsed.has('m'),
        fid: parsed.has('F'),
        component_count: parsed.has('1'),
        mirror_count: parsed.has('N'),
        component_id: asked('I'),
        component_flags: asked('2'),
        component_start: asked('3'),
        component_end: asked('E'),
        extension_size: parsed.has('z'),
        objects: parsed.has('q'),
    };
    let whole = fields.len() == 0;
    Style {
        fields: if whole { Fields::ALL } else { fields },
        whole,
        verbose: parsed.has('v'),
        yaml: parsed.has('y'),
        hex_index: parsed.has('H'),
        ost: None,
    }
}

/// Which components the options with values admit.
fn filter_of(parsed: &Parsed) -> Result<Filter, Failure> {
    let invalid = |what: &str, text: &str| Failure::usage(format!("{NAME}: invalid {what} '{text}'"), USAGE);
    fn given<T>(
        text: Option<&str>,
        read: impl Fn(&str) -> Option<T>,
        failure: impl Fn(&str) -> Failure,
    ) -> Result<Option<T>, Failure> {
        text.map(|text| read(text).ok_or_else(|| failure(text))).transpose()
    }
    let id = |text: &str| parse_unsigned(text).and_then(|id| u32::try_from(id).ok()).filter(|id| *id > 0);
    let mirror = |text: &str| match text.strip_prefix('!') {
        Some(rest) => Some((true, relation(rest, parse_unsigned)?)),
        None => Some((false, relation(text, parse_unsigned)?)),
    };
    let size = |text: &str| relation(text, parse_stripe_size);
    Ok(Filter {
        id: given(parsed.value('I'), id, |text| invalid("component id", text))?,
        flags: given(parsed.value('2'), parse_flags, |text| invalid("component flags", text))?,
        start: given(parsed.value('3'), size, |text| invalid("component start", text))?,
        end: given(parsed.value('E'), size, |text| invalid("component end", text))?,
        mirror_index: given(parsed.value('4'), mirror, |text| invalid("mirror index", text))?,
        mirror_id: given(parsed.value('5'), mirror, |text| invalid("mirror id", text))?,
    })
}

/// A number with `+` for more or `-` for less before it; the end of a file is a number too.
fn relation(text: &str, read: impl Fn(&str) -> Option<u64>) -> Option<Relation> {
    if matches!(text, "-1" | "eof" | "EOF") {
        return Some(Relation::Is(u64::MAX));
    }
    match text.split_at_checked(1)? {
        ("+", rest) => read(rest).map(Relation::Over),
        ("-", rest) => read(rest).map(Relation::Under),
        _ => read(text).map(Relation::Is),
    }
}

struct Show {
    style: Style,
    directory_only: bool,
    recursive: bool,
    raw: bool,
    follow: bool,
    ost: Option<String>,
    filter: Filter,
    /// What is to be printed.
    out: RefCell<String>,
}

impl Show {
    /// One path of the command line.
    fn argument(&self, path: &Path) -> Outcome {
        let metadata = if self.follow { fs::metadata(path) } else { fs::symlink_metadata(path) };
        let metadata = metadata.map_err(|error| failed(path, &error))?;
        let place = match metadata.is_dir() {
            true => path,
            false => mounted::directory_of(path),
        };
        let mount = Mounted::open(place).map_err(|error| not_ours_or_failed(path, &error))?;
        let mut style = self.style.clone();
        if let Some(name) = &self.ost {
            style.ost = Some(ost_index(&mount, name)?);
        }
        let facts = self.facts(path)?;
        let own = mounted::layout_of(path).map_err(|error| not_ours_or_failed(path, &error))?;
        let shown = match metadata.is_dir() {
            true => self.tree(&mount, path, own, &facts, &style),
            false => {
                let inherited = match own {
                    Some(_) => None,
                    None => mounted::layout_of(place).map_err(|error| not_ours_or_failed(path, &error))?,
                };
                self.file(&mount, path, own, inherited.as_deref(), &facts, &style)
            }
        };
        self.flush();
        shown
    }

    /// A directory, and what is in it if that is wanted.
    fn tree(
        &self,
        mount: &Mounted,
        path: &Path,
        own: Option<Vec<u8>>,
        facts: &Facts,
        style: &Style,
    ) -> Outcome {
        self.directory(mount, path, own.clone(), facts, style, !self.directory_only || style.verbose)?;
        if self.directory_only {
            return Ok(());
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(path, flags, Mode::empty());
        let directory = directory.map_err(|error| failed(path, &error.into()))?;
        let mut listing = Listing::of(directory, ScanWanted::LAYOUTS);
        self.children(mount, path, &mut listing, own.as_deref(), style)
    }

    /// Gathers text: a tree has many files.
    fn print(&self, text: &str) {
        self.out.borrow_mut().push_str(text);
        if self.out.borrow().len() >= OUTPUT_BYTES {
            self.flush();
        }
    }

    fn flush(&self) {
        super::print(&std::mem::take(&mut *self.out.borrow_mut()));
    }

    /// What is in a directory, `own` being its default layout.
    fn children(
        &self,
        mount: &Mounted,
        directory: &Path,
        listing: &mut Listing,
        own: Option<&[u8]>,
        style: &Style,
    ) -> Outcome {
        let fail = |path: &Path, error: &io::Error| Err(not_ours_or_failed(path, error));
        loop {
            let entry = match listing.next_entry() {
                Ok(Some(entry)) => entry,
                Ok(None) => return Ok(()),
                Err(error) => return fail(directory, &error),
            };
            let path = directory.join(OsStr::from_bytes(entry.name.to_bytes()));
            let Some(attr) = entry.attr else { continue };
            let layout = match entry.layout {
                OwnLayout::None => Ok(None),
                OwnLayout::Bytes(bytes) => Ok(Some(bytes)),
                OwnLayout::TooLong => listing.long_layout(&entry.name),
            };
            let (layout, facts) = match layout {
                Ok(layout) => (layout, Facts { fid: attr.fid, mdt_index: attr.fid.mdt_index() }),
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => continue,
                Err(error) => return fail(&path, &error),
            };
            if attr.is_regular() {
                self.file(mount, &path, layout, own, &facts, style)?;
            } else if attr.is_dir() && self.recursive {
                match Listing::open_in(listing.directory(), &entry.name, ScanWanted::LAYOUTS) {
                    Ok(mut below) => {
                        self.directory(mount, &path, layout.clone(), &facts, style, true)?;
                        self.children(mount, &path, &mut below, layout.as_deref(), style)?;
                    }
                    // Somebody else may remove what was just listed.
                    Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
                    Err(error) => return fail(&path, &error),
                }
            }
        }
    }

    /// A file with its layout, if it has one, and what it inherits if it has none.
    fn file(
        &self,
        mount: &Mounted,
        path: &Path,
        layout: Option<Vec<u8>>,
        inherited: Option<&[u8]>,
        facts: &Facts,
        style: &Style,
    ) -> Outcome {
        let shown = path.display().to_string();
        let bytes = match layout {
            Some(bytes) => bytes,
            None if self.raw => {
                self.print(&format!("{shown} has no stripe info\n"));
                return Ok(());
            }
            // Never written: it will get what its directory says then.
            None => {
                let own = inherited.map_or_else(|| mount.default_layout(), |bytes| Ok(bytes.to_vec()));
                as_of_file(&facts.fid, own.map_err(|error| failed(path, &error))?)
            }
        };
        let refused = |what| Failure::new(libc::EINVAL, format!("{NAME}: '{shown}': {what}"));
        if let Ok(layout) = user::decode_foreign(&bytes) {
            super::print(&render::foreign(&layout, user::MAGIC_FOREIGN, style));
            return Ok(());
        }
        let view = View::decode(&bytes).map_err(refused)?;
        let on_it = |ost: u32| view.layouts().flat_map(|l| l.placed()).any(|object| object.ost_index == ost);
        if !style.ost.is_none_or(on_it) {
            return Ok(());
        }
        match view {
            View::Plain(mut view) => {
                if view.is_wish() && !self.raw {
                    view.fid = facts.fid;
                    mount.resolve(&mut view, &[]).map_err(|error| failed(path, &error))?;
                }
                self.print(&render::file(&shown, &view, facts, style));
            }
            View::Composite(view) => {
                self.print(&render::composite(&shown, &view, facts, style, &self.filter, false));
            }
        }
        Ok(())
    }

    fn directory(
        &self,
        mount: &Mounted,
        path: &Path,
        own: Option<Vec<u8>>,
        facts: &Facts,
        style: &Style,
        show_path: bool,
    ) -> Outcome {
        if style.ost.is_some() {
            return Ok(());
        }
        let inherited = own.is_none();
        let bytes = match own {
            Some(bytes) => bytes,
            None if self.raw => user::encode_spec(&Fid::ZERO, &LayoutSpec::default()),
            None => mount.default_layout().map_err(|error| failed(path, &error))?,
        };
        let what = |what: &str| Failure::new(libc::EINVAL, format!("{NAME}: '{}': {what}", path.display()));
        let mut view = View::decode(&bytes).map_err(what)?;
        if !self.raw {
            let resolved = match &mut view {
                View::Plain(view) => mount.resolve(view, &[]),
                View::Composite(view) => (0..view.entries.len()).try_for_each(|place| {
                    let ends = view.ends(place);
                    match &mut view.entries[place] {
                        entry if entry.is_extension() => Ok(()),
                        entry => mount.resolve(&mut entry.layout, &ends),
                    }
                }),
            };
            resolved.map_err(|error| failed(path, &error))?;
        }
        let shown = if show_path { path.display().to_string() } else { String::new() };
        self.print(&match view {
            View::Plain(view) => render::directory(&shown, &view, facts, style, inherited),
            View::Composite(view) => render::composite(&shown, &view, facts, style, &self.filter, true),
        });
        Ok(())
    }

    fn facts(&self, path: &Path) -> Result<Facts, Failure> {
        let fid = mounted::fid_of(path, self.follow).map_err(|error| not_ours_or_failed(path, &error))?;
        Ok(Facts { fid, mdt_index: fid.mdt_index() })
    }
}

/// A directory's components as those of a file that is made there, with ids; other wishes as they are.
fn as_of_file(fid: &Fid, bytes: Vec<u8>) -> Vec<u8> {
    match user::decode_wish(&bytes) {
        Ok(wish @ Wish::Composite(_)) => user::encode_layout(fid, &wish.to_layout(&LayoutSpec::default())),
        _ => bytes,
    }
}

fn ost_index(mount: &Mounted, name: &str) -> Result<u32, Failure> {
    let osts = mount.osts().map_err(|error| failed(mount.path(), &error))?;
    let named = |target: TargetId| {
        name == target.uuid(&mount.fsname()) || name == target.to_string() || name == target.index.to_string()
    };
    osts.iter()
        .map(|row| row.target)
        .find(|target| named(*target))
        .map(|target| u32::from(target.index))
        .ok_or_else(|| Failure::new(libc::EINVAL, format!("{NAME}: unknown obduuid: {name}")))
}

fn failed(path: &Path, error: &io::Error) -> Failure {
    let errno = super::errno_of(error);
    let text = super::error_text(errno);
    Failure::new(errno, format!("lfs: getstripe for '{}' failed: {text}", path.display()))
}

fn not_ours_or_failed(path: &Path, error: &io::Error) -> Failure {
    match super::errno_of(error) {
        libc::ENOTTY => Failure::new(
            libc::ENOTTY,
            format!(
                "cb_getstripe: '{}' not on a Lustre fs?: Inappropriate ioctl for device (25)",
                path.display()
            ),
        ),
        _ => failed(path, error),
    }
}
