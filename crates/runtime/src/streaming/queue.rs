//! What a client has sent and nobody has taken yet, bounded in bytes.
//!
//! A connection has room for so much, whatever its streams: data is taken from the wire in pieces, each piece takes its
//! part of the room until it is dropped, and without room the client waits.

use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The largest piece.
pub(super) const PIECE: usize = websocket::MAX_PIECE;
/// What may wait of one connection.
const ROOM: usize = 2 << 20;

/// The room of one connection.
pub(super) struct Room(Arc<Semaphore>);

impl Room {
    pub(super) fn new() -> Self {
        Self(Arc::new(Semaphore::new(ROOM)))
    }

    /// A copy of `bytes` once there is room for it; none when `bytes` is more than a piece.
    pub(super) async fn take(&self, bytes: &[u8]) -> Option<Queued> {
        let length = u32::try_from(bytes.len()).ok().filter(|_| bytes.len() <= PIECE)?;
        let room = self.0.clone().acquire_many_owned(length).await.ok()?;
        Some(Queued { bytes: Bytes::copy_from_slice(bytes), _room: room })
    }
}

/// Bytes that wait, with the room they take.
#[derive(Debug)]
pub(crate) struct Queued {
    bytes: Bytes,
    _room: OwnedSemaphorePermit,
}

impl Deref for Queued {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}
