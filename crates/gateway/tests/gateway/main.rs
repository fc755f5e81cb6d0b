//! The gateway on real sockets, beside a real API server, in a network namespace of each test's own.
#![allow(clippy::unwrap_used)]

mod backend_tls;
mod harness;
mod protocols;
mod routing;
mod security;
