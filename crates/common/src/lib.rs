//! What the programs `nacre` and `nacre-bench` have in common.
//!
//! - [`frag`]: how fragmented files, objects and free space are, as `nacre frag`, a parameter of targets and the tables of `nacre paf`
//!   say it; [`extents`] and [`place`] are what a local file system reports.
//! - [`partner`]: where one of the two programs finds the other.
//! - [`call`]: what is said of a wrong call; [`size`]: sizes as users write them.

pub mod call;
pub mod extents;
pub mod frag;
pub mod partner;
pub mod place;
pub mod size;
