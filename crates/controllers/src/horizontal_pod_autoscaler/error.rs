//! Why a metric or a target says nothing, in upstream's words.

use api::{quantity, selector};

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("unable to fetch metrics from {api}: {source}")]
    Fetch { api: &'static str, source: client::Error },
    #[error("no metrics returned from {0}")]
    Empty(&'static str),
    #[error(
        "unable to fetch metrics from {api}: the {api} server returned {found} results when we asked for exactly one"
    )]
    NotOne { api: &'static str, found: usize },
    #[error("unable to fetch metrics from {api}: the {api} server spoke of {found:?} when we asked for {asked:?}")]
    OfAnother { api: &'static str, found: String, asked: String },
    #[error("no pods returned by selector while calculating replica count")]
    NoPods,
    #[error("unable to calculate ready pods: {}", Error::NoPods)]
    NoReadyPods,
    #[error("did not receive metrics for targeted pods (pods might be unready)")]
    NoSamples,
    #[error("no metrics returned matched known pods")]
    NoKnownPods,
    #[error("container {container} not found in Pod {pod}")]
    NoContainer { container: String, pod: String },
    #[error("missing request for {resource} in container {container} of Pod {pod}")]
    NoRequest { resource: String, container: String, pod: String },
    #[error("missing pod-level request for {resource} in Pod {pod}")]
    NoPodRequest { resource: String, pod: String },
    #[error(transparent)]
    Quantity(#[from] quantity::ParseError),
    #[error(transparent)]
    Selector(#[from] selector::ParseError),
    #[error("the target is not positive")]
    NotPositive,
    /// A metric without a target: what it lacks.
    #[error("{0}")]
    NoTarget(&'static str),
    #[error("no matches for kind \"{kind}\" in group \"{group}\"")]
    NoKind { kind: String, group: String },
    #[error("unexpected GroupVersion string: {0}")]
    GroupVersion(String),
    #[error(transparent)]
    Api(#[from] client::Error),
    #[error("{doing}: {source}")]
    While { doing: String, source: Box<Error> },
}

pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// For `map_err`: what was tried.
    pub(super) fn doing(doing: impl Into<String>) -> impl FnOnce(Error) -> Error {
        move |source| Error::While { doing: doing.into(), source: Box::new(source) }
    }
}
