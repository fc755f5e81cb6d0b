//! Getting images: pull policy, credentials from pull secrets, back-off after failures.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use client::EventRecorder;
use cri::v1;
use k8s_openapi::api::core::v1::{ObjectReference, Secret};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::runtime::Runtime;
use crate::status::Waiting;

pub(crate) struct Images {
    runtime: Runtime,
    backoff: Backoff,
    recorder: EventRecorder,
    /// One at a time unless configured otherwise, so that pulls do not starve each other.
    permits: Arc<Semaphore>,
}

impl Images {
    pub(crate) fn new(runtime: Runtime, recorder: EventRecorder, parallel: usize) -> Self {
        Images {
            runtime,
            recorder,
            backoff: Backoff::new(Duration::from_secs(10), Duration::from_secs(300)),
            permits: Arc::new(Semaphore::new(parallel.max(1))),
        }
    }

    /// Makes the image present as the policy asks. Returns what the runtime calls it.
    pub(crate) async fn ensure(
        &self,
        pod_uid: &str,
        reference: &ObjectReference,
        image: &str,
        policy: Option<&str>,
        secrets: &[Arc<Secret>],
        sandbox_config: Option<v1::PodSandboxConfig>,
    ) -> Result<String, Waiting> {
        let name = with_default_tag(image).map_err(|why| {
            let message =
                format!("Failed to apply default image tag \"{image}\": couldn't parse image name \"{image}\": {why}");
            self.recorder.warning(reference, "InspectFailed", message.clone());
            Waiting { reason: "InvalidImageName", message }
        })?;
        let policy = policy.unwrap_or_else(|| default_policy(&name));
        let present = self.runtime.image_status(&name).await.map_err(|error| {
            let message = format!("Failed to inspect image \"{name}\": {error}");
            self.recorder.warning(reference, "InspectFailed", message.clone());
            Waiting { reason: "ImageInspectError", message }
        })?;
        if let Some(present) = present.filter(|_| policy != "Always") {
            self.recorder.normal(reference, "Pulled", format!("Container image \"{name}\" already present on machine"));
            return Ok(present.id);
        }
        if policy == "Never" {
            let message = format!("Container image \"{name}\" is not present with pull policy of Never");
            self.recorder.warning(reference, "ErrImageNeverPull", message.clone());
            return Err(Waiting { reason: "ErrImageNeverPull", message });
        }
        let key = format!("{pod_uid}_{name}");
        if self.backoff.remaining_since_update(&key).is_some() {
            let message = format!("Back-off pulling image \"{name}\"");
            self.recorder.normal(reference, "BackOff", message.clone());
            return Err(Waiting { reason: "ImagePullBackOff", message });
        }
        self.recorder.normal(reference, "Pulling", format!("Pulling image \"{name}\""));
        let asked = Instant::now();
        // The semaphore is never closed, so this only waits.
        let _permit = self.permits.acquire().await;
        let started = Instant::now();
        match self.pull(&name, secrets, sandbox_config).await {
            Ok(id) => {
                let size = self.runtime.image_status(&name).await.ok().flatten().map_or(0, |image| image.size);
                self.recorder.normal(
                    reference,
                    "Pulled",
                    format!(
                        "Successfully pulled image \"{name}\" in {} ({} including waiting). Image size: {size} bytes.",
                        go_duration(started.elapsed()),
                        go_duration(asked.elapsed()),
                    ),
                );
                self.backoff.forget(&key);
                Ok(id)
            }
            Err(error) => {
                let message = format!("Failed to pull image \"{name}\": {error}");
                self.recorder.warning(reference, "Failed", message.clone());
                self.recorder.warning(reference, "Failed", "Error: ErrImagePull");
                self.backoff.next(&key);
                Err(Waiting { reason: "ErrImagePull", message: error.to_string() })
            }
        }
    }

    /// Until when the pull of an image is held back.
    pub(crate) fn retry_in(&self, pod_uid: &str, image: &str) -> Option<Duration> {
        let name = with_default_tag(image).ok()?;
        self.backoff.remaining_since_update(&format!("{pod_uid}_{name}"))
    }

    pub(crate) fn forget(&self, pod_uid: &str) {
        self.backoff.forget_prefix(&format!("{pod_uid}_"));
    }

    /// Tries every credential that fits the registry, then none.
    async fn pull(
        &self,
        name: &str,
        secrets: &[Arc<Secret>],
        sandbox_config: Option<v1::PodSandboxConfig>,
    ) -> crate::runtime::Result<String> {
        let mut candidates = credentials(name, secrets);
        let mut last = None;
        if candidates.is_empty() {
            return self.runtime.pull_image(name, None, sandbox_config).await;
        }
        for auth in candidates.drain(..) {
            match self.runtime.pull_image(name, Some(auth), sandbox_config.clone()).await {
                Ok(id) => return Ok(id),
                Err(error) => last = Some(error),
            }
        }
        match last {
            Some(error) => Err(error),
            None => self.runtime.pull_image(name, None, sandbox_config).await,
        }
    }
}

/// `IfNotPresent`, but `Always` for what may move: no tag or `latest`. The API server has defaulted
/// this; static pods come without.
fn default_policy(name: &str) -> &'static str {
    if name.ends_with(":latest") { "Always" } else { "IfNotPresent" }
}

