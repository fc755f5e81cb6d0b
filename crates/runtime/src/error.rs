//! What can go wrong, and the one place that turns it into a gRPC status.

use std::io;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{kind} {id:?} not found")]
    NotFound { kind: &'static str, id: String },
    #[error("{0}")]
    Invalid(String),
    #[error(transparent)]
    Seccomp(#[from] crate::seccomp::SeccompError),
    /// The object is in a state that does not allow it.
    #[error("{0}")]
    Precondition(String),
    #[error("{doing}: {source}")]
    Io { doing: String, source: io::Error },
    #[error("{0}")]
    Shim(String),
    #[error("failed to set up the network of sandbox {id}: {message}")]
    Network { id: String, message: String },
    #[error("failed to pull image {image:?}: {source}")]
    Pull { image: String, source: Box<crate::image::PullError> },
    #[error("image {0}")]
    Archive(String),
    #[error("{what} timed out after {seconds} s")]
    Timeout { what: String, seconds: i64 },
    #[error("{0} is not implemented by this runtime")]
    Unimplemented(&'static str),
}

pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

/// `io_error("reading x")` for `map_err`.
pub(crate) fn doing(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
    let doing = what.into();
    move |source| Error::Io { doing, source }
}

impl From<crate::shim::client::ShimError> for Error {
    fn from(error: crate::shim::client::ShimError) -> Self {
        Self::Shim(error.to_string())
    }
}

impl From<Error> for cri::tonic::Status {
    fn from(error: Error) -> Self {
        use crate::image::PullError;
        let message = error.to_string();
        match error {
            Error::NotFound { .. } => Self::not_found(message),
            Error::Invalid(_) | Error::Seccomp(_) => Self::invalid_argument(message),
            Error::Precondition(_) => Self::failed_precondition(message),
            Error::Timeout { .. } => Self::deadline_exceeded(message),
            Error::Unimplemented(_) => Self::unimplemented(message),
            Error::Pull { source, .. } => match *source {
                PullError::NotFound(_) => Self::not_found(message),
                PullError::Unauthorized(_) => Self::permission_denied(message),
                PullError::Reference(_) => Self::invalid_argument(message),
                PullError::Unreachable(_) | PullError::Server(_) => Self::unavailable(message),
                PullError::Content(_) | PullError::Io { .. } => Self::unknown(message),
            },
            Error::Io { .. } | Error::Shim(_) | Error::Network { .. } | Error::Archive(_) => Self::unknown(message),
        }
    }
}
