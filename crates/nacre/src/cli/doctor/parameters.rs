//! Parameters that differ from their defaults, by intention or because they were forgotten.

use super::{Finding, Subject};
use crate::cli::target::mgs_of;
use crate::control::{self, Answer, Request};
use crate::instance::Instance;
use crate::node::configuration_at;
use nacre_params::Pattern;
use std::collections::BTreeMap;

const AREA: &str = "parameters";

/// Reports permanent settings, and those of the processes of this host.
pub fn examine(subject: &Subject) -> Vec<Finding> {
    let lasting = subject.instance.as_ref().map_or_else(Vec::new, lasting_of);
    let note = |(name, value): &(String, String)| {
        Finding::note(AREA, format!("{name}={value} is set permanently"))
            .remedy(format!("to return to the default: lctl set_param -P -d {name}"))
    };
    let mut findings: Vec<Finding> = lasting.iter().map(note).collect();
    let names = subject.overview.processes.iter().map(|process| process.name.as_str());
    let sockets: Vec<_> = names.map(|name| subject.run.socket(name)).collect();
    let mut changed = Vec::new();
    for (_, answer) in control::ask_each(&sockets, &Request::ChangedParams) {
        if let Ok(Answer::Changed { params }) = answer {
            changed.extend(params);
        }
    }
    changed.retain(|(name, value, _)| !is_lasting(&lasting, name, value));
    findings.extend(grouped(changed).iter().map(Group::finding));
    findings
}

/// Returns the permanent settings of the file system; none if its MGS does not answer.
fn lasting_of(instance: &Instance) -> Vec<(String, String)> {
    let config = mgs_of(instance)
        .and_then(|mgs| configuration_at(&mgs, &instance.superblock.fsname, Some(&instance.dir)));
    config.map_or_else(|_| Vec::new(), |config| config.params)
}

/// Returns true if a permanent setting explains a value.
fn is_lasting(lasting: &[(String, String)], name: &str, value: &str) -> bool {
    lasting.iter().any(|(pattern, set)| {
        set == value && Pattern::parse(pattern).is_ok_and(|pattern| pattern.matches(name))
    })
}

/// Parameters of several targets or mounts with the same value and default.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Group {
    names: Vec<String>,
    value: String,
    default: String,
}

/// Groups parameters that differ in their second component alone: the same setting of all OSTs is one finding.
pub(super) fn grouped(changed: Vec<(String, String, String)>) -> Vec<Group> {
    let mut groups: BTreeMap<(String, String, String), Vec<String>> = BTreeMap::new();
    for (name, value, default) in changed {
        let kind = match name.split('.').collect::<Vec<_>>().as_slice() {
            [first, _, rest @ ..] if !rest.is_empty() => format!("{first}.*.{}", rest.join(".")),
            _ => name.clone(),
        };
        groups.entry((kind, value, default)).or_default().push(name);
    }
    groups.into_iter().map(|((_, value, default), names)| Group { names, value, default }).collect()
}

impl Group {
    pub(super) fn finding(&self) -> Finding {
        let (first, more) = (&self.names[0], self.names.len() - 1);
        let and = if more > 0 { format!(" and {more} like it") } else { String::new() };
        let text = format!("{first}={}{and}; the default is {}", self.value, self.default);
        let pattern = match more {
            0 => first.clone(),
            _ => pattern_of(&self.names),
        };
        let remedy = format!("to return to it: lctl set_param '{pattern}={}'", self.default);
        Finding::note(AREA, text).remedy(remedy)
    }
}

/// Returns a pattern for names that differ within their second component.
fn pattern_of(names: &[String]) -> String {
    let first = &names[0];
    let same = |name: &String| first.bytes().zip(name.bytes()).take_while(|(a, b)| a == b).count();
    let common = names.iter().map(same).min().unwrap_or(0);
    let rest = first.splitn(3, '.').nth(2).unwrap_or_default();
    // Names of parameters are ASCII; others are not cut within a character.
    let start = first.get(..common).unwrap_or_default();
    format!("{start}*.{rest}")
}
