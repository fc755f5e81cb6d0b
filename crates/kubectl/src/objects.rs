//! Writing objects: create, update, patch and delete with the query parameters kubectl sends, and small reads and
//! edits of dynamic objects that several commands need.

use std::borrow::Cow;

use serde_json::{Value, json};

use crate::context::{Context, DryRun};
use crate::failure::{Failure, Result};
use crate::mapping::Mapping;
use crate::request::Request;

pub(crate) const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
pub(crate) const CHANGE_CAUSE: &str = "kubernetes.io/change-cause";

/// `--validate` as the server's fieldValidation.
pub(crate) fn field_validation(cx: &Context) -> Result<Option<&'static str>> {
    if !cx.flags.has_flag("validate") {
        return Ok(None);
    }
    match cx.flags.string("validate").as_str() {
        "strict" | "true" => Ok(Some("Strict")),
        "warn" => Ok(Some("Warn")),
        "ignore" | "false" | "" => Ok(Some("Ignore")),
        other => Err(Failure::message(format!(
            "invalid - validate option \"{other}\"; must be one of: strict (or true), warn, ignore (or false)"
        ))),
    }
}

fn with_write_parameters(cx: &Context, request: Request, dry_run: DryRun, manager: &str) -> Result<Request> {
    let validation = field_validation(cx)?;
    Ok(request
        .query_if(dry_run == DryRun::Server, "dryRun", "All")
        .query_if(!manager.is_empty(), "fieldManager", manager)
        .query_if(validation.is_some(), "fieldValidation", validation.unwrap_or("")))
}

pub(crate) async fn create(
    cx: &Context,
    mapping: &Mapping,
    namespace: &str,
    object: &Value,
    dry_run: DryRun,
    manager: &str,
) -> Result<Value> {
    let request = Request::post(mapping.path(namespace), &without_version(object));
    with_write_parameters(cx, request, dry_run, manager)?.value(cx).await
}

/// What was read from a server, or written down there, can be made anew.
fn without_version(object: &Value) -> Cow<'_, Value> {
    if object["metadata"].get("resourceVersion").is_none() {
        return Cow::Borrowed(object);
    }
    let mut object = object.clone();
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("resourceVersion");
    }
    Cow::Owned(object)
}

pub(crate) async fn replace(
    cx: &Context,
    path: String,
    object: &Value,
    dry_run: DryRun,
    manager: &str,
) -> Result<Value> {
    with_write_parameters(cx, Request::put(path, object), dry_run, manager)?.value(cx).await
}

/// `kind` is one of the patch content types.
pub(crate) async fn patch(
    cx: &Context,
    path: String,
    kind: PatchKind,
    body: String,
    dry_run: DryRun,
    manager: &str,
) -> Result<Value> {
    let request = Request::patch(path, kind.content_type(), body);
    with_write_parameters(cx, request, dry_run, manager)?.value(cx).await
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PatchKind {
    Json,
    Merge,
    Strategic,
}

impl PatchKind {
    pub(crate) fn content_type(self) -> &'static str {
        match self {
            PatchKind::Json => "application/json-patch+json",
            PatchKind::Merge => "application/merge-patch+json",
            PatchKind::Strategic => "application/strategic-merge-patch+json",
        }
    }

    /// Strategic for the types compiled into upstream's client, merge for everything else (custom resources).
    pub(crate) fn for_type(mapping: &Mapping) -> PatchKind {
        if crate::three_way::is_built_in(&mapping.group) { PatchKind::Strategic } else { PatchKind::Merge }
    }
}

/// The object as `apply` remembers it: [`as_applied`], and always with a map of annotations.
pub(crate) fn last_applied(object: &Value) -> String {
    let mut object = object.clone();
    if !object["metadata"]["annotations"].is_object() {
        object["metadata"]["annotations"] = json!({});
    }
    as_applied(&object)
}

/// One line of JSON and a newline, without the annotation itself.
pub(crate) fn as_applied(object: &Value) -> String {
    let mut object = object.clone();
    if let Some(annotations) = object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        annotations.remove(LAST_APPLIED);
    }
    crate::printers::json::compact(&object) + "\n"
}

