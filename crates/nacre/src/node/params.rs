//! Parameters of a process, the target of `lctl get_param` and `set_param`.
//!
//! Names are Lustre's. The management server stores persistent settings (`set_param -P`) as patterns; each
//! process applies those that match its parameters at its start, when they change, and when a target joins.

mod block;
mod cache;
mod changelog;
mod debug;
mod dom;
mod exports;
mod jobs;
mod ldlm;
mod llite;
mod lmv;
mod lod;
mod mdt;
mod nxd;
mod osc;
mod osp;
mod pools;
mod scrub;
mod services;
mod simulated;
mod trim;

use super::links::Links;
use crate::local_params::Setting;
use crate::logger;
use nacre_client::Client;
use nacre_env::sync::Mutex;
use nacre_fuse::front::Front;
use nacre_layout::PoolName;
use nacre_mds::Mds;
use nacre_mgs::Mgs;
use nacre_mgs::params::{PARAMS, Param};
use nacre_oss::ObjectServer;
use nacre_params::known::{self, Refusal};
use nacre_params::{Entries, Kind, Pattern, Tree};
use nacre_rpc::{Hold, ImportInfo, OssService};
use nacre_types::{Status, StatusResult, TargetId, TargetKind};
use nacre_wire::mds::Statfs;
use nacre_wire::mgs::{FsConfig, MgsRequest, PoolChange, PoolConfig};
use std::sync::Arc;
use std::time::Duration;

/// Largest timeout of a client's answer to a blocking callback, in seconds: Lustre's bound on adaptive
/// timeouts.
const LDLM_TIMEOUT_MAX_S: i64 = 600;

/// Parameters of a process, and the persistent settings that were applied to them.
#[derive(Default)]
pub struct Params {
    tree: Tree,
    /// Persistent settings of the newest known configuration.
    lasting: Mutex<Vec<(String, String)>>,
    /// Settings of this host, which take precedence.
    local: Mutex<Vec<Setting>>,
    targets: Arc<services::Targets>,
}

impl Params {
    /// Creates the parameters that every process has.
    pub fn new() -> Params {
        let params = Params::default();
        params.tree.add_read("version", || Ok(format!("{}_nacre", env!("CARGO_PKG_VERSION"))));
        let set_level = |text: &str| logger::set_level(text).then_some(()).ok_or(Status::EINVAL);
        params.tree.add_both("debug", || Ok(logger::level()), set_level);
        services::enter_process(&params.tree, &params.targets);
        debug::enter(&params.tree);
        params
    }

    /// Returns the targets of this process.
    pub fn targets(&self) -> &services::Targets {
        &self.targets
    }

    /// Returns the tree of parameters.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Adopts the persistent settings of the file system: applies new and changed ones.
    pub fn use_configuration(&self, config: &FsConfig) {
        let mut lasting = self.lasting.lock();
        for setting in config.params.iter().filter(|setting| !lasting.contains(setting)) {
            self.apply(setting);
        }
        lasting.clone_from(&config.params);
    }

    /// Applies the persistent settings of new pools to the metadata targets of this process.
    pub fn apply_to_new_pools(&self, before: &[PoolConfig], now: &[PoolConfig]) {
        for pool in now.iter().filter(|pool| !before.iter().any(|known| known.name == pool.name)) {
            let Ok(pattern) = Pattern::parse(&format!("lod.*.pool.{}", pool.name)) else { continue };
            for found in self.tree.find(&pattern, false) {
                self.apply_lasting(&found.name);
            }
        }
    }

    /// Adopts the settings of this host for its mounts: applies them to present and later parameters.
    pub fn use_local(&self, settings: Vec<Setting>) {
        let mut local = self.local.lock();
        settings.iter().for_each(|setting| self.apply(setting));
        *local = settings;
    }

    /// Applies the persistent settings to parameters that were just entered.
    fn apply_lasting(&self, prefix: &str) {
        for (name, value) in self.lasting.lock().iter().chain(self.local.lock().iter()) {
            self.apply_below(name, value, prefix);
        }
    }

    fn apply(&self, setting: &Setting) {
        self.apply_below(&setting.0, &setting.1, "");
    }

    fn apply_below(&self, name: &str, value: &str, prefix: &str) {
        // Layout defaults belong to no single process; their users read the configuration.
        if PARAMS.iter().any(|param| param.name == name) {
            return;
        }
        let Ok(pattern) = Pattern::parse(name) else { return };
        let pattern = pattern.with_any_instance().unwrap_or(pattern);
        for found in self.tree.find(&pattern, false) {
            if matches!(found.kind, Kind::Directory) || !found.name.starts_with(prefix) {
                continue;
            }
            match self.tree.write(&found.name, value) {
                Ok(()) => log::info!("{}={value}, a lasting setting", found.name),
                Err(status) => log::warn!("{} cannot be set to '{value}': {status}", found.name),
            }
        }
    }

