//! Drives a real server: over TLS with Debian's kubectl and curl, and through the in-process door.
#![allow(clippy::unwrap_used)]

#[path = "apiserver/access.rs"]
mod access;
#[path = "apiserver/adversary.rs"]
mod adversary;
#[path = "apiserver/apply.rs"]
mod apply;
#[path = "apiserver/audit.rs"]
mod audit;
#[path = "apiserver/can_i.rs"]
mod can_i;
#[path = "apiserver/connect.rs"]
mod connect;
#[path = "apiserver/harness.rs"]
mod harness;
#[path = "apiserver/kubectl.rs"]
mod kubectl;
#[path = "apiserver/limits.rs"]
mod limits;
#[path = "apiserver/oidc.rs"]
mod oidc;
#[path = "apiserver/reload.rs"]
mod reload;
#[path = "apiserver/remote_decisions.rs"]
mod remote_decisions;
#[path = "apiserver/rest.rs"]
mod rest;
#[path = "apiserver/servers.rs"]
mod servers;
#[path = "apiserver/watch.rs"]
mod watch;
