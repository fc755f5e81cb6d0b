//! Who calls the kubelet, and what they may do: certificates are checked here, tokens and
//! permissions by the API server.

use client::review::{self, Access, Reviews};
use client::{Body, Client};
use http::{Method, Request, Response, StatusCode};

use super::{Peer, text};
use crate::config::Settings;

pub(super) struct Auth {
    reviews: Reviews,
    token_webhook: bool,
    anonymous: bool,
    authorization_webhook: bool,
}

impl Auth {
    pub(super) fn new(client: Client, settings: &Settings) -> Self {
        Auth {
            reviews: Reviews::new(client),
            token_webhook: settings.token_webhook,
            anonymous: settings.anonymous_auth,
            authorization_webhook: settings.authorization_webhook,
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
        let verb = verb(request.method(), request.uri().path());
        let wanted = subresources(request.uri().path());
        for subresource in wanted.iter().copied() {
            match self.reviews.allows(&user, &Access::Node { verb, name: node.into(), subresource }).await {
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
        match review::bearer_token(request.headers()) {
            Some(_) if !self.token_webhook => Ok(None),
            Some(token) => {
                let user = self.reviews.user(&token).await;
                user.map_err(|error| text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
            }
            None => Ok(self.anonymous.then(api::UserInfo::anonymous)),
        }
    }
}

fn first_part(path: &str) -> &str {
    path.trim_matches('/').split('/').next().unwrap_or_default()
}

/// What a request wants to do. A WebSocket begins with GET whatever it is for: commands in containers and ways to their ports
/// are not there for whoever may read. Upstream's kubelet goes by the method alone.
fn verb(method: &Method, path: &str) -> &'static str {
    match (first_part(path), method) {
        ("exec" | "attach" | "portForward" | "run", _) | (_, &Method::POST) => "create",
        (_, &Method::PUT) => "update",
        (_, &Method::PATCH) => "patch",
        (_, &Method::DELETE) => "delete",
        _ => "get",
    }
}

/// Permissions any one of which opens a path, the finest first.
fn subresources(path: &str) -> Vec<&'static str> {
    match first_part(path) {
        "stats" => vec!["stats"],
        "metrics" => vec!["metrics"],
        "logs" => vec!["log"],
        "checkpoint" => vec!["checkpoint"],
        "healthz" => vec!["healthz", "proxy"],
        "configz" => vec!["configz", "proxy"],
        "statusz" => vec!["statusz", "proxy"],
        "pods" | "runningpods" => vec!["pods", "proxy"],
        _ => vec!["proxy"],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn security_streams_of_the_kubelet_take_more_than_the_right_to_read() {
        for (method, path, expected) in [
            (Method::GET, "/exec/ns/pod/c?command=sh", "create"),
            (Method::GET, "//attach/ns/pod/c", "create"),
            (Method::GET, "/portForward/ns/pod", "create"),
            (Method::POST, "/exec/ns/pod/c", "create"),
            (Method::PUT, "/run/ns/pod/c", "create"),
            (Method::GET, "/pods", "get"),
            (Method::HEAD, "/containerLogs/ns/pod/c", "get"),
            (Method::DELETE, "/metrics", "delete"),
        ] {
            assert_eq!(verb(&method, path), expected, "{method} {path}");
        }
    }

    #[test]
    fn paths_need_permissions() {
        for (path, expected) in [
            ("/stats/summary", vec!["stats"]),
            ("/metrics/resource", vec!["metrics"]),
            ("/pods", vec!["pods", "proxy"]),
            ("/metrics/slis", vec!["metrics"]),
            ("/statusz", vec!["statusz", "proxy"]),
            ("/flagz", vec!["proxy"]),
            ("/exec/ns/pod/c", vec!["proxy"]),
            ("/", vec!["proxy"]),
        ] {
            assert_eq!(subresources(path), expected, "{path}");
        }
    }
}
