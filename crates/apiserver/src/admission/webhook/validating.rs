//! ValidatingAdmissionWebhook: webhooks that may only refuse, all asked at once.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::Status;
use futures_util::future::join_all;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use serde_json::Value;

use super::super::config::Setting;
use super::super::versioned::{versioned_object, versioned_old};
use super::super::{Admitted, Attributes, Plugin, admitted, later};
use super::call::{self, Call, Refusal, call};
use super::matching::{Invocation, invocation};
use super::source::{Hook, Source};
use crate::cluster::Cluster;

pub(crate) struct ValidatingWebhook(Source);

impl ValidatingWebhook {
    pub(crate) fn new(setting: Setting) -> anyhow::Result<Self> {
        Ok(Self(Source::new(setting)?))
    }
}

impl Plugin for ValidatingWebhook {
    fn validate<'a>(&'a self, cluster: &'a Arc<Cluster>, attributes: &'a Attributes<'_>) -> Admitted<'a> {
        let hooks = match self.0.hooks::<ValidatingWebhookConfiguration>(cluster) {
            Ok(hooks) => hooks,
            Err(_) if super::is_exempt(attributes) => return admitted(),
            Err(unreadable) => return Err(unreadable.into()).into(),
        };
        if hooks.is_empty() || super::is_exempt(attributes) {
            return admitted();
        }
        later(async move { ask_all(cluster, &hooks, attributes).await })
    }
}

/// The object before and after, in one version.
struct Shown {
    object: Option<Value>,
    old: Option<Value>,
}

async fn ask_all(cluster: &Cluster, hooks: &[Hook], attributes: &Attributes<'_>) -> Result<(), Status> {
    let mut invocations = Vec::new();
    // Each version is made once, however many webhooks want it.
    let mut versions: BTreeMap<String, Shown> = BTreeMap::new();
    for hook in hooks {
        let Some(invocation) = invocation(cluster, hook, attributes).await? else { continue };
        let resource = invocation.equivalent.as_deref().unwrap_or(attributes.resource);
        let key = resource.api_version();
        if !versions.contains_key(&key) {
            let object = versioned_object(attributes, resource).await?;
            let old = versioned_old(attributes, resource).await?;
            versions.insert(key.clone(), Shown { object, old });
        }
        invocations.push((invocation, key));
    }
    let calls = invocations.iter().enumerate().map(|(index, (invocation, key))| {
        let shown = versions.get(key);
        ask(cluster, invocation, attributes, shown, index)
    });
    // All of them, so that the answer does not depend on which one is slow; the first refusal in order is shown.
    join_all(calls).await.into_iter().collect()
}

async fn ask(
    cluster: &Cluster,
    invocation: &Invocation<'_>,
    attributes: &Attributes<'_>,
    shown: Option<&Shown>,
    index: usize,
) -> Result<(), Status> {
    let hook = invocation.hook;
    let (object, old) = shown.map_or((None, None), |shown| (shown.object.as_ref(), shown.old.as_ref()));
    match call(Call { cluster, invocation, attributes, mutating: false, object, old }).await {
        Ok(_) => Ok(()),
        Err(Refusal::Denied(status)) => Err(status),
        Err(Refusal::Failed(problem)) if hook.ignores_failure => {
            tracing::warn!(webhook = hook.name, %problem, "failed calling webhook, failing open");
            let key = format!("failed-open.validating.webhook.admission.k8s.io/round_0_index_{index}");
            attributes.annotate(key, hook.name.as_str());
            Ok(())
        }
        Err(Refusal::Failed(problem)) => {
            tracing::warn!(webhook = hook.name, %problem, "failed calling webhook, failing closed");
            Err(Status::internal(call::failure(hook, &problem)))
        }
    }
}
