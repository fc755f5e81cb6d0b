//! `serviceaccounts/token`: issues a bound token.

use api::Status;
use api::meta::Meta as _;
use http::{Response, StatusCode};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Node, Pod, Secret, ServiceAccount};
use serde_json::{Value, json};

use crate::authn::TokenClaims;
use crate::body::Body;
use crate::state::Operation;
use crate::verbs::respond::respond_value;
use crate::verbs::write::{admit_body, body_value};

/// Limits of `spec.expirationSeconds` (upstream: ten minutes to 2^32 seconds).
const MIN_LIFE: i64 = 600;
const MAX_LIFE: i64 = 1 << 32;
const DEFAULT_LIFE: i64 = 3600;
/// What the token volume of a pod asks for, and how long such tokens live instead (upstream's
/// `WarnOnlyBoundTokenExpirationSeconds` and `ExpirationExtensionSeconds`).
const DEFAULT_POD_LIFE: i64 = 3607;
const EXTENDED_LIFE: i64 = 365 * 24 * 3600;

pub(crate) async fn issue(operation: &Operation) -> Result<Response<Body>, Status> {
    let Some(issuer) = &operation.state.tokens else { return Err(Status::method_not_allowed()) };
    let request: TokenRequest = api::codec::from_value(&body_value(operation)?.value)
        .map_err(|error| Status::bad_request(format!("TokenRequest cannot be handled: {error}")))?;
    let request = admit_body(operation, request, operation.dry_run()?).await?;
    let mut request = serde_json::to_value(request).map_err(Status::internal)?;
    let (namespace, name) = (&operation.info.namespace, &operation.info.name);
    operation.state.caches.fresh().await?;
    let account =
        operation.state.objects().get::<ServiceAccount>(namespace, name)?.ok_or_else(|| operation.not_found(name))?;
    if let Some(uid) = request["metadata"]["uid"].as_str().filter(|uid| account.metadata.uid.as_deref() != Some(uid)) {
        let found = account.metadata.uid();
        return Err(Status::conflict(
            &api::GroupResource::new("authentication.k8s.io", "TokenRequest"),
            name,
            format!("the UID in the token request ({uid}) does not match the UID of the service account ({found})"),
        ));
    }
    let seconds = request["spec"]["expirationSeconds"].as_i64().unwrap_or(DEFAULT_LIFE);
    let mut errors = api::field::FieldErrors::default();
    if seconds < MIN_LIFE {
        errors.invalid("spec.expirationSeconds", seconds, "may not specify a duration less than 10 minutes");
    }
    if seconds > MAX_LIFE {
        errors.invalid("spec.expirationSeconds", seconds, "may not specify a duration larger than 2^32 seconds");
    }
    if !errors.is_empty() {
        let kind = api::GroupKind::new("authentication.k8s.io", "TokenRequest");
        return Err(Status::invalid(&kind, name, errors));
    }
    let mut audiences: Vec<String> = request["spec"]["audiences"]
        .as_array()
        .map(|list| list.iter().filter_map(Value::as_str).map(str::to_owned).collect())
        .unwrap_or_default();
    if audiences.is_empty() {
        audiences = issuer.audiences().to_vec();
    }
    let mut claims = TokenClaims {
        namespace: namespace.clone(),
        name: name.clone(),
        uid: account.metadata.uid().to_owned(),
        audiences: audiences.clone(),
        issued: operation.now.as_second(),
        expires: 0,
        warn_after: None,
        pod: None,
        node: None,
        secret: None,
    };
    bind(operation, &account, &request["spec"]["boundObjectRef"], &mut claims)?;
    let seconds = match operation.state.config.service_account_max_token_expiration {
        Some(limit) if seconds > limit.as_secs() as i64 => {
            let limit = limit.as_secs() as i64;
            operation.warn(format!("requested expiration of {seconds} seconds shortened to {limit} seconds"));
            limit
        }
        _ => seconds,
    };
    claims.expires = claims.issued + seconds;
    // What kubelets ask for when nobody said otherwise: old clients do not read their token again in time.
    let extends = operation.state.config.service_account_extend_token_expiration
        && claims.pod.is_some()
        && seconds == DEFAULT_POD_LIFE
        && audiences.iter().all(|audience| issuer.audiences().contains(audience));
    if extends {
        claims.warn_after = Some(claims.expires);
        let longest = issuer.max_life().map_or(i64::MAX, |life| i64::try_from(life.as_secs()).unwrap_or(i64::MAX));
        claims.expires = claims.issued + EXTENDED_LIFE.min(longest);
    }
    let token =
        issuer.sign(&claims).await.map_err(|error| Status::internal(format!("failed to generate token: {error:#}")))?;
    let expires = jiff::Timestamp::from_second(claims.issued + seconds).map_err(Status::internal)?;
    request["kind"] = "TokenRequest".into();
    request["apiVersion"] = "authentication.k8s.io/v1".into();
    request["metadata"] = json!({"name": name, "namespace": namespace, "uid": claims.uid,
        "creationTimestamp": api::time::rfc3339(operation.now)});
    request["spec"]["audiences"] = json!(audiences);
    request["spec"]["expirationSeconds"] = seconds.into();
    request["status"] = json!({"token": token, "expirationTimestamp": api::time::rfc3339(expires)});
    respond_value(operation, StatusCode::CREATED, &request)
}

