//! Objects between the version that a row serves and the one that is stored.

use api::Status;
use registry::{AnyObject, Resource};
use serde_json::Value;

/// The stored form of an object in the version this row serves.
pub(crate) fn served_value(resource: &Resource, stored: &[u8]) -> Result<Value, Status> {
    let mut value: Value = serde_json::from_slice(stored).map_err(Status::internal)?;
    if let Some(conversion) = &resource.conversion {
        conversion.from_storage(&mut value);
    }
    Ok(value)
}

/// Converts a served value to the stored version and type; unknown fields are taken out and reported.
pub(crate) fn decode_checked(
    resource: &Resource,
    mut value: Value,
    problems: &mut Vec<String>,
) -> Result<AnyObject, Status> {
    let refuse = |error: &dyn std::fmt::Display| {
        Status::bad_request(format!(
            "{} in version {} cannot be handled as a {}: {error}",
            resource.kind,
            api::field::quote(&resource.version),
            resource.kind
        ))
    };
    if let Some(conversion) = &resource.conversion {
        conversion.to_storage(&mut value);
    }
    if resource.initializers {
        crate::initializers::lift(&mut value);
    }
    let unknown = resource.strategy.normalize(&mut value).map_err(|error| refuse(&error))?;
    problems.extend(unknown.into_iter().map(|path| format!("unknown field {}", api::field::quote(&path))));
    resource.strategy.decode_value(value).map_err(|error| refuse(&error))
}
