//! Layouts as YAML: the output of `lfs getstripe -y`, read back by `lfs setstripe -y`.
//!
//! A template describes a layout and its OSTs, as Lustre's does: ids, generations, states and names of
//! objects are parsed and ignored. Unknown keys are refused, so that a misspelt one is noticed.

use nacre_layout::layout::{EXTENSION_UNIT, STRIPE_COUNT_ALL};
use nacre_layout::request::begin_again;
use nacre_layout::{ComponentFlags, ComponentSpec, Extent, LayoutRequest, LayoutSpec, Pattern, PoolName};
use nacre_types::limits::{STRIPE_COUNT_MAX, TARGET_INDEX_MAX};
use std::fmt;

/// Reason to refuse a template.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// Not YAML of the supported form: the line number and the reason.
    Malformed(usize, String),
    /// An impossible layout: the line number, if a line is at fault, and the reason.
    Impossible(Option<usize>, String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Malformed(line, what) | Refusal::Impossible(Some(line), what) => {
                write!(out, "line {line}: {what}")
            }
            Refusal::Impossible(None, what) => out.write_str(what),
        }
    }
}

/// Parses a template.
///
/// # Errors
/// The reason and the line.
pub fn parse(text: &str) -> Result<LayoutRequest, Refusal> {
    let mut reading = Reading::default();
    for (index, line) in text.lines().enumerate() {
        let Some((is_item, key, value)) = entry(line).map_err(|what| Refusal::Malformed(index + 1, what))?
        else {
            continue;
        };
        reading.entry(is_item, key, value).map_err(|what| Refusal::Impossible(Some(index + 1), what))?;
    }
    reading.finish().map_err(|what| Refusal::Impossible(None, what))
}

/// Returns key and value of a line, and whether it starts an item of a list; `None` for a line without
/// content.
fn entry(line: &str) -> Result<Option<(bool, &str, &str)>, String> {
    let content = line.trim();
    if content.is_empty() || content.starts_with('#') || matches!(content, "---" | "...") {
        return Ok(None);
    }
    if line[..line.len() - line.trim_start().len()].contains('\t') {
        return Err("a tab before a key".to_owned());
    }
    let (is_item, content) = match content.strip_prefix("- ") {
        Some(rest) => (true, rest.trim_start()),
        None => (false, content),
    };
    let (key, value) = content.split_once(':').ok_or_else(|| format!("'{content}' has no key"))?;
    let value = value.trim();
    // No value of a template has such a form.
    if value.starts_with(['[', '{', '&', '*', '!', '|', '>', '%', '@', '`', '"', '\'']) {
        return Err(format!("'{value}' is no plain value"));
    }
    Ok(Some((is_item, key, value)))
}

#[derive(Default)]
struct Reading {
    plain: LayoutSpec,
    components: Vec<Part>,
    in_components: bool,
    /// The list of objects is being read, so that indexes are theirs.
    in_objects: bool,
    /// OST of the object that is being read.
    object_ost: Option<u16>,
}

#[derive(Default)]
struct Part {
    start: Option<u64>,
    end: Option<u64>,
    flags: ComponentFlags,
    spec: LayoutSpec,
}

impl Reading {
    fn entry(&mut self, is_item: bool, key: &str, value: &str) -> Result<(), String> {
        if matches!(key, "l_ost_idx" | "l_fid") && self.in_objects {
            return self.object(key, value).ok_or_else(|| format!("'{value}' is no value of '{key}'"));
        }
        self.in_objects = false;
        if is_item {
            if !self.in_components {
                return Err("a list outside of 'components'".to_owned());
            }
            self.components.push(Part::default());
        }
        self.field(key, value)
    }

    /// Reads one of an object's two fields; `None` if the value is invalid.
    fn object(&mut self, key: &str, value: &str) -> Option<()> {
        if key == "l_ost_idx" {
            let index = match value.strip_prefix("0x") {
                Some(digits) => u16::from_str_radix(digits, 16).ok()?,
                None => value.parse().ok()?,
            };
            self.object_ost = Some(index).filter(|index| *index < TARGET_INDEX_MAX);
            return self.object_ost.map(drop);
        }
        let index = self.object_ost.take()?;
        value.split(':').nth(1)?;
        self.spec().osts.push(index);
        Some(())
    }

    fn spec(&mut self) -> &mut LayoutSpec {
        match self.components.last_mut() {
            Some(part) => &mut part.spec,
            None => &mut self.plain,
        }
    }

