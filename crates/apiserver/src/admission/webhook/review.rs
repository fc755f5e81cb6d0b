//! The question put to a webhook, and the check of its answer: `AdmissionReview` v1 and v1beta1.

use std::collections::BTreeMap;

use api::Status;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::Attributes;
use super::super::versioned::request;
use super::matching::Invocation;

/// A webhook that speaks no version of the question.
#[derive(Debug, thiserror::Error)]
#[error("webhook does not accept known AdmissionReview versions (v1, v1beta1)")]
pub(super) struct NoKnownVersion;

/// Why an answer does not count.
#[derive(Debug, thiserror::Error)]
pub(super) enum AnswerError {
    #[error("json parse error: {0}")]
    Json(#[from] serde_json::Error),
    #[error("webhook response was absent")]
    Absent,
    #[error("expected response.uid={expected:?}, got {found:?}")]
    Uid { expected: String, found: String },
    #[error("expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got {api_version}, Kind={kind}")]
    Kind { api_version: String, kind: String },
    #[error("webhook returned response.patch but not response.patchType")]
    NoPatchType,
    #[error("webhook returned response.patchType but not response.patch")]
    NoPatch,
    #[error("webhook returned invalid response.patchType of \"\"")]
    EmptyPatchType,
    #[error("unsupported patch type {0:?}")]
    PatchType(String),
    #[error("validating webhook may not return response.{0}")]
    Mutates(&'static str),
    #[error("patch is not base64: {0}")]
    Base64(#[from] base64::DecodeError),
}

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

/// Builds the question. `object` and `old` are already in the webhook's version.
pub(super) fn question(
    invocation: &Invocation<'_>,
    attributes: &Attributes<'_>,
    object: Option<&Value>,
    old: Option<&Value>,
) -> Result<Question, NoKnownVersion> {
    let version = version(&invocation.hook.review_versions).ok_or(NoKnownVersion)?;
    let api_version = match version {
        Version::V1 => "admission.k8s.io/v1",
        Version::V1Beta1 => "admission.k8s.io/v1beta1",
    };
    let uid = uuid::Uuid::new_v4().to_string();
    let mut request = request(attributes, invocation.equivalent.as_deref().unwrap_or(attributes.resource));
    request["uid"] = uid.as_str().into();
    request["object"] = object.cloned().unwrap_or_default();
    request["oldObject"] = old.cloned().unwrap_or_default();
    let review = json!({"kind": "AdmissionReview", "apiVersion": api_version, "request": request});
    Ok(Question { uid, version, body: Bytes::from(review.to_string()) })
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
pub(super) fn answer(question: &Question, mutating: bool, body: &[u8]) -> Result<Answer, AnswerError> {
    let review: Review = serde_json::from_slice(body)?;
    let response = review.response.ok_or(AnswerError::Absent)?;
    let patch = response.patch.filter(|patch| !patch.is_empty());
    if question.version == Version::V1 {
        if response.uid != question.uid {
            return Err(AnswerError::Uid { expected: question.uid.clone(), found: response.uid });
        }
        if (review.api_version.as_str(), review.kind.as_str()) != ("admission.k8s.io/v1", "AdmissionReview") {
            return Err(AnswerError::Kind { api_version: review.api_version, kind: review.kind });
        }
        match (mutating, &patch, response.patch_type.as_deref()) {
            (true, Some(_), None) => return Err(AnswerError::NoPatchType),
            (true, None, Some(_)) => return Err(AnswerError::NoPatch),
            (true, Some(_), Some("")) => return Err(AnswerError::EmptyPatchType),
            (true, Some(_), Some(kind)) if kind != "JSONPatch" => {
                return Err(AnswerError::PatchType(kind.to_owned()));
            }
            (false, Some(_), _) => return Err(AnswerError::Mutates("patch")),
            (false, None, Some(_)) => return Err(AnswerError::Mutates("patchType")),
            _ => {}
        }
    }
    let patch = match patch.filter(|_| mutating) {
        Some(text) => Some(STANDARD.decode(text)?),
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
            assert_eq!(found.err().map(|error| error.to_string()).as_deref(), problem, "{review}");
        }
        // The old version was never strict about any of it.
        let loose = json!({"response": {"allowed": true, "patch": "W10="}}).to_string();
        let found = answer(&question(Version::V1Beta1), true, loose.as_bytes()).unwrap();
        assert_eq!(found.patch.as_deref(), Some(&b"[]"[..]));
        assert!(answer(&question(Version::V1), true, b"<html>").is_err());
    }
}
