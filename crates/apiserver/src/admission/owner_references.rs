//! OwnerReferencesPermissionEnforcement: who makes an object an owner's dependent can have it deleted, or hold up the
//! owner's deletion; both need the right to do so directly.

use std::sync::Arc;

use api::Status;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use super::{Admitted, Attributes, Plugin, Verb, admitted, later};
use crate::authz;
use crate::cluster::Cluster;

pub(super) struct OwnerReferencesPermissionEnforcement;

impl Plugin for OwnerReferencesPermissionEnforcement {
    fn validate<'a>(&'a self, cluster: &'a Arc<Cluster>, attributes: &'a Attributes<'_>) -> Admitted<'a> {
        let writes = matches!(attributes.verb, Verb::Create | Verb::Update);
        // A kubelet writes the status of pods that have owners.
        let is_pod_status = attributes.is("", "pods") && attributes.subresource == "status";
        if !writes || is_pod_status || owners(attributes) == old_owners(attributes) {
            return admitted();
        }
        later(check(cluster, attributes))
    }
}

fn owners<'a>(attributes: &'a Attributes<'_>) -> &'a [OwnerReference] {
    let meta = attributes.object.as_deref().map(|object| object.meta());
    meta.and_then(|meta| meta.owner_references.as_deref()).unwrap_or_default()
}

fn old_owners<'a>(attributes: &Attributes<'a>) -> &'a [OwnerReference] {
    let meta = attributes.old.map(|object| object.meta());
    meta.and_then(|meta| meta.owner_references.as_deref()).unwrap_or_default()
}

async fn check(cluster: &Cluster, attributes: &Attributes<'_>) -> Result<(), Status> {
    let decide = |asked: authz::Attributes| async move { cluster.authz.decide(attributes.user(), &asked).await };
    if attributes.verb != Verb::Create {
        let decision = decide(authz::Attributes {
            is_resource: true,
            verb: registry::Verb::Delete,
            group: attributes.resource.group.to_string(),
            resource: attributes.resource.plural.to_string(),
            subresource: attributes.subresource.to_owned(),
            namespace: attributes.namespace.to_owned(),
            name: attributes.name.to_owned(),
            ..Default::default()
        })
        .await;
        if !decision.allowed {
            let message = format!("cannot set an ownerRef on a resource you can't delete: {}, <nil>", decision.reason);
            return Err(attributes.forbidden(message));
        }
    }
    let before = old_owners(attributes);
    let blocks = |owner: &OwnerReference| owner.block_owner_deletion == Some(true);
    let new: Vec<&OwnerReference> = owners(attributes)
        .iter()
        .filter(|owner| blocks(owner) && !before.iter().any(|old| old.uid == owner.uid && blocks(old)))
        .collect();
    let finalizers = |group: &str, resource: &str, namespace: &str, name: &str| authz::Attributes {
        is_resource: true,
        verb: registry::Verb::Update,
        group: group.to_owned(),
        resource: resource.to_owned(),
        subresource: "finalizers".to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        ..Default::default()
    };
    if new.is_empty() || decide(finalizers("*", "*", "", "*")).await.allowed {
        return Ok(());
    }
    let table = cluster.registry.table();
    for owner in new {
        let (group, version) = owner.api_version.split_once('/').unwrap_or(("", &owner.api_version));
        let rows = table.rows().iter();
        let row = rows.clone().find(|row| row.group == group && row.version == version && row.kind == owner.kind);
        let Some(row) = row else {
            let (version, kind) = (&owner.api_version, &owner.kind);
            return Err(attributes.forbidden(format!(
                "cannot set blockOwnerDeletion in this case because cannot find RESTMapping for APIVersion {version} Kind {kind}: \
                 no matches for kind {kind:?} in version {version:?}"
            )));
        };
        let namespace = if row.is_namespaced() { attributes.namespace } else { "" };
        let decision = decide(finalizers(&row.group, &row.plural, namespace, &owner.name)).await;
        if !decision.allowed {
            let message = format!(
                "cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on: {}, <nil>",
                decision.reason
            );
            return Err(attributes.forbidden(message));
        }
    }
    Ok(())
}
