//! Token webhook: a server elsewhere says whose token it is (`--authentication-token-webhook-*`).

use std::path::Path;
use std::time::Duration;

use api::UserInfo;
use serde_json::{Value, json};

use super::Accepted;
use super::error::TokenWebhookError;
use crate::expiring::Expiring;
use crate::remote::Remote;

/// How long the other side may take, retries included.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) struct TokenWebhook {
    remote: Remote,
    version: String,
    life: Duration,
    /// The audiences of an answer that names none: this server's own.
    implied: Vec<String>,
    /// By digest of token and audiences: the tokens themselves are not kept. Refusals are remembered like acceptances.
    cache: Expiring<Vec<u8>, Option<Accepted>>,
}

impl TokenWebhook {
    pub(crate) fn new(config: &Path, version: &str, life: Duration, implied: Vec<String>) -> anyhow::Result<Self> {
        anyhow::ensure!(
            ["v1", "v1beta1"].contains(&version),
            "unsupported --authentication-token-webhook-version {version:?}"
        );
        let remote = Remote::from_kubeconfig(config)?;
        Ok(Self { remote, version: version.to_owned(), life, implied, cache: Expiring::new() })
    }

    pub(super) async fn verify(
        &self,
        token: &str,
        audiences: &[String],
    ) -> Result<Option<Accepted>, TokenWebhookError> {
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
        let answer = self.remote.ask(&question, REQUEST_TIMEOUT).await?;
        let found = accepted(&answer, audiences, &self.implied)?;
        self.cache.put(key, found.clone(), self.life);
        Ok(found)
    }
}

/// What a TokenReview says. Only a clear yes counts.
///
/// A webhook that knows nothing of audiences vouches for this server's own (`implied`), not for those asked about.
fn accepted(answer: &Value, audiences: &[String], implied: &[String]) -> Result<Option<Accepted>, TokenWebhookError> {
    if answer["kind"].as_str().is_some_and(|kind| kind != "TokenReview") {
        return Err(TokenWebhookError::Kind(answer["kind"].clone()));
    }
    let status = &answer["status"];
    if status["authenticated"] != Value::Bool(true) {
        return match status["error"].as_str().filter(|error| !error.is_empty()) {
            Some(error) => Err(TokenWebhookError::Said(error.to_owned())),
            None => Ok(None),
        };
    }
    let user: UserInfo = serde_json::from_value(status["user"].clone()).map_err(TokenWebhookError::User)?;
    if user.name.is_empty() {
        return Err(TokenWebhookError::Nobody);
    }
    let given: Option<Vec<String>> =
        serde_json::from_value(status["audiences"].clone()).map_err(TokenWebhookError::Audiences)?;
    let given = given.as_deref().filter(|given| !given.is_empty()).unwrap_or(implied);
    if audiences.is_empty() {
        return Ok(Some((user, Vec::new())));
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
            let found = accepted(&json!({"status": status}), &audiences, &audiences);
            assert_eq!(found.map(|found| found.is_some()).map_err(drop), expected, "{status}");
        }
        let answer = json!({"kind": "Status", "status": {"authenticated": true}});
        assert!(accepted(&answer, &audiences, &audiences).is_err());
    }

    #[test]
    fn security_an_answer_without_audiences_is_for_this_server_only() {
        let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let answer = json!({"status": {"authenticated": true, "user": {"username": "ann"}}});
        for (asked, expected) in [
            (list(&["api"]), Some(list(&["api"]))),
            (list(&["vault", "api"]), Some(list(&["api"]))),
            (list(&["vault"]), None),
            (list(&[]), Some(list(&[]))),
        ] {
            let found = accepted(&answer, &asked, &list(&["api"])).unwrap();
            assert_eq!(found.map(|(_, audiences)| audiences), expected, "{asked:?}");
        }
    }

    #[test]
    fn security_audiences_that_cannot_be_read_are_not_taken_for_none() {
        let own = ["api".to_owned()];
        for audiences in [json!("vault"), json!(["api", 1]), json!({"vault": true}), json!(7)] {
            let status = json!({"authenticated": true, "user": {"username": "ann"}, "audiences": audiences});
            let found = accepted(&json!({"status": status}), &own, &own);
            assert!(matches!(found, Err(TokenWebhookError::Audiences(_))), "{status}");
        }
        let status = json!({"authenticated": true, "user": {"username": "ann"}, "audiences": null});
        assert!(accepted(&json!({"status": status}), &own, &own).unwrap().is_some());
    }
}
