//! What a user asks for: a layout before objects exist, and the rules it must meet.

use crate::layout::{
    Component, ComponentFlags, Extent, Layout, LayoutForm, Pattern, STRIPE_COUNT_ALL, stripes_per_ost,
};
use crate::pool::PoolName;
use nacre_types::limits::{
    STRIPE_COUNT_MAX, STRIPE_SIZE_DEFAULT, STRIPE_SIZE_MIN, TARGET_INDEX_MAX, XATTR_VALUE_MAX,
};

/// Striping wishes of a plain layout; `None` inherits from the directory, the root, then the file system's default.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LayoutSpec {
    /// Bytes per stripe.
    pub stripe_size: Option<u32>,
    /// Stripes; [`STRIPE_COUNT_ALL`] for all OSTs.
    pub stripe_count: Option<u16>,
    /// OST of the first stripe.
    pub first_ost: Option<u16>,
    /// Pool to allocate from; [`PoolName::ignore`] for none and none inherited.
    pub pool: Option<PoolName>,
    /// How bytes are spread; inherited with the stripe count alone. What is on an MDT has no other wish.
    pub pattern: Pattern,
    /// Exact OSTs in stripe order, as many as stripes; empty: the server chooses. Not inherited.
    pub osts: Vec<u16>,
}

/// A wish that no layout can meet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SpecError {
    /// Not a multiple of 64 KiB, or 0.
    #[error("stripe size {0} is not a multiple of 65536 bytes")]
    StripeSize(u64),
    /// Beyond the largest number of stripes.
    #[error("stripe count {0} is over the limit of {STRIPE_COUNT_MAX}")]
    StripeCount(u32),
    /// No such index can exist.
    #[error("OST index {0} is over the limit of {max}", max = TARGET_INDEX_MAX - 1)]
    OstIndex(u32),
    /// A list of OSTs that does not fit the number of stripes or lacks the first OST.
    #[error("the list of OSTs does not fit the stripe count or index")]
    OstList,
    /// An OST twice in a list without overstriping.
    #[error("an OST is listed twice without overstriping")]
    OstTwice,
    /// A composite layout without components.
    #[error("A layout needs at least one component")]
    NoComponents,
    /// The first component does not begin at 0.
    #[error("The first component must start at zero")]
    Start,
    /// A component begins where the one before it does not end.
    #[error("Components not adjacent (end != next->start)")]
    NotAdjacent,
    /// A component ends where it begins or before.
    #[error("Component end is before end of previous component")]
    EndBeforeStart,
    /// A component ends within a stripe.
    #[error("The component end must be aligned by the stripe size")]
    EndUnaligned,
    /// A component without bytes that nothing lets grow.
    #[error("Zero length components must be followed by extension")]
    ZeroLength,
    /// Room to grow behind room to grow.
    #[error("Adjacent extension space components are not allowed")]
    ExtensionTwice,
    /// Room to grow behind a component that has bytes already, or behind none.
    #[error("Extension space must follow a component that begins with zero length")]
    ExtensionBehindBytes,
    /// Room to grow behind a component on an MDT, or on one itself.
    #[error("A Data-on-MDT component can neither be nor be followed by extension space")]
    ExtensionOfMdt,
    /// Room to grow with wishes of its own, or without a step.
    #[error("Extension space has an extension size and nothing else")]
    ExtensionStriping,
    /// A step that ends within a stripe.
    #[error("The extension size must be a multiple of the stripe size")]
    ExtensionUnaligned,
    /// A component on an MDT that is not the first.
    #[error("Data-on-MDT component must be the first one")]
    MdtNotFirst,
    /// A component on an MDT that is too large, or has no end; its end.
    #[error("Data-on-MDT component of {0} bytes is over the limit of {MDT_SIZE_MAX}")]
    MdtSize(u64),
    /// A whole file on an MDT, or OSTs, stripes or a pool asked for there.
    #[error("Data on MDT needs a component of its own, without stripes, OSTs or pool")]
    MdtStriping,
    /// Its bytes would not fit an attribute value even with one stripe for each wish for "all".
    #[error("The layout needs {0} bytes, over the limit of {XATTR_VALUE_MAX}")]
    TooLarge(usize),
}

/// Largest component on an MDT in bytes. Source: reference 5.1.
pub const MDT_SIZE_MAX: u64 = 1 << 30;

impl LayoutSpec {
    /// The wish for a component on an MDT.
    pub const ON_MDT: LayoutSpec = LayoutSpec {
        stripe_size: None,
        stripe_count: None,
        first_ost: None,
        pool: None,
        pattern: Pattern::Mdt,
        osts: Vec::new(),
    };

