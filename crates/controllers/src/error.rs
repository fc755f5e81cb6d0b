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
