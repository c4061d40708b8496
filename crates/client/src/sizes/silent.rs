//! Unresponsive OSTs and programs that only display sizes: an `ls -l` ends even while an OST is unreachable.

use crate::file::{FileState, Glimpse};
use crate::sizes::{Sizes, is_partial};
use nacre_env::clock::Instant;
use nacre_layout::Layout;
use nacre_types::{Attr, FailureResult, Status};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long to wait for sizes before checking whether the OSTs respond; it doubles each time they do. A reply
/// may take long even then: other clients take part in it.
const TIMEOUT: Duration = Duration::from_secs(2);

impl Sizes {
    /// As [`Sizes::complete_attr`]; also returns whether the result may be cached as far as sizes of objects
    /// decide that.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn complete_attr_to_keep(&self, attr: Attr, lease: u64) -> FailureResult<(Attr, bool)> {
        let guesses = self.guesses.load(Ordering::Acquire);
        let attr = self.complete_attr(attr, lease)?;
        // Guesses of other threads count too: they are rare.
        Ok((attr, guesses == self.guesses.load(Ordering::Acquire)))
    }

    /// Returns the size for display: as [`Sizes::refresh_size`], but if an OST does not respond, the size
    /// according to the others. The flag is true for a size that all objects confirm.
    ///
    /// # Errors
    /// As for [`Sizes::refresh_size`].
    pub(crate) fn look_at_size(&self, file: &FileState, attr: &Attr) -> FailureResult<(Glimpse, bool)> {
        let mut timeout = TIMEOUT;
        loop {
            if self.requests.silent.has_any() || !file.dirty.is_clean() {
                let used = self.layouts.use_layout(file)?;
                if let Some(layout) = used.layout()
                    && self.requests.silent.has_one_of(layout, &self.requests.osts)
                {
                    return Ok((self.guess_size(file, layout, attr)?, false));
                }
            }
            // Without a time-out: a write that was sent and abandoned might overtake a later one to the same
            // place.
            let settled = self.write_back.settle(file, 0, u64::MAX);
            let until = Instant::now() + timeout;
            let ask = || nacre_env::until(until, || self.refresh_size_after(file, |_| Ok(())));
            match settled.and_then(|()| ask()) {
                Err(failure) if is_partial(&failure) => {
                    return Ok((self.size_of_the_rest(file, failure)?, false));
                }
                Err(failure)
                    if failure == Status::EINTR && Instant::now() >= until && !nacre_env::interrupted() => {}
                outcome => return Ok((outcome?, true)),
            }
            let layout = file.lock().layout.clone();
            if let Some(layout) = layout
                && self.requests.silent.has_one_of(&layout, &self.requests.osts)
            {
                return Ok((self.guess_size(file, &layout, attr)?, false));
            }
            timeout *= 2;
        }
    }

    /// Returns the size as far as it is known without the unresponsive OSTs: at least the one reported to the
    /// MDT, and the end of data written here.
    fn guess_size(&self, file: &FileState, layout: &Layout, attr: &Attr) -> FailureResult<Glimpse> {
        self.guesses.fetch_add(1, Ordering::AcqRel);
        let rest = self.objects.glimpse_some(layout, |stripe| {
            !self.requests.silent.has(stripe.ost_index) && !self.requests.is_out_of_use(stripe.ost_index)
        })?;
        let size = rest.size.max(attr.size).max(file.lock().size.bytes);
        Ok(Glimpse { size, blocks: rest.blocks.max(attr.blocks), ..rest })
    }
}
