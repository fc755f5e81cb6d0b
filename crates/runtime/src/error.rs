//! What can go wrong, and the one place that turns it into a gRPC status.

use std::io;

use api::image::BadReference;

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
    Pull { image: String, source: Box<PullError> },
    #[error("image {0}")]
    Archive(String),
    #[error("{what} timed out after {seconds} s")]
    Timeout { what: String, seconds: i64 },
    #[error("{0} is not implemented by this runtime")]
    Unimplemented(&'static str),
}

/// Why a pull failed.
#[derive(Debug, thiserror::Error)]
pub enum PullError {
    #[error("invalid image name {name:?}: {source}")]
    Reference { name: String, source: BadReference },
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
    Io { doing: String, source: io::Error },
}

pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

/// `doing("reading x")` for `map_err`.
pub(crate) fn doing(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
    let doing = what.into();
    move |source| Error::Io { doing, source }
}

impl From<Error> for cri::tonic::Status {
    fn from(error: Error) -> Self {
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
                PullError::Reference { .. } => Self::invalid_argument(message),
                PullError::Unreachable(_) | PullError::Server(_) => Self::unavailable(message),
                PullError::Content(_) | PullError::Io { .. } => Self::unknown(message),
            },
            Error::Io { .. } | Error::Shim(_) | Error::Network { .. } | Error::Archive(_) => Self::unknown(message),
        }
    }
}
