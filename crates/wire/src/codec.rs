//! Encoding of plain values.
//!
//! Little-endian, fixed widths, no padding. Byte strings and lists start with a count of 32 bits that is
//! checked against a limit, and against the rest of the buffer, before memory is allocated. Decoders read
//! bytes from the network: they refuse unknown values with a [`DecodeError`] and never panic.

/// Reason why bytes were refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DecodeError {
    /// The buffer ends inside a value.
    #[error("message ends inside {what}")]
    Truncated {
        /// Name of the value.
        what: &'static str,
    },
    /// A count is over its limit.
    #[error("{what} has length {len}, the limit is {max}")]
    TooLong {
        /// Name of the value.
        what: &'static str,
        /// Length in the message.
        len: u64,
        /// Largest length allowed.
        max: u64,
    },
    /// A number that no version of this program has used.
    #[error("{value} is not a known {what}")]
    Unknown {
        /// Name of the number's type.
        what: &'static str,
        /// Value in the message.
        value: u64,
    },
    /// A value breaks a rule of its type.
    #[error("{what} is not valid")]
    Invalid {
        /// Name of the value.
        what: &'static str,
    },
    /// Bytes follow the end of the message.
    #[error("{len} bytes follow the message")]
    Trailing {
        /// Number of bytes after the message.
        len: usize,
    },
}

/// Result of a decoder.
pub type DecodeResult<T> = Result<T, DecodeError>;

/// Longest byte string in a message in bytes: the largest extended attribute value.
pub const BYTES_MAX: usize = nacre_types::limits::XATTR_VALUE_MAX;

/// A value that can be appended to a message.
pub trait Encode {
    /// Appends the value's bytes.
    fn encode(&self, out: &mut Vec<u8>);

    /// Returns the value's bytes alone.
    fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.encode(&mut out);
        out
    }
}

/// A value that can be read from a message; `'a` is the buffer that byte strings borrow from.
pub trait Decode<'a>: Sized {
    /// Reads the value.
    ///
    /// # Errors
    /// Any [`DecodeError`].
    fn decode(reader: &mut Reader<'a>) -> DecodeResult<Self>;

    /// Reads a value that fills the whole buffer.
    ///
    /// # Errors
    /// Any [`DecodeError`]; [`DecodeError::Trailing`] if bytes are left.
    fn from_bytes(bytes: &'a [u8]) -> DecodeResult<Self> {
        let mut reader = Reader::new(bytes);
        let value = Self::decode(&mut reader)?;
        reader.finish()?;
        Ok(value)
    }
}

