//! One audit event, in upstream's form (`audit.k8s.io/v1`).

use std::collections::BTreeMap;

use api::{Status, UserInfo};
use jiff::Timestamp;
use registry::Verb;
use serde::Serialize;
use serde_json::Value;

use super::policy::{Level, Stage};
use crate::authz::Attributes;

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Event {
    pub(super) kind: &'static str,
    pub(super) api_version: &'static str,
    pub(super) level: Level,
    #[serde(rename = "auditID")]
    pub(super) audit_id: String,
    pub(super) stage: Stage,
    #[serde(rename = "requestURI")]
    pub(super) request_uri: String,
    pub(super) verb: Verb,
    pub(super) user: UserInfo,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) impersonated_user: Option<UserInfo>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) authentication_metadata: Option<AuthenticationMetadata>,
    #[serde(rename = "sourceIPs", skip_serializing_if = "Vec::is_empty")]
    pub(super) source_ips: Vec<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) user_agent: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) object_ref: Option<ObjectRef>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) response_status: Option<ResponseStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) request_object: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) response_object: Option<Value>,
    #[serde(serialize_with = "micro_time")]
    pub(super) request_received_timestamp: Timestamp,
    #[serde(serialize_with = "micro_time")]
    pub(super) stage_timestamp: Timestamp,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) annotations: BTreeMap<String, String>,
}

/// How somebody came to be who he is.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AuthenticationMetadata {
    pub(super) impersonation_constraint: String,
}

#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ObjectRef {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) resource: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) namespace: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) uid: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) api_group: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) api_version: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) resource_version: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) subresource: String,
}

impl From<&Attributes> for ObjectRef {
    fn from(request: &Attributes) -> Self {
        Self {
            resource: request.resource.clone(),
            namespace: request.namespace.clone(),
            name: request.name.clone(),
            api_group: request.group.clone(),
            api_version: request.version.clone(),
            subresource: request.subresource.clone(),
            ..Default::default()
        }
    }
}

impl ObjectRef {
    /// What a body says of the object, where the URL does not.
    pub(super) fn complete(&mut self, body: &Value) {
        let meta = &body["metadata"];
        for (field, name) in [
            (&mut self.name, "name"),
            (&mut self.namespace, "namespace"),
            (&mut self.uid, "uid"),
            (&mut self.resource_version, "resourceVersion"),
        ] {
            if field.is_empty() {
                *field = meta[name].as_str().unwrap_or_default().to_owned();
            }
        }
    }
}

/// A Status without the words that only matter to the client.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct ResponseStatus {
    metadata: Empty,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) status: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) message: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<Box<api::status::StatusDetails>>,
    pub(super) code: u16,
}

#[derive(Clone, Debug, Default, Serialize)]
struct Empty {}

impl ResponseStatus {
    pub(super) fn new(code: u16, status: Option<&Status>) -> Self {
        match status {
            None => Self { code, ..Default::default() },
            Some(status) => Self {
                status: status.status.clone().into_owned(),
                message: status.message.clone(),
                reason: status.reason.clone().into_owned(),
                details: status.details.clone(),
                code,
                ..Default::default()
            },
        }
    }
}

fn micro_time<S: serde::Serializer>(time: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    let text = time.to_zoned(jiff::tz::TimeZone::UTC).strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string();
    serializer.serialize_str(&text)
}

/// Takes `managedFields` out of an object, the items of a list, or the rows of a table.
pub(super) fn without_managed_fields(value: &mut Value) {
    fn strip(object: &mut Value) {
        if let Some(meta) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            meta.remove("managedFields");
        }
    }
    strip(value);
    for item in value.get_mut("items").and_then(Value::as_array_mut).into_iter().flatten() {
        strip(item);
    }
    for row in value.get_mut("rows").and_then(Value::as_array_mut).into_iter().flatten() {
        row.get_mut("object").into_iter().for_each(strip);
    }
}
