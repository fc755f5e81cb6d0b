//! The verbs of one resource: `Api<Pod>` for types the code reasons about, `Api<Value>` for any other.

use std::any::TypeId;
use std::time::Duration;

use api::read::{Fields, Read, Reader};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Method, Request, header};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ListMeta, ObjectMeta};
use serde::{Deserialize, Serialize};

use crate::answer::{read_list, read_one, read_out};
use crate::params::{Query, percent_encode};
use crate::room::Room;
use crate::{Client, DeleteParams, Error, ListParams, Patch, WatchStream, WriteParams};

/// Any built-in object type with ordinary metadata. What can be encoded as well can be created and updated.
pub trait Resource:
    k8s_openapi::Resource
    + k8s_openapi::Metadata<Ty = ObjectMeta>
    + Read
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
        + Read
        + Clone
        + PartialEq
        + std::fmt::Debug
        + Send
        + Sync
        + 'static
{
}

/// A list answer of any resource.
#[derive(Debug, Clone, Serialize)]
pub struct List<K> {
    pub metadata: ListMeta,
    pub items: Vec<K>,
}

impl<K: Read> Fields for List<K> {
    fn name(&self) -> &'static str {
        "List"
    }

    fn read_field(&mut self, name: &str, from: &mut Reader<'_>) -> serde_json::Result<()> {
        match name {
            "metadata" => from.field(&mut self.metadata),
            // Some servers send `null` for an empty list.
            "items" => from.field(&mut self.items),
            _ => from.skip(),
        }
    }
}

impl<K: Read> Read for List<K> {
    fn read(from: &mut Reader<'_>) -> serde_json::Result<Self> {
        let mut list = Self { metadata: ListMeta::default(), items: Vec::new() };
        from.object(&mut list)?;
        Ok(list)
    }
}

/// What the pages of a list are read into.
pub(crate) trait Pages: Send {
    /// Reads one more page; objects that take much more memory than text take some of the room.
    fn add(&mut self, page: &[u8], room: &mut Room) -> serde_json::Result<ListMeta>;

    /// Forgets the pages that were read: the list begins again.
    fn forget(&mut self);
}

impl<K: Read + Send> Pages for Vec<K> {
    fn add(&mut self, page: &[u8], room: &mut Room) -> serde_json::Result<ListMeta> {
        let List { metadata, items } = api::read::from_slice_by(page, |from| room.read(from, List::<K>::read))?;
        self.extend(items);
        Ok(metadata)
    }

    fn forget(&mut self) {
        self.clear();
    }
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

api::read_by_serde!(Written);

impl Written {
    pub fn name(&self) -> &str {
        &self.metadata.name
    }
}

const JSON: &str = "application/json";

/// For all pages of a list of an aggregated API server, which may well be slow and have any number of them.
const PAGES_TIMEOUT: Duration = Duration::from_secs(600);

/// Namespace and name of an object, as far as it has them.
pub(crate) type Named<'a> = (Option<&'a str>, Option<&'a str>);

/// The verbs of one resource, in one namespace or in all.
#[derive(Clone)]
pub struct Api<K> {
    pub(crate) collection: Collection,
    named: fn(&K) -> Named<'_>,
}

/// Where objects are and how they are asked for: all of [`Api`] that does not depend on their type, so that it is compiled once
/// and not for each of dozens of kinds.
#[derive(Clone)]
pub(crate) struct Collection {
    client: Client,
    /// `/api/v1` or `/apis/apps/v1`.
    group_path: String,
    plural: String,
    namespace: Option<String>,
    /// `Accept` of answers with one object, and of lists.
    accept: (&'static str, &'static str),
}

/// What the server said, and to what.
struct Answer {
    uri: String,
    body: Bytes,
}

impl Answer {
    fn decode<T: Read>(self) -> Result<T, Error> {
        api::read::from_slice(&self.body).map_err(|source| Error::Decode { what: self.uri, source })
    }
}

impl Client {
    /// The verbs of `K` across all namespaces, or of a cluster-scoped `K`.
    pub fn all<K: Resource>(&self) -> Api<K> {
        Api::typed(self.clone(), None)
    }

    /// The verbs of `K` in one namespace.
    pub fn namespaced<K: Resource>(&self, namespace: &str) -> Api<K> {
        Api::typed(self.clone(), Some(namespace))
    }
}

impl<K: Resource> Api<K> {
    fn typed(client: Client, namespace: Option<&str>) -> Self {
        Self {
            collection: Collection::of::<K>(client, namespace),
            named: |object| {
                let metadata = object.metadata();
                (metadata.namespace.as_deref(), metadata.name.as_deref())
            },
        }
    }
}

impl<K: Read> Api<K> {
    pub(crate) fn untyped(
        client: Client,
        group_path: String,
        plural: String,
        namespace: Option<&str>,
        named: fn(&K) -> Named<'_>,
    ) -> Self {
        let namespace = namespace.map(str::to_owned);
        Self { collection: Collection { client, group_path, plural, namespace, accept: (JSON, JSON) }, named }
    }

