//! Discovery: which resources the server has, each in its preferred version.

use bytes::Bytes;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{APIGroupList, APIResource, APIResourceList};
use serde::de::DeserializeOwned;

use crate::answer::read_one;
use crate::params::{Query, percent_encode};
use crate::{Client, Error, Gvr};

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
                Ok(list) => {
                    let own = list.resources.into_iter().filter(|resource| !resource.name.contains('/'));
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
