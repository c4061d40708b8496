//! `lfs getstripe`: shows layouts of files and default layouts of directories.

mod options;

use super::getopt::{self, OptionSpec, Parsed, Takes, long, opt};
use super::json::{self, Owner};
use super::listing::{Listing, OwnLayout};
use super::mounted::{self, Mounted};
use super::render::{self, Facts, Fields, Filter, Inherited, Style};
use super::view::{LayoutView, View};
use super::{Command, Failure, Outcome, Run};
use nacre_layout::{LayoutRequest, LayoutSpec, user};
use nacre_types::Fid;
use nacre_types::ioctl::ScanWanted;
use nacre_types::{FileKind, TargetId};
use options::{Level, filter_of, style_of, with_negations};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Text of `--help` and of a wrong call.
const USAGE: &str = "\
usage: lfs getstripe [OPTIONS] FILE|DIR...
  -c -S -i -L -g -p -z -m -F print only stripe count, size, index, pattern, layout generation, pool,
                             extension size, MDT index, FID; a single one without label; for a
                             directory only its own, unless -r is given
  -N --component-count       print only the number of mirrors, of components
  -I[ID] -E[END] --component-start[=START] --component-flags[=FLAGS]
                             print only id, end, start, flags of components; with a value (+N more,
                             -N less, ^FLAG not) only matching components
  --mirror-index=N --mirror-id=N
                             only components of this mirror (+N, -N; with ! of others)
  -d, --directory            the directory itself, not its entries
  -D, --default              default of new directories, as lfs getdirstripe -D
  -r, --recursive            the whole tree
  -O, --ost NAME             only files with an object on this OST, which is marked with *
  -q, --quiet                only the objects
  -v, --verbose              also magic and identity
  -y, --yaml                 as YAML
      --json                 one line of JSON with all attributes per file or directory
  -R, --raw                  the stored layout, without resolved defaults
      --hex-idx              OST indices in hexadecimal
      --no-follow            do not follow symbolic links
Example: lfs getstripe -c /mnt/nacre/wide
";

const OPTIONS: &[OptionSpec] = &[
    opt('c', "stripe-count", Takes::Nothing),
    long('c', "stripe_count", Takes::Nothing),
    opt('C', "overstripe-count", Takes::Nothing),
    opt('S', "stripe-size", Takes::Nothing),
    long('S', "stripe_size", Takes::Nothing),
    opt('i', "stripe-index", Takes::Nothing),
    long('i', "stripe_index", Takes::Nothing),
    long('i', "stripe-offset", Takes::Nothing),
    opt('L', "layout", Takes::Nothing),
    opt('g', "generation", Takes::Nothing),
    opt('p', "pool", Takes::Nothing),
    opt('m', "mdt-index", Takes::Nothing),
    long('m', "mdt_index", Takes::Nothing),
    long('m', "mdt", Takes::Nothing),
    opt('M', "", Takes::Nothing),
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
    json::OPTION,
    getopt::HELP,
];

const NAME: &str = "lfs getstripe";
/// Bytes of output to buffer.
const OUTPUT_BYTES: usize = 64 << 10;

/// Entry of `lfs getstripe` in the table of commands.
pub const COMMAND: Command =
    Command { name: "getstripe", summary: "show layouts", usage: USAGE, run: Run::Words(run) };

fn run(args: &[OsString]) -> Outcome {
    let parsed = super::parse(COMMAND.name, &with_negations(args), OPTIONS, USAGE)?;
    if parsed.has(getopt::HELP.key) {
        return super::print_usage(USAGE);
    }
    super::check_operands(&parsed, "error: getstripe: no filename|pathname", USAGE)?;
    if parsed.has('D') {
        return super::dirstripe::show(&Parsed { options: vec![('D', None)], operands: parsed.operands });
    }
    let (style, level) = style_of(&parsed);
    let show = Show {
        style,
        level,
        json: parsed.has('J'),
        follow: !parsed.has('n'),
        ost: parsed.value('O').map(str::to_owned),
        filter: filter_of(&parsed)?,
        out: RefCell::default(),
    };
    super::allow_many_open_directories();
    super::for_each(&parsed.operands, |path| show.argument(path))
}

struct Show {
    style: Style,
    level: Level,
    json: bool,
    follow: bool,
    ost: Option<String>,
    filter: Filter,
    /// Buffered output.
    out: RefCell<String>,
}

impl Show {
    /// Shows one path of the command line.
    fn argument(&self, path: &Path) -> Outcome {
        // An argument that is a symbolic link is followed for its type; a link to a file shows no layout:
        // Lustre queries the name as given.
        let metadata = fs::metadata(path).map_err(|error| failed(path, &error))?;
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
        if style.fields.has(Fields::MDT_INDEX) {
            self.mdt_index(path, &facts);
            self.flush();
            if !metadata.is_dir() || self.level == Level::Itself {
                return Ok(());
            }
        }
        let is_itself = fs::symlink_metadata(path).is_ok_and(|itself| itself.is_file());
        let shown = match metadata.is_dir() {
            true => {
                let own = mounted::layout_of(path).map_err(|error| not_ours_or_failed(path, &error))?;
                self.tree(&mount, path, own, &facts, &style)
            }
            false if is_itself => self.file_by_path(&mount, path, &facts, &style),
            false => self.nothing(path, &facts, &style),
        };
        self.flush();
        shown
    }

