//! WebSockets (RFC 6455): the handshake and the frames, for either end.
//!
//! Flow: [`handshake`] upgrades an HTTP connection -> [`Reader`] and [`Writer`] over its two halves; [`Channels`] reads messages
//! whose first byte names a channel, as Kubernetes' protocols have them. A message is handed on in pieces while it arrives, so
//! one of any length takes no more memory than a piece.
//! Ours rather than a crate: those hold messages whole, which is what a hostile client would have a server do.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod channels;
mod frame;
pub mod handshake;

pub use channels::{Channels, Received};
pub use frame::{Error, MAX_PIECE, Message, Opcode, Piece, Reader, Side, Writer, frame};
