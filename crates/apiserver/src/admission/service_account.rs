//! ServiceAccount: every pod runs as an account and gets a token that lives as long as the pod.

use std::sync::Arc;

use api::Status;
use api::meta::Meta as _;
use api::pod::is_mirror;
use k8s_openapi::api::core::v1::{
    ConfigMapProjection, DownwardAPIProjection, DownwardAPIVolumeFile, KeyToPath, ObjectFieldSelector, Pod, PodSpec,
    ProjectedVolumeSource, ServiceAccount as Account, ServiceAccountTokenProjection, Volume, VolumeMount,
    VolumeProjection,
};

use super::{Admitted, Attributes, Plugin, Verb, admitted, later, secret_references};
use crate::cluster::Cluster;

pub(super) struct ServiceAccount;

const MOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// One hour and a little, so that the kubelet renews it before the hour is over (upstream's value).
const TOKEN_SECONDS: i64 = 3607;

impl Plugin for ServiceAccount {
    fn admit<'a>(&'a self, cluster: &'a Arc<Cluster>, attributes: &'a mut Attributes<'_>) -> Admitted<'a> {
        // Mirror pods show what already runs; they get nothing.
        if !attributes.creates("", "pods") || attributes.object_ref::<Pod>().is_none_or(|pod| is_mirror(&pod.metadata))
        {
            return admitted();
        }
        later(async move {
            let pod = attributes.object_mut::<Pod>();
            let Some(spec) = pod.map(|pod| pod.spec.get_or_insert_default()) else { return Ok(()) };
            let named = spec.service_account_name.take().filter(|name| !name.is_empty());
            let name = named.unwrap_or_else(|| "default".to_owned());
            spec.service_account_name = Some(name.clone());
            spec.service_account = Some(name.clone());
            let account = find(cluster, attributes, &name).await?;
            let Some(pod) = attributes.object_mut::<Pod>() else { return Ok(()) };
            let spec = pod.spec.get_or_insert_default();
            if spec.image_pull_secrets.as_ref().is_none_or(Vec::is_empty) {
                spec.image_pull_secrets.clone_from(&account.image_pull_secrets);
            }
            let wanted = spec.automount_service_account_token.or(account.automount_service_account_token);
            if wanted.unwrap_or(true) {
                mount_token(pod);
            }
            Ok(())
        })
    }

    fn validate<'a>(&'a self, cluster: &'a Arc<Cluster>, attributes: &'a Attributes<'_>) -> Admitted<'a> {
        let adds_ephemeral = attributes.verb == Verb::Update
            && attributes.subresource == "ephemeralcontainers"
            && attributes.is("", "pods");
        if !attributes.creates("", "pods") && !adds_ephemeral {
            return admitted();
        }
        let Some(pod) = attributes.object_ref::<Pod>() else { return admitted() };
        let Some(spec) = &pod.spec else { return admitted() };
        if is_mirror(&pod.metadata) && !adds_ephemeral {
            return mirror_refusal(spec).map_or(Ok(()), |problem| Err(attributes.forbidden(problem))).into();
        }
        later(async move {
            let name = spec.service_account_name.as_deref().unwrap_or_default();
            if name.is_empty() {
                let (namespace, pod) = (attributes.namespace, pod.metadata.name());
                return Err(attributes.forbidden(format!("no service account specified for pod {namespace}/{pod}")));
            }
            let account = find(cluster, attributes, name).await?;
            secret_references::refusal(&account, spec).map_or(Ok(()), |problem| Err(attributes.forbidden(problem)))
        })
    }
}

