//! The verbs of one resource: `Api<Pod>` for types the code reasons about, `Api<Value>` for any other.

use std::any::TypeId;

use bytes::Bytes;
use http::{Method, Request, header};
use http_body_util::BodyExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ListMeta, ObjectMeta};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::answer::read_out;
use crate::params::{Query, percent_encode};
use crate::{Client, DeleteParams, Error, ListParams, Patch, WatchStream, WriteParams};

/// Any built-in object type with ordinary metadata. What can be encoded as well can be created and updated.
pub trait Resource:
    k8s_openapi::Resource
    + k8s_openapi::Metadata<Ty = ObjectMeta>
    + DeserializeOwned
    + Clone
    + PartialEq
    + std::fmt::Debug
    + Send
    + Sync
    + 'static
{
}

impl<K> Resource for K where
    K: k8s_openapi::Resource
        + k8s_openapi::Metadata<Ty = ObjectMeta>
        + DeserializeOwned
        + Clone
        + PartialEq
        + std::fmt::Debug
        + Send
        + Sync
        + 'static
{
}

/// A list answer of any resource.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(bound(deserialize = "K: Deserialize<'de>"))]
pub struct List<K> {
    #[serde(default)]
    pub metadata: ListMeta,
    #[serde(default = "Vec::new", deserialize_with = "items_or_null")]
    pub items: Vec<K>,
}

/// `items: null` is what some servers send for an empty list.
fn items_or_null<'de, D, K>(deserializer: D) -> Result<Vec<K>, D::Error>
where
    D: serde::Deserializer<'de>,
    K: Deserialize<'de>,
{
    Ok(Option::<Vec<K>>::deserialize(deserializer)?.unwrap_or_default())
}

/// The name of an object, and nothing else of it: for answers to what we wrote ourselves.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Written {
    metadata: WrittenMetadata,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct WrittenMetadata {
    name: String,
}

impl Written {
    pub fn name(&self) -> &str {
        &self.metadata.name
    }
}

const JSON: &str = "application/json";

/// Namespace and name of an object, as far as it has them.
pub(crate) type Named<'a> = (Option<&'a str>, Option<&'a str>);

/// The verbs of one resource, in one namespace or in all.
#[derive(Clone)]
pub struct Api<K> {
    client: Client,
    /// `/api/v1` or `/apis/apps/v1`.
    group_path: String,
    plural: String,
    namespace: Option<String>,
    named: fn(&K) -> Named<'_>,
    /// `Accept` of answers with one object, and of lists.
    accept: (&'static str, &'static str),
}

impl<K: Resource> Api<K> {
    pub(crate) fn typed(client: Client, namespace: Option<&str>) -> Self {
        let group_path =
            if K::GROUP.is_empty() { format!("/api/{}", K::VERSION) } else { format!("/apis/{}", K::API_VERSION) };
        let namespaced = TypeId::of::<K::Scope>() == TypeId::of::<k8s_openapi::NamespaceResourceScope>();
        Self {
            client,
            group_path,
            plural: K::URL_PATH_SEGMENT.into(),
            namespace: namespace.filter(|_| namespaced).map(str::to_owned),
            named: |object| {
                let metadata = object.metadata();
                (metadata.namespace.as_deref(), metadata.name.as_deref())
            },
            accept: (JSON, JSON),
        }
    }
}

impl<K: DeserializeOwned> Api<K> {
    pub(crate) fn untyped(
        client: Client,
        group_path: String,
        plural: String,
        namespace: Option<&str>,
        named: fn(&K) -> Named<'_>,
    ) -> Self {
        Self { client, group_path, plural, namespace: namespace.map(str::to_owned), named, accept: (JSON, JSON) }
    }

    pub(crate) fn with_accept(mut self, object: &'static str, list: &'static str) -> Self {
        self.accept = (object, list);
        self
    }

    /// The client these verbs go through.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// What the collection is called in URLs.
    pub(crate) fn plural(&self) -> &str {
        &self.plural
    }

    pub async fn get(&self, name: &str) -> Result<K, Error> {
        self.call(Method::GET, self.path(self.namespace.as_deref(), Some(name), None), None::<&()>).await
    }

