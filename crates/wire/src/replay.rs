//! Replay of changes that a metadata target acknowledged and lost with its host, by the clients that made them.
//! See `docs/protocol/recovery.md`.

use crate::codec::{Decode, DecodeResult, Encode, Reader, put_bytes, wire_enum, wire_lists, wire_struct};
use crate::mds::{FileCapabilities, MdsAnswer, MdsReply, MdsRequest};
use crate::oss::FallocateKind;
use crate::peer::TRANSACTIONS_MAX;
use nacre_types::limits::BULK_MAX;
use nacre_types::{Capability, Cred, Fid, TransNo};

/// Largest number of changes in one `Replay`.
pub const REPLAYED_MAX: usize = 256;
/// Bytes of changes from which on a client sends the next ones in another `Replay`.
pub const REPLAYED_BYTES: usize = 256 << 10;
/// Bytes of the longest request or reply in a change: a write of data.
const MESSAGE_MAX: usize = BULK_MAX + (64 << 10);
/// Starts of earlier runs that a server reports.
pub const LOSSES_MAX: usize = 64;
/// Transnos in one list.
const TRANSNOS_MAX: usize = if LOSSES_MAX > TRANSACTIONS_MAX { LOSSES_MAX } else { TRANSACTIONS_MAX };

/// An encoded message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MessageBytes(pub Vec<u8>);

impl Encode for MessageBytes {
    fn encode(&self, out: &mut Vec<u8>) {
        put_bytes(out, &self.0);
    }
}

impl Decode<'_> for MessageBytes {
    fn decode(reader: &mut Reader<'_>) -> DecodeResult<MessageBytes> {
        reader.bytes(MESSAGE_MAX, "replayed message").map(|bytes| MessageBytes(bytes.to_vec()))
    }
}

/// A change of the data of an object on a metadata target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DataChange {
    /// A write.
    Write {
        /// Offset in bytes.
        offset: u64,
        /// Data.
        data: MessageBytes,
    },
    /// A truncate.
    Truncate {
        /// New size in bytes.
        size: u64,
    },
    /// An allocation, or a punch.
    Fallocate {
        /// Kind of the operation.
        kind: FallocateKind,
        /// Offset in bytes.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
}

wire_enum!(DataChange {
    0 = Write { offset, data },
    1 = Truncate { size },
    2 = Fallocate { kind, offset, len },
});

/// An acknowledged change.
#[derive(Clone, PartialEq, Debug)]
pub struct ReplayedChange {
    /// Its transaction in the run that acknowledged it.
    pub transno: TransNo,
    /// Credentials of the caller.
    pub cred: Cred,
    /// The request ([`MdsRequest`]).
    pub request: MessageBytes,
    /// The reply ([`crate::mds::MdsReply`]), which names what the request found or created.
    pub reply: MessageBytes,
    /// Capabilities that came with a layout: proof that the client got its objects.
    pub capabilities: Option<FileCapabilities>,
}

impl ReplayedChange {
    /// Builds a change from a request and its answer.
    pub fn new(cred: &Cred, request: &MdsRequest<'_>, answer: &MdsAnswer) -> ReplayedChange {
        let (request, reply) = (MessageBytes(request.to_bytes()), MessageBytes(answer.reply.to_bytes()));
        let capabilities = answer.capabilities.as_deref().cloned();
        ReplayedChange { transno: answer.transno, cred: cred.clone(), request, reply, capabilities }
    }

    /// Builds a change of the data of an object on a metadata target.
    pub fn of_data(transno: TransNo, object: Fid, change: DataChange) -> ReplayedChange {
        let request = MessageBytes(MdsRequest::DataChange { object, change }.to_bytes());
        let reply = MessageBytes(MdsReply::Done.to_bytes());
        ReplayedChange { transno, cred: Cred::system(), request, reply, capabilities: None }
    }

    /// Returns about how many bytes the change takes in memory and in a message.
    pub fn len_bytes(&self) -> usize {
        let capabilities = self
            .capabilities
            .as_ref()
            .map_or(0, |given| given.objects.len() * size_of::<(Fid, Capability)>());
        size_of::<ReplayedChange>() + self.request.0.len() + self.reply.0.len() + capabilities
    }
}

wire_struct!(ReplayedChange { transno, cred, request, reply, capabilities });
wire_lists! {
    ReplayedChange: REPLAYED_MAX, 26, "replayed changes";
    TransNo: TRANSNOS_MAX, 8, "transactions";
}
