//! Objects as upstream's API server stores them: protobuf, in a version that may not be the one we store.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;

use crate::json;
use crate::protobuf;
use crate::watch_cache::ROOT;
use registry::{Resource, Serving, Table};

/// How such a definition begins, and in how many bytes that is looked for.
const DEFINITION_HEAD: &[u8] = br#""apiVersion":"apiextensions.k8s.io/v1beta1""#;
const HEAD_BYTES: usize = 128;
const DEFINITIONS: &str = "apiextensions.k8s.io/customresourcedefinitions/";

/// Why an object of upstream's cannot be read.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum ForeignError {
    #[error("{0}")]
    Protobuf(#[from] protobuf::DecodeError),
    #[error("{0}")]
    Json(Arc<serde_json::Error>),
    #[error("{0} is no kind that is stored here")]
    Kind(String),
    #[error("{version} is no version of {kind}")]
    Version { version: String, kind: String },
    #[error("{0}")]
    Encoding(String),
    #[error("an object without metadata")]
    NoMetadata,
}

fn not_json(error: serde_json::Error) -> ForeignError {
    ForeignError::Json(Arc::new(error))
}

/// The rows of built-in resources, to read their objects with.
pub(crate) struct Foreign(Vec<Arc<Resource>>);

impl Foreign {
    pub(crate) fn new(table: &Table) -> Self {
        let stored = table.rows().iter().filter(|row| !row.is_custom && row.serving == Serving::Stored);
        Self(stored.cloned().collect())
    }

    /// The object as this server would have stored it.
    pub(super) fn read(&self, key: &str, stored: &[u8]) -> Result<Bytes, ForeignError> {
        let mut value = protobuf::decode(stored)?;
        // No object, and never served. That it has metadata tells it from what older versions of ours wrote.
        if key.strip_prefix(ROOT).is_some_and(|rest| rest.starts_with("ranges/")) {
            if !value["metadata"].is_object() {
                value["metadata"] = serde_json::json!({});
            }
            return Ok(value.to_string().into());
        }
        self.as_ours(key, value)
    }

    /// Definitions of custom resources, which upstream stores in JSON and in a version that nobody serves any more. None for
    /// everything else.
    pub(super) fn read_definition(&self, key: &str, stored: &[u8]) -> Option<Result<Bytes, ForeignError>> {
        let head = &stored[..stored.len().min(HEAD_BYTES)];
        let is_old = key.strip_prefix(ROOT).is_some_and(|rest| rest.starts_with(DEFINITIONS))
            && head.windows(DEFINITION_HEAD.len()).any(|window| window == DEFINITION_HEAD);
        is_old.then(|| {
            let mut value: Value = serde_json::from_slice(stored).map_err(not_json)?;
            registry::apiextensions::beta::to_v1(&mut value);
            self.as_ours(key, value)
        })
    }

