//! `list`: a consistent snapshot, whole or in pages.

use std::sync::Arc;

use api::field::FieldErrors;
use api::selector::{FieldSelector, Selector};
use api::{GroupKind, Status};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::Response;
use registry::Verb;
use serde::{Deserialize, Serialize};
use store::{Range, Revision, StoreError};

use super::list_body::render;
use crate::body::Body;
use crate::state::Operation;
use crate::watch_cache::store_key;
use crate::watch_cache::{Entry, Filter};

/// How many objects a page with selectors reads from the store at once.
const SCAN: usize = 500;

/// Objects in order, and what the list says about itself.
pub(crate) struct Page {
    pub(crate) entries: Vec<Arc<Entry>>,
    pub(crate) revision: u64,
    pub(crate) next: Option<String>,
    pub(crate) remaining: Option<u64>,
}

pub(crate) async fn list(operation: &Operation) -> Result<Response<Body>, Status> {
    let page = page(operation).await?;
    render(operation, page)
}

/// `metadata.resourceVersion` of a request: none, zero, or a number.
pub(crate) fn parse_revision(text: &str) -> Result<Option<u64>, Status> {
    if text.is_empty() {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|_| {
        let mut errors = FieldErrors::default();
        errors.invalid(
            "resourceVersion",
            text,
            "strconv.ParseUint: parsing \"".to_owned() + text + "\": invalid syntax",
        );
        Status::bad_request(errors.to_string())
    })
}

/// Namespace and selectors of a list or watch.
pub(crate) fn filter(operation: &Operation) -> Result<Filter, Status> {
    let info = &operation.info;
    let selectable = operation.resource.strategy.selectable();
    let labels = match info.query.get("labelSelector") {
        None => None,
        Some(text) => {
            let selector = Selector::parse(text)
                .map_err(|error| Status::bad_request(format!("unable to parse requirement: {error}")))?;
            (!selector.is_empty()).then_some(selector)
        }
    };
    let mut fields = match info.query.get("fieldSelector") {
        None => FieldSelector::everything(),
        Some(text) => FieldSelector::parse(text).map_err(|error| Status::bad_request(error.to_string()))?,
    };
    for term in fields.terms() {
        let known = matches!(&*term.field, "metadata.name" | "metadata.namespace") || selectable.contains(&term.field);
        if !known {
            return Err(Status::bad_request(format!("field label not supported: {}", term.field)));
        }
    }
    // `watch` on a single name (`/api/v1/watch/.../name`) is a selection by name.
    if !info.name.is_empty() && fields.requires("metadata.name") != Some(&info.name) {
        fields.terms_mut().extend(FieldSelector::equal("metadata.name", info.name.clone()).terms().to_vec());
    }
    let namespace = operation.resource.is_namespaced().then(|| Arc::from(info.namespace.as_str()));
    Ok(Filter {
        namespace: namespace.filter(|namespace: &Arc<str>| !namespace.is_empty()),
        labels,
        fields: (!fields.is_empty()).then_some(fields),
        selectable,
        finished_only: !super::unfinished::sees_all(operation),
    })
}

/// What the request asks for, in its version.
pub(crate) async fn page(operation: &Operation) -> Result<Page, Status> {
    let mut filter = filter(operation)?;
    if operation.resource.converter.is_none() {
        return read(operation, &filter).await;
    }
    // Fields have the names of the version that is asked for: they are looked at once objects are in it.
    let fields = filter.fields.take();
    let page = read(operation, &filter).await?;
    let mut entries = crate::versions::entries(&operation.resource, page.entries).await?;
    filter.fields = fields;
    entries.retain(|entry| filter.selects(entry));
    Ok(Page { entries, ..page })
}

/// Reads what the request asks for, from the cache when it can tell the truth and else from the store.
async fn read(operation: &Operation, filter: &Filter) -> Result<Page, Status> {
    let query = &operation.info.query;
    let number = |name: &str| match query.get(name) {
        None => Ok(0),
        Some(text) => text.parse::<i64>().map_err(|_| {
            Status::bad_request(format!("strconv.ParseInt: parsing {}: invalid syntax", api::field::quote(text)))
        }),
    };
    // A list is never that slow, but what cannot be read is refused all the same.
    number("timeoutSeconds")?;
    let limit = number("limit")?.max(0) as usize;
    let text = query.get("resourceVersion").unwrap_or_default();
    let revision = parse_revision(text)?;
    let matching = query.get("resourceVersionMatch");
    validate_options(operation, revision, matching)?;
    if let Some(token) = query.get("continue") {
        if revision.is_some_and(|revision| revision != 0) {
            return Err(Status::bad_request("specifying resource version is not allowed when using continue"));
        }
        return continued(operation, filter, limit, token).await;
    }
    let exact = matching == Some("Exact") || (matching.is_none() && limit > 0 && revision.is_some_and(|n| n > 0));
    if let (true, Some(revision)) = (exact, revision) {
        return from_store(operation, filter, limit, Some(revision), None, None).await;
    }
    let floor = match revision {
        None => operation.state.caches.fresh().await?,
        Some(0) => operation.state.caches.applied(),
        Some(revision) => {
            operation.state.caches.reach(revision).await?;
            operation.state.caches.applied()
        }
    };
    from_cache(operation, filter, limit, floor)
}

