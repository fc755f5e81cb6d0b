//! `get`: one object, from the cache, as fresh as asked for.

use std::sync::Arc;

use api::Status;
use http::{Response, StatusCode};

use super::list::parse_revision;
use super::respond::respond;
use crate::body::Body;
use crate::state::Operation;
use crate::watch_cache::Entry;
use crate::watch_cache::inner_key;

pub(crate) async fn get(operation: &Operation) -> Result<Response<Body>, Status> {
    let entry = read(operation).await?;
    respond(operation, StatusCode::OK, &entry.json())
}

/// The object a request names. Without a resource version the read sees every finished write.
pub(crate) async fn read(operation: &Operation) -> Result<Arc<Entry>, Status> {
    match parse_revision(operation.info.query.get("resourceVersion").unwrap_or_default())? {
        None => drop(operation.state.caches.fresh().await?),
        Some(0) => {}
        Some(revision) => operation.state.caches.reach(revision).await?,
    }
    super::convert::entry(operation, current(operation)?).await
}

/// The object as the cache has it now.
pub(crate) fn current(operation: &Operation) -> Result<Arc<Entry>, Status> {
    let info = &operation.info;
    let key = inner_key(&operation.resource, &info.namespace, &info.name);
    let entry = operation.state.cache(&operation.resource)?.get(&key);
    entry.as_deref().map(Entry::readable).transpose()?;
    let visible = |entry: &Arc<Entry>| super::unfinished::sees_all(operation) || entry.is_finished();
    entry.filter(visible).ok_or_else(|| operation.not_found(&info.name))
}
