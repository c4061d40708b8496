//! Answers of a process on its control socket.

use super::Node;
use super::mounted::Mounted;
use super::params::{change_pool, set_for_good};
use crate::control::{
    Answer, Handler, ListeningStatus, ParamName, PoolStep, ProcessStatus, Request, SpaceStatus, TRIM_TIME,
    TargetStatus,
};
use crate::failure::error_text;
use crate::listen::Endpoint;
use crate::process::request_stop;
use nacre_params::known::Refusal;
use nacre_params::{Access, Found, Kind, Pattern, Tree};
use nacre_rpc::tcp::Server;
use nacre_store::object::Trimmed;
use nacre_types::{Nid, Security, Status, StatusResult, TargetId, TargetKind};
use nacre_wire::changelog::{ChangelogReply, ChangelogRequest};
use nacre_wire::mds::Statfs;
use nacre_wire::mgs::{FsConfig, MgsRequest, PoolChange};
use rustix::io::Errno;
use std::net::SocketAddr;

impl Handler for Node {
    fn handle(&self, request: &Request) -> Answer {
        match request {
            Request::Status => Answer::Status(Box::new(self.status())),
            Request::Stop { force } => match self.unmount(*force) {
                Ok(()) => {
                    request_stop();
                    Answer::Done
                }
                Err(failure) => Answer::refusal(Errno::BUSY, failure.message),
            },
            Request::FindParams { pattern, recursive } => match Pattern::parse(pattern) {
                Ok(pattern) => Answer::Params { params: names(self.params.tree(), &pattern, *recursive) },
                Err(status) => refused(status),
            },
            Request::ReadParam { name } => match self.params.tree().read(name) {
                Ok(value) => Answer::Value { value },
                Err(status) => refused(status),
            },
            Request::ChangedParams => Answer::Changed { params: self.params.tree().changed() },
            Request::WriteParam { name, value } => done(self.params.tree().write(name, value)),
            Request::SetForGood { name, value } => match set_for_good(&self.links, name, value) {
                Ok(()) => Answer::Done,
                Err(Refusal { status, reason }) if reason.is_empty() => refused(status),
                Err(Refusal { status, reason }) => Answer::Error { errno: status.errno(), message: reason },
            },
            Request::ChangePool { pool, step } => done(change_pool(&self.links, pool, pool_change(*step))),
            Request::Pools => match self.links.config(0, 0) {
                Ok(config) => pools(config),
                Err(status) => refused(status),
            },
            Request::Nodemaps => match self.links.config(0, 0) {
                Ok(FsConfig { nodemaps, .. }) => Answer::Nodemaps {
                    active: nodemaps.active,
                    maps: nodemaps.maps.iter().map(ToString::to_string).collect(),
                },
                Err(status) => refused(status),
            },
            Request::ChangeNodemap { name, change } => match change.parse() {
                Ok(change) => {
                    let request = MgsRequest::ChangeNodemap { name: name.clone(), change };
                    done(self.links.mgs().call(&request).map(drop))
                }
                Err(error) => invalid(&error),
            },
            Request::AddTarget { kind, index, ost } => match self.add_target(*kind, *index, ost) {
                Ok(target) => Answer::Added { target: target.to_string() },
                Err(failure) => Answer::refusal(Errno::INVAL, failure.message),
            },
            Request::Debug { .. } => {
                Answer::refusal(Errno::INVAL, "questions of 'nacre debug' have a socket of their own")
            }
            Request::Metrics => Answer::Metrics(Box::new(self.sample())),
            Request::Trim { ost, from } => self.trim(*ost, *from),
            Request::Changelog { mdt, step } => match self.changelog(*mdt, step.clone().into()) {
                Ok(reply) => Answer::Changelog(reply.into()),
                Err(status) => refused(status),
            },
            Request::LastingParams => match self.links.config(0, 0) {
                Ok(config) => Answer::Settings { settings: config.params },
                Err(status) => refused(status),
            },
        }
    }
}

impl Node {
    fn trim(&self, ost: u16, from: u64) -> Answer {
        let Some(server) = self.services.objects(ost) else { return refused(Status::ENODEV) };
        match server.trim(from, TRIM_TIME) {
            Ok(Trimmed { bytes, extents, next }) => Answer::Trimmed { bytes, extents, next },
            Err(error) => Answer::Error { errno: error.status().errno(), message: error.to_string() },
        }
    }

    /// Passes a request about a changelog to the MDT, in this process or through its mount.
    fn changelog(&self, mdt: u16, request: ChangelogRequest) -> StatusResult<ChangelogReply> {
        if let Some(mds) = self.services.mds(mdt) {
            return mds.administrate_changelog(&request);
        }
        let client = self.mount.lock().as_ref().map(Mounted::client);
        client.ok_or(Status::ENODEV)?.changelog(mdt, &request)
    }