/// A mirror pod runs with the kubelet's own rights; it may not name those of others.
fn mirror_refusal(spec: &PodSpec) -> Option<&'static str> {
    let mut projected = spec.volumes.iter().flatten().filter_map(|volume| volume.projected.as_ref());
    if spec.service_account_name.as_ref().is_some_and(|name| !name.is_empty()) {
        Some("a mirror pod may not reference service accounts")
    } else if secret_references::any(spec) {
        Some("a mirror pod may not reference secrets")
    } else if projected.any(|list| list.sources.iter().flatten().any(|source| source.service_account_token.is_some())) {
        Some("a mirror pod may not use ServiceAccountToken volume projections")
    } else {
        None
    }
}

async fn find(cluster: &Cluster, attributes: &Attributes<'_>, name: &str) -> Result<Arc<Account>, Status> {
    let namespace = attributes.namespace;
    let mut account = cluster.objects().get::<Account>(namespace, name)?;
    if account.is_none() {
        cluster.caches.fresh().await?;
        account = cluster.objects().get::<Account>(namespace, name)?;
    }
    account.ok_or_else(|| {
        let message = format!("error looking up service account {namespace}/{name}: serviceaccount {name:?} not found");
        attributes.forbidden(message)
    })
}

fn mount_token(pod: &mut Pod) {
    let Some(spec) = pod.spec.as_mut() else { return };
    let containers = || spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let has_mount =
        |mounts: &Option<Vec<VolumeMount>>| mounts.iter().flatten().any(|mount| mount.mount_path == MOUNT_PATH);
    if containers().all(|container| has_mount(&container.volume_mounts)) {
        return;
    }
    let existing = spec.volumes.iter().flatten().find(|volume| volume.name.starts_with("kube-api-access-"));
    let name = match existing {
        Some(volume) => volume.name.clone(),
        None => crate::stamp::generate_name("kube-api-access-"),
    };
    if existing.is_none() {
        spec.volumes.get_or_insert_default().push(token_volume(&name));
    }
    let mount = VolumeMount { name, mount_path: MOUNT_PATH.to_owned(), read_only: Some(true), ..Default::default() };
    for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
        if !has_mount(&container.volume_mounts) {
            container.volume_mounts.get_or_insert_default().push(mount.clone());
        }
    }
}

fn token_volume(name: &str) -> Volume {
    let token = VolumeProjection {
        service_account_token: Some(ServiceAccountTokenProjection {
            expiration_seconds: Some(TOKEN_SECONDS),
            path: "token".to_owned(),
            ..Default::default()
        }),
        ..Default::default()
    };
    let authority = VolumeProjection {
        config_map: Some(ConfigMapProjection {
            name: "kube-root-ca.crt".to_owned(),
            items: Some(vec![KeyToPath { key: "ca.crt".to_owned(), path: "ca.crt".to_owned(), mode: None }]),
            optional: None,
        }),
        ..Default::default()
    };
    let namespace = VolumeProjection {
        downward_api: Some(DownwardAPIProjection {
            items: Some(vec![DownwardAPIVolumeFile {
                path: "namespace".to_owned(),
                field_ref: Some(ObjectFieldSelector {
                    api_version: Some("v1".to_owned()),
                    field_path: "metadata.namespace".to_owned(),
                }),
                ..Default::default()
            }]),
        }),
        ..Default::default()
    };
    Volume {
        name: name.to_owned(),
        projected: Some(ProjectedVolumeSource {
            default_mode: Some(0o644),
            sources: Some(vec![token, authority, namespace]),
        }),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::Container;

    #[test]
    fn every_container_gets_the_token_once() {
        let mut pod = Pod {
            spec: Some(PodSpec {
                containers: vec![Container::default(), Container::default()],
                init_containers: Some(vec![Container::default()]),
                ..Default::default()
            }),
            ..Default::default()
        };
        mount_token(&mut pod);
        mount_token(&mut pod);
        let spec = pod.spec.unwrap();
        assert_eq!(spec.volumes.unwrap().len(), 1);
        for container in spec.containers.iter().chain(spec.init_containers.iter().flatten()) {
            assert_eq!(container.volume_mounts.as_ref().unwrap().len(), 1);
        }
    }
}
