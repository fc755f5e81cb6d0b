//! Table cells that several kinds share, in kubectl's spelling.

use std::collections::BTreeMap;

use api::meta::Meta as _;
use api::selector::Selector;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::{Value, json};

use super::column::{self, Column};

pub const CONTAINERS: Column = Column::string("Containers", "Names of the containers in the template.").wide();
pub const IMAGES: Column = Column::string("Images", "Images of the containers in the template.").wide();
pub const SELECTOR: Column = Column::string("Selector", "Which pods belong to the object.").wide();

pub fn name(meta: &ObjectMeta) -> Value {
    json!(meta.name())
}

pub fn age(meta: &ObjectMeta, now: Timestamp) -> Value {
    column::age(meta.creation_timestamp.as_ref(), now)
}

/// Name and age, for kinds that show nothing else.
pub fn name_and_age(meta: &ObjectMeta, now: Timestamp) -> Vec<Value> {
    vec![name(meta), age(meta, now)]
}

/// The two cells with names and images of a template's containers.
pub fn template(template: Option<&PodTemplateSpec>) -> [Value; 2] {
    let containers = template.and_then(|template| template.spec.as_ref()).map(|spec| spec.containers.as_slice());
    let join = |field: fn(&Container) -> &str| {
        json!(containers.unwrap_or_default().iter().map(field).collect::<Vec<_>>().join(","))
    };
    [join(|container| &container.name), join(|container| container.image.as_deref().unwrap_or_default())]
}

/// `a=b,c=d` or `<none>`.
pub fn labels(labels: Option<&BTreeMap<String, String>>) -> Value {
    match labels {
        Some(labels) if !labels.is_empty() => {
            json!(labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(","))
        }
        _ => json!("<none>"),
    }
}

/// A label selector in query form, `<none>` when it selects nothing in particular.
pub fn selector(selector: Option<&LabelSelector>) -> Value {
    match Selector::from_label_selector(selector) {
        Err(_) => json!("<error>"),
        Ok(selector) => {
            let text = selector.to_string();
            json!(if text.is_empty() { "<none>" } else { &text })
        }
    }
}

pub fn int_or_string(value: &IntOrString) -> String {
    match value {
        IntOrString::Int(number) => number.to_string(),
        IntOrString::String(text) => text.clone(),
    }
}

/// A list joined by commas, `<none>` when empty.
pub fn joined(items: &[String]) -> Value {
    if items.is_empty() { json!("<none>") } else { json!(items.join(",")) }
}

/// A text, `<none>` when absent or empty.
pub fn or_none(text: &Option<String>) -> Value {
    json!(super::unset::text(text).unwrap_or("<none>"))
}
