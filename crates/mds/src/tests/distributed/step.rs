//! Operations on the namespace: chosen at random, executed, and compared with a model.

use super::*;

/// An operation on the namespace.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Make {
        parent: Fid,
        name: String,
        fid: Fid,
        is_dir: bool,
    },
    Link {
        fid: Fid,
        parent: Fid,
        name: String,
    },
    Unlink {
        parent: Fid,
        name: String,
        is_dir: bool,
    },
    Rename {
        from: (Fid, String),
        to: (Fid, String),
        flags: RenameFlags,
    },
    /// The directory gets this many shards, which programs do not see.
    Restripe {
        fid: Fid,
        count: i32,
        hash: DirHash,
    },
    /// An inode gets another FID.
    Migrate {
        fid: Fid,
        to: Fid,
    },
    /// Files of one MDT get other FIDs, some together, and some possibly not.
    MigrateFiles {
        moves: Vec<(Fid, Fid)>,
    },
}

impl Step {
    pub(super) fn roll(dice: &mut Rng, world: &World, tree: &Tree) -> Step {
        let directories: Vec<Fid> = tree.keys().copied().collect();
        let directory = |dice: &mut Rng| directories[pick(dice, directories.len())];
        let name = |dice: &mut Rng| format!("n{}", pick(dice, 5));
        let parent = directory(dice);
        match pick(dice, 12) {
            0 | 1 => {
                let mdt = pick(dice, usize::from(world.count())) as u16;
                let fid = match pick(dice, 3) {
                    0 => {
                        let mdts: Vec<u16> =
                            (0..2 + pick(dice, 3) as u16).map(|i| (mdt + i) % world.count()).collect();
                        world.striped(mdt, &mdts, DirHash::ALL[pick(dice, 4)])
                    }
                    _ => world.fid(mdt),
                };
                Step::Make { parent, name: name(dice), fid, is_dir: true }
            }
            2 => {
                let name = name(dice);
                let fid = world.fid(world.home(parent, &name).mdt_index());
                Step::Make { parent, name, fid, is_dir: false }
            }
            3 => {
                let files: Vec<Fid> = tree
                    .values()
                    .flat_map(|names| names.values())
                    .filter(|entry| !entry.is_dir)
                    .map(|entry| entry.fid)
                    .collect();
                let name = name(dice);
                match files.is_empty() {
                    true => {
                        let fid = world.fid(world.home(parent, &name).mdt_index());
                        Step::Make { parent, name, fid, is_dir: false }
                    }
                    false => Step::Link { fid: files[pick(dice, files.len())], parent, name },
                }
            }
            4 => Step::Unlink { parent, name: name(dice), is_dir: false },
            5 => Step::Unlink { parent, name: name(dice), is_dir: true },
            6 => {
                let (count, hash) = (1 + pick(dice, 6) as i32, DirHash::ALL[pick(dice, 4)]);
                Step::Restripe { fid: parent, count, hash }
            }
            7 | 8 => {
                let names = tree.values().flat_map(|names| names.values());
                let entries: Vec<&Entry> = names.collect();
                match entries.is_empty() {
                    true => Step::Unlink { parent, name: name(dice), is_dir: false },
                    false => {
                        let entry = entries[pick(dice, entries.len())];
                        match !entry.is_dir && pick(dice, 2) == 0 {
                            true => Step::migrate_files(dice, world, (entry, &entries)),
                            false => Step::migrate(dice, world, entry),
                        }
                    }
                }
            }
            _ => {
                let flags = match pick(dice, 4) {
                    0 => RenameFlags::NOREPLACE,
                    1 => RenameFlags::EXCHANGE,
                    _ => RenameFlags::empty(),
                };
                Step::Rename { from: (parent, name(dice)), to: (directory(dice), name(dice)), flags }
            }
        }
    }

