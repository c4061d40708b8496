//! A mount: its parts, created and shut down together.

use crate::base::Base;
use crate::config::ClientConfig;
use crate::data::Data;
use crate::data_locks::DataLocks;
use crate::file::ranges::Use;
use crate::inodes::Inodes;
use crate::jobs::Jobs;
use crate::kernel::KernelCaches;
use crate::lease::Lease;
use crate::listings::Listings;
use crate::locks::inodes::RETRY;
use crate::names::Names;
use crate::node::NodeTable;
use crate::opens::Opens;
use crate::pages::Pages;
use crate::placement::Placement;
use crate::read_ahead::ReadAhead;
use crate::requests::Requests;
use crate::shards::Shards;
use crate::sizes::Sizes;
use crate::statahead::Statahead;
use crate::tunables::Tunables;
use crate::write_back::WriteBack;
use crate::write_back::table::Scope;
use nacre_env::clock::Instant;
use nacre_rpc::{MdsEndpoint, OssEndpoint};
use nacre_types::{Cred, Status, StatusResult};
use nacre_wire::mds::{MdsReply, MdsRequest};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A mount. Any thread may call any method of any part.
pub struct Client {
    /// Options that the mount was started with.
    pub config: Arc<ClientConfig>,
    /// The right to cache, over all MDTs.
    pub lease: Arc<Lease>,
    nodes: Arc<NodeTable>,
    /// Parameters that can be changed at run time.
    pub tunables: Arc<Tunables>,
    /// Naming of jobs (`jobid_var`, `jobid_name`).
    pub jobs: Arc<Jobs>,
    /// Connections to servers, and the requests to them.
    pub requests: Arc<Requests>,
    /// Shards of directories: on which MDTs their names are stored.
    pub shards: Arc<Shards>,
    /// Written data that has not reached its objects.
    pub write_back: Arc<WriteBack>,
    /// Locks that exclude other clients from data.
    pub locks: Arc<DataLocks>,
    /// Data that is fetched before programs read it.
    pub read_ahead: Arc<ReadAhead>,
    /// Attributes, lookups and paths.
    pub inodes: Arc<Inodes>,
    /// I/O on open files.
    pub data: Arc<Data>,
    /// Choice of MDTs for new directories.
    pub placement: Arc<Placement>,
    /// Attributes that are fetched before programs ask for them.
    pub statahead: Arc<Statahead>,
    /// Pages of directories, fetched and fetched ahead.
    pub pages: Arc<Pages>,
    /// Listings of directories.
    pub listings: Listings,
    /// Changes of names, and lookups.
    pub names: Names,
    /// Opens and closes of files.
    pub opens: Opens,
    sizes: Arc<Sizes>,
}

impl Client {
    /// Creates a client over connected endpoints: `mdts` by index, `osts` as far as they are known. `lease`
    /// receives the callbacks of the MDTs. Asks each MDT for its lease.
    ///
    /// # Errors
    /// The error of an MDT; `EINVAL` without any MDT or with too many; `EAGAIN` if no thread can be started.
    pub fn new(
        config: ClientConfig,
        lease: Arc<Lease>,
        mdts: Vec<Arc<dyn MdsEndpoint>>,
        osts: BTreeMap<u16, Arc<dyn OssEndpoint>>,
    ) -> StatusResult<Arc<Client>> {
        let base = Base::new(config, lease, mdts, osts)?;
        let write_back = WriteBack::new(&base);
        let locks = DataLocks::new(&base, write_back.clone());
        let sizes = Sizes::new(&base, write_back.clone(), locks.clone());
        let read_ahead = ReadAhead::new(&base, write_back.clone(), locks.clone());
        let inodes = Inodes::new(&base, sizes.clone());
        let data = Data::new(
            &base,
            write_back.clone(),
            locks.clone(),
            sizes.clone(),
            read_ahead.clone(),
            inodes.clone(),
        );
        let placement = Placement::new(&base, inodes.clone());
        let pages = Pages::new(&base, sizes.clone(), inodes.clone());
        let statahead = Statahead::new(&base, inodes.clone(), pages.clone());
        let names = Names::new(
            &base,
            write_back.clone(),
            sizes.clone(),
            inodes.clone(),
            data.clone(),
            placement.clone(),
            statahead.clone(),
        );
        let opens =
            Opens::new(&base, write_back.clone(), locks.clone(), sizes.clone(), inodes.clone(), data.clone());
        let client = Arc::new(Client {
            listings: Listings::new(&base, inodes.clone(), pages.clone(), statahead.clone()),
            config: base.config,
            lease: base.lease,
            nodes: base.nodes,
            tunables: base.tunables,
            jobs: base.jobs,
            requests: base.requests,
            shards: base.shards,
            write_back,
            locks,
            read_ahead,
            inodes,
            data,
            placement,
            statahead,
            pages,
            names,
            opens,
            sizes,
        });
        client.lease.locks().attach(&client.locks);
        client.requests.refresh_lease()?;
        client.serve_revocations().map_err(|error| Status::from_io(&error))?;
        Ok(client)
    }

