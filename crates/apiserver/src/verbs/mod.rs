//! The generic REST implementation: one function per verb, for every resource. It knows rows, never kinds: what a kind has
//! of its own is in its strategy (pure), in `hooks` (what reaches beyond the object) or in `subresources`.

mod candidate;
mod commit;
mod convert;
mod create;
mod delete;
pub(crate) mod get;
mod list;
mod list_body;
pub(crate) mod managed_fields;
pub(crate) mod patch;
pub(crate) mod respond;
mod table;
mod unfinished;
mod update;
mod watch;
pub(crate) mod websocket;
pub(crate) mod write;

use api::Status;
use http::Response;
use registry::Verb;

pub(crate) use create::create_object;
pub(crate) use delete::{check_preconditions, delete_object};
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use list::Token;
pub(crate) use update::{Target, modify};
pub(crate) use write::{Current, decode_entry};

use crate::body::Body;
use crate::hooks;
use crate::state::Operation;

/// Runs the verb of a request that passed the chain.
pub(crate) async fn run(
    operation: Box<Operation>,
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
async fn to_its_end(operation: Box<Operation>) -> Result<Response<Body>, Status> {
    let state = operation.state.clone();
    let task = state.writes.spawn(trace::detached(crate::audit::carried(Box::pin(serve(operation, None)))));
    match task.await.map_err(tokio::task::JoinError::try_into_panic) {
        Ok(done) => done.rejoin(),
        Err(Ok(panic)) => std::panic::resume_unwind(panic),
        Err(Err(error)) => Err(Status::internal(error)),
    }
}

async fn serve(
    operation: Box<Operation>,
    upgrade: Option<hyper::upgrade::OnUpgrade>,
) -> Result<Response<Body>, Status> {
    let Operation { resource, info, .. } = &*operation;
    let served = match info.subresource.as_str() {
        "" => resource.verbs,
        name => resource.subresource(name).ok_or_else(Status::no_such_path)?.verbs,
    };
    if !served.contains(&info.verb) {
        return Err(Status::method_not_allowed());
    }
    // Each on the heap by itself: a future is as large as the largest of what it may wait for, and is moved as a whole.
    match info.verb {
        Verb::Get => get::get(&operation).await,
        Verb::List => Box::pin(list::list(&operation)).await,
        Verb::Watch => Box::pin(watch::watch(*operation, upgrade)).await,
        Verb::Create => Box::pin(create::create(&operation)).await,
        Verb::Update => Box::pin(update::update(&operation)).await,
        Verb::Patch => Box::pin(patch::patch(&operation)).await,
        Verb::Delete => Box::pin(delete::delete(&operation)).await,
        Verb::DeleteCollection => Box::pin(delete::delete_collection(&operation)).await,
        _ => Err(Status::method_not_allowed()),
    }
}
