//! Effective credentials of a client: its identity and its nodemap restrict the credentials that it claims.
//! The rules are in `docs/design/security.md`.

use crate::cred::{Caps, Cred, FullCred, User};
use crate::identity::{Identity, Roles};
use crate::nid::Nid;
use crate::nodemap::{IdKind, Nodemap, NodemapFlags, Nodemaps, SQUASHED};
use crate::status::{Status, StatusResult};
use std::sync::Arc;

/// Users that a client may act for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Acting {
    /// Any user, as it claims.
    Anybody,
    /// All its users but root.
    Users {
        /// True if their groups are those that it claims, not those of the server's user database.
        trusts_groups: bool,
    },
    /// This user only.
    User(u32),
}

/// Rights of a client at a server. See the [module documentation](self).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Standing {
    acting: Acting,
    nodemap: Option<Arc<Nodemap>>,
    read_only: bool,
    banned: bool,
    root: Option<String>,
}

/// Facts about a client when it connects.
#[derive(Clone, Copy, Debug)]
pub struct Proven<'a> {
    /// Identity in its certificate.
    pub identity: Option<&'a Identity>,
    /// True if it is another server of the file system.
    pub is_server: bool,
    /// Address that it connects from.
    pub nid: Nid,
}

/// Returns the smaller of two subtrees; `Err` if neither contains the other.
fn inner(a: Option<&str>, b: Option<&str>) -> Result<Option<String>, ()> {
    let within = |inner: &str, outer: &str| {
        inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    match (a, b) {
        (Some(a), Some(b)) if within(a, b) => Ok(Some(a.to_owned())),
        (Some(a), Some(b)) if within(b, a) => Ok(Some(b.to_owned())),
        (Some(_), Some(_)) => Err(()),
        (a, b) => Ok(a.or(b).map(str::to_owned)),
    }
}

impl Standing {
    /// Derives the rights of a client. `trusts_groups`: hosts are trusted with their users' groups.
    pub fn of(client: Proven<'_>, nodemaps: &Nodemaps, trusts_groups: bool) -> Standing {
        let roles = client.identity.map_or(Roles::empty(), |identity| identity.roles);
        let is_system = client.is_server || roles.contains(Roles::MDS);
        let acting = match client.identity {
            None => Acting::Anybody,
            Some(Identity { uid: Some(uid), .. }) => Acting::User(*uid),
            Some(_) if is_system || roles.contains(Roles::ADMIN) => Acting::Anybody,
            Some(_) => Acting::Users { trusts_groups },
        };
        let by_key = || client.identity.and_then(|identity| nodemaps.of_key(identity.id)).cloned();
        // An address alone puts neither administrators nor the server's own process into a nodemap.
        let by_place = || match client.nid {
            _ if roles.contains(Roles::ADMIN) => None,
            Nid::Lo if client.identity.is_none() => None,
            nid => Some(nodemaps.of_nid(nid).cloned().unwrap_or_else(|| nodemaps.default_map())),
        };
        let nodemap = if nodemaps.active && !is_system { by_key().or_else(by_place) } else { None };
        let has = |flag| nodemap.as_ref().is_some_and(|map| map.flags().contains(flag));
        let own = client.identity.and_then(|identity| identity.root.as_deref());
        let root = inner(own, nodemap.as_ref().and_then(|map| map.fileset()));
        Standing {
            acting,
            read_only: client.identity.is_some_and(|identity| identity.read_only)
                || has(NodemapFlags::READ_ONLY),
            // A key for a subtree outside the fileset of its nodemap has no rights.
            banned: has(NodemapFlags::BANNED) || root.is_err(),
            root: root.unwrap_or(None),
            nodemap,
        }
    }

    /// True if there is no restriction.
    pub fn is_free(&self) -> bool {
        self.acting == Acting::Anybody
            && self.nodemap.is_none()
            && !self.read_only
            && !self.banned
            && self.root.is_none()
    }

    /// True if the client may change nothing.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// True if the client is not served.
    pub fn is_banned(&self) -> bool {
        self.banned
    }

    /// Returns the subtree that the client sees as the root; `None` for all.
    pub fn root(&self) -> Option<&str> {
        self.root.as_deref()
    }

    /// Returns the client's nodemap.
    pub fn nodemap(&self) -> Option<&Arc<Nodemap>> {
        self.nodemap.as_ref()
    }

    /// True if it may act as the system, so that its reports of opens and data are trusted.
    pub fn is_trusted(&self) -> bool {
        self.acting == Acting::Anybody && self.nodemap.is_none()
    }

    fn has(&self, flag: NodemapFlags) -> bool {
        self.nodemap.as_ref().is_some_and(|map| map.flags().contains(flag))
    }

    /// True if root keeps its rights.
    fn allows_root(&self) -> bool {
        match (&self.acting, &self.nodemap) {
            (Acting::Anybody, None) => true,
            (Acting::Users { .. } | Acting::User(_), None) => false,
            (_, Some(_)) => self.has(NodemapFlags::ADMIN),
        }
    }

    fn squash(&self, kind: IdKind) -> u32 {
        self.nodemap.as_ref().map_or(SQUASHED, |map| map.squash(kind))
    }

    /// Returns the credentials of an unmapped user: squashed, or an error.
    fn nobody(&self) -> StatusResult<Cred> {
        if self.has(NodemapFlags::DENY_UNKNOWN) {
            return Err(Status::EACCES);
        }
        Ok(Cred {
            uid: self.squash(IdKind::Uid),
            gid: self.squash(IdKind::Gid),
            full: Some(FullCred::default()),
        })
    }

    fn mapped(&self, kind: IdKind, id: u32) -> Option<u32> {
        self.nodemap.as_ref().map_or(Some(id), |map| map.to_fs(kind, id))
    }

    /// Returns effective credentials for claimed ones. `find` queries the server's user database.
    ///
    /// # Errors
    /// `EACCES` for an unmapped user of a nodemap with `deny_unknown`; those of `find`.
    pub fn cred(
        &self,
        claimed: &Cred,
        find: &dyn Fn(u32) -> StatusResult<Option<Arc<User>>>,
    ) -> StatusResult<Cred> {
        if let Acting::User(uid) = self.acting {
            return match uid {
                0 if !self.allows_root() => self.nobody(),
                uid => Ok(self.of_database(uid, None, find(uid)?)),
            };
        }
        match claimed.uid {
            0 if self.allows_root() => return Ok(claimed.clone()),
            0 => return self.nobody(),
            _ => {}
        }
        // No mapping makes a user root.
        let Some(uid) = self.mapped(IdKind::Uid, claimed.uid).filter(|uid| *uid != 0) else {
            return self.nobody();
        };
        let trusts_groups = match self.acting {
            Acting::Anybody if self.nodemap.is_none() => return Ok(claimed.clone()),
            Acting::Anybody => true,
            Acting::Users { trusts_groups } => trusts_groups,
            Acting::User(_) => false,
        };
        match trusts_groups {
            false => Ok(self.of_database(uid, self.mapped(IdKind::Gid, claimed.gid), find(uid)?)),
            true => Ok(self.of_claims(uid, claimed)),
        }
    }

    /// Returns a user's credentials with the groups of the database; `requested` is the primary group if the user
    /// is in it.
    fn of_database(&self, uid: u32, requested: Option<u32>, user: Option<Arc<User>>) -> Cred {
        let Some(user) = user else {
            return Cred { uid, gid: self.squash(IdKind::Gid), full: Some(FullCred::default()) };
        };
        let gid = requested.filter(|gid| user.has(*gid)).unwrap_or(user.gid);
        Cred { uid, gid, full: Some(FullCred { groups: user.groups.clone(), caps: Caps::empty() }) }
    }

    /// Returns a user's credentials with the claimed groups, without unmapped ones, and without root's unless
    /// root is allowed.
    fn of_claims(&self, uid: u32, claimed: &Cred) -> Cred {
        let allows_root = self.allows_root();
        let group = |gid: u32| self.mapped(IdKind::Gid, gid).filter(|gid| *gid != 0 || allows_root);
        let full = claimed.full.as_ref().map(|full| FullCred {
            groups: full.groups.iter().filter_map(|gid| group(*gid)).collect(),
            caps: Caps::empty(),
        });
        Cred { uid, gid: group(claimed.gid).unwrap_or(self.squash(IdKind::Gid)), full }
    }

    /// Returns the stored id for a client's id.
    ///
    /// # Errors
    /// `EACCES` for an unmapped id, if the nodemap refuses those.
    pub fn to_fs(&self, kind: IdKind, id: u32) -> StatusResult<u32> {
        match self.mapped(kind, id) {
            Some(id) => Ok(id),
            None if self.has(NodemapFlags::DENY_UNKNOWN) => Err(Status::EACCES),
            None => Ok(self.squash(kind)),
        }
    }

    /// Returns the id that the client sees.
    pub fn to_client(&self, kind: IdKind, id: u32) -> u32 {
        self.nodemap.as_ref().map_or(id, |map| map.to_client(kind, id))
    }

    /// True if ids may look different to the client.
    pub fn maps_ids(&self) -> bool {
        self.nodemap.as_ref().is_some_and(|map| !map.flags().contains(NodemapFlags::TRUSTED))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::KeyId;
    use proptest::prelude::*;

    fn identity(roles: &str) -> Identity {
        Identity::new("fs", KeyId(0xab), roles.parse().expect("roles of this test"), "")
    }

    fn nodemaps(texts: &[&str]) -> Nodemaps {
        let maps = texts.iter().map(|text| Arc::new(text.parse().expect("a nodemap of this test")));
        Nodemaps { active: !texts.is_empty(), maps: maps.collect() }
    }

    fn standing(identity: Option<&Identity>, nodemaps: &Nodemaps) -> Standing {
        let nid = "10.0.0.1@tcp".parse().expect("a NID");
        Standing::of(Proven { identity, is_server: false, nid }, nodemaps, false)
    }

    /// User 1000 has groups 100 (first), 7 and 8; user 5 is in root's group; other users are unknown.
    fn find(uid: u32) -> StatusResult<Option<Arc<User>>> {
        let user = |gid, groups: &[u32]| Some(Arc::new(User { gid, groups: groups.to_vec() }));
        Ok(match uid {
            1000 => user(100, &[100, 7, 8]),
            5 => user(50, &[0]),
            _ => None,
        })
    }

    fn claim(uid: u32, gid: u32, groups: &[u32]) -> Cred {
        Cred { uid, gid, full: Some(FullCred { groups: groups.to_vec(), caps: Caps::all() }) }
    }

    /// Credentials without capabilities.
    fn acts(uid: u32, gid: u32, groups: &[u32]) -> StatusResult<Cred> {
        Ok(Cred { uid, gid, full: Some(FullCred { groups: groups.to_vec(), caps: Caps::empty() }) })
    }

    const NOBODY: (u32, u32) = (65534, 65534);

    #[test]
    fn identities_decide_who_acts() {
        let none = nodemaps(&[]);
        let user = |uid| Identity { uid: Some(uid), ..identity("client") };
        let (host, admin) = (identity("client"), identity("client+admin"));
        let root = claim(0, 0, &[0]);
        let one = claim(1000, 7, &[0, 9]);
        for (who, claimed, expected) in [
            (None, &root, Ok(root.clone())),
            (None, &one, Ok(one.clone())),
            (Some(&admin), &root, Ok(root.clone())),
            (Some(&admin), &one, Ok(one.clone())),
            (Some(&identity("mds+oss")), &root, Ok(root.clone())),
            (Some(&host), &root, acts(NOBODY.0, NOBODY.1, &[])),
            // The primary group is one of the user's, the others are the database's.
            (Some(&host), &one, acts(1000, 7, &[100, 7, 8])),
            (Some(&host), &claim(1000, 0, &[]), acts(1000, 100, &[100, 7, 8])),
            (Some(&host), &Cred::new(1000, 8), acts(1000, 8, &[100, 7, 8])),
            (Some(&host), &claim(2000, 100, &[100]), acts(2000, NOBODY.1, &[])),
            (Some(&user(1000)), &root, acts(1000, 100, &[100, 7, 8])),
            (Some(&user(1000)), &claim(5, 7, &[]), acts(1000, 100, &[100, 7, 8])),
            (Some(&user(2000)), &one, acts(2000, NOBODY.1, &[])),
            (Some(&user(0)), &root, acts(NOBODY.0, NOBODY.1, &[])),
            (Some(&Identity { uid: Some(1000), ..admin.clone() }), &root, acts(1000, 100, &[100, 7, 8])),
        ] {
            assert_eq!(standing(who, &none).cred(claimed, &find), expected, "{who:?} {claimed:?}");
        }
    }

    #[test]
    fn groups_that_a_host_says_are_believed_if_the_server_says_so_but_not_those_of_root() {
        let host = identity("client");
        let nid = "10.0.0.1@tcp".parse().expect("a NID");
        let proven = Proven { identity: Some(&host), is_server: false, nid };
        let standing = Standing::of(proven, &nodemaps(&[]), true);
        assert_eq!(standing.cred(&claim(2000, 100, &[0, 9]), &find), acts(2000, 100, &[9]));
        assert_eq!(standing.cred(&claim(2000, 0, &[]), &find), acts(2000, NOBODY.1, &[]));
        assert_eq!(
            standing.cred(&Cred::new(2000, 100), &find),
            Ok(Cred::new(2000, 100)),
            "they are asked for"
        );
        assert_eq!(standing.cred(&claim(0, 0, &[9]), &find), acts(NOBODY.0, NOBODY.1, &[]));
    }

    #[test]
    fn nodemaps_map_squash_and_lift_what_identities_bound() {
        let host = identity("client");
        let by_key = |words: &str| nodemaps(&[&format!("m key=00000000000000ab {words}")]);
        let root = claim(0, 0, &[]);
        for (words, claimed, expected) in [
            ("admin=1", &root, Ok(root.clone())),
            ("squash_uid=99 squash_gid=98", &root, acts(99, 98, &[])),
            ("deny_unknown=1", &root, Err(Status::EACCES)),
            ("deny_unknown=1", &claim(5, 5, &[]), Err(Status::EACCES)),
            ("trusted=1", &claim(1000, 7, &[]), acts(1000, 7, &[100, 7, 8])),
            ("squash_uid=99", &claim(1000, 7, &[]), acts(99, NOBODY.1, &[])),
            ("uid=30:1000 gid=31:8", &claim(30, 31, &[]), acts(1000, 8, &[100, 7, 8])),
            ("uid=30:1000", &claim(30, 8, &[]), acts(1000, 100, &[100, 7, 8])),
            // A mapping to root.
            ("uid=30:0", &claim(30, 30, &[]), acts(NOBODY.0, NOBODY.1, &[])),
            ("map_mode=gid gid=31:8", &claim(1000, 31, &[]), acts(1000, 8, &[100, 7, 8])),
        ] {
            let maps = by_key(words);
            assert_eq!(standing(Some(&host), &maps).cred(claimed, &find), expected, "{words} {claimed:?}");
            let sleeping = Nodemaps { active: false, ..maps };
            let plain = standing(Some(&host), &nodemaps(&[])).cred(claimed, &find);
            assert_eq!(standing(Some(&host), &sleeping).cred(claimed, &find), plain, "not active: {words}");
        }
        // Without keys, groups are the client's claims.
        let open = nodemaps(&["m range=10.0.0.1@tcp uid=30:1000 gid=31:8 gid=32:0"]);
        assert_eq!(standing(None, &open).cred(&claim(30, 31, &[31, 33, 32]), &find), acts(1000, 8, &[8]));
    }

    #[test]
    fn the_nodemap_of_others_holds_for_all_but_administrators_servers_and_the_process_itself() {
        let maps = nodemaps(&["default banned=1"]);
        let is_banned = |identity: Option<&Identity>, is_server, nid: &str| {
            let nid = nid.parse().expect("a NID");
            Standing::of(Proven { identity, is_server, nid }, &maps, false).is_banned()
        };
        assert!(
            is_banned(None, false, "10.0.0.1@tcp") && is_banned(Some(&identity("client")), false, "0@lo")
        );
        assert!(!is_banned(None, false, "0@lo") && !is_banned(None, true, "10.0.0.1@tcp"));
        assert!(!is_banned(Some(&identity("client+admin")), false, "10.0.0.1@tcp"));
        assert!(!is_banned(Some(&identity("mds")), false, "10.0.0.1@tcp"));
        let of_key = nodemaps(&["m key=00000000000000ab banned=1"]);
        assert!(standing(Some(&identity("client+admin")), &of_key).is_banned());
    }

    #[test]
    fn of_two_subtrees_the_inner_one_counts_and_strangers_see_none() {
        let key = |root: &str| Identity { root: Some(root.to_owned()), ..identity("client") };
        let maps = nodemaps(&["default fileset=/a/b"]);
        for (root, seen) in
            [("/a/b/c", Some("/a/b/c")), ("/a", Some("/a/b")), ("/a/b", Some("/a/b")), ("/a/bc", None)]
        {
            let standing = standing(Some(&key(root)), &maps);
            assert_eq!((standing.root(), standing.is_banned()), (seen, seen.is_none()), "{root}");
        }
        assert_eq!(standing(Some(&key("/x")), &nodemaps(&[])).root(), Some("/x"));
    }

    proptest! {
        #[test]
        fn nobody_but_an_administrator_gets_capabilities_or_root(
            kind in 0usize..4,
            key_uid in any::<u32>(),
            words in "( (admin=0|trusted=1|uid=[1-9]:[0-9]|gid=[1-9]:[0-9])){0,1}",
            trusts_groups: bool,
            uid in 0u32..12,
            gid in 0u32..12,
            groups in proptest::collection::vec(0u32..12, 0..4),
        ) {
            let mut identity = identity("client");
            if kind == 1 {
                identity.uid = Some(key_uid % 12);
            }
            let maps = if kind < 2 { nodemaps(&[]) } else { nodemaps(&[&format!("m key=00000000000000ab{words}").replace(" admin=0", "")]) };
            let who = if kind == 3 { None } else { Some(&identity) };
            let maps = if kind == 3 { nodemaps(&[&format!("m range=10.0.0.1@tcp{words}").replace(" admin=0", "")]) } else { maps };
            let nid = "10.0.0.1@tcp".parse().expect("a NID");
            let standing = Standing::of(Proven { identity: who, is_server: false, nid }, &maps, trusts_groups);
            let find = |uid| if uid == 5 { Ok(None) } else { find(uid) };
            let cred = standing.cred(&claim(uid, gid, &groups), &find).expect("nobody is refused");
            let full = cred.full.expect("complete");
            prop_assert!(cred.uid != 0 && cred.gid != 0 && !full.groups.contains(&0));
            prop_assert!(full.caps.is_empty());
            if let Some(own) = identity.uid.filter(|own| kind == 1 && *own != 0) {
                prop_assert_eq!(cred.uid, own);
            }
        }
    }
}
