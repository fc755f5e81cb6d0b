//! Service account tokens for pods: asked for once, kept, and renewed before they end.

use std::collections::HashMap;

use client::{Client, Clock};
use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use parking_lot::Mutex;

use crate::state;

/// The server gave no token, and none that was kept is still good.
#[derive(Debug, thiserror::Error)]
#[error("failed to fetch token: {0}")]
pub(crate) struct TokenError(client::Error);

pub(crate) struct Tokens {
    clock: Clock,
    client: Client,
    /// By pod uid, account, audience and lifetime.
    cache: Mutex<HashMap<(String, String, String, i64), Cached>>,
}

#[derive(Clone)]
struct Cached {
    token: String,
    issued: Timestamp,
    expires: Timestamp,
}

/// Upstream renews after four fifths of the lifetime, and after a day at the latest.
const MAX_AGE_SECONDS: i64 = 24 * 3600;

fn needs_renewal(issued: Timestamp, expires: Timestamp, now: Timestamp) -> bool {
    let lifetime = expires.as_second() - issued.as_second();
    let age = now.as_second() - issued.as_second();
    age * 5 > lifetime * 4 || age > MAX_AGE_SECONDS
}

impl Tokens {
    pub(crate) fn new(client: Client, clock: Clock) -> Self {
        Tokens { clock, client, cache: Mutex::new(HashMap::new()) }
    }

    pub(crate) async fn get(
        &self,
        pod: &Pod,
        audience: Option<&str>,
        seconds: Option<i64>,
    ) -> Result<String, TokenError> {
        self.with_expiry(pod, audience, seconds).await.map(|(token, _)| token)
    }

    /// The token and when it ends.
    pub(crate) async fn with_expiry(
        &self,
        pod: &Pod,
        audience: Option<&str>,
        seconds: Option<i64>,
    ) -> Result<(String, Timestamp), TokenError> {
        let account =
            pod.spec.as_ref().and_then(|spec| spec.service_account_name.clone()).unwrap_or_else(|| "default".into());
        let audience = audience.unwrap_or_default();
        let seconds = seconds.unwrap_or(3600);
        let key = (state::uid(pod).to_string(), account.clone(), audience.to_string(), seconds);
        let cached = self.cache.lock().get(&key).cloned();
        let now = self.clock.now();
        if let Some(cached) = cached.as_ref().filter(|cached| !needs_renewal(cached.issued, cached.expires, now)) {
            return Ok((cached.token.clone(), cached.expires));
        }
        match self.request(pod, &account, audience, seconds).await {
            Ok((token, expires)) => {
                self.cache.lock().insert(key, Cached { token: token.clone(), issued: now, expires });
                Ok((token, expires))
            }
            // Renewal comes early so that a failure has time to pass.
            Err(error) => match cached.filter(|cached| cached.expires > now) {
                Some(cached) => {
                    tracing::warn!(pod = state::full_name(pod), %error, "token not renewed, the present one is kept");
                    Ok((cached.token, cached.expires))
                }
                None => Err(TokenError(error)),
            },
        }
    }

    async fn request(
        &self,
        pod: &Pod,
        account: &str,
        audience: &str,
        seconds: i64,
    ) -> Result<(String, Timestamp), client::Error> {
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                audiences: Some(if audience.is_empty() { vec![] } else { vec![audience.to_string()] }),
                expiration_seconds: Some(seconds),
                bound_object_ref: Some(BoundObjectReference {
                    api_version: Some("v1".into()),
                    kind: Some("Pod".into()),
                    name: Some(state::name(pod).into()),
                    uid: Some(state::uid(pod).into()),
                }),
            }),
            ..Default::default()
        };
        let answer: TokenRequest = self
            .client
            .namespaced::<ServiceAccount>(state::namespace(pod))
            .create_subresource(account, "token", &request)
            .await?;
        let status = answer.status.unwrap_or_default();
        let expires = status.expiration_timestamp.map_or_else(|| self.clock.now(), |time| time.0);
        Ok((status.token.unwrap_or_default(), expires))
    }

    /// When some token of the pod should be looked at again.
    pub(crate) fn forget(&self, uid: &str) {
        self.cache.lock().retain(|(owner, _, _, _), _| owner != uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renewal() {
        let at = |second| Timestamp::from_second(second).unwrap();
        for (lifetime, age, expected) in
            [(3600, 0, false), (3600, 2800, false), (3600, 2900, true), (1_000_000, 86_500, true)]
        {
            assert_eq!(needs_renewal(at(1000), at(1000 + lifetime), at(1000 + age)), expected, "{lifetime} {age}");
        }
    }
}
