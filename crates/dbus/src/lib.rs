//! D-Bus, as much as a node needs to talk to systemd: method calls with answers, signals, and descriptors that come along.
//!
//! Flow: `systemd` and `logind` (the calls we make) -> `connection` (one Unix socket, blocking, with deadlines) -> `wire`
//! (messages as bytes). Blocking because one of its users, the shim, is a single thread; the other has a thread for it.
//! Our own because the crates of the field bring an async runtime or a C library for what are a few hundred bytes.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod connection;
pub mod logind;
pub mod systemd;
mod wire;

pub use connection::{Call, Connection, Error, Handle, SYSTEM_BUS_ADDRESS, system_bus};
#[cfg(any(test, feature = "fuzzing"))]
pub use wire::fuzz_message;
pub use wire::{Kind, Malformed, Message, Value};