    /// Shows a file outside a listing; it may be in another directory than its path shows.
    fn file_by_path(&self, mount: &Mounted, path: &Path, facts: &Facts, style: &Style) -> Outcome {
        let fail = |error: io::Error| not_ours_or_failed(path, &error);
        let own = mounted::layout_of(path).map_err(fail)?;
        let inherited = match own {
            Some(_) => None,
            None => {
                let whole = fs::canonicalize(path).map_err(fail)?;
                mounted::layout_of(mounted::directory_of(&whole)).map_err(fail)?
            }
        };
        self.file(mount, path, own, inherited.as_deref(), facts, style, false)
    }

    /// Shows an entry that cannot have a layout: a link, a device, a pipe, a socket.
    fn nothing(&self, path: &Path, facts: &Facts, style: &Style) -> Outcome {
        let shown = path.display().to_string();
        if self.json {
            self.print(&owner(&shown, facts).line(None));
        } else if style.ost.is_none() {
            self.print(&format!("{shown} has no stripe info\n"));
        }
        Ok(())
    }

    /// Shows a symbolic link in a directory: its target, unless links are not followed. A dangling link is
    /// left out.
    fn link(&self, mount: &Mounted, path: &Path, facts: &Facts, style: &Style) -> Outcome {
        let index_only = style.fields.has(Fields::MDT_INDEX);
        if !self.follow {
            return if index_only { Ok(()) } else { self.nothing(path, facts, style) };
        }
        let Ok(target) = fs::metadata(path) else { return Ok(()) };
        // The link may lead to another file system.
        let Ok(facts) = self.facts(path) else { return self.nothing(path, facts, style) };
        if index_only {
            self.mdt_index(path, &facts);
        } else if target.is_dir() {
            let own = mounted::layout_of(path).map_err(|error| not_ours_or_failed(path, &error))?;
            self.directory(mount, path, own, &facts, style)?;
        } else if target.is_file() {
            self.file_by_path(mount, path, &facts, style)?;
        } else {
            self.nothing(path, &facts, style)?;
        }
        Ok(())
    }

