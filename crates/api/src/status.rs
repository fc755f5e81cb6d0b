//! `Status`: how the API says no (and sometimes yes), with upstream's reasons, codes and sentences.

use std::borrow::Cow;
use std::fmt::{self, Display};

use serde::{Deserialize, Serialize};

use crate::field::{FieldErrors, quote};
use crate::gvk::{GroupKind, GroupResource};

/// A `v1` Status. Failures are built with the constructors, which fill reason, code and details.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    #[serde(default)]
    pub kind: StatusKind,
    #[serde(default)]
    pub api_version: StatusVersion,
    #[serde(default)]
    pub metadata: Box<ListMeta>,
    #[serde(default)]
    pub status: Cow<'static, str>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub reason: Cow<'static, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<Box<StatusDetails>>,
    #[serde(default, skip_serializing_if = "no_code")]
    pub code: u16,
}

/// List metadata: always empty in what we send.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ListMeta {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
    #[serde(rename = "continue", skip_serializing_if = "String::is_empty")]
    pub continue_: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remaining_item_count: Option<i64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StatusDetails {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub group: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kind: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<StatusCause>,
    #[serde(skip_serializing_if = "is_zero")]
    pub retry_after_seconds: i32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StatusCause {
    #[serde(skip_serializing_if = "str::is_empty")]
    pub reason: Cow<'static, str>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub field: String,
}

/// Always written as the given text, and taken for it whatever is read: it carries nothing.
macro_rules! constant {
    ($name:ident = $text:literal) => {
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name;

        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str($text)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                serde::de::IgnoredAny::deserialize(deserializer).map(|_| Self)
            }
        }
    };
}

constant!(StatusKind = "Status");
constant!(StatusVersion = "v1");

