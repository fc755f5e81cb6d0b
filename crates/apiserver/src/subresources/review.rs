//! Reviews: questions about identities and rights, answered at once and never stored.

use api::{Status, UserInfo};
use http::{Response, StatusCode};
use k8s_openapi::api::authentication::v1::{SelfSubjectReview, TokenReview};
use k8s_openapi::api::authorization::v1::{
    LocalSubjectAccessReview, SelfSubjectAccessReview, SelfSubjectRulesReview, SubjectAccessReview,
};
use registry::Review;
use serde_json::{Value, json};

use crate::authz::Attributes;
use crate::body::Body;
use crate::state::Operation;
use crate::verbs::respond::respond_value;
use crate::verbs::write::{body_value, check_kind};

pub(crate) async fn review(operation: &Operation, review: Review) -> Result<Response<Body>, Status> {
    let mut body = body_value(operation)?.value;
    check_kind(&operation.resource, &mut body)?;
    fits(review, &body).map_err(|error| {
        let (kind, version) = (&operation.resource.kind, &operation.resource.version);
        Status::bad_request(format!("{kind} in version {version:?} cannot be handled as a {kind}: {error}"))
    })?;
    if body.get("metadata").is_none() {
        body["metadata"] = json!({});
    }
    match review {
        Review::Token => token(operation, &mut body).await,
        Review::SelfSubject => {
            body["metadata"]["creationTimestamp"] = api::time::rfc3339(operation.now).into();
            body["status"] = json!({"userInfo": operation.user});
        }
        Review::SelfSubjectAccess => access(operation, &mut body, &operation.user).await?,
        Review::SubjectAccess => {
            let user = subject(&body["spec"])?;
            access(operation, &mut body, &user).await?;
        }
        Review::LocalSubjectAccess => {
            let namespace = &operation.info.namespace;
            if body["spec"]["resourceAttributes"]["namespace"].as_str().unwrap_or_default() != namespace {
                return Err(Status::bad_request(format!(
                    "namespace on review ({}) does not match the namespace of the request ({namespace})",
                    body["spec"]["resourceAttributes"]["namespace"].as_str().unwrap_or_default()
                )));
            }
            let user = subject(&body["spec"])?;
            access(operation, &mut body, &user).await?;
        }
        Review::SelfSubjectRules => {
            let namespace = body["spec"]["namespace"].as_str().unwrap_or_default();
            if namespace.is_empty() {
                return Err(Status::bad_request("no namespace on request"));
            }
            operation.state.caches.fresh().await?;
            body["status"] = operation.state.authz.rules(&operation.user, namespace);
        }
    }
    respond_value(operation, StatusCode::CREATED, &body)
}

/// Whether a question is one of its kind. A group or an audience that was passed over would make another question of it.
fn fits(review: Review, body: &Value) -> serde_json::Result<()> {
    match review {
        Review::Token => api::codec::from_value::<TokenReview>(body).map(drop),
        Review::SelfSubject => api::codec::from_value::<SelfSubjectReview>(body).map(drop),
        Review::SelfSubjectAccess => api::codec::from_value::<SelfSubjectAccessReview>(body).map(drop),
        Review::SubjectAccess => api::codec::from_value::<SubjectAccessReview>(body).map(drop),
        Review::LocalSubjectAccess => api::codec::from_value::<LocalSubjectAccessReview>(body).map(drop),
        Review::SelfSubjectRules => api::codec::from_value::<SelfSubjectRulesReview>(body).map(drop),
    }
}

async fn token(operation: &Operation, body: &mut Value) {
    let token = body["spec"]["token"].as_str().unwrap_or_default().to_owned();
    let audiences: Vec<String> = strings(&body["spec"]["audiences"]);
    let status = match operation.state.authn.token(&operation.state.caches, &token, &audiences).await {
        Ok(Some((user, accepted))) => {
            let mut status = json!({"authenticated": true, "user": user});
            if !accepted.is_empty() {
                status["audiences"] = json!(accepted);
            }
            status
        }
        Ok(None) => json!({"user": {}}),
        Err(error) => json!({"user": {}, "error": error.to_string()}),
    };
    body["status"] = status;
}