    /// Shows a directory, and its entries if the level includes them.
    fn tree(
        &self,
        mount: &Mounted,
        path: &Path,
        own: Option<Vec<u8>>,
        facts: &Facts,
        style: &Style,
    ) -> Outcome {
        if !style.fields.has(Fields::MDT_INDEX) {
            self.directory(mount, path, own.clone(), facts, style)?;
        }
        if self.level == Level::Itself {
            return Ok(());
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(path, flags, Mode::empty());
        let directory = directory.map_err(|error| failed(path, &error.into()))?;
        let mut listing = Listing::of(directory, ScanWanted::LAYOUTS);
        self.children(mount, path, &mut listing, own.as_deref(), style)
    }

    /// Buffers text: a tree has many files.
    fn print(&self, text: &str) {
        self.out.borrow_mut().push_str(text);
        if self.out.borrow().len() >= OUTPUT_BYTES {
            self.flush();
        }
    }

    fn flush(&self) {
        super::print(&std::mem::take(&mut *self.out.borrow_mut()));
    }

    /// Shows the entries of a directory; `own` is its default layout.
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
                Err(error) if Errno::from_io_error(&error) == Some(Errno::NOENT) => continue,
                Err(error) => return fail(&path, &error),
            };
            let index_only = style.fields.has(Fields::MDT_INDEX);
            if attr.is_regular() && index_only {
                self.mdt_index(&path, &facts);
            } else if attr.is_regular() {
                self.file(mount, &path, layout, own, &facts, style, true)?;
            } else if attr.is_dir() && self.level == Level::Files {
                match index_only {
                    true => self.mdt_index(&path, &facts),
                    false => self.directory(mount, &path, layout, &facts, style)?,
                }
            } else if attr.is_dir() {
                match Listing::open_in(listing.directory(), &entry.name, ScanWanted::LAYOUTS) {
                    Ok(mut below) if index_only => {
                        self.mdt_index(&path, &facts);
                        self.children(mount, &path, &mut below, layout.as_deref(), style)?;
                    }
                    Ok(mut below) => {
                        self.directory(mount, &path, layout.clone(), &facts, style)?;
                        self.children(mount, &path, &mut below, layout.as_deref(), style)?;
                    }
                    // Another process may remove an entry after it was listed.
                    Err(error) if Errno::from_io_error(&error) == Some(Errno::NOENT) => {}
                    Err(error) => return fail(&path, &error),
                }
            } else if attr.kind() == FileKind::Symlink {
                self.link(mount, &path, &facts, style)?;
            } else if !index_only {
                self.nothing(&path, &facts, style)?;
            }
        }
    }

    /// Shows the MDT alone, with the path where all fields are requested.
    fn mdt_index(&self, path: &Path, facts: &Facts) {
        let index = render::index_text(u32::from(facts.mdt_index), self.style.hex_index);
        self.print(&match self.style.fields.has(Fields::DETAIL) {
            true => format!("{}\nmdt_index:\t{index}\n", path.display()),
            false => format!("{index}\n"),
        });
    }

    /// Shows a file with its layout, or the inherited one if it has none; `listed` if it was found in a
    /// directory.
    fn file(
        &self,
        mount: &Mounted,
        path: &Path,
        layout: Option<Vec<u8>>,
        inherited: Option<&[u8]>,
        facts: &Facts,
        style: &Style,
        listed: bool,
    ) -> Outcome {
        let shown = path.display().to_string();
        let bytes = match layout {
            Some(bytes) => bytes,
            None if self.json && style.raw => {
                self.print(&owner(&shown, facts).line(None));
                return Ok(());
            }
            None if style.raw => {
                if style.ost.is_none() {
                    self.print(&format!("{shown} has no stripe info\n"));
                }
                return Ok(());
            }
            // Never written: the first write gives it the default of its directory at that time.
            None => {
                let own = inherited.map_or_else(|| mount.default_layout(), |bytes| Ok(bytes.to_vec()));
                as_of_file(&facts.fid, own.map_err(|error| failed(path, &error))?)
            }
        };
        let refused = |what| Failure::new(Errno::INVAL, format!("{NAME}: '{shown}': {what}"));
        if let Ok(layout) = user::decode_foreign(&bytes) {
            if self.json {
                self.print(&owner(&shown, facts).foreign_line(&layout));
                return Ok(());
            }
            if listed && !style.yaml {
                self.print(&format!("{shown}\n"));
            }
            self.print(&render::foreign(&layout, user::MAGIC_FOREIGN, style.fields.has(Fields::DETAIL)));
            return Ok(());
        }
        let mut view = View::decode(&bytes).map_err(refused)?;
        if let View::Plain(view) = &mut view
            && view.is_request()
            && !style.raw
        {
            view.fid = facts.fid;
            mount.resolve(view, &[]).map_err(|error| failed(path, &error))?;
        }
        match view {
            view if self.json => self.print(&owner(&shown, facts).line(Some(&view))),
            View::Plain(view) => {
                self.print(&render::plain(&shown, &view, facts, style, &self.filter, None));
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
    ) -> Outcome {
        let inherited = own.is_none();
        let what = |what: &str| Failure::new(Errno::INVAL, format!("{NAME}: '{}': {what}", path.display()));
        let mut view = match own {
            Some(bytes) => View::decode(&bytes).map_err(what)?,
            None if style.raw => View::Plain(LayoutView::nothing()),
            None => match mount.root_layout().map_err(|error| failed(path, &error))? {
                Some(bytes) => View::decode(&bytes).map_err(what)?,
                None => View::Plain(LayoutView::nothing()),
            },
        };
        if !style.raw {
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
        let shown = path.display().to_string();
        let default_of = Some(Inherited(inherited));
        if self.json {
            let owner = Owner { is_directory: true, is_inherited: inherited, ..owner(&shown, facts) };
            self.print(&owner.line(Some(&view)));
            return Ok(());
        }
        self.print(&match view {
            View::Plain(view) => render::plain(&shown, &view, facts, style, &self.filter, default_of),
            View::Composite(view) => render::composite(&shown, &view, facts, style, &self.filter, true),
        });
        Ok(())
    }

    fn facts(&self, path: &Path) -> Result<Facts, Failure> {
        let fid = mounted::fid_of(path, self.follow).map_err(|error| not_ours_or_failed(path, &error))?;
        Ok(Facts { fid, mdt_index: fid.mdt_index() })
    }
}

/// Returns the owner under which a file's layout is shown.
fn owner<'a>(path: &'a str, facts: &'a Facts) -> Owner<'a> {
    Owner { path, facts, is_directory: false, is_inherited: false }
}

/// Returns a directory's components as those of a file that is created in it, with ids; other templates
/// unchanged.
fn as_of_file(fid: &Fid, bytes: Vec<u8>) -> Vec<u8> {
    match user::decode_request(&bytes) {
        Ok(requested @ LayoutRequest::Composite(_)) => {
            user::encode_layout(fid, &requested.to_layout(&LayoutSpec::default()))
        }
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
        .ok_or_else(|| Failure::new(Errno::INVAL, format!("{NAME}: unknown obduuid: {name}")))
}

fn failed(path: &Path, error: &io::Error) -> Failure {
    Failure::of(error, format!("lfs: getstripe for '{}' failed", path.display()))
}

fn not_ours_or_failed(path: &Path, error: &io::Error) -> Failure {
    match super::errno_of(error) {
        Errno::NOTTY => Failure::new(
            Errno::NOTTY,
            format!(
                "cb_getstripe: '{}' not on a Lustre fs?: Inappropriate ioctl for device (25)",
                path.display()
            ),
        ),
        _ => failed(path, error),
    }
}