/// Reads values from the front of a buffer.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Creates a reader at the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes }
    }

    /// Returns the number of bytes that have not been read.
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Reads the next `N` bytes.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`].
    pub fn array<const N: usize>(&mut self, what: &'static str) -> DecodeResult<[u8; N]> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or(DecodeError::Truncated { what })?;
        self.rest = rest;
        Ok(*head)
    }

    /// Skips `N` bytes that must be zero.
    ///
    /// # Errors
    /// [`DecodeError::Invalid`] if they are not, [`DecodeError::Truncated`].
    pub fn reserved<const N: usize>(&mut self, what: &'static str) -> DecodeResult<()> {
        if self.array::<N>(what)? == [0; N] { Ok(()) } else { Err(DecodeError::Invalid { what }) }
    }

    /// Reads the next `len` bytes.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`].
    pub fn take(&mut self, len: usize, what: &'static str) -> DecodeResult<&'a [u8]> {
        let (head, rest) = self.rest.split_at_checked(len).ok_or(DecodeError::Truncated { what })?;
        self.rest = rest;
        Ok(head)
    }

    /// Reads a byte string: a count of 32 bits, then the bytes.
    ///
    /// # Errors
    /// [`DecodeError::TooLong`] beyond `max`, [`DecodeError::Truncated`].
    pub fn bytes(&mut self, max: usize, what: &'static str) -> DecodeResult<&'a [u8]> {
        let len = self.count(max, 1, what)?;
        self.take(len, what)
    }

    /// Reads the count of a list whose items take at least `item_bytes` bytes each.
    ///
    /// # Errors
    /// [`DecodeError::TooLong`] beyond `max`, [`DecodeError::Truncated`] if the buffer cannot contain that
    /// many items.
    pub fn count(&mut self, max: usize, item_bytes: usize, what: &'static str) -> DecodeResult<usize> {
        let len = u32::decode(self)?;
        let too_long = DecodeError::TooLong { what, len: u64::from(len), max: max as u64 };
        let count = usize::try_from(len).map_err(|_| too_long)?;
        if count > max {
            return Err(too_long);
        }
        if count.saturating_mul(item_bytes) > self.rest.len() {
            return Err(DecodeError::Truncated { what });
        }
        Ok(count)
    }

    /// Reads a list of values that take at least `item_bytes` bytes each.
    ///
    /// # Errors
    /// As [`Reader::count`] and the items' decoder.
    pub fn list<T: Decode<'a>>(
        &mut self,
        max: usize,
        item_bytes: usize,
        what: &'static str,
    ) -> DecodeResult<Vec<T>> {
        let count = self.count(max, item_bytes, what)?;
        let mut items = Vec::with_capacity(count);
        for _ in 0..count {
            items.push(T::decode(self)?);
        }
        Ok(items)
    }

    /// Checks that nothing follows.
    ///
    /// # Errors
    /// [`DecodeError::Trailing`].
    pub fn finish(&self) -> DecodeResult<()> {
        if self.rest.is_empty() { Ok(()) } else { Err(DecodeError::Trailing { len: self.rest.len() }) }
    }
}

/// Appends a byte string with its count.
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_count(out, bytes.len());
    out.extend_from_slice(bytes);
}

/// Appends the count of a list. Counts beyond 32 bits cannot occur: messages are limited to a few megabytes,
/// and the peer refuses a saturated count.
pub fn put_count(out: &mut Vec<u8>, count: usize) {
    u32::try_from(count).unwrap_or(u32::MAX).encode(out);
}

/// Appends a list with its count.
pub fn put_list<T: Encode>(out: &mut Vec<u8>, items: &[T]) {
    put_count(out, items.len());
    for item in items {
        item.encode(out);
    }
}

macro_rules! integers {
    ($($int:ident),*) => {
        $(
            impl Encode for $int {
                fn encode(&self, out: &mut Vec<u8>) {
                    out.extend_from_slice(&self.to_le_bytes());
                }
            }
            impl Decode<'_> for $int {
                fn decode(reader: &mut Reader<'_>) -> DecodeResult<$int> {
                    Ok($int::from_le_bytes(reader.array(stringify!($int))?))
                }
            }
        )*
    };
}

integers!(u8, u16, u32, u64, i64);

impl Encode for bool {
    fn encode(&self, out: &mut Vec<u8>) {
        u8::from(*self).encode(out);
    }
}

impl Decode<'_> for bool {
    fn decode(reader: &mut Reader<'_>) -> DecodeResult<bool> {
        match u8::decode(reader)? {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(DecodeError::Unknown { what: "truth value", value: u64::from(value) }),
        }
    }
}

impl Encode for &[u8] {
    fn encode(&self, out: &mut Vec<u8>) {
        put_bytes(out, self);
    }
}

impl<'a> Decode<'a> for &'a [u8] {
    fn decode(reader: &mut Reader<'a>) -> DecodeResult<&'a [u8]> {
        reader.bytes(BYTES_MAX, "byte string")
    }
}

impl Encode for Vec<u8> {
    fn encode(&self, out: &mut Vec<u8>) {
        put_bytes(out, self);
    }
}

impl Decode<'_> for Vec<u8> {
    fn decode(reader: &mut Reader<'_>) -> DecodeResult<Vec<u8>> {
        Ok(reader.bytes(BYTES_MAX, "byte string")?.to_vec())
    }
}

impl Encode for String {
    fn encode(&self, out: &mut Vec<u8>) {
        put_bytes(out, self.as_bytes());
    }
}

