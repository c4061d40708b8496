//! What holds in every run, in addition to the answers to calls.

pub(crate) mod checked;
pub(crate) mod locks;
pub(crate) mod objects;
pub(crate) mod rest;
pub(crate) mod sizes;
pub(crate) mod times;
