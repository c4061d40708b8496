//! Translation of layout options of the command line into a requested layout.
//!
//! Options belong to the component that the last `-E` started, those before the first `-E` to the first one.
//! A component inherits the fields that it does not set, other than the OST index and flags, from the one
//! before it.

use super::{NAME, usage};
use crate::lfs::number::{parse_signed, parse_stripe_size};
use crate::lfs::view::parse_flags;
use crate::lfs::{Failure, pools};
use crate::ost_list;
use nacre_layout::layout::{EXTENSION_UNIT, STRIPE_COUNT_ALL};
use nacre_layout::spec::MDT_SIZE_MAX;
use nacre_layout::{ComponentFlags, ComponentSpec, Extent, LayoutRequest, LayoutSpec, Pattern, SpecError};
use nacre_types::limits::{STRIPE_COUNT_MAX, STRIPE_SIZE_MIN, TARGET_INDEX_MAX};
use rustix::io::Errno;

/// Granularity of growth steps of self-extending components, in bytes.
const STEP_UNIT: u64 = 64 << 20;

/// Collects options in the order given.
#[derive(Default)]
pub struct Builder {
    components: Vec<ComponentSpec>,
    /// End of the current component; `None` before the first `-E`.
    end: Option<u64>,
    spec: LayoutSpec,
    flags: ComponentFlags,
    on_mdt: bool,
    /// Growth step of the current component, in bytes.
    step: Option<u64>,
    /// A stripe count was given for the current component.
    has_count: bool,
    /// Options of the current component about OSTs: Lustre's name of the option, its value as shown.
    about_osts: Vec<(&'static str, String)>,
    is_striped: bool,
}

impl Builder {
    /// Takes an option; ignores those that are not about layouts.
    pub fn option(&mut self, key: char, value: &str) -> Result<(), Failure> {
        match key {
            'E' => {
                self.finish_component()?;
                self.end = Some(component_end(value)?);
            }
            'c' => {
                self.spec.stripe_count = stripe_count(value)?;
                self.spec.pattern = Pattern::Raid0;
                self.has_count = true;
                self.note_count();
            }
            'C' => {
                self.spec.stripe_count = overstripe_count(value)?;
                self.spec.pattern = Pattern::Overstriped;
                self.has_count = true;
                self.note_count();
            }
            'o' => {
                let list = ost_list::listed(value, 10);
                let list = list.ok_or_else(|| usage(format!("invalid OST list '{value}'")))?;
                self.spec.osts.extend(list);
                self.about_osts.push(("ost-list", format!("'{}'", self.spec.osts.len())));
            }
            'S' => {
                self.spec.stripe_size = stripe_size(value)?;
                let size = self.spec.stripe_size.map(|size| ("stripe-size", size.to_string()));
                self.about_osts.extend(size);
            }
            'i' => {
                self.spec.first_ost = stripe_index(value)?;
                let first = self.spec.first_ost.filter(|first| *first > 0);
                self.about_osts.extend(first.map(|first| ("stripe-offset", first.to_string())));
            }
            'p' => {
                self.spec.pool = pools::requested_pool(NAME, value)?;
                self.about_osts.extend(self.spec.pool.map(|pool| ("pool", format!("'{pool}'"))));
            }
            'L' => self.on_mdt = is_on_mdt(value)?,
            'z' => self.step = step(value)?,
            '1' => self.flags |= component_flags(value)?,
            _ => return Ok(()),
        }
        self.is_striped = true;
        Ok(())
    }

    fn note_count(&mut self) {
        let count = self.spec.stripe_count.map(|count| ("stripe-count", count.cast_signed().to_string()));
        self.about_osts.extend(count);
    }

    /// Returns true if an option is about a layout.
    pub fn is_striped(&self) -> bool {
        self.is_striped
    }

    fn finish_component(&mut self) -> Result<(), Failure> {
        let Some(end) = self.end else { return Ok(()) };
        let start = self.components.last().map_or(0, |last| last.extent.end);
        if end <= start {
            return Err(Failure::new(
                Errno::INVAL,
                format!(
                    "Set extent [{start}, {}) failed. Invalid argument\nerror: {NAME}: invalid layout",
                    shown_end(end)
                ),
            ));
        }
        let about_osts = std::mem::take(&mut self.about_osts);
        let spec = match std::mem::take(&mut self.on_mdt) {
            true => on_mdt(start, end, &about_osts)?,
            false => self.finished_spec()?,
        };
        match self.step.take() {
            Some(_) if spec.pattern == Pattern::Mdt => {
                let message =
                    format!("{NAME}: '-z' cannot be specified with '-L mdt': Invalid argument (22)");
                return Err(Failure::new(Errno::INVAL, message));
            }
            Some(step) => self.components.extend(growing(Extent { start, end }, step, self.flags, spec)?),
            None => {
                self.components.push(ComponentSpec { extent: Extent { start, end }, flags: self.flags, spec })
            }
        }
        self.spec.first_ost = None;
        self.spec.osts.clear();
        self.has_count = false;
        self.flags = ComponentFlags::default();
        Ok(())
    }