impl Decode<'_> for String {
    fn decode(reader: &mut Reader<'_>) -> DecodeResult<String> {
        let bytes = reader.bytes(BYTES_MAX, "text")?;
        std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| DecodeError::Invalid { what: "text" })
    }
}

impl<const N: usize> Encode for [u8; N] {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }
}

impl<const N: usize> Decode<'_> for [u8; N] {
    fn decode(reader: &mut Reader<'_>) -> DecodeResult<[u8; N]> {
        reader.array("fixed bytes")
    }
}

impl<T: Encode> Encode for Option<T> {
    fn encode(&self, out: &mut Vec<u8>) {
        self.is_some().encode(out);
        if let Some(value) = self {
            value.encode(out);
        }
    }
}

impl<'a, T: Decode<'a>> Decode<'a> for Option<T> {
    fn decode(reader: &mut Reader<'a>) -> DecodeResult<Option<T>> {
        if bool::decode(reader)? { T::decode(reader).map(Some) } else { Ok(None) }
    }
}

impl<A: Encode, B: Encode> Encode for (A, B) {
    fn encode(&self, out: &mut Vec<u8>) {
        self.0.encode(out);
        self.1.encode(out);
    }
}

impl<'a, A: Decode<'a>, B: Decode<'a>> Decode<'a> for (A, B) {
    fn decode(reader: &mut Reader<'a>) -> DecodeResult<(A, B)> {
        Ok((A::decode(reader)?, B::decode(reader)?))
    }
}

/// A struct whose bytes are its fields in the given order.
macro_rules! wire_struct {
    ($type:ident<$life:lifetime> { $($field:ident),* $(,)? }) => {
        impl $crate::codec::Encode for $type<'_> {
            fn encode(&self, out: &mut Vec<u8>) {
                $( self.$field.encode(out); )*
            }
        }
        impl<$life> $crate::codec::Decode<$life> for $type<$life> {
            fn decode(reader: &mut $crate::codec::Reader<$life>) -> $crate::codec::DecodeResult<$type<$life>> {
                Ok($type { $( $field: $crate::codec::Decode::decode(reader)?, )* })
            }
        }
    };
    ($type:ident { $($field:ident),* $(,)? }) => {
        impl $crate::codec::Encode for $type {
            fn encode(&self, out: &mut Vec<u8>) {
                $( self.$field.encode(out); )*
            }
        }
        impl $crate::codec::Decode<'_> for $type {
            fn decode(reader: &mut $crate::codec::Reader<'_>) -> $crate::codec::DecodeResult<$type> {
                Ok($type { $( $field: $crate::codec::Decode::decode(reader)?, )* })
            }
        }
    };
}

/// A struct around one number.
macro_rules! wire_newtype {
    ($($type:ident),* $(,)?) => {
        $(
            impl $crate::codec::Encode for $type {
                fn encode(&self, out: &mut Vec<u8>) {
                    self.0.encode(out);
                }
            }
            impl $crate::codec::Decode<'_> for $type {
                fn decode(reader: &mut $crate::codec::Reader<'_>) -> $crate::codec::DecodeResult<$type> {
                    Ok($type($crate::codec::Decode::decode(reader)?))
                }
            }
        )*
    };
}

/// A set of flags; unknown bits are refused.
macro_rules! wire_flags {
    ($($type:ident),* $(,)?) => {
        $(
            impl $crate::codec::Encode for $type {
                fn encode(&self, out: &mut Vec<u8>) {
                    self.bits().encode(out);
                }
            }
            impl $crate::codec::Decode<'_> for $type {
                fn decode(reader: &mut $crate::codec::Reader<'_>) -> $crate::codec::DecodeResult<$type> {
                    let bits = $crate::codec::Decode::decode(reader)?;
                    $type::from_bits(bits).ok_or($crate::codec::DecodeError::Unknown {
                        what: stringify!($type),
                        value: u64::from(bits),
                    })
                }
            }
        )*
    };
}

