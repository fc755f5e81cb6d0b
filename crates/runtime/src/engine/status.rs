//! Sandboxes and containers in the words of CRI.

use cri::v1;

use super::{Container, Engine, Sandbox};
use crate::pod_config::namespace_options;
use crate::signal;

pub(crate) fn of_sandbox(sandbox: &Sandbox) -> v1::PodSandboxStatus {
    let ready = sandbox.is_ready();
    let record = sandbox.record.lock();
    let (first, rest) = match record.ips.split_first() {
        Some((first, rest)) => (first.clone(), rest.to_vec()),
        None => (String::new(), Vec::new()),
    };
    v1::PodSandboxStatus {
        id: record.id.clone(),
        metadata: record.config.metadata.clone(),
        state: sandbox_state(ready).into(),
        created_at: record.created_at,
        network: Some(v1::PodSandboxNetworkStatus {
            ip: first,
            additional_ips: rest.into_iter().map(|ip| v1::PodIp { ip }).collect(),
        }),
        linux: Some(v1::LinuxPodSandboxStatus {
            namespaces: Some(v1::Namespace { options: Some(namespace_options(&record.config)) }),
        }),
        labels: record.config.labels.clone(),
        annotations: record.config.annotations.clone(),
        runtime_handler: record.runtime_handler.clone(),
    }
}

pub(crate) fn sandbox_summary(sandbox: &Sandbox) -> v1::PodSandbox {
    let ready = sandbox.is_ready();
    let record = sandbox.record.lock();
    v1::PodSandbox {
        id: record.id.clone(),
        metadata: record.config.metadata.clone(),
        state: sandbox_state(ready).into(),
        created_at: record.created_at,
        labels: record.config.labels.clone(),
        annotations: record.config.annotations.clone(),
        runtime_handler: record.runtime_handler.clone(),
    }
}

fn sandbox_state(ready: bool) -> v1::PodSandboxState {
    match ready {
        true => v1::PodSandboxState::SandboxReady,
        false => v1::PodSandboxState::SandboxNotready,
    }
}

pub(crate) fn of_container(engine: &Engine, container: &Container) -> v1::ContainerStatus {
    let state = container.state();
    let status = container.status.borrow().clone();
    let record = container.record.lock();
    let image = record.config.image.clone().unwrap_or_default();
    // The name the image is known by now, as other runtimes show it.
    let shown = engine
        .images
        .get(&record.image_id)
        .and_then(|i| i.tags.first().or(i.digests.first()).cloned())
        .unwrap_or_else(|| image.image.clone());
    v1::ContainerStatus {
        id: record.id.clone(),
        metadata: record.config.metadata.clone(),
        state: state.into(),
        created_at: record.created_at,
        started_at: status.started_at,
        finished_at: status.finished_at,
        exit_code: status.exit_code,
        image: Some(v1::ImageSpec { image: shown, ..image }),
        image_ref: record.image_ref.clone(),
        image_id: record.image_id.clone(),
        reason: status.reason.clone(),
        message: status.message.clone(),
        labels: record.config.labels.clone(),
        annotations: record.config.annotations.clone(),
        mounts: record.config.mounts.clone(),
        log_path: record.log_path.clone(),
        resources: record.resources.clone().map(|linux| v1::ContainerResources { linux: Some(linux), windows: None }),
        user: (status.started_at != 0 && status.pid != 0).then(|| v1::ContainerUser {
            linux: Some(v1::LinuxContainerUser {
                uid: status.uid.into(),
                gid: status.gid.into(),
                supplemental_groups: status.groups.iter().map(|g| i64::from(*g)).collect(),
            }),
        }),
        stop_signal: signal::to_cri(record.stop_signal).into(),
    }
}

pub(crate) fn container_summary(container: &Container) -> v1::Container {
    let state = container.state();
    let record = container.record.lock();
    v1::Container {
        id: record.id.clone(),
        pod_sandbox_id: record.sandbox.clone(),
        metadata: record.config.metadata.clone(),
        image: record.config.image.clone(),
        image_ref: record.image_ref.clone(),
        image_id: record.image_id.clone(),
        state: state.into(),
        created_at: record.created_at,
        labels: record.config.labels.clone(),
        annotations: record.config.annotations.clone(),
    }
}
