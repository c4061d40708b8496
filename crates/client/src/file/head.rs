//! What is known of a first component on the MDT, see [`crate::layouts::head`].

use nacre_layout::Layout;
use std::sync::Arc;

/// What is known of a file's first component on the MDT (its head).
#[derive(Default)]
pub(crate) enum Head {
    /// The layout is authoritative.
    #[default]
    Settled,
    /// The file was created here under the lease with this number, and the MDT was not asked for objects yet.
    Open(u64),
    /// [`FileInner::layout`] has a head that the MDT does not know of; data for it is held back, or about to
    /// be.
    Held,
    /// A request to the MDT that decides it is in flight.
    Deciding,
    /// Data was held back, and the file has this layout, without a head.
    LeftOut(Arc<Layout>),
}
