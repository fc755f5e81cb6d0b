//! Who calls the kubelet, and what they may do: certificates are checked here, tokens and
//! permissions by the API server.

use std::collections::HashMap;
use std::time::Duration;

use client::{Body, Client};
use http::{Method, Request, Response, StatusCode};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{Peer, text};
use crate::config::Settings;

/// Upstream's cache times for answers of the API server.
const TOKEN_TTL: Duration = Duration::from_secs(120);
const ALLOWED_TTL: Duration = Duration::from_secs(300);
const DENIED_TTL: Duration = Duration::from_secs(30);
/// A full cache is emptied: answers are only asked for again.
const CACHE_LIMIT: usize = 1024;

/// Who, with which verb, on which subresource.
type Access = (String, &'static str, String);

pub(super) struct Auth {
    client: Client,
    token_webhook: bool,
    anonymous: bool,
    authorization_webhook: bool,
    tokens: Mutex<HashMap<String, (Instant, Option<api::UserInfo>)>>,
    access: Mutex<HashMap<Access, (Instant, bool)>>,
}

impl Auth {
    pub(super) fn new(client: Client, settings: &Settings) -> Self {
        Auth {
            client,
            token_webhook: settings.token_webhook,
            anonymous: settings.anonymous_auth,
            authorization_webhook: settings.authorization_webhook,
            tokens: Mutex::default(),
            access: Mutex::default(),
        }
    }

    /// Lets a request pass, or answers it.
    pub(super) async fn check<B>(&self, request: &Request<B>, node: &str) -> Result<(), Response<Body>> {
        let Some(user) = self.user(request).await? else {
            return Err(text(StatusCode::UNAUTHORIZED, "Unauthorized"));
        };
        if !self.authorization_webhook {
            return Ok(());
        }
        let verb = match *request.method() {
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE => "delete",
            _ => "get",
        };
        let wanted = subresources(request.uri().path());
        for subresource in &wanted {
            match self.may(&user, verb, subresource, node).await {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => {
                    let message = format!(
                        "Authorization error (user={}, verb={verb}, resource=nodes, subresource={wanted:?}): {error}",
                        user.name
                    );
                    return Err(text(StatusCode::INTERNAL_SERVER_ERROR, message));
                }
            }
        }
        let message = format!(
            "Forbidden (user={}, verb={verb}, resource=nodes, subresource(s)=[{}])",
            user.name,
            wanted.join(" ")
        );
        Err(text(StatusCode::FORBIDDEN, message))
    }

    async fn user<B>(&self, request: &Request<B>) -> Result<Option<api::UserInfo>, Response<Body>> {
        if let Some(user) = request.extensions().get::<Peer>().and_then(|peer| peer.0.clone()) {
            return Ok(Some(user));
        }
        let token = request
            .headers()
            .get("authorization")
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.strip_prefix("Bearer "))
            .map(|token| token.trim().to_string())
            .filter(|token| !token.is_empty());
        if let Some(token) = token {
            if !self.token_webhook {
                return Ok(None);
            }
            return self
                .review(token)
                .await
                .map_err(|error| text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()));
        }
        Ok(self.anonymous.then(|| api::UserInfo {
            name: "system:anonymous".into(),
            groups: vec!["system:unauthenticated".into()],
            ..Default::default()
        }))
    }

    async fn review(&self, token: String) -> Result<Option<api::UserInfo>, client::Error> {
        if let Some((at, user)) = self.tokens.lock().get(&token)
            && at.elapsed() < TOKEN_TTL
        {
            return Ok(user.clone());
        }
        let review =
            TokenReview { spec: TokenReviewSpec { token: token.clone(), ..Default::default() }, ..Default::default() };
        let status = self.client.all::<TokenReview>().create(&review).await?.status.unwrap_or_default();
        let user = status.user.filter(|_| status.authenticated == Some(true)).map(|user| api::UserInfo {
            name: user.username.unwrap_or_default(),
            uid: user.uid.unwrap_or_default(),
            groups: user.groups.unwrap_or_default(),
            extra: user.extra.unwrap_or_default(),
        });
        let mut tokens = self.tokens.lock();
        if tokens.len() >= CACHE_LIMIT {
            tokens.clear();
        }
        tokens.insert(token, (Instant::now(), user.clone()));
        Ok(user)
    }

    async fn may(
        &self,
        user: &api::UserInfo,
        verb: &'static str,
        subresource: &str,
        node: &str,
    ) -> Result<bool, client::Error> {
        let key = (format!("{}\0{}\0{}", user.name, user.uid, user.groups.join("\0")), verb, subresource.to_string());
        if let Some((at, allowed)) = self.access.lock().get(&key)
            && at.elapsed() < if *allowed { ALLOWED_TTL } else { DENIED_TTL }
        {
            return Ok(*allowed);
        }
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(user.name.clone()),
                uid: (!user.uid.is_empty()).then(|| user.uid.clone()),
                groups: Some(user.groups.clone()),
                extra: (!user.extra.is_empty()).then(|| user.extra.clone()),
                resource_attributes: Some(ResourceAttributes {
                    verb: Some(verb.into()),
                    group: Some(String::new()),
                    version: Some("v1".into()),
                    resource: Some("nodes".into()),
                    subresource: Some(subresource.into()),
                    name: Some(node.into()),
                    ..Default::default()
                }),
                ..Default::default()
            },
            ..Default::default()
        };
        let answer = self.client.all::<SubjectAccessReview>().create(&review).await?;
        let allowed = answer.status.is_some_and(|status| status.allowed);
        let mut access = self.access.lock();
        if access.len() >= CACHE_LIMIT {
            access.clear();
        }
        access.insert(key, (Instant::now(), allowed));
        Ok(allowed)
    }
}

/// Permissions any one of which opens a path, the finest first.
fn subresources(path: &str) -> Vec<&'static str> {
    let first = path.trim_matches('/').split('/').next().unwrap_or_default();
    match first {
        "stats" => vec!["stats"],
        "metrics" => vec!["metrics"],
        "logs" => vec!["log"],
        "checkpoint" => vec!["checkpoint"],
        "healthz" => vec!["healthz", "proxy"],
        "configz" => vec!["configz", "proxy"],
        "pods" | "runningpods" => vec!["pods", "proxy"],
        _ => vec!["proxy"],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_need_permissions() {
        for (path, expected) in [
            ("/stats/summary", vec!["stats"]),
            ("/metrics/resource", vec!["metrics"]),
            ("/pods", vec!["pods", "proxy"]),
            ("/exec/ns/pod/c", vec!["proxy"]),
            ("/", vec!["proxy"]),
        ] {
            assert_eq!(subresources(path), expected, "{path}");
        }
    }
}
