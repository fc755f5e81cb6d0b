//! The Container Runtime Interface: how a kubelet and a runtime talk.
//!
//! Flow: `kubelet` -> [`connect`] -> Unix socket -> [`serve`] -> `runtime` (or any other CRI v1 runtime on either side).
//! [`v1`] holds the messages and the gRPC clients and servers of CRI v1 as prost makes them, kept in the tree so that a
//! build needs no protoc. It is one file because it is never edited: it is what tonic-prost-build 0.14 makes of `api.proto`
//! of k8s.io/cri-api v1.36, compiled by protox or protoc without its comments (`source_code_info` of each file is `None`), with
//!
//! ```text
//! tonic_prost_build::configure()
//!     .type_attribute(".", "#[derive(serde::Serialize, serde::Deserialize)]")
//!     .message_attribute(".", "#[serde(default)]")
//!     .compile_fds(files)
//! ```
//!
//! and then `grpc::Caller` in the place of `tonic::client::Grpc`, and `grpc::Responder` in that of `tonic::server::Grpc` where a
//! method is unary.
//!
//! Not here: the streaming protocols behind the URLs of Exec, Attach and PortForward (`runtime::streaming`).

pub mod client;
pub mod server;

/// CRI v1 as of Kubernetes v1.36.
#[allow(
    clippy::all,
    missing_docs,
    unreachable_pub,
    deprecated,
    reason = "generated code: regenerate it, do not edit it"
)]
#[rustfmt::skip]
pub mod v1;

pub use client::{Clients, connect};
pub use grpc::{Error, MAX_MESSAGE_SIZE, Measured, Observer, Socket};
pub use server::serve;
pub use tonic;

/// The metadata in which a runtime tells how the time of a call was spent: laps of the trace, as JSON.
pub const LAPS: &str = "x-cox-laps";
