//! Objects of built-in kinds by their types, for decisions about others: admission, authentication, allocation.
//!
//! What is read may lag a little behind the store; [`Caches::fresh`] waits for what was written a moment ago.
//! Invariant: an object that is there and cannot be read is an error, never nothing. No caller names a place in the
//! store, so none can look in a wrong one and find nothing.

use std::sync::Arc;

use api::read::{Fields, Reader};
use k8s_openapi::Resource;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use registry::parts::Parts;
use registry::table::store_prefix;
use serde::de::Error as _;

use super::{Caches, Entry, Unreadable};

#[derive(Clone, Copy)]
pub(crate) struct Objects<'c>(&'c Caches);

/// Kinds whose objects are few and asked for again and again: their typed form stays with the cached object.
const KEPT: &[&str] = &["customresourcedefinitions", "apiservices", "priorityclasses", "serviceaccounts", "services"];

/// All that is read of an object when its kind does not matter.
#[derive(Default)]
struct Identified {
    metadata: Option<ObjectMeta>,
}

impl Fields for Identified {
    fn name(&self) -> &'static str {
        "Object"
    }

    fn read_field(&mut self, name: &str, from: &mut Reader<'_>) -> serde_json::Result<()> {
        match name {
            "metadata" => from.field(&mut self.metadata),
            _ => from.skip(),
        }
    }
}

impl Caches {
    pub(crate) fn objects(&self) -> Objects<'_> {
        Objects(self)
    }
}

impl<'c> Objects<'c> {
    /// An object; the namespace of kinds without one is empty.
    pub(crate) fn get<K>(self, namespace: &str, name: &str) -> Result<Option<Arc<K>>, Unreadable>
    where
        K: Resource + Parts + Send + Sync + 'static,
    {
        let Some(entry) = self.entry::<K>(namespace, name)? else { return Ok(None) };
        match KEPT.contains(&K::URL_PATH_SEGMENT) {
            true => entry.read().map(Some),
            false => entry.object().map(|object| Some(Arc::new(object))),
        }
    }

    /// As it is cached, for those who need little of it and look for that themselves.
    pub(crate) fn entry<K: Resource>(self, namespace: &str, name: &str) -> Result<Option<Arc<Entry>>, Unreadable> {
        let cache = self.0.get(store_prefix::<K>());
        let entry = cache.and_then(|cache| match namespace {
            "" => cache.get(name),
            _ => cache.get(&[namespace, "/", name].concat()),
        });
        entry.as_deref().map(Entry::readable).transpose()?;
        Ok(entry)
    }

    pub(crate) fn metadata<K: Resource>(self, namespace: &str, name: &str) -> Result<Option<ObjectMeta>, Unreadable> {
        let read = |json: &[u8]| {
            api::read::from_slice_by(json, |from| {
                let mut object = Identified::default();
                from.object(&mut object)?;
                object.metadata.ok_or_else(|| serde_json::Error::custom("missing field `metadata`"))
            })
        };
        self.entry::<K>(namespace, name)?.map(|entry| entry.decode_by(read)).transpose()
    }

    /// All objects of a kind, of one namespace if given.
    pub(crate) fn list<K>(self, namespace: Option<&str>) -> Result<Vec<K>, Unreadable>
    where
        K: Resource + Parts,
    {
        let Some(cache) = self.0.get(store_prefix::<K>()) else { return Ok(Vec::new()) };
        let snapshot = cache.snapshot();
        // Mostly there are none, and that is to cost nothing.
        if snapshot.objects.is_empty() {
            return Ok(Vec::new());
        }
        snapshot.range(namespace, None).map(|entry| entry.object()).collect()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, Service, ServiceAccount};

    use super::*;

    #[tokio::test]
    async fn security_objects_are_found_by_type_and_what_cannot_be_read_is_not_absent() {
        let dir = tempfile::tempdir().unwrap();
        let store: Arc<dyn store::Store> =
            Arc::new(store::EmbeddedStore::open(dir.path(), Default::default()).unwrap());
        for (key, value) in [
            ("pods/a/p", r#"{"metadata":{"name":"p","uid":"1"},"spec":{"containers":[]}}"#),
            ("pods/b/bad", r#"{"metadata":{"name":"bad","uid":"2"},"spec":{"containers":7}}"#),
            ("minions/n", r#"{"metadata":{"name":"n","uid":"3"}}"#),
            ("services/specs/a/s", r#"{"metadata":{"name":"s"},"spec":{"clusterIP":"10.0.0.1"}}"#),
            ("serviceaccounts/a/bad", "no json"),
        ] {
            store.create(&format!("/registry/{key}"), Bytes::from(value)).await.unwrap();
        }
        let prefixes = ["pods", "minions", "services/specs", "serviceaccounts"];
        let caches = super::super::start(store, &prefixes).await.unwrap();
        let objects = caches.objects();
        assert_eq!(objects.get::<Pod>("a", "p").unwrap().unwrap().metadata.uid.as_deref(), Some("1"));
        assert_eq!(objects.metadata::<Node>("", "n").unwrap().unwrap().uid.as_deref(), Some("3"));
        let service = || objects.get::<Service>("a", "s").unwrap().unwrap();
        assert!(Arc::ptr_eq(&service(), &service()), "its kind is kept");
        assert!(objects.get::<Pod>("b", "p").unwrap().is_none());
        assert!(objects.list::<Pod>(Some("other")).unwrap().is_empty());
        // A kind that is not served has no objects.
        assert!(objects.get::<ConfigMap>("a", "m").unwrap().is_none());
        let error = objects.get::<Pod>("b", "bad").unwrap_err();
        assert_eq!(error.to_string(), "stored object /registry/pods/b/bad cannot be read");
        assert!(objects.list::<Pod>(None).is_err() && objects.list::<Pod>(Some("a")).is_ok_and(|pods| pods.len() == 1));
        assert!(objects.get::<ServiceAccount>("a", "bad").is_err());
        assert!(objects.metadata::<ServiceAccount>("a", "bad").is_err());
    }
}
