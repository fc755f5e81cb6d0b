//! Credentials for registries, from the pull secrets of a pod.

use std::collections::HashMap;
use std::sync::Arc;

use api::sort::CompactSort as _;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cri::v1;
use k8s_openapi::api::core::v1::Secret;
use serde::{Deserialize, Serialize};

/// The registry host and repository of an image.
pub(super) fn registry_of(image: &str) -> (String, String) {
    match image.split_once('/') {
        Some((host, path)) if host.contains('.') || host.contains(':') || host == "localhost" => {
            (host.to_string(), path.to_string())
        }
        _ => ("index.docker.io".to_string(), image.to_string()),
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct DockerConfig {
    auths: HashMap<String, DockerAuth>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct DockerAuth {
    username: String,
    password: String,
    auth: String,
    identitytoken: String,
}

/// One way to sign in at a registry, and whose it is.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Credential {
    pub(super) auth: v1::AuthConfig,
    pub(super) source: Source,
}

/// The Secret a credential came from; the hash tells whether two Secrets say the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Source {
    pub(super) uid: String,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) credential_hash: String,
}

impl Source {
    fn of(secret: &Secret, server: &str, auth: &v1::AuthConfig) -> Self {
        let meta = &secret.metadata;
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        let parts = [auth.username.as_str(), &auth.password, &auth.identity_token, server];
        Source {
            uid: text(&meta.uid),
            namespace: text(&meta.namespace),
            name: text(&meta.name),
            credential_hash: super::hash(&parts.join("\0")),
        }
    }
}

/// Credentials in the pod's pull secrets that fit the image, the most specific first.
pub(super) fn matching(image: &str, secrets: &[Arc<Secret>]) -> Vec<Credential> {
    let (host, path) = registry_of(image);
    let full = format!("{host}/{path}");
    let mut found: Vec<(usize, Credential)> = Vec::new();
    for secret in secrets {
        let data = secret.data.as_ref();
        let auths: serde_json::Result<HashMap<String, DockerAuth>> =
            if let Some(json) = data.and_then(|data| data.get(".dockerconfigjson")) {
                serde_json::from_slice::<DockerConfig>(&json.0).map(|config| config.auths)
            } else if let Some(json) = data.and_then(|data| data.get(".dockercfg")) {
                serde_json::from_slice(&json.0)
            } else {
                continue;
            };
        let auths = match auths {
            Ok(auths) => auths,
            Err(error) => {
                tracing::warn!(secret = secret.metadata.name, %error, "pull secret not understood");
                continue;
            }
        };
        for (server, auth) in auths {
            let bare = server.trim_start_matches("https://").trim_start_matches("http://").trim_end_matches('/');
            let bare = bare.trim_end_matches("/v2").trim_end_matches("/v1");
            let bare = if bare == "docker.io" { "index.docker.io" } else { bare };
            if !matches_registry(bare, &host, &full) {
                continue;
            }
            let (mut username, mut password) = (auth.username, auth.password);
            if username.is_empty() && !auth.auth.is_empty() {
                let decoded = STANDARD.decode(auth.auth.trim()).ok().and_then(|bytes| String::from_utf8(bytes).ok());
                if let Some((user, pass)) = decoded.as_deref().and_then(|text| text.split_once(':')) {
                    (username, password) = (user.to_string(), pass.to_string());
                }
            }
            let auth = v1::AuthConfig { username, password, identity_token: auth.identitytoken, ..Default::default() };
            found.push((bare.len(), Credential { source: Source::of(secret, &server, &auth), auth }));
        }
    }
    found.compact_sort_by_key(|(specificity, _)| std::cmp::Reverse(*specificity));
    found.into_iter().map(|(_, credential)| credential).collect()
}

/// A key is a host, with `*` for a whole label, and may go on with a path.
fn matches_registry(key: &str, host: &str, full: &str) -> bool {
    let (key_host, key_path) = key.split_once('/').unwrap_or((key, ""));
    let host_matches = key_host.split('.').count() == host.split('.').count()
        && key_host.split('.').zip(host.split('.')).all(|(pattern, label)| match pattern.split_once('*') {
            Some((before, after)) => {
                label.starts_with(before) && label.ends_with(after) && label.len() >= before.len() + after.len()
            }
            None => pattern == label,
        });
    let path = full.split_once('/').map_or("", |(_, path)| path);
    host_matches
        && (key_path.is_empty()
            || path == key_path
            || path.starts_with(&format!("{key_path}/"))
            || path.starts_with(&format!("{key_path}:")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::ByteString;
    use std::collections::BTreeMap;

    #[test]
    fn credentials_match_hosts_and_paths() {
        let config = serde_json::json!({"auths": {
            "https://index.docker.io/v1/": {"auth": STANDARD.encode("hub:pw")},
            "registry.example.org": {"username": "any", "password": "pw"},
            "registry.example.org/team": {"username": "team", "password": "pw"},
            "*.wild.example.org": {"username": "wild", "password": "pw"},
        }});
        let secret = Arc::new(Secret {
            data: Some(BTreeMap::from([(
                ".dockerconfigjson".to_string(),
                ByteString(config.to_string().into_bytes()),
            )])),
            ..Default::default()
        });
        for (image, expected) in [
            ("nginx:latest", vec!["hub"]),
            ("registry.example.org/x:1", vec!["any"]),
            ("registry.example.org/team/x:1", vec!["team", "any"]),
            ("registry.example.org/teams/x:1", vec!["any"]),
            ("a.wild.example.org/x", vec!["wild"]),
            ("other.org/x", vec![]),
        ] {
            let users: Vec<String> =
                matching(image, std::slice::from_ref(&secret)).into_iter().map(|found| found.auth.username).collect();
            assert_eq!(users, expected, "{image}");
        }
    }
}
