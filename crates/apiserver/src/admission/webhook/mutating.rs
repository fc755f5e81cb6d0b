//! MutatingAdmissionWebhook: webhooks that may change the object, one after the other in the order of their names.

use std::sync::Arc;

use api::Status;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use serde_json::{Value, json};

use super::super::config::Setting;
use super::super::reinvocation::Callees;
use super::super::versioned::{stored, versioned_object, versioned_old};
use super::super::{Admitted, Attributes, Plugin, admitted, later};
use super::call::{self, Call, Refusal, call};
use super::matching::{Invocation, invocation};
use super::source::{Hook, Source};
use crate::cluster::Cluster;

/// Where an object has its managed fields.
const BOOKS: &str = "/metadata/managedFields";

pub(crate) struct MutatingWebhook(Source);

impl MutatingWebhook {
    pub(crate) fn new(setting: Setting) -> anyhow::Result<Self> {
        Ok(Self(Source::new(setting)?))
    }
}

impl Plugin for MutatingWebhook {
    fn admit<'a>(&'a self, cluster: &'a Arc<Cluster>, attributes: &'a mut Attributes<'_>) -> Admitted<'a> {
        let hooks = match self.0.hooks::<MutatingWebhookConfiguration>(cluster) {
            Ok(hooks) => hooks,
            Err(_) if super::is_exempt(attributes) => return admitted(),
            Err(unreadable) => return Err(unreadable.into()).into(),
        };
        if hooks.is_empty() || super::is_exempt(attributes) {
            return admitted();
        }
        later(async move {
            attributes.reinvocation.enter(Callees::Webhooks, attributes.object.as_deref());
            let outcome = ask_all(cluster, &hooks, attributes).await;
            attributes.reinvocation.leave(Callees::Webhooks, attributes.object.as_deref());
            outcome
        })
    }
}

async fn ask_all(cluster: &Cluster, hooks: &[Hook], attributes: &mut Attributes<'_>) -> Result<(), Status> {
    for (index, hook) in hooks.iter().enumerate() {
        let Some(invocation) = invocation(cluster, hook, attributes).await? else { continue };
        if !attributes.reinvocation.may_call(Callees::Webhooks, &hook.uid) {
            continue;
        }
        let round = u8::from(attributes.reinvocation.is_second_round());
        let place = format!("round_{round}_index_{index}");
        let outcome = ask(cluster, &invocation, attributes, &place).await;
        let changed = matches!(outcome, Ok(true));
        let mutation = json!({"configuration": hook.configuration, "webhook": hook.name, "mutated": changed});
        attributes.annotate(format!("mutation.webhook.admission.k8s.io/{place}"), mutation.to_string());
        attributes.reinvocation.called(Callees::Webhooks, &hook.uid, changed, hook.if_needed);
        match outcome {
            Ok(_) => {}
            Err(Refusal::Denied(status)) => return Err(status),
            Err(Refusal::Failed(problem)) if hook.ignores_failure => {
                tracing::warn!(webhook = hook.name, %problem, "failed calling webhook, failing open");
                let key = format!("failed-open.mutation.webhook.admission.k8s.io/{place}");
                attributes.annotate(key, hook.name.as_str());
            }
            Err(Refusal::Failed(problem)) => {
                tracing::warn!(webhook = hook.name, %problem, "failed calling webhook, failing closed");
                return Err(Status::internal(call::failure(hook, &problem)));
            }
        }
    }
    Ok(())
}

/// Asks one webhook and applies its patch. Returns whether the object changed.
async fn ask(
    cluster: &Cluster,
    invocation: &Invocation<'_>,
    attributes: &mut Attributes<'_>,
    place: &str,
) -> Result<bool, Refusal> {
    let resource = invocation.equivalent.clone();
    let resource = resource.as_deref().unwrap_or(attributes.resource);
    let mut object = versioned_object(attributes, resource).await.map_err(Refusal::Denied)?;
    let old = versioned_old(attributes, resource).await.map_err(Refusal::Denied)?;
    let answer =
        call(Call { cluster, invocation, attributes, mutating: true, object: object.as_ref(), old: old.as_ref() })
            .await?;
    let Some(patch) = answer.patch else { return Ok(false) };
    let patch: Value = serde_json::from_slice(&patch)
        .map_err(|error| Refusal::Failed(format!("received undecodable patch in webhook response: {error}")))?;
    if patch.as_array().is_some_and(Vec::is_empty) {
        return Ok(false);
    }
    let hook = invocation.hook;
    let (Some(value), Some(before)) = (object.as_mut(), attributes.object.as_deref()) else {
        return Err(Refusal::Denied(Status::internal(format!(
            "admission webhook {:?} attempted to modify the object, which is not supported for this operation",
            hook.name
        ))));
    };
    let managed_fields = value.pointer(BOOKS).cloned();
    api::patch::json::apply(value, &patch).map_err(|error| Refusal::Denied(Status::internal(error)))?;
    if before.meta().managed_fields.is_none() && value.pointer(BOOKS) == managed_fields.as_ref() {
        // They go on beside the object.
        value.pointer_mut("/metadata").and_then(Value::as_object_mut).map(|fields| fields.remove("managedFields"));
    }
    let new = stored(attributes, resource, value.take(), &**before).await.map_err(Refusal::Denied)?;
    let changed = !new.same(&**before);
    if let Some(object) = attributes.object.as_deref_mut() {
        *object = new;
    }
    let value =
        json!({"configuration": hook.configuration, "webhook": hook.name, "patch": patch, "patchType": "JSONPatch"});
    attributes.annotate(format!("patch.webhook.admission.k8s.io/{place}"), value.to_string());
    Ok(changed)
}
