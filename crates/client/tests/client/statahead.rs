//! Tests of attributes that are fetched ahead of their lookups.

use crate::{READ_WRITE, World, create, open, root, write};
use nacre_client::Client;
use nacre_types::{Fid, SetAttr, SetAttrValid};
use std::sync::atomic::Ordering;

/// Creates `count` files of one byte each and lists their names alone, which the directory of these tests
/// does in reverse order.
fn listed(client: &Client, count: usize) -> Vec<String> {
    let names: Vec<String> = (0..count).rev().map(|number| format!("file{number:05}")).collect();
    for name in &names {
        let (fid, handle) = create(client, name);
        write(client, handle, 0, b"x").expect("written");
        client.opens.release(handle).expect("open");
        client.inodes.forget(fid.inode_number(), 1);
    }
    assert_eq!(list(client), count);
    names
}

fn list(client: &Client) -> usize {
    let handle = client.listings.opendir(&root(), Fid::ROOT).expect("a directory");
    let (mut position, mut count) = (0, 0);
    loop {
        let before = count;
        client
            .listings
            .readdir(handle, position, 32 << 10, false, &mut |entry| {
                count += usize::from(!entry.name.starts_with(b"."));
                position = entry.next;
                true
            })
            .expect("listed");
        if count == before {
            client.listings.releasedir(handle);
            return count;
        }
    }
}

fn size(client: &Client, name: &str) -> Option<u64> {
    let found = client.names.lookup(&root(), Fid::ROOT, name.as_bytes()).expect("may be searched").ok()?;
    client.inodes.forget(found.node, 1);
    Some(found.attr.size)
}

fn requests(world: &World) -> u64 {
    world.mds.lookups.load(Ordering::Relaxed) + world.mds.pages.load(Ordering::Relaxed)
}

#[test]
fn names_looked_up_in_the_order_of_their_listing_come_in_batches() {
    let world = World::new(65536, 1);
    let client = world.client();
    // The root's attributes have to be known, as they are when a kernel uses the client.
    client.inodes.getattr(Fid::ROOT).expect("there");
    let names = listed(&client, 2000);
    let before = requests(&world);
    assert!(names.iter().all(|name| size(&client, name) == Some(1)));
    let batched = requests(&world) - before;
    assert!(batched < 50, "{batched} requests");
    assert!(
        client.statahead.statahead_report().contains("statahead wrong: 0\n"),
        "{}",
        client.statahead.statahead_report()
    );

    client.tunables.set_statahead_max(0).expect("in range");
    let before = requests(&world);
    assert!(names.iter().all(|name| size(&client, name) == Some(1)));
    assert_eq!(requests(&world) - before, 2000);
}

#[test]
fn names_looked_up_sorted_come_in_batches_whatever_the_order_of_the_listing() {
    let world = World::new(65536, 1);
    let client = world.client();
    client.inodes.getattr(Fid::ROOT).expect("there");
    let mut names = listed(&client, 2000);
    names.sort();
    for step in [1, 3] {
        list(&client);
        let before = requests(&world);
        let some: Vec<&String> = names.iter().step_by(step).collect();
        assert!(some.iter().all(|name| size(&client, name) == Some(1)));
        let batched = requests(&world) - before;
        assert!(batched < 60 * step as u64, "{batched} requests for {} names", some.len());
    }
}

#[test]
fn numbered_names_come_in_batches_without_a_listing() {
    let world = World::new(65536, 1);
    let client = world.client();
    client.inodes.getattr(Fid::ROOT).expect("there");
    let name = |number: usize| format!("rank.7.{number}.dat");
    for number in 0..500 {
        let (fid, handle) = create(&client, &name(number));
        client.opens.release(handle).expect("open");
        client.inodes.forget(fid.inode_number(), 1);
    }
    let before = requests(&world);
    assert!((0..500).all(|number| size(&client, &name(number)) == Some(0)));
    let batched = requests(&world) - before;
    assert!(batched < 30, "{batched} requests");
    assert_eq!(size(&client, &name(500)), None, "the end");
    // A removal is visible at once.
    client.names.unlink(&root(), Fid::ROOT, name(3).as_bytes(), false).expect("removed");
    assert!((0..4).all(|number| size(&client, &name(number)).is_some() == (number < 3)));
    // A request fetches no more than the limit.
    client.tunables.set_statahead_batch_max(5).expect("in range");
    let before = requests(&world);
    assert!((104..204).all(|number| size(&client, &name(number)) == Some(0)));
    let batched = requests(&world) - before;
    assert!((20..40).contains(&batched), "{batched} requests");
    client.tunables.set_statahead_max(0).expect("in range");
    let before = requests(&world);
    assert!((4..104).all(|number| size(&client, &name(number)) == Some(0)));
    assert_eq!(requests(&world) - before, 100);
}