    /// Enters the parameters of an object target.
    pub fn enter_ost(&self, fsname: &str, index: u16, server: &Arc<ObjectServer>) {
        let name = format!("{fsname}-OST{index:04x}");
        let (below, osd) = (format!("obdfilter.{name}"), format!("osd-file.{name}"));
        let (filter, store) = (self.tree.of(&below, server), self.tree.of(&osd, server));
        enter_uuid(&filter, &name);
        for entries in [&filter, &store] {
            enter_space(entries, ObjectServer::space);
            enter_brw_stats(entries);
        }
        store.show("fstype", block::store_kind);
        self.targets.add_ost(&self.tree, &name, server);
        filter.show("tot_granted", ObjectServer::granted_bytes);
        filter.counters("stats", |server| server.stats().text(), |server| server.stats().clear());
        let operator = Arc::new(Mutex::new((false, false)));
        type Which = fn(&mut (bool, bool)) -> &mut bool;
        let switches: [(&str, Which); 2] =
            [("degraded", |state| &mut state.0), ("no_create", |state| &mut state.1)];
        for (leaf, which) in switches {
            let (get, set) = (operator.clone(), operator.clone());
            filter.flag(
                leaf,
                move |_| *which(&mut get.lock()),
                move |server, on| {
                    let mut state = set.lock();
                    *which(&mut state) = on;
                    server.set_state(state.0, state.1);
                },
            );
        }
        enter_hold(&filter, ObjectServer::hold);
        store.flag("nonrotational", ObjectServer::is_nonrotational, ObjectServer::set_nonrotational);
        filter.show("num_exports", |server| server.locks().exports().len());
        let locks = self.tree.of(&below, server.locks());
        services::enter_recovery(&locks);
        ldlm::enter_timeout(&locks, LDLM_TIMEOUT_MAX_S);
        jobs::enter_stats(&filter, ObjectServer::job_stats);
        cache::enter(&self.tree, &name, server);
        nxd::enter(&self.tree, &name, server);
        trim::enter(&filter);
        block::enter(&filter, &name);
        scrub::enter_ost(&filter);
        exports::enter_ost(&self.tree, &below, server);
        let namespace = format!("ldlm.namespaces.filter-{name}_UUID");
        ldlm::enter(&self.tree, &namespace, server.locks());
        for lasting in [below, osd, format!("nxd.{name}"), namespace] {
            self.apply_lasting(&lasting);
        }
    }

    /// Enters the parameters of a metadata target that monitoring reads.
    fn enter_mdt_state(&self, name: &str, mds: &Arc<Mds>) {
        self.targets.add_mdt(&self.tree, name, mds);
        let mdt = self.tree.of(&format!("mdt.{name}"), mds);
        let osd = self.tree.of(&format!("osd-file.{name}"), mds);
        for entries in [&mdt, &osd] {
            enter_space(entries, |mds| Ok(mds.statfs()));
        }
        osd.show("fstype", |_| "file");
        services::enter_mdt_recovery(&mdt);
        mdt.show("num_exports", |mds| {
            let exports = mds.stats.exports();
            let nids = exports.names();
            nids.iter().filter_map(|nid| Some(exports.find(nid)?.1.len())).sum::<usize>()
        });
        mdt.show("instance", Mds::run_number);
    }

    /// Enters the parameters of the device on which an MDT keeps data of files, if it has one.
    fn enter_data(&self, fsname: &str, index: u16, server: &Arc<ObjectServer>) {
        let Some(data) =
            TargetId::mdt_data(index).filter(|_| server.store().abilities().device_store.is_some())
        else {
            return;
        };
        let name = format!("{fsname}-{data}");
        let below = format!("obdfilter.{name}");
        let filter = self.tree.of(&below, server);
        enter_space(&filter, ObjectServer::space);
        enter_brw_stats(&filter);
        trim::enter(&filter);
        block::enter(&filter, &name);
        self.apply_lasting(&below);
    }

