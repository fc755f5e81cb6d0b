//! Discovery: which resources the server has, each in its preferred version.

use bytes::Bytes;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{APIGroupList, APIResource, APIResourceList};
use serde::de::DeserializeOwned;

use crate::answer::read_one;
use crate::params::{Query, percent_encode};
use crate::{Client, Error, Gvr};

/// A version of a group with more resources counts as one that cannot be asked: a server of others lists as many as it
/// likes, and each is watched by the garbage collector and looked into for every namespace that is deleted.
const MAX_RESOURCES: usize = 5000;

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
        let mut resources = Vec::new();
        let mut failed = Vec::new();
        let groups: APIGroupList = self.get_json("/apis").await?;
        let versions = groups.groups.into_iter().filter_map(|group| {
            let version = group.preferred_version.or(group.versions.into_iter().next())?;
            Some((group.name, version.version))
        });
        for (group, version) in std::iter::once((String::new(), "v1".to_owned())).chain(versions) {
            let path = if group.is_empty() { "/api/v1".to_owned() } else { format!("/apis/{group}/{version}") };
            match self.get_json::<APIResourceList>(&path).await {
                Ok(mut list) => {
                    list.resources.retain(|resource| !resource.name.contains('/'));
                    if list.resources.len() > MAX_RESOURCES {
                        let source = serde::de::Error::custom(format!("more than {MAX_RESOURCES} resources"));
                        failed.push((path.clone(), Error::Decode { what: path, source }));
                        continue;
                    }
                    let own = list.resources.into_iter();
                    resources.extend(own.map(|resource| ApiResource::of(&group, &version, resource)));
                }
                Err(error) => failed.push((path, error)),
            }
        }
        Ok((resources, failed))
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
}
