//! What a pod is to everybody alike: whether it has ended, what it asks for, how much of that is promised.
//!
//! Flow: API server, controllers, scheduler and kubelet ask here; none of them spells these rules out again.

pub mod qos;
pub mod resources;

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::cached;
use crate::meta::Meta as _;

/// The annotation of a pod that shows a static pod of its node in the API.
pub const MIRROR: &str = "kubernetes.io/config.mirror";

/// A namespace of the kernel that a pod may share with its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shared {
    Ipc,
    Net,
}

/// Whose setting a sysctl changes, if it is that of a namespace; names may be written with slashes.
pub fn namespace_of_sysctl(name: &str) -> Option<Shared> {
    let name = name.replace('/', ".");
    let is_ipc = ["kernel.sem", "kernel.shm", "kernel.msg", "fs.mqueue."].iter().any(|start| name.starts_with(start));
    is_ipc.then_some(Shared::Ipc).or_else(|| name.starts_with("net.").then_some(Shared::Net))
}

/// A pod as the API has it, or as a cache does.
pub trait AnyPod {
    /// Without the name of its node, and the token volume by any name.
    fn spec(&self) -> Option<&PodSpec>;
    fn phase(&self) -> Option<&str>;
    fn qos_class(&self) -> Option<&str>;
    /// What it says of a condition: `True`, `False` or `Unknown`.
    fn condition(&self, kind: &str) -> Option<&str>;
}

impl AnyPod for Pod {
    fn spec(&self) -> Option<&PodSpec> {
        self.spec.as_ref()
    }
    fn phase(&self) -> Option<&str> {
        self.status.as_ref()?.phase.as_deref()
    }
    fn qos_class(&self) -> Option<&str> {
        self.status.as_ref()?.qos_class.as_deref()
    }
    fn condition(&self, kind: &str) -> Option<&str> {
        status_condition(self.status.as_ref()?, kind)
    }
}

impl AnyPod for cached::Pod {
    fn spec(&self) -> Option<&PodSpec> {
        self.spec.as_deref()
    }
    fn phase(&self) -> Option<&str> {
        self.status.as_ref()?.phase.as_deref()
    }
    fn qos_class(&self) -> Option<&str> {
        self.status.as_ref()?.qos_class.as_deref()
    }
    fn condition(&self, kind: &str) -> Option<&str> {
        let conditions = self.status.as_ref()?.conditions.as_ref()?;
        conditions.iter().find(|condition| condition.type_ == kind).map(|condition| condition.status.as_str())
    }
}

impl<P: AnyPod> AnyPod for Arc<P> {
    fn spec(&self) -> Option<&PodSpec> {
        P::spec(self)
    }
    fn phase(&self) -> Option<&str> {
        P::phase(self)
    }
    fn qos_class(&self) -> Option<&str> {
        P::qos_class(self)
    }
    fn condition(&self, kind: &str) -> Option<&str> {
        P::condition(self, kind)
    }
}

impl<P: AnyPod> AnyPod for &P {
    fn spec(&self) -> Option<&PodSpec> {
        P::spec(self)
    }
    fn phase(&self) -> Option<&str> {
        P::phase(self)
    }
    fn qos_class(&self) -> Option<&str> {
        P::qos_class(self)
    }
    fn condition(&self, kind: &str) -> Option<&str> {
        P::condition(self, kind)
    }
}

/// The pod's phase; empty if it has none yet.
pub fn phase(pod: &impl AnyPod) -> &str {
    pod.phase().unwrap_or_default()
}

/// Ran to its end, well or badly: it holds nothing on its node and never runs again (`IsPodTerminal`, v1.36).
pub fn is_terminal(pod: &impl AnyPod) -> bool {
    is_terminal_phase(phase(pod))
}

/// As [`is_terminal`], of a phase.
pub fn is_terminal_phase(phase: &str) -> bool {
    matches!(phase, "Succeeded" | "Failed")
}

/// Takes requests, as far as it knows itself.
pub fn is_ready(pod: &impl AnyPod) -> bool {
    pod.condition("Ready") == Some("True")
}

/// As [`is_ready`], of a status.
pub fn status_is_ready(status: &PodStatus) -> bool {
    status_condition(status, "Ready") == Some("True")
}

fn status_condition<'a>(status: &'a PodStatus, kind: &str) -> Option<&'a str> {
    let conditions = status.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == kind).map(|condition| condition.status.as_str())
}

/// Whether this is the object that shows a static pod in the API.
pub fn is_mirror(metadata: &ObjectMeta) -> bool {
    metadata.annotation(MIRROR).is_some()
}

/// An init container that keeps running beside those after it.
pub fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PodCondition;

    use super::*;

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

    #[test]
    fn a_pod_is_ready_when_its_condition_says_so() {
        for (kind, status, expected) in [("Ready", "True", true), ("Ready", "False", false), ("Other", "True", false)] {
            let condition = PodCondition { type_: kind.into(), status: status.into(), ..PodCondition::default() };
            let status = PodStatus { conditions: Some(vec![condition]), ..PodStatus::default() };
            assert_eq!(status_is_ready(&status), expected, "{kind}");
            let pod = Pod { status: Some(status), ..Pod::default() };
            assert_eq!((is_ready(&pod), is_ready(&cached::Pod::from(pod))), (expected, expected), "{kind}");
        }
        assert!(!is_ready(&Pod::default()));
    }
}
