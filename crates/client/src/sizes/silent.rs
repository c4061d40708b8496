//! OSTs that do not answer, for who only looks at sizes: an `ls -l` ends also while one is away.

use crate::file::{FileState, Glimpse};
use crate::sizes::{Sizes, is_partial};
use nacre_env::clock::Instant;
use nacre_layout::Layout;
use nacre_types::{Attr, FailureResult, Status};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long sizes are waited for until the OSTs are asked whether they are there; it doubles each time that they are. An answer may
/// take long without that: other clients have a part in it.
const PATIENCE: Duration = Duration::from_secs(2);

impl Sizes {
    /// [`Sizes::complete_attr`], and whether what it gives may be kept as far as that is up to the sizes of objects.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn complete_attr_to_keep(&self, attr: Attr, lease: u64) -> FailureResult<(Attr, bool)> {
        let guesses = self.guesses.load(Ordering::Acquire);
        let attr = self.complete_attr(attr, lease)?;
        // Guesses of others count too: they are rare.
        Ok((attr, guesses == self.guesses.load(Ordering::Acquire)))
    }

    /// The size for who only looks at it: [`Sizes::refresh_size`], but where an OST does not answer what the others say. The flag
    /// is true for a size that all objects stand for.
    ///
    /// # Errors
    /// As for [`Sizes::refresh_size`].
    pub(crate) fn look_at_size(&self, file: &FileState, attr: &Attr) -> FailureResult<(Glimpse, bool)> {
        let mut patience = PATIENCE;
        loop {
            if self.requests.silent.has_any() || !file.dirty.is_clean() {
                let used = self.layouts.use_layout(file)?;
                if let Some(layout) = used.layout()
                    && self.requests.silent.has_one_of(layout, &self.requests.osts)
                {
                    return Ok((self.guess_size(file, layout, attr)?, false));
                }
            }
            // Without a limit: what was sent and given up might overtake what is written to the same place later.
            let settled = self.write_back.settle(file, 0, u64::MAX);
            let until = Instant::now() + patience;
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
            patience *= 2;
        }
    }

    /// The size as far as it is known without the OSTs that do not answer: at least what the MDT was told, and what was written here.
    fn guess_size(&self, file: &FileState, layout: &Layout, attr: &Attr) -> FailureResult<Glimpse> {
        self.guesses.fetch_add(1, Ordering::AcqRel);
        let rest = self.objects.glimpse_some(layout, |stripe| {
            !self.requests.silent.has(stripe.ost_index) && !self.requests.is_out_of_use(stripe.ost_index)
        })?;
        let size = rest.size.max(attr.size).max(file.lock().size.bytes);
        Ok(Glimpse { size, blocks: rest.blocks.max(attr.blocks), ..rest })
    }
}