    /// Enters the parameters of a metadata target.
    pub fn enter_mdt(
        &self,
        fsname: &str,
        index: u16,
        mds: &Arc<Mds>,
        data: Option<&Arc<ObjectServer>>,
        links: &Arc<Links>,
    ) {
        let name = format!("{fsname}-MDT{index:04x}");
        let below = format!("mdt.{name}");
        let mdt = self.tree.of(&below, mds);
        enter_uuid(&mdt, &name);
        self.enter_mdt_state(&name, mds);
        mdt.counters("md_stats", |mds| mds.stats.text(), |mds| mds.stats.clear());
        jobs::enter_stats(&mdt, |mds| mds.stats.jobs());
        exports::enter_mdt(&self.tree, &below, mds);
        enter_hold(&mdt, |mds| &mds.hold);
        mdt.show("lock_waiters", Mds::lock_waiters);
        let lod = format!("lod.{name}-mdtlov");
        self.enter_layout_defaults(&lod, links);
        let known = mds.clone();
        pools::enter(&self.tree, &lod, fsname, move || known.osts.pools());
        let placing = self.tree.of(&lod, mds);
        osp::enter_targets(&placing, fsname);
        dom::enter(&placing);
        data.iter().for_each(|data| {
            dom::enter_stats(&self.tree.of(&below, data));
            self.enter_data(fsname, index, data);
        });
        mdt::enter(&mdt);
        simulated::enter(&mdt, &below);
        lod::enter(&self.tree, &lod, mds);
        let mdd = format!("mdd.{name}");
        lod::enter_append(&self.tree.of(&mdd, mds));
        scrub::enter_mdt(&self.tree.of(&mdd, mds));
        changelog::enter(&self.tree.of(&mdd, &mds.changelog));
        self.apply_lasting(&mdd);
        mdt.integer(
            "ldlm_timeout",
            1..=LDLM_TIMEOUT_MAX_S,
            |mds| mds.sessions.release_timeout().as_secs(),
            |mds, seconds| mds.sessions.set_release_timeout(Duration::from_secs(seconds.unsigned_abs())),
        );
        let osd = self.tree.of(&format!("osd-file.{name}"), mds);
        osd.integer("commit_interval_ms", 10..=60_000, Mds::commit_interval_ms, |mds, interval_ms| {
            mds.set_commit_interval_ms(interval_ms.unsigned_abs())
        });
        osd.flag(
            "nonrotational",
            |mds| mds.space.is_nonrotational(),
            |mds, on| mds.space.set_nonrotational(on),
        );
        let namespace = format!("ldlm.namespaces.mdt-{name}_UUID");
        ldlm::enter(&self.tree, &namespace, &mds.mdlocks);
        self.apply_lasting(&lod);
        self.apply_lasting(&below);
        self.apply_lasting(&namespace);
    }

    /// Enters the default striping, which the whole file system shares, below `below`.
    fn enter_layout_defaults(&self, below: &str, links: &Arc<Links>) {
        let entries = self.tree.of(below, links);
        for param in PARAMS {
            let Some((_, leaf)) = param.name.split_once('.') else { continue };
            entries.both(
                leaf,
                |links| {
                    let config = links.config(0, 0)?;
                    let set = config.params.into_iter().find(|(name, _)| name == param.name);
                    Ok(set.map_or_else(|| param.default.to_owned(), |(_, value)| value))
                },
                |links, text| {
                    let request = MgsRequest::SetParam { name: param.name.into(), value: text.into() };
                    links.mgs().call(&request).map(drop)
                },
            );
        }
    }

    /// Enters the parameters of the management server.
    pub fn enter_mgs(&self, fsname: &str, mgs: &Arc<Mgs>) {
        services::enter_mgs(&self.tree, fsname, mgs);
    }

    /// Enters the parameters of a mount and of its connections to targets.
    pub fn enter_mount(&self, client: &Arc<Client>, front: &Arc<Front>, links: &Arc<Links>) {
        let info = client.config.mount_info();
        let (fsname, instance) = (info.fsname, info.instance);
        let llite = format!("llite.{fsname}-{instance}");
        let mount = self.tree.of(&llite, client);
        let uuid = instance.clone();
        mount.show("uuid", move |_| uuid.clone());
        mount.show("fstype", |_| "nacre");
        enter_space(&mount, |client| client.requests.statfs());
        let calls = self.tree.of(&llite, front);
        calls.counters("stats", |front| front.stats().text(), |front| front.stats().clear());
        llite::enter(&self.tree, &llite, client);
        llite::enter_extents(&calls);
        services::enter_callbacks(&self.tree, client);
        services::enter_mgc(&self.tree, links);
        jobs::enter_names(&self.tree, client);
        self.apply_lasting("jobid_");
        let lov = format!("lov.{fsname}-clilov-{instance}");
        self.enter_layout_defaults(&lov, links);
        let known = client.clone();
        pools::enter(&self.tree, &lov, &fsname, move || known.requests.pools());
        enter_targets(&self.tree.of(&lov, client), TargetKind::Ost);
        let lmv = format!("lmv.{fsname}-clilmv-{instance}");
        let spreading = self.tree.of(&lmv, client);
        enter_targets(&spreading, TargetKind::Mdt);
        lmv::enter(&spreading);
        self.apply_lasting(&lmv);
        self.apply_lasting(&llite);
        for target in client.requests.targets() {
            self.enter_way(client, target);
        }
    }

