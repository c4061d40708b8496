//! Owners with most space and inodes.

use crate::families;
use crate::sample::{Row, Snapshot, Value};
use serde::Serialize;
use std::collections::BTreeMap;

/// A family of an owner's figures, with its place in [`OwnerView`].
type Figure = (&'static str, fn(&mut OwnerView) -> &mut f64);

const FIGURES: [Figure; 6] = [
    ("nacre_owner_used_bytes", |owner| &mut owner.used),
    ("nacre_owner_soft_limit_bytes", |owner| &mut owner.soft),
    ("nacre_owner_hard_limit_bytes", |owner| &mut owner.hard),
    ("nacre_owner_inodes", |owner| &mut owner.inodes),
    ("nacre_owner_soft_limit_inodes", |owner| &mut owner.inodes_soft),
    ("nacre_owner_hard_limit_inodes", |owner| &mut owner.inodes_hard),
];

/// A user, group or project with its use in the whole file system. A limit of 0 is none.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct OwnerView {
    /// `user`, `group` or `project`.
    pub kind: String,
    /// Name, or the number where it has none on this host.
    pub name: String,
    /// Space in bytes.
    pub used: f64,
    /// Soft limit of it in bytes.
    pub soft: f64,
    /// Hard limit of it in bytes.
    pub hard: f64,
    /// Inodes.
    pub inodes: f64,
    /// Soft limit of them.
    pub inodes_soft: f64,
    /// Hard limit of them.
    pub inodes_hard: f64,
}

impl OwnerView {
    /// Returns true if a soft limit is exceeded.
    pub fn is_over(&self) -> bool {
        let is_over = |used: f64, soft: f64| soft > 0.0 && used > soft;
        is_over(self.used, self.soft) || is_over(self.inodes, self.inodes_soft)
    }
}

impl Snapshot {
    /// Sets the names of owners. `name_of` gets the kind (`user`, `group`, `project`) and the number; owners without
    /// a name are shown by their number.
    pub fn name_owners(&mut self, mut name_of: impl FnMut(&str, u32) -> Option<String>) {
        let mut names = BTreeMap::new();
        each(self, FIGURES[0].0, |kind, id, _| {
            if let Some(name) = id.parse().ok().and_then(|id| name_of(kind, id)) {
                names.insert((kind.to_owned(), id.to_owned()), name);
            }
        });
        self.owner_names = names;
    }
}

/// Returns the owners: users, groups and projects, each by their space.
pub(super) fn owners(now: &Snapshot) -> Vec<OwnerView> {
    let mut all: BTreeMap<(String, String), OwnerView> = BTreeMap::new();
    for (family, place) in FIGURES {
        each(now, family, |kind, id, value| {
            let key = (kind.to_owned(), id.to_owned());
            let name = now.owner_names.get(&key).map_or(id, String::as_str).to_owned();
            let new = || OwnerView { kind: kind.to_owned(), name, ..OwnerView::default() };
            *place(all.entry(key).or_insert_with(new)) = value;
        });
    }
    let mut owners: Vec<OwnerView> = all.into_values().collect();
    let order = |owner: &OwnerView| match owner.kind.as_str() {
        "user" => 0,
        "group" => 1,
        _ => 2,
    };
    owners.sort_by(|a, b| order(a).cmp(&order(b)).then(b.used.total_cmp(&a.used)).then(a.name.cmp(&b.name)));
    owners
}

fn each(now: &Snapshot, name: &str, mut work: impl FnMut(&str, &str, f64)) {
    let Some(family) = families::find(name) else { return };
    for row in now.processes.iter().flat_map(|process| process.sample.rows(family)) {
        if let Row(labels, Value::Number(number)) = row
            && let [kind, id] = labels.as_slice()
        {
            work(kind, id, *number);
        }
    }
}
