//! Images: where they come from, how they are kept, how they become directories.
//!
//! Flow: `Reference` (a name) -> `mirrors` (which servers) -> `registry` (HTTP, tokens) -> `pull` (manifest, blobs,
//! digests) -> `unpack` (a layer becomes a directory, once) -> `store` (which images there are). `archive` is the other way
//! in and out: docker-archive and OCI layout tarballs; `carried` are the images inside this binary.

pub(crate) mod archive;
mod carried;
pub(crate) mod config;
mod mirrors;
mod pull;
mod registry;
pub(crate) mod store;

pub(crate) use mirrors::Mirrors;
pub(crate) use pull::{Credentials, pull, pull_through};
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use registry::fuzz_challenge;
pub(crate) use store::ImageStore;

pub(crate) use api::image::Reference;

pub(crate) use crate::error::PullError;
