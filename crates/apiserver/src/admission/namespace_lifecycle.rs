//! NamespaceLifecycle: nothing is created in a namespace that is missing or going away, and some never go away.

use std::sync::Arc;

use api::{GroupResource, Status};

use super::{Admitted, Attributes, Plugin, Verb};
use crate::state::State;

pub(super) struct NamespaceLifecycle;

const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

impl Plugin for NamespaceLifecycle {
    fn name(&self) -> &'static str {
        "NamespaceLifecycle"
    }

    fn admit<'a>(&'a self, state: &'a Arc<State>, attributes: &'a mut Attributes<'_>) -> Admitted<'a> {
        Box::pin(async move {
            if attributes.verb != Verb::Create || !attributes.resource.is_namespaced() {
                return Ok(());
            }
            let namespace = attributes.namespace;
            let mut found = phase(state, namespace);
            if found.is_none() {
                // It may have been created a moment ago.
                state.caches.fresh().await?;
                found = phase(state, namespace);
            }
            match found {
                None => Err(Status::not_found(&GroupResource::new("", "namespaces"), namespace)),
                Some(Phase::Active) => Ok(()),
                Some(Phase::Terminating) => {
                    let message =
                        format!("unable to create new content in namespace {namespace} because it is being terminated");
                    Err(attributes.forbidden(message).with_cause(
                        "NamespaceTerminating",
                        format!("namespace {namespace} is being terminated"),
                        "metadata.namespace",
                    ))
                }
            }
        })
    }

    fn validate<'a>(&'a self, _: &'a Arc<State>, attributes: &'a Attributes<'_>) -> Admitted<'a> {
        let protected =
            attributes.verb == Verb::Delete && attributes.is("", "namespaces") && IMMORTAL.contains(&attributes.name);
        let refusal = protected.then(|| attributes.forbidden("this namespace may not be deleted"));
        Box::pin(std::future::ready(refusal.map_or(Ok(()), Err)))
    }
}

enum Phase {
    Active,
    Terminating,
}

fn phase(state: &State, namespace: &str) -> Option<Phase> {
    let entry = state.caches.get("namespaces")?.get(namespace)?;
    // Almost every create asks this: scan instead of decoding.
    let marked = crate::json::find(&entry.stored, &["metadata", "deletionTimestamp"]).is_some();
    Some(if marked { Phase::Terminating } else { Phase::Active })
}
