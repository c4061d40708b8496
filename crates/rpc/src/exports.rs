//! Counters of a service for each address of its clients: `*.exports.NID.*`.

use crate::api::Export;
use nacre_env::sync::Mutex;
use nacre_types::limits::PORT_DEFAULT;
use nacre_types::{ClientUuid, Nid};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// Addresses without clients that are remembered at most.
const GONE_MAX: usize = 1024;

/// Counters of type `T` by host address, without the port. Those of disconnected clients stay until they are
/// cleared or there are more than `GONE_MAX`.
pub struct Exports<T> {
    nids: Mutex<BTreeMap<Nid, Entry<T>>>,
}

struct Entry<T> {
    counters: Arc<T>,
    damaged: Arc<AtomicU64>,
    exports: Vec<Weak<Export>>,
}

impl<T> Entry<T> {
    fn clients(&self) -> impl Iterator<Item = ClientUuid> + '_ {
        self.exports
            .iter()
            .filter_map(Weak::upgrade)
            .filter(|export| !export.has_ended())
            .map(|export| export.client)
    }
}

impl<T> Default for Exports<T> {
    fn default() -> Exports<T> {
        Exports { nids: Mutex::default() }
    }
}

/// Returns the address without the port, which differs with each connection.
pub(crate) fn host_of(nid: Nid) -> Nid {
    match nid {
        Nid::Lo => Nid::Lo,
        Nid::Tcp(address) => Nid::Tcp(SocketAddr::new(address.ip(), PORT_DEFAULT)),
    }
}

impl<T: Send + Sync + 'static> Exports<T> {
    /// Registers a connecting client: its requests are counted under its address ([`Export::counters`]).
    pub fn join(&self, export: &Arc<Export>, new: impl FnOnce() -> T) {
        let mut nids = self.nids.lock();
        if nids.len() >= GONE_MAX {
            nids.retain(|_, entry| entry.clients().next().is_some());
        }
        let entry = nids.entry(host_of(export.nid)).or_insert_with(|| Entry {
            counters: Arc::new(new()),
            damaged: Arc::default(),
            exports: Vec::new(),
        });
        entry.exports.retain(|export| export.strong_count() > 0);
        entry.exports.push(Arc::downgrade(export));
        export.set_counters(entry.counters.clone());
        export.set_damaged(entry.damaged.clone());
    }

    /// Returns the addresses as text, in order.
    pub fn names(&self) -> Vec<String> {
        self.nids.lock().keys().map(Nid::to_string).collect()
    }

    /// Returns the counters of an address and the clients that are connected from there.
    pub fn find(&self, name: &str) -> Option<(Arc<T>, Vec<ClientUuid>)> {
        let nids = self.nids.lock();
        let entry = nids.get(&host_of(name.parse().ok()?))?;
        Some((entry.counters.clone(), entry.clients().collect()))
    }

    /// Returns the number of frames from an address whose checksum was wrong.
    pub fn damaged(&self, name: &str) -> Option<u64> {
        let nids = self.nids.lock();
        nids.get(&host_of(name.parse().ok()?)).map(|entry| entry.damaged.load(Ordering::Relaxed))
    }

    /// Returns the number of frames from all addresses whose checksum was wrong.
    pub fn all_damaged(&self) -> u64 {
        self.nids.lock().values().map(|entry| entry.damaged.load(Ordering::Relaxed)).sum()
    }

    /// Removes addresses without clients, and returns the counters of the others for the caller to reset.
    pub fn clear(&self) -> Vec<Arc<T>> {
        let mut nids = self.nids.lock();
        nids.retain(|_, entry| entry.clients().next().is_some());
        nids.values().for_each(|entry| entry.damaged.store(0, Ordering::Relaxed));
        nids.values().map(|entry| entry.counters.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::NoCallbacks;

    fn export(number: u8, nid: &str) -> Arc<Export> {
        let nid = nid.parse().expect("a NID");
        Arc::new(Export::new(ClientUuid([number; 16]), nid, None, Arc::new(NoCallbacks)))
    }

    #[test]
    fn clients_of_one_host_are_counted_together_until_they_are_gone_and_cleared() {
        let exports: Exports<AtomicU64> = Exports::default();
        let (a, b) = (export(1, "10.0.0.1:1@tcp"), export(2, "10.0.0.1:2@tcp"));
        let c = export(3, "0@lo");
        for export in [&a, &b, &c] {
            exports.join(export, AtomicU64::default);
            export.counters::<AtomicU64>().expect("joined").fetch_add(1, Ordering::Relaxed);
        }
        assert_eq!(exports.names(), ["0@lo", "10.0.0.1@tcp"]);
        let (counters, clients) = exports.find("10.0.0.1@tcp").expect("known");
        assert_eq!((counters.load(Ordering::Relaxed), clients), (2, vec![a.client, b.client]));
        a.note_damaged();
        b.note_damaged();
        assert_eq!((exports.damaged("10.0.0.1@tcp"), exports.damaged("0@lo")), (Some(2), Some(0)));
        assert_eq!((exports.damaged("10.0.0.2@tcp"), exports.all_damaged()), (None, 2));
        assert!(exports.find("10.0.0.2@tcp").is_none() && exports.find("nonsense").is_none());
        a.end();
        drop(b);
        assert_eq!(exports.find("10.0.0.1@tcp").expect("still known").1, []);
        assert_eq!(exports.clear().len(), 1);
        assert_eq!(exports.names(), ["0@lo"]);
        assert!(c.counters::<String>().is_none(), "of another type");
    }
}
