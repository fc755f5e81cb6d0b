//! Drives a real server: over TLS with Debian's kubectl and curl, and through the in-process door.
#![allow(clippy::unwrap_used)]

#[path = "apiserver/access.rs"]
mod access;
#[path = "apiserver/apply.rs"]
mod apply;
#[path = "apiserver/connect.rs"]
mod connect;
#[path = "apiserver/harness.rs"]
mod harness;
#[path = "apiserver/kubectl.rs"]
mod kubectl;
#[path = "apiserver/rest.rs"]
mod rest;
#[path = "apiserver/watch.rs"]
mod watch;
