//! The generic REST implementation: one function per verb, for every resource.

mod binding;
mod connect;
mod connect_options;
mod convert;
mod create;
mod delete;
mod eviction;
mod get;
mod hooks;
mod list;
mod list_body;
mod managed_fields;
mod own;
mod parts;
mod patch;
mod respond;
mod review;
mod scale;
mod table;
mod token;
mod unfinished;
mod update;
mod watch;
mod websocket;
mod write;

use api::Status;
use http::Response;
use registry::{Action, Serving, Verb};

pub(crate) use connect::ask_kubelet;
pub(crate) use create::create_object;
pub(crate) use delete::delete_object;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use list::Token;
pub(crate) use own::Own;
pub(crate) use patch::accepted as patch_types;
pub(crate) use update::{Target, modify};
pub(crate) use write::{Current, decode_entry};

use crate::accept::{OFFERED, Shape};
use crate::body::Body;
use crate::state::Operation;

/// Runs the verb of a request that passed the chain.
pub(crate) async fn run(
    operation: Operation,
    upgrade: Option<hyper::upgrade::OnUpgrade>,
) -> Result<Response<Body>, Status> {
    // Neither way makes room for the other.
    match hooks::reaches_beyond(&operation) {
        true => Box::pin(to_its_end(operation)).await,
        false => serve(operation, upgrade).await,
    }
}

/// Runs a write to its end even when its client leaves: cut short between a claim and the object that owns it, it would
/// leave the claim to nobody.
async fn to_its_end(operation: Operation) -> Result<Response<Body>, Status> {
    let state = operation.state.clone();
    let task = state.writes.spawn(trace::away(crate::audit::carried(Box::pin(serve(operation, None)))));
    match task.await.map_err(tokio::task::JoinError::try_into_panic) {
        Ok(done) => done.home(),
        Err(Ok(panic)) => std::panic::resume_unwind(panic),
        Err(Err(error)) => Err(Status::internal(error)),
    }
}

async fn serve(operation: Operation, upgrade: Option<hyper::upgrade::OnUpgrade>) -> Result<Response<Body>, Status> {
    let verb = &operation.info.verb;
    if let Some(deprecation) = operation.resource.strategy.deprecation() {
        operation.warn(deprecation);
    }
    if !operation.info.subresource.is_empty() {
        return Box::pin(subresource(operation, upgrade)).await;
    }
    match operation.resource.serving {
        // An answer has no columns.
        Serving::Review(_) if operation.accept.shape == Shape::Table => {
            return Err(Status::not_acceptable(OFFERED));
        }
        Serving::Review(review) if *verb == Verb::Create => return Box::pin(review::review(&operation, review)).await,
        Serving::Binding if *verb == Verb::Create => return Box::pin(binding::bind(&operation)).await,
        Serving::Stored => {}
        _ => return Err(Status::method_not_allowed()),
    }
    if !operation.resource.has_verb(verb) {
        return Err(Status::method_not_allowed());
    }
    // Each on the heap by itself: a future is as large as the largest of what it may wait for, and is moved as a whole.
    match verb {
        Verb::Get => get::get(&operation).await,
        Verb::List => Box::pin(list::list(&operation)).await,
        Verb::Watch => Box::pin(watch::watch(operation, upgrade)).await,
        Verb::Create => Box::pin(create::create(&operation)).await,
        Verb::Update => Box::pin(update::update(&operation)).await,
        Verb::Patch => Box::pin(patch::patch(&operation)).await,
        Verb::Delete => Box::pin(delete::delete(&operation)).await,
        Verb::DeleteCollection => Box::pin(delete::delete_collection(&operation)).await,
        _ => Err(Status::method_not_allowed()),
    }
}

async fn subresource(
    operation: Operation,
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
        (_, Verb::Get) => get::get(&operation).await,
        (_, Verb::Update) => update::update(&operation).await,
        (_, Verb::Patch) => patch::patch(&operation).await,
        _ => Err(Status::method_not_allowed()),
    }
}
