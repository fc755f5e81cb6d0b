//! Resources known only at run time: custom resources, whatever discovery lists, the garbage collector's graph.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};
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

/// An object of any kind reduced to its type and metadata; all that the garbage collector needs to know.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PartialObject {
    pub api_version: String,
    pub kind: String,
    pub metadata: ObjectMeta,
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
        self.view(gvr, namespace).with_accept(
            "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json",
            "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json",
        )
    }
}