    fn migrate(dice: &mut Rng, world: &World, entry: &Entry) -> Step {
        let mdt = pick(dice, usize::from(world.count())) as u16;
        let to = match entry.is_dir && pick(dice, 2) == 0 {
            true => {
                let mdts = [mdt, (mdt + 1) % world.count(), mdt];
                world.striped(mdt, &mdts[..2 + pick(dice, 2)], DirHash::ALL[pick(dice, 4)])
            }
            false => world.fid(mdt),
        };
        Step::Migrate { fid: entry.fid, to }
    }

    /// Chooses up to four files of one MDT, and another MDT for them.
    fn migrate_files(dice: &mut Rng, world: &World, (entry, entries): (&Entry, &[&Entry])) -> Step {
        let mdt = entry.fid.mdt_index();
        let files = entries.iter().filter(|entry| !entry.is_dir && entry.fid.mdt_index() == mdt);
        let files: BTreeSet<Fid> = files.map(|entry| entry.fid).collect();
        let mut to = || {
            let others = pick(dice, usize::from(world.count()) - 1) as u16 + 1;
            world.fid((mdt + others) % world.count())
        };
        Step::MigrateFiles { moves: files.into_iter().take(4).map(|fid| (fid, to())).collect() }
    }

    /// Returns true if a server may refuse the step with this status.
    pub(super) fn may_be_refused(&self, status: Status) -> bool {
        matches!(self, Step::Migrate { .. }) && matches!(status, Status::EBUSY | Status::EALREADY)
    }

    /// Returns the possible namespaces after a failure: of several files, some may have moved.
    pub(super) fn partly(&self, tree: &Tree) -> Vec<Tree> {
        let Step::MigrateFiles { moves } = self else { return vec![tree.clone()] };
        let some = |choice: u32| {
            let mut tree = tree.clone();
            let chosen = moves.iter().enumerate().filter(|(at, _)| choice >> at & 1 == 1);
            chosen.for_each(|(_, (fid, to))| model::migrate(&mut tree, *fid, *to));
            tree
        };
        (0..1 << moves.len()).map(some).collect()
    }

    pub(super) fn run(&self, world: &World) -> StatusResult<()> {
        match self {
            Step::Make { parent, name, fid, is_dir } => world.make(*parent, name, *fid, *is_dir).map(drop),
            Step::Link { fid, parent, name } => world.at_home(*parent, name, |parent| {
                let request = MdsRequest::Link { fid: *fid, parent, name: name.as_bytes() };
                world.run(parent.mdt_index(), &request).map(drop)
            }),
            Step::Unlink { parent, name, is_dir } => world.at_home(*parent, name, |parent| {
                let request = MdsRequest::Unlink { parent, name: name.as_bytes(), directory: *is_dir };
                world.run(parent.mdt_index(), &request).map(drop)
            }),
            Step::Rename { from, to, flags } => world.at_home(from.0, &from.1, |from_parent| {
                world.at_home(to.0, &to.1, |to_parent| {
                    let request = MdsRequest::Rename {
                        from_parent,
                        from_name: from.1.as_bytes(),
                        to_parent,
                        to_name: to.1.as_bytes(),
                        flags: *flags,
                    };
                    world.run(from_parent.mdt_index(), &request).map(drop)
                })
            }),
            Step::Restripe { fid, count, hash } => {
                let mdts = (0..*count as u16).map(|shard| shard % world.count()).collect();
                let requested =
                    DirDefault { count: *count, hash: Some(*hash), mdts, ..DirDefault::default() };
                let request = MdsRequest::Restripe { fid: *fid, requested: &requested.encode() };
                match world.run(fid.mdt_index(), &request) {
                    Err(Status::EBUSY | Status::EALREADY) => Ok(()),
                    outcome => outcome.map(drop),
                }
            }
            Step::Migrate { fid, to } => {
                let lmv = world.layouts.lock().get(to).map(DirLayout::encode).unwrap_or_default();
                world.run(fid.mdt_index(), &MdsRequest::Migrate { fid: *fid, to: *to, lmv: &lmv }).map(drop)
            }
            Step::MigrateFiles { moves } => {
                let request = MdsRequest::MigrateFiles { moves: moves.clone() };
                let MdsReply::Outcomes(outcomes) = world.run(moves[0].0.mdt_index(), &request)? else {
                    return Err(Status::EPROTO);
                };
                assert_eq!(outcomes.len(), moves.len());
                outcomes.into_iter().flatten().next().map_or(Ok(()), Err)
            }
        }
    }

