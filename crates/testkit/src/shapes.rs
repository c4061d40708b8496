//! Runs a test on a file system of each shape.

use crate::cluster::Options;
use crate::requirements::{have, have_root};
use crate::{Cluster, Shape};

/// Runs a test as [`on_each_shape_of`] does, with two OSTs.
pub fn on_each_shape(name: &str, test: fn(&mut Cluster, &str)) {
    on_each_shape_of(name, 2, test);
}

/// Runs a test on each shape with this number of MDTs. The name of each file system is unique on the host, as
/// `lctl` reaches all.
pub fn on_each_shape_with_mdts(name: &str, mdts: usize, test: fn(&mut Cluster, &str)) {
    on_each_shape_with(name, &Options { mdts, osts: 2, ..Options::default() }, test);
}

/// Runs a test on each shape with this number of OSTs. The name of each file system is unique on the host, as
/// `lctl` reaches all.
pub fn on_each_shape_of(name: &str, osts: usize, test: fn(&mut Cluster, &str)) {
    on_each_shape_with(name, &Options { osts, ..Options::default() }, test);
}

/// Runs a test on each shape with these options. The name of each file system is unique on the host.
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
