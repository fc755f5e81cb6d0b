//! The parameters of a binding: objects that its policy's expressions see as `params`.

use std::sync::Arc;

use api::Status;
use api::selector::{ParseError, Selector};
use cel::Value;
use k8s_openapi::api::admissionregistration::v1::{ParamKind, ParamRef};
use registry::Resource;

use crate::cluster::Cluster;
use crate::watch_cache::{Entry, Unreadable, inner_key};

/// Why a binding has no parameters.
#[derive(Debug, thiserror::Error)]
pub(super) enum ParamsError {
    #[error("paramKind kind `{api_version}, Kind={kind}` not known")]
    UnknownKind { api_version: String, kind: String },
    #[error("cannot use namespaced paramRef in policy binding that matches cluster-scoped resources")]
    NoNamespace,
    #[error("paramRef.namespace must not be provided for a cluster-scoped `paramKind`")]
    ClusterScoped,
    #[error("one of name or selector must be provided")]
    NeitherNameNorSelector,
    #[error("paramRef.name and paramRef.selector are mutually exclusive")]
    NameAndSelector,
    #[error(transparent)]
    Selector(#[from] ParseError),
    #[error("no params found for policy binding with `Deny` parameterNotFoundAction")]
    NotFound,
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    #[error(transparent)]
    Server(#[from] Status),
}

/// Each value the policy is evaluated with; null if it takes none.
pub(super) async fn collect(
    cluster: &Cluster,
    kind: Option<&ParamKind>,
    reference: Option<&ParamRef>,
    namespace: &str,
) -> Result<Vec<Value>, ParamsError> {
    let (Some(kind), Some(reference)) = (kind, reference) else { return Ok(vec![Value::Null]) };
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let (api_version, kind) = (text(&kind.api_version), text(&kind.kind));
    let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
    let table = cluster.registry.table();
    let row = table.rows().iter().find(|row| row.group == group && row.version == version && row.kind == kind);
    let Some(row) = row else {
        return Err(ParamsError::UnknownKind { api_version, kind });
    };
    let (own_namespace, name) = (text(&reference.namespace), text(&reference.name));
    let namespace = match (row.is_namespaced(), own_namespace.as_str()) {
        (true, "") if namespace.is_empty() => {
            return Err(ParamsError::NoNamespace);
        }
        (true, "") => namespace,
        (true, own) => own,
        (false, "") => "",
        (false, _) => {
            return Err(ParamsError::ClusterScoped);
        }
    };
    let found = match (name.as_str(), &reference.selector) {
        ("", None) => return Err(ParamsError::NeitherNameNorSelector),
        ("", Some(selector)) => selected(cluster, row, namespace, &Selector::from_label_selector(Some(selector))?)?,
        (_, Some(_)) => return Err(ParamsError::NameAndSelector),
        (name, None) => named(cluster, row, namespace, name).await?.into_iter().collect(),
    };
    if found.is_empty() && reference.parameter_not_found_action.as_deref() == Some("Deny") {
        return Err(ParamsError::NotFound);
    }
    let found = crate::versions::entries(row, found).await?;
    Ok(found.iter().map(|entry| value(row, entry)).collect::<Result<_, _>>()?)
}

fn value(row: &Resource, entry: &Entry) -> Result<Value, Unreadable> {
    let json = entry.readable()?.json();
    let served = crate::versions::served_value(row, &json).map_err(|status| entry.refuse(&status.message))?;
    Ok(Value::from_json(&served))
}

async fn named(
    cluster: &Cluster,
    row: &Resource,
    namespace: &str,
    name: &str,
) -> Result<Option<Arc<Entry>>, ParamsError> {
    let key = inner_key(row, namespace, name);
    let cache = cluster.cache(row)?;
    if let Some(found) = cache.get(&key) {
        return Ok(Some(found));
    }
    // It may have been created a moment ago.
    cluster.caches.fresh().await.map_err(Status::from)?;
    Ok(cache.get(&key))
}

fn selected(
    cluster: &Cluster,
    row: &Resource,
    namespace: &str,
    selector: &Selector,
) -> Result<Vec<Arc<Entry>>, ParamsError> {
    let snapshot = cluster.cache(row)?.snapshot();
    let namespace = row.is_namespaced().then_some(namespace);
    let is_selected = |entry: &&Arc<Entry>| entry.is_unreadable() || entry.is_labelled(selector);
    Ok(snapshot.range(namespace, None).filter(is_selected).cloned().collect())
}
