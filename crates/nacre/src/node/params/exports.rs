//! Parameters of the clients of a target by their address: `*.exports.NID.*`.

use nacre_mds::Mds;
use nacre_oss::{ObjectServer, PeerStats};
use nacre_params::{Access, EventStats, Family, Tree};
use nacre_rpc::Exports;
use nacre_types::{ClientUuid, Fid, Status, StatusResult};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Name of the parameter that clears the counters of all addresses.
const CLEAR: &str = "clear";
/// Name of the counter of frames from an address with a wrong checksum.
const DAMAGED: &str = "checksum_errors";

/// A parameter that each address has.
struct Leaf<S, T> {
    name: &'static str,
    read: fn(&S, &T, &[ClientUuid]) -> String,
    /// Action of a write of any value, if it is writable.
    clear: Option<fn(&T)>,
}

/// A parameter of one address, with the target and clients that it reads.
type FoundLeaf<S, T> = (&'static Leaf<S, T>, Arc<T>, Vec<ClientUuid>);

/// Parameters of all addresses at one target.
struct Peers<S: 'static, T: 'static> {
    server: Arc<S>,
    exports: fn(&S) -> &Exports<T>,
    leaves: &'static [Leaf<S, T>],
    clear: fn(&T),
}

const OST_LEAVES: &[Leaf<ObjectServer, PeerStats>] = &[
    Leaf { name: "brw_stats", read: |_, peer, _| peer.brw_stats(), clear: Some(PeerStats::clear_brw_stats) },
    Leaf {
        name: "ldlm_stats",
        read: |_, peer, _| peer.ldlm_stats.text(),
        clear: Some(|peer| peer.ldlm_stats.clear()),
    },
    Leaf { name: "stats", read: |_, peer, _| peer.stats.text(), clear: Some(|peer| peer.stats.clear()) },
    Leaf { name: "uuid", read: |_, _, clients| uuids(clients), clear: None },
];

const MDT_LEAVES: &[Leaf<Mds, EventStats>] = &[
    Leaf { name: "open_files", read: |mds, _, clients| open_files(mds, clients), clear: None },
    Leaf { name: "stats", read: |_, stats, _| stats.text(), clear: Some(EventStats::clear) },
    Leaf { name: "uuid", read: |_, _, clients| uuids(clients), clear: None },
];

/// Enters the parameters of an object target below `below`, which is the target's.
pub fn enter_ost(tree: &Tree, below: &str, server: &Arc<ObjectServer>) {
    let peers = Peers {
        server: server.clone(),
        exports: ObjectServer::exports,
        leaves: OST_LEAVES,
        clear: PeerStats::clear,
    };
    tree.add_family(&format!("{below}.exports"), Arc::new(peers));
}

/// Enters the parameters of a metadata target below `below`, which is the target's.
pub fn enter_mdt(tree: &Tree, below: &str, mds: &Arc<Mds>) {
    let peers = Peers {
        server: mds.clone(),
        exports: |mds: &Mds| mds.stats.exports(),
        leaves: MDT_LEAVES,
        clear: EventStats::clear,
    };
    tree.add_family(&format!("{below}.exports"), Arc::new(peers));
}

/// Lists the open files of clients, each once, in the order of FIDs.
fn open_files(mds: &Mds, clients: &[ClientUuid]) -> String {
    let open: BTreeSet<Fid> = clients.iter().flat_map(|client| mds.open_files(client)).collect();
    open.iter().map(|fid| format!("{fid}\n")).collect()
}

fn uuids(clients: &[ClientUuid]) -> String {
    clients.iter().map(|client| format!("{client}\n")).collect()
}

impl<S: Send + Sync + 'static, T: Send + Sync + 'static> Peers<S, T> {
    /// Finds the parameter of a name, with the counters and clients of its address.
    fn find(&self, name: &str) -> StatusResult<FoundLeaf<S, T>> {
        let (nid, leaf) = name.rsplit_once('.').ok_or(Status::ENOENT)?;
        let leaf = self.leaves.iter().find(|known| known.name == leaf).ok_or(Status::ENOENT)?;
        let (counters, clients) = (self.exports)(&self.server).find(nid).ok_or(Status::ENOENT)?;
        Ok((leaf, counters, clients))
    }
}

impl<S: Send + Sync + 'static, T: Send + Sync + 'static> Family for Peers<S, T> {
    fn names(&self) -> Vec<(String, Access)> {
        let mut all = vec![(CLEAR.to_owned(), Access { readable: false, writable: true })];
        for nid in (self.exports)(&self.server).names() {
            all.push((format!("{nid}.{DAMAGED}"), Access { readable: true, writable: false }));
            all.extend(self.leaves.iter().map(|leaf| {
                let access = Access { readable: true, writable: leaf.clear.is_some() };
                (format!("{nid}.{}", leaf.name), access)
            }));
        }
        all
    }

    fn read(&self, name: &str) -> StatusResult<String> {
        if name == CLEAR {
            return Err(Status::EACCES);
        }
        if let Some((nid, DAMAGED)) = name.rsplit_once('.') {
            let damaged = (self.exports)(&self.server).damaged(nid).ok_or(Status::ENOENT)?;
            return Ok(damaged.to_string());
        }
        let (leaf, counters, clients) = self.find(name)?;
        Ok((leaf.read)(&self.server, &counters, &clients))
    }

    fn write(&self, name: &str, _: &str) -> StatusResult<()> {
        if name == CLEAR {
            (self.exports)(&self.server).clear().iter().for_each(|counters| (self.clear)(counters));
            return Ok(());
        }
        let (leaf, counters, _) = self.find(name)?;
        leaf.clear.ok_or(Status::EACCES)?(&counters);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_params::{Event, Pattern};
    use nacre_rpc::{Export, NoCallbacks};

    const LEAVES: &[Leaf<Exports<EventStats>, EventStats>] = &[
        Leaf { name: "stats", read: |_, stats, _| stats.text(), clear: Some(EventStats::clear) },
        Leaf { name: "uuid", read: |_, _, clients| uuids(clients), clear: None },
    ];
    const EVENTS: &[Event] = &[Event { name: "open", unit: "reqs" }];

    #[test]
    fn addresses_have_parameters_while_they_are_known() {
        let exports: Arc<Exports<EventStats>> = Arc::default();
        let client = ClientUuid([7; 16]);
        let nid = "10.0.0.1:4711@tcp".parse().expect("a NID");
        let export = Arc::new(Export::new(client, nid, None, Arc::new(NoCallbacks)));
        exports.join(&export, || EventStats::new(EVENTS));
        let tree = Tree::new();
        let peers = Peers {
            server: exports.clone(),
            exports: |exports: &Exports<EventStats>| exports,
            leaves: LEAVES,
            clear: EventStats::clear,
        };
        tree.add_family("mdt.x.exports", Arc::new(peers));
        let stats = || tree.read("mdt.x.exports.10.0.0.1@tcp.stats").expect("there");
        export.counters::<EventStats>().expect("joined").count(0, 1);
        assert!(stats().contains("open                      1 samples [reqs]"));
        assert_eq!(tree.read("mdt.x.exports.10.0.0.1@tcp.uuid"), Ok(format!("{client}\n")));
        assert_eq!(tree.read("mdt.x.exports.10.0.0.1@tcp.checksum_errors").as_deref(), Ok("0"));
        assert_eq!(tree.write("mdt.x.exports.10.0.0.1@tcp.stats", "0"), Ok(()));
        assert!(!stats().contains("open"));
        assert_eq!(tree.write("mdt.x.exports.10.0.0.1@tcp.uuid", "0"), Err(Status::EACCES));
        assert_eq!(tree.read("mdt.x.exports.10.0.0.2@tcp.uuid"), Err(Status::ENOENT));
        assert_eq!(tree.read("mdt.x.exports.clear"), Err(Status::EACCES));
        drop(export);
        assert_eq!(tree.write("mdt.x.exports.clear", "1"), Ok(()));
        let all = tree.find(&Pattern::parse("mdt.x.exports.*").expect("fine"), true);
        assert_eq!(all.iter().map(|found| found.name.as_str()).collect::<Vec<_>>(), ["mdt.x.exports.clear"]);
    }
}