    /// Enters the parameters of a mount's connection to a target.
    pub fn enter_way(&self, client: &Arc<Client>, target: TargetId) {
        let info = client.config.mount_info();
        let (kind, server) = match target.kind {
            TargetKind::Ost => ("osc", "ost_server_uuid"),
            _ => ("mdc", "mds_server_uuid"),
        };
        let name = format!("{}-{target}", info.fsname);
        let below = format!("{kind}.{name}-{kind}-{}", info.instance);
        let way = self.tree.of(&below, client);
        let uuid = format!("{name}_UUID");
        way.show(server, move |_| uuid.clone());
        enter_space(&way, move |client| client.requests.target_statfs(target));
        if target.kind == TargetKind::Ost {
            osc::enter(&way, target.index);
        }
        let namespace = format!("ldlm.namespaces.{name}-{kind}-{}", info.instance);
        ldlm::enter_mount(&self.tree.of(&namespace, client), target);
        self.apply_lasting(&namespace);
        enter_import(&way, move |client| import(client, target));
        self.apply_lasting(&below);
    }
}

/// Sets a parameter persistently for all nodes: the management server checks and stores it; an empty value
/// removes it.
///
/// # Errors
/// The answer of the management server: `ENOENT` if no parameter matches, otherwise the fault of the value,
/// with the reason as far as this process knows it.
pub fn set_for_good(links: &Links, name: &str, value: &str) -> Result<(), Refusal> {
    let shared = Param::shown_as(name).map(|param| param.name);
    let request = MgsRequest::SetParam { name: shared.unwrap_or(name).to_owned(), value: value.to_owned() };
    links.mgs().call(&request).map(drop).map_err(|status| match shared {
        None if !value.is_empty() => match known::check(name, value) {
            Err(refusal) if refusal.status == status => refusal,
            _ => Refusal { status, reason: String::new() },
        },
        _ => Refusal { status, reason: String::new() },
    })
}

/// Requests a change of a pool from the management server.
///
/// # Errors
/// `EINVAL` for an invalid name of a pool; the status of the management server.
pub fn change_pool(links: &Links, pool: &str, change: PoolChange) -> StatusResult<()> {
    let pool = PoolName::new(pool.as_bytes()).ok_or(Status::EINVAL)?;
    links.mgs().call(&MgsRequest::ChangePool { pool, change }).map(drop)
}

/// Enters the UUID of the target `name`.
fn enter_uuid<T: Send + Sync + 'static>(entries: &Entries<'_, T>, name: &str) {
    let uuid = format!("{name}_UUID");
    entries.show("uuid", move |_| uuid.clone());
}

/// Returns the state of a connection to a target; one in this process is always connected.
fn import(client: &Client, target: TargetId) -> StatusResult<ImportInfo> {
    let found = match target.kind {
        TargetKind::Ost => client.requests.ost_endpoint(target.index).map(|ost| ost.import()),
        _ => client.requests.mdt_endpoint(target.index).map(|mdt| mdt.import()),
    };
    let name = format!("{}-{target}", client.config.mount_info().fsname);
    found.ok_or(Status::ENODEV).map(|import| import.unwrap_or_else(|| ImportInfo::local(name)))
}

/// Enters the details of a connection, and its state alone.
fn enter_import<T: Send + Sync + 'static>(
    entries: &Entries<'_, T>,
    import: impl Fn(&T) -> StatusResult<ImportInfo> + Clone + Send + Sync + 'static,
) {
    let whole = import.clone();
    entries.read("import", move |subject| Ok(format!("{}\n", whole(subject)?)));
    entries.read("state", move |subject| Ok(format!("current_state: {}\n", import(subject)?.state.name())));
}

/// Enters histograms of a target's reads and writes by size, time and more.
fn enter_brw_stats(entries: &Entries<'_, ObjectServer>) {
    entries.counters("brw_stats", ObjectServer::brw_stats, ObjectServer::clear_brw_stats);
}

