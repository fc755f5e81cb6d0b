//! Where a pod came from: the API, or a file or URL of this node.

use api::meta::Meta as _;
use k8s_openapi::api::core::v1::Pod;

pub(crate) const SOURCE: &str = "kubernetes.io/config.source";

/// Whether this is the object that shows a static pod in the API.
pub(crate) fn is_mirror(pod: &Pod) -> bool {
    api::pod::is_mirror(&pod.metadata)
}

/// Whether a pod came from a file or URL of this node rather than from the API. What the API holds has a version, and annotations
/// that say what their author likes.
pub(crate) fn is_static(pod: &Pod) -> bool {
    pod.metadata.resource_version.is_none() && annotation(pod, SOURCE).is_some_and(|source| source != "api")
}

fn annotation<'a>(pod: &'a Pod, name: &str) -> Option<&'a str> {
    pod.metadata.annotation(name)
}
