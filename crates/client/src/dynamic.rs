//! Resources known only at run time: custom resources, whatever discovery lists, the garbage collector's graph.

use api::read::{Fields, Read, Reader};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;
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
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PartialObject {
    pub api_version: String,
    pub kind: String,
    pub metadata: ObjectMeta,
}

impl Fields for PartialObject {
    fn name(&self) -> &'static str {
        "PartialObjectMetadata"
    }

    fn read_field(&mut self, name: &str, from: &mut Reader<'_>) -> serde_json::Result<()> {
        match name {
            "apiVersion" => from.field(&mut self.api_version),
            "kind" => from.field(&mut self.kind),
            "metadata" => from.field(&mut self.metadata),
            _ => from.skip(),
        }
    }
}

impl Read for PartialObject {
    fn read(from: &mut Reader<'_>) -> serde_json::Result<Self> {
        let mut object = Self::default();
        from.object(&mut object)?;
        Ok(object)
    }
}

impl Object for PartialObject {
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
    fn kind() -> &'static str {
        "PartialObjectMetadata"
    }
}

/// An object of any kind, reduced to who it is and whom it belongs to: what the garbage collector and the count of a quota look at.
/// All other metadata is empty. Annotations can be as large as their object, and labels are nobody's business there.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Owned {
    pub metadata: ObjectMeta,
}

impl Fields for Owned {
    fn name(&self) -> &'static str {
        "PartialObjectMetadata"
    }

    fn read_field(&mut self, name: &str, from: &mut Reader<'_>) -> serde_json::Result<()> {
        if name != "metadata" {
            return from.skip();
        }
        self.metadata = ObjectMeta::default();
        if from.is_null()? { Ok(()) } else { from.object(&mut Ownership(&mut self.metadata)) }
    }
}

/// The metadata of an [`Owned`], which is all that is read of it.
struct Ownership<'a>(&'a mut ObjectMeta);

impl Fields for Ownership<'_> {
    fn name(&self) -> &'static str {
        "ObjectMeta"
    }

    fn read_field(&mut self, name: &str, from: &mut Reader<'_>) -> serde_json::Result<()> {
        match name {
            "name" => from.field(&mut self.0.name),
            "namespace" => from.field(&mut self.0.namespace),
            "uid" => from.field(&mut self.0.uid),
            "resourceVersion" => from.field(&mut self.0.resource_version),
            "ownerReferences" => from.field(&mut self.0.owner_references),
            "finalizers" => from.field(&mut self.0.finalizers),
            "deletionTimestamp" => from.field(&mut self.0.deletion_timestamp),
            _ => from.skip(),
        }
    }
}

impl Read for Owned {
    fn read(from: &mut Reader<'_>) -> serde_json::Result<Self> {
        let mut object = Self::default();
        from.object(&mut object)?;
        Ok(object)
    }
}

impl Object for Owned {
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
    fn kind() -> &'static str {
        "PartialObjectMetadata"
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
            api::codec::from_value(&json!({ "kind": "Secret", "metadata": metadata, "data": { "key": "aGlkZGVu" } }))
                .unwrap()
        };
        assert_eq!(serde_json::to_value(read(&all).metadata).unwrap(), kept);
        for empty in [json!({}), json!({ "metadata": null }), json!({ "metadata": {} })] {
            assert_eq!(api::codec::from_value::<Owned>(&empty).unwrap(), Owned::default());
        }
        assert!(api::read::from_str::<Owned>("[7]").is_err());
    }
}