    /// Returns the striping of the current component: a list of OSTs determines the stripe count, and whether
    /// it is overstriped.
    fn finished_spec(&mut self) -> Result<LayoutSpec, Failure> {
        let listed = self.spec.osts.len();
        if listed == 0 {
            return Ok(self.spec.clone());
        }
        let count = self.spec.stripe_count.filter(|_| self.has_count).map(usize::from);
        if let Some(count) = count.filter(|count| *count != listed) {
            return Err(Failure::usage(format!("stripe_count({count}) != nr_tgts({listed})"), super::USAGE));
        }
        if listed > usize::from(STRIPE_COUNT_MAX) {
            return Err(usage(format!("invalid stripe count '{listed}'")));
        }
        let twice = (1..listed).any(|at| self.spec.osts[..at].contains(&self.spec.osts[at]));
        self.spec.pattern = if twice { Pattern::Overstriped } else { Pattern::Raid0 };
        self.spec.stripe_count = u16::try_from(listed).ok();
        Ok(self.spec.clone())
    }

    /// Returns the layout that the options request.
    pub fn finish(mut self) -> Result<LayoutRequest, Failure> {
        if self.end.is_none() {
            if self.on_mdt {
                let message = format!(
                    "{NAME}: Invalid pattern: '-L mdt', must be specified with -E: Invalid argument (22)"
                );
                return Err(Failure::new(Errno::INVAL, message));
            }
            if !self.flags.is_empty() {
                return Err(usage("--component-flags must be specified with -E"));
            }
            return Ok(LayoutRequest::Plain(self.finished_spec()?));
        }
        self.finish_component()?;
        Ok(LayoutRequest::Composite(self.components))
    }
}

/// Reports the fault of a layout as a whole; `path` is the first file that would get it.
pub fn check(requested: &LayoutRequest, path: &str) -> Result<(), Failure> {
    let Err(error) = requested.check() else { return Ok(()) };
    let failed = match error {
        // The message is the server's.
        SpecError::OstList | SpecError::OstTwice => {
            let text = format!("{NAME}: setstripe error for '{path}': Invalid argument");
            return Err(Failure::new(Errno::INVAL, text));
        }
        SpecError::TooLarge(_) => {
            return Err(Failure::new(Errno::INVAL, format!("{NAME}: Invalid layout: {error}")));
        }
        error => error.to_string(),
    };
    Err(Failure::exit(
        1,
        format!(
            "{NAME}: Invalid layout: {failed}\n{NAME}: {NAME}: cannot create composite file '{path}': Invalid argument (22)"
        ),
    ))
}

fn shown_end(end: u64) -> String {
    if end == Extent::EOF { "EOF".to_owned() } else { end.to_string() }
}

fn component_end(text: &str) -> Result<u64, Failure> {
    if matches!(text, "-1" | "eof" | "EOF") {
        return Ok(Extent::EOF);
    }
    let is_end = |end: &u64| *end > 0 && end.is_multiple_of(u64::from(STRIPE_SIZE_MIN)) && *end < 1 << 63;
    parse_stripe_size(text).filter(is_end).ok_or_else(|| usage(format!("invalid component end '{text}'")))
}

fn stripe_count(text: &str) -> Result<Option<u16>, Failure> {
    let invalid = || usage(format!("invalid stripe count '{text}'"));
    match parse_signed(text).ok_or_else(invalid)? {
        0 => Ok(None),
        -1 => Ok(Some(STRIPE_COUNT_ALL)),
        count @ 1.. if count <= i64::from(STRIPE_COUNT_MAX) => Ok(Some(count as u16)),
        _ => Err(invalid()),
    }
}

/// Parses a stripe count above the number of OSTs, or with a minus the number of stripes on each OST.
fn overstripe_count(text: &str) -> Result<Option<u16>, Failure> {
    let invalid = || usage(format!("invalid stripe count '{text}'"));
    match parse_signed(text).ok_or_else(invalid)? {
        0 => Ok(None),
        multiple @ -32..=-1 => Ok(Some(u16::MAX - (-multiple) as u16 + 1)),
        count @ 1.. if count <= i64::from(STRIPE_COUNT_MAX) => Ok(Some(count as u16)),
        _ => Err(invalid()),
    }
}

fn stripe_size(text: &str) -> Result<Option<u32>, Failure> {
    let invalid = || usage(format!("invalid stripe size '{text}'"));
    let bytes = parse_stripe_size(text).ok_or_else(invalid)?;
    if !bytes.is_multiple_of(u64::from(STRIPE_SIZE_MIN)) {
        return Err(invalid());
    }
    match u32::try_from(bytes) {
        Ok(0) => Ok(None),
        Ok(size) => Ok(Some(size)),
        Err(_) => Err(Failure::new(
            Errno::INVAL,
            format!("{NAME}: error: stripe size '{bytes}' over 4GB limit: Invalid argument (22)"),
        )),
    }
}

fn stripe_index(text: &str) -> Result<Option<u16>, Failure> {
    match parse_signed(text) {
        Some(-1) => Ok(None),
        Some(index @ 0..) if index < i64::from(TARGET_INDEX_MAX) => Ok(Some(index as u16)),
        _ => Err(usage(format!("invalid stripe offset '{text}'"))),
    }
}

fn is_on_mdt(text: &str) -> Result<bool, Failure> {
    match text {
        "raid0" => Ok(false),
        "mdt" => Ok(true),
        other => Err(Failure::new(
            Errno::INVAL,
            format!("error: layout '{other}' is unknown, supported layouts are: 'mdt', 'raid0'"),
        )),
    }
}

/// Returns the component `[start, end)` on an MDT. Its only stripe is as long as the component, and the
/// options may say so; it cannot have other options `about_osts`.
fn on_mdt(start: u64, end: u64, about_osts: &[(&'static str, String)]) -> Result<LayoutSpec, Failure> {
    if start > 0 {
        return Err(Failure::new(Errno::INVAL, "error: 'mdt' layout can be only the first one".to_owned()));
    }
    if end > MDT_SIZE_MAX {
        return Err(Failure::new(Errno::FBIG, "error: 'mdt' layout size is too big".to_owned()));
    }
    let is_wrong = |(name, value): &&(&str, String)| *name != "stripe-size" || *value != end.to_string();
    match about_osts.iter().find(is_wrong) {
        Some((name, value)) => {
            let message = format!("Option '{name}' can't be specified with Data-on-MDT component: {value}");
            Err(Failure::new(Errno::INVAL, message))
        }
        None => Ok(LayoutSpec::ON_MDT),
    }
}

/// Parses a growth step; its size is checked together with its component.
fn step(text: &str) -> Result<Option<u64>, Failure> {
    let step = parse_stripe_size(text).ok_or_else(|| usage(format!("invalid extension size '{text}'")))?;
    Ok(Some(step).filter(|step| *step > 0))
}

/// Returns a component that grows within `extent`: an empty one, and the extension after it.
fn growing(
    extent: Extent,
    step: u64,
    flags: ComponentFlags,
    spec: LayoutSpec,
) -> Result<[ComponentSpec; 2], Failure> {
    let units = u32::try_from(step / EXTENSION_UNIT).ok().filter(|_| step.is_multiple_of(STEP_UNIT));
    let Some(units) = units else {
        let message =
            format!("Set stripe size {step} failed: Invalid argument\nerror: {NAME}: invalid layout");
        return Err(Failure::new(Errno::INVAL, message));
    };
    let own = Extent { start: extent.start, end: extent.start };
    let extension = LayoutSpec { stripe_size: Some(units), ..LayoutSpec::default() };
    Ok([
        ComponentSpec { extent: own, flags, spec },
        ComponentSpec { extent, flags: ComponentFlags::EXTENSION, spec: extension },
    ])
}

/// Parses the flags that a new component may have.
fn component_flags(text: &str) -> Result<ComponentFlags, Failure> {
    let invalid = || usage(format!("invalid component flags '{text}'"));
    match parse_flags(text).ok_or_else(invalid)? {
        (set, 0) => ComponentFlags::from_bits(set)
            .filter(|flags| {
                ComponentFlags::REQUESTABLE.difference(ComponentFlags::EXTENSION).contains(*flags)
            })
            .ok_or_else(invalid),
        _ => Err(invalid()),
    }
}