    fn as_ours(&self, key: &str, mut value: Value) -> Result<Bytes, ForeignError> {
        let text = |value: &Value, name: &str| value[name].as_str().unwrap_or_default().to_owned();
        let (api_version, kind) = (text(&value, "apiVersion"), text(&value, "kind"));
        let within = key.strip_prefix(ROOT).unwrap_or_default();
        let is_here = |row: &&Arc<Resource>| {
            within.strip_prefix(&*row.store_prefix).is_some_and(|rest| rest.starts_with('/')) && *row.kind == kind
        };
        let row = self.0.iter().filter(is_here).find(|row| row.conversion.is_none());
        let row = row.ok_or_else(|| ForeignError::Kind(kind.clone()))?;
        if *row.storage_version != api_version {
            let other = self.0.iter().filter(is_here).find(|row| row.api_version() == api_version);
            let conversion = other.and_then(|row| row.conversion.as_ref());
            let unknown = || ForeignError::Version { version: api_version.clone(), kind: kind.clone() };
            conversion.ok_or_else(unknown)?.to_storage(&mut value);
        }
        let managed_fields = value["metadata"].as_object_mut().and_then(|meta| meta.remove("managedFields"));
        let managed_fields = managed_fields.map(|fields| fields.to_string());
        let mut object = row.strategy.decode_value(value).map_err(not_json)?;
        // As upstream does with what it reads.
        row.strategy.apply_defaults(&mut *object);
        object.fill_status();
        let meta = object.meta_mut();
        (meta.resource_version, meta.self_link) = (None, None);
        let raw =
            crate::initializers::encode(row, &mut *object).map_err(|status| ForeignError::Encoding(status.message))?;
        let stored = json::canonical(raw, &row.kind, &row.storage_version, managed_fields.as_deref());
        stored.map(Bytes::from).ok_or(ForeignError::NoMetadata)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use registry::{Registry, RuntimeConfig};

    fn foreign() -> Foreign {
        Foreign::new(&Registry::new(&RuntimeConfig::default()).table())
    }

    fn read(key: &str, object: Value) -> Result<Value, String> {
        let stored = foreign().read(key, &protobuf::encode(&object).unwrap()).map_err(|error| error.to_string())?;
        Ok(serde_json::from_slice(&stored).unwrap())
    }

    #[test]
    fn objects_of_upstream_are_read_in_our_form() {
        let meta = json!({"name": "a", "namespace": "n", "uid": "u", "labels": {"l": "1"},
            "managedFields": [{"manager": "kubectl", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1",
                "fieldsV1": {"f:data": {}}}]});
        let map = json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": meta, "data": {"k": "v"}});
        let stored = foreign().read("/registry/configmaps/n/a", &protobuf::encode(&map).unwrap()).unwrap();
        let head = br#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"#;
        assert!(stored.starts_with(head), "{}", String::from_utf8_lossy(&stored));
        let found: Value = serde_json::from_slice(&stored).unwrap();
        assert_eq!(found["data"], map["data"]);
        assert_eq!(found["metadata"]["managedFields"], meta["managedFields"]);

        // In another version than ours.
        let hpa = json!({"kind": "HorizontalPodAutoscaler", "apiVersion": "autoscaling/v1", "metadata": {"name": "h"},
            "spec": {"maxReplicas": 3, "targetCPUUtilizationPercentage": 50,
                "scaleTargetRef": {"kind": "Deployment", "name": "d", "apiVersion": "apps/v1"}}});
        let found = read("/registry/horizontalpodautoscalers/n/h", hpa).unwrap();
        assert_eq!(found["apiVersion"], "autoscaling/v2");
        assert_eq!(found["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"], 50);
    }

    #[test]
    fn definitions_of_upstream_are_read() {
        let key = "/registry/apiextensions.k8s.io/customresourcedefinitions/boats.example.com";
        let stored = br#"{"kind":"CustomResourceDefinition","apiVersion":"apiextensions.k8s.io/v1beta1","metadata":{"name":"boats.example.com","uid":"u"},
            "spec":{"group":"example.com","version":"v1","names":{"plural":"boats","singular":"boat","kind":"Boat","listKind":"BoatList"},
            "scope":"Namespaced","validation":{"openAPIV3Schema":{"type":"object"}},"versions":[{"name":"v1","served":true,"storage":true}],
            "conversion":{"strategy":"None"},"preserveUnknownFields":false},"status":{"storedVersions":["v1"]}}"#;
        let found = foreign().read_definition(key, stored).unwrap().unwrap();
        let found: Value = serde_json::from_slice(&found).unwrap();
        assert_eq!(found["apiVersion"], "apiextensions.k8s.io/v1");
        assert_eq!(found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["type"], "object");
        assert!(found["spec"].get("validation").is_none());
        assert!(foreign().read_definition("/registry/configmaps/n/a", stored).is_none());
        assert!(foreign().read_definition(key, &stored[..20]).is_none());
        let ours = br#"{"kind":"CustomResourceDefinition","apiVersion":"apiextensions.k8s.io/v1","metadata":{}}"#;
        assert!(foreign().read_definition(key, ours).is_none());
    }

    #[test]
    fn ranges_of_upstream_are_read() {
        let range = json!({"kind": "RangeAllocation", "apiVersion": "v1", "metadata": {}, "range": "30000-32767", "data": "AQ=="});
        let found = read("/registry/ranges/servicenodeports", range).unwrap();
        assert_eq!((&found["range"], &found["data"]), (&json!("30000-32767"), &json!("AQ==")));
        assert!(found["metadata"].is_object());
    }

    /// Every kind that has a protobuf form and is stored, as far as a name goes.
    #[test]
    fn every_built_in_kind_is_read_from_its_place() {
        let mut kinds = 0;
        for row in &foreign().0 {
            let object = json!({"kind": row.kind, "apiVersion": row.api_version(), "metadata": {"name": "a"}});
            let Some(encoded) = protobuf::encode(&object) else { continue };
            let key = format!("{ROOT}{}/a", row.store_prefix);
            match foreign().read(&key, &encoded) {
                Ok(stored) => {
                    let found: Value = serde_json::from_slice(&stored).unwrap();
                    assert_eq!(found["metadata"]["name"], "a", "{}", row.kind);
                    assert_eq!(found["apiVersion"], *row.storage_version, "{}", row.kind);
                    kinds += 1;
                }
                // Some kinds have fields that every object of them has.
                Err(error) => assert!(error.to_string().contains("missing field"), "{}: {error}", row.kind),
            }
        }
        assert!(kinds > 40, "{kinds} kinds");
    }

    #[test]
    fn security_what_does_not_belong_is_refused() {
        let pod = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "a"}});
        assert!(read("/registry/secrets/n/a", pod.clone()).is_err(), "another kind");
        assert!(read("/registry/podsx/n/a", pod.clone()).is_err(), "another place");
        let encoded = protobuf::encode(&pod).unwrap();
        for length in 0..encoded.len() {
            // Cut anywhere it is an error or an object, never a panic.
            let _ = foreign().read("/registry/pods/n/a", &encoded[..length]);
        }
    }
}
