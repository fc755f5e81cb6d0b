//! The four ways to change part of an object: JSON patch, merge patch, strategic merge patch and
//! server-side apply. All work on dynamic values; the last two ask the schema how lists merge. `text` is the short way of
//! the usual merge patch.

pub mod apply;
pub mod json;
pub mod merge;
pub mod strategic;
pub mod text;

/// Why a patch was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    /// The patch itself is malformed: 400.
    #[error("{0}")]
    Malformed(String),
    /// The patch is fine but does not fit this object: 422.
    #[error("{0}")]
    Unprocessable(String),
    /// More operations than a request may carry: 413.
    #[error("The allowed maximum operations in a JSON patch is {allowed}, got {got}")]
    TooManyOperations { allowed: usize, got: usize },
}
