//! Why there is no profile.

#[derive(Debug)]
pub(crate) enum Refusal {
    Busy(&'static str),
    Impossible(&'static str),
    /// Whoever asked has gone.
    GivenUp,
    Io(std::io::Error),
}
