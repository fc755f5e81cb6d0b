//! ImagePolicyWebhook: a server elsewhere says which images may run.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use api::Status;
use api::sort::CompactCollect as _;
use k8s_openapi::api::core::v1::Pod;
use serde::Deserialize;
use serde_json::{Value, json};

use super::config::Setting;
use super::{Admitted, Attributes, Plugin, Verb, admitted, later};
use crate::cluster::Cluster;
use crate::expiring::Expiring;
use crate::remote::Remote;

const AUDIT: &str = "imagepolicywebhook.image-policy.k8s.io/";
/// Annotations of a pod that are passed on to the server.
const PASSED_ON: &str = ".image-policy.k8s.io/";
/// How long the other side may take, retries included.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

pub(super) struct ImagePolicyWebhook {
    remote: Remote,
    allow_life: Duration,
    deny_life: Duration,
    default_allow: bool,
    verdicts: Expiring<String, Verdict>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Verdict {
    allowed: bool,
    reason: String,
    audit_annotations: BTreeMap<String, String>,
}

impl Verdict {
    /// Of its texts.
    fn length(&self) -> usize {
        self.audit_annotations.iter().fold(self.reason.len(), |length, (key, value)| length + key.len() + value.len())
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct File {
    image_policy: Declared,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Declared {
    kube_config_file: PathBuf,
    #[serde(default, rename = "allowTTL")]
    allow_ttl: i64,
    #[serde(default, rename = "denyTTL")]
    deny_ttl: i64,
    #[serde(default)]
    default_allow: bool,
}

/// Seconds as configured: 0 is the default, -1 turns remembering off.
fn life(seconds: i64, default: Duration) -> anyhow::Result<Duration> {
    const LONGEST: i64 = 30 * 60;
    match seconds {
        -1 => Ok(Duration::ZERO),
        0 => Ok(default),
        1..=LONGEST => Ok(Duration::from_secs(seconds.unsigned_abs())),
        _ => anyhow::bail!("valid value is between 1s and 30m0s, got {seconds}s"),
    }
}

impl ImagePolicyWebhook {
    pub(super) fn new(setting: Setting) -> anyhow::Result<Self> {
        let setting = setting.ok_or_else(|| anyhow::anyhow!("no config specified"))?;
        let declared = serde_json::from_value::<File>(setting)?.image_policy;
        Ok(Self {
            remote: Remote::from_kubeconfig(&declared.kube_config_file)?,
            allow_life: life(declared.allow_ttl, Duration::from_secs(300))?,
            deny_life: life(declared.deny_ttl, Duration::from_secs(30))?,
            default_allow: declared.default_allow,
            verdicts: Expiring::new(),
        })
    }

    async fn ask(&self, attributes: &Attributes<'_>, review: Value) -> Result<(), Status> {
        let key = review["spec"].to_string();
        let verdict = match self.verdicts.get(&key) {
            Some(known) => known,
            None => {
                let answer = self.remote.ask(&review, REQUEST_TIMEOUT).await.map_err(|error| error.to_string());
                let verdict = answer.and_then(|answer| {
                    serde_json::from_value::<Verdict>(answer["status"].clone()).map_err(|error| error.to_string())
                });
                match verdict {
                    Ok(verdict) => {
                        let life = if verdict.allowed { self.allow_life } else { self.deny_life };
                        self.verdicts.remember(key, verdict.clone(), verdict.length(), life);
                        verdict
                    }
                    Err(problem) if self.default_allow => {
                        tracing::warn!(%problem, "image policy webhook failed; failing open");
                        attributes.annotate(format!("{AUDIT}failed-open"), "true");
                        return Ok(());
                    }
                    Err(problem) => return Err(attributes.forbidden(problem)),
                }
            }
        };
        for (key, value) in &verdict.audit_annotations {
            attributes.annotate(format!("{AUDIT}{key}"), value);
        }
        match (verdict.allowed, verdict.reason.as_str()) {
            (true, _) => Ok(()),
            (false, "") => Err(attributes.forbidden("one or more images rejected by webhook backend")),
            (false, reason) => {
                Err(attributes.forbidden(format!("image policy webhook backend denied one or more images: {reason}")))
            }
        }
    }
}

impl Plugin for ImagePolicyWebhook {
    fn validate<'a>(&'a self, _: &'a Arc<Cluster>, attributes: &'a Attributes<'_>) -> Admitted<'a> {
        let writes = matches!(attributes.verb, Verb::Create | Verb::Update) && attributes.is("", "pods");
        if !writes || !matches!(attributes.subresource, "" | "ephemeralcontainers") {
            return admitted();
        }
        let Some(pod) = attributes.object_ref::<Pod>() else { return admitted() };
        later(self.ask(attributes, review(attributes, pod)))
    }
}

fn review(attributes: &Attributes<'_>, pod: &Pod) -> Value {
    let image = |image: &Option<String>| json!({"image": image.as_deref().unwrap_or_default()});
    let containers: Vec<Value> = match &pod.spec {
        None => Vec::new(),
        Some(spec) if attributes.subresource.is_empty() => {
            spec.containers.iter().chain(spec.init_containers.iter().flatten()).map(|c| image(&c.image)).collect()
        }
        Some(spec) => spec.ephemeral_containers.iter().flatten().map(|c| image(&c.image)).collect(),
    };
    let annotations = pod.metadata.annotations.iter().flatten().filter(|(key, _)| key.contains(PASSED_ON));
    let annotations: BTreeMap<&String, &String> = annotations.compact_collect();
    json!({"kind": "ImageReview", "apiVersion": "imagepolicy.k8s.io/v1alpha1",
        "spec": {"containers": containers, "annotations": annotations, "namespace": attributes.namespace}})
}
