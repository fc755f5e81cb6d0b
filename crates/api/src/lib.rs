//! The vocabulary of Kubernetes: names, selectors, quantities, statuses, codecs, patches and schemas.
//!
//! Place in the flow: every other crate speaks these words. Nothing here waits, opens a file or a
//! socket, or knows what time it is; time is an argument. Object types themselves are
//! `k8s_openapi::api::...`; what a Deployment or a Pod must look like is the apiserver's registry.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod attachable;
pub mod beta_annotations;
pub mod cached;
pub mod cidr;
pub mod claim;
pub mod codec;
pub mod cron;
pub mod default_class;
pub mod documents;
pub mod duration;
pub mod endpoint;
pub mod features;
pub mod field;
pub mod first_paths;
pub mod flags;
pub mod go;
pub mod gvk;
pub mod hex;
pub mod image;
mod kinds;
pub mod load_balancer;
pub mod meta;
pub mod node;
pub mod node_volumes;
pub mod patch;
pub mod percent;
pub mod placement;
pub mod pod;
pub mod quantity;
pub mod quota;
pub mod read;
pub mod scan;
pub mod schema;
pub mod selector;
pub mod shared;
pub mod sort;
pub mod status;
pub mod terminal;
pub mod time;
pub mod trim;
pub mod user;
pub mod validation;
pub mod version;
pub mod volume_migration;
pub mod yaml;
pub mod zpages;

pub use gvk::{GroupKind, GroupResource, Gvk, Gvr};
pub use status::Status;
pub use user::UserInfo;

/// Header of an answer that the API server passed on from an aggregated one. The API server alone says so, whatever the other one says.
pub const AGGREGATED_HEADER: &str = "x-cox-aggregated";
