//! Encoding of the vocabulary types that several services use.

use crate::codec::{
    Decode, DecodeError, DecodeResult, Encode, Reader, put_list, wire_code, wire_flags, wire_newtype,
    wire_struct,
};
use nacre_layout::{
    Component, ComponentFlags, ComponentSpec, Extent, Layout, LayoutForm, LayoutRequest, LayoutSpec, Pattern,
    PoolName, StripeObject,
};
use nacre_types::limits::{GROUPS_MAX, POOL_NAME_MAX, STRIPE_COUNT_MAX};
use nacre_types::{
    Attr, AttrFlags, Caps, ClientUuid, Cred, Fid, FileKind, FullCred, Nid, OpenHandle, ProcessIdentity,
    SetAttr, SetAttrValid, SizeSource, Status, TargetId, TargetKind, Timestamp, TransNo, Xid,
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

/// Components of one layout. Lustre has no limit but the size of an attribute value; this is far above any
/// use.
pub const COMPONENTS_MAX: usize = 1024;
/// Bytes of an encoded component without objects, listed OSTs, pool and first OST.
const COMPONENT_BYTES_MIN: usize = 39;
/// Bytes of an encoded component specification without any requirement.
const COMPONENT_SPEC_BYTES_MIN: usize = 25;
/// Bytes of an encoded stripe object.
const STRIPE_OBJECT_BYTES: usize = 19;

wire_newtype!(TransNo, Xid, ClientUuid, OpenHandle, Status);
wire_flags!(AttrFlags, ComponentFlags, SetAttrValid);
wire_code!(SizeSource { 0 = Exact, 1 = Objects });
wire_code!(TargetKind { 0 = Mgt, 1 = Mdt, 2 = Ost });
wire_code!(LayoutForm { 0 = Plain, 1 = Composite });
wire_code!(FileKind {
    1 = Fifo,
    2 = CharDevice,
    4 = Directory,
    6 = BlockDevice,
    8 = Regular,
    10 = Symlink,
    12 = Socket,
});
wire_struct!(SetAttr { valid, mode, uid, gid, projid, size, atime, mtime, ctime });
wire_struct!(Extent { start, end });
wire_struct!(ComponentSpec { extent, flags, spec });
wire_struct!(ProcessIdentity { machine, boot, namespaces, pid, started });
wire_struct!(StripeObject { ost_index, object, written });

impl Encode for Fid {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_le_bytes());
    }
}

impl Decode<'_> for Fid {
    fn decode(reader: &mut Reader<'_>) -> DecodeResult<Fid> {
        Ok(Fid::from_le_bytes(&reader.array("FID")?))
    }
}

impl Encode for Timestamp {
    fn encode(&self, out: &mut Vec<u8>) {
        self.sec.encode(out);
        self.nsec.encode(out);
    }
}

impl Decode<'_> for Timestamp {
    fn decode(reader: &mut Reader<'_>) -> DecodeResult<Timestamp> {
        let (sec, nsec) = (i64::decode(reader)?, u32::decode(reader)?);
        if nsec > 999_999_999 {
            return Err(DecodeError::Invalid { what: "time stamp" });
        }
        Ok(Timestamp { sec, nsec })
    }
}

impl Encode for Attr {
    fn encode(&self, out: &mut Vec<u8>) {
        self.fid.encode(out);
        for number in [self.mode, self.uid, self.gid, self.projid, self.nlink, self.rdev, self.size_stamp] {
            number.encode(out);
        }
        self.size.encode(out);
        self.blocks.encode(out);
        for time in [self.atime, self.mtime, self.ctime, self.btime] {
            time.encode(out);
        }
        self.flags.encode(out);
        self.size_source.encode(out);
        out.extend_from_slice(&[0; 3]);
        self.version.encode(out);
    }
}

impl Decode<'_> for Attr {
    fn decode(reader: &mut Reader<'_>) -> DecodeResult<Attr> {
        let attr = Attr {
            fid: Decode::decode(reader)?,
            mode: Decode::decode(reader)?,
            uid: Decode::decode(reader)?,
            gid: Decode::decode(reader)?,
            projid: Decode::decode(reader)?,
            nlink: Decode::decode(reader)?,
            rdev: Decode::decode(reader)?,
            size_stamp: Decode::decode(reader)?,
            size: Decode::decode(reader)?,
            blocks: Decode::decode(reader)?,
            atime: Decode::decode(reader)?,
            mtime: Decode::decode(reader)?,
            ctime: Decode::decode(reader)?,
            btime: Decode::decode(reader)?,
            flags: Decode::decode(reader)?,
            size_source: Decode::decode(reader)?,
            version: {
                reader.reserved::<3>("reserved bytes of attributes")?;
                Decode::decode(reader)?
            },
        };
        if FileKind::from_mode(attr.mode).is_none() {
            return Err(DecodeError::Unknown { what: "file type", value: u64::from(attr.mode) });
        }
        Ok(attr)
    }
}

