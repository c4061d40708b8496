//! The same test over each shape of a file system.

use crate::cluster::Options;
use crate::requirements::{have, have_root};
use crate::{Cluster, Shape};

/// As [`on_each_shape_of`] with two OSTs.
pub fn on_each_shape(name: &str, test: fn(&mut Cluster, &str)) {
    on_each_shape_of(name, 2, test);
}

/// A file system of each shape with this number of MDTs, whose name nobody else on this host has, as `lctl` reaches all.
pub fn on_each_shape_with_mdts(name: &str, mdts: usize, test: fn(&mut Cluster, &str)) {
    on_each_shape_with(name, &Options { mdts, osts: 2, ..Options::default() }, test);
}

/// A file system of each shape whose name nobody else on this host has, as `lctl` reaches all.
pub fn on_each_shape_of(name: &str, osts: usize, test: fn(&mut Cluster, &str)) {
    on_each_shape_with(name, &Options { osts, ..Options::default() }, test);
}

/// A file system of each shape, made as `options` say, whose name nobody else on this host has.
pub fn on_each_shape_with(name: &str, options: &Options, test: fn(&mut Cluster, &str)) {
    if !have(&["/dev/fuse", "fusermount3"]) || !have_root() {
        return;
    }
    for (shape, letter) in [(Shape::Embedded, 'e'), (Shape::Separate, 's')] {
        let fsname = format!("{name}{letter}");
        let options = Options { fsname: fsname.clone(), ..options.clone() };
        let mut cluster = Cluster::start_with(shape, &options);
        if cluster.is_foreign() {
            return;
        }
        test(&mut cluster, &fsname);
        cluster.stop_and_check();
    }
}