#[allow(clippy::trivially_copy_pass_by_ref)] // serde passes a reference
fn is_zero(value: &i32) -> bool {
    *value == 0
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde passes a reference
fn no_code(code: &u16) -> bool {
    *code == 0
}

/// What upstream says when a write was based on an old version.
pub const MODIFIED: &str =
    "the object has been modified; please apply your changes to the latest version and try again";

impl Status {
    fn failure(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            kind: StatusKind,
            api_version: StatusVersion,
            metadata: Box::default(),
            status: Cow::Borrowed("Failure"),
            message: message.into(),
            reason: Cow::Borrowed(reason),
            details: None,
            code,
        }
    }

    fn about(mut self, group: &str, kind: &str, name: &str) -> Self {
        let details = self.details.get_or_insert_default();
        details.group = group.to_owned();
        details.kind = kind.to_owned();
        details.name = name.to_owned();
        self
    }

    fn about_resource(self, resource: &GroupResource, name: &str) -> Self {
        self.about(&resource.group, &resource.resource, name)
    }

    /// `status: Success`, as a delete answers.
    pub fn success() -> Self {
        Self { status: Cow::Borrowed("Success"), code: 200, ..Self::failure(200, "", "") }
    }

    /// Success about one object, with its uid, as an immediate delete answers.
    pub fn deleted(resource: &GroupResource, name: &str, uid: &str) -> Self {
        let mut status = Self::success().about_resource(resource, name);
        status.details.get_or_insert_default().uid = uid.to_owned();
        status.code = 0;
        status
    }

    pub fn not_found(resource: &GroupResource, name: &str) -> Self {
        Self::failure(404, "NotFound", format!("{resource} {} not found", quote(name))).about_resource(resource, name)
    }

    /// A path nobody serves.
    pub fn no_such_path() -> Self {
        let mut status = Self::failure(404, "NotFound", "the server could not find the requested resource");
        status.details = Some(Box::default());
        status
    }

    pub fn already_exists(resource: &GroupResource, name: &str) -> Self {
        Self::failure(409, "AlreadyExists", format!("{resource} {} already exists", quote(name)))
            .about_resource(resource, name)
    }

    /// Every generated name was taken; the client may try again.
    pub fn generate_name_conflict(resource: &GroupResource, name: &str) -> Self {
        let message = format!(
            "{resource} {} already exists, the server was not able to generate a unique name for the object",
            quote(name)
        );
        Self::failure(409, "AlreadyExists", message).about_resource(resource, name).retry_after(1)
    }

    pub fn unauthorized(message: &str) -> Self {
        let message = if message.is_empty() { "not authorized" } else { message };
        Self::failure(401, "Unauthorized", message)
    }

    pub fn forbidden(resource: &GroupResource, name: &str, error: impl Display) -> Self {
        let message = if resource.is_empty() {
            format!("forbidden: {error}")
        } else if name.is_empty() {
            format!("{resource} is forbidden: {error}")
        } else {
            format!("{resource} {} is forbidden: {error}", quote(name))
        };
        Self::failure(403, "Forbidden", message).about_resource(resource, name)
    }

    pub fn conflict(resource: &GroupResource, name: &str, error: impl Display) -> Self {
        let message = format!("Operation cannot be fulfilled on {resource} {}: {error}", quote(name));
        Self::failure(409, "Conflict", message).about_resource(resource, name)
    }

    /// The conflict of a write whose `resourceVersion` is not the current one.
    pub fn modified(resource: &GroupResource, name: &str) -> Self {
        Self::conflict(resource, name, MODIFIED)
    }

    /// Server-side apply met fields owned by others; one cause per field.
    pub fn apply_conflict(message: impl Into<String>, causes: Vec<StatusCause>) -> Self {
        let mut status = Self::failure(409, "Conflict", message);
        status.details = Some(Box::new(StatusDetails { causes, ..StatusDetails::default() }));
        status
    }

    pub fn gone(message: impl Into<String>) -> Self {
        Self::failure(410, "Gone", message)
    }

    /// A resource version or continue token is too old: the client must list again.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::failure(410, "Expired", message)
    }

    pub fn invalid(kind: &GroupKind, name: &str, errors: FieldErrors) -> Self {
        let mut message = format!("{kind} {} is invalid", quote(name));
        if !errors.is_empty() {
            message.push_str(": ");
            message.push_str(&errors.to_string());
        }
        let mut status = Self::failure(422, "Invalid", message).about(&kind.group, &kind.kind, name);
        status.details.get_or_insert_default().causes = errors
            .into_iter()
            .map(|error| StatusCause {
                reason: Cow::Borrowed(error.error_type.as_str()),
                message: error.body(),
                field: error.field,
            })
            .collect();
        status
    }

    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::failure(400, "BadRequest", message)
    }

    pub fn too_many_requests(message: impl Into<String>, retry_after_seconds: i32) -> Self {
        Self::failure(429, "TooManyRequests", message).retry_after(retry_after_seconds)
    }

    pub fn service_unavailable(message: impl Into<String>) -> Self {
        Self::failure(503, "ServiceUnavailable", message)
    }

    /// The generic answer for a method that a path does not take.
    pub fn method_not_allowed() -> Self {
        let mut status =
            Self::failure(405, "MethodNotAllowed", "the server does not allow this method on the requested resource");
        status.details = Some(Box::default());
        status
    }

    pub fn internal(error: impl Display) -> Self {
        let error = error.to_string();
        let mut status = Self::failure(500, "InternalError", format!("Internal error occurred: {error}"));
        status.details.get_or_insert_default().causes = vec![StatusCause { message: error, ..StatusCause::default() }];
        status
    }

    pub fn timeout(message: impl Display, retry_after_seconds: i32) -> Self {
        Self::failure(504, "Timeout", format!("Timeout: {message}")).retry_after(retry_after_seconds)
    }

    pub fn request_too_large(message: impl Display) -> Self {
        Self::failure(413, "RequestEntityTooLarge", format!("Request entity too large: {message}"))
    }

    pub fn not_acceptable(accepted: &[&str]) -> Self {
        let message = format!("only the following media types are accepted: {}", accepted.join(", "));
        Self::failure(406, "NotAcceptable", message)
    }

    pub fn unsupported_media_type(accepted: &[&str]) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {}",
            accepted.join(", ")
        );
        Self::failure(415, "UnsupportedMediaType", message)
    }

    /// What a client makes of an answer that carried no Status.
    pub fn from_code(code: u16, body: &str) -> Self {
        let (reason, message) = match code {
            400 => ("BadRequest", "the server rejected our request for an unknown reason"),
            401 => ("Unauthorized", "the server has asked for the client to provide credentials"),
            403 => ("Forbidden", body),
            404 => ("NotFound", "the server could not find the requested resource"),
            405 => ("MethodNotAllowed", "the server does not allow this method on the requested resource"),
            406 => ("NotAcceptable", "the server was unable to respond with a content type that the client supports"),
            409 => ("Conflict", "the server reported a conflict"),
            415 => ("UnsupportedMediaType", body),
            422 => ("Invalid", "the server rejected our request due to an error in our request"),
            429 => ("TooManyRequests", "the server has received too many requests and has asked us to try again later"),
            503 => ("ServiceUnavailable", "the server is currently unable to handle the request"),
            504 => (
                "Timeout",
                "the server was unable to return a response in the time allotted, but may still be processing the request",
            ),
            500.. => {
                let message =
                    format!("an error on the server ({}) has prevented the request from succeeding", quote(body));
                return Self::failure(code, "InternalError", message);
            }
            _ => {
                let message =
                    format!("the server responded with the status code {code} but did not return more information");
                return Self::failure(code, "", message);
            }
        };
        Self::failure(code, reason, message)
    }

    /// Tells the client to wait; shown in details and as the `Retry-After` header.
    pub fn retry_after(mut self, seconds: i32) -> Self {
        self.details.get_or_insert_default().retry_after_seconds = seconds;
        self
    }

    /// Adds a cause to the details.
    pub fn with_cause(mut self, reason: &'static str, message: impl Into<String>, field: impl Into<String>) -> Self {
        self.details.get_or_insert_default().causes.push(StatusCause {
            reason: Cow::Borrowed(reason),
            message: message.into(),
            field: field.into(),
        });
        self
    }

    /// The HTTP status code.
    pub fn code(&self) -> u16 {
        if self.code == 0 { 200 } else { self.code }
    }

    pub fn is_failure(&self) -> bool {
        self.status == "Failure"
    }

    pub fn is_not_found(&self) -> bool {
        self.reason == "NotFound"
    }

    pub fn is_already_exists(&self) -> bool {
        self.reason == "AlreadyExists"
    }

    pub fn is_conflict(&self) -> bool {
        self.reason == "Conflict"
    }

    pub fn is_expired(&self) -> bool {
        self.code == 410 || self.reason == "Expired" || self.reason == "Gone"
    }

    pub fn is_forbidden(&self) -> bool {
        self.reason == "Forbidden"
    }

    pub fn is_invalid(&self) -> bool {
        self.reason == "Invalid"
    }

    /// Seconds to wait before the next try, if the server said so.
    pub fn retry_after_seconds(&self) -> Option<u32> {
        self.details
            .as_ref()
            .and_then(|details| u32::try_from(details.retry_after_seconds).ok())
            .filter(|&seconds| seconds > 0)
    }
}

