//! Why a process of a pod did not start, or what was asked of a shim was not done.
//!
//! Forked children and the runtime are told in words; inside a process an error keeps what it is.

use std::borrow::Cow;
use std::io;
use std::time::Duration;

use crate::user;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The kernel refused a call: what it was for.
    #[error("{doing}: {source}")]
    Call { doing: Cow<'static, str>, source: io::Error },
    #[error("mounting {target} in the container: {source}")]
    Mount { target: String, source: io::Error },
    #[error(transparent)]
    User(#[from] user::Error),
    /// The program cannot be executed, in the words that people search for.
    #[error("exec: {name:?}: {problem}")]
    Program { name: String, problem: Problem },
    /// The spec asks for what cannot be had.
    #[error("{0}")]
    Spec(Cow<'static, str>),
    /// What a child said before it ended.
    #[error("{0}")]
    Child(String),
    #[error("{program} {command}: {message}")]
    External { program: String, command: String, message: String },
    #[error("container {0} is not running")]
    NotRunning(String),
    #[error("container {0} was started already")]
    AlreadyStarted(String),
    #[error("the pod is being stopped")]
    Stopping,
    /// It was ended.
    #[error("the process was not ready to run its program within {0:?}")]
    NeverReady(Duration),
    /// A request came without the descriptors that it needs.
    #[error("{0}: a descriptor is missing")]
    Descriptors(&'static str),
}

/// What is wrong with a program.
#[derive(Debug, PartialEq, thiserror::Error)]
pub(crate) enum Problem {
    #[error("stat {path}: {reason}")]
    Unreachable { path: String, reason: String },
    #[error("is a directory")]
    Directory,
    #[error("permission denied")]
    Denied,
    #[error("executable file not found in $PATH")]
    NotFound,
}

pub(super) type Result<T, E = Error> = std::result::Result<T, E>;

/// `doing("setsid")` for `map_err`.
pub(crate) fn doing(what: impl Into<Cow<'static, str>>) -> impl FnOnce(io::Error) -> Error {
    let doing = what.into();
    move |source| Error::Call { doing, source }
}
