//! Token webhook: a server elsewhere says whose token it is (`--authentication-token-webhook-*`).

use std::path::Path;
use std::time::Duration;

use api::UserInfo;
use serde_json::{Value, json};

use super::Accepted;
use crate::expiring::Expiring;
use crate::remote::Remote;

/// How long the other side may take, retries included.
const LIMIT: Duration = Duration::from_secs(30);

pub(crate) struct TokenWebhook {
    remote: Remote,
    version: String,
    life: Duration,
    /// By digest of token and audiences: the tokens themselves are not kept. Refusals are remembered like acceptances.
    cache: Expiring<Vec<u8>, Option<Accepted>>,
}

impl TokenWebhook {
    pub(crate) fn new(config: &Path, version: &str, life: Duration) -> anyhow::Result<Self> {
        anyhow::ensure!(
            ["v1", "v1beta1"].contains(&version),
            "unsupported --authentication-token-webhook-version {version:?}"
        );
        let remote = Remote::from_kubeconfig(config)?;
        Ok(Self { remote, version: version.to_owned(), life, cache: Expiring::new() })
    }

    pub(super) async fn verify(&self, token: &str, audiences: &[String]) -> Result<Option<Accepted>, String> {
        let mut digest = ring::digest::Context::new(&ring::digest::SHA256);
        for part in std::iter::once(token).chain(audiences.iter().map(String::as_str)) {
            digest.update(part.as_bytes());
            digest.update(&[0]);
        }
        let key = digest.finish().as_ref().to_vec();
        if let Some(known) = self.cache.get(&key) {
            return Ok(known);
        }
        let question = json!({
            "kind": "TokenReview",
            "apiVersion": format!("authentication.k8s.io/{}", self.version),
            "spec": {"token": token, "audiences": audiences},
        });
        let answer = self.remote.ask(&question, LIMIT).await.map_err(|error| format!("token webhook: {error}"))?;
        let found = accepted(&answer, audiences)?;
        self.cache.put(key, found.clone(), self.life);
        Ok(found)
    }
}

/// What a TokenReview says. Only a clear yes counts.
fn accepted(answer: &Value, audiences: &[String]) -> Result<Option<Accepted>, String> {
    if answer["kind"].as_str().is_some_and(|kind| kind != "TokenReview") {
        return Err(format!("token webhook: answered with a {}", answer["kind"]));
    }
    let status = &answer["status"];
    if status["authenticated"] != Value::Bool(true) {
        return match status["error"].as_str().filter(|error| !error.is_empty()) {
            Some(error) => Err(format!("token webhook: {error}")),
            None => Ok(None),
        };
    }
    let user: UserInfo = serde_json::from_value(status["user"].clone())
        .map_err(|error| format!("token webhook: user is not readable: {error}"))?;
    if user.name.is_empty() {
        return Err("token webhook: authenticated nobody".to_owned());
    }
    let given: Vec<String> = serde_json::from_value(status["audiences"].clone()).unwrap_or_default();
    if given.is_empty() {
        // A webhook that knows nothing of audiences vouches for this server's own.
        return Ok(Some((user, audiences.to_vec())));
    }
    let common: Vec<String> = audiences.iter().filter(|audience| given.contains(audience)).cloned().collect();
    Ok((!common.is_empty()).then_some((user, common)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_clear_yes_counts() {
        let audiences = ["api".to_owned()];
        for (status, expected) in [
            (json!({"authenticated": true, "user": {"username": "ann"}}), Ok(true)),
            (json!({"authenticated": true, "user": {"username": "ann"}, "audiences": ["api", "x"]}), Ok(true)),
            (json!({"authenticated": true, "user": {"username": "ann"}, "audiences": ["x"]}), Ok(false)),
            (json!({"authenticated": false, "user": {"username": "ann"}}), Ok(false)),
            (json!({"authenticated": "true", "user": {"username": "ann"}}), Ok(false)),
            (json!({"authenticated": true}), Err(())),
            (json!({"authenticated": true, "user": {"username": ""}}), Err(())),
            (json!({"authenticated": true, "user": {"username": "ann", "groups": "dev"}}), Err(())),
            (json!({"authenticated": false, "error": "down"}), Err(())),
            (Value::Null, Ok(false)),
        ] {
            let found = accepted(&json!({"status": status}), &audiences);
            assert_eq!(found.map(|found| found.is_some()).map_err(drop), expected, "{status}");
        }
        assert!(accepted(&json!({"kind": "Status", "status": {"authenticated": true}}), &audiences).is_err());
    }
}