impl Encode for Cred {
    fn encode(&self, out: &mut Vec<u8>) {
        self.uid.encode(out);
        self.gid.encode(out);
        self.full.is_some().encode(out);
        if let Some(full) = &self.full {
            full.caps.bits().encode(out);
            put_list(out, &full.groups);
        }
    }
}

impl Decode<'_> for Cred {
    fn decode(reader: &mut Reader<'_>) -> DecodeResult<Cred> {
        let (uid, gid) = (Decode::decode(reader)?, Decode::decode(reader)?);
        let full = if bool::decode(reader)? {
            // Capabilities that no check uses are dropped, not refused: newer kernels have more of them.
            let caps = Caps::from_bits_truncate(u64::decode(reader)?);
            Some(FullCred { caps, groups: reader.list(GROUPS_MAX, 4, "groups")? })
        } else {
            None
        };
        Ok(Cred { uid, gid, full })
    }
}

impl Encode for PoolName {
    fn encode(&self, out: &mut Vec<u8>) {
        self.as_str().to_owned().encode(out);
    }
}

impl Decode<'_> for PoolName {
    fn decode(reader: &mut Reader<'_>) -> DecodeResult<PoolName> {
        PoolName::new(reader.bytes(POOL_NAME_MAX, "pool name")?)
            .ok_or(DecodeError::Invalid { what: "pool name" })
    }
}

/// Bit in the byte of a pattern: a list of requested OSTs follows.
const HAS_OSTS: u8 = 0x80;

/// Appends a pattern; the same byte records whether OSTs are requested.
fn put_pattern(out: &mut Vec<u8>, pattern: Pattern, osts: &[u16]) {
    let code: u8 = match pattern {
        Pattern::Raid0 => 0,
        Pattern::Mdt => 1,
        Pattern::Overstriped => 2,
    };
    (if osts.is_empty() { code } else { code | HAS_OSTS }).encode(out);
}

fn put_wanted(out: &mut Vec<u8>, osts: &[u16]) {
    if !osts.is_empty() {
        put_list(out, osts);
    }
}

fn pattern(reader: &mut Reader<'_>) -> DecodeResult<(Pattern, bool)> {
    let code = u8::decode(reader)?;
    let pattern = match code & !HAS_OSTS {
        0 => Pattern::Raid0,
        1 => Pattern::Mdt,
        2 => Pattern::Overstriped,
        _ => return Err(DecodeError::Unknown { what: "Pattern", value: u64::from(code) }),
    };
    Ok((pattern, code & HAS_OSTS != 0))
}

fn wanted(reader: &mut Reader<'_>, has_osts: bool) -> DecodeResult<Vec<u16>> {
    if !has_osts {
        return Ok(Vec::new());
    }
    let osts: Vec<u16> = reader.list(usize::from(STRIPE_COUNT_MAX), 2, "OSTs that are wanted")?;
    if osts.is_empty() { Err(DecodeError::Invalid { what: "OSTs that are wanted" }) } else { Ok(osts) }
}

impl Encode for LayoutSpec {
    fn encode(&self, out: &mut Vec<u8>) {
        self.stripe_size.encode(out);
        self.stripe_count.encode(out);
        self.first_ost.encode(out);
        self.pool.encode(out);
        put_pattern(out, self.pattern, &self.osts);
        put_wanted(out, &self.osts);
    }
}

impl Decode<'_> for LayoutSpec {
    fn decode(reader: &mut Reader<'_>) -> DecodeResult<LayoutSpec> {
        let (stripe_size, stripe_count) = (Decode::decode(reader)?, Decode::decode(reader)?);
        let (first_ost, pool) = (Decode::decode(reader)?, Decode::decode(reader)?);
        let (pattern, has_osts) = pattern(reader)?;
        let osts = wanted(reader, has_osts)?;
        Ok(LayoutSpec { stripe_size, stripe_count, first_ost, pool, pattern, osts })
    }
}

impl Encode for Component {
    fn encode(&self, out: &mut Vec<u8>) {
        self.id.encode(out);
        self.extent.encode(out);
        self.flags.encode(out);
        put_pattern(out, self.pattern, &self.osts);
        self.stripe_size.encode(out);
        self.stripe_count.encode(out);
        self.generation.encode(out);
        self.first_ost.encode(out);
        self.pool.encode(out);
        put_wanted(out, &self.osts);
        put_list(out, &self.objects);
    }
}

