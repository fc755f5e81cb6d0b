//! The question put to a webhook, and the check of its answer: `AdmissionReview` v1 and v1beta1.

use std::collections::BTreeMap;

use api::Status;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::{Attributes, Verb};
use super::matching::Invocation;
use crate::registry::{AnyObject, Object, Resource};
use crate::verbs::{Books, recorded_books};

/// A question, encoded, and what is needed to check the answer.
pub(super) struct Question {
    pub(super) uid: String,
    pub(super) version: Version,
    pub(super) body: Bytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    V1,
    V1Beta1,
}

/// A webhook's answer, checked.
#[derive(Default)]
pub(super) struct Answer {
    pub(super) allowed: bool,
    /// The refusal's details.
    pub(super) result: Option<Status>,
    pub(super) warnings: Vec<String>,
    pub(super) audit_annotations: BTreeMap<String, String>,
    /// A JSON patch, still encoded.
    pub(super) patch: Option<Vec<u8>>,
}

/// The first version the webhook lists that we speak.
fn version(accepted: &[String]) -> Option<Version> {
    accepted.iter().find_map(|version| match version.as_str() {
        "v1" => Some(Version::V1),
        "v1beta1" => Some(Version::V1Beta1),
        _ => None,
    })
}

/// The new state as a client of `resource` would see it.
pub(super) fn versioned_object(attributes: &Attributes<'_>, resource: &Resource) -> Result<Option<Value>, Status> {
    let books = attributes.books.and_then(Books::as_json);
    let object = attributes.object.as_deref();
    object.map(|object| versioned(attributes, resource, &**object, books)).transpose()
}

/// The old one.
pub(super) fn versioned_old(attributes: &Attributes<'_>, resource: &Resource) -> Result<Option<Value>, Status> {
    let books = attributes.old_entry.and_then(|entry| recorded_books(&entry.stored));
    attributes.old.map(|object| versioned(attributes, resource, object, books)).transpose()
}

/// An object as a client of `resource` would see it. The bodies of some subresources have the same form everywhere.
fn versioned(
    attributes: &Attributes<'_>,
    resource: &Resource,
    object: &dyn Object,
    books: Option<&str>,
) -> Result<Value, Status> {
    let mut value = object.to_value().map_err(Status::internal)?;
    if let (Some(books), None) = (books, &object.meta().managed_fields) {
        value["metadata"]["managedFields"] = serde_json::from_str(books).map_err(Status::internal)?;
    }
    if let Some(conversion) = resource.conversion.as_ref().filter(|_| !attributes.has_own_kind()) {
        conversion.from_storage(&mut value);
    }
    Ok(value)
}

/// The way back, with defaults for what the patch left unset. Unknown fields are dropped, as upstream's decoder does.
pub(super) fn stored(
    attributes: &Attributes<'_>,
    resource: &Resource,
    value: Value,
    before: &dyn Object,
) -> Result<AnyObject, Status> {
    if attributes.has_own_kind() {
        return before.decode_like(value).map_err(Status::internal);
    }
    let mut object = crate::verbs::decode_checked(resource, value, &mut Vec::new())
        .map_err(|status| Status::internal(status.message))?;
    resource.strategy.apply_defaults(&mut *object);
    Ok(object)
}

/// Builds the question. `object` and `old` are already in the webhook's version.
pub(super) fn question(
    invocation: &Invocation<'_>,
    attributes: &Attributes<'_>,
    object: Option<&Value>,
    old: Option<&Value>,
) -> Result<Question, String> {
    let version = version(&invocation.hook.review_versions)
        .ok_or("webhook does not accept known AdmissionReview versions (v1, v1beta1)")?;
    let api_version = match version {
        Version::V1 => "admission.k8s.io/v1",
        Version::V1Beta1 => "admission.k8s.io/v1beta1",
    };
    let uid = uuid::Uuid::new_v4().to_string();
    let kind = |(group, version, kind): (&str, &str, &str)| json!({"group": group, "version": version, "kind": kind});
    let resource = |row: &Resource| json!({"group": row.group, "version": row.version, "resource": row.plural});
    let own = attributes.resource;
    let target = invocation.equivalent.as_deref().unwrap_or(own);
    let request_kind = attributes.kind();
    // A subresource with a kind of its own has that kind in every version of its parent.
    let target_kind =
        if attributes.has_own_kind() { request_kind } else { (&*target.group, &*target.version, &*target.kind) };
    let mut request = json!({
        "uid": uid,
        "kind": kind(target_kind),
        "resource": resource(target),
        "requestKind": kind(request_kind),
        "requestResource": resource(own),
        "operation": attributes.verb.as_str(),
        "userInfo": attributes.user(),
        "object": object,
        "oldObject": old,
        "dryRun": attributes.dry_run,
        "options": options(attributes),
    });
    for (key, value) in [
        ("subResource", attributes.subresource),
        ("requestSubResource", attributes.subresource),
        ("name", attributes.name),
        ("namespace", attributes.namespace),
    ] {
        if !value.is_empty() {
            request[key] = value.into();
        }
    }
    let review = json!({"kind": "AdmissionReview", "apiVersion": api_version, "request": request});
    Ok(Question { uid, version, body: Bytes::from(review.to_string()) })
}

