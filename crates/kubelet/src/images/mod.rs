//! Getting images: pull policy, credentials from pull secrets, back-off after failures.
//!
//! An image that was pulled with a pod's secret is not there for others (`pulled`): they pull again with their own.

mod credentials;
mod pulled;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use api::image::{BadReference, Reference};
use client::{EventRecorder, Limit};
use cri::v1;
use k8s_openapi::api::core::v1::{ObjectReference, Secret};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use trace::{Stage, Work};

use crate::backoff::Backoff;
use crate::config::Settings;
use crate::runtime::{CallError, Runtime};
use crate::state;
use crate::status::Waiting;
use credentials::{Credential, Source};
use pulled::{Known, Pulled};

pub(crate) struct Images {
    runtime: Runtime,
    backoff: Backoff,
    /// Why the last pull failed, by the same keys: told again while backing off.
    failures: Mutex<HashMap<String, String>>,
    recorder: EventRecorder,
    pulled: Pulled,
    /// One at a time unless configured otherwise, so that pulls do not starve each other.
    permits: Arc<Semaphore>,
    /// How often one may begin; none: whenever there is a permit.
    rate: Option<Limit>,
}

/// Why an image was not pulled.
#[derive(Debug, thiserror::Error)]
enum PullError {
    /// More often than `registryPullQPS` allows.
    #[error("pull QPS exceeded")]
    TooOften,
    #[error(transparent)]
    Runtime(#[from] CallError),
}

/// An image that a container, or a volume of one, needs.
pub(crate) struct Wanted<'a> {
    pub(crate) pod_uid: &'a str,
    /// The container, for events.
    pub(crate) reference: &'a ObjectReference,
    pub(crate) image: &'a str,
    pub(crate) policy: Option<&'a str>,
    pub(crate) secrets: &'a [Arc<Secret>],
    pub(crate) sandbox_config: Option<v1::PodSandboxConfig>,
}

impl Images {
    pub(crate) fn new(runtime: Runtime, recorder: EventRecorder, settings: &Settings) -> Self {
        let parallel = if settings.serialize_image_pulls { 1 } else { settings.max_parallel_image_pulls };
        Images {
            runtime,
            recorder,
            backoff: Backoff::new(Duration::from_secs(10), Duration::from_secs(300)),
            failures: Mutex::default(),
            pulled: Pulled::new(&settings.root_dir),
            permits: Arc::new(Semaphore::new(parallel.max(1))),
            rate: settings.pull_rate.and_then(|(qps, burst)| Limit::new(qps, burst)),
        }
    }

    /// Makes the image present as the policy asks. Returns what the runtime calls it.
    pub(crate) async fn ensure(&self, wanted: Wanted<'_>) -> Result<String, Waiting> {
        let Wanted { reference, image, .. } = wanted;
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let pod = format!("pods/{}/{}", text(&reference.namespace), text(&reference.name));
        let mut work = Work::begin(Stage::Pull, state::ACTOR, pod).with_detail(image).announce();
        let result = work.run(Box::pin(self.ensure_as(wanted))).await;
        match &result {
            Ok(_) => work.end(),
            Err(waiting) => work.fail(format_args!("{image}: {}", waiting.message)),
        }
        if let Err(waiting) = &result {
            self.recorder.warning(reference, "Failed", format!("Error: {}", waiting.reason));
        }
        result
    }

    async fn ensure_as(&self, wanted: Wanted<'_>) -> Result<String, Waiting> {
        let Wanted { pod_uid, reference, image, policy, secrets, sandbox_config } = wanted;
        let name = with_default_tag(image).map_err(|why| {
            let message =
                format!("Failed to apply default image tag \"{image}\": couldn't parse image name \"{image}\": {why}");
            self.recorder.warning(reference, "InspectFailed", message.clone());
            Waiting { reason: "InvalidImageName", message }
        })?;
        // The API server has defaulted it; static pods come without.
        let policy = policy.unwrap_or_else(|| api::image::pull_policy(&name));
        let credentials = credentials::matching(&name, secrets);
        if policy != "Always" {
            let present = self.runtime.image_status(&name).await.map_err(|error| {
                let message = format!("Failed to inspect image \"\": {error}");
                self.recorder.warning(reference, "InspectFailed", message.clone());
                Waiting { reason: "ImageInspectError", message }
            })?;
            let may_use = |present: &v1::Image| {
                let names = [present.repo_tags.as_slice(), &present.repo_digests].concat();
                self.pulled.may_use(&name, &present.id, &names, &credentials)
            };
            if let Some(present) = present.filter(may_use) {
                let message =
                    format!("Container image \"{image}\" already present on machine and can be accessed by the pod");
                self.recorder.normal(reference, "Pulled", message);
                return Ok(present.id);
            }
            if policy == "Never" {
                let message = format!("Container image \"{image}\" is not present with pull policy of Never");
                self.recorder.warning(reference, "ErrImageNeverPull", message.clone());
                return Err(Waiting { reason: "ErrImageNeverPull", message });
            }
        }
        let key = format!("{pod_uid}_{image}");
        if self.backoff.remaining_since_update(&key).is_some() {
            let mut message = format!("Back-off pulling image \"{image}\"");
            self.recorder.normal(reference, "BackOff", message.clone());
            if let Some(failure) = self.failures.lock().get(&key) {
                message = format!("{message}: {failure}");
            }
            return Err(Waiting { reason: "ImagePullBackOff", message });
        }
        self.failures.lock().remove(&key);
        self.recorder.normal(reference, "Pulling", format!("Pulling image \"{image}\""));
        let asked = Instant::now();
        // The semaphore is never closed, so this only waits.
        let _permit = self.permits.acquire().await;
        let started = Instant::now();
        if let Err(error) = self.pulled.begin(&name) {
            let message = format!("Failed to record image pull intent for image {name}: {error}");
            self.recorder.warning(reference, "Failed", message.clone());
            self.backoff.next(&key);
            self.failures.lock().insert(key, format!("ErrImagePull: {message}"));
            return Err(Waiting { reason: "ErrImagePull", message });
        }
        let outcome = self.pull(&name, credentials, sandbox_config).await;
        let used = outcome.as_ref().ok().map(|(id, source)| (id.as_str(), source.as_ref()));
        self.pulled.end(&name, used);
        match outcome {
            Ok((id, _)) => {
                let size = self.runtime.image_status(&name).await.ok().flatten().map_or(0, |image| image.size);
                self.recorder.normal(
                    reference,
                    "Pulled",
                    format!(
                        "Successfully pulled image \"{image}\" in {} ({} including waiting). Image size: {size} bytes.",
                        rounded(started.elapsed()),
                        rounded(asked.elapsed()),
                    ),
                );
                self.backoff.forget(&key);
                Ok(id)
            }
            Err(error) => {
                self.recorder.warning(reference, "Failed", format!("Failed to pull image \"{image}\": {error}"));
                self.backoff.next(&key);
                let waiting = failed_pull(image, &error);
                self.failures.lock().insert(key, format!("{}: {}", waiting.reason, waiting.message));
                Err(waiting)
            }
        }
    }