impl Decode<'_> for Component {
    fn decode(reader: &mut Reader<'_>) -> DecodeResult<Component> {
        let (id, extent, flags) = (Decode::decode(reader)?, Decode::decode(reader)?, Decode::decode(reader)?);
        let (pattern, has_osts) = pattern(reader)?;
        Ok(Component {
            id,
            extent,
            flags,
            pattern,
            stripe_size: Decode::decode(reader)?,
            stripe_count: Decode::decode(reader)?,
            generation: Decode::decode(reader)?,
            first_ost: Decode::decode(reader)?,
            pool: Decode::decode(reader)?,
            osts: wanted(reader, has_osts)?,
            objects: reader.list(usize::from(STRIPE_COUNT_MAX), STRIPE_OBJECT_BYTES, "stripes")?,
        })
    }
}

impl Encode for LayoutRequest {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            LayoutRequest::Plain(spec) => {
                LayoutForm::Plain.encode(out);
                spec.encode(out);
            }
            LayoutRequest::Composite(components) => {
                LayoutForm::Composite.encode(out);
                put_list(out, components);
            }
        }
    }
}

impl Decode<'_> for LayoutRequest {
    fn decode(reader: &mut Reader<'_>) -> DecodeResult<LayoutRequest> {
        Ok(match LayoutForm::decode(reader)? {
            LayoutForm::Plain => LayoutRequest::Plain(Decode::decode(reader)?),
            LayoutForm::Composite => LayoutRequest::Composite(reader.list(
                COMPONENTS_MAX,
                COMPONENT_SPEC_BYTES_MIN,
                "layout components",
            )?),
        })
    }
}

impl Encode for Layout {
    fn encode(&self, out: &mut Vec<u8>) {
        self.form.encode(out);
        self.generation.encode(out);
        put_list(out, &self.components);
    }
}

impl Decode<'_> for Layout {
    fn decode(reader: &mut Reader<'_>) -> DecodeResult<Layout> {
        let layout = Layout {
            form: Decode::decode(reader)?,
            generation: Decode::decode(reader)?,
            components: reader.list(COMPONENTS_MAX, COMPONENT_BYTES_MIN, "layout components")?,
        };
        // Stripe arithmetic divides by values of the layout, so the layout is checked when it is decoded.
        if !layout.is_sound() {
            return Err(DecodeError::Invalid { what: "layout" });
        }
        Ok(layout)
    }
}

impl Encode for Arc<Layout> {
    fn encode(&self, out: &mut Vec<u8>) {
        Layout::encode(self, out);
    }
}

impl Decode<'_> for Arc<Layout> {
    fn decode(reader: &mut Reader<'_>) -> DecodeResult<Arc<Layout>> {
        Layout::decode(reader).map(Arc::new)
    }
}

impl Encode for TargetId {
    fn encode(&self, out: &mut Vec<u8>) {
        self.kind.encode(out);
        self.index.encode(out);
    }
}

impl Decode<'_> for TargetId {
    fn decode(reader: &mut Reader<'_>) -> DecodeResult<TargetId> {
        let target = TargetId { kind: Decode::decode(reader)?, index: Decode::decode(reader)? };
        if target.index >= nacre_types::limits::TARGET_INDEX_MAX {
            return Err(DecodeError::Invalid { what: "target index" });
        }
        Ok(target)
    }
}

impl Encode for Nid {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Nid::Lo => 0u8.encode(out),
            Nid::Tcp(addr) => {
                match addr.ip() {
                    IpAddr::V4(ip) => {
                        4u8.encode(out);
                        ip.octets().encode(out);
                    }
                    IpAddr::V6(ip) => {
                        6u8.encode(out);
                        ip.octets().encode(out);
                    }
                }
                addr.port().encode(out);
            }
        }
    }
}

impl Decode<'_> for Nid {
    fn decode(reader: &mut Reader<'_>) -> DecodeResult<Nid> {
        let ip: IpAddr = match u8::decode(reader)? {
            0 => return Ok(Nid::Lo),
            4 => Ipv4Addr::from(reader.array::<4>("NID")?).into(),
            6 => Ipv6Addr::from(reader.array::<16>("NID")?).into(),
            value => return Err(DecodeError::Unknown { what: "network", value: u64::from(value) }),
        };
        Ok(Nid::Tcp(SocketAddr::new(ip, Decode::decode(reader)?)))
    }
}
