//! The MDT's state of an OST.

use super::*;

/// An OST at an address of a host.
struct At(&'static str, u64);

impl OssEndpoint for At {
    fn call(&self, _: &OssRequest, _: Bulk<'_>) -> StatusResult<OssReply> {
        Ok(OssReply::Done)
    }
    fn durability_epoch(&self) -> u64 {
        self.1
    }
    fn import(&self) -> Option<nacre_rpc::ImportInfo> {
        let nids = vec![self.0.parse().expect("a NID")];
        Some(nacre_rpc::ImportInfo { nids, ..nacre_rpc::ImportInfo::local(String::new()) })
    }
}

#[test]
fn osts_of_one_host_with_several_addresses_are_of_one_server() {
    let ost = |nid, boot| {
        let mark = OstMarkRecord { sequence: 1, last_used: 0 };
        Ost::new(0, Arc::new(At(nid, boot)), mark, &Arc::default())
    };
    let server = |ost: &Ost| ost.candidate(Duration::MAX).server;
    let osts = [ost("10.0.0.1@tcp", 7), ost("10.1.0.1@tcp", 7), ost("10.0.0.2@tcp", 8)];
    assert_ne!(server(&osts[0]), server(&osts[1]), "nothing else is known yet");
    osts.iter().for_each(|ost| drop(ost.call(&OssRequest::Ping)));
    assert_eq!(server(&osts[0]), server(&osts[1]));
    assert_ne!(server(&osts[0]), server(&osts[2]));
}

#[test]
fn ids_are_taken_in_order_and_can_be_given_back() {
    struct Nobody;
    impl OssEndpoint for Nobody {
        fn call(&self, _: &OssRequest, _: Bulk<'_>) -> StatusResult<OssReply> {
            Err(Status::EIO)
        }
        fn durability_epoch(&self) -> u64 {
            0
        }
    }
    let ost = Ost::new(0, Arc::new(Nobody), OstMarkRecord { sequence: 1, last_used: 4 }, &Arc::default());
    assert_eq!(ost.prepare(1), Err(Status::EIO));
    assert_eq!(ost.prepare(1), Err(Status::EAGAIN), "it rests after a failure");
    let mut state = ost.state.lock();
    state.stock = VecDeque::from([(5, 6), (9, 11)]);
    assert_eq!((state.take(), state.last_used), (Some(5), 5));
    state.give_back(4, &[5]);
    assert_eq!((state.has_ids(3), state.has_ids(4)), (true, false));
    assert_eq!((state.take(), state.take(), state.take(), state.last_used), (Some(5), Some(9), Some(10), 10));
    state.give_back(5, &[9, 10]);
    assert_eq!(state.last_used, 5);
    assert_eq!((state.take(), state.take(), state.take()), (Some(9), Some(10), None));
}

/// An OST that precreates ids above its mark, and the number of its restarts.
struct Restored(Mutex<(u32, u64)>);

impl OssEndpoint for Restored {
    fn call(&self, request: &OssRequest, _: Bulk<'_>) -> StatusResult<OssReply> {
        let (mark, _) = &mut *self.0.lock();
        match *request {
            OssRequest::Precreate { count, .. } => {
                *mark += count;
                Ok(OssReply::Precreated { first: *mark + 1 - count, count })
            }
            OssRequest::DestroyOrphans { last_used, .. } => {
                *mark = last_used.max(*mark);
                Ok(OssReply::Precreated { first: *mark + 1, count: 0 })
            }
            _ => Ok(OssReply::Done),
        }
    }
    fn durability_epoch(&self) -> u64 {
        0
    }
    fn import(&self) -> Option<nacre_rpc::ImportInfo> {
        let generation = self.0.lock().1;
        Some(nacre_rpc::ImportInfo { generation, ..nacre_rpc::ImportInfo::local(String::new()) })
    }
}

#[test]
fn an_ost_that_was_restored_from_an_older_copy_gives_no_id_out_again() {
    let endpoint = Arc::new(Restored(Mutex::new((0, 0))));
    let ost = Ost::new(0, endpoint.clone(), OstMarkRecord { sequence: 1, last_used: 0 }, &Arc::default());
    let take =
        |count: u32| (0..count).map(|_| ost.state.lock().take().expect("in stock")).collect::<Vec<_>>();
    let all = || ost.state.lock().in_stock();
    ost.prepare(1).expect("ids");
    let mut given = take(all());
    // The next precreation reports the restart.
    *endpoint.0.lock() = (3, 0);
    ost.prepare(1).expect("ids");
    given.extend(take(5));
    // A restart is noticed at once, too: ids in stock count as allocated.
    let end = ost.state.lock().stock.back().expect("some").1;
    *endpoint.0.lock() = (4, 1);
    ost.call(&OssRequest::Ping).expect("answered");
    assert!(!ost.state.lock().prepared);
    ost.prepare(1).expect("told");
    assert!(ost.state.lock().prepared && endpoint.0.lock().0 >= end - 1);
    given.extend(take(all()));
    assert!(given.is_sorted_by(|a, b| a < b), "{given:?}");
}
