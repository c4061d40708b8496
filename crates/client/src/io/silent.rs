//! OSTs that do not answer, for who only looks at sizes: an `ls -l` ends also while one is away.

use crate::client::Client;
use crate::file::FileState;
use crate::io::objects::Glimpse;
use nacre_env::clock::Instant;
use nacre_env::sync::Mutex;
use nacre_layout::Layout;
use nacre_types::{Attr, Status, StatusResult};
use nacre_wire::oss::OssRequest;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How long sizes are waited for until the OSTs are asked whether they are there; it doubles each time that they are. An answer may
/// take long without that: other clients have a part in it.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long an OST may take to say that it is there.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// The same for one that was silent lately: a directory may be full of files on it.
const ANSWER_SOON: Duration = Duration::from_millis(20);
/// What "lately" is.
const SILENT_AGE: Duration = Duration::from_secs(5);

/// What is known of OSTs that do not answer.
#[derive(Default)]
pub(crate) struct Silent {
    /// When they were last waited for in vain.
    osts: Mutex<BTreeMap<u16, Instant>>,
    /// How often a size was shown that may not be the true one.
    guesses: AtomicU64,
}

impl Silent {
    fn is_known(&self) -> bool {
        !self.osts.lock().is_empty()
    }
}

impl Client {
    /// [`Client::complete_attr`], and whether what it gives may be kept as far as that is up to the sizes of objects.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn complete_attr_to_keep(&self, attr: Attr, lease: u64) -> StatusResult<(Attr, bool)> {
        let guesses = self.silent.guesses.load(Ordering::Acquire);
        let attr = self.complete_attr(attr, lease)?;
        // Guesses of others count too: they are rare.
        Ok((attr, guesses == self.silent.guesses.load(Ordering::Acquire)))
    }

    /// The size for who only looks at it: [`Client::refresh_size`], but where an OST does not answer what the others say. The flag
    /// is true for a size that all objects stand for.
    ///
    /// # Errors
    /// As for [`Client::refresh_size`].
    pub(crate) fn look_at_size(&self, file: &FileState, attr: &Attr) -> StatusResult<(Glimpse, bool)> {
        let mut patience = PATIENCE;
        loop {
            if self.silent.is_known() || !file.dirty.is_clean() {
                let used = self.use_layout(file)?;
                if let Some(layout) = used.layout()
                    && self.has_silent_ost(layout)
                {
                    return Ok((self.guess_size(file, layout, attr)?, false));
                }
            }
            // Without a limit: what was sent and given up might overtake what is written to the same place later.
            let settled = self.settle(file, 0, u64::MAX);
            let until = Instant::now() + patience;
            let ask = || nacre_env::until(until, || self.refresh_size_after(file, |_| Ok(())));
            match settled.and_then(|()| ask()) {
                Err(status @ (Status::EIO | Status::OBJECT_LOST)) => {
                    return Ok((self.size_of_the_rest(file, status)?, false));
                }
                Err(Status::EINTR) if Instant::now() >= until && !nacre_env::interrupted() => {}
                outcome => return Ok((outcome?, true)),
            }
            let layout = file.lock().layout.clone();
            if let Some(layout) = layout
                && self.has_silent_ost(&layout)
            {
                return Ok((self.guess_size(file, &layout, attr)?, false));
            }
            patience *= 2;
        }
    }

    /// Asks the OSTs of a layout whether they are there. True if one does not say so.
    fn has_silent_ost(&self, layout: &Layout) -> bool {
        let mut all: Vec<u16> = layout.objects().map(|stripe| stripe.ost_index).collect();
        all.sort_unstable();
        all.dedup();
        // Each is asked, so that it is known of all.
        all.into_iter().filter(|ost_index| self.find_silent(*ost_index)).count() > 0
    }

    fn find_silent(&self, ost_index: u16) -> bool {
        let Some(endpoint) = self.osts.get(ost_index).filter(|endpoint| endpoint.is_active()) else {
            return false;
        };
        let lately = self.silent.osts.lock().get(&ost_index).is_some_and(|at| at.elapsed() < SILENT_AGE);
        let limit = if lately { ANSWER_SOON } else { ANSWER_MAX };
        let asked = endpoint.call_within(&OssRequest::Ping, limit);
        let is_silent = asked.is_err_and(|status| status != Status::EINTR);
        let mut known = self.silent.osts.lock();
        match is_silent {
            false => drop(known.remove(&ost_index)),
            true if !lately => drop(known.insert(ost_index, Instant::now())),
            true => {}
        }
        is_silent
    }

    /// The size as far as it is known without the OSTs that do not answer: at least what the MDT was told, and what was written here.
    fn guess_size(&self, file: &FileState, layout: &Layout, attr: &Attr) -> StatusResult<Glimpse> {
        self.silent.guesses.fetch_add(1, Ordering::AcqRel);
        let is_silent = |ost_index| self.silent.osts.lock().contains_key(&ost_index);
        let rest = self.glimpse_some(layout, |stripe| {
            !is_silent(stripe.ost_index) && !self.is_out_of_use(stripe.ost_index)
        })?;
        let size = rest.size.max(attr.size).max(file.lock().size);
        Ok(Glimpse { size, blocks: rest.blocks.max(attr.blocks), ..rest })
    }
}