/// An enum without data: one byte with the given numbers.
macro_rules! wire_code {
    ($type:ident { $($code:literal = $variant:ident),* $(,)? }) => {
        impl $crate::codec::Encode for $type {
            fn encode(&self, out: &mut Vec<u8>) {
                let code: u8 = match self { $( $type::$variant => $code, )* };
                code.encode(out);
            }
        }
        impl $crate::codec::Decode<'_> for $type {
            fn decode(reader: &mut $crate::codec::Reader<'_>) -> $crate::codec::DecodeResult<$type> {
                match <u8 as $crate::codec::Decode>::decode(reader)? {
                    $( $code => Ok($type::$variant), )*
                    value => Err($crate::codec::DecodeError::Unknown {
                        what: stringify!($type),
                        value: u64::from(value),
                    }),
                }
            }
        }
    };
}

/// Lists: for each item type, the largest count, the fewest bytes of one item, and the name in errors.
macro_rules! wire_lists {
    ($($item:ty: $max:expr, $bytes:expr, $what:literal;)*) => {
        $(
            impl $crate::codec::Encode for Vec<$item> {
                fn encode(&self, out: &mut Vec<u8>) {
                    $crate::codec::put_list(out, self);
                }
            }
            impl $crate::codec::Decode<'_> for Vec<$item> {
                fn decode(reader: &mut $crate::codec::Reader<'_>) -> $crate::codec::DecodeResult<Vec<$item>> {
                    reader.list($max, $bytes, $what)
                }
            }
        )*
    };
}

/// An enum with data: one byte with the given number, then the fields in the given order. `enum<'a>` if it
/// borrows.
macro_rules! wire_enum {
    ($type:ident $(<$life:lifetime>)? { $($code:literal = $variant:ident
        $( { $($field:ident),* $(,)? } )? $( ( $inner:ident ) )? ),* $(,)? }) => {
        impl $(<$life>)? $crate::codec::Encode for $type $(<$life>)? {
            fn encode(&self, out: &mut Vec<u8>) {
                match self {
                    $( $type::$variant $( { $($field),* } )? $( ( $inner ) )? => {
                        $crate::codec::Encode::encode(&($code as u8), out);
                        $( $( $crate::codec::Encode::encode($field, out); )* )?
                        $( $crate::codec::Encode::encode($inner, out); )?
                    } )*
                }
            }
        }
        $crate::codec::wire_enum!(@decode $type [$($life)?] {
            $( $code = $variant $( { $($field),* } )? $( ( $inner ) )? ),*
        });
    };
    (@decode $type:ident [] { $($body:tt)* }) => {
        impl $crate::codec::Decode<'_> for $type {
            fn decode(reader: &mut $crate::codec::Reader<'_>) -> $crate::codec::DecodeResult<$type> {
                $crate::codec::wire_enum!(@body $type reader { $($body)* })
            }
        }
    };
    (@decode $type:ident [$life:lifetime] { $($body:tt)* }) => {
        impl<$life> $crate::codec::Decode<$life> for $type<$life> {
            fn decode(reader: &mut $crate::codec::Reader<$life>) -> $crate::codec::DecodeResult<$type<$life>> {
                $crate::codec::wire_enum!(@body $type reader { $($body)* })
            }
        }
    };
    (@body $type:ident $reader:ident { $($code:literal = $variant:ident
        $( { $($field:ident),* } )? $( ( $inner:ident ) )? ),* }) => {
        match <u8 as $crate::codec::Decode>::decode($reader)? {
            $( $code => {
                $( $( let $field = $crate::codec::Decode::decode($reader)?; )* )?
                $( let $inner = $crate::codec::Decode::decode($reader)?; )?
                Ok($type::$variant $( { $($field),* } )? $( ( $inner ) )?)
            } )*
            value => Err($crate::codec::DecodeError::Unknown {
                what: stringify!($type),
                value: u64::from(value),
            }),
        }
    };
}

pub(crate) use {wire_code, wire_enum, wire_flags, wire_lists, wire_newtype, wire_struct};