    pub(crate) fn with_accept(mut self, object: &'static str, list: &'static str) -> Self {
        self.collection.accept = (object, list);
        self
    }

    /// The client these verbs go through.
    pub fn client(&self) -> &Client {
        &self.collection.client
    }

    pub async fn get(&self, name: &str) -> Result<K, Error> {
        self.collection.call(Method::GET, self.collection.own_path(Some(name), None), None).await?.decode()
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
        let mut room = Room::default();
        let Answer { uri, body } = self.collection.list(params, &mut room).await?;
        let list = api::read::from_slice_by(&body, |from| room.read(from, List::<K>::read));
        list.map_err(|source| Error::Decode { what: uri, source })
    }

    /// All objects, page by page, as one list at one resource version. When the server has forgotten that version before the last
    /// page, it is asked for all of them at once, as upstream's pager does: in a busy cluster the next pages would fare no better.
    pub async fn list_all(&self, params: &ListParams, page: u32) -> Result<List<K>, Error>
    where
        K: Send,
    {
        let mut items = Vec::new();
        let metadata = self.collection.list_all(params, page, &mut items, &mut Room::default()).await?;
        Ok(List { metadata, items })
    }

    /// Events after `resource_version` (empty: from now, beginning with what exists).
    pub async fn watch(&self, params: &ListParams, resource_version: &str) -> Result<WatchStream<K>, Error> {
        self.collection.watch(params, resource_version).await.map(|answer| WatchStream::new(answer.into_body()))
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
        let mut query = Query::new(self.collection.path_in(namespace, None, None));
        params.query(&mut query);
        self.call(Method::POST, query.finish(), object).await
    }

    /// Creates, and reads of the answer only what `T` holds: decoding a whole object that nobody looks at costs more than
    /// sending it.
    pub async fn create_as<T: Read>(&self, object: &K) -> Result<T, Error>
    where
        K: Serialize,
    {
        let (namespace, _) = (self.named)(object);
        self.call(Method::POST, self.collection.path_in(namespace, None, None), object).await
    }

    pub async fn update(&self, object: &K) -> Result<K, Error>
    where
        K: Serialize,
    {
        self.replace(object, None).await
    }

    pub async fn update_status(&self, object: &K) -> Result<K, Error>
    where
        K: Serialize,
    {
        self.replace(object, Some("status")).await
    }

    async fn replace(&self, object: &K, subresource: Option<&str>) -> Result<K, Error>
    where
        K: Serialize,
    {
        let (namespace, name) = (self.named)(object);
        let name = name.ok_or_else(|| Error::Encode("an update needs the object's name".into()))?;
        self.call(Method::PUT, self.collection.path_in(namespace, Some(name), subresource), object).await
    }

    pub async fn patch(&self, name: &str, patch: &Patch) -> Result<K, Error> {
        self.patch_path(name, None, patch).await
    }

    pub async fn patch_status(&self, name: &str, patch: &Patch) -> Result<K, Error> {
        self.patch_path(name, Some("status"), patch).await
    }

    /// Patches a subresource (`scale`, `resize`, …) and decodes whatever object it answers with.
    pub async fn patch_path<T: Read>(&self, name: &str, subresource: Option<&str>, patch: &Patch) -> Result<T, Error> {
        self.collection.patch(name, subresource, patch).await?.decode()
    }

    pub async fn delete(&self, name: &str, params: &DeleteParams) -> Result<(), Error> {
        self.collection.delete(self.collection.own_path(Some(name), None), params).await
    }

    pub async fn delete_collection(&self, list: &ListParams, params: &DeleteParams) -> Result<(), Error> {
        let mut query = Query::new(self.collection.own_path(None, None));
        list.query(&mut query);
        self.collection.delete(query.finish(), params).await
    }

    pub async fn get_subresource<T: Read>(&self, name: &str, subresource: &str) -> Result<T, Error> {
        let uri = self.collection.own_path(Some(name), Some(subresource));
        self.collection.call(Method::GET, uri, None).await?.decode()
    }

    /// POSTs to a subresource: `binding`, `eviction`, `token`.
    pub async fn create_subresource<B: Serialize, T: Read>(
        &self,
        name: &str,
        subresource: &str,
        body: &B,
    ) -> Result<T, Error> {
        self.call(Method::POST, self.collection.own_path(Some(name), Some(subresource)), body).await
    }

