//! Resources known only at run time: custom resources, whatever discovery lists, the garbage collector's graph.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::{Api, Client, Object};

pub use api::Gvr;

/// The verbs of `Api`, on plain JSON values.
pub type DynamicApi = Api<Value>;

impl Client {
    /// The verbs of any resource, on JSON values; `namespace` is `None` for cluster-scoped ones and for all namespaces.
    pub fn dynamic(&self, gvr: &Gvr, namespace: Option<&str>) -> DynamicApi {
        Api::untyped(self.clone(), gvr.url_prefix(), gvr.resource.to_string(), namespace, |object| {
            let text = |pointer| object.pointer(pointer).and_then(Value::as_str);
            (text("/metadata/namespace"), text("/metadata/name"))
        })
    }
}

/// An object of any kind reduced to its type and metadata.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PartialObject {
    pub api_version: String,
    pub kind: String,
    pub metadata: ObjectMeta,
}

/// An object of any kind, reduced to who it is and whom it belongs to: what the garbage collector and the count of a quota look at.
/// All other metadata is empty. Annotations can be as large as their object, and labels are nobody's business there.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Owned {
    pub metadata: ObjectMeta,
}

impl<'de> Deserialize<'de> for Owned {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        struct Kept {
            name: Option<String>,
            namespace: Option<String>,
            uid: Option<String>,
            resource_version: Option<String>,
            owner_references: Option<Vec<OwnerReference>>,
            finalizers: Option<Vec<String>>,
            deletion_timestamp: Option<Time>,
        }
        #[derive(Deserialize)]
        struct Object {
            #[serde(default)]
            metadata: Option<Kept>,
        }
        let kept = Object::deserialize(deserializer)?.metadata.unwrap_or_default();
        let metadata = ObjectMeta {
            name: kept.name,
            namespace: kept.namespace,
            uid: kept.uid,
            resource_version: kept.resource_version,
            owner_references: kept.owner_references,
            finalizers: kept.finalizers,
            deletion_timestamp: kept.deletion_timestamp,
            ..ObjectMeta::default()
        };
        Ok(Owned { metadata })
    }
}

impl Client {
    /// The verbs of any resource, decoded into `K`, which may name only those fields that its user reads.
    pub fn view<K: Object>(&self, gvr: &Gvr, namespace: Option<&str>) -> Api<K> {
        Api::untyped(self.clone(), gvr.url_prefix(), gvr.resource.to_string(), namespace, |object: &K| {
            (object.meta().namespace.as_deref(), object.meta().name.as_deref())
        })
    }

    /// The verbs of any resource, with answers reduced to metadata by the server.
    pub fn metadata(&self, gvr: &Gvr, namespace: Option<&str>) -> Api<PartialObject> {
        self.partial(gvr, namespace)
    }

    /// As [`Self::metadata`], of which the client keeps who objects are and whom they belong to.
    pub fn owned(&self, gvr: &Gvr, namespace: Option<&str>) -> Api<Owned> {
        self.partial(gvr, namespace)
    }

    fn partial<K: Object>(&self, gvr: &Gvr, namespace: Option<&str>) -> Api<K> {
        self.view(gvr, namespace).with_accept(
            "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json",
            "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn of_what_is_owned_only_owners_and_identity_are_kept() {
        let owners =
            json!([{ "apiVersion": "v1", "kind": "Node", "name": "n", "uid": "o", "blockOwnerDeletion": true }]);
        let kept = json!({ "name": "a", "namespace": "b", "uid": "u", "resourceVersion": "7", "ownerReferences": owners,
            "finalizers": ["orphan"], "deletionTimestamp": "2026-01-01T00:00:00Z" });
        let mut all = kept.clone();
        let dropped = json!({ "labels": { "a": "b" }, "annotations": { "a": "b" }, "generateName": "a-", "generation": 3,
            "creationTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 3, "selfLink": "/", "managedFields": [] });
        all.as_object_mut().unwrap().extend(dropped.as_object().unwrap().clone());
        let read = |metadata: &serde_json::Value| -> Owned {
            serde_json::from_value(json!({ "kind": "Secret", "metadata": metadata, "data": { "key": "aGlkZGVu" } }))
                .unwrap()
        };
        assert_eq!(serde_json::to_value(read(&all).metadata).unwrap(), kept);
        for empty in [json!({}), json!({ "metadata": null }), json!({ "metadata": {} })] {
            assert_eq!(serde_json::from_value::<Owned>(empty).unwrap(), Owned::default());
        }
        assert!(serde_json::from_str::<Owned>("[7]").is_err());
    }
}
