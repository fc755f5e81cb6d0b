//! What a pod is to everybody alike: whether it has ended, what it asks for, how much of that is promised.
//!
//! Flow: API server, controllers, scheduler and kubelet ask here; none of them spells these rules out again.

pub mod qos;
pub mod resources;

use k8s_openapi::api::core::v1::{Container, Pod};

/// The pod's phase; empty if it has none yet.
pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// Ran to its end, well or badly: it holds nothing on its node and never runs again (`IsPodTerminal`, v1.36).
pub fn is_terminal(pod: &Pod) -> bool {
    is_terminal_phase(phase(pod))
}

/// As [`is_terminal`], of a phase.
pub fn is_terminal_phase(phase: &str) -> bool {
    matches!(phase, "Succeeded" | "Failed")
}

/// An init container that keeps running beside those after it.
pub fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::PodStatus;

    #[test]
    fn pods_end_in_two_ways() {
        for (phase, expected) in [
            (None, false),
            (Some(""), false),
            (Some("Pending"), false),
            (Some("Running"), false),
            (Some("Unknown"), false),
            (Some("Succeeded"), true),
            (Some("Failed"), true),
        ] {
            let status = PodStatus { phase: phase.map(str::to_owned), ..PodStatus::default() };
            assert_eq!(is_terminal(&Pod { status: Some(status), ..Pod::default() }), expected, "{phase:?}");
        }
        assert!(!is_terminal(&Pod::default()));
    }
}
