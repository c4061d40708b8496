//! Measures the file system, and what it is measured against, on the machine at hand.
//!
//! A figure of a file system says little alone: on a virtual machine the same program is two to four times slower
//! from one hour to the next. So every figure here is the median of several runs with their spread, comes with the CPU
//! time that the whole machine spent per operation, and can be taken against a second path in runs that alternate
//! with the first's (`--against`), which gives ratios that hold when the machine does not.
//!
//! - [`cli`]: the sub-commands of `nacre bench`; [`cli::run`] is all that a binary needs.
//! - [`work`]: what is measured: operations on metadata and data of any mounted path.
//! - [`worker`]: processes that do the work; they start together and answer with counts and times.
//! - [`team`]: processes that go through phases together, with barriers; [`mdtest`] and [`ior`] are made of them.
//! - [`sample`], [`report`], [`machine`]: medians and spreads; tables and JSON; what the machine is and how busy.
//! - [`limits`]: what the machine can do without any file system of ours.
//! - [`null`]: file systems that do nothing, over our FUSE channel and others: the ceiling of any FUSE file system.
//! - [`programs`]: tar, find, rm and git on any mounted path.
//! - [`peers`]: the same work on several mounted paths in turns, ours and others'.
//! - [`client`]: the client's I/O engine: every combination of its features, on loopback and on a simulated fabric.
//! - [`records`]: fields of an ocean model as records of a Fortran direct-access file.
//! - [`mdt`]: the engine of an MDT without network and FUSE, its memory and opening times.
//! - [`dne`]: names on several MDTs.
//! - [`split`]: a directory whose names move to more MDTs.
//! - [`backends`]: names and small files by what targets are kept in.
//! - [`noisy`]: a stream beside small random writes, on simulated disks.
//! - [`small`]: random writes of 4 KiB by where the data lies.
//! - [`layouts`]: progressive files, data on the MDT, files of many components, `lfs` over many files.
//! - [`paf`]: a file system that is filled and fragmented by degrees; [`frag`]: how fragmented one is.
//! - [`survey`]: bandwidth of objects by layer.
//! - [`talks`]: the experiments of five talks in one run, with one report.
//! - [`history`]: results of several versions side by side.
//! - [`stats`]: intervals of medians, and whether they keep a claim.
//! - [`slice`]: the combined run behind `docs/performance.md`.

pub mod backends;
mod bar;
mod buffer;
mod chart;
pub mod cli;
pub mod client;
pub mod dne;
mod error;
mod extents;
pub mod frag;
mod group;
mod heat;
pub mod history;
mod image;
mod instance;
pub mod ior;
pub mod layouts;
pub mod limits;
pub mod machine;
pub mod mdt;
pub mod mdtest;
mod medium;
pub mod noisy;
pub mod null;
pub mod paf;
mod pattern;
pub mod peers;
mod piped;
mod place;
pub mod programs;
mod random;
pub mod records;
pub mod report;
pub mod sample;
mod size;
pub mod slice;
pub mod small;
pub mod split;
pub mod stats;
mod stop;
mod striping;
pub mod survey;
pub mod talks;
pub mod team;
mod trim;
pub mod work;
pub mod worker;

pub use error::Error;
