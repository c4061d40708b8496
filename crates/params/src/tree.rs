//! The parameters of a process, by name.

use crate::pattern::{Pattern, components};
use nacre_env::sync::RwLock;
use nacre_types::{Status, StatusResult};
use std::collections::BTreeMap;
use std::sync::Arc;

type Read = Box<dyn Fn() -> StatusResult<String> + Send + Sync>;
type Write = Box<dyn Fn(&str) -> StatusResult<()> + Send + Sync>;

struct Entry {
    read: Option<Read>,
    write: Option<Write>,
    /// Value at its registration; `None` for what is no setting.
    default: Option<String>,
}

/// Operations that a parameter permits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    /// It has a value.
    pub readable: bool,
    /// It can be set.
    pub writable: bool,
}

/// Kind of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Has names below it.
    Directory,
    /// A parameter.
    Parameter(Access),
}

/// A name that a pattern matches.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// The name, with dots.
    pub name: String,
    /// Its kind.
    pub kind: Kind,
}

/// Parameters that appear and vanish at run time, such as those of each client.
pub trait Family: Send + Sync {
    /// Returns the names below that of the family, with dots, and the operations on each. In any order.
    fn names(&self) -> Vec<(String, Access)>;

    /// Returns the value of a parameter of the family.
    ///
    /// # Errors
    /// `ENOENT` if there is none of this name, `EACCES` if it is not readable.
    fn read(&self, name: &str) -> StatusResult<String>;

    /// Sets a parameter of the family.
    ///
    /// # Errors
    /// `ENOENT` if there is none of this name, `EACCES` if it is not writable, otherwise the error of the
    /// value.
    fn write(&self, name: &str, value: &str) -> StatusResult<()>;
}

/// Parameters by name. Any thread may call any method; readers and setters run without a lock held.
#[derive(Default)]
pub struct Tree {
    entries: RwLock<BTreeMap<String, Arc<Entry>>>,
    /// Families by the name above their parameters.
    families: RwLock<BTreeMap<String, Arc<dyn Family>>>,
}

impl Tree {
    /// Creates a tree without parameters.
    pub fn new() -> Tree {
        Tree::default()
    }

    /// Registers a read-only parameter. Replaces one of the same name.
    pub fn add_read(&self, name: &str, read: impl Fn() -> StatusResult<String> + Send + Sync + 'static) {
        self.add(name, Entry { read: Some(Box::new(read)), write: None, default: None });
    }

    /// Registers a setting: a parameter that can be read and set, and whose value at this moment is its default.
    /// Replaces one of the same name.
    pub fn add_both(
        &self,
        name: &str,
        read: impl Fn() -> StatusResult<String> + Send + Sync + 'static,
        write: impl Fn(&str) -> StatusResult<()> + Send + Sync + 'static,
    ) {
        let default = read().ok();
        self.add(name, Entry { read: Some(Box::new(read)), write: Some(Box::new(write)), default });
    }

    /// Registers a parameter that can be read and written, and whose value changes by itself. Replaces one of the
    /// same name.
    pub fn add_changing(
        &self,
        name: &str,
        read: impl Fn() -> StatusResult<String> + Send + Sync + 'static,
        write: impl Fn(&str) -> StatusResult<()> + Send + Sync + 'static,
    ) {
        self.add(name, Entry { read: Some(Box::new(read)), write: Some(Box::new(write)), default: None });
    }

    /// Registers a write-only parameter: writing it runs an action.
    pub fn add_write(&self, name: &str, write: impl Fn(&str) -> StatusResult<()> + Send + Sync + 'static) {
        self.add(name, Entry { read: None, write: Some(Box::new(write)), default: None });
    }

    /// Registers a family of parameters below the name `below`.
    pub fn add_family(&self, below: &str, family: Arc<dyn Family>) {
        self.families.write().insert(below.to_owned(), family);
    }

    fn add(&self, name: &str, entry: Entry) {
        self.entries.write().insert(name.to_owned(), Arc::new(entry));
    }

    /// Removes all parameters and families whose name begins with these components.
    pub fn remove_below(&self, name: &str) {
        let above = format!("{name}.");
        self.entries.write().retain(|known, _| known != name && !known.starts_with(&above));
        self.families.write().retain(|known, _| known != name && !known.starts_with(&above));
    }

