//! ServiceAccount: every pod runs as an account and gets a token that lives as long as the pod.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    ConfigMapProjection, DownwardAPIProjection, DownwardAPIVolumeFile, KeyToPath, ObjectFieldSelector, Pod,
    ProjectedVolumeSource, ServiceAccount as Account, ServiceAccountTokenProjection, Volume, VolumeMount,
    VolumeProjection,
};

use super::{Admitted, Attributes, Plugin};
use crate::state::State;

pub(super) struct ServiceAccount;

const MOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const MIRROR: &str = "kubernetes.io/config.mirror";
/// One hour and a little, so that the kubelet renews it before the hour is over (upstream's value).
const TOKEN_SECONDS: i64 = 3607;

impl Plugin for ServiceAccount {
    fn name(&self) -> &'static str {
        "ServiceAccount"
    }

    fn admit<'a>(&'a self, state: &'a Arc<State>, attributes: &'a mut Attributes<'_>) -> Admitted<'a> {
        Box::pin(async move {
            if !attributes.creates("", "pods") {
                return Ok(());
            }
            let namespace = attributes.namespace.to_owned();
            let Some(pod) = attributes.object_mut::<Pod>() else { return Ok(()) };
            // Mirror pods show what already runs; they get nothing.
            if pod.metadata.annotations.as_ref().is_some_and(|annotations| annotations.contains_key(MIRROR)) {
                return Ok(());
            }
            let spec = pod.spec.get_or_insert_default();
            let name = spec
                .service_account_name
                .clone()
                .filter(|name| !name.is_empty())
                .unwrap_or_else(|| "default".to_owned());
            spec.service_account_name = Some(name.clone());
            spec.service_account = Some(name.clone());
            let key = format!("{namespace}/{name}");
            let mut account: Option<Account> = state.peek("serviceaccounts", &key);
            if account.is_none() {
                state.caches.fresh().await?;
                account = state.peek("serviceaccounts", &key);
            }
            let Some(account) = account else {
                return Err(attributes
                    .forbidden(format!("error looking up service account {key}: serviceaccounts {name:?} not found")));
            };
            let Some(pod) = attributes.object_mut::<Pod>() else { return Ok(()) };
            let spec = pod.spec.get_or_insert_default();
            if spec.image_pull_secrets.as_ref().is_none_or(Vec::is_empty) {
                spec.image_pull_secrets.clone_from(&account.image_pull_secrets);
            }
            let mount =
                spec.automount_service_account_token.or(account.automount_service_account_token).unwrap_or(true);
            if mount {
                mount_token(pod);
            }
            Ok(())
        })
    }
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
        None => crate::verbs::generate_name("kube-api-access-"),
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
    use k8s_openapi::api::core::v1::{Container, PodSpec};

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