/// The same for an object of a generator, whose fields are in the order of its type.
pub(crate) fn as_generated(object: &Value) -> String {
    crate::printers::json::compact(&crate::printers::go_order::Typed::new(object)) + "\n"
}

/// Ten letters of the content of a ConfigMap or Secret, for names that change with it. kustomize leaves the name out.
pub(crate) fn content_hash(object: &Value, name: &str) -> String {
    let mut content =
        json!({"kind": object["kind"], "name": name, "data": object.get("data").cloned().unwrap_or(json!(""))});
    if object["kind"] == "Secret" {
        content["type"] = object.get("type").cloned().unwrap_or(json!(""));
    } else if let Some(binary) = object.get("binaryData") {
        content["binaryData"] = binary.clone();
    }
    let digest = sha256_hex(crate::printers::json::compact(&content).as_bytes());
    // Vowels and look-alikes are replaced so that no word appears in a name.
    digest
        .chars()
        .take(10)
        .map(|c| match c {
            '0' => 'g',
            '1' => 'h',
            '3' => 'k',
            'a' => 'm',
            'e' => 't',
            c => c,
        })
        .collect()
}

fn sha256_hex(data: &[u8]) -> String {
    use sha2::Digest;
    api::hex::encode(sha2::Sha256::digest(data))
}

pub(crate) fn set_annotation(object: &mut Value, key: &str, value: String) {
    if !object["metadata"].is_object() {
        object["metadata"] = json!({});
    }
    let annotations = &mut object["metadata"]["annotations"];
    if !annotations.is_object() {
        *annotations = json!({});
    }
    annotations[key] = Value::String(value);
}

/// The texts of a list.
pub(crate) fn strings(value: &Value) -> Vec<&str> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

pub(crate) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or("")
}

/// The JSON merge patch that turns one object into the other.
pub(crate) fn merge_diff(from: &Value, to: &Value) -> Value {
    let (Some(a), Some(b)) = (from.as_object(), to.as_object()) else { return to.clone() };
    let mut out = serde_json::Map::new();
    for (k, v) in b {
        match a.get(k) {
            Some(old) if old == v => {}
            Some(old) if old.is_object() && v.is_object() => {
                out.insert(k.clone(), merge_diff(old, v));
            }
            _ => {
                out.insert(k.clone(), v.clone());
            }
        }
    }
    for k in a.keys().filter(|k| !b.contains_key(*k)) {
        out.insert(k.clone(), Value::Null);
    }
    Value::Object(out)
}

/// Where the pod template of a workload is.
pub(crate) fn template_pointer(kind: &str) -> Option<&'static str> {
    Some(match kind {
        "Pod" => "",
        "CronJob" => "/spec/jobTemplate/spec/template",
        "Deployment" | "ReplicaSet" | "StatefulSet" | "DaemonSet" | "Job" | "ReplicationController" => "/spec/template",
        "PodTemplate" => "/template",
        _ => return None,
    })
}

/// The pod spec inside any workload.
pub(crate) fn pod_spec_mut(object: &mut Value) -> Option<&mut Value> {
    let pointer = format!("{}/spec", template_pointer(object["kind"].as_str()?)?);
    object.pointer_mut(&pointer)
}

/// As [`record`], for an object that was changed by a patch: what it is afterwards, if it is recorded.
pub(crate) async fn record_patch(cx: &Context, path: String, dry_run: DryRun) -> Result<Option<Value>> {
    if !cx.flags.bool("record") {
        return Ok(None);
    }
    let cause = json!({"metadata": {"annotations": {CHANGE_CAUSE: cx.change_cause()}}});
    patch(cx, path, PatchKind::Merge, cause.to_string(), dry_run, "").await.map(Some)
}

/// Adds or refreshes the change cause when `--record` asks for it.
pub(crate) fn record(cx: &Context, object: &mut Value) {
    if cx.flags.has_flag("record") && cx.flags.bool("record") {
        set_annotation(object, CHANGE_CAUSE, cx.change_cause());
    }
}
