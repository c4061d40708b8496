//! Registration of the parameters of one subject, with functions that read and set each.

use crate::{Tree, value};
use nacre_types::StatusResult;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Registers parameters below one name that read and set a common subject.
pub struct Entries<'a, T> {
    tree: &'a Tree,
    below: String,
    subject: Arc<T>,
}

impl Tree {
    /// Returns a registrar for parameters of `subject` below the name `below`.
    pub fn of<T>(&self, below: &str, subject: &Arc<T>) -> Entries<'_, T> {
        Entries { tree: self, below: below.to_owned(), subject: subject.clone() }
    }
}

/// Type of a field of a settings structure: how it is shown and set.
pub enum Form<S> {
    /// 0 or 1.
    Flag(fn(&mut S) -> &mut bool),
    /// A number with an upper bound.
    Count(fn(&mut S) -> &mut u32, u32),
    /// A number without bounds.
    Number(fn(&mut S) -> &mut u64),
    /// Bytes, with or without a suffix.
    Bytes(fn(&mut S) -> &mut u64),
    /// Anything else.
    Other {
        /// The value as text.
        show: fn(&S) -> String,
        /// Parses the text and stores the value.
        set: fn(&mut S, &str) -> StatusResult<()>,
    },
}

/// A field with the last component of its parameter's name.
pub type Field<S> = (&'static str, Form<S>);

impl<S> Form<S> {
    /// Returns the value as text.
    pub fn show(&self, settings: &mut S) -> String {
        match self {
            Form::Flag(field) => u8::from(*field(settings)).to_string(),
            Form::Count(field, _) => field(settings).to_string(),
            Form::Number(field) | Form::Bytes(field) => field(settings).to_string(),
            Form::Other { show, .. } => show(settings),
        }
    }

    /// Parses the text and stores the value.
    ///
    /// # Errors
    /// `EINVAL` if it is not a value, `ERANGE` out of bounds.
    pub fn set(&self, settings: &mut S, text: &str) -> StatusResult<()> {
        match self {
            Form::Flag(field) => *field(settings) = value::truth(text)?,
            Form::Count(field, most) => *field(settings) = value::up_to(value::number(text)?, *most)?,
            Form::Number(field) => *field(settings) = value::number(text)?,
            Form::Bytes(field) => *field(settings) = value::bytes(text, 1)?,
            Form::Other { set, .. } => set(settings, text)?,
        }
        Ok(())
    }
}

impl<T: Send + Sync + 'static> Entries<'_, T> {
    /// Registers a read-only parameter whose read can fail.
    pub fn read<V: ToString>(
        &self,
        leaf: &str,
        read: impl Fn(&T) -> StatusResult<V> + Send + Sync + 'static,
    ) {
        let subject = self.subject.clone();
        self.tree.add_read(&self.name(leaf), move || Ok(read(&subject)?.to_string()));
    }

    /// Registers a read-only parameter.
    pub fn show<V: ToString>(&self, leaf: &str, show: impl Fn(&T) -> V + Send + Sync + 'static) {
        self.read(leaf, move |subject| Ok(show(subject)));
    }

    /// Registers a parameter that can be read and set, and whose read can fail.
    pub fn both<V: ToString>(
        &self,
        leaf: &str,
        read: impl Fn(&T) -> StatusResult<V> + Send + Sync + 'static,
        write: impl Fn(&T, &str) -> StatusResult<()> + Send + Sync + 'static,
    ) {
        let (get, set) = (self.subject.clone(), self.subject.clone());
        let write = move |text: &str| write(&set, text);
        self.tree.add_both(&self.name(leaf), move || Ok(read(&get)?.to_string()), write);
    }

    /// Registers a parameter that can be read and set.
    pub fn setting<V: ToString>(
        &self,
        leaf: &str,
        show: impl Fn(&T) -> V + Send + Sync + 'static,
        set: impl Fn(&T, &str) -> StatusResult<()> + Send + Sync + 'static,
    ) {
        self.both(leaf, move |subject| Ok(show(subject)), set);
    }

    /// Registers a truth value, shown as 0 or 1.
    pub fn flag(
        &self,
        leaf: &str,
        get: impl Fn(&T) -> bool + Send + Sync + 'static,
        set: impl Fn(&T, bool) + Send + Sync + 'static,
    ) {
        self.setting(
            leaf,
            move |subject| u8::from(get(subject)),
            move |subject, text| {
                set(subject, value::truth(text)?);
                Ok(())
            },
        );
    }

    /// Registers a whole number within bounds.
    pub fn integer<V: ToString>(
        &self,
        leaf: &str,
        bounds: RangeInclusive<i64>,
        show: impl Fn(&T) -> V + Send + Sync + 'static,
        set: impl Fn(&T, i64) + Send + Sync + 'static,
    ) {
        self.setting(leaf, show, move |subject, text| {
            set(subject, value::integer(text, *bounds.start(), *bounds.end())?);
            Ok(())
        });
    }

    /// Registers counters; writing any value clears them.
    pub fn counters(
        &self,
        leaf: &str,
        text: impl Fn(&T) -> String + Send + Sync + 'static,
        clear: impl Fn(&T) + Send + Sync + 'static,
    ) {
        let clear = move |subject: &T, _: &str| {
            clear(subject);
            Ok(())
        };
        self.changing(leaf, move |subject| Ok(text(subject)), clear);
    }

    /// Registers a parameter that can be read and written, and whose value changes by itself.
    pub fn changing<V: ToString>(
        &self,
        leaf: &str,
        read: impl Fn(&T) -> StatusResult<V> + Send + Sync + 'static,
        write: impl Fn(&T, &str) -> StatusResult<()> + Send + Sync + 'static,
    ) {
        let (get, set) = (self.subject.clone(), self.subject.clone());
        let write = move |text: &str| write(&set, text);
        self.tree.add_changing(&self.name(leaf), move || Ok(read(&get)?.to_string()), write);
    }

    /// Registers the fields of a settings structure, which is read and replaced as a whole.
    pub fn fields<S: 'static>(
        &self,
        fields: &'static [Field<S>],
        get: fn(&T) -> StatusResult<S>,
        set: fn(&T, S) -> StatusResult<()>,
    ) {
        for (leaf, form) in fields {
            self.both(
                leaf,
                move |subject| Ok(form.show(&mut get(subject)?)),
                move |subject, text| {
                    let mut settings = get(subject)?;
                    form.set(&mut settings, text)?;
                    set(subject, settings)
                },
            );
        }
    }

    /// Registers a write-only parameter: writing it runs an action.
    pub fn write(&self, leaf: &str, write: impl Fn(&T, &str) -> StatusResult<()> + Send + Sync + 'static) {
        let subject = self.subject.clone();
        self.tree.add_write(&self.name(leaf), move |text| write(&subject, text));
    }

    /// Returns whether the subject has the part that optional parameters are about.
    pub fn has(&self, ask: impl FnOnce(&T) -> bool) -> bool {
        ask(&self.subject)
    }

    fn name(&self, leaf: &str) -> String {
        format!("{}.{leaf}", self.below)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_env::sync::Mutex;
    use nacre_types::Status;

    #[derive(Clone, Copy, Default)]
    struct Settings {
        is_on: bool,
        percent: u32,
        bytes: u64,
    }

    const FIELDS: &[Field<Settings>] = &[
        ("on", Form::Flag(|settings| &mut settings.is_on)),
        ("percent", Form::Count(|settings| &mut settings.percent, 95)),
        ("bytes", Form::Bytes(|settings| &mut settings.bytes)),
    ];

    #[test]
    fn settings_of_one_subject_are_shown_and_set() {
        let tree = Tree::new();
        let subject = Arc::new(Mutex::new(Settings::default()));
        let entries = tree.of("nxd.a", &subject);
        entries.fields(
            FIELDS,
            |subject| Ok(*subject.lock()),
            |subject, settings| {
                *subject.lock() = settings;
                Ok(())
            },
        );
        entries.integer(
            "level",
            -1..=7,
            |subject| subject.lock().percent,
            |subject, level| subject.lock().percent = level as u32,
        );
        let set = |leaf: &str, text: &str| {
            tree.write(&format!("nxd.a.{leaf}"), text).and_then(|()| tree.read(&format!("nxd.a.{leaf}")))
        };
        assert_eq!(set("on", "y").as_deref(), Ok("1"));
        assert_eq!(set("percent", "96"), Err(Status::ERANGE));
        assert_eq!(set("percent", "half"), Err(Status::EINVAL));
        assert_eq!(set("bytes", "1.5M").as_deref(), Ok("1572864"));
        assert_eq!(set("level", "7").as_deref(), Ok("7"));
        assert_eq!(set("level", "8"), Err(Status::ERANGE));
    }
}
