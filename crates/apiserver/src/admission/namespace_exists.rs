//! NamespaceExists and NamespaceAutoProvision: writes into a namespace that is missing are refused, or make it.

use std::sync::Arc;

use api::{GroupResource, Status};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{Admitted, Attributes, Plugin, Verb, admitted, later};
use crate::cluster::Cluster;

fn is_there(cluster: &Cluster, namespace: &str) -> bool {
    cluster.caches.get("namespaces").is_some_and(|cache| cache.get(namespace).is_some())
}

fn concerns(attributes: &Attributes<'_>) -> bool {
    attributes.resource.is_namespaced() && !attributes.namespace.is_empty()
}

pub(super) struct NamespaceExists;

impl Plugin for NamespaceExists {
    fn validate<'a>(&'a self, cluster: &'a Arc<Cluster>, attributes: &'a Attributes<'_>) -> Admitted<'a> {
        if attributes.verb == Verb::Connect || !concerns(attributes) || is_there(cluster, attributes.namespace) {
            return admitted();
        }
        later(async move {
            cluster.caches.fresh().await?;
            if is_there(cluster, attributes.namespace) {
                return Ok(());
            }
            Err(Status::not_found(&GroupResource::new("", "namespaces"), attributes.namespace))
        })
    }
}

pub(super) struct NamespaceAutoProvision;

impl Plugin for NamespaceAutoProvision {
    fn admit<'a>(&'a self, cluster: &'a Arc<Cluster>, attributes: &'a mut Attributes<'_>) -> Admitted<'a> {
        let needed = attributes.verb == Verb::Create && !attributes.dry_run && concerns(attributes);
        if !needed || is_there(cluster, attributes.namespace) {
            return admitted();
        }
        later(async move {
            let Some(resource) = cluster.registry.find("", "v1", "namespaces") else { return Ok(()) };
            let name = attributes.namespace;
            let metadata = ObjectMeta { name: Some(name.to_owned()), ..Default::default() };
            let namespace = Namespace { metadata, ..Default::default() };
            match cluster.own()?.create(&resource, Box::new(namespace)).await {
                Ok(()) => Ok(()),
                Err(status) if status.is_already_exists() => Ok(()),
                Err(status) => Err(attributes.forbidden(status.message)),
            }?;
            // The plug-ins after this one look it up.
            cluster.caches.fresh().await.map(drop).map_err(Status::from)
        })
    }
}
