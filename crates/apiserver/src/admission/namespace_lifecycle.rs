//! NamespaceLifecycle: nothing is created in a namespace that is missing or going away, and some never go away.

use std::sync::Arc;

use api::{GroupResource, Status};
use k8s_openapi::api::core::v1::Namespace;

use super::{Admitted, Attributes, Plugin, Verb, admitted, later};
use crate::cluster::Cluster;
use crate::watch_cache::Unreadable;

pub(super) struct NamespaceLifecycle;

const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

impl Plugin for NamespaceLifecycle {
    fn admit<'a>(&'a self, cluster: &'a Arc<Cluster>, attributes: &'a mut Attributes<'_>) -> Admitted<'a> {
        if attributes.verb == Verb::Delete && attributes.is("", "namespaces") && IMMORTAL.contains(&attributes.name) {
            return Err(attributes.forbidden("this namespace may not be deleted")).into();
        }
        if attributes.verb != Verb::Create || !attributes.resource.is_namespaced() {
            return admitted();
        }
        match phase(cluster, attributes.namespace) {
            Err(unreadable) => Err(unreadable.into()).into(),
            Ok(Some(Phase::Active)) => admitted(),
            Ok(Some(Phase::Terminating)) => Err(terminating(attributes)).into(),
            Ok(None) => later(async move {
                // It may have been created a moment ago.
                cluster.caches.fresh().await?;
                match phase(cluster, attributes.namespace)? {
                    None => Err(Status::not_found(&GroupResource::new("", "namespaces"), attributes.namespace)),
                    Some(Phase::Active) => Ok(()),
                    Some(Phase::Terminating) => Err(terminating(attributes)),
                }
            }),
        }
    }
}

fn terminating(attributes: &Attributes<'_>) -> Status {
    let namespace = attributes.namespace;
    let message = format!("unable to create new content in namespace {namespace} because it is being terminated");
    let cause = format!("namespace {namespace} is being terminated");
    attributes.forbidden(message).with_cause("NamespaceTerminating", cause, "metadata.namespace")
}

enum Phase {
    Active,
    Terminating,
}

fn phase(cluster: &Cluster, namespace: &str) -> Result<Option<Phase>, Unreadable> {
    let Some(entry) = cluster.objects().entry::<Namespace>("", namespace)? else { return Ok(None) };
    // Almost every create asks this: scan instead of decoding.
    let marked = crate::json::find(&entry.stored, &["metadata", "deletionTimestamp"]).is_some();
    Ok(Some(if marked { Phase::Terminating } else { Phase::Active }))
}