    fn field(&mut self, key: &str, value: &str) -> Result<(), String> {
        let invalid = || format!("'{value}' is no value of '{key}'");
        match key {
            "lcm_layout_gen" | "lcm_mirror_count" | "lcm_entry_count" | "lcm_magic" | "lcm_size"
            | "lcm_flags" | "lcme_id" | "lcme_mirror_id" | "lcme_offset" | "lcme_size" | "lmm_magic"
            | "lmm_seq" | "lmm_object_id" | "lmm_fid" | "lmm_layout_gen" | "sub_layout"
            | "composite_header" => {
                if key == "lcm_mirror_count" && value != "1" {
                    return Err("mirrors are not supported yet".to_owned());
                }
                return Ok(());
            }
            "components" => self.in_components = true,
            "lmm_objects" => self.in_objects = true,
            "lcme_flags" | "lcme_extent.e_start" | "lcme_extent.e_end" => {
                let part =
                    self.components.last_mut().ok_or_else(|| format!("'{key}' outside of a component"))?;
                match key {
                    "lcme_flags" => part.flags = flags(value).ok_or_else(invalid)?,
                    "lcme_extent.e_start" => part.start = Some(value.parse().map_err(|_| invalid())?),
                    _ if value == "EOF" => part.end = Some(Extent::EOF),
                    _ => part.end = Some(value.parse().map_err(|_| invalid())?),
                }
            }
            _ => self.striping(key.strip_prefix("lmm_").unwrap_or(key), value).ok_or_else(invalid)??,
        }
        Ok(())
    }

    /// Reads a field of a striping; `None` if the value is invalid.
    fn striping(&mut self, key: &str, value: &str) -> Option<Result<(), String>> {
        let spec = self.spec();
        match key {
            "stripe_count" => {
                spec.stripe_count = match value.parse::<i32>().ok()? {
                    -1 => Some(STRIPE_COUNT_ALL),
                    multiple @ -32..=-2 => Some(u16::MAX - multiple.unsigned_abs() as u16 + 1),
                    0 => None,
                    count if (1..=i32::from(STRIPE_COUNT_MAX)).contains(&count) => Some(count as u16),
                    _ => return None,
                }
            }
            "stripe_size" => spec.stripe_size = Some(value.parse::<u32>().ok()?).filter(|size| *size > 0),
            "stripe_offset" => {
                spec.first_ost = match value.parse::<i32>().ok()? {
                    -1 => None,
                    index if (0..i32::from(TARGET_INDEX_MAX)).contains(&index) => Some(index as u16),
                    _ => return None,
                }
            }
            "extension_size" => {
                let step = value.parse::<u64>().ok()?;
                let units = u32::try_from(step / EXTENSION_UNIT).ok()?;
                spec.stripe_size = Some(units).filter(|units| u64::from(*units) * EXTENSION_UNIT == step);
                spec.stripe_size?;
            }
            "pool" => spec.pool = Some(PoolName::new(value.as_bytes())?),
            "pattern" if value == "raid0" => {}
            "pattern" if value == "raid0,overstriped" => spec.pattern = Pattern::Overstriped,
            "pattern" if value == "mdt" => spec.pattern = Pattern::Mdt,
            // The position of the data is not part of the layout's shape.
            "mdt_index" => {
                value.parse::<u16>().ok()?;
            }
            "pattern" => return Some(Err(format!("pattern '{value}' is not supported yet"))),
            _ => return Some(Err(format!("unknown key '{key}'"))),
        }
        Some(Ok(()))
    }

    fn finish(self) -> Result<LayoutRequest, String> {
        if !self.in_components {
            return Ok(LayoutRequest::Plain(self.plain));
        }
        if self.components.is_empty() {
            return Err("'components' has none".to_owned());
        }
        let mut components: Vec<ComponentSpec> = Vec::with_capacity(self.components.len());
        for (place, part) in self.components.into_iter().enumerate() {
            let Some(end) = part.end else {
                return Err(format!("component {} has no 'lcme_extent.e_end'", place + 1));
            };
            // A component starts at the end of the previous one.
            let start = part.start.or(components.last().map(|before| before.extent.end)).unwrap_or(0);
            // On an MDT the fields only repeat the component's size.
            let spec = match (part.spec.pattern, part.flags.contains(ComponentFlags::EXTENSION)) {
                (Pattern::Mdt, _) => LayoutSpec::ON_MDT,
                (_, true) => LayoutSpec { stripe_size: part.spec.stripe_size, ..LayoutSpec::default() },
                (_, false) => part.spec,
            };
            components.push(ComponentSpec { extent: Extent { start, end }, flags: part.flags, spec });
        }
        // The template of a file contains the grown extent.
        begin_again(&mut components);
        Ok(LayoutRequest::Composite(components))
    }
}

fn flags(text: &str) -> Option<ComponentFlags> {
    if text == "0" {
        return Some(ComponentFlags::default());
    }
    let (set, _) = super::view::parse_flags(text).filter(|(_, clear)| *clear == 0)?;
    Some(ComponentFlags::from_bits(set)? & ComponentFlags::REQUESTABLE)
}

#[cfg(test)]
mod tests;
