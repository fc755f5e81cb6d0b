//! Field validation of request bodies: what happens to fields that are unknown or given twice.

use serde_json::Value;

use super::{Struct, check};
use crate::codec::Decoded;
use crate::field::quote;
use crate::{Gvk, Status};

/// The request's `fieldValidation`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FieldValidation {
    Ignore,
    /// Accepts and tells in `Warning` headers; what a request gets that does not ask.
    #[default]
    Warn,
    Strict,
}

impl FieldValidation {
    /// From the query parameter; `None` for a value that is not one of upstream's.
    pub fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "" | "Warn" => Self::Warn,
            "Ignore" => Self::Ignore,
            "Strict" => Self::Strict,
            _ => return None,
        })
    }
}

/// Checks a decoded body against its schema. Returns the value, fit for its typed form, and the warnings to send.
pub fn validate(
    decoded: Decoded,
    schema: &Struct,
    gvk: &Gvk,
    validation: FieldValidation,
) -> Result<(Value, Vec<String>), Status> {
    let Decoded { mut value, duplicates } = decoded;
    let refuse = |error: String| {
        Status::bad_request(format!(
            "{} in version {} cannot be handled as a {}: {error}",
            gvk.kind,
            quote(&gvk.version),
            gvk.kind
        ))
    };
    let unknown = check(&mut value, schema).map_err(|error| refuse(error.0))?;
    let complaints: Vec<String> = duplicates
        .iter()
        .map(|path| format!("duplicate field {}", quote(path)))
        .chain(unknown.iter().map(|path| format!("unknown field {}", quote(path))))
        .collect();
    match validation {
        FieldValidation::Strict if !complaints.is_empty() => {
            Err(refuse(format!("strict decoding error: {}", complaints.join(", "))))
        }
        FieldValidation::Warn => Ok((value, complaints)),
        FieldValidation::Ignore | FieldValidation::Strict => Ok((value, Vec::new())),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::Deployment;

    use super::*;
    use crate::codec::from_json;
    use crate::schema::of;

    #[test]
    fn unknown_and_duplicate_fields() {
        let body = br#"{"spec":{"foo":1,"replicas":1,"replicas":2}}"#;
        let run = |validation| {
            let gvk = Gvk::of::<Deployment>();
            validate(from_json(body).unwrap(), &of::<Deployment>(), &gvk, validation)
        };
        let (value, warnings) = run(FieldValidation::Warn).unwrap();
        assert_eq!(warnings, ["duplicate field \"spec.replicas\"", "unknown field \"spec.foo\""]);
        assert_eq!(value, serde_json::json!({"spec": {"replicas": 2}}));
        assert!(run(FieldValidation::Ignore).unwrap().1.is_empty());
        let status = run(FieldValidation::Strict).unwrap_err();
        assert_eq!(
            (status.code(), status.message.as_str()),
            (
                400,
                "Deployment in version \"v1\" cannot be handled as a Deployment: strict decoding error: duplicate field \"spec.replicas\", unknown field \"spec.foo\""
            )
        );
    }
}