    /// Like `get`, with "not found" as an ordinary answer.
    pub async fn get_opt(&self, name: &str) -> Result<Option<K>, Error> {
        match self.get(name).await {
            Ok(object) => Ok(Some(object)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub async fn list(&self, params: &ListParams) -> Result<List<K>, Error> {
        let mut query = Query::new(self.path(self.namespace.as_deref(), None, None));
        params.query(&mut query);
        let uri = query.finish();
        let response =
            self.client.send_checked(request(Method::GET, uri.clone(), self.accept.1, None, Bytes::new())?).await?;
        decode(response, &uri).await
    }

    /// All objects, page by page, as one list at one resource version. When the server has forgotten that version before the last
    /// page, it is asked for all of them at once, as upstream's pager does: in a busy cluster the next pages would fare no better.
    pub async fn list_all(&self, params: &ListParams, page: u32) -> Result<List<K>, Error> {
        let at_once = params;
        let mut params = ListParams { limit: Some(page), ..params.clone() };
        let mut whole = self.list(&params).await?;
        while let Some(token) = whole.metadata.continue_.take().filter(|token| !token.is_empty()) {
            params.continue_token = Some(token);
            params.resource_version = None;
            params.resource_version_match = None;
            let next = match self.list(&params).await {
                Err(error) if error.is_expired() => return self.list(at_once).await,
                next => next?,
            };
            whole.items.extend(next.items);
            whole.metadata = next.metadata;
        }
        Ok(whole)
    }

    /// Events after `resource_version` (empty: from now, beginning with what exists).
    pub async fn watch(&self, params: &ListParams, resource_version: &str) -> Result<WatchStream<K>, Error> {
        let mut query = Query::new(self.path(self.namespace.as_deref(), None, None));
        query.pair("watch", "true");
        let resource_version = (!resource_version.is_empty()).then(|| resource_version.to_owned());
        ListParams { resource_version, ..params.clone() }.query(&mut query);
        let request = request(Method::GET, query.finish(), self.accept.0, None, Bytes::new())?;
        let response = self.client.send_checked(request).await?;
        Ok(WatchStream::new(response.into_body()))
    }

    pub async fn create(&self, object: &K) -> Result<K, Error>
    where
        K: Serialize,
    {
        self.create_with(object, &WriteParams::default()).await
    }

    pub async fn create_with(&self, object: &K, params: &WriteParams) -> Result<K, Error>
    where
        K: Serialize,
    {
        let (namespace, _) = (self.named)(object);
        let mut query = Query::new(self.path(self.namespace.as_deref().or(namespace), None, None));
        params.query(&mut query);
        self.call(Method::POST, query.finish(), Some(object)).await
    }

    /// Creates, and reads of the answer only what `T` holds: decoding a whole object that nobody looks at costs more than
    /// sending it.
    pub async fn create_as<T: DeserializeOwned>(&self, object: &K) -> Result<T, Error>
    where
        K: Serialize,
    {
        let (namespace, _) = (self.named)(object);
        self.call(Method::POST, self.path(self.namespace.as_deref().or(namespace), None, None), Some(object)).await
    }

    pub async fn update(&self, object: &K) -> Result<K, Error>
    where
        K: Serialize,
    {
        self.replace(object, None, &WriteParams::default()).await
    }

    pub async fn update_with(&self, object: &K, params: &WriteParams) -> Result<K, Error>
    where
        K: Serialize,
    {
        self.replace(object, None, params).await
    }

    pub async fn update_status(&self, object: &K) -> Result<K, Error>
    where
        K: Serialize,
    {
        self.replace(object, Some("status"), &WriteParams::default()).await
    }

    async fn replace(&self, object: &K, subresource: Option<&str>, params: &WriteParams) -> Result<K, Error>
    where
        K: Serialize,
    {
        let (namespace, name) = (self.named)(object);
        let name = name.ok_or_else(|| Error::Encode("an update needs the object's name".into()))?;
        let mut query = Query::new(self.path(self.namespace.as_deref().or(namespace), Some(name), subresource));
        params.query(&mut query);
        self.call(Method::PUT, query.finish(), Some(object)).await
    }

    pub async fn patch(&self, name: &str, patch: &Patch) -> Result<K, Error> {
        self.patch_path(name, None, patch).await
    }

    pub async fn patch_status(&self, name: &str, patch: &Patch) -> Result<K, Error> {
        self.patch_path(name, Some("status"), patch).await
    }

    /// Patches a subresource (`scale`, `resize`, …) and decodes whatever object it answers with.
    pub async fn patch_path<T: DeserializeOwned>(
        &self,
        name: &str,
        subresource: Option<&str>,
        patch: &Patch,
    ) -> Result<T, Error> {
        let mut query = Query::new(self.path(self.namespace.as_deref(), Some(name), subresource));
        patch.params.query(&mut query);
        let body = encode(&patch.body)?;
        let uri = query.finish();
        let response = self
            .client
            .send_checked(request(Method::PATCH, uri.clone(), self.accept.0, Some(patch.content_type), body)?)
            .await?;
        decode(response, &uri).await
    }

    pub async fn delete(&self, name: &str, params: &DeleteParams) -> Result<(), Error> {
        let uri = self.path(self.namespace.as_deref(), Some(name), None);
        self.delete_path(uri, params).await
    }

    pub async fn delete_collection(&self, list: &ListParams, params: &DeleteParams) -> Result<(), Error> {
        let mut query = Query::new(self.path(self.namespace.as_deref(), None, None));
        list.query(&mut query);
        self.delete_path(query.finish(), params).await
    }

    async fn delete_path(&self, uri: String, params: &DeleteParams) -> Result<(), Error> {
        let body = encode(&params.options())?;
        let response = self.client.send_checked(request(Method::DELETE, uri, JSON, Some(JSON), body)?).await?;
        read_out(response).await;
        Ok(())
    }

    pub async fn get_subresource<T: DeserializeOwned>(&self, name: &str, subresource: &str) -> Result<T, Error> {
        self.call(Method::GET, self.path(self.namespace.as_deref(), Some(name), Some(subresource)), None::<&()>).await
    }

    /// POSTs to a subresource: `binding`, `eviction`, `token`.
    pub async fn create_subresource<B: Serialize, T: DeserializeOwned>(
        &self,
        name: &str,
        subresource: &str,
        body: &B,
    ) -> Result<T, Error> {
        self.call(Method::POST, self.path(self.namespace.as_deref(), Some(name), Some(subresource)), Some(body)).await
    }

    /// PUTs a subresource: `scale`, `approval`, `finalize`, `ephemeralcontainers`.
    pub async fn update_subresource<B: Serialize, T: DeserializeOwned>(
        &self,
        name: &str,
        subresource: &str,
        body: &B,
    ) -> Result<T, Error> {
        self.call(Method::PUT, self.path(self.namespace.as_deref(), Some(name), Some(subresource)), Some(body)).await
    }

    async fn call<B: Serialize, T: DeserializeOwned>(
        &self,
        method: Method,
        uri: String,
        body: Option<&B>,
    ) -> Result<T, Error> {
        let (content_type, body) = match body {
            Some(body) => (Some(JSON), encode(body)?),
            None => (None, Bytes::new()),
        };
        let response =
            self.client.send_checked(request(method, uri.clone(), self.accept.0, content_type, body)?).await?;
        decode(response, &uri).await
    }

    fn path(&self, namespace: Option<&str>, name: Option<&str>, subresource: Option<&str>) -> String {
        let mut path = self.group_path.clone();
        if let Some(namespace) = namespace.filter(|namespace| !namespace.is_empty()) {
            path.push_str("/namespaces/");
            percent_encode(&mut path, namespace);
        }
        path.push('/');
        path.push_str(&self.plural);
        for segment in [name, subresource].into_iter().flatten() {
            path.push('/');
            percent_encode(&mut path, segment);
        }
        path
    }
}

fn request(
    method: Method,
    uri: String,
    accept: &str,
    content_type: Option<&str>,
    body: Bytes,
) -> Result<Request<Bytes>, Error> {
    let mut builder = Request::builder().method(method).uri(uri).header(header::ACCEPT, accept);
    if let Some(content_type) = content_type {
        builder = builder.header(header::CONTENT_TYPE, content_type);
    }
    builder.body(body).map_err(|error| Error::Encode(error.to_string()))
}

fn encode(body: &impl Serialize) -> Result<Bytes, Error> {
    serde_json::to_vec(body).map(Bytes::from).map_err(|error| Error::Encode(error.to_string()))
}

async fn decode<T: DeserializeOwned>(response: http::Response<crate::Body>, uri: &str) -> Result<T, Error> {
    let body = response
        .into_body()
        .collect()
        .await
        .map_err(|source| Error::Transport { method: Method::GET, uri: uri.into(), source })?
        .to_bytes();
    serde_json::from_slice(&body).map_err(|source| Error::Decode { what: uri.into(), source })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use futures_util::{StreamExt, stream};
    use http::Response;
    use http_body::Frame;
    use http_body_util::StreamBody;
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;
    use crate::BoxError;

    #[tokio::test]
    async fn the_answer_to_a_delete_is_read_to_its_end() {
        let is_read = Arc::new(AtomicBool::default());
        let end = is_read.clone();
        let handler: crate::Handler = Arc::new(move |_| {
            let end = end.clone();
            let last = stream::once(async move {
                end.store(true, Ordering::Relaxed);
                Ok::<_, BoxError>(Frame::data(Bytes::from_static(b"}")))
            });
            let body = stream::iter([Ok(Frame::data(Bytes::from_static(b"{")))]).chain(last);
            let response = Response::new(StreamBody::new(body).boxed_unsync());
            Box::pin(async move { response })
        });
        let api = Client::in_process(handler, api::UserInfo::default()).namespaced::<ConfigMap>("n");
        api.delete("a", &DeleteParams::default()).await.unwrap();
        assert!(is_read.load(Ordering::Relaxed));
    }
}
