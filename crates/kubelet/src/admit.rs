//! What a node refuses to run although it was bound to it. Pure.

use k8s_openapi::api::core::v1::Pod;

use crate::config::Settings;
use crate::containers;
use crate::status::Ended;

/// The reason not to run a pod, if there is one. It is told as a failed pod, never retried.
pub(crate) fn reject(pod: &Pod, settings: &Settings) -> Option<Ended> {
    if let Some(name) = containers::forbidden_sysctl(pod, &settings.allowed_unsafe_sysctls) {
        return Some(rejected("SysctlForbidden", format!("forbidden sysctl: {name:?} not allowlisted")));
    }
    let os = pod.spec.as_ref().and_then(|spec| spec.os.as_ref()).map(|os| os.name.as_str());
    if let Some(os) = os.filter(|os| *os != "linux") {
        return Some(rejected(
            "PodOSNotSupported",
            format!("Failed to admit pod as the OS field {os:?} doesn't match node OS \"linux\""),
        ));
    }
    None
}

fn rejected(reason: &str, cause: String) -> Ended {
    Ended { reason: reason.into(), message: format!("Pod was rejected: {cause}"), disruption: None }
}
