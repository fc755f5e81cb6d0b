//! InitializerConfiguration (`admissionregistration.k8s.io/v1alpha1`): who finishes new objects before others see them.
//!
//! The kind left Kubernetes in v1.14, so its type is written here; the rest of the server treats it as any other.

use std::collections::BTreeSet;

use api::field::{FieldErrors, Path};
use k8s_openapi::ClusterResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

use crate::Strategy;
use crate::parts::Parts;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InitializerConfiguration {
    #[serde(default = "api_version")]
    api_version: String,
    #[serde(default = "kind")]
    kind: String,
    #[serde(default, deserialize_with = "api::read::by_table")]
    pub metadata: ObjectMeta,
    /// Asked in this order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub initializers: Vec<Initializer>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Initializer {
    pub name: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<Rule>,
}

/// Which objects an initializer wants to see.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Rule {
    pub api_groups: Vec<String>,
    pub api_versions: Vec<String>,
    pub resources: Vec<String>,
}

fn api_version() -> String {
    <InitializerConfiguration as k8s_openapi::Resource>::API_VERSION.to_owned()
}

fn kind() -> String {
    <InitializerConfiguration as k8s_openapi::Resource>::KIND.to_owned()
}

impl k8s_openapi::Resource for InitializerConfiguration {
    const API_VERSION: &'static str = "admissionregistration.k8s.io/v1alpha1";
    const GROUP: &'static str = "admissionregistration.k8s.io";
    const KIND: &'static str = "InitializerConfiguration";
    const VERSION: &'static str = "v1alpha1";
    const URL_PATH_SEGMENT: &'static str = "initializerconfigurations";
    type Scope = ClusterResourceScope;
}

impl k8s_openapi::Metadata for InitializerConfiguration {
    type Ty = ObjectMeta;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

api::read_by_serde!(InitializerConfiguration);

impl Parts for InitializerConfiguration {
    fn write_json(&self) -> serde_json::Result<Vec<u8>> {
        api::schema::encode(self, &api::schema::of::<Self>())
    }
    fn copy_status(&mut self, _: &Self) {}
    fn clear_status(&mut self) {}
}

pub struct InitializerConfigurationStrategy;

impl Strategy for InitializerConfigurationStrategy {
    type Object = InitializerConfiguration;
    const COUNTS_GENERATIONS: bool = true;

    fn validate_create(&self, configuration: &InitializerConfiguration) -> FieldErrors {
        let mut errors = FieldErrors::default();
        let mut names = BTreeSet::new();
        let path = Path::new("initializers");
        for (i, initializer) in configuration.initializers.iter().enumerate() {
            let path = path.index(i);
            super::webhook::qualified(&mut errors, &path.child("name"), &initializer.name);
            if !names.insert(&initializer.name) {
                errors.duplicate(path.child("name"), &initializer.name);
            }
            let rules = path.child("rules");
            for (i, rule) in initializer.rules.iter().enumerate() {
                let path = rules.index(i);
                for (name, values) in [
                    ("apiGroups", &rule.api_groups),
                    ("apiVersions", &rule.api_versions),
                    ("resources", &rule.resources),
                ] {
                    let path = path.child(name);
                    if values.is_empty() {
                        errors.required(path, "");
                    } else if values.len() > 1 && values.iter().any(|value| value == "*") {
                        errors.invalid(path, values, "if '*' is present, must not specify other values");
                    } else if name == "resources" && values.iter().any(|value| value.contains('/')) {
                        // Subresources belong to objects that are already there.
                        errors.invalid(path, values, "must not specify subresources");
                    }
                }
            }
        }
        errors
    }

    fn validate_update(&self, new: &InitializerConfiguration, _: &InitializerConfiguration) -> FieldErrors {
        self.validate_create(new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn configurations_are_checked() {
        let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]});
        for (initializers, problems) in [
            (json!([{"name": "podimage.example.com", "rules": [rule]}]), 0),
            (json!([{"name": "podimage", "rules": [rule]}]), 1),
            (json!([{"name": "a.example.com"}, {"name": "a.example.com"}]), 1),
            (json!([{"name": "a.example.com", "rules": [{"apiGroups": [""], "apiVersions": ["v1"]}]}]), 1),
            (
                json!([{"name": "a.example.com", "rules": [
                    {"apiGroups": ["*", "apps"], "apiVersions": ["v1"], "resources": ["pods/status"]}]}]),
                2,
            ),
        ] {
            let object = json!({"metadata": {"name": "c"}, "initializers": initializers});
            let configuration: InitializerConfiguration = serde_json::from_value(object.clone()).unwrap();
            assert_eq!(InitializerConfigurationStrategy.validate_create(&configuration).len(), problems, "{object}");
        }
    }
}
