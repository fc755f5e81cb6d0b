//! Why a reconcile did not finish. The queue runs it again after a growing delay.

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Api(#[from] client::Error),
    /// An object that cannot be understood: reconcile again when it changes.
    #[error("{0}")]
    Object(String),
}

impl Error {
    pub(crate) fn object(message: impl Into<String>) -> Self {
        Error::Object(message.into())
    }

    /// Someone else was faster; nothing is wrong.
    pub(crate) fn is_conflict(&self) -> bool {
        matches!(self, Error::Api(error) if error.is_conflict())
    }
}

/// The outcome of a write whose object may be gone, or changed by somebody else: then there is nothing left to do, or its
/// event is on its way. None says that it came to that.
pub(crate) fn if_unchanged<T>(written: Result<T, client::Error>) -> Result<Option<T>, Error> {
    match written {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_not_found() || error.is_conflict() => Ok(None),
        Err(error) => Err(error.into()),
    }
}
