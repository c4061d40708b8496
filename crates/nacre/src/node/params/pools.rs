//! OST pools as parameters: `lov.*.pools.NAME` of mounts and `lod.*.pools.NAME` of metadata targets list the
//! members.

use nacre_params::{Access, Family, Tree};
use nacre_types::{Status, StatusResult, TargetId};
use nacre_wire::mgs::PoolConfig;
use std::sync::Arc;

/// Source of the known pools.
type Known = Box<dyn Fn() -> Vec<PoolConfig> + Send + Sync>;

struct Members {
    fsname: String,
    known: Known,
}

/// Enters the pools of `known` below `below`.
pub fn enter(
    tree: &Tree,
    below: &str,
    fsname: &str,
    known: impl Fn() -> Vec<PoolConfig> + Send + Sync + 'static,
) {
    let family = Members { fsname: fsname.to_owned(), known: Box::new(known) };
    tree.add_family(&format!("{below}.pools"), Arc::new(family));
}

impl Family for Members {
    fn names(&self) -> Vec<(String, Access)> {
        let access = Access { readable: true, writable: false };
        (self.known)().into_iter().map(|pool| (pool.name.to_string(), access)).collect()
    }

    fn read(&self, name: &str) -> StatusResult<String> {
        let pools = (self.known)();
        let pool = pools.iter().find(|pool| pool.name.as_str() == name).ok_or(Status::ENOENT)?;
        let uuid = |index: &u16| format!("{}\n", TargetId::ost(*index).uuid(&self.fsname));
        Ok(pool.osts.iter().map(uuid).collect())
    }

    fn write(&self, _: &str, _: &str) -> StatusResult<()> {
        Err(Status::EACCES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_layout::PoolName;

    #[test]
    fn a_pool_is_a_parameter_with_its_members() {
        let tree = Tree::new();
        let pool = PoolConfig { name: PoolName::for_pool("flash").expect("a name"), osts: vec![0x1f, 0] };
        enter(&tree, "lov.x-clilov-1", "x", move || vec![pool.clone()]);
        let value = tree.read("lov.x-clilov-1.pools.flash");
        assert_eq!(value.as_deref(), Ok("x-OST001f_UUID\nx-OST0000_UUID\n"));
        assert_eq!(tree.read("lov.x-clilov-1.pools.disk"), Err(Status::ENOENT));
        assert_eq!(tree.write("lov.x-clilov-1.pools.flash", "1"), Err(Status::EACCES));
    }
}
