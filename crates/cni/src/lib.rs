//! The container network: how a pod gets its interface, and how pods on different hosts meet.
//!
//! Flow: the runtime makes a network namespace -> [`Network`] (configuration from a directory, plug-ins run in order,
//! results cached) -> plug-ins, executables that read JSON on stdin and answer on stdout. The plug-ins of this crate are
//! the same binary under another `argv[0]`; [`plugin`] is the table. They speak to the kernel through the small synchronous
//! `netlink` crate, packet rules included ([`nft`]).
//! [`routes`] connects the pod ranges of several hosts, and keeps the ranges of the cluster from leaving the machine.
//!
//! Invariant: ADD either leaves a complete interface or nothing; DEL can be repeated and never fails on what is gone.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod config;
mod error;
pub mod netns;
mod network;
pub mod nft;
mod plugins;
pub mod result;
pub mod routes;

pub use config::PortMapping;
pub use error::{CniError, Error, code};
pub use network::{AttachmentArgs, Network, Status};
pub use plugins::{PLUGINS, Plugin, plugin};
pub use result::AddResult;
