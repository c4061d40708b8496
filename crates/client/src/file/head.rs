//! What is known of a first component on the MDT, see [`crate::layouts::head`].

use nacre_layout::Layout;
use std::sync::Arc;

/// What is known of a file's head.
#[derive(Default)]
pub(crate) enum Head {
    /// The layout says it.
    #[default]
    Settled,
    /// The file was made here under the lease with this number, and the MDT was not asked for objects yet.
    Open(u64),
    /// [`FileInner::layout`] has a head that the MDT does not know of; data for it is held back, or about to be.
    Held,
    /// The MDT is being asked.
    Deciding,
    /// Data was held back, and the file has no head but this layout.
    LeftOut(Arc<Layout>),
}
