//! Discovery: which resources the server has, each in its preferred version.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, StreamExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{APIGroupList, APIResource, APIResourceList};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout_at};

use crate::answer::read_one;
use crate::params::{Query, percent_encode};
use crate::{Client, Error, Gvr};

/// A version of a group with more resources counts as one that cannot be asked: a server of others lists as many as it
/// likes, and each is watched by the garbage collector and looked into for every namespace that is deleted.
const MAX_RESOURCES: usize = 5000;

/// For all groups together: those whose servers are silent are not waited for one after another.
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(60);
/// Versions of groups that are asked at a time.
const PARALLEL: usize = 4;

/// One resource as discovery describes it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ApiResource {
    pub gvr: Gvr,
    pub kind: String,
    pub namespaced: bool,
    pub verbs: Vec<String>,
}

impl ApiResource {
    fn of(group: &str, version: &str, found: APIResource) -> Self {
        let gvr =
            Gvr { group: group.to_owned().into(), version: version.to_owned().into(), resource: found.name.into() };
        ApiResource { gvr, kind: found.kind, namespaced: found.namespaced, verbs: found.verbs }
    }

    pub fn supports(&self, verb: &str) -> bool {
        self.verbs.iter().any(|known| known == verb)
    }
}

impl Client {
    /// Every resource (no subresources) in the preferred version of its group. Groups that cannot be asked, such as those
    /// of an absent extension server, come back as failures beside the rest.
    pub async fn discover(&self) -> Result<(Vec<ApiResource>, Vec<(String, Error)>), Error> {
        let deadline = Instant::now() + DISCOVERY_TIMEOUT;
        let groups: APIGroupList = self.get_json("/apis").await?;
        let versions = groups.groups.into_iter().filter_map(|group| {
            let version = group.preferred_version.or(group.versions.into_iter().next())?;
            Some((group.name, version.version))
        });
        let versions = std::iter::once((String::new(), "v1".to_owned())).chain(versions);
        let asked: Vec<_> = versions.map(|(group, version)| self.ask_version(group, version, deadline)).collect();
        let mut asked = stream::iter(asked).buffered(PARALLEL);
        let (mut resources, mut failed) = (Vec::new(), Vec::new());
        while let Some(found) = asked.next().await {
            match found {
                Ok(found) => resources.extend(found),
                Err(failure) => failed.push(failure),
            }
        }
        Ok((resources, failed))
    }

