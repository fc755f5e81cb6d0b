//! Why rules did not reach the kernel.

use std::io;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Nft(#[from] netlink::nft::Error),
    /// A tool of the host could not be run.
    #[error("{program}: {source}")]
    Tool { program: String, source: io::Error },
    /// A tool of the host did not do it: in its own words.
    #[error("{program}: {said}")]
    Refused { program: String, said: String },
    #[error("panicked")]
    Panicked,
    /// The task that talks to the kernel ended before it had an answer.
    #[error(transparent)]
    Interrupted(#[from] tokio::task::JoinError),
}

pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;
