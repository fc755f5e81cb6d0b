//! Where the schemas that are generated from the types differ from upstream's: what a type in Rust must have is not always
//! what a client must send, and some types are written down by hand upstream.

use api::sort::CompactCollect as _;
use serde_json::{Value, json};

use super::openapi_paths::Dialect;

/// Kinds whose metadata must be sent; everywhere else the types only cannot do without.
const NEEDS_METADATA: &[&str] = &[
    "io.k8s.api.apiserverinternal.v1alpha1.StorageVersion",
    "io.k8s.api.core.v1.Event",
    "io.k8s.api.resource.v1alpha3.ResourcePoolStatusRequest",
];

/// References whose name may be left out.
const UNNAMED: &[&str] = &[
    "io.k8s.api.core.v1.ConfigMapEnvSource",
    "io.k8s.api.core.v1.ConfigMapKeySelector",
    "io.k8s.api.core.v1.ConfigMapProjection",
    "io.k8s.api.core.v1.ConfigMapVolumeSource",
    "io.k8s.api.core.v1.LocalObjectReference",
    "io.k8s.api.core.v1.SecretEnvSource",
    "io.k8s.api.core.v1.SecretKeySelector",
    "io.k8s.api.core.v1.SecretProjection",
];

/// A type, the field that tells which other one is set, and those others with their names.
type Union = (&'static str, Option<&'static str>, &'static [(&'static str, &'static str)]);

const UNIONS: &[Union] = &[
    ("io.k8s.api.core.v1.AppArmorProfile", Some("type"), &[("localhostProfile", "LocalhostProfile")]),
    ("io.k8s.api.core.v1.PodSchedulingGroup", None, &[("podGroupName", "PodGroupName")]),
    ("io.k8s.api.core.v1.SeccompProfile", Some("type"), &[("localhostProfile", "LocalhostProfile")]),
    ("io.k8s.api.flowcontrol.v1.LimitResponse", Some("type"), &[("queuing", "Queuing")]),
    (
        "io.k8s.api.flowcontrol.v1.PriorityLevelConfigurationSpec",
        Some("type"),
        &[("exempt", "Exempt"), ("limited", "Limited")],
    ),
    (
        "io.k8s.api.flowcontrol.v1.Subject",
        Some("kind"),
        &[("group", "Group"), ("serviceAccount", "ServiceAccount"), ("user", "User")],
    ),
    ("io.k8s.api.scheduling.v1alpha2.PodGroupSchedulingPolicy", None, &[("basic", "Basic"), ("gang", "Gang")]),
    ("io.k8s.api.scheduling.v1alpha2.PodGroupTemplateReference", None, &[("workload", "Workload")]),
];

pub(super) fn apply(name: &str, schema: &mut Value, dialect: Dialect) {
    let Some(fields) = schema.as_object_mut() else { return };
    match (name.rsplit('.').next().unwrap_or(name), dialect) {
        ("IntOrString", Dialect::V2) => {
            fields.retain(|key, _| key == "description");
            fields.extend([("type".to_owned(), "string".into()), ("format".to_owned(), "int-or-string".into())]);
        }
        ("IntOrString", Dialect::V3) => {
            fields.retain(|key, _| key == "description");
            let either = json!([{"type": "integer"}, {"type": "string"}]);
            fields.extend([("oneOf".to_owned(), either), ("format".to_owned(), "int-or-string".into())]);
        }
        ("Quantity", Dialect::V2) => {
            fields.retain(|key, _| key == "description");
            fields.insert("type".to_owned(), "string".into());
        }
        ("Quantity", Dialect::V3) => {
            fields.retain(|key, _| key == "description");
            fields.insert("oneOf".to_owned(), json!([{"type": "string"}, {"type": "number"}]));
        }
        ("JSON", _) => fields.retain(|key, _| key == "description"),
        _ => {}
    }
    if let Some(required) = fields.get_mut("required").and_then(Value::as_array_mut) {
        required.retain(|field| {
            (field != "metadata" || NEEDS_METADATA.contains(&name)) && (field != "name" || !UNNAMED.contains(&name))
        });
        if required.is_empty() {
            fields.remove("required");
        }
    }
    if name == "io.k8s.api.events.v1.Event" {
        fields.insert("required".to_owned(), json!(["eventTime"]));
    }
    let granular = fields.get_mut("properties").and_then(|properties| properties.get_mut("allocatedResourceStatuses"));
    if let Some(property) = granular {
        property["x-kubernetes-map-type"] = "granular".into();
    }
    if let Some((_, discriminator, members)) = UNIONS.iter().find(|(union, _, _)| *union == name) {
        let by: serde_json::Map<String, Value> =
            members.iter().map(|(field, value)| ((*field).to_owned(), (*value).into())).compact_collect();
        let mut union = json!({"fields-to-discriminateBy": by});
        if let Some(field) = discriminator {
            union["discriminator"] = (*field).into();
        }
        fields.insert("x-kubernetes-unions".to_owned(), json!([union]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_upstream_leaves_open_is_not_required() {
        for (name, required, expected) in [
            ("io.k8s.api.core.v1.Pod", json!(["metadata"]), json!(null)),
            ("io.k8s.api.core.v1.Event", json!(["metadata", "involvedObject"]), json!(["metadata", "involvedObject"])),
            ("io.k8s.api.core.v1.SecretKeySelector", json!(["key", "name"]), json!(["key"])),
            ("io.k8s.api.core.v1.Container", json!(["name"]), json!(["name"])),
        ] {
            let mut schema = json!({"type": "object", "required": required});
            apply(name, &mut schema, Dialect::V2);
            assert_eq!(schema["required"], expected, "{name}");
        }
        let mut schema = json!({"description": "d", "x": 1});
        apply("io.k8s.apimachinery.pkg.util.intstr.IntOrString", &mut schema, Dialect::V2);
        assert_eq!(schema, json!({"description": "d", "type": "string", "format": "int-or-string"}));
    }
}