#[test]
fn what_this_client_changes_is_never_answered_from_before() {
    let world = World::new(65536, 1);
    let client = world.client();
    client.inodes.getattr(Fid::ROOT).expect("there");
    let names = listed(&client, 100);
    assert_eq!(size(&client, &names[0]), Some(1));
    // All of these were fetched with the first one.
    let find = |name: &str| {
        client.names.lookup(&root(), Fid::ROOT, name.as_bytes()).expect("searched").expect("there")
    };
    client.names.unlink(&root(), Fid::ROOT, names[1].as_bytes(), false).expect("removed");
    assert_eq!(size(&client, &names[1]), None);
    let third = find(&names[2]);
    let handle = open(&client, third.attr.fid, READ_WRITE);
    assert_eq!(size(&client, &names[3]), Some(1));
    write(&client, handle, 0, b"longer").expect("written");
    assert_eq!(size(&client, &names[2]), Some(6), "open");
    client.opens.release(handle).expect("open");
    assert_eq!(size(&client, &names[2]), Some(6), "closed");
    let fourth = find(&names[4]);
    let set = SetAttr { mode: 0o100600, valid: SetAttrValid::MODE, ..SetAttr::default() };
    client.names.setattr(&root(), fourth.attr.fid, set).expect("own file");
    assert_eq!(find(&names[4]).attr.mode, 0o100600);
}

#[test]
fn what_another_client_changes_is_never_answered_from_before() {
    let world = World::new(65536, 1);
    let client = world.client();
    client.inodes.getattr(Fid::ROOT).expect("there");
    let names = listed(&client, 50);
    assert_eq!(size(&client, &names[0]), Some(1));
    let other = world.client();
    other.names.unlink(&root(), Fid::ROOT, names[1].as_bytes(), false).expect("removed");
    assert_eq!(size(&client, &names[1]), None);
    assert_eq!(size(&client, &names[2]), Some(1));
}

#[test]
fn names_looked_up_in_another_order_are_soon_asked_for_one_by_one() {
    let world = World::new(65536, 1);
    let client = world.client();
    client.inodes.getattr(Fid::ROOT).expect("there");
    let names = listed(&client, 2000);
    let before = world.mds.pages.load(Ordering::Relaxed);
    for index in 0..2000usize {
        assert_eq!(size(&client, &names[index * 997 % 2000]), Some(1));
    }
    assert!(world.mds.pages.load(Ordering::Relaxed) - before <= 40);
    assert!(
        client.statahead.statahead_report().contains("statahead wrong: 1\n"),
        "{}",
        client.statahead.statahead_report()
    );
}

/// Lists the root in small pages with attributes and calls `between` after each; returns names and sizes.
fn list_plus(client: &Client, mut between: impl FnMut(usize)) -> Vec<(String, Option<u64>)> {
    let handle = client.listings.opendir(&root(), Fid::ROOT).expect("a directory");
    let (mut position, mut found) = (0, Vec::new());
    loop {
        let before = found.len();
        client
            .listings
            .readdir(handle, position, 4096, true, &mut |entry| {
                if !entry.name.starts_with(b".") {
                    let name = String::from_utf8_lossy(entry.name).into_owned();
                    found.push((name, entry.attr.map(|attr| attr.size)));
                    if entry.attr.is_some() {
                        client.inodes.forget(entry.node, 1);
                    }
                }
                position = entry.next;
                true
            })
            .expect("listed");
        if found.len() == before {
            client.listings.releasedir(handle);
            return found;
        }
        between(found.len());
    }
}

#[test]
fn pages_fetched_ahead_list_every_name_once_and_the_end_costs_nothing() {
    let world = World::new(65536, 1);
    let client = world.client();
    let names = listed(&client, 500);
    let pages = || world.mds.pages.load(Ordering::Relaxed);
    let before = pages();
    let found = list_plus(&client, |_| ());
    let ahead = pages() - before;
    assert!(found.iter().map(|(name, _)| name).eq(&names));
    assert!(found.iter().all(|(_, size)| *size == Some(1)));
    client.tunables.set_statahead_max(0).expect("in range");
    let before = pages();
    assert!(list_plus(&client, |_| ()).iter().all(|(_, size)| size.is_none()));
    client.tunables.set_statahead_max(128).expect("in range");
    // 500 entries of 157 bytes, 26 in a page. A reader that is faster than the thread requests a page twice.
    assert!((20..=40).contains(&ahead), "{ahead} pages");
    assert!(pages() > before);
}

#[test]
fn what_changes_between_two_pages_shows_in_the_second() {
    for other in [false, true] {
        let world = World::new(65536, 1);
        let client = world.client();
        let names = listed(&client, 200);
        let changer = if other { world.client() } else { client.clone() };
        let mut grown = None;
        let found = list_plus(&client, |count| {
            if grown.is_none() {
                // The next page is being fetched or has arrived.
                let name = &names[count + 5];
                let found = changer.names.lookup(&root(), Fid::ROOT, name.as_bytes()).expect("searched");
                let handle = open(&changer, found.expect("there").attr.fid, READ_WRITE);
                write(&changer, handle, 0, b"longer").expect("written");
                changer.opens.release(handle).expect("open");
                grown = Some(name.clone());
            }
        });
        let grown = grown.expect("more than one page");
        let size = found.iter().find(|(name, _)| *name == grown).expect("listed").1;
        assert_eq!(size, Some(6), "by another client: {other}");
    }
}