fn validate_options(operation: &Operation, revision: Option<u64>, matching: Option<&str>) -> Result<(), Status> {
    let mut errors = FieldErrors::default();
    let initial_events = operation.info.query.get("sendInitialEvents").is_some();
    if let Some(matching) = matching {
        if initial_events && operation.info.verb == Verb::Watch {
            if matching != "NotOlderThan" {
                errors.forbidden(
                    "resourceVersionMatch",
                    "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
                );
            }
        } else {
            if operation.info.verb == Verb::Watch {
                errors.forbidden(
                    "resourceVersionMatch",
                    "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
                );
            }
            if revision.is_none() {
                errors.forbidden(
                    "resourceVersionMatch",
                    "resourceVersionMatch is forbidden unless resourceVersion is provided",
                );
            }
            if operation.info.query.get("continue").is_some() {
                errors.forbidden("resourceVersionMatch", "resourceVersionMatch is forbidden when continue is provided");
            }
            match matching {
                "Exact" if revision == Some(0) => {
                    errors.forbidden(
                        "resourceVersionMatch",
                        "resourceVersionMatch \"Exact\" is forbidden for resourceVersion \"0\"",
                    );
                }
                "Exact" | "NotOlderThan" => {}
                other => errors.not_supported("resourceVersionMatch", other, &["Exact", "NotOlderThan"]),
            }
        }
    } else if initial_events && operation.info.verb == Verb::Watch {
        errors.forbidden(
            "resourceVersionMatch",
            "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
        );
    }
    if initial_events && operation.info.verb != Verb::Watch {
        errors.forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list");
    }
    if errors.is_empty() {
        return Ok(());
    }
    Err(Status::invalid(&GroupKind::new("meta.k8s.io", "ListOptions"), "", errors))
}

/// Checks the options of a watch, which share their rules with those of a list.
pub(crate) fn validate_watch_options(operation: &Operation, revision: Option<u64>) -> Result<(), Status> {
    validate_options(operation, revision, operation.info.query.get("resourceVersionMatch"))
}

fn from_cache(operation: &Operation, filter: &Filter, limit: usize, floor: u64) -> Result<Page, Status> {
    let snapshot = operation.state.cache(&operation.resource)?.snapshot();
    // `floor` was read before the snapshot: everything up to it is in there, and nothing is claimed beyond.
    let revision = snapshot.revision.max(floor);
    let mut entries = Vec::new();
    let range = snapshot.range(filter.namespace.as_deref(), None);
    let mut selects = filter.selects_each();
    let mut matching = range.filter(|&entry| if entry.is_unreadable() { filter.covers(entry) } else { selects(entry) });
    let mut more = false;
    for entry in matching.by_ref() {
        entry.readable()?;
        if limit > 0 && entries.len() == limit {
            more = true;
            break;
        }
        entries.push(entry.clone());
    }
    if !more {
        return Ok(Page { entries, revision, next: None, remaining: None });
    }
    let remaining = filter.is_everything().then(|| matching.count() as u64 + 1);
    let next = entries.last().map(|entry| Token::encode(revision as i64, &entry.key));
    Ok(Page { entries, revision, next, remaining })
}

/// A continue token: where to go on, and in which state of the world.
#[derive(Serialize, Deserialize)]
pub(crate) struct Token {
    v: String,
    pub(crate) rv: i64,
    pub(crate) start: String,
}