    /// Returns all names that a pattern matches, in order: parameters and the names above them; if
    /// `recursive`, all names below these too.
    pub fn find(&self, pattern: &Pattern, recursive: bool) -> Vec<Found> {
        let mut found: BTreeMap<String, Kind> = BTreeMap::new();
        for (name, access) in self.all() {
            if !pattern.matches_above(&name) {
                continue;
            }
            let parts = components(&name);
            let depths = pattern.depths().filter(|depth| *depth <= parts.len());
            for depth in depths {
                let last = if recursive { parts.len() } else { depth };
                for length in depth..=last {
                    let above = parts[..length].join(".");
                    if length > depth || pattern.matches(&above) {
                        let whole = length == parts.len();
                        found.insert(above, if whole { Kind::Parameter(access) } else { Kind::Directory });
                    }
                }
            }
        }
        found.into_iter().map(|(name, kind)| Found { name, kind }).collect()
    }

    /// Returns all parameters that exist at the moment.
    fn all(&self) -> Vec<(String, Access)> {
        let entries = self.entries.read();
        let access =
            |entry: &Entry| Access { readable: entry.read.is_some(), writable: entry.write.is_some() };
        let mut all: Vec<(String, Access)> =
            entries.iter().map(|(name, entry)| (name.clone(), access(entry))).collect();
        drop(entries);
        let families: Vec<_> =
            self.families.read().iter().map(|(below, family)| (below.clone(), family.clone())).collect();
        for (below, family) in families {
            let names = family.names().into_iter();
            all.extend(names.map(|(name, access)| (format!("{below}.{name}"), access)));
        }
        all
    }

    /// Returns the settings whose value differs from that at their registration: name, value and default, in the
    /// order of names.
    pub fn changed(&self) -> Vec<(String, String, String)> {
        let entries: Vec<_> =
            self.entries.read().iter().map(|(name, entry)| (name.clone(), entry.clone())).collect();
        let is_changed = |(name, entry): (String, Arc<Entry>)| {
            let (default, read) = (entry.default.as_ref()?, entry.read.as_ref()?);
            let value = read().ok().filter(|value| value != default)?;
            Some((name, value, default.clone()))
        };
        entries.into_iter().filter_map(is_changed).collect()
    }