/// Enters `hold_request` of a target.
fn enter_hold<T: Send + Sync + 'static>(entries: &Entries<'_, T>, hold: fn(&T) -> &Hold) {
    entries.setting(
        "hold_request",
        move |target| hold(target).text(),
        move |target, text| hold(target).set(text),
    );
}

/// Formats counters as `name value` lines with the values at column `column`.
fn rows(column: usize, rows: &[(&str, u64)]) -> String {
    rows.iter().map(|(name, count)| format!("{name:<column$}{count}\n")).collect()
}

/// Enters the space of a target or mount in Lustre's units: KiB and inodes.
fn enter_space<T: Send + Sync + 'static>(
    entries: &Entries<'_, T>,
    statfs: impl Fn(&T) -> StatusResult<Statfs> + Clone + Send + Sync + 'static,
) {
    type Choose = fn(&Statfs) -> u64;
    let leaves: [(&str, Choose); 6] = [
        ("blocksize", |space| u64::from(space.block_size)),
        ("kbytestotal", |space| kib(space, space.blocks)),
        ("kbytesfree", |space| kib(space, space.blocks_free)),
        ("kbytesavail", |space| kib(space, space.blocks_available)),
        ("filestotal", |space| space.files),
        ("filesfree", |space| space.files_free),
    ];
    for (leaf, choose) in leaves {
        let statfs = statfs.clone();
        entries.read(leaf, move |subject| Ok(choose(&statfs(subject)?)));
    }
}

fn kib(space: &Statfs, blocks: u64) -> u64 {
    u64::try_from(u128::from(blocks) * u128::from(space.block_size) / 1024).unwrap_or(u64::MAX)
}

/// Enters the number and the names of a mount's targets of a kind.
fn enter_targets(entries: &Entries<'_, Client>, kind: TargetKind) {
    let of_kind = move |client: &Client| -> Vec<TargetId> {
        client.requests.targets().into_iter().filter(|target| target.kind == kind).collect()
    };
    let is_active = |client: &Client, target: &TargetId| {
        target.kind != TargetKind::Ost
            || client.requests.ost_endpoint(target.index).is_none_or(|endpoint| endpoint.is_active())
    };
    entries.show("numobd", move |client| of_kind(client).len());
    entries.show("activeobd", move |client| {
        of_kind(client).iter().filter(|target| is_active(client, target)).count()
    });
    entries.show("target_obd", move |client| {
        let fsname = client.config.mount_info().fsname;
        let line = |target: TargetId| {
            let state = if is_active(client, &target) { "ACTIVE" } else { "INACTIVE" };
            format!("{}: {fsname}-{target}_UUID {state}\n", target.index)
        };
        of_kind(client).into_iter().map(line).collect::<String>()
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lasting_settings_reach_what_they_match_once_and_again_what_comes_later() {
        let params = Params::new();
        let set = Arc::new(Mutex::new(Vec::new()));
        let enter = |name: &str| {
            let (set, own) = (set.clone(), name.to_owned());
            params.tree.add_both(
                name,
                || Ok("".to_owned()),
                move |value| {
                    set.lock().push(format!("{own}={value}"));
                    Ok(())
                },
            );
        };
        enter("osc.a.limit");
        enter("osc.b.limit");
        let setting = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let config = |params| FsConfig { params, ..FsConfig::default() };
        let first = vec![setting("lov.stripesize", "65536"), setting("osc.*.limit", "4")];
        params.use_configuration(&config(first.clone()));
        params.use_configuration(&config(first));
        assert_eq!(*set.lock(), ["osc.a.limit=4", "osc.b.limit=4"]);
        params.use_configuration(&config(vec![setting("osc.*.limit", "4"), setting("osc.b.limit", "5")]));
        assert_eq!(set.lock().last().map(String::as_str), Some("osc.b.limit=5"));
        enter("osc.c.limit");
        params.apply_lasting("osc.c");
        assert_eq!(set.lock().last().map(String::as_str), Some("osc.c.limit=4"));
        assert_eq!(set.lock().len(), 4);
        params.use_local(vec![setting("osc.limit", "8")]);
        assert_eq!(set.lock()[4..], ["osc.a.limit=8", "osc.b.limit=8", "osc.c.limit=8"]);
        enter("osc.d.limit");
        params.apply_lasting("osc.d");
        assert_eq!(set.lock()[7..], ["osc.d.limit=4", "osc.d.limit=8"]);
    }
}
