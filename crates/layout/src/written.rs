//! Which objects of a file have been written to.
//!
//! An OST creates an object with its first write, so an OST without the object may never have had it, or may
//! have lost it. The MDT records in the layout which objects were written, as clients report when they close
//! a file; decision 0020 has the reasons.

use crate::layout::Layout;
use nacre_types::Fid;
use std::collections::HashSet;

impl Layout {
    /// Records writes to objects; returns false if that changes nothing. Objects of other files are ignored.
    pub fn mark_written(&mut self, objects: &[Fid]) -> bool {
        let mut changes = false;
        let objects: HashSet<&Fid> = objects.iter().collect();
        for stripe in self.components.iter_mut().flat_map(|component| &mut component.objects) {
            if !stripe.written && !stripe.is_on_mdt() && objects.contains(&stripe.object) {
                stripe.written = true;
                changes = true;
            }
        }
        changes
    }

    /// Clears the record of written objects, because the file was emptied; returns false if that changes
    /// nothing.
    pub fn forget_written(&mut self) -> bool {
        let mut changes = false;
        for stripe in self.components.iter_mut().flat_map(|component| &mut component.objects) {
            changes |= std::mem::take(&mut stripe.written);
        }
        changes
    }

    /// Returns true if a write to any object is recorded.
    pub fn is_written(&self) -> bool {
        self.objects().any(|stripe| stripe.written)
    }
}

#[cfg(test)]
mod tests {
    use crate::layout::StripeObject;
    use crate::{LayoutSpec, user};
    use nacre_types::Fid;

    #[test]
    fn what_was_written_is_kept_on_disk_forgotten_with_the_data_and_hidden_from_programs() {
        let file = Fid::new(0x2_0000_0401, 3, 0);
        let mut layout = LayoutSpec { stripe_count: Some(2), ..LayoutSpec::default() }.to_layout();
        layout.instantiate(0, (0..2).map(|i| StripeObject::new(i, Fid::ost_object(i, 70))).collect());
        let plain = user::encode_layout(&file, &layout);
        let (mine, foreign) = (Fid::ost_object(1, 70), Fid::ost_object(1, 71));
        assert!(!layout.mark_written(&[foreign]) && !layout.is_written());
        assert!(layout.mark_written(&[foreign, mine]) && !layout.mark_written(&[mine]));
        let stored = user::encode_layout(&file, &layout);
        assert_eq!((stored.len(), stored[32 + 24 + 16], plain[32 + 24 + 16]), (plain.len(), 1, 0));
        let read = user::decode_layout(&stored).expect("a layout");
        let written: Vec<bool> = read.objects().map(|stripe| stripe.written).collect();
        assert_eq!(written, [false, true]);
        assert_eq!(user::for_programs(&file, &stored), plain);
        assert!(layout.forget_written() && !layout.forget_written());
        assert_eq!(user::encode_layout(&file, &layout), plain);
        layout.components[0].objects = vec![StripeObject::on_mdt(file)];
        assert!(!layout.mark_written(&[file]), "its object cannot be lost without it");
    }
}
