//! Which objects of a file have been written to, as far as its layout does not record it yet: the MDT records
//! it with the next close or size report, so that an object that is lost later is not taken for one that was
//! never written. Decision 0019.

use nacre_layout::StripeObject;
use nacre_types::{Fid, Status, StatusResult};
use nacre_wire::oss::ObjectAttr;

/// Objects in one request to an MDT.
const TOLD_MAX: usize = 4096;

/// Objects with data, in no order.
#[derive(Default)]
pub(crate) struct Written {
    objects: Vec<Fid>,
}

impl Written {
    /// Records that an object has data, or at least a size: its OST has it.
    pub fn note(&mut self, stripe: &StripeObject) {
        // Mostly the object is the one recorded last.
        let is_known = |known: &Fid| *known == stripe.object;
        if !stripe.written && !stripe.is_on_mdt() && !self.objects.iter().rev().any(is_known) {
            self.objects.push(stripe.object);
        }
    }

    /// Adds objects recorded elsewhere.
    pub fn add(&mut self, other: Vec<Fid>) {
        other.iter().for_each(|object| self.note(&StripeObject::new(0, *object)));
    }

    /// Forgets all objects: the file is empty, has other objects, or its OSTs may have lost them.
    pub fn forget(&mut self) {
        self.objects.clear();
    }

    /// Returns all objects.
    pub fn all(self) -> Vec<Fid> {
        self.objects
    }

    /// Takes the objects for the next report to the MDT; they count as reported.
    pub fn take(&mut self) -> Vec<Fid> {
        let rest = self.objects.split_off(self.objects.len().min(TOLD_MAX));
        std::mem::replace(&mut self.objects, rest)
    }
}

/// Checks attributes of an object against the layout.
///
/// # Errors
/// [`Status::OBJECT_LOST`] if the layout has it as written and it does not exist.
pub(crate) fn check_there(stripe: &StripeObject, attr: &ObjectAttr) -> StatusResult<()> {
    match stripe.written && attr.mtime.is_none() {
        true => Err(Status::OBJECT_LOST),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_told_once_and_not_if_the_layout_says_it_already() {
        let mut written = Written::default();
        let stripe = |oid| StripeObject::new(3, Fid::ost_object(3, oid));
        for oid in [1, 2, 1, 2, 3] {
            written.note(&stripe(oid));
        }
        written.note(&StripeObject { written: true, ..stripe(4) });
        written.note(&StripeObject::on_mdt(Fid::new(0x2_0000_0401, 3, 0)));
        let all: Vec<Fid> = (1..=3).map(|oid| stripe(oid).object).collect();
        let told = written.take();
        assert_eq!((&told, written.take().len()), (&all, 0));
        written.note(&stripe(2));
        written.add(told);
        assert_eq!(written.take().len(), 3, "an update that failed");
        (0..5000).for_each(|oid| written.note(&stripe(oid)));
        assert_eq!([written.take().len(), written.take().len()], [TOLD_MAX, 5000 - TOLD_MAX]);
        written.note(&stripe(1));
        written.forget();
        assert!(written.take().is_empty());
    }

    #[test]
    fn only_an_object_that_was_written_to_is_missed() {
        let (nothing, empty) =
            (ObjectAttr::default(), ObjectAttr { mtime: Some(Default::default()), ..ObjectAttr::default() });
        let new = StripeObject::new(3, Fid::ost_object(3, 1));
        let known = StripeObject { written: true, ..new };
        assert_eq!([check_there(&new, &nothing), check_there(&known, &empty)], [Ok(()); 2]);
        assert_eq!(check_there(&known, &nothing), Err(Status::OBJECT_LOST));
    }
}