    /// Returns the MDTs that the step touches.
    pub(super) fn mdts(&self, world: &World, tree: &Tree) -> BTreeSet<u16> {
        let home = |parent: &Fid, name: &str| world.home(*parent, name);
        let lead =
            |parent: &Fid, name: &str| tree[parent].get(name).map_or(home(parent, name), |entry| entry.fid);
        let with_parts = |fid: Fid| {
            let new = world.layouts.lock().get(&fid).map(|list| list.shards.clone());
            [vec![fid], world.parts(fid), new.unwrap_or_default()].concat()
        };
        let fids = match self {
            Step::Make { parent, name, fid, .. } => [vec![home(parent, name)], with_parts(*fid)].concat(),
            Step::Link { parent, name, fid } => vec![home(parent, name), *fid],
            Step::Unlink { parent, name, .. } => {
                [vec![home(parent, name)], with_parts(lead(parent, name))].concat()
            }
            Step::Rename { from, to, .. } => [
                vec![home(&from.0, &from.1), lead(&from.0, &from.1), home(&to.0, &to.1)],
                with_parts(lead(&to.0, &to.1)),
            ]
            .concat(),
            // On all of them, so that no test relies on its loss.
            Step::Restripe { .. } | Step::Migrate { .. } | Step::MigrateFiles { .. } => {
                return (0..world.count()).collect();
            }
        };
        fids.iter().map(Fid::mdt_index).collect()
    }

    /// Returns the namespace after the step, or its errors if it is impossible.
    pub(super) fn model(&self, tree: &Tree) -> Result<Tree, Vec<Status>> {
        let mut tree = tree.clone();
        let find = |tree: &Tree, parent: &Fid, name: &str| tree[parent].get(name).cloned();
        match self {
            Step::Make { parent, name, fid, is_dir } => {
                if find(&tree, parent, name).is_some() {
                    return Err(vec![Status::EEXIST]);
                }
                let entry = Entry { fid: *fid, is_dir: *is_dir };
                tree.get_mut(parent).expect("a directory").insert(name.clone(), entry);
                if *is_dir {
                    tree.insert(*fid, BTreeMap::new());
                }
            }
            Step::Link { fid, parent, name } => {
                if find(&tree, parent, name).is_some() {
                    return Err(vec![Status::EEXIST]);
                }
                let entry = Entry { fid: *fid, is_dir: false };
                tree.get_mut(parent).expect("a directory").insert(name.clone(), entry);
            }
            Step::Unlink { parent, name, is_dir } => {
                let found = find(&tree, parent, name).ok_or(vec![Status::ENOENT])?;
                match (is_dir, found.is_dir) {
                    (true, false) => return Err(vec![Status::ENOTDIR]),
                    (false, true) => return Err(vec![Status::EISDIR]),
                    _ => {}
                }
                if *is_dir && !tree[&found.fid].is_empty() {
                    return Err(vec![Status::ENOTEMPTY]);
                }
                tree.get_mut(parent).expect("a directory").remove(name);
                tree.remove(&found.fid);
            }
            Step::Rename { from, to, flags } => return model::rename(tree, from, to, *flags),
            Step::Restripe { .. } => {}
            Step::Migrate { fid, to } => model::migrate(&mut tree, *fid, *to),
            Step::MigrateFiles { moves } => {
                moves.iter().for_each(|(fid, to)| model::migrate(&mut tree, *fid, *to));
            }
        }
        Ok(tree)
    }
}
