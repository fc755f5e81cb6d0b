//! The versions that one kind is served in: objects of any of them in any other.

use std::sync::Arc;

use api::patch::apply::Versions;
use api::schema::StructRef;
use serde_json::{Map, Value};

use super::index::Registry;
use super::resource::Resource;

/// The versions of the kind of a row. Of custom kinds there are none here: who converts those may be far away.
pub struct KindVersions<'a> {
    registry: &'a Registry,
    row: &'a Resource,
}

impl<'a> KindVersions<'a> {
    pub fn new(registry: &'a Registry, row: &'a Resource) -> Self {
        Self { registry, row }
    }

    /// None if no other version can be converted here: then nothing has to be looked at in it.
    pub fn others(&self) -> Option<&dyn Versions> {
        let versions: &dyn Versions = self;
        (!self.row.is_custom).then_some(versions)
    }

    fn find(&self, version: &str) -> Option<Arc<Resource>> {
        let own = self.row;
        let is_same = |row: &Resource| !row.is_custom && row.store_prefix == own.store_prefix && row.kind == own.kind;
        let table = self.registry.table();
        table.rows().iter().find(|row| is_same(row) && row.api_version() == version).cloned()
    }
}

impl std::fmt::Debug for KindVersions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "versions of {:?}", self.row)
    }
}

impl Versions for KindVersions<'_> {
    fn convert(&self, object: &Map<String, Value>, version: &str) -> Option<(Map<String, Value>, StructRef)> {
        let from = self.find(object.get("apiVersion")?.as_str()?)?;
        let to = self.find(version)?;
        let mut value = Value::Object(object.clone());
        if !Arc::ptr_eq(&from, &to) {
            from.to_storage(&mut value);
            to.from_storage(&mut value);
        }
        match value {
            Value::Object(fields) => Some((fields, to.schema())),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
    use serde_json::json;

    use super::*;
    use crate::RuntimeConfig;

    #[test]
    fn objects_are_converted_between_any_two_versions_of_their_kind() {
        let registry = Registry::new(&RuntimeConfig::default());
        let object = |api_version: &str, value: Value| {
            let mut object = value.as_object().unwrap().clone();
            object.insert("apiVersion".to_owned(), api_version.into());
            object
        };
        let cpu = json!({"type": "Resource", "resource": {"name": "cpu",
            "target": {"type": "Utilization", "averageUtilization": 50}}});
        for ((group, plural), (from, given), (to, expected)) in [
            (
                ("autoscaling", "horizontalpodautoscalers"),
                ("autoscaling/v1", json!({"spec": {"maxReplicas": 3, "targetCPUUtilizationPercentage": 50}})),
                ("autoscaling/v2", json!({"spec": {"maxReplicas": 3, "metrics": [cpu]}})),
            ),
            (
                ("", "events"),
                ("events.k8s.io/v1", json!({"note": "n", "reportingController": "c"})),
                ("v1", json!({"message": "n", "reportingComponent": "c"})),
            ),
        ] {
            let row = registry.find_any(group, plural).unwrap();
            let versions = KindVersions::new(&registry, &row);
            let (given, expected) = (object(from, given), object(to, expected));
            let (converted, schema) = versions.convert(&given, to).unwrap();
            assert_eq!(converted, expected);
            assert_eq!(&*schema.name, &*row.strategy.schema().name);
            let (back, schema) = versions.convert(&converted, from).unwrap();
            for (name, value) in &given {
                assert_eq!(back.get(name), Some(value), "{name}");
            }
            assert_ne!(&*schema.name, &*row.strategy.schema().name);
            assert_eq!(versions.convert(&given, from).unwrap().0, given);
            assert!(versions.convert(&given, "v7").is_none());
        }
        let row = registry.find_any("", "pods").unwrap();
        let versions = KindVersions::new(&registry, &row);
        assert!(versions.convert(&object("v1", json!({})), "apps/v1").is_none());
    }

    #[test]
    fn custom_kinds_are_not_looked_at_in_other_versions() {
        let definition = json!({"metadata": {"name": "as.example.com"}, "spec": {"group": "example.com", "scope": "Cluster",
            "names": {"plural": "as", "kind": "A"}, "versions": [{"name": "v1", "served": true, "storage": true}]}});
        let definition: CustomResourceDefinition = serde_json::from_value(definition).unwrap();
        let custom = crate::custom::rows(&definition, &definition.spec.names);
        let registry = Registry::new(&RuntimeConfig::default());
        assert!(KindVersions::new(&registry, &custom[0]).others().is_none());
        let events = registry.find_any("", "events").unwrap();
        assert!(KindVersions::new(&registry, &events).others().is_some());
    }
}
