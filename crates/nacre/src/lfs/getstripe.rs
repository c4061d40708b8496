//! `lfs getstripe`: shows layouts of files and default layouts of directories. Source: reference 2.2.

use super::getopt::{OptionSpec, Parsed, Takes, long, opt};
use super::mounted::{self, Mounted};
use super::render::{self, Facts, Fields, Style};
use super::view::LayoutView;
use super::{Failure, Outcome};
use nacre_layout::user;
use nacre_types::Fid;
use nacre_types::TargetId;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::Path;

/// What `--help` and a wrong call print.
pub const USAGE: &str = "\
usage: lfs getstripe [OPTIONS] FILE|DIR...
  -c -S -i -L -g -p -m -F    only stripe count, size, index, pattern, layout generation, pool,
                             MDT index, FID; alone without a label
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
/// Directories in directories that `-r` follows; beyond that a path would not fit the kernel's limit anyway.
const DEPTH_MAX: usize = 2048;

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
    };
    super::for_each(&parsed.operands, |path| show.argument(path))
}

fn style_of(parsed: &Parsed) -> Style {
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
        component_other: ['I', 'E', 'z', '2', '3'].iter().any(|key| parsed.has(*key)),
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

struct Show {
    style: Style,
    directory_only: bool,
    recursive: bool,
    raw: bool,
    follow: bool,
    ost: Option<String>,
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
        if !metadata.is_dir() {
            return self.file(&mount, path, &style);
        }
        self.directory(&mount, path, &style, !self.directory_only || style.verbose)?;
        if self.directory_only { Ok(()) } else { self.children(&mount, path, &style, 0) }
    }

    fn children(&self, mount: &Mounted, directory: &Path, style: &Style, depth: usize) -> Outcome {
        let entries = fs::read_dir(directory).map_err(|error| failed(directory, &error))?;
        for entry in entries {
            let entry = entry.map_err(|error| failed(directory, &error))?;
            let path = entry.path();
            let kind = entry.file_type().map_err(|error| failed(&path, &error))?;
            let shown = if kind.is_file() {
                self.file(mount, &path, style)
            } else if kind.is_dir() && self.recursive && depth < DEPTH_MAX {
                self.directory(mount, &path, style, true)
                    .and_then(|()| self.children(mount, &path, style, depth + 1))
            } else {
                Ok(())
            };
            match shown {
                // Somebody else may remove what was just listed.
                Err(failure) if failure.exit == libc::ENOENT => {}
                other => other?,
            }
        }
        Ok(())
    }

    fn file(&self, mount: &Mounted, path: &Path, style: &Style) -> Outcome {
        let bytes = mounted::layout_of(path).map_err(|error| not_ours_or_failed(path, &error))?;
        let facts = self.facts(path)?;
        let shown = path.display().to_string();
        let bytes = match bytes {
            Some(bytes) => bytes,
            None if self.raw => {
                super::print(&format!("{shown} has no stripe info\n"));
                return Ok(());
            }
            // Never written: it will get what its directory says then.
            None => {
                let directory = mounted::directory_of(path);
                mount.inherited_layout(directory).map_err(|error| failed(path, &error))?
            }
        };
        let mut view = LayoutView::decode(&bytes)
            .map_err(|what| Failure::new(libc::EINVAL, format!("{NAME}: '{shown}': {what}")))?;
        if view.is_wish() && !self.raw {
            view.fid = facts.fid;
            mount.resolve(&mut view).map_err(|error| failed(path, &error))?;
        }
        let on_it = |ost: u32| view.objects.iter().any(|object| object.ost_index == ost);
        if style.ost.is_none_or(on_it) {
            super::print(&render::file(&shown, &view, &facts, style));
        }
        Ok(())
    }

    fn directory(&self, mount: &Mounted, path: &Path, style: &Style, show_path: bool) -> Outcome {
        if style.ost.is_some() {
            return Ok(());
        }
        let own = mounted::layout_of(path).map_err(|error| not_ours_or_failed(path, &error))?;
        let inherited = own.is_none();
        let bytes = match own {
            Some(bytes) => bytes,
            None if self.raw => user::encode_spec(&Fid::ZERO, &nacre_layout::LayoutSpec::default()),
            None => mount.default_layout().map_err(|error| failed(path, &error))?,
        };
        let what = |what: &str| Failure::new(libc::EINVAL, format!("{NAME}: '{}': {what}", path.display()));
        let mut view = LayoutView::decode(&bytes).map_err(what)?;
        if !self.raw {
            mount.resolve(&mut view).map_err(|error| failed(path, &error))?;
        }
        let shown = if show_path { path.display().to_string() } else { String::new() };
        let facts = self.facts(path)?;
        super::print(&render::directory(&shown, &view, &facts, style, inherited));
        Ok(())
    }

    fn facts(&self, path: &Path) -> Result<Facts, Failure> {
        let fid = mounted::fid_of(path, self.follow).map_err(|error| not_ours_or_failed(path, &error))?;
        Ok(Facts { fid, mdt_index: fid.mdt_index() })
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
