//! What NodeVolumes look like.

use api::node_volumes::{DRIVER, PLURAL};
use serde_json::{Value, json};

use crate::volume::definitions::MANAGED_BY;

/// The CustomResourceDefinition of NodeVolumes.
pub(super) fn definition() -> Value {
    let text = json!({ "type": "string", "maxLength": 128 });
    let number = json!({ "type": "integer", "format": "int64", "minimum": 0 });
    let requests = json!({ "type": "object", "additionalProperties": {
        "type": "object", "required": ["token", "action"], "properties": {
            "token": text, "capacity": number,
            "action": { "type": "string", "enum": ["Create", "Expand", "Delete", "Find"] },
            "source": { "type": "object", "properties": { "volume": text, "snapshot": text } },
        },
    } });
    let answers = json!({ "type": "object", "additionalProperties": {
        "type": "object", "required": ["token"], "properties": {
            "token": text, "error": { "type": "string", "maxLength": api::node_volumes::ERROR_LENGTH },
            "created": number, "size": number,
        },
    } });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{PLURAL}.{DRIVER}"), "labels": { MANAGED_BY.0: MANAGED_BY.1 } },
        "spec": {
            "group": DRIVER, "scope": "Cluster",
            "names": { "kind": "NodeVolumes", "listKind": "NodeVolumesList", "plural": PLURAL, "singular": PLURAL },
            "versions": [{
                "name": "v1", "served": true, "storage": true, "subresources": { "status": {} },
                "schema": { "openAPIV3Schema": { "type": "object", "properties": {
                    "spec": { "type": "object", "properties": { "volumes": requests, "snapshots": requests } },
                    "status": { "type": "object", "properties": {
                        "available": number, "volumes": answers, "snapshots": answers,
                    } },
                } } },
                "additionalPrinterColumns": [
                    { "name": "Available", "type": "integer", "jsonPath": ".status.available" },
                    { "name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp" },
                ],
            }],
        },
    })
}