/// Ties the token to an object: when that goes, the token is no longer accepted.
fn bind(
    operation: &Operation,
    account: &ServiceAccount,
    reference: &Value,
    claims: &mut TokenClaims,
) -> Result<(), Status> {
    if reference.is_null() {
        return Ok(());
    }
    let kind = reference["kind"].as_str().unwrap_or_default();
    let api_version = reference["apiVersion"].as_str().unwrap_or_default();
    if api_version.contains('/') || !matches!(kind, "Pod" | "Secret" | "Node") {
        let message = format!("cannot bind token to object of type {api_version}, Kind={kind}");
        return Err(Status::bad_request(message));
    }
    let name = reference["name"].as_str().unwrap_or_default();
    let namespace = &operation.info.namespace;
    let objects = operation.state.objects();
    let pod = if kind == "Pod" { objects.get::<Pod>(namespace, name)? } else { None };
    let found = match kind {
        "Pod" => pod.as_ref().map(|pod| pod.metadata.clone()),
        "Secret" => objects.metadata::<Secret>(namespace, name)?,
        _ => objects.metadata::<Node>("", name)?,
    };
    let found = found.ok_or_else(|| {
        let resource = format!("{}s", kind.to_lowercase()).into();
        Status::not_found(&api::GroupResource { group: "".into(), resource }, name)
    })?;
    let uid = found.uid.unwrap_or_default();
    let wanted = reference["uid"].as_str().unwrap_or_default();
    if !wanted.is_empty() && wanted != uid {
        return Err(Status::conflict(
            &operation.group_resource(),
            &operation.info.name,
            format!(
                "the UID in the bound object reference ({wanted}) does not match the UID in record. The object might have been deleted and then recreated"
            ),
        ));
    }
    let bound = Some((name.to_owned(), uid));
    match kind {
        "Pod" => {
            let spec = pod.as_ref().and_then(|pod| pod.spec.as_ref());
            if spec.and_then(|spec| spec.service_account_name.as_deref()) != account.metadata.name.as_deref() {
                return Err(Status::bad_request(format!(
                    "cannot bind token for serviceaccount {:?} to pod running with different serviceaccount name.",
                    operation.info.name
                )));
            }
            claims.pod = bound;
            let node = spec.and_then(|spec| spec.node_name.as_deref()).filter(|node| !node.is_empty());
            if let Some(node) = node {
                let record = objects.metadata::<Node>("", node)?;
                let uid = record.and_then(|record| record.uid).unwrap_or_default();
                claims.node = Some((node.to_owned(), uid));
            }
        }
        "Secret" => claims.secret = bound,
        _ => claims.node = bound,
    }
    Ok(())
}