    /// PUTs a subresource: `scale`, `approval`, `finalize`, `ephemeralcontainers`.
    pub async fn update_subresource<B: Serialize, T: Read>(
        &self,
        name: &str,
        subresource: &str,
        body: &B,
    ) -> Result<T, Error> {
        self.call(Method::PUT, self.collection.own_path(Some(name), Some(subresource)), body).await
    }

    async fn call<B: Serialize, T: Read>(&self, method: Method, uri: String, body: &B) -> Result<T, Error> {
        let body = encode(body)?;
        self.collection.call(method, uri, Some(body)).await?.decode()
    }
}

/// What a request comes to. Boxed: what an `async fn` does is compiled again by every crate that waits for it.
type Coming<'a, T> = BoxFuture<'a, Result<T, Error>>;

impl Collection {
    /// Where the objects of a built-in type are.
    pub(crate) fn of<K: Resource>(client: Client, namespace: Option<&str>) -> Self {
        let root = if K::GROUP.is_empty() { "/api/" } else { "/apis/" };
        let namespaced = TypeId::of::<K::Scope>() == TypeId::of::<k8s_openapi::NamespaceResourceScope>();
        Self::at(client, root, K::API_VERSION, K::URL_PATH_SEGMENT, namespace.filter(|_| namespaced))
    }

    fn at(client: Client, root: &str, api_version: &str, plural: &str, namespace: Option<&str>) -> Self {
        Self {
            client,
            group_path: format!("{root}{api_version}"),
            plural: plural.to_owned(),
            namespace: namespace.map(str::to_owned),
            accept: (JSON, JSON),
        }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// What the collection is called in URLs.
    pub(crate) fn plural(&self) -> &str {
        &self.plural
    }

    /// Sends a request about one object and reads the answer.
    fn call(&self, method: Method, uri: String, body: Option<Bytes>) -> Coming<'_, Answer> {
        let content_type = body.is_some().then_some(JSON);
        self.send(method, uri, self.accept.0, content_type, body.unwrap_or_default())
    }

    fn list<'a>(&'a self, params: &ListParams, room: &'a mut Room) -> Coming<'a, Answer> {
        let mut query = Query::new(self.own_path(None, None));
        params.query(&mut query);
        let uri = query.finish();
        let request = request(Method::GET, uri.clone(), self.accept.1, None, Bytes::new());
        Box::pin(async move {
            let response = self.client.send_checked(request?).await?;
            room.bound_by(response.headers());
            match read_list(response.into_body(), room).await {
                Ok(body) => Ok(Answer { uri, body }),
                Err(source) => Err(Error::Transport { method: Method::GET, uri, source }),
            }
        })
    }

