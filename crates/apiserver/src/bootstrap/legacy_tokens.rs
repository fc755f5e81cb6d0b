//! Which tokens in Secrets are still used: since when this is known, and the day of each one's last use. By this a controller
//! retires those that nobody uses any more; without it, it would retire none.

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use jiff::civil::Date;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use crate::api_services::trust::write;
use crate::authn::{LAST_USED, day, is_today};
use crate::stamp::now;
use crate::state::State;

const MAPS: &str = "/api/v1/namespaces/kube-system/configmaps";
const NAME: &str = "kube-apiserver-legacy-service-account-token-tracking";
const KEY: &str = "kube-system/kube-apiserver-legacy-service-account-token-tracking";
/// The object is looked at again after this long, and sooner while there is none.
const RECHECK_INTERVAL: Duration = Duration::from_secs(3600);
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Tracks uses until the server stops.
pub(crate) async fn run(state: Arc<State>) {
    let Some(keys) = &state.authn.service_accounts else { return };
    loop {
        if let Err(error) = begin(&state).await {
            tracing::warn!("{NAME}: {error:#}");
        }
        let is_known = state.caches.get("configmaps").is_some_and(|cache| cache.get(KEY).is_some());
        tokio::select! {
            () = state.stop.cancelled() => return,
            () = tokio::time::sleep(if is_known { RECHECK_INTERVAL } else { RETRY_INTERVAL }) => {}
            used = keys.legacy_uses.next() => {
                for (namespace, name) in used {
                    // It is noted again when the token is used again.
                    if let Err(error) = note(&state, &namespace, &name).await {
                        tracing::warn!(namespace, name, "the use of the token in this secret is not noted: {error:#}");
                    }
                }
            }
        }
    }
}

/// Says since when uses are tracked, unless it is said.
pub(super) async fn begin(state: &Arc<State>) -> anyhow::Result<()> {
    let data = json!({"since": day(now().as_second())});
    let Some(found) = state.caches.get("configmaps").and_then(|cache| cache.get(KEY)) else {
        let object = json!({"kind": "ConfigMap", "apiVersion": "v1",
            "metadata": {"name": NAME, "namespace": "kube-system"}, "data": data});
        return write(state, Method::POST, MAPS, &object).await;
    };
    let mut object: Value = found.decode()?;
    // A day that cannot be read says nothing: uses are known from today on.
    if object["data"]["since"].as_str().is_some_and(|since| since.parse::<Date>().is_ok()) {
        return Ok(());
    }
    object["data"] = data;
    write(state, Method::PUT, &format!("{MAPS}/{NAME}"), &object).await
}

async fn note(state: &Arc<State>, namespace: &str, name: &str) -> anyhow::Result<()> {
    let Some(secret) = state.objects().metadata::<Secret>(namespace, name)? else { return Ok(()) };
    let Some(patch) = use_on(&secret, now().as_second()) else { return Ok(()) };
    write(state, Method::PATCH, &format!("/api/v1/namespaces/{namespace}/secrets/{name}"), &patch).await
}

/// What says in a secret that its token was used, unless it says so: one label of this very secret. Nothing else of it is
/// read or written, so whatever others change meanwhile stays.
fn use_on(secret: &ObjectMeta, seconds: i64) -> Option<Value> {
    let noted = secret.labels.as_ref().and_then(|labels| labels.get(LAST_USED));
    if noted.is_some_and(|label| is_today(label, seconds)) {
        return None;
    }
    Some(json!({"metadata": {"uid": secret.uid, "labels": {LAST_USED: day(seconds)}}}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_use_is_one_label_of_the_secret_that_was_used() {
        let seconds = 1_767_323_045; // 2026-01-02
        let mut secret = ObjectMeta { uid: Some("u".to_owned()), ..ObjectMeta::default() };
        let patch = use_on(&secret, seconds);
        assert_eq!(patch, Some(json!({"metadata": {"uid": "u", "labels": {LAST_USED: "2026-01-02"}}})));
        secret.labels = Some([(LAST_USED.to_owned(), "2026-01-02".to_owned())].into());
        assert_eq!(use_on(&secret, seconds), None);
        assert!(use_on(&secret, seconds + 2 * 86_400).is_some());
    }
}
