//! The pod spec: what Pods and every workload's template share. Defaults, then validation by concern.

pub mod containers;
pub mod defaults;
pub(crate) mod label_keys;
pub mod placement;
pub mod probes;
pub mod resources;
pub mod security;
pub mod template;
pub mod validation;
pub mod volumes;
mod warnings;

pub(crate) use warnings::{annotation_warnings, template_warnings};

use k8s_openapi::api::core::v1::{Container, EphemeralContainer};

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
