//! Volumes: binding claims to volumes, making volumes for claims, and keeping both while they are used.

mod attach_detach;
mod binder;
mod decision;
mod definitions;
mod ephemeral;
mod expand;
mod local;
mod matching;
mod metrics;
mod protection;
mod snapshot;

pub(crate) use attach_detach::build as build_attach_detach;
pub(crate) use binder::build as build_binder;
pub use decision::LOCAL_PATH;
pub(crate) use ephemeral::build as build_ephemeral;
pub(crate) use expand::build as build_expander;
pub(crate) use local::build as build_local;
pub(crate) use protection::{
    build_attributes_classes as build_attributes_class_protection, build_claims as build_claim_protection,
    build_volumes as build_volume_protection,
};
pub(crate) use snapshot::build as build_snapshots;