    /// Starts the threads that answer revocations of the lease, and end when the client is dropped.
    fn serve_revocations(self: &Arc<Self>) -> std::io::Result<()> {
        type Next = fn(&Lease) -> Option<(u16, u64)>;
        type Answer = fn(&Client, u16, u64);
        // Dropping kernel caches may wait for requests in service, so no thread that serves requests may do it.
        let threads: [(&str, Next, Answer); 2] = [
            ("lease", Lease::next_release, Client::release_lease),
            ("lease-busy", Lease::next_busy, Client::report_busy),
        ];
        for (name, next, answer) in threads {
            let (lease, weak) = (self.lease.clone(), Arc::downgrade(self));
            nacre_env::thread::Builder::new().name(name.into()).spawn(move || {
                while let Some((mdt_index, epoch)) = next(&lease)
                    && let Some(client) = weak.upgrade()
                {
                    answer(&client, mdt_index, epoch);
                }
            })?;
        }
        Ok(())
    }

    /// Stops threads; data that [`WriteBack::write_back_all`] has not written is lost. The MDTs close open
    /// handles when the connection ends.
    pub fn shutdown(&self) {
        self.requests.stop();
        self.lease.stop();
        self.lease.locks().stop();
        self.write_back.stop();
    }

    /// Makes the kernel drop attributes and data of all inodes, including those whose first reply is on its
    /// way to it.
    fn drop_known_inodes(&self, kernel: &dyn KernelCaches) {
        let (began, mut unknown) = (Instant::now(), Vec::new());
        let is_dropped = |node| self.nodes.reaches_kernel(node, began, |node| kernel.drop_inode(node));
        self.nodes.for_each_known(|node| {
            if !is_dropped(node) {
                unknown.push(node);
            }
        });
        while !unknown.is_empty() {
            nacre_env::thread::sleep(RETRY);
            unknown.retain(|node| !is_dropped(*node));
        }
    }

    /// Drops everything cached under an exclusive lease, then notifies the MDT.
    fn release_lease(&self, mdt_index: u16, epoch: u64) {
        if let Some(kernel) = self.lease.kernel() {
            kernel.expire_names();
            self.drop_known_inodes(&**kernel);
            // Replies that were on their way to the kernel during the first round may have brought names
            // back.
            kernel.expire_names();
        }
        self.statahead.clear();
        for file in self.nodes.open_files() {
            self.write_back.forget_ahead(&file);
            // Writes that began under the exclusive lease hold their ranges; later ones hold nothing back.
            if let Err(status) = file.take_range_ungated(Use::Exclusive, |_| (0, u64::MAX, ())) {
                log::warn!("writes to {} were not waited for: {status}", file.fid);
            }
            self.write_back.settle_unheard(&file, &Scope::All);
            // The known size was true because there was no other client.
            file.lock_era.fetch_add(1, Ordering::AcqRel);
            if let Err(failure) = self.sizes.push_size(&file) {
                self.requests
                    .faults
                    .log(failure.explain(|context| context.action("report the size").fid(file.fid)));
            }
        }
        let Some(mdt) = self.requests.mdt_once_joined(mdt_index) else { return };
        match mdt.endpoint.call(&Cred::system(), &MdsRequest::LeaseReleased { epoch }) {
            Ok(answer) => {
                if let MdsReply::Lease(grant) = answer.reply {
                    self.lease.apply(mdt_index, grant, false);
                }
            }
            Err(status) => {
                log::warn!("the release of lease {epoch} did not reach MDT{mdt_index:04x}: {status}")
            }
        }
    }

    /// Reports to the MDT that a release has not ended yet.
    fn report_busy(&self, mdt_index: u16, epoch: u64) {
        let Some(mdt) = self.requests.mdt_once_joined(mdt_index) else { return };
        if let Err(status) = mdt.endpoint.call(&Cred::system(), &MdsRequest::LeaseBusy { epoch }) {
            log::debug!("MDT{mdt_index:04x}: the release of lease {epoch} is under way: {status}");
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.shutdown();
    }
}