    /// Until when the pull of an image is held back.
    pub(crate) fn retry_in(&self, pod_uid: &str, image: &str) -> Option<Duration> {
        self.backoff.remaining_since_update(&format!("{pod_uid}_{image}"))
    }

    pub(crate) fn forget(&self, pod_uid: &str) {
        let prefix = format!("{pod_uid}_");
        self.backoff.forget_prefix(&prefix);
        self.failures.lock().retain(|key, _| !key.starts_with(&prefix));
    }

    /// What is known of an image that is going to be removed.
    pub(crate) fn known(&self, id: &str) -> Known {
        self.pulled.known(id)
    }

    /// The runtime has removed an image: who may use it is moot, unless it was pulled again meanwhile.
    pub(crate) fn removed(&self, id: &str, before: Known) {
        self.pulled.removed(id, before);
    }

    /// Tries every credential that fits the registry; without any, as nobody. Returns the one that opened.
    async fn pull(
        &self,
        name: &str,
        credentials: Vec<Credential>,
        sandbox_config: Option<v1::PodSandboxConfig>,
    ) -> Result<(String, Option<Source>), PullError> {
        if self.rate.as_ref().is_some_and(|rate| !rate.try_turn()) {
            return Err(PullError::TooOften);
        }
        let mut last = None;
        for credential in credentials {
            match self.runtime.pull_image(name, Some(credential.auth), sandbox_config.clone()).await {
                Ok(id) => return Ok((id, Some(credential.source))),
                Err(error) => last = Some(error),
            }
        }
        match last {
            Some(error) => Err(error.into()),
            None => Ok((self.runtime.pull_image(name, None, sandbox_config).await?, None)),
        }
    }
}

/// How a failed pull is told; runtimes name two failures by the start of their message.
fn failed_pull(image: &str, error: &PullError) -> Waiting {
    let message = match error {
        PullError::Runtime(error) => error.0.message(),
        PullError::TooOften => "",
    };
    for (reason, what) in [
        ("RegistryUnavailable", "the registry is unavailable"),
        ("SignatureValidationFailed", "the signature validation failed"),
    ] {
        if let Some(rest) = message.strip_prefix(reason) {
            return Waiting { reason, message: format!("image pull failed for {image} because {what}{rest}") };
        }
    }
    Waiting { reason: "ErrImagePull", message: error.to_string() }
}

/// SHA-256 in hexadecimal digits.
fn hash(text: &str) -> String {
    api::hex::encode(Sha256::digest(text.as_bytes()))
}

/// To the millisecond, as events show it.
fn rounded(duration: Duration) -> String {
    api::duration::format(Duration::from_millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)))
}

/// Adds `:latest` where neither tag nor digest is given; a short name stays short (`applyDefaultImageTag`, v1.36).
fn with_default_tag(image: &str) -> Result<String, BadReference> {
    image.parse::<Reference>()?;
    let has_neither = api::image::repository(image) == image;
    Ok(if has_neither { format!("{image}:latest") } else { image.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_pulls_have_upstreams_words() {
        let runtime = |message: &str| PullError::Runtime(CallError(cri::tonic::Status::unknown(message)));
        for (error, reason, message) in [
            (PullError::TooOften, "ErrImagePull", "pull QPS exceeded"),
            (runtime("gone"), "ErrImagePull", "rpc error: code = Unknown desc = gone"),
            (
                runtime("RegistryUnavailable: late"),
                "RegistryUnavailable",
                "image pull failed for a because the registry is unavailable: late",
            ),
        ] {
            let waiting = failed_pull("a", &error);
            assert_eq!((waiting.reason, waiting.message.as_str()), (reason, message));
        }
    }

    #[test]
    fn tags() {
        let digest = format!("nginx@sha256:{}", "a".repeat(64));
        for (image, expected) in [
            ("nginx", Some("nginx:latest")),
            ("nginx:1.27", Some("nginx:1.27")),
            ("localhost:5000/nginx", Some("localhost:5000/nginx:latest")),
            ("localhost:5000/a/b:x", Some("localhost:5000/a/b:x")),
            (digest.as_str(), Some(digest.as_str())),
            ("nginx@sha256:abcd", None),
            ("Nginx", None),
            ("", None),
            ("nginx:", None),
            ("a//b", None),
            ("invalid..Image!", None),
        ] {
            assert_eq!(with_default_tag(image).ok().as_deref(), expected, "{image}");
        }
    }
}
