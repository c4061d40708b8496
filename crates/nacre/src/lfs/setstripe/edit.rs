//! `lfs setstripe --component-add`, `--component-del`, `--component-set`: changes of an existing file's
//! layout.

use super::{NAME, Plan, usage};
use crate::lfs::getopt::Parsed;
use crate::lfs::mounted::{self, LAYOUT_ADD, LAYOUT_DELETE};
use crate::lfs::number::parse_unsigned;
use crate::lfs::view::parse_flags;
use crate::lfs::{Failure, Outcome, errno_of, error_text};
use nacre_layout::user::{self, Selector};
use nacre_layout::{Extent, LayoutForm, LayoutRequest};
use rustix::io::Errno;
use std::io;
use std::path::Path;

/// Bit of the flag `init`.
const INIT: u32 = 0x10;

/// A change of the components of files.
#[derive(Debug, PartialEq)]
pub enum Edit {
    /// Append the components of the requested layout.
    Add,
    /// Delete the selected components.
    Delete(Selector),
    /// Change flags: bits to set and to clear of the component with this id.
    SetFlags(u32, (u32, u32)),
}

/// Parses the edit of the command line, if it has one.
pub fn of_options(parsed: &Parsed) -> Result<Option<Edit>, Failure> {
    let asked: Vec<char> = ['2', '3', '4'].into_iter().filter(|key| parsed.has(*key)).collect();
    let which = match asked.as_slice() {
        [] if parsed.has('I') => {
            return Err(usage("-I must be specified with --component-del or --component-set"));
        }
        [] => return Ok(None),
        [one] => *one,
        _ => return Err(usage("only one of --component-add, --component-del, --component-set")),
    };
    let id = match parsed.value('I') {
        None => None,
        Some(text) => {
            let id = parse_unsigned(text).and_then(|id| u32::try_from(id).ok()).filter(|id| *id > 0);
            Some(id.ok_or_else(|| usage(format!("invalid component id '{text}'")))?)
        }
    };
    let flags = match parsed.value('1').filter(|_| which != '2') {
        None => None,
        Some(text) => {
            Some(parse_flags(text).ok_or_else(|| usage(format!("invalid component flags '{text}'")))?)
        }
    };
    match (which, id, flags) {
        ('2', None, _) if parsed.has('E') => Ok(Some(Edit::Add)),
        ('2', ..) => Err(usage("--component-add needs -E and takes no -I")),
        ('3', Some(id), None) => Ok(Some(Edit::Delete(Selector::Id(id)))),
        ('3', None, Some((0, INIT))) => Ok(Some(Edit::Delete(Selector::WithoutObjects))),
        ('3', ..) => Err(usage("--component-del needs -I ID or --component-flags=^init")),
        (_, Some(id), Some(flags)) => Ok(Some(Edit::SetFlags(id, flags))),
        _ => Err(usage("--component-set needs -I ID and --component-flags")),
    }
}

/// Applies the edit to one file.
pub fn apply(edit: &Edit, plan: &Plan, path: &Path) -> Outcome {
    let bytes = mounted::layout_of(path).map_err(|error| super::failed(path, &error))?;
    let layout = bytes.and_then(|bytes| user::decode_layout(&bytes).ok());
    let layout = layout.filter(|layout| layout.form == LayoutForm::Composite && !path.is_dir());
    let Some(layout) = layout else {
        let message = format!(
            "{NAME} setstripe: '{}' not a composite file\nerror: {NAME}: invalid layout",
            path.display()
        );
        return Err(Failure::new(Errno::INVAL, message));
    };
    match edit {
        Edit::Add => {
            let place = mounted::directory_of(path);
            let mount = mounted::Mounted::open(place).map_err(|error| super::failed(path, &error))?;
            crate::lfs::pools::check_owners(NAME, &mount, &plan.pool_owners)?;
            super::check_targets(NAME, &mount, &plan.requested)?;
            add(&plan.requested, layout.end(), path)
        }
        Edit::Delete(selector) => {
            let value = user::encode_selector(*selector);
            mounted::edit_layout(path, LAYOUT_DELETE, &value)
                .map_err(|error| not_deleted(*selector, path, &error))
        }
        // NacreFS has no mirrors, so no flag would have a meaning.
        Edit::SetFlags(id, (set, clear)) => Err(Failure::exit(
            1,
            format!(
                "{NAME}: cannot change the flags of component '{id:#x}' of file '{}': {set:x} / ^({clear:x})",
                path.display()
            ),
        )),
    }
}

fn add(requested: &LayoutRequest, end: u64, path: &Path) -> Outcome {
    let refused = |first: &str, what: &str| {
        Failure::exit(1, format!("{first}Add layout component(s) to {} failed. {what}", path.display()))
    };
    let LayoutRequest::Composite(components) = requested else { return Ok(()) };
    let mut components = components.clone();
    if let Some(first) = components.first_mut() {
        if end == Extent::EOF {
            let first =
                format!("{NAME}: Invalid layout: Zero length components must be followed by extension\n");
            return Err(refused(&first, "Invalid argument"));
        }
        // A growing component is empty, and its extension reaches the requested end.
        let grows = first.extent.is_empty();
        first.extent.start = end;
        if grows {
            first.extent.end = end;
        }
        let reached = components.get_mut(usize::from(grows)).map_or(0, |part| {
            part.extent.start = end;
            part.extent.end
        });
        if reached <= end {
            let message = format!(
                "Set extent [{end}, {reached}) failed. Invalid argument\nerror: {NAME}: invalid layout"
            );
            return Err(Failure::new(Errno::INVAL, message));
        }
    }
    mounted::edit_layout(path, LAYOUT_ADD, &user::encode_added(&components))
        .map_err(|error| refused("", &error_text(errno_of(&error))))
}

fn not_deleted(selector: Selector, path: &Path, error: &io::Error) -> Failure {
    let which = match selector {
        Selector::Id(id) => format!("component {id:#x}"),
        Selector::WithoutObjects => "components without objects".to_owned(),
    };
    let text = error_text(errno_of(error));
    Failure::exit(1, format!("{NAME} setstripe: cannot delete {which} from '{}': {text}", path.display()))
}