impl Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Status {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_upstreams() {
        let pods = GroupResource::new("", "pods");
        let deployments = GroupResource::new("apps", "deployments");
        for (status, code, reason, message) in [
            (Status::not_found(&pods, "a"), 404, "NotFound", "pods \"a\" not found"),
            (Status::already_exists(&deployments, "a"), 409, "AlreadyExists", "deployments.apps \"a\" already exists"),
            (Status::forbidden(&pods, "", "no"), 403, "Forbidden", "pods is forbidden: no"),
            (
                Status::modified(&pods, "a"),
                409,
                "Conflict",
                "Operation cannot be fulfilled on pods \"a\": the object has been modified; please apply your changes to the latest version and try again",
            ),
            (Status::internal("x"), 500, "InternalError", "Internal error occurred: x"),
        ] {
            assert_eq!((status.code(), &*status.reason, status.message.as_str()), (code, reason, message));
        }
    }

    #[test]
    fn invalid_lists_causes() {
        let mut errors = FieldErrors::default();
        errors.invalid("spec.replicas", -1, "must be greater than or equal to 0");
        let status = Status::invalid(&GroupKind::new("apps", "Deployment"), "web", errors);
        let json = serde_json::to_value(&status).unwrap();
        assert_eq!(
            json,
            serde_json::json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "message": "Deployment.apps \"web\" is invalid: spec.replicas: Invalid value: -1: must be greater than or equal to 0",
                "reason": "Invalid",
                "details": {"name": "web", "group": "apps", "kind": "Deployment", "causes": [{
                    "reason": "FieldValueInvalid",
                    "message": "Invalid value: -1: must be greater than or equal to 0",
                    "field": "spec.replicas"}]},
                "code": 422
            })
        );
        assert_eq!(serde_json::from_value::<Status>(json).unwrap(), status);
    }
}