    /// Checks the wishes that are given.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn check(&self) -> Result<(), SpecError> {
        if self.pattern == Pattern::Mdt && *self != LayoutSpec::ON_MDT {
            return Err(SpecError::MdtStriping);
        }
        match self.stripe_size {
            Some(size) if size == 0 || size % STRIPE_SIZE_MIN != 0 => {
                return Err(SpecError::StripeSize(u64::from(size)));
            }
            _ => {}
        }
        match self.stripe_count {
            Some(0) => return Err(SpecError::StripeCount(0)),
            Some(count)
                if count > STRIPE_COUNT_MAX
                    && count != STRIPE_COUNT_ALL
                    && (self.pattern != Pattern::Overstriped || stripes_per_ost(count).is_none()) =>
            {
                return Err(SpecError::StripeCount(u32::from(count)));
            }
            _ => {}
        }
        self.check_osts()?;
        match self.first_ost {
            Some(index) if index >= TARGET_INDEX_MAX => Err(SpecError::OstIndex(u32::from(index))),
            _ => Ok(()),
        }
    }

    fn check_osts(&self) -> Result<(), SpecError> {
        if self.osts.is_empty() {
            return Ok(());
        }
        if self.osts.len() > usize::from(STRIPE_COUNT_MAX) {
            return Err(SpecError::StripeCount(self.osts.len() as u32));
        }
        if let Some(index) = self.osts.iter().find(|index| **index >= TARGET_INDEX_MAX) {
            return Err(SpecError::OstIndex(u32::from(*index)));
        }
        let counts = self.stripe_count.is_none_or(|count| usize::from(count) == self.osts.len());
        let begins = self.first_ost.is_none_or(|first| self.osts.contains(&first));
        if !counts || !begins {
            return Err(SpecError::OstList);
        }
        let twice = (1..self.osts.len()).any(|at| self.osts[..at].contains(&self.osts[at]));
        match twice && self.pattern != Pattern::Overstriped {
            true => Err(SpecError::OstTwice),
            false => Ok(()),
        }
    }

    /// True if nothing is asked for: setting this on a directory removes its default.
    pub fn is_empty(&self) -> bool {
        *self == LayoutSpec::default()
    }

    /// These wishes, completed by `inherited` where they are silent. A wish for a first OST is not inherited.
    pub fn or(&self, inherited: &LayoutSpec) -> LayoutSpec {
        if self.pattern == Pattern::Mdt {
            return self.clone();
        }
        let has_count = self.stripe_count.is_some() || !self.osts.is_empty();
        LayoutSpec {
            pattern: if has_count { self.pattern } else { inherited.pattern },
            osts: self.osts.clone(),
            stripe_size: self.stripe_size.or(inherited.stripe_size),
            stripe_count: match self.osts.len() {
                0 => self.stripe_count.or(inherited.stripe_count),
                // Checked against the same limit.
                len => Some(len as u16),
            },
            first_ost: self.first_ost.or(inherited.first_ost),
            pool: self.pool.or(inherited.pool),
        }
    }

    /// The pool that objects are to come from.
    pub fn real_pool(&self) -> Option<PoolName> {
        self.pool.filter(|pool| !pool.is_ignore())
    }

    /// The layout that a file with these wishes starts with: one component without objects.
    pub fn to_layout(&self) -> Layout {
        Layout {
            form: LayoutForm::Plain,
            generation: 0,
            components: vec![Component {
                id: 0,
                extent: Extent::WHOLE,
                flags: ComponentFlags::default(),
                pattern: if self.pattern == Pattern::Mdt { Pattern::Raid0 } else { self.pattern },
                osts: self.osts.clone(),
                stripe_size: self.stripe_size.unwrap_or(STRIPE_SIZE_DEFAULT),
                stripe_count: match self.osts.len() {
                    0 => self.stripe_count.unwrap_or(1),
                    len => len as u16,
                },
                first_ost: self.first_ost,
                pool: self.real_pool(),
                generation: 0,
                objects: Vec::new(),
            }],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_of_plain_layouts_are_checked() {
        let size = |s| LayoutSpec { stripe_size: Some(s), ..LayoutSpec::default() }.check();
        assert_eq!(size(65536), Ok(()));
        assert_eq!(size(100_000), Err(SpecError::StripeSize(100_000)));
        assert_eq!(size(0), Err(SpecError::StripeSize(0)));
        let count = |c| LayoutSpec { stripe_count: Some(c), ..LayoutSpec::default() }.check();
        assert_eq!(count(STRIPE_COUNT_ALL), Ok(()));
        assert_eq!(count(2001), Err(SpecError::StripeCount(2001)));
        let ost = LayoutSpec { first_ost: Some(0xffe0), ..LayoutSpec::default() };
        assert_eq!(ost.check(), Err(SpecError::OstIndex(0xffe0)));
    }

    #[test]
    fn silent_wishes_are_inherited() {
        let wish = LayoutSpec { stripe_count: Some(3), ..LayoutSpec::default() };
        let parent =
            LayoutSpec { stripe_count: Some(8), stripe_size: Some(1 << 20), ..LayoutSpec::default() };
        let both = wish.or(&parent);
        assert_eq!((both.stripe_count, both.stripe_size), (Some(3), Some(1 << 20)));
    }
}
