//! Buffers, which connections have only while there is something in them.
//!
//! What is read stands behind a gap, so that a head that has grown on its way fits in front of its body and both are one write. Buffers
//! that nobody needs wait with their thread for the next: a connection that waits for its peer has none.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};

use crate::plane::pool::MAX_BUFFER;

/// The head of a request, with what comes along.
pub(super) const SMALL: usize = 8 << 10;
const LARGE: usize = MAX_BUFFER;
/// By more than this no head grows.
pub(super) const GAP: usize = 1 << 10;
/// Behind what is read: the end of a chunk.
const TAIL: usize = 8;
/// Of each size, a thread keeps so many.
const MAX_KEPT: usize = 8;

thread_local! {
    static KEPT: RefCell<[Vec<Vec<u8>>; 2]> = const { RefCell::new([Vec::new(), Vec::new()]) };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    Small,
    Large,
}

impl Size {
    fn length(self) -> usize {
        let room = match self {
            Self::Small => SMALL,
            Self::Large => LARGE,
        };
        GAP + room + TAIL
    }
}

/// Bytes that were read and not used yet.
#[derive(Default)]
pub(super) struct Buffer {
    /// Empty, or as long as a size says.
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Buffer {
    pub(super) fn unread(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    pub(super) fn unread_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.end]
    }

    pub(super) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    pub(super) fn consume(&mut self, length: usize) {
        self.start += length.min(self.end - self.start);
    }

    /// Forgets all but the first so many bytes.
    pub(super) fn truncate(&mut self, length: usize) {
        self.end = self.end.min(self.start + length);
    }

    /// Whether something can be read.
    pub(super) fn has_room(&self) -> bool {
        self.is_empty() || self.end - self.start + GAP + TAIL < self.bytes.len()
    }

    /// Puts bytes in the place of the first so many; false, and nothing is changed, if there is no room.
    pub(super) fn replace(&mut self, length: usize, bytes: &[u8]) -> bool {
        let end = (self.start + length).min(self.end);
        let Some(start) = end.checked_sub(bytes.len()) else { return false };
        self.bytes[start..end].copy_from_slice(bytes);
        self.start = start;
        true
    }

    /// Puts bytes in front of the others; false, and nothing is changed, if there is no room.
    pub(super) fn prepend(&mut self, bytes: &[u8]) -> bool {
        self.allocate(Size::Large);
        if self.is_empty() {
            // A head that fills the buffer has no body behind it yet, and may have grown into the gap.
            let whole = (GAP + bytes.len()).min(self.bytes.len() - TAIL);
            (self.start, self.end) = (whole, whole);
        }
        self.replace(0, bytes)
    }

    /// Puts a few bytes behind the others, for which there is always room after a read.
    pub(super) fn append(&mut self, bytes: &[u8]) -> bool {
        self.allocate(Size::Large);
        if self.is_empty() {
            (self.start, self.end) = (GAP, GAP);
        }
        let end = self.end + bytes.len();
        let Some(room) = self.bytes.get_mut(self.end..end) else { return false };
        room.copy_from_slice(bytes);
        self.end = end;
        true
    }

    /// Reads what there is, at least into a buffer of some size; 0 is the end. There must be room.
    pub(super) fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        stream: &mut (impl AsyncRead + Unpin + ?Sized),
        size: Size,
    ) -> Poll<io::Result<usize>> {
        if self.is_empty() && self.bytes.len() < size.length() {
            self.release();
        }
        self.allocate(size);
        if self.is_empty() {
            (self.start, self.end) = (GAP, GAP);
        } else if self.start > GAP {
            // Behind other requests there is little room, and before it there may be much.
            self.bytes.copy_within(self.start..self.end, GAP);
            (self.start, self.end) = (GAP, GAP + self.end - self.start);
        }
        let last = self.bytes.len() - TAIL;
        let mut room = ReadBuf::new(&mut self.bytes[self.end..last]);
        let read = Pin::new(stream).poll_read(context, &mut room);
        let length = room.filled().len();
        self.end += length;
        if self.is_empty() {
            self.release();
        }
        ready!(read)?;
        Poll::Ready(Ok(length))
    }

    fn allocate(&mut self, size: Size) {
        if self.bytes.is_empty() {
            let kept = KEPT.try_with(|kept| kept.borrow_mut()[size as usize].pop()).ok().flatten();
            self.bytes = kept.unwrap_or_else(|| vec![0; size.length()]);
            (self.start, self.end) = (GAP, GAP);
        }
    }

    /// Gives up the memory of an empty buffer.
    pub(super) fn release(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        (self.start, self.end) = (0, 0);
        let size = if bytes.len() == Size::Small.length() { Size::Small } else { Size::Large };
        if bytes.len() == size.length() {
            // A thread that ends keeps nothing.
            let _ended = KEPT.try_with(|kept| {
                let kept = &mut kept.borrow_mut()[size as usize];
                if kept.len() < MAX_KEPT {
                    kept.push(bytes);
                }
            });
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(buffer: &mut Buffer, mut bytes: &[u8]) -> usize {
        let mut context = Context::from_waker(std::task::Waker::noop());
        match buffer.poll_read(&mut context, &mut bytes, Size::Small) {
            Poll::Ready(Ok(length)) => length,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_head_that_has_grown_stands_before_its_body() {
        let mut buffer = Buffer::default();
        assert_eq!(read(&mut buffer, b"headbody"), 8);
        buffer.consume(4);
        assert!(buffer.prepend(b"longer head "));
        assert_eq!(buffer.unread(), b"longer head body");
        assert!(!buffer.prepend(&[b'x'; GAP]), "that much does not fit");
        assert_eq!(buffer.unread(), b"longer head body");
        assert!(buffer.append(b"\r\n"));
        assert_eq!(buffer.unread(), b"longer head body\r\n");
    }

    #[test]
    fn a_head_that_fills_a_buffer_may_grow_as_well() {
        let mut buffer = Buffer::default();
        assert!(!buffer.prepend(&[b'x'; GAP + LARGE + 1]));
        assert!(buffer.is_empty());
        let head = vec![b'x'; GAP + LARGE];
        assert!(buffer.prepend(&head));
        assert_eq!(buffer.unread(), head);
        assert!(buffer.append(b"0\r\n\r\n"));
        buffer.consume(head.len());
        assert_eq!(buffer.unread(), b"0\r\n\r\n");
    }

    #[test]
    fn a_full_buffer_has_no_room_until_something_is_used() {
        let mut buffer = Buffer::default();
        assert_eq!(read(&mut buffer, &[b'a'; 2 * SMALL]), SMALL);
        assert!(!buffer.has_room());
        buffer.consume(10);
        assert!(buffer.has_room());
        assert_eq!(read(&mut buffer, b"bc"), 2);
        assert_eq!(buffer.unread().len(), SMALL - 8);
        assert!(buffer.unread().ends_with(b"abc"));
    }

    #[test]
    fn whoever_waits_has_no_buffer() {
        let mut buffer = Buffer::default();
        let (mut here, _there) = tokio::io::duplex(8);
        let mut context = Context::from_waker(std::task::Waker::noop());
        assert!(buffer.poll_read(&mut context, &mut here, Size::Large).is_pending());
        assert!(buffer.bytes.is_empty());
        assert_eq!(read(&mut buffer, b""), 0, "the end");
    }
}
