//! The parser of the kernel's requests on raw bytes: for tests with random input and for fuzzing.

use crate::abi::{InHeader, Wire};
use crate::request::{Operation, Raw, Request, argument_size, parse};
use rustix::io::Errno;

/// Parses a request as it comes from `/dev/fuse`, behind a byte whose lowest bit selects the long form of
/// SETXATTR.
///
/// # Panics
/// If a parsed request does not keep what [`Operation`] promises.
pub fn read(bytes: &[u8]) {
    let Some((first, rest)) = bytes.split_first() else { return };
    let Some(header) = InHeader::read_from(rest) else { return };
    let (body, is_long) = (&rest[size_of::<InHeader>()..], first & 1 != 0);
    let length = argument_size(header.opcode, is_long).unwrap_or(0).min(body.len());
    let (argument, payload) = body.split_at(length);
    match parse(&Raw { header, argument, payload }, is_long) {
        Ok(request) => check(&request),
        Err(errno) => assert!([Errno::IO, Errno::INVAL, Errno::NOSYS].contains(&errno)),
    }
}

fn check(request: &Request<'_>) {
    let name = |name: &[u8]| assert!(!name.is_empty() && !name.contains(&0) && !name.contains(&b'/'));
    match request.op {
        Operation::Lookup { name: one }
        | Operation::Unlink { name: one }
        | Operation::RmDir { name: one }
        | Operation::MkDir { name: one, .. }
        | Operation::MkNod { name: one, .. }
        | Operation::Create { name: one, .. }
        | Operation::Link { new_name: one, .. } => name(one),
        Operation::Rename { name: one, new_name: two, .. } => {
            name(one);
            name(two);
        }
        Operation::GetXattr { name, .. } | Operation::RemoveXattr { name } => assert!(!name.is_empty()),
        Operation::BatchForget { forgets } => assert_eq!(forgets.iter().count(), forgets.len()),
        _ => {}
    }
}

#[cfg(test)]
#[path = "../../../fuzz/mutate.rs"]
mod mutate;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::opcode;

    /// A request of each kind in both forms, with small numbers in the argument, and two names and data behind it.
    fn requests() -> Vec<Vec<u8>> {
        let request = |code: u32, form: u8| {
            let size = argument_size(code, form != 0).unwrap_or(0);
            let header = InHeader { opcode: code, unique: 2, nodeid: 1, ..InHeader::default() };
            let argument = (0..size).map(|at| if at % 8 == 0 { 3 } else { 0 });
            let mut bytes = vec![form];
            bytes.extend_from_slice(header.as_bytes());
            bytes.extend(argument);
            bytes.extend_from_slice(b"first\0second\0some data that follows the names, 48 bytes");
            bytes
        };
        let mut all: Vec<Vec<u8>> = opcode::ALL.iter().map(|code| request(*code, 1)).collect();
        all.push(request(opcode::SETXATTR, 0));
        // A group of the parent directory in an extension of 16 bytes.
        let mut create = request(opcode::CREATE, 1);
        let header = InHeader { opcode: opcode::CREATE, total_extlen: 2, ..InHeader::default() };
        create[1..1 + size_of::<InHeader>()].copy_from_slice(header.as_bytes());
        [16, crate::abi::EXT_GROUPS, 1, 1234].iter().for_each(|word: &u32| create.extend(word.to_ne_bytes()));
        all.push(create);
        all
    }

    #[test]
    fn mutated_requests_never_panic_and_give_plausible_errnos() {
        mutate::exercise("fuse", &requests(), 1_000_000, read);
    }
}
