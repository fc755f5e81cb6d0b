//! What an autoscaler scales, and what a disruption budget counts by: any resource with a `scale`, found by its kind.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use client::{ApiResource, Client, DynamicApi, Gvr};
use k8s_openapi::api::autoscaling::v1::Scale;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{APIGroup, APIResource, APIResourceList};
use parking_lot::Mutex;

use super::error::{Error, Result};

/// How long an answer of discovery is believed.
const DISCOVERY_TTL: Duration = Duration::from_secs(30);

/// Resources by group, version and kind, as discovery says.
#[derive(Default)]
pub(crate) struct Resources(Mutex<HashMap<(String, String), (Instant, ApiResource)>>);

impl Resources {
    /// The version of a reference is where the search begins: any version of the group that is served will do.
    pub(crate) async fn find(&self, client: &Client, api_version: &str, kind: &str) -> Result<ApiResource> {
        let key = (api_version.to_owned(), kind.to_owned());
        if let Some((since, found)) = self.0.lock().get(&key)
            && since.elapsed() < DISCOVERY_TTL
        {
            return Ok(found.clone());
        }
        let (group, version) = group_version(api_version)?;
        let mut found = kind_in(client, group, version, kind).await?.map(|found| (version.to_owned(), found));
        if found.is_none() && !group.is_empty() {
            for other in versions(client, group).await?.into_iter().filter(|other| other != version) {
                found = kind_in(client, group, &other, kind).await?.map(|found| (other, found));
                if found.is_some() {
                    break;
                }
            }
        }
        let (version, found) = found.ok_or_else(|| Error::NoKind { kind: kind.to_owned(), group: group.to_owned() })?;
        let found = ApiResource {
            gvr: Gvr { group: group.to_owned().into(), version: version.into(), resource: found.name.into() },
            kind: found.kind,
            namespaced: found.namespaced,
            verbs: found.verbs,
        };
        let mut known = self.0.lock();
        // References may name any version of a group: what is not believed any more is not kept.
        known.retain(|_, (since, _)| since.elapsed() < DISCOVERY_TTL);
        known.insert(key, (Instant::now(), found.clone()));
        Ok(found)
    }
}

/// How often a size is set on a target that others change at the same time (`retry.DefaultRetry`, v1.36).
const ATTEMPTS: usize = 5;

/// Sets the size of a target; where it has changed since it was read, on what it is now.
pub(super) async fn resize(
    api: &DynamicApi,
    name: &str,
    mut scale: Scale,
    replicas: i32,
) -> std::result::Result<(), client::Error> {
    let mut attempt = 1;
    loop {
        scale.spec.get_or_insert_default().replicas = Some(replicas);
        let written: std::result::Result<Scale, _> = api.update_subresource(name, "scale", &scale).await;
        match written {
            Err(error) if error.is_conflict() && attempt < ATTEMPTS => {
                attempt += 1;
                scale = api.get_subresource(name, "scale").await?;
            }
            other => return other.map(drop),
        }
    }
}

async fn kind_in(client: &Client, group: &str, version: &str, kind: &str) -> Result<Option<APIResource>> {
    let path = if group.is_empty() { vec!["api", version] } else { vec!["apis", group, version] };
    let list: APIResourceList = match client.get_at(&path, &[]).await {
        Ok(list) => list,
        Err(error) if error.is_not_found() => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    Ok(list.resources.into_iter().find(|found| found.kind == kind && !found.name.contains('/')))
}

/// What is served of a group, best first.
async fn versions(client: &Client, group: &str) -> Result<Vec<String>> {
    match client.get_at::<APIGroup>(&["apis", group], &[]).await {
        Ok(found) => Ok(found.versions.into_iter().map(|version| version.version).collect()),
        Err(error) if error.is_not_found() => Ok(Vec::new()),
        Err(error) => Err(error.into()),
    }
}

/// Nothing means the core group, as it does in references to a ReplicationController.
fn group_version(api_version: &str) -> Result<(&str, &str)> {
    match api_version.split('/').collect::<Vec<_>>()[..] {
        [""] | ["", ""] => Ok(("", "v1")),
        [version] => Ok(("", version)),
        [group, version] => Ok((group, version)),
        _ => Err(Error::GroupVersion(api_version.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use bytes::Bytes;
    use http_body_util::{BodyExt, Full};
    use serde_json::json;

    use super::*;

    /// A server on which so many writes meet a change of another's.
    async fn resized(conflicts: usize) -> (bool, usize) {
        let writes = Arc::new(AtomicUsize::new(0));
        let counted = writes.clone();
        let handler: client::Handler = Arc::new(move |request: http::Request<Bytes>| {
            let is_write = request.method() == http::Method::PUT;
            let is_refused = is_write && counted.fetch_add(1, Ordering::SeqCst) < conflicts;
            let (code, body) = match is_refused {
                true => (409_u16, json!({"kind": "Status", "apiVersion": "v1", "code": 409, "reason": "Conflict"})),
                false => (200, json!({"metadata": {"name": "web", "resourceVersion": "2"}, "spec": {"replicas": 1}})),
            };
            let body: client::Body =
                Full::new(Bytes::from(body.to_string())).map_err(|never| match never {}).boxed_unsync();
            Box::pin(async move { http::Response::builder().status(code).body(body).unwrap() })
        });
        let client = Client::in_process(handler, api::UserInfo::default());
        let gvr = Gvr { group: "apps".into(), version: "v1".into(), resource: "deployments".into() };
        let api = client.dynamic(&gvr, Some("default"));
        let resized = resize(&api, "web", Scale::default(), 3).await;
        (resized.is_ok(), writes.load(Ordering::SeqCst))
    }

    #[tokio::test]
    async fn a_target_that_others_change_is_resized_all_the_same() {
        assert_eq!(resized(0).await, (true, 1));
        assert_eq!(resized(3).await, (true, 4));
        assert_eq!(resized(usize::MAX).await, (false, 5));
    }

    #[test]
    fn api_versions_of_references() {
        for (text, expected) in [
            ("", Ok(("", "v1"))),
            ("/", Ok(("", "v1"))),
            ("v1", Ok(("", "v1"))),
            ("apps/v1", Ok(("apps", "v1"))),
            ("a/b/c", Err("unexpected GroupVersion string: a/b/c".to_owned())),
        ] {
            assert_eq!(group_version(text).map_err(|error| error.to_string()), expected, "{text}");
        }
    }
}
