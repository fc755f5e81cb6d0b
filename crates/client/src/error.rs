//! What can go wrong between a caller and the API server.

/// A failed call. `Api` is the server's own answer; everything else happened on the way.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server answered with a failure `Status`.
    #[error("{}", .0.message)]
    Api(Box<api::Status>),
    /// No answer: the connection could not be made or broke.
    #[error("{method} {uri}: {source}")]
    Transport { method: http::Method, uri: String, source: crate::BoxError },
    /// The answer was not what the type says.
    #[error("decoding the answer of {what}: {source}")]
    Decode { what: String, source: serde_json::Error },
    /// The object or a parameter could not be put on the wire.
    #[error("encoding the request: {0}")]
    Encode(String),
    /// No answer within the deadline.
    #[error("{method} {uri}: no answer within {seconds} s")]
    Timeout { method: http::Method, uri: String, seconds: u64 },
    /// Kubeconfig, credentials or TLS material that cannot be used.
    #[error("{0}")]
    Config(String),
    /// The server did not switch protocols.
    #[error("unable to upgrade connection: {0}")]
    Upgrade(String),
}

impl Error {
    pub(crate) fn config(message: impl std::fmt::Display) -> Self {
        Error::Config(message.to_string())
    }

    /// The server's answer, when there was one.
    pub fn status(&self) -> Option<&api::Status> {
        match self {
            Error::Api(status) => Some(status),
            _ => None,
        }
    }

    /// The HTTP code of the server's answer, when there was one.
    pub fn code(&self) -> Option<u16> {
        self.status().map(|status| status.code())
    }

    fn has_reason(&self, reason: &str) -> bool {
        self.status().is_some_and(|status| status.reason == reason)
    }

    pub fn is_not_found(&self) -> bool {
        self.code() == Some(404)
    }

    pub fn is_already_exists(&self) -> bool {
        self.has_reason("AlreadyExists")
    }

    /// The object changed since it was read: read again and decide again.
    pub fn is_conflict(&self) -> bool {
        self.code() == Some(409) && !self.is_already_exists()
    }

    /// The resource version is too old to list or watch from: relist.
    pub fn is_expired(&self) -> bool {
        self.code() == Some(410)
    }

    pub fn is_invalid(&self) -> bool {
        self.code() == Some(422)
    }

    pub fn is_forbidden(&self) -> bool {
        self.code() == Some(403)
    }

    /// True for a `Forbidden` because the namespace is on its way out: creating there is pointless.
    pub fn is_namespace_terminating(&self) -> bool {
        self.is_forbidden()
            && self.status().is_some_and(|status| status.message.contains("because it is being terminated"))
    }

    /// True when the same request may well succeed later without any change.
    pub fn is_retriable(&self) -> bool {
        match self {
            Error::Transport { .. } | Error::Timeout { .. } => true,
            Error::Api(status) => matches!(status.code(), 429 | 500 | 502 | 503 | 504),
            _ => false,
        }
    }
}

impl From<api::Status> for Error {
    fn from(status: api::Status) -> Self {
        Error::Api(Box::new(status))
    }
}
