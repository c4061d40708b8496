//! What the programs `nacre` and `nacre-bench` have in common.
//!
//! - [`frag`]: how fragmented files, objects and free space are, as `nacre frag`, a parameter of targets and
//!   the tables of `nacre paf` report it; [`extents`] and [`place`] are what a local file system reports.
//! - [`partner`]: how one of the two programs finds the other.
//! - [`call`]: messages for wrong command lines; [`manual`]: manual pages from a grammar; [`size`]: sizes as users write
//!   them.

pub mod call;
pub mod extents;
pub mod frag;
pub mod manual;
pub mod partner;
pub mod place;
pub mod size;
