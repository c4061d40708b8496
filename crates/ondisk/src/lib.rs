//! What is stored on disk, as bytes: encoders and decoders of every record, with golden bytes in their tests.

pub mod superblock;
