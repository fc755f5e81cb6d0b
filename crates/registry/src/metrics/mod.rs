//! `metrics.k8s.io`: what nodes and pods use. Measured when somebody asks, never stored.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use k8s_openapi::{ClusterResourceScope, NamespaceResourceScope};

pub const GROUP: &str = "metrics.k8s.io";
pub const VERSION: &str = "v1beta1";

/// What a node uses.
pub struct NodeMetrics;

/// What the containers of a pod use.
pub struct PodMetrics;

impl k8s_openapi::Resource for NodeMetrics {
    const API_VERSION: &'static str = "metrics.k8s.io/v1beta1";
    const GROUP: &'static str = GROUP;
    const KIND: &'static str = "NodeMetrics";
    const VERSION: &'static str = VERSION;
    const URL_PATH_SEGMENT: &'static str = "nodes";
    type Scope = ClusterResourceScope;
}

impl k8s_openapi::Resource for PodMetrics {
    const API_VERSION: &'static str = "metrics.k8s.io/v1beta1";
    const GROUP: &'static str = GROUP;
    const KIND: &'static str = "PodMetrics";
    const VERSION: &'static str = VERSION;
    const URL_PATH_SEGMENT: &'static str = "pods";
    type Scope = NamespaceResourceScope;
}

fn usage() -> Schema {
    json_schema!({
        "description": "Amounts in use: cpu as a rate over the window, memory as it was at the end.",
        "type": "object",
        "additionalProperties": {"type": "string"},
    })
}

fn measured(generator: &mut SchemaGenerator, name: &str, what: Schema) -> Schema {
    let mut schema = json_schema!({
        "type": "object",
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": (generator.subschema_for::<ObjectMeta>()),
            "timestamp": {"description": "When the window ended.", "type": "string", "format": "date-time"},
            "window": {"description": "How long was measured.", "type": "string"},
        },
        "required": ["timestamp", "window", (name)],
    });
    if let Some(properties) = schema.get_mut("properties").and_then(|properties| properties.as_object_mut()) {
        properties.insert(name.to_owned(), what.to_value());
    }
    schema
}

impl JsonSchema for NodeMetrics {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "io.k8s.metrics.pkg.apis.metrics.v1beta1.NodeMetrics".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        measured(generator, "usage", usage())
    }
}

impl JsonSchema for PodMetrics {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "io.k8s.metrics.pkg.apis.metrics.v1beta1.PodMetrics".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let containers = json_schema!({
            "description": "What each container uses, measured in the same window.",
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "usage": (usage())},
                "required": ["name", "usage"],
            },
        });
        measured(generator, "containers", containers)
    }
}
