//! Conversion webhooks: objects that are stored in one version and asked for in another.
//!
//! The row of a version names the webhook; `verbs::convert` asks it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api::Status;
use api::field::{FieldErrors, Path};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{CustomResourceConversion, WebhookConversion};
use registry::resource::{Converted, Converter};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::remote::webhook::{NoClient, WebhookClient};
use crate::remote::{Identities, Services};

/// A webhook gets this long, as upstream.
const WEBHOOK_TIMEOUT: Duration = Duration::from_secs(30);

/// The webhook of a definition.
struct Webhook {
    services: Services,
    client: Result<WebhookClient, NoClient>,
    /// The first version of reviews that both sides speak.
    review: Option<&'static str>,
}

/// The webhook that a definition names; nothing for those whose versions differ in name only.
pub(super) fn converter(
    services: &Services,
    conversion: Option<&CustomResourceConversion>,
) -> Option<Arc<dyn Converter>> {
    let conversion = conversion.filter(|conversion| conversion.strategy == "Webhook")?;
    let webhook = conversion.webhook.as_ref()?;
    let review = webhook.conversion_review_versions.iter().find_map(|version| match version.as_str() {
        "v1" => Some("apiextensions.k8s.io/v1"),
        "v1beta1" => Some("apiextensions.k8s.io/v1beta1"),
        _ => None,
    });
    Some(Arc::new(Webhook { services: services.clone(), client: client(webhook), review }))
}

impl Converter for Webhook {
    fn convert<'a>(&'a self, kind: &'a str, objects: Vec<Value>, wanted: &'a str) -> Converted<'a> {
        Box::pin(self.ask(kind, objects, wanted))
    }
}

impl Webhook {
    /// Brings objects into another version, all at once.
    async fn ask(&self, kind: &str, objects: Vec<Value>, wanted: &str) -> Result<Vec<Value>, Status> {
        let failed = |problem: &dyn std::fmt::Display| {
            Status::internal(format!("conversion webhook for {kind} failed: {problem}"))
        };
        let client = self.client.as_ref().map_err(|problem| failed(problem))?;
        let review = self.review.ok_or_else(|| failed(&"no supported ConversionReview versions"))?;
        let uid = uuid::Uuid::new_v4().to_string();
        let question = json!({"kind": "ConversionReview", "apiVersion": review,
            "request": {"uid": uid, "desiredAPIVersion": wanted, "objects": objects}});
        let query = format!("timeout={}s", WEBHOOK_TIMEOUT.as_secs());
        let answer = client.post(&self.services, &query, question.to_string().into(), WEBHOOK_TIMEOUT).await;
        let answer = answer.map_err(|error| failed(&error))?;
        let answer = serde_json::from_slice(&answer).map_err(|error| failed(&error))?;
        let converted = answered(answer, &uid).map_err(|problem| failed(&problem))?;
        if converted.len() != objects.len() {
            let (found, expected) = (converted.len(), objects.len());
            return Err(failed(&format!("returned {found} objects, expected {expected}")));
        }
        let pairs = converted.into_iter().zip(objects).enumerate();
        pairs
            .map(|(index, (new, old))| {
                checked(new, old, wanted)
                    .map_err(|problem| failed(&format!("invalid converted object at index {index}: {problem}")))
            })
            .collect()
    }
}

fn client(webhook: &WebhookConversion) -> Result<WebhookClient, NoClient> {
    // The same fields under two names; without any, the client says what it needs.
    let config = webhook.client_config.clone().unwrap_or_default();
    let config = serde_json::from_value(json!(config)).map_err(|error| NoClient::Config(Arc::new(error)))?;
    WebhookClient::configured(&config, &Identities::default())
}

/// Why an answer has no objects.
#[derive(Debug, thiserror::Error)]
enum NoObjects {
    #[error("expected response.uid={expected:?}, got {found}")]
    Uid { expected: String, found: Value },
    #[error("{0}")]
    Refused(String),
    #[error("no objects in the response")]
    Missing,
}

/// The objects in an answer, which may be any JSON.
fn answered(mut answer: Value, uid: &str) -> Result<Vec<Value>, NoObjects> {
    let mut response = answer.get_mut("response").map(Value::take).unwrap_or_default();
    if response["uid"] != uid {
        return Err(NoObjects::Uid { expected: uid.to_owned(), found: response["uid"].clone() });
    }
    let result = &response["result"];
    if result["status"] != "Success" {
        return Err(NoObjects::Refused(result["message"].as_str().unwrap_or("no reason given").to_owned()));
    }
    match response["convertedObjects"].take() {
        Value::Array(converted) => Ok(converted),
        _ => Err(NoObjects::Missing),
    }
}

