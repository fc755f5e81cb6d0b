//! The pod spec: what Pods and every workload's template share. Defaults, then validation by concern.

pub mod containers;
pub mod defaults;
pub(crate) mod label_keys;
mod os;
pub mod placement;
pub mod probes;
pub mod resources;
pub mod security;
pub mod template;
pub mod validation;
pub mod volumes;
mod warnings;

pub(crate) use warnings::{fractions, node_label, spec_warnings, template_warnings, term_warnings};

use api::field::Path;
use k8s_openapi::api::core::v1::{Container, EphemeralContainer, PodSpec};

use crate::unset::items;

/// Shows every container with its place (`VisitContainersWithPath`, v1.36).
pub(crate) fn each_container(path: &Path<'_>, spec: &PodSpec, mut visit: impl FnMut(&Path<'_>, &Container)) {
    for (list, containers) in [("initContainers", items(&spec.init_containers)), ("containers", &spec.containers)] {
        let path = path.child(list);
        containers.iter().enumerate().for_each(|(i, container)| visit(&path.index(i), container));
    }
    let path = path.child("ephemeralContainers");
    for (i, container) in items(&spec.ephemeral_containers).iter().enumerate() {
        visit(&path.index(i), &as_container(container));
    }
}

/// An ephemeral container seen as a container, for rules that do not care.
pub fn as_container(ephemeral: &EphemeralContainer) -> Container {
    macro_rules! taking {
        ($($shared:ident)*) => {{
            let EphemeralContainer { target_container_name: _, $($shared),* } = ephemeral.clone();
            Container { $($shared),* }
        }};
    }
    taking! {
        args command env env_from image image_pull_policy lifecycle liveness_probe name ports readiness_probe
        resize_policy resources restart_policy restart_policy_rules security_context startup_probe stdin stdin_once
        termination_message_path termination_message_policy tty volume_devices volume_mounts working_dir
    }
}
