//! Images: where they come from, how they are kept, how they become directories.
//!
//! Flow: `reference` (a name) -> `mirrors` (which servers) -> `registry` (HTTP, tokens) -> `pull` (manifest, blobs,
//! digests) -> `unpack` (a layer becomes a directory, once) -> `store` (which images there are). `archive` is the other way
//! in and out: docker-archive and OCI layout tarballs; `carried` are the images inside this binary.

pub(crate) mod archive;
mod bounds;
mod carried;
pub(crate) mod config;
mod mirrors;
mod pull;
mod reference;
mod registry;
pub(crate) mod store;
pub(crate) mod unpack;

pub(crate) use mirrors::Mirrors;
pub(crate) use pull::{Credentials, pull};
pub(crate) use reference::BadReference;
pub(crate) use reference::Reference;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use registry::fuzz_challenge;
pub(crate) use store::ImageStore;

/// Why a pull failed.
#[derive(Debug, thiserror::Error)]
pub enum PullError {
    #[error(transparent)]
    Reference(#[from] BadReference),
    #[error("{0}: not found")]
    NotFound(String),
    #[error("{0}: authorization failed")]
    Unauthorized(String),
    #[error("{0}")]
    Unreachable(String),
    #[error("{0}")]
    Server(String),
    /// What came is not what was promised.
    #[error("{0}")]
    Content(String),
    #[error("{doing}: {source}")]
    Io { doing: String, source: std::io::Error },
}