/// Why what a webhook answered is not the object that it was given.
#[derive(Debug, thiserror::Error)]
enum NotTheSame {
    #[error("apiVersion must be {wanted:?}, got {found}")]
    ApiVersion { wanted: String, found: Value },
    #[error("kind must be {wanted}, got {found}")]
    Kind { wanted: Value, found: Value },
    #[error("must have the same {field}: {found} != {wanted}")]
    Field { field: &'static str, found: Value, wanted: Value },
    #[error("has no metadata")]
    NoMetadata,
    #[error("invalid metadata.{field}: {source}")]
    Texts { field: &'static str, source: serde_json::Error },
    #[error("{0}")]
    Invalid(FieldErrors),
}

/// A converted object is the same object in the version asked for. Of metadata, only labels and annotations may change.
fn checked(mut new: Value, old: Value, wanted: &str) -> Result<Value, NotTheSame> {
    if new["apiVersion"] != wanted {
        return Err(NotTheSame::ApiVersion { wanted: wanted.to_owned(), found: new["apiVersion"].clone() });
    }
    if new["kind"] != old["kind"] {
        return Err(NotTheSame::Kind { wanted: old["kind"].clone(), found: new["kind"].clone() });
    }
    let (given, mut metadata) = (&new["metadata"], old["metadata"].clone());
    if !given.is_object() {
        return Err(NotTheSame::NoMetadata);
    }
    for field in ["name", "namespace", "uid"] {
        if given[field] != metadata[field] {
            let (found, wanted) = (given[field].clone(), metadata[field].clone());
            return Err(NotTheSame::Field { field, found, wanted });
        }
    }
    for field in ["labels", "annotations"] {
        match given.get(field).filter(|value| !value.is_null()) {
            Some(value) => {
                check_texts(field, value, &metadata[field])?;
                metadata[field] = value.clone();
            }
            None => drop(metadata.as_object_mut().map(|metadata| metadata.remove(field))),
        }
    }
    new["metadata"] = metadata;
    Ok(new)
}

/// Labels or annotations: what is stored can be read by everybody, and what has changed is what may stand there.
fn check_texts(field: &'static str, new: &Value, old: &Value) -> Result<(), NotTheSame> {
    let texts: BTreeMap<String, String> =
        BTreeMap::deserialize(new).map_err(|source| NotTheSame::Texts { field, source })?;
    if new == old {
        return Ok(());
    }
    let (mut errors, metadata) = (FieldErrors::default(), Path::new("metadata"));
    match field {
        "labels" => registry::metadata::labels(&mut errors, &metadata.child(field), Some(&texts)),
        _ => registry::metadata::annotations(&mut errors, &metadata.child(field), Some(&texts)),
    }
    if errors.is_empty() { Ok(()) } else { Err(NotTheSame::Invalid(errors)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn security_a_conversion_webhook_may_answer_anything() {
        let success = json!({"uid": "u", "result": {"status": "Success"}});
        for answer in [
            Value::Null,
            json!(7),
            json!("x"),
            json!([]),
            json!({"response": []}),
            json!({"response": {"uid": "v"}}),
            json!({"response": success}),
        ] {
            assert!(answered(answer.clone(), "u").is_err(), "{answer}");
        }
        let old =
            json!({"apiVersion": "e.com/v1", "kind": "K", "metadata": {"name": "n", "uid": "u", "labels": {"?": "?"}}});
        let new = |field: &str, value: Value| json!({"apiVersion": "e.com/v2", "kind": "K", "metadata": {"name": "n", "uid": "u", field: value}});
        for odd in [
            Value::Null,
            json!(7),
            json!("x"),
            json!([]),
            json!({"apiVersion": "e.com/v2", "kind": 7}),
            json!({"apiVersion": "e.com/v2", "kind": "K", "metadata": "n"}),
            new("labels", json!(7)),
            new("labels", json!({"a": 7})),
            new("labels", json!({"a b": "c"})),
            new("annotations", json!(["a"])),
            new("annotations", json!({"a": null})),
            new("annotations", json!({"a": "x".repeat(300_000)})),
        ] {
            assert!(checked(odd.clone(), old.clone(), "e.com/v2").is_err(), "{odd}");
        }
        assert!(checked(new("labels", json!({"?": "?"})), old, "e.com/v2").is_ok(), "they were so before");
    }

    #[test]
    fn a_webhook_may_change_labels_but_not_who_an_object_is() {
        let old = json!({"apiVersion": "e.com/v1", "kind": "K", "metadata": {"name": "n", "uid": "u", "generation": 3, "labels": {"a": "b"}}});
        let new = |metadata: Value| json!({"apiVersion": "e.com/v2", "kind": "K", "metadata": metadata});
        let kept = checked(new(json!({"name": "n", "uid": "u", "annotations": {"c": "d"}})), old.clone(), "e.com/v2");
        assert_eq!(
            kept.unwrap()["metadata"],
            json!({"name": "n", "uid": "u", "generation": 3, "annotations": {"c": "d"}})
        );
        assert!(checked(new(json!({"name": "m", "uid": "u"})), old.clone(), "e.com/v2").is_err());
        assert!(checked(new(json!({"name": "n", "uid": "u"})), old, "e.com/v3").is_err());
    }
}