    fn status(&self) -> ProcessStatus {
        let targets = self.targets.lock().iter().map(|target| self.target_status(*target)).collect();
        // Locked once for the whole answer, and after the targets, which lock it too.
        let mount = self.mount.lock();
        ProcessStatus {
            name: self.plan.name.clone(),
            pid: std::process::id(),
            uptime_seconds: self.started.elapsed().as_secs(),
            fsname: self.plan.fsname.clone(),
            targets,
            mount: mount.as_ref().map(|mount| mount.status(&self.plan)),
            log: crate::logger::path(),
            checksum_errors: self.services.checksum_errors()
                + mount.as_ref().map_or(0, Mounted::checksum_errors),
            listening: self.listening(),
            clocks: mount.as_ref().map_or_else(Vec::new, Mounted::clocks),
        }
    }

    fn listening(&self) -> Vec<ListeningStatus> {
        let bound = self.server.as_ref().map_or(&[][..], Server::addrs);
        let has_keys = self.keys.as_ref().is_some_and(|keys| keys.server().is_some());
        let of = |(endpoint, address): (&Endpoint, &SocketAddr)| ListeningStatus {
            address: address.to_string(),
            security: if has_keys { endpoint.security } else { Security::Open }.to_string(),
        };
        self.plan.listen.iter().zip(bound).map(of).collect()
    }

    fn target_status(&self, target: TargetId) -> TargetStatus {
        TargetStatus {
            target: target.to_string(),
            nids: self.plan.nids(self.server.as_ref()).iter().map(Nid::to_string).collect(),
            clients: (target.kind == TargetKind::Mdt).then(|| self.client_count()),
            space: self.space_of(target).map(space_status),
            problems: self.problems_of(target),
        }
    }

    /// Returns the number of problems that the check of a target in use has found and not repaired.
    fn problems_of(&self, target: TargetId) -> u64 {
        let mds = || self.services.mds(target.index).map(|mds| mds.scrub.status().left());
        let damaged = |index: u16| {
            let status = self.services.ost(index)?.scrub()?.status();
            Some(status.damaged.max(status.last_damaged))
        };
        let found = match target.kind {
            TargetKind::Mdt => mds(),
            TargetKind::Ost => damaged(target.index),
            TargetKind::Mgt => None,
        };
        found.unwrap_or(0)
    }

    /// Returns the number of clients of the metadata target: those connected over TCP, and the mount of this
    /// process.
    fn client_count(&self) -> u64 {
        let remote = self.server.as_ref().map_or(0, |server| server.client_count());
        remote as u64 + u64::from(self.mount.lock().is_some())
    }

    fn space_of(&self, target: TargetId) -> Option<Statfs> {
        match target.kind {
            TargetKind::Ost => {
                let services = self.services.osts();
                services.get(&target.index)?.space().ok()
            }
            TargetKind::Mdt => self.services.mds(target.index).map(|mds| mds.statfs()),
            TargetKind::Mgt => None,
        }
    }
}

fn pool_change(step: PoolStep) -> PoolChange {
    match step {
        PoolStep::Create => PoolChange::Create,
        PoolStep::Destroy => PoolChange::Destroy,
        PoolStep::Add { ost } => PoolChange::Add { ost },
        PoolStep::Remove { ost } => PoolChange::Remove { ost },
    }
}

fn pools(config: FsConfig) -> Answer {
    let osts = config.targets.iter().filter(|known| known.target.kind == TargetKind::Ost);
    Answer::Pools {
        osts: osts.map(|known| known.target.index).collect(),
        pools: config.pools.into_iter().map(|pool| (pool.name.to_string(), pool.osts)).collect(),
    }
}

fn space_status(statfs: Statfs) -> SpaceStatus {
    let bytes = |blocks: u64| blocks.saturating_mul(u64::from(statfs.block_size));
    SpaceStatus {
        total_bytes: bytes(statfs.blocks),
        used_bytes: bytes(statfs.blocks.saturating_sub(statfs.blocks_free)),
        available_bytes: bytes(statfs.blocks_available),
        files_free: statfs.files_free,
    }
}

/// Returns the names that match a pattern; a pattern without an instance matches any.
fn names(tree: &Tree, pattern: &Pattern, recursive: bool) -> Vec<ParamName> {
    let mut found = tree.find(pattern, recursive);
    if let (true, Some(longer)) = (found.is_empty(), pattern.with_any_instance()) {
        found = tree.find(&longer, recursive);
    }
    let entry = |found: Found| {
        let access = match found.kind {
            Kind::Directory => Access { readable: false, writable: false },
            Kind::Parameter(access) => access,
        };
        ParamName {
            name: found.name,
            directory: found.kind == Kind::Directory,
            readable: access.readable,
            writable: access.writable,
        }
    };
    found.into_iter().map(entry).collect()
}

fn done(outcome: StatusResult<()>) -> Answer {
    outcome.map_or_else(refused, |()| Answer::Done)
}

fn invalid(error: &nacre_types::nodemap::NodemapError) -> Answer {
    Answer::refusal(Errno::INVAL, error.to_string())
}

fn refused(status: Status) -> Answer {
    let errno = Errno::from_raw_os_error(status.errno());
    Answer::refusal(errno, error_text(errno))
}
