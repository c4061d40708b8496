//! Layout specifications: the requested striping before objects exist, and the rules for it.

use crate::layout::{
    Component, ComponentFlags, Extent, Layout, LayoutForm, Pattern, STRIPE_COUNT_ALL, stripes_per_ost,
};
use crate::pool::PoolName;
use nacre_types::limits::{
    STRIPE_COUNT_MAX, STRIPE_SIZE_DEFAULT, STRIPE_SIZE_MIN, TARGET_INDEX_MAX, XATTR_VALUE_MAX,
};

/// Requested striping of a plain layout; `None` inherits from the directory, the root, then the file system's
/// default.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LayoutSpec {
    /// Stripe size in bytes.
    pub stripe_size: Option<u32>,
    /// Number of stripes; [`STRIPE_COUNT_ALL`] for all OSTs.
    pub stripe_count: Option<u16>,
    /// Index of the OST with the first stripe.
    pub first_ost: Option<u16>,
    /// Pool to allocate from; [`PoolName::ignore`] for none and none inherited.
    pub pool: Option<PoolName>,
    /// Distribution of bytes over objects; inherited only together with the stripe count. A component on an
    /// MDT has no other specification.
    pub pattern: Pattern,
    /// Exact OSTs in stripe order, as many as stripes; empty lets the MDT choose. Not inherited.
    pub osts: Vec<u16>,
}

/// Why no layout can meet a specification.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SpecError {
    /// The stripe size is 0 or not a multiple of 64 KiB.
    #[error("stripe size {0} is not a multiple of 65536 bytes")]
    StripeSize(u64),
    /// The stripe count exceeds the largest number of stripes.
    #[error("stripe count {0} is over the limit of {STRIPE_COUNT_MAX}")]
    StripeCount(u32),
    /// The OST index exceeds the largest index.
    #[error("OST index {0} is over the limit of {max}", max = TARGET_INDEX_MAX - 1)]
    OstIndex(u32),
    /// The list of OSTs does not match the number of stripes, or lacks the first OST.
    #[error("the list of OSTs does not fit the stripe count or index")]
    OstList,
    /// An OST occurs twice in a list without overstriping.
    #[error("an OST is listed twice without overstriping")]
    OstTwice,
    /// A composite layout has no components.
    #[error("A layout needs at least one component")]
    NoComponents,
    /// The first component does not begin at 0.
    #[error("The first component must start at zero")]
    Start,
    /// A component does not begin where its predecessor ends.
    #[error("Components not adjacent (end != next->start)")]
    NotAdjacent,
    /// A component ends at or before its beginning.
    #[error("Component end is before end of previous component")]
    EndBeforeStart,
    /// A component ends within a stripe.
    #[error("The component end must be aligned by the stripe size")]
    EndUnaligned,
    /// An empty component has no extension to grow into.
    #[error("Zero length components must be followed by extension")]
    ZeroLength,
    /// An extension follows an extension.
    #[error("Adjacent extension space components are not allowed")]
    ExtensionTwice,
    /// An extension follows a component that already has bytes, or no component.
    #[error("Extension space must follow a component that begins with zero length")]
    ExtensionBehindBytes,
    /// An extension follows a component on an MDT, or is on an MDT itself.
    #[error("A Data-on-MDT component can neither be nor be followed by extension space")]
    ExtensionOfMdt,
    /// An extension has striping of its own, or no step.
    #[error("Extension space has an extension size and nothing else")]
    ExtensionStriping,
    /// The step of an extension ends within a stripe.
    #[error("The extension size must be a multiple of the stripe size")]
    ExtensionUnaligned,
    /// A component on an MDT is not the first.
    #[error("Data-on-MDT component must be the first one")]
    MdtNotFirst,
    /// The component on an MDT is too large or has no end; the value is its end in bytes.
    #[error("Data-on-MDT component of {0} bytes is over the limit of {MDT_SIZE_MAX}")]
    MdtSize(u64),
    /// A whole file on an MDT, or a component on an MDT with OSTs, stripes or a pool.
    #[error("Data on MDT needs a component of its own, without stripes, OSTs or pool")]
    MdtStriping,
    /// The layout would not fit an attribute value even with one stripe for each "all"; its size in bytes.
    #[error("The layout needs {0} bytes, over the limit of {XATTR_VALUE_MAX}")]
    TooLarge(usize),
}

/// Largest component on an MDT in bytes.
pub const MDT_SIZE_MAX: u64 = 1 << 30;

impl LayoutSpec {
    /// The specification of a component on an MDT.
    pub const ON_MDT: LayoutSpec = LayoutSpec {
        stripe_size: None,
        stripe_count: None,
        first_ost: None,
        pool: None,
        pattern: Pattern::Mdt,
        osts: Vec::new(),
    };

    /// Checks the fields that are set.
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

    /// Returns true if nothing is specified: setting this on a directory removes its default.
    pub fn is_empty(&self) -> bool {
        *self == LayoutSpec::default()
    }

    /// Completes this specification with `inherited` where it leaves fields open. A first OST is not
    /// inherited.
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
                // The length was checked against the same limit.
                len => Some(len as u16),
            },
            first_ost: self.first_ost.or(inherited.first_ost),
            pool: self.pool.or(inherited.pool),
        }
    }

    /// Returns the pool to allocate objects from.
    pub fn real_pool(&self) -> Option<PoolName> {
        self.pool.filter(|pool| !pool.is_ignore())
    }

    /// Returns the initial layout of a file with this specification: one component without objects.
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
        let requested = LayoutSpec { stripe_count: Some(3), ..LayoutSpec::default() };
        let parent =
            LayoutSpec { stripe_count: Some(8), stripe_size: Some(1 << 20), ..LayoutSpec::default() };
        let both = requested.or(&parent);
        assert_eq!((both.stripe_count, both.stripe_size), (Some(3), Some(1 << 20)));
    }
}
