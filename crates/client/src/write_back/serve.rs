//! Reads of dirty data from its windows.
//!
//! A read whose range is entirely in dirty windows is a copy. For any other, the dirty part of its range is
//! sent first ([`WriteBack::settle`]), and the objects are read.
//!
//! Bytes in a window are newer than those in flight to the same place, which are newer than the object's.
//! They were written while the client was the only one or under a lock, and a window is sent before either
//! ends: as long as it is here, no other client can have written there since.

use crate::file::FileState;
use crate::write_back::pool::WINDOW_BYTES;
use crate::write_back::table::{Key, Table};
use nacre_layout::{Layout, chunks};

impl Table {
    /// Fills `buffer` with the bytes of the file from `at` on, if all of them are dirty; otherwise its
    /// content is undefined. The caller holds the range, shared or exclusively.
    pub fn read(&self, layout: &Layout, at: u64, buffer: &mut [u8]) -> bool {
        if self.is_clean() {
            return false;
        }
        let mut rest = buffer;
        for chunk in chunks(layout, at, rest.len() as u64) {
            let Some(stripe) = chunk.object else { return false };
            let (mut mine, after) = rest.split_at_mut(chunk.len as usize);
            rest = after;
            let mut offset = chunk.object_offset;
            while !mine.is_empty() {
                let key = Key { object: stripe.object, number: offset / WINDOW_BYTES };
                let start = offset % WINDOW_BYTES;
                let len = (mine.len() as u64).min(WINDOW_BYTES - start) as usize;
                let (piece, more) = mine.split_at_mut(len);
                if !self.copy_out(key, start as u32, piece) {
                    return false;
                }
                offset += len as u64;
                mine = more;
            }
        }
        rest.is_empty()
    }

    /// True if there are windows for all bytes `[at, at + len)` of the file.
    pub fn has_room(&self, layout: &Layout, at: u64, len: u64) -> bool {
        chunks(layout, at, len).all(|chunk| {
            let end = chunk.object_offset + chunk.len;
            chunk.object.is_some_and(|stripe| self.has_windows(stripe.object, chunk.object_offset, end))
        })
    }
}

impl FileState {
    /// True if a read of `[at, at + len)` will probably be a copy of dirty data, so that read-ahead is
    /// unnecessary.
    pub fn is_in_windows(&self, at: u64, len: u64) -> bool {
        if self.dirty.is_clean() {
            return false;
        }
        let layout = self.lock().layout.clone();
        layout.is_some_and(|layout| self.dirty.has_room(&layout, at, len))
    }
}