/// Go's way to print a duration, as events show it.
fn go_duration(duration: Duration) -> String {
    if duration < Duration::from_secs(1) {
        return format!("{}ms", duration.as_millis());
    }
    let seconds = duration.as_secs();
    let millis = duration.subsec_millis();
    if seconds < 60 {
        return format!("{seconds}.{millis:03}s");
    }
    format!("{}m{}.{millis:03}s", seconds / 60, seconds % 60)
}

/// Adds `:latest` where neither tag nor digest is given. Refuses what is no image name.
pub(crate) fn with_default_tag(image: &str) -> Result<String, &'static str> {
    let (rest, has_digest) = match image.split_once('@') {
        Some((rest, digest)) => {
            if !digest.contains(':') {
                return Err("invalid reference format");
            }
            (rest, true)
        }
        None => (image, false),
    };
    let last = rest.rsplit('/').next().unwrap_or_default();
    let tag = last.split_once(':').map(|(_, tag)| tag);
    let path = match tag {
        Some(tag) => &rest[..rest.len() - tag.len() - 1],
        None => rest,
    };
    let (host, path) = match path.split_once('/') {
        Some((host, path)) if host.contains('.') || host.contains(':') || host == "localhost" => (Some(host), path),
        _ => (None, path),
    };
    if path.is_empty() || host == Some("") {
        return Err("invalid reference format");
    }
    if path.chars().any(|c| c.is_ascii_uppercase()) {
        return Err("invalid reference format: repository name (library) must be lowercase");
    }
    let is_name = |part: &str| {
        !part.is_empty()
            && part.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))
            && part.starts_with(|c: char| c.is_ascii_alphanumeric())
            && part.ends_with(|c: char| c.is_ascii_alphanumeric())
    };
    if !path.split('/').all(is_name) {
        return Err("invalid reference format");
    }
    if tag.is_some_and(|tag| {
        tag.is_empty()
            || tag.len() > 128
            || !tag.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))
    }) {
        return Err("invalid reference format");
    }
    if tag.is_some() || has_digest { Ok(image.to_string()) } else { Ok(format!("{image}:latest")) }
}

/// The registry host and repository of an image.
fn registry_of(image: &str) -> (String, String) {
    match image.split_once('/') {
        Some((host, path)) if host.contains('.') || host.contains(':') || host == "localhost" => {
            (host.to_string(), path.to_string())
        }
        _ => ("index.docker.io".to_string(), image.to_string()),
    }
}

#[derive(serde::Deserialize, Default)]
#[serde(default)]
struct DockerConfig {
    auths: HashMap<String, DockerAuth>,
}

#[derive(serde::Deserialize, Default)]
#[serde(default)]
struct DockerAuth {
    username: String,
    password: String,
    auth: String,
    identitytoken: String,
}

/// Credentials in the pod's pull secrets that fit the image, the most specific first.
fn credentials(image: &str, secrets: &[Arc<Secret>]) -> Vec<v1::AuthConfig> {
    let (host, path) = registry_of(image);
    let full = format!("{host}/{path}");
    let mut found: Vec<(usize, v1::AuthConfig)> = Vec::new();
    for secret in secrets {
        let data = secret.data.as_ref();
        let auths: HashMap<String, DockerAuth> = if let Some(json) = data.and_then(|data| data.get(".dockerconfigjson"))
        {
            serde_json::from_slice::<DockerConfig>(&json.0).map(|config| config.auths).unwrap_or_default()
        } else if let Some(json) = data.and_then(|data| data.get(".dockercfg")) {
            serde_json::from_slice(&json.0).unwrap_or_default()
        } else {
            continue;
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
            found.push((
                bare.len(),
                v1::AuthConfig {
                    username,
                    password,
                    identity_token: auth.identitytoken,
                    server_address: server,
                    ..Default::default()
                },
            ));
        }
    }
    found.sort_by_key(|(specificity, _)| std::cmp::Reverse(*specificity));
    found.into_iter().map(|(_, auth)| auth).collect()
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
    fn tags() {
        for (image, expected) in [
            ("nginx", Some("nginx:latest")),
            ("nginx:1.27", Some("nginx:1.27")),
            ("localhost:5000/nginx", Some("localhost:5000/nginx:latest")),
            ("localhost:5000/a/b:x", Some("localhost:5000/a/b:x")),
            ("nginx@sha256:abcd", Some("nginx@sha256:abcd")),
            ("Nginx", None),
            ("", None),
            ("nginx:", None),
            ("a//b", None),
            ("invalid..Image!", None),
        ] {
            assert_eq!(with_default_tag(image).ok().as_deref(), expected, "{image}");
        }
    }

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
                credentials(image, std::slice::from_ref(&secret)).into_iter().map(|auth| auth.username).collect();
            assert_eq!(users, expected, "{image}");
        }
    }

    #[test]
    fn durations_look_like_go() {
        for (millis, expected) in [(5, "5ms"), (1234, "1.234s"), (61_500, "1m1.500s")] {
            assert_eq!(go_duration(Duration::from_millis(millis)), expected);
        }
    }
}
