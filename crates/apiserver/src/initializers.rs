//! Objects that are not finished yet: `metadata.initializers`.
//!
//! A new object that an `InitializerConfiguration` matches is stored with a list of pending initializers and shown only to
//! those who ask for it (`includeUninitialized=true`). Each initializer changes the object and takes itself off the list,
//! the first one first; when the list is empty the object appears to everybody. A `result` that says failure refuses
//! the object: whoever created it gets that status, and it is removed.
//!
//! The field left Kubernetes in v1.14, so the generated `ObjectMeta` has no room for it. On the wire and in the store it
//! is `metadata.initializers`; in memory it travels as an annotation that never leaves the process. Nothing of this
//! costs anything unless `admissionregistration.k8s.io/v1alpha1` is served.

use api::Status;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use registry::{AnyObject, Object, Resource};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::json;

/// How the state travels in memory.
const CARRIER: &str = "initializers.admissionregistration.k8s.io/carried";
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Initializers {
    #[serde(default)]
    pub(crate) pending: Vec<Pending>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) result: Option<Status>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pending {
    pub(crate) name: String,
}

impl Initializers {
    pub(crate) fn new(names: Vec<String>) -> Self {
        Self { pending: names.into_iter().map(|name| Pending { name }).collect(), result: None }
    }

    pub(crate) fn of(meta: &ObjectMeta) -> Option<Self> {
        serde_json::from_str(meta.annotations.as_ref()?.get(CARRIER)?).ok()
    }

    /// Writes the state into an object, or takes it off.
    pub(crate) fn set(meta: &mut ObjectMeta, state: Option<&Self>) {
        match state.and_then(|state| serde_json::to_string(state).ok()) {
            Some(text) => drop(meta.annotations.get_or_insert_default().insert(CARRIER.to_owned(), text)),
            None => drop(take(meta)),
        }
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.result.as_ref().is_some_and(Status::is_failure)
    }
}

/// Takes the state off the annotations.
fn take(meta: &mut ObjectMeta) -> Option<String> {
    let annotations = meta.annotations.as_mut()?;
    let text = annotations.remove(CARRIER);
    if annotations.is_empty() {
        meta.annotations = None;
    }
    text
}

/// From the wire into memory. What a client writes into the carrier itself means nothing.
pub(crate) fn lift(value: &mut Value) {
    let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    let state = metadata.remove("initializers").filter(|state| !state.is_null());
    if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.remove(CARRIER);
    }
    if let Some(state) = state {
        let annotations = metadata.entry("annotations").or_insert_with(|| Value::Object(Default::default()));
        if annotations.is_null() {
            *annotations = Value::Object(Default::default());
        }
        if let Some(annotations) = annotations.as_object_mut() {
            annotations.insert(CARRIER.to_owned(), state.to_string().into());
        }
    }
}

/// Removes the carrier from a value that others will see.
pub(crate) fn hide(value: &mut Value) {
    if let Some(annotations) = value.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        annotations.remove(CARRIER);
    }
}

/// The encoded object as others see it.
pub(crate) fn visible(resource: &Resource, object: &dyn Object) -> Result<Vec<u8>, Status> {
    let annotations = object.meta().annotations.as_ref();
    if !resource.initializers || annotations.is_none_or(|annotations| !annotations.contains_key(CARRIER)) {
        return object.to_json().map_err(Status::internal);
    }
    let mut value = object.to_value().map_err(Status::internal)?;
    hide(&mut value);
    serde_json::to_vec(&value).map_err(Status::internal)
}

/// Reads a stored object.
pub(crate) fn decode(resource: &Resource, stored: &[u8]) -> Result<AnyObject, serde_json::Error> {
    if !resource.initializers || json::find(stored, &["metadata", "initializers"]).is_none() {
        return resource.strategy.decode(stored);
    }
    let mut value = serde_json::from_slice(stored)?;
    lift(&mut value);
    resource.strategy.decode_value(value)
}

/// Encodes an object, with the state back in its place.
pub(crate) fn encode(resource: &Resource, object: &mut dyn Object) -> Result<Vec<u8>, Status> {
    let state = if resource.initializers { take(object.meta_mut()) } else { None };
    let raw = object.to_json().map_err(Status::internal)?;
    let Some(state) = state else { return Ok(raw) };
    let metadata = json::find(&raw, &["metadata"]).ok_or_else(|| Status::internal("object without metadata"))?;
    let open = metadata.start + 1;
    let comma = if raw.get(open) == Some(&b'}') { "" } else { "," };
    let mut out = Vec::with_capacity(raw.len() + state.len() + 18);
    out.extend_from_slice(&raw[..open]);
    out.extend_from_slice(format!("\"initializers\":{state}{comma}").as_bytes());
    out.extend_from_slice(&raw[open..]);
    Ok(out)
}

/// The state of an encoded object that is not finished.
pub(crate) fn unfinished(stored: &[u8]) -> Option<Initializers> {
    let state = json::find(stored, &["metadata", "initializers"])?;
    serde_json::from_slice(&stored[state]).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_state_travels_as_an_annotation_and_leaves_as_a_field() {
        let rows = registry::table::resources();
        let mut row = rows.into_iter().find(|row| row.plural == "configmaps").unwrap();
        row.initializers = true;
        let stored = json!({"metadata": {"name": "m", "annotations": {CARRIER: "forged"},
            "initializers": {"pending": [{"name": "a.example.com"}]}}})
        .to_string();
        let mut object = decode(&row, stored.as_bytes()).unwrap();
        assert_eq!(Initializers::of(object.meta()), Some(Initializers::new(vec!["a.example.com".to_owned()])));
        let encoded = encode(&row, &mut *object).unwrap();
        assert_eq!(unfinished(&encoded).unwrap().pending[0].name, "a.example.com");
        assert!(!String::from_utf8(encoded).unwrap().contains(CARRIER));
        let mut forged = json!({"metadata": {"annotations": {CARRIER: "{}"}}});
        lift(&mut forged);
        assert_eq!(forged, json!({"metadata": {"annotations": {}}}));
    }
}
