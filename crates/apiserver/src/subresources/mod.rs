//! What only some resources have: questions that are answered at once, bindings, evictions, tokens, scales, and streams to
//! kubelets, pods and services.
//!
//! Flow: `chain` -> [`run`] -> one of these, or the generic `verbs`, which know no kind.

mod binding;
mod connect;
mod connect_options;
mod eviction;
mod log_options;
mod own;
mod review;
mod scale;
mod token;

use api::Status;
use http::Response;
use registry::{Action, Serving, Verb};

pub(crate) use own::Own;

use crate::accept::{OFFERED, Shape};
use crate::body::Body;
use crate::state::Operation;
use crate::verbs;

/// Answers a request that passed the chain.
pub(crate) async fn run(
    operation: Box<Operation>,
    upgrade: Option<hyper::upgrade::OnUpgrade>,
) -> Result<Response<Body>, Status> {
    if let Some(deprecation) = operation.resource.strategy.deprecation() {
        operation.warn(deprecation);
    }
    let verb = &operation.info.verb;
    if !operation.info.subresource.is_empty() {
        return Box::pin(subresource(operation, upgrade)).await;
    }
    match operation.resource.serving {
        // An answer has no columns.
        Serving::Review(_) if operation.accept.shape == Shape::Table => Err(Status::not_acceptable(OFFERED)),
        Serving::Review(review) if *verb == Verb::Create => Box::pin(review::review(&operation, review)).await,
        Serving::Binding if *verb == Verb::Create => Box::pin(binding::bind(&operation)).await,
        Serving::Stored => verbs::run(operation, upgrade).await,
        _ => Err(Status::method_not_allowed()),
    }
}

async fn subresource(
    operation: Box<Operation>,
    upgrade: Option<hyper::upgrade::OnUpgrade>,
) -> Result<Response<Body>, Status> {
    let Some(row) = operation.resource.subresource(&operation.info.subresource) else {
        return Err(Status::no_such_path());
    };
    let (action, verb) = (row.action, &operation.info.verb);
    let connects = matches!(action, Action::Exec | Action::Attach | Action::PortForward | Action::Proxy | Action::Log);
    if !connects && !row.verbs.contains(verb) {
        return Err(Status::method_not_allowed());
    }
    match (action, verb) {
        (Action::Scale, Verb::Get) => scale::get(&operation).await,
        (Action::Scale, Verb::Update) => scale::update(&operation).await,
        (Action::Scale, Verb::Patch) => scale::patch(&operation).await,
        (Action::Binding, _) => binding::bind(&operation).await,
        (Action::Eviction, _) => eviction::evict(&operation).await,
        (Action::Token, _) => token::issue(&operation).await,
        (Action::Exec | Action::Attach | Action::PortForward | Action::Proxy | Action::Log, _) => {
            connect::connect(&operation, action, upgrade).await
        }
        _ => verbs::run(operation, upgrade).await,
    }
}
