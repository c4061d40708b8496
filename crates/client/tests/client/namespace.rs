//! Tests of names and directories.

use super::*;
use nacre_types::{SetAttr, SetAttrValid, Status};
use std::collections::BTreeSet;

fn list(client: &Client, size: u32, plus: bool) -> Vec<(Vec<u8>, u64)> {
    let handle = client.listings.opendir(&root(), Fid::ROOT).expect("a directory");
    let mut names = Vec::new();
    let mut offset = 0;
    loop {
        let mut room = size as usize;
        let before = names.len();
        client
            .listings
            .readdir(handle, offset, size, plus, &mut |entry| {
                let need = entry.name.len() + 180;
                if room < need {
                    return false;
                }
                room -= need;
                names.push((entry.name.to_vec(), entry.node));
                offset = entry.next;
                true
            })
            .expect("listed");
        if names.len() == before {
            client.listings.releasedir(handle);
            return names;
        }
    }
}

#[test]
fn a_listing_in_pages_has_every_name_once_and_counts_lookups() {
    let world = World::new(65536, 1);
    let client = world.client();
    for i in 0..100 {
        let (fid, handle) = create(&client, &format!("file{i}"));
        client.opens.release(handle).expect("open");
        client.inodes.forget(fid.inode_number(), 1);
    }
    assert_eq!(client.inodes.known_nodes(), 0, "everything was forgotten");
    let names = list(&client, 4096, true);
    assert_eq!(names.len(), 102);
    assert_eq!(names.iter().map(|(name, _)| name.clone()).collect::<BTreeSet<_>>().len(), 102);
    assert_eq!(&names[0].0, b".");
    assert_eq!(&names[1].0, b"..");
    assert_eq!(client.inodes.known_nodes(), 100);
    for (_, node) in &names[2..] {
        client.inodes.forget(*node, 1);
    }
    assert_eq!(client.inodes.known_nodes(), 0);
}

#[test]
fn a_removed_inode_is_known_until_the_kernel_forgets_it() {
    let world = World::new(65536, 1);
    let client = world.client();
    let what = Created { new: NewFile::Directory, mode: 0o40755, umask: 0 };
    let found = client.names.create(&root(), Fid::ROOT, b"dir", &what).expect("made");
    let fid = found.attr.fid;
    let handle = client.listings.opendir(&root(), fid).expect("a directory");
    client.names.unlink(&root(), Fid::ROOT, b"dir", true).expect("removed");
    assert_eq!(client.inodes.getattr(fid).map(|attr| attr.nlink), Ok(0));
    let set = SetAttr { valid: SetAttrValid::MODE, mode: 0o40700, ..SetAttr::default() };
    let (attr, _) = client.names.setattr(&root(), fid, set).expect("changed");
    assert_eq!((attr.mode, attr.nlink), (0o40700, 0));
    client.inodes.access(&root(), fid, 7).expect("root may");
    let mut taken = 0;
    let mut take = |_: &nacre_client::ListedEntry<'_>| {
        taken += 1;
        true
    };
    client.listings.readdir(handle, 0, 4096, false, &mut take).expect("empty");
    assert_eq!(taken, 0);
    let again = client.listings.opendir(&root(), fid).expect("still a directory");
    client.listings.releasedir(again);
    client.listings.releasedir(handle);
    assert_eq!(client.inodes.getxattr(&root(), fid, b"user.a"), Err(Status::ENODATA));
    client.inodes.forget(found.node, 1);
    assert!(client.inodes.getattr(fid).is_err());
    assert_eq!(client.inodes.known_nodes(), 0);
}

#[test]
fn unlinked_files_live_until_their_last_close() {
    let world = World::new(65536, 2);
    let client = world.client();
    let (fid, handle) = create(&client, "doomed");
    write(&client, handle, 0, b"still here").expect("written");
    client.names.unlink(&root(), Fid::ROOT, b"doomed", false).expect("there");
    assert_eq!(read(&client, handle, 0, 100), b"still here");
    assert_eq!(client.inodes.getattr(fid).expect("open").nlink, 0);
    client.opens.release(handle).expect("open");
    assert_eq!(client.inodes.getattr(fid).map(|attr| attr.nlink), Ok(0), "the kernel still holds it");
    client.inodes.forget(fid.inode_number(), 1);
    assert_eq!(client.inodes.getattr(fid).map(|attr| attr.nlink), Err(Status::ENOENT));
}

