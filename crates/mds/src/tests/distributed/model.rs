//! Model of renames in a namespace.

use super::Tree;
use nacre_types::{Fid, Status};
use nacre_wire::mds::RenameFlags;

/// Gives an inode another FID.
pub(super) fn migrate(tree: &mut Tree, fid: Fid, to: Fid) {
    if let Some(names) = tree.remove(&fid) {
        tree.insert(to, names);
    }
    for entry in tree.values_mut().flat_map(|names| names.values_mut()).filter(|entry| entry.fid == fid) {
        entry.fid = to;
    }
}

/// Returns true if directory `inner` is `outer` or is below it.
fn lies_in(tree: &Tree, inner: Fid, outer: Fid) -> bool {
    inner == outer
        || tree.get(&outer).is_some_and(|names| {
            names.values().filter(|entry| entry.is_dir).any(|entry| lies_in(tree, inner, entry.fid))
        })
}

/// Returns the namespace after a rename, or its error if it is impossible.
pub(super) fn rename(
    mut tree: Tree,
    from: &(Fid, String),
    to: &(Fid, String),
    flags: RenameFlags,
) -> Result<Tree, Vec<Status>> {
    let source = tree[&from.0].get(&from.1).cloned().ok_or(vec![Status::ENOENT])?;
    let target = tree[&to.0].get(&to.1).cloned();
    let exchange = flags.contains(RenameFlags::EXCHANGE);
    let mut errors = Vec::new();
    if target.is_some() && flags.contains(RenameFlags::NOREPLACE) {
        errors.push(Status::EEXIST);
    }
    if target.is_none() && exchange {
        errors.push(Status::ENOENT);
    }
    if source.is_dir && lies_in(&tree, to.0, source.fid) {
        errors.push(Status::EINVAL);
    }
    if let Some(target) = &target {
        if target.is_dir && lies_in(&tree, from.0, target.fid) {
            errors.extend([Status::EINVAL, Status::ENOTEMPTY]);
        }
        if target.fid == source.fid && errors.is_empty() {
            return Ok(tree);
        }
        if !exchange {
            match (source.is_dir, target.is_dir) {
                (true, false) => errors.push(Status::ENOTDIR),
                (false, true) => errors.push(Status::EISDIR),
                (true, true) if !tree[&target.fid].is_empty() => errors.push(Status::ENOTEMPTY),
                _ => {}
            }
        }
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    tree.get_mut(&from.0).expect("a directory").remove(&from.1);
    if let Some(target) = target {
        if exchange {
            tree.get_mut(&from.0).expect("a directory").insert(from.1.clone(), target);
        } else if target.is_dir {
            tree.remove(&target.fid);
        }
    }
    tree.get_mut(&to.0).expect("a directory").insert(to.1.clone(), source);
    Ok(tree)
}