    /// The resources of one version of a group, or its path and why it cannot be asked.
    fn ask_version(
        &self,
        group: String,
        version: String,
        deadline: Instant,
    ) -> BoxFuture<'_, Result<Vec<ApiResource>, (String, Error)>> {
        Box::pin(async move {
            let path = if group.is_empty() { "/api/v1".to_owned() } else { format!("/apis/{group}/{version}") };
            let asked = match timeout_at(deadline, self.get_json::<APIResourceList>(&path)).await {
                Ok(asked) => asked,
                Err(_) => {
                    let seconds = DISCOVERY_TIMEOUT.as_secs();
                    Err(Error::Timeout { method: http::Method::GET, uri: path.clone(), seconds })
                }
            };
            let mut list = asked.map_err(|error| (path.clone(), error))?;
            list.resources.retain(|resource| !resource.name.contains('/'));
            if list.resources.len() > MAX_RESOURCES {
                let source = serde::de::Error::custom(format!("more than {MAX_RESOURCES} resources"));
                return Err((path.clone(), Error::Decode { what: path, source }));
            }
            let found = list.resources.into_iter();
            Ok(found.map(|resource| ApiResource::of(&group, &version, resource)).collect())
        })
    }

    /// The resource of a kind in a version (`apps/v1`, `v1`); none if the server does not have it.
    pub async fn resource_of(&self, api_version: &str, kind: &str) -> Result<Option<ApiResource>, Error> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let root = if group.is_empty() { "api" } else { "apis" };
        let segments: Vec<&str> = [root, group, version].into_iter().filter(|part| !part.is_empty()).collect();
        let list: APIResourceList = match self.get_at(&segments, &[]).await {
            Ok(list) => list,
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => return Err(error),
        };
        let is_it = |name: &str, found: &str| found == kind && !name.contains('/');
        let found = list.resources.into_iter().find(|resource| is_it(&resource.name, &resource.kind));
        Ok(found.map(|resource| ApiResource::of(group, version, resource)))
    }

    /// GETs the path of these segments with this query, each of them in plain text, and decodes whatever JSON is there.
    pub async fn get_at<T: DeserializeOwned>(&self, segments: &[&str], query: &[(&str, &str)]) -> Result<T, Error> {
        let mut path = String::new();
        for segment in segments {
            path.push('/');
            percent_encode(&mut path, segment);
        }
        let mut path = Query::new(path);
        for (name, value) in query {
            path.pair(name, value);
        }
        self.get_json(&path.finish()).await
    }

    /// GETs a path and returns the text that is there.
    pub async fn get_text(&self, path: &str) -> Result<String, Error> {
        let request = http::Request::get(path).body(Bytes::new()).map_err(|error| Error::Encode(error.to_string()))?;
        let body = self.read_bounded(request, path).await?;
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    async fn read_bounded(&self, request: http::Request<Bytes>, path: &str) -> Result<Bytes, Error> {
        let read = read_one(self.send_checked(request).await?.into_body()).await;
        read.map_err(|source| Error::Transport { method: http::Method::GET, uri: path.to_owned(), source })
    }

    /// GETs a path and decodes whatever JSON is there.
    pub async fn get_json<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        let request = http::Request::get(path)
            .header(http::header::ACCEPT, "application/json")
            .body(Bytes::new())
            .map_err(|error| Error::Encode(error.to_string()))?;
        let body = self.read_bounded(request, path).await?;
        serde_json::from_slice(&body).map_err(|source| Error::Decode { what: path.into(), source })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http::{Request, Response};
    use http_body_util::{BodyExt, Full};
    use serde_json::{Value, json};

    use super::*;

    #[tokio::test]
    async fn security_a_group_of_any_number_of_resources_is_not_taken_in() {
        let group =
            |name: &str| json!({"name": name, "versions": [{"groupVersion": format!("{name}/v1"), "version": "v1"}]});
        let list = |count: usize| {
            let item = |number: usize| json!({"name": format!("r{number}"), "singularName": "", "namespaced": true, "kind": "K", "verbs": []});
            json!({"groupVersion": "v1", "resources": (0..count).map(item).collect::<Vec<Value>>()})
        };
        let handler: crate::Handler = Arc::new(move |request: Request<Bytes>| {
            let answer = match request.uri().path() {
                "/apis" => json!({"groups": [group("a.com"), group("b.com")]}),
                "/apis/a.com/v1" => list(MAX_RESOURCES + 1),
                _ => list(2),
            };
            let body = Full::new(Bytes::from(answer.to_string()));
            let body: crate::Body = body.map_err(|never| match never {}).boxed_unsync();
            Box::pin(async move { Response::new(body) })
        });
        let (found, failed) = Client::in_process(handler, api::UserInfo::default()).discover().await.unwrap();
        assert_eq!(found.len(), 4);
        let failed: Vec<String> = failed.into_iter().map(|(path, error)| format!("{path}: {error}")).collect();
        assert_eq!(failed, ["/apis/a.com/v1: decoding the answer of /apis/a.com/v1: more than 5000 resources"]);
    }

    #[tokio::test(start_paused = true)]
    async fn security_silent_groups_are_not_waited_for_one_after_another() {
        let names = ["a.com", "b.com", "c.com", "d.com", "e.com", "f.com"];
        let handler: crate::Handler = Arc::new(move |request: Request<Bytes>| {
            let group = |name: &str| json!({"name": name, "versions": [{"groupVersion": format!("{name}/v1"), "version": "v1"}]});
            let own = json!({"name": "pods", "singularName": "", "namespaced": true, "kind": "Pod", "verbs": []});
            let answer = match request.uri().path() {
                "/apis" => Some(json!({"groups": names.map(group)})),
                "/api/v1" => Some(json!({"groupVersion": "v1", "resources": [own]})),
                _ => None,
            };
            Box::pin(async move {
                let Some(answer) = answer else { return std::future::pending().await };
                let body = Full::new(Bytes::from(answer.to_string()));
                let body: crate::Body = body.map_err(|never| match never {}).boxed_unsync();
                Response::new(body)
            })
        });
        let client = Client::in_process(handler, api::UserInfo::default());
        let found = tokio::time::timeout(2 * DISCOVERY_TIMEOUT, client.discover()).await;
        let (found, failed) = found.expect("an end").unwrap();
        assert_eq!((found.len(), failed.len()), (1, names.len()));
    }
}