#[test]
fn a_removed_file_whose_last_close_arrives_while_it_is_asked_for_can_be_asked() {
    let world = World::new(65536, 2);
    let client = world.client();
    let (fid, handle) = create(&client, "doomed");
    write(&client, handle, 0, b"text").expect("written");
    *world.mds.held_closes.lock().expect("no panic") = Some(Vec::new());
    client.opens.release(handle).expect("open");
    client.names.unlink(&root(), Fid::ROOT, b"doomed", false).expect("there");
    let mds = world.mds.clone();
    *world.mds.after_attributes.lock().expect("no panic") = Some(Box::new(move || mds.let_closes_arrive()));
    let found = client.inodes.getattr(fid).expect("the kernel still holds it");
    assert_eq!((found.nlink, found.size), (0, 4));
    assert!(world.mds.after_attributes.lock().expect("no panic").is_none(), "it was asked for");
}

#[test]
fn closing_a_public_directory_is_noticed() {
    let world = World::new(65536, 1);
    let client = world.client();
    let what = Created { new: NewFile::Directory, mode: 0o040755, umask: 0 };
    let found = client.names.create(&root(), Fid::ROOT, b"dir", &what).expect("new");
    assert!(found.public && client.inodes.is_public(found.attr.fid));
    let set = |mode| SetAttr { valid: SetAttrValid::MODE, mode, ..SetAttr::default() };
    let chmod = |mode| client.names.setattr(&root(), found.attr.fid, set(mode)).expect("owner").1;
    assert!(!chmod(0o711), "everybody may still search");
    assert!(chmod(0o700), "now not everybody may");
    assert!(!chmod(0o600), "that was so before");
    assert!(!client.inodes.is_public(found.attr.fid));
}

#[test]
fn files_without_a_name_can_get_one() {
    let world = World::new(65536, 1);
    let client = world.client();
    let what = Created { new: NewFile::Unnamed, mode: 0o100600, umask: 0 };
    let (found, opened) =
        client.opens.create_open(&root(), Fid::ROOT, b"", &what, (READ_WRITE, false), true).expect("made");
    write(&client, opened.handle, 0, b"data").expect("written");
    client.names.link(&root(), found.attr.fid, Fid::ROOT, b"named").expect("linked");
    client.opens.release(opened.handle).expect("open");
    let found = client.names.lookup(&root(), Fid::ROOT, b"named").expect("answered").expect("there");
    assert_eq!((found.attr.size, found.attr.nlink), (4, 1));
}

#[test]
fn attributes_that_are_known_not_to_exist_cost_no_request() {
    let world = World::new(65536, 1);
    let client = world.client();
    let (fid, _) = create(&client, "file");
    assert_eq!(client.inodes.getxattr(&root(), fid, b"security.selinux"), Err(Status::ENODATA));
    let flags = nacre_client::XattrFlags::empty();
    client.names.setxattr(&root(), fid, b"security.selinux", b"label", flags).expect("set");
    assert_eq!(client.inodes.getxattr(&root(), fid, b"security.selinux").as_deref(), Ok(&b"label"[..]));
}

#[test]
fn an_inode_that_has_at_most_a_layout_is_listed_without_a_request() {
    let world = World::new(65536, 1);
    let client = world.client();
    let (fid, handle) = create(&client, "file");
    assert_eq!(client.inodes.listxattr(&root(), fid), Ok(Vec::new()));
    write(&client, handle, 0, b"data").expect("written");
    assert_eq!(client.inodes.listxattr(&root(), fid).as_deref(), Ok(&b"lustre.lov\0"[..]));
    client.opens.release(handle).expect("open");
    assert_eq!(client.inodes.listxattr(&root(), fid).as_deref(), Ok(&b"lustre.lov\0"[..]));
    let flags = nacre_client::XattrFlags::empty();
    client.names.setxattr(&root(), fid, b"user.a", b"b", flags).expect("set");
    // The MDT of this test has no lists of xattrs.
    assert_eq!(client.inodes.listxattr(&root(), fid), Err(Status::EOPNOTSUPP));
    let second = world.client();
    assert_eq!(second.inodes.listxattr(&root(), fid), Err(Status::EOPNOTSUPP));
}

#[test]
fn space_is_that_of_the_osts_and_inodes_those_of_the_mdt() {
    let world = World::new(65536, 3);
    let client = world.client();
    let space = client.requests.statfs().expect("answered");
    assert_eq!((space.blocks, space.blocks_available, space.files), (3000, 2400, 10));
    assert_eq!(client.requests.targets().len(), 4);
    assert_eq!(client.requests.target_statfs(nacre_types::TargetId::ost(3)), Err(Status::ENODEV));
}