    /// As [`Api::list_all`]; answers with the metadata of the last page. What the pages take stays taken of the room.
    pub(crate) fn list_all<'a>(
        &'a self,
        params: &ListParams,
        page: u32,
        pages: &'a mut dyn Pages,
        room: &'a mut Room,
    ) -> Coming<'a, ListMeta> {
        let at_once = params.clone();
        let mut params = ListParams { limit: Some(page), ..params.clone() };
        Box::pin(async move {
            let began = tokio::time::Instant::now();
            let mut metadata = self.page(&params, pages, room).await?;
            while let Some(token) = metadata.continue_.take().filter(|token| !token.is_empty()) {
                if room.is_bounded() && began.elapsed() >= PAGES_TIMEOUT {
                    let seconds = PAGES_TIMEOUT.as_secs();
                    return Err(Error::Timeout { method: Method::GET, uri: self.own_path(None, None), seconds });
                }
                params.continue_token = Some(token);
                params.resource_version = None;
                params.resource_version_match = None;
                let next = self.page(&params, pages, room).await;
                if next.as_ref().is_err_and(Error::is_expired) {
                    pages.forget();
                    room.clear();
                    return self.page(&at_once, pages, room).await;
                }
                metadata = next?;
            }
            Ok(metadata)
        })
    }

    async fn page(&self, params: &ListParams, pages: &mut dyn Pages, room: &mut Room) -> Result<ListMeta, Error> {
        let answer = self.list(params, room).await?;
        // A page without objects takes some as well: there may be any number of them.
        let added = room.take_object().and_then(|()| pages.add(&answer.body, room));
        added.map_err(|source| Error::Decode { what: answer.uri, source })
    }

    pub(crate) fn watch<'a>(
        &'a self,
        params: &ListParams,
        resource_version: &str,
    ) -> Coming<'a, http::Response<crate::Body>> {
        let mut query = Query::new(self.own_path(None, None));
        query.pair("watch", "true");
        let resource_version = (!resource_version.is_empty()).then(|| resource_version.to_owned());
        ListParams { resource_version, ..params.clone() }.query(&mut query);
        let request = request(Method::GET, query.finish(), self.accept.0, None, Bytes::new());
        Box::pin(async move { self.client.send_checked(request?).await })
    }

    fn patch<'a>(&'a self, name: &str, subresource: Option<&str>, patch: &Patch) -> Coming<'a, Answer> {
        let mut query = Query::new(self.own_path(Some(name), subresource));
        patch.params.query(&mut query);
        match encode(&patch.body) {
            Ok(body) => self.send(Method::PATCH, query.finish(), self.accept.0, Some(patch.content_type), body),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }

    async fn delete(&self, uri: String, params: &DeleteParams) -> Result<(), Error> {
        let body = encode(&params.options())?;
        let response = self.client.send_checked(request(Method::DELETE, uri, JSON, Some(JSON), body)?).await?;
        read_out(response).await;
        Ok(())
    }

    fn send(
        &self,
        method: Method,
        uri: String,
        accept: &str,
        content_type: Option<&str>,
        body: Bytes,
    ) -> Coming<'_, Answer> {
        let request = request(method.clone(), uri.clone(), accept, content_type, body);
        Box::pin(async move {
            let response = self.client.send_checked(request?).await?;
            match read_one(response.into_body()).await {
                Ok(body) => Ok(Answer { uri, body }),
                Err(source) => Err(Error::Transport { method, uri, source }),
            }
        })
    }

    /// In the namespace of these verbs.
    fn own_path(&self, name: Option<&str>, subresource: Option<&str>) -> String {
        self.path_in(None, name, subresource)
    }

    /// In the namespace of these verbs, or, if they are about all of them, in this one.
    fn path_in(&self, namespace: Option<&str>, name: Option<&str>, subresource: Option<&str>) -> String {
        let mut path = self.group_path.clone();
        if let Some(namespace) = self.namespace.as_deref().or(namespace).filter(|namespace| !namespace.is_empty()) {
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
    api::schema::encode_plain(body).map(Bytes::from).map_err(|error| Error::Encode(error.to_string()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use futures_util::{StreamExt, stream};
    use http::Response;
    use http_body::Frame;
    use http_body_util::{BodyExt, StreamBody};
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

    #[tokio::test]
    async fn security_pages_without_end_are_an_error() {
        const OWN_PAGES: usize = 6;
        for (is_aggregated, padding) in [(false, 1 << 20), (true, 1 << 20), (true, 0)] {
            let pages = Arc::new(AtomicUsize::default());
            let handler: crate::Handler = Arc::new(move |_| {
                let page = pages.fetch_add(1, Ordering::Relaxed) + 1;
                let next = if is_aggregated || page < OWN_PAGES { "next" } else { "" };
                let items = if padding == 0 { "" } else { r#"{"metadata":{"name":"a"}}"# };
                let padding = " ".repeat(padding);
                let text = format!(r#"{{"metadata":{{"continue":"{next}"}},"items":[{items}]{padding}}}"#);
                let body = http_body_util::Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed_unsync();
                let mut response = Response::new(body);
                if is_aggregated {
                    response.headers_mut().insert(api::AGGREGATED_HEADER, http::HeaderValue::from_static("true"));
                }
                Box::pin(async move { response })
            });
            let api = Client::in_process(handler, api::UserInfo::default()).namespaced::<ConfigMap>("n");
            match api.list_all(&ListParams::default(), 1).await {
                Ok(list) => assert!(!is_aggregated && list.items.len() == OWN_PAGES),
                Err(error) => assert!(is_aggregated && error.to_string().contains("lists more than"), "{error}"),
            }
        }
    }

    /// An empty object is three bytes of a list, and hundreds of bytes in memory.
    #[tokio::test]
    async fn security_lists_of_empty_objects_are_bounded() {
        for is_aggregated in [false, true] {
            let handler: crate::Handler = Arc::new(move |_| {
                let text = format!(r#"{{"metadata":{{}},"items":[{}]}}"#, vec!["{}"; 50_000].join(","));
                let body = http_body_util::Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed_unsync();
                let mut response = Response::new(body);
                if is_aggregated {
                    response.headers_mut().insert(api::AGGREGATED_HEADER, http::HeaderValue::from_static("true"));
                }
                Box::pin(async move { response })
            });
            let api = Client::in_process(handler, api::UserInfo::default()).namespaced::<ConfigMap>("n");
            let params = ListParams::default();
            let read = [api.list(&params).await, api.list_all(&params, 1).await];
            assert_eq!(read.map(|list| list.is_err()), [is_aggregated; 2]);
        }
    }
}