    /// Returns the family to which a name belongs, and the rest of the name.
    fn family_of<'a>(&self, name: &'a str) -> Option<(Arc<dyn Family>, &'a str)> {
        let families = self.families.read();
        families.iter().find_map(|(below, family)| {
            Some((family.clone(), name.strip_prefix(below.as_str())?.strip_prefix('.')?))
        })
    }

    /// Returns the value of a parameter.
    ///
    /// # Errors
    /// `ENOENT` if there is none of this name, `EACCES` if it is not readable, otherwise the error of its
    /// reader.
    pub fn read(&self, name: &str) -> StatusResult<String> {
        if let Some((family, rest)) = self.family_of(name) {
            return family.read(rest);
        }
        let entry = self.entry(name)?;
        entry.read.as_ref().ok_or(Status::EACCES).and_then(|read| read())
    }

    /// Sets a parameter.
    ///
    /// # Errors
    /// `ENOENT` if there is none of this name, `EACCES` if it is not writable, otherwise the error of its
    /// setter.
    pub fn write(&self, name: &str, value: &str) -> StatusResult<()> {
        if let Some((family, rest)) = self.family_of(name) {
            return family.write(rest, value);
        }
        let entry = self.entry(name)?;
        entry.write.as_ref().ok_or(Status::EACCES).and_then(|write| write(value))
    }

    fn entry(&self, name: &str) -> StatusResult<Arc<Entry>> {
        self.entries.read().get(name).cloned().ok_or(Status::ENOENT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    fn tree() -> (Tree, Arc<AtomicU64>) {
        let tree = Tree::new();
        let number = Arc::new(AtomicU64::new(7));
        let (reader, writer) = (number.clone(), number.clone());
        tree.add_both(
            "osc.a.limit",
            move || Ok(reader.load(Ordering::Relaxed).to_string()),
            move |text| {
                writer.store(text.parse().map_err(|_| Status::EINVAL)?, Ordering::Relaxed);
                Ok(())
            },
        );
        tree.add_read("osc.a.stats", || Ok("many".to_owned()));
        tree.add_read("osc.b.stats", || Ok("few".to_owned()));
        tree.add_write("osc.b.ping", |_| Ok(()));
        tree.add_read("version", || Ok("1".to_owned()));
        (tree, number)
    }

    fn names(tree: &Tree, pattern: &str, recursive: bool) -> Vec<String> {
        let pattern = Pattern::parse(pattern).expect("a pattern");
        tree.find(&pattern, recursive).into_iter().map(|found| found.name).collect()
    }

    #[test]
    fn patterns_find_parameters_and_what_they_lie_below() {
        let (tree, _) = tree();
        assert_eq!(names(&tree, "osc", false), ["osc"]);
        assert_eq!(names(&tree, "osc.*", false), ["osc.a", "osc.b"]);
        assert_eq!(names(&tree, "osc.*.stats", false), ["osc.a.stats", "osc.b.stats"]);
        assert_eq!(names(&tree, "*", false), ["osc", "version"]);
        assert_eq!(names(&tree, "osc.b", true), ["osc.b", "osc.b.ping", "osc.b.stats"]);
        assert_eq!(names(&tree, "{version,osc.a}", true), ["osc.a", "osc.a.limit", "osc.a.stats", "version"]);
        assert!(names(&tree, "osc.*.none", true).is_empty());
    }

    #[test]
    fn settings_that_differ_from_their_first_value_are_known() {
        let (tree, number) = tree();
        tree.add_changing("osc.a.count", || Ok("1".to_owned()), |_| Ok(()));
        assert_eq!(tree.changed(), []);
        number.store(9, Ordering::Relaxed);
        assert_eq!(tree.changed(), [("osc.a.limit".to_owned(), "9".to_owned(), "7".to_owned())]);
        tree.write("osc.a.limit", "7").expect("set");
        assert_eq!(tree.changed(), []);
    }

    struct Peers;

    impl Family for Peers {
        fn names(&self) -> Vec<(String, Access)> {
            let access = Access { readable: true, writable: true };
            vec![("10.0.0.1@tcp.stats".to_owned(), access), ("0@lo.stats".to_owned(), access)]
        }

        fn read(&self, name: &str) -> StatusResult<String> {
            Ok(format!("of {name}"))
        }

        fn write(&self, name: &str, _: &str) -> StatusResult<()> {
            if name == "0@lo.stats" { Ok(()) } else { Err(Status::ENOENT) }
        }
    }

    #[test]
    fn families_are_found_like_other_parameters() {
        let (tree, _) = tree();
        tree.add_family("osc.a.peers", Arc::new(Peers));
        assert_eq!(names(&tree, "osc.a.peers.*", false), ["osc.a.peers.0@lo", "osc.a.peers.10.0.0.1@tcp"]);
        assert_eq!(names(&tree, "osc.a.peers.1*@tcp.stats", false), ["osc.a.peers.10.0.0.1@tcp.stats"]);
        assert_eq!(tree.read("osc.a.peers.10.0.0.1@tcp.stats").as_deref(), Ok("of 10.0.0.1@tcp.stats"));
        assert_eq!(tree.write("osc.a.peers.0@lo.stats", "0"), Ok(()));
        assert_eq!(tree.write("osc.a.peers.1@lo.stats", "0"), Err(Status::ENOENT));
        tree.remove_below("osc.a");
        assert_eq!(tree.read("osc.a.peers.0@lo.stats"), Err(Status::ENOENT));
    }

    #[test]
    fn values_are_read_and_set_as_far_as_they_can() {
        let (tree, number) = tree();
        assert_eq!(tree.read("osc.a.limit").as_deref(), Ok("7"));
        assert_eq!(tree.write("osc.a.limit", "9"), Ok(()));
        assert_eq!(number.load(Ordering::Relaxed), 9);
        assert_eq!(tree.write("osc.a.limit", "x"), Err(Status::EINVAL));
        assert_eq!(tree.write("osc.a.stats", "0"), Err(Status::EACCES));
        assert_eq!(tree.read("osc.b.ping"), Err(Status::EACCES));
        assert_eq!(tree.read("osc.c.limit"), Err(Status::ENOENT));
        tree.remove_below("osc.a");
        assert_eq!(tree.read("osc.a.limit"), Err(Status::ENOENT));
        assert_eq!(names(&tree, "osc.*", false), ["osc.b"]);
    }
}
