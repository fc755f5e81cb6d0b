//! A pod, or the template of one, as the checks look at it; and the words their messages share.

use k8s_openapi::api::core::v1::{ContainerPort, Lifecycle, PodSecurityContext, PodSpec, Probe, SecurityContext};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

pub(super) struct Subject<'a> {
    pub(super) metadata: &'a ObjectMeta,
    pub(super) spec: &'a PodSpec,
    /// Init containers, containers and ephemeral containers, in this order.
    pub(super) containers: Vec<Container<'a>>,
}

/// What ordinary and ephemeral containers have in common.
pub(super) struct Container<'a> {
    pub(super) name: &'a str,
    pub(super) security: Option<&'a SecurityContext>,
    pub(super) ports: &'a [ContainerPort],
    pub(super) probes: [Option<&'a Probe>; 3],
    pub(super) lifecycle: Option<&'a Lifecycle>,
}

impl<'a> Subject<'a> {
    pub(super) fn new(metadata: &'a ObjectMeta, spec: &'a PodSpec) -> Self {
        // Two types with the same fields.
        macro_rules! seen {
            () => {
                |container| Container {
                    name: &container.name,
                    security: container.security_context.as_ref(),
                    ports: container.ports.as_deref().unwrap_or_default(),
                    probes: [
                        container.liveness_probe.as_ref(),
                        container.readiness_probe.as_ref(),
                        container.startup_probe.as_ref(),
                    ],
                    lifecycle: container.lifecycle.as_ref(),
                }
            };
        }
        let ordinary = spec.init_containers.iter().flatten().chain(&spec.containers).map(seen!());
        let ephemeral = spec.ephemeral_containers.iter().flatten().map(seen!());
        Self { metadata, spec, containers: ordinary.chain(ephemeral).collect() }
    }

    pub(super) fn security(&self) -> Option<&'a PodSecurityContext> {
        self.spec.security_context.as_ref()
    }

    pub(super) fn is_windows(&self) -> bool {
        self.spec.os.as_ref().is_some_and(|os| os.name == "windows")
    }

    /// The names of the containers for which `is_bad` holds.
    pub(super) fn containers_that(&self, mut is_bad: impl FnMut(&Container<'a>) -> bool) -> Vec<&'a str> {
        self.containers.iter().filter(|container| is_bad(container)).map(|container| container.name).collect()
    }
}

pub(super) fn quoted<T: AsRef<str>>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<String> = items.into_iter().map(|item| format!("\"{}\"", item.as_ref())).collect();
    items.join(", ")
}

pub(super) fn plural<'a>(one: &'a str, many: &'a str, count: usize) -> &'a str {
    if count == 1 { one } else { many }
}

/// `container "a"` or `containers "a", "b"`.
pub(super) fn containers(names: &[&str]) -> String {
    format!("{} {}", plural("container", "containers", names.len()), quoted(names))
}

/// `pod and containers "a", "b"`: everything that set a wrong value.
pub(super) fn setters(pod: bool, names: &[&str]) -> Option<String> {
    let pod = pod.then(|| "pod".to_owned());
    let named = (!names.is_empty()).then(|| containers(names));
    let all: Vec<String> = pod.into_iter().chain(named).collect();
    (!all.is_empty()).then(|| all.join(" and "))
}
