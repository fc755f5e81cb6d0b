//! Objects that initializers have not finished: who sees them, and who waits for them.

use std::time::Duration;

use api::Status;
use bytes::Bytes;

use crate::initializers::{Initializers, unfinished};
use crate::json;
use crate::state::Operation;

/// A create waits this long for the initializers (upstream's limit, v1.8).
const INITIALIZERS_TIMEOUT: Duration = Duration::from_secs(30);

/// Whether the request sees unfinished objects.
pub(super) fn sees_all(operation: &Operation) -> bool {
    !operation.resource.initializers || operation.info.query.flag("includeUninitialized")
}

/// Waits until a new object is finished; returns what it became. Who asked for unfinished objects need not wait.
pub(super) async fn finished(operation: &Operation, created: Bytes) -> Result<Bytes, Status> {
    if sees_all(operation) || unfinished(&created).is_none() || operation.dry_run()? {
        return Ok(created);
    }
    let text = |path: &[&str]| json::find(&created, path).map(|range| json::text(&created[range]).into_owned());
    let name = text(&["metadata", "name"]).unwrap_or_default();
    let revision = text(&["metadata", "resourceVersion"]).and_then(|text| text.parse::<u64>().ok()).unwrap_or_default();
    let key = crate::watch_cache::inner_key(&operation.resource, &operation.info.namespace, &name);
    let cache = operation.state.cache(&operation.resource)?;
    let mut changes = cache.subscribe();
    let gone = |error| crate::status::too_old(revision, &error);
    let mut cursor = cache.cursor_after(revision).map_err(gone)?;
    let waiting = async {
        loop {
            for event in cache.read(&mut cursor, usize::MAX).map_err(gone)? {
                match (&event.new, &event.old) {
                    (Some(new), _) if *new.key == *key => match unfinished(&new.stored) {
                        None => return Ok(new.json()),
                        Some(Initializers { result: Some(result), .. }) if result.is_failure() => return Err(result),
                        Some(_) => {}
                    },
                    (None, Some(old)) if *old.key == *key => return Err(operation.not_found(&name)),
                    _ => {}
                }
            }
            if changes.changed().await.is_err() {
                return Err(Status::internal("the watch cache ended"));
            }
        }
    };
    tokio::time::timeout(INITIALIZERS_TIMEOUT, waiting)
        .await
        .unwrap_or_else(|_| Err(Status::timeout("the object was not initialized within the allotted time", 0)))
}
