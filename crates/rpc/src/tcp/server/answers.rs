//! Answers of a metadata target to one client's modifying requests, kept over the client's eviction: what it sends
//! again afterwards has one effect, and the answer of that.

use nacre_env::sync::{Condvar, Mutex};
use nacre_session::ReplyCache;
use nacre_types::{ClientUuid, KeyId, Status, TargetId};
use std::collections::VecDeque;
use std::sync::Arc;

/// Answers kept of all evicted clients together, each counted as one more. An answer has some hundred bytes.
const KEPT_MAX: usize = 65_536;

/// A reply that is kept for a resend.
#[derive(Debug)]
pub(super) struct StoredReply {
    pub(super) status: Status,
    pub(super) body: Vec<u8>,
}

/// Answers to one client of a metadata target. Requests to object targets may run again.
#[derive(Default)]
pub(super) struct Answers {
    pub(super) cache: Mutex<ReplyCache<Arc<StoredReply>>>,
    pub(super) stored: Condvar,
}

/// A client at a target, with the key that it has proved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Holder {
    pub(super) target: TargetId,
    pub(super) client: ClientUuid,
    pub(super) key: Option<KeyId>,
}

struct Former {
    holder: Holder,
    answers: Arc<Answers>,
    /// Share of [`KEPT_MAX`].
    size: usize,
}

/// Answers of evicted clients that may come back; the clients that were evicted last.
#[derive(Default)]
pub(super) struct FormerAnswers {
    /// Oldest eviction first.
    kept: VecDeque<Former>,
    size: usize,
}

impl FormerAnswers {
    /// Keeps the answers of an evicted client.
    pub(super) fn keep(&mut self, holder: Holder, answers: Arc<Answers>) {
        let size = 1 + answers.cache.lock().stored();
        self.size += size;
        self.kept.push_back(Former { holder, answers, size });
        while self.size > KEPT_MAX
            && let Some(oldest) = self.kept.pop_front()
        {
            self.size -= oldest.size;
        }
    }

    /// Removes and returns the answers of a client that is back.
    pub(super) fn take(&mut self, holder: &Holder) -> Option<Arc<Answers>> {
        let index = self.kept.iter().rposition(|former| former.holder == *holder)?;
        let former = self.kept.remove(index)?;
        self.size -= former.size;
        Some(former.answers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_types::Xid;

    fn holder(number: u8, key: u64) -> Holder {
        Holder { target: TargetId::mdt(0), client: ClientUuid([number; 16]), key: Some(KeyId(key)) }
    }

    fn answers(count: u16) -> Arc<Answers> {
        let answers = Answers::default();
        for tag in 0..count {
            let mut cache = answers.cache.lock();
            cache.begin(tag, Xid(1), Xid(0));
            cache.finish(tag, Xid(1), Arc::new(StoredReply { status: Status::OK, body: Vec::new() }));
        }
        Arc::new(answers)
    }

    #[test]
    fn answers_belong_to_the_client_with_the_same_key_once() {
        let mut former = FormerAnswers::default();
        former.keep(holder(1, 7), answers(2));
        assert!(former.take(&holder(1, 8)).is_none());
        assert!(former.take(&holder(2, 7)).is_none());
        assert_eq!(former.take(&holder(1, 7)).expect("kept").cache.lock().stored(), 2);
        assert!(former.take(&holder(1, 7)).is_none());
        assert_eq!(former.size, 0);
    }

    #[test]
    fn beyond_the_bound_the_oldest_evictions_are_forgotten() {
        let mut former = FormerAnswers::default();
        let each = 511;
        let fit = KEPT_MAX / (usize::from(each) + 1);
        for number in 0..=fit {
            former.keep(holder(number as u8, 7), answers(each));
        }
        assert!(former.take(&holder(0, 7)).is_none());
        assert!(former.take(&holder(1, 7)).is_some());
        assert_eq!(former.kept.len(), fit - 1);
        assert_eq!(former.size, (fit - 1) * (usize::from(each) + 1));
    }
}