fn strings(value: &Value) -> Vec<String> {
    value.as_array().map(|list| list.iter().filter_map(Value::as_str).map(str::to_owned).collect()).unwrap_or_default()
}

/// The user a SubjectAccessReview asks about.
fn subject(spec: &Value) -> Result<UserInfo, Status> {
    let user = UserInfo {
        name: spec["user"].as_str().unwrap_or_default().to_owned(),
        uid: spec["uid"].as_str().unwrap_or_default().to_owned(),
        groups: strings(&spec["groups"]),
        extra: serde_json::from_value(spec["extra"].clone()).unwrap_or_default(),
    };
    if user.name.is_empty() && user.groups.is_empty() {
        let mut errors = api::field::FieldErrors::default();
        errors.required("spec.user", "at least one of user or group must be specified");
        let kind = api::GroupKind::new("authorization.k8s.io", "SubjectAccessReview");
        return Err(Status::invalid(&kind, "", errors));
    }
    Ok(user)
}

async fn access(operation: &Operation, body: &mut Value, user: &UserInfo) -> Result<(), Status> {
    let spec = &body["spec"];
    let text = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
    let resource = &spec["resourceAttributes"];
    let path = &spec["nonResourceAttributes"];
    let attributes = match (resource.is_object(), path.is_object()) {
        (true, false) => Attributes {
            is_resource: true,
            verb: text(resource, "verb").into(),
            group: text(resource, "group"),
            resource: text(resource, "resource"),
            subresource: text(resource, "subresource"),
            version: text(resource, "version"),
            namespace: text(resource, "namespace"),
            name: text(resource, "name"),
            field_selector: selector(&resource["fieldSelector"]),
            label_selector: selector(&resource["labelSelector"]),
            path: String::new(),
        },
        (false, true) => {
            Attributes { verb: text(path, "verb").into(), path: text(path, "path"), ..Attributes::default() }
        }
        _ => {
            let mut errors = api::field::FieldErrors::default();
            errors.invalid(
                "spec.resourceAttributes",
                Value::Null,
                "exactly one of nonResourceAttributes or resourceAttributes must be specified",
            );
            let kind = api::GroupKind { group: "authorization.k8s.io".into(), kind: operation.resource.kind.clone() };
            return Err(Status::invalid(&kind, "", errors));
        }
    };
    // Rights that were given or taken by a finished write count at once.
    operation.state.caches.fresh().await?;
    let decision = operation.state.authz.decide(user, &attributes).await;
    let mut status = json!({"allowed": decision.allowed});
    if decision.denied {
        status["denied"] = true.into();
    }
    if !decision.reason.is_empty() {
        status["reason"] = decision.reason.into();
    }
    body["status"] = status;
    Ok(())
}

/// A selector of a review as text; requirements are joined, what cannot be written is left out.
fn selector(value: &Value) -> String {
    if let Some(raw) = value["rawSelector"].as_str() {
        return raw.to_owned();
    }
    let requirement = |requirement: &Value| {
        let key = requirement["key"].as_str()?;
        let values = strings(&requirement["values"]);
        match (requirement["operator"].as_str()?, values.as_slice()) {
            ("In", [one]) => Some(format!("{key}={one}")),
            ("NotIn", [one]) => Some(format!("{key}!={one}")),
            ("In", many) => Some(format!("{key} in ({})", many.join(","))),
            ("NotIn", many) => Some(format!("{key} notin ({})", many.join(","))),
            ("Exists", _) => Some(key.to_owned()),
            ("DoesNotExist", _) => Some(format!("!{key}")),
            _ => None,
        }
    };
    let parts: Vec<String> = value["requirements"].as_array().into_iter().flatten().filter_map(requirement).collect();
    parts.join(",")
}