impl Token {
    /// `last` is the key of the last object sent.
    pub(crate) fn encode(revision: i64, last: &str) -> String {
        // The next key is the smallest one after the last, as upstream writes it.
        let token = Token { v: "meta.k8s.io/v1".to_owned(), rv: revision, start: format!("{last}\u{0}") };
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(&token).unwrap_or_default())
    }

    pub(crate) fn decode(text: &str) -> Result<Self, Status> {
        let bad = |why: &str| Status::bad_request(format!("continue key is not valid: {why}"));
        let bytes = URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).map_err(|error| bad(&error.to_string()))?;
        let token: Token = serde_json::from_slice(&bytes).map_err(|error| bad(&error.to_string()))?;
        if token.v != "meta.k8s.io/v1" {
            return Err(bad("server does not recognize this encoded version"));
        }
        if token.rv == 0 {
            return Err(bad("incorrect encoded start resourceVersion (version meta.k8s.io/v1)"));
        }
        if token.start.is_empty() || token.start.contains("..") {
            return Err(bad("encoded start key empty or invalid (version meta.k8s.io/v1)"));
        }
        Ok(token)
    }
}

async fn continued(operation: &Operation, filter: &Filter, limit: usize, token: &str) -> Result<Page, Status> {
    let token = Token::decode(token)?;
    let after = token.start.trim_end_matches('\u{0}').to_owned();
    let revision = u64::try_from(token.rv).ok();
    from_store(operation, filter, limit, revision, Some(after), Some(token.start)).await
}

/// A page as of a past revision, or with `None` of whatever is there now.
async fn from_store(
    operation: &Operation,
    filter: &Filter,
    limit: usize,
    revision: Option<u64>,
    after: Option<String>,
    start: Option<String>,
) -> Result<Page, Status> {
    let resource = &operation.resource;
    let cache = operation.state.cache(resource)?;
    let root = store_key(resource, "");
    let prefix = match &filter.namespace {
        Some(namespace) => format!("{root}{namespace}/"),
        None => root.clone(),
    };
    let mut after = after.map(|after| format!("{root}{after}"));
    let mut at = revision;
    let mut entries = Vec::new();
    loop {
        let wanted = if limit == 0 {
            0
        } else if filter.is_everything() {
            limit - entries.len()
        } else {
            SCAN
        };
        let mut range = Range::prefix(prefix.as_str()).limit(wanted);
        if !filter.is_everything() {
            // There may be many reads for one page, and nobody is told how many objects are left.
            range = range.uncounted();
        }
        if let Some(at) = at {
            range = range.at(Revision(at));
        }
        if let Some(after) = &after {
            range = range.start_after(after.as_str());
        }
        let result = operation.state.store().range(range).await;
        let result = match result {
            Err(StoreError::Compacted { .. }) if start.is_some() => return Err(expired_token(start.as_deref())),
            other => other.map_err(crate::status::from_store)?,
        };
        // An inconsistent continuation becomes consistent again from its first page on.
        let revision = *at.get_or_insert(result.revision.0);
        let mut read = 0;
        for kv in &result.kvs {
            read += 1;
            let Some(inner) = kv.key.strip_prefix(root.as_str()) else { continue };
            after = Some(kv.key.to_string());
            let entry = cache.entry(inner.into(), &kv.value, kv.mod_revision.0);
            if filter.takes(&entry)? {
                entries.push(Arc::new(entry));
            }
            if limit > 0 && entries.len() == limit {
                break;
            }
        }
        let is_more = result.more || read < result.kvs.len();
        if limit > 0 && entries.len() >= limit && is_more {
            let remaining = filter.is_everything().then(|| result.count.saturating_sub(read as u64));
            let next = entries.last().map(|entry| Token::encode(revision as i64, &entry.key));
            return Ok(Page { entries, revision, next, remaining });
        }
        if !is_more || read == 0 {
            return Ok(Page { entries, revision, next: None, remaining: None });
        }
    }
}

/// The state a token refers to is gone; the answer carries a token that goes on with what is there now.
fn expired_token(start: Option<&str>) -> Status {
    let mut status = Status::expired(
        "The provided continue parameter is too old to display a consistent list result. You can start a new list \
         without the continue parameter, or use the continue token in this response to retrieve the remainder of the \
         results. Continuing with the provided token results in an inconsistent list - objects that were created, \
         modified, or deleted between the time the first chunk was returned and now may show up in the list.",
    );
    if let Some(start) = start {
        status.metadata.continue_ = Token::encode(-1, start.trim_end_matches('\u{0}'));
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_round_trip_and_bad_ones_are_refused() {
        let token = Token::decode(&Token::encode(7, "default/a")).unwrap();
        assert_eq!((token.rv, token.start.as_str()), (7, "default/a\u{0}"));
        for bad in ["", "!!", "e30", &URL_SAFE_NO_PAD.encode(br#"{"v":"v2","rv":1,"start":"a"}"#)] {
            assert_eq!(Token::decode(bad).map(|_| ()).unwrap_err().code(), 400, "{bad}");
        }
    }
}
