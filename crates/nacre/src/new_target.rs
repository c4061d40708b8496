//! Creation of a target that is added to a file system, with the requested options.

use crate::failure::Result;
use crate::instance::Instance;
use crate::target_options::TargetOptions;
use crate::{node, ost_class};
use nacre_types::{TargetId, TargetKind};

/// Fills the directory of a new target, and attaches its cache.
///
/// # Errors
/// If a device is refused: then nothing on it was overwritten. The caller removes the directory.
pub fn make(instance: &Instance, target: TargetId, target_options: &TargetOptions) -> Result<()> {
    let caches = target_options.caches(target.index)?;
    caches.check_new()?;
    node::format_target_on(instance, target, &target_options.backends()?)?;
    node::attach_caches(instance, &caches)?;
    keep_class(instance, target, target_options)
}

/// Checks that a target from an interrupted attempt has the requested options, and adds those that can still
/// be added.
///
/// # Errors
/// If it has another back end, or the cache cannot be attached.
pub fn go_on(instance: &Instance, target: TargetId, target_options: &TargetOptions) -> Result<()> {
    target_options.backends()?.check(instance, target)?;
    if target.kind != TargetKind::Ost {
        return Ok(());
    }
    node::attach_caches(instance, &target_options.caches(target.index)?)?;
    keep_class(instance, target, target_options)
}

fn keep_class(instance: &Instance, target: TargetId, target_options: &TargetOptions) -> Result<()> {
    match (target_options.flash, target_options.disk) {
        (false, false) => Ok(()),
        (is_flash, _) => ost_class::keep_for(&instance.target_dir(target), is_flash),
    }
}
