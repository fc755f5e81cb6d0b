//! Volumes: binding claims to volumes, making volumes for claims, and keeping both while they are used.

mod attach_detach;
mod binder;
mod ephemeral;
mod matching;
mod metrics;
mod protection;

pub(crate) use attach_detach::build as build_attach_detach;
pub(crate) use binder::build as build_binder;
pub use binder::{LOCAL_PATH, LocalPath};
pub(crate) use ephemeral::build as build_ephemeral;
pub(crate) use protection::{build_claims as build_claim_protection, build_volumes as build_volume_protection};