/// The options of the request as an object of their kind; none for streams.
fn options(attributes: &Attributes<'_>) -> Value {
    let query = &attributes.operation.info.query;
    let kind = match attributes.verb {
        Verb::Create => "CreateOptions",
        Verb::Update => "UpdateOptions",
        Verb::Delete => return attributes.delete.map_or(Value::Null, crate::verbs::DeleteOptions::to_value),
        Verb::Connect => return Value::Null,
    };
    let mut options = json!({"kind": kind, "apiVersion": "meta.k8s.io/v1"});
    for key in ["fieldManager", "fieldValidation"] {
        if let Some(value) = query.get(key) {
            options[key] = value.into();
        }
    }
    if attributes.dry_run {
        options["dryRun"] = json!(["All"]);
    }
    options
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Review {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    api_version: String,
    response: Option<Response>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Response {
    #[serde(default)]
    uid: String,
    #[serde(default)]
    allowed: bool,
    #[serde(rename = "status")]
    result: Option<Status>,
    patch: Option<String>,
    patch_type: Option<String>,
    audit_annotations: Option<BTreeMap<String, String>>,
    warnings: Option<Vec<String>>,
}

/// Reads and checks an answer.
pub(super) fn answer(question: &Question, mutating: bool, body: &[u8]) -> Result<Answer, String> {
    let review: Review = serde_json::from_slice(body).map_err(|error| format!("json parse error: {error}"))?;
    let response = review.response.ok_or("webhook response was absent")?;
    let patch = response.patch.filter(|patch| !patch.is_empty());
    if question.version == Version::V1 {
        if response.uid != question.uid {
            return Err(format!("expected response.uid={:?}, got {:?}", question.uid, response.uid));
        }
        if (review.api_version.as_str(), review.kind.as_str()) != ("admission.k8s.io/v1", "AdmissionReview") {
            return Err(format!(
                "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got {}, Kind={}",
                review.api_version, review.kind
            ));
        }
        match (mutating, &patch, response.patch_type.as_deref()) {
            (true, Some(_), None) => {
                return Err("webhook returned response.patch but not response.patchType".to_owned());
            }
            (true, None, Some(_)) => {
                return Err("webhook returned response.patchType but not response.patch".to_owned());
            }
            (true, Some(_), Some("")) => {
                return Err("webhook returned invalid response.patchType of \"\"".to_owned());
            }
            (true, Some(_), Some(kind)) if kind != "JSONPatch" => {
                return Err(format!("unsupported patch type {kind:?}"));
            }
            (false, Some(_), _) => return Err("validating webhook may not return response.patch".to_owned()),
            (false, None, Some(_)) => return Err("validating webhook may not return response.patchType".to_owned()),
            _ => {}
        }
    }
    let patch = match patch.filter(|_| mutating) {
        Some(text) => Some(STANDARD.decode(text).map_err(|error| format!("patch is not base64: {error}"))?),
        None => None,
    };
    Ok(Answer {
        allowed: response.allowed,
        result: response.result,
        warnings: response.warnings.unwrap_or_default(),
        audit_annotations: response.audit_annotations.unwrap_or_default(),
        patch,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_checked() {
        let question = |version| Question { uid: "u".to_owned(), version, body: Bytes::new() };
        let v1 = |response: Value| json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": response});
        for (mutating, review, problem) in [
            (true, v1(json!({"uid": "u", "allowed": true})), None),
            (true, v1(json!({"uid": "u", "allowed": true, "patch": "W10=", "patchType": "JSONPatch"})), None),
            (true, v1(Value::Null), Some("webhook response was absent")),
            (true, v1(json!({"uid": "x"})), Some("expected response.uid=\"u\", got \"x\"")),
            (
                true,
                json!({"kind": "Pod", "apiVersion": "v1", "response": {"uid": "u"}}),
                Some("expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got v1, Kind=Pod"),
            ),
            (
                true,
                v1(json!({"uid": "u", "patch": "W10="})),
                Some("webhook returned response.patch but not response.patchType"),
            ),
            (
                true,
                v1(json!({"uid": "u", "patchType": "JSONPatch"})),
                Some("webhook returned response.patchType but not response.patch"),
            ),
            (
                true,
                v1(json!({"uid": "u", "patch": "W10=", "patchType": "Merge"})),
                Some("unsupported patch type \"Merge\""),
            ),
            (
                false,
                v1(json!({"uid": "u", "patch": "W10=", "patchType": "JSONPatch"})),
                Some("validating webhook may not return response.patch"),
            ),
        ] {
            let found = answer(&question(Version::V1), mutating, review.to_string().as_bytes());
            assert_eq!(found.err().as_deref(), problem, "{review}");
        }
        // The old version was never strict about any of it.
        let loose = json!({"response": {"allowed": true, "patch": "W10="}}).to_string();
        let found = answer(&question(Version::V1Beta1), true, loose.as_bytes()).unwrap();
        assert_eq!(found.patch.as_deref(), Some(&b"[]"[..]));
        assert!(answer(&question(Version::V1), true, b"<html>").is_err());
    }
}
