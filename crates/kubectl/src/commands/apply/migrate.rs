//! From client-side to server-side apply: fields that client-side apply owned by an update become part of the server-side
//! set, so that leaving one out of the file removes it, and a later apply by somebody else names one owner, not two.

use serde_json::{Value, json};

use crate::context::Context;
use crate::failure::Result;
use crate::objects::LAST_APPLIED;
use crate::request::Request;
use crate::resources::Info;

/// Who keeps the annotation once server-side apply owns the rest.
const ANNOTATION_MANAGER: &str = "kubectl-last-applied";

/// Whether ownership changed, so that the file must be applied once more.
pub(super) async fn run(cx: &Context, info: &Info, applied: &Value, manager: &str) -> Result<bool> {
    let remembered = &applied["metadata"]["annotations"][LAST_APPLIED];
    let mut object = applied.clone();
    if manager == "kubectl" && remembered.is_string() && owners(applied, "Apply").is_empty() {
        let annotation = json!({
            "apiVersion": info.mapping.api_version(),
            "kind": info.mapping.kind,
            "metadata": {"name": info.name, "annotations": {LAST_APPLIED: remembered}},
        });
        object = Request::patch(info.path(), "application/apply-patch+yaml", annotation.to_string())
            .query("fieldManager", ANNOTATION_MANAGER)
            .query("force", "false")
            .value(cx)
            .await?;
    }
    let Some(entries) = upgraded(&object, manager) else { return Ok(false) };
    let patch = json!([
        {"op": "replace", "path": "/metadata/managedFields", "value": entries},
        {"op": "replace", "path": "/metadata/resourceVersion", "value": object["metadata"]["resourceVersion"]},
    ]);
    Request::patch(info.path(), "application/json-patch+json", patch.to_string()).send(cx).await?;
    Ok(true)
}

fn is_owner(entry: &Value, operation: &str) -> bool {
    let annotations = &entry["fieldsV1"]["f:metadata"]["f:annotations"];
    entry["operation"] == operation
        && entry["subresource"].is_null()
        && !annotations[format!("f:{LAST_APPLIED}")].is_null()
}

/// The managers that own the annotation by this operation.
fn owners<'a>(object: &'a Value, operation: &str) -> Vec<&'a str> {
    let entries = object["metadata"]["managedFields"].as_array().into_iter().flatten();
    entries.filter(|e| is_owner(e, operation)).filter_map(|e| e["manager"].as_str()).collect()
}

/// The managed fields with what client-side managers own moved to `manager`; nothing when there is nothing to move.
fn upgraded(object: &Value, manager: &str) -> Option<Vec<Value>> {
    let old = owners(object, "Update");
    let entries = object["metadata"]["managedFields"].as_array()?;
    let moves = |e: &Value| {
        e["operation"] == "Update"
            && e["subresource"].is_null()
            && e["manager"].as_str().is_some_and(|m| old.contains(&m))
    };
    if !entries.iter().any(moves) {
        return None;
    }
    let mut taken = json!({});
    for entry in entries.iter().filter(|e| moves(e)) {
        unite(&mut taken, &entry["fieldsV1"]);
    }
    // The annotation itself stays with the manager made for it.
    if let Some(annotations) = taken.pointer_mut("/f:metadata/f:annotations").and_then(Value::as_object_mut) {
        annotations.remove(&format!("f:{LAST_APPLIED}"));
    }
    let mut out: Vec<Value> = entries.iter().filter(|e| !moves(e)).cloned().collect();
    let ours =
        out.iter_mut().find(|e| e["manager"] == manager && e["operation"] == "Apply" && e["subresource"].is_null());
    if let Some(ours) = ours {
        unite(&mut ours["fieldsV1"], &taken);
    }
    Some(out)
}

/// Sets of fields are trees of maps: their union is the deep merge.
fn unite(into: &mut Value, from: &Value) {
    for (key, value) in from.as_object().into_iter().flatten() {
        if into[key].is_object() {
            unite(&mut into[key], value);
        } else {
            into[key] = value.clone();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ownership_moves_once() {
        let last = format!("f:{LAST_APPLIED}");
        let object = json!({"metadata": {"managedFields": [
            {"manager": "kubectl", "operation": "Apply", "fieldsV1": {"f:spec": {"f:replicas": {}}}},
            {"manager": "kubectl-client-side-apply", "operation": "Update", "fieldsV1": {
                "f:metadata": {"f:annotations": {".": {}, last: {}}}, "f:spec": {"f:paused": {}}}},
            {"manager": "controller", "operation": "Update", "subresource": "status", "fieldsV1": {"f:status": {}}},
        ]}});
        let entries = upgraded(&object, "kubectl").unwrap();
        assert_eq!(entries.len(), 2);
        assert_eq!(entries[0]["fieldsV1"]["f:spec"], json!({"f:replicas": {}, "f:paused": {}}));
        assert_eq!(entries[0]["fieldsV1"]["f:metadata"]["f:annotations"], json!({".": {}}));
        let done = json!({"metadata": {"managedFields": entries}});
        assert_eq!(upgraded(&done, "kubectl"), None);
    }
}
