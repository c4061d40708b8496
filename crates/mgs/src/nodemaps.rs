//! Changes of nodemaps.

use nacre_types::nodemap::{Change, DEFAULT, NODEMAPS_MAX, Nodemap, PARTS_MAX, Part};
use nacre_types::{Status, StatusResult};
use nacre_wire::mgs::FsConfig;
use std::sync::Arc;

/// Returns the configuration after a change of a nodemap; `None` if nothing changes. Changes of all nodemaps
/// ignore the name.
///
/// # Errors
/// `EINVAL` for an invalid name, and for clients of the default nodemap; `ENOENT` if the nodemap or the part
/// to remove does not exist; `EEXIST` if the nodemap exists, or the part does in this or another one;
/// `ENOSPC` beyond the limits.
pub fn plan_change(config: &FsConfig, name: &str, change: &Change) -> StatusResult<Option<FsConfig>> {
    let mut next = config.clone();
    next.version += 1;
    let nodemaps = &mut next.nodemaps;
    if let Change::Activate(on) = change {
        let before = std::mem::replace(&mut nodemaps.active, *on);
        return Ok((before != *on).then_some(next));
    }
    let place = nodemaps.maps.iter().position(|map| map.name() == name);
    match (change, place) {
        (Change::Create, Some(_)) => return Err(Status::EEXIST),
        (Change::Create, None) if name == DEFAULT => return Err(Status::EEXIST),
        (Change::Create, None) if nodemaps.maps.len() >= NODEMAPS_MAX => return Err(Status::ENOSPC),
        (Change::Destroy, _) if name == DEFAULT => return Err(Status::EINVAL),
        (Change::Destroy, Some(place)) => {
            nodemaps.maps.remove(place);
            return Ok(Some(next));
        }
        (Change::Create, None) => {}
        (_, None) if name != DEFAULT => return Err(Status::ENOENT),
        _ => {}
    }
    let mut map = match place {
        Some(place) => Nodemap::clone(&nodemaps.maps.remove(place)),
        None => Nodemap::new(name).map_err(|_| Status::EINVAL)?,
    };
    match change {
        Change::Add(part) => {
            let is_client = matches!(part, Part::Range(_) | Part::Key(_));
            if is_client && name == DEFAULT {
                return Err(Status::EINVAL);
            }
            let parts =
                nodemaps.maps.iter().map(|map| map.parts().count()).sum::<usize>() + map.parts().count();
            if parts >= PARTS_MAX {
                return Err(Status::ENOSPC);
            }
            let is_elsewhere = is_client && nodemaps.maps.iter().any(|other| other.has(part));
            if is_elsewhere || !map.add(part) {
                return Err(Status::EEXIST);
            }
        }
        Change::Remove(part) if !map.remove(part) => return Err(Status::ENOENT),
        Change::Set(property) if !map.set(property) => return Ok(None),
        _ => {}
    }
    nodemaps.maps.push(Arc::new(map));
    nodemaps.maps.sort_by(|a, b| a.name().cmp(b.name()));
    Ok(Some(next))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(changes: &[(&str, &str)]) -> StatusResult<FsConfig> {
        changes.iter().try_fold(FsConfig::default(), |config, (name, change)| {
            let change = change.parse().expect("a change of this test");
            Ok(plan_change(&config, name, &change)?.unwrap_or(config))
        })
    }

    #[test]
    fn nodemaps_are_made_filled_changed_and_taken_away() {
        let config = after(&[
            ("", "activate 1"),
            ("b", "create"),
            ("a", "create"),
            ("a", "add range=10.0.0.0/8@tcp"),
            ("a", "add key=00000000000000ab"),
            ("a", "add uid=1:2"),
            ("a", "set admin=1"),
            ("a", "remove uid=1:2"),
            ("default", "set squash_uid=99"),
        ]);
        let config = config.expect("all of it can be");
        let texts: Vec<String> = config.nodemaps.maps.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            ["a admin=1 range=10.0.0.0/8@tcp key=00000000000000ab", "b", "default squash_uid=99"]
        );
        assert!(config.nodemaps.active && config.version == 9);
        let change = |name, text: &str| plan_change(&config, name, &text.parse().expect("a change"));
        assert_eq!((change("", "activate 1"), change("a", "set admin=1")), (Ok(None), Ok(None)));
        let without = change("a", "destroy").expect("it can be").expect("changed");
        assert_eq!(without.nodemaps.maps.len(), 2);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for (changes, status) in [
            (&[("a.b", "create")][..], Status::EINVAL),
            (&[("default", "create")], Status::EEXIST),
            (&[("default", "destroy")], Status::EINVAL),
            (&[("default", "add range=10.0.0.1@tcp")], Status::EINVAL),
            (&[("default", "add key=00000000000000ab")], Status::EINVAL),
            (&[("a", "create"), ("a", "create")], Status::EEXIST),
            (&[("a", "destroy")], Status::ENOENT),
            (&[("a", "set admin=1")], Status::ENOENT),
            (&[("a", "create"), ("a", "remove uid=1:2")], Status::ENOENT),
            (&[("a", "create"), ("a", "add uid=1:2"), ("a", "add uid=1:3")], Status::EEXIST),
            (
                &[
                    ("a", "create"),
                    ("b", "create"),
                    ("a", "add key=00000000000000ab"),
                    ("b", "add key=00000000000000ab"),
                ],
                Status::EEXIST,
            ),
            (
                &[
                    ("a", "create"),
                    ("b", "create"),
                    ("a", "add range=10.0.0.1@tcp"),
                    ("b", "add range=10.0.0.1@tcp"),
                ],
                Status::EEXIST,
            ),
        ] {
            assert_eq!(after(changes).err(), Some(status), "{changes:?}");
        }
        let both = after(&[("a", "create"), ("b", "create"), ("a", "add uid=1:2"), ("b", "add uid=1:2")]);
        both.expect("each nodemap maps for itself");
    }
}
